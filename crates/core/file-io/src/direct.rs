//! O_DIRECT: files whose bytes do not go through the page cache.

use std::os::fd::AsFd;

/// The multiples that offsets and lengths have to be, for reads and writes of a file opened with
/// `O_DIRECT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// Of the address in memory.
    pub memory: usize,
    /// Of the place in the file and the number of bytes.
    pub offset: usize,
}

/// The alignment of a file (`STATX_DIOALIGN`); 4,096 for both where the kernel does not tell.
/// `None` if the file cannot be used so, as on tmpfs.
#[must_use]
pub fn alignment_of(file: impl AsFd) -> Option<Alignment> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let wanted = StatxFlags::DIOALIGN;
    let Ok(about) = statx(file, c"", AtFlags::EMPTY_PATH, wanted) else {
        return Some(Alignment { memory: 4_096, offset: 4_096 });
    };
    if !StatxFlags::from_bits_retain(about.stx_mask).contains(wanted) {
        return Some(Alignment { memory: 4_096, offset: 4_096 });
    }
    let memory = usize::try_from(about.stx_dio_mem_align).ok()?;
    let offset = usize::try_from(about.stx_dio_offset_align).ok()?;
    (memory > 0 && offset > 0).then_some(Alignment { memory, offset })
}
