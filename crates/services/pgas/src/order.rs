//! Fence and quiet. Copies on the own host are done when their calls return, so what is left is the
//! order in which other processors see them. Those to other hosts are under way.

use std::ffi::c_int;
use std::sync::atomic::{Ordering, fence as processor_fence};

use crate::far;
use crate::space::{self, Reach};
use crate::via::Via;

/// Orders what came before it to each PE.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn fence(call: &str, _via: impl Via) {
    if !space::is_all_near() {
        fence_far(call);
    }
    processor_fence(Ordering::Release);
}

/// Returns when all that came before it is visible to all PEs: two PEs that both write, call it and
/// then read cannot both miss the other's write.
///
/// # Safety
/// None; it has the form of the others.
#[inline(always)]
pub unsafe fn quiet(call: &str, _via: impl Via) {
    if !space::is_all_near() {
        quiet_far(call);
    }
    processor_fence(Ordering::SeqCst);
}

/// As [`quiet`], for some PEs.
///
/// # Safety
/// `target_pes` must have `npes` numbers, or may be null without any.
pub unsafe fn pe_quiet(call: &str, via: impl Via, target_pes: *const c_int, npes: usize) {
    space::expect_started(call);
    let mut far = Vec::new();
    for index in 0..npes {
        // SAFETY: the caller's promise.
        match via.reach(call, unsafe { *target_pes.add(index) }) {
            Reach::Near(_) => {}
            Reach::Far(pe) => far.push(pe),
        }
    }
    if !far.is_empty() {
        far::remote().quiet(call, Some(&far));
    }
    processor_fence(Ordering::SeqCst);
}

#[cold]
#[inline(never)]
fn fence_far(call: &str) {
    space::expect_started(call);
    far::remote().fence();
}

/// Waits until all that came before is visible at PEs of other hosts.
#[cold]
#[inline(never)]
pub(crate) fn quiet_far(call: &str) {
    space::expect_started(call);
    far::remote().quiet(call, None);
}
