//! The few functions of `libpmix.so.2` that a process of a job needs, as safe calls.
//!
//! The library is loaded when a launcher that serves PMIx started the process, and never unloaded:
//! it has a thread. Its structures grew between its versions. Those that cross this border lie in
//! the same place in versions 2 to 5 as long as no array of them has more than one element.
//!
//! # Invariants
//! - A request that the library answers later has a counted `Answer`. The library holds one
//!   reference until it answers, so a wait that ended before does no harm.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::Error;

const NAME: &str = "libpmix.so.2";

const NAMESPACE_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// The rank that stands for all processes of a job.
pub const RANK_OF_ALL: u32 = u32::MAX - 1;

const SUCCESS: c_int = 0;
/// It is done already, and there is no answer later.
const DONE_AT_ONCE: c_int = -157;

/// For processes of all hosts.
const SCOPE_GLOBAL: u8 = 3;

const KIND_FLAG: u16 = 1;
const KIND_STRING: u16 = 3;
const KIND_UINT32: u16 = 14;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Process {
    /// Its job. A zero ends the name.
    pub namespace: [c_char; NAMESPACE_BYTES],
    /// Its rank in the job.
    pub rank: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    uint32: u32,
    string: *const c_char,
    /// The union has 24 bytes from version 3 on.
    words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [u8; KEY_BYTES],
    flags: u32,
    value: Value,
}

/// A value of a process or of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// A number.
    Number(u32),
    /// A text.
    Text(String),
    /// A value of a kind that nobody here asks for, by its number.
    Other(u16),
}

type OnEnd = extern "C" fn(c_int, *mut c_void);
type OnValue = extern "C" fn(c_int, *const Value, *mut c_void);

/// `libpmix.so.2`, as this process has loaded it.
pub struct Library {
    init: unsafe extern "C" fn(*mut Process, *const Info, usize) -> c_int,
    finalize: unsafe extern "C" fn(*const Info, usize) -> c_int,
    abort: unsafe extern "C" fn(c_int, *const c_char, *const Process, usize) -> c_int,
    put: unsafe extern "C" fn(u8, *const c_char, *const Value) -> c_int,
    commit: unsafe extern "C" fn() -> c_int,
    fence: unsafe extern "C" fn(
        *const Process,
        usize,
        *const Info,
        usize,
        OnEnd,
        *mut c_void,
    ) -> c_int,
    get: unsafe extern "C" fn(
        *const Process,
        *const c_char,
        *const Info,
        usize,
        OnValue,
        *mut c_void,
    ) -> c_int,
    say: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Library {
    /// Loads the library, once for the process.
    ///
    /// # Errors
    /// [`Error::NoLibrary`].
    pub fn load() -> Result<&'static Self, Error> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Self::open().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|reason| Error::NoLibrary { reason: reason.clone() })
    }

