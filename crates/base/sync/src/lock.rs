//! A lock in shared memory that survives the death of its holder.
//!
//! Processes that share an end of a connection after a fork share its locks. The lock's word names
//! the holder's process and thread, so that a waiter can find out that either is gone and take the
//! lock over. The data under the lock must therefore be consistent at every instruction (copy
//! first, publish last). A waiter never spins forever: it spins, yields, then sleeps for short
//! times and asks the kernel whether the holder lives.
//!
//! The numbers are those of the kernel, exact and unique among living threads. All processes that
//! share a lock must number processes alike. A thread that gets the number of one that ended with
//! the lock is taken for the holder. The first thread of a process is there for the kernel until
//! the last one has ended.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{AdaptiveWait, Step, futex, sys};

/// Set while a thread sleeps on the lock. Numbers of threads are below 2^22.
const CONTENDED: u64 = 1 << 31;
const CHECK_HOLDER_EVERY: Duration = Duration::from_millis(10);
/// So many checks in a row must miss the holder's thread before its lock is taken over. A child
/// that the C library did not make goes by the name of its parent's thread, which may have ended
/// since; it frees the lock long before that.
const MISSED_MAX: u32 = 100;

/// A thread as the holder of a lock: its process in the high half, its own number in the low half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(u64);

impl Holder {
    /// The calling thread. `pid` is its process, which the caller knows without a system call.
    #[inline]
    #[must_use]
    pub fn current(pid: u32) -> Self {
        sys::holder::with(|known| {
            let holder = Self(known.load(Ordering::Relaxed));
            // The child of a fork inherits the word of the parent's thread.
            if holder.pid() == pid && holder.0 != 0 { holder } else { Self::learn(pid, known) }
        })
    }

    #[cold]
    fn learn(pid: u32, known: &AtomicU64) -> Self {
        let word = u64::from(pid) << 32 | u64::from(sys::thread());
        known.store(word, Ordering::Relaxed);
        Self(word)
    }

    #[inline]
    fn pid(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("32 bits are left")
    }

    fn thread(self) -> u32 {
        u32::try_from(self.0 & (CONTENDED - 1)).expect("31 bits are left")
    }

    fn life(self) -> Life {
        if !process_lives(self.pid()) {
            Life::Ended
        } else if exists(self.thread()) {
            Life::Lives
        } else {
            Life::ThreadMissed
        }
    }
}

/// The kernel's answer to whether a holder lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Lives,
    /// There is no such thread, but its process lives.
    ThreadMissed,
    /// The process has ended.
    Ended,
}

/// The calling thread holds the lock already: a signal handler interrupted the holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reentered;

/// The lock. Zeroed memory is a free lock.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct SharedLock {
    word: AtomicU64,
}

impl SharedLock {
    /// A free lock.
    #[must_use]
    pub const fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// Takes the lock. Waits while its holder lives.
    ///
    /// # Errors
    /// [`Reentered`] when the calling thread holds the lock.
    #[inline]
    pub fn lock(&self, holder: Holder) -> Result<SharedGuard<'_>, Reentered> {
        match self.word.compare_exchange(0, holder.0, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(SharedGuard { lock: self }),
            Err(_) => self.lock_slowly(holder),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    #[must_use]
    pub fn try_lock(&self, holder: Holder) -> Option<SharedGuard<'_>> {
        self.word
            .compare_exchange(0, holder.0, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| SharedGuard { lock: self })
    }

    /// Frees the lock, whatever its holder. Used by a forked child, in which the holder does not
    /// exist, and when the guard was forgotten on purpose.
    #[inline]
    pub fn reset(&self) {
        let former = self.word.swap(0, Ordering::Release);
        self.wake_after(former);
    }

    /// Frees the lock if a thread of process `pid` holds it. Used after exec, which ended the other
    /// threads of the process at any instruction.
    pub fn release_of(&self, pid: u32) {
        let mut seen = self.word.load(Ordering::Relaxed);
        // A waiter of another process may find that the thread is gone, and take the lock over.
        while seen != 0 && Holder(seen).pid() == pid {
            match self.word.compare_exchange(seen, 0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => {
                    self.wake_after(seen);
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Wakes a thread that sleeps on the lock, whose word was `former`.
    #[inline]
    fn wake_after(&self, former: u64) {
        if former & CONTENDED != 0 {
            futex::wake(self.low_half(), 1);
        }
    }

    #[cold]
    fn lock_slowly(&self, holder: Holder) -> Result<SharedGuard<'_>, Reentered> {
        let mut adaptive_wait = AdaptiveWait::new(64, 50);
        let (mut slept, mut missed) = (0, 0);
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen & !CONTENDED == holder.0 {
                return Err(Reentered);
            }
            if seen == 0 {
                // Other threads may still sleep, so a thread that slept keeps the contended bit.
                let taken = holder.0 | slept;
                if self.exchange(0, taken) {
                    return Ok(SharedGuard { lock: self });
                }
                continue;
            }
            match adaptive_wait.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => adaptive_wait.give_way(),
                Step::Sleep => {
                    slept = CONTENDED;
                    let is_over = match self.sleep(seen) {
                        Life::Ended => true,
                        Life::ThreadMissed => {
                            missed += 1;
                            missed >= MISSED_MAX
                        }
                        Life::Lives => {
                            missed = 0;
                            false
                        }
                    };
                    if is_over && self.exchange(seen | CONTENDED, holder.0 | CONTENDED) {
                        return Ok(SharedGuard { lock: self });
                    }
                }
            }
        }
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Sleeps while the word is `seen`. Asks for its holder if that takes long.
    fn sleep(&self, seen: u64) -> Life {
        let marked = seen | CONTENDED;
        if seen != marked && !self.exchange(seen, marked) {
            return Life::Lives;
        }
        let expected = u32::try_from(marked & 0xffff_ffff).expect("masked to 32 bits");
        let slept = futex::wait(self.low_half(), expected, Some(CHECK_HOLDER_EVERY));
        if slept == futex::Slept::TimedOut { Holder(marked).life() } else { Life::Lives }
    }

    /// The half of the word for the futex: it has the thread and the contended bit.
    fn low_half(&self) -> &AtomicU32 {
        let pointer = self.word.as_ptr().cast::<AtomicU32>();
        let index = usize::from(cfg!(target_endian = "big"));
        // SAFETY: both halves lie inside the 8 bytes of the word, are aligned to 4, and are
        // accessed by atomic operations only.
        unsafe { &*pointer.add(index) }
    }
}

/// True if the process exists and is no zombie.
#[must_use]
pub fn process_lives(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        // Either the process does not exist, or this process has no descriptor left. Only the
        // former is a death.
        return exists(pid.as_raw_nonzero().get().unsigned_abs());
    };
    let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    !matches!(rustix::event::poll(&mut ended, Some(&now)), Ok(1))
}

/// True if there is a process or a thread with this number: kill(2) finds either. It is not asked
/// whose thread it is, because a child that the C library did not make counts as its parent.
fn exists(number: u32) -> bool {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    number.is_some_and(|number| {
        rustix::process::test_kill_process(number) != Err(rustix::io::Errno::SRCH)
    })
}

/// Frees the lock when dropped.
#[derive(Debug)]
pub struct SharedGuard<'a> {
    lock: &'a SharedLock,
}

