//! Connections without a lane that stay on TCP: for good, or until their end.

use std::os::fd::RawFd;

use weft_socket::Phase;
use weft_wire::stats::TcpReason;

use crate::arena::{Connection, flag};
use crate::{carrier, process};

impl Connection {
    /// Called before a use that only the kernel serves: a connection without a lane stays on TCP
    /// for good. Returns the phase: laned or declined, except in a signal handler that interrupted
    /// a decision.
    pub fn decide_for_kernel(&self, fd: RawFd) -> Phase {
        loop {
            self.stay_unless_moved(fd, TcpReason::RawUse);
            match self.decide(fd, 0) {
                // A handler that interrupted the deciding thread cannot wait for it.
                waits @ (Phase::Fresh | Phase::Pending) if self.is_deciding() => return waits,
                // Another thread is deciding, and has no answer yet.
                Phase::Fresh | Phase::Pending => {}
                decided => return decided,
            }
        }
    }

    /// Keeps a connection without a lane on TCP for good. After the kernel's shutdown of the
    /// sending direction, for example, wakeups of a later lane could not be sent.
    pub fn stay_unless_moved(&self, fd: RawFd, reason: TcpReason) {
        if self.keep_on_tcp(fd, |_| reason) == Some(Phase::Pending) {
            self.stop_asking();
        }
    }

    /// Called before the program ends the sending direction by the kernel's half close. What it
    /// receives may still move: the peer sends wakeups for that, and finds room without any. False
    /// when the connection has a lane by now, or stays on TCP for good.
    pub fn ends_sending_on_tcp(&self, fd: RawFd) -> bool {
        loop {
            // The memory of a lane that others left is for connections that are whole. Across a
            // network an end of file on TCP is an end of the peer.
            let may_move =
                !process::settings().between_hosts && !self.has(flag::INVITED | flag::PRIMES);
            match self.phase() {
                Phase::Fresh | Phase::Pending if may_move => {}
                Phase::Deciding => {
                    self.decide_if_asked(fd);
                    if self.phase() == Phase::Deciding {
                        // A handler that interrupted the deciding thread cannot wait for it.
                        return false;
                    }
                    continue;
                }
                _ => return false,
            }
            // A thread that brings a lane puts it in place under this lock.
            let Some(sending) = self.sending() else { return false };
            if sending.lane.is_none() {
                sending.state.shut_without_lane();
                self.set(flag::SENDING_SHUT, true);
                return true;
            }
        }
    }

    /// Keeps a connection without a lane on TCP until its end, which has begun. Its offer to the
    /// daemon stays until it is closed: a lane that comes by then is kept for the next connection.
    pub fn stay_at_its_end(&self, fd: RawFd) {
        let former = self.keep_on_tcp(fd, |phase| self.why_still_on_tcp(fd, phase));
        if former == Some(Phase::Pending) {
            // A lane over the endpoint serves no other connection.
            carrier::forget(self.token());
            if self.has(flag::INVITED) {
                self.stop_asking();
            }
        }
    }

    /// Keeps a connection without a lane on TCP. Returns its former phase if that changed.
    fn keep_on_tcp(&self, fd: RawFd, reason: impl Fn(Phase) -> TcpReason) -> Option<Phase> {
        let from = self.shared.phase.stay()?;
        self.unbound_backlog();
        self.count_on_tcp(fd, reason(from));
        Some(from)
    }
}
