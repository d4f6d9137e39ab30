//! Pools of blocks: memory that one end registers and grants once, and whose blocks go to and fro.
//!
//! One end fills the blocks of a pool, the other one uses what is in them: *filler* and *user*.
//! With [`Access::WRITE`] the owner of the memory is the user, and its peer fills by put. With
//! [`Access::READ`] the owner fills, and its peer gets.
//!
//! Invariant: at each end a block has one state, and both ends never have it at a time.

use std::collections::VecDeque;

use weft_fabric::{Access, RemoteKey};

use crate::error::{BlockError, Offence};
use crate::event::Shape;

/// Where a block is, as one end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At the filler, which does not use it.
    Idle,
    /// At this end, in the hands of its program.
    Taken,
    /// At this end, amid a put or get.
    Moving,
    /// At the other end.
    There,
}

/// The memory of a pool, with its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory<R> {
    /// This end's: the region, and its key, once it is granted.
    Own { region: R, key: Option<RemoteKey> },
    /// The peer's.
    Lent { key: RemoteKey },
}

/// A pool at one of its ends. `R` is the region of the transport.
#[derive(Debug)]
pub(crate) struct Pool<R> {
    pub shape: Shape,
    pub memory: Memory<R>,
    places: Vec<Place>,
    idle: VecDeque<u32>,
}

impl<R> Pool<R> {
    pub fn new(shape: Shape, memory: Memory<R>) -> Self {
        let count = index(shape.blocks);
        let mut pool =
            Self { shape, memory, places: vec![Place::There; count], idle: VecDeque::new() };
        if pool.fills() {
            pool.places.fill(Place::Idle);
            pool.idle.extend(0..shape.blocks);
        }
        pool
    }

    /// Whether this end fills the blocks.
    pub fn fills(&self) -> bool {
        let is_own = matches!(self.memory, Memory::Own { .. });
        is_own == (self.shape.access == Access::READ)
    }

    /// Whether both ends know the pool.
    pub const fn is_told(&self) -> bool {
        !matches!(self.memory, Memory::Own { key: None, .. })
    }

    /// Takes an idle block; `None` until one comes back.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.idle.pop_front()?;
        self.places[index(block)] = Place::Taken;
        Some(block)
    }

    /// The key of the peer's memory, for a block that is taken and moves in the direction of
    /// `access`.
    pub fn of_peer(&self, block: u32, access: Access) -> Result<RemoteKey, BlockError> {
        let Memory::Lent { key } = &self.memory else { return Err(BlockError::Direction) };
        if !self.shape.access.contains(access) {
            return Err(BlockError::Direction);
        }
        self.check(block, Place::Taken)?;
        Ok(*key)
    }

    /// Checks a range of a block.
    pub fn check_range(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        let block = self.shape.block_bytes;
        match offset.checked_add(length) {
            Some(end) if end <= u64::from(block) => Ok(()),
            _ => Err(BlockError::OutOfBounds { offset, length, block }),
        }
    }

    /// An operation on a block that is taken has begun.
    pub fn begin(&mut self, block: u32) {
        self.places[index(block)] = Place::Moving;
    }

    /// The operation has ended. The block is the program's again.
    pub fn end(&mut self, block: u32) {
        self.places[index(block)] = Place::Taken;
    }

    /// The filler gives a block to the other end.
    pub fn pass(&mut self, block: u32) -> Result<(), BlockError> {
        if !self.fills() {
            return Err(BlockError::Direction);
        }
        self.check(block, Place::Taken)?;
        self.places[index(block)] = Place::There;
        Ok(())
    }

    /// Gives a block back that is taken. True if the other end has to be told.
    pub fn free(&mut self, block: u32) -> Result<bool, BlockError> {
        self.check(block, Place::Taken)?;
        let fills = self.fills();
        self.places[index(block)] = if fills { Place::Idle } else { Place::There };
        if fills {
            self.idle.push_back(block);
        }
        Ok(!fills)
    }

    fn check(&self, block: u32, wanted: Place) -> Result<(), BlockError> {
        match self.places.get(index(block)) {
            None => Err(BlockError::Unknown),
            Some(place) if *place == wanted => Ok(()),
            Some(_) => Err(BlockError::NotHere),
        }
    }

    /// The peer passed a block with so many bytes in it.
    pub fn passed(&mut self, pool: u32, block: u32, length: u32) -> Result<(), Offence> {
        if length > self.shape.block_bytes {
            let maximum = u64::from(self.shape.block_bytes);
            return Err(Offence::TooMany { what: "bytes in a block", maximum });
        }
        self.comes((pool, block), !self.fills(), Place::Taken)
    }

    /// The peer freed a block.
    pub fn freed(&mut self, pool: u32, block: u32) -> Result<(), Offence> {
        self.comes((pool, block), self.fills(), Place::Idle)?;
        self.idle.push_back(block);
        Ok(())
    }

    fn comes(
        &mut self,
        (pool, block): (u32, u32),
        is_right: bool,
        place: Place,
    ) -> Result<(), Offence> {
        match self.places.get_mut(index(block)) {
            Some(there @ Place::There) if is_right => *there = place,
            _ => return Err(Offence::NotItsBlock { pool, block }),
        }
        Ok(())
    }
}

