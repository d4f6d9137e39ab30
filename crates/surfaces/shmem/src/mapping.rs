//! The memory of all PEs in one range of addresses.
//!
//! A PE makes a memfd for its heap and control area, and one for its variables. It tells the others
//! the numbers of its descriptors; they open them through `/proc`, where the kernel lets a user's
//! own processes, and check that they are the files that were meant. In the slot of a PE of another
//! host there is a copy of its control area, in memory of this process alone.
//!
//! # Invariants
//! - Slots begin at a multiple of 2 MiB or more, and hold heap, control area and variables in this
//!   order.
//! - Only sealed memory of this user is mapped, at its slot in the reservation.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;
use weft_memory::{Memory, MemoryOptions, Reservation, Segment, SegmentError};
use weft_pgas::control::Control;
use weft_pgas::space::Layout;

use crate::card::{Card, File};
use crate::statics::{Shared, Statics};

/// Slots begin at a multiple of this at least, so that huge pages can hold them.
const ALIGNMENT_MIN: usize = 2 << 20;
/// Slots of large heaps begin at a multiple of up to this, so that parts of them can, too.
const ALIGNMENT_MAX: usize = 64 << 20;

/// Why the memory of a job could not come together.
#[derive(Debug, Error)]
pub enum MappingError {
    /// The heap is larger than the memory of the machine.
    #[error(
        "a symmetric heap of {heap} bytes is more than the {memory} bytes of memory and swap of \
         this host; lower SHMEM_SYMMETRIC_SIZE"
    )]
    TooLarge {
        /// Bytes of the heap.
        heap: usize,
        /// Bytes of the machine.
        memory: u64,
    },
    /// The system refused.
    #[error("{pes} symmetric heaps of {heap} bytes cannot be mapped: {error}; {}", cure(.error))]
    Refused {
        /// Number of PEs.
        pes: usize,
        /// Bytes of a heap.
        heap: usize,
        /// The refusal.
        error: SegmentError,
    },
    /// The memory of a PE cannot be opened.
    #[error(
        "the memory of PE {pe} (process {process}) cannot be opened: {error}; {}",
        cure_of_closed(.error)
    )]
    Closed {
        /// The PE.
        pe: usize,
        /// Its process.
        process: u32,
        /// The refusal.
        error: io::Error,
    },
    /// It is not what the PE told.
    #[error(
        "the memory of PE {pe} (process {process}) {problem}; all PEs of a job belong to one user, \
         and start at the same time"
    )]
    Foreign {
        /// The PE.
        pe: usize,
        /// Its process.
        process: u32,
        /// The fault.
        problem: &'static str,
    },
}

const MORE_FILES: &str = "raise the limit of open files (ulimit -n)";

fn cure(error: &SegmentError) -> &'static str {
    match error {
        SegmentError::Os { errno, .. } if *errno == Errno::MFILE.raw_os_error() => MORE_FILES,
        _ => {
            "lower SHMEM_SYMMETRIC_SIZE, or raise the limits of address space and file size \
             (ulimit -v, -f)"
        }
    }
}

fn cure_of_closed(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(errno) if errno == Errno::MFILE.raw_os_error() => MORE_FILES,
        _ => {
            "look whether it still runs, and whether /proc is mounted and shows the processes of \
             this user"
        }
    }
}

/// The memory of this PE, and where that of the others belongs.
#[derive(Debug)]
pub struct Mapping {
    layout: Layout,
    reservation: Reservation,
    /// Offset of the first slot in the reservation.
    first: usize,
    /// Bytes of a heap and a control area.
    heap_and_control: usize,
    heap: Memory,
    /// The variables as the card tells them.
    statics: Option<File>,
    /// Mapped as long as the process.
    placed: Vec<Segment>,
    /// The copies of control areas, as long.
    shown: Vec<Memory>,
}

impl Mapping {
    /// Makes the memory of this PE in a range for all.
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn make(
        me: usize,
        pes: usize,
        heap: usize,
        statics: &Statics,
    ) -> Result<Self, MappingError> {
        let memory = memory_of_host();
        if heap as u64 > memory {
            return Err(MappingError::TooLarge { heap, memory });
        }
        let refused = |error| MappingError::Refused { pes, heap, error };
        let too_much =
            || refused(SegmentError::Os { call: "mmap", length: usize::MAX, errno: libc::ENOMEM });
        let page = rustix::param::page_size();
        let shared = match statics {
            Statics::Shared(shared) => Some(shared),
            Statics::Private(_) => None,
        };
        let heap_pages = heap.max(1).next_multiple_of(page);
        let heap_and_control = heap_pages + Control::BYTES.next_multiple_of(page);
        let statics_bytes = shared.map_or(0, |shared| shared.bytes);
        // A page without access is behind each slot.
        let slot = heap_and_control.checked_add(statics_bytes + page).ok_or_else(too_much)?;
        let alignment = heap_pages.next_power_of_two().clamp(ALIGNMENT_MIN, ALIGNMENT_MAX);
        let stride = slot.next_multiple_of(alignment);
        let all = stride.checked_mul(pes).and_then(|all| all.checked_add(alignment));
        let reservation = Reservation::reserve(all.ok_or_else(too_much)?).map_err(refused)?;
        let start = reservation.base().addr().get();
        let first = start.next_multiple_of(alignment) - start;
        let own = first + me * stride;
        let options = MemoryOptions::bytes(heap_and_control).huge_pages();
        let memory = Memory::fresh_at(options, &reservation, own).map_err(refused)?;
        let mut placed = Vec::new();
        if let Some(Shared { memory, bytes, .. }) = shared {
            let offset = own + heap_and_control;
            let segment = memory.segment().place(0, *bytes, &reservation, offset);
            placed.push(segment.map_err(refused)?);
        }
        reservation.base().as_ptr().expose_provenance();
        let base = start + first;
        let statics_offset = match shared {
            Some(_) => heap_and_control,
            // A job of one PE finds its variables where they are.
            None => 0_usize.wrapping_sub(base + me * stride),
        };
        let layout = Layout {
            me,
            pes,
            base,
            stride,
            alignment,
            heap_bytes: heap_pages,
            control: heap_pages,
            statics: shared.map_or(0, |shared| shared.start),
            statics_bytes,
            statics_offset,
        };
        let statics = shared.and_then(|shared| file_of(&shared.memory));
        Ok(Self {
            layout,
            reservation,
            first,
            heap_and_control,
            heap: memory,
            statics,
            placed,
            shown: Vec::new(),
        })
    }

