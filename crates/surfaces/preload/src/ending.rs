//! Ends a connection: its last descriptor is closed, or its last process ends.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use weft_socket::{Phase, SendSide, Side, closed};
use weft_wire::stats::{BYTES_TCP_RECEIVED, BYTES_TCP_SENT, TcpReason};

use crate::arena::{self, Connection, flag};
use crate::table::{self, Entry};
use crate::{bells, calls, control, epoll, process, rescue, reserve, stats, sys};

impl Connection {
    /// Gives up descriptor `fd`, which is still open and about to be closed.
    pub fn release(&self, fd: RawFd) {
        if process::is_ending() {
            // `close_all` has given up the references of this process.
            return;
        }
        if self.local.fds.load(Ordering::Relaxed) == 1 {
            self.leave_to_relatives(fd);
        }
        if fd <= 2 && !self.is_standard_stream() {
            self.end_unseen_use();
        }
        let last = self.shared.refs.fetch_sub(1, Ordering::AcqRel) == 1;
        let last_here = self.local.fds.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.end(fd);
        } else {
            epoll::closing(fd, *self, self.another_number(fd));
        }
        if last_here {
            epoll::closed(*self);
            if last {
                self.keep_or_drop_lane();
            } else {
                self.drop_lane();
                self.leave_pending();
            }
        }
        if last {
            arena::free(*self);
        }
    }

    /// Another number of the program that leads to the connection.
    fn another_number(&self, fd: RawFd) -> Option<RawFd> {
        let lent = self.local.lent.load(Ordering::Relaxed);
        let leads = |entry| entry == Entry::Connection(self.place);
        let is_other = |number: RawFd| number != fd && number != lent;
        // Only sets of this process ask, and most connections are in none with two numbers.
        (self.is_registered() && self.local.fds.load(Ordering::Relaxed) > 0)
            .then(|| {
                table::walk(0, u32::MAX)
                    .find(|(number, entry)| leads(*entry) && is_other(*number))
                    .map(|(number, _)| number)
            })
            .flatten()
    }

    /// Takes the connection back to TCP if this process brought it to its lane while others held
    /// it. The others find it on TCP, even if the daemon could not tell them of the lane.
    fn leave_to_relatives(&self, fd: RawFd) {
        let is_bringer = self.shared.bringer.load(Ordering::Relaxed) == process::pid();
        let is_here = !self.local.lane.load(Ordering::Relaxed).is_null();
        if is_bringer && is_here && self.is_shared() {
            self.return_to_tcp_for_good(fd);
        }
    }

    /// Withdraws this process's offer, whose answer no thread here looks for any more. Another
    /// process that goes on with the connection offers it again.
    pub fn leave_pending(&self) {
        if !control::is_pending(self.token()) {
            return;
        }
        if self.shared.phase.moves(Phase::Pending, Phase::Fresh) || self.phase() == Phase::Declined
        {
            control::withdraw(self.token());
        }
    }

    /// Tells the peer and the daemon, and counts the connection. Its last descriptor is about to be
    /// closed.
    fn end(&self, fd: RawFd) {
        self.end_as(fd, close_is_abort(fd));
    }

    /// As [`Connection::end`]. With `aborts` the peer is reset.
    pub fn end_as(&self, fd: RawFd, aborts: bool) {
        self.record_use();
        if process::settings().between_hosts {
            // The connection moves before the end of the process is told, or not at all: bytes that
            // another thread sends on a lane after that may be lost.
            self.wait_until_decided();
        }
        // A program that was started with the connection may never have used it, and so has not
        // mapped its lane yet.
        match self.decide_if_laned(fd) {
            waiting @ (Phase::Fresh | Phase::Pending) => {
                // A connection that gave its lane back was counted before.
                if !self.has(flag::COUNTED) {
                    self.count_on_tcp(fd, self.why_still_on_tcp(fd, waiting));
                }
                if waiting == Phase::Pending {
                    self.stop_asking();
                }
                if self.has(flag::UNSEEN) && stats::are_watched() {
                    self.count_kernel_bytes(fd);
                }
            }
            Phase::Laned => {
                if process::is_ending() {
                    self.announce_end(fd);
                } else {
                    self.say_goodbye(fd, aborts);
                    if !self.is_on_kept_lane() {
                        control::withdraw(self.token());
                    }
                }
                if !self.has(flag::COUNTED) {
                    self.count_on_tcp(fd, self.why_not_used());
                }
            }
            Phase::Declined => {
                if control::is_pending(self.token()) {
                    self.stop_asking();
                }
                if stats::are_watched() {
                    self.count_kernel_bytes(fd);
                }
            }
            _ => {}
        }
    }

    /// Why a connection without a lane, which ends or shuts down in `phase`, stayed on TCP.
    pub fn why_still_on_tcp(&self, fd: RawFd, phase: Phase) -> TcpReason {
        match (phase, self.side()) {
            _ if !process::settings().options.socket_enable() => TcpReason::Disabled,
            _ if self.has(flag::NO_LANE) => TcpReason::LimitReached,
            (Phase::Fresh, _) if self.has(flag::PUT_OFF) => TcpReason::DaemonLost,
            (Phase::Pending, _) if control::is_unanswered(self.token()) => TcpReason::DaemonLost,
            // One that asked was seen to wait. It may be in no epoll set any more.
            (Phase::Fresh, _) if !self.waits_are_seen(1) && moved_much(fd) => TcpReason::Unseen,
            (Phase::Pending, Side::Accepted) if self.has(flag::PRIMES) => TcpReason::ShortLived,
            (Phase::Pending, Side::Accepted) => TcpReason::PeerNotWeft,
            (Phase::Pending, Side::Connected) if self.was_long() => TcpReason::PeerUnseen,
            (Phase::Fresh, _) if self.has(flag::UNSEEN) && moved_much(fd) => TcpReason::Unseen,
            (Phase::Fresh, _) if self.shared.over_tcp.done().must_have_asked() => TcpReason::Unseen,
            _ => TcpReason::ShortLived,
        }
    }

    /// True for a connection that nobody takes for a short one.
    fn was_long(&self) -> bool {
        const LONG: u64 = 1 << 20;
        let done = self.shared.over_tcp.done();
        done.bytes >= LONG || done.must_have_asked()
    }

    /// Counts the bytes that went over TCP without the hooks.
    fn count_kernel_bytes(&self, fd: RawFd) {
        let Some((sent, received)) = sys::tcp_bytes(fd) else { return };
        let counted_sent = self.sending().map_or(0, |sending| sending.state.totals().0);
        let counted = self.receiving().map_or(0, |receiving| receiving.state.totals().0);
        stats::add(BYTES_TCP_SENT, sent.saturating_sub(counted_sent));
        stats::add(BYTES_TCP_RECEIVED, received.saturating_sub(counted));
    }

    /// Why a connection did not use the lane that it had.
    fn why_not_used(&self) -> TcpReason {
        let attached = self.sending().is_some_and(|sending| {
            sending.lane.is_some_and(|lane| SendSide::peer_attached(lane, self.side()))
        });
        let is_expected = self.has(flag::PRIMES) || self.is_on_kept_lane();
        if attached || is_expected { TcpReason::ShortLived } else { TcpReason::PeerNotWeft }
    }

    /// Ends the connection on its lane, as close does on TCP.
    fn say_goodbye(&self, fd: RawFd, aborts: bool) {
        // The process that now holds the peer's socket may read TCP alone.
        self.follow_now(fd);
        if let Some(mut receiving) = self.receiving_on_lane(fd) {
            // The kernel would answer a record that lies unread with a reset.
            receiving.look_for_record();
        }
        let broken = self.receiving().is_some_and(|receiving| receiving.state.is_broken());
        let resets = broken || self.has_unread(fd) || aborts;
        let how = if resets { closed::RESET } else { closed::ORDERLY };
        let taken = self.taken();
        let on_lane = self.sending_on_lane(fd).is_some_and(|mut sending| sending.close(how, taken));
        if !aborts {
            self.drain_before_close(fd, on_lane);
        }
    }

    /// The count of messages taken, as this end tells it to its peer across a network.
    fn taken(&self) -> u64 {
        self.receiving().map_or(0, |receiving| receiving.state.taken())
    }

    /// True if the kernel's close would reset the connection, which the peer may learn from the
    /// lane alone.
    fn has_unread(&self, fd: RawFd) -> bool {
        self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.has_unread())
    }

    /// Prepares for the kernel's close of the socket, after the last thread of the process. The
    /// peer is to ignore a reset because of an unread wakeup, but not one because of data or
    /// SO_LINGER.
    pub fn announce_end(&self, fd: RawFd) {
        if close_is_abort(fd) {
            return;
        }
        if self.is_on_far_lane() {
            // Other threads go on over TCP until the process is gone, and its kernel after that.
            let taken = self.taken();
            if let Some(mut sending) = self.sending_on_lane(fd) {
                sending.return_at_end(taken);
            }
            return;
        }
        if let Some(mut receiving) = self.receiving_on_lane(fd) {
            // Makes the crossings that are due first.
            receiving.origin();
            receiving.state.end_with_process(receiving.lane, self.side());
        }
    }
}

