//! Calls that set a filter of system calls (seccomp).

use libc::{c_int, c_ulong};

use super::{as_int, kernel};
use crate::real::real;
use crate::{process, sandbox};

/// Called before a filter is set, while every system call is allowed.
pub(super) fn before_filter() {
    if process::ready() && process::is_itself() {
        sandbox::enter();
    }
}

pub(super) unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        before_filter();
    }
    real!(prctl as fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int,
        (option, second, third, fourth, fifth),
        else as_int(kernel!(SYS_prctl, option, second, third, fourth, fifth)))
}
