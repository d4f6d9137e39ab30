//! Functions with a variable list of arguments. Rust cannot define them.
//!
//! Instead, each is a few instructions that save the registers as a `va_list` of the System V ABI
//! for x86-64 (section 3.5.7) and call a function that takes the list.

use libc::{c_char, c_uint};

/// The bytes that the six general registers take in the saved area.
const GENERAL_BYTES: c_uint = 48;

/// A `va_list` as [`variadic`] builds it.
#[repr(C)]
pub(super) struct List {
    /// The offset of the next general register in `area`. At its end the arguments are on the
    /// stack.
    general: c_uint,
    vector: c_uint,
    stack: *const *const c_char,
    area: *const u8,
}

impl List {
    /// Takes the next argument, a pointer.
    ///
    /// # Safety
    /// The program gave another argument, and it is a pointer.
    pub(super) unsafe fn next(&mut self) -> *const c_char {
        // SAFETY: the caller's promise; general registers lie at multiples of 8 in the area, which
        // is aligned to 16 bytes, and arguments on the stack take 8 bytes each.
        unsafe {
            if self.general < GENERAL_BYTES {
                let place = self.area.add(self.general as usize);
                self.general += 8;
                place.cast::<*const c_char>().read_unaligned()
            } else {
                let place = self.stack;
                self.stack = place.add(1);
                *place
            }
        }
    }
}

/// Defines `$name`, a function with `$named` named arguments of 8 bytes each and a variable list
/// behind them. It calls `$target` with the list in register `$list`.
macro_rules! variadic {
    ($name:ident, $named:literal, $target:ident, $list:literal) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            // The saved registers are at 0 (six of 8 bytes, then eight of 16), the list at 176, the
            // return address at 216, and the program's arguments on the stack behind it.
            core::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                "mov dword ptr [rsp + 176], {registers}",
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $list, ", [rsp + 176]"),
                "call {target}",
                "add rsp, 216",
                "ret",
                registers = const 8 * $named,
                target = sym $target,
            )
        }
    };
}
pub(super) use variadic;
