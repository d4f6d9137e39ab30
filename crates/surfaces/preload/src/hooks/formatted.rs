//! `dprintf` and its relatives: formatted output to a descriptor. The C library writes it from
//! within, where no hook sees the write, so the text is made here and sent.

use libc::{c_char, c_int, c_void};

use super::variadic::variadic;
use super::{kernel, returned};
use crate::connection::find;
use crate::real::real;
use crate::sys;
use crate::transfer::How;

/// A `va_list`. C passes it by its address.
type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: Arguments) -> c_int;
    fn __vasprintf_chk(
        text: *mut *mut c_char,
        level: c_int,
        format: *const c_char,
        arguments: Arguments,
    ) -> c_int;
}

/// Writes `text` of `length` bytes to `fd`, frees it, and returns how many bytes were written, or
/// -1. A negative `length` says that there is no text.
///
/// # Safety
/// `text` came from the C library's allocator.
unsafe fn write_text(fd: c_int, text: *mut c_char, length: c_int) -> c_int {
    let Ok(length) = usize::try_from(length) else { return -1 };
    // SAFETY: vasprintf wrote `length` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast(), length) };
    let written = match find(fd) {
        Some(connection) => returned(connection.send(fd, &[bytes], How::default())),
        None => kernel!(SYS_write, fd, bytes.as_ptr(), length),
    };
    let errno = sys::errno();
    // SAFETY: the caller's promise.
    unsafe { libc::free(text.cast()) };
    sys::set_errno(errno);
    c_int::try_from(written).unwrap_or(-1)
}

pub(super) unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: Arguments,
) -> c_int {
    let ours = || {
        let mut text = std::ptr::null_mut();
        // SAFETY: the program's format and arguments, as vdprintf(3) demands.
        let length = unsafe { vasprintf(&raw mut text, format, arguments) };
        // SAFETY: the text came from vasprintf.
        unsafe { write_text(fd, text, length) }
    };
    if find(fd).is_some() {
        return ours();
    }
    real!(vdprintf as fn(c_int, *const c_char, Arguments) -> c_int,
        (fd, format, arguments), else ours())
}

pub(super) unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    level: c_int,
    format: *const c_char,
    arguments: Arguments,
) -> c_int {
    let ours = || {
        let mut text = std::ptr::null_mut();
        // SAFETY: the program's format and arguments, as vdprintf(3) demands.
        let length = unsafe { __vasprintf_chk(&raw mut text, level, format, arguments) };
        // SAFETY: the text came from the C library.
        unsafe { write_text(fd, text, length) }
    };
    if find(fd).is_some() {
        return ours();
    }
    real!(__vdprintf_chk as fn(c_int, c_int, *const c_char, Arguments) -> c_int,
        (fd, level, format, arguments), else ours())
}

variadic!(dprintf, 2, vdprintf, "rdx");
variadic!(__dprintf_chk, 3, __vdprintf_chk, "rcx");
