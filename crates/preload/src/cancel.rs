//! `pthread_cancel` of threads that are in a call of this library.
//!
//! The C library ends a cancelled thread from inside its own calls, by unwinding the stack. Calls
//! here sleep in system calls of their own, below frames that hold counts and buffers. So a
//! cancelled thread that sleeps is woken, its call returns [`Errno::CANCELED`] through all of them,
//! and the outermost function, which holds nothing, lets the C library act.
//!
//! It is woken by the C library's own signal for the purpose, which programs neither see nor block;
//! its handler does nothing outside the C library's calls, and interrupts the system call.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use libc::{c_int, pthread_t};
use rustix::io::Errno;

use crate::signals::Watch;
use crate::sys;

/// SIGCANCEL of the GNU C library.
const SIGNAL: c_int = 32;

/// Calls of `pthread_cancel` in this process so far.
static CANCELS: AtomicUsize = AtomicUsize::new(0);

/// Threads that were cancelled lately and may not have noticed. The hook waits until a sleeper
/// has, so that few are here at a time.
static CANCELLED: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// A thread that sleeps.
struct Sleep {
    /// Its `pthread_t`, 0 when the place is free.
    thread: AtomicUsize,
    task: AtomicU32,
    /// Counts who had the place.
    turn: AtomicU32,
}

/// More threads than this asleep at a time are not all woken at once.
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

fn this_thread() -> usize {
    // SAFETY: a number that the C library has for every thread.
    let thread: pthread_t = unsafe { libc::pthread_self() };
    usize::try_from(thread).unwrap_or(0)
}

/// PTHREAD_CANCEL_ENABLE, without changing it.
fn is_enabled() -> bool {
    const ENABLE: c_int = 0;
    const DISABLE: c_int = 1;
    let mut state = ENABLE;
    // SAFETY: the former state is written to a variable, and put back at once.
    unsafe {
        pthread_setcancelstate(DISABLE, &raw mut state);
        pthread_setcancelstate(state, std::ptr::null_mut());
    }
    state == ENABLE
}

/// Where the thread stands among the cancelled ones.
fn notes(thread: usize) -> impl Iterator<Item = &'static AtomicUsize> {
    CANCELLED.iter().filter(move |entry| entry.load(Ordering::Relaxed) == thread)
}

fn is_noted(thread: usize) -> bool {
    notes(thread).next().is_some()
}

/// The calling thread was cancelled and may be ended.
fn is_due() -> bool {
    CANCELS.load(Ordering::SeqCst) != 0 && is_noted(this_thread()) && is_enabled()
}

/// A cancellation point: where every function that POSIX calls one begins, before it holds
/// anything. The calling thread may end here.
#[inline]
pub fn point() {
    if CANCELS.load(Ordering::Relaxed) != 0 {
        act();
    }
}

/// Ends the calling thread if it was cancelled; called by functions that hold nothing.
#[cold]
pub fn act() {
    // A note that is older than its thread, since the C library uses numbers again, is cleared by
    // this, too. One that comes later is seen later.
    if is_enabled() {
        notes(this_thread()).for_each(|entry| entry.store(0, Ordering::Relaxed));
    }
    // SAFETY: the C library's own function; whoever calls this holds nothing that unwinding would
    // have to give back.
    unsafe { pthread_testcancel() };
}

/// Makes a system call that sleeps, with the result of a C function.
///
/// A cancelled thread gets ECANCELED. One that was woken for a cancellation that it has disabled
/// gets 0, as if its time were over; the caller looks again.
pub fn asleep(call: &mut dyn FnMut() -> c_int) -> c_int {
    let watch = Watch::new();
    let place = Place::take();
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
    } else if !watch.saw_any() && is_noted(this_thread()) {
        return 0;
    } else {
        sys::set_errno(libc::EINTR);
    }
    -1
}

/// The same for calls with results of rustix: `None` when it was woken for nothing.
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

/// A place among those that sleep, given back when dropped.
struct Place(Option<&'static Sleep>);

impl Place {
    fn take() -> Self {
        let (thread, task) = (this_thread(), sys::task());
        let start = task as usize % SLEEPS;
        let free = (0..SLEEPS).map(|step| &ASLEEP[(start + step) % SLEEPS]).find(|place| {
            let taken =
                place.thread.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed);
            // A handler may have jumped out of an earlier sleep.
            taken.map_or_else(|holder| holder == thread, |_| true)
        });
        if let Some(place) = free {
            place.task.store(task, Ordering::Relaxed);
            // Published: from here on it is woken.
            place.turn.fetch_add(1, Ordering::SeqCst);
        }
        Self(free)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.thread.store(0, Ordering::Release);
        }
    }
}

/// The C library has cancelled a thread: wakes it, if it sleeps here.
pub fn wake(thread: pthread_t) {
    /// Waits between two looks, 20 ms in all: far more than a thread needs to notice.
    const LOOKS: u32 = 200;
    let Ok(thread) = usize::try_from(thread) else { return };
    let index = CANCELS.load(Ordering::Relaxed) % CANCELLED.len();
    CANCELLED[index].store(thread, Ordering::Relaxed);
    // Either a thread that goes to sleep sees this, or it is seen among the sleepers.
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
        // The signal may have come just before the thread's system call: looked at again.
        let moment = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 100_000 };
        let _ = rustix::thread::nanosleep(&moment);
    }
}

/// Lets the C library's handler interrupt system calls; false when there is none.
fn may_interrupt() -> bool {
    static DONE: AtomicBool = AtomicBool::new(false);
    DONE.load(Ordering::Relaxed)
        || sys::stop_restarting(SIGNAL)
            .inspect(|done| DONE.store(*done, Ordering::Relaxed))
            .unwrap_or(false)
}

/// A forked child has one thread, and it is awake.
pub fn forked() {
    for place in &ASLEEP {
        place.thread.store(0, Ordering::Relaxed);
    }
}
