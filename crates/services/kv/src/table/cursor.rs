//! Walking through a table in either direction.

use std::ops::Bound;
use std::sync::Arc;

use super::{Block, Table};
use crate::disk::read_error;
use crate::store::StoreError;

/// Bytes that a compaction reads at once.
const READ_AHEAD: usize = 256 << 10;

/// A place in a table, at a pair or behind the last one.
pub struct TableCursor {
    table: Arc<Table>,
    is_backward: bool,
    /// Blocks come by the cache, or in long reads beside it.
    ahead: Option<Ahead>,
    at: Option<At>,
    key: Vec<u8>,
}

struct At {
    number: usize,
    block: Arc<Block>,
    pair: usize,
}

/// Bytes of the file that were read together.
#[derive(Default)]
struct Ahead {
    start: u64,
    bytes: Vec<u8>,
}

impl TableCursor {
    /// At the first pair of a range in its direction: `start` is its lower end, or its upper end
    /// if the cursor goes backward.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn seek(
        table: Arc<Table>,
        start: Bound<&[u8]>,
        is_backward: bool,
    ) -> Result<Self, StoreError> {
        let mut cursor = Self { table, is_backward, ahead: None, at: None, key: Vec::new() };
        if is_backward {
            cursor.seek_backward(start)?;
        } else {
            cursor.seek_forward(start)?;
        }
        Ok(cursor)
    }

    /// At the first pair, for a reader of the whole table that must not disturb the cache.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn whole(table: Arc<Table>) -> Result<Self, StoreError> {
        let ahead = Some(Ahead::default());
        let mut cursor = Self { table, is_backward: false, ahead, at: None, key: Vec::new() };
        cursor.go(0, 0)?;
        Ok(cursor)
    }

    fn seek_forward(&mut self, start: Bound<&[u8]>) -> Result<(), StoreError> {
        let (Bound::Included(key) | Bound::Excluded(key)) = start else {
            return self.go(0, 0);
        };
        let number = self.table.block_of(key);
        if number == self.table.index.len() {
            return Ok(());
        }
        let (pair, is_there) = self.search(number, key)?;
        self.go(number, pair)?;
        if is_there && matches!(start, Bound::Excluded(_)) {
            self.step()?;
        }
        Ok(())
    }

    fn seek_backward(&mut self, start: Bound<&[u8]>) -> Result<(), StoreError> {
        let blocks = self.table.index.len();
        let (Bound::Included(key) | Bound::Excluded(key)) = start else {
            return self.go_to_end(blocks - 1);
        };
        let number = self.table.block_of(key);
        if number == blocks {
            return self.go_to_end(blocks - 1);
        }
        let (pair, is_there) = self.search(number, key)?;
        self.go(number, pair)?;
        if is_there && matches!(start, Bound::Included(_)) {
            return Ok(());
        }
        self.step()
    }

    fn search(&self, number: usize, key: &[u8]) -> Result<(usize, bool), StoreError> {
        let block = self.table.block(number)?;
        block.search(key).ok_or_else(|| self.table.bad_block(number))
    }

    /// The pair under the cursor.
    #[must_use]
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        let at = self.at.as_ref()?;
        at.block.pair(at.pair).map(|(_, slot)| (self.key.as_slice(), slot))
    }

    /// Goes to the next pair in its direction.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn step(&mut self) -> Result<(), StoreError> {
        let Some(at) = &self.at else { return Ok(()) };
        let (number, pair, count) = (at.number, at.pair, at.block.count());
        if self.is_backward {
            match (pair.checked_sub(1), number.checked_sub(1)) {
                (Some(before), _) => self.go(number, before),
                (None, Some(before)) => self.go_to_end(before),
                (None, None) => {
                    self.at = None;
                    Ok(())
                }
            }
        } else if pair + 1 < count {
            self.go(number, pair + 1)
        } else if number + 1 < self.table.index.len() {
            self.go(number + 1, 0)
        } else {
            self.at = None;
            Ok(())
        }
    }

    fn go_to_end(&mut self, number: usize) -> Result<(), StoreError> {
        let block = self.load(number)?;
        let pair = block.count() - 1;
        self.set(number, block, pair)
    }

    fn go(&mut self, number: usize, pair: usize) -> Result<(), StoreError> {
        let block = match self.at.take() {
            Some(at) if at.number == number => at.block,
            _ => self.load(number)?,
        };
        self.set(number, block, pair)
    }

    fn set(&mut self, number: usize, block: Arc<Block>, pair: usize) -> Result<(), StoreError> {
        let (rest, _) = block.pair(pair).ok_or_else(|| self.table.bad_block(number))?;
        self.key.clear();
        self.key.extend_from_slice(block.prefix());
        self.key.extend_from_slice(rest);
        self.at = Some(At { number, block, pair });
        Ok(())
    }

    fn load(&mut self, number: usize) -> Result<Arc<Block>, StoreError> {
        let Some(ahead) = &mut self.ahead else { return self.table.block(number) };
        let entry = &self.table.index[number];
        let wanted = entry.offset..entry.offset + entry.bytes as u64;
        let has = ahead.start..ahead.start + ahead.bytes.len() as u64;
        if wanted.start < has.start || wanted.end > has.end {
            let blocks_end =
                self.table.index.last().map_or(0, |last| last.offset + last.bytes as u64);
            let left = usize::try_from(blocks_end - wanted.start).unwrap_or(usize::MAX);
            ahead.bytes.resize(READ_AHEAD.max(entry.bytes).min(left), 0);
            ahead.start = wanted.start;
            self.table
                .file
                .read_at(wanted.start, &mut ahead.bytes)
                .map_err(|error| read_error(&self.table.name, &error))?;
        }
        let start = usize::try_from(wanted.start - ahead.start).unwrap_or(usize::MAX);
        let bytes = ahead.bytes[start..start + entry.bytes].to_vec();
        Ok(Arc::new(self.table.parse_block(number, bytes)?))
    }
}
