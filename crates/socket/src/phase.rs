//! Where a connection stands between TCP and a lane, and which thread may move it.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// There is no connection.
    Free = 0,
    /// It is on TCP, and nobody asked for a lane yet.
    Fresh = 1,
    /// A thread asks for a lane right now, or gives one back.
    Deciding = 2,
    /// The end offered it; it stays on TCP until the other end comes.
    Pending = 3,
    /// It has a lane.
    Laned = 4,
    /// It stays on TCP for good.
    Declined = 5,
}

/// The phase of a connection in memory that processes share. Any memory is a valid one, and zeroed
/// memory is [`Phase::Free`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct SharedPhase {
    phase: AtomicU32,
    /// The thread that decides, while the phase says that one does.
    decider: AtomicU32,
}

impl SharedPhase {
    /// The phase.
    #[inline]
    pub fn get(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Free,
            1 => Phase::Fresh,
            2 => Phase::Deciding,
            3 => Phase::Pending,
            4 => Phase::Laned,
            _ => Phase::Declined,
        }
    }

    /// Sets the phase, whatever it was.
    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Release);
    }

    /// Moves from one phase to another; false when it was in a third one.
    pub fn moves(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// True when the thread `task` decides from here on; [`SharedPhase::decide`] ends that. A
    /// signal handler of the thread must not run inside this call: it would wait for the thread.
    pub fn claim(&self, from: Phase, task: u32) -> bool {
        let is_claimed = self.moves(from, Phase::Deciding);
        if is_claimed {
            self.decider.store(task, Ordering::Relaxed);
        }
        is_claimed
    }

    /// Ends deciding. False when another thread lost patience and declined: a lane must then not be
    /// used.
    pub fn decide(&self, phase: Phase) -> bool {
        phase == Phase::Declined || self.moves(Phase::Deciding, phase)
    }

    /// The thread that decides, while one does.
    pub fn decider(&self) -> u32 {
        self.decider.load(Ordering::Relaxed)
    }

    /// Stays on TCP for good unless there is a lane. Returns the phase that it was in, if it did
    /// not stay before.
    pub fn stay(&self) -> Option<Phase> {
        [Phase::Fresh, Phase::Pending].into_iter().find(|from| self.moves(*from, Phase::Declined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_phase(phase: Phase) -> SharedPhase {
        let shared = SharedPhase::default();
        shared.set(phase);
        shared
    }

    #[test]
    fn one_thread_decides_at_a_time() {
        let phase = in_phase(Phase::Fresh);
        assert!(phase.claim(Phase::Fresh, 7));
        assert!(!phase.claim(Phase::Fresh, 8));
        assert_eq!((phase.get(), phase.decider()), (Phase::Deciding, 7));
        assert!(phase.decide(Phase::Pending));
        assert!(phase.claim(Phase::Pending, 8));
    }

    #[test]
    fn a_decision_that_took_too_long_does_not_count() {
        let phase = in_phase(Phase::Fresh);
        assert!(phase.claim(Phase::Fresh, 7));
        phase.set(Phase::Declined);
        assert!(!phase.decide(Phase::Laned));
        assert_eq!(phase.get(), Phase::Declined);
    }

    #[test]
    fn a_connection_with_a_lane_or_a_decider_does_not_stay() {
        for (before, after) in [
            (Phase::Fresh, Some(Phase::Fresh)),
            (Phase::Pending, Some(Phase::Pending)),
            (Phase::Deciding, None),
            (Phase::Laned, None),
            (Phase::Declined, None),
        ] {
            let phase = in_phase(before);
            assert_eq!(phase.stay(), after);
            assert_eq!(phase.get(), if after.is_some() { Phase::Declined } else { before });
        }
    }
}
