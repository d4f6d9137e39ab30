//! The memory that is measured: fresh, of a descriptor, or there before.

use anyhow::Context;
use rustix::fs::MemfdFlags;
use std::os::fd::AsFd;
use weft_fabric::HostMemory;
use weft_memory::{Memory, Segment};

use crate::arguments::{MemoryKind, MemoryWay, PerfArguments};

/// Registers `length` bytes of memory of the kind that was asked for.
pub fn register<E: HostMemory<Memory = Memory>>(
    endpoint: &mut E,
    arguments: &PerfArguments,
    length: u64,
) -> anyhow::Result<E::Region> {
    let memory = match arguments.memory {
        MemoryKind::Fresh => return Ok(endpoint.register(length)?),
        MemoryKind::File => of_file(length)?,
        MemoryKind::Existing => existing(usize::try_from(length)?, arguments.way)?,
    };
    Ok(endpoint.register_memory(&memory)?)
}

/// Memory of a memfd that the transport did not make.
fn of_file(length: u64) -> anyhow::Result<Memory> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("weft-perf", flags)?;
    rustix::fs::ftruncate(&file, length)?;
    Memory::from_descriptor(file.as_fd()).context("the memory of a memfd")
}

/// Memory of this process that existed before, whole pages of it.
fn existing(length: usize, way: MemoryWay) -> anyhow::Result<Memory> {
    let page = rustix::param::page_size();
    let was_there = Segment::anonymous(length.next_multiple_of(page))?;
    for offset in (0..length / 8 * 8).step_by(page) {
        was_there.word64(offset).store(1, std::sync::atomic::Ordering::Relaxed);
    }
    match way {
        MemoryWay::Adopt => Memory::of_segment(was_there).context("memory that was there before"),
        MemoryWay::Kernel => Ok(Memory::kept_in_place(was_there)),
    }
}
