//! The frame of every call: nothing unwinds into C, and the last error keeps its text.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::{Failure, text_of};
use crate::types::weft_status::{self, *};

/// The last error of a thread, and its text once the program has asked for it.
struct Last {
    failure: Option<Failure>,
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { failure: None, text: None }) };
}

/// Runs the body of a call. An error is kept for [`last_error`].
#[inline]
pub fn call(body: impl FnOnce() -> Result<weft_status, Failure>) -> c_int {
    number(|| body().map(|status| status as c_int))
}

/// The same for a call whose good result is a number.
#[inline]
pub fn number(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    // A thing that a panic leaves half done is never used again: see `table`.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(number)) => number,
        Ok(Err(failure)) => failed(failure),
        Err(_) => failed(Failure::new(
            WEFT_ERROR_INTERNAL,
            "a fault of weft, which it printed; the endpoint can only be closed: please report it",
        )),
    }
}

/// Keeps an error for [`last_error`].
#[cold]
pub fn failed(failure: Failure) -> c_int {
    let status = failure.status as c_int;
    // At the end of a thread there is no place for it any more.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last { failure: Some(failure), text: None };
    });
    status
}

/// The text of the last error of this thread; empty before the first.
pub fn last_error() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let Last { failure, text } = &mut *last;
        let Some(failure) = failure else { return c"".as_ptr() };
        text.get_or_insert_with(|| c_string(&failure.text)).as_ptr()
    });
    text.unwrap_or(text_of(WEFT_ERROR_INTERNAL as c_int).as_ptr())
}

/// A text of C. Zeros in it, which no text of weft has, become question marks.
pub fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: the text ends with a zero, and no call has failed meanwhile.
        unsafe { CStr::from_ptr(last_error()) }.to_str().expect("text").to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status() {
        assert_eq!(call(|| panic!("planted")), WEFT_ERROR_INTERNAL as c_int);
        assert!(text().contains("report"), "{}", text());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "another thread has errors of its own")]
    fn each_thread_has_its_own_last_error() {
        assert_eq!(text(), "");
        let failed = call(|| Err(Failure::argument("seven\0")));
        assert_eq!((failed, text()), (WEFT_ERROR_ARGUMENT as c_int, "seven?".to_owned()));
        let other = std::thread::spawn(text).join().expect("it ends well");
        assert_eq!((other, text()), (String::new(), "seven?".to_owned()));
        assert_eq!(call(|| Ok(WEFT_PENDING)), 1);
    }
}
