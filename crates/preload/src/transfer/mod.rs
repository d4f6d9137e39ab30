//! Reading and writing a tracked connection, blocking or not.

mod receive;
mod send;
mod tcp;

use std::sync::atomic::Ordering;

use rustix::io::Errno;
use weft_fabric::Lane;
use weft_sync::{AdaptiveWait, Learned};
use weft_transport_shm::lane::ShmLane;

use crate::arena::{Connection, flag};
use crate::{process, sys};

/// How a call wants its bytes.
#[derive(Clone, Copy, Default)]
pub struct How {
    /// Leave them there.
    pub peek: bool,
    /// Do not wait.
    pub dont_wait: bool,
    /// Wait for all of them.
    pub wait_all: bool,
    /// No SIGPIPE.
    pub no_signal: bool,
}

/// The result of one try to move bytes.
enum Attempt {
    Moved(usize),
    /// The last bytes before the direction moves between TCP and the lane; what follows may be
    /// there already.
    MovedTheLast(usize),
    /// Something changed: try again at once.
    Again,
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

    /// A reset is told once, by the kernel or by a lane, whoever knew of it first; `after` is what
    /// is told from then on.
    fn told_once(&self, attempt: Attempt, after: Attempt) -> Attempt {
        if !matches!(attempt, Attempt::Failed(Errno::CONNRESET)) {
            return attempt;
        }
        self.heard(sys::Wakeup::Failed(Errno::CONNRESET));
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 { attempt } else { after }
    }

    /// ECONNRESET, the first time.
    fn report_reset(&self) -> Attempt {
        let former = self.shared.flags.fetch_or(flag::RESET_REPORTED, Ordering::Relaxed);
        if former & flag::RESET_REPORTED == 0 {
            Attempt::Failed(Errno::CONNRESET)
        } else {
            Attempt::End
        }
    }
}

/// Bytes that go through a lane before a peer that sleeps is woken for them.
fn piece(lane: &ShmLane) -> usize {
    usize::try_from(lane.sink_bytes() / 4).unwrap_or(usize::MAX).max(1)
}
