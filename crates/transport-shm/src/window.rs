//! A window: a peer's region, mapped into this process (003 section 3.2.4).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_fabric::{Command, Window, WindowError};
use weft_memory::CopyMode;

use crate::memory::Mapped;
use crate::registers::Registers;

/// A mapped region of a peer. Every access checks that the key is still in force.
#[derive(Debug)]
pub struct ShmWindow {
    mapped: Mapped,
    registers: Arc<Registers>,
    slot: u16,
    down: Arc<AtomicBool>,
    full_fences: bool,
}

impl ShmWindow {
    pub(crate) fn new(
        mapped: Mapped,
        registers: Arc<Registers>,
        slot: u16,
        down: Arc<AtomicBool>,
        full_fences: bool,
    ) -> Self {
        Self { mapped, registers, slot, down, full_fences }
    }

    #[inline]
    fn check(&self, command: Command, offset: u64, length: u64) -> Result<usize, WindowError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(WindowError::PeerDown);
        }
        if self.registers.stamp(self.slot) != self.mapped.stamp {
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
        self.mapped.segment.read(start, target);
        Ok(())
    }

    #[inline]
    fn store(&self, offset: u64, source: &[u8]) -> Result<(), WindowError> {
        let start = self.check(Command::Put, offset, source.len() as u64)?;
        self.mapped.segment.write(start, source, CopyMode::Plain);
        self.mapped.confirm(self.registers.stamp_word(self.slot), self.full_fences)
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
        Ok(self.mapped.segment.pour(head, start, length, target)?)
    }
}
