//! The words of an end that its own carrier changes: attention, and the end of the lane.

use std::sync::atomic::{AtomicU8, Ordering};

use weft_fabric::{Attention, Standing};

/// Whether more may arrive on a lane. It changes once.
#[derive(Debug, Default)]
pub(crate) struct Ending(AtomicU8);

impl Ending {
    const CLOSED: u8 = 1;
    const LOST: u8 = 2;

    /// The lane ends, if it has not ended before.
    pub fn end(&self, is_complete: bool) {
        let how = if is_complete { Self::CLOSED } else { Self::LOST };
        let _ = self.0.compare_exchange(0, how, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub fn standing(&self) -> Standing {
        match self.0.load(Ordering::Acquire) {
            0 => Standing::Open,
            Self::CLOSED => Standing::Closed,
            _ => Standing::Lost,
        }
    }

    pub fn is_over(&self) -> bool {
        self.standing() != Standing::Open
    }
}

/// An attention word of this process.
#[derive(Debug, Default)]
pub(crate) struct Word(AtomicU8);

impl Word {
    const WATCHING: u8 = Attention::Watching as u8;
    const ARMED: u8 = Attention::Armed as u8;
    const RUNG: u8 = Attention::Rung as u8;

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Changes watching to armed.
    pub fn arm(&self) {
        self.change(Self::WATCHING, Self::ARMED);
    }

    /// Changes armed to rung. True if it did.
    pub fn ring(&self) -> bool {
        self.change(Self::ARMED, Self::RUNG)
    }

    /// Changes rung to armed. True if it did.
    pub fn rearm(&self) -> bool {
        self.change(Self::RUNG, Self::ARMED)
    }

    /// Changes any state to watching. True if it was rung.
    pub fn disarm(&self) -> bool {
        self.0.swap(Self::WATCHING, Ordering::AcqRel) == Self::RUNG
    }

    pub fn state(&self) -> Attention {
        match self.0.load(Ordering::Acquire) {
            Self::ARMED => Attention::Armed,
            Self::RUNG => Attention::Rung,
            _ => Attention::Watching,
        }
    }
}
