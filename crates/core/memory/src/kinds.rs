//! Memory of each kind, for tests of transports.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::fs::MemfdFlags;

use crate::{CopyMode, Memory, MemoryOptions};

/// The kinds of memory that a program can register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Made to be registered.
    Fresh,
    /// Of a descriptor that somebody else made.
    Descriptor,
    /// Existing, with its pages replaced by shared ones.
    Adopted,
    /// Existing, and left as it is.
    InPlace,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Fresh, Self::Descriptor, Self::Adopted, Self::InPlace];

    /// Memory of this kind with these bytes. What exists already is never freed, as static data of
    /// a program.
    ///
    /// # Panics
    /// When the memory cannot be had.
    #[must_use]
    pub fn memory(self, bytes: &[u8]) -> Memory {
        let length = bytes.len();
        let memory = match self {
            Self::Fresh => Memory::fresh(MemoryOptions::bytes(length).populate()).expect("memory"),
            Self::Descriptor => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file = rustix::fs::memfd_create("theirs", flags).expect("memory");
                rustix::fs::ftruncate(&file, length as u64).expect("fresh");
                rustix::io::pwrite(&file, bytes, 0).expect("room");
                return Memory::from_descriptor(file.as_fd()).expect("it can be sealed");
            }
            Self::Adopted => {
                let page = rustix::param::page_size();
                let data = Box::leak(vec![0; length + page].into_boxed_slice());
                let skip = data.as_ptr().addr().next_multiple_of(page) - data.as_ptr().addr();
                let data = &mut data[skip..skip + length];
                data.copy_from_slice(bytes);
                // SAFETY: nobody else has the memory, which is never freed, and the only
                // reference to it ends here.
                let adopted = unsafe { Memory::adopt(NonNull::from(&mut data[0]), length) };
                return adopted.expect("whole pages");
            }
            Self::InPlace => {
                // Not whole pages.
                let words = vec![0_u64; length / 8 + 2].leak();
                let start = NonNull::from(&mut words[1]).cast();
                // SAFETY: nobody else has these words, which are never freed, and the only
                // reference to them ends here.
                unsafe { Memory::in_place(start, length) }.expect("some bytes")
            }
        };
        memory.segment().write(0, bytes, CopyMode::Plain);
        memory
    }
}

/// The bytes of memory, as the program that has it sees them.
#[must_use]
pub fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.segment().length()];
    memory.segment().read(0, &mut bytes);
    bytes
}
