//! Start, end and queries, with the parameters of the specification behind the function's name.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use weft_pgas::collective::{BRANCHES, BROADCAST_BYTES, FLAT_MAX, STAGE_BYTES};
use weft_pgas::control::TEAMS_MAX;
use weft_pgas::space;
use weft_pgas::space::Layout;
use weft_pgas::team::TeamHandle;

use crate::job;
use crate::settings::Settings;
use crate::statics::Statics;

/// The version of the specification.
const VERSION: (c_int, c_int) = (1, 6);
const VENDOR: &std::ffi::CStr = c"weft OpenSHMEM";
/// `SHMEM_THREAD_MULTIPLE`.
const MULTIPLE: c_int = 3;

static LEVEL: AtomicI32 = AtomicI32::new(0);

/// Starts the library.
///
/// # Safety
/// As the specification says, as for all functions here.
pub unsafe fn init(call: &str) {
    job::start(call);
}

/// Starts the library, which ends at exit.
///
/// # Safety
/// As [`init`].
pub unsafe fn start_pes(call: &str, _npes: c_int) {
    if !job::is_running() {
        job::start(call);
    }
}

/// Starts the library for threads. Every level is given as it was asked for.
///
/// # Safety
/// `provided` must be a variable of the program, or null.
pub unsafe fn init_thread(call: &str, requested: c_int, provided: *mut c_int) -> c_int {
    job::start(call);
    LEVEL.fetch_max(requested.clamp(0, MULTIPLE), Relaxed);
    // SAFETY: the caller's promise.
    unsafe { query_thread(call, provided) };
    0
}

/// The level of thread support.
///
/// # Safety
/// As [`init_thread`].
pub unsafe fn query_thread(call: &str, provided: *mut c_int) {
    space::expect_started(call);
    if !provided.is_null() {
        // SAFETY: the caller's promise.
        unsafe { provided.write(LEVEL.load(Relaxed)) };
    }
}

/// Ends the library.
///
/// # Safety
/// As [`init`].
pub unsafe fn finalize(call: &str) {
    job::finish(call);
}

/// Ends the job.
///
/// # Safety
/// As [`init`].
pub unsafe fn global_exit(_call: &str, status: c_int) {
    job::exit_all(status, "shmem_global_exit")
}

fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// This PE.
///
/// # Safety
/// As [`init`].
#[inline(always)]
pub unsafe fn my_pe(call: &str) -> c_int {
    space::expect_started(call);
    number(space::me())
}

/// The number of PEs.
///
/// # Safety
/// As [`init`].
#[inline(always)]
pub unsafe fn n_pes(call: &str) -> c_int {
    space::expect_started(call);
    number(space::pes())
}

/// Whether there is such a PE.
///
/// # Safety
/// As [`init`].
pub unsafe fn pe_accessible(call: &str, pe: c_int) -> c_int {
    space::expect_started(call);
    c_int::from(usize::try_from(pe).is_ok_and(|pe| pe < space::pes()))
}

/// Whether an address is symmetric, and there is such a PE.
///
/// # Safety
/// As [`init`].
pub unsafe fn addr_accessible(call: &str, addr: *const c_void, pe: c_int) -> c_int {
    // SAFETY: as there.
    let is_there = unsafe { pe_accessible(call, pe) } == 1;
    c_int::from(is_there && space::place(addr.addr()).is_some())
}

/// The address of a PE's memory in this process.
///
/// # Safety
/// As [`init`].
pub unsafe fn ptr(call: &str, dest: *const c_void, pe: c_int) -> *mut c_void {
    address(dest, space::checked_pe(call, pe))
}

/// As [`ptr`], for a PE of a team.
///
/// # Safety
/// As [`init`].
pub unsafe fn team_ptr(
    call: &str,
    team: TeamHandle,
    dest: *const c_void,
    pe: c_int,
) -> *mut c_void {
    let Some(team) = team.team(call) else { return std::ptr::null_mut() };
    match usize::try_from(pe).ok().filter(|number| *number < team.size()) {
        Some(number) => address(dest, team.members().pe(number)),
        None => std::ptr::null_mut(),
    }
}

fn address(dest: *const c_void, pe: usize) -> *mut c_void {
    match space::find(dest.addr(), pe) {
        Some(_) if pe == space::me() => dest.cast_mut(),
        Some(address) => address.cast(),
        None => std::ptr::null_mut(),
    }
}

/// The version of the specification.
///
/// # Safety
/// Both must be variables of the program.
pub unsafe fn version(_call: &str, major: *mut c_int, minor: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe { major.write(VERSION.0) };
    // SAFETY: the caller's promise.
    unsafe { minor.write(VERSION.1) };
}

/// The name of the library.
///
/// # Safety
/// `name` must have room for `SHMEM_MAX_NAME_LEN` bytes.
pub unsafe fn vendor(_call: &str, name: *mut c_char) {
    let bytes = VENDOR.to_bytes_with_nul();
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), name.cast(), bytes.len()) };
}

/// Whether the library is started.
///
/// # Safety
/// `initialized` must be a variable of the program.
pub unsafe fn query_initialized(_call: &str, initialized: *mut c_int) {
    // SAFETY: the caller's promise.
    unsafe { initialized.write(c_int::from(job::is_running())) };
}

/// Does nothing.
///
/// # Safety
/// As [`init`].
pub unsafe fn pcontrol(_call: &str, _level: c_int) {}

/// Prints what `SHMEM_VERSION` and `SHMEM_INFO` ask for.
pub fn print(settings: &Settings, layout: &Layout, statics: &Statics, across: bool) {
    if settings.version {
        let (major, minor) = VERSION;
        println!("weft OpenSHMEM {} (OpenSHMEM {major}.{minor})", env!("CARGO_PKG_VERSION"));
    }
    if settings.info {
        let variables = match statics {
            Statics::Shared(shared) => format!("{} bytes in shared memory", shared.bytes),
            Statics::Private(why) => format!("not shared{why}"),
        };
        let reached = if across {
            "by loads and stores on a host, by the fabric between hosts"
        } else {
            "all on this host, by loads and stores"
        };
        println!(
            "SHMEM_VERSION         print the version (set: {})\n\
             SHMEM_INFO            print this (set: true)\n\
             SHMEM_DEBUG           compare the calls of collectives (set: {})\n\
             SHMEM_SYMMETRIC_SIZE  bytes of the heap of a PE: {}\n\
             PEs                   {}, {reached}\n\
             slots                 {} bytes from one to the next\n\
             variables             {variables}\n\
             teams                 at most {TEAMS_MAX} at a time\n\
             collectives           staged up to {STAGE_BYTES} bytes (broadcasts: \
             {BROADCAST_BYTES}), in parallel from the source above; all PEs look at all up to \
             {FLAT_MAX} of them, along a tree of {BRANCHES} branches above",
            settings.version, settings.debug, layout.heap_bytes, layout.pes, layout.stride,
        );
    }
}
