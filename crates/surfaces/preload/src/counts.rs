//! Mends the kernel's counts of a connection: they lack the bytes that went by the lane, and have
//! the wakeups, which are no data of the program.

use std::os::fd::RawFd;

use weft_socket::Side;

use crate::arena::{Connection, flag};
use crate::sys;

/// Places of counts of 64 bits in `struct tcp_info` of linux/tcp.h.
mod place {
    pub const BYTES_ACKED: usize = 120;
    pub const BYTES_RECEIVED: usize = 128;
    pub const BYTES_SENT: usize = 200;
    pub const BYTES_SENT_AGAIN: usize = 208;
}

/// The count at `place`, if the kernel wrote it.
fn count_at(info: &mut [u8], place: usize) -> Option<&mut [u8; 8]> {
    info.get_mut(place..)?.first_chunk_mut()
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
        let Some(count) = count_at(info, place) else { return };
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
        // Wakeups that the peer's kernel has not acknowledged are not in its count. It acknowledges
        // single bytes some 40 ms later.
        let [sent_bytes, again, acked] =
            [place::BYTES_SENT, place::BYTES_SENT_AGAIN, place::BYTES_ACKED]
                .map(|place| count_at(info, place).map_or(0, |count| u64::from_ne_bytes(*count)));
        // The kernel counts the SYN of the end that connected.
        let syn = u64::from(self.side() == Side::Connected);
        let unacked = sent_bytes.saturating_sub(again + acked.saturating_sub(syn));
        let unacked_wakeups = unacked - self.data_of(unacked);
        sent.correct(info, place::BYTES_SENT);
        let wakeups = sent.wakeups.saturating_sub(unacked_wakeups);
        Difference { wakeups, ..sent }.correct(info, place::BYTES_ACKED);
        self.received_beside(fd, info).correct(info, place::BYTES_RECEIVED);
    }

    /// How many of the last `bytes` that were sent over TCP are data.
    fn data_of(&self, bytes: u64) -> u64 {
        self.sending().map_or(bytes, |sending| sending.state.data_of(bytes)).min(bytes)
    }

    fn sent_beside(&self) -> Difference {
        let Some(sending) = self.sending() else { return Difference::default() };
        Difference {
            by_lane: sending.state.totals().1,
            // Where the program used the kernel's socket by itself, its bytes are not counted.
            wakeups: if self.has(flag::UNSEEN) { 0 } else { sending.state.wakeups() },
        }
    }

    fn received_beside(&self, fd: RawFd, info: &mut [u8]) -> Difference {
        let Some(receiving) = self.receiving() else { return Difference::default() };
        let mut beside = Difference {
            by_lane: receiving.state.totals().1,
            wakeups: if self.has(flag::UNSEEN) { 0 } else { receiving.state.wakeups() },
        };
        if let Some(lane) = receiving.lane {
            let (received, there) = received_and_unread(fd);
            if let (Some(count), Some(received)) = (count_at(info, place::BYTES_RECEIVED), received)
            {
                *count = received.to_ne_bytes();
            }
            beside.by_lane += receiving.state.available(lane);
            beside.wakeups += receiving.state.wakeups_of(lane, there) as u64;
        }
        beside
    }

    /// How many of the bytes that the peer's kernel did not acknowledge yet (SIOCOUTQ) are data.
    pub fn data_of_unacknowledged(&self, bytes: i32) -> i32 {
        let data = self.data_of(u64::from(bytes.max(0).unsigned_abs()));
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

/// The kernel's count of bytes that came, and how many of them wait. A wakeup may come between the
/// two questions, so they are asked until both answers are of one moment.
fn received_and_unread(fd: RawFd) -> (Option<u64>, usize) {
    const TRIES: usize = 100;
    let received = || sys::tcp_bytes(fd).map(|(_, received)| received);
    let mut before = received();
    for _ in 0..TRIES {
        let there = rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0);
        let after = received();
        if before == after {
            return (after, usize::try_from(there).unwrap_or(usize::MAX));
        }
        before = after;
    }
    (before, 0)
}
