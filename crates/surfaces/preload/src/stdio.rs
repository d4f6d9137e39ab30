//! Streams of C's stdio over a connection that is on the fabric, or may go there.
//!
//! The C library's own stream would read and write the kernel's socket by internal calls, which no
//! hook sees. Here a stream is made of callbacks (`fopencookie`), which read and write the
//! connection.

use std::ffi::{CStr, CString};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

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
    seek: extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
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
    let functions = Functions { read, write, seek, close };
    // SAFETY: the cookie is a number that only the callbacks use; the mode is the caller's.
    unsafe { fopencookie(cookie, mode, functions) }
}

unsafe extern "C" {
    fn flockfile(stream: *mut libc::FILE);
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

/// The mode of a stream, as fopen(3) parses it.
#[derive(Clone, Copy)]
struct Mode {
    reads: bool,
    writes: bool,
    appends: bool,
    /// The flags of open(2).
    flags: c_int,
}

impl Mode {
    /// The C library looks at no more letters behind the first.
    const LETTERS: usize = 6;

    /// `None` when the first letter is none of `r`, `w` and `a`.
    fn parse(text: &[u8]) -> Option<Self> {
        let (letter, rest) = text.split_first()?;
        let mut flags = match letter {
            b'r' => 0,
            b'w' => libc::O_CREAT | libc::O_TRUNC,
            b'a' => libc::O_CREAT | libc::O_APPEND,
            _ => return None,
        };
        let rest = &rest[..rest.len().min(Self::LETTERS)];
        let both = rest.contains(&b'+');
        for (letter, flag) in [(b'e', libc::O_CLOEXEC), (b'x', libc::O_EXCL)] {
            if rest.contains(&letter) {
                flags |= flag;
            }
        }
        let (reads, writes) = (both || *letter == b'r', both || *letter != b'r');
        flags |= match (reads, writes) {
            (true, true) => libc::O_RDWR,
            (true, false) => libc::O_RDONLY,
            _ => libc::O_WRONLY,
        };
        Some(Self { reads, writes, appends: *letter == b'a', flags })
    }

    /// Makes `stream` read and write as the mode says.
    ///
    /// A stream of the C library begins with a word of flags. The bits below and the magic number
    /// have had the same places in all versions (`libio.h`), since programs once contained macros
    /// that looked at them. A stream without the magic number is left as it is.
    ///
    /// # Safety
    /// The stream is open, and the calling thread has its lock.
    unsafe fn apply(self, stream: *mut libc::FILE) {
        const MAGIC: c_int = 0xFBAD_0000_u32.cast_signed();
        const MAGIC_MASK: c_int = 0xFFFF_0000_u32.cast_signed();
        const NO_READS: c_int = 4;
        const NO_WRITES: c_int = 8;
        const APPENDS: c_int = 0x1000;
        let place = stream.cast::<c_int>();
        // SAFETY: a stream begins with this word; nobody else changes it under the lock.
        let mut word = unsafe { place.read() };
        if word & MAGIC_MASK != MAGIC {
            return;
        }
        for (bit, on) in
            [(NO_READS, !self.reads), (NO_WRITES, !self.writes), (APPENDS, self.appends)]
        {
            word = if on { word | bit } else { word & !bit };
        }
        // SAFETY: as above.
        unsafe { place.write(word) };
    }
}

/// Whether the stream of descriptor `place` was ever reopened with `e` in its mode, which is so now
/// if `now` is true. As in the C library, a later mode without `e` does not take that back.
fn keeps_close_on_exec(place: usize, now: bool) -> bool {
    static ONCE: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    ONCE.get(place).is_some_and(|once| once.fetch_or(now, Ordering::Relaxed) || now)
}

/// C's `freopen` of a stream that replaced the standard one of descriptor `fd`; the C library
/// cannot do it. The stream goes on over the file at `path`, or over its own file in another mode
/// when `path` is null. Null with errno set when the file cannot be opened; the descriptor is then
/// closed.
///
/// # Safety
/// `path` is null or a C string, `mode` is a C string, and `stream` is the one that replaced `fd`.
pub unsafe fn reopen(
    fd: RawFd,
    path: *const c_char,
    mode: *const c_char,
    stream: *mut libc::FILE,
) -> *mut libc::FILE {
    // SAFETY: the caller's promise.
    let mode = Mode::parse(unsafe { CStr::from_ptr(mode) }.to_bytes());
    // SAFETY: the stream is open. Input that was read ahead belongs to the former file.
    unsafe {
        flockfile(stream);
        libc::fflush(stream);
        __fpurge(stream);
        libc::clearerr(stream);
    }
    let opened = match mode {
        // SAFETY: the caller's promise.
        Some(mode) => unsafe { open_file(fd, path, mode.flags) },
        None => Err(Errno::INVAL),
    };
    let _closing = closing(fd);
    match (opened, mode) {
        (Ok(new), Some(mode)) => {
            let mut flags = mode.flags & libc::O_CLOEXEC;
            if usize::try_from(fd).is_ok_and(|place| keeps_close_on_exec(place, flags != 0)) {
                flags = libc::O_CLOEXEC;
            }
            if new != fd {
                // SAFETY: `new` was opened here, and `fd` belongs to the stream.
                unsafe {
                    sys::raw(libc::SYS_dup3, [new.word(), fd.word(), flags.word(), 0, 0, 0]);
                    sys::raw(libc::SYS_close, [new.word(), 0, 0, 0, 0, 0]);
                }
            }
            // SAFETY: the stream is open, and this thread has its lock.
            unsafe {
                mode.apply(stream);
                funlockfile(stream);
            }
            stream
        }
        (opened, _) => {
            // SAFETY: `fd` belongs to the stream, whose lock this thread has.
            unsafe {
                sys::raw(libc::SYS_close, [fd.word(), 0, 0, 0, 0, 0]);
                funlockfile(stream);
            }
            sys::set_errno(opened.err().unwrap_or(Errno::INVAL).raw_os_error());
            std::ptr::null_mut()
        }
    }
}

/// Opens the file at `path`, or the file that `fd` has open when `path` is null.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn open_file(fd: RawFd, path: *const c_char, flags: c_int) -> Result<RawFd, Errno> {
    let own = CString::new(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::INVAL)?;
    let path = if path.is_null() { own.as_ptr() } else { path };
    const MODE: usize = 0o666;
    let words = [libc::AT_FDCWD.word(), path.word(), flags.word(), MODE, 0, 0];
    // SAFETY: the path is a C string; the call makes a new descriptor.
    let opened = unsafe { sys::raw(libc::SYS_openat, words) };
    RawFd::try_from(sys::c_result(opened))
        .ok()
        .filter(|opened| *opened >= 0)
        .ok_or_else(|| Errno::from_raw_os_error(sys::errno()))
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

/// Sets the position of the file; fails on a connection, as in the kernel.
extern "C-unwind" fn seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library gives the place of a number.
    let wanted = unsafe { *offset };
    let words = [descriptor(cookie).word(), wanted.word(), whence.word(), 0, 0, 0];
    // SAFETY: the call takes numbers.
    let position = sys::c_result(unsafe { sys::raw(libc::SYS_lseek, words) });
    if position < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *offset = position as off64_t };
    0
}

extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = descriptor(cookie);
    if cookie.addr() & STANDARD != 0
        && let Some(replaced) = REPLACED.get(cookie.addr() & !STANDARD)
    {
        replaced.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
    let _closing = closing(fd);
    // SAFETY: the descriptor belongs to the stream; the call takes a number.
    let result = unsafe { sys::raw(libc::SYS_close, [cookie.addr() & !STANDARD, 0, 0, 0, 0, 0]) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}
