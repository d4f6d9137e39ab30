//! Other threads of the program that write to its variables while these move to shared memory.
//!
//! Whatever starts a thread before this library is loaded - the constructor of another library, an
//! allocator, an interpreter - may have it write there. A part of the variables is read-only for
//! the microseconds in which it moves; a thread that writes to it then gets SIGSEGV. The handler
//! here has it do the write again, until it succeeds.
//!
//! # Invariants
//! - A fault outside of the variables, or long after they moved, is handled as it was before.
//! - The handler stays: a thread may hear of its fault after the last part has moved.
//! - A thread that blocks SIGSEGV and writes in these microseconds ends the process, as the kernel
//!   delivers no fault then. Threads of allocators do block it, and write to their own variables.

use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// How long after the move a thread may hear of a fault, seconds.
const LATE_S: u64 = 2;

/// The variables. Nothing lies there while there is no handler.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// The time until which faults there are of the move.
static UNTIL: AtomicU64 = AtomicU64::new(0);
/// The former action at a fault.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Has threads wait that write to the range, until it is released.
///
/// # Errors
/// The system refuses the handler.
pub fn hold(range: &Range<usize>) -> io::Result<()> {
    START.store(range.start, Relaxed);
    END.store(range.end, Relaxed);
    UNTIL.store(u64::MAX, SeqCst);
    // SAFETY: zeroed bytes are a valid structure, for "no handler" and no flags.
    let (mut action, mut former) = unsafe { std::mem::zeroed::<[libc::sigaction; 2]>().into() };
    action.sa_sigaction = faulted as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: both structures are valid, and the handler does what a handler may do alone.
    if unsafe { libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut former) } != 0 {
        return Err(io::Error::last_os_error());
    }
    FORMER.get_or_init(|| former);
    // SAFETY: as before.
    if unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The range has moved. Those that heard of a fault late do not wait.
pub fn release() {
    UNTIL.store(seconds() + LATE_S, SeqCst);
}

fn seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0)
}

extern "C" fn faulted(signal: c_int, about: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid structure to a handler with SA_SIGINFO.
    let (code, address) = unsafe { ((*about).si_code, (*about).si_addr().addr()) };
    let is_fault = code > 0;
    let is_here = (START.load(Relaxed)..END.load(Relaxed)).contains(&address);
    if is_fault && is_here && seconds() <= UNTIL.load(SeqCst) {
        // The write is done again when this returns.
        rustix::thread::sched_yield();
        return;
    }
    let Some(former) = FORMER.get() else { return };
    // SAFETY: the structure is the one that the kernel gave. A fault comes again when this returns,
    // and is handled as it was before; a signal that was sent is sent again.
    unsafe {
        libc::sigaction(signal, former, std::ptr::null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}
