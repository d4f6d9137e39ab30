//! System calls that this library makes itself. None goes through a symbol that is hooked.

use std::cell::Cell;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::RecvFlags;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::process;

/// The six-argument system call.
///
/// # Safety
/// As the call itself demands of its arguments.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: libc::c_long;
    // SAFETY: the kernel's calling convention; what the call does is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0],
            in("rsi") a[1],
            in("rdx") a[2],
            in("r10") a[3],
            in("r8") a[4],
            in("r9") a[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    isize::try_from(result).unwrap_or(-1)
}

/// The six-argument system call.
///
/// # Safety
/// As the call itself demands of its arguments.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; what the call does is the caller's promise.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1],
            in("x2") a[2],
            in("x3") a[3],
            in("x4") a[4],
            in("x5") a[5],
            options(nostack),
        );
    }
    result
}

/// An argument of a system call, as the value of its register.
pub trait Word {
    /// The register.
    fn word(self) -> usize;
}

macro_rules! words {
    ($($type:ty => |$value:ident| $word:expr;)*) => {
        $(impl Word for $type {
            fn word(self) -> usize {
                let $value = self;
                $word
            }
        })*
    };
}

words! {
    i32 => |value| (value as isize).cast_unsigned();
    u32 => |value| value as usize;
    i64 => |value| usize::try_from(value.cast_unsigned()).unwrap_or(usize::MAX);
    u64 => |value| usize::try_from(value).unwrap_or(usize::MAX);
    usize => |value| value;
}

impl<T> Word for *const T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> usize {
        self.expose_provenance()
    }
}

/// Turns a raw result into that of a C function: -1 with errno set for an error.
pub fn c_result(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(c_int::try_from(-result).unwrap_or(libc::EINVAL));
        return -1;
    }
    result
}

/// Makes a system call and returns as C does: -1 with errno set on failure. Used for the program's
/// calls as long as the next library's function is not known.
macro_rules! kernel {
    ($number:ident $(, $argument:expr)*) => {{
        let given: &[usize] = &[$($crate::sys::Word::word($argument)),*];
        let mut arguments = [0usize; 6];
        arguments[..given.len()].copy_from_slice(given);
        // SAFETY: the arguments of whoever called the function of this name, passed on unchanged.
        $crate::sys::c_result(unsafe { $crate::sys::raw(libc::$number, arguments) })
    }};
}
pub(crate) use kernel;

/// Sets errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Reads errno.
pub fn errno() -> c_int {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// The address by which the C library knows this thread: that of its description, in its stack.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: the ABI has the pointer to itself at the start of the description.
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, pure, readonly, preserves_flags),
        );
    }
    pointer
}

/// The address by which the C library knows this thread: that of its description, in its stack.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(nostack, pure, nomem, preserves_flags),
        );
    }
    pointer
}

/// The descriptor `fd` of the program, for one call.
///
/// The program may close it at any time. A system call then fails with EBADF, or acts on the file
/// that got the number, as it would without weft.
pub fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    assert!(fd >= 0, "only descriptors of the table are borrowed");
    // SAFETY: the number is not -1. The program may close it meanwhile, which harms this one call
    // only.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The byte of which a wakeup consists.
pub const WAKEUP: u8 = 0;

/// Sends a wakeup to the other end's kernel socket; true when it was sent.
pub fn ring(fd: RawFd) -> bool {
    let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
    // A peer that is gone needs no wakeup, and the kernel's buffer never holds more than two.
    rustix::net::send(borrow(fd), &[WAKEUP], flags).is_ok()
}

