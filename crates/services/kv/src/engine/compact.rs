//! A level that is too large gives tables to the next one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Core;
use super::cursor::{LevelCursor, Merge, Source};
use super::flush::{Change, Output};
use super::view::View;
use crate::manifest::LEVELS_MAX;
use crate::store::StoreError;
use crate::table::Table;

/// A table on its way from a level to the next.
pub(super) struct Step {
    level: usize,
    upper: Arc<Table>,
    lower: Vec<Arc<Table>>,
}

impl Core {
    /// The first level that is too large, whose tables no other job uses.
    pub(super) fn next_step(&self, view: &View, is_busy: impl Fn(usize) -> bool) -> Option<Step> {
        for (level, tables) in view.levels.iter().enumerate().take(LEVELS_MAX - 1) {
            let bytes: u64 = tables.iter().map(|table| table.meta().bytes).sum();
            if bytes <= self.options.level_bytes(level) || is_busy(level) || is_busy(level + 1) {
                continue;
            }
            let lower = view.levels.get(level + 1).map_or(&[][..], Vec::as_slice);
            // The table with the fewest bytes below it costs least.
            let cost = |table: &&Arc<Table>| {
                let below: u64 = overlapping(table, lower).map(|other| other.meta().bytes).sum();
                below.saturating_mul(1000) / table.meta().bytes.max(1)
            };
            let upper = Arc::clone(tables.iter().min_by_key(cost)?);
            let lower = overlapping(&upper, lower).cloned().collect();
            return Some(Step { level, upper, lower });
        }
        None
    }

    pub(super) fn compact(&self, view: &View, step: &Step) -> Result<(), StoreError> {
        let Step { level, upper, lower } = step;
        let level = *level;
        let mut removed = lower.clone();
        removed.push(Arc::clone(upper));
        let output = if lower.is_empty() {
            Output { tables: vec![Arc::clone(upper)], ..Output::default() }
        } else {
            self.count_read(&removed);
            let sources = vec![
                Source::Level(LevelCursor::whole(vec![Arc::clone(upper)])?),
                Source::Level(LevelCursor::whole(lower.clone())?),
            ];
            self.merge(Merge::new(sources, false), 0, level + 1, view)?
        };
        self.install(Change { frozen: 0, removed, level: level + 1, output }, None)?;
        self.counters.compactions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Step {
    pub(super) fn level(&self) -> usize {
        self.level
    }
}

fn overlapping<'a>(table: &Table, level: &'a [Arc<Table>]) -> impl Iterator<Item = &'a Arc<Table>> {
    let (first, last) = (table.meta().first.clone(), table.meta().last.clone());
    level.iter().filter(move |other| other.meta().first <= last && first <= other.meta().last)
}
