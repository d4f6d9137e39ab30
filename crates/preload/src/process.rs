//! The process: its id, its settings, and whether it begins or ends.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::c_char;
use weft_options::{LaneKind, Options};
use weft_socket::Limits;

static PID: AtomicU32 = AtomicU32::new(0);
static READY: AtomicBool = AtomicBool::new(false);
static ENDING: AtomicBool = AtomicBool::new(false);
/// The C library's `__libc_single_threaded`, which exists since 2.32.
static SINGLE_THREADED: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static SETTINGS: OnceLock<Settings> = OnceLock::new();

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
    /// Lanes go over an endpoint of this process (`socket.lane_kind`).
    pub over_endpoint: bool,
    /// How long a connection must move nothing before it may give its lane to another.
    pub idle_ns: u64,
}

/// The id of this process, without a system call.
#[inline]
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
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
/// vfork, which shares the memory of its parent and must not change it.
pub fn is_itself() -> bool {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs() == pid()
}

/// True once the library is initialized and enabled.
#[inline]
pub fn ready() -> bool {
    READY.load(Ordering::Acquire)
}

/// The settings in force.
pub fn settings() -> &'static Settings {
    SETTINGS.get_or_init(|| Settings::new(Options::default()))
}

impl Settings {
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
        let over_endpoint = options.socket_lane_kind() == LaneKind::Endpoint;
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
            over_endpoint,
            idle_ns,
        }
    }
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
    ready() && is_itself() && (is_alone() || !ENDING.swap(true, Ordering::SeqCst))
}

/// Asks the kernel for the id of this process, which is new after a fork.
pub fn set_pid() {
    let pid = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    PID.store(pid, Ordering::Relaxed);
}

/// The name of the program, which `weft status` shows.
pub fn name() -> String {
    let mut bytes = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, zero-terminated.
    unsafe { libc::prctl(libc::PR_GET_NAME, bytes.as_mut_ptr()) };
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
