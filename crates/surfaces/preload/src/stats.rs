//! The counters of this process: those that the daemon watches, and the block of
//! `weft run --stats`.
//!
//! The counters begin in memory of this process. With each connection to the daemon they move to a
//! new page of shared memory, whose descriptor goes to the daemon with the greeting. What was
//! counted for a former daemon stays in the page that it had. Counting is one relaxed addition, and
//! threads have their own lines ([`stats::SHARDS`]).

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use weft_memory::{Segment, View};
use weft_metrics::Histogram;
use weft_wire::stats::{self, OnTcp, Stats, TcpReason};

use crate::sys;

/// Words of 64 bits from one array of counters to the next.
const SHARD_WORDS: usize = (stats::place(1, 0) - stats::place(0, 0)) / 8;
const RECORDS_WORDS: usize = (stats::TURNS_START - stats::record_place(0)) / 8;

/// The words of a block, as [`stats`] places them.
#[repr(C, align(64))]
struct Words {
    header: [AtomicU64; SHARD_WORDS],
    shards: [[AtomicU64; SHARD_WORDS]; stats::SHARDS],
    records: [AtomicU64; RECORDS_WORDS],
    turns: Histogram,
    reserved: [AtomicU64; (stats::BYTES - stats::TURNS_START) / 8 - stats::TURNS],
}

const _: () = assert!(size_of::<Words>() == stats::BYTES);
const _: () = assert!(std::mem::offset_of!(Words, shards) == stats::place(0, 0));
const _: () = assert!(std::mem::offset_of!(Words, records) == stats::record_place(0));
const _: () = assert!(std::mem::offset_of!(Words, turns) == stats::TURNS_START);
const _: () = assert!(size_of::<Histogram>() == stats::TURNS * 8);

impl Words {
    const fn zero() -> Self {
        Self {
            header: [const { AtomicU64::new(0) }; SHARD_WORDS],
            shards: [const { [const { AtomicU64::new(0) }; SHARD_WORDS] }; stats::SHARDS],
            records: [const { AtomicU64::new(0) }; RECORDS_WORDS],
            turns: Histogram::new(),
            reserved: [const { AtomicU64::new(0) }; _],
        }
    }

    #[inline(always)]
    fn add(&self, shard: usize, counter: usize, amount: u64) {
        self.shards[shard % stats::SHARDS][counter].fetch_add(amount, Ordering::Relaxed);
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        self.header.iter().chain(self.shards.iter().flatten()).chain(&self.records)
    }

    /// The words of the record of a connection.
    fn record(&self, number: u64) -> &[AtomicU64] {
        let start = (stats::record_place(number) - stats::record_place(0)) / 8;
        &self.records[start..start + stats::RECORD_WORDS]
    }
}

/// Most pages of a process: one for each connection to a daemon. They are never unmapped, since a
/// thread may be about to count. Later daemons watch nothing.
const PAGES_MAX: u32 = 64;

/// In place of a descriptor that leads to the connection, where none is at hand.
pub const NOT_AT_HAND: RawFd = -1;

/// The block of `weft run --stats`.
static BLOCK: OnceLock<View<Words>> = OnceLock::new();
/// The counters while no daemon watches.
static UNWATCHED: Words = Words::zero();
/// The counters: `UNWATCHED`, or the page of the daemon.
static PAGE: AtomicPtr<Words> = AtomicPtr::new((&raw const UNWATCHED).cast_mut());
static PAGES: AtomicU32 = AtomicU32::new(0);

fn page() -> &'static Words {
    // SAFETY: the pointer leads to a static, or to a mapping that is never unmapped. Words consists
    // of atomics, for which every bit pattern is valid.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

fn view(segment: Segment) -> View<Words> {
    // SAFETY: Words consists of atomics, for which every bit pattern is valid. It is as long as the
    // segment, and a mapping begins at a page.
    unsafe { View::new(&Arc::new(segment), 0) }
}

