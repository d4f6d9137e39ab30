//! Prepares connections for a filter of system calls (seccomp), which may end the process at any
//! call of the library.
//!
//! Behind a filter the library makes no call. Connections that are on the fabric go back to TCP for
//! good before it is set. All others are no longer tracked here, and stay on TCP until this process
//! has ended. After that, another process that holds them may move them: `sshd` agrees on keys
//! behind a filter.
use weft_socket::Phase;

use crate::arena;
use crate::carrier;
use crate::connection;
use crate::table::{self, Entry};

/// Called before this process is put behind a filter.
#[cold]
pub fn enter() {
    for (fd, entry) in table::walk(0, u32::MAX) {
        let Entry::Connection(place) = entry else { continue };
        let Some(connection) = arena::at(place) else { continue };
        let is_in_a_set = connection.is_registered();
        if !is_in_a_set && connection.begin_unseen_use() {
            connection::forget(fd);
        } else if connection.decide_for_kernel(fd) == Phase::Laned {
            connection.return_to_tcp_for_good(fd);
        }
    }
    carrier::stop();
}
