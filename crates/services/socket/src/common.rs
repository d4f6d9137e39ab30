//! The state of an end that both directions use without a lock: sleeping threads, stale wakeups,
//! and the state of the peer as the kernel reported it.
//!
//! A wakeup is one byte on the kernel's socket. A thread never takes the wakeup of another thread.
//! Wakeups that came, or will come, for threads that gave up waiting are *stale*. Only as many
//! bytes as there are stale wakeups are taken out of the socket.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_fabric::{Attention, Carry, Lane, WaitFor};

use crate::medium::peer_rings;
use crate::route::{acquaintance, presence, word};
use crate::state::State;

/// The state of the peer, as the kernel reported it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Peer {
    /// The kernel has reported nothing yet.
    Alive = 0,
    /// The kernel reported an end of file.
    Ended = 1,
    /// The kernel reported a reset.
    Reset = 2,
}

impl State for Peer {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Alive,
            1 => Self::Ended,
            _ => Self::Reset,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

/// The number of wakeups that were stale at some moment, since the connection last crossed to TCP.
/// A crossing begins a new epoch. The epoch is part of the value.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StaleWakeups(u64);

impl StaleWakeups {
    const COUNT_BITS: u32 = 32;

    const fn epoch(self) -> u64 {
        self.0 >> Self::COUNT_BITS
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower half is the count")]
    const fn count(self) -> u32 {
        self.0 as u32
    }

    const fn one_more(self) -> Self {
        Self(self.epoch() << Self::COUNT_BITS | self.count().wrapping_add(1) as u64)
    }

    const fn next_epoch(self) -> Self {
        Self(self.epoch().wrapping_add(1) << Self::COUNT_BITS)
    }
}

/// State of an end that its processes share. Any memory is valid. Zeroed memory is the state of a
/// new connection.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Common {
    data_sleepers: AtomicU32,
    room_sleepers: AtomicU32,
    /// Registrations in epoll sets, of all processes that hold the connection.
    watchers: AtomicU32,
    peer: AtomicU32,
    /// Number of stale wakeups that were taken out of the kernel's socket.
    drained: AtomicU32,
    stale: AtomicU64,
    /// The value that this end posted as [`word::ACQUAINTANCE`].
    acquaintance: AtomicU64,
    /// The messages that the peer has taken, as its record said, or 0.
    pub(crate) taken_by_peer: AtomicU64,
}

impl Common {
    /// In [`Common::acquaintance`]: this end has ended its sending direction.
    const ENDED: u64 = 4;

    /// Resets it for a new connection, which no thread uses yet.
    pub fn reset(&self) {
        self.data_sleepers.store(0, Ordering::Relaxed);
        self.room_sleepers.store(0, Ordering::Relaxed);
        self.watchers.store(0, Ordering::Relaxed);
        self.renew();
    }

    /// Resets it for another connection of the same socket, at which threads may still sleep.
    pub fn renew(&self) {
        self.peer.store(0, Ordering::Relaxed);
        self.drained.store(0, Ordering::Relaxed);
        self.stale.store(0, Ordering::Relaxed);
        self.forget_peer_of_lane();
    }

    /// Tells the peer across a network what this end knows of it. Called while a lock of the
    /// connection is held, until both ends know all.
    #[inline]
    pub(crate) fn meet<L: Carry>(&self, lane: &L) {
        if self.acquaintance.load(Ordering::Relaxed) < acquaintance::IS_MUTUAL && !peer_rings(lane)
        {
            self.meet_more(lane);
        }
    }

    #[cold]
    fn meet_more<L: Carry>(&self, lane: &L) {
        let former = self.acquaintance.load(Ordering::SeqCst);
        let seen = match lane.posted(word::ACQUAINTANCE) {
            0 if lane.posted(word::PRESENCE) & presence::ATTACHED == 0 => return,
            0 => acquaintance::KNOWS,
            _ => acquaintance::IS_MUTUAL,
        };
        // Fails if this end has ended meanwhile: see `Common::meet_no_more`.
        let moved =
            self.acquaintance.compare_exchange(former, seen, Ordering::SeqCst, Ordering::SeqCst);
        if former >= seen || moved.is_err() {
            return;
        }
        // Another thread may say more at the same time, and must not be outdone by this one.
        loop {
            let said = self.acquaintance.load(Ordering::SeqCst);
            lane.post(word::ACQUAINTANCE, said & !Self::ENDED);
            if self.acquaintance.load(Ordering::SeqCst) == said {
                return;
            }
        }
    }

    /// This end is about to end its sending direction on TCP. From here on it says nothing new of
    /// the peer: a peer of which it did not know until then gets no record.
    pub(crate) fn meet_no_more(&self) {
        self.acquaintance.fetch_or(Self::ENDED, Ordering::SeqCst);
    }

    /// True if the peer across a network may have gone to the lane.
    pub(crate) fn has_met(&self) -> bool {
        self.acquaintance.load(Ordering::Relaxed) & !Self::ENDED >= acquaintance::IS_MUTUAL
    }

    /// This end has no lane any more.
    pub(crate) fn forget_peer_of_lane(&self) {
        self.acquaintance.store(0, Ordering::Relaxed);
        self.taken_by_peer.store(0, Ordering::Relaxed);
    }

    /// The state of the peer, as the kernel reported it.
    #[inline]
    pub fn peer(&self) -> Peer {
        Peer::of(self.peer.load(Ordering::Acquire).into())
    }