pub(crate) fn index(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit an index")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(access: Access) -> [Pool<()>; 2] {
        let shape = Shape { block_bytes: 64, blocks: 2, access };
        let own = Memory::Own { region: (), key: None };
        [Pool::new(shape, own), Pool::new(shape, Memory::Lent { key: RemoteKey(1) })]
    }

    #[test]
    fn a_block_goes_to_the_user_and_comes_back() {
        for access in [Access::READ, Access::WRITE] {
            let [own, lent] = pair(access);
            assert_ne!(own.fills(), lent.fills());
            let (mut filler, mut user) = if own.fills() { (own, lent) } else { (lent, own) };
            assert_eq!((filler.take(), filler.take(), filler.take()), (Some(0), Some(1), None));
            assert_eq!(filler.pass(1), Ok(()));
            assert_eq!(filler.pass(1), Err(BlockError::NotHere));
            assert_eq!(user.passed(7, 1, 64), Ok(()));
            assert_eq!(user.take(), None, "a user fills nothing");
            assert_eq!(user.free(1), Ok(true));
            assert_eq!(filler.freed(7, 1), Ok(()));
            assert_eq!(filler.take(), Some(1));
            assert_eq!(filler.free(0), Ok(false));
            assert_eq!(filler.take(), Some(0));
        }
    }

    #[test]
    fn a_block_that_a_peer_does_not_have_is_an_offence() {
        let [mut own, mut lent] = pair(Access::WRITE);
        let offence = |block| Err(Offence::NotItsBlock { pool: 7, block });
        assert_eq!(own.passed(7, 2, 0), offence(2));
        assert_eq!(own.passed(7, 0, 1), Ok(()));
        assert_eq!(own.passed(7, 0, 1), offence(0));
        assert_eq!(own.freed(7, 1), offence(1), "this end uses the blocks");
        assert_eq!(lent.passed(7, 0, 1), offence(0));
        assert_eq!(lent.freed(7, 0), offence(0), "it is here");
        assert!(matches!(own.passed(7, 1, 65), Err(Offence::TooMany { .. })));
    }

    #[test]
    fn blocks_move_in_the_direction_of_their_right() {
        let [own, mut lent] = pair(Access::WRITE);
        assert_eq!(lent.of_peer(0, Access::WRITE), Err(BlockError::NotHere));
        lent.take();
        assert_eq!(lent.of_peer(0, Access::WRITE), Ok(RemoteKey(1)));
        assert_eq!(lent.of_peer(0, Access::READ), Err(BlockError::Direction));
        assert_eq!(own.of_peer(0, Access::WRITE), Err(BlockError::Direction));
        lent.begin(0);
        assert_eq!(lent.pass(0), Err(BlockError::NotHere));
        lent.end(0);
        assert_eq!(lent.pass(0), Ok(()));
        assert!(lent.check_range(60, 4).is_ok() && lent.check_range(60, 5).is_err());
        assert!(lent.check_range(u64::MAX, 2).is_err());
    }
}
