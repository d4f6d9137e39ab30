//! Looks at bytes that stay where they are (MSG_PEEK, FIONREAD).
//!
//! The next bytes may lie in two places: those of TCP before a lane, and those of TCP behind what a
//! lane holds, where a peer goes that writes much. A look shows both, as the kernel's shows its
//! whole buffer. Across a network it ends where the lane does.

use std::os::fd::RawFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::Timeout;
use weft_fabric::{Carry, Lane};
use weft_socket::{Origin, ReadError};

use super::{Attempt, How, time_left};
use crate::arena::Connection;
use crate::direction::ReceiveGuard;
use crate::signals::Watch;
use crate::{sys, waits};

/// The pauses between the looks of a peek that waits for more: the first, and the longest.
const PAUSES_NS: (u64, u64) = (500_000, 32_000_000);
/// How long a peek waits for more than a lane over an endpoint may hold, in nanoseconds.
const STUCK_NS: u64 = 1_000_000_000;

impl Connection {
    /// Peeks until all of `targets` are full, or the bytes end (MSG_PEEK with MSG_WAITALL).
    #[cold]
    pub(super) fn peek_for_all(
        &self,
        fd: RawFd,
        targets: &mut [&mut [u8]],
        how: How,
    ) -> Result<usize, Errno> {
        let wanted: usize = targets.iter().map(|target| target.len()).sum();
        let once = How { wait_all: false, ..how };
        let watch = Watch::new();
        let (mut deadline, mut pause) = (None, PAUSES_NS.0);
        let mut last = (0, sys::now_ns());
        loop {
            // Asked before the look, which shows all that came before the end.
            let ends = self.is_at_its_end(fd);
            let seen = self.receive(fd, targets, once)?;
            if seen >= wanted || seen == 0 || ends || !self.blocks(how) {
                return Ok(seen);
            }
            if seen > last.0 {
                last = (seen, sys::now_ns());
            }
            let limit = time_left(fd, Timeout::Recv, &mut deadline);
            let stuck = || sys::now_ns() - last.1 > STUCK_NS && self.is_beyond_sight(fd, seen);
            if watch.saw_interruption() || limit == Some(0) || stuck() {
                return Ok(seen);
            }
            // Readiness tells of the first byte alone, so that this wait is cut into pauses.
            let slice = waits::at_most(limit, pause);
            match waits::poll_within(fd, PollFlags::RDHUP, Some(slice)) {
                Ok(seen) if seen.is_empty() => {}
                Ok(seen) => self.note_poll(seen),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            pause = PAUSES_NS.1.min(pause * 2);
        }
    }

    /// True if more than the `seen` bytes may lie where no look gets: behind a lane over an
    /// endpoint that is rather full.
    fn is_beyond_sight(&self, fd: RawFd, seen: usize) -> bool {
        self.receiving_on_lane(fd).is_some_and(|receiving| {
            receiving.lane.is_far() && seen as u64 >= receiving.lane.sink_bytes() / 2
        })
    }

    /// Peeks at the head of the lane, and at TCP behind it.
    #[cold]
    pub(super) fn peek_lane<L: Lane>(
        &self,
        fd: RawFd,
        receiving: &mut ReceiveGuard<'_, L>,
        targets: &mut [&mut [u8]],
    ) -> Attempt {
        // This look comes before that at the lane, which then shows all before the boundary.
        let wanted = targets.iter().fold(0, |sum: u64, part| sum.saturating_add(part.len() as u64));
        let is_here = receiving.state.available(receiving.lane) >= wanted;
        let behind = if is_here { None } else { receiving.behind_lane() };
        match peek(receiving, targets, 0) {
            Ok(seen) => {
                let more = behind.map_or(0, |skip| peek_tcp(fd, targets, seen, skip));
                Attempt::Moved(seen + more)
            }
            Err(error) => self.lane_is_empty(fd, receiving, error),
        }
    }

    /// The bytes that a read can get, for FIONREAD: those on TCP and those on the lane. `None` when
    /// the kernel knows the answer.
    pub fn unread(&self, fd: RawFd) -> Option<u64> {
        let mut receiving = self.receiving_on_lane(fd)?;
        let on_tcp = || rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0);
        let there = match receiving.origin() {
            Origin::Lane => {
                // As in `peek_lane`.
                let behind = receiving.behind_lane();
                behind.map_or(0, |skip| on_tcp().saturating_sub(skip))
            }
            // Before the switch, and on TCP again, all bytes are in the kernel's socket.
            Origin::Tcp { at_most: None } | Origin::Wakeups(_) | Origin::Return => return None,
            Origin::Tcp { at_most: Some(left) } => {
                let here = on_tcp();
                if here < left {
                    // Bytes on the lane come after bytes of TCP that have not arrived yet.
                    return Some(here);
                }
                left
            }
        };
        Some(receiving.state.available(receiving.lane).saturating_add(there))
    }
}

