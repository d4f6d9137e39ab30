//! `fork`, and the forms of exec that have a symbol which can be hooked.
//!
//! A program that is started inherits connections and must be told of them; see `handover`.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libc::{c_char, c_int, c_void};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use weft_program::Lookup;

use super::{as_int, kernel};
use crate::handover::{Handover, Start};
use crate::process;
use crate::real::real;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The C library's environment.
pub(super) fn environment() -> *const *const c_char {
    // SAFETY: the variable is the C library's, and read as every program reads it.
    unsafe { environ }
}

/// `name` as a string of the operating system; `None` when it is null.
///
/// # Safety
/// `name` is null or a C string.
pub(super) unsafe fn name<'a>(name: *const c_char) -> Option<&'a OsStr> {
    // SAFETY: the caller's promise.
    (!name.is_null()).then(|| OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

/// The path of the program `file`, as execvp finds it in PATH; `None` when there is none.
///
/// # Safety
/// `file` is null or a C string.
pub(super) unsafe fn found(file: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller's promise.
    let name = unsafe { name(file) }?;
    match weft_program::find(name, std::env::var_os("PATH").as_deref()) {
        Lookup::Found(path) => Some(path),
        _ => None,
    }
}

/// # Safety
/// As execve(2) demands of the arguments.
unsafe fn with_handover(
    path: Option<&Path>,
    environment: *const *const c_char,
    exec: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    // A program that tries the directories of PATH one after the other mostly finds nothing there,
    // and no connection need be prepared for that.
    if !process::ready() || path.is_some_and(is_no_program) {
        return exec(environment);
    }
    let start = if process::is_itself() { Start::Exec } else { Start::Vfork };
    // SAFETY: the caller's promise.
    match unsafe { Handover::prepare(start, path, environment) } {
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

pub(super) unsafe extern "C-unwind" fn execv(
    path: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: execv is execve with the program's environment.
    unsafe { execve(path, arguments, environment()) }
}

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
    let path = unsafe { found(file) };
    // SAFETY: as above.
    unsafe { with_handover(path.as_deref(), environment, exec) }
}

pub(super) unsafe extern "C-unwind" fn execvp(
    file: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: execvp is execvpe with the program's environment.
    unsafe { execvpe(file, arguments, environment()) }
}

pub(super) unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let exec = |environment| {
        real!(fexecve as fn(c_int, *const *const c_char, *const *const c_char) -> c_int,
            (fd, arguments, environment),
            else as_int(kernel!(SYS_execveat, fd, c"".as_ptr(), arguments, environment,
                libc::AT_EMPTY_PATH)))
    };
    // SAFETY: the program's promise to fexecve(3).
    unsafe { with_handover(Some(&path_of(fd)), environment, exec) }
}

pub(super) unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    let exec = |environment| {
        real!(execveat as fn(c_int, *const c_char, *const *const c_char, *const *const c_char,
                c_int) -> c_int,
            (directory, path, arguments, environment, flags),
            else as_int(kernel!(SYS_execveat, directory, path, arguments, environment, flags)))
    };
    // SAFETY: the program's promise to execveat(2).
    let found = unsafe { name(path) }.map(|name| match directory {
        libc::AT_FDCWD => PathBuf::from(name),
        _ if name.is_empty() => path_of(directory),
        _ => path_of(directory).join(name),
    });
    // SAFETY: as above.
    unsafe { with_handover(found.as_deref(), environment, exec) }
}

/// True if exec of `path` fails, since nothing is there that may be executed.
fn is_no_program(path: &Path) -> bool {
    let may = rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
    matches!(may, Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))
}

/// A path that leads to the file or directory open as `fd`.
fn path_of(fd: c_int) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{fd}"))
}

pub(super) unsafe extern "C-unwind" fn fork() -> libc::pid_t {
    let child = real!(fork as fn() -> libc::pid_t, (),
        else as_int(kernel!(SYS_fork)));
    if child < 0 && process::ready() {
        let errno = crate::sys::errno();
        super::lifecycle::fork_failed();
        crate::sys::set_errno(errno);
    }
    if child > 0 && process::ready() {
        super::lifecycle::forked(child.into());
    }
    child
}

#[allow(non_snake_case, reason = "the name in C")]
pub(super) unsafe extern "C-unwind" fn _Fork() -> libc::pid_t {
    let child = super::lifecycle::forking(|| {
        libc::c_long::from(real!(_Fork as fn() -> libc::pid_t, (),
            else as_int(kernel!(SYS_fork))))
    });
    libc::pid_t::try_from(child).unwrap_or(-1)
}

/// The function that the child of `clone` runs.
type Runs = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// The function of a child with memory of its own. The child finds it in its copy of its parent's
/// stack.
struct Beginning {
    function: Runs,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn begins_cloned(beginning: *mut c_void) -> c_int {
    // SAFETY: the hook below passes one, which stays as it is in the child's copy.
    let Beginning { function, argument } = unsafe { beginning.cast::<Beginning>().read() };
    super::lifecycle::in_cloned_child();
    // SAFETY: the program's promise to clone(2).
    unsafe { function(argument) }
}

/// As [`begins_cloned`], for a thread that shares its parent's memory, but not its descriptors.
unsafe extern "C-unwind" fn begins_apart(beginning: *mut c_void) -> c_int {
    // SAFETY: the hook below leaves a box to this thread.
    let Beginning { function, argument } = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    process::begin_own_files();
    // SAFETY: the program's promise to clone(2).
    unsafe { function(argument) }
}

/// The words behind the fourth are passed on, however many the flags take.
pub(super) unsafe extern "C-unwind" fn clone(
    function: Option<Runs>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    fifth: usize,
    sixth: usize,
    seventh: usize,
) -> c_int {
    let by_next = |function: Option<Runs>, argument: *mut c_void| {
        real!(clone as
        fn(Option<Runs>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int,
        (function, stack, flags, argument, fifth, sixth, seventh), else {
            crate::sys::set_errno(libc::ENOSYS);
            -1
        })
    };
    match function {
        Some(function) if process::ready() && flags & libc::CLONE_VM == 0 => {
            let mut beginning = Beginning { function, argument };
            let beginning = std::ptr::from_mut(&mut beginning).cast();
            super::lifecycle::cloning(|| by_next(Some(begins_cloned), beginning))
        }
        Some(function) if process::ready() && is_apart(flags) => {
            crate::lanes::leave_all();
            let beginning = Box::into_raw(Box::new(Beginning { function, argument }));
            let made = by_next(Some(begins_apart), beginning.cast());
            if made < 0 {
                // SAFETY: no thread was made that has the box.
                drop(unsafe { Box::from_raw(beginning) });
            }
            made
        }
        _ => by_next(function, argument),
    }
}

/// True for a thread of this process that gets descriptors of its own.
fn is_apart(flags: c_int) -> bool {
    flags & libc::CLONE_THREAD != 0 && flags & libc::CLONE_FILES == 0
}
