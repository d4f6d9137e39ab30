//! exec in its forms that a library can stand before, and fork.
//!
//! `execl` and its kin, `system`, `popen` and `posix_spawn` call the C library's own exec inside;
//! what they start inherits connections that it would have to be told of, see `handover`.

use libc::{c_char, c_int};

use super::{as_int, kernel};
use crate::handover::Handover;
use crate::process;
use crate::real::real;

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
