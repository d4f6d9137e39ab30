//! Wakeups: who is rung, who waits for one, and which of them nobody waits for any more.
//!
//! A wakeup is one byte on the kernel's socket, sent with the sending direction locked, so that a
//! boundary between the lane and TCP knows how many there were. A thread never takes the wakeup of
//! another: those that came, or will, for threads that gave up waiting are *stale*, and only so
//! many are taken out of the socket.
//!
//! Other bytes have no place there. Somebody without weft who holds the peer's socket may write
//! some all the same, and nobody could tell where in the stream they belong: the connection is then
//! reset. They are found when a wait in the kernel ended with bytes and nothing came of it.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use rustix::event::PollFlags;
use rustix::io::Errno;
use weft_fabric::{Attention, Lane, WaitFor};
use weft_socket::{Origin, ReceiveSide, SendSide};
use weft_transport_shm::lane::ShmLane;

use crate::arena::{Connection, flag, peer, phase};
use crate::{log, sys};

/// Wakeups that nobody waited for any more at some moment, in all, and the time they are of: a
/// direction that went back to TCP begins a new one.
#[derive(Clone, Copy, Default)]
pub struct StaleWakeups(u64);

impl StaleWakeups {
    const COUNT_BITS: u32 = 32;

    const fn time(self) -> u64 {
        self.0 >> Self::COUNT_BITS
    }

    fn count(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(u32::MAX)
    }

    fn one_more(self) -> Self {
        let count = u64::from(self.count().wrapping_add(1));
        Self(self.time() << Self::COUNT_BITS | count)
    }

    const fn next_time(self) -> Self {
        Self(self.time().wrapping_add(1) << Self::COUNT_BITS)
    }
}

/// Options of TCP that hold small segments back, and what the program wants of them.
const DELAYS: [(c_int, u32); 2] =
    [(libc::TCP_NODELAY, flag::NO_DELAY), (libc::TCP_CORK, flag::CORKED)];

