//! A copy of libfabric of weft's own, in a program that uses libfabric itself.
//!
//! A program whose libfabric has loaded weft's provider may have told it to use that one alone
//! (`FI_PROVIDER=weft`). That counts for the whole library, so the provider could not reach other
//! hosts by it. It then has the same file loaded once more, under another name, without these
//! variables.

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The steps in a program that uses libfabric itself. Only [`keep_apart`] names these functions,
/// so that a library that does not call it, such as the one for preloading, has none of them: they
/// change the environment, and make system calls.
struct Ways {
    copy: fn(&CStr) -> Option<(PathBuf, OwnedFd)>,
    unchosen: fn(&mut dyn FnMut()),
}

/// Set if the program uses libfabric itself.
static APART: OnceLock<Ways> = OnceLock::new();

/// Variables by which a program chooses providers.
const VARIABLES: [&str; 2] = ["FI_PROVIDER", "FI_PROVIDER_PATH"];

/// From now on, if libfabric was not loaded by weft yet, weft uses a copy of its own. A provider of
/// libfabric says so before it opens a port.
pub fn keep_apart() {
    APART.get_or_init(|| Ways { copy: copy_of, unchosen: without_choice });
}

/// The path of a copy of a library that the program has loaded, and what keeps it there. `None` if
/// weft uses no copy, or the program has not loaded the library.
pub(crate) fn copy(name: &CStr) -> Option<(PathBuf, OwnedFd)> {
    (APART.get()?.copy)(name)
}

/// Does `work` without the variables that choose providers, if weft uses a copy of its own.
pub(crate) fn unchosen<T>(work: impl FnOnce() -> T) -> T {
    let Some(ways) = APART.get() else { return work() };
    let (mut work, mut result) = (Some(work), None);
    (ways.unchosen)(&mut || result = work.take().map(|work| work()));
    result.expect("the work was done")
}

fn without_choice(work: &mut dyn FnMut()) {
    let kept: Vec<(&str, OsString)> =
        VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
    for (name, _) in &kept {
        // SAFETY: libfabric reads its variables when it is loaded and started, which the caller
        // does now. The C library removes a variable in place and frees nothing. A program of MPI
        // opens its endpoints before it starts threads of its own.
        unsafe { std::env::remove_var(name) };
    }
    work();
    for (name, value) in kept {
        // SAFETY: the number of variables is what it was before they were removed. But the C
        // library before 2.41 may move its array here, so a thread that reads the environment at
        // this moment must not exist. Nothing enforces that; see the line above on programs of MPI.
        unsafe { std::env::set_var(name, value) };
    }
}

fn copy_of(name: &CStr) -> Option<(PathBuf, OwnedFd)> {
    let path = loaded_from(name)?;
    let bytes = std::fs::read(path).ok()?;
    // SAFETY: the name ends with a zero.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    // SAFETY: the kernel has just made this descriptor for this call.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    std::fs::write(&path, bytes).ok()?;
    Some((path, file))
}

/// The file of a library that the program has loaded.
fn loaded_from(name: &CStr) -> Option<PathBuf> {
    // SAFETY: a library that is loaded runs no code here.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is open.
    let symbol = unsafe { libc::dlsym(handle, c"fi_getinfo".as_ptr()) };
    // SAFETY: the program has the library loaded, so it stays.
    unsafe { libc::dlclose(handle) };
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the call writes to `info` alone.
    let known = !symbol.is_null() && unsafe { libc::dladdr(symbol, &raw mut info) } != 0;
    if !known || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names end with a zero.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = CString::from(name);
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes())))
}
