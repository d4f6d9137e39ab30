//! `execl`, `execlp` and `execle`: exec with the arguments of the new program in the call itself.
//!
//! The C library serves them by an internal call of exec, which no hook sees.

use libc::{c_char, c_int};

use super::programs::{environment, execve, execvpe};
use super::variadic::{List, variadic};

/// Up to this many arguments, with the null, are kept on the stack: a child of vfork had better not
/// use the allocator.
const FEW: usize = 256;

/// Calls `exec` with an array of the arguments: `first`, and those of the list up to its null.
///
/// # Safety
/// The list is the program's own; its pointers end with a null.
unsafe fn with_arguments(
    first: *const c_char,
    list: &mut List,
    exec: impl FnOnce(*const *const c_char, &mut List) -> c_int,
) -> c_int {
    let mut few = [std::ptr::null(); FEW];
    let mut many = Vec::new();
    let mut count = 0;
    let mut argument = first;
    while !argument.is_null() {
        if count < FEW - 1 {
            few[count] = argument;
        } else {
            if many.is_empty() {
                many.extend_from_slice(&few[..count]);
            }
            many.push(argument);
        }
        count += 1;
        // SAFETY: the arguments go on until their null: the caller's promise.
        argument = unsafe { list.next() };
    }
    if many.is_empty() {
        return exec(few.as_ptr(), list);
    }
    many.push(std::ptr::null());
    exec(many.as_ptr(), list)
}

unsafe extern "C-unwind" fn execl_list(
    path: *const c_char,
    first: *const c_char,
    list: &mut List,
) -> c_int {
    // SAFETY: the program's promise to execl(3).
    unsafe { with_arguments(first, list, |arguments, _| execve(path, arguments, environment())) }
}

unsafe extern "C-unwind" fn execlp_list(
    file: *const c_char,
    first: *const c_char,
    list: &mut List,
) -> c_int {
    // SAFETY: the program's promise to execlp(3).
    unsafe { with_arguments(first, list, |arguments, _| execvpe(file, arguments, environment())) }
}

unsafe extern "C-unwind" fn execle_list(
    path: *const c_char,
    first: *const c_char,
    list: &mut List,
) -> c_int {
    // SAFETY: the program's promise to execle(3): the environment follows the arguments' null.
    unsafe {
        with_arguments(first, list, |arguments, list| execve(path, arguments, list.next().cast()))
    }
}

variadic!(execl, 2, execl_list, "rdx");
variadic!(execlp, 2, execlp_list, "rdx");
variadic!(execle, 2, execle_list, "rdx");
