//! The phase of a connection between TCP and a lane, and the thread that may change it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::state::State;

/// The phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// There is no connection.
    Free = 0,
    /// The connection is on TCP, and no thread asked for a lane yet.
    Fresh = 1,
    /// A thread is asking for a lane, or giving one back.
    Deciding = 2,
    /// The end offered the connection. It stays on TCP until the other end offers it, too.
    Pending = 3,
    /// The connection has a lane.
    Laned = 4,
    /// The connection stays on TCP for good.
    Declined = 5,
}

impl State for Phase {
    #[inline]
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Free,
            1 => Self::Fresh,
            2 => Self::Deciding,
            3 => Self::Pending,
            4 => Self::Laned,
            _ => Self::Declined,
        }
    }

    #[inline]
    fn number(self) -> u64 {
        self as u64
    }
}

/// The phase of a connection in memory that processes share. Any memory is valid. Zeroed memory is
/// [`Phase::Free`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct SharedPhase {
    phase: AtomicU32,
    /// The thread that decides, while one does.
    decider: AtomicU32,
}

impl SharedPhase {
    /// The phase.
    #[inline]
    pub fn get(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Acquire).into())
    }

    /// Sets the phase, whatever it was.
    pub fn set(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Release);
    }

    /// Changes the phase from `from` to `to`. False if it was not `from`.
    pub fn moves(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.phase.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Makes `task` the thread that decides, until [`SharedPhase::decide`]. False if the phase was
    /// not `from`. A signal handler must not interrupt this call: it would wait for its own thread.
    pub fn claim(&self, from: Phase, task: u32) -> bool {
        let is_claimed = self.moves(from, Phase::Deciding);
        if is_claimed {
            self.decider.store(task, Ordering::Relaxed);
        }
        is_claimed
    }

    /// Ends deciding. False if another thread declined meanwhile, after it had waited too long: the
    /// caller must not use its lane then.
    pub fn decide(&self, phase: Phase) -> bool {
        if phase == Phase::Declined {
            self.set(phase);
            return true;
        }
        self.moves(Phase::Deciding, phase)
    }

    /// The number of the thread that decides, while one does.
    pub fn decider(&self) -> u32 {
        self.decider.load(Ordering::Relaxed)
    }

    /// Declines a connection that is fresh or pending, and returns its former phase. In other
    /// phases it changes nothing, and returns `None`.
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
