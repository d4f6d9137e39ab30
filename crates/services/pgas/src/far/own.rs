//! The memory of this PE, as messages of PEs of other hosts change it.
//!
//! # Invariants
//! - What a peer names is checked against the layout before it is used.
//! - Words are changed by atomics of the processor, which also PEs of the own host use.

use std::sync::atomic::{
    AtomicU16, AtomicU32, AtomicU64,
    Ordering::{Release, SeqCst},
};

use weft_fabric::{Atomic, AtomicOperation, Width};

use super::entry::{Breach, Place, Segment};
use super::machine::Memory;
use crate::amo::Whole;
use crate::control::Control;
use crate::space;

/// The memory of this PE.
#[derive(Clone, Copy, Debug)]
pub struct Own(());

impl Own {
    /// The memory of the space.
    ///
    /// # Safety
    /// The space must have been opened once. Addresses that questions name to be answered to
    /// ([`super::machine::Goes::To`]) must be writable for the bytes that are asked for until the
    /// answer came.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self(())
    }
}

fn outside(place: Place, bytes: usize) -> Breach {
    let segment = match place.segment {
        Segment::Heap => "heap",
        Segment::Statics => "variables",
    };
    Breach::Outside { segment, offset: place.offset, bytes }
}

/// The address of bytes of this PE.
fn find(place: Place, bytes: usize) -> Result<*mut u8, Breach> {
    let offset = usize::try_from(place.offset).ok();
    offset.and_then(|offset| space::own(place.segment, offset, bytes)).ok_or(outside(place, bytes))
}

/// Copies bytes to memory. A word is one store, behind what was copied before.
///
/// # Safety
/// The memory must be writable, and stay mapped.
unsafe fn store(to: *mut u8, bytes: &[u8]) {
    macro_rules! word {
        ($atomic:ty, $number:ty) => {
            if let Ok(word) = bytes.try_into()
                && to.cast::<$atomic>().is_aligned()
            {
                // SAFETY: the caller promises the memory, and it is aligned. Others access it by
                // atomics, or race as the program has them.
                let place = unsafe { <$atomic>::from_ptr(to.cast()) };
                return place.store(<$number>::from_ne_bytes(word), Release);
            }
        };
    }
    word!(AtomicU64, u64);
    word!(AtomicU32, u32);
    word!(AtomicU16, u16);
    // SAFETY: the caller's promise. The bytes of a message are not symmetric memory.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

/// Changes a word, and gives its former value.
///
/// # Safety
/// The word must be mapped and aligned.
unsafe fn change<T: Whole>(word: *mut T, operation: AtomicOperation, operand: T, compare: T) -> T {
    // SAFETY: the caller's promise.
    unsafe {
        match operation {
            AtomicOperation::Read => T::load(word),
            AtomicOperation::FetchAdd => T::plus(word, operand),
            AtomicOperation::Swap => T::exchange(word, operand),
            AtomicOperation::CompareSwap => T::exchanged_if(word, compare, operand),
            AtomicOperation::And => T::masked(word, operand),
            AtomicOperation::Or => T::joined(word, operand),
            AtomicOperation::Xor => T::flipped(word, operand),
        }
    }
}

/// Changes a word of the width of an atomic, and gives its former value.
///
/// # Safety
/// The word must be mapped and aligned.
pub(crate) unsafe fn changed(word: *mut u8, atomic: Atomic) -> u64 {
    let Atomic { operation, operand, compare, .. } = atomic;
    match atomic.width {
        // SAFETY: the caller's promise.
        Width::Bits64 => unsafe { change(word.cast::<u64>(), operation, operand, compare) },
        Width::Bits32 => {
            // The upper halves are zero by the rules, and are not looked at.
            let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
            let (operand, compare) = (half(operand), half(compare));
            // SAFETY: the caller's promise.
            unsafe { change(word.cast::<u32>(), operation, operand, compare) }.into()
        }
    }
}

impl Memory for Own {
    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Breach> {
        let to = find(place, bytes.len())?;
        // SAFETY: `find` checked that the bytes are in the symmetric memory of this PE.
        unsafe { store(to, bytes) };
        Ok(())
    }

    fn read(&mut self, place: Place, into: &mut [u8]) -> Result<(), Breach> {
        let from = find(place, into.len())?;
        // Changes by other messages and PEs of this host are seen.
        std::sync::atomic::fence(SeqCst);
        // SAFETY: `find` checked that the bytes are in the symmetric memory of this PE, of which
        // `into` is no part.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn change(&mut self, place: Place, atomic: Atomic) -> Result<u64, Breach> {
        let bytes = match atomic.width {
            Width::Bits32 => 4,
            Width::Bits64 => 8,
        };
        let word = find(place, bytes)?;
        if !word.addr().is_multiple_of(bytes) {
            return Err(outside(place, bytes));
        }
        // SAFETY: `find` checked the word, and it is aligned.
        Ok(unsafe { changed(word, atomic) })
    }

    fn show(&mut self, of: usize, offset: usize, bytes: &[u8]) -> Result<(), Breach> {
        let end = offset.checked_add(bytes.len()).filter(|end| *end <= Control::BYTES);
        if end.is_none() || !space::is_far(of) {
            let offset = offset as u64;
            return Err(Breach::Outside { segment: "control area", offset, bytes: bytes.len() });
        }
        let to = space::control(of).cast::<u8>().cast_mut().wrapping_add(offset);
        // SAFETY: the control area of a PE of another host is a copy in this process, which was
        // promised when the space was opened, and the bytes are in it.
        unsafe { store(to, bytes) };
        Ok(())
    }

    fn land(&mut self, at: usize, bytes: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: the maker of this value promised that the program gave memory for the answer.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}
