//! The meaning of each descriptor number of this process.
//!
//! The table is a flat array, so a hook on a file or pipe costs one load. Zero means that the
//! library does not track the descriptor, and the hook passes the call on. Every hook that makes a
//! descriptor clears its entry. So a number that was closed without the library is not taken for
//! what it was.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// The meaning of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A descriptor that the library does not track.
    None,
    /// A TCP connection: its place in the arena.
    Connection(u32),
    /// An epoll set: its number.
    Epoll(u32),
    /// A TCP socket that this process made and nobody else has. When it connects, it becomes a
    /// connection.
    Unconnected {
        /// O_NONBLOCK.
        nonblocking: bool,
    },
    /// A TCP socket that listens.
    Listener,
    /// A socket that is left to the kernel: it listens and is not TCP, or has options that only the
    /// kernel serves.
    LeftToKernel,
    /// A connection that this thread is about to close, or to replace by another file. Others wait
    /// until the kernel has done that: what they would read until then may be wakeups.
    Leaving(u32),
}

const KIND_SHIFT: u32 = 29;
const VALUE_MASK: u32 = (1 << KIND_SHIFT) - 1;

impl Entry {
    fn encode(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Connection(place) => 1 << KIND_SHIFT | place,
            Self::Epoll(number) => 2 << KIND_SHIFT | number,
            Self::Listener => 3 << KIND_SHIFT,
            Self::LeftToKernel => 4 << KIND_SHIFT,
            Self::Leaving(task) => 6 << KIND_SHIFT | task & VALUE_MASK,
            Self::Unconnected { nonblocking } => 5 << KIND_SHIFT | u32::from(nonblocking),
        }
    }

    fn decode(value: u32) -> Self {
        match value >> KIND_SHIFT {
            1 => Self::Connection(value & VALUE_MASK),
            2 => Self::Epoll(value & VALUE_MASK),
            3 => Self::Listener,
            4 => Self::LeftToKernel,
            5 => Self::Unconnected { nonblocking: value & VALUE_MASK != 0 },
            6 => Self::Leaving(value & VALUE_MASK),
            _ => Self::None,
        }
    }
}

/// Descriptors from this number on are never tracked.
const ENTRIES_MAX: usize = 1 << 20;

static BASE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicU32 = AtomicU32::new(0);
/// One above the highest number that was ever set: where walks end.
static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// Maps the table, with an entry for each number that this process can have. Untouched pages cost
/// nothing. False when the kernel refuses the memory.
pub fn init() -> bool {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let length = usize::try_from(limit).unwrap_or(ENTRIES_MAX).clamp(1024, ENTRIES_MAX);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh private mapping at an address of the kernel's choice.
    let mapped = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length * size_of::<AtomicU32>(),
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    };
    let Ok(mapped) = mapped else { return false };
    BASE.store(mapped.cast(), Ordering::Release);
    LENGTH.store(u32::try_from(length).expect("clamped to 2^20"), Ordering::Release);
    true
}

/// The connection at `fd`, with the place that says so; an error says what is there else.
#[inline(always)]
#[allow(clippy::inline_always, reason = "each call on a connection begins with it")]
pub fn connection(fd: RawFd) -> Result<(u32, &'static AtomicU32, u32), Entry> {
    let Some(slot) = slot(fd) else { return Err(Entry::None) };
    let word = slot.load(Ordering::Acquire);
    if word >> KIND_SHIFT == 1 {
        Ok((word & VALUE_MASK, slot, word))
    } else {
        Err(Entry::decode(word))
    }
}

/// The place in an entry of a connection, as [`connection`] returned it; `None` for 0.
pub fn place_of(word: u32) -> Option<u32> {
    (word != 0).then_some(word & VALUE_MASK)
}

/// The entry of the connection at `place`.
pub fn word_of(place: u32) -> u32 {
    Entry::Connection(place).encode()
}

#[inline]
fn slot(fd: RawFd) -> Option<&'static AtomicU32> {
    let index = u32::try_from(fd).ok()?;
    if index >= LENGTH.load(Ordering::Acquire) {
        return None;
    }
    let base = BASE.load(Ordering::Relaxed);
    // SAFETY: the mapping has LENGTH zeroed entries, is set before LENGTH and never unmapped.
    Some(unsafe { &*base.add(index as usize) })
}

/// The meaning of `fd`.
#[inline]
pub fn get(fd: RawFd) -> Entry {
    slot(fd).map_or(Entry::None, |slot| Entry::decode(slot.load(Ordering::Acquire)))
}

/// Sets the entry of `fd` and returns the former one. Numbers outside the table are ignored.
pub fn set(fd: RawFd, entry: Entry) -> Entry {
    let Some(slot) = slot(fd) else { return Entry::None };
    if entry != Entry::None {
        HIGHEST.fetch_max(fd.unsigned_abs() + 1, Ordering::Relaxed);
    }
    Entry::decode(slot.swap(entry.encode(), Ordering::AcqRel))
}

/// Sets the entry of `fd` to [`Entry::None`] if it is `entry`.
pub fn clear(fd: RawFd, entry: Entry) {
    if let Some(slot) = slot(fd) {
        let (from, to) = (entry.encode(), Entry::None.encode());
        let _ = slot.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// True when the table has an entry for `fd`. Other descriptors are never tracked.
pub fn covers(fd: RawFd) -> bool {
    slot(fd).is_some()
}

/// The tracked descriptors from `first` to `last`, inclusive, with their entries.
pub fn walk(first: u32, last: u32) -> impl Iterator<Item = (RawFd, Entry)> {
    let end = HIGHEST.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).filter_map(|index| {
        let fd = RawFd::try_from(index).ok()?;
        match get(fd) {
            Entry::None => None,
            entry => Some((fd, entry)),
        }
    })
}

/// The number the daemon knows a listening socket by.
pub fn listener_token(fd: RawFd) -> u64 {
    1 << 63 | u64::from(fd.unsigned_abs())
}
