//! The readiness of a connection for reads and writes, and how it ended.

use std::os::fd::RawFd;

use rustix::event::PollFlags;
use weft_fabric::{Carry, Lane};
use weft_socket::{Origin, Peer, ReceiveSide, closed};

use crate::arena::{Connection, flag};
use crate::direction::{ReceiveGuard, SendGuard};
use crate::lane::either;
use crate::{sys, waits};

/// How a connection ended.
#[derive(Clone, Copy, Default)]
pub struct HangUp {
    /// The peer sends no more.
    pub ended: bool,
    /// No direction carries data any more.
    pub hung_up: bool,
    /// It was reset, and the program was not told yet.
    pub failed: bool,
}

impl Connection {
    /// Whether a read would not block, or `None` when only the kernel knows.
    pub fn readable(&self, fd: RawFd) -> Option<bool> {
        let receiving = self.receiving()?;
        either!(receiving.lane?, lane => self.is_readable(receiving.over(lane, *self, fd)))
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "each kind of lane has one copy, in its one caller")]
    fn is_readable<L: Lane>(&self, mut receiving: ReceiveGuard<'_, L>) -> Option<bool> {
        self.follow(receiving.shadow.fd, receiving.lane);
        receiving.readable(self.has(flag::READING_SHUT))
    }

    /// Whether a read still would not block, after the kernel said so. The receiving direction is
    /// on TCP. It may have been on the lane and come back since the kernel's answer. The kernel may
    /// then have seen a wakeup that was taken at the crossing.
    pub fn has_bytes_still(&self, fd: RawFd) -> bool {
        if let Some(mut receiving) = self.receiving_on_lane(fd) {
            // The kernel may have seen the word of a peer that stays on TCP.
            receiving.look_for_record();
        }
        // If a signal interrupts the look, the kernel's first answer counts.
        let there = waits::poll_one(fd, PollFlags::IN, 0).map_or(true, |seen| !seen.is_empty());
        self.readable(fd).unwrap_or(there)
    }

    /// Whether a write would not block, or `None` when only the kernel knows.
    pub fn writable(&self, fd: RawFd) -> Option<bool> {
        let sending = self.sending()?;
        either!(sending.lane?, lane => self.is_writable(sending.over(lane, *self, fd)))
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `is_readable`")]
    fn is_writable<L: Lane>(&self, mut sending: SendGuard<'_, L>) -> Option<bool> {
        sending.leave_if_over();
        if !sending.push() {
            return Some(false);
        }
        if !sending.switch_for_data() {
            return None;
        }
        let lane = sending.lane;
        if sending.is_gone() || sending.state.writable(lane) {
            return Some(true);
        }
        (!self.leave_if_stuck(&mut sending)).then_some(false)
    }

    /// Whether a read would not block, and how the connection ended, as one answer. A program that
    /// is told of an end is told that it can read. A program that can read an end is told of it.
    pub fn read_readiness(&self, fd: RawFd) -> (Option<bool>, HangUp) {
        let readable = self.readable(fd);
        // Asked after the look above, so that an end which made the connection readable is seen.
        let end = self.hang_up(fd);
        (if end.ended { Some(true) } else { readable }, end)
    }

    /// How the connection ended, as POLLRDHUP, POLLHUP and POLLERR tell it. A direction that this
    /// end shut is over, even if the peer goes on.
    fn hang_up(&self, fd: RawFd) -> HangUp {
        let by_peer = self.ended_by_peer(fd);
        if by_peer.ended || !self.has(flag::READING_SHUT) {
            return by_peer;
        }
        let shut = self.sending().is_some_and(|sending| sending.state.is_shut());
        HangUp { ended: true, hung_up: by_peer.hung_up || shut, ..by_peer }
    }

    /// True when both ends have shut the connection down, or it was reset.
    pub fn is_over(&self, fd: RawFd) -> bool {
        self.ended_by_peer(fd).hung_up
    }

    /// How the connection ended by acts of the peer.
    fn ended_by_peer(&self, fd: RawFd) -> HangUp {
        let none = HangUp::default();
        let Some(receiving) = self.receiving() else { return none };
        let Some(lane) = receiving.lane else { return none };
        let broken = receiving.state.is_broken();
        if !broken && !either!(lane, lane => self.has_end(lane)) {
            // No end was announced or found. Most calls end here.
            return none;
        }
        let killed = self.was_killed(lane);
        let reset = closed::is_reset(ReceiveSide::peer_closed(lane));
        let told = self.has(flag::SENT_TO_NOBODY | flag::RESET_REPORTED);
        let Ok(mut receiving) = receiving.on_lane(*self, fd) else { return none };
        let on_lane = receiving.origin() == Origin::Lane;
        // A lane over an endpoint may end when both ends have left it.
        let killed = killed && (on_lane || !lane.is_far());
        if !on_lane && !reset && !killed && !told {
            return none;
        }
        let ended =
            reset || killed || receiving.state.ended(lane).is_some() || self.peer() != Peer::Alive;
        drop(receiving);
        let (shut, lost) = self.sending_on_lane(fd).map_or((false, false), |mut sending| {
            let may_miss_bytes = lane.is_far() && !ReceiveSide::peer_ends_with_process(lane);
            let lost = may_miss_bytes || sending.peer_died_with_bytes_unread();
            (sending.state.is_shut(), killed && lost)
        });
        let broken = reset || lost || told || broken;
        HangUp {
            ended,
            hung_up: broken || ended && shut,
            failed: broken && !self.has(flag::RESET_REPORTED),
        }
    }

    /// True when an end of the connection was announced or found.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `is_readable`")]
    fn has_end<L: Carry>(&self, lane: &L) -> bool {
        self.was_killed(lane)
            || ReceiveSide::peer_closed(lane).is_some()
            || self.has(flag::SENT_TO_NOBODY | flag::RESET_REPORTED)
    }

    /// True when no bytes come but those that are there: an end was announced, read or not.
    pub fn is_at_its_end(&self, fd: RawFd) -> bool {
        self.announces_end(fd) || self.has(flag::READING_SHUT) || sys::has_ended(fd)
    }

    /// True when the peer announced an end, on the lane where there is one.
    pub fn announces_end(&self, fd: RawFd) -> bool {
        let on_lane = self.receiving().and_then(|receiving| {
            receiving.lane.map(|lane| either!(lane, lane => self.has_end(lane)))
        });
        on_lane.unwrap_or_else(|| sys::has_ended(fd))
    }

    /// True when the peer ended without a goodbye.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as `is_readable`")]
    fn was_killed<L: Carry>(&self, lane: &L) -> bool {
        // In this order: a goodbye that arrived before the end is seen.
        self.peer() != Peer::Alive
            && ReceiveSide::end_is_visible(lane)
            && ReceiveSide::peer_closed(lane).is_none()
    }

    /// True when the peer posted a reset on the lane.
    pub fn was_reset(&self) -> bool {
        let Some(receiving) = self.receiving() else { return false };
        let closed = receiving.lane.and_then(ReceiveSide::peer_closed);
        closed::is_reset(closed)
    }

    /// True when the peer posted a reset on the lane after it had ended its direction.
    fn was_reset_after_end(&self) -> bool {
        let Some(receiving) = self.receiving() else { return false };
        let closed = receiving.lane.and_then(ReceiveSide::peer_closed);
        closed == Some(closed::RESET_AFTER_END)
    }

    /// The error for SO_ERROR, which is told once: 0 after that, `None` when only the kernel knows.
    pub fn take_error(&self, fd: RawFd) -> Option<i32> {
        if self.hang_up(fd).failed {
            self.set(flag::RESET_REPORTED, true);
            let broken_pipe = self.has(flag::SENT_TO_NOBODY) || self.was_reset_after_end();
            let reset = || self.error_of_reset().raw_os_error();
            return Some(if broken_pipe { libc::EPIPE } else { reset() });
        }
        // The kernel's error may come from a wakeup alone, for example one to a process that is
        // gone, or that said goodbye on the lane.
        let wakeups_alone = self.sending().is_some_and(|sending| {
            sending.lane.is_some_and(|lane| {
                let is_gone =
                    self.peer() != Peer::Alive || ReceiveSide::peer_closed(lane).is_some();
                is_gone && sending.state.only_wakeups_unread(lane)
            })
        });
        (wakeups_alone || self.has(flag::RESET_REPORTED)).then_some(0)
    }

    /// True when data lie on the lane, behind data on TCP.
    pub fn lane_brings(&self, fd: RawFd) -> bool {
        let on_lane = self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| receiving.state.has_data(lane))
        });
        // Bytes of TCP that have not arrived yet bring an edge of their own.
        on_lane && self.noting(sys::look_for_wakeups(fd, &mut [0])) > 0
    }

    /// A count that grows when messages, the peer's end or its death arrive, which is an edge;
    /// `None` without a lane. `from` is the former answer.
    pub fn arrived(&self, from: u64) -> Option<u64> {
        let receiving = self.receiving()?;
        let lane = receiving.lane?;
        let gone = u64::from(self.peer() != Peer::Alive);
        // The former answer may count the end and the death, as one each.
        let from = from.saturating_sub(2);
        Some(either!(lane, lane => receiving.state.arrived(lane, from)) + gone)
    }
}
