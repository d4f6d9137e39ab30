//! Starting threads that get none of the process's signals.

/// Does `start` with all signals of this thread blocked. A thread that it starts, or that a library
/// starts in it, inherits that, so that signals go to the threads of the program. The C library
/// keeps those for itself that it sends to all threads.
pub fn without<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut former = std::mem::MaybeUninit::uninit();
    // SAFETY: the calls fill in the two sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr());
    }
    let _back = Back(former);
    start()
}

/// Puts the former mask back, also when `start` panics.
struct Back(std::mem::MaybeUninit<libc::sigset_t>);

impl Drop for Back {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by `pthread_sigmask`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, self.0.as_ptr(), std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Signals that this thread blocks, as the kernel tells them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    }

    #[test]
    fn threads_start_without_signals_and_the_mask_comes_back() {
        let before = blocked();
        let inside =
            without(|| std::thread::scope(|scope| scope.spawn(blocked).join()).expect("it ends"));
        assert_ne!(inside & 1 << (libc::SIGTERM - 1), 0);
        assert_eq!(blocked(), before);
        assert!(std::panic::catch_unwind(|| without(|| panic!("as the test wants"))).is_err());
        assert_eq!(blocked(), before);
    }
}
