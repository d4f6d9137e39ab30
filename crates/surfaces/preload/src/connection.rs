//! Tracked TCP connections and the descriptors that lead to them.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::PollFlags;
use rustix::io::Errno;
use weft_socket::{Peer, Phase, Side};
use weft_wire::stats::{CONNECTIONS_FABRIC, TcpReason};

use crate::arena::{self, Connection, flag};
use crate::calls::{self, Call};
use crate::table::{self, Entry};
use crate::{control, epoll, log, process, stats, sys, waits};

impl Connection {
    /// The number by which the daemon knows the connection.
    pub fn token(&self) -> u64 {
        self.shared.token.load(Ordering::Relaxed)
    }

    /// Keeps the connection, to which `fd` leads, on TCP for good, and counts it under `reason`.
    pub fn decline(&self, fd: RawFd, reason: TcpReason) {
        self.shared.phase.set(Phase::Declined);
        self.unbound_backlog();
        self.count_on_tcp(fd, reason);
        log::debug!("connection {} stays on TCP: {}", self.place, reason.name());
    }

    /// Counts the connection as one that stays on TCP.
    pub fn count_on_tcp(&self, fd: RawFd, reason: TcpReason) {
        let absent = matches!(reason, TcpReason::PeerNotWeft | TcpReason::ShortLived);
        let of_other = absent && self.has(flag::OTHER_USER);
        stats::stays_on_tcp(fd, if of_other { TcpReason::OtherUser } else { reason });
    }

    /// Counts the connection as one of the fabric, once. Called for each read and write.
    #[inline]
    pub fn count(&self) {
        if !self.has(flag::COUNTED) {
            self.count_first_use();
        }
    }

    #[cold]
    fn count_first_use(&self) {
        let former = self.shared.flags.fetch_or(flag::COUNTED, Ordering::Relaxed);
        if former & flag::COUNTED == 0 {
            stats::add(CONNECTIONS_FABRIC, 1);
        }
    }

    /// True when the connection has a lane here and keeps it.
    #[inline]
    pub fn stays_on_lane(&self) -> bool {
        self.phase() == Phase::Laned
            && !self.local.lane.load(Ordering::Relaxed).is_null()
            && !self.has(flag::GIVING_BACK)
    }

    /// True when `fd` leads to the connection. What a wait on the kernel's socket told is about
    /// another file otherwise: poll(2) looks at a number once more when it is woken.
    pub fn is_behind(&self, fd: RawFd) -> bool {
        table::get(fd) == Entry::Connection(self.place)
    }

    /// Counts one more descriptor of this process that leads to the connection.
    pub fn retain(&self) {
        self.shared.refs.fetch_add(1, Ordering::AcqRel);
        self.local.fds.fetch_add(1, Ordering::AcqRel);
    }

    /// Remembers what a wait on the kernel's socket said of the peer.
    pub fn note_wakeup(&self, wakeup: waits::Wakeup) {
        match wakeup {
            waits::Wakeup::End => self.shared.common.set_peer(Peer::Ended),
            waits::Wakeup::Failed(_) => self.shared.common.set_peer(Peer::Reset),
            waits::Wakeup::Bytes
            | waits::Wakeup::Woken
            | waits::Wakeup::Nothing
            | waits::Wakeup::Interrupted
            | waits::Wakeup::Cancelled => {}
        }
    }

    /// As [`Connection::note_poll`], after a sleep of a call that came by `fd`.
    pub fn note_poll_of(&self, fd: RawFd, seen: PollFlags) {
        if self.is_behind(fd) {
            self.note_poll(seen);
        }
    }

    /// Remembers what the kernel's poll said of the peer. After this end's own shutdown for
    /// reading, HUP and RDHUP are about this end. A reset comes with ERR, too.
    pub fn note_poll(&self, seen: PollFlags) {
        let ends = if self.has(flag::READING_SHUT) {
            PollFlags::empty()
        } else {
            seen & (PollFlags::HUP | PollFlags::RDHUP)
        };
        if seen.contains(PollFlags::ERR) || ends.contains(PollFlags::HUP) {
            self.note_wakeup(waits::Wakeup::Failed(Errno::CONNRESET));
        } else if !ends.is_empty() {
            self.note_wakeup(waits::Wakeup::End);
        }
    }
}

/// Options of sockets of this process or its ancestors that new connections may have from their
/// listener, or since before they were connected. They are asked for those.
pub struct Inherited {
    /// SO_RCVLOWAT above 1. Only the kernel can wait for so many bytes.
    pub low_water: AtomicBool,
    /// TCP_INQ.
    pub tells_unread: AtomicBool,
}

