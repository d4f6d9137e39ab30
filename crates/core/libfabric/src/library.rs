//! The loaded library.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::abi::{self, Fabric, FabricAttr, Info, errno};
use crate::apart;
use crate::error::Error;
use crate::handlers;
use crate::monitor;

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;

/// libfabric, as this process has loaded it. It stays loaded: providers start threads.
#[derive(Debug)]
pub struct Library {
    get_info: GetInfo,
    free_info: unsafe extern "C" fn(*mut Info),
    duplicate_info: unsafe extern "C" fn(*const Info) -> *mut Info,
    open_fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int,
    say: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

const NAME: &CStr = c"libfabric.so.1";

impl Library {
    /// Loads `libfabric.so.1`, once for the process.
    ///
    /// Libraries that it pulls in set signal handlers. Those of the program are set again when the
    /// call is over, and so they are behind the first [`Library::offers`]; until then a signal may
    /// meet the others, and what another thread sets meanwhile is lost.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::TooOld`]. [`Error::Call`] (EBUSY) if the program uses libfabric
    /// itself, and has it cache registrations: those of weft would not end then.
    pub fn load() -> Result<&'static Self, Error> {
        static LOADED: OnceLock<Result<Library, Error>> = OnceLock::new();
        let load = || handlers::kept(|| apart::unchosen(Self::open));
        LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, Error> {
        use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: the initializers are those of libfabric and of what it pulls in. They set signal
        // handlers, which the caller sets back, and ask nothing of the program.
        let open = |name: &OsStr, flags| unsafe { Loaded::open(Some(name), flags) };
        let copy = apart::copy(NAME);
        let loaded = match &copy {
            // Its own functions, not those of the program's libfabric, are behind its names.
            Some((path, _)) => {
                let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_DEEPBIND;
                open(path.as_os_str(), flags)
            }
            None => open(OsStr::from_bytes(NAME.to_bytes()), RTLD_NOW | RTLD_LOCAL),
        };
        let loaded = loaded.map_err(|error| Error::Missing(error.to_string()))?;
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the type of the field is that of the function in libfabric's headers.
                let found = unsafe { loaded.get($name) };
                *found.map_err(|error| Error::Missing(error.to_string()))?
            }};
        }
        let version: unsafe extern "C" fn() -> u32 = symbol!(b"fi_version\0");
        let library = Self {
            get_info: symbol!(b"fi_getinfo\0"),
            free_info: symbol!(b"fi_freeinfo\0"),
            duplicate_info: symbol!(b"fi_dupinfo\0"),
            open_fabric: symbol!(b"fi_fabric\0"),
            say: symbol!(b"fi_strerror\0"),
            // SAFETY: the function takes nothing.
            version: unsafe { version() },
        };
        let open: monitor::Open = symbol!(b"fi_open\0");
        std::mem::forget(loaded);
        let (major, minor) = library.version();
        if library.version < abi::VERSION {
            return Err(Error::TooOld { major, minor });
        }
        // SAFETY: it is `fi_open` of this library, which stays loaded.
        let forbidden = unsafe { monitor::forbid_cache(open) };
        forbidden.map_err(|(call, code)| library.error(call, code))?;
        Ok(library)
    }

    /// The library's version: major, minor.
    #[must_use]
    pub const fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// The error of a call that returned `code`, which is negative.
    pub(crate) fn error(&self, call: &'static str, code: impl Into<i64>) -> Error {
        let number = i32::try_from(code.into().saturating_neg()).unwrap_or(i32::MAX);
        Error::Call { call, number, reason: self.reason(number) }
    }

    /// The words of libfabric for an error number.
    pub(crate) fn reason(&self, number: i32) -> String {
        // SAFETY: the function takes any number, and returns a string that it never frees.
        let text = unsafe { (self.say)(number) };
        // SAFETY: as above, and it ends with a zero.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map_or_else(|| format!("error {number}"), |text| text.to_string_lossy().into_owned())
    }

    /// The result of a call: 0 or more, or an error.
    pub(crate) fn check(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code < 0 { Err(self.error(call, code)) } else { Ok(()) }
    }

    /// A new `fi_info` with its attributes, all zero. It is freed by [`Library::free`].
    pub(crate) fn empty_info(&self) -> *mut Info {
        // SAFETY: without an argument the function makes an empty one.
        unsafe { (self.duplicate_info)(std::ptr::null()) }
    }

    /// A copy of one `fi_info`, without those behind it.
    ///
    /// # Safety
    /// `info` is one that this library made and has not freed.
    pub(crate) unsafe fn duplicate(&self, info: *const Info) -> *mut Info {
        // SAFETY: as the caller promises.
        unsafe { (self.duplicate_info)(info) }
    }

    /// Frees an `fi_info`, and those behind it.
    ///
    /// # Safety
    /// As [`Library::duplicate`], and nobody uses it any more.
    pub(crate) unsafe fn free(&self, info: *mut Info) {
        // SAFETY: as the caller promises.
        unsafe { (self.free_info)(info) }
    }

    /// `fi_getinfo`: a list that the caller frees.
    ///
    /// # Safety
    /// `hints` was made by [`Library::empty_info`], and its pointers are valid.
    pub(crate) unsafe fn get_info(
        &self,
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        hints: *const Info,
    ) -> Result<*mut Info, Error> {
        static STARTED: OnceLock<()> = OnceLock::new();
        let mut found = std::ptr::null_mut();
        let node = node.map_or(std::ptr::null(), CStr::as_ptr);
        let service = service.map_or(std::ptr::null(), CStr::as_ptr);
        let mut get = || {
            // SAFETY: both texts end with a zero or are null; the rest as the caller promises.
            unsafe { (self.get_info)(abi::VERSION, node, service, flags, hints, &raw mut found) }
        };
        // The first call starts the providers, which may load libraries of their own.
        let mut first = None;
        STARTED.get_or_init(|| first = Some(handlers::kept(|| apart::unchosen(&mut get))));
        let code = first.unwrap_or_else(get);
        if code == -errno::ENODATA {
            return Ok(std::ptr::null_mut());
        }
        self.check("fi_getinfo", code)?;
        Ok(found)
    }

    /// `fi_fabric`.
    ///
    /// # Safety
    /// `attr` is of an `fi_info` of this library.
    pub(crate) unsafe fn open_fabric(&self, attr: *mut FabricAttr) -> Result<*mut Fabric, Error> {
        let mut fabric = std::ptr::null_mut();
        // SAFETY: as the caller promises.
        let code = unsafe { (self.open_fabric)(attr, &raw mut fabric, std::ptr::null_mut()) };
        self.check("fi_fabric", code)?;
        Ok(fabric)
    }
}
