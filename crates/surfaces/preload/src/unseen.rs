//! Uses of a connection that the library does not see: by streams of the C library, by a program
//! that starts, by system calls of the program's own.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_socket::looks::Waits;
use weft_socket::{Leave, Phase};
use weft_wire::stats::TcpReason;

use crate::arena::{Connection, flag};
use crate::table::{self, Entry};
use crate::{process, stats, sys};

/// How long a program that starts may take to take a connection over, in nanoseconds. Another
/// program of the same shell pipeline waits for it.
const STARTING_NS: u64 = 50_000_000;

impl Connection {
    /// The connection becomes a standard stream, which stdio uses without the library. Without a
    /// lane it stays on TCP for that time. With a lane it sends over TCP from now on, and asks for
    /// its unread bytes there.
    pub fn prepare_for_stdio(&self, fd: RawFd) {
        if self.begin_unseen_use() || self.decide_for_kernel(fd) != Phase::Laned {
            return;
        }
        self.request_resend(fd);
        if let Some(mut sending) = self.sending_on_lane(fd) {
            sending.leave(Leave::ForGood);
        }
    }

    /// From now on this process uses the connection where the library does not see it, and the
    /// connection stays on TCP for that time. False when it has or gets a lane, or is on TCP for
    /// good.
    pub fn begin_unseen_use(&self) -> bool {
        let start = sys::now_ns();
        let is_mine = || self.shared.unseen_user.load(Ordering::SeqCst) == process::pid();
        while !is_mine() && !self.is_seen() {
            if sys::now_ns() - start > STARTING_NS {
                // Only one of two such users is noted, and it may end before the other.
                self.stay_unless_moved(stats::NOT_AT_HAND, TcpReason::RawUse);
                return false;
            }
            rustix::thread::sched_yield();
        }
        self.set(flag::UNSEEN, true);
        self.shared.unseen_user.store(process::pid(), Ordering::SeqCst);
        self.wait_until_decided();
        // The offer of another process stays: that process finds the answer when this use is over.
        self.leave_pending();
        matches!(self.phase(), Phase::Fresh | Phase::Pending)
    }

    /// True when an epoll set of this process contains the connection.
    pub fn is_registered(&self) -> bool {
        self.local.registered.load(Ordering::Relaxed) > 0
    }

    /// True when one of the descriptors 0 to 2 leads to the connection.
    pub fn is_standard_stream(&self) -> bool {
        (0..=2).any(|fd| table::get(fd) == Entry::Connection(self.place))
    }

    /// Ends [`Connection::begin_unseen_use`]: this process uses the connection through the library
    /// alone.
    pub fn end_unseen_use(&self) {
        let own = process::pid();
        let unseen_user = &self.shared.unseen_user;
        let _ = unseen_user.compare_exchange(own, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// True when no living process uses the connection where the library does not see it.
    pub fn is_seen(&self) -> bool {
        let user = self.shared.unseen_user.load(Ordering::SeqCst);
        user == 0 || !sys::is_alive(user)
    }

    /// Makes sure that all bytes of TCP are counted: asks the kernel where the library did not see
    /// all. False when the kernel's counts do not come to rest, or the peer ended its direction.
    pub fn is_counted(&self, fd: RawFd) -> bool {
        if !self.has(flag::UNSEEN) {
            return true;
        }
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else {
            return false;
        };
        let Some(position) = sys::tcp_position(fd) else { return false };
        sending.state.set_tcp_written(position.written);
        receiving.state.set_tcp_taken(position.taken);
        true
    }

    /// True when the library sees what the program does until it reads again ([`Waits::are_seen`]).
    /// A connection in an epoll set needs a wait for that set; any other one a read that may block,
    /// or a `poll` or `select`.
    pub fn waits_are_seen(&self, pending: usize) -> bool {
        let waits = if self.local.registered.load(Ordering::Relaxed) > 0 {
            Waits::InSets(self.local.unseen_sets.load(Ordering::Relaxed) > 0)
        } else if self.has(flag::AWAITED) {
            Waits::Awaited
        } else {
            Waits::Unseen
        };
        let only_writes =
            pending > 0 && !self.has(flag::NONBLOCKING) && !self.shared.over_tcp.reads.are_any();
        waits.are_seen(only_writes)
    }

    /// Called before a read that may block, in which the library sees the program wait.
    #[inline]
    pub fn note_read(&self) {
        if !self.has(flag::AWAITED) {
            self.set(flag::AWAITED, true);
        }
    }

    /// False when the program moved bytes where the library did not see it: by system calls of its
    /// own, or through a descriptor that it got by one.
    pub fn saw_all_bytes(&self, fd: RawFd) -> bool {
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else {
            return true;
        };
        sys::tcp_position(fd).is_none_or(|position| {
            position.written == sending.state.tcp_written()
                && position.taken == receiving.state.tcp_taken()
        })
    }
}
