//! Handlers wait until their thread holds no lock of a connection.
//!
//! A handler that interrupts a thread between two instructions of a write could not write on the
//! same connection, nor leave by `siglongjmp`, which would leave the lock behind. So a signal that
//! comes while a lock is held is sent once more when it is free, as if it had come then.
//!
//! The words lie where one instruction finds them, since every call counts there: thread-local
//! memory that is laid out when the program starts.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use libc::{c_int, siginfo_t};

use crate::sys::{self, Word};

core::arch::global_asm!(
    ".pushsection .tbss.weft_deferral,\"awT\",@nobits",
    ".balign 4",
    ".globl weft_deferral",
    ".hidden weft_deferral",
    ".type weft_deferral, @object",
    ".size weft_deferral, 12",
    "weft_deferral:",
    ".zero 12",
    ".popsection",
);

/// Counts of a thread and its handlers. Zeroed memory is their beginning.
#[repr(C)]
struct Counts {
    /// Locks that it holds, or is about to take.
    held: AtomicU32,
    /// Signals that were put off,
    put_off: AtomicU32,
    /// and of these, signals that were sent again.
    sent: AtomicU32,
}

/// Signals that a thread puts off at most at a time; those beyond are handled at once.
const PUT_OFF_MAX: u32 = 16;

thread_local! {
    /// Signals that were put off, by their number.
    static SIGNALS: UnsafeCell<[MaybeUninit<Signal>; PUT_OFF_MAX as usize]> =
        const { UnsafeCell::new([const { MaybeUninit::uninit() }; PUT_OFF_MAX as usize]) };
}

#[derive(Clone, Copy)]
struct Signal {
    number: c_int,
    /// Where the handler asked for it.
    info: Option<siginfo_t>,
}

#[inline]
fn counts() -> &'static Counts {
    let place: *const Counts;
    // SAFETY: reads the thread's pointer to itself and the distance of the words from there, which
    // the loader wrote: the library is loaded at the program's start.
    unsafe {
        core::arch::asm!(
            "mov {place}, qword ptr fs:[0]",
            "add {place}, qword ptr [rip + weft_deferral@GOTTPOFF]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: zeroed words of this thread; the reference is not given to others.
    unsafe { &*place }
}

/// The calling thread holds a lock, or is about to; handlers wait until the last of these is
/// dropped.
pub struct Held(());

impl Held {
    #[inline]
    pub fn new() -> Self {
        let held = &counts().held;
        // A handler in between leaves the count as it was.
        held.store(held.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let counts = counts();
        let left = counts.held.load(Ordering::Relaxed).wrapping_sub(1);
        counts.held.store(left, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let is_due = counts.sent.load(Ordering::Relaxed) != counts.put_off.load(Ordering::Relaxed);
        if left == 0 && is_due {
            send_again();
        }
    }
}

/// Called by a handler with its signal: true when it is to return, since the signal comes again.
///
/// # Safety
/// `info` is null or the kernel's.
pub unsafe fn puts_off(number: c_int, info: *const siginfo_t) -> bool {
    let counts = counts();
    if counts.held.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let sent = counts.sent.load(Ordering::Relaxed);
    // Handlers of other signals may interrupt this one.
    let place = counts.put_off.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |put_off| {
        (put_off.wrapping_sub(sent) < PUT_OFF_MAX).then(|| put_off.wrapping_add(1))
    });
    let Ok(place) = place else { return false };
    // SAFETY: the caller's promise.
    let info = unsafe { info.as_ref() }.copied();
    SIGNALS.with(|signals| {
        // SAFETY: the place is this signal's until it is sent, which the thread does when all its
        // handlers have returned.
        unsafe { (*signals.get())[(place % PUT_OFF_MAX) as usize].write(Signal { number, info }) };
    });
    true
}

/// Sends what was put off to the calling thread, one signal after the other: each is handled before
/// the next is looked for, unless it is blocked.
#[cold]
fn send_again() {
    while let Some(signal) = next() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let number = signal.number.word();
        match &signal.info {
            Some(info) => {
                let info = std::ptr::from_ref(info).word();
                let arguments = [process.word(), thread.word(), number, info, 0, 0];
                // SAFETY: the kernel reads the description, which it wrote itself before.
                unsafe { sys::raw(libc::SYS_rt_tgsigqueueinfo, arguments) };
            }
            None => {
                let arguments = [process.word(), thread.word(), number, 0, 0, 0];
                // SAFETY: the call takes three numbers; the signal is for the calling thread.
                unsafe { sys::raw(libc::SYS_tgkill, arguments) };
            }
        }
    }
}

fn next() -> Option<Signal> {
    let counts = counts();
    // So that handlers that come meanwhile are put off behind, and do not come in here.
    counts.held.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let sent = counts.sent.load(Ordering::Relaxed);
    let signal = (sent != counts.put_off.load(Ordering::Relaxed)).then(|| {
        let place = (sent % PUT_OFF_MAX) as usize;
        // SAFETY: the handlers that count and write places have returned, and it is not sent yet.
        let signal = SIGNALS.with(|signals| unsafe { (*signals.get())[place].assume_init() });
        counts.sent.store(sent.wrapping_add(1), Ordering::Relaxed);
        signal
    });
    compiler_fence(Ordering::SeqCst);
    counts.held.store(0, Ordering::Relaxed);
    signal
}
