//! How keys, fields, members and their bookkeeping lie in the store.
//!
//! Every key of the store begins with the slot (2 bytes) and a kind (1 byte), so that a range of
//! slots is a range of keys:
//!
//! | kind | then | value |
//! |---|---|---|
//! | [`RECORD`] | | how many keys the slot has, and which generation of heads counts |
//! | [`HEAD`] | generation 2, hash 6, key | type, expiry, and a string or where a collection lies |
//! | [`FIELD`] | collection 8, field | value of a hash's field |
//! | [`MEMBER`] | collection 8, member | score of a sorted set's member |
//! | [`ORDER`] | collection 8, score 8, member | empty |
//! | [`EXPIRY`] | time 8, hash 6, key | empty |
//! | [`GARBAGE`] | collection 8 | empty: a removed collection whose pairs are still there |
//!
//! The hash before the key gives SCAN a numeric cursor without state: slot and hash. The generation
//! makes FLUSHALL a change of one pair for each slot. A collection has a random number of its own,
//! so that removing and renaming it need not touch its pairs.

use crate::slot::slot;

/// The record of a slot.
pub(crate) const RECORD: u8 = 0x00;
/// Heads of keys.
pub(crate) const HEAD: u8 = 0x10;
/// Fields of hashes.
pub(crate) const FIELD: u8 = 0x20;
/// Members of sorted sets.
pub(crate) const MEMBER: u8 = 0x30;
/// Members of sorted sets in order of their scores.
pub(crate) const ORDER: u8 = 0x31;
/// Keys in order of the time when they end.
pub(crate) const EXPIRY: u8 = 0x40;
/// Removed collections whose pairs are still there.
pub(crate) const GARBAGE: u8 = 0x50;

/// Longest key of a user, field and member: with what lies before it, it is a key of the store.
pub const KEY_MAX: usize = 4_000;

/// Bytes of a head before its key: slot, kind, generation, hash.
pub(crate) const HEAD_PREFIX: usize = 2 + 1 + 2 + 6;
/// Bytes of an expiry before its key: slot, kind, time, hash.
pub(crate) const EXPIRY_PREFIX: usize = 2 + 1 + 8 + 6;
/// Bytes of a pair of a collection before the field or member.
pub(crate) const ELEMENT_PREFIX: usize = 2 + 1 + 8;
/// Bits of the hash of a key.
pub(crate) const HASH_BITS: u32 = 48;

/// Slot and kind.
pub(crate) fn area(slot: u16, kind: u8) -> Vec<u8> {
    let [high, low] = slot.to_be_bytes();
    vec![high, low, kind]
}

/// The hash of a key, 48 bits: FNV-1a, mixed so that all bits depend on all bytes.
pub(crate) fn hash(key: &[u8]) -> u64 {
    let fnv = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv) >> (64 - HASH_BITS)
}

/// The last step of splitmix64: a bijection whose bits look random.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn hash_bytes(hash: u64) -> [u8; 6] {
    let bytes = hash.to_be_bytes();
    [bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

/// The hash in six bytes.
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().take(6).fold(0, |hash, byte| hash << 8 | u64::from(*byte))
}

/// The heads of a slot from a hash on.
pub(crate) fn heads(slot: u16, generation: u16, hash: u64) -> Vec<u8> {
    let mut place = area(slot, HEAD);
    place.extend_from_slice(&generation.to_be_bytes());
    place.extend_from_slice(&hash_bytes(hash));
    place
}

/// The head of a key.
pub(crate) fn head(generation: u16, key: &[u8]) -> Vec<u8> {
    let mut place = heads(slot(key), generation, hash(key));
    place.extend_from_slice(key);
    place
}

/// The expiry of a key.
pub(crate) fn expiry(at: u64, key: &[u8]) -> Vec<u8> {
    let mut place = area(slot(key), EXPIRY);
    place.extend_from_slice(&at.to_be_bytes());
    place.extend_from_slice(&hash_bytes(hash(key)));
    place.extend_from_slice(key);
    place
}

/// All pairs of one kind of a collection.
pub(crate) fn elements(slot: u16, kind: u8, collection: u64) -> Vec<u8> {
    let mut place = area(slot, kind);
    place.extend_from_slice(&collection.to_be_bytes());
    place
}

/// A field of a hash, or a member of a sorted set.
pub(crate) fn element(slot: u16, kind: u8, collection: u64, name: &[u8]) -> Vec<u8> {
    let mut place = elements(slot, kind, collection);
    place.extend_from_slice(name);
    place
}

/// The first key behind all that begin with this one; `None` when there is none.
pub(crate) fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A string of so many bytes.
    Text(usize),
    /// A hash.
    Hash(Collection),
    /// A sorted set.
    Sorted(Collection),
}

/// Where the pairs of a collection lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collection {
    /// Its number, random.
    pub id: u64,
    /// How many fields or members it has; never 0.
    pub count: u64,
}