    fn open() -> Result<Self, libloading::Error> {
        use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: the initializers are those of libpmix, libevent and hwloc, which ask nothing of
        // the program.
        let loaded = unsafe { Loaded::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) }?;
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the type of the field is that of the function in PMIx's headers. Enums
                // and flags are numbers of these widths there.
                let found = unsafe { loaded.get($name) };
                *found?
            }};
        }
        let library = Self {
            init: symbol!(b"PMIx_Init\0"),
            finalize: symbol!(b"PMIx_Finalize\0"),
            abort: symbol!(b"PMIx_Abort\0"),
            put: symbol!(b"PMIx_Put\0"),
            commit: symbol!(b"PMIx_Commit\0"),
            fence: symbol!(b"PMIx_Fence_nb\0"),
            get: symbol!(b"PMIx_Get_nb\0"),
            say: symbol!(b"PMIx_Error_string\0"),
        };
        std::mem::forget(loaded);
        Ok(library)
    }

    /// Joins the job, and gives this process.
    pub fn init(&self) -> Result<Process, Error> {
        let mut me = Process { namespace: [0; NAMESPACE_BYTES], rank: 0 };
        // SAFETY: the process is a variable of this function; there is no information.
        match unsafe { (self.init)(&raw mut me, std::ptr::null(), 0) } {
            SUCCESS => Ok(me),
            code => Err(Error::NoPmix { code, reason: self.reason(code) }),
        }
    }

    /// Leaves the job.
    pub fn finalize(&self) -> Result<(), Error> {
        // SAFETY: there is no information.
        self.check("finalize", "by PMIx", unsafe { (self.finalize)(std::ptr::null(), 0) })
    }

    /// Ends all processes of the job.
    pub fn abort(&self, exit_code: c_int, message: &CStr) -> Result<(), Error> {
        // SAFETY: the message ends with a zero; no processes stand for all.
        let code = unsafe { (self.abort)(exit_code, message.as_ptr(), std::ptr::null(), 0) };
        self.check("abort", "by PMIx", code)
    }

    /// Keeps a value of this process, for [`Library::commit`].
    pub fn put(&self, key: &CStr, value: &CStr) -> Result<(), Error> {
        let mut data = Data { words: [0; 3] };
        data.string = value.as_ptr();
        let value = Value { kind: KIND_STRING, data };
        // SAFETY: both texts end with a zero; the library copies them.
        let code = unsafe { (self.put)(SCOPE_GLOBAL, key.as_ptr(), &raw const value) };
        self.check("put", &key.to_string_lossy(), code)
    }

    /// Gives what was kept to the launcher.
    pub fn commit(&self) -> Result<(), Error> {
        // SAFETY: the function takes nothing.
        self.check("commit", "of values", unsafe { (self.commit)() })
    }

    /// Waits for all processes of the job, and has their values come here.
    pub fn fence(&self, within: Duration) -> Result<(), Error> {
        let mut key = [0; KEY_BYTES];
        let name = b"pmix.collect";
        key[..name.len()].copy_from_slice(name);
        let mut data = Data { words: [0; 3] };
        data.flag = true;
        let collect = Info { key, flags: 0, value: Value { kind: KIND_FLAG, data } };
        let answer = Answer::<()>::new();
        let (all, kept) = (std::ptr::null(), answer.give());
        // SAFETY: no processes stand for all; the information is read before the call returns or
        // copied; the answer is given once, to `ended`.
        let code = unsafe { (self.fence)(all, 0, &raw const collect, 1, ended, kept) };
        match code {
            SUCCESS => {
                answer.wait("fence", within)?.map_err(|code| self.error("fence", "by PMIx", code))
            }
            code => {
                // SAFETY: a request that failed or is over at once is never answered.
                unsafe { Answer::<()>::take(kept) };
                if code == DONE_AT_ONCE {
                    Ok(())
                } else {
                    Err(self.error("fence", "by PMIx", code))
                }
            }
        }
    }

    /// Gets a value.
    pub fn get(&self, of: &Process, key: &CStr, within: Duration) -> Result<Found, Error> {
        let shown = key.to_string_lossy();
        let answer = Answer::<Found>::new();
        let kept = answer.give();
        let none = std::ptr::null();
        // SAFETY: the process and the key are there until the call returns, which copies them; the
        // answer is given once, to `found`.
        let code = unsafe { (self.get)(of, key.as_ptr(), none, 0, found, kept) };
        if code != SUCCESS {
            // SAFETY: a request that failed is never answered.
            unsafe { Answer::<Found>::take(kept) };
            return Err(self.error("get", &shown, code));
        }
        answer.wait("get", within)?.map_err(|code| self.error("get", &shown, code))
    }

    fn check(&self, request: &'static str, subject: &str, code: c_int) -> Result<(), Error> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(request, subject, code)) }
    }

    fn error(&self, request: &'static str, subject: &str, code: c_int) -> Error {
        Error::Refused {
            request,
            subject: subject.to_owned(),
            code: code.to_string(),
            message: self.reason(code),
        }
    }

    /// The words of the library for a code.
    fn reason(&self, code: c_int) -> String {
        // SAFETY: the function takes any number, and returns a string that it never frees.
        let text = unsafe { (self.say)(code) };
        // SAFETY: as above, and it ends with a zero.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
        text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
    }
}

/// The place of an answer that the library's thread gives.
struct Answer<T> {
    given: Mutex<Option<Result<T, c_int>>>,
    is_there: Condvar,
}

