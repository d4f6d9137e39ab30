//! Signal handlers of a program that loads libfabric. This is a process of its own, since the
//! library is loaded once for each.

use std::ffi::c_int;

use weft_libfabric::{Error, Library, Wanted};

extern "C" fn handler(_signal: c_int) {}

fn is_set(signal: c_int, expected: libc::sighandler_t) -> bool {
    // SAFETY: all zeros are a valid structure.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the handler alone.
    assert_eq!(unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) }, 0);
    now.sa_sigaction == expected
}

#[test]
fn handlers_survive_the_loading_of_the_library() {
    let own = handler as extern "C" fn(c_int) as libc::sighandler_t;
    let set = [(libc::SIGTERM, own), (libc::SIGINT, libc::SIG_IGN), (libc::SIGABRT, libc::SIG_DFL)];
    for (signal, handler) in set {
        // SAFETY: the handler does nothing.
        assert_ne!(unsafe { libc::signal(signal, handler) }, libc::SIG_ERR);
    }
    let library = match Library::load() {
        Err(Error::Missing(reason)) => {
            println!("nothing to test: {reason}");
            return;
        }
        library => library.expect("the library is new enough"),
    };
    library.offers(&Wanted::default()).expect("the library answers");
    for (signal, handler) in set {
        assert!(is_set(signal, handler), "signal {signal}");
    }
}
