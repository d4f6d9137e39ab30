//! The program's signal handlers, which loading libfabric must not change.
//!
//! Debian's libfabric pulls in libraries whose initializers set handlers of their own, also where
//! the program has some or ignores the signal: it would end without its shutdown, or with a
//! backtrace in place of a core file.

use std::mem::MaybeUninit;

/// Signals that can have a handler are among those with lower numbers.
const SIGNALS_END: i32 = 32;

/// The dispositions of all signals at some moment.
pub struct Dispositions(Vec<(i32, libc::sigaction)>);

impl Dispositions {
    /// Those that are in force.
    pub fn now() -> Self {
        let of = |signal: i32| Some((signal, disposition(signal)?));
        Self((1..SIGNALS_END).filter_map(of).collect())
    }

    /// Sets again what has changed since. A signal that comes in between meets the other handler.
    pub fn restore(&self) {
        for (signal, former) in &self.0 {
            let changed = disposition(*signal).is_some_and(|now| {
                now.sa_sigaction != former.sa_sigaction || now.sa_flags != former.sa_flags
            });
            if changed {
                // SAFETY: the disposition is one that the kernel told, with its handler in place.
                let _ = unsafe { libc::sigaction(*signal, former, std::ptr::null_mut()) };
            }
        }
    }
}

fn disposition(signal: i32) -> Option<libc::sigaction> {
    let mut found = MaybeUninit::uninit();
    // SAFETY: the call fills `found` if it returns 0.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) };
    // SAFETY: as above.
    (code == 0).then(|| unsafe { found.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_was_replaced_is_back() {
        let before = disposition(libc::SIGUSR2).expect("it can have a handler");
        let former = Dispositions::now();
        // SAFETY: to ignore a signal that nobody sends changes nothing else.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        let ignored = disposition(libc::SIGUSR2).expect("it can have a handler");
        assert_eq!(ignored.sa_sigaction, libc::SIG_IGN);
        former.restore();
        let after = disposition(libc::SIGUSR2).expect("it can have a handler");
        assert_eq!(after.sa_sigaction, before.sa_sigaction);
    }
}
