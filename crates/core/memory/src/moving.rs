//! The move of memory out of reach of those who mapped it, while threads of this process write.
//!
//! The bytes go to new memory in steps, which then takes the place of the former one at the same
//! addresses. Until then the former memory is the one that counts.
//!
//! # Invariants
//! - Every write through [`Memory::writing`] is in the memory after a move: a write meets either no
//!   move, and no move begins before it ends, or a move, and then goes to both memories.
//! - Writes by address ([`Segment::base`]) are not protected: those between the first step
//!   and the last may be lost.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use weft_sync::fence;

use crate::copy::CopyMode;
use crate::memory::Memory;
use crate::segment::{Segment, SegmentError};

/// Where memory is, and where it goes.
#[derive(Debug)]
pub(crate) struct Backing {
    /// `None` for memory in place.
    pub file: Option<Arc<OwnedFd>>,
    /// How often the memory was moved.
    pub moves: u32,
    pub next: Option<Next>,
    /// How many want it to stay where it is.
    pub stays: usize,
}

/// Keeps memory, and keeps it from moving. It is for those who write to it by address and cannot
/// follow a move, such as a NIC.
#[derive(Debug)]
pub struct Stay {
    memory: Memory,
}

impl Stay {
    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.memory.place().write().stays -= 1;
    }
}

/// Memory, as it was before a write that cannot hold the lock.
#[derive(Clone, Copy, Debug)]
pub struct Watch<'a> {
    memory: &'a Memory,
    word: &'a AtomicU32,
    seen: u32,
}

impl Watch<'_> {
    /// Whether `length` bytes that were written at `offset` meanwhile are in the memory, and will
    /// be. False if the memory was moved: the caller does not know then.
    #[inline]
    #[must_use]
    pub fn keep(self, offset: usize, length: usize) -> bool {
        fence::light(false);
        let still = self.seen & MOVING == 0 && self.word.load(Ordering::Acquire) == self.seen;
        still || self.keep_slowly(offset, length)
    }

    #[cold]
    #[inline(never)]
    fn keep_slowly(self, offset: usize, length: usize) -> bool {
        let place = self.memory.place().write();
        if let Some(next) = &place.next {
            let segment = self.memory.segment();
            segment.copy(offset, &next.segment, offset, length, CopyMode::Plain);
        }
        self.seen >> 1 == place.moves & MOVES_MASK
    }
}

/// Low to high: whether a move is under way, and how often the memory was moved.
const MOVING: u32 = 1;
const MOVES_MASK: u32 = u32::MAX >> 1;

/// The word that [`Memory::watch`] reads. Without the asymmetric fence it always says that a move
/// is under way, so that the lock decides.
pub(crate) fn moving_word(moves: u32, is_moving: bool) -> u32 {
    moves << 1 | if is_moving || !fence::register() { MOVING } else { 0 }
}

/// The memory that a move goes to.
#[derive(Debug)]
pub(crate) struct Next {
    segment: Segment,
    pub file: OwnedFd,
    /// Bytes from the start that were copied.
    copied: usize,
}

/// A move that is under way. At the end of this value it is given up, unless it is over.
#[derive(Debug)]
pub struct Moving {
    memory: Memory,
}

impl Moving {
    /// Copies up to `length` further bytes to the new memory. Behind the last one the new memory
    /// takes the place of the former, and `None` is returned: the move is over.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: the former memory stays.
    pub fn on(self, length: usize) -> Result<Option<Self>, SegmentError> {
        let memory = &self.memory;
        let all = memory.segment().length();
        let mut place = memory.place().write();
        let next = place.next.as_mut().expect("this move is under way");
        let some = length.min(all - next.copied);
        memory.segment().copy(next.copied, &next.segment, next.copied, some, CopyMode::Plain);
        next.copied += some;
        if next.copied < all {
            drop(place);
            return Ok(Some(self));
        }
        // No write of this process is under way: each holds the lock, or finds that it was moved.
        memory.segment().replace(&next.file)?;
        let next = place.next.take().expect("as above");
        place.file = Some(Arc::new(next.file));
        place.moves = place.moves.wrapping_add(1);
        drop(place);
        Ok(None)
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let mut place = self.memory.place().write();
        place.next = None;
        self.memory.moving().store(moving_word(place.moves, false), Ordering::Release);
    }
}

