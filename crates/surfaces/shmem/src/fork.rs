//! Children of a PE: they get the program's variables as a copy of their own.
//!
//! The variables are shared memory, which a child would share with its parent. So the parent waits
//! in fork until the child has copied them, and the child is no PE. A child that only runs another
//! program (`posix_spawn`, `vfork`) writes no variable.
//!
//! # Invariant
//! The parent waits until the child has closed its end of a pipe, by itself or by its death, or for
//! a limited time.

use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use rustix::pipe::{PipeFlags, pipe_with};

/// Seconds for which a parent waits for the copy of its child.
const WAIT_S: i64 = 20;

static START: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static FILE: OnceLock<OwnedFd> = OnceLock::new();
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The pipe of the fork that is under way. The lock is held during it: a thread forks at a time.
static PIPE: Mutex<Ends> = Mutex::new(None);

/// The reading and the writing end of a pipe, if the system had one.
type Ends = Option<(OwnedFd, OwnedFd)>;

thread_local! {
    static HELD: RefCell<Option<MutexGuard<'static, Ends>>> = const { RefCell::new(None) };
}

/// Follows the children of this process from now on. The range has the program's variables, of
/// which the file is the memory.
///
/// # Errors
/// The system lacks memory for the three functions.
pub fn watch(start: usize, bytes: usize, file: OwnedFd) -> io::Result<()> {
    let _ = FILE.set(file);
    START.store(start, Relaxed);
    BYTES.store(bytes, Relaxed);
    // SAFETY: the three functions are there as long as this library, which is never unloaded.
    let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

/// The same where the program's variables are its own, and so its children's, too.
pub fn watch_alone() {
    // SAFETY: as in `watch`. Without memory a child is not told that it is none of the PEs.
    unsafe { libc::pthread_atfork(None, None, Some(in_lone_child)) };
}

/// Whether this process is a child of a PE.
pub fn is_child() -> bool {
    IS_CHILD.load(Relaxed)
}

extern "C" fn before() {
    let mut pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner);
    *pipe = pipe_with(PipeFlags::CLOEXEC).ok();
    HELD.with(|held| *held.borrow_mut() = Some(pipe));
}

/// The two ends, after the lock was given back.
fn ends() -> Ends {
    let mut pipe = HELD.with(|held| held.borrow_mut().take())?;
    pipe.take()
}

extern "C" fn in_parent() {
    let Some((reading, writing)) = ends() else { return };
    drop(writing);
    let timeout = Timespec { tv_sec: WAIT_S, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&reading, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) => {
                eprintln!(
                    "weft-shmem: a child has not copied the program's variables within {WAIT_S} s \
                     and may share them; have no other process of the program keep it from running"
                );
                return;
            }
            Ok(_) | Err(_) => return,
        }
    }
}

extern "C" fn in_lone_child() {
    IS_CHILD.store(true, Relaxed);
    weft_pgas::space::close_in_child();
}

extern "C" fn in_child() {
    let ends = ends();
    IS_CHILD.store(true, Relaxed);
    weft_pgas::space::close_in_child();
    if let Err(error) = make_private(START.load(Relaxed), BYTES.load(Relaxed)) {
        eprintln!(
            "weft-shmem: a child of a PE cannot have variables of its own: {error}; it ends, since \
             it would change those of its parent"
        );
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(1) };
    }
    // The parent goes on when this end is closed.
    drop(ends);
}

/// The parts of the variables that were ever written, as offsets: the others are zero, as fresh
/// memory is. All of it where the kernel does not tell.
fn parts_with_data(bytes: usize) -> Vec<Range<usize>> {
    let all = || std::iter::once(0..bytes).collect();
    let Some(file) = FILE.get() else { return all() };
    let mut parts = Vec::new();
    let mut at = 0;
    loop {
        let offset = |found: u64| usize::try_from(found).unwrap_or(bytes).min(bytes);
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return parts,
            Err(_) => return all(),
        };
        let Ok(end) = seek(file, SeekFrom::Hole(start)) else { return all() };
        parts.push(offset(start)..offset(end));
        at = end;
    }
}

/// Puts a private copy of a range in its place.
fn make_private(start: usize, bytes: usize) -> rustix::io::Result<()> {
    let variables = std::ptr::with_exposed_provenance_mut::<u8>(start);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
    let copy = unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
    }?;
    for part in parts_with_data(bytes) {
        // By words and not by memcpy, where the address sanitizer would find the gaps between the
        // program's variables.
        for offset in part.step_by(size_of::<u64>()) {
            let (from, to) = (variables.wrapping_add(offset), copy.cast::<u8>());
            let to = to.wrapping_add(offset).cast::<u64>();
            // SAFETY: both ranges are whole pages, so the word is in them and aligned. The child
            // has one thread, and its parent waits.
            unsafe { to.write_volatile(from.cast::<u64>().read_volatile()) };
        }
    }
    // SAFETY: the range is that of the variables, whose bytes the copy has. References of C stay
    // valid, since the address is the same.
    unsafe {
        rustix::mm::mremap_fixed(copy, bytes, bytes, MremapFlags::MAYMOVE, variables.cast())
    }?;
    Ok(())
}
