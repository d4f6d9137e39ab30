//! The C functions that this library replaces, by what they are for.
//!
//! Each hook serves descriptors that the library tracks, and calls the next library's function for
//! all others. No hook may panic, since that aborts the program: hooks check what they rely on. The
//! C library may unwind through every hook ("C-unwind"), as it does to end cancelled threads.

mod aio;
mod aliases;
mod ancillary;
mod descriptors;
mod entries;
mod filters;
mod formatted;
mod lifecycle;
mod listed;
mod memory;
mod options;
mod programs;
mod raw;
mod readiness;
mod shell;
mod signals;
mod socket_maps;
mod sockets;
mod spawn;
mod splice;
mod streams;
mod times;
mod variadic;
mod vectors;

use libc::c_int;
use rustix::io::Errno;

use crate::guard::ForkLock;
use crate::sys::kernel;
use crate::{cancel, sys};

/// The locks of the modules that start programs, for fork.
pub fn started_programs() -> [&'static dyn ForkLock; 3] {
    let [streams, waiting] = shell::locks();
    [spawn::lock(), streams, waiting]
}

/// The return value of a C function for `result`, with errno set. A cancelled thread ends here.
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

/// The return value of a C function that returns an int.
fn as_int(result: isize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}
