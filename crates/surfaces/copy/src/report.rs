//! The news that a person or a script hears of a transfer while it goes on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weft_transfer::{Summary, Trouble};

use crate::near::Near;

/// Hears of things as they happen, from the threads of a transfer.
pub trait Reporter: Send + Sync {
    /// Something went wrong with an entry, or it changed while it was read.
    fn trouble(&self, trouble: &Trouble);
    /// A step that a dry run would make.
    fn would(&self, text: &str);
}

/// The work of one kind of threads: how often they did it, and how long all of them together.
#[derive(Debug, Default)]
pub struct Stage {
    times: AtomicU64,
    nanoseconds: AtomicU64,
    near: OnceLock<String>,
}

impl Stage {
    /// How often.
    pub fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// How long.
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }

    /// The memory node that its threads stay at, and its processors; `None` if they are not bound.
    pub fn near(&self) -> Option<&str> {
        self.near.get().map(String::as_str)
    }

    pub(crate) fn stays(&self, near: Option<&Near>) {
        if let Some(near) = near {
            self.near.get_or_init(|| near.to_string());
        }
    }

    pub(crate) fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Gauge::add(&self.times, 1);
        Gauge::add(&self.nanoseconds, took);
        result
    }
}

/// How far a transfer is, and whether it shall stop.
#[derive(Debug, Default)]
pub struct Gauge {
    /// Files that were found so far.
    pub files_found: AtomicU64,
    /// Their bytes.
    pub bytes_found: AtomicU64,
    /// Whether all were found.
    pub is_walked: AtomicBool,
    /// Files that are over, as far as this end knows.
    pub files_over: AtomicU64,
    /// Files that this end opened past the page cache.
    pub files_direct: AtomicU64,
    /// Bytes that moved.
    pub bytes_moved: AtomicU64,
    /// Troubles that a reporter heard of.
    pub troubles: AtomicU64,
    /// Blocks that this end loaded: read and hashed.
    pub loading: Stage,
    /// Blocks that this end stored: wrote, and read back when enough of a file was written.
    pub storing: Stage,
    /// Files that this end finished: read back what was left, and gave them their names.
    pub finishing: Stage,
    /// The memory node that the thread of the fabric stayed at, where it was bound.
    pub fabric_near: OnceLock<String>,
    /// When both ends had met and were ready.
    pub ready: OnceLock<Instant>,
    /// When all was done, and the connections were about to end.
    pub done: OnceLock<Instant>,
    /// Set by who wants the transfer to stop.
    pub stop: AtomicBool,
}

impl Gauge {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// The thread of the fabric stayed there.
    pub(crate) fn stayed(&self, near: Option<String>) {
        if let Some(near) = near {
            self.fabric_near.get_or_init(|| near);
        }
    }

    pub(crate) fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The end of a transfer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The counters of the target.
    pub summary: Summary,
    /// How the bytes went.
    pub way: Way,
    /// Why they went so.
    pub why: String,
    /// The most blocks that were on their way at a time, at the end that granted them; 0 at the
    /// other.
    pub window: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Connections that carried blocks.
    pub streams: u16,
}

/// How the bytes of a transfer went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Inside one process.
    Local,
    /// Through the pipes of a remote shell.
    Shell,
    /// Over TCP without TLS.
    Tcp,
    /// Over TCP with TLS.
    Tls,
    /// Over the fabric.
    Fabric,
    /// Between two far ends.
    ThirdParty,
}

impl Way {
    /// Its name, for scripts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shell => "shell",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Fabric => "fabric",
            Self::ThirdParty => "third-party",
        }
    }
}

/// Says nothing.
pub(crate) struct Quiet;

impl Reporter for Quiet {
    fn trouble(&self, _: &Trouble) {}

    fn would(&self, _: &str) {}
}
