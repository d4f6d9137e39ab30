//! `system` and `popen`.
//!
//! The C library starts the shell with its own environment, by calls that no hook sees. If the
//! shell inherits connections that are on the fabric, it is started here instead, with a handover
//! in its environment.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::path::Path;

use libc::{FILE, c_char, c_int, pid_t, sigset_t};
use rustix::io::FdFlags;
use rustix::pipe::PipeFlags;

use super::programs::environment;
use super::spawn::{Actions, Attributes, Words};
use super::{descriptors, spawn};
use crate::guard::{ForkLock, LocalLock, Rank};
use crate::handover::{Handover, Start};
use crate::real::real;
use crate::{process, sys};

const SHELL: &CStr = c"/bin/sh";

/// Streams that this module's `popen` opened, and their shells.
static STREAMS: LocalLock<Vec<Stream>> = LocalLock::new(Rank::Streams, Vec::new());

struct Stream {
    file: usize,
    fd: RawFd,
    shell: pid_t,
}

/// The calls of `system` that are running. While there are any, this process ignores SIGINT and
/// SIGQUIT.
static WAITING: LocalLock<Waiting> =
    LocalLock::new(Rank::Waiting, Waiting { calls: 0, former: None });

struct Waiting {
    calls: u32,
    /// The program's actions of SIGINT and SIGQUIT.
    former: Option<[libc::sigaction; 2]>,
}

const TERMINAL: [c_int; 2] = [libc::SIGINT, libc::SIGQUIT];

/// The locks of this module, for fork.
pub fn locks() -> [&'static dyn ForkLock; 2] {
    [&STREAMS, &WAITING]
}

/// Prepares the handover of the connections that a shell inherits; `None` when there are none.
fn prepared(copies: &[(RawFd, RawFd)]) -> Option<Handover> {
    if !process::ready() || !process::is_itself() {
        return None;
    }
    // SAFETY: the C library's own environment.
    unsafe { Handover::prepare(Start::Spawn(copies), Some(Path::new("/bin/sh")), environment()) }
}

/// Starts `sh -c command` and returns its process id, or the error of `posix_spawn`.
///
/// # Safety
/// `command` is a C string; the actions and attributes are null or initialized.
unsafe fn start(
    handover: Handover,
    command: *const c_char,
    actions: *const Actions,
    attributes: *const Attributes,
) -> Result<pid_t, c_int> {
    let arguments: [*mut c_char; 5] = [
        c"sh".as_ptr().cast_mut(),
        c"-c".as_ptr().cast_mut(),
        c"--".as_ptr().cast_mut(),
        command.cast_mut(),
        std::ptr::null_mut(),
    ];
    let mut pid = 0;
    let environment: Words = handover.environment().cast();
    let result = real!(posix_spawn as fn(*mut pid_t, *const c_char, *const Actions,
            *const Attributes, Words, Words) -> c_int,
        (&raw mut pid, SHELL.as_ptr(), actions, attributes, arguments.as_ptr(), environment),
        else libc::ENOSYS);
    if result != 0 {
        return Err(result);
    }
    handover.started();
    Ok(pid)
}

/// Waits for child `pid` and returns its status; -1 with errno set when it is not a child.
fn wait_for(pid: pid_t) -> c_int {
    let mut status: c_int = -1;
    loop {
        let arguments = [pid.cast_unsigned() as usize, (&raw mut status).addr(), 0, 0, 0, 0];
        // SAFETY: wait4 writes the status, a local variable, and nothing else.
        let waited = sys::c_result(unsafe { sys::raw(libc::SYS_wait4, arguments) });
        if waited >= 0 {
            return status;
        }
        if sys::errno() != libc::EINTR {
            return -1;
        }
    }
}

fn empty_signal_set() -> sigset_t {
    // SAFETY: a set of zeros is an empty one.
    unsafe { std::mem::zeroed() }
}

/// Ignores the signals of a terminal. Returns those of them that the shell must handle by default.
fn ignore_terminal_signals() -> sigset_t {
    let mut usual = empty_signal_set();
    let Some(mut waiting) = WAITING.lock() else { return usual };
    waiting.calls += 1;
    let former = waiting.former.get_or_insert_with(|| {
        TERMINAL.map(|signal| {
            // SAFETY: zeros are a valid action: the default one, without flags, with an empty mask.
            let mut ignore: libc::sigaction = unsafe { std::mem::zeroed() };
            ignore.sa_sigaction = libc::SIG_IGN;
            let mut former = ignore;
            // SAFETY: both are whole structures.
            unsafe { libc::sigaction(signal, &raw const ignore, &raw mut former) };
            former
        })
    });
    for (signal, former) in TERMINAL.iter().zip(former) {
        if former.sa_sigaction != libc::SIG_IGN {
            // SAFETY: a set and the number of a signal.
            unsafe { libc::sigaddset(&raw mut usual, *signal) };
        }
    }
    usual
}

