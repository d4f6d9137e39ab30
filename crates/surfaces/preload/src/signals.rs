//! Detects signals during calls that do not sleep in the kernel all the time.
//!
//! A blocking call spins and yields before it sleeps. A handler that runs meanwhile must end the
//! call as it would end the kernel's: otherwise `alarm` would not end a `recv`, and the program
//! would not look at a flag that its handler set. The kernel does not tell a thread that a handler
//! ran. So this module installs a handler of its own, which counts and calls the program's. The
//! flags and mask in the kernel are the program's own, and `sigaction` reports the program's
//! handler.
//!
//! Signals for faults of the thread (SIGSEGV and the like) interrupt no call and are left alone.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::{deferral, sys};

/// Linux has signals 1 to 64.
const SIGNALS: usize = 65;
/// The flags with which the program installed its handlers.
static FLAGS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// The program's handlers, for signals whose action is [`counting_handler`].
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];

thread_local! {
    /// How many handlers ran in this thread.
    static ALL: Cell<u32> = const { Cell::new(0) };
    /// How many of these were installed without SA_RESTART.
    static INTERRUPTING: Cell<u32> = const { Cell::new(0) };
}

/// Detects whether handlers ran in this thread since it was made.
#[derive(Clone, Copy)]
pub struct Watch {
    all: u32,
    interrupting: u32,
}

impl Watch {
    /// Starts to watch.
    #[inline]
    pub fn new() -> Self {
        Self { all: ALL.get(), interrupting: INTERRUPTING.get() }
    }

    /// True when any handler ran, which ends `poll` and its relatives.
    #[inline]
    pub fn saw_any(self) -> bool {
        ALL.get() != self.all
    }

    /// True when a handler without SA_RESTART ran, which ends reads and writes.
    #[inline]
    pub fn saw_interruption(self) -> bool {
        INTERRUPTING.get() != self.interrupting
    }
}

/// The handler that the kernel calls for the program's: it counts, and calls the program's handler.
///
/// # Safety
/// Called by the kernel as a signal handler.
unsafe extern "C-unwind" fn counting_handler(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    let Some((handler, flags)) = entry(signal) else { return };
    let flags = flags.load(Ordering::Relaxed);
    let has = |flag: c_int| flags & flag.unsigned_abs() as usize != 0;
    // The kernel describes a signal when SA_SIGINFO is set. With SA_RESETHAND it has removed the
    // handler, so a signal that is sent again would not reach it.
    let info_given = if has(libc::SA_SIGINFO) { info } else { std::ptr::null_mut() };
    // SAFETY: null, or the kernel's description.
    if !has(libc::SA_RESETHAND) && unsafe { deferral::defer(signal, info_given) } {
        return;
    }
    ALL.set(ALL.get().wrapping_add(1));
    if !has(libc::SA_RESTART) {
        INTERRUPTING.set(INTERRUPTING.get().wrapping_add(1));
    }
    let handler = handler.load(Ordering::Relaxed);
    if handler != libc::SIG_DFL && handler != libc::SIG_IGN {
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            // SAFETY: the program gave this address as a handler. One that takes only the number
            // does not read the registers of the other two arguments.
            unsafe { std::mem::transmute(handler) };
        // SAFETY: the arguments are the kernel's own.
        unsafe { handler(signal, info, context) };
    }
}

fn entry(signal: c_int) -> Option<(&'static AtomicUsize, &'static AtomicUsize)> {
    let signal = usize::try_from(signal).ok()?;
    Some((HANDLERS.get(signal)?, FLAGS.get(signal)?))
}

fn counting_address() -> usize {
    counting_handler as *const () as usize
}

/// True for faults of the thread itself. Runtimes handle them by the thousand.
fn is_fault(signal: c_int) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP | libc::SIGSYS
    )
}

/// C's `sigaction`, with [`counting_handler`] installed in place of the program's handler.
///
/// `real` is the C library's `sigaction`.
pub fn action(
    signal: c_int,
    action: Option<&libc::sigaction>,
    former: Option<&mut libc::sigaction>,
    real: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int,
) -> c_int {
    let Some((handler, flags)) = entry(signal) else {
        let former = former.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        return real(action.map_or(std::ptr::null(), std::ptr::from_ref), former);
    };
    let own = (handler.load(Ordering::Relaxed), flags.load(Ordering::Relaxed));
    let changed = action.map(|action| {
        let mut changed = *action;
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        // A child of vfork uses its parent's memory and must not change the table.
        if handled && !is_fault(signal) && crate::process::is_itself() {
            // Stored first: the kernel may call the handler as soon as it is installed.
            handler.store(action.sa_sigaction, Ordering::Relaxed);
            flags.store(action.sa_flags.unsigned_abs() as usize, Ordering::Relaxed);
            changed.sa_sigaction = counting_address();
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
        if told.sa_sigaction == counting_address() {
            former.sa_sigaction = own.0;
        }
    }
    result
}

/// Has the handler of `signal` counted. Called after another function of the C library may have
/// installed a handler or changed its flags.
pub fn adopt(signal: c_int, real: impl Fn(*const libc::sigaction, *mut libc::sigaction) -> c_int) {
    // SAFETY: as in `action`.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    if entry(signal).is_none() || real(std::ptr::null(), &raw mut now) != 0 {
        return;
    }
    if now.sa_sigaction == counting_address() {
        now.sa_sigaction = HANDLERS[signal.unsigned_abs() as usize].load(Ordering::Relaxed);
    }
    if now.sa_sigaction != libc::SIG_DFL && now.sa_sigaction != libc::SIG_IGN {
        action(signal, Some(&now), None, real);
    }
}

/// Translates what a function of the C library `returned` into the program's handler, which was
/// `before`.
pub fn known(signal: c_int, returned: libc::sighandler_t, before: usize) -> libc::sighandler_t {
    if entry(signal).is_some() && returned == counting_address() { before } else { returned }
}

/// The program's handler for a signal; 0 when it is not counted.
pub fn handler(signal: c_int) -> usize {
    entry(signal).map_or(0, |(handler, _)| handler.load(Ordering::Relaxed))
}

/// Raises SIGPIPE for the calling thread, as a write to a closed connection does.
pub fn raise_pipe() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let number = |value: i32| usize::try_from(value).unwrap_or(0);
    let arguments = [number(process), number(thread), number(libc::SIGPIPE), 0, 0, 0];
    // SAFETY: the call takes three numbers; the signal goes to the calling thread.
    unsafe { sys::raw(libc::SYS_tgkill, arguments) };
}
