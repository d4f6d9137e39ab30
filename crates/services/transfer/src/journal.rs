//! The journal: what of a transfer is at the target, so that a later run does not move it again.
//!
//! It is a file of records that are only appended. A record is `u32` length, `u64` checksum, body.
//! Reading stops at the first record that is not whole or not sound, so a journal cut or damaged
//! at any byte says less than was done, and nothing that was not. A driver hashes the bytes that a
//! record names before it relies on it, and so a record may be written before its bytes are on
//! the disk.

use std::collections::HashMap;

use crate::checksum::{Leaf, hash, short_hash};
use crate::codec::{InvalidBytes, Reader, Writer};
use crate::entry::FileId;
use crate::path::TreePath;

/// Bytes in front of a record's body.
const RECORD_HEAD_BYTES: usize = 12;
/// Most bytes of a record's body.
const RECORD_BYTES_MAX: usize = 4_096;
/// The first record, of each version of the format.
const MAGIC: u64 = u64::from_le_bytes(*b"weftjnl1");

/// Names a file in a journal, by the hash of its path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathId(u128);

impl PathId {
    /// The name of a path.
    #[must_use]
    pub fn of(path: &TreePath) -> Self {
        Self(hash(path.bytes()))
    }

    /// The name of the temporary file that becomes `path`, in the same directory. `transfer` names
    /// the journal.
    #[must_use]
    pub fn temporary(self, transfer: u128) -> String {
        let mut both = Writer::default();
        both.u128(self.0).u128(transfer);
        format!("{TEMPORARY_PREFIX}{:032x}.part", hash(&both.0))
    }
}

/// How the names of temporary files begin.
pub const TEMPORARY_PREFIX: &str = ".weft-";

/// The name of the journal of a transfer.
#[must_use]
pub fn journal_name(transfer: u128) -> String {
    format!("{TEMPORARY_PREFIX}{transfer:032x}.journal")
}

/// Names a transfer by what identifies it: its sources and where they go.
#[must_use]
pub fn transfer_id(identity: u128, destination: &[u8]) -> u128 {
    let mut both = Writer::default();
    both.u128(identity).blob(destination);
    hash(&both.0)
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// The first: whose journal it is.
    Start {
        /// The transfer.
        transfer: u128,
        /// Bytes of its blocks.
        block_bytes: u32,
    },
    /// A temporary file was made for these bytes of a source.
    File {
        /// The file.
        path: PathId,
        /// Which bytes they are.
        id: FileId,
    },
    /// A piece of a file lies in its temporary file.
    Piece {
        /// The file.
        path: PathId,
        /// The piece.
        leaf: Leaf,
    },
    /// A file is whole, verified and under its name.
    Whole {
        /// The file.
        path: PathId,
        /// Which bytes of the source it has.
        id: FileId,
        /// Its state then, by the system.
        target: FileId,
    },
    /// A temporary file was given up.
    Dropped {
        /// The file.
        path: PathId,
    },
}

impl Record {
    /// The bytes of the record.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer(vec![0; RECORD_HEAD_BYTES]);
        match self {
            Self::Start { transfer, block_bytes } => {
                writer.u8(0).u64(MAGIC).u128(*transfer).u32(*block_bytes);
            }
            Self::File { path, id } => id.put(writer.u8(1).u128(path.0)),
            Self::Piece { path, leaf } => leaf.put(writer.u8(2).u128(path.0)),
            Self::Whole { path, id, target } => {
                writer.u8(3).u128(path.0);
                id.put(&mut writer);
                target.put(&mut writer);
            }
            Self::Dropped { path } => drop(writer.u8(4).u128(path.0)),
        }
        let mut bytes = writer.0;
        let (head, body) = bytes.split_at_mut(RECORD_HEAD_BYTES);
        let length = u32::try_from(body.len()).expect("records are short");
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..].copy_from_slice(&short_hash(body).to_le_bytes());
        bytes
    }

    fn parse(body: &[u8]) -> Result<Self, InvalidBytes> {
        let mut reader = Reader(body);
        let kind = reader.u8()?;
        if kind == 0 {
            if reader.u64()? != MAGIC {
                return Err(InvalidBytes::Field("the format of a journal"));
            }
            let start = Self::Start { transfer: reader.u128()?, block_bytes: reader.u32()? };
            return reader.end().map(|()| start);
        }
        let path = PathId(reader.u128()?);
        let record = match kind {
            1 => Self::File { path, id: FileId::take(&mut reader)? },
            2 => Self::Piece { path, leaf: Leaf::take(&mut reader)? },
            3 => {
                let id = FileId::take(&mut reader)?;
                Self::Whole { path, id, target: FileId::take(&mut reader)? }
            }
            4 => Self::Dropped { path },
            _ => return Err(InvalidBytes::Field("the kind of a record")),
        };
        reader.end().map(|()| record)
    }
}

/// The record of one file in a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kept {
    /// Pieces of it lie in its temporary file.
    Pieces {
        /// Which bytes of the source they are of.
        id: FileId,
        /// The pieces, in the order in which they came.
        leaves: Vec<Leaf>,
    },
    /// It was whole, under its name.
    Whole {
        /// Which bytes of the source it had.
        id: FileId,
        /// Its state then, by the system.
        target: FileId,
    },
}

