//! The names under which programs and other libraries find the hooks.
//!
//! Each is a jump to a hook, whose own name nobody else has. So a hook that calls another one
//! reaches that one, whatever library comes first. The jump is assembly, which the compiler cannot
//! look into: a call of `close` by Rust's standard library is none of the hook, but goes past all
//! libraries (`crate::own_calls`).

use super::{
    aio, aliases, descriptors, filters, formatted, options, programs, raw, readiness, shell,
    signals, sockets, spawn, splice, streams, vectors,
};

macro_rules! entries {
    ($($module:ident: $($name:ident)*;)*) => {
        $($(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C-unwind" fn $name() {
                core::arch::naked_asm!("jmp {hook}", hook = sym $module::$name)
            }
        )*)*
    };
}

entries! {
    aio: aio_read aio_read64 aio_write aio_write64 lio_listio lio_listio64;
    aliases: __read __write __send __recv __sendmmsg __connect __close __dup2 __fcntl __pipe __poll
        __select __fork sockatmark;
    descriptors: close close_range closefrom unshare dup dup2 dup3 fcntl fcntl64 fdopen fileno
        fileno_unlocked freopen freopen64 open open64 openat openat64 creat eventfd epoll_create
        epoll_create1 pipe pipe2 socketpair _exit _Exit;
    filters: prctl;
    formatted: vdprintf __vdprintf_chk;
    options: setsockopt getsockopt;
    programs: execve execv execvpe execvp fexecve execveat fork _Fork clone;
    raw: syscall;
    readiness: poll __poll_chk ppoll __ppoll_chk select pselect epoll_ctl epoll_wait epoll_pwait
        epoll_pwait2;
    shell: system popen pclose;
    signals: sigaction __sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset
        siginterrupt pthread_cancel;
    sockets: listen accept accept4 connect shutdown socket getpeername ioctl;
    spawn: posix_spawn_file_actions_init posix_spawn_file_actions_destroy
        posix_spawn_file_actions_adddup2 posix_spawn posix_spawnp;
    splice: splice;
    streams: read __read_chk write recvfrom recv __recv_chk __recvfrom_chk send sendto recvmsg
        sendmsg recvmmsg sendmmsg sendfile sendfile64;
    vectors: readv writev preadv2 preadv64v2 pwritev2 pwritev64v2;
}
