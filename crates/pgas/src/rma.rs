//! Copies to and from other PEs.
//!
//! On the own host a copy is done when the call returns, so a call that need not wait for its end
//! is the same as one that does. A single element of 4 or 8 bytes is one store: whoever waits for
//! it never sees a part. To other hosts a put leaves at once, or with others if it need not.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{Atomic, Width};

use crate::amo;
use crate::far::calls;
use crate::fault::{Fault, raise};
use crate::space::{self, Reach};
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
    // SAFETY: the caller's promise.
    unsafe { put_when::<T, true>(call, via, dest, source, nelems, pe) };
}

/// As [`put`]; it may wait for others, up to the next quiet.
///
/// # Safety
/// As [`put`].
#[inline(always)]
pub unsafe fn put_nbi<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { put_when::<T, false>(call, via, dest, source, nelems, pe) };
}

/// # Safety
/// As [`put`].
#[inline(always)]
unsafe fn put_when<T, const URGENT: bool>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    let bytes = bytes_of::<T>(nelems);
    let pe = match via.reach(call, pe) {
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            // SAFETY: the caller's promise.
            return unsafe { calls::put(call, pe, dest.addr(), source.cast(), bytes, URGENT) };
        }
    };
    if nelems == 0 {
        return;
    }
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
    // SAFETY: the caller's promise.
    unsafe { get_when::<T, true>(call, via, dest, source, nelems, pe) };
}

/// As [`get`]; the elements may come later, up to the next quiet.
///
/// # Safety
/// As [`get`], until then.
#[inline(always)]
pub unsafe fn get_nbi<T>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    // SAFETY: the caller's promise.
    unsafe { get_when::<T, false>(call, via, dest, source, nelems, pe) };
}

/// # Safety
/// As [`get`].
#[inline(always)]
unsafe fn get_when<T, const WAITS: bool>(
    call: &str,
    via: impl Via,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    pe: c_int,
) {
    let bytes = bytes_of::<T>(nelems);
    let pe = match via.reach(call, pe) {
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            // SAFETY: the caller's promise.
            return unsafe { calls::get(call, pe, source.addr(), dest.cast(), bytes, WAITS) };
        }
    };
    if nelems == 0 {
        return;
    }
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
    let pe = match via.reach(call, pe) {
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            let (to, from) = (dest.addr(), (&raw const value).cast());
            // SAFETY: the value is here.
            return unsafe { calls::put(call, pe, to, from, size_of::<T>(), true) };
        }
    };
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
    let pe = match via.reach(call, pe) {
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            let mut value = std::mem::MaybeUninit::<T>::uninit();
            let (from, to) = (source.addr(), value.as_mut_ptr().cast());
            // SAFETY: the variable has room, and is filled in when the call returns. Every type of
            // the table is valid with any bits.
            return unsafe {
                calls::get(call, pe, from, to, size_of::<T>(), true);
                value.assume_init()
            };
        }
    };
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
    let pe = match via.reach(call, pe) {
        _ if bsize == 0 || nblocks == 0 => return,
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            return far_blocks::<T>(nblocks, (dst, sst), |to, from, is_last| {
                let (to, from) = (dest.wrapping_byte_offset(to), source.wrapping_byte_offset(from));
                // SAFETY: the caller's promise.
                unsafe {
                    calls::put(call, pe, to.addr(), from.cast(), bytes_of::<T>(bsize), is_last)
                };
            });
        }
    };
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
    let pe = match via.reach(call, pe) {
        _ if bsize == 0 || nblocks == 0 => return,
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            return far_blocks::<T>(nblocks, (dst, sst), |to, from, is_last| {
                let (to, from) = (dest.wrapping_byte_offset(to), source.wrapping_byte_offset(from));
                // SAFETY: the caller's promise.
                unsafe {
                    calls::get(call, pe, from.addr(), to.cast(), bytes_of::<T>(bsize), is_last)
                };
            });
        }
    };
    let from = strided(call, source, sst, bsize, nblocks, pe);
    // SAFETY: `strided` checked the source; the caller promises the destination.
    unsafe { copy_blocks((from.cast_const(), sst), (dest, dst), bsize, nblocks) };
}

/// Copies elements to a PE, and then changes a signal there. Without elements the signal changes,
/// too. It leaves behind the data, so that these need not hurry.
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
    let change = match sig_op {
        0 => Change::Set,
        1 => Change::Add,
        value => raise(call, &Fault::Constant { what: "signal operation", value }),
    };
    let bytes = bytes_of::<T>(nelems);
    let pe = match via.reach(call, pe) {
        Reach::Near(pe) => pe,
        Reach::Far(pe) => {
            // SAFETY: the caller's promise.
            unsafe { calls::put(call, pe, dest.addr(), source.cast(), bytes, false) };
            return calls::signal_behind(call, pe, sig_addr.addr(), change.atomic(signal), bytes);
        }
    };
    if nelems > 0 {
        let to = space::remote(call, dest.addr(), bytes, pe);
        // SAFETY: `remote` checked the destination; the caller promises the source.
        unsafe { copy::<T>(source.cast(), to, bytes) };
    }
    let word = amo::word_at(call, sig_addr.cast_const(), pe);
    // SAFETY: `word_at` checked the word. Both are behind the data, also where the processor
    // reorders stores.
    unsafe {
        match change {
            Change::Set => AtomicU64::from_ptr(word).store(signal, Ordering::Release),
            Change::Add => drop(AtomicU64::from_ptr(word).fetch_add(signal, Ordering::SeqCst)),
        }
    }
}

/// How a signal changes.
#[derive(Clone, Copy)]
enum Change {
    Set,
    Add,
}

impl Change {
    fn atomic(self, signal: u64) -> Atomic {
        match self {
            Self::Set => Atomic::write(Width::Bits64, signal),
            Self::Add => Atomic::fetch_add(signal).without_result(),
        }
    }
}

/// Calls `copy` with the distances in bytes of the blocks of a copy at strides, and whether it is
/// the last one.
fn far_blocks<T>(
    blocks: usize,
    (dst, sst): (isize, isize),
    mut copy: impl FnMut(isize, isize, bool),
) {
    let distance = |index: usize, stride: isize| {
        let elements = index.cast_signed().wrapping_mul(stride);
        elements.wrapping_mul(const { size_of::<T>().cast_signed() })
    };
    for index in 0..blocks {
        copy(distance(index, dst), distance(index, sst), index + 1 == blocks);
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
