//! The kernel's connection behind a descriptor, as the rules of `weft-socket` use it.

use std::os::fd::RawFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use weft_socket::{Shadow, Unread};
use weft_wire::stats::BYTES_TCP_SENT;

use crate::arena::Connection;
use crate::waits::LOOK_AGAIN_NS;
use crate::{log, process, rescue, stats, sys, waits};

/// How long a peer may take to read over TCP what it wanted sent again.
const UNREAD_NS: u64 = 10_000_000_000;
/// How long an end waits at its close until the peer's kernel has what went before.
const ACKNOWLEDGED_NS: u64 = 100_000_000;

/// The kernel's connection behind a descriptor.
#[derive(Clone, Copy)]
pub struct KernelSocket {
    /// The descriptor.
    pub fd: RawFd,
    /// The connection that it leads to.
    pub connection: Connection,
}

impl Shadow for KernelSocket {
    fn ring(&self) -> bool {
        sys::ring(self.fd)
    }

    fn look(&self) -> Unread {
        let mut bytes = [0; sys::WAKEUPS_MAX];
        let seen = self.connection.noting(sys::look_for_wakeups(self.fd, &mut bytes));
        Unread::of(&bytes[..seen])
    }

    fn peek(&self, target: &mut [u8]) -> usize {
        self.connection.noting(sys::look_for_wakeups(self.fd, target))
    }

    fn is_acknowledged(&self) -> bool {
        let is_acknowledged = sys::is_acknowledged(self.fd);
        if !is_acknowledged {
            rescue::wants_time(self.fd, self.connection.place);
        }
        is_acknowledged
    }

    fn wait_until_acknowledged(&self) -> bool {
        let start = sys::now_ns();
        while !sys::is_acknowledged(self.fd) {
            if sys::now_ns() - start > ACKNOWLEDGED_NS {
                return false;
            }
            let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 200_000 };
            let _ = rustix::thread::nanosleep(&pause);
        }
        true
    }

    fn take_wakeups(&self, count: usize) -> usize {
        // Copies of bytes of a lane are many.
        let mut taken = 0;
        while taken < count {
            match self.connection.noting(sys::drain(self.fd, count - taken)) {
                0 => break,
                more => taken += more,
            }
        }
        taken
    }

    fn send(&self, bytes: &[u8]) -> Option<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if process::settings().between_hosts {
            // In an outage the kernel's buffer does not grow by itself.
            sys::hold_more(self.fd, bytes.len());
        }
        match rustix::net::send(sys::borrow(self.fd), bytes, flags) {
            Ok(sent) => {
                if sent < bytes.len() {
                    rescue::wants_time(self.fd, self.connection.place);
                }
                stats::add(BYTES_TCP_SENT, sent as u64);
                Some(sent)
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                rescue::wants_time(self.fd, self.connection.place);
                Some(0)
            }
            Err(errno) => {
                self.connection.note_error(errno);
                None
            }
        }
    }

    fn wait_for_room(&self) -> bool {
        let start = sys::now_ns();
        loop {
            // Signals and a cancellation end a wait early.
            let seen = waits::poll_within(self.fd, PollFlags::OUT, Some(LOOK_AGAIN_NS));
            if seen.is_ok_and(|seen| !seen.is_empty()) {
                return true;
            }
            if sys::now_ns() - start > UNREAD_NS {
                return false;
            }
        }
    }

    fn wait_until(&self, is_done: &dyn Fn() -> bool) -> bool {
        if is_done() {
            return true;
        }
        let start = sys::now_ns();
        while !is_done() {
            if sys::now_ns() - start > UNREAD_NS {
                return false;
            }
            let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 };
            let _ = rustix::thread::nanosleep(&pause);
        }
        true
    }

    fn end(&self) {
        let _ = rustix::net::shutdown(sys::borrow(self.fd), Shutdown::Write);
    }

    fn abort(&self) {
        log::warn_user!("a connection is reset: its other end does not go on");
        // A connect to AF_UNSPEC sends a reset, and all later calls on the socket fail.
        let _ = rustix::net::connect_unspec(sys::borrow(self.fd));
    }

    fn crossed(&self) {
        self.connection.follow_now(self.fd);
        if let Some(mut sending) = self.connection.sending_on_lane(self.fd) {
            sending.rescue();
        }
    }

    fn report_strays(&self) {
        log::warn_user!(
            "a connection is reset: its other end wrote bytes past weft, which a program does that \
             uses the socket without it"
        );
    }
}
