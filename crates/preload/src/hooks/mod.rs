//! The C functions that this library stands before, by what they are for.
//!
//! Each looks whether the descriptor is one of ours and otherwise calls the next library. None may
//! panic, which aborts the program: invariants that hold them are checked, not assumed. All let the
//! C library unwind through them ("C-unwind"), which is how it ends cancelled threads.

mod aliases;
mod descriptors;
mod filters;
mod formatted;
mod listed;
mod memory;
mod programs;
mod raw;
mod readiness;
mod shell;
mod signals;
mod sockets;
mod spawn;
mod splice;
mod streams;
mod variadic;
mod vectors;

use libc::c_int;
use rustix::io::Errno;

use crate::guard::ForkLock;
use crate::{cancel, sys};

/// The locks of the hooks that start programs, for fork.
pub fn started_programs() -> [&'static dyn ForkLock; 3] {
    let [streams, waiting] = shell::locks();
    [spawn::lock(), streams, waiting]
}

/// The return value of a C function for a result of ours.
fn returned(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(Errno::CANCELED) => {
            cancel::act();
            sys::set_errno(libc::EINTR);
            -1
        }
        Err(errno) => {
            sys::set_errno(errno.raw_os_error());
            -1
        }
    }
}

/// The same where the call returns an int.
fn as_int(result: isize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

/// A system call as C sees it, for the time before the next library's function is known.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)*) => {{
        let given: &[usize] = &[$($crate::sys::Word::word($argument)),*];
        let mut arguments = [0usize; 6];
        arguments[..given.len()].copy_from_slice(given);
        // SAFETY: the program's own arguments, passed on unchanged.
        $crate::sys::c_result(unsafe { $crate::sys::raw(libc::$number, arguments) })
    }};
}
use kernel;
