//! exec in its forms that a library can stand before, and signal handlers.
//!
//! `execl` and its kin, `system`, `popen` and `posix_spawn` call the C library's own exec inside;
//! what they start inherits connections that it would have to be told of, see `handover`.

use libc::{c_char, c_int};

use super::{as_int, kernel};
use crate::handover::Handover;
use crate::real::real;
use crate::{process, signals};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// # Safety
/// As execve(2) demands of the arguments.
unsafe fn with_handover(
    environment: *const *const c_char,
    exec: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    if !process::ready() {
        return exec(environment);
    }
    // SAFETY: the caller's promise.
    match unsafe { Handover::prepare(environment) } {
        Some(handover) => {
            let result = exec(handover.environment());
            let errno = crate::sys::errno();
            drop(handover);
            crate::sys::set_errno(errno);
            result
        }
        None => exec(environment),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let exec = |environment| {
        real!(execve as fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int,
            (path, arguments, environment),
            else as_int(kernel!(SYS_execve, path, arguments, environment)))
    };
    // SAFETY: the program's promise to execve(2).
    unsafe { with_handover(environment, exec) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: the C library's own environment.
    let environment = unsafe { environ };
    // SAFETY: execv is execve with the program's environment.
    unsafe { execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let exec = |environment| {
        real!(execvpe as fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int,
            (file, arguments, environment),
            else as_int(kernel!(SYS_execve, file, arguments, environment)))
    };
    // SAFETY: the program's promise to execvpe(3).
    unsafe { with_handover(environment, exec) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: the C library's own environment.
    let environment = unsafe { environ };
    // SAFETY: execvp is execvpe with the program's environment.
    unsafe { execvpe(file, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    former: *mut libc::sigaction,
) -> c_int {
    if !action.is_null() {
        // SAFETY: the program's promise to sigaction(2).
        let action = unsafe { &*action };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        if handled && action.sa_flags & libc::SA_RESTART == 0 {
            signals::installed_without_restart();
        }
    }
    // The kernel's own structure differs from C's, so there is no way around the C library; before
    // it is known no handler can be installed.
    real!(sigaction as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
    (signal, action, former), else {
        crate::sys::set_errno(libc::EAGAIN);
        -1
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    let child = real!(fork as fn() -> libc::pid_t, (),
        else as_int(kernel!(SYS_fork)));
    if child < 0 && process::ready() {
        let errno = crate::sys::errno();
        process::fork_failed();
        crate::sys::set_errno(errno);
    }
    child
}
