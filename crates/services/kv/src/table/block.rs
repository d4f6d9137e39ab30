//! A block of a table: some thousand bytes of pairs, read and checked as one.
//!
//! ```text
//! block = prefix length | prefix | pair … | offset 2 … | pairs 2 | crc 4
//! pair  = length of the rest of the key | the rest | slot length | slot
//! ```
//! The prefix is what all keys of the block begin with. The offsets allow a binary search.

use crate::format::{checksum, put_number, take, take_length, u32_at};

const CRC_BYTES: usize = 4;
const COUNT_BYTES: usize = 2;

/// A block in memory whose checksum was right.
pub struct Block {
    bytes: Vec<u8>,
    prefix: std::ops::Range<usize>,
    /// Where the offsets begin.
    offsets: usize,
    count: usize,
}

/// Pairs on their way into a block, in order.
#[derive(Default)]
pub struct Builder {
    bytes: Vec<u8>,
    /// End of the key and end of the slot of each pair.
    ends: Vec<(usize, usize)>,
}

/// The checksum of a block at a place of its file.
fn crc_of(seed: u32, offset: u64, bytes: &[u8]) -> u32 {
    checksum(checksum(seed, &offset.to_le_bytes()), bytes)
}

/// Appends the checksum of what is at this place.
pub fn seal(seed: u32, offset: u64, bytes: &mut Vec<u8>) {
    let crc = crc_of(seed, offset, bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// Removes the checksum; false if it is wrong.
pub fn unseal(seed: u32, offset: u64, bytes: &mut Vec<u8>) -> bool {
    let Some(body) = bytes.len().checked_sub(CRC_BYTES) else { return false };
    let is_right = u32_at(bytes, body) == Some(crc_of(seed, offset, &bytes[..body]));
    bytes.truncate(body);
    is_right
}

impl Builder {
    /// Adds a pair behind the last.
    pub fn push(&mut self, key: &[u8], slot: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(slot);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// Bytes of the pairs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len() + 4 * self.ends.len()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    fn pair(&self, index: usize) -> (&[u8], &[u8]) {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key_end, end) = self.ends[index];
        (&self.bytes[start..key_end], &self.bytes[key_end..end])
    }

    /// The key of the last pair.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn last_key(&self) -> &[u8] {
        self.pair(self.ends.len() - 1).0
    }

    /// Appends the block without its checksum to `out`, and is empty again.
    ///
    /// # Panics
    /// If it has no pair, or so many bytes that an offset does not fit.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let start = out.len();
        let (first, last) = (self.pair(0).0, self.last_key());
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        put_number(out, prefix as u64);
        out.extend_from_slice(&first[..prefix]);
        let mut offsets = Vec::with_capacity(self.ends.len() * 2);
        for index in 0..self.ends.len() {
            let (key, slot) = self.pair(index);
            let offset = u16::try_from(out.len() - start).expect("a block of some thousand bytes");
            offsets.extend_from_slice(&offset.to_le_bytes());
            put_number(out, (key.len() - prefix) as u64);
            out.extend_from_slice(&key[prefix..]);
            put_number(out, slot.len() as u64);
            out.extend_from_slice(slot);
        }
        out.extend_from_slice(&offsets);
        let count = u16::try_from(self.ends.len()).expect("fewer pairs than bytes");
        out.extend_from_slice(&count.to_le_bytes());
        self.bytes.clear();
        self.ends.clear();
    }
}

impl Block {
    /// A block without its checksum; `None` if the parts do not fit.
    #[must_use]
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let count_at = bytes.len().checked_sub(COUNT_BYTES)?;
        let count = usize::from(u16::from_le_bytes(bytes[count_at..].try_into().ok()?));
        let offsets = count_at.checked_sub(count * 2)?;
        let mut rest = &bytes[..offsets];
        let prefix_bytes = take_length(&mut rest)?;
        let prefix_at = offsets - rest.len();
        take(&mut rest, prefix_bytes)?;
        let prefix = prefix_at..prefix_at + prefix_bytes;
        (count > 0).then_some(Self { bytes, prefix, offsets, count })
    }

    /// Number of pairs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes.len() + size_of::<Self>()
    }

    /// The common beginning of all keys.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.bytes[self.prefix.clone()]
    }

    /// The rest of the key behind the prefix, and the slot, of a pair.
    #[must_use]
    pub fn pair(&self, index: usize) -> Option<(&[u8], &[u8])> {
        if index >= self.count {
            return None;
        }
        let at = self.offsets + 2 * index;
        let offset = u16::from_le_bytes(self.bytes.get(at..at + 2)?.try_into().ok()?);
        let mut rest = self.bytes.get(usize::from(offset)..self.offsets)?;
        let key_bytes = take_length(&mut rest)?;
        let key = take(&mut rest, key_bytes)?;
        let slot_bytes = take_length(&mut rest)?;
        Some((key, take(&mut rest, slot_bytes)?))
    }

    /// The first pair whose key is not lower; `count` if there is none. The flag says that the key
    /// is the same. `None` if the block is damaged.
    #[must_use]
    pub fn search(&self, key: &[u8]) -> Option<(usize, bool)> {
        let prefix = self.prefix();
        let shared = key.len().min(prefix.len());
        match key[..shared].cmp(&prefix[..shared]) {
            std::cmp::Ordering::Less => return Some((0, false)),
            std::cmp::Ordering::Greater => return Some((self.count, false)),
            std::cmp::Ordering::Equal if key.len() < prefix.len() => return Some((0, false)),
            std::cmp::Ordering::Equal => {}
        }
        let rest = &key[shared..];
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.pair(middle)?.0.cmp(rest) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some((middle, true)),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Some((low, false))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_finds_its_keys_and_places_others(
            pairs in prop::collection::btree_map(
                prop::collection::vec(0u8..4, 0..6),
                prop::collection::vec(any::<u8>(), 0..9),
                1..60,
            ),
            other in prop::collection::vec(0u8..4, 0..6),
        ) {
            let mut builder = Builder::default();
            for (key, slot) in &pairs {
                builder.push(key, slot);
            }
            let mut bytes = Vec::new();
            builder.finish(&mut bytes);
            seal(7, 4096, &mut bytes);
            prop_assert!(!unseal(7, 0, &mut bytes.clone()));
            prop_assert!(unseal(7, 4096, &mut bytes));
            let block = Block::parse(bytes).unwrap();
            prop_assert_eq!(block.count(), pairs.len());
            for (index, (key, slot)) in pairs.iter().enumerate() {
                let (rest, found) = block.pair(index).unwrap();
                prop_assert_eq!([block.prefix(), rest].concat(), key.clone());
                prop_assert_eq!(found, slot.as_slice());
                prop_assert_eq!(block.search(key), Some((index, true)));
            }
            let lower = pairs.range::<Vec<u8>, _>(..&other).count();
            let is_there = BTreeMap::contains_key(&pairs, &other);
            prop_assert_eq!(block.search(&other), Some((lower, is_there)));
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>, key: Vec<u8>) {
            if let Some(block) = Block::parse(bytes) {
                let _ = block.search(&key);
                for index in 0..block.count() {
                    let _ = block.pair(index);
                }
            }
        }
    }
}
