//! The functions that install signal handlers, and `pthread_cancel`.

use libc::{c_int, sighandler_t};

use crate::cancel;
use crate::real::real;
use crate::signals;

/// Calls the C library's `sigaction`. The kernel's own call takes another structure, so it cannot
/// replace the C library; EAGAIN when the C library's function is not known yet.
fn real_action(
    signal: c_int,
    action: *const libc::sigaction,
    former: *mut libc::sigaction,
) -> c_int {
    real!(sigaction as fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
    (signal, action, former), else {
        crate::sys::set_errno(libc::EAGAIN);
        -1
    })
}

pub(super) unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    former: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's promise to sigaction(2): both are null or point at an action.
    let (action, former) = unsafe { (action.as_ref().copied(), former.as_mut()) };
    signals::action(signal, action.as_ref(), former, |action, former| {
        real_action(signal, action, former)
    })
}

pub(super) unsafe extern "C-unwind" fn __sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    former: *mut libc::sigaction,
) -> c_int {
    // SAFETY: another name of the same function.
    unsafe { sigaction(signal, action, former) }
}

/// Calls `real`, which installs a handler past `sigaction`, and then has the handler counted as
/// those of `sigaction` are (`crate::signals`).
fn install(signal: c_int, real: impl FnOnce() -> sighandler_t) -> sighandler_t {
    let before = signals::handler(signal);
    let returned = real();
    if returned == libc::SIG_ERR {
        return returned;
    }
    let errno = crate::sys::errno();
    signals::adopt(signal, |action, former| real_action(signal, action, former));
    crate::sys::set_errno(errno);
    signals::known(signal, returned, before)
}

macro_rules! installers {
    ($($name:ident)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(
                signal: c_int,
                handler: sighandler_t,
            ) -> sighandler_t {
                install(signal, || {
                    real!($name as fn(c_int, sighandler_t) -> sighandler_t,
                    (signal, handler), else {
                        crate::sys::set_errno(libc::EAGAIN);
                        libc::SIG_ERR
                    })
                })
            }
        )*
    };
}

installers! { signal bsd_signal ssignal sysv_signal __sysv_signal sigset }

pub(super) unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    let result = real!(siginterrupt as fn(c_int, c_int) -> c_int, (signal, interrupts), else {
        crate::sys::set_errno(libc::EAGAIN);
        -1
    });
    if result == 0 {
        signals::adopt(signal, |action, former| real_action(signal, action, former));
    }
    result
}

pub(super) unsafe extern "C-unwind" fn pthread_cancel(thread: libc::pthread_t) -> c_int {
    let result = real!(pthread_cancel as fn(libc::pthread_t) -> c_int, (thread),
        else libc::ENOSYS);
    if result == 0 {
        cancel::wake(thread);
    }
    result
}
