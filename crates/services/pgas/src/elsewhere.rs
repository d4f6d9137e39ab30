//! Operations on a PE that the bound of one host does not tell ([`Via::near`]): in a job across
//! hosts any PE, and else a number that is wrong.
//!
//! # Invariant
//! An operation on one host returns straight from here, or does not come here. So its registers
//! are not kept over a call, and each of these functions is compiled once, out of its way. Their
//! parameters have the order of those of the exported functions, so that they stay where they are.

use std::ffi::c_int;

use weft_fabric::AtomicOperation;

use crate::amo::{Atom, word_at};
use crate::far::{calls, own};
use crate::rma::{self, Blocks, Signal};
use crate::space::Reach;
use crate::via::Via;

/// Puts bytes.
///
/// # Safety
/// As [`rma::put`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn put<const URGENT: bool>(
    to: usize,
    from: *const u8,
    bytes: usize,
    pe: c_int,
    call: &str,
    via: impl Via,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match via.reach(call, pe) {
            Reach::Near(pe) => rma::put_near::<u8>(call, to, from, bytes, pe),
            Reach::Far(pe) => calls::put(call, pe, to, from, bytes, URGENT),
        }
    }
}

/// Puts an element. Its value is in memory here alone.
///
/// # Safety
/// As [`rma::p`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn p<T: Copy>(to: *mut T, value: T, pe: c_int, call: &str, via: impl Via) {
    let from = (&raw const value).cast();
    // SAFETY: the value is here.
    unsafe { put::<true>(to.addr(), from, size_of::<T>(), pe, call, via) };
}

/// Gets bytes.
///
/// # Safety
/// As [`rma::get`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn get<const WAITS: bool>(
    to: *mut u8,
    from: usize,
    bytes: usize,
    pe: c_int,
    call: &str,
    via: impl Via,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match via.reach(call, pe) {
            Reach::Near(pe) => rma::get_near::<u8>(call, to, from, bytes, pe),
            Reach::Far(pe) => calls::get(call, pe, from, to, bytes, WAITS),
        }
    }
}

/// Puts blocks at strides.
///
/// # Safety
/// As [`rma::ibput`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn put_blocks<T>(
    to: (*mut T, isize),
    from: (*const T, isize),
    blocks: Blocks,
    pe: c_int,
    call: &str,
    via: impl Via,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match via.reach(call, pe) {
            Reach::Near(pe) => rma::put_blocks_near(call, to, from, blocks, pe),
            Reach::Far(pe) => each_block(to, from, blocks, |to, from, bytes, is_last| {
                calls::put(call, pe, to.addr(), from, bytes, is_last);
            }),
        }
    }
}

/// Gets blocks at strides.
///
/// # Safety
/// As [`rma::ibget`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn get_blocks<T>(
    to: (*mut T, isize),
    from: (*const T, isize),
    blocks: Blocks,
    pe: c_int,
    call: &str,
    via: impl Via,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match via.reach(call, pe) {
            Reach::Near(pe) => rma::get_blocks_near(call, to, from, blocks, pe),
            Reach::Far(pe) => each_block(to, from, blocks, |to, from, bytes, is_last| {
                calls::get(call, pe, from.addr(), to, bytes, is_last);
            }),
        }
    }
}

/// Calls `copy` with both places of each block, its bytes, and whether it is the last one.
fn each_block<T>(
    (to, to_stride): (*mut T, isize),
    (from, from_stride): (*const T, isize),
    blocks: Blocks,
    mut copy: impl FnMut(*mut u8, *const u8, usize, bool),
) {
    let bytes = rma::bytes_of::<T>(blocks.elements);
    for index in 0..blocks.count {
        let distance = |stride: isize| index.cast_signed().wrapping_mul(stride);
        let to = to.wrapping_offset(distance(to_stride)).cast();
        let from = from.wrapping_offset(distance(from_stride)).cast();
        copy(to, from, bytes, index + 1 == blocks.count);
    }
}

