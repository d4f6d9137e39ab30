//! `syscall`: system calls by number.
//!
//! A call that has a hook goes to the hook, so that a program which makes it by number finds the
//! bytes of its connections. io_uring is refused with ENOSYS: a program that waits by io_uring and
//! reads by hooked calls would wait on the kernel's socket for data that come on a lane. Many
//! containers forbid io_uring, so programs know how to go on with epoll.

use libc::{c_int, c_long, c_uint, c_ulong, off_t, sigset_t, size_t, socklen_t};

use super::times::refused;
use super::{
    descriptors, filters, options, programs, readiness, socket_maps, sockets, splice, streams,
    vectors,
};
use crate::real::real;
use crate::{process, sys};

pub(super) unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth];
    if process::ready() {
        if number == libc::SYS_io_uring_setup {
            return refuse_io_uring();
        }
        // SAFETY: the program's promise to the call of this number.
        if let Some(result) = unsafe { hooked(number, arguments) } {
            return result;
        }
    }
    // SAFETY: as above.
    if unsafe { forks(number, arguments) } {
        return super::lifecycle::forking(|| by_number(number, arguments));
    }
    by_number(number, arguments)
}

/// True for a call that makes a child which goes on here with memory and descriptors of its own.
///
/// # Safety
/// The words are what the system call demands.
unsafe fn forks(number: c_long, words: [usize; 6]) -> bool {
    /// Where struct clone_args has the stack.
    const STACK_AT: usize = 40;
    let (flags, stack) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => (0, 0),
        libc::SYS_clone => (words[0] as u64, words[1] as u64),
        libc::SYS_clone3 if words[1] >= STACK_AT + 8 => {
            let given: *const u64 = FromWord::from_word(words[0]);
            // SAFETY: the program's promise: the structure has as many bytes as it says.
            let word = |at: usize| unsafe { given.byte_add(at).read_unaligned() };
            (word(0), word(STACK_AT))
        }
        _ => return false,
    };
    let shares = u64::from((libc::CLONE_VM | libc::CLONE_FILES).unsigned_abs());
    flags & shares == 0 && stack == 0
}

fn by_number(number: c_long, arguments: [usize; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // All six are passed on, however many the call takes; the C library does the same.
    real!(syscall as
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        (number, first, second, third, fourth, fifth, sixth), else {
        // SAFETY: the program's own call, passed on unchanged.
        let result = unsafe { sys::raw(number, arguments) };
        c_long::try_from(sys::c_result(result)).unwrap_or(-1)
    })
}

#[cold]
fn refuse_io_uring() -> c_long {
    crate::log::debug!("io_uring is refused, so that the program polls by other calls");
    sys::set_errno(libc::ENOSYS);
    -1
}

/// An argument of a hook, made from the register that the kernel would get.
trait FromWord {
    fn from_word(word: usize) -> Self;
}

macro_rules! from_word {
    ($($type:ty)*) => {
        $(impl FromWord for $type {
            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap,
                reason = "as the kernel does with a register")]
            fn from_word(word: usize) -> Self {
                word as $type
            }
        })*
    };
}

from_word! { c_int c_uint size_t c_ulong off_t }

impl<T> FromWord for *mut T {
    fn from_word(word: usize) -> Self {
        std::ptr::with_exposed_provenance_mut(word)
    }
}

impl<T> FromWord for *const T {
    fn from_word(word: usize) -> Self {
        std::ptr::with_exposed_provenance(word)
    }
}

/// Calls a hook with the words at the given places as its arguments.
macro_rules! call {
    ($words:expr, $module:ident::$name:ident($($place:literal),*)) => {{
        // SAFETY: the program's promise to the call of this name.
        let result = unsafe { $module::$name($(FromWord::from_word($words[$place])),*) };
        Some(c_long::try_from(result).unwrap_or(-1))
    }};
}

