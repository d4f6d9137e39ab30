//! Has the linker lead calls that Rust's standard library and the crates in the preload library
//! make to functions of `src/own_calls.rs`, in place of the C library's or those of whoever hooks
//! them.
#![forbid(unsafe_code)]

/// Functions of the C library that make system calls. `src/own_calls.rs` has one for each.
const CALLS: &[&str] = &[
    "clock_gettime",
    "clock_nanosleep",
    "close",
    "fcntl",
    "fstat64",
    "getcwd",
    "getpid",
    "getrandom",
    "getrusage",
    "getsockopt",
    "gettid",
    "lseek64",
    "madvise",
    "mmap64",
    "mprotect",
    "munmap",
    "open64",
    "pause",
    "poll",
    "prctl",
    "pread64",
    "process_vm_readv",
    "process_vm_writev",
    "pthread_sigmask",
    "read",
    "readlink",
    "realpath",
    "sched_yield",
    "sigaction",
    "sigaltstack",
    "stat64",
    "statx",
    "syscall",
    "sysconf",
    "write",
    "writev",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for call in CALLS {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={call}");
    }
}
