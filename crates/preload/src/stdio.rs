//! Standard streams over a connection that is on the fabric already.
//!
//! The C library's own stream would read and write the kernel's socket by internal calls that no
//! hook sees. A stream made of callbacks (`fopencookie`) reads and writes by way of the hooks.

use std::os::fd::RawFd;

use libc::{c_char, c_int, c_void, off64_t, size_t, ssize_t};
use rustix::io::Errno;

use crate::connection::{closing, find};
use crate::transfer::How;
use crate::{cancel, sys};

#[repr(C)]
struct Functions {
    read: extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(
        cookie: *mut c_void,
        mode: *const c_char,
        functions: Functions,
    ) -> *mut libc::FILE;
}

/// A stream over connection `fd`, or null with errno set.
///
/// # Safety
/// `mode` is a C string.
pub unsafe fn open(fd: RawFd, mode: *const c_char) -> *mut libc::FILE {
    let cookie = std::ptr::without_provenance_mut(usize::try_from(fd).unwrap_or(0));
    let functions = Functions { read, write, seek: None, close };
    // SAFETY: the cookie is a number that only our functions see; the mode is the caller's.
    unsafe { fopencookie(cookie, mode, functions) }
}

unsafe extern "C" {
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// Replaces the C library's standard stream over descriptor `fd`, 0 to 2, before the program's
/// first line runs.
pub fn replace(fd: RawFd) {
    let mode = if fd == 0 { c"r" } else { c"w" };
    // SAFETY: the mode is a C string.
    let stream = unsafe { open(fd, mode.as_ptr()) };
    if stream.is_null() {
        return;
    }
    if fd == 2 {
        // SAFETY: a fresh stream; standard error is never buffered.
        unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
    // SAFETY: the constructor runs before any other thread of the program; the variables are the
    // C library's, which documents that they can be assigned.
    unsafe {
        match fd {
            0 => stdin = stream,
            1 => stdout = stream,
            _ => stderr = stream,
        }
    }
}

fn descriptor(cookie: *mut c_void) -> RawFd {
    RawFd::try_from(cookie.addr()).unwrap_or(-1)
}

fn failed(errno: Errno) {
    if errno == Errno::CANCELED {
        cancel::act();
    }
    sys::set_errno(errno.raw_os_error());
}

extern "C-unwind" fn read(cookie: *mut c_void, buffer: *mut c_char, length: size_t) -> ssize_t {
    cancel::point();
    let fd = descriptor(cookie);
    let Some(connection) = find(fd) else {
        sys::set_errno(libc::EBADF);
        return -1;
    };
    // SAFETY: the C library gives a buffer of that length.
    let part = unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) };
    match connection.receive(fd, &mut [part], How::default()) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(errno) => {
            failed(errno);
            -1
        }
    }
}

extern "C-unwind" fn write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> ssize_t {
    cancel::point();
    let fd = descriptor(cookie);
    let Some(connection) = find(fd) else {
        sys::set_errno(libc::EBADF);
        return 0;
    };
    // SAFETY: the C library gives a buffer of that length.
    let part = unsafe { std::slice::from_raw_parts(buffer.cast(), length) };
    match connection.send(fd, &[part], How::default()) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(errno) => {
            failed(errno);
            // fopencookie's convention: a failed write wrote nothing.
            0
        }
    }
}

extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    closing(fd);
    // SAFETY: closing a number the stream owned; the raw call touches no memory.
    let result = unsafe { sys::raw(libc::SYS_close, [cookie.addr(), 0, 0, 0, 0, 0]) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}
