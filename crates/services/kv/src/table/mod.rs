//! Tables: sorted pairs in a file that never changes, the same bytes on all replicas.
//!
//! ```text
//! table  = block … | index | filter | footer
//! index  = (length of the last key | last key | offset | length) …, one for each block, crc 4
//! filter = bloom filter, crc 4
//! footer = magic 8 | region 4 | epoch 4 | id 8 | entries 8 | index offset 8 | index bytes 4 |
//!          filter bytes 4 | 0 … | crc 4
//! ```
//! A table has no address of its device: it can be copied to any replica as it is.

mod block;
mod bloom;
mod build;
mod cursor;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::{Deserialize, Serialize};

pub use block::Block;
pub use bloom::hash;
pub use build::{Builder, Built};
pub use cursor::TableCursor;

use crate::disk::{Disk, DiskFile, read_error};
use crate::format::{
    Epoch, Region, checksum, damaged, put_number, seed, take, take_length, take_number, u32_at,
    u64_at,
};
use crate::store::StoreError;
use bloom::Bloom;

const MAGIC: &[u8; 8] = b"wefttab1";
const FOOTER_BYTES: usize = 64;

/// The entry of a table in the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMeta {
    /// Number of the table; with the epoch it is never used again.
    pub id: u64,
    /// The primary that made it.
    pub epoch: Epoch,
    /// Bytes of its file.
    pub bytes: u64,
    /// Number of its pairs.
    pub entries: u64,
    /// Its lowest key.
    pub first: Vec<u8>,
    /// Its highest key.
    pub last: Vec<u8>,
    /// The checksum of the whole file.
    pub crc: u32,
}

impl TableMeta {
    /// Name of the file of the table.
    #[must_use]
    pub fn name(&self) -> String {
        format!("table-{:08x}-{:012x}", self.epoch, self.id)
    }
}

/// The blocks that are kept in memory.
pub type BlockCache = Cache<(u64, u32), Arc<Block>, BlockWeight>;

/// Weighs blocks by their bytes.
#[derive(Clone)]
pub struct BlockWeight;

impl Weighter<(u64, u32), Arc<Block>> for BlockWeight {
    fn weight(&self, _key: &(u64, u32), block: &Arc<Block>) -> u64 {
        block.memory() as u64
    }
}

/// A cache of at most so many bytes.
#[must_use]
pub fn block_cache(bytes: u64) -> BlockCache {
    let blocks = usize::try_from(bytes / 4096).unwrap_or(usize::MAX).max(16);
    Cache::with_weighter(blocks, bytes, BlockWeight)
}

/// A table that is open: its index and filter are in memory.
pub struct Table {
    meta: TableMeta,
    name: String,
    file: Arc<dyn DiskFile>,
    disk: Arc<dyn Disk>,
    cache: Arc<BlockCache>,
    seed: u32,
    index: Vec<IndexEntry>,
    bloom: Bloom,
    is_doomed: AtomicBool,
}

struct IndexEntry {
    last: Box<[u8]>,
    offset: u64,
    bytes: usize,
}

/// The bytes of the sections behind the blocks.
struct Footer {
    entries: u64,
    index_offset: u64,
    index_bytes: usize,
    filter_bytes: usize,
}

impl Footer {
    fn emit(&self, region: Region, epoch: Epoch, id: u64) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&region.to_le_bytes());
        out[12..16].copy_from_slice(&epoch.to_le_bytes());
        out[16..24].copy_from_slice(&id.to_le_bytes());
        out[24..32].copy_from_slice(&self.entries.to_le_bytes());
        out[32..40].copy_from_slice(&self.index_offset.to_le_bytes());
        let short = |bytes: usize| u32::try_from(bytes).expect("a section below 4 GiB");
        out[40..44].copy_from_slice(&short(self.index_bytes).to_le_bytes());
        out[44..48].copy_from_slice(&short(self.filter_bytes).to_le_bytes());
        let crc = checksum(seed(region, epoch, id), &out[..FOOTER_BYTES - 4]);
        out[FOOTER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8], region: Region, meta: &TableMeta) -> Option<Self> {
        let footer = Self {
            entries: u64_at(bytes, 24)?,
            index_offset: u64_at(bytes, 32)?,
            index_bytes: usize::try_from(u32_at(bytes, 40)?).ok()?,
            filter_bytes: usize::try_from(u32_at(bytes, 44)?).ok()?,
        };
        let sections = (footer.index_bytes + footer.filter_bytes + FOOTER_BYTES) as u64;
        let is_whole = footer.index_offset.checked_add(sections) == Some(meta.bytes);
        (is_whole && footer.emit(region, meta.epoch, meta.id) == bytes).then_some(footer)
    }
}

