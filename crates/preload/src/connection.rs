//! Tracked TCP connections and the descriptors that lead to them.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::PollFlags;
use rustix::io::Errno;
use weft_socket::{Peer, Phase, Side};
use weft_wire::stats::{CONNECTIONS_FABRIC, TcpReason};

use crate::arena::{self, Connection, flag};
use crate::table::{self, Entry};
use crate::{control, epoll, log, process, stats, sys, waits};

impl Connection {
    /// The number by which the daemon knows the connection.
    pub fn token(&self) -> u64 {
        self.shared.token.load(Ordering::Relaxed)
    }

    /// Keeps the connection on TCP for good, and counts it under `reason`.
    pub fn decline(&self, reason: TcpReason) {
        self.shared.phase.set(Phase::Declined);
        self.count_on_tcp(reason);
        log::debug!("connection {} stays on TCP: {}", self.place, reason.name());
    }

    /// Counts the connection as one that stays on TCP.
    pub fn count_on_tcp(&self, reason: TcpReason) {
        let absent = matches!(reason, TcpReason::PeerNotWeft | TcpReason::ShortLived);
        let of_other = absent && self.has(flag::OTHER_USER);
        stats::stays_on_tcp(if of_other { TcpReason::OtherUser } else { reason });
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

/// What new connections may have.
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

/// Tracks a new TCP connection behind `fd`. `address` is its place in [`crate::history`], or 0.
pub fn track(fd: RawFd, side: Side, nonblocking: bool, address: u32) {
    if !table::covers(fd) {
        return;
    }
    match arena::allocate(side, nonblocking, address) {
        Some(connection) => {
            drop_entry(table::set(fd, Entry::Connection(connection.place)));
            if INHERITED.low_water.load(Ordering::Relaxed) && has_low_water(fd) {
                connection.decline(TcpReason::RawUse);
            }
            if INHERITED.tells_unread.load(Ordering::Relaxed) && tells_unread(fd) {
                connection.set(flag::TELLS_UNREAD, true);
            }
        }
        None => {
            drop_entry(table::set(fd, Entry::None));
            stats::stays_on_tcp(TcpReason::LimitReached);
        }
    }
}

/// The kernel made `fd` just now, so what the table has at this number is gone.
#[inline]
pub fn made(fd: RawFd) {
    if fd >= 0 && table::get(fd) != Entry::None {
        drop_entry(table::set(fd, Entry::None));
    }
}

/// Stops tracking `fd`, which is used without the library from now on.
pub fn forget(fd: RawFd) {
    drop_entry(table::set(fd, Entry::None));
}

/// Gives up `entry`, whose descriptor was closed unseen or is no longer tracked.
fn drop_entry(entry: Entry) {
    match entry {
        Entry::Connection(_) if process::is_ending() => {}
        Entry::Connection(place) => {
            let Some(connection) = arena::at(place) else { return };
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
        Entry::None | Entry::Unconnected { .. } | Entry::Listener | Entry::LeftToKernel => {}
    }
}

/// Called before `fd` is closed. Gives up what it leads to.
pub fn closing(fd: RawFd) {
    match table::get(fd) {
        Entry::None => {}
        Entry::Connection(place) => {
            table::set(fd, Entry::None);
            if let Some(connection) = arena::at(place) {
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
        Entry::None => made(new),
    }
}

/// The connection behind `fd`, unless it stays on TCP for good.
#[inline]
pub fn find(fd: RawFd) -> Option<Connection> {
    tracked(fd).filter(|connection| connection.phase() != Phase::Declined)
}

/// The connection behind `fd`, even if it stays on TCP for good.
#[inline]
pub fn tracked(fd: RawFd) -> Option<Connection> {
    let Entry::Connection(place) = table::get(fd) else { return None };
    arena::at(place)
}
