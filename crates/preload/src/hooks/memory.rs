//! The program's memory, as it names it in calls: what no program can have there is EFAULT, as the
//! kernel says, and not a fault in this library.
//!
//! Two comparisons tell addresses that programs have from those that they never have; the kernel is
//! asked about the rest. A hole inside the range that programs have is not looked for: the copy
//! into or out of it faults as the program's own access would.

use libc::{c_void, size_t};
use rustix::io::Errno;

use crate::sys;

/// Below this only a program maps that may do raw input and output.
const LOWEST: usize = 4096;
/// Above this only a program maps that asks for it by address (five levels of page tables).
const HIGHEST: usize = (1 << 47) - LOWEST;

/// `EFAULT` when nothing can be mapped at some of the `length` bytes from `address` on.
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
        // SAFETY: mincore writes one byte, for one page; of an address that is not mapped it says
        // so.
        if unsafe { sys::raw(libc::SYS_mincore, words) } < 0 {
            return Err(Errno::FAULT);
        }
    }
    Ok(())
}

/// The program's buffer as a slice to read into.
///
/// # Safety
/// As recv(2) demands: `length` writable bytes, unless it is an address that no program has.
#[inline]
pub(super) unsafe fn target<'a>(
    buffer: *mut c_void,
    length: size_t,
) -> Result<&'a mut [u8], Errno> {
    check(buffer as usize, length)?;
    if length == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller's promise, which is the program's to its kernel.
    Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) })
}

/// The program's buffer as a slice to write from.
///
/// # Safety
/// As send(2) demands: `length` readable bytes, unless it is an address that no program has.
#[inline]
pub(super) unsafe fn source<'a>(buffer: *const c_void, length: size_t) -> Result<&'a [u8], Errno> {
    check(buffer as usize, length)?;
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller's promise, which is the program's to its kernel.
    Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), length) })
}
