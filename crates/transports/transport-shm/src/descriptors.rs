//! The descriptors of an endpoint, for a process in which others close descriptors that they do not
//! know.

use std::os::fd::{AsFd, BorrowedFd};

use crate::endpoint::ShmEndpoint;
use crate::memory::ShmRegion;

impl ShmEndpoint {
    /// Calls `look` with each descriptor that the endpoint keeps by itself: its sockets and timers,
    /// its line to the broker, and what it has of its peers. Those of regions are left out
    /// ([`ShmRegion::each_descriptor`]), and those that are on their way to or from the broker.
    /// Allocates nothing.
    pub fn each_descriptor(&self, mut look: impl FnMut(BorrowedFd<'_>)) {
        look(self.doorbell_file.as_fd());
        look(self.registers_file.as_fd());
        look(self.woken.as_fd());
        look(self.doorbell.wakeup());
        self.wakeup_and_line.iter().chain(&self.timer).for_each(|file| look(file.as_fd()));
        self.broker.line().into_iter().for_each(&mut look);
        for peer in self.peers.iter() {
            look(peer.doorbell.wakeup());
            peer.owner.descriptor().into_iter().for_each(&mut look);
        }
    }
}

impl ShmRegion {
    /// As [`ShmEndpoint::each_descriptor`], for the memory of the region, also while it moves.
    pub fn each_descriptor(&self, look: impl FnMut(BorrowedFd<'_>)) {
        self.memory().each_descriptor(look);
    }
}
