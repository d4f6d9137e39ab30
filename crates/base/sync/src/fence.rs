//! An asymmetric store-load fence between processes.
//!
//! To sleep without missing a wakeup, both sides need "store, fence, load". A full fence per
//! message would cost the sender most of its message rate, so the sleeper pays for both sides:
//! `membarrier` makes every running processor of a registered process execute a fence, and the
//! sender needs only a compiler fence. If the kernel lacks the call (old version, seccomp), the
//! sender must use a full fence as well. Only the two ends of a connection know this together, so
//! [`light`] takes it as an argument.

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

use crate::sys;

const UNKNOWN: u32 = 0;
const AVAILABLE: u32 = 1;
const MISSING: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

/// Registers this process, once, so that [`heavy`] fences of other processes reach its threads.
/// False if the kernel does not support it: then both sides of every connection must use full
/// fences.
///
/// A forked child inherits the registration. A program registers again after exec.
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

/// The sleeper's half. Every registered process whose [`light`] fence comes later sees the stores
/// that this thread made before. False if only this thread was fenced: the kernel lacks the call,
/// or refuses it since a filter of system calls was set.
pub fn heavy() -> bool {
    fence(Ordering::SeqCst);
    if !register() {
        return false;
    }
    let is_done = sys::membarrier_global();
    if !is_done {
        STATE.store(MISSING, Ordering::Relaxed);
    }
    is_done
}

/// The sender's half. `full` is set if [`register`] failed on either side of the connection.
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
    fn heavy_succeeds_if_the_process_is_registered() {
        let registered = super::register();
        assert_eq!(super::heavy(), registered);
    }
}
