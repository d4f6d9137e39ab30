//! PEs as threads of one process: each has a copy of the library `one_pe` of its own, and all have
//! one memory. Results are checked, and under the thread sanitizer every access.
#![allow(clippy::disallowed_methods, reason = "tests own threads")]
#![allow(clippy::unwrap_used, reason = "a test ends at what it does not expect")]

use std::alloc::{Layout, alloc_zeroed};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libloading::Library;

/// A round has about 30 collectives of the world. Under the sanitizer it takes much longer.
const ROUNDS: i64 = 6;

/// The example's library, which cargo builds beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples/libone_pe.so");
    assert!(built.is_file(), "{built:?} is not there; build it: cargo build --example one_pe");
    built
}

/// Loads a copy of a library: the dynamic linker loads a file once.
fn load_copy(of: &Path) -> Library {
    static LOADED: AtomicUsize = AtomicUsize::new(0);
    let number = LOADED.fetch_add(1, Relaxed);
    let name = format!("weft-one-pe-{}-{number}.so", std::process::id());
    let copy = std::env::temp_dir().join(name);
    std::fs::copy(of, &copy).unwrap();
    // SAFETY: its initializers are those of Rust's standard library.
    let loaded = unsafe { Library::new(&copy) };
    std::fs::remove_file(&copy).unwrap();
    loaded.unwrap()
}

fn run(pes: usize) {
    let library = library();
    let copies: Vec<Library> = (0..pes).map(|_| load_copy(&library)).collect();
    let number = |name: &[u8]| {
        // SAFETY: the example exports functions of this type.
        let function = unsafe { copies[0].get::<extern "C" fn() -> usize>(name) };
        function.unwrap()()
    };
    let (bytes, alignment) = (number(b"weft_slot_bytes"), number(b"weft_slot_alignment"));
    let memory = Layout::from_size_align(bytes * pes, alignment).unwrap();
    // SAFETY: the size is not 0. The memory stays until the process ends, as the slots of a job do.
    let base = unsafe { alloc_zeroed(memory) };
    assert!(!base.is_null());
    let base = base.expose_provenance();
    std::thread::scope(|scope| {
        for (me, copy) in copies.iter().enumerate() {
            scope.spawn(move || {
                type Run = extern "C" fn(usize, usize, usize, i64);
                // SAFETY: the example exports a function of this type.
                let run = unsafe { copy.get::<Run>(b"weft_run") };
                run.unwrap()(base, me, pes, ROUNDS);
            });
        }
    });
    // Threads may still end: what they run at their end is in the copies.
    std::mem::forget(copies);
}

#[test]
fn a_few_pes_look_at_all_and_agree() {
    run(3);
}

#[test]
fn many_pes_look_along_a_tree_and_agree() {
    run(10);
}
