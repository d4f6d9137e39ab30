//! Walking through several sources of pairs as through one.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::level0::{Entry, Level0};
use crate::store::StoreError;
use crate::table::{Table, TableCursor};

/// Entries of a level 0 that are copied at once.
const CHUNK: usize = 64;

/// The pairs of a level 0 that does not change any more.
pub type FrozenPairs<'a> = Box<dyn Iterator<Item = (&'a [u8], &'a [u8])> + 'a>;

/// One sorted source.
pub enum Source<'a> {
    /// A level 0 that may be written meanwhile.
    Level0(Level0Cursor),
    /// A level 0 that does not change any more.
    Frozen(Peekable<FrozenPairs<'a>>),
    /// A level of tables, or some of its tables.
    Level(LevelCursor),
}

impl Source<'_> {
    fn entry(&mut self) -> Option<(&[u8], &[u8])> {
        match self {
            Self::Level0(cursor) => cursor.entry(),
            Self::Frozen(pairs) => pairs.peek().copied(),
            Self::Level(cursor) => cursor.entry(),
        }
    }

    fn step(&mut self) -> Result<(), StoreError> {
        match self {
            Self::Level0(cursor) => {
                cursor.step();
                Ok(())
            }
            Self::Frozen(pairs) => {
                pairs.next();
                Ok(())
            }
            Self::Level(cursor) => cursor.step(),
        }
    }
}

/// Copies the pairs of a level 0 in chunks, so that no lock is held between.
pub struct Level0Cursor {
    level0: Arc<Level0>,
    is_backward: bool,
    lsn: u64,
    chunk: VecDeque<Entry>,
    is_last: bool,
    /// The bound where the cursor ends.
    end: Bound<Vec<u8>>,
}

fn owned(bound: Bound<&[u8]>) -> Bound<Vec<u8>> {
    bound.map(<[u8]>::to_vec)
}

fn borrowed(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Level0Cursor {
    /// At the first pair of a range in its direction, for a reader at this LSN.
    #[must_use]
    pub fn new(
        level0: Arc<Level0>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        is_backward: bool,
        lsn: u64,
    ) -> Self {
        let (chunk, is_last) = level0.range(from, to, is_backward, CHUNK, lsn);
        let end = owned(if is_backward { from } else { to });
        Self { level0, is_backward, lsn, chunk: chunk.into(), is_last, end }
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.chunk.front().map(|(key, slot)| (&**key, &**slot))
    }

    fn step(&mut self) {
        let Some((key, _)) = self.chunk.pop_front() else { return };
        if !self.chunk.is_empty() || self.is_last {
            return;
        }
        let (behind, end) = (Bound::Excluded(&*key), borrowed(&self.end));
        let (from, to) = if self.is_backward { (end, behind) } else { (behind, end) };
        let (chunk, is_last) = self.level0.range(from, to, self.is_backward, CHUNK, self.lsn);
        self.chunk = chunk.into();
        self.is_last = is_last;
    }
}

/// Walks through tables that follow each other.
pub struct LevelCursor {
    tables: Tables,
    is_backward: bool,
    /// Reads long pieces beside the cache.
    is_whole: bool,
    at: Option<(usize, TableCursor)>,
}

enum Tables {
    Level(Arc<Vec<Vec<Arc<Table>>>>, usize),
    Some(Vec<Arc<Table>>),
}

impl Tables {
    fn all(&self) -> &[Arc<Table>] {
        match self {
            Self::Level(levels, level) => &levels[*level],
            Self::Some(tables) => tables,
        }
    }
}

impl LevelCursor {
    /// At the first pair of a level behind `start`, or before it if the cursor goes backward.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn seek(
        levels: Arc<Vec<Vec<Arc<Table>>>>,
        level: usize,
        start: Bound<&[u8]>,
        is_backward: bool,
    ) -> Result<Self, StoreError> {
        let tables = Tables::Level(levels, level);
        let all = tables.all();
        let first = match (start, is_backward) {
            (Bound::Unbounded, false) => Some(0),
            (Bound::Unbounded, true) => all.len().checked_sub(1),
            (Bound::Included(key) | Bound::Excluded(key), false) => {
                Some(all.partition_point(|table| *table.meta().last < *key))
            }
            (Bound::Included(key) | Bound::Excluded(key), true) => {
                all.partition_point(|table| *table.meta().first <= *key).checked_sub(1)
            }
        };
        let at = match first.and_then(|first| Some((first, all.get(first)?))) {
            Some((first, table)) => {
                Some((first, TableCursor::seek(Arc::clone(table), start, is_backward)?))
            }
            None => None,
        };
        let mut cursor = Self { tables, is_backward, is_whole: false, at };
        cursor.settle()?;
        Ok(cursor)
    }

    /// At the first pair of tables that follow each other, for a reader of all.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn whole(tables: Vec<Arc<Table>>) -> Result<Self, StoreError> {
        let at = match tables.first() {
            Some(table) => Some((0, TableCursor::whole(Arc::clone(table))?)),
            None => None,
        };
        let tables = Tables::Some(tables);
        Ok(Self { tables, is_backward: false, is_whole: true, at })
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.at.as_ref()?.1.entry()
    }

    fn step(&mut self) -> Result<(), StoreError> {
        let Some((_, cursor)) = &mut self.at else { return Ok(()) };
        cursor.step()?;
        self.settle()
    }

    /// Goes to the next table while this one is at its end.
    fn settle(&mut self) -> Result<(), StoreError> {
        while let Some((number, cursor)) = &self.at
            && cursor.entry().is_none()
        {
            let next = if self.is_backward { number.checked_sub(1) } else { Some(number + 1) };
            let table = next.and_then(|next| Some((next, self.tables.all().get(next)?)));
            self.at = match table {
                Some((next, table)) if self.is_whole => {
                    Some((next, TableCursor::whole(Arc::clone(table))?))
                }
                Some((next, table)) => {
                    let table = Arc::clone(table);
                    Some((next, TableCursor::seek(table, Bound::Unbounded, self.is_backward)?))
                }
                None => None,
            };
        }
        Ok(())
    }
}

