//! Small programs for the kernel's eBPF virtual machine (RFC 9669), behind safe calls.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{Errno, Result};

/// Commands of bpf(2).
const MAP_CREATE: libc::c_long = 0;
const PROGRAM_LOAD: libc::c_long = 5;
const PROGRAM_RUN: libc::c_long = 10;
/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;

/// Kinds of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// `BPF_PROG_TYPE_SOCKET_FILTER`: it inspects packets.
    SocketFilter = 1,
    /// `BPF_PROG_TYPE_SCHED_CLS`: it may also look sockets up.
    Classifier = 3,
}

/// Numbers of registers.
pub mod register {
    pub const R0: u8 = 0;
    pub const R1: u8 = 1;
    pub const R2: u8 = 2;
    pub const R3: u8 = 3;
    pub const R4: u8 = 4;
    pub const R5: u8 = 5;
    /// The first two of those that calls of helpers leave as they are.
    pub const R6: u8 = 6;
    pub const R7: u8 = 7;
    /// The end of the stack frame.
    pub const FRAME: u8 = 10;
}

/// Numbers of the kernel's helper functions.
pub mod helper {
    pub const LOOK_UP: i32 = 1;
    pub const PROCESSOR: i32 = 8;
    pub const STORE_BYTES: i32 = 9;
    pub const LOAD_BYTES: i32 = 26;
    pub const LOOK_UP_TCP: i32 = 84;
    pub const RELEASE_SOCKET: i32 = 86;
    pub const TCP_SOCKET: i32 = 96;
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

    /// Loads 32 bits at `offset` from the address in `base`.
    pub const fn load_word(target: u8, base: u8, offset: i16) -> Self {
        Self::new(0x61, target, base, offset, 0)
    }

    /// Loads 64 bits at `offset` from the address in `base`.
    pub const fn load_double(target: u8, base: u8, offset: i16) -> Self {
        Self::new(0x79, target, base, offset, 0)
    }

    /// Stores a register, 64 bits, at `offset` from the address in `base`.
    pub const fn store_register(base: u8, offset: i16, source: u8) -> Self {
        Self::new(0x7b, base, source, offset, 0)
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

/// The members of `union bpf_attr` for `BPF_PROG_TEST_RUN` up to the last one that is used here.
#[repr(C)]
struct RunAttributes {
    program: u32,
    result: u32,
    data_bytes: u32,
    data_bytes_out: u32,
    data: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` has the layout of `union bpf_attr` for `command`, and its pointers are valid.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> Result<RawFd> {
    let address: *mut T = attributes;
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes at `address`, and the memory at
    // their pointers, which the caller promises to be valid.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, address, size_of::<T>()) };
    match RawFd::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Calls bpf(2) for a command that returns a new descriptor.
///
/// # Safety
/// As for [`bpf`]; the command returns a descriptor.
unsafe fn make<T>(command: libc::c_long, attributes: &mut T) -> Result<OwnedFd> {
    // SAFETY: the caller promises the same.
    let made = unsafe { bpf(command, attributes) }?;
    // SAFETY: the kernel just made this descriptor, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// A map with one 32-bit counter.
pub struct MapOfCounter(OwnedFd);

impl MapOfCounter {
    /// A counter that is zero.
    pub fn new() -> Result<Self> {
        let mut attributes =
            MapAttributes { kind: ARRAY, key_bytes: 4, value_bytes: 4, entries: 1 };
        // SAFETY: this is the layout for the command, without pointers.
        unsafe { make(MAP_CREATE, &mut attributes) }.map(Self)
    }
}

impl AsRawFd for MapOfCounter {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Loads a program. The kernel verifies it.
pub fn load(kind: Kind, program: &[Instruction]) -> Result<OwnedFd> {
    let mut attributes = ProgramAttributes {
        kind: kind as u32,
        instructions: u32::try_from(program.len()).unwrap_or(u32::MAX),
        program: program.as_ptr() as u64,
        licence: c"MIT".as_ptr() as u64,
    };
    // SAFETY: this is the layout for the command; program and licence live until it returns.
    unsafe { make(PROGRAM_LOAD, &mut attributes) }
}

/// Runs a classifier once, in the network namespace of the calling thread, on a packet that nobody
/// sent. Returns its result; the packet is as the program left it.
pub fn run(program: BorrowedFd<'_>, packet: &mut [u8]) -> Result<u32> {
    let bytes = u32::try_from(packet.len()).map_err(|_| Errno::INVAL)?;
    let address = packet.as_mut_ptr() as u64;
    let mut attributes = RunAttributes {
        program: program.as_raw_fd().unsigned_abs(),
        result: 0,
        data_bytes: bytes,
        data_bytes_out: bytes,
        data: address,
        data_out: address,
        repeat: 1,
        duration: 0,
    };
    // SAFETY: this is the layout for the command. The kernel copies `bytes` bytes from the packet,
    // and at most as many to it, and both lie in it.
    unsafe { bpf(PROGRAM_RUN, &mut attributes) }?;
    Ok(attributes.result)
}
