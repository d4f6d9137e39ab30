//! Epoll sets with connections on the fabric among ordinary descriptors.
//!
//! The kernel's set has all descriptors that the program added. While a connection is on TCP, it is
//! there as the program gave it, and the kernel reports its events. On a lane, readiness is
//! computed here, and the kernel's set reports the wakeups, with a tag of this library that leads
//! to the registration. A connection gets no lane before the library saw a wait for the set.
//!
//! A connection that was active lately is *hot*: it is looked at directly, without a system call.
//! One that stayed quiet is armed and left to the kernel, so that idle connections cost nothing.
//!
//! # Invariants
//! - Before the kernel's `epoll_wait` may sleep, every hot connection is armed and looked at again.
//! - A tag has the generation of its registration. An event for a registration that is gone is
//!   dropped.

mod control;
mod hot;
mod kernel;
mod registration;
mod sets;
mod wait;

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, c_int};

pub use control::{
    closed, closing, control, forget, forget_here, moved, moved_back, rung, shut, watched,
};
pub use sets::{after_fork, before_fork, created, destroyed, ended, forked, is_ours, retain};
pub use wait::wait;

const IN: u32 = bits(EPOLLIN);
const OUT: u32 = bits(EPOLLOUT);
const ERR: u32 = bits(EPOLLERR);
const HUP: u32 = bits(EPOLLHUP);
const RDHUP: u32 = bits(EPOLLRDHUP);
const RDNORM: u32 = bits(libc::EPOLLRDNORM);
const ET: u32 = bits(EPOLLET);
const ONESHOT: u32 = bits(EPOLLONESHOT);

const EXCLUSIVE: u32 = bits(libc::EPOLLEXCLUSIVE);

const fn bits(value: c_int) -> u32 {
    value.cast_unsigned()
}