/// Installs the program's actions again when the last call of `system` returns.
fn restore_terminal_signals() {
    let Some(mut waiting) = WAITING.lock() else { return };
    waiting.calls = waiting.calls.saturating_sub(1);
    if waiting.calls == 0
        && let Some(former) = waiting.former.take()
    {
        for (signal, action) in TERMINAL.iter().zip(&former) {
            // SAFETY: the action is the one that sigaction returned in `ignore_terminal_signals`.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
    }
}

pub(super) unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    let handover = if command.is_null() { None } else { prepared(&[]) };
    let Some(handover) = handover else {
        return real!(system as fn(*const c_char) -> c_int, (command), else -1);
    };
    let usual = ignore_terminal_signals();
    let (mut child_signal, mut former) = (empty_signal_set(), empty_signal_set());
    // SAFETY: zeros are storage; init makes attributes of them.
    let mut attributes: Attributes = unsafe { std::mem::zeroed() };
    let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
    // SAFETY: sets and attributes are local, and initialized before they are read; the command is
    // the program's.
    let started = unsafe {
        libc::sigaddset(&raw mut child_signal, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const child_signal, &raw mut former);
        libc::posix_spawnattr_init(&raw mut attributes);
        libc::posix_spawnattr_setsigmask(&raw mut attributes, &raw const former);
        libc::posix_spawnattr_setsigdefault(&raw mut attributes, &raw const usual);
        libc::posix_spawnattr_setflags(&raw mut attributes, i16::try_from(flags).unwrap_or(0));
        start(handover, command, std::ptr::null(), &raw const attributes)
    };
    let status = match started {
        Ok(pid) => wait_for(pid),
        // The status of a shell that could not be executed, as POSIX defines it.
        Err(_) => 127 << 8,
    };
    let errno = sys::errno();
    restore_terminal_signals();
    // SAFETY: both were filled above.
    unsafe {
        libc::posix_spawnattr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, std::ptr::null_mut());
    }
    sys::set_errno(errno);
    status
}

pub(super) unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    let from_the_c_library = || {
        let file = real!(popen as fn(*const c_char, *const c_char) -> *mut FILE, (command, mode),
            else std::ptr::null_mut());
        if let Some(mut streams) = STREAMS.lock() {
            // A stream of this module that the program closed by fclose may have had the same
            // address.
            streams.retain(|stream| stream.file != file.addr());
        }
        file
    };
    if command.is_null() || mode.is_null() {
        return from_the_c_library();
    }
    // SAFETY: the program's C string.
    let text = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let (reads, writes) = (text.contains(&b'r'), text.contains(&b'w'));
    let Some(handover) = prepared(&[]).filter(|_| reads != writes) else {
        return from_the_c_library();
    };
    // SAFETY: the command and the mode are C strings.
    match unsafe { open(handover, command, reads, !text.contains(&b'e')) } {
        Ok(file) => file,
        Err(errno) => {
            sys::set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

/// Starts a shell that runs `command`, and returns a stream that reads its output or writes its
/// input.
///
/// # Safety
/// `command` is a C string.
unsafe fn open(
    handover: Handover,
    command: *const c_char,
    reads: bool,
    inherits: bool,
) -> Result<*mut FILE, c_int> {
    let os = |errno: rustix::io::Errno| errno.raw_os_error();
    let (out, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(os)?;
    let (ours, theirs, standard) = if reads { (out, into, 1) } else { (into, out, 0) };
    // dup2 of a descriptor onto itself would keep CLOEXEC, so this one must be above 2.
    let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, 3).map_err(os)?;
    let mode = if reads { c"r" } else { c"w" };
    // SAFETY: zeros are storage; init makes actions of them.
    let mut actions: Actions = unsafe { std::mem::zeroed() };
    // SAFETY: the actions are initialized before they are used.
    let started = unsafe {
        spawn::posix_spawn_file_actions_init(&raw mut actions);
        if let Some(streams) = STREAMS.lock() {
            // POSIX demands it: a shell that held the other end of another stream would keep it
            // open.
            for stream in streams.iter().filter(|stream| stream.fd != standard) {
                libc::posix_spawn_file_actions_addclose(&raw mut actions, stream.fd);
            }
        }
        spawn::posix_spawn_file_actions_adddup2(&raw mut actions, theirs.as_raw_fd(), standard);
        let started = start(handover, command, &raw const actions, std::ptr::null());
        spawn::posix_spawn_file_actions_destroy(&raw mut actions);
        started
    };
    let shell = started?;
    if inherits {
        let _ = rustix::io::fcntl_setfd(&ours, FdFlags::empty());
    }
    // SAFETY: the descriptor is owned here, and the stream takes it; the mode is a C string.
    let file = unsafe { descriptors::fdopen(ours.as_raw_fd(), mode.as_ptr()) };
    if file.is_null() {
        return Err(sys::errno());
    }
    let fd = ours.into_raw_fd();
    if let Some(mut streams) = STREAMS.lock() {
        streams.push(Stream { file: file.addr(), fd, shell });
    }
    Ok(file)
}

pub(super) unsafe extern "C-unwind" fn pclose(file: *mut FILE) -> c_int {
    let ours = STREAMS.lock().and_then(|mut streams| {
        let place = streams.iter().position(|stream| stream.file == file.addr())?;
        Some(streams.swap_remove(place))
    });
    let Some(stream) = ours else {
        return real!(pclose as fn(*mut FILE) -> c_int, (file), else -1);
    };
    // SAFETY: the stream was opened here and is still in the list, so the program did not close it.
    unsafe { libc::fclose(file) };
    wait_for(stream.shell)
}