/// The kernel's id of the calling thread.
pub fn task() -> u32 {
    thread_local! {
        /// The process for which the id was asked, and the id.
        static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let process = process::pid();
    let (asked, mut task) = KNOWN.get();
    if asked != process {
        task = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        KNOWN.set((process, task));
    }
    task
}

/// True when a thread of any process is alive, or its id says nothing yet.
pub fn is_alive(task: u32) -> bool {
    let Some(task) = i32::try_from(task).ok().and_then(rustix::process::Pid::from_raw) else {
        return true;
    };
    rustix::process::test_kill_process(task) != Err(Errno::SRCH)
}

/// Sends `signal` to a thread of this process.
pub fn signal_task(task: u32, signal: c_int) {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    // SAFETY: the call takes three numbers; it returns an error when the thread is gone.
    unsafe { raw(libc::SYS_tgkill, [process.word(), task.word(), signal.word(), 0, 0, 0]) };
}

/// True when a thread of this process sleeps in a call of the kernel on the file of `fd`: a new
/// file of that number does not concern it. False when that is not known.
pub fn sleeps_for(task: u32, fd: RawFd) -> bool {
    use std::io::Write;
    // No memory is taken: a handler may close a descriptor.
    let mut path = [0u8; 48];
    let _ = write!(&mut path[..47], "/proc/self/task/{task}/syscall");
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut text = [0; 64];
    let length = rustix::io::read(&file, &mut text).unwrap_or(0);
    close(file);
    // Either "running", or the number of the call and its arguments.
    let text = std::str::from_utf8(&text[..length]).unwrap_or("");
    let mut words = text.split_ascii_whitespace();
    let call = words.next().and_then(|call| call.parse::<libc::c_long>().ok());
    let first = words.next().and_then(|word| word.strip_prefix("0x"));
    let first = first.and_then(|word| u64::from_str_radix(word, 16).ok());
    match call {
        // Looks at the number once more when it is woken.
        Some(libc::SYS_poll | libc::SYS_ppoll) => true,
        Some(libc::SYS_recvfrom | libc::SYS_recvmsg) => first == Some(u64::from(fd.unsigned_abs())),
        _ => false,
    }
}

/// Closes a descriptor of the library.
pub fn close(fd: OwnedFd) {
    close_number(fd.into_raw_fd());
}

/// Closes a number that leads to a descriptor of the library.
pub fn close_number(fd: RawFd) {
    // SAFETY: the call takes a number, which nothing else uses.
    unsafe { raw(libc::SYS_close, [fd.word(), 0, 0, 0, 0, 0]) };
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Removes SA_RESTART from the action of a signal. The C library's `sigaction` refuses to do so for
/// the signals that it uses itself. `None` when the kernel refuses, false when the signal has no
/// handler.
pub fn stop_restarting(signal: c_int) -> Option<bool> {
    const MASK_BYTES: usize = 8;
    let mut action = KernelAction::default();
    let former = &raw mut action;
    let ask = [signal.word(), 0, former.word(), MASK_BYTES, 0, 0];
    // SAFETY: the kernel writes its own structure, which has this layout on the architectures
    // above.
    if unsafe { raw(libc::SYS_rt_sigaction, ask) } < 0 {
        return None;
    }
    if action.handler == libc::SIG_DFL || action.handler == libc::SIG_IGN {
        return Some(false);
    }
    action.flags &= !libc::c_ulong::from(libc::SA_RESTART.unsigned_abs());
    let changed = &raw const action;
    let set = [signal.word(), changed.word(), 0, MASK_BYTES, 0, 0];
    // SAFETY: the action is the kernel's own with one flag less.
    (unsafe { raw(libc::SYS_rt_sigaction, set) } >= 0).then_some(true)
}

/// True when O_NONBLOCK of the kernel's socket is set.
pub fn is_nonblocking(fd: RawFd) -> bool {
    rustix::fs::fcntl_getfl(borrow(fd))
        .is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// True when the kernel signals what comes on `fd`.
pub fn is_signalled(fd: RawFd) -> bool {
    let asynchronous = rustix::fs::OFlags::from_bits_retain(libc::O_ASYNC.unsigned_abs());
    rustix::fs::fcntl_getfl(borrow(fd)).is_ok_and(|flags| flags.contains(asynchronous))
}

/// The wakeups that one call looks at or takes at most.
pub const WAKEUPS_MAX: usize = 16;

/// Copies the first bytes of the kernel's socket to `bytes` without taking them; returns how many.
pub fn look_for_wakeups(fd: RawFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    rustix::net::recv(borrow(fd), bytes, flags).map(|(seen, _)| seen)
}

/// Takes up to `count` bytes out of the kernel's socket and returns how many it took.
pub fn drain(fd: RawFd, count: usize) -> Result<usize, Errno> {
    let mut bytes = [0; 2048];
    let wanted = count.min(bytes.len());
    rustix::net::recv(borrow(fd), &mut bytes[..wanted], RecvFlags::DONTWAIT).map(|(taken, _)| taken)
}

/// True if the peer's kernel has ended its direction or the connection.
pub fn has_ended(fd: RawFd) -> bool {
    poll_now(fd, PollFlags::RDHUP).is_ok_and(|seen| !seen.is_empty())
}

/// How many bytes were sent that the peer's kernel has not acknowledged (`SIOCOUTQ`).
fn unacknowledged(fd: RawFd) -> Option<usize> {
    let mut left: libc::c_int = 0;
    let arguments = [fd.word(), libc::TIOCOUTQ.word(), (&raw mut left).word(), 0, 0, 0];
    // SAFETY: the call writes one int; a bad descriptor is an error.
    let result = unsafe { raw(libc::SYS_ioctl, arguments) };
    (result == 0).then_some(usize::try_from(left).ok()?)
}

/// True if the peer's kernel has acknowledged all bytes that were sent.
pub fn is_acknowledged(fd: RawFd) -> bool {
    unacknowledged(fd) == Some(0)
}

/// Lets the kernel hold at least `bytes` that were sent, as far as it allows that.
pub fn hold_more(fd: RawFd, bytes: usize) {
    let socket = borrow(fd);
    // The kernel counts its own bytes beside the data.
    let wanted = bytes.saturating_mul(2);
    if rustix::net::sockopt::socket_send_buffer_size(socket).is_ok_and(|now| now < wanted) {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, wanted);
    }
}

/// The events of one descriptor that are there now.
pub fn poll_now(fd: RawFd, events: PollFlags) -> Result<PollFlags, Errno> {
    let descriptor = borrow(fd);
    let mut one = [PollFd::new(&descriptor, events)];
    rustix::event::poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(one[0].revents())
}

/// True when the next byte of the kernel's socket is the one after an urgent byte (`SIOCATMARK`).
pub fn is_at_mark(fd: RawFd) -> bool {
    let mut mark: libc::c_int = 0;
    let pointer = &raw mut mark;
    let arguments = [fd.word(), SIOCATMARK.word(), pointer.word(), 0, 0, 0];
    // SAFETY: the call writes one int; a bad descriptor is an error.
    let result = unsafe { raw(libc::SYS_ioctl, arguments) };
    result == 0 && mark != 0
}

/// The request number, from linux/sockios.h.
pub const SIOCATMARK: libc::c_ulong = 0x8905;

/// As `TIOCOUTQ`, without the bytes that were sent; from linux/sockios.h.
pub const SIOCOUTQNSD: libc::c_ulong = 0x894B;

/// The value of a socket option that is an int.
pub fn socket_option(fd: RawFd, level: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = 4u32;
    let (pointer, size) = (&raw mut value, &raw mut length);
    let words = [fd.word(), level.word(), option.word(), pointer.word(), size.word(), 0];
    // SAFETY: the kernel writes at most `length` bytes of the int, and the length.
    let result = unsafe { raw(libc::SYS_getsockopt, words) };
    (result == 0).then_some(value)
}

/// True when an on/off option of TCP is on; `None` when the kernel does not know the option.
pub fn tcp_option(fd: RawFd, option: c_int) -> Option<bool> {
    socket_option(fd, libc::IPPROTO_TCP, option).map(|value| value != 0)
}

/// Sets an on/off option of TCP.
pub fn set_tcp_option(fd: RawFd, option: c_int, on: bool) {
    set_tcp_value(fd, option, c_int::from(on));
}

/// Sets an option of TCP that is a number.
pub fn set_tcp_value(fd: RawFd, option: c_int, value: c_int) {
    let pointer = &raw const value;
    let words =
        [fd.word(), libc::IPPROTO_TCP.word(), option.word(), pointer.word(), 4u32.word(), 0];
    // SAFETY: the kernel reads one int there.
    unsafe { raw(libc::SYS_setsockopt, words) };
}

/// The bytes that the kernel sent and received on a TCP connection.
pub fn tcp_bytes(fd: RawFd) -> Option<(u64, u64)> {
    tcp_counts(fd).map(|counts| (counts.sent, counts.received))
}

/// How far both directions of a TCP connection have come, in bytes since its beginning.
pub struct TcpPosition {
    /// Bytes that programs at this end wrote.
    pub written: u64,
    /// Bytes that programs at this end read.
    pub taken: u64,
}

/// How far a connection has come, while no program at this end uses it. `None` when the peer has
/// ended its direction, or writes so fast that the counts never agree.
pub fn tcp_position(fd: RawFd) -> Option<TcpPosition> {
    const TRIES: usize = 1000;
    for _ in 0..TRIES {
        let before = tcp_counts(fd)?;
        let unread = rustix::io::ioctl_fionread(borrow(fd)).ok()?;
        let ended = poll_now(fd, PollFlags::RDHUP).ok()?;
        if !ended.is_empty() {
            // The kernel counts an end as a byte.
            return None;
        }
        if tcp_counts(fd)?.received == before.received {
            let taken = before.received.checked_sub(unread)?;
            return Some(TcpPosition { written: before.sent + before.unsent, taken });
        }
    }
    None
}

struct TcpCounts {
    sent: u64,
    /// Written by a program, but not sent yet.
    unsent: u64,
    received: u64,
}

/// The counts from `TCP_INFO`; `None` before Linux 5.5.
fn tcp_counts(fd: RawFd) -> Option<TcpCounts> {
    // Offsets in `struct tcp_info` of linux/tcp.h.
    const RECEIVED: usize = 128;
    const UNSENT: usize = 144;
    const SENT: usize = 200;
    const RETRANSMITTED: usize = 208;
    let mut info = [0u8; 216];
    let mut length = u32::try_from(info.len()).ok()?;
    let pointer = info.as_mut_ptr();
    let size = &raw mut length;
    let arguments = [
        fd.word(),
        libc::IPPROTO_TCP.word(),
        libc::TCP_INFO.word(),
        pointer.word(),
        size.word(),
        0,
    ];
    // SAFETY: the kernel writes at most `length` bytes of the array, and the length.
    let result = unsafe { raw(libc::SYS_getsockopt, arguments) };
    if result < 0 || (length as usize) < info.len() {
        return None;
    }
    let word = |at: usize| info[at..].first_chunk::<8>().map(|bytes| u64::from_ne_bytes(*bytes));
    let unsent = info[UNSENT..].first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))?;
    Some(TcpCounts {
        sent: word(SENT)?.saturating_sub(word(RETRANSMITTED)?),
        unsent: u64::from(unsent),
        received: word(RECEIVED)?,
    })
}

