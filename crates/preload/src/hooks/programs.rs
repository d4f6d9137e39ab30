//! exec in its forms that a library can stand before, and fork.
//!
//! `execl` and its kin, `system`, `popen` and `posix_spawn` call the C library's own exec inside;
//! what they start inherits connections that it would have to be told of, see `handover`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{c_char, c_int};
use weft_program::Lookup;

use super::{as_int, kernel};
use crate::handover::Handover;
use crate::process;
use crate::real::real;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The program's name, where there is one.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn name<'a>(name: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller's promise.
    (!name.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

/// # Safety
/// As execve(2) demands of the arguments.
unsafe fn with_handover(
    path: Option<&Path>,
    environment: *const *const c_char,
    exec: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    if !process::ready() {
        return exec(environment);
    }
    // SAFETY: the caller's promise.
    match unsafe { Handover::prepare(path, environment) } {
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
pub(super) unsafe extern "C-unwind" fn execve(
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
    let name = unsafe { name(path) };
    // SAFETY: as above.
    unsafe { with_handover(name.map(Path::new), environment, exec) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execv(
    path: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the C library's own environment.
    let environment = unsafe { environ };
    // SAFETY: execv is execve with the program's environment.
    unsafe { execve(path, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvpe(
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
    let found = unsafe { name(file) }
        .map(|name| weft_program::find(name, std::env::var_os("PATH").as_deref()));
    let path = if let Some(Lookup::Found(path)) = &found { Some(path.as_path()) } else { None };
    // SAFETY: as above.
    unsafe { with_handover(path, environment, exec) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvp(
    file: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the C library's own environment.
    let environment = unsafe { environ };
    // SAFETY: execvp is execvpe with the program's environment.
    unsafe { execvpe(file, arguments, environment) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fork() -> libc::pid_t {
    let child = real!(fork as fn() -> libc::pid_t, (),
        else as_int(kernel!(SYS_fork)));
    if child < 0 && process::ready() {
        let errno = crate::sys::errno();
        process::fork_failed();
        crate::sys::set_errno(errno);
    }
    child
}
