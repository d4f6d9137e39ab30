//! Data that a PE sends ahead for a collective call of another one. They wait there until that
//! call takes them, so nobody asks first whether the other PE is in the call.
//!
//! The place of the call's flags tells the calls of two PEs apart. Data for one place are taken in
//! the order in which they were sent.
//!
//! # Invariant
//! Of one PE at most [`PIECES_MAX`] pieces are on their way to another or wait there: the receiver
//! tells what was taken, and a sender without room waits for that.

use std::collections::VecDeque;

use super::entry::{Breach, Place};

/// Pieces of one PE that may be under way to another one, or wait there.
pub const PIECES_MAX: usize = 64;
/// Pieces that were taken before the sender is told.
const TOLD_AT: usize = PIECES_MAX / 2;

/// The data between this PE and another one.
#[derive(Debug, Default)]
pub struct Eager {
    /// Pieces of this PE that the other one is not known to have taken.
    sent: usize,
    /// Pieces of the other PE.
    waiting: VecDeque<(Place, Vec<u8>)>,
    /// Pieces that were taken, of which the other PE does not know.
    owed: usize,
}

impl Eager {
    /// Counts pieces that are sent. False if there is no room: nothing may be sent then.
    pub fn send(&mut self, pieces: usize) -> bool {
        let has_room = self.sent + pieces <= PIECES_MAX;
        self.sent += if has_room { pieces } else { 0 };
        has_room
    }

    /// The other PE has taken so many.
    ///
    /// # Errors
    /// [`Breach::Taken`]: it got fewer.
    pub fn taken(&mut self, pieces: usize) -> Result<(), Breach> {
        let left = self.sent.checked_sub(pieces);
        self.sent = left.ok_or(Breach::Taken { pieces, sent: self.sent })?;
        Ok(())
    }

    /// A piece of the other PE came.
    ///
    /// # Errors
    /// [`Breach::Eager`]: there is no room for it.
    pub fn came(&mut self, place: Place, bytes: &[u8]) -> Result<(), Breach> {
        if self.waiting.len() + self.owed >= PIECES_MAX {
            return Err(Breach::Eager(PIECES_MAX));
        }
        self.waiting.push_back((place, bytes.to_vec()));
        Ok(())
    }

    /// The next piece for a place.
    pub fn take(&mut self, place: Place) -> Option<Vec<u8>> {
        let at = self.waiting.iter().position(|(of, _)| *of == place)?;
        let (_, bytes) = self.waiting.remove(at)?;
        self.owed += 1;
        Some(bytes)
    }

    /// The number of taken pieces that the other PE is to be told of now, if there are enough.
    pub fn tell(&mut self) -> Option<u32> {
        let is_due = self.owed >= TOLD_AT;
        is_due.then(|| u32::try_from(std::mem::take(&mut self.owed)).unwrap_or(u32::MAX))
    }

    /// The other PE is gone. What it sent before can still be taken.
    #[must_use]
    pub fn last(&mut self) -> Self {
        Self { waiting: std::mem::take(&mut self.waiting), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Segment;
    use super::*;

    const fn place(offset: u64) -> Place {
        Place { segment: Segment::Heap, offset }
    }

    #[test]
    fn data_for_a_place_are_taken_in_their_order() {
        let mut eager = Eager::default();
        for (offset, byte) in [(8, 1), (0, 2), (8, 3)] {
            assert_eq!(eager.came(place(offset), &[byte]), Ok(()));
        }
        let mut take = |offset| eager.take(place(offset));
        assert_eq!((take(8), take(8), take(8)), (Some(vec![1]), Some(vec![3]), None));
        assert_eq!((take(0), take(0)), (Some(vec![2]), None));
    }

    #[test]
    fn a_sender_has_room_again_when_it_is_told() {
        let (mut sender, mut receiver) = (Eager::default(), Eager::default());
        for _ in 0..PIECES_MAX {
            assert!(sender.send(1));
            assert_eq!(receiver.came(place(0), &[]), Ok(()));
        }
        assert!(!sender.send(1), "there is no room");
        assert_eq!(receiver.came(place(0), &[]), Err(Breach::Eager(PIECES_MAX)), "a cheat");
        assert_eq!(receiver.tell(), None);
        for _ in 0..TOLD_AT {
            assert_eq!(receiver.take(place(0)), Some(Vec::new()));
            assert_eq!(receiver.came(place(0), &[]), Err(Breach::Eager(PIECES_MAX)), "not told");
        }
        let told = receiver.tell().expect("half of them");
        assert_eq!(sender.taken(told as usize), Ok(()));
        assert!(sender.send(TOLD_AT) && !sender.send(1));
        let cheat = Breach::Taken { pieces: PIECES_MAX + 1, sent: PIECES_MAX };
        assert_eq!(sender.taken(PIECES_MAX + 1), Err(cheat));
    }

    #[test]
    fn what_came_before_the_end_can_be_taken_behind_it() {
        let mut eager = Eager::default();
        assert!(eager.send(PIECES_MAX));
        assert_eq!(eager.came(place(0), &[5]), Ok(()));
        let mut last = eager.last();
        assert_eq!((last.take(place(0)), last.take(place(0))), (Some(vec![5]), None));
    }
}
