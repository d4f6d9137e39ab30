//! Fence and quiet. Copies are done when their calls return, so what is left is the order in which
//! other processors see them.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence as processor_fence};

use crate::space;
use crate::via::Via;

/// Orders what came before it to each PE.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn fence(call: &str, _via: impl Via) {
    space::expect_started(call);
    processor_fence(Ordering::Release);
}

/// Returns when all that came before it is visible to all PEs: two PEs that both write, call it and
/// then read cannot both miss the other's write.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn quiet(call: &str, _via: impl Via) {
    space::expect_started(call);
    processor_fence(Ordering::SeqCst);
}

/// As [`quiet`], for some PEs.
///
/// # Safety
/// `target_pes` must have `npes` numbers, or may be null without any.
pub unsafe fn pe_quiet(call: &str, via: impl Via, target_pes: *const c_int, npes: usize) {
    space::expect_started(call);
    for index in 0..npes {
        // SAFETY: the caller's promise.
        via.pe(call, unsafe { *target_pes.add(index) });
    }
    processor_fence(Ordering::SeqCst);
}
