//! `readv`, `writev` and their relatives.

use libc::{c_int, iovec, off_t, ssize_t};
use rustix::io::Errno;

use super::memory::{check, source, target};
use super::{kernel, returned};
use crate::arena::Connection;
use crate::calls::Call;
use crate::cancel;
use crate::connection::find;
use crate::real::real;
use crate::transfer::How;

/// The kernel refuses longer vectors with EINVAL.
const ENTRIES_MAX: usize = 1024;
/// A vector of up to this many parts is handled without the allocator.
const PARTS: usize = 16;

/// Reads into the parts of a vector.
///
/// # Safety
/// As readv(2) demands of the vector.
pub(super) unsafe fn receive_vector(
    connection: Connection,
    fd: c_int,
    vector: *const iovec,
    count: usize,
    how: How,
) -> Result<usize, Errno> {
    check(vector as usize, count.saturating_mul(size_of::<iovec>()))?;
    let mut few: [&mut [u8]; PARTS] = std::array::from_fn(|_| -> &mut [u8] { &mut [] });
    let mut many = Vec::new();
    let parts = if count <= PARTS {
        &mut few[..count]
    } else {
        many.resize_with(count, || -> &mut [u8] { &mut [] });
        &mut many[..]
    };
    for (index, part) in parts.iter_mut().enumerate() {
        // SAFETY: the vector has `count` entries: the caller's promise.
        let entry = unsafe { vector.add(index).read_unaligned() };
        // SAFETY: as above.
        *part = unsafe { target(entry.iov_base, entry.iov_len) }?;
    }
    connection.receive(fd, parts, how)
}

/// Writes the parts of a vector.
///
/// # Safety
/// As writev(2) demands of the vector.
pub(super) unsafe fn send_vector(
    connection: Connection,
    fd: c_int,
    vector: *const iovec,
    count: usize,
    how: How,
) -> Result<usize, Errno> {
    check(vector as usize, count.saturating_mul(size_of::<iovec>()))?;
    let mut few: [&[u8]; PARTS] = [&[]; PARTS];
    let mut many = Vec::new();
    let parts = if count <= PARTS {
        &mut few[..count]
    } else {
        many.resize(count, &[][..]);
        &mut many[..]
    };
    for (index, part) in parts.iter_mut().enumerate() {
        // SAFETY: the vector has `count` entries: the caller's promise.
        let entry = unsafe { vector.add(index).read_unaligned() };
        // SAFETY: as above.
        *part = unsafe { source(entry.iov_base, entry.iov_len) }?;
    }
    connection.send(fd, parts, how)
}

/// The connection behind `fd` and the length of the vector; `None` when the kernel serves the call.
fn ours(fd: c_int, count: c_int) -> Option<(Call, usize)> {
    let count = usize::try_from(count).ok().filter(|count| *count <= ENTRIES_MAX)?;
    Some((find(fd)?, count))
}

/// The [`How`] of preadv2 and pwritev2; `None` for an offset, which a stream does not have.
fn how(offset: off_t, flags: c_int) -> Option<How> {
    let dont_wait = flags & libc::RWF_NOWAIT != 0;
    (offset == -1).then_some(How { dont_wait, ..How::default() })
}

pub(super) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    cancel::point();
    if let Some((connection, count)) = ours(fd, count) {
        // SAFETY: the program's promise to readv(2).
        let result = unsafe { receive_vector(*connection, fd, vector, count, How::default()) };
        return returned(result);
    }
    real!(readv as fn(c_int, *const iovec, c_int) -> ssize_t, (fd, vector, count),
        else kernel!(SYS_readv, fd, vector, count))
}

pub(super) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    cancel::point();
    if let Some((connection, count)) = ours(fd, count) {
        // SAFETY: the program's promise to writev(2).
        let result = unsafe { send_vector(*connection, fd, vector, count, How::default()) };
        return returned(result);
    }
    real!(writev as fn(c_int, *const iovec, c_int) -> ssize_t, (fd, vector, count),
        else kernel!(SYS_writev, fd, vector, count))
}

/// Declares two names for each function, since `off_t` has 64 bits in both.
macro_rules! with_flags {
    ($($name:ident $name64:ident $call:ident $number:ident;)*) => {
        $(
            pub(super) unsafe extern "C-unwind" fn $name(
                fd: c_int,
                vector: *const iovec,
                count: c_int,
                offset: off_t,
                flags: c_int,
            ) -> ssize_t {
                cancel::point();
                if let Some(how) = how(offset, flags)
                    && let Some((connection, count)) = ours(fd, count)
                {
                    // SAFETY: the program's promise to the call of this name.
                    return returned(unsafe { $call(*connection, fd, vector, count, how) });
                }
                real!($name as fn(c_int, *const iovec, c_int, off_t, c_int) -> ssize_t,
                    (fd, vector, count, offset, flags),
                    else kernel!($number, fd, vector, count, offset, 0, flags))
            }

            pub(super) unsafe extern "C-unwind" fn $name64(
                fd: c_int,
                vector: *const iovec,
                count: c_int,
                offset: off_t,
                flags: c_int,
            ) -> ssize_t {
                // SAFETY: another name of the same function.
                unsafe { $name(fd, vector, count, offset, flags) }
            }
        )*
    };
}

with_flags! {
    preadv2 preadv64v2 receive_vector SYS_preadv2;
    pwritev2 pwritev64v2 send_vector SYS_pwritev2;
}
