//! Memory for bytes that a put captures, and for those that a window reads.
//!
//! A few small pieces are registered once. What does not fit gets memory of its own, which is kept
//! for the next one: to make and register a megabyte takes longer than to move it.

use weft_libfabric::{Error, Registration, Rights};
use weft_memory::{CopyMode, Memory, MemoryOptions};

use crate::nic::Nic;
use crate::region::OfiRegion;

/// Bytes of a small piece.
const SMALL_BYTES: usize = 4096;
/// The number of small pieces.
const SMALL_PIECES: usize = 64;

/// Bytes of memory of its own that is kept for later.
const SPARE_BYTES_MAX: usize = 64 << 20;

/// Memory that an operation holds until the NIC is done with it.
#[derive(Debug)]
pub(super) enum HeldMemory {
    /// A region of the program, which nobody may close meanwhile.
    Region(#[allow(dead_code, reason = "holding it is its use")] OfiRegion),
    /// A small piece.
    Small(usize),
    /// Memory of its own.
    Own(Memory, Registration),
    /// Nothing: there are no bytes.
    Nothing,
}

/// The small pieces.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    /// Their memory, once it was needed.
    memory: Option<(Memory, Registration)>,
    free: Vec<usize>,
    /// Memory that was of its own, and nobody uses.
    spare: Vec<(Memory, Registration)>,
}

impl Bounce {
    /// Memory for `length` bytes, and where the NIC finds it.
    pub fn take<N: Nic>(
        &mut self,
        nic: &mut N,
        length: usize,
    ) -> Result<(HeldMemory, Registration, usize), Error> {
        if length == 0 {
            return Ok((HeldMemory::Nothing, Registration(u64::MAX), 0));
        }
        if length <= SMALL_BYTES {
            let registration = match &self.memory {
                Some((_, registration)) => *registration,
                None => {
                    let (memory, registration) = registered(nic, SMALL_BYTES * SMALL_PIECES)?;
                    self.memory = Some((memory, registration));
                    self.free = (0..SMALL_PIECES).collect();
                    registration
                }
            };
            if let Some(piece) = self.free.pop() {
                return Ok((HeldMemory::Small(piece), registration, piece * SMALL_BYTES));
            }
        }
        let bytes = length.next_power_of_two();
        let is_it = |(memory, _): &(Memory, Registration)| memory.segment().length() == bytes;
        let spare = self.spare.iter().position(is_it).map(|place| self.spare.swap_remove(place));
        let (memory, registration) = match spare {
            Some(spare) => spare,
            None => registered(nic, bytes)?,
        };
        Ok((HeldMemory::Own(memory, registration), registration, 0))
    }

    /// Copies bytes into memory that was taken for them.
    pub fn write(&self, kept: &HeldMemory, bytes: &[u8]) {
        if let Some((memory, start)) = self.place(kept) {
            memory.segment().write(start, bytes, CopyMode::Plain);
        }
    }

    /// The first `length` bytes of memory that was taken for them.
    pub fn read(&self, kept: &HeldMemory, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        if let Some((memory, start)) = self.place(kept) {
            memory.segment().read(start, &mut bytes);
        }
        bytes
    }

    fn place<'a>(&'a self, kept: &'a HeldMemory) -> Option<(&'a Memory, usize)> {
        match kept {
            HeldMemory::Small(piece) => {
                self.memory.as_ref().map(|(memory, _)| (memory, piece * SMALL_BYTES))
            }
            HeldMemory::Own(memory, _) => Some((memory, 0)),
            HeldMemory::Region(_) | HeldMemory::Nothing => None,
        }
    }

    /// Gives memory back that the NIC is done with.
    pub fn give_back<N: Nic>(&mut self, nic: &mut N, kept: HeldMemory) {
        match kept {
            HeldMemory::Small(piece) => self.free.push(piece),
            HeldMemory::Own(memory, registration) => {
                let spare = self.spare.iter().map(|(memory, _)| memory.segment().length());
                if spare.sum::<usize>() + memory.segment().length() <= SPARE_BYTES_MAX {
                    self.spare.push((memory, registration));
                } else {
                    nic.deregister(registration, true);
                }
            }
            HeldMemory::Region(_) | HeldMemory::Nothing => {}
        }
    }
}

fn registered<N: Nic>(nic: &mut N, length: usize) -> Result<(Memory, Registration), Error> {
    let memory = Memory::fresh(MemoryOptions::bytes(length))
        .map_err(|error| Error::Memory(error.to_string()))?;
    let (registration, _) = nic.register((&memory, 0, length), Rights::default())?;
    Ok((memory, registration))
}
