//! The next library's functions, which the hooks replace.
//!
//! They are looked up once, when this library is loaded. A hook that runs earlier, in the
//! constructor of another library or the start of an allocator, makes the system call itself: a
//! lookup there could call the allocator again.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// A function of the next library: its name, and its address once that is known.
pub struct Real {
    name: &'static std::ffi::CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// A function that was not looked up yet.
    pub const fn new(name: &'static std::ffi::CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Looks the function up; called by the constructor.
    pub fn resolve(&self) {
        // SAFETY: the name is a C string; RTLD_NEXT asks for the library behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Release);
    }

    /// Its address, or null before [`Real::resolve`] and for functions this libc lacks.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        self.address.load(Ordering::Acquire)
    }
}

/// Calls the next library's function.
///
/// `real!(name as fn(types) -> result, (values), else fallback)` calls the function called `name`.
/// It evaluates to `fallback` if the function is not known.
macro_rules! real {
    ($name:ident as fn($($argument:ty),*) -> $result:ty,
     ($($value:expr),*), else $fallback:expr) => {{
        let address = $crate::real::$name.address();
        if address.is_null() {
            $fallback
        } else {
            let function: unsafe extern "C-unwind" fn($($argument),*) -> $result =
                // SAFETY: the address was looked up under this name, whose C prototype this is.
                unsafe { std::mem::transmute(address) };
            // SAFETY: the arguments are the program's own, passed on unchanged.
            unsafe { function($($value),*) }
        }
    }};
}
pub(crate) use real;

macro_rules! declare {
    ($($name:ident)*) => {
        $(
            #[allow(non_upper_case_globals, reason = "named as the function")]
            pub static $name: Real = Real::new(
                match std::ffi::CStr::from_bytes_with_nul(
                    concat!(stringify!($name), "\0").as_bytes(),
                ) {
                    Ok(name) => name,
                    Err(_) => panic!("an identifier has no zero byte"),
                },
            );
        )*
        /// Looks up all functions; called by the constructor.
        pub fn resolve_all() {
            $($name.resolve();)*
        }
    };
}

declare! {
    read write readv writev recv send recvfrom sendto recvmsg sendmsg recvmmsg sendmmsg
    preadv2 pwritev2 sendfile sendfile64 splice
    connect accept accept4 listen getpeername shutdown close close_range closefrom
    dup dup2 dup3 fcntl fcntl64 ioctl setsockopt getsockopt
    fdopen fileno fileno_unlocked freopen freopen64 vdprintf __vdprintf_chk prctl
    poll ppoll select pselect epoll_create epoll_create1 epoll_ctl
    epoll_wait epoll_pwait epoll_pwait2
    pthread_cancel unshare
    aio_read aio_read64 aio_write aio_write64 lio_listio lio_listio64
    open open64 openat openat64 creat pipe pipe2 socket socketpair eventfd
    _exit _Exit execve execvpe fexecve execveat fork _Fork clone syscall
    posix_spawn posix_spawnp posix_spawn_file_actions_init posix_spawn_file_actions_destroy
    posix_spawn_file_actions_adddup2 system popen pclose
    sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset siginterrupt
}
