//! The kernel's sets: what they are told, and what they tell.
//!
//! While a connection is on TCP, the kernel's set has what the program gave. A program may wait by
//! system calls of its own, and finds its own data. With the lane comes a tag, which leads to the
//! registration.

use std::os::fd::RawFd;

use libc::c_int;
use rustix::fs::{Mode, OFlags};

use super::registration::Registration;
use super::{ET, EXCLUSIVE, IN, ONESHOT, OUT, RDHUP};
use crate::sys::{self, Word};

/// The upper half of a tag. No pointer and no small number has these bits.
const TAG: u64 = 0xe7f7_5bad << 32;
pub(super) const TAG_MASK: u64 = 0xffff_ffff << 32;

/// The lower half of a tag: the index of a registration takes so many bits, its generation the
/// rest.
const INDEX_BITS: u32 = 20;
/// Generations that tags can tell apart.
pub(super) const GENERATIONS: u32 = 1 << (32 - INDEX_BITS);
/// Registrations that a set can have.
pub(super) const REGISTRATIONS_MAX: usize = 1 << INDEX_BITS;

/// The index and the generation of the registration that a tag names; `None` for the program's
/// data.
pub(super) fn parse_tag(tag: u64) -> Option<(u32, u32)> {
    if tag & TAG_MASK != TAG {
        return None;
    }
    let low = u32::try_from(tag & !TAG_MASK).ok()?;
    Some((low & ((1 << INDEX_BITS) - 1), low >> INDEX_BITS))
}

/// The event for the kernel's `epoll_ctl`: what its set must watch for, and the tag if the
/// connection has a lane.
pub(super) fn kernel_event(registration: &Registration, index: u32) -> libc::epoll_event {
    let events = if registration.spent {
        // Edges alone: the kernel reports the end of both directions whatever it is asked for.
        ET
    } else if !registration.laned {
        registration.events
    } else {
        // While the receiving direction is on TCP, the kernel's edges and one-shots apply.
        let own = registration.events & (ET | ONESHOT);
        let room = if registration.kernel_room { registration.events & OUT } else { 0 };
        // The kernel's socket always has room, so asking for EPOLLOUT wakes a sleeper.
        let woken = if registration.woken { OUT } else { 0 };
        let wakes = IN | RDHUP;
        let data = if registration.kernel_alone { registration.events & wakes } else { wakes };
        data | room | woken | if registration.kernel_edge { ET } else { own }
    };
    libc::epoll_event {
        events,
        u64: if registration.tagged {
            TAG | u64::from(registration.generation << INDEX_BITS | index)
        } else {
            registration.data
        },
    }
}

/// Makes the kernel's registration agree with [`kernel_event`].
#[cold]
#[inline(never)]
pub(super) fn tell_kernel(epfd: RawFd, registration: &mut Registration, index: u32) {
    // Reports of the kernel about one that has fired are not for the program.
    registration.tagged = registration.laned || registration.spent;
    let mut event = kernel_event(registration, index);
    let fd = registration.fd;
    if registration.exclusive {
        // The kernel does not modify EPOLLEXCLUSIVE.
        kernel_ctl(epfd, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
        kernel_ctl(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event);
    } else {
        kernel_ctl(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut event);
    }
    registration.exclusive = event.events & EXCLUSIVE != 0;
}

/// Makes the kernel's `epoll_ctl`.
pub(super) fn kernel_ctl(
    epfd: RawFd,
    op: c_int,
    fd: RawFd,
    event: *mut libc::epoll_event,
) -> c_int {
    let arguments = [epfd.word(), op.word(), fd.word(), event.word(), 0, 0];
    // SAFETY: epoll_ctl reads one event, unless the pointer is null; a bad descriptor is an error.
    let result = unsafe { sys::raw(libc::SYS_epoll_ctl, arguments) };
    c_int::try_from(sys::c_result(result)).unwrap_or(-1)
}

/// Updates the kernel's registration, if a direction has moved or a sleeper was woken since.
#[inline]
pub(super) fn agree(epfd: RawFd, registration: &mut Registration, index: u32) {
    let changed = registration.woken
        || registration.is_off
        || registration.kernel_edge != registration.wants_edge
        || registration.kernel_room != registration.wants_room
        || registration.kernel_alone != registration.wants_alone;
    if !changed || !registration.laned || registration.dormant || registration.spent {
        return;
    }
    registration.kernel_edge = registration.wants_edge;
    registration.kernel_room = registration.wants_room;
    registration.kernel_alone = registration.wants_alone;
    registration.woken = false;
    registration.is_off = false;
    tell_kernel(epfd, registration, index);
}

/// True if the kernel reported a registration on TCP with EPOLLONESHOT, and the program did not arm
/// it again. False where the kernel does not say.
pub(super) fn has_fired(epfd: RawFd, registration: &Registration) -> bool {
    /// The kernel leaves these of a registration that has fired.
    const LEFT: u32 = ET | ONESHOT | EXCLUSIVE | super::bits(libc::EPOLLWAKEUP);
    if registration.events & ONESHOT == 0 || registration.tagged {
        return false;
    }
    events_of(epfd, registration).is_some_and(|events| events & !LEFT == 0)
}

/// The events of a registration, as /proc shows them.
fn events_of(epfd: RawFd, registration: &Registration) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{epfd}");
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = Vec::new();
    let mut part = [0; 4096];
    loop {
        match rustix::io::read(&file, &mut part).ok()? {
            0 => break,
            bytes => text.extend_from_slice(&part[..bytes]),
        }
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| {
        // tfd:       15 events:       1d data:         5  pos:0 ino:6d sdev:8
        let mut words = line.strip_prefix("tfd:")?.split_ascii_whitespace();
        let fd: RawFd = words.next()?.parse().ok()?;
        let events = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let data = u64::from_str_radix(words.nth(1)?, 16).ok()?;
        (fd == registration.fd && data == registration.data).then_some(events)
    })
}
