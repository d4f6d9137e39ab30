//! The functions that pass a `long double` by value, for which Rust has no type.
//!
//! C passes it on the stack and returns it on top of the x87 stack. The functions here turn the
//! value into an address, and leave the rest to the same functions as every other type.
#![cfg(target_arch = "x86_64")]

use std::arch::naked_asm;
use std::ffi::c_int;

use weft_pgas::context::ContextHandle;
use weft_pgas::number::LongDouble;
use weft_pgas::rma;
use weft_pgas::via::World;

extern "C" fn store(dest: *mut LongDouble, pe: c_int, value: *const LongDouble) {
    // SAFETY: the caller passes the address of its parameter. The destination is checked.
    unsafe { rma::p("shmem_longdouble_p", World, dest, *value, pe) };
}

extern "C" fn store_by(
    ctx: ContextHandle,
    dest: *mut LongDouble,
    pe: c_int,
    value: *const LongDouble,
) {
    // SAFETY: as above.
    unsafe { rma::p("shmem_ctx_longdouble_p", ctx, dest, *value, pe) };
}

extern "C" fn load(source: *const LongDouble, pe: c_int, value: *mut LongDouble) {
    // SAFETY: the caller passes room on its stack. The source is checked.
    unsafe { *value = rma::g("shmem_longdouble_g", World, source, pe) };
}

extern "C" fn load_by(
    ctx: ContextHandle,
    source: *const LongDouble,
    pe: c_int,
    value: *mut LongDouble,
) {
    // SAFETY: as above.
    unsafe { *value = rma::g("shmem_ctx_longdouble_g", ctx, source, pe) };
}

/// The parameter on the stack is behind the return address.
macro_rules! by_value {
    ($($name:ident, $does:ident, $register:literal, ($($parameter:ident: $type:ty),*);)*) => {$(
        /// `long double` by value: the caller's stack has it.
        ///
        /// # Safety
        /// As the specification says.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($parameter: $type),*) {
            naked_asm!(
                concat!("lea ", $register, ", [rsp + 8]"),
                "jmp {does}",
                does = sym $does,
            )
        }
    )*};
}

/// The result is on top of the x87 stack.
macro_rules! as_result {
    ($($name:ident, $does:ident, $register:literal, ($($parameter:ident: $type:ty),*);)*) => {$(
        /// `long double` as result: the x87 stack has it.
        ///
        /// # Safety
        /// As the specification says.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($parameter: $type),*) {
            naked_asm!(
                "sub rsp, 24",
                concat!("mov ", $register, ", rsp"),
                "call {does}",
                "fld tbyte ptr [rsp]",
                "add rsp, 24",
                "ret",
                does = sym $does,
            )
        }
    )*};
}

by_value! {
    shmem_longdouble_p, store, "rdx", (dest: *mut LongDouble, pe: c_int);
    pshmem_longdouble_p, store, "rdx", (dest: *mut LongDouble, pe: c_int);
    shmem_ctx_longdouble_p, store_by, "rcx",
        (ctx: ContextHandle, dest: *mut LongDouble, pe: c_int);
    pshmem_ctx_longdouble_p, store_by, "rcx",
        (ctx: ContextHandle, dest: *mut LongDouble, pe: c_int);
}

as_result! {
    shmem_longdouble_g, load, "rdx", (source: *const LongDouble, pe: c_int);
    pshmem_longdouble_g, load, "rdx", (source: *const LongDouble, pe: c_int);
    shmem_ctx_longdouble_g, load_by, "rcx",
        (ctx: ContextHandle, source: *const LongDouble, pe: c_int);
    pshmem_ctx_longdouble_g, load_by, "rcx",
        (ctx: ContextHandle, source: *const LongDouble, pe: c_int);
}