/// The sizes that the program set for the kernel's send and receive buffer; 0 for one it did not
/// set, and before Linux 5.14.
pub fn fixed_buffers(fd: RawFd) -> (u64, u64) {
    const SEND: c_int = 1;
    const RECEIVE: c_int = 2;
    let locks = socket_option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).unwrap_or(0);
    if locks == 0 {
        return (0, 0);
    }
    let fixed = |lock: c_int, size: rustix::io::Result<usize>| {
        if locks & lock == 0 { 0 } else { size.unwrap_or(0) as u64 }
    };
    use rustix::net::sockopt::{socket_recv_buffer_size, socket_send_buffer_size};
    (
        fixed(SEND, socket_send_buffer_size(borrow(fd))),
        fixed(RECEIVE, socket_recv_buffer_size(borrow(fd))),
    )
}

/// A cheap clock: processor ticks. Values can only be compared with each other.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A cheap clock: nanoseconds. Values can only be compared with each other.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn ticks() -> u64 {
    now_ns()
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The first number for descriptors of this library.
pub fn high_number() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024);
    RawFd::try_from(limit.min(1 << 20).saturating_sub(64)).unwrap_or(0)
}

/// Moves a descriptor to a high number, away from those that programs use.
pub fn high(fd: OwnedFd) -> OwnedFd {
    high_copy(fd.as_fd()).unwrap_or(fd)
}