/// The contents of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Journal {
    /// Of each file.
    pub files: HashMap<PathId, Kept>,
    /// Bytes of it that are sound. Later records go behind them.
    pub sound: usize,
}

impl Journal {
    /// Reads a journal from its bytes. A journal of another transfer, or of blocks of another
    /// size, says nothing.
    #[must_use]
    pub fn read(bytes: &[u8], transfer: u128, block_bytes: u32) -> Self {
        let mut journal = Self::default();
        let start = Record::Start { transfer, block_bytes };
        let mut rest = bytes;
        while let Some((record, length)) = first(rest) {
            let is_first = journal.sound == 0;
            if is_first != matches!(record, Record::Start { .. }) || (is_first && record != start) {
                break;
            }
            journal.take(record);
            journal.sound += length;
            rest = &rest[length..];
        }
        journal
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start { .. } => {}
            Record::File { path, id } => {
                self.files.insert(path, Kept::Pieces { id, leaves: Vec::new() });
            }
            Record::Piece { path, leaf } => {
                if let Some(Kept::Pieces { leaves, .. }) = self.files.get_mut(&path) {
                    leaves.push(leaf);
                }
            }
            Record::Whole { path, id, target } => {
                self.files.insert(path, Kept::Whole { id, target });
            }
            Record::Dropped { path } => drop(self.files.remove(&path)),
        }
    }
}

/// The first record, and its length, if it is whole and sound.
fn first(bytes: &[u8]) -> Option<(Record, usize)> {
    let (head, rest) = bytes.split_at_checked(RECORD_HEAD_BYTES)?;
    let mut reader = Reader(head);
    let length = reader.count(RECORD_BYTES_MAX, "the length of a record").ok()?;
    let check = reader.u64().ok()?;
    let body = rest.get(..length)?;
    if short_hash(body) != check {
        return None;
    }
    Some((Record::parse(body).ok()?, RECORD_HEAD_BYTES + length))
}

/// Reads any bytes as a journal, for the fuzzer: what is read is the same as what its sound part
/// says, and no more.
pub fn fuzz_journal(bytes: &[u8]) {
    let Some((Record::Start { transfer, block_bytes }, _)) = first(bytes) else {
        assert_eq!(Journal::read(bytes, 1, 4_096).sound, 0);
        return;
    };
    let journal = Journal::read(bytes, transfer, block_bytes);
    assert!(journal.sound <= bytes.len());
    assert_eq!(Journal::read(&bytes[..journal.sound], transfer, block_bytes), journal);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathId {
        PathId::of(&TreePath::new(name).expect("a path"))
    }

    fn records() -> Vec<Record> {
        let id = |inode| FileId { inode, size: 1 << 40, ..FileId::default() };
        let leaf =
            |index: u64| Leaf { offset: index << 20, length: 9, hash: 7 + u128::from(index) };
        vec![
            Record::Start { transfer: 5, block_bytes: 4_096 },
            Record::File { path: path("a"), id: id(1) },
            Record::Piece { path: path("a"), leaf: leaf(3) },
            Record::Piece { path: path("a"), leaf: leaf(1) },
            Record::File { path: path("b"), id: id(2) },
            Record::Whole { path: path("b"), id: id(2), target: id(3) },
            Record::Dropped { path: path("a") },
        ]
    }

    #[test]
    fn a_journal_that_is_cut_anywhere_says_what_was_written_before() {
        let all: Vec<u8> = records().iter().flat_map(Record::bytes).collect();
        let mut ends = vec![0];
        for record in records() {
            ends.push(ends.last().expect("one") + record.bytes().len());
        }
        for length in 0..=all.len() {
            let journal = Journal::read(&all[..length], 5, 4_096);
            let whole = ends.iter().rev().find(|end| **end <= length).expect("the first is 0");
            assert_eq!(journal.sound, *whole);
        }
        let journal = Journal::read(&all, 5, 4_096);
        assert_eq!(journal.files.len(), 1);
        let before = Journal::read(&all[..ends[4]], 5, 4_096);
        let Some(Kept::Pieces { leaves, .. }) = before.files.get(&path("a")) else { panic!() };
        assert_eq!(leaves.len(), 2);
    }

    #[test]
    fn no_flipped_bit_of_a_journal_is_believed() {
        let all: Vec<u8> = records().iter().flat_map(Record::bytes).collect();
        let sound = Journal::read(&all, 5, 4_096);
        for bit in 0..all.len() * 8 {
            let mut bytes = all.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let journal = Journal::read(&bytes, 5, 4_096);
            assert!(journal.sound < sound.sound, "bit {bit}");
            assert_eq!(Journal::read(&all[..journal.sound], 5, 4_096), journal);
            fuzz_journal(&bytes);
        }
    }

    #[test]
    fn the_journal_of_another_transfer_says_nothing() {
        let all: Vec<u8> = records().iter().flat_map(Record::bytes).collect();
        assert_eq!(Journal::read(&all, 6, 4_096), Journal::default());
        assert_eq!(Journal::read(&all, 5, 8_192), Journal::default());
        assert_ne!(path("a").temporary(5), path("a").temporary(6));
        assert!(path("a").temporary(5).starts_with(TEMPORARY_PREFIX));
    }
}
