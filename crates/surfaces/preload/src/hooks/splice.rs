//! `splice` between a pipe and a connection.
//!
//! Into a connection, the kernel does it, over TCP. Out of a lane it is done here by a read and a
//! write, since the kernel's socket does not have the bytes.

use std::sync::atomic::Ordering;

use libc::{c_int, c_uint, off_t, size_t, ssize_t};
use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::{kernel, returned};
use weft_socket::Phase;

use crate::arena::Connection;
use crate::connection::find;
use crate::log;
use crate::real::real;
use crate::sys;
use crate::transfer::How;
use crate::{calls, cancel, waits};

/// A pipe that poll calls writable has room for this many bytes.
const PIPE_BYTES: usize = 4096;

pub(super) unsafe extern "C-unwind" fn splice(
    input: c_int,
    input_offset: *mut off_t,
    output: c_int,
    output_offset: *mut off_t,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    cancel::point();
    let offsets = !input_offset.is_null() || !output_offset.is_null();
    if let Some(connection) = find(input)
        && !offsets
        && connection.decide_for_kernel(input) == Phase::Laned
    {
        return returned(from_lane(*connection, input, output, length, flags));
    }
    if find(output).is_some_and(|connection| !connection.send_over_tcp_for_good(output)) {
        // EINVAL, as for files that do not support splice: programs then read and write.
        log::debug!("a splice to descriptor {output} is refused");
        sys::set_errno(libc::EINVAL);
        return -1;
    }
    real!(splice as fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t,
        (input, input_offset, output, output_offset, length, flags),
        else kernel!(SYS_splice, input, input_offset, output, output_offset, length, flags))
}

/// Moves bytes that have arrived on the lane into the pipe, as many as fit without waiting. Unless
/// the flags forbid it, it waits for the first bytes and for room for them, as the kernel does.
fn from_lane(
    connection: Connection,
    input: c_int,
    output: c_int,
    length: usize,
    flags: c_uint,
) -> Result<usize, Errno> {
    if output < 0 {
        return Err(Errno::BADF);
    }
    let pipe = sys::borrow(output);
    if rustix::fs::fcntl_getfl(pipe)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(Errno::BADF);
    }
    if FileType::from_raw_mode(rustix::fs::fstat(pipe)?.st_mode) != FileType::Fifo {
        return Err(Errno::INVAL);
    }
    let dont_wait = flags & libc::SPLICE_F_NONBLOCK != 0;
    let mut buffer = [0; PIPE_BYTES];
    let mut total = 0;
    let generation = connection.shared.generation.load(Ordering::Relaxed);
    let mut input = input;
    while total < length {
        // Another thread may have closed the descriptor meanwhile.
        match calls::number(connection, input, generation) {
            Some(now) => input = now,
            None if total > 0 => break,
            None => return Err(Errno::BADF),
        }
        let how = How { peek: true, dont_wait: dont_wait || total > 0, ..How::default() };
        let wanted = buffer.len().min(length - total);
        let there = match connection.receive(input, &mut [&mut buffer[..wanted]], how) {
            Ok(0) => break,
            Ok(there) => there,
            Err(_) if total > 0 => break,
            Err(errno) => return Err(errno),
        };
        let limit = how.dont_wait.then_some(0);
        if waits::poll_within(output, PollFlags::OUT, limit)?.is_empty() {
            return if total > 0 { Ok(total) } else { Err(Errno::AGAIN) };
        }
        let moved = match rustix::io::write(pipe, &buffer[..there]) {
            Ok(moved) => moved,
            Err(_) if total > 0 => break,
            Err(errno) => return Err(errno),
        };
        input = calls::number(connection, input, generation).ok_or(Errno::BADF)?;
        let taken = How { wait_all: true, ..How::default() };
        connection.receive(input, &mut [&mut buffer[..moved]], taken)?;
        total += moved;
        if moved < there {
            break;
        }
    }
    Ok(total)
}
