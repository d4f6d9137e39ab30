//! The libfabric that loaded this provider.
//!
//! A process may have several: MPI libraries of the Python package index bring their own under
//! another name, and weft itself loads one to reach other hosts. What this provider returns has to
//! be allocated by the one that asked, since only that one knows the length of its structures.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use weft_libfabric::abi::Info;

type Duplicate = unsafe extern "C" fn(*const Info) -> *mut Info;

/// Finds `fi_dupinfo` of the library that loaded this provider: the loaded object that has
/// `fi_getinfo` itself. The first call is made while the provider is loaded, before weft loads
/// another.
pub fn duplicate() -> Option<Duplicate> {
    static FOUND: OnceLock<Option<Duplicate>> = OnceLock::new();
    *FOUND.get_or_init(find)
}

fn find() -> Option<Duplicate> {
    let mut found: Option<Duplicate> = None;
    // SAFETY: the function is called for each loaded object before this call returns, with the
    // place of `found`.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn look(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description of an object.
    let name = unsafe { (*object).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the loader's names end with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    if name.is_empty() {
        return 0;
    }
    let Some(duplicate) = of_object(name) else { return 0 };
    // SAFETY: `find` passes the place of its variable.
    unsafe { found.cast::<Option<Duplicate>>().write(Some(duplicate)) };
    1
}

/// `fi_dupinfo` of a loaded object, if that has `fi_getinfo` itself.
fn of_object(name: &CStr) -> Option<Duplicate> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: an object that is loaded runs no code here.
    let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if handle.is_null() {
        return None;
    }
    let own = |symbol: &CStr| {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        // The symbol may be of an object that this one needs.
        (!address.is_null() && object_of(address).as_deref() == Some(name)).then_some(address)
    };
    let has = own(c"fi_getinfo").is_some();
    let duplicate = own(c"fi_dupinfo").filter(|_| has);
    // SAFETY: the object stays: the program has loaded it, or what it needs it for.
    unsafe { libc::dlclose(handle) };
    // SAFETY: libfabric's function of this name has this type, in all versions.
    duplicate.map(|address| unsafe { std::mem::transmute::<*mut c_void, Duplicate>(address) })
}

/// The name of the object that an address is in.
fn object_of(address: *mut c_void) -> Option<std::ffi::CString> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the call writes to `info` alone.
    let known = unsafe { libc::dladdr(address, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's names end with a zero.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_owned())
}

/// A structure of the host's, with its attributes, all zero.
pub fn empty_info() -> Option<*mut Info> {
    let duplicate = duplicate()?;
    // SAFETY: without an argument the function makes an empty one.
    let info = unsafe { duplicate(std::ptr::null()) };
    (!info.is_null()).then_some(info)
}

/// The directory of this provider's file.
pub fn own_directory() -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let own: fn() -> Option<std::path::PathBuf> = own_directory;
    let name = object_of(own as *mut c_void)?;
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    Some(std::fs::canonicalize(path).ok()?.parent()?.to_path_buf())
}

/// A copy of a string that the host frees.
pub fn text(text: &CStr) -> *mut std::ffi::c_char {
    // SAFETY: the string ends with a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}
