//! `aio_read`, `aio_write` and `lio_listio`: the C library makes them by threads of its own, where
//! no hook sees what these read and write. So the connection goes back to TCP first.

use libc::{aiocb, c_int, sigevent};

use crate::connection::find;
use crate::real::real;
use crate::sys;

/// Takes the connection of a request back to TCP. False if it cannot go there.
///
/// # Safety
/// `request` is null or the program's.
unsafe fn is_on_tcp(request: *const aiocb) -> bool {
    if request.is_null() {
        return true;
    }
    // SAFETY: the caller's promise.
    let fd = unsafe { (*request).aio_fildes };
    find(fd).is_none_or(|connection| connection.return_to_tcp_for_good(fd))
}

fn refused() -> c_int {
    sys::set_errno(libc::EINVAL);
    -1
}

macro_rules! asynchronous {
    ($($name:ident)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(request: *mut aiocb) -> c_int {
                // SAFETY: the program's promise to the call of this name.
                if !unsafe { is_on_tcp(request) } {
                    return refused();
                }
                real!($name as fn(*mut aiocb) -> c_int, (request), else refused())
            }
        )*
    };
}

asynchronous! { aio_read aio_read64 aio_write aio_write64 }

macro_rules! listed {
    ($($name:ident)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(
                mode: c_int,
                list: *const *mut aiocb,
                count: c_int,
                event: *mut sigevent,
            ) -> c_int {
                for place in 0..usize::try_from(count).unwrap_or(0) {
                    // SAFETY: the program's promise to lio_listio(3): a list of so many requests.
                    let request = unsafe { list.add(place).read_unaligned() };
                    // SAFETY: as above.
                    if !unsafe { is_on_tcp(request) } {
                        return refused();
                    }
                }
                real!($name as fn(c_int, *const *mut aiocb, c_int, *mut sigevent) -> c_int,
                    (mode, list, count, event), else refused())
            }
        )*
    };
}

listed! { lio_listio lio_listio64 }