    /// Stores the state of the peer that the kernel reported.
    pub fn set_peer(&self, peer: Peer) {
        self.peer.store(peer as u32, Ordering::Release);
    }

    const fn sleepers(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => &self.data_sleepers,
            WaitFor::Room => &self.room_sleepers,
        }
    }

    /// Counts a thread that is about to sleep until there is `what`. The thread calls it before it
    /// looks for a lane.
    pub fn begin_sleep(&self, what: WaitFor) {
        self.sleepers(what).fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the sleep of a thread that [`Common::begin_sleep`] counted.
    pub fn end_sleep(&self, what: WaitFor) {
        let _ = self
            .sleepers(what)
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }

    /// True while a thread sleeps until there is `what`.
    pub fn has_sleeper(&self, what: WaitFor) -> bool {
        self.sleepers(what).load(Ordering::SeqCst) > 0
    }

    /// Counts registrations in an epoll set, which relies on wakeups while no thread looks.
    pub fn begin_watch(&self, registrations: u32) {
        self.watchers.fetch_add(registrations, Ordering::SeqCst);
    }

    /// Takes [`Common::begin_watch`] back.
    pub fn end_watch(&self, registrations: u32) {
        let _ = self.watchers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            Some(count.saturating_sub(registrations))
        });
    }

    /// True when epoll sets have more than `own` registrations of the connection.
    pub fn is_watched_besides(&self, own: u32) -> bool {
        self.watchers.load(Ordering::SeqCst) > own
    }

    /// True when nobody but the caller, a thread that counted itself, sleeps until there is data.
    pub fn is_only_sleeper(&self) -> bool {
        self.data_sleepers.load(Ordering::SeqCst) <= 1 && !self.is_watched_besides(0)
    }

    /// The wakeups that are stale now.
    pub fn stale(&self) -> StaleWakeups {
        StaleWakeups(self.stale.load(Ordering::Relaxed))
    }

    /// Counts one more stale wakeup if `take` returns true, since the peer had rung. The caller
    /// holds the lock of the receiving direction. Otherwise another thread could see a wakeup for
    /// which neither a rung word nor the count stands.
    pub(crate) fn note_stale_if(&self, take: impl FnOnce() -> bool) {
        let epoch = self.stale().epoch();
        if take() {
            let _ = self.stale.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |stale| {
                // A wakeup from before the crossing to TCP lies in front of the data there.
                (StaleWakeups(stale).epoch() == epoch).then(|| StaleWakeups(stale).one_more().0)
            });
        }
    }

    /// Forgets stale wakeups, since the receiving direction crosses to TCP. All wakeups so far lie
    /// in front of the data there, and are taken by their number. The caller holds the direction's
    /// lock.
    pub fn forget_wakeups(&self) {
        self.drained.store(0, Ordering::Relaxed);
        self.stale.store(self.stale().next_epoch().0, Ordering::Relaxed);
    }

    /// True if all of `stale` were taken out of the kernel's socket.
    pub fn is_drained(&self, stale: StaleWakeups) -> bool {
        stale.count() == self.drained.load(Ordering::Relaxed)
    }

    pub(crate) fn note_drained(&self, taken: usize) {
        self.drained.fetch_add(u32::try_from(taken).unwrap_or(0), Ordering::Relaxed);
    }

    /// How many of `stale` still have to be taken; 0 for an earlier epoch.
    pub(crate) fn remaining(&self, stale: StaleWakeups) -> usize {
        if stale.epoch() != self.stale().epoch() {
            return 0;
        }
        let left = stale.count().wrapping_sub(self.drained.load(Ordering::Relaxed));
        usize::try_from(left.cast_signed()).unwrap_or(0)
    }

    /// The most wakeups that may lie in the kernel's socket: all stale ones, and one for each word
    /// of the lane that the peer rang.
    pub(crate) fn wakeups_due<L: Lane>(&self, lane: &L) -> usize {
        if !peer_rings(lane) {
            return 0;
        }
        let words = [WaitFor::Data, WaitFor::Room];
        let rung = words.iter().filter(|what| lane.attention(**what) == Attention::Rung).count();
        self.remaining(self.stale()) + rung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_wakeups_are_drained_by_their_number() {
        let common = Common::default();
        let before = common.stale();
        common.note_stale_if(|| true);
        common.note_stale_if(|| false);
        common.note_stale_if(|| true);
        assert!(common.is_drained(before));
        assert_eq!(common.remaining(common.stale()), 2);
        common.note_drained(1);
        assert_eq!(common.remaining(common.stale()), 1);
    }

    #[test]
    fn a_crossing_forgets_stale_wakeups() {
        let common = Common::default();
        common.note_stale_if(|| true);
        let before = common.stale();
        // The direction crosses to TCP after the word was taken and before it is counted.
        common.note_stale_if(|| {
            common.forget_wakeups();
            true
        });
        assert_eq!(common.remaining(before), 0, "of a former epoch");
        assert_eq!(common.remaining(common.stale()), 0, "counted in a former epoch");
    }

    #[test]
    fn sleepers_are_counted_for_each_condition() {
        let common = Common::default();
        common.begin_sleep(WaitFor::Data);
        common.begin_sleep(WaitFor::Data);
        common.end_sleep(WaitFor::Data);
        assert!(common.has_sleeper(WaitFor::Data) && !common.has_sleeper(WaitFor::Room));
        // An end without a beginning, as after a process that died, does not wrap around.
        common.end_sleep(WaitFor::Room);
        assert!(!common.has_sleeper(WaitFor::Room));
    }
}
