//! Writes the exports of the library from the table of functions, and has calls between them stay
//! inside the library.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let directory = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let file = Path::new(&directory).join("exports.rs");
    fs::write(file, weft_shmem_api::exports::text())
        .expect("the directory of the build is writable");
    // A profiler defines shmem_put and calls pshmem_put: that must not lead back to it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
