//! The operations of the program on PEs of other hosts. They are apart from those on the own host,
//! whose code stays as short as it is.

use weft_fabric::{Atomic, AtomicOperation, Width};

use super::driver::INLINE_BYTES;
use super::remote;
use crate::amo::{Atom, misaligned};
use crate::space;

/// Puts bytes.
///
/// # Safety
/// `from` must have the bytes, or may be null without any.
#[cold]
#[inline(never)]
pub(crate) unsafe fn put(
    call: &str,
    pe: usize,
    to: usize,
    from: *const u8,
    bytes: usize,
    urgent: bool,
) {
    if bytes == 0 {
        return;
    }
    let place = space::place_of(call, to, bytes);
    // SAFETY: the caller's promise.
    unsafe { remote().put(call, (pe, place), from, bytes, urgent) };
}

/// Gets bytes.
///
/// # Safety
/// `to` must have room for the bytes, until the next quiet if it does not wait.
#[cold]
#[inline(never)]
pub(crate) unsafe fn get(
    call: &str,
    pe: usize,
    from: usize,
    to: *mut u8,
    bytes: usize,
    waits: bool,
) {
    if bytes == 0 {
        return;
    }
    let place = space::place_of(call, from, bytes);
    // SAFETY: the caller's promise.
    unsafe { remote().get(call, (pe, place), to, bytes, waits) };
}

/// Changes a signal behind a put of so many bytes.
#[cold]
#[inline(never)]
pub(crate) fn signal_behind(call: &str, pe: usize, at: usize, atomic: Atomic, bytes: usize) {
    let word = std::ptr::without_provenance::<u64>(at);
    if !word.is_aligned() {
        misaligned(call, word);
    }
    // Messages are in order, and a large put is not among them.
    if bytes > INLINE_BYTES {
        remote().fence();
    }
    remote().change(call, (pe, space::place_of(call, at, size_of::<u64>())), atomic);
}

/// The bits of a word.
fn bits<T: Atom>(word: T) -> u64 {
    let mut bits = [0; 8];
    // SAFETY: words have 4 or 8 bytes, and any bytes are numbers.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const word).cast(), bits.as_mut_ptr(), size_of::<T>());
    }
    u64::from_le_bytes(bits)
}

/// The word with some bits.
pub(crate) fn word<T: Atom>(bits: u64) -> T {
    let bits = bits.to_le_bytes();
    // SAFETY: words have 4 or 8 bytes, and are valid with any bits.
    unsafe { bits.as_ptr().cast::<T>().read_unaligned() }
}

/// An atomic of the width of a type, by an operand and, for a comparison, the value to compare
/// with.
pub(crate) fn atomic<T: Atom>(operation: AtomicOperation, operands: Option<(T, T)>) -> Atomic {
    let width = if size_of::<T>() == 4 { Width::Bits32 } else { Width::Bits64 };
    let (operand, compare) = operands.map_or((0, 0), |(one, other)| (bits(one), bits(other)));
    let compare = if operation == AtomicOperation::CompareSwap { compare } else { 0 };
    Atomic { compare, ..Atomic::new(operation, width, operand) }
}

/// The place of a word of a PE.
fn place<T>(call: &str, at: *const T) -> super::Place {
    if !at.is_aligned() {
        misaligned(call, at);
    }
    space::place_of(call, at.addr(), size_of::<T>())
}

/// Changes a word by an operand, and gives its former value.
#[cold]
#[inline(never)]
pub(crate) fn fetch<T: Atom>(
    call: &str,
    (pe, at): (usize, *const T),
    operation: AtomicOperation,
    operands: Option<(T, T)>,
) -> T {
    word(remote().fetch(call, (pe, place(call, at)), atomic(operation, operands)))
}

/// Changes a word by an operand.
#[cold]
#[inline(never)]
pub(crate) fn change<T: Atom>(
    call: &str,
    (pe, at): (usize, *mut T),
    operation: AtomicOperation,
    operand: T,
) {
    let atomic = atomic(operation, Some((operand, operand))).without_result();
    remote().change(call, (pe, place(call, at.cast_const())), atomic);
}

/// Changes a word by an operand. Its former value comes to `into`, up to the next quiet.
///
/// # Safety
/// `into` must have room for the word until then.
#[cold]
#[inline(never)]
pub(crate) unsafe fn fetch_later<T: Atom>(
    call: &str,
    (pe, at): (usize, *const T),
    operation: AtomicOperation,
    operands: Option<(T, T)>,
    into: *mut T,
) {
    let atomic = atomic(operation, operands);
    // SAFETY: the caller's promise.
    unsafe { remote().fetch_later(call, (pe, place(call, at)), atomic, into.cast()) };
}
