//! The system calls of Rust's standard library and of the crates in this library, past all hooks.
//!
//! These call `close` and the like by the names of the C library. Such a name leads to the library
//! that was loaded first: to the hooks of this one, or to those of another. The other one may have
//! called this library with a lock held that its hooks take. So the linker leads the names here
//! (`build.rs`), and each call is made to the kernel. Calls that the program makes do not come
//! here: they go from this library's hooks to the next library's ([`crate::real`]).
//!
//! Left to whoever provides them are memory (`malloc`), threads (`pthread_create`: sanitizers and
//! collectors have to know every thread), the loader, and the program's own streams. A test lists
//! the functions of other libraries that this one calls (`crates/tests/e2e/tests/own_calls.rs`).

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, clockid_t, iovec, nfds_t, off_t, pid_t, pollfd,
    rusage, sigset_t, size_t, socklen_t, ssize_t, stack_t, timespec,
};
use rustix::time::ClockId;

use crate::sys::{self, kernel, raw};

/// Declares functions of C under the names to which the linker leads calls. Nobody outside of this
/// library finds them.
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $call:expr;)*) => {
        $(
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                $call
            }

            core::arch::global_asm!(
                concat!(".globl __wrap_", stringify!($name)),
                concat!(".hidden __wrap_", stringify!($name)),
                concat!(".type __wrap_", stringify!($name), ", @function"),
                concat!("__wrap_", stringify!($name), ":"),
                "jmp {call}",
                call = sym $name,
            );
        )*
    };
}

calls! {
    clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int = read_clock(clock, time);
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec)
        -> c_int = positive(kernel!(SYS_clock_nanosleep, clock, flags, time, left));
    close(fd: c_int) -> c_int = int(kernel!(SYS_close, fd));
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int
        = int(kernel!(SYS_fcntl, fd, command, argument));
    fstat64(fd: c_int, status: *mut libc::stat64) -> c_int = int(kernel!(SYS_fstat, fd, status));
    getcwd(buffer: *mut c_char, room: size_t) -> *mut c_char = {
        if kernel!(SYS_getcwd, buffer, room) > 0 { buffer } else { std::ptr::null_mut() }
    };
    getpid() -> pid_t = int(kernel!(SYS_getpid));
    getrandom(buffer: *mut c_void, length: size_t, flags: c_uint) -> ssize_t
        = kernel!(SYS_getrandom, buffer, length, flags);
    getrusage(which: c_int, usage: *mut rusage) -> c_int
        = int(kernel!(SYS_getrusage, which, usage));
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int = int(kernel!(SYS_getsockopt, fd, level, name, value, length));
    gettid() -> pid_t = int(kernel!(SYS_gettid));
    lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t
        = kernel!(SYS_lseek, fd, offset, whence) as off_t;
    madvise(place: *mut c_void, length: size_t, advice: c_int) -> c_int
        = int(kernel!(SYS_madvise, place, length, advice));
    mmap64(place: *mut c_void, length: size_t, rights: c_int, flags: c_int, fd: c_int, at: off_t)
        -> *mut c_void = pointer(kernel!(SYS_mmap, place, length, rights, flags, fd, at));
    mprotect(place: *mut c_void, length: size_t, rights: c_int) -> c_int
        = int(kernel!(SYS_mprotect, place, length, rights));
    munmap(place: *mut c_void, length: size_t) -> c_int
        = int(kernel!(SYS_munmap, place, length));
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int
        = int(kernel!(SYS_openat, libc::AT_FDCWD, path, flags, mode));
    pause() -> c_int = int(kernel!(SYS_ppoll, 0, 0, 0, 0));
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int
        = int(kernel!(SYS_poll, fds, count, timeout));
    prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int
        = int(kernel!(SYS_prctl, option, a, b, c, d));
    pread64(fd: c_int, buffer: *mut c_void, length: size_t, at: off_t) -> ssize_t
        = kernel!(SYS_pread64, fd, buffer, length, at);
    process_vm_readv(process: pid_t, here: *const iovec, parts_here: c_ulong,
        there: *const iovec, parts_there: c_ulong, flags: c_ulong) -> ssize_t
        = kernel!(SYS_process_vm_readv, process, here, parts_here, there, parts_there, flags);
    process_vm_writev(process: pid_t, here: *const iovec, parts_here: c_ulong,
        there: *const iovec, parts_there: c_ulong, flags: c_ulong) -> ssize_t
        = kernel!(SYS_process_vm_writev, process, here, parts_here, there, parts_there, flags);
    pthread_sigmask(how: c_int, set: *const sigset_t, former: *mut sigset_t) -> c_int
        = mask_signals(how, set.cast(), former.cast());
    read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t
        = kernel!(SYS_read, fd, buffer, length);
    readlink(path: *const c_char, buffer: *mut c_char, room: size_t) -> ssize_t
        = kernel!(SYS_readlinkat, libc::AT_FDCWD, path, buffer, room);
    // The standard library looks for files of debugging information so, and goes on without.
    realpath(_path: *const c_char, _resolved: *mut c_char) -> *mut c_char = {
        sys::set_errno(libc::ENOSYS);
        std::ptr::null_mut()
    };
    sched_yield() -> c_int = int(kernel!(SYS_sched_yield));
    // The standard library installs handlers at the start of programs in Rust alone.
    sigaction(_signal: c_int, _action: *const libc::sigaction, _former: *mut libc::sigaction)
        -> c_int = {
        sys::set_errno(libc::ENOSYS);
        -1
    };
    sigaltstack(stack: *const stack_t, former: *mut stack_t) -> c_int
        = int(kernel!(SYS_sigaltstack, stack, former));
    stat64(path: *const c_char, status: *mut libc::stat64) -> c_int
        = int(kernel!(SYS_newfstatat, libc::AT_FDCWD, path, status, 0));
    statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx)
        -> c_int = int(kernel!(SYS_statx, at, path, flags, mask, status));
    // Callers of calls with fewer arguments pass on what is there.
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize)
        -> c_long = {
        // SAFETY: the caller's own call, passed on unchanged.
        sys::c_result(unsafe { raw(number, [a, b, c, d, e, f]) }) as c_long
    };
    sysconf(name: c_int) -> c_long = configuration(name);
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t
        = kernel!(SYS_write, fd, buffer, length);
    writev(fd: c_int, vector: *const iovec, parts: c_int) -> ssize_t
        = kernel!(SYS_writev, fd, vector, parts);
}

