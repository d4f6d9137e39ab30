//! Keeps libfabric from caching registrations.
//!
//! Providers of NICs cache them, `verbs` among them, and that breaks three promises. A
//! registration lasts behind its end. Peers may read and write it, whatever rights were given. And
//! while the cache watches memory, the first bytes of `munmap` and its like are overwritten when
//! the first domain of the process is opened and when the last one is closed: a thread that is
//! inside of one goes on amid the new bytes and crashes.
//!
//! A cache needs a monitor of memory, and a program may bring its own (fi_mr(3), "memory monitor").
//! That of this module never starts, so providers go on without a cache. A user who sets
//! FI_MR_CACHE_MONITOR has libfabric take that monitor in its place.

use std::ffi::{CStr, c_int, c_void};

use crate::abi::{self, Fid, Monitor, MonitorOps};

/// `fi_open`.
pub type Open = unsafe extern "C" fn(
    u32,
    *const std::ffi::c_char,
    *mut c_void,
    usize,
    u64,
    *mut *mut Fid,
    *mut c_void,
) -> c_int;

const CACHE: &CStr = c"mr_cache";

static NEVER: MonitorOps = MonitorOps {
    size: size_of::<MonitorOps>(),
    start,
    stop,
    subscribe,
    unsubscribe: stop_watching,
    valid,
};

extern "C" fn start(_: *mut Monitor) -> c_int {
    -libc::ENOSYS
}

extern "C" fn stop(_: *mut Monitor) {}

extern "C" fn subscribe(_: *mut Monitor, _: *const c_void, _: usize) -> c_int {
    -libc::ENOSYS
}

extern "C" fn stop_watching(_: *mut Monitor, _: *const c_void, _: usize) {}

extern "C" fn valid(_: *mut Monitor, _: *const c_void, _: usize) -> bool {
    false
}

/// Has libfabric take the monitor, for the whole process. The code of the call that failed, if one
/// did: EBUSY if the process has a cache already, or a monitor of its own.
///
/// # Safety
/// `open` is `fi_open` of the loaded library.
pub unsafe fn forbid_cache(open: Open) -> Result<(), (&'static str, c_int)> {
    let mut cache = std::ptr::null_mut();
    let null = std::ptr::null_mut();
    // SAFETY: the name ends with a zero, there are no attributes, and `cache` has room.
    let code = unsafe { open(abi::VERSION, CACHE.as_ptr(), null, 0, 0, &raw mut cache, null) };
    if code != 0 {
        return Err(("fi_open", code));
    }
    let fid = Fid { class: abi::class::MEM_MONITOR, context: null, ops: std::ptr::null() };
    // libfabric keeps it as long as it is loaded, and that is for good.
    let monitor = Box::into_raw(Box::new(Monitor { fid, ops: &raw const NEVER, notify: null }));
    // SAFETY: a live object, and a monitor that nobody frees.
    let code = unsafe { ((*(*cache).ops).bind)(cache, monitor.cast(), 0) };
    // SAFETY: a live object, which nobody uses behind this.
    unsafe { ((*(*cache).ops).close)(cache) };
    if code != 0 {
        // SAFETY: the library refused it, so it is this function's.
        drop(unsafe { Box::from_raw(monitor) });
        return Err(("fi_import_fid", code));
    }
    Ok(())
}
