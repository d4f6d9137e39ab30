//! Streams of C's stdio over a connection that is on the fabric, or may go there.
//!
//! The C library's own stream would read and write the kernel's socket by internal calls, which no
//! hook sees. Here a stream is made of callbacks (`fopencookie`), which read and write the
//! connection.

use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_char, c_int, c_void, off64_t, size_t, ssize_t};
use rustix::io::Errno;

use crate::connection::{closing, find};
use crate::real::real;
use crate::sys::Word;
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

/// A bit in the cookie of a stream that replaces one of stdin, stdout and stderr.
const STANDARD: usize = 1 << 32;

/// Opens a stream over the connection `fd`. Null with errno set on failure.
///
/// # Safety
/// `mode` is a C string.
pub unsafe fn open(fd: RawFd, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's promise.
    unsafe { open_as(usize::try_from(fd).unwrap_or(0), mode) }
}

/// # Safety
/// As [`open`].
unsafe fn open_as(cookie: usize, mode: *const c_char) -> *mut libc::FILE {
    let cookie = std::ptr::without_provenance_mut(cookie);
    let functions = Functions { read, write, seek: None, close };
    // SAFETY: the cookie is a number that only the callbacks use; the mode is the caller's.
    unsafe { fopencookie(cookie, mode, functions) }
}

unsafe extern "C" {
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
    fn __fpurge(stream: *mut libc::FILE);
    static mut stdin: *mut libc::FILE;
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// The streams that replaced stdin, stdout and stderr; null where the C library's own is in use.
static REPLACED: [AtomicPtr<libc::FILE>; 3] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 3];

/// The descriptor of a stream that replaced a standard one. The C library knows none for it.
pub fn descriptor_of(stream: *mut libc::FILE) -> Option<RawFd> {
    let ours = |replaced: &AtomicPtr<libc::FILE>| replaced.load(Ordering::Relaxed) == stream;
    let place = REPLACED.iter().position(ours).filter(|_| !stream.is_null())?;
    RawFd::try_from(place).ok()
}

/// Flushes the replaced streams while connections are still open: the C library flushes its streams
/// after all libraries have ended. Skips a stream that another thread is using.
pub fn flush() {
    for replaced in &REPLACED[1..] {
        let stream = replaced.load(Ordering::Relaxed);
        // SAFETY: null, which is skipped, or a stream of this module that the program did not
        // close.
        unsafe {
            if !stream.is_null() && ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}

/// Replaces the C library's standard stream over descriptor `fd`, 0 to 2. Called before the
/// program's `main`.
pub fn replace(fd: RawFd) {
    let mode = if fd == 0 { c"r" } else { c"w" };
    let Ok(place) = usize::try_from(fd) else { return };
    // SAFETY: the mode is a C string.
    let stream = unsafe { open_as(place | STANDARD, mode.as_ptr()) };
    if stream.is_null() {
        return;
    }
    REPLACED[place].store(stream, Ordering::Relaxed);
    if fd == 2 {
        // SAFETY: the stream was just made. Standard error is never buffered.
        unsafe { libc::setvbuf(stream, std::ptr::null_mut(), libc::_IONBF, 0) };
    }
    // SAFETY: the constructor runs before any other thread of the program exists; the C library
    // documents that these variables can be assigned.
    unsafe {
        match fd {
            0 => stdin = stream,
            1 => stdout = stream,
            _ => stderr = stream,
        }
    }
}

/// C's `freopen` of a stream that replaced the standard one of descriptor `fd`; the C library
/// cannot do it. The stream goes on over the file at `path`. `None` when `mode` needs the other
/// direction; null in `Some`, with errno set, when the file cannot be opened.
///
/// # Safety
/// `path` and `mode` are C strings, and `stream` is the one that replaced `fd`.
pub unsafe fn reopen(
    fd: RawFd,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut libc::FILE,
) -> Option<*mut libc::FILE> {
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let flags = match (mode.first(), fd) {
        (Some(b'r'), 0) => libc::O_RDONLY,
        (Some(b'w'), 1 | 2) => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        (Some(b'a'), 1 | 2) => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    // SAFETY: the stream is open. Input that was read ahead belongs to the former file.
    unsafe {
        libc::fflush(stream);
        __fpurge(stream);
        libc::clearerr(stream);
    }
    // SAFETY: the path is the caller's C string; the call makes a new descriptor.
    let opened = unsafe {
        sys::raw(libc::SYS_openat, [libc::AT_FDCWD.word(), path.word(), flags.word(), 0o666, 0, 0])
    };
    let Ok(new) = usize::try_from(sys::c_result(opened)) else {
        return Some(std::ptr::null_mut());
    };
    closing(fd);
    // SAFETY: the calls take numbers; `new` was opened here, and `fd` belongs to the stream.
    unsafe {
        sys::raw(libc::SYS_dup3, [new, fd.word(), 0, 0, 0, 0]);
        sys::raw(libc::SYS_close, [new, 0, 0, 0, 0, 0]);
    }
    Some(stream)
}

fn descriptor(cookie: *mut c_void) -> RawFd {
    RawFd::try_from(cookie.addr() & !STANDARD).unwrap_or(-1)
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
        return real!(read as fn(c_int, *mut c_void, size_t) -> ssize_t,
            (fd, buffer.cast(), length), else -1);
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
        // A callback of fopencookie returns 0 when a write failed.
        return real!(write as fn(c_int, *const c_void, size_t) -> ssize_t,
            (fd, buffer.cast(), length), else 0)
        .max(0);
    };
    // SAFETY: the C library gives a buffer of that length.
    let part = unsafe { std::slice::from_raw_parts(buffer.cast(), length) };
    match connection.send(fd, &[part], How::default()) {
        Ok(bytes) => isize::try_from(bytes).unwrap_or(isize::MAX),
        Err(errno) => {
            failed(errno);
            0
        }
    }
}

extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    if cookie.addr() & STANDARD != 0
        && let Some(replaced) = REPLACED.get(cookie.addr() & !STANDARD)
    {
        replaced.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
    closing(fd);
    // SAFETY: the descriptor belongs to the stream; the call takes a number.
    let result = unsafe { sys::raw(libc::SYS_close, [cookie.addr() & !STANDARD, 0, 0, 0, 0, 0]) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}
