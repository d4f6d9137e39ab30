//! Pointers that a program passes, by the contract of the header.
//!
//! All that is believed of a program is said here: a structure, an array, bytes or a text are what
//! their type says, for the time of the call; a place to write to is one, and nobody else uses it
//! meanwhile. Null is found wherever it is passed. Handles are no pointers: see `table`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use crate::status::Failure;

/// Bytes that the program passes. Null is good for none.
pub fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    check(data.is_null(), length, "data")?;
    // SAFETY: the program says that so many bytes are there.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// A place for bytes that the program passes. Null is good for none.
pub fn bytes_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    check(data.is_null(), length, "data")?;
    // SAFETY: the program says that there is a place for so many bytes.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), length) })
}

fn check(is_null: bool, length: usize, name: &str) -> Result<(), Failure> {
    if is_null {
        return Err(null(name));
    }
    if isize::try_from(length).is_err() {
        return Err(Failure::argument(format!("{length} bytes are more than a process can have")));
    }
    Ok(())
}

/// The failure for a pointer that is null.
pub fn null(name: &str) -> Failure {
    Failure::argument(format!("{name} is null"))
}

/// A text that the program passes, by its name.
pub fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(null(name));
    }
    // SAFETY: the program passes a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is no text in UTF-8")))
}

/// A structure that the program passes, by its name.
#[inline]
pub fn structure<T: Copy>(place: *const T, name: &str) -> Result<T, Failure> {
    if place.is_null() {
        return Err(null(name));
    }
    // SAFETY: the program passes a structure of this type, which is all numbers.
    Ok(unsafe { place.read_unaligned() })
}

/// The first `size` bytes of a structure of the program; members behind them are those of `rest`.
/// `size` is at most that of the structure.
pub fn beginning<T: Copy>(place: *const T, size: usize, rest: T) -> T {
    assert!(size <= size_of::<T>(), "the caller has looked");
    let mut whole = rest;
    // SAFETY: the program says that the structure has so many bytes, and all its members are
    // numbers; the copy has at least as many.
    unsafe { (&raw mut whole).cast::<u8>().copy_from_nonoverlapping(place.cast(), size) };
    whole
}

/// A place for one value, or null.
#[derive(Clone, Copy)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// A place that may be null.
    pub const fn of(place: *mut T) -> Self {
        Self(place)
    }

    /// A place that must not be null.
    pub fn needed(place: *mut T, name: &str) -> Result<Self, Failure> {
        if place.is_null() { Err(null(name)) } else { Ok(Self(place)) }
    }

    /// Writes, unless it is null.
    #[inline]
    pub fn set(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the program passes a place for a value, or null.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes the first `size` bytes of a value to place `index` of an array with places of so many
    /// bytes. Behind a value that is shorter there are zeros.
    pub fn set_sized(self, index: usize, size: usize, value: &T) {
        let known = size.min(size_of::<T>());
        // SAFETY: the program has an array with more places of so many bytes than `index`: the
        // caller keeps to that.
        let place = unsafe { self.0.cast::<u8>().add(index * size) };
        let from = (&raw const *value).cast::<u8>();
        // SAFETY: the place has `size` bytes, of which the value has at least `known`.
        unsafe { place.copy_from_nonoverlapping(from, known) };
        // SAFETY: the rest of the place.
        unsafe { place.add(known).write_bytes(0, size - known) };
    }
}

/// Writes a text with its zero into a place of `size` bytes. False if it does not fit.
pub fn set_text(place: *mut c_char, size: usize, text: &str) -> bool {
    if place.is_null() || size <= text.len() {
        return false;
    }
    // SAFETY: the program has a place for `size` bytes, and the text has fewer.
    unsafe { place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    // SAFETY: the byte behind them is inside.
    unsafe { place.add(text.len()).write(0) };
    true
}

/// Whether all pages of a range are mapped.
pub fn is_mapped(base: NonNull<u8>, length: usize) -> bool {
    // SAFETY: the call reads a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(4096);
    let before = base.addr().get() % page;
    let whole = length.checked_add(before).filter(|whole| isize::try_from(*whole).is_ok());
    let Some(whole) = whole else { return false };
    let first = base.as_ptr().wrapping_sub(before).cast();
    // SAFETY: with this flag the kernel looks at the pages and changes nothing. Those that are not
    // mapped are an error.
    unsafe { libc::msync(first, whole, libc::MS_ASYNC) == 0 }
}

/// The number that a handle is.
#[inline]
pub fn handle<T>(handle: *const T) -> usize {
    handle.addr()
}

/// A handle for the program.
pub const fn to_handle<T>(number: usize) -> *mut T {
    std::ptr::without_provenance_mut(number)
}

/// The path of the file that this library was loaded from: of the program itself where it is
/// linked with it.
pub fn own_file() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let own: fn() -> Option<std::path::PathBuf> = own_file;
    // SAFETY: the call writes to `info` alone.
    let known = unsafe { libc::dladdr(own as *const c_void, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names end with a zero, and this library stays loaded during the call.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    std::fs::canonicalize(std::ffi::OsStr::from_bytes(name.to_bytes())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_sizes_are_cut_and_filled_up() {
        let mut array = [0xff_u8; 24];
        let out = Out::<u64>::of(array.as_mut_ptr().cast());
        out.set_sized(0, 12, &0x0102_0304_0506_0708);
        out.set_sized(3, 4, &0x0102_0304_0506_0708);
        assert_eq!(array[..12], [8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(array[12..16], [8, 7, 6, 5]);
        let short = beginning([7_u32, 9].as_ptr(), 2, 0xffff_0000);
        assert_eq!(short, 0xffff_0007);
    }

    #[test]
    fn null_and_what_is_too_long_are_errors() {
        assert_eq!(bytes(std::ptr::null(), 0).map(<[u8]>::len), Ok(0));
        assert!(bytes(std::ptr::null(), 1).is_err() && text(std::ptr::null(), "name").is_err());
        assert!(bytes(c"x".as_ptr().cast(), usize::MAX).is_err());
        assert!(text(c"\xff".as_ptr(), "name").is_err());
        let mut place = [1 as c_char; 4];
        assert!(!set_text(place.as_mut_ptr(), 3, "abc") && set_text(place.as_mut_ptr(), 4, "abc"));
        assert_eq!(place[3], 0);
    }
}
