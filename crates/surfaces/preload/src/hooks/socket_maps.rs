//! Maps of sockets (BPF_MAP_TYPE_SOCKMAP): programs in the kernel see, drop and redirect what the
//! sockets in them send and receive. Programs reach bpf(2) by the C library's `syscall`.

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::memory::check;
use crate::connection::find;
use crate::sys::{Word, raw};

const MAP_UPDATE_ELEM: usize = 2;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const SOCKMAP: u32 = 15;
const SOCKHASH: u32 = 18;

/// `union bpf_attr` of an update, as far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    map: u32,
    key: u64,
    value: u64,
}

/// `union bpf_attr` of a question for an object.
#[repr(C)]
struct Question {
    object: u32,
    length: u32,
    answer: u64,
}

/// Called before bpf(2). Takes a connection back to TCP that is put into a map of sockets.
///
/// # Errors
/// EOPNOTSUPP, if it cannot leave its lane.
///
/// # Safety
/// As bpf(2) demands of its arguments.
pub(super) unsafe fn before(
    command: usize,
    attributes: *const u8,
    length: usize,
) -> Result<(), Errno> {
    let is_update = command == MAP_UPDATE_ELEM && length >= size_of::<Update>();
    if !is_update || check(attributes as usize, length).is_err() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let update = unsafe { attributes.cast::<Update>().read_unaligned() };
    let value: *const RawFd =
        std::ptr::with_exposed_provenance(usize::try_from(update.value).unwrap_or(0));
    if !matches!(kind(update.map), Some(SOCKMAP | SOCKHASH))
        || check(value as usize, size_of::<RawFd>()).is_err()
    {
        return Ok(());
    }
    // SAFETY: the caller's promise: values of such maps begin with the number of a socket.
    let fd = unsafe { value.read_unaligned() };
    match find(fd) {
        Some(connection) if !connection.return_to_tcp_for_good(fd) => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    }
}

/// The kind of the map behind a descriptor; `None` when it is no map.
fn kind(map: u32) -> Option<u32> {
    // The kernel writes as much of `struct bpf_map_info` as there is room for.
    let mut answer = [0u32; 2];
    let place = (&raw mut answer).word() as u64;
    let question = Question { object: map, length: 8, answer: place };
    let words =
        [OBJ_GET_INFO_BY_FD.word(), (&raw const question).word(), size_of::<Question>(), 0, 0, 0];
    // SAFETY: the kernel reads the question and writes 8 bytes of the answer.
    let result = unsafe { raw(libc::SYS_bpf, words) };
    (result == 0).then_some(answer[0])
}