/// The options that new connections may have.
pub static INHERITED: Inherited =
    Inherited { low_water: AtomicBool::new(false), tells_unread: AtomicBool::new(false) };

/// True if SO_RCVLOWAT of `fd` is above 1.
pub fn has_low_water(fd: RawFd) -> bool {
    sys::socket_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1) > 1
}

/// True if TCP_INQ of `fd` is on.
pub fn tells_unread(fd: RawFd) -> bool {
    sys::tcp_option(fd, libc::TCP_INQ).unwrap_or(false)
}

/// True for a socket of which only the kernel knows when it is readable.
pub fn must_stay_on_tcp(fd: RawFd) -> bool {
    INHERITED.low_water.load(Ordering::Relaxed) && has_low_water(fd)
}

/// Tracks a new TCP connection behind `fd`. `address` is its place in [`crate::history`], or 0.
pub fn track(fd: RawFd, side: Side, nonblocking: bool, address: u32) {
    if !table::covers(fd) {
        return;
    }
    match arena::allocate(side, nonblocking, address) {
        Some(connection) => {
            drop_entry(fd, table::set(fd, Entry::Connection(connection.place)));
            // Set before connect, or by the listener.
            if must_stay_on_tcp(fd) {
                connection.decline(fd, TcpReason::RawUse);
            }
            if INHERITED.tells_unread.load(Ordering::Relaxed) && tells_unread(fd) {
                connection.set(flag::TELLS_UNREAD, true);
            }
        }
        None => {
            drop_entry(fd, table::set(fd, Entry::None));
            stats::stays_on_tcp(fd, TcpReason::LimitReached);
        }
    }
}

/// The kernel made `fd` just now, so what the table has at this number is gone.
#[inline]
pub fn made(fd: RawFd) {
    if fd >= 0 && table::get(fd) != Entry::None && !process::has_own_files() {
        drop_entry(fd, table::set(fd, Entry::None));
    }
}

/// Stops tracking `fd`, which is used without the library from now on.
pub fn forget(fd: RawFd) {
    drop_entry(fd, table::set(fd, Entry::None));
}

/// Gives up `entry`, whose descriptor was closed unseen or is no longer tracked.
fn drop_entry(fd: RawFd, entry: Entry) {
    match entry {
        Entry::Connection(_) if process::is_ending() => {}
        Entry::Connection(place) => {
            let Some(connection) = arena::at(place) else { return };
            calls::forsake(connection, fd);
            let last = connection.shared.refs.fetch_sub(1, Ordering::AcqRel) == 1;
            if connection.local.fds.fetch_sub(1, Ordering::AcqRel) == 1 {
                epoll::closed(connection);
                connection.drop_lane();
            }
            if last {
                control::withdraw(connection.token());
                arena::free(connection);
            }
        }
        Entry::Epoll(number) => epoll::destroyed(number),
        Entry::None
        | Entry::Unconnected { .. }
        | Entry::Listener
        | Entry::LeftToKernel
        | Entry::Leaving(_) => {}
    }
}

/// A number that is about to be closed. Calls of other threads wait until this is dropped, after
/// the kernel's call.
#[must_use]
pub struct Closing(RawFd);

impl Drop for Closing {
    fn drop(&mut self) {
        table::clear(self.0, Entry::Leaving(sys::task()));
    }
}

/// As [`Closing`], for the numbers from the first to the second, inclusive.
#[must_use]
pub struct ClosingRange(pub u32, pub u32);

impl Drop for ClosingRange {
    fn drop(&mut self) {
        let own = Entry::Leaving(sys::task());
        for (fd, entry) in table::walk(self.0, self.1) {
            if entry == own {
                table::clear(fd, own);
            }
        }
    }
}

/// Called before `fd` is closed. Gives up what it leads to.
pub fn closing(fd: RawFd) -> Closing {
    match table::get(fd) {
        Entry::None | Entry::Leaving(_) => {}
        Entry::Connection(place) => {
            table::set(fd, Entry::Leaving(sys::task()));
            if let Some(connection) = arena::at(place) {
                if calls::are_lent() {
                    calls::stops_lending(connection, fd);
                }
                if calls::has_others(connection, fd) {
                    lend(connection, fd);
                }
                connection.release(fd);
            }
        }
        Entry::Epoll(number) => {
            table::set(fd, Entry::None);
            epoll::destroyed(number);
        }
        Entry::Listener => {
            table::set(fd, Entry::None);
            control::withdraw(table::listener_token(fd));
        }
        Entry::LeftToKernel | Entry::Unconnected { .. } => {
            table::set(fd, Entry::None);
        }
    }
    Closing(fd)
}

