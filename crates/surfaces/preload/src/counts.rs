//! Mends the kernel's counts of a connection: they lack the bytes that went by the lane, and have
//! the wakeups, which are no data of the program.

use std::os::fd::RawFd;

use crate::arena::{Connection, flag};
use crate::sys;

/// Places of counts of 64 bits in `struct tcp_info` of linux/tcp.h.
mod place {
    pub const BYTES_ACKED: usize = 120;
    pub const BYTES_RECEIVED: usize = 128;
    pub const BYTES_SENT: usize = 200;
}

/// A difference to a count of the kernel.
#[derive(Clone, Copy, Default)]
struct Difference {
    by_lane: u64,
    wakeups: u64,
}

impl Difference {
    /// Corrects the count at `place`, if the kernel wrote it.
    fn correct(self, info: &mut [u8], place: usize) {
        let Some(count) = info.get_mut(place..).and_then(|rest| rest.first_chunk_mut::<8>()) else {
            return;
        };
        let kernels = u64::from_ne_bytes(*count);
        let right = kernels.wrapping_add(self.by_lane).saturating_sub(self.wakeups);
        *count = right.to_ne_bytes();
    }
}

impl Connection {
    /// Puts the bytes of lanes into the kernel's `struct tcp_info`. What went to a lane in memory
    /// has arrived, and counts as acknowledged.
    pub fn complete(&self, fd: RawFd, info: &mut [u8]) {
        let sent = self.sent_beside();
        sent.correct(info, place::BYTES_SENT);
        sent.correct(info, place::BYTES_ACKED);
        self.received_beside(fd).correct(info, place::BYTES_RECEIVED);
    }

    fn sent_beside(&self) -> Difference {
        let Some(sending) = self.sending() else { return Difference::default() };
        Difference {
            by_lane: sending.state.totals().1,
            // Where the program used the kernel's socket by itself, its bytes are not counted.
            wakeups: if self.has(flag::UNSEEN) { 0 } else { sending.state.wakeups() },
        }
    }

    fn received_beside(&self, fd: RawFd) -> Difference {
        let Some(receiving) = self.receiving() else { return Difference::default() };
        let mut beside = Difference {
            by_lane: receiving.state.totals().1,
            wakeups: if self.has(flag::UNSEEN) { 0 } else { receiving.state.wakeups() },
        };
        if let Some(lane) = receiving.lane {
            let there = rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0);
            let there = usize::try_from(there).unwrap_or(usize::MAX);
            beside.by_lane += receiving.state.available(lane);
            beside.wakeups += receiving.state.wakeups_of(lane, there) as u64;
        }
        beside
    }

    /// How many of the bytes that the peer's kernel did not acknowledge yet (SIOCOUTQ) are data.
    pub fn data_of_unacknowledged(&self, bytes: i32) -> i32 {
        let Some(sending) = self.sending() else { return bytes };
        let data = sending.state.data_of(u64::from(bytes.max(0).unsigned_abs()));
        i32::try_from(data).unwrap_or(bytes)
    }

    /// How many bytes can be read, as TCP_INQ tells it: 1 at the end, so that programs read it.
    pub fn unread_hint(&self, fd: RawFd) -> i32 {
        let unread = self.unread(fd);
        let on_tcp = || rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0);
        match i32::try_from(unread.unwrap_or_else(on_tcp)).unwrap_or(i32::MAX) {
            0 => i32::from(self.announces_end(fd)),
            some => some,
        }
    }
}
