//! The counts of a server, for those who watch it from another thread.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_redis::{Gauges, Totals};

/// The counts of a server, as they were at its last tick.
#[derive(Debug, Default)]
pub struct Counts {
    commands: AtomicU64,
    errors: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    input_bytes: AtomicU64,
    output_bytes: AtomicU64,
    connections: AtomicU64,
}

impl Counts {
    pub(crate) fn note(&self, totals: Totals, gauges: &Gauges) {
        for (count, value) in [
            (&self.commands, totals.commands),
            (&self.errors, totals.errors),
            (&self.hits, totals.hits),
            (&self.misses, totals.misses),
            (&self.input_bytes, gauges.input_bytes),
            (&self.output_bytes, gauges.output_bytes),
            (&self.connections, gauges.connections),
        ] {
            count.store(value, Ordering::Relaxed);
        }
    }

    /// The counts of commands.
    pub fn totals(&self) -> Totals {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Totals {
            commands: of(&self.commands),
            errors: of(&self.errors),
            hits: of(&self.hits),
            misses: of(&self.misses),
        }
    }

    /// Bytes from clients, bytes to clients, and connections since the start.
    pub fn traffic(&self) -> [u64; 3] {
        [&self.input_bytes, &self.output_bytes, &self.connections]
            .map(|count| count.load(Ordering::Relaxed))
    }
}