/// Maps the block at `path`. The constructor calls this, while the process may still open files.
pub fn open(path: &str) {
    let Ok(file) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let Ok(block) = Segment::open(file.as_fd(), stats::BYTES, true) else { return };
    let ours = block.word64(stats::MAGIC_INDEX * 8).load(Ordering::Relaxed) == stats::MAGIC
        && block.word64(stats::VERSION_INDEX * 8).load(Ordering::Relaxed) == stats::VERSION;
    if ours && BLOCK.set(view(block)).is_ok() {
        add(stats::PROCESSES, 1);
    }
}

/// A new page for the daemon, to which this process counts from here on. `None` where there is no
/// memory, or the process had too many.
pub fn page_for_daemon() -> Option<OwnedFd> {
    if PAGES.fetch_add(1, Ordering::Relaxed) >= PAGES_MAX {
        return None;
    }
    let (segment, file) = Segment::create("weft-counters", stats::BYTES).ok()?;
    segment.write(0, &Stats::header(), weft_memory::CopyMode::Plain);
    let words: &'static View<Words> = Box::leak(Box::new(view(segment)));
    PAGE.store(ptr::from_ref::<Words>(words).cast_mut(), Ordering::Release);
    for (early, word) in UNWATCHED.all().zip(words.all()) {
        word.fetch_add(early.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
    Some(file)
}

/// Called in the child after a fork: it has counters of its own.
pub fn forked() {
    UNWATCHED.all().for_each(|word| word.store(0, Ordering::Relaxed));
    PAGE.store((&raw const UNWATCHED).cast_mut(), Ordering::Release);
    PAGES.store(0, Ordering::Relaxed);
}

/// True when a daemon or `weft run --stats` reads the counters.
pub fn are_watched() -> bool {
    are_read() || !ptr::eq(page(), &UNWATCHED)
}

/// True when `weft run --stats` reads the counters.
pub fn are_read() -> bool {
    BLOCK.get().is_some()
}

/// The shard of this thread. The C library keeps a thread's description in its stack, so those of
/// threads lie some pages apart.
#[inline(always)]
fn shard() -> usize {
    sys::thread_pointer() >> 12
}

/// The time by which turns are measured, in nanoseconds; 0 while nobody watches.
pub fn turn_time() -> u64 {
    if !are_watched() {
        return 0;
    }
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(u64::try_from(time.tv_nsec).unwrap_or(0))
        .max(1)
}

/// Notes a turn that began at `since`, by [`turn_time`], and has ended.
pub fn turn_ended(since: u64) {
    if let Some(nanoseconds) = turn_time().checked_sub(since) {
        let turn = Duration::from_nanos(nanoseconds);
        page().turns.record(turn);
        if let Some(block) = BLOCK.get() {
            block.turns.record(turn);
        }
    }
}

/// Adds `amount` to a counter, given by its index.
#[inline(always)]
pub fn add(counter: usize, amount: u64) {
    let shard = shard();
    page().add(shard, counter, amount);
    if let Some(block) = BLOCK.get() {
        block.add(shard, counter, amount);
    }
}

/// Counts the connection behind `fd`, which stays on TCP, and records its addresses.
pub fn stays_on_tcp(fd: RawFd, reason: TcpReason) {
    add(stats::CONNECTIONS_TCP, 1);
    add(reason.index(), 1);
    let page = page();
    let number = page.header[stats::RECORDS_INDEX].fetch_add(1, Ordering::Relaxed);
    let record = OnTcp { number, reason, at_ms: now_ms(), addresses: addresses(fd) };
    let [first, rest @ ..] = page.record(number) else { return };
    let [number, words @ ..] = record.words();
    first.store(0, Ordering::Release);
    for (place, word) in rest.iter().zip(words) {
        place.store(word, Ordering::Release);
    }
    first.store(number, Ordering::Release);
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1000) + nanoseconds / 1_000_000
}

fn addresses(fd: RawFd) -> Option<(SocketAddr, SocketAddr)> {
    if fd == NOT_AT_HAND {
        return None;
    }
    let local = rustix::net::getsockname(sys::borrow(fd)).ok()?;
    let remote = rustix::net::getpeername(sys::borrow(fd)).ok()??;
    SocketAddr::try_from(local).ok().zip(SocketAddr::try_from(remote).ok())
}
