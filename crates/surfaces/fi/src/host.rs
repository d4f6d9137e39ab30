//! The libfabric that loaded this provider.
//!
//! A process may have several: MPI libraries of the Python package index bring their own under
//! another name, and weft itself loads one to reach other hosts. What this provider returns has to
//! be allocated by the one that asked, since only that one knows the length of its structures.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_libfabric::abi::{Info, Provider};

type Duplicate = unsafe extern "C" fn(*const Info) -> *mut Info;
type Enabled = unsafe extern "C" fn(*const Provider, c_int, c_int) -> c_int;
type Log =
    unsafe extern "C" fn(*const Provider, c_int, c_int, *const c_char, c_int, *const c_char, ...);

/// The functions of the host that this provider calls.
#[derive(Clone, Copy)]
struct Functions {
    duplicate: Duplicate,
    log: Log,
    is_logged: Enabled,
}

/// `FI_LOG_INFO`, and the subsystem `FI_LOG_CORE`.
const LEVEL_INFO: c_int = 2;
const CORE: c_int = 0;

/// Finds the functions of the library that loaded this provider: the loaded object that has
/// `fi_getinfo` itself. The first call is made while the provider is loaded, before weft loads
/// another.
fn functions() -> Option<Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut found: Option<Functions> = None;
        // SAFETY: the function is called for each loaded object before this call returns, with the
        // place of `found`.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
        found
    })
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
    let Some(functions) = of_object(name) else { return 0 };
    // SAFETY: `functions` passes the place of its variable.
    unsafe { found.cast::<Option<Functions>>().write(Some(functions)) };
    1
}

/// The functions of a loaded object, if that has `fi_getinfo` itself.
fn of_object(name: &CStr) -> Option<Functions> {
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
    let found = own(c"fi_getinfo").and_then(|_| {
        let all = (own(c"fi_dupinfo")?, own(c"fi_log")?, own(c"fi_log_enabled")?);
        let (duplicate, log, is_logged) = all;
        // SAFETY: libfabric's functions of these names have these types, in all versions.
        Some(unsafe {
            Functions {
                duplicate: std::mem::transmute::<*mut c_void, Duplicate>(duplicate),
                log: std::mem::transmute::<*mut c_void, Log>(log),
                is_logged: std::mem::transmute::<*mut c_void, Enabled>(is_logged),
            }
        })
    });
    // SAFETY: the object stays: the program has loaded it, or what it needs it for.
    unsafe { libc::dlclose(handle) };
    found
}

/// Notes the host, while there is one libfabric alone, and the provider that it gets, as which this
/// library writes to its log.
pub fn note(provider: *mut Provider) {
    let _ = functions();
    PROVIDER.store(provider, Ordering::Release);
}

static PROVIDER: AtomicPtr<Provider> = AtomicPtr::new(std::ptr::null_mut());

/// Writes a line to libfabric's log, where `FI_LOG_LEVEL` is `info` or more.
pub fn log(line: &str) {
    let provider = PROVIDER.load(Ordering::Acquire);
    let (Some(host), Ok(line)) = (functions(), CString::new(line)) else { return };
    // SAFETY: the provider is that which the host has, and lives as long as the process.
    if provider.is_null() || unsafe { (host.is_logged)(provider, LEVEL_INFO, CORE) } == 0 {
        return;
    }
    let (source, format) = (c"weft", c"%s\n");
    // SAFETY: as above; the format takes one string, which is there.
    unsafe {
        let (source, format) = (source.as_ptr(), format.as_ptr());
        (host.log)(provider, LEVEL_INFO, CORE, source, 0, format, line.as_ptr());
    }
}

/// The name of the object that an address is in.
fn object_of(address: *mut c_void) -> Option<CString> {
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
    let duplicate = functions()?.duplicate;
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
pub fn text(text: &CStr) -> *mut c_char {
    // SAFETY: the string ends with a zero.
    unsafe { libc::strdup(text.as_ptr()) }
}
