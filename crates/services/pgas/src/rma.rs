//! Copies to and from other PEs.
//!
//! On the own host a copy is done when the call returns, so a call that need not wait for its end
//! is the same as one that does. A single element of 4 or 8 bytes is one store: whoever waits for
//! it never sees a part. To other hosts a put leaves at once, or with others if it need not.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{Atomic, Width};

use crate::amo;
use crate::elsewhere;
use crate::fault::{Fault, raise};
use crate::space;
use crate::via::Via;

/// Bytes of some elements. Too many to count are more than any memory has.
#[inline(always)]
pub(crate) const fn bytes_of<T>(elements: usize) -> usize {
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
    // SAFETY: the caller's promise.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => put_near::<T>(call, dest.addr(), source.cast(), bytes, pe),
            None => {
                elsewhere::put::<URGENT>(dest.addr(), source.cast(), bytes, pe, call, via);
            }
        }
    }
}

/// Copies bytes of elements to a PE of this host.
///
/// # Safety
/// As [`put`].
#[inline(always)]
pub(crate) unsafe fn put_near<T>(call: &str, to: usize, from: *const u8, bytes: usize, pe: usize) {
    if bytes == 0 {
        return;
    }
    let to = space::remote(call, to, bytes, pe);
    // SAFETY: `remote` checked the destination; the caller promises the source.
    unsafe { copy::<T>(from, to, bytes) };
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
    // SAFETY: the caller's promise.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => get_near::<T>(call, dest.cast(), source.addr(), bytes, pe),
            None => elsewhere::get::<WAITS>(dest.cast(), source.addr(), bytes, pe, call, via),
        }
    }
}

/// Copies bytes of elements from a PE of this host.
///
/// # Safety
/// As [`get`].
#[inline(always)]
pub(crate) unsafe fn get_near<T>(call: &str, to: *mut u8, from: usize, bytes: usize, pe: usize) {
    if bytes == 0 {
        return;
    }
    let from = space::remote(call, from, bytes, pe);
    // SAFETY: `remote` checked the source; the caller promises the destination.
    unsafe { copy::<T>(from, to, bytes) };
}

/// Stores one element at a PE.
///
/// # Safety
/// None beyond that of a symmetric address, which is checked.
#[inline(always)]
pub unsafe fn p<T: Copy>(call: &str, via: impl Via, dest: *mut T, value: T, pe: c_int) {
    let Some(pe) = via.near(call, pe) else {
        // SAFETY: the caller's promise.
        return unsafe { elsewhere::p(dest, value, pe, call, via) };
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
    let Some(pe) = via.near(call, pe) else {
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        let (to, from) = (value.as_mut_ptr().cast(), source.addr());
        // SAFETY: the variable has room, and is filled in when the call returns. Every type of
        // the table is valid with any bits.
        return unsafe {
            elsewhere::get::<true>(to, from, size_of::<T>(), pe, call, via);
            value.assume_init()
        };
    };
    let from = space::remote(call, source.addr(), size_of::<T>(), pe).cast::<T>();
    // SAFETY: `remote` checked that the bytes are there. Every type of the table is valid with any
    // bits.
    unsafe { from.read_unaligned() }
}

/// Blocks of a copy at strides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocks {
    /// Elements of a block.
    pub elements: usize,
    /// Blocks.
    pub count: usize,
}

impl Blocks {
    #[inline(always)]
    const fn is_empty(self) -> bool {
        self.elements == 0 || self.count == 0
    }
}

