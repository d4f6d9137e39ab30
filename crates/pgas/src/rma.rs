//! Copies to and from other PEs.
//!
//! A copy is done when the call returns, so a call that need not wait for its end is the same as
//! one that does. A single element of 4 or 8 bytes is one store: whoever waits for it never sees a
//! part.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence};

use crate::amo;
use crate::fault::{Fault, raise};
use crate::space;
use crate::via::Via;

/// Bytes of some elements. Too many to count are more than any memory has.
#[inline(always)]
const fn bytes_of<T>(elements: usize) -> usize {
    elements.saturating_mul(size_of::<T>())
}

/// Copies bytes. Those of a program may overlap by mistake: the rest of the memory stays right.
///
/// # Safety
/// Both must be memory of so many bytes, the second one writable.
#[inline(always)]
pub(crate) unsafe fn copy<T>(from: *const u8, to: *mut u8, bytes: usize) {
    if bytes == 8 {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
    } else if size_of::<T>() <= 4 && bytes == 4 {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
}

/// Copies elements to a PE.
///
/// # Safety
/// `source` must have `nelems` elements, or may be null without any.
#[inline(always)]
pub unsafe fn put<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    let pe = via.pe(call, pe);
    if nelems == 0 {
        return;
    }
    let bytes = bytes_of::<T>(nelems);
    let to = space::remote(call, dest.addr(), bytes, pe);
    // SAFETY: `remote` checked the destination; the caller promises the source.
    unsafe { copy::<T>(source.cast(), to, bytes) };
}

/// Copies elements from a PE.
///
/// # Safety
/// `dest` must have room for `nelems` elements, or may be null without any.
#[inline(always)]
pub unsafe fn get<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    let pe = via.pe(call, pe);
    if nelems == 0 {
        return;
    }
    let bytes = bytes_of::<T>(nelems);
    let from = space::remote(call, source.addr(), bytes, pe);
    // SAFETY: `remote` checked the source; the caller promises the destination.
    unsafe { copy::<T>(from, dest.cast(), bytes) };
}

/// Stores one element at a PE.
///
/// # Safety
/// None beyond that of a symmetric address, which is checked.
#[inline(always)]
pub unsafe fn p<T: Copy>(call: &str, via: impl Via, dest: *mut T, value: T, pe: c_int) {
    let pe = via.pe(call, pe);
    let to = space::remote(call, dest.addr(), size_of::<T>(), pe).cast::<T>();
    // SAFETY: `remote` checked that the bytes are there.
    unsafe { copy::<T>((&raw const value).cast(), to.cast(), size_of::<T>()) };
}

/// Loads one element from a PE.
///
/// # Safety
/// None beyond that of a symmetric address, which is checked.
#[inline(always)]
pub unsafe fn g<T: Copy>(call: &str, via: impl Via, source: *const T, pe: c_int) -> T {
    let pe = via.pe(call, pe);
    let from = space::remote(call, source.addr(), size_of::<T>(), pe).cast::<T>();
    // SAFETY: `remote` checked that the bytes are there. Every type of the table is valid with any
    // bits.
    unsafe { from.read_unaligned() }
}

/// Where elements at a stride lie at a PE: the first and the last one are checked.
#[inline(always)]
fn strided<T>(
    call: &str,
    symmetric: *const T,
    stride: isize,
    block: usize,
    blocks: usize,
    pe: usize,
) -> *mut T {
    let bytes = bytes_of::<T>(block);
    let first = space::remote(call, symmetric.addr(), bytes, pe);
    let span = stride.saturating_mul(isize::try_from(blocks - 1).unwrap_or(isize::MAX));
    let span = span.saturating_mul(const { size_of::<T>().cast_signed() });
    let last = symmetric.addr().saturating_add_signed(span);
    space::remote(call, last, bytes, pe);
    first.cast()
}

/// Copies blocks between two places with a stride each, in elements.
///
/// # Safety
/// Both must have all blocks.
#[inline(always)]
unsafe fn copy_blocks<T>(
    (from, from_stride): (*const T, isize),
    (to, to_stride): (*mut T, isize),
    block: usize,
    blocks: usize,
) {
    let bytes = bytes_of::<T>(block);
    for index in 0..blocks.cast_signed() {
        let from = from.wrapping_offset(index.wrapping_mul(from_stride));
        let to = to.wrapping_offset(index.wrapping_mul(to_stride));
        // SAFETY: the caller's promise.
        unsafe { copy::<T>(from.cast(), to.cast(), bytes) };
    }
}

/// Copies elements at a stride to a PE.
///
/// # Safety
/// `source` must have `nelems` elements at its stride.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn iput<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    nelems: usize,
    pe: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { ibput(call, via, dest, source, dst, sst, 1, nelems, pe) };
}

/// Copies elements at a stride from a PE.
///
/// # Safety
/// `dest` must have room for `nelems` elements at its stride.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn iget<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    nelems: usize,
    pe: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { ibget(call, via, dest, source, dst, sst, 1, nelems, pe) };
}

/// Copies blocks at a stride to a PE.
///
/// # Safety
/// `source` must have all blocks at its stride.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn ibput<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    bsize: usize,
    nblocks: usize,
    pe: c_int,
) {
    let pe = via.pe(call, pe);
    if bsize == 0 || nblocks == 0 {
        return;
    }
    let to = strided(call, dest.cast_const(), dst, bsize, nblocks, pe);
    // SAFETY: `strided` checked the destination; the caller promises the source.
    unsafe { copy_blocks((source, sst), (to, dst), bsize, nblocks) };
}

/// Copies blocks at a stride from a PE.
///
/// # Safety
/// `dest` must have room for all blocks at its stride.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn ibget<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    bsize: usize,
    nblocks: usize,
    pe: c_int,
) {
    let pe = via.pe(call, pe);
    if bsize == 0 || nblocks == 0 {
        return;
    }
    let from = strided(call, source, sst, bsize, nblocks, pe);
    // SAFETY: `strided` checked the source; the caller promises the destination.
    unsafe { copy_blocks((from.cast_const(), sst), (dest, dst), bsize, nblocks) };
}

/// Copies elements to a PE, and then changes a signal there. Without elements the signal changes,
/// too.
///
/// # Safety
/// As [`put`].
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn put_signal<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    sig_addr: *mut u64,
    signal: u64,
    sig_op: c_int,
    pe: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { put(call, via, dest, source, nelems, pe) };
    // The signal is behind the data, also where the processor reorders stores.
    fence(Ordering::Release);
    // SAFETY: the address is checked.
    unsafe {
        match sig_op {
            0 => amo::signal_set(call, via, sig_addr, signal, pe),
            1 => amo::signal_add(call, via, sig_addr, signal, pe),
            value => raise(call, &Fault::Constant { what: "signal operation", value }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_overlap_are_moved() {
        let mut bytes: Vec<u8> = (0..24).collect();
        let start = bytes.as_mut_ptr();
        // SAFETY: both are inside of the 24 bytes.
        unsafe { copy::<u8>(start, start.wrapping_add(2), 20) };
        let expected: Vec<u8> = [0, 1].into_iter().chain(0..20).chain([22, 23]).collect();
        assert_eq!(bytes, expected);
    }
}
