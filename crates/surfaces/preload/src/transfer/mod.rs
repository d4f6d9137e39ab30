//! Reading and writing a tracked connection, blocking or not.

mod nap;
mod peek;
mod receive;
mod send;
mod tcp;

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use weft_fabric::{Carry, Medium};
use weft_socket::Limits;
use weft_sync::{AdaptiveWait, Learned};

use crate::arena::{Connection, flag};
use crate::waits::Limit;
use crate::{process, sys, waits};

/// The options of one read or write.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Leave the bytes where they are (MSG_PEEK).
    pub peek: bool,
    /// Do not wait (MSG_DONTWAIT).
    pub dont_wait: bool,
    /// Wait for all bytes (MSG_WAITALL).
    pub wait_all: bool,
    /// Raise no SIGPIPE (MSG_NOSIGNAL).
    pub no_signal: bool,
}

/// The result of one attempt to move bytes.
enum Attempt {
    Moved(usize),
    /// The last bytes before the direction moves between TCP and the lane. Bytes on the other way
    /// may be there already.
    MovedTheLast(usize),
    /// Something changed: the caller must try again at once.
    Again,
    /// The connection is the kernel's alone by now, and this process still has its lane.
    Left,
    End,
    WouldBlock,
    Failed(Errno),
}

impl Connection {
    fn adaptive_wait(&self) -> AdaptiveWait {
        let settings = process::settings();
        let learned = Learned::of(self.local.learned.load(Ordering::Relaxed));
        AdaptiveWait::new(settings.spins, settings.yields).with(learned)
    }

    fn learn(&self, mut adaptive_wait: AdaptiveWait, hit: bool) {
        if hit {
            self.found_awake();
            adaptive_wait.hit();
        } else {
            adaptive_wait.miss();
        }
        self.local.learned.store(adaptive_wait.learned().bits(), Ordering::Relaxed);
    }

    fn blocks(&self, how: How) -> bool {
        !how.dont_wait && !self.has(flag::NONBLOCKING)
    }

    /// Passes on the result of a call of the kernel. A reset is reported once, by the kernel or the
    /// lane; from then on the result is `after`.
    fn told_once(&self, attempt: Attempt, after: Attempt) -> Attempt {
        if !matches!(attempt, Attempt::Failed(Errno::CONNRESET)) {
            return attempt;
        }
        self.note_wakeup(waits::Wakeup::Failed(Errno::CONNRESET));
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 { attempt } else { after }
    }

    /// Notes the error that the kernel told a call of the library: it tells each once.
    pub fn note_error(&self, errno: Errno) {
        let lasts = !matches!(errno, Errno::AGAIN | Errno::INTR | Errno::PIPE | Errno::CONNRESET);
        if lasts && let Ok(number) = u16::try_from(errno.raw_os_error()) {
            self.local.kernel_error.store(number, Ordering::Relaxed);
        }
    }

    /// The bytes of a call of the library on the kernel's socket, none if it failed.
    pub fn noting(&self, result: Result<usize, Errno>) -> usize {
        result.inspect_err(|errno| self.note_error(*errno)).unwrap_or(0)
    }

    /// The error of a connection that broke: that of the kernel, if it told the library a better
    /// one than a reset.
    pub fn error_of_reset(&self) -> Errno {
        match self.local.kernel_error.load(Ordering::Relaxed) {
            0 => Errno::CONNRESET,
            number => Errno::from_raw_os_error(number.into()),
        }
    }

    /// The error the first time, then an end.
    fn report_reset(&self) -> Attempt {
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 {
            Attempt::Failed(self.error_of_reset())
        } else {
            Attempt::End
        }
    }
}

/// The sizes of writes on a lane. Across a network pieces are a quarter of the sink at least, as
/// each costs both ends some calls of the kernel.
fn limits_on(lane: &impl Carry) -> Limits {
    let limits = process::settings().limits;
    if lane.medium() != Medium::Network {
        return limits;
    }
    let quarter = usize::try_from(lane.sink_bytes() / 4).unwrap_or(limits.chunk_bytes);
    Limits { chunk_bytes: limits.chunk_bytes.max(quarter), ..limits }
}

/// How many bytes go through the lane before a peer that sleeps is woken for them.
fn piece(lane: &impl Carry) -> usize {
    usize::try_from(lane.sink_bytes() / 4).unwrap_or(usize::MAX).max(1)
}

/// The rest of SO_RCVTIMEO or SO_SNDTIMEO, if it is set. It begins to run at the first call.
fn time_left(fd: RawFd, which: Timeout, deadline: &mut Option<u64>) -> Limit {
    let time = socket_timeout(sys::borrow(fd), which).ok()??;
    let now = sys::now_ns();
    let limit = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let end = *deadline.get_or_insert(now.saturating_add(limit));
    Some(end.saturating_sub(now))
}
