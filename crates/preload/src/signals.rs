//! Signals during calls that do not sleep in the kernel all the time.
//!
//! A blocking call spins and yields before it sleeps. A handler that runs meanwhile must end it as
//! it would end the kernel's call, or `alarm` would not end a `recv` and a flag set in a handler
//! would not be looked at. The kernel does not tell a thread that a handler ran, so the program's
//! handlers are called by one of ours, which counts. The kernel keeps the program's flags and mask;
//! whoever asks for the former action is told the program's own.
//!
//! Signals of the thread's own faults (SIGSEGV and its kin) interrupt no call and are left alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::{deferral, sys};

/// Linux has signals 1 to 64.
const SIGNALS: usize = 65;
/// The flags that the program's handlers were set with.
static FLAGS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// The program's handlers, for signals whose action is [`counted`].
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

thread_local! {
    /// Handlers that ran in this thread.
    static ALL: Cell<u32> = const { Cell::new(0) };
    /// Of these, handlers that do not restart system calls.
    static INTERRUPTING: Cell<u32> = const { Cell::new(0) };
}

/// Remembers which handlers ran in this thread before.
#[derive(Clone, Copy)]
pub struct Watch {
    all: u32,
    interrupting: u32,
}

impl Watch {
    /// Begins to watch.
    #[inline]
    pub fn new() -> Self {
        Self { all: ALL.get(), interrupting: INTERRUPTING.get() }
    }

    /// A handler ran, whatever its flags: what ends `poll` and its kin.
    #[inline]
    pub fn saw_any(self) -> bool {
        ALL.get() != self.all
    }

    /// A handler ran that does not restart system calls: what ends reads and writes.
    #[inline]
    pub fn saw_interruption(self) -> bool {
        INTERRUPTING.get() != self.interrupting
    }
}

/// Stands before the program's handler.
///
/// # Safety
/// Called by the kernel as a signal handler.
unsafe extern "C-unwind" fn counted(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some((handler, flags)) = place(signal) else { return };
    let flags = flags.load(Ordering::Relaxed);
    let has = |flag: c_int| flags & flag.unsigned_abs() as usize != 0;
    // The kernel describes the signal where that is asked for, and takes a handler that is for one
    // signal away.
    let info_given = if has(libc::SA_SIGINFO) { info } else { std::ptr::null_mut() };
    // SAFETY: the kernel's description.
    if !has(libc::SA_RESETHAND) && unsafe { deferral::puts_off(signal, info_given) } {
        return;
    }
    ALL.set(ALL.get().wrapping_add(1));
    if !has(libc::SA_RESTART) {
        INTERRUPTING.set(INTERRUPTING.get().wrapping_add(1));
    }
    let handler = handler.load(Ordering::Relaxed);
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            // SAFETY: the program gave it as a handler. One that takes the number alone does not
            // look at the registers of the other two arguments.
            unsafe { std::mem::transmute(handler) };
        // SAFETY: the arguments are the kernel's.
        unsafe { handler(signal, info, context) };
    }
}

fn place(signal: c_int) -> Option<(&'static AtomicUsize, &'static AtomicUsize)> {
    let signal = usize::try_from(signal).ok()?;
    Some((HANDLERS.get(signal)?, FLAGS.get(signal)?))
}

fn counted_address() -> usize {
    counted as *const () as usize
}

/// Faults of the thread itself, whose handlers runtimes call by the thousand.
fn is_fault(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

/// C's `sigaction`, called with the action in force instead of the program's.
///
/// `real` is the C library's function.
pub fn action(
    signal: c_int,
    action: Option<&libc::sigaction>,
    former: Option<&mut libc::sigaction>,
    real: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    let Some((handler, flags)) = place(signal) else {
        let former = former.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        return real(action.map_or(std::ptr::null(), std::ptr::from_ref), former);
    };
    let own = (handler.load(Ordering::Relaxed), flags.load(Ordering::Relaxed));
    let changed = action.map(|action| {
        let mut changed = *action;
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        // In a vfork child the table is still its parent's.
        if handled && !is_fault(signal) && crate::process::is_itself() {
            // Before the kernel may call it.
            handler.store(action.sa_sigaction, Ordering::Relaxed);
            flags.store(action.sa_flags.unsigned_abs() as usize, Ordering::Relaxed);
            changed.sa_sigaction = counted_address();
        }
        changed
    });
    // SAFETY: all bits zero are an action: the default one.
    let mut told: libc::sigaction = unsafe { std::mem::zeroed() };
    let result = real(changed.as_ref().map_or(std::ptr::null(), std::ptr::from_ref), &raw mut told);
    if result != 0 {
        if changed.is_some() {
            handler.store(own.0, Ordering::Relaxed);
            flags.store(own.1, Ordering::Relaxed);
        }
        return result;
    }
    if let Some(former) = former {
        *former = told;
        if told.sa_sigaction == counted_address() {
            former.sa_sigaction = own.0;
        }
    }
    result
}

/// Another function of the C library may have installed a handler or changed its flags: counts it
/// from now on.
pub fn adopt(signal: c_int, real: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int) {
    // SAFETY: as in `action`.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    if place(signal).is_none() || real(std::ptr::null(), &raw mut now) != 0 {
        return;
    }
    if now.sa_sigaction == counted_address() {
        now.sa_sigaction = HANDLERS[signal.unsigned_abs() as usize].load(Ordering::Relaxed);
    }
    if now.sa_sigaction != libc::SIG_DFL && now.sa_sigaction != libc::SIG_IGN {
        action(signal, Some(&now), None, real);
    }
}

/// The handler that the program knows for what a function of the C library returned.
pub fn known(signal: c_int, returned: libc::sighandler_t, before: usize) -> libc::sighandler_t {
    if place(signal).is_some() && returned == counted_address() { before } else { returned }
}

/// The program's handler for a signal, as the table has it.
pub fn handler(signal: c_int) -> usize {
    place(signal).map_or(0, |(handler, _)| handler.load(Ordering::Relaxed))
}

/// SIGPIPE, as a write to a closed connection raises it: for the calling thread.
pub fn raise_pipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let number = |value: i32| usize::try_from(value).unwrap_or(0);
    let arguments = [number(process), number(thread), number(libc::SIGPIPE), 0, 0, 0];
    // SAFETY: the call takes three numbers; the signal is for the calling thread.
    unsafe { sys::raw(libc::SYS_tgkill, arguments) };
}
