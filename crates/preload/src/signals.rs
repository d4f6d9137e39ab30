//! What signals mean for calls that would have slept in the kernel.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

static SOME_DO_NOT_RESTART: AtomicBool = AtomicBool::new(false);

/// SIGPIPE, as a write to a closed connection raises it: for the calling thread.
pub fn raise_pipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let number = |value: i32| usize::try_from(value).unwrap_or(0);
    let arguments = [number(process), number(thread), number(libc::SIGPIPE), 0, 0, 0];
    // SAFETY: the call takes three numbers; the signal is for the calling thread.
    unsafe { sys::raw(libc::SYS_tgkill, arguments) };
}

/// A handler without SA_RESTART was installed.
pub fn installed_without_restart() {
    SOME_DO_NOT_RESTART.store(true, Ordering::Relaxed);
}

/// True when every handler that the program installed restarts system calls, so that an
/// interrupted write goes on.
pub fn all_restart() -> bool {
    !SOME_DO_NOT_RESTART.load(Ordering::Relaxed)
}
