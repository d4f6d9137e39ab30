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

/// A number that is unique among the live threads of a process.
#[cfg(target_arch = "x86_64")]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: in the x86-64 ABI the first word of the thread control block is its own address.
    unsafe {
        std::arch::asm!(
            "mov {}, fs:0",
            out(reg) pointer,
            options(nostack, readonly, preserves_flags, pure),
        );
    }
    pointer
}

/// A number that is unique among the live threads of a process.
#[cfg(target_arch = "aarch64")]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: this reads the thread pointer register, which user code may read.
    unsafe {
        std::arch::asm!(
            "mrs {}, tpidr_el0",
            out(reg) pointer,
            options(nostack, nomem, preserves_flags, pure),
        );
    }
    pointer
}

/// A number that is unique among the live threads of a process.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn thread_pointer() -> usize {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs() as usize
}
