//! A window: a peer's region, mapped into this process (003 section 3.2.4).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_fabric::{Command, Window, WindowError};
use weft_memory::CopyMode;

use crate::door;
use crate::memory::Mapped;
use crate::registers::{Registers, StampWord};

/// A mapped region of a peer. Every access checks that the key is still in force and the memory
/// where it was. A window ends when the memory is moved: a further one shows where it is then.
#[derive(Debug)]
pub struct ShmWindow {
    mapped: Mapped,
    registers: Arc<Registers>,
    slot: u16,
    down: Arc<AtomicBool>,
}

impl ShmWindow {
    pub(crate) fn new(
        mapped: Mapped,
        registers: Arc<Registers>,
        slot: u16,
        down: Arc<AtomicBool>,
    ) -> Self {
        Self { mapped, registers, slot, down }
    }

    #[inline]
    fn word(&self) -> &StampWord {
        self.registers.stamp_word(self.slot)
    }

    #[inline]
    fn check(&self, command: Command, offset: u64, length: u64) -> Result<usize, WindowError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(WindowError::PeerDown);
        }
        if !self.mapped.serves(self.word()) {
            return Err(WindowError::InvalidKey);
        }
        self.mapped.check(command, offset, length)
    }
}

impl Window for ShmWindow {
    fn length(&self) -> u64 {
        self.mapped.length
    }

    #[inline]
    fn load(&self, offset: u64, target: &mut [u8]) -> Result<(), WindowError> {
        let start = self.check(Command::Get, offset, target.len() as u64)?;
        door::before();
        self.mapped.segment.read(start, target);
        door::behind();
        self.mapped.confirm(self.word())
    }

    #[inline]
    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError> {
        let start = self.check(Command::Put, offset, source.len() as u64)?;
        door::before();
        self.mapped.segment.write(start, source, CopyMode::Plain);
        door::behind();
        // Windows belong to threads, so their stores are not announced, and a move does not wait
        // for them: one that stands still until the bytes are copied has failed.
        self.mapped.confirm(self.word())
    }

    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        let wrong = |wrong| io::Error::new(io::ErrorKind::InvalidInput, wrong);
        let start = self.check(Command::Get, offset, length).map_err(wrong)?;
        let length = usize::try_from(length).unwrap_or(0);
        let poured = self.mapped.segment.pour(head, start, length, target)?;
        self.mapped.confirm(self.word()).map_err(wrong)?;
        Ok(poured)
    }
}
