//! `pthread_cancel` of threads that are in calls of this library.
//!
//! The C library ends a cancelled thread from inside its own calls, by unwinding the stack. Calls
//! of this library sleep in system calls of their own, below frames that hold counts and buffers.
//! So a cancelled thread that sleeps is woken, and its call returns [`Errno::CANCELED`] through
//! these frames. The outermost function, which holds nothing, lets the C library end the thread.
//!
//! The signal that wakes it is the C library's own signal for cancellation, which programs neither
//! see nor block. Outside of the C library's calls its handler does nothing, and so only interrupts
//! the system call.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, pthread_t};
use rustix::io::Errno;

use crate::signals::Watch;
use crate::sys::{self, this_thread};

/// SIGCANCEL of the GNU C library.
const SIGNAL: c_int = 32;

/// How often this process called `pthread_cancel`.
static CANCELS: AtomicUsize = AtomicUsize::new(0);

/// Threads that were cancelled lately and may not have noticed. `wake` waits until a sleeping
/// thread has noticed, so few threads are here at a time.
static CANCELLED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// An entry for a thread that sleeps.
struct Sleep {
    /// Its `pthread_t`; 0 when the entry is free.
    thread: AtomicUsize,
    task: AtomicU32,
    /// How often the entry was taken: tells one sleep from the next.
    turn: AtomicU32,
}

/// When more threads than this sleep at a time, some of them are not woken.
const SLEEPS: usize = 1024;
static ASLEEP: [Sleep; SLEEPS] = [const {
    Sleep { thread: AtomicUsize::new(0), task: AtomicU32::new(0), turn: AtomicU32::new(0) }
}; SLEEPS];

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

/// True when the thread may be cancelled (PTHREAD_CANCEL_ENABLE). The state stays as it is.
fn is_enabled() -> bool {
    const ENABLE: c_int = 0;
    const DISABLE: c_int = 1;
    let mut state = ENABLE;
    // SAFETY: the former state is written to a local variable, and restored at once.
    unsafe {
        pthread_setcancelstate(DISABLE, &raw mut state);
        pthread_setcancelstate(state, std::ptr::null_mut());
    }
    state == ENABLE
}

/// The entries of `thread` among the cancelled threads.
fn cancelled_entries(thread: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    CANCELLED.iter().filter(move |entry| entry.load(Ordering::Relaxed) == thread)
}

fn is_cancelled(thread: usize) -> bool {
    cancelled_entries(thread).next().is_some()
}

/// True when the calling thread was cancelled and may be ended.
fn is_due() -> bool {
    CANCELS.load(Ordering::SeqCst) != 0 && is_cancelled(this_thread()) && is_enabled()
}

/// A cancellation point. Every function that POSIX calls one begins with this call, before it holds
/// anything. The calling thread may end here.
#[inline]
pub fn point() {
    if CANCELS.load(Ordering::Relaxed) != 0 {
        act();
    }
}

/// Ends the calling thread if it was cancelled. Its callers hold nothing.
#[cold]
pub fn act() {
    // This also clears an entry that is older than its thread, since the C library uses numbers
    // again. An entry that is written later is seen at the next point.
    if is_enabled() {
        cancelled_entries(this_thread()).for_each(|entry| entry.store(0, Ordering::Relaxed));
    }
    // SAFETY: the call may unwind the stack; no caller holds anything that it would have to free.
    unsafe { pthread_testcancel() };
}

/// Makes a system call that sleeps, and returns the result of a C function.
///
/// -1 with ECANCELED when the thread was cancelled. 0, as if the time were over, when it was woken
/// for a cancellation that it has disabled; the caller then looks again.
pub fn asleep(call: &mut dyn FnMut() -> c_int) -> c_int {
    let watch = Watch::new();
    let place = SleepEntry::take();
    if is_due() {
        sys::set_errno(libc::ECANCELED);
        return -1;
    }
    let result = call();
    drop(place);
    if result >= 0 || sys::errno() != libc::EINTR || CANCELS.load(Ordering::Relaxed) == 0 {
        return result;
    }
    if is_due() {
        sys::set_errno(libc::ECANCELED);
    } else if !watch.saw_any() && is_cancelled(this_thread()) {
        return 0;
    } else {
        sys::set_errno(libc::EINTR);
    }
    -1
}

/// As [`asleep`], for calls with results of rustix; `None` when the thread must look again.
pub fn sleeping<T>(call: impl FnOnce() -> Result<T, Errno>) -> Option<Result<T, Errno>> {
    let mut call = Some(call);
    let mut result = None;
    let code = asleep(&mut || match call.take().map(|call| call()) {
        Some(Err(errno)) => {
            sys::set_errno(errno.raw_os_error());
            -1
        }
        other => {
            result = other;
            0
        }
    });
    if code < 0 { Some(Err(Errno::from_raw_os_error(sys::errno()))) } else { result }
}

/// The entry of the calling thread while it sleeps; freed when dropped.
struct SleepEntry(Option<&'static Sleep>);

impl SleepEntry {
    fn take() -> Self {
        let (thread, task) = (this_thread(), sys::task());
        let start = task as usize % SLEEPS;
        let free = (0..SLEEPS).map(|step| &ASLEEP[(start + step) % SLEEPS]).find(|place| {
            let taken =
                place.thread.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed);
            // A handler may have left an earlier sleep by a jump, so that the entry was not freed.
            taken.map_or_else(|holder| holder == thread, |_| true)
        });
        if let Some(place) = free {
            place.task.store(task, Ordering::Relaxed);
            // From here on `wake` finds the thread.
            place.turn.fetch_add(1, Ordering::SeqCst);
        }
        Self(free)
    }
}

impl Drop for SleepEntry {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.thread.store(0, Ordering::Release);
        }
    }
}

/// Called after the C library has cancelled `thread`: wakes it if it sleeps in this library.
pub fn wake(thread: pthread_t) {
    /// How often the signal is sent, 20 ms in all: a thread needs far less to notice.
    const LOOKS: u32 = 200;
    let Ok(thread) = usize::try_from(thread) else { return };
    let index = CANCELS.load(Ordering::Relaxed) % CANCELLED.len();
    CANCELLED[index].store(thread, Ordering::Relaxed);
    // Either the thread sees this count before it sleeps, or the search below finds its entry.
    CANCELS.fetch_add(1, Ordering::SeqCst);
    let is_here = |place: &Sleep| place.thread.load(Ordering::SeqCst) == thread;
    let Some(place) = ASLEEP.iter().find(|place| is_here(place)) else { return };
    let turn = place.turn.load(Ordering::SeqCst);
    if !may_interrupt() {
        return;
    }
    for _ in 0..LOOKS {
        if !is_here(place) || place.turn.load(Ordering::SeqCst) != turn {
            return;
        }
        sys::signal_task(place.task.load(Ordering::Relaxed), SIGNAL);
        // The signal may come just before the thread's system call, so it is sent again.
        let moment = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let _ = rustix::thread::nanosleep(&moment);
    }
}

/// Makes the C library's handler interrupt system calls; false when there is no handler.
fn may_interrupt() -> bool {
    static DONE: AtomicBool = AtomicBool::new(false);
    DONE.load(Ordering::Relaxed)
        || sys::stop_restarting(SIGNAL)
            .inspect(|done| DONE.store(*done, Ordering::Relaxed))
            .unwrap_or(false)
}

/// In a forked child: it has one thread, which is awake.
pub fn forked() {
    for place in &ASLEEP {
        place.thread.store(0, Ordering::Relaxed);
    }
}