/// A head without the bytes of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// When the key ends, in milliseconds since 1970.
    pub expires: Option<u64>,
    /// The type.
    pub body: Body,
}

/// As many bytes of a head as are needed to know all but a string.
pub(crate) const HEAD_START: usize = 1 + 8 + 16;

const TEXT: u8 = 0;
const HASH: u8 = 1;
const SORTED: u8 = 2;
const EXPIRES: u8 = 0x80;

impl Head {
    /// The value of the pair; `text` are the bytes of a string.
    pub(crate) fn encode(&self, text: &[u8]) -> Vec<u8> {
        let mut value = Vec::with_capacity(HEAD_START.max(9 + text.len()));
        let (kind, collection) = match self.body {
            Body::Text(_) => (TEXT, None),
            Body::Hash(collection) => (HASH, Some(collection)),
            Body::Sorted(collection) => (SORTED, Some(collection)),
        };
        value.push(kind | if self.expires.is_some() { EXPIRES } else { 0 });
        if let Some(at) = self.expires {
            value.extend_from_slice(&at.to_be_bytes());
        }
        if let Some(collection) = collection {
            value.extend_from_slice(&collection.id.to_be_bytes());
            value.extend_from_slice(&collection.count.to_be_bytes());
        }
        value.extend_from_slice(text);
        value
    }

    /// Reads a head from its beginning and the length of the whole value. `None` if it is none.
    pub(crate) fn decode(start: &[u8], length: usize) -> Option<Self> {
        let (first, rest) = start.split_first()?;
        let (expires, rest) = if first & EXPIRES == 0 {
            (None, rest)
        } else {
            let (at, rest) = rest.split_first_chunk::<8>()?;
            (Some(u64::from_be_bytes(*at)), rest)
        };
        let collection = || {
            let (id, rest) = rest.split_first_chunk::<8>()?;
            let (count, _) = rest.split_first_chunk::<8>()?;
            Some(Collection { id: u64::from_be_bytes(*id), count: u64::from_be_bytes(*count) })
        };
        let body = match first & !EXPIRES {
            TEXT => Body::Text(length.checked_sub(start.len() - rest.len())?),
            HASH => Body::Hash(collection()?),
            SORTED => Body::Sorted(collection()?),
            _ => return None,
        };
        Some(Self { expires, body })
    }

    /// Bytes before those of a string.
    pub(crate) fn text_offset(&self) -> usize {
        if self.expires.is_some() { 9 } else { 1 }
    }
}

/// The record of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// Keys of the slot.
    pub count: u64,
    /// The generation of heads that counts.
    pub generation: u16,
    /// The oldest generation of which heads may still be there.
    pub oldest: u16,
}

impl Record {
    /// The value of the pair.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = self.count.to_be_bytes().to_vec();
        value.extend_from_slice(&self.generation.to_be_bytes());
        value.extend_from_slice(&self.oldest.to_be_bytes());
        value
    }

    /// Reads a record. `None` if it is none.
    pub(crate) fn decode(value: &[u8]) -> Option<Self> {
        let (count, rest) = value.split_first_chunk::<8>()?;
        let (generation, rest) = rest.split_first_chunk::<2>()?;
        let (oldest, _) = rest.split_first_chunk::<2>()?;
        Some(Self {
            count: u64::from_be_bytes(*count),
            generation: u16::from_be_bytes(*generation),
            oldest: u16::from_be_bytes(*oldest),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back() {
        let collection = Collection { id: 7, count: u64::MAX };
        for expires in [None, Some(5)] {
            for body in [Body::Text(3), Body::Hash(collection), Body::Sorted(collection)] {
                let head = Head { expires, body };
                let value = head.encode(if body == Body::Text(3) { b"abc" } else { b"" });
                assert_eq!(Head::decode(&value, value.len()), Some(head));
                if body != Body::Text(3) {
                    assert_eq!(Head::decode(&value[..value.len() - 1], value.len()), None);
                }
            }
        }
        assert_eq!(Head::decode(&[], 0), None);
        assert_eq!(Head::decode(&[9], 1), None);
    }

    #[test]
    fn the_longest_key_fits_the_store_in_every_place() {
        let key = [0; KEY_MAX];
        assert!(expiry(0, &key).len() <= weft_kv::store::KEY_LIMIT);
        assert!(element(0, ORDER, 0, &key).len() + 8 <= weft_kv::store::KEY_LIMIT);
        assert_eq!(head(0, b"k").len(), HEAD_PREFIX + 1);
        assert_eq!(expiry(0, b"k").len(), EXPIRY_PREFIX + 1);
        assert_eq!(element(0, FIELD, 0, b"k").len(), ELEMENT_PREFIX + 1);
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        assert_eq!(behind(&[1, 255]), Some(vec![2]));
        assert_eq!(behind(&[255, 255]), None);
        assert_eq!(hash_of(&hash_bytes(0x0102_0304_0506)), 0x0102_0304_0506);
    }
}
