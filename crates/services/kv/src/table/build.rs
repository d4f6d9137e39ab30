//! Building a table from pairs in order.

use super::block::{self, seal};
use super::bloom::{Bloom, hash};
use super::{Footer, IndexEntry, TableMeta, emit_index};
use crate::format::{Epoch, Region, checksum, seed};

/// Bytes of pairs after which a block ends.
const BLOCK_BYTES: usize = 4096;

/// A table on its way. It is in memory until it is finished, so that it is written, and shipped
/// to backups, in one piece.
pub struct Builder {
    region: Region,
    epoch: Epoch,
    id: u64,
    seed: u32,
    bytes: Vec<u8>,
    block: block::Builder,
    index: Vec<IndexEntry>,
    hashes: Vec<u64>,
    first: Vec<u8>,
    sealed: Vec<u8>,
}

/// A finished table: what the manifest says of it, and its bytes.
pub struct Built {
    /// The entry in the manifest.
    pub meta: TableMeta,
    /// The bytes of the file.
    pub bytes: Vec<u8>,
}

impl Builder {
    /// A table without pairs.
    #[must_use]
    pub fn new(region: Region, epoch: Epoch, id: u64) -> Self {
        Self {
            region,
            epoch,
            id,
            seed: seed(region, epoch, id),
            bytes: Vec::new(),
            block: block::Builder::default(),
            index: Vec::new(),
            hashes: Vec::new(),
            first: Vec::new(),
            sealed: Vec::new(),
        }
    }

    /// Adds a pair behind the last.
    pub fn push(&mut self, key: &[u8], slot: &[u8]) {
        if self.hashes.is_empty() {
            self.first = key.to_vec();
        }
        self.hashes.push(hash(key));
        self.block.push(key, slot);
        if self.block.bytes() >= BLOCK_BYTES {
            self.end_block();
        }
    }

    /// Bytes of the blocks until now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.block.bytes()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    fn end_block(&mut self) {
        let last = self.block.last_key().into();
        let offset = self.bytes.len() as u64;
        self.sealed.clear();
        self.block.finish(&mut self.sealed);
        seal(self.seed, offset, &mut self.sealed);
        self.bytes.extend_from_slice(&self.sealed);
        self.index.push(IndexEntry { last, offset, bytes: self.sealed.len() });
    }

    /// The table.
    ///
    /// # Panics
    /// If it has no pair.
    #[must_use]
    pub fn finish(mut self) -> Built {
        if !self.block.is_empty() {
            self.end_block();
        }
        let last = self.index.last().expect("a table has a pair").last.to_vec();
        let index_offset = self.bytes.len() as u64;
        let mut index = Vec::new();
        emit_index(&self.index, &mut index);
        seal(self.seed, index_offset, &mut index);
        self.bytes.extend_from_slice(&index);
        let mut filter = Bloom::of(&self.hashes).bytes().to_vec();
        seal(self.seed, self.bytes.len() as u64, &mut filter);
        self.bytes.extend_from_slice(&filter);
        let entries = self.hashes.len() as u64;
        let footer =
            Footer { entries, index_offset, index_bytes: index.len(), filter_bytes: filter.len() };
        self.bytes.extend_from_slice(&footer.emit(self.region, self.epoch, self.id));
        let meta = TableMeta {
            id: self.id,
            epoch: self.epoch,
            bytes: self.bytes.len() as u64,
            entries,
            first: self.first,
            last,
            crc: checksum(0, &self.bytes),
        };
        Built { meta, bytes: self.bytes }
    }
}