impl<T> Answer<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self { given: Mutex::new(None), is_there: Condvar::new() })
    }

    /// One reference, for the library to keep.
    fn give(self: &Arc<Self>) -> *mut c_void {
        Arc::into_raw(Arc::clone(self)).cast_mut().cast()
    }

    /// The reference back.
    ///
    /// # Safety
    /// It is what [`Answer::give`] gave, and is taken once.
    unsafe fn take(kept: *mut c_void) -> Arc<Self> {
        // SAFETY: the caller's promise.
        unsafe { Arc::from_raw(kept.cast_const().cast()) }
    }

    fn set(&self, answer: Result<T, c_int>) {
        *self.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.is_there.notify_all();
    }

    fn wait(&self, request: &'static str, within: Duration) -> Result<Result<T, c_int>, Error> {
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.is_there.wait_timeout_while(given, within, |given| given.is_none());
        let (mut given, _) = waited.unwrap_or_else(PoisonError::into_inner);
        given.take().ok_or(Error::NoAnswer { request, within })
    }
}

extern "C" fn ended(code: c_int, kept: *mut c_void) {
    // SAFETY: the library gives back what `fence` gave it, once.
    let answer = unsafe { Answer::<()>::take(kept) };
    answer.set(if code == SUCCESS { Ok(()) } else { Err(code) });
}

extern "C" fn found(code: c_int, value: *const Value, kept: *mut c_void) {
    // SAFETY: the library gives back what `get` gave it, once.
    let answer = unsafe { Answer::<Found>::take(kept) };
    if code != SUCCESS || value.is_null() {
        answer.set(Err(code));
        return;
    }
    // SAFETY: a value that is not null is there until this function returns.
    answer.set(Ok(unsafe { read(value) }));
}

/// # Safety
/// The value is one of the library, whose kind is that of its data.
unsafe fn read(value: *const Value) -> Found {
    // SAFETY: the caller's promise.
    let kind = unsafe { (*value).kind };
    // SAFETY: the caller's promise. All kinds that are read begin at the first byte of the data.
    let data = unsafe { &raw const (*value).data };
    match kind {
        // SAFETY: the kind says that the number is there.
        KIND_UINT32 => Found::Number(unsafe { (*data).uint32 }),
        KIND_STRING => {
            // SAFETY: the kind says that the pointer is there.
            let text = unsafe { (*data).string };
            if text.is_null() {
                return Found::Text(String::new());
            }
            // SAFETY: texts of the library end with a zero.
            Found::Text(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        }
        other => Found::Other(other),
    }
}

/// A text of C.
pub fn text(part: &'static str, text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Character { part, character: '\0' })
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn structures_lie_where_the_headers_have_them() {
        assert_eq!((size_of::<Process>(), offset_of!(Process, rank)), (260, 256));
        assert_eq!((size_of::<Value>(), offset_of!(Value, data)), (32, 8));
        assert_eq!((size_of::<Info>(), offset_of!(Info, flags)), (552, 512));
        assert_eq!(offset_of!(Info, value), 520);
    }

    #[test]
    fn values_of_the_library_are_read_by_their_kind() {
        let of = |kind, data| {
            let value = Value { kind, data };
            // SAFETY: the data are of the kind, or the kind is none that is read.
            unsafe { read(&raw const value) }
        };
        let mut data = Data { words: [u64::MAX; 3] };
        data.uint32 = 7;
        assert_eq!(of(KIND_UINT32, data), Found::Number(7));
        assert_eq!(of(99, data), Found::Other(99));
        data.string = c"card".as_ptr();
        assert_eq!(of(KIND_STRING, data), Found::Text("card".to_owned()));
        data.string = std::ptr::null();
        assert_eq!(of(KIND_STRING, data), Found::Text(String::new()));
    }

    #[test]
    fn an_answer_after_the_wait_does_no_harm() {
        let answer = Answer::<()>::new();
        let kept = answer.give();
        let early = answer.wait("fence", Duration::ZERO);
        assert!(matches!(early, Err(Error::NoAnswer { request: "fence", .. })));
        drop(answer);
        ended(SUCCESS, kept);

        let answer = Answer::<Found>::new();
        found(-46, std::ptr::null(), answer.give());
        assert_eq!(answer.wait("get", Duration::ZERO).ok(), Some(Err(-46)));
        assert_eq!(Arc::strong_count(&answer), 1);
    }
}