/// Where elements at a stride lie at a PE: the first and the last one are checked.
#[inline(always)]
fn strided<T>(
    call: &str,
    (symmetric, stride): (*const T, isize),
    blocks: Blocks,
    pe: usize,
) -> *mut T {
    let bytes = bytes_of::<T>(blocks.elements);
    let first = space::remote(call, symmetric.addr(), bytes, pe);
    let span = stride.saturating_mul(isize::try_from(blocks.count - 1).unwrap_or(isize::MAX));
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
    (to, to_stride): (*mut T, isize),
    (from, from_stride): (*const T, isize),
    blocks: Blocks,
) {
    let bytes = bytes_of::<T>(blocks.elements);
    for index in 0..blocks.count.cast_signed() {
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
    let (to, from) = ((dest, dst), (source, sst));
    let blocks = Blocks { elements: bsize, count: nblocks };
    // SAFETY: the caller's promise.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => put_blocks_near(call, to, from, blocks, pe),
            None => elsewhere::put_blocks(to, from, blocks, pe, call, via),
        }
    }
}

/// Copies blocks at a stride to a PE of this host.
///
/// # Safety
/// As [`ibput`].
#[inline(always)]
pub(crate) unsafe fn put_blocks_near<T>(
    call: &str,
    to: (*mut T, isize),
    from: (*const T, isize),
    blocks: Blocks,
    pe: usize,
) {
    if blocks.is_empty() {
        return;
    }
    let start = strided(call, (to.0.cast_const(), to.1), blocks, pe);
    // SAFETY: `strided` checked the destination; the caller promises the source.
    unsafe { copy_blocks((start, to.1), from, blocks) };
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
    let (to, from) = ((dest, dst), (source, sst));
    let blocks = Blocks { elements: bsize, count: nblocks };
    // SAFETY: the caller's promise.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => get_blocks_near(call, to, from, blocks, pe),
            None => elsewhere::get_blocks(to, from, blocks, pe, call, via),
        }
    }
}

/// Copies blocks at a stride from a PE of this host.
///
/// # Safety
/// As [`ibget`].
#[inline(always)]
pub(crate) unsafe fn get_blocks_near<T>(
    call: &str,
    to: (*mut T, isize),
    from: (*const T, isize),
    blocks: Blocks,
    pe: usize,
) {
    if blocks.is_empty() {
        return;
    }
    let start = strided(call, from, blocks, pe);
    // SAFETY: `strided` checked the source; the caller promises the destination.
    unsafe { copy_blocks(to, (start.cast_const(), from.1), blocks) };
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
    let signal = match sig_op {
        0 => Signal::Set(signal),
        1 => Signal::Add(signal),
        value => raise(call, &Fault::Constant { what: "signal operation", value }),
    };
    let (to, from, bytes) = (dest.addr(), source.cast(), bytes_of::<T>(nelems));
    // SAFETY: the caller's promise.
    unsafe {
        match via.near(call, pe) {
            Some(pe) => {
                put_near::<T>(call, to, from, bytes, pe);
                signal_near(call, signal, sig_addr, pe);
            }
            None => {
                elsewhere::put_signal(to, (from, bytes), (signal, sig_addr), pe, call, via);
            }
        }
    }
}

/// Changes a signal of a PE of this host, behind what was put there.
///
/// # Safety
/// None beyond that of a symmetric address, which is checked.
#[inline(always)]
pub(crate) unsafe fn signal_near(call: &str, signal: Signal, at: *mut u64, pe: usize) {
    let word = amo::word_at(call, at.cast_const(), pe);
    // SAFETY: `word_at` checked the word. Both are behind the data, also where the processor
    // reorders stores.
    unsafe {
        match signal {
            Signal::Set(value) => AtomicU64::from_ptr(word).store(value, Ordering::Release),
            Signal::Add(value) => {
                AtomicU64::from_ptr(word).fetch_add(value, Ordering::SeqCst);
            }
        }
    }
}

/// How a signal changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Signal {
    /// It is stored.
    Set(u64),
    /// It is added.
    Add(u64),
}

impl Signal {
    /// The change as an atomic of a word.
    pub fn atomic(self) -> Atomic {
        match self {
            Self::Set(value) => Atomic::write(Width::Bits64, value),
            Self::Add(value) => Atomic::fetch_add(value).without_result(),
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