impl Memory {
    /// How often the memory was moved. Wraps.
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.place().read().moves
    }

    /// For writes that cannot hold the lock: taken before them.
    #[inline]
    #[must_use]
    pub fn watch(&self) -> Watch<'_> {
        let word = self.moving();
        Watch { memory: self, word, seen: word.load(Ordering::Acquire) }
    }

    /// Keeps the memory from moving until the value returned has ended.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: a move is under way (EBUSY).
    pub fn stay(&self) -> Result<Stay, SegmentError> {
        let mut place = self.place().write();
        if place.next.is_some() {
            return Err(self.busy());
        }
        place.stays += 1;
        drop(place);
        Ok(Stay { memory: self.clone() })
    }

    fn busy(&self) -> SegmentError {
        let (length, errno) = (self.segment().length(), rustix::io::Errno::BUSY.raw_os_error());
        SegmentError::Os { call: "move", length, errno }
    }

    /// Begins a move. From here on writes of this process go to both memories.
    ///
    /// # Errors
    /// [`SegmentError::Os`]: the system lacks memory, or a move is under way or the memory has to
    /// [stay](Memory::stay) (EBUSY). Nothing has changed then.
    pub fn begin_move(&self) -> Result<Moving, SegmentError> {
        let (segment, file) = self.make_next()?;
        let mut place = self.place().write();
        if place.next.is_some() || place.stays > 0 {
            return Err(self.busy());
        }
        place.next = Some(Next { segment, file, copied: 0 });
        self.moving().store(moving_word(place.moves, true), Ordering::Relaxed);
        // A write that did not find the memory moving (`keep`) came before this, and so before the
        // first copy.
        fence::heavy();
        Ok(Moving { memory: self.clone() })
    }

    /// Calls `write`, which writes to `length` bytes of the memory from `offset` on and to nothing
    /// else. A move neither loses the bytes nor waits for long.
    #[inline]
    pub fn writing<R>(&self, offset: usize, length: usize, write: impl FnOnce(&Segment) -> R) -> R {
        let place = self.place().read();
        if place.next.is_none() {
            return write(self.segment());
        }
        drop(place);
        // Alone, so that writes to the same bytes come in the same order to both memories.
        let place = self.place().write();
        let result = write(self.segment());
        if let Some(next) = &place.next {
            self.segment().copy(offset, &next.segment, offset, length, CopyMode::Plain);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryOptions;
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;

    const PAGE: usize = 4096;

    fn file_of(memory: &Memory) -> Arc<OwnedFd> {
        memory.file().expect("a memfd holds it")
    }

    fn move_away(memory: &Memory) {
        let mut moving = Some(memory.begin_move().expect("memory"));
        while let Some(under_way) = moving {
            moving = under_way.on(PAGE).expect("memory");
        }
    }

    #[test]
    fn memory_that_has_to_stay_does_not_move() {
        let memory = Memory::fresh(MemoryOptions::bytes(PAGE)).expect("memory");
        let (one, other) = (memory.stay().expect("still"), memory.stay().expect("still"));
        assert!(one.memory().is(&memory));
        drop(one);
        assert!(memory.begin_move().is_err() && !memory.may_move());
        drop(other);
        assert!(memory.may_move());
        let moving = memory.begin_move().expect("nobody wants it to stay");
        assert!(memory.stay().is_err(), "it moves");
        drop(moving);
        assert!(memory.stay().is_ok());
    }

    #[test]
    fn a_write_during_a_move_is_there_on_either_side_of_the_copy() {
        let memory = Memory::fresh(MemoryOptions::bytes(4 * PAGE)).expect("memory");
        let old = Segment::open(file_of(&memory).as_fd(), 4 * PAGE, true).expect("sealed");
        memory.segment().write(3 * PAGE + 1, b"kept", CopyMode::Plain);
        let moving = memory.begin_move().expect("memory");
        assert!(memory.begin_move().is_err(), "one move at a time");
        let moving = moving.on(2 * PAGE).expect("memory").expect("it is under way");
        for offset in [8, 3 * PAGE + 8] {
            memory.writing(offset, 4, |segment| segment.write(offset, b"live", CopyMode::Plain));
        }
        let mut seen = [0; 4];
        old.read(8, &mut seen);
        assert_eq!(&seen, b"live", "until the end the former memory counts");
        assert!(moving.on(usize::MAX).expect("memory").is_none());
        old.write(8, b"late", CopyMode::Plain);
        let new = Segment::open(file_of(&memory).as_fd(), 4 * PAGE, false).expect("sealed");
        for (offset, expected) in [(8, b"live"), (3 * PAGE + 8, b"live"), (3 * PAGE + 1, b"kept")] {
            memory.segment().read(offset, &mut seen);
            assert_eq!(&seen, expected);
            new.read(offset, &mut seen);
            assert_eq!(&seen, expected);
        }
        assert_eq!(memory.moves(), 1);
    }

    #[test]
    fn a_move_that_is_given_up_leaves_the_memory_where_it_was() {
        let memory = Memory::fresh(MemoryOptions::bytes(2 * PAGE)).expect("memory");
        let file = file_of(&memory);
        drop(memory.begin_move().expect("memory").on(PAGE).expect("memory"));
        assert!(Arc::ptr_eq(&file_of(&memory), &file) && memory.moves() == 0);
        move_away(&memory);
        assert_eq!(memory.moves(), 1);
    }

    #[test]
    fn a_write_without_the_lock_is_kept_or_not_known() {
        let memory = Memory::fresh(MemoryOptions::bytes(2 * PAGE)).expect("memory");
        let write = |bytes: &[u8]| memory.segment().write(16, bytes, CopyMode::Plain);
        let before = memory.watch();
        write(b"one!");
        assert!(before.keep(16, 4));
        let moving = memory.begin_move().expect("memory");
        let moving = moving.on(PAGE).expect("memory").expect("it is under way");
        write(b"two!");
        assert!(before.keep(16, 4), "the move is under way");
        let during = memory.watch();
        write(b"tri!");
        assert!(during.keep(16, 4));
        assert!(moving.on(PAGE).expect("memory").is_none());
        let mut seen = [0; 4];
        memory.segment().read(16, &mut seen);
        assert_eq!(&seen, b"tri!");
        assert!(!before.keep(16, 4) && !during.keep(16, 4), "it was moved");
        assert!(memory.watch().keep(16, 4));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "tests own their threads")]
    fn threads_that_write_lose_nothing_to_moves() {
        let memory = Memory::fresh(MemoryOptions::bytes(4 * PAGE)).expect("memory");
        let stop = AtomicBool::new(false);
        let words = [64, 3 * PAGE];
        let last: Vec<u64> = std::thread::scope(|scope| {
            let writers = words.map(|word| {
                let (memory, stop) = (&memory, &stop);
                scope.spawn(move || {
                    let mut value = 0;
                    while !stop.load(Ordering::Relaxed) {
                        value += 1;
                        memory.writing(word, 8, |segment| {
                            segment.word64(word).store(value, Ordering::Release);
                        });
                        let seen = memory.segment().word64(word).load(Ordering::Acquire);
                        assert_eq!(seen, value, "a move took a write back");
                    }
                    value
                })
            });
            for _ in 0..200 {
                move_away(&memory);
            }
            stop.store(true, Ordering::Relaxed);
            writers.map(|writer| writer.join().expect("no panic")).to_vec()
        });
        let new = Segment::open(file_of(&memory).as_fd(), 4 * PAGE, false).expect("sealed");
        for (word, value) in words.into_iter().zip(last) {
            assert_eq!(new.word64(word).load(Ordering::Acquire), value);
        }
        assert_eq!(memory.moves(), 200);
    }
}
