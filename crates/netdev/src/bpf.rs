//! Small programs for the kernel's eBPF virtual machine (RFC 9669), behind safe calls.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};

/// Commands of bpf(2).
const MAP_CREATE: libc::c_long = 0;
const PROGRAM_LOAD: libc::c_long = 5;
/// `BPF_MAP_TYPE_ARRAY` and `BPF_PROG_TYPE_SOCKET_FILTER`.
const ARRAY: u32 = 2;
const SOCKET_FILTER: u32 = 1;

/// Numbers of registers.
pub mod register {
    pub const R0: u8 = 0;
    pub const R1: u8 = 1;
    pub const R2: u8 = 2;
    /// The end of the stack frame.
    pub const FRAME: u8 = 10;
}

/// Numbers of the kernel's helper functions.
pub mod helper {
    pub const LOOK_UP: i32 = 1;
    pub const PROCESSOR: i32 = 8;
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    const fn new(code: u8, target: u8, source: u8, offset: i16, immediate: i32) -> Self {
        // The target register is in the low half on both kinds of processor that weft runs on.
        Self { code, registers: source << 4 | target, offset, immediate }
    }

    /// Calls a helper function.
    pub const fn call(helper: i32) -> Self {
        Self::new(0x85, 0, 0, 0, helper)
    }

    /// Returns the value of register 0.
    pub const fn exit() -> Self {
        Self::new(0x95, 0, 0, 0, 0)
    }

    /// Copies register `source` to `target`.
    pub const fn copy(target: u8, source: u8) -> Self {
        Self::new(0xbf, target, source, 0, 0)
    }

    /// Sets a register to `value`.
    pub const fn set(target: u8, value: i32) -> Self {
        Self::new(0xb7, target, 0, 0, value)
    }

    /// Adds `value` to a register.
    pub const fn add(target: u8, value: i32) -> Self {
        Self::new(0x07, target, 0, 0, value)
    }

    /// Skips `over` instructions if the register is zero.
    pub const fn jump_if_zero(register: u8, over: i16) -> Self {
        Self::new(0x15, register, 0, over, 0)
    }

    /// Stores 32 bits at `offset` from the address in `base`.
    pub const fn store_word(base: u8, offset: i16, value: i32) -> Self {
        Self::new(0x62, base, 0, offset, value)
    }

    /// Atomically adds a register to 32 bits of memory, and loads their old value into the
    /// register.
    pub const fn fetch_add_word(base: u8, offset: i16, register: u8) -> Self {
        Self::new(0xc3, base, register, offset, 0x01)
    }

    /// Loads the map with the descriptor `descriptor` into a register: two instructions.
    pub const fn load_map(target: u8, descriptor: RawFd) -> [Self; 2] {
        [Self::new(0x18, target, 1, 0, descriptor), Self::new(0, 0, 0, 0, 0)]
    }
}

/// The first members of `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapAttributes {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
}

/// The first members of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct ProgramAttributes {
    kind: u32,
    instructions: u32,
    program: u64,
    licence: u64,
}

/// Calls bpf(2) for a command that returns a new descriptor.
///
/// # Safety
/// `attributes` has the layout of `union bpf_attr` for `command`, and its pointers are valid.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<OwnedFd> {
    let address: *const T = attributes;
    // SAFETY: the kernel reads `size_of::<T>()` bytes at `place`, and the memory at their pointers,
    // which the caller promises to be valid.
    let made = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<T>()) };
    match RawFd::try_from(made) {
        // SAFETY: the kernel just made this descriptor, so nobody else owns it.
        Ok(made) if made >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// A map with one 32-bit counter.
pub struct MapOfCounter(OwnedFd);

impl MapOfCounter {
    /// A counter that is zero.
    pub fn new() -> Result<Self> {
        let attributes = MapAttributes { kind: ARRAY, key_bytes: 4, value_bytes: 4, entries: 1 };
        // SAFETY: this is the layout for the command, without pointers.
        unsafe { bpf(MAP_CREATE, &attributes) }.map(Self)
    }
}

impl AsRawFd for MapOfCounter {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Loads a program that inspects packets. The kernel verifies it.
pub fn load(program: &[Instruction]) -> Result<OwnedFd> {
    let attributes = ProgramAttributes {
        kind: SOCKET_FILTER,
        instructions: u32::try_from(program.len()).unwrap_or(u32::MAX),
        program: program.as_ptr() as u64,
        licence: c"MIT".as_ptr() as u64,
    };
    // SAFETY: this is the layout for the command; program and licence live until it returns.
    unsafe { bpf(PROGRAM_LOAD, &attributes) }
}
