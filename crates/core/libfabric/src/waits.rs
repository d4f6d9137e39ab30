//! The descriptor that a caller sleeps on until a port may have something to tell.
//!
//! A completion queue has one descriptor for all of its reasons. `net` of libfabric 1.17 puts a
//! signal of its own among them, which tells of each completion and is never taken back: from its
//! first one on the descriptor stays readable. Its queue can list the reasons, too
//! (`FI_WAIT_POLLFD`). Of these the other one is that of its sockets, which is readable as long as
//! they want something. It alone is enough: all completions of a port come up in its own calls.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::net::{AddressFamily, sockopt};

use crate::abi::{self, Cq, CqEntry, WaitPollFd};
use crate::objects::Handle;
use crate::offer::Offer;

/// Reasons that a queue may list.
const REASONS_MAX: usize = 8;
/// How long the first wait takes.
const FIRST_WAIT_MS: i32 = 2;

/// The descriptor that a port lets its caller sleep on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// Nothing.
    No,
    /// The descriptor of its queue, when `fi_trywait` allows it.
    Queue,
    /// The descriptor of its sockets.
    Sockets(RawFd),
}

impl Waits {
    /// The kinds of queues to try to open, from the best one on.
    pub fn kinds(offer: &Offer) -> &'static [i32] {
        match offer.provider().as_str() {
            "net" => &[abi::WAIT_POLLFD, abi::WAIT_FD, abi::WAIT_NONE],
            _ => &[abi::WAIT_FD, abi::WAIT_NONE],
        }
    }

    /// How to sleep on an open queue of a kind. `None` if that kind is of no use here.
    pub fn of(queue: &Handle<Cq>, kind: i32) -> Option<Self> {
        match kind {
            abi::WAIT_NONE => Some(Self::No),
            abi::WAIT_FD => Some(Self::Queue),
            _ => sockets(queue).map(Self::Sockets),
        }
    }
}

/// The descriptor of the sockets of a queue, if it is the one reason beside the provider's signal.
fn sockets(queue: &Handle<Cq>) -> Option<RawFd> {
    const NONE: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut reasons = [NONE; REASONS_MAX];
    // The queue looks at the descriptors that it is to list when somebody waits for the first time.
    // There is no endpoint yet, so nothing can be read.
    let (cq, mut entry) = (queue.as_ptr(), CqEntry::NOTHING);
    // SAFETY: a live queue of the format of the entry, for which there is room.
    unsafe {
        ((*(*cq).ops).sread)(cq, (&raw mut entry).cast(), 1, std::ptr::null(), FIRST_WAIT_MS);
    }
    let mut list = WaitPollFd { change_index: 0, count: REASONS_MAX, files: reasons.as_mut_ptr() };
    // SAFETY: a live queue that was opened with a list of descriptors, for which there is room.
    let code = unsafe { queue.command(abi::CONTROL_GETWAIT, (&raw mut list).cast()) };
    if code != 0 {
        return None;
    }
    let files = reasons.get(..list.count)?.iter().map(|reason| reason.fd);
    let mut others = files.filter(|file| *file >= 0 && !is_signal(*file));
    let file = others.next()?;
    others.next().is_none().then_some(file)
}

/// Whether a descriptor is that of the provider's signal: a socket within the process.
fn is_signal(file: RawFd) -> bool {
    // SAFETY: the queue lists it, so it is open as long as the queue is.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    sockopt::socket_domain(file) == Ok(AddressFamily::UNIX)
}
