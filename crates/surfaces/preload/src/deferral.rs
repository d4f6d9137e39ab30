//! Defers signal handlers while their thread holds a lock of a connection.
//!
//! A handler that interrupts a thread amid a write could not write to the same connection. If it
//! left by `siglongjmp`, the lock would stay taken. So a signal that comes while the thread holds a
//! lock is sent to it once more when the lock is free.
//!
//! Every call counts locks, so the counts lie where one instruction finds them: in thread-local
//! memory that the loader lays out when the program starts.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use libc::{c_int, siginfo_t};

use crate::sys::{self, Word};

core::arch::global_asm!(
    ".pushsection .tbss.weft_deferral,\"awT\",@nobits",
    ".balign 8",
    ".globl weft_deferral",
    ".hidden weft_deferral",
    ".type weft_deferral, @object",
    ".size weft_deferral, 24",
    "weft_deferral:",
    ".zero 24",
    ".popsection",
);

/// The counts of a thread. Zeroed memory is their initial state.
#[repr(C)]
struct Counts {
    /// Locks that the thread holds, or is about to take.
    held: AtomicU32,
    /// Signals that were deferred.
    deferred: AtomicU32,
    /// How many of these were sent again.
    sent: AtomicU32,
    /// Where the thread notes its calls ([`crate::calls`]).
    noted: AtomicPtr<Noted>,
}

/// How many signals a thread defers at a time. Further ones are handled at once.
const DEFERRED_MAX: u32 = 16;

thread_local! {
    /// The deferred signals. A signal's number in the count, modulo the length, is its index.
    static SIGNALS: UnsafeCell<[MaybeUninit<Signal>; DEFERRED_MAX as usize]> =
        const { UnsafeCell::new([const { MaybeUninit::uninit() }; DEFERRED_MAX as usize]) };
}

/// The calls that a thread makes on connections just now. Other threads read it.
#[repr(C, align(64))]
pub struct Noted {
    /// The outermost call, and one that it makes, or a handler that interrupted it.
    pub calls: [AtomicU64; 2],
    /// The number of the thread, or 0 for a place that is free.
    pub task: AtomicU32,
}

impl Noted {
    /// A place that is free.
    pub const fn new() -> Self {
        let calls = [const { AtomicU64::new(0) }; 2];
        Self { calls, task: AtomicU32::new(0) }
    }
}

#[derive(Clone, Copy)]
struct Signal {
    number: c_int,
    /// The kernel's description, if the handler was installed with SA_SIGINFO.
    info: Option<siginfo_t>,
}

#[inline]
fn counts() -> &'static Counts {
    let place: *const Counts;
    // SAFETY: reads the thread pointer and the offset of the counts from it. The loader wrote both,
    // since the library is loaded at the program's start.
    unsafe {
        core::arch::asm!(
            "mov {place}, qword ptr fs:[0]",
            "add {place}, qword ptr [rip + weft_deferral@GOTTPOFF]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: the memory was zeroed and belongs to this thread; the reference stays in this thread.
    unsafe { &*place }
}

/// The place where the calling thread notes its calls; null as long as it has none.
#[inline]
pub fn noted() -> &'static AtomicPtr<Noted> {
    &counts().noted
}

/// Says that the calling thread holds a lock, or is about to take one. Handlers are deferred until
/// its last value of this type is dropped.
pub struct Held(());

impl Held {
    #[inline]
    pub fn new() -> Self {
        let held = &counts().held;
        // A handler that runs between load and store restores the count.
        held.store(held.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        Self(())
    }
}

/// True if the calling thread holds a lock of the library, or is one of the library's.
pub fn is_held() -> bool {
    counts().held.load(Ordering::Relaxed) != 0
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let counts = counts();
        let left = counts.held.load(Ordering::Relaxed).wrapping_sub(1);
        counts.held.store(left, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let is_due = counts.sent.load(Ordering::Relaxed) != counts.deferred.load(Ordering::Relaxed);
        if left == 0 && is_due {
            send_again();
        }
    }
}

/// Called by the handler of signal `number`. True when the handler must return, since the signal is
/// sent again.
///
/// # Safety
/// `info` is null, or the kernel's description.
pub unsafe fn defer(number: c_int, info: *const siginfo_t) -> bool {
    let counts = counts();
    if counts.held.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let sent = counts.sent.load(Ordering::Relaxed);
    // Handlers of other signals may interrupt this one.
    let place = counts.deferred.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |deferred| {
        (deferred.wrapping_sub(sent) < DEFERRED_MAX).then(|| deferred.wrapping_add(1))
    });
    let Ok(place) = place else { return false };
    // SAFETY: the caller's promise.
    let info = unsafe { info.as_ref() }.copied();
    SIGNALS.with(|signals| {
        // SAFETY: the slot belongs to this signal until it is sent again. The thread does that
        // after all its handlers have returned.
        unsafe { (*signals.get())[(place % DEFERRED_MAX) as usize].write(Signal { number, info }) };
    });
    true
}

/// Sends the deferred signals to the calling thread, one after the other. Each is handled before
/// the next is taken, unless it is blocked.
#[cold]
fn send_again() {
    while let Some(signal) = take_next() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let number = signal.number.word();
        match &signal.info {
            Some(info) => {
                let info = std::ptr::from_ref(info).word();
                let arguments = [process.word(), thread.word(), number, info, 0, 0];
                // SAFETY: the kernel reads the description, which it wrote itself.
                unsafe { sys::raw(libc::SYS_rt_tgsigqueueinfo, arguments) };
            }
            None => {
                let arguments = [process.word(), thread.word(), number, 0, 0, 0];
                // SAFETY: the call takes three numbers; the signal goes to the calling thread.
                unsafe { sys::raw(libc::SYS_tgkill, arguments) };
            }
        }
    }
}

fn take_next() -> Option<Signal> {
    let counts = counts();
    // Handlers that run during this function are deferred, and do not send signals themselves.
    counts.held.store(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    let sent = counts.sent.load(Ordering::Relaxed);
    let signal = (sent != counts.deferred.load(Ordering::Relaxed)).then(|| {
        let place = (sent % DEFERRED_MAX) as usize;
        // SAFETY: the handler that wrote the slot has returned, and the signal was not sent yet.
        let signal = SIGNALS.with(|signals| unsafe { (*signals.get())[place].assume_init() });
        counts.sent.store(sent.wrapping_add(1), Ordering::Relaxed);
        signal
    });
    compiler_fence(Ordering::SeqCst);
    counts.held.store(0, Ordering::Relaxed);
    signal
}
