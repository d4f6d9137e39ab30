//! Sockets that a program takes from their connection by `connect` to AF_UNSPEC, to use them for
//! another one. As in the kernel, the peer is reset, and all numbers and epoll sets that lead to
//! the socket go on with it.

use std::os::fd::RawFd;

use weft_socket::{Peer, Phase, ReceiveSide, SendSide, Side};

use crate::arena::{Connection, flag};
use crate::{connection, epoll};

impl Connection {
    /// Called before the kernel takes the socket behind `fd` from its connection. Resets the peer
    /// if it is on a lane. True if [`Connection::renew`] must follow. Connections that stay on TCP
    /// for good are the kernel's, and so become those that other processes hold, too.
    pub fn dissolve(&self, fd: RawFd) -> bool {
        self.wait_until_decided();
        if self.is_shared() && self.return_to_tcp_for_good(fd) {
            return false;
        }
        match self.decide_if_laned(fd) {
            Phase::Fresh | Phase::Pending | Phase::Laned => {}
            Phase::Free | Phase::Deciding | Phase::Declined => return false,
        }
        let was_on_lane = self.phase() == Phase::Laned;
        self.end_as(fd, true);
        if was_on_lane {
            self.stop_wakeups(fd);
            epoll::moved_back(*self);
            self.keep_or_drop_lane();
        }
        // Nobody asks for a lane until the socket is new.
        self.shared.phase.set(Phase::Declined);
        !self.is_shared()
    }

    /// The socket is about to get another peer. What calls since the end of the last one were told
    /// is not about that.
    pub fn connects(&self, fd: RawFd) {
        let told = flag::RESET_REPORTED | flag::SENT_TO_NOBODY | flag::RESET_TAKEN;
        if self.phase() == Phase::Fresh && (self.has(told) || self.peer() != Peer::Alive) {
            self.renew(fd);
        }
    }

    /// The kernel has taken the socket behind `fd` from its connection: it is as new.
    pub fn renew(&self, fd: RawFd) {
        let (Some(receiving), Some(sending)) = (self.receiving(), self.sending()) else { return };
        *receiving.state = ReceiveSide::default();
        *sending.state = SendSide::default();
        self.shared.common.renew();
        self.begins(Side::Connected, self.has(flag::NONBLOCKING), 0);
        drop((receiving, sending));
        if !connection::must_stay_on_tcp(fd) {
            self.shared.phase.set(Phase::Fresh);
        }
    }
}
