//! The place of a value in level 0 and in the tables: in place, in the log, or deleted.

use crate::format::{put_number, take_length, take_number};

/// The value of a key as the index has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot<'a> {
    /// The key has no value, whatever older tables say.
    Deleted,
    /// The value itself.
    Value(&'a [u8]),
    /// The value is in the log.
    Logged(Pointer),
}

/// The logical address of a log record: the same on all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pointer {
    /// Number of the segment.
    pub segment: u64,
    /// First byte of the record in the file of the segment.
    pub offset: u64,
    /// Bytes of the record.
    pub length: usize,
}

const DELETED: u8 = 0;
const VALUE: u8 = 1;
const LOGGED: u8 = 2;

impl<'a> Slot<'a> {
    /// Appends the form in which tables and level 0 have it.
    pub fn emit(self, out: &mut Vec<u8>) {
        match self {
            Self::Deleted => out.push(DELETED),
            Self::Value(value) => {
                out.push(VALUE);
                out.extend_from_slice(value);
            }
            Self::Logged(pointer) => {
                out.push(LOGGED);
                put_number(out, pointer.segment);
                put_number(out, pointer.offset);
                put_number(out, pointer.length as u64);
            }
        }
    }

    /// The form in which tables and level 0 have it.
    #[must_use]
    pub fn bytes(self) -> Box<[u8]> {
        let most = if let Self::Value(value) = self { value.len() + 1 } else { 24 };
        let mut out = Vec::with_capacity(most);
        self.emit(&mut out);
        out.into_boxed_slice()
    }

    /// Reads it back; `None` if the bytes are of no slot.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (tag, mut rest) = bytes.split_first()?;
        match *tag {
            DELETED if rest.is_empty() => Some(Self::Deleted),
            VALUE => Some(Self::Value(rest)),
            LOGGED => {
                let segment = take_number(&mut rest)?;
                let offset = take_number(&mut rest)?;
                let length = take_length(&mut rest)?;
                rest.is_empty().then_some(Self::Logged(Pointer { segment, offset, length }))
            }
            _ => None,
        }
    }

    /// The pointer in a slot, if it has one.
    #[must_use]
    pub fn pointer_of(bytes: &[u8]) -> Option<Pointer> {
        match Slot::parse(bytes) {
            Some(Slot::Logged(pointer)) => Some(pointer),
            _ => None,
        }
    }

    /// Whether the bytes say that the key is deleted.
    #[must_use]
    pub fn is_deleted(bytes: &[u8]) -> bool {
        bytes.first() == Some(&DELETED)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_come_back(segment: u64, offset: u64, length: usize, value: Vec<u8>) {
            let pointer = Pointer { segment, offset, length };
            for slot in [Slot::Deleted, Slot::Value(&value), Slot::Logged(pointer)] {
                let bytes = slot.bytes();
                prop_assert_eq!(Slot::parse(&bytes), Some(slot));
            }
        }

        #[test]
        fn any_bytes_are_a_slot_or_refused(bytes: Vec<u8>) {
            if let Some(slot) = Slot::parse(&bytes) {
                let again = slot.bytes();
                prop_assert_eq!(Slot::parse(&again), Some(slot));
            }
        }
    }
}
