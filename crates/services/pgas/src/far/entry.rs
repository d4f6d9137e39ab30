//! Messages between PEs of two hosts, as bytes: entries one behind the other.
//!
//! An entry begins with a word: its kind in the highest byte, then the segment, a length or a code,
//! and in 48 bits a place or the number of a question.
//!
//! # Invariants
//! - Bytes of a peer are read or refused, and never believed: a length that leaves the message, an
//!   unknown kind and an unknown code are a [`Breach`].
//! - What is written is read as the same entry.

use thiserror::Error;
use weft_fabric::{Atomic, AtomicOperation, Width};

/// Bytes of a message that every transport carries.
pub const MESSAGE_BYTES: usize = 120;
/// Bytes of a message at most, where the transport carries more.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Bytes of the word at the begin of an entry.
const HEAD_BYTES: usize = 8;
/// Bytes that an entry carries at most: it fits into a message of each transport.
pub const DATA_BYTES: usize = MESSAGE_BYTES - HEAD_BYTES;

const WHERE_BITS: u32 = 48;
const WHERE_MASK: u64 = (1 << WHERE_BITS) - 1;
const CODE_MASK: u64 = 0x7f;
const STATICS: u64 = 1 << 55;
const KIND_SHIFT: u32 = 56;

/// A part of a PE's symmetric memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Segment {
    /// The symmetric heap.
    Heap,
    /// The variables of the program.
    Statics,
}

/// A place in the symmetric memory of a PE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The part of the memory.
    pub segment: Segment,
    /// Bytes from its begin, below 2^48.
    pub offset: u64,
}

impl Place {
    /// The place so many bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset + bytes as u64, ..self }
    }
}

/// One thing that a PE says to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// Bytes for a place.
    Put {
        /// The first byte.
        place: Place,
        /// The bytes, at most [`DATA_BYTES`].
        bytes: &'a [u8],
    },
    /// A change of a word whose former value nobody wants.
    Change {
        /// The word.
        place: Place,
        /// The change.
        atomic: Atomic,
    },
    /// A change of a word. The answer is its former value.
    Fetch {
        /// The number of the question.
        id: u32,
        /// The word.
        place: Place,
        /// The change.
        atomic: Atomic,
    },
    /// The answer is the bytes of a place.
    Read {
        /// The number of the question.
        id: u32,
        /// The first byte.
        place: Place,
        /// Bytes, at most [`DATA_BYTES`].
        length: usize,
    },
    /// The answer, without bytes, says that all entries before are done.
    Confirm {
        /// The number of the question.
        id: u32,
    },
    /// The answer to a question.
    Answer {
        /// The number of the question.
        id: u32,
        /// The value or the bytes.
        bytes: &'a [u8],
    },
    /// Bytes of the sender's own control area, of which the receiver has a copy.
    Control {
        /// The first byte in the area.
        offset: u32,
        /// The bytes, at most [`DATA_BYTES`].
        bytes: &'a [u8],
    },
    /// Data for a collective call of the receiver.
    Eager {
        /// The flags of the call.
        place: Place,
        /// The bytes, at most [`DATA_BYTES`].
        bytes: &'a [u8],
    },
    /// Pieces of such data of the receiver were taken.
    Taken {
        /// How many.
        pieces: u32,
    },
}

/// A peer that broke the rules of the protocol.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Breach {
    /// An entry is longer than its message.
    #[error("an entry of {wanted} bytes in {left} bytes of a message")]
    Cut {
        /// Bytes of the entry.
        wanted: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// No entry has this kind.
    #[error("an entry of the unknown kind {0}")]
    Kind(u8),
    /// No atomic has this code.
    #[error("an atomic of the unknown code {0}")]
    Code(u8),
    /// More bytes are asked for than an answer carries.
    #[error("a question for {0} bytes, more than an answer carries")]
    Length(usize),
    /// The place is not in the memory of this PE.
    #[error("{bytes} bytes at offset {offset} of the {segment}, which are not there")]
    Outside {
        /// The part of the memory.
        segment: &'static str,
        /// The first byte.
        offset: u64,
        /// Bytes from there on.
        bytes: usize,
    },
    /// Nobody asked this.
    #[error("an answer of {bytes} bytes to question {id}, which it was not asked")]
    Unasked {
        /// The number of the question.
        id: u32,
        /// Bytes of the answer.
        bytes: usize,
    },
    /// It has more questions open than a PE may have.
    #[error("more than {0} questions at a time")]
    Questions(usize),
    /// It sent more data for collective calls than may wait.
    #[error("more than {0} pieces of data for collective calls that were not taken")]
    Eager(usize),
    /// It says that it took more than it was sent.
    #[error("{pieces} pieces of data are said to be taken, and {sent} were sent")]
    Taken {
        /// How many it says.
        pieces: usize,
        /// So many it may have.
        sent: usize,
    },
}

