//! The process: its id, its settings, and whether it begins or ends.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::c_char;
use weft_options::{BetweenHosts, Options};
use weft_socket::Limits;
use weft_wire::control::OfferBetweenHosts;

/// The process that loaded this library, or its child by a fork that the library knows of.
static LOADED: AtomicU32 = AtomicU32::new(0);
/// A page that the kernel zeroes in a child with memory of its own, however the child was made
/// (MADV_WIPEONFORK). A child by clone(2), of which the library does not know, would otherwise go
/// by its parent's number: each of the two would take the other's locks for its own.
static PAGE: Page = Page { pid: AtomicU32::new(0), _rest: [0; PAGE_BYTES - 4] };
const PAGE_BYTES: usize = 4096;
static READY: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);
/// Threads whose descriptors are their own, so that the table does not speak of them. With more of
/// them than places the last one takes the place of another.
static APART: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
static IS_ANY_APART: AtomicBool = AtomicBool::new(false);
/// The C library's `__libc_single_threaded`, which exists since 2.32.
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static SETTINGS: OnceLock<Settings> = OnceLock::new();

#[repr(C, align(4096))]
struct Page {
    /// The id of this process; 0 when it is not known.
    pid: AtomicU32,
    _rest: [u8; PAGE_BYTES - 4],
}

/// The options that the data path uses.
pub struct Settings {
    /// All options.
    pub options: Options,
    /// The sizes by which streams split what they write.
    pub limits: Limits,
    /// How often a wait looks before its first yield.
    pub spins: u32,
    /// How often a wait yields before it sleeps.
    pub yields: u32,
    /// Calls over TCP after which the connecting end asks for a lane; the accepting end asks after
    /// half as many more.
    pub switch_calls: u64,
    /// Bytes over TCP after which the connecting end asks; the accepting end asks after twice as
    /// many.
    pub switch_bytes: u64,
    /// How many lanes this process may have.
    pub lanes_max: u32,
    /// How many lanes this process keeps for later connections (`socket.lanes_kept`).
    pub lanes_kept: usize,
    /// Lanes to other hosts go over an endpoint of this process, and those of this host are in
    /// memory (`socket.between_hosts`).
    pub between_hosts: bool,
    /// How ends are offered that may lead to other hosts.
    pub offers_between_hosts: OfferBetweenHosts,
    /// How long a connection must move nothing before it may give its lane to another.
    pub idle_ns: u64,
}

/// The id of this process, without a system call after the first.
#[inline]
pub fn pid() -> u32 {
    match PAGE.pid.load(Ordering::Relaxed) {
        0 => learn_pid(),
        pid => pid,
    }
}

#[cold]
fn learn_pid() -> u32 {
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    PAGE.pid.store(pid, Ordering::Relaxed);
    pid
}

/// True when the C library says that this process has one thread; false when it cannot tell.
#[inline]
pub fn is_single_threaded() -> bool {
    let place = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: null or the C library's variable, which lives as long as the process.
    !place.is_null() && unsafe { place.read_volatile() } != 0
}

/// Threads of the library in this process, which use no connection of the program.
static OWN_THREADS: AtomicU32 = AtomicU32::new(0);

/// The library has started a thread.
pub fn has_own_thread() {
    OWN_THREADS.fetch_add(1, Ordering::Relaxed);
}

/// A thread of the library ends, as its last step.
pub fn own_thread_ends() {
    OWN_THREADS.fetch_sub(1, Ordering::Relaxed);
}

/// In a forked child: the library has no thread.
pub fn forget_own_threads() {
    OWN_THREADS.store(0, Ordering::Relaxed);
}

/// True when no other thread runs. Another thread may use connections until the process has ended.
fn is_alone() -> bool {
    /// The directory, its parent, and one for each thread.
    const LINKS: u64 = 3;
    is_single_threaded()
        || rustix::fs::stat("/proc/self/task").is_ok_and(|status| {
            status.st_nlink == LINKS + u64::from(OWN_THREADS.load(Ordering::Relaxed))
        })
}

/// True while the process ends and other threads still run.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// True in the process that loaded this library, and in its forked children. False in a child of
/// vfork, which shares the memory of its parent and must not change it, and in a child by clone(2),
/// for which no references were counted.
pub fn is_itself() -> bool {
    is_loaded_here() && !has_own_files()
}

