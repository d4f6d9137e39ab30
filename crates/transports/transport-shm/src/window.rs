//! A window: a peer's region, mapped into this process (EXTOLL-THESIS#3.2.4).

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use weft_fabric::{Addressable, Command, HostWindow, Window, WindowError, Word};
use weft_memory::{CopyMode, Reservation, SegmentError};

use crate::address_vector::StandingWord;
use crate::door;
use crate::memory::{Mapped, wrong};
use crate::registers::{Registers, StampWord};

/// A mapped region of a peer. Every access checks that the key is still in force and the memory
/// where it was. A window ends when the memory is moved: a further one shows where it is then.
#[derive(Debug)]
pub struct ShmWindow {
    mapped: Mapped,
    registers: Arc<Registers>,
    slot: u16,
    standing: Arc<StandingWord>,
}

impl ShmWindow {
    pub(crate) fn new(
        mapped: Mapped,
        registers: Arc<Registers>,
        slot: u16,
        standing: Arc<StandingWord>,
    ) -> Self {
        Self { mapped, registers, slot, standing }
    }

    #[inline]
    fn word(&self) -> &StampWord {
        self.registers.stamp_word(self.slot)
    }

    #[inline]
    fn check(&self, command: Command, offset: u64, length: u64) -> Result<usize, WindowError> {
        self.check_alive()?;
        self.mapped.check(command, offset, length)
    }

    #[inline]
    fn check_alive(&self) -> Result<(), WindowError> {
        if !self.standing.is_there() {
            return Err(self.out_of_reach());
        }
        if !self.mapped.serves(self.word()) {
            return Err(WindowError::InvalidKey);
        }
        Ok(())
    }

    /// Why the peer is not there.
    #[cold]
    fn out_of_reach(&self) -> WindowError {
        if self.standing.is_down() { WindowError::PeerDown } else { WindowError::WouldBlock }
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

    #[inline]
    fn load_word<W: Word>(&self, offset: u64) -> Result<W, WindowError> {
        self.check_alive()?;
        let needed = (Command::Get, Command::Get.access());
        let start = self.mapped.check_word(needed, offset, u64::from(W::BYTES))?;
        door::before();
        let word = W::of_value(self.mapped.segment.load_word(start, W::BYTES.into()));
        door::behind();
        self.mapped.confirm(self.word())?;
        Ok(word)
    }

    #[inline]
    fn store_word<W: Word>(&self, offset: u64, word: W) -> Result<(), WindowError> {
        self.check_alive()?;
        let needed = (Command::Put, Command::Put.access());
        let start = self.mapped.check_word(needed, offset, u64::from(W::BYTES))?;
        door::before();
        self.mapped.segment.store_word(start, W::BYTES.into(), word.value());
        door::behind();
        self.mapped.confirm(self.word())
    }
}

impl Addressable for ShmWindow {
    fn base(&self) -> NonNull<u8> {
        self.mapped.segment.base().map_addr(|base| base.saturating_add(self.mapped.start))
    }

    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let start = self.check(Command::Put, offset, length).map_err(wrong)?;
        let length = usize::try_from(length).unwrap_or(0);
        door::before();
        let filled = self.mapped.segment.fill(head, start, length, source, position)?;
        door::behind();
        self.confirm().map_err(wrong)?;
        Ok(filled)
    }

    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let start = self.check(Command::Get, offset, length).map_err(wrong)?;
        let length = usize::try_from(length).unwrap_or(0);
        door::before();
        let poured = self.mapped.segment.pour(head, start, length, target, position)?;
        door::behind();
        self.confirm().map_err(wrong)?;
        Ok(poured)
    }
}

impl HostWindow for ShmWindow {
    type Reservation = Reservation;

    fn at(&self, reservation: &Reservation, offset: usize) -> io::Result<Self> {
        let Mapped { start, ref segment, .. } = self.mapped;
        // The length was checked against mapped memory, so it fits a usize.
        let length = usize::try_from(self.mapped.length).unwrap_or(0);
        let placed =
            segment.place(start, length, reservation, offset).map_err(|error| match error {
                SegmentError::Os { errno, .. } => io::Error::from_raw_os_error(errno),
                misplaced => wrong(misplaced),
            })?;
        let start = start % rustix::param::page_size();
        let mapped = Mapped { segment: Arc::new(placed), start, ..self.mapped.clone() };
        let (registers, standing) = (Arc::clone(&self.registers), Arc::clone(&self.standing));
        Ok(Self { mapped, registers, slot: self.slot, standing })
    }

    #[inline]
    fn confirm(&self) -> Result<(), WindowError> {
        if !self.standing.is_there() {
            return Err(self.out_of_reach());
        }
        self.mapped.confirm(self.word())
    }
}