impl Drop for SharedGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.reset();
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests own their threads")]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_thread_that_reenters_gets_an_error() {
        let lock = SharedLock::new();
        let me = Holder::current(std::process::id());
        let _held = lock.lock(me).expect("free");
        assert_eq!(lock.lock(me).err(), Some(Reentered));
        assert!(lock.try_lock(me).is_none());
    }

    #[test]
    fn many_threads_exclude_each_other() {
        let lock = Arc::new((SharedLock::new(), AtomicU64::new(0)));
        let pid = std::process::id();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _held = lock.0.lock(Holder::current(pid)).expect("no handler");
                        let value = lock.1.load(Ordering::Relaxed);
                        lock.1.store(value + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(lock.1.load(Ordering::Relaxed), 80_000);
    }

    #[test]
    fn the_lock_of_a_dead_process_is_taken_over() {
        let mut child = std::process::Command::new("true").spawn().expect("true exists");
        let dead = child.id();
        child.wait().expect("reaped");
        let lock = SharedLock::new();
        lock.word.store((u64::from(dead) << 32) | 5, Ordering::Relaxed);
        assert!(lock.lock(Holder::current(std::process::id())).is_ok());
    }

    /// Takes the lock on another thread. Fails after a while, in place of waiting without end.
    fn is_taken_over(lock: &Arc<SharedLock>) -> bool {
        let (done, taken) = std::sync::mpsc::channel();
        let lock = Arc::clone(lock);
        std::thread::spawn(move || {
            let held = lock.lock(Holder::current(std::process::id()));
            let _ = done.send(held.is_ok());
        });
        taken.recv_timeout(Duration::from_secs(20)) == Ok(true)
    }

    #[test]
    fn the_lock_of_a_thread_that_ended_is_taken_over() {
        let lock = Arc::new(SharedLock::new());
        let holders = Arc::clone(&lock);
        let holder = std::thread::spawn(move || {
            let me = Holder::current(std::process::id());
            std::mem::forget(holders.lock(me).expect("free"));
            me
        });
        let holder = holder.join().expect("no panic");
        assert_eq!(lock.word.load(Ordering::Relaxed), holder.0);
        assert!(is_taken_over(&lock));
    }

    #[test]
    fn a_holder_is_the_number_of_its_process_and_of_its_thread() {
        let holder = || {
            let holder = Holder::current(std::process::id());
            assert_eq!(holder.pid(), std::process::id());
            assert_eq!(holder.thread(), sys::thread());
            assert_eq!(holder.life(), Life::Lives);
            holder
        };
        let (own, other) = (holder(), std::thread::spawn(holder).join().expect("no panic"));
        assert_ne!(own, other);
        // The kernel removes a thread a moment after it was joined.
        while other.life() == Life::Lives {
            std::thread::yield_now();
        }
        assert_eq!(other.life(), Life::ThreadMissed);
        // As after a fork.
        let child = Holder::current(std::process::id() + 1);
        assert_eq!((child.pid(), child.thread()), (std::process::id() + 1, own.thread()));
        assert_eq!(holder(), own);
    }

    #[test]
    fn only_the_locks_of_the_process_that_called_exec_are_released() {
        let (lock, own) = (SharedLock::new(), std::process::id());
        lock.word.store((u64::from(own) << 32) | CONTENDED | 5, Ordering::Relaxed);
        lock.release_of(own + 1);
        assert!(lock.try_lock(Holder::current(own)).is_none());
        lock.release_of(own);
        assert!(lock.try_lock(Holder::current(own)).is_some());
        lock.release_of(own);
    }

    #[test]
    fn a_zombie_counts_as_dead() {
        let mut child = std::process::Command::new("true").spawn().expect("true exists");
        while process_lives(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("reaped only now");
    }
}
