//! Contexts. Operations on the own host are done when their calls return, and those on other hosts
//! have one order for all contexts, so a context is the team whose numbers its operations use.
//!
//! # Invariant
//! The memory of a context stays when it ended and is used again for a later one, so that a stale
//! handle is told apart and never leads to memory of others.

use std::ffi::{c_int, c_long};
use std::sync::Mutex;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed};

use crate::fault::{Fault, raise};
use crate::space::{self, Reach};
use crate::team::{SHARED, TEAMS, Team, TeamHandle, WORLD};
use crate::via::Via;

/// Contexts of a process, with those that ended.
const CONTEXTS_MAX: usize = 1 << 16;
/// `SHMEM_CTX_PRIVATE`, `_SERIALIZED` and `_NOSTORE`.
const OPTIONS: c_long = 0b111;

/// A context. It ended when its size is 0.
#[derive(Debug)]
pub struct ContextState {
    /// Its size where all PEs are of this host, and else 0.
    near: AtomicUsize,
    size: AtomicUsize,
    start: AtomicUsize,
    stride: AtomicIsize,
    /// The index of its team.
    team: AtomicUsize,
}

impl ContextState {
    const fn new() -> Self {
        Self {
            near: AtomicUsize::new(0),
            size: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            stride: AtomicIsize::new(1),
            team: AtomicUsize::new(WORLD),
        }
    }

    /// The PE of the world with a number of the team.
    #[inline(always)]
    fn pe(&self, number: usize) -> usize {
        let offset = self.stride.load(Relaxed).wrapping_mul(number.cast_signed());
        self.start.load(Relaxed).wrapping_add_signed(offset)
    }

    fn begin(&self, team: &Team) {
        let members = team.members();
        self.start.store(members.start, Relaxed);
        self.stride.store(members.stride, Relaxed);
        self.team.store(team.index(), Relaxed);
        self.size.store(members.size, Relaxed);
        self.near.store(if space::is_all_near() { members.size } else { 0 }, Relaxed);
    }

    fn end(&self) {
        self.near.store(0, Relaxed);
        self.size.store(0, Relaxed);
    }
}

/// The default context.
pub static DEFAULT: ContextState = ContextState::new();

/// `shmem_ctx_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextHandle(pub *const ContextState);

// SAFETY: contexts are atomics, and stay as long as the process.
unsafe impl Sync for ContextHandle {}
// SAFETY: as for Sync.
unsafe impl Send for ContextHandle {}

impl ContextHandle {
    /// `SHMEM_CTX_INVALID`.
    pub const INVALID: Self = Self(std::ptr::null());
    /// The default context.
    pub const DEFAULT: Self = Self(&raw const DEFAULT);

    #[inline(always)]
    fn state(self, call: &str) -> &'static ContextState {
        if self == Self::INVALID {
            no_context(call, self);
        }
        // SAFETY: a handle that is not the invalid one came from this module, whose contexts stay
        // as long as the process.
        unsafe { &*self.0 }
    }
}

#[cold]
#[inline(never)]
fn no_context(call: &str, handle: ContextHandle) -> ! {
    space::expect_started(call);
    raise(call, &Fault::Context { handle: handle.0.addr() })
}

impl Via for ContextHandle {
    #[inline(always)]
    fn near(self, call: &str, pe: c_int) -> Option<usize> {
        let state = self.state(call);
        // A negative number becomes a large one.
        let number = pe.cast_unsigned() as usize;
        (number < state.near.load(Relaxed)).then(|| state.pe(number))
    }

    fn reach(self, call: &str, pe: c_int) -> Reach {
        let state = self.state(call);
        let (number, size) = (pe.cast_unsigned() as usize, state.size.load(Relaxed));
        if size == 0 {
            no_context(call, self);
        }
        if number >= size {
            space::no_such_pe(call, pe, size);
        }
        space::reach_of(state.pe(number))
    }
}

/// All contexts that were ever made, but for the default one.
static MADE: Mutex<Vec<&'static ContextState>> = Mutex::new(Vec::new());

