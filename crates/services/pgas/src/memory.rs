//! Allocation on the symmetric heap: calls of all PEs, with the same sizes.
//!
//! All PEs compare their calls, which costs little beside the barrier that a call has anyway.

use std::ffi::{c_long, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::collective::steps;
use crate::fault::{Fault, raise};
use crate::heap::Heap;
use crate::space;
use crate::team;

static HEAP: Mutex<Option<Heap>> = Mutex::new(None);

fn heap() -> MutexGuard<'static, Option<Heap>> {
    HEAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the heap empty. The space must be open.
pub fn begin() {
    *heap() = Some(Heap::new(space::heap_bytes()));
}

fn compare(call: &str, values: [usize; 2]) {
    space::expect_started(call);
    steps::compare_always(call, team::world(), [values[0] as u64, values[1] as u64, 0]);
}

fn address(offset: usize) -> *mut c_void {
    space::own_heap().wrapping_add(offset).cast()
}

/// Takes memory, or says once for all PEs which variable makes the heap larger.
fn take(call: &str, bytes: usize, alignment: usize) -> *mut c_void {
    let mut heap = heap();
    let Some(heap) = heap.as_mut() else { raise(call, &crate::space::closed()) };
    match heap.take(bytes, alignment) {
        Some(offset) => address(offset),
        None => {
            if space::me() == 0 {
                eprintln!(
                    "weft-shmem: {call}: {bytes} bytes do not fit into the symmetric heap of {} \
                     bytes, of which {} are free in one piece; raise SHMEM_SYMMETRIC_SIZE",
                    space::heap_bytes(),
                    heap.largest_free()
                );
            }
            std::ptr::null_mut()
        }
    }
}

/// Gives memory back.
fn give(call: &str, memory: *mut c_void) {
    let offset = memory.addr().wrapping_sub(space::own_heap().addr());
    if heap().as_mut().and_then(|heap| heap.give(offset)).is_none() {
        raise(call, &Fault::NotAllocated { address: memory.addr() });
    }
}

/// Allocates memory.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn malloc(call: &str, size: usize) -> *mut c_void {
    // SAFETY: as there.
    unsafe { align(call, 1, size) }
}

/// Allocates memory, with hints. Memory of one host needs none.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn hinted(call: &str, size: usize, _hints: c_long) -> *mut c_void {
    // SAFETY: as there.
    unsafe { align(call, 1, size) }
}

/// Allocates memory at a multiple of an alignment, a power of two up to [`space::alignment`].
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn align(call: &str, alignment: usize, size: usize) -> *mut c_void {
    space::expect_started(call);
    if size == 0 || !alignment.is_power_of_two() || alignment > space::alignment() {
        return std::ptr::null_mut();
    }
    let memory = take(call, size, alignment);
    compare(call, [size, alignment]);
    memory
}

/// Allocates zeroed memory.
///
/// # Safety
/// None; it has the form of the others.
pub unsafe fn calloc(call: &str, count: usize, size: usize) -> *mut c_void {
    space::expect_started(call);
    let bytes = count.saturating_mul(size);
    if bytes == 0 {
        return std::ptr::null_mut();
    }
    let memory = take(call, bytes, 1);
    if !memory.is_null() {
        // SAFETY: the heap just gave this PE's own memory of so many bytes.
        unsafe { memory.write_bytes(0, bytes) };
    }
    compare(call, [bytes, 0]);
    memory
}

/// Frees memory. All PEs are done with it when the first one frees it.
///
/// # Safety
/// The program uses the memory no more.
pub unsafe fn free(call: &str, memory: *mut c_void) {
    space::expect_started(call);
    if memory.is_null() {
        return;
    }
    compare(call, [memory.addr().wrapping_sub(space::own_heap().addr()), 0]);
    give(call, memory);
}

/// Changes the size of memory: where it is, if the bytes behind it are free. Otherwise its bytes
/// move to a new place.
///
/// # Safety
/// As [`free`].
pub unsafe fn realloc(call: &str, memory: *mut c_void, size: usize) -> *mut c_void {
    if memory.is_null() {
        // SAFETY: as there.
        return unsafe { malloc(call, size) };
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(call, memory) };
        return std::ptr::null_mut();
    }
    let offset = memory.addr().wrapping_sub(space::own_heap().addr());
    compare(call, [offset, size]);
    let former = heap().as_ref().and_then(|heap| heap.length(offset));
    let Some(former) = former else { raise(call, &Fault::NotAllocated { address: memory.addr() }) };
    let is_resized = heap().as_mut().and_then(|heap| heap.resize(offset, size)).is_some();
    if is_resized {
        compare(call, [offset, size]);
        return memory;
    }
    let moved = take(call, size, 1);
    if !moved.is_null() {
        // SAFETY: both parts are this PE's own and do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping::<u8>(memory.cast(), moved.cast(), former.min(size))
        };
        give(call, memory);
    }
    compare(call, [offset, size]);
    moved
}