/// The process ends: connections that it holds alone tell their peers, others lose its references.
///
/// While other threads go on, nothing may change that they can see. A peer that was told of a close
/// would close, too, and the threads would see that, which cannot happen on TCP.
pub fn close_all() {
    reserve::end();
    epoll::ended();
    for (fd, entry) in table::walk(0, u32::MAX) {
        if let Entry::Connection(place) = entry
            && let Some(connection) = arena::at(place)
        {
            if !process::is_ending() {
                connection.leave_to_relatives(fd);
                table::set(fd, Entry::None);
            }
            if connection.shared.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
                connection.end(fd);
            } else {
                connection.leave_pending();
            }
        }
    }
}

/// The same for a connection at which the calling thread looks next: wakes the others.
pub fn wake_others(place: u32) {
    bells::ring_others(place);
    if let Some(connection) = arena::at(place) {
        epoll::rung(connection);
    }
}

/// Something arrived for the connection at `place`, to which `fd` led when its lane came, or its
/// lane ended: wakes all that sleep for it.
pub fn wake(place: u32, fd: RawFd) {
    bells::ring(place);
    if let Some(connection) = arena::at(place) {
        epoll::rung(connection);
    }
    let Some(connection) = calls::enter(fd).filter(|found| found.place == place) else { return };
    let may_be_gone = connection.receiving_on_lane(fd).is_some_and(|mut receiving| {
        receiving.look_for_record();
        !receiving.state.stays_on_tcp() && sys::has_ended(fd)
    });
    // A peer that is gone answers with a reset, which would take unread bytes from this end. Its
    // record says what it had taken, and is looked for behind those bytes when they are read.
    if may_be_gone {
        return;
    }
    if let Some(mut sending) = connection.sending_on_lane(fd) {
        // The program may have sent all that it wants and look at nothing any more.
        if let Some(how) = sending.leave_to_follow() {
            sending.leave(how);
        }
        sending.rescue();
    }
}

/// Goes on with connections whose bytes of a lost lane wait for the kernel. Wakes their sleepers
/// when all is out.
pub fn go_on() {
    for (fd, place) in rescue::take() {
        let Some(connection) = calls::enter(fd).filter(|found| found.place == place) else {
            continue;
        };
        if connection.sending_on_lane(fd).is_none_or(|mut sending| sending.push()) {
            bells::ring(place);
            epoll::rung(*connection);
        }
    }
}

/// True when more went over the kernel's socket than a connection carries before it asks for a
/// lane.
fn moved_much(fd: RawFd) -> bool {
    let much = process::settings().switch_bytes;
    sys::tcp_bytes(fd).is_some_and(|(sent, received)| sent + received >= much)
}

/// True when SO_LINGER is set with time 0, so that close is an abort.
fn close_is_abort(fd: RawFd) -> bool {
    let linger = rustix::net::sockopt::socket_linger(sys::borrow(fd));
    matches!(linger, Ok(Some(time)) if time.is_zero())
}