impl Connection {
    /// Wakeups are sent at once from here on: the kernel would hold a second one back until the
    /// first is acknowledged, 40 ms later, or while it is corked. What the program had set is
    /// remembered.
    pub fn ring_at_once(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            let set = sys::tcp_option(fd, option).unwrap_or(false);
            self.set(wish, set);
            if set != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, !set);
            }
        }
    }

    /// No wakeups ring any more: the kernel's socket gets what the program has set.
    pub fn rings_no_more(&self, fd: RawFd) {
        for (option, wish) in DELAYS {
            if self.has(wish) != (option == libc::TCP_NODELAY) {
                sys::set_tcp_option(fd, option, self.has(wish));
            }
        }
    }

    /// The flag that holds the program's wish for an option that weft sets otherwise in the kernel.
    pub fn wish(&self, level: c_int, option: c_int) -> Option<u32> {
        if level != libc::IPPROTO_TCP || self.phase() != phase::LANED {
            return None;
        }
        DELAYS.iter().find(|(name, _)| *name == option).map(|(_, wish)| *wish)
    }

    /// Rings the peer, with the sending direction locked.
    pub fn ring(&self, fd: RawFd, sending: &mut SendSide) {
        sending.begin_tcp();
        sending.rang(u64::from(sys::ring(fd)));
    }

    /// A read made room that the peer may wait for.
    pub fn ring_for_room(&self, fd: RawFd) {
        if let Some(sending) = self.sending()
            && let Some(lane) = sending.lane
            && sending.state.rings_for_room(lane, self.side())
        {
            self.ring(fd, sending.state);
        }
    }

    fn stale(&self) -> StaleWakeups {
        StaleWakeups(self.shared.stale.load(Ordering::Relaxed))
    }

    /// Counts a wakeup that came, or will, and that nobody waits for any more, when `taken` finds
    /// that a word was rung. The receiving direction is locked, so that no wakeup is seen in
    /// between which neither its word nor the count accounts for.
    fn note_stale_if(&self, taken: impl FnOnce() -> bool) {
        let time = self.stale().time();
        if taken() {
            let _ = self.shared.stale.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |stale| {
                // Wakeups from before the direction went to TCP are forgotten.
                (StaleWakeups(stale).time() == time).then(|| StaleWakeups(stale).one_more().0)
            });
        }
    }

    /// The receiving direction, which is locked, goes back to TCP: all wakeups so far are in front
    /// of the data there, and taken by their number.
    pub fn forget_wakeups(&self) {
        self.shared.drained.store(0, Ordering::Relaxed);
        self.shared.stale.store(self.stale().next_time().0, Ordering::Relaxed);
    }

    /// Wakeups that lie in the kernel's socket, or 0 when there is something else: the connection
    /// is broken then.
    fn look_for_wakeups(&self, fd: RawFd, state: &mut ReceiveSide, lane: &ShmLane) -> usize {
        if state.is_broken() {
            return 0;
        }
        let mut bytes = [0; sys::WAKEUPS_MAX];
        // Looked at first: data that came meanwhile is behind a boundary that is posted by then,
        // and whoever rang a wakeup had claimed it.
        let seen = sys::look_for_wakeups(fd, &mut bytes);
        let wakeups = state.wakeups_of(lane, seen);
        let more = state.on_lane() && wakeups > self.wakeups_due(lane);
        if more || bytes[..wakeups].iter().any(|byte| *byte != sys::WAKEUP) {
            log::warn_user!(
                "a connection is reset: its other end wrote bytes past weft, which a program does \
                 that uses the socket without it"
            );
            state.break_off();
            self.heard(sys::Wakeup::Failed(Errno::CONNRESET));
            return 0;
        }
        wakeups
    }

    /// True when something else than wakeups lies in the kernel's socket.
    pub fn has_strays(&self, fd: RawFd, state: &mut ReceiveSide, lane: &ShmLane) -> bool {
        self.look_for_wakeups(fd, state, lane);
        state.is_broken()
    }

    /// As many wakeups as may lie there: those stale, and those of the words that are rung.
    fn wakeups_due(&self, lane: &ShmLane) -> usize {
        let words = [WaitFor::Data, WaitFor::Room];
        let rung = words.iter().filter(|what| lane.attention(**what) == Attention::Rung).count();
        let drained = self.shared.drained.load(Ordering::Relaxed);
        let stale = self.stale().count().wrapping_sub(drained).cast_signed();
        usize::try_from(stale).unwrap_or(0) + rung
    }

    /// Takes up to `most` wakeups out of the kernel's socket and returns how many there were.
    pub fn take_wakeups(
        &self,
        fd: RawFd,
        state: &mut ReceiveSide,
        lane: &ShmLane,
        most: usize,
    ) -> usize {
        let wakeups = self.look_for_wakeups(fd, state, lane).min(most);
        if wakeups == 0 {
            return 0;
        }
        state.begin_tcp();
        let taken = sys::drain(fd, wakeups);
        state.took_wakeups(taken);
        taken
    }

    /// The kernel says that bytes lie in its socket, which are to be wakeups.
    pub fn woken_by_bytes(&self) {
        self.local.woken_by_bytes.store(true, Ordering::Relaxed);
    }

    /// Takes wakeups out of the kernel's socket that were stale when a thread armed, once it found
    /// nothing: by then their data is taken. Wakeups that were stale since may be the only ones
    /// that wake somebody else. False when the connection was found broken, so that there is
    /// something to tell.
    #[must_use]
    pub fn drain(&self, fd: RawFd, stale: StaleWakeups) -> bool {
        let mut in_vain = self.local.woken_by_bytes.swap(false, Ordering::Relaxed);
        if !in_vain && stale.count() == self.shared.drained.load(Ordering::Relaxed) {
            return true;
        }
        let Some(receiving) = self.receiving() else { return true };
        let Some(lane) = receiving.lane else { return true };
        // Only there are all bytes wakeups.
        if self.origin(fd, receiving.state, lane) != Origin::Lane {
            return true;
        }
        loop {
            let drained = self.shared.drained.load(Ordering::Relaxed);
            let left = stale.count().wrapping_sub(drained).cast_signed();
            let left = usize::try_from(left).unwrap_or(0);
            if left == 0 || stale.time() != self.stale().time() {
                break;
            }
            in_vain = false;
            let taken = self.take_wakeups(fd, receiving.state, lane, left);
            self.shared.drained.fetch_add(u32::try_from(taken).unwrap_or(0), Ordering::Relaxed);
            if taken == 0 {
                break;
            }
        }
        if in_vain {
            return !self.has_strays(fd, receiving.state, lane);
        }
        !receiving.state.is_broken()
    }

    /// Takes every wakeup out of the kernel's socket before it is closed: with bytes unread the
    /// kernel sends a reset instead of an end. A peer that is told the end on the lane does not see
    /// the reset; for one that reads TCP, wakeups on their way are waited for.
    pub fn drain_before_close(&self, fd: RawFd, sends_on_lane: bool) {
        /// A peer that has claimed a wakeup rings it unless it loses its processor in between.
        const WAIT_NS: u64 = 500_000_000;
        let start = sys::now_ns();
        while !self.drain_all(fd) {
            let patient = !sends_on_lane && self.peer() == peer::ALIVE;
            if !patient || sys::now_ns() - start > WAIT_NS {
                return;
            }
            let seen = sys::poll_one(fd, PollFlags::IN | PollFlags::RDHUP, 1);
            if seen.is_ok_and(|seen| seen.contains(PollFlags::RDHUP)) {
                self.heard(sys::Wakeup::End);
            }
        }
    }

    /// Takes all wakeups that are there, and asks for no more; false when some are on their way.
    pub fn drain_all(&self, fd: RawFd) -> bool {
        let Some(receiving) = self.receiving() else { return true };
        let Some(lane) = receiving.lane else { return true };
        match self.origin(fd, receiving.state, lane) {
            Origin::Lane => {}
            Origin::Wakeups(_) => return false,
            Origin::Tcp { .. } | Origin::Back => return true,
        }
        for what in [WaitFor::Data, WaitFor::Room] {
            self.note_stale_if(|| lane.disarm(what));
        }
        loop {
            let taken = self.take_wakeups(fd, receiving.state, lane, usize::MAX);
            self.shared.drained.fetch_add(u32::try_from(taken).unwrap_or(0), Ordering::Relaxed);
            if taken == 0 {
                break;
            }
        }
        let drained = self.shared.drained.load(Ordering::Relaxed);
        self.stale().count().wrapping_sub(drained).cast_signed() <= 0
    }

    /// Arms `what`, with the receiving direction locked. Never by way of watching, since others may
    /// rely on the word being armed. Returns the wakeups that nobody waits for any more by then.
    pub fn arm_word(&self, lane: &ShmLane, what: WaitFor) -> StaleWakeups {
        self.note_stale_if(|| lane.rearm(what));
        lane.arm(what);
        self.stale()
    }

    /// The peer will ring for what comes next.
    pub fn is_armed(&self) -> bool {
        self.receiving().is_some_and(|receiving| {
            receiving.lane.is_some_and(|lane| lane.attention(WaitFor::Data) == Attention::Armed)
        })
    }

    /// Threads that sleep until there is `what`.
    pub fn sleepers(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => &self.shared.sleepers,
            WaitFor::Room => &self.shared.room_sleepers,
        }
    }

    /// The caller no longer waits for `what`; others may.
    pub fn stop_waiting_for(&self, lane: &ShmLane, what: WaitFor) {
        self.stop_waiting_besides(lane, what, 0);
    }

    /// The same for an epoll set, which looks by itself from now on unless it is not the only one.
    pub fn woken_for(&self, lane: &ShmLane, what: WaitFor) {
        self.stop_waiting_besides(lane, what, 1);
    }

    /// `own` of the sets that it is in are the caller's.
    fn stop_waiting_besides(&self, lane: &ShmLane, what: WaitFor, own: u32) {
        let others = self.sleepers(what).load(Ordering::Relaxed) > 0
            || self.local.registered.load(Ordering::Relaxed) > own;
        self.note_stale_if(|| if others { lane.rearm(what) } else { lane.disarm(what) });
    }
}