/// The result of the hook for system call `number`; `None` when it has no hook.
///
/// # Safety
/// The words are what the system call demands.
unsafe fn hooked(number: c_long, words: [usize; 6]) -> Option<c_long> {
    match number {
        libc::SYS_read => call!(words, streams::read(0, 1, 2)),
        libc::SYS_write => call!(words, streams::write(0, 1, 2)),
        libc::SYS_readv => call!(words, vectors::readv(0, 1, 2)),
        libc::SYS_writev => call!(words, vectors::writev(0, 1, 2)),
        libc::SYS_recvfrom => call!(words, streams::recvfrom(0, 1, 2, 3, 4, 5)),
        libc::SYS_sendto => {
            let length = socklen_t::try_from(words[5]).unwrap_or(0);
            // SAFETY: the program's promise to sendto(2).
            let sent = unsafe {
                streams::sendto(
                    FromWord::from_word(words[0]),
                    FromWord::from_word(words[1]),
                    words[2],
                    FromWord::from_word(words[3]),
                    FromWord::from_word(words[4]),
                    length,
                )
            };
            Some(c_long::try_from(sent).unwrap_or(-1))
        }
        libc::SYS_recvmsg => call!(words, streams::recvmsg(0, 1, 2)),
        libc::SYS_sendmsg => call!(words, streams::sendmsg(0, 1, 2)),
        libc::SYS_recvmmsg => call!(words, streams::recvmmsg(0, 1, 2, 3, 4)),
        libc::SYS_sendmmsg => call!(words, streams::sendmmsg(0, 1, 2, 3)),
        libc::SYS_sendfile => call!(words, streams::sendfile(0, 1, 2, 3)),
        libc::SYS_splice => call!(words, splice::splice(0, 1, 2, 3, 4, 5)),
        libc::SYS_accept => call!(words, sockets::accept(0, 1, 2)),
        libc::SYS_accept4 => call!(words, sockets::accept4(0, 1, 2, 3)),
        libc::SYS_connect => call!(words, sockets::connect(0, 1, 2)),
        libc::SYS_listen => call!(words, sockets::listen(0, 1)),
        libc::SYS_shutdown => call!(words, sockets::shutdown(0, 1)),
        libc::SYS_getpeername => call!(words, sockets::getpeername(0, 1, 2)),
        libc::SYS_setsockopt => call!(words, options::setsockopt(0, 1, 2, 3, 4)),
        libc::SYS_getsockopt => call!(words, options::getsockopt(0, 1, 2, 3, 4)),
        libc::SYS_ioctl => call!(words, sockets::ioctl(0, 1, 2)),
        libc::SYS_close => call!(words, descriptors::close(0)),
        libc::SYS_close_range => call!(words, descriptors::close_range(0, 1, 2)),
        libc::SYS_unshare => call!(words, descriptors::unshare(0)),
        libc::SYS_dup => call!(words, descriptors::dup(0)),
        libc::SYS_dup2 => call!(words, descriptors::dup2(0, 1)),
        libc::SYS_dup3 => call!(words, descriptors::dup3(0, 1, 2)),
        libc::SYS_fcntl => call!(words, descriptors::fcntl(0, 1, 2)),
        libc::SYS_poll => call!(words, readiness::poll(0, 1, 2)),
        libc::SYS_ppoll => call!(words, readiness::ppoll(0, 1, 2, 3)),
        libc::SYS_select => call!(words, readiness::select(0, 1, 2, 3, 4)),
        libc::SYS_pselect6 => {
            let given: *const *const sigset_t = FromWord::from_word(words[5]);
            // SAFETY: the program's promise: null, or a mask and its size.
            let mask = if given.is_null() { std::ptr::null() } else { unsafe { given.read() } };
            // SAFETY: as above.
            let result = unsafe {
                readiness::pselect(
                    FromWord::from_word(words[0]),
                    FromWord::from_word(words[1]),
                    FromWord::from_word(words[2]),
                    FromWord::from_word(words[3]),
                    FromWord::from_word(words[4]),
                    mask,
                )
            };
            Some(c_long::from(result))
        }
        libc::SYS_prctl => call!(words, filters::prctl(0, 1, 2, 3, 4)),
        libc::SYS_bpf => {
            // SAFETY: the program's promise to bpf(2).
            let allowed =
                unsafe { socket_maps::before(words[0], FromWord::from_word(words[1]), words[2]) };
            allowed.err().map(|errno| c_long::from(refused(errno)))
        }
        libc::SYS_seccomp => {
            filters::before_filter();
            None
        }
        libc::SYS_execve => call!(words, programs::execve(0, 1, 2)),
        libc::SYS_execveat => call!(words, programs::execveat(0, 1, 2, 3, 4)),
        libc::SYS_epoll_create => call!(words, descriptors::epoll_create(0)),
        libc::SYS_epoll_create1 => call!(words, descriptors::epoll_create1(0)),
        libc::SYS_epoll_ctl => call!(words, readiness::epoll_ctl(0, 1, 2, 3)),
        libc::SYS_epoll_wait => call!(words, readiness::epoll_wait(0, 1, 2, 3)),
        libc::SYS_epoll_pwait => call!(words, readiness::epoll_pwait(0, 1, 2, 3, 4)),
        libc::SYS_epoll_pwait2 => call!(words, readiness::epoll_pwait2(0, 1, 2, 3, 4)),
        _ => None,
    }
}
