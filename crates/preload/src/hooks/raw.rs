//! `syscall`: calls by number, of which one must not work.
//!
//! A program that polls by io_uring and reads by calls that are hooked would wait on the kernel's
//! socket for data that comes on a lane. Where io_uring is missing, as in most containers, programs
//! go on with epoll; so it is missing here.

use libc::c_long;

use crate::real::real;
use crate::{process, sys};

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    if number == libc::SYS_io_uring_setup && process::ready() {
        return refused();
    }
    // Six are passed on whatever the call takes, as the C library itself does.
    real!(syscall as
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
        (number, first, second, third, fourth, fifth, sixth), else {
        let arguments = [first, second, third, fourth, fifth, sixth];
        // SAFETY: the program's own call, passed on unchanged.
        let result = unsafe { sys::raw(number, arguments) };
        c_long::try_from(sys::c_result(result)).unwrap_or(-1)
    })
}

#[cold]
fn refused() -> c_long {
    crate::log::debug!("io_uring is refused, so that the program polls by other calls");
    sys::set_errno(libc::ENOSYS);
    -1
}