/// Calls of other threads use the connection by `fd`, which is about to be closed. Gives them
/// another number for the same socket.
#[cold]
fn lend(connection: Connection, fd: RawFd) {
    if connection.local.lent.load(Ordering::Acquire) == 0
        && let Ok(copy) = sys::high_copy(sys::borrow(fd))
    {
        let lent = copy.as_raw_fd();
        if table::covers(lent) {
            connection.retain();
            table::set(lent, Entry::Connection(connection.place));
        }
        if table::covers(lent) && calls::lend(connection, lent) {
            std::mem::forget(copy);
        } else {
            // Another thread was quicker, which closes another number of the connection.
            if table::covers(lent) {
                table::set(lent, Entry::None);
                connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
                connection.local.fds.fetch_sub(1, Ordering::AcqRel);
            }
            sys::close(copy);
        }
    }
    calls::settle(connection, fd);
    give_back(connection);
}

/// Ends the use of the lent number, if no call of other threads needs it. That may be the end of
/// the connection.
pub fn give_back(connection: Connection) {
    if let Some(lent) = calls::take_back(connection) {
        let _closing = Closing(lent);
        table::set(lent, Entry::Leaving(sys::task()));
        connection.release(lent);
        sys::close_number(lent);
    }
}

/// In a forked child: closes what was lent to calls of its parent.
pub fn forked() {
    for (fd, entry) in table::walk(0, u32::MAX) {
        match entry {
            // The thread that was about to close it is not here.
            Entry::Leaving(_) => table::clear(fd, entry),
            Entry::Connection(place) => {
                if let Some(connection) = arena::at(place) {
                    connection.forget_holds();
                }
            }
            _ => {}
        }
    }
    for lent in calls::forked() {
        if let Entry::Connection(place) = table::get(lent)
            && let Some(connection) = arena::at(place)
        {
            connection.local.lent.store(0, Ordering::Relaxed);
            table::set(lent, Entry::None);
            connection.release(lent);
        }
        sys::close_number(lent);
    }
}

/// Called after `new` became a copy of `old`. The former descriptor `new` is closed.
pub fn copied(old: RawFd, new: RawFd) {
    if new < 0 || old == new {
        return;
    }
    let entry = table::get(old);
    match entry {
        Entry::Connection(place) => {
            if let Some(connection) = arena::at(place) {
                connection.retain();
                if !table::covers(new) {
                    connection.shared.refs.fetch_sub(1, Ordering::AcqRel);
                    connection.local.fds.fetch_sub(1, Ordering::AcqRel);
                }
            }
            table::set(new, entry);
        }
        Entry::Epoll(number) => {
            epoll::retain(number);
            table::set(new, entry);
        }
        Entry::Listener | Entry::LeftToKernel => {
            table::set(new, entry);
        }
        Entry::Unconnected { .. } => {
            // O_NONBLOCK set by one number holds for both numbers. So connect will ask the kernel.
            table::set(old, Entry::None);
            made(new);
        }
        Entry::None | Entry::Leaving(_) => made(new),
    }
}

/// The connection behind `fd`, unless it stays on TCP for good.
#[inline(always)]
#[allow(clippy::inline_always, reason = "each call on a connection begins with it")]
pub fn find(fd: RawFd) -> Option<Call> {
    tracked(fd).filter(|connection| connection.phase() != Phase::Declined)
}

/// The phase of the connection behind `fd`, which may be another one by now. No call is noted.
#[inline]
pub fn phase_of(fd: RawFd) -> Option<Phase> {
    let Entry::Connection(place) = table::get(fd) else { return None };
    Some(arena::at(place)?.phase())
}

/// True when a call on `fd` may be one on a connection. It notes itself later.
#[inline]
pub fn may_be_ours(fd: RawFd) -> bool {
    match table::get(fd) {
        Entry::Connection(_) => phase_of(fd).is_some_and(|phase| phase != Phase::Declined),
        Entry::Leaving(_) => true,
        _ => false,
    }
}

/// How a wait finds the connection behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AtWait {
    /// There is none.
    None,
    /// It has a lane here and keeps it, so that nothing is to be decided.
    OnLane,
    /// A decision may be due.
    Undecided,
}

/// How a wait finds the connection behind `fd`; as [`phase_of`].
#[inline]
pub fn at_wait(fd: RawFd) -> AtWait {
    let Entry::Connection(place) = table::get(fd) else { return AtWait::None };
    match arena::at(place) {
        None => AtWait::None,
        Some(connection) if connection.stays_on_lane() => AtWait::OnLane,
        Some(_) => AtWait::Undecided,
    }
}

/// The connection behind `fd`, even if it stays on TCP for good.
#[inline(always)]
#[allow(clippy::inline_always, reason = "as `find`")]
pub fn tracked(fd: RawFd) -> Option<Call> {
    calls::enter(fd)
}
