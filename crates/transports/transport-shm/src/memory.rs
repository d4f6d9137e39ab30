//! Regions, the keys that an endpoint granted, and the peers' keys that it resolved.
//!
//! A key consists of the owner's VPID, a slot of the owner and the generation of that slot (low to
//! high: 32 bits of generation, 16 of slot, 16 of VPID). The key is valid while the owner's
//! register segment shows its generation in its slot. Every initiator checks that before each
//! operation.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_fabric::rules::is_inside;
use weft_fabric::{Access, Addressable, Command, OperationError, Region, RegionError, RemoteKey};
use weft_memory::{CopyMode, Memory, Segment};
use weft_sync::fence;

use crate::registers::{KEYS_MAX, Stamp, StampWord};
use crate::sharing::Sharing;

/// Registered memory of an endpoint. Clones share the memory.
#[derive(Clone, Debug)]
pub struct ShmRegion {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: Memory,
    sharing: Arc<Sharing>,
    /// The region counter of the endpoint. Its address also identifies the endpoint.
    count: Arc<AtomicUsize>,
}

impl ShmRegion {
    /// A region of the endpoint whose counter is `count`.
    pub(crate) fn new(memory: Memory, count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        let (sharing, count) = (memory.kept(), Arc::clone(count));
        Self { inner: Arc::new(Inner { memory, sharing, count }) }
    }

    /// Whether the region belongs to the endpoint whose counter is `count`.
    pub(crate) fn belongs_to(&self, count: &Arc<AtomicUsize>) -> bool {
        Arc::ptr_eq(&self.inner.count, count)
    }

    /// The memory, which other regions may have, too.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// The state that the endpoints share which registered the memory.
    pub(crate) fn sharing(&self) -> &Sharing {
        &self.inner.sharing
    }

    /// The mapped memory.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        self.inner.memory.segment()
    }

    /// The start of the range as an index, when the range lies inside the region.
    #[inline]
    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<usize, RegionError> {
        let region = self.length();
        inside(offset, length, region).ok_or(RegionError::OutOfBounds { offset, length, region })
    }

    fn check_word(&self, offset: u64) -> Result<usize, RegionError> {
        let start = self.check(offset, 8)?;
        // Memory in place may begin anywhere, so the address counts.
        if self.segment().is_aligned(start, 8) {
            Ok(start)
        } else {
            Err(RegionError::Misaligned { offset, alignment: 8 })
        }
    }

    /// The address of a byte in this process.
    pub(crate) fn address_of(&self, offset: u64) -> u64 {
        (self.segment().base().addr().get() as u64).wrapping_add(offset)
    }
}

