//! `posix_spawn`. The parent prepares what the new program must be told of its connections.

use std::os::fd::RawFd;
use std::path::Path;

use libc::{c_char, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::programs::{found, name};
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::handover::{Handover, Start};
use crate::process;
use crate::real::real;

pub(super) type Actions = posix_spawn_file_actions_t;
pub(super) type Attributes = posix_spawnattr_t;
pub(super) type Words = *const *mut c_char;

/// The copies of descriptors that file actions ask for.
static COPIES: LocalLock<Vec<Copy>> = LocalLock::new(Rank::Copies, Vec::new());
/// The oldest are forgotten beyond this, since programs may never destroy their actions.
const COPIES_MAX: usize = 4096;

struct Copy {
    actions: usize,
    from: RawFd,
    to: RawFd,
}

/// The lock of this module, for fork.
pub fn lock() -> &'static dyn ForkLock {
    &COPIES
}

fn forget(actions: *const Actions) {
    if let Some(mut copies) = COPIES.lock() {
        copies.retain(|copy| copy.actions != actions.addr());
    }
}

pub(super) unsafe extern "C-unwind" fn posix_spawn_file_actions_init(
    actions: *mut Actions,
) -> c_int {
    forget(actions);
    real!(posix_spawn_file_actions_init as fn(*mut Actions) -> c_int, (actions), else libc::ENOSYS)
}

pub(super) unsafe extern "C-unwind" fn posix_spawn_file_actions_destroy(
    actions: *mut Actions,
) -> c_int {
    forget(actions);
    real!(posix_spawn_file_actions_destroy as fn(*mut Actions) -> c_int, (actions),
        else libc::ENOSYS)
}

pub(super) unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut Actions,
    from: c_int,
    to: c_int,
) -> c_int {
    let result = real!(posix_spawn_file_actions_adddup2 as fn(*mut Actions, c_int, c_int) -> c_int,
        (actions, from, to), else libc::ENOSYS);
    if result == 0
        && process::ready()
        && let Some(mut copies) = COPIES.lock()
    {
        if copies.len() == COPIES_MAX {
            copies.remove(0);
        }
        copies.push(Copy { actions: actions.addr(), from, to });
    }
    result
}

fn copies_of(actions: *const Actions) -> Vec<(RawFd, RawFd)> {
    let Some(copies) = COPIES.lock() else { return Vec::new() };
    let ours = copies.iter().filter(|copy| copy.actions == actions.addr());
    ours.map(|copy| (copy.from, copy.to)).collect()
}

/// # Safety
/// As posix_spawn(3) demands of the arguments.
unsafe fn with_handover(
    path: Option<&Path>,
    actions: *const Actions,
    environment: Words,
    spawn: impl FnOnce(Words) -> c_int,
) -> c_int {
    if !process::ready() || !process::is_itself() {
        return spawn(environment);
    }
    let copies = copies_of(actions);
    // SAFETY: the caller's promise.
    match unsafe { Handover::prepare(Start::Spawn(&copies), path, environment.cast()) } {
        Some(handover) => {
            let result = spawn(handover.environment().cast());
            if result == 0 {
                handover.started();
            }
            result
        }
        None => spawn(environment),
    }
}

pub(super) unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: Words,
    environment: Words,
) -> c_int {
    let spawn = |environment| {
        real!(posix_spawn as fn(*mut pid_t, *const c_char, *const Actions, *const Attributes,
                Words, Words) -> c_int,
            (pid, path, actions, attributes, arguments, environment), else libc::ENOSYS)
    };
    // SAFETY: the program's promise to posix_spawn(3).
    let path = unsafe { name(path) };
    // SAFETY: as above.
    unsafe { with_handover(path.map(Path::new), actions, environment, spawn) }
}

pub(super) unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
    arguments: Words,
    environment: Words,
) -> c_int {
    let spawn = |environment| {
        real!(posix_spawnp as fn(*mut pid_t, *const c_char, *const Actions, *const Attributes,
                Words, Words) -> c_int,
            (pid, file, actions, attributes, arguments, environment), else libc::ENOSYS)
    };
    // SAFETY: the program's promise to posix_spawnp(3).
    let path = unsafe { found(file) };
    // SAFETY: as above.
    unsafe { with_handover(path.as_deref(), actions, environment, spawn) }
}
