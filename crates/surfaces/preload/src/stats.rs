//! The counters that `weft run --stats` prints: a block of shared memory that `weft run` made.
//! Without one nothing is counted.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode, OFlags};
use weft_memory::Segment;
use weft_wire::stats::{self, TcpReason};

static BLOCK: OnceLock<Segment> = OnceLock::new();

/// Maps the block at `path`. The constructor calls this, while the process may still open files.
pub fn open(path: &str) {
    let Ok(file) = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let Ok(block) = Segment::open(file.as_fd(), stats::BYTES, true) else { return };
    let ours = block.word64(stats::MAGIC_INDEX * 8).load(Ordering::Relaxed) == stats::MAGIC
        && block.word64(stats::VERSION_INDEX * 8).load(Ordering::Relaxed) == stats::VERSION;
    if ours && BLOCK.set(block).is_ok() {
        add(stats::PROCESSES, 1);
    }
}

/// True when `weft run --stats` reads the counters.
pub fn are_read() -> bool {
    BLOCK.get().is_some()
}

/// Adds `amount` to a counter, given by its index.
#[inline]
pub fn add(counter: usize, amount: u64) {
    if let Some(block) = BLOCK.get() {
        block.word64(counter * 8).fetch_add(amount, Ordering::Relaxed);
    }
}

/// Counts a connection that stays on TCP.
pub fn stays_on_tcp(reason: TcpReason) {
    add(stats::CONNECTIONS_TCP, 1);
    add(reason.index(), 1);
}