/// The start of a range as an index, when the range lies inside `region` bytes of mapped memory.
#[inline]
pub(crate) fn inside(offset: u64, length: u64, region: u64) -> Option<usize> {
    if is_inside(offset, length, region) { usize::try_from(offset).ok() } else { None }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Region for ShmRegion {
    fn length(&self) -> u64 {
        self.segment().length() as u64
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError> {
        let start = self.check(offset, target.len() as u64)?;
        self.segment().read(start, target);
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError> {
        let start = self.check(offset, source.len() as u64)?;
        let write = |segment: &Segment| segment.write(start, source, CopyMode::Plain);
        self.memory().writing(start, source.len(), write);
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64, RegionError> {
        let start = self.check_word(offset)?;
        Ok(self.segment().word64(start).load(Ordering::Acquire))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        let start = self.check_word(offset)?;
        let store = |segment: &Segment| segment.word64(start).store(value, Ordering::Release);
        self.memory().writing(start, 8, store);
        Ok(())
    }
}

impl Addressable for ShmRegion {
    fn base(&self) -> NonNull<u8> {
        self.segment().base()
    }

    fn fill(
        &self,
        head: &mut [u8],
        offset: u64,
        length: u64,
        source: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let start = self.check(offset, length).map_err(wrong)?;
        let length = usize::try_from(length).unwrap_or(0);
        self.memory().fill(head, start, length, source, position)
    }

    fn pour(
        &self,
        head: &[u8],
        offset: u64,
        length: u64,
        target: BorrowedFd<'_>,
        position: Option<u64>,
    ) -> io::Result<usize> {
        let start = self.check(offset, length).map_err(wrong)?;
        let length = usize::try_from(length).unwrap_or(0);
        Ok(self.segment().pour(head, start, length, target, position)?)
    }
}

/// The error of a copy by the kernel whose range is wrong.
pub(crate) fn wrong(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// The parts of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyParts {
    pub vpid: u16,
    pub slot: u16,
    pub generation: u32,
}

impl KeyParts {
    #[inline]
    pub const fn of(key: RemoteKey) -> Self {
        let [g0, g1, g2, g3, s0, s1, v0, v1] = key.0.to_le_bytes();
        Self {
            vpid: u16::from_le_bytes([v0, v1]),
            slot: u16::from_le_bytes([s0, s1]),
            generation: u32::from_le_bytes([g0, g1, g2, g3]),
        }
    }

    pub fn key(self) -> RemoteKey {
        let low = u64::from(self.generation) | u64::from(self.slot) << 32;
        RemoteKey(low | u64::from(self.vpid) << 48)
    }
}

/// A peer's key after it was resolved.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The key.
    pub key: RemoteKey,
    /// The owner's stamp, as read before the key was resolved.
    pub stamp: Stamp,
    /// The stamp that the fast paths look for: the same one, or one that never appears if this
    /// process or the owner's lacks the asymmetric fence.
    pub looked_for: Stamp,
    pub access: Access,
    /// Start and length of the key's range in the memory. The range lies inside it.
    pub start: usize,
    pub length: u64,
    pub segment: Arc<Segment>,
}

impl Mapped {
    /// Whether an operation that [`Registers::begin_put`] announced may use the memory: the key is
    /// in force, and the memory is where it was when it was mapped.
    ///
    /// [`Registers::begin_put`]: crate::registers::Registers::begin_put
    #[inline]
    #[must_use]
    pub fn serves(&self, word: &StampWord) -> bool {
        word.stamp() == self.looked_for || self.serves_fenced(word)
    }

    /// As [`Mapped::serves`], where no fence of the owner reaches this process.
    #[cold]
    #[inline(never)]
    pub fn serves_fenced(&self, word: &StampWord) -> bool {
        if self.looked_for == self.stamp {
            return false;
        }
        // Orders the announcement before the look.
        fence::light(true);
        word.stamp() == self.stamp
    }

    /// Whether what was written to this memory is in the region, and what was read from it was.
    ///
    /// The owner of a key that is revoked, or of memory that moves, changes the stamp, executes a
    /// heavy fence, and takes the memory out of reach only then. A move that is closing has not
    /// copied any byte yet.
    ///
    /// # Errors
    /// [`OperationError::InvalidKey`], [`OperationError::Interrupted`].
    #[inline]
    pub fn confirm(&self, word: &StampWord) -> Result<(), OperationError> {
        if self.is_confirmed(word) { Ok(()) } else { self.confirm_slowly(word) }
    }

    /// Whether [`Mapped::confirm`] is sure to succeed, at once. A result of it takes memory, whose
    /// stores the next atomic of the processor would wait for.
    #[inline]
    #[must_use]
    pub fn is_confirmed(&self, word: &StampWord) -> bool {
        fence::light(false);
        word.stamp() == self.looked_for
    }

    /// As [`Mapped::confirm`], where it did not succeed at once.
    ///
    /// # Errors
    /// As [`Mapped::confirm`].
    #[cold]
    #[inline(never)]
    pub fn confirm_slowly(&self, word: &StampWord) -> Result<(), OperationError> {
        fence::light(self.looked_for != self.stamp);
        let now = word.stamp();
        if now == self.stamp || now.is_closing(self.stamp) {
            return Ok(());
        }
        Err(if now.generation() == self.stamp.generation() {
            OperationError::Interrupted
        } else {
            OperationError::InvalidKey
        })
    }

    /// The start of the range as an index, when the key allows `command` on it.
    #[inline]
    pub fn check(
        &self,
        command: Command,
        offset: u64,
        length: u64,
    ) -> Result<usize, OperationError> {
        self.check_access((command, command.access()), offset, length)
    }

    /// The start of the range as an index, when the key grants `needed` on it.
    #[inline]
    pub fn check_access(
        &self,
        needed: (Command, Access),
        offset: u64,
        length: u64,
    ) -> Result<usize, OperationError> {
        self.access.check(needed, (offset, length), self.length)?;
        // It lies in memory, so that it fits.
        Ok(self.start + usize::try_from(offset).unwrap_or(usize::MAX))
    }

    /// The place of an aligned word of `width` bytes, when the key grants `needed` on it.
    #[inline]
    pub fn check_word(
        &self,
        needed: (Command, Access),
        offset: u64,
        width: u64,
    ) -> Result<usize, OperationError> {
        let start = self.check_access(needed, offset, width)?;
        // The range of the key may start anywhere, so the place in memory counts.
        if start as u64 & (width - 1) == 0 {
            Ok(start)
        } else {
            Err(OperationError::Misaligned { offset, alignment: width })
        }
    }
}

/// The keys that an endpoint granted.
#[derive(Debug)]
pub struct Grants {
    slots: Vec<Grant>,
    free: Vec<u16>,
    /// The generation of the first key of each slot.
    first: u32,
}

#[derive(Debug)]
pub struct Grant {
    /// The generation of the slot's key, or of its next key.
    pub generation: u32,
    pub state: SlotState,
}

/// The state of a key slot.
#[derive(Debug)]
pub enum SlotState {
    /// The slot has no key.
    Vacant,
    /// The broker was asked to publish the key.
    Asked(Granted),
    /// The key is in force.
    InForce(Granted),
}

/// A grant: the range of a key, its rights, and its audience.
#[derive(Clone, Debug)]
pub struct Granted {
    pub region: ShmRegion,
    /// Start and length of the range in the region, in bytes.
    pub start: u64,
    pub length: u64,
    pub access: Access,
    /// VPID and birth of the only peer that may use the key; `None` for the partition.
    pub audience: Option<(u16, u64)>,
}

impl Grants {
    /// An empty table. `first` is random, so that keys of an earlier endpoint with this VPID are
    /// not valid.
    pub fn new(first: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), first }
    }

    /// How many keys are in force or asked for.
    pub fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a free slot for a key that grants `granted`. Returns the slot and the generation.
    pub fn ask(&mut self, granted: Granted) -> Option<(u16, u32)> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slots = u16::try_from(self.slots.len()).ok();
                let slot = slots.filter(|slot| *slot < KEYS_MAX)?;
                self.slots.push(Grant { generation: self.first, state: SlotState::Vacant });
                slot
            }
        };
        let grant = &mut self.slots[usize::from(slot)];
        grant.state = SlotState::Asked(granted);
        Some((slot, grant.generation))
    }

    /// The key that [`Grants::ask`] reserved is in force from now on. False if it was given up.
    pub fn fill(&mut self, slot: u16, generation: u32) -> bool {
        let Some(grant) = self.slot(slot, generation) else { return false };
        match std::mem::replace(&mut grant.state, SlotState::Vacant) {
            SlotState::Asked(granted) => grant.state = SlotState::InForce(granted),
            other => {
                grant.state = other;
                return false;
            }
        }
        true
    }

    /// Gives up a key that [`Grants::ask`] reserved. Returns what it would have granted.
    pub fn give_up(&mut self, slot: u16, generation: u32) -> Option<Granted> {
        let grant = self.slot(slot, generation)?;
        match std::mem::replace(&mut grant.state, SlotState::Vacant) {
            SlotState::Asked(granted) => {
                grant.generation = generation.wrapping_add(1);
                self.free.push(slot);
                Some(granted)
            }
            other => {
                grant.state = other;
                None
            }
        }
    }

    /// Empties the slot of a key. Returns the next generation of the slot and what the key granted;
    /// `None` when the key is not in force.
    pub fn empty(&mut self, slot: u16, generation: u32) -> Option<(u32, Granted)> {
        let grant = self.slot(slot, generation)?;
        match std::mem::replace(&mut grant.state, SlotState::Vacant) {
            SlotState::InForce(granted) => {
                let next = generation.wrapping_add(1);
                grant.generation = next;
                self.free.push(slot);
                Some((next, granted))
            }
            other => {
                grant.state = other;
                None
            }
        }
    }

    fn slot(&mut self, slot: u16, generation: u32) -> Option<&mut Grant> {
        let grant = self.slots.get_mut(usize::from(slot))?;
        (grant.generation == generation).then_some(grant)
    }

    /// The grant of a key that is in force.
    pub fn in_force(&self, slot: u16, generation: u32) -> Option<&Granted> {
        let grant = self.slots.get(usize::from(slot))?;
        match &grant.state {
            SlotState::InForce(granted) if grant.generation == generation => Some(granted),
            _ => None,
        }
    }

    /// The keys in force: slot, generation and what they grant.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32, &Granted)> {
        (0..).zip(&self.slots).filter_map(|(slot, grant)| match &grant.state {
            SlotState::InForce(granted) => Some((slot, grant.generation, granted)),
            SlotState::Vacant | SlotState::Asked(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_memory::MemoryOptions;

    #[test]
    fn a_key_keeps_its_parts() {
        let parts = KeyParts { vpid: 0xabcd, slot: 0x1234, generation: 0xdead_beef };
        assert_eq!(KeyParts::of(parts.key()), parts);
    }

    #[test]
    fn a_slot_is_reused_with_another_generation() {
        let mut grants = Grants::new(u32::MAX);
        let count = Arc::new(AtomicUsize::new(0));
        let memory = Memory::fresh(MemoryOptions::bytes(4096)).expect("memory");
        let region = ShmRegion::new(memory, &count);
        let (access, audience) = (Access::READ, None);
        let granted = Granted { region, start: 0, length: 4096, access, audience };
        assert_eq!(grants.ask(granted.clone()), Some((0, u32::MAX)));
        assert!(grants.empty(0, u32::MAX).is_none(), "it is not in force yet");
        assert!(grants.fill(0, u32::MAX));
        assert_eq!(grants.ask(granted.clone()), Some((1, u32::MAX)));
        grants.give_up(1, u32::MAX);
        assert!(!grants.fill(1, u32::MAX) && !grants.fill(1, 0));
        assert_eq!(grants.iter().count(), 1);
        assert!(grants.empty(0, 5).is_none());
        assert_eq!(grants.empty(0, u32::MAX).map(|(next, _)| next), Some(0));
        assert!(grants.empty(0, 0).is_none());
        assert_eq!(grants.ask(granted), Some((0, 0)));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn ranges_that_wrap_are_outside() {
        assert_eq!(inside(8, u64::MAX, 16), None);
        assert_eq!(inside(u64::MAX, 2, 16), None);
        assert_eq!(inside(16, 0, 16), Some(16));
        assert_eq!(inside(16, 1, 16), None);
    }
}
