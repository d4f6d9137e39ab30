//! Puts unread bytes of a lane on TCP in place of a peer that does not look, or is gone.
//!
//! A process that hands a connection on needs them there. This process does it where the kernel
//! permits that. Elsewhere it asks the daemon: for a peer of another user, or in another namespace
//! of processes, and for a peer that has closed ([`weft_unread`]).
//!
//! # Invariants
//! - The copy of the peer's socket lives for some microseconds, in which no child is forked: it
//!   would keep the connection alive after the peer's end.
//! - The lock of the receiving direction is held from the look at the bytes until they are on TCP
//!   alone, and that of the sending direction while the receive queue is filled. Other processes
//!   and threads may read the connection meanwhile.

use std::os::fd::RawFd;

use weft_socket::Phase;
use weft_unread::{PeerSocket, Put, replace_unread};
use weft_wire::control::PutWay;

use crate::arena::Connection;
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::{control, log, sys};

/// Held while this process has a copy of a peer's socket.
static HAS_COPY: LocalLock<()> = LocalLock::new(Rank::StandIn, ());

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &HAS_COPY
}

impl Connection {
    /// Puts what is unread on the lane on TCP, and the end of the peer's direction if it was told
    /// on the lane alone. False if there is nothing of that, or it cannot be. The call may take
    /// some milliseconds. The caller requested a resend and left for good.
    pub fn stands_in_for_peer(&self, fd: RawFd) -> bool {
        let is_wanted =
            self.receiving_on_lane(fd).is_some_and(|mut receiving| receiving.may_stand_in());
        if !is_wanted {
            return false;
        }
        let Some(has_copy) = HAS_COPY.lock() else { return false };
        let socket = PeerSocket::of(sys::borrow(fd));
        let Some(mut receiving) = self.receiving_on_lane(fd) else { return false };
        let Some(found) = receiving.begin_stand_in() else { return false };
        let own = socket.map_or(Put::Nothing, |socket| socket.send(&found.bytes, found.is_end));
        drop(has_copy);
        let way = if found.is_end { PutWay::AsPeerWithEnd } else { PutWay::AsPeer };
        let put = self.or_by_daemon(own, fd, way, &found.bytes);
        receiving.end_stand_in((put == Put::All).then_some(&found));
        put == Put::All
    }

    /// Puts what a peer that is gone left on the lane into the kernel's socket. False if there is
    /// nothing of that, or it cannot be.
    pub fn keeps_rest_of_peer(&self, fd: RawFd) -> bool {
        let Some(mut receiving) = self.receiving_on_lane(fd) else { return false };
        let Some(bytes) = receiving.rest_of_gone_peer() else { return false };
        // Nothing is sent meanwhile.
        let Some(sending) = self.sending() else { return false };
        let own = replace_unread(sys::borrow(fd), &bytes);
        let put = self.or_by_daemon(own, fd, PutWay::InPlaceOfUnread, &bytes);
        if put != Put::All {
            return false;
        }
        if sending.state.is_shut() {
            // The end of the own direction was told on the lane.
            let _ = rustix::net::shutdown(sys::borrow(fd), rustix::net::Shutdown::Write);
        }
        receiving.rest_is_on_tcp();
        // Under the lock, too: a thread that waits for it goes to the kernel then, and does not
        // take the empty lane of a peer that is gone for the end.
        self.shared.phase.set(Phase::Declined);
        true
    }

    /// The fate of the bytes, by the daemon if this process could put none.
    fn or_by_daemon(&self, own: Put, fd: RawFd, way: PutWay, bytes: &[u8]) -> Put {
        let put = match own {
            Put::Nothing => control::put_unread(self.token(), fd, way, bytes),
            Put::All | Put::Reset => own,
        };
        if put == Put::Reset {
            log::warn_user!("a connection is reset: the kernel took a part of what was unread");
        }
        put
    }
}