fn number(operation: AtomicOperation) -> u64 {
    match operation {
        AtomicOperation::Read => 0,
        AtomicOperation::FetchAdd => 1,
        AtomicOperation::Swap => 2,
        AtomicOperation::CompareSwap => 3,
        AtomicOperation::And => 4,
        AtomicOperation::Or => 5,
        AtomicOperation::Xor => 6,
    }
}

/// The code of an atomic: 3 bits of operation, 1 of width.
fn code(atomic: Atomic) -> u64 {
    let wide = match atomic.width {
        Width::Bits32 => 0,
        Width::Bits64 => 8,
    };
    number(atomic.operation) | wide
}

/// The operands of an atomic in a message: two for a comparison.
fn operands(operation: AtomicOperation) -> usize {
    if operation == AtomicOperation::CompareSwap { 2 } else { 1 }
}

impl Entry<'_> {
    const PUT: u8 = 1;
    const CHANGE: u8 = 2;
    const FETCH: u8 = 3;
    const READ: u8 = 4;
    const CONFIRM: u8 = 5;
    const ANSWER: u8 = 6;
    const CONTROL: u8 = 7;
    const EAGER: u8 = 8;
    const TAKEN: u8 = 9;

    /// Bytes of the entry in a message.
    #[must_use]
    pub fn length(&self) -> usize {
        HEAD_BYTES
            + match self {
                Self::Put { bytes, .. } | Self::Answer { bytes, .. } => bytes.len(),
                Self::Control { bytes, .. } | Self::Eager { bytes, .. } => bytes.len(),
                Self::Change { atomic, .. } => 8 * operands(atomic.operation),
                Self::Fetch { atomic, .. } => 4 + 8 * operands(atomic.operation),
                Self::Read { .. } => 4,
                Self::Confirm { .. } | Self::Taken { .. } => 0,
            }
    }

    /// Appends the entry to a message.
    pub fn write(&self, to: &mut Vec<u8>) {
        let head = |kind: u8, place: u64, code: u64| {
            u64::from(kind) << KIND_SHIFT | (code & CODE_MASK) << WHERE_BITS | place & WHERE_MASK
        };
        let at = |kind: u8, place: &Place, code: u64| {
            let statics = if place.segment == Segment::Statics { STATICS } else { 0 };
            head(kind, place.offset, code) | statics
        };
        let mut word = |word: u64| to.extend_from_slice(&word.to_le_bytes());
        match self {
            Self::Put { place, bytes } => {
                word(at(Self::PUT, place, bytes.len() as u64));
                to.extend_from_slice(bytes);
            }
            Self::Change { place, atomic } => {
                word(at(Self::CHANGE, place, code(*atomic)));
                word(atomic.operand);
                if operands(atomic.operation) == 2 {
                    word(atomic.compare);
                }
            }
            Self::Fetch { id, place, atomic } => {
                word(at(Self::FETCH, place, code(*atomic)));
                word(atomic.operand);
                if operands(atomic.operation) == 2 {
                    word(atomic.compare);
                }
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Read { id, place, length } => {
                word(at(Self::READ, place, *length as u64));
                to.extend_from_slice(&id.to_le_bytes());
            }
            Self::Confirm { id } => word(head(Self::CONFIRM, u64::from(*id), 0)),
            Self::Answer { id, bytes } => {
                word(head(Self::ANSWER, u64::from(*id), bytes.len() as u64));
                to.extend_from_slice(bytes);
            }
            Self::Control { offset, bytes } => {
                word(head(Self::CONTROL, u64::from(*offset), bytes.len() as u64));
                to.extend_from_slice(bytes);
            }
            Self::Eager { place, bytes } => {
                word(at(Self::EAGER, place, bytes.len() as u64));
                to.extend_from_slice(bytes);
            }
            Self::Taken { pieces } => word(head(Self::TAKEN, u64::from(*pieces), 0)),
        }
    }
}

