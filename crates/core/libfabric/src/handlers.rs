//! The program's signal handlers, while code runs that sets its own.
//!
//! Libraries that libfabric pulls in do so when they are loaded, whatever was there before. That of
//! Debian does for SIGINT, SIGTERM, SIGSEGV and others (libinfinipath): a program would end by
//! SIGTERM without its shutdown, and without a core file after a fault.

use std::ffi::c_int;

/// The signals, apart from those of real time, which such libraries leave alone.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=31;

/// Calls `call`, and sets the handlers again that it changed. In between a signal may meet the
/// others, and what another thread sets is lost.
pub fn kept<R>(call: impl FnOnce() -> R) -> R {
    let before: Vec<_> = SIGNALS.filter_map(|signal| Some((signal, get(signal)?))).collect();
    let result = call();
    for (signal, former) in before {
        let is_same = |now: libc::sigaction| {
            (now.sa_sigaction, now.sa_flags) == (former.sa_sigaction, former.sa_flags)
        };
        if !get(signal).is_some_and(is_same) {
            // SAFETY: this was the handler before the call. SIGKILL and SIGSTOP are refused.
            unsafe { libc::sigaction(signal, &raw const former, std::ptr::null_mut()) };
        }
    }
    result
}

fn get(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: all zeros are a valid structure, without a handler.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the handler alone, and writes to the structure.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    (code == 0).then_some(now)
}
