//! The system calls of this crate that rustix does not wrap.
#![cfg_attr(loom, allow(dead_code, reason = "the models do not use the system's fences and locks"))]

/// How often the kernel preempted the calling thread.
pub fn involuntary_switches() -> i64 {
    // SAFETY: all bits zero are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `rusage`.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } == 0 {
        usage.ru_nivcsw
    } else {
        0
    }
}

/// Commands of `membarrier(2)`, from the kernel's headers.
const CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

fn membarrier(command: libc::c_int) -> bool {
    // Not `libc::syscall`, since a preload library hooks that symbol.
    raw_membarrier(command) == 0
}

#[cfg(target_arch = "x86_64")]
fn raw_membarrier(command: libc::c_int) -> libc::c_long {
    let result: libc::c_long;
    // SAFETY: membarrier takes a command, flags and a processor number and accesses no memory of
    // the caller. The clobbers are those of the system call instruction.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_membarrier => result,
            in("rdi") command as isize,
            in("rsi") 0usize,
            in("rdx") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
fn raw_membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: membarrier takes a command, flags and a processor number and accesses no memory of
    // the caller.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

pub fn membarrier_register() -> bool {
    membarrier(CMD_REGISTER_GLOBAL_EXPEDITED)
}

pub fn membarrier_global() -> bool {
    membarrier(CMD_GLOBAL_EXPEDITED)
}

/// The calling thread's word for [`crate::lock::Holder`]; 0 until it is written. It lies in
/// thread-local memory that is laid out when the program or the library is loaded.
///
/// JUSTIFICATION: a program's call of a connection takes a lock. With the standard library's
/// thread-local memory, which costs a library a call of the dynamic linker, taking and giving back
/// a free lock took 11.0 ns in place of 10.3.
#[cfg(target_arch = "x86_64")]
pub mod holder {
    use std::sync::atomic::AtomicU64;

    core::arch::global_asm!(
        ".pushsection .tbss.weft_holder,\"awT\",@nobits",
        ".balign 8",
        ".globl weft_holder",
        ".hidden weft_holder",
        ".type weft_holder, @object",
        ".size weft_holder, 8",
        "weft_holder:",
        ".zero 8",
        ".popsection",
    );

    #[inline]
    fn place() -> *const AtomicU64 {
        let place: *const AtomicU64;
        // SAFETY: reads the thread's pointer to itself and the distance of the word from there,
        // which the loader wrote.
        unsafe {
            core::arch::asm!(
                "mov {place}, qword ptr fs:[0]",
                "add {place}, qword ptr [rip + weft_holder@GOTTPOFF]",
                place = out(reg) place,
                options(pure, readonly, nostack),
            );
        }
        place
    }

    /// Calls `with` with the word.
    #[inline]
    pub fn with<T>(with: impl FnOnce(&AtomicU64) -> T) -> T {
        // SAFETY: a word of this thread, zeroed when the thread began; the thread outlives the
        // call.
        with(unsafe { &*place() })
    }
}

/// The calling thread's word for [`crate::lock::Holder`]; 0 until it is written.
#[cfg(not(target_arch = "x86_64"))]
pub mod holder {
    use std::sync::atomic::AtomicU64;

    /// Calls `with` with the word.
    #[inline]
    pub fn with<T>(with: impl FnOnce(&AtomicU64) -> T) -> T {
        thread_local! {
            static WORD: AtomicU64 = const { AtomicU64::new(0) };
        }
        WORD.with(with)
    }
}

/// The number of the calling thread in the kernel.
pub fn thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}