/// The entries of a message that came. It ends behind the first breach.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    left: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Those of a message.
    #[must_use]
    pub const fn of(message: &'a [u8]) -> Self {
        Self { left: message }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Breach> {
        let cut = Breach::Cut { wanted: bytes, left: self.left.len() };
        let (taken, left) = self.left.split_at_checked(bytes).ok_or(cut)?;
        self.left = left;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u64, Breach> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(word))
    }

    fn id(&mut self) -> Result<u32, Breach> {
        let mut id = [0; 4];
        id.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(id))
    }

    fn atomic(&mut self, code: u8) -> Result<Atomic, Breach> {
        let operation = match code & 7 {
            0 => AtomicOperation::Read,
            1 => AtomicOperation::FetchAdd,
            2 => AtomicOperation::Swap,
            3 => AtomicOperation::CompareSwap,
            4 => AtomicOperation::And,
            5 => AtomicOperation::Or,
            6 => AtomicOperation::Xor,
            _ => return Err(Breach::Code(code)),
        };
        let width = match code >> 3 {
            0 => Width::Bits32,
            1 => Width::Bits64,
            _ => return Err(Breach::Code(code)),
        };
        let operand = self.word()?;
        let compare = if operands(operation) == 2 { self.word()? } else { 0 };
        Ok(Atomic { compare, ..Atomic::new(operation, width, operand) })
    }

    fn entry(&mut self) -> Result<Entry<'a>, Breach> {
        let head = self.word()?;
        let [_, _, _, _, _, _, code, kind] = head.to_le_bytes();
        let code = code & 0x7f;
        let length = usize::from(code);
        let segment = if head & STATICS == 0 { Segment::Heap } else { Segment::Statics };
        let place = Place { segment, offset: head & WHERE_MASK };
        // The number of a question or a place in a control area has 32 bits.
        let narrow = || u32::try_from(head & WHERE_MASK).map_err(|_| Breach::Kind(kind));
        Ok(match kind {
            Entry::PUT => Entry::Put { place, bytes: self.take(length)? },
            Entry::CHANGE => Entry::Change { place, atomic: self.atomic(code)?.without_result() },
            Entry::FETCH => {
                let atomic = self.atomic(code)?;
                Entry::Fetch { id: self.id()?, place, atomic }
            }
            Entry::READ if length > DATA_BYTES => return Err(Breach::Length(length)),
            Entry::READ => Entry::Read { id: self.id()?, place, length },
            Entry::CONFIRM => Entry::Confirm { id: narrow()? },
            Entry::ANSWER => Entry::Answer { id: narrow()?, bytes: self.take(length)? },
            Entry::CONTROL => Entry::Control { offset: narrow()?, bytes: self.take(length)? },
            Entry::EAGER => Entry::Eager { place, bytes: self.take(length)? },
            Entry::TAKEN => Entry::Taken { pieces: narrow()? },
            kind => return Err(Breach::Kind(kind)),
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Breach>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.left = &[];
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        (any::<bool>(), 0..=WHERE_MASK).prop_map(|(statics, offset)| {
            let segment = if statics { Segment::Statics } else { Segment::Heap };
            Place { segment, offset }
        })
    }

    fn atomic() -> impl Strategy<Value = Atomic> {
        let operation = prop::sample::select(vec![
            AtomicOperation::Read,
            AtomicOperation::FetchAdd,
            AtomicOperation::Swap,
            AtomicOperation::CompareSwap,
            AtomicOperation::And,
            AtomicOperation::Or,
            AtomicOperation::Xor,
        ]);
        (operation, any::<bool>(), any::<u64>(), any::<u64>()).prop_map(
            |(operation, wide, operand, compare)| {
                let width = if wide { Width::Bits64 } else { Width::Bits32 };
                let compare = if operands(operation) == 2 { compare } else { 0 };
                Atomic { compare, ..Atomic::new(operation, width, operand) }
            },
        )
    }

    proptest! {
        #[test]
        fn entries_are_read_as_they_were_written(
            place in place(), atomic in atomic(), id in any::<u32>(), length in 0..=DATA_BYTES,
            bytes in prop::collection::vec(any::<u8>(), 0..=DATA_BYTES),
        ) {
            let bytes = bytes.as_slice();
            let all = [
                Entry::Put { place, bytes },
                Entry::Change { place, atomic: atomic.without_result() },
                Entry::Fetch { id, place, atomic },
                Entry::Read { id, place, length },
                Entry::Confirm { id },
                Entry::Answer { id, bytes },
                Entry::Control { offset: id, bytes },
                Entry::Eager { place, bytes },
                Entry::Taken { pieces: id },
            ];
            let mut message = Vec::new();
            for entry in &all {
                let before = message.len();
                entry.write(&mut message);
                prop_assert_eq!(message.len() - before, entry.length());
                prop_assert!(entry.length() <= MESSAGE_BYTES);
            }
            let read: Result<Vec<_>, _> = Entries::of(&message).collect();
            prop_assert_eq!(read, Ok(all.to_vec()));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let read = Entries::of(&bytes).count();
            prop_assert!(read <= bytes.len().div_ceil(HEAD_BYTES));
        }
    }

    #[test]
    fn what_is_cut_or_unknown_is_named() {
        fn first(bytes: &[u8]) -> Result<Entry<'_>, Breach> {
            Entries::of(bytes).next().expect("it is not empty")
        }
        let mut message = Vec::new();
        let place = Place { segment: Segment::Heap, offset: 8 };
        Entry::Put { place, bytes: &[1, 2, 3] }.write(&mut message);
        assert_eq!(first(&message[..10]), Err(Breach::Cut { wanted: 3, left: 2 }));
        assert_eq!(first(&message[..7]), Err(Breach::Cut { wanted: 8, left: 7 }));
        message[7] = 99;
        assert_eq!(first(&message), Err(Breach::Kind(99)));
        let mut change = Vec::new();
        let atomic = Atomic::fetch_add(1);
        Entry::Change { place, atomic }.write(&mut change);
        change[6] |= 7;
        assert_eq!(first(&change), Err(Breach::Code(15)));
    }
}
