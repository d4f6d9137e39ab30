//! Code that runs when the library is loaded, and when the process ends.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

use crate::{job, statics};

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

// The destructors of the program run before that of a library, so they can still communicate.
#[used]
#[unsafe(link_section = ".fini_array")]
static ENDS: extern "C" fn() = ends;

static STATUS: AtomicI32 = AtomicI32::new(0);

/// The dynamic linker calls it before the program's own code.
extern "C" fn loaded() {
    weft_pgas::fault::end_with(job::fail);
    statics::share_when_launched();
}

extern "C" fn ends() {
    job::at_exit(STATUS.load(Relaxed));
}

unsafe extern "C" {
    /// The C library calls the function with the status of exit(3). GNU's and others have it.
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

extern "C" fn note(status: c_int, _argument: *mut c_void) {
    STATUS.store(status, Relaxed);
}

/// Learns the exit status before the end.
pub fn note_exit_status() {
    static IS_NOTED: AtomicBool = AtomicBool::new(false);
    if !IS_NOTED.swap(true, Relaxed) {
        // SAFETY: the function is there as long as this library, which is never unloaded. Without
        // memory it is not called, and the status counts as success.
        unsafe { on_exit(note, std::ptr::null_mut()) };
    }
}