/// Peeks at the lane behind `skip` bytes of TCP that `targets` have, which are all before the lane.
/// Returns how many bytes more there are.
#[cold]
pub(super) fn peek_lane_behind<L: Lane>(
    receiving: &mut ReceiveGuard<'_, L>,
    targets: &mut [&mut [u8]],
    skip: usize,
) -> usize {
    peek(receiving, targets, skip).unwrap_or(0)
}

/// Copies what is at the head of the lane into the part of `targets` behind `skip` bytes.
fn peek<L: Lane>(
    receiving: &mut ReceiveGuard<'_, L>,
    targets: &mut [&mut [u8]],
    skip: usize,
) -> Result<usize, ReadError> {
    let lane = receiving.lane;
    if let [target] = targets {
        let begin = skip.min(target.len());
        return Ok(receiving.state.read(lane, &mut target[begin..], true)?.bytes);
    }
    let wanted: usize = targets.iter().map(|target| target.len()).sum();
    let there = usize::try_from(receiving.state.available(lane)).unwrap_or(usize::MAX);
    // At least one byte, so that the read finds an end.
    let mut seen = vec![0; there.max(1).min(wanted.saturating_sub(skip))];
    let bytes = receiving.state.read(lane, &mut seen, true)?.bytes;
    Ok(scatter(targets, skip, &seen[..bytes]))
}

/// Copies what lies on TCP behind `wakeups` bytes into the part of `targets` behind `skip` bytes.
fn peek_tcp(fd: RawFd, targets: &mut [&mut [u8]], skip: usize, wakeups: u64) -> usize {
    let wanted: usize = targets.iter().map(|target| target.len()).sum();
    let wakeups = usize::try_from(wakeups).unwrap_or(usize::MAX);
    let there = rustix::io::ioctl_fionread(sys::borrow(fd)).unwrap_or(0);
    let there = usize::try_from(there).unwrap_or(0);
    if there <= wakeups || skip >= wanted {
        return 0;
    }
    let mut seen = vec![0; there.min(wakeups.saturating_add(wanted - skip))];
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let bytes = rustix::net::recv(sys::borrow(fd), &mut seen[..], flags).map_or(0, |(n, _)| n);
    seen[..bytes].get(wakeups..).map_or(0, |data| scatter(targets, skip, data))
}

/// Copies `bytes` into the part of `targets` behind `skip` bytes; returns how many fit.
fn scatter(targets: &mut [&mut [u8]], skip: usize, bytes: &[u8]) -> usize {
    let (mut before, mut rest) = (skip, bytes);
    for target in targets {
        let begin = before.min(target.len());
        before -= begin;
        let (part, behind) = rest.split_at(rest.len().min(target.len() - begin));
        target[begin..begin + part.len()].copy_from_slice(part);
        rest = behind;
    }
    bytes.len() - rest.len()
}
