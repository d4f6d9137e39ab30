//! A filter of system calls takes the heavy fence away after the process was registered. From then
//! on the process says so, so that its peers execute full fences.
//!
//! This program has one test: the filter, and what it changes, hold for the whole process.
#![cfg(all(target_os = "linux", not(loom)))]
#![allow(clippy::disallowed_methods, reason = "tests own threads")]

use weft_sync::fence::{heavy, register};

/// Has the kernel refuse membarrier(2) to this thread.
fn refuse_membarrier() {
    let [load, jump_if_equal, give] = [0x20, 0x15, 0x06];
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = u32::try_from(libc::SYS_membarrier).expect("a small number");
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut filter = [
        step(load, 0, 0, 0),
        step(jump_if_equal, 0, 1, number),
        step(give, 0, 0, refused),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes numbers alone.
    let is_bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(is_bound, 0);
    // SAFETY: the program and its filter live past the call.
    let is_set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(is_set, 0, "this kernel has no filters of system calls");
}

#[test]
fn a_fence_that_was_refused_once_is_missing_for_good() {
    assert!(heavy(), "this kernel has no membarrier");
    let refused = std::thread::spawn(|| {
        refuse_membarrier();
        heavy()
    });
    assert!(!refused.join().expect("no panic"), "the fence was refused, and nobody noticed");
    assert!(!register(), "the next connection would be told that the fence is there");
    assert!(!heavy());
}