impl Table {
    /// Opens a table that the manifest names, and reads its index and filter.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn open(
        disk: &Arc<dyn Disk>,
        cache: &Arc<BlockCache>,
        region: Region,
        meta: TableMeta,
    ) -> Result<Self, StoreError> {
        let name = meta.name();
        let file = disk.open(&name).map_err(|error| read_error(&name, &error))?;
        let seed = seed(region, meta.epoch, meta.id);
        let read = |offset: u64, bytes: usize| {
            let mut buffer = vec![0; bytes];
            file.read_at(offset, &mut buffer).map_err(|error| read_error(&name, &error))?;
            Ok::<_, StoreError>(buffer)
        };
        let footer_at = meta.bytes.checked_sub(FOOTER_BYTES as u64);
        let footer_at = footer_at.ok_or_else(|| damaged(&name, "too short for a table"))?;
        let footer = Footer::parse(&read(footer_at, FOOTER_BYTES)?, region, &meta)
            .ok_or_else(|| damaged(&name, "its footer has a wrong checksum"))?;
        let section = |offset: u64, bytes: usize, what: &str| {
            let mut section = read(offset, bytes)?;
            if !block::unseal(seed, offset, &mut section) {
                return Err(damaged(&name, &format!("its {what} has a wrong checksum")));
            }
            Ok(section)
        };
        let index = section(footer.index_offset, footer.index_bytes, "index")?;
        let index = parse_index(&index, footer.index_offset)
            .ok_or_else(|| damaged(&name, "its index is none"))?;
        let filter_at = footer.index_offset + footer.index_bytes as u64;
        let bloom = Bloom::parse(section(filter_at, footer.filter_bytes, "filter")?)
            .ok_or_else(|| damaged(&name, "its filter is none"))?;
        Ok(Self {
            meta,
            name,
            file,
            disk: Arc::clone(disk),
            cache: Arc::clone(cache),
            seed,
            index,
            bloom,
            is_doomed: AtomicBool::new(false),
        })
    }

    /// Its entry in the manifest.
    #[must_use]
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// The file is removed when nobody reads the table any more.
    pub fn doom(&self) {
        self.is_doomed.store(true, Ordering::Release);
    }

    /// Whether a key may be between its first and last.
    #[must_use]
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.meta.first <= *key && *key <= *self.meta.last
    }

    /// The slot of a key; `hash` is [`hash`] of it.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn get<R>(
        &self,
        key: &[u8],
        hash: u64,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>, StoreError> {
        if !self.bloom.may_contain(hash) {
            return Ok(None);
        }
        let number = self.block_of(key);
        if number == self.index.len() {
            return Ok(None);
        }
        let block = self.block(number)?;
        let (place, is_there) = block.search(key).ok_or_else(|| self.bad_block(number))?;
        if !is_there {
            return Ok(None);
        }
        let (_, slot) = block.pair(place).ok_or_else(|| self.bad_block(number))?;
        Ok(Some(read(slot)))
    }

    /// The first block whose last key is not lower.
    fn block_of(&self, key: &[u8]) -> usize {
        self.index.partition_point(|entry| *entry.last < *key)
    }

    /// A block, from the cache if it is there.
    fn block(&self, number: usize) -> Result<Arc<Block>, StoreError> {
        // Ids are the same only in tables of different epochs: the upper half tells them apart.
        let table = (u64::from(self.meta.epoch) << 40) ^ self.meta.id;
        let key = (table, u32::try_from(number).unwrap_or(u32::MAX));
        if let Some(block) = self.cache.get(&key) {
            return Ok(block);
        }
        let entry = &self.index[number];
        let mut bytes = vec![0; entry.bytes];
        self.file
            .read_at(entry.offset, &mut bytes)
            .map_err(|error| read_error(&self.name, &error))?;
        let block = Arc::new(self.parse_block(number, bytes)?);
        self.cache.insert(key, Arc::clone(&block));
        Ok(block)
    }

    fn parse_block(&self, number: usize, mut bytes: Vec<u8>) -> Result<Block, StoreError> {
        if !block::unseal(self.seed, self.index[number].offset, &mut bytes) {
            return Err(self.bad_block(number));
        }
        Block::parse(bytes).ok_or_else(|| self.bad_block(number))
    }

    fn bad_block(&self, number: usize) -> StoreError {
        damaged(&self.name, &format!("block {number} has a wrong checksum"))
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::try_from(self.meta.bytes).unwrap_or(0)];
        self.file.read_at(0, &mut bytes).map_err(|error| read_error(&self.name, &error))?;
        Ok(bytes)
    }

    /// Reads the whole file and compares its checksum.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn check(&self) -> Result<(), StoreError> {
        let mut crc = 0;
        let mut offset = 0;
        let mut buffer = vec![0; 256 << 10];
        while offset < self.meta.bytes {
            let left = usize::try_from(self.meta.bytes - offset).unwrap_or(usize::MAX);
            let part = buffer.len().min(left);
            self.file
                .read_at(offset, &mut buffer[..part])
                .map_err(|error| read_error(&self.name, &error))?;
            crc = checksum(crc, &buffer[..part]);
            offset += part as u64;
        }
        if crc == self.meta.crc {
            Ok(())
        } else {
            Err(damaged(&self.name, "the checksum of the whole is wrong"))
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.is_doomed.load(Ordering::Acquire) {
            // A file that stays is removed when the store is opened the next time.
            let _ = self.disk.remove(&self.name);
        }
    }
}

fn emit_index(entries: &[IndexEntry], out: &mut Vec<u8>) {
    for entry in entries {
        put_number(out, entry.last.len() as u64);
        out.extend_from_slice(&entry.last);
        put_number(out, entry.offset);
        put_number(out, entry.bytes as u64);
    }
}

fn parse_index(mut bytes: &[u8], end: u64) -> Option<Vec<IndexEntry>> {
    let mut entries: Vec<IndexEntry> = Vec::new();
    while !bytes.is_empty() {
        let key_bytes = take_length(&mut bytes)?;
        let last: Box<[u8]> = take(&mut bytes, key_bytes)?.into();
        let offset = take_number(&mut bytes)?;
        let length = take_length(&mut bytes)?;
        if offset.checked_add(length as u64)? > end
            || entries.last().is_some_and(|before| before.last >= last)
        {
            return None;
        }
        entries.push(IndexEntry { last, offset, bytes: length });
    }
    (!entries.is_empty()).then_some(entries)
}
