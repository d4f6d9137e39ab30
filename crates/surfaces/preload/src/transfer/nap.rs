//! A thread in a blocking call naps before it sleeps on the kernel's socket
//! ([`weft_transport_shm::lane::nap`]).

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, socket_timeout};
use weft_fabric::WaitFor;
use weft_sync::Naps;
use weft_sync::futex::Slept;
use weft_transport_shm::lane::nap::Nap;

use crate::arena::Connection;
use crate::lane::Lane;
use crate::sys;

/// So much later a thread may notice the peer's death, a signal that came just before the nap, or
/// that another thread shut or closed the connection. A peer behind a program that computes gets
/// its processor back after a time slice, some 3 ms.
const NAP: Duration = Duration::from_millis(5);

/// The outcome of the look that precedes a nap.
enum Look {
    /// Nothing is there.
    Nap(Nap),
    /// There is something to do.
    Found,
    /// The thread cannot nap.
    No,
}

impl Connection {
    /// Naps until there may be `what`. True if the caller is to look again, false if it is to
    /// sleep. A handler of a signal ends a nap, and the caller looks for that, too.
    #[cold]
    pub(super) fn naps(&self, fd: RawFd, what: WaitFor) -> bool {
        let mut naps = Naps::of(self.local.naps.load(Ordering::Relaxed));
        let may_nap = naps.begin();
        self.local.naps.store(naps.bits(), Ordering::Relaxed);
        if !may_nap {
            return false;
        }
        let _hold = self.hold();
        let nap = match self.look_before_nap(fd, what) {
            Look::Nap(nap) => nap,
            Look::Found => return true,
            Look::No => return false,
        };
        self.counts_sleep();
        let is_woken = nap.sleep(NAP) != Slept::TimedOut;
        if is_woken {
            naps.hit();
        } else {
            naps.miss();
        }
        self.local.naps.store(naps.bits(), Ordering::Relaxed);
        is_woken
    }

    fn look_before_nap(&self, fd: RawFd, what: WaitFor) -> Look {
        let timeout = match what {
            WaitFor::Data => Timeout::Recv,
            WaitFor::Room => Timeout::Send,
        };
        // The kernel keeps the program's own time, and would begin it behind the nap.
        if socket_timeout(sys::borrow(fd), timeout) != Ok(None) {
            return Look::No;
        }
        let begin = |lane: Option<&Lane>| lane?.in_memory()?.begin_nap(what);
        match what {
            WaitFor::Data => {
                let nap = self.receiving().and_then(|receiving| begin(receiving.lane));
                let Some(nap) = nap else { return Look::No };
                match self.readable(fd) {
                    Some(false) => Look::Nap(nap),
                    Some(true) => Look::Found,
                    // On TCP the kernel knows.
                    None => Look::No,
                }
            }
            WaitFor::Room => {
                let Some(sending) = self.sending() else { return Look::No };
                let Some(lane) = sending.lane.filter(|_| sending.state.on_lane()) else {
                    return Look::No;
                };
                let Some(nap) = begin(Some(lane)) else { return Look::No };
                if sending.state.writable(lane) { Look::Found } else { Look::Nap(nap) }
            }
        }
    }
}
