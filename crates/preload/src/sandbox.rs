//! A filter of system calls (seccomp), which may end the process at a call of the library.
//!
//! Behind a filter the library makes none. Connections that are on the fabric go back to TCP for
//! good before. The others are forgotten here, and stay on TCP until this process has ended, when
//! whoever else holds them may move them (`sshd` agrees on keys behind a filter).

use crate::arena::{self, phase};
use crate::connection;
use crate::table::{self, Entry};

/// This process is about to be put behind a filter.
#[cold]
pub fn enter() {
    for (fd, entry) in table::walk(0, u32::MAX) {
        let Entry::Connection(place) = entry else { continue };
        let Some(connection) = arena::at(place) else { continue };
        let is_in_a_set = connection.is_registered();
        if !is_in_a_set && connection.becomes_unseen() {
            connection::forget(fd);
        } else if connection.decide_for_kernel(fd) == phase::LANED {
            connection.goes_back_for_good(fd);
        }
    }
}
