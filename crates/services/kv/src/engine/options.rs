//! The limits of an engine, and how safe its writes are.

use crate::format::{Epoch, Region};

/// Options of an engine. The defaults suit a node with some GiB of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The part of the key space. A store that is there keeps its own.
    pub region: Region,
    /// The primary; a store never goes back to a lower one.
    pub epoch: Epoch,
    /// Bytes of level 0 after which it goes to level 1. Memory: [`Self::frozen_max`] + 2 of these.
    pub level0_bytes: usize,
    /// Levels 0 that may wait for their way to level 1, before writers wait, too.
    pub frozen_max: usize,
    /// How many times larger a level is than the one above.
    pub growth: u64,
    /// Bytes of a table.
    pub table_bytes: usize,
    /// Bytes of a segment of the log. A batch is in one segment: a larger batch makes a larger one.
    pub segment_bytes: u64,
    /// Pairs of at most so many bytes are in the tables; values of larger ones stay in the log.
    pub in_place_bytes: usize,
    /// Bytes of blocks in memory.
    pub cache_bytes: u64,
    /// Files that are open at once.
    pub files_max: usize,
    /// A commit waits until the log is synced; else until the operating system has it.
    pub is_durable: bool,
    /// Threads for the work behind: tables, collection. With 0 the writers do it.
    pub threads: usize,
    /// Segments of which little is used are written again. A backup that builds its own index gets
    /// these writes from its primary.
    pub collects: bool,
    /// Names the boot of the machine: only between boots can the power have gone.
    pub boot: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            region: 0,
            epoch: 1,
            level0_bytes: 32 << 20,
            frozen_max: 3,
            growth: 4,
            table_bytes: 4 << 20,
            segment_bytes: 8 << 20,
            in_place_bytes: 128,
            cache_bytes: 64 << 20,
            files_max: 128,
            is_durable: false,
            threads: 2,
            collects: true,
            boot: String::new(),
        }
    }
}

impl Options {
    /// Most bytes of a level of tables, from 0 for level 1.
    #[must_use]
    pub fn level_bytes(&self, level: usize) -> u64 {
        let power = u32::try_from(level + 1).unwrap_or(u32::MAX);
        (self.level0_bytes as u64).saturating_mul(self.growth.saturating_pow(power))
    }
}