fn is_loaded_here() -> bool {
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    pid == LOADED.load(Ordering::Relaxed)
}

/// True in a child by clone(2), for which no references were counted. It uses what it inherited. It
/// gets no lanes: the places for connections and the line to the daemon are its parent's.
#[inline]
pub fn is_cloned() -> bool {
    pid() != LOADED.load(Ordering::Relaxed)
}

/// True once the library is initialized and enabled, except in threads that have descriptors of
/// their own.
#[inline]
pub fn ready() -> bool {
    READY.load(Ordering::Acquire) && !has_own_files()
}

/// True in a thread that shares no descriptors with the others, by unshare(2) or clone(2).
#[inline]
pub fn has_own_files() -> bool {
    IS_ANY_APART.load(Ordering::Relaxed) && is_apart()
}

#[cold]
fn is_apart() -> bool {
    let own = thread();
    APART.iter().any(|thread| thread.load(Ordering::Relaxed) == own)
}

fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The calling thread has descriptors of its own from here on.
pub fn begin_own_files() {
    let alive = |thread: u32| {
        let pid = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| {
            rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
        })
    };
    let free = APART.iter().position(|thread| !alive(thread.load(Ordering::Relaxed)));
    APART[free.unwrap_or(0)].store(thread(), Ordering::Relaxed);
    IS_ANY_APART.store(true, Ordering::SeqCst);
}

/// The settings in force.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| Settings::new(Options::default()))
}

impl Settings {
    /// True if libfabric may be loaded into this process.
    pub const fn may_load_libfabric(&self) -> bool {
        self.between_hosts
    }

    fn new(options: Options) -> Self {
        let limits = Limits {
            eager_bytes: options.socket_eager_bytes(),
            chunk_bytes: options.socket_chunk_bytes(),
        };
        // One look, with a pause instruction, takes about 60 ns.
        let spins = u32::try_from(options.shm_spin_us() * 16).unwrap_or(u32::MAX);
        let yields = options.shm_yields();
        let switch_calls = options.socket_switch_calls();
        let switch_bytes = options.socket_switch_bytes();
        let lanes_kept = options.socket_lanes_kept();
        let lanes_max = u32::try_from(options.socket_lanes_max()).unwrap_or(u32::MAX);
        // `weft run` says `auto` to no program for which that would mean nothing.
        let offers_between_hosts = match options.socket_between_hosts() {
            BetweenHosts::Never => OfferBetweenHosts::Never,
            BetweenHosts::Auto => OfferBetweenHosts::IfFaster,
            BetweenHosts::Always => OfferBetweenHosts::Always,
        };
        let between_hosts = offers_between_hosts != OfferBetweenHosts::Never;
        let idle_ns = options.socket_idle_ms() * 1_000_000;
        Self {
            options,
            limits,
            spins,
            yields,
            switch_calls,
            switch_bytes,
            lanes_max,
            lanes_kept,
            between_hosts,
            offers_between_hosts,
            idle_ns,
        }
    }
}

/// Has the kernel zero the page with the process's id in children. Where it cannot, a child by
/// clone(2) goes by its parent's number.
pub fn begin() {
    set_pid();
    let page = std::ptr::from_ref(&PAGE).cast_mut();
    // SAFETY: the page is this static alone, and holds an atomic, for which zero is valid.
    unsafe { libc::madvise(page.cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) };
}

/// The library is loaded: the process's settings are fixed. False when they were already.
pub fn configure(options: Options) -> bool {
    // SAFETY: the name is a C string.
    let single = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE_THREADED.store(single.cast(), Ordering::Relaxed);
    SETTINGS.set(Settings::new(options)).is_ok()
}

/// The library serves the process from here on.
pub fn set_ready() {
    READY.store(true, Ordering::Release);
}

/// The process ends. True for the one thread that ends its connections: the only thread, or the
/// first of several.
pub fn begin_exit() -> bool {
    let is_here = READY.load(Ordering::Acquire) && is_loaded_here();
    is_here && (is_alone() || !ENDING.swap(true, Ordering::SeqCst))
}

/// Asks the kernel for the id of this process, which is new after a fork.
pub fn set_pid() {
    LOADED.store(learn_pid(), Ordering::Relaxed);
}

/// The name of the program, which `weft status` shows.
pub fn name() -> String {
    let mut bytes = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, zero-terminated.
    unsafe { libc::prctl(libc::PR_GET_NAME, bytes.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
