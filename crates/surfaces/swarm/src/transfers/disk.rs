//! The files of a transfer: those of its source, and those of its target, which outlive programs.
//!
//! # Invariant
//! A record of the journal is written behind the bytes that it names.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_transfer::{
    Checked, Entry, FileId, Finished, Journal, Kept, Kind, Leaf, PathId, Record, Store, Stored,
    TreePath, hash,
};

use crate::workload::pattern;

/// Bytes of a block.
pub(super) const BLOCK: u32 = 2_048;
/// Names the transfer in its journal.
const TRANSFER: u128 = 7;
/// Files of a tree, and bytes of one, at most.
const FILES_MAX: u64 = 6;
const FILE_BYTES_MAX: usize = 12_000;

/// Files by path.
pub(super) type Files = BTreeMap<TreePath, Vec<u8>>;

/// A tree that belongs to a number.
pub(super) fn files(number: u64, random: &mut ChaCha8Rng) -> Files {
    let file = |index: u64| {
        let path = TreePath::new(format!("top/{index}")).expect("a path");
        (path, pattern(number << 8 | index, random.random_range(0..FILE_BYTES_MAX)))
    };
    (0..=number % FILES_MAX).map(file).collect()
}

/// A file as the walk finds it.
pub(super) fn id(path: &TreePath, bytes: &[u8]) -> FileId {
    let inode = u64::try_from(hash(path.bytes()) >> 64).expect("64 bits");
    // Each tree has other files under the same names.
    let device = u64::try_from(hash(bytes) >> 64).expect("64 bits");
    FileId { device, inode, size: bytes.len() as u64, ..FileId::default() }
}

/// The place of a piece in its file.
pub(super) fn place(leaf: &Leaf) -> Range<usize> {
    let start = usize::try_from(leaf.offset).expect("files are small");
    start..start + usize::try_from(leaf.length).expect("blocks are small")
}

fn file_of(entry: &Entry) -> (PathId, FileId) {
    match entry.kind {
        Kind::File(id) => (PathId::of(&entry.path), id),
        _ => unreachable!("trees have files alone"),
    }
}

/// The disk of a target.
#[derive(Default)]
pub(super) struct Disk {
    /// Files under their names.
    pub files: Files,
    temporary: HashMap<PathId, Vec<u8>>,
    journal: Vec<u8>,
    /// Bytes of this run that it had from earlier ones.
    pub resumed: u64,
}

impl Disk {
    /// A run begins: reads the journal.
    pub fn begin(&mut self) -> HashMap<PathId, Kept> {
        let journal = Journal::read(&self.journal, TRANSFER, BLOCK);
        self.journal.truncate(journal.sound);
        self.resumed = 0;
        journal.files
    }

    /// The machine dies: of the journal a part is on the disk.
    pub fn lose(&mut self, part_per_mille: usize) {
        self.journal.truncate(self.journal.len() * part_per_mille / 1_000);
    }

    fn record(&mut self, record: &Record) {
        if self.journal.is_empty() {
            let start = Record::Start { transfer: TRANSFER, block_bytes: BLOCK };
            self.journal.extend(start.bytes());
        }
        self.journal.extend(record.bytes());
    }

    fn is_sound(&self, path: PathId, leaf: &Leaf) -> bool {
        let bytes = self.temporary.get(&path).and_then(|bytes| bytes.get(place(leaf)));
        bytes.is_some_and(|bytes| hash(bytes) == leaf.hash)
    }

    /// Stores a piece of a file, or a file that is whole in one.
    pub fn store(&mut self, store: &Store, piece: &[u8]) -> Stored {
        let Some(entry) = &store.entry else { return Stored::Passed };
        let (path, id) = file_of(entry);
        if store.whole.is_some() {
            if hash(piece) != store.leaf.hash {
                return Stored::Damaged;
            }
            self.install(entry, piece.to_vec());
            return Stored::Installed(None);
        }
        if !self.temporary.contains_key(&path) {
            self.record(&Record::File { path, id });
        }
        let size = usize::try_from(id.size).expect("files are small");
        let temporary = self.temporary.entry(path).or_default();
        temporary.resize(size, 0);
        temporary[place(&store.leaf)].copy_from_slice(piece);
        self.record(&Record::Piece { path, leaf: store.leaf });
        Stored::Written
    }

    /// Looks at what is there from an earlier run.
    pub fn check(&mut self, entry: &Entry, kept: Kept) -> Checked {
        let (path, id) = file_of(entry);
        match kept {
            Kept::Whole { target, .. } if target == id && self.files.contains_key(&entry.path) => {
                self.resumed += id.size;
                Checked::Whole
            }
            Kept::Whole { .. } => Checked::Nothing,
            Kept::Pieces { leaves, .. } => {
                let sound: Vec<Leaf> =
                    leaves.into_iter().filter(|leaf| self.is_sound(path, leaf)).collect();
                self.resumed += sound.iter().map(|leaf| u64::from(leaf.length)).sum::<u64>();
                Checked::Pieces(sound)
            }
        }
    }

    /// Reads a file back, and puts it under its name.
    pub fn finish(&mut self, entry: &Entry, leaves: &[Leaf]) -> Finished {
        let (path, _) = file_of(entry);
        let damaged: Vec<Leaf> =
            leaves.iter().filter(|leaf| !self.is_sound(path, leaf)).copied().collect();
        if !damaged.is_empty() {
            return Finished::Damaged(damaged);
        }
        let bytes = self.temporary.remove(&path).unwrap_or_default();
        self.install(entry, bytes);
        Finished::Installed(None)
    }

    fn install(&mut self, entry: &Entry, bytes: Vec<u8>) {
        let (path, id) = file_of(entry);
        self.files.insert(entry.path.clone(), bytes);
        self.record(&Record::Whole { path, id, target: id });
    }
}
