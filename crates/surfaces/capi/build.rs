//! Names the shared library as programs ask for it: by the version of its interface.
#![forbid(unsafe_code)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    // Threads of transports run its code, and fork(2) calls it, also behind a dlclose(3).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // A program's function of the same name does not take the place of the library's own.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
