//! Checks the program's memory that calls name: for an address where nothing can be mapped a call
//! returns EFAULT, as in the kernel, and this library does not fault.
//!
//! Two comparisons accept all addresses that ordinary programs use; the kernel is asked about the
//! others. A hole between mapped addresses is not looked for: a copy that meets it faults, as an
//! access of the program itself would.

use libc::{c_void, size_t};
use rustix::io::Errno;

use crate::sys;

/// Below this address only a program with CAP_SYS_RAWIO can map memory.
const LOWEST: usize = 4096;
/// Above this address memory is mapped only for a program that asks for such an address (five
/// levels of page tables).
const HIGHEST: usize = (1 << 47) - LOWEST;

/// `EFAULT` when the kernel knows no mapping at the first or the last of the `length` bytes at
/// `address`, and these lie outside of the usual range.
#[inline]
pub(super) fn check(address: usize, length: usize) -> Result<(), Errno> {
    match address.checked_add(length) {
        _ if length == 0 => Ok(()),
        Some(end) if address >= LOWEST && end <= HIGHEST => Ok(()),
        Some(end) => ask_kernel(&[address, end - 1]),
        None => Err(Errno::FAULT),
    }
}

#[cold]
fn ask_kernel(addresses: &[usize]) -> Result<(), Errno> {
    let mut resident = 0_u8;
    for address in addresses {
        let page = address & !(LOWEST - 1);
        let words = [page, 1, &raw mut resident as usize, 0, 0, 0];
        // SAFETY: mincore writes one byte, for one page; it returns an error for an address that is
        // not mapped.
        if unsafe { sys::raw(libc::SYS_mincore, words) } < 0 {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

/// The program's buffer as a slice to read into.
///
/// # Safety
/// As recv(2) demands: `length` writable bytes, unless `check` refuses the address.
#[inline]
pub(super) unsafe fn target<'a>(
    buffer: *mut c_void,
    length: size_t,
) -> Result<&'a mut [u8], Errno> {
    check(buffer as usize, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise, which the program made to the kernel.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) })
}

/// The program's buffer as a slice to write from.
///
/// # Safety
/// As send(2) demands: `length` readable bytes, unless `check` refuses the address.
#[inline]
pub(super) unsafe fn source<'a>(buffer: *const c_void, length: size_t) -> Result<&'a [u8], Errno> {
    check(buffer as usize, length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise, which the program made to the kernel.
    Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), length) })
}