fn int(result: isize) -> c_int {
    c_int::try_from(result).unwrap_or(-1)
}

fn pointer(result: isize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(result.cast_unsigned())
}

/// The result of a function that returns its error and leaves errno alone.
fn positive(result: isize) -> c_int {
    if result < 0 { sys::errno() } else { 0 }
}

/// The clocks that everybody asks for are read without a system call.
fn read_clock(clock: clockid_t, time: *mut timespec) -> c_int {
    let known = match clock {
        libc::CLOCK_REALTIME => ClockId::Realtime,
        libc::CLOCK_MONOTONIC => ClockId::Monotonic,
        _ => return int(kernel!(SYS_clock_gettime, clock, time)),
    };
    let now = rustix::time::clock_gettime(known);
    // SAFETY: the caller's place for a time.
    unsafe { time.write(timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec }) };
    0
}

/// Signals that the C library uses itself are never blocked.
fn mask_signals(how: c_int, set: *const u64, former: *mut u64) -> c_int {
    const BYTES: usize = size_of::<u64>();
    /// Those of numbers 32 and 33: the signal's number less 1 is the bit.
    const OF_C_LIBRARY: u64 = 0b11 << 31;
    // SAFETY: null, or the caller's set, which begins with the signals that the kernel has.
    let wanted = unsafe { set.as_ref() }.map(|set| set & !OF_C_LIBRARY);
    let place = wanted.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    positive(kernel!(SYS_rt_sigprocmask, how, place, former, BYTES))
}

/// Questions of the standard library about the C library's configuration.
fn configuration(name: c_int) -> c_long {
    match name {
        libc::_SC_PAGESIZE => c_long::try_from(rustix::param::page_size()).unwrap_or(-1),
        _ => {
            sys::set_errno(libc::EINVAL);
            -1
        }
    }
}
