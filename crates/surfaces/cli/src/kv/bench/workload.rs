//! The workloads of RED-SEA-D2.3#2.1.3: which keys, which values, which operations.
//!
//! Sizes are those of whole pairs: S 33, M 123 and L 1,023 bytes, with keys of 24 bytes. The class
//! of a key never changes. Values are incompressible. Uses the standard library alone, so that the
//! peers of `bench/kv-peers` run the same.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a key.
pub const KEY_BYTES: usize = 24;
/// Bytes of the values of the classes S, M and L.
pub const VALUE_BYTES: [usize; 3] = [9, 99, 999];
/// The exponent of the distribution of YCSB.
const THETA: f64 = 0.99;
const TABLE_BYTES: usize = 1 << 20;

/// How many keys of ten are small and medium; the others are large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    small: u64,
    medium: u64,
}

impl Mix {
    /// The mix of a name: S, M, L, SD, MD or LD.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (small, medium) = match name {
            "S" => (10, 0),
            "M" => (0, 10),
            "L" => (0, 0),
            "SD" => (6, 2),
            "MD" => (2, 6),
            "LD" => (2, 2),
            _ => return None,
        };
        Some(Self { small, medium })
    }

    /// Bytes of the value of a record.
    #[must_use]
    pub fn value_bytes(self, record: u64) -> usize {
        let class = splitmix(record ^ 0x55) % 10;
        let class =
            if class < self.small { 0 } else { 1 + usize::from(class >= self.small + self.medium) };
        VALUE_BYTES[class]
    }
}

/// One phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Inserts all records.
    LoadA,
    /// Half reads, half updates.
    RunA,
    /// 95 of 100 reads, else updates.
    RunB,
    /// Reads.
    RunC,
    /// 95 of 100 reads of new records, else inserts.
    RunD,
}

impl Workload {
    /// The workload of a name: load-a, run-a and so on.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "load-a" => Self::LoadA,
            "run-a" => Self::RunA,
            "run-b" => Self::RunB,
            "run-c" => Self::RunC,
            "run-d" => Self::RunD,
            _ => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LoadA => "load-a",
            Self::RunA => "run-a",
            Self::RunB => "run-b",
            Self::RunC => "run-c",
            Self::RunD => "run-d",
        }
    }

    fn reads_percent(self) -> u64 {
        match self {
            Self::LoadA => 0,
            Self::RunA => 50,
            Self::RunB | Self::RunD => 95,
            Self::RunC => 100,
        }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a record.
    Read(u64),
    /// Writes a record that is there, or a new one.
    Write(u64),
}

/// The key of a record.
#[must_use]
pub fn key(record: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"user00000000000000000000";
    let mut rest = fnv(record);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
    }
    key
}

/// The bytes of all values: windows of one random table.
pub struct Values {
    table: Vec<u8>,
}

impl Default for Values {
    fn default() -> Self {
        let words = (0..TABLE_BYTES as u64 / 8).flat_map(|word| splitmix(word).to_le_bytes());
        Self { table: words.collect() }
    }
}

impl Values {
    /// A value of some bytes; `turn` chooses which.
    #[must_use]
    pub fn value(&self, turn: u64, bytes: usize) -> &[u8] {
        let windows = (TABLE_BYTES - bytes) as u64;
        let start = usize::try_from(splitmix(turn) % windows).unwrap_or(0);
        &self.table[start..start + bytes]
    }
}

/// The records that are there, while several threads insert more.
pub struct Records {
    next: AtomicU64,
    /// For each thread the record that it inserts, else `u64::MAX`.
    inserting: Vec<AtomicU64>,
}

impl Records {
    /// So many records are there.
    #[must_use]
    pub fn new(records: u64, threads: usize) -> Self {
        let inserting = (0..threads).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { next: AtomicU64::new(records), inserting }
    }

    /// The record that this thread inserts next.
    pub fn begin(&self, thread: usize) -> u64 {
        // Announced before the number is taken: nobody takes it for a record that is there.
        self.inserting[thread].store(self.next.load(Ordering::SeqCst), Ordering::SeqCst);
        let record = self.next.fetch_add(1, Ordering::SeqCst);
        self.inserting[thread].store(record, Ordering::SeqCst);
        record
    }

    /// The record of this thread is there.
    pub fn end(&self, thread: usize) {
        self.inserting[thread].store(u64::MAX, Ordering::SeqCst);
    }

    /// All records below this are there.
    #[must_use]
    pub fn there(&self) -> u64 {
        let next = self.next.load(Ordering::SeqCst);
        let inserting = self.inserting.iter().map(|record| record.load(Ordering::SeqCst));
        inserting.min().unwrap_or(next).min(next)
    }
}

/// The operations of one thread.
pub struct Operations<'a> {
    workload: Workload,
    records: &'a Records,
    zipf: &'a Zipf,
    thread: usize,
    random: u64,
}

impl<'a> Operations<'a> {
    /// The operations of a thread in a phase.
    #[must_use]
    pub fn new(workload: Workload, records: &'a Records, zipf: &'a Zipf, thread: usize) -> Self {
        let random = splitmix(thread as u64 ^ (workload as u64) << 32);
        Self { workload, records, zipf, thread, random }
    }

    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        splitmix(self.random)
    }

    /// The next operation.
    #[must_use]
    pub fn next(&mut self) -> Operation {
        let inserts = matches!(self.workload, Workload::LoadA | Workload::RunD);
        let reads = self.workload.reads_percent();
        let is_read = reads > 0 && (reads == 100 || self.next_random() % 100 < reads);
        if inserts && !is_read {
            return Operation::Write(self.records.begin(self.thread));
        }
        let rank = {
            let random = self.next_random();
            self.zipf.rank(random)
        };
        if self.workload == Workload::RunD {
            let there = self.records.there();
            return Operation::Read(there - 1 - rank.min(there - 1));
        }
        let record = fnv(rank) % self.zipf.items;
        if is_read { Operation::Read(record) } else { Operation::Write(record) }
    }

    /// The last operation is done.
    pub fn done(&self) {
        self.records.end(self.thread);
    }
}

/// Ranks of YCSB's distribution (Gray and others, SIGMOD 1994).
pub struct Zipf {
    items: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

#[allow(clippy::cast_precision_loss, reason = "ranks are far below 2^52")]
impl Zipf {
    /// Over so many items.
    #[must_use]
    pub fn new(items: u64) -> Self {
        let zeta = |items: u64| (1..=items).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (zeta2, zeta) = (zeta(2), zeta(items));
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta2 / zeta);
        Self { items, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    fn rank(&self, random: u64) -> u64 {
        let part = (random >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = part * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * part - self.eta + 1.0).powf(self.alpha);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below items")]
        let rank = rank as u64;
        rank.min(self.items - 1)
    }
}

fn splitmix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fnv(number: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_length_and_differ() {
        let keys: std::collections::BTreeSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn the_mix_has_its_mean() {
        let mix = Mix::named("SD").unwrap();
        let bytes: usize = (0..100_000).map(|record| mix.value_bytes(record) + KEY_BYTES).sum();
        assert!((248..=250).contains(&(bytes / 100_000)), "{}", bytes / 100_000);
    }

    #[test]
    fn a_tenth_of_the_ranks_has_most_of_the_reads() {
        let zipf = Zipf::new(10_000);
        let low = (0..100_000).filter(|&turn| zipf.rank(splitmix(turn)) < 1_000).count();
        assert!((70_000..85_000).contains(&low), "{low}");
    }
}
