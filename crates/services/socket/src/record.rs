//! The record with which a direction goes back to TCP across a network.
//!
//! On one host an end posts in the lane that it goes back. Across a network the lane may be what
//! failed, so TCP itself tells: the sender writes a record, then all bytes that the reader may not
//! have taken from the lane, and goes on there. The reader leaves out what it has read already. So
//! neither end has to know what the other one has seen, and each direction goes back by itself.
//!
//! ```text
//! 0   magic
//! 8   the number of the lane, which the two ends know and nobody else
//! 16  bytes that the sender had sent on the lane
//! 24  messages that it had sent there
//! 32  bytes that it had put into the sink
//! 40  how many of the bytes follow again, 4 bytes
//! 44  crossings of the direction, 4 bytes
//! 48  1 if the direction does not come to the lane again, else 0; 4 bytes
//! 52  check, 4 bytes
//! 56  one more than the messages that the sender has taken from the lane, if it took all that was
//!     there; 0 if it does not tell
//! ```
//!
//! The form belongs to the version of lanes between hosts (`LANES` of `weft-wire: versions`).
//!
//! # Invariants
//! - A record begins with 16 bytes that no data have but by chance: the reader of a direction that
//!   it takes for one on TCP looks for them among the data.
//! - All fields are the peer's and are compared with what the reader knows.

const MAGIC: [u8; 8] = *b"weft\xff\x00\xfe\x01";
/// Size of a record in bytes.
pub(crate) const BYTES: usize = 64;
/// Bytes at the front by which it is known.
const NAME: usize = 16;
/// Bytes at the front that the end of the data must have to be held back as a part of a record.
const HELD_FROM: usize = MAGIC.len();

/// A direction goes back to TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The number of the lane ([`weft_fabric::Carry::token`]).
    pub lane: u64,
    /// Bytes of the stream that the sender has sent on lanes.
    pub sent: u64,
    /// Messages that it has sent on this lane.
    pub messages: u64,
    /// Bytes that it has put into the sink.
    pub bytes: u64,
    /// How many of [`Record::sent`] follow the record, the last ones.
    pub again: u32,
    /// Crossings of the direction, this one included.
    pub crossings: u32,
    /// The direction does not come to this lane again.
    pub is_last: bool,
    /// One more than the messages of the other direction that the sender has taken; 0 if it does
    /// not tell.
    pub taken: u64,
}

/// A record among bytes of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// There is none.
    Nothing,
    /// The bytes before this place are data. A record begins there.
    At(usize),
    /// The same, but that there are too few bytes to tell.
    Perhaps(usize),
}

impl Record {
    /// The bytes of the record.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [self.lane, self.sent, self.messages, self.bytes];
        for (target, word) in bytes[8..40].chunks_exact_mut(8).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        let halves = [self.again, self.crossings, u32::from(self.is_last)];
        for (target, half) in bytes[40..52].chunks_exact_mut(4).zip(halves) {
            target.copy_from_slice(&half.to_le_bytes());
        }
        bytes[56..].copy_from_slice(&self.taken.to_le_bytes());
        let check = check(&bytes);
        bytes[52..56].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The record of `lane` that `bytes` are. `None` if they are none.
    pub fn decode(bytes: &[u8; BYTES], lane: u64) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let is_one = bytes[..NAME] == name(lane) && half(52) == check(bytes) && half(48) < 2;
        is_one.then(|| Self {
            lane,
            sent: word(16),
            messages: word(24),
            bytes: word(32),
            again: half(40),
            crossings: half(44),
            is_last: half(48) == 1,
            taken: word(56),
        })
    }

    /// True if a record may begin with these bytes, which are 8 at most.
    pub fn may_begin(bytes: &[u8]) -> bool {
        MAGIC.starts_with(bytes)
    }

    /// Looks for a record of `lane` in `bytes`.
    pub fn find(bytes: &[u8], lane: u64) -> Found {
        let name = name(lane);
        let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == name[0]);
        for (at, _) in starts {
            let here = &bytes[at..bytes.len().min(at + NAME)];
            if here.len() == NAME && *here == name {
                return Found::At(at);
            }
            if here.len() < NAME && here.len() >= HELD_FROM && name.starts_with(here) {
                return Found::Perhaps(at);
            }
        }
        Found::Nothing
    }
}

fn name(lane: u64) -> [u8; NAME] {
    let mut name = [0; NAME];
    name[..8].copy_from_slice(&MAGIC);
    name[8..].copy_from_slice(&lane.to_le_bytes());
    name
}

/// FNV-1a of all but the check. It is against accidents: a peer can write what it likes.
fn check(bytes: &[u8; BYTES]) -> u32 {
    let others = bytes[..52].iter().chain(&bytes[56..]);
    others.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::versions::{LANES, fingerprint};

    fn record() -> Record {
        Record {
            lane: 7,
            sent: 1 << 40,
            messages: 9,
            bytes: 300,
            again: 20,
            crossings: 2,
            is_last: true,
            taken: 4,
        }
    }

    #[test]
    fn the_form_is_that_of_its_version() {
        let form = fingerprint([record().encode().to_vec()]);
        assert_eq!((LANES, form), (3, 0x47dd_7525_b406_b3e3), "raise the version");
    }

    #[test]
    fn a_record_is_what_was_written() {
        let bytes = record().encode();
        assert_eq!(Record::decode(&bytes, 7), Some(record()));
        assert_eq!(Record::decode(&bytes, 8), None, "of another lane");
        for at in 0..BYTES {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(Record::decode(&changed, 7), None, "byte {at} differs");
        }
    }

    #[test]
    fn a_record_is_found_wherever_the_data_before_it_end() {
        let mut bytes = vec![b'w'; 100];
        bytes.extend(record().encode());
        assert_eq!(Record::find(&bytes, 7), Found::At(100));
        assert_eq!(Record::find(&bytes, 8), Found::Nothing);
        assert_eq!(Record::find(&bytes[..116], 7), Found::At(100));
        for end in 108..116 {
            assert_eq!(Record::find(&bytes[..end], 7), Found::Perhaps(100), "{end}");
        }
        assert_eq!(Record::find(&bytes[..107], 7), Found::Nothing, "data may end like this");
    }
}