    /// The job of one PE without a launcher: its variables lie where they always did.
    pub fn with_own_variables(&mut self, range: std::ops::Range<usize>) {
        let own = self.layout.base + self.layout.me * self.layout.stride;
        self.layout.statics = range.start;
        self.layout.statics_bytes = range.len();
        self.layout.statics_offset = range.start.wrapping_sub(own);
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The files that the others need: of heap and control area, and of the variables.
    ///
    /// # Errors
    /// [`MappingError::Refused`] where the kernel does not tell of the own file.
    pub fn files(&self) -> Result<(File, Option<File>), MappingError> {
        let heap = file_of(&self.heap).ok_or(MappingError::Refused {
            pes: self.layout.pes,
            heap: self.layout.heap_bytes,
            error: SegmentError::NotSealed,
        })?;
        Ok((heap, self.statics))
    }

    /// The own heap and control area.
    pub fn heap(&self) -> &Memory {
        &self.heap
    }

    /// Puts a copy of the control area of a PE of another host into its slot.
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn show(&mut self, pe: usize) -> Result<(), MappingError> {
        let control = self.layout.control;
        let at = self.first + pe * self.layout.stride + control;
        let options = MemoryOptions::bytes(self.heap_and_control - control);
        let copy = Memory::fresh_at(options, &self.reservation, at);
        self.shown.push(copy.map_err(|error| MappingError::Refused {
            pes: self.layout.pes,
            heap: self.layout.heap_bytes,
            error,
        })?);
        Ok(())
    }

    /// Maps the memory of another PE of this host, whose card was compared with the own one.
    ///
    /// # Errors
    /// [`MappingError`].
    pub fn join(&mut self, pe: usize, card: &Card) -> Result<(), MappingError> {
        let slot = self.first + pe * self.layout.stride;
        self.place(pe, card, card.heap, slot)?;
        if let Some(statics) = card.statics {
            self.place(pe, card, statics, slot + self.heap_and_control)?;
        }
        Ok(())
    }

    fn place(&mut self, pe: usize, card: &Card, file: File, at: usize) -> Result<(), MappingError> {
        let process = card.process;
        let closed =
            |error: rustix::io::Errno| MappingError::Closed { pe, process, error: error.into() };
        let foreign = |problem| MappingError::Foreign { pe, process, problem };
        let path = format!("/proc/{process}/fd/{}", file.number);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).map_err(closed)?;
        let status = rustix::fs::fstat(&opened).map_err(closed)?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(foreign("belongs to another user"));
        }
        if status.st_ino != file.inode {
            return Err(foreign("is not the file that it told; the process has ended"));
        }
        let refused = |error| MappingError::Refused {
            pes: self.layout.pes,
            heap: self.layout.heap_bytes,
            error,
        };
        let segment = Segment::open(opened.as_fd(), file.bytes, true).map_err(refused)?;
        let placed = segment.place(0, file.bytes, &self.reservation, at).map_err(refused)?;
        leave_out_of_core_files(&placed);
        self.placed.push(placed);
        Ok(())
    }
}

/// The memory of others would be in the core file of each PE. A kernel that refuses writes them.
fn leave_out_of_core_files(segment: &Segment) {
    let (start, length) = (segment.base().as_ptr().cast(), segment.length());
    // SAFETY: the range is the segment's own, and the advice changes no byte of it.
    let _ = unsafe { rustix::mm::madvise(start, length, rustix::mm::Advice::LinuxDontDump) };
}

fn file_of(memory: &Memory) -> Option<File> {
    let file = memory.file()?;
    let inode = rustix::fs::fstat(&*file).ok()?.st_ino;
    Some(File { number: file.as_raw_fd(), inode, bytes: memory.segment().length() })
}

/// Bytes of memory and swap; all that is imaginable where the kernel does not say.
fn memory_of_host() -> u64 {
    let mut information = std::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the variable has room for the answer.
    if unsafe { libc::sysinfo(information.as_mut_ptr()) } != 0 {
        return u64::MAX;
    }
    // SAFETY: zeroed bytes are a valid structure, and the kernel filled it in.
    let information = unsafe { information.assume_init() };
    let units = information.totalram.saturating_add(information.totalswap);
    units.saturating_mul(information.mem_unit.into())
}