/// Puts bytes, and then changes a signal.
///
/// # Safety
/// As [`rma::put_signal`].
#[cold]
#[inline(never)]
pub(crate) unsafe fn put_signal(
    to: usize,
    (from, bytes): (*const u8, usize),
    (signal, at): (Signal, *mut u64),
    pe: c_int,
    call: &str,
    via: impl Via,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match via.reach(call, pe) {
            Reach::Near(pe) => {
                rma::put_near::<u8>(call, to, from, bytes, pe);
                rma::signal_near(call, signal, at, pe);
            }
            Reach::Far(pe) => {
                calls::put(call, pe, to, from, bytes, false);
                calls::signal_behind(call, pe, at.addr(), signal.atomic(), bytes);
            }
        }
    }
}

/// Changes a word of a PE, and gives its former value.
fn changed<T: Atom>(
    call: &str,
    reach: Reach,
    at: *const T,
    operation: AtomicOperation,
    operands: (T, T),
) -> T {
    const { assert!(size_of::<T>() == 4 || size_of::<T>() == 8, "atomics have these widths") };
    match reach {
        Reach::Near(pe) => {
            let word = word_at(call, at, pe).cast();
            // SAFETY: `word_at` checked the word.
            calls::word(unsafe { own::changed(word, calls::atomic(operation, Some(operands))) })
        }
        Reach::Far(pe) => calls::fetch(call, (pe, at), operation, Some(operands)),
    }
}

/// Changes a word by an operand, and gives its former value.
#[cold]
#[inline(never)]
pub(crate) fn fetch<T: Atom>(
    at: *const T,
    operand: T,
    pe: c_int,
    operation: AtomicOperation,
    call: &str,
    via: impl Via,
) -> T {
    changed(call, via.reach(call, pe), at, operation, (operand, operand))
}

/// Loads a word.
#[cold]
#[inline(never)]
pub(crate) fn load<T: Atom>(at: *const T, pe: c_int, call: &str, via: impl Via) -> T {
    match via.reach(call, pe) {
        // SAFETY: `word_at` checked the word.
        Reach::Near(pe) => unsafe { T::load(word_at(call, at, pe)) },
        Reach::Far(pe) => calls::fetch(call, (pe, at), AtomicOperation::Read, None),
    }
}

/// Stores a word if it has a value, and gives the former one.
#[cold]
#[inline(never)]
pub(crate) fn compare_swap<T: Atom>(
    at: *const T,
    cond: T,
    value: T,
    pe: c_int,
    call: &str,
    via: impl Via,
) -> T {
    changed(call, via.reach(call, pe), at, AtomicOperation::CompareSwap, (value, cond))
}

/// Changes a word by an operand.
#[cold]
#[inline(never)]
pub(crate) fn change<T: Atom>(
    at: *mut T,
    operand: T,
    pe: c_int,
    operation: AtomicOperation,
    call: &str,
    via: impl Via,
) {
    match via.reach(call, pe) {
        near @ Reach::Near(_) => {
            changed(call, near, at, operation, (operand, operand));
        }
        Reach::Far(pe) => calls::change(call, (pe, at), operation, operand),
    }
}

/// Changes a word by an operand. Its former value comes to `into`, up to the next quiet. Without
/// operands the word is loaded.
///
/// # Safety
/// `into` must have room for the word until then.
#[cold]
#[inline(never)]
pub(crate) unsafe fn fetch_later<T: Atom>(
    (into, at): (*mut T, *const T),
    operands: Option<(T, T)>,
    pe: c_int,
    operation: AtomicOperation,
    call: &str,
    via: impl Via,
) {
    match (via.reach(call, pe), operands) {
        // SAFETY: the caller's promise.
        (Reach::Far(pe), operands) => unsafe {
            calls::fetch_later(call, (pe, at), operation, operands, into);
        },
        (near, Some(operands)) => {
            let former = changed(call, near, at, operation, operands);
            // SAFETY: the caller's promise.
            unsafe { into.write_unaligned(former) };
        }
        // SAFETY: the caller's promise.
        (_, None) => unsafe { into.write_unaligned(load(at, pe, call, via)) },
    }
}
