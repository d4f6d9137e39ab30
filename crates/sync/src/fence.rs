//! An asymmetric store-load fence between processes.
//!
//! Sleeping safely needs "store, fence, load" on both sides. A full fence per message costs the
//! sender most of its message rate, so the sleeper pays for both: `membarrier` makes every running
//! processor that belongs to a registered process execute a fence, and the sender's half is only
//! an order to the compiler. Where the call is missing (old kernel, seccomp) the sender must use
//! the full fence: [`light`] takes that as its argument, since only the pair knows.

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

use crate::sys;

const UNKNOWN: u32 = 0;
const AVAILABLE: u32 = 1;
const MISSING: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Registers this process as one whose threads [`heavy`] of others reaches, once; false when the
/// kernel does not offer it, so that both sides of every pair must use full fences.
///
/// A forked child inherits the registration; an exec'ed program registers again.
pub fn register() -> bool {
    match STATE.load(Ordering::Relaxed) {
        AVAILABLE => true,
        MISSING => false,
        _ => {
            let available = sys::membarrier_register();
            let state = if available { AVAILABLE } else { MISSING };
            STATE.store(state, Ordering::Relaxed);
            available
        }
    }
}

/// The sleeper's half: whatever this thread stored before is seen by every registered process
/// whose light fence comes later. False when only this thread was fenced.
pub fn heavy() -> bool {
    fence(Ordering::SeqCst);
    register() && sys::membarrier_global()
}

/// The half of those who are awake; `full` when either side of the pair lacks [`register`].
#[inline(always)]
pub fn light(full: bool) {
    if full {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn heavy_tells_the_truth_about_registration() {
        let registered = super::register();
        assert_eq!(super::heavy(), registered);
    }
}