/// A copy of a descriptor with a high number: where the hard limit allows that, one that the soft
/// limit does not leave to the program, which may count on all below.
pub fn high_copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    above_limit(fd).map_or_else(|| rustix::io::fcntl_dupfd_cloexec(fd, high_number()), Ok)
}

/// A copy at a number that is not below the soft limit, which is raised for the moment.
fn above_limit(fd: BorrowedFd<'_>) -> Option<OwnedFd> {
    /// The kernel's table of descriptors grows to the highest number.
    const SOFT_MAX: u64 = 1 << 16;
    let Rlimit { current: Some(soft), maximum } = getrlimit(Resource::Nofile) else { return None };
    let raised = Rlimit { current: maximum, maximum };
    if soft > SOFT_MAX || maximum.is_some_and(|most| most <= soft) {
        return None;
    }
    let before = prlimit(None, Resource::Nofile, raised).ok()?;
    let copy = rustix::io::fcntl_dupfd_cloexec(fd, RawFd::try_from(soft).ok()?);
    let between = prlimit(None, Resource::Nofile, before).ok();
    // Another thread may have set a limit meanwhile.
    if let Some(other) = between.filter(|other| *other != raised) {
        let _ = prlimit(None, Resource::Nofile, other);
    }
    copy.ok()
}

/// True if the program could get this number itself.
pub fn is_below_limit(fd: RawFd) -> bool {
    let soft = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::from(fd.unsigned_abs()) < soft
}

/// True if `fd` is open.
pub fn is_open(fd: RawFd) -> bool {
    fd >= 0 && rustix::io::fcntl_getfd(borrow(fd)).is_ok()
}

/// A copy of `fd` that exec keeps.
pub fn inheritable(fd: &OwnedFd) -> Option<OwnedFd> {
    let copy = high_copy(fd.as_fd()).ok()?;
    rustix::io::fcntl_setfd(&copy, FdFlags::empty()).ok()?;
    Some(copy)
}

/// A number of the calling thread, which no other living thread has.
pub fn this_thread() -> usize {
    // SAFETY: every thread has such a number.
    let thread = unsafe { libc::pthread_self() };
    usize::try_from(thread).unwrap_or(0)
}