/// Several sources as one: of pairs with the same key it gives that of the first source.
pub struct Merge<'a> {
    sources: Vec<Source<'a>>,
    is_backward: bool,
    /// The source of the current pair.
    best: Option<usize>,
    key: Vec<u8>,
}

impl<'a> Merge<'a> {
    /// Merges sources, the newest first. All must go in this direction.
    #[must_use]
    pub fn new(sources: Vec<Source<'a>>, is_backward: bool) -> Self {
        let mut merge = Self { sources, is_backward, best: None, key: Vec::new() };
        merge.choose();
        merge
    }

    /// The current pair and the number of its source.
    pub fn entry(&mut self) -> Option<(usize, &[u8], &[u8])> {
        let best = self.best?;
        let (key, slot) = self.sources[best].entry()?;
        Some((best, key, slot))
    }

    /// Goes to the next key; `shadowed` gets the number and the slot of each older pair of this
    /// key, which nobody sees.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn step(&mut self, mut shadowed: impl FnMut(usize, &[u8])) -> Result<(), StoreError> {
        let Some(best) = self.best else { return Ok(()) };
        self.key.clear();
        if let Some((key, _)) = self.sources[best].entry() {
            self.key.extend_from_slice(key);
        }
        self.sources[best].step()?;
        for number in best + 1..self.sources.len() {
            if let Some((key, slot)) = self.sources[number].entry()
                && key == self.key
            {
                shadowed(number, slot);
                self.sources[number].step()?;
            }
        }
        self.choose();
        Ok(())
    }

    fn choose(&mut self) {
        self.best = None;
        for number in 0..self.sources.len() {
            let (before, rest) = self.sources.split_at_mut(number);
            let Some((key, _)) = rest[0].entry() else { continue };
            let is_better = match self.best {
                None => true,
                Some(best) => {
                    let other = before[best].entry().map(|(key, _)| key);
                    other.is_none_or(
                        |other| if self.is_backward { key > other } else { key < other },
                    )
                }
            };
            if is_better {
                self.best = Some(number);
            }
        }
    }
}