fn made() -> std::sync::MutexGuard<'static, Vec<&'static ContextState>> {
    MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Makes the default context. The teams must be there.
pub fn begin() {
    DEFAULT.begin(&TEAMS[WORLD]);
}

/// Ends all contexts, at the end of the library.
pub fn end() {
    DEFAULT.end();
    made().iter().for_each(|state| state.end());
}

/// Ends the contexts of a team.
pub(crate) fn end_those_of(team: &Team) {
    let index = team.index();
    let made = made();
    let of_team = made.iter().filter(|state| state.team.load(Relaxed) == index);
    of_team.for_each(|state| state.end());
}

/// Makes a context for all PEs.
///
/// # Safety
/// `ctx` must be a variable of the caller.
pub unsafe fn create(call: &str, options: c_long, ctx: *mut ContextHandle) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { create_of_team(call, TeamHandle::of(WORLD), options, ctx) }
}

/// Makes a context for the PEs of a team. Gives 0, or another value where it cannot be made.
///
/// # Safety
/// `ctx` must be a variable of the caller.
pub unsafe fn create_of_team(
    call: &str,
    team: TeamHandle,
    options: c_long,
    ctx: *mut ContextHandle,
) -> c_int {
    let state = team.team(call).filter(|_| options & !OPTIONS == 0).and_then(|team| {
        let mut made = made();
        let ended = made.iter().copied().find(|state| state.size.load(Relaxed) == 0);
        let state = match ended {
            Some(state) => state,
            None if made.len() == CONTEXTS_MAX => return None,
            None => {
                let state: &'static ContextState = Box::leak(Box::new(ContextState::new()));
                made.push(state);
                state
            }
        };
        // Under the lock, so that no other thread takes the same one.
        state.begin(team);
        Some(state)
    });
    let handle = state.map_or(ContextHandle::INVALID, |state| ContextHandle(state));
    // SAFETY: the caller's promise.
    unsafe { ctx.write(handle) };
    c_int::from(handle == ContextHandle::INVALID)
}

/// Ends a context.
///
/// # Safety
/// `ctx` must be a handle that this module gave, or the invalid one.
pub unsafe fn destroy(call: &str, ctx: ContextHandle) {
    if ctx == ContextHandle::INVALID {
        return;
    }
    let state = ctx.state(call);
    if ctx == ContextHandle::DEFAULT || state.size.load(Relaxed) == 0 {
        no_context(call, ctx);
    }
    // SAFETY: as there.
    unsafe { crate::order::quiet(call, ctx) };
    let _made = made();
    state.end();
}

/// Gives the team of a context: 0, or another value for no context.
///
/// # Safety
/// `team` must be a variable of the caller; `ctx` as for [`destroy`].
pub unsafe fn team(call: &str, ctx: ContextHandle, team: *mut TeamHandle) -> c_int {
    space::expect_started(call);
    let is_one = ctx != ContextHandle::INVALID && ctx.state(call).size.load(Relaxed) > 0;
    let of = if is_one {
        TeamHandle::of(ctx.state(call).team.load(Relaxed).min(TEAMS.len() - 1))
    } else {
        TeamHandle::INVALID
    };
    // SAFETY: the caller's promise.
    unsafe { team.write(of) };
    if is_one { 0 } else { -1 }
}

/// `shmem_ctx_session_config_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// Operations that are expected at most.
    pub total_ops: usize,
}

/// Takes hints on the operations that follow. Memory needs none.
///
/// # Safety
/// `ctx` as for [`destroy`].
pub unsafe fn session_start(
    call: &str,
    ctx: ContextHandle,
    _options: c_long,
    _config: *const SessionConfig,
    _config_mask: c_long,
) {
    // SAFETY: as there.
    unsafe { session_stop(call, ctx) };
}

/// Ends the hints.
///
/// # Safety
/// `ctx` as for [`destroy`].
pub unsafe fn session_stop(call: &str, ctx: ContextHandle) {
    space::expect_started(call);
    if ctx != ContextHandle::INVALID && ctx.state(call).size.load(Relaxed) == 0 {
        no_context(call, ctx);
    }
}

const _: () = assert!(SHARED < TEAMS.len(), "a context of the shared team has an index");
