//! Collectives of active sets (deprecated): their flags are in the program's `pSync`.
//!
//! Word 0 of `pSync` counts arrivals at the first PE, word 1 releases a PE, word 2 has a number of
//! elements. All are 0 again when a call returns. A collective is a barrier, copies by all readers
//! in parallel, and a barrier; neither is a quiet. Flags of PEs of other hosts change by messages.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{
    AtomicI64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use weft_fabric::AtomicOperation;

use crate::collective::{Data, combine_slices, combine_slices_across, pull};
use crate::control;
use crate::far::calls;
use crate::fault::{Fault, raise};
use crate::number::Combine;
use crate::order;
use crate::space::{self, Reach};
use crate::team::Members;
use crate::waiting;

const ARRIVED: usize = 0;
const RELEASED: usize = 1;
const ELEMENTS: usize = 2;

/// An active set that this PE is in.
struct Set<'a> {
    call: &'a str,
    members: Members,
    me: usize,
    flags: *mut c_long,
}

impl<'a> Set<'a> {
    fn new(
        call: &'a str,
        (start, log_stride, size): (c_int, c_int, c_int),
        flags: *mut c_long,
    ) -> Self {
        space::expect_started(call);
        let fault =
            |problem| -> ! { raise(call, &Fault::ActiveSet { start, log_stride, size, problem }) };
        let world = Members { start: 0, stride: 1, size: space::pes() };
        let stride = u32::try_from(log_stride).ok().and_then(|log| 1_i32.checked_shl(log));
        let Some(stride) = stride.filter(|stride| *stride > 0) else {
            fault("has a stride that is no power of two of a PE number")
        };
        let Some(members) = world.part(start, stride, size) else { fault("leaves the job") };
        let Some(me) = members.number(space::me()) else { fault("is without the calling PE") };
        Self { call, members, me, flags }
    }

    fn size(&self) -> usize {
        self.members.size
    }

    /// A flag of a PE of this host.
    fn flag(&self, pe: usize, which: usize) -> &'static AtomicI64 {
        let address = self.flags.wrapping_add(which).addr();
        let word = space::remote(self.call, address, size_of::<c_long>(), pe).cast::<i64>();
        if !word.is_aligned() {
            raise(self.call, &Fault::Misaligned { address, bytes: size_of::<c_long>() });
        }
        // SAFETY: `remote` checked that the word is in symmetric memory, which stays mapped, and it
        // is aligned. By contract it is used by this collective alone.
        unsafe { AtomicI64::from_ptr(word) }
    }

    fn own_flag(&self, which: usize) -> &'static AtomicI64 {
        self.flag(space::me(), which)
    }

    fn add_one(&self, member: usize, which: usize) {
        match space::reach_of(self.members.pe(member)) {
            Reach::Near(pe) => drop(self.flag(pe, which).fetch_add(1, AcqRel)),
            Reach::Far(pe) => {
                let at = (pe, self.flags.wrapping_add(which));
                calls::change(self.call, at, AtomicOperation::FetchAdd, 1);
            }
        }
    }

    fn value(&self, member: usize, which: usize) -> i64 {
        match space::reach_of(self.members.pe(member)) {
            Reach::Near(pe) => self.flag(pe, which).load(Relaxed),
            Reach::Far(pe) => {
                let at = (pe, self.flags.wrapping_add(which).cast_const());
                calls::fetch(self.call, at, AtomicOperation::Read, None)
            }
        }
    }

    /// Waits for a flag. A member that arrived does not end before the first one released it, and
    /// that one releases all before it ends.
    fn wait(&self, flag: &AtomicI64, value: usize) {
        let awaited = if self.me == 0 { 1..self.size() } else { 0..1 };
        waiting::until(
            self.call,
            || usize::try_from(flag.load(Acquire)) == Ok(value),
            || {
                awaited
                    .clone()
                    .map(|member| self.members.pe(member))
                    .find(|pe| control::has_ended(*pe))
            },
        );
    }

    /// Waits until all members are here, and what they put before is visible.
    fn barrier(&self) {
        if self.size() > 1 && space::has_far() {
            order::quiet_far(self.call);
        }
        self.meet();
    }

    /// Waits until all members are here.
    fn meet(&self) {
        if self.size() == 1 {
            return;
        }
        if self.me == 0 {
            let arrived = self.own_flag(ARRIVED);
            self.wait(arrived, self.size() - 1);
            arrived.store(0, Relaxed);
            for member in 1..self.size() {
                self.add_one(member, RELEASED);
            }
        } else {
            let released = self.own_flag(RELEASED);
            self.add_one(0, ARRIVED);
            self.wait(released, 1);
            released.store(0, Relaxed);
        }
    }

    fn at<T>(&self, member: usize, address: *const T, elements: usize) -> *mut T {
        let bytes = elements.saturating_mul(size_of::<T>());
        space::remote(self.call, address.addr(), bytes, self.members.pe(member)).cast()
    }
}

/// Waits until all PEs of a set called it and what they did is visible.
///
/// # Safety
/// `flags` is the set's `pSync`.
pub unsafe fn barrier(
    call: &str,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    Set::new(call, (start, log_stride, size), flags).barrier();
}

/// Waits until all PEs of a set called it.
///
/// # Safety
/// `flags` is the set's `pSync`.
pub unsafe fn sync(call: &str, start: c_int, log_stride: c_int, size: c_int, flags: *mut c_long) {
    Set::new(call, (start, log_stride, size), flags).meet();
}

/// Copies the elements of one PE of a set to the others.
///
/// # Safety
/// As [`crate::collective::broadcast`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn broadcast<T>(
    call: &str,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    root: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    let set = Set::new(call, (start, log_stride, size), flags);
    let Some(root_member) = usize::try_from(root).ok().filter(|root| *root < set.size()) else {
        raise(call, &Fault::Pe { pe: root, pes: set.size() })
    };
    set.meet();
    if set.me != root_member && nelems > 0 {
        // SAFETY: the root is in this call until all have copied; the caller promises its room.
        unsafe { pull(call, set.members.pe(root_member), source, nelems, dest) };
    }
    set.meet();
}

/// Joins the elements of all PEs of a set, as many as each one has.
///
/// # Safety
/// As [`crate::collective::collect`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn collect<T>(
    call: &str,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    let set = Set::new(call, (start, log_stride, size), flags);
    let own = set.own_flag(ELEMENTS);
    own.store(i64::try_from(nelems).unwrap_or(i64::MAX), Relaxed);
    set.meet();
    let mut first = 0_usize;
    for member in 0..set.size() {
        let count = usize::try_from(set.value(member, ELEMENTS)).unwrap_or(0);
        if count > 0 {
            let to = dest.wrapping_add(first);
            // SAFETY: the members promise their elements, the caller room for those of all.
            unsafe { pull(call, set.members.pe(member), source, count, to) };
        }
        first = first.saturating_add(count);
    }
    set.meet();
    own.store(0, Relaxed);
}

/// Joins the elements of all PEs of a set, equally many of each.
///
/// # Safety
/// As [`crate::collective::fcollect`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn fcollect<T>(
    call: &str,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    let set = Set::new(call, (start, log_stride, size), flags);
    set.meet();
    for member in (0..set.size()).filter(|_| nelems > 0) {
        let to = dest.wrapping_add(member * nelems);
        // SAFETY: the members promise their elements, the caller room for those of all.
        unsafe { pull(call, set.members.pe(member), source, nelems, to) };
    }
    set.meet();
}

/// Sends a block of each PE of a set to each other one.
///
/// # Safety
/// As [`crate::collective::alltoall`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn alltoall<T>(
    call: &str,
    dest: *mut T,
    source: *const T,
    nelems: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    // SAFETY: the caller's promise.
    unsafe { alltoalls(call, dest, source, 1, 1, nelems, start, log_stride, size, flags) };
}

/// As [`alltoall`], with elements at a stride.
///
/// # Safety
/// As [`crate::collective::alltoalls`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn alltoalls<T>(
    call: &str,
    dest: *mut T,
    source: *const T,
    dst: isize,
    sst: isize,
    nelems: usize,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    flags: *mut c_long,
) {
    let set = Set::new(call, (start, log_stride, size), flags);
    set.meet();
    let first = |number: usize, stride: isize| (number * nelems).cast_signed() * stride;
    for member in (0..set.size()).filter(|_| nelems > 0) {
        let block = source.wrapping_offset(first(set.me, sst));
        let from = Data::of(call, set.members.pe(member), block, 1);
        let to = dest.wrapping_offset(first(member, dst));
        // SAFETY: the members promise their elements, the caller its room.
        unsafe { from.copy(call, (0, sst), (to, dst), nelems) };
    }
    set.meet();
}

/// Combines the elements of all PEs of a set.
///
/// # Safety
/// As [`crate::collective::reduce`]; `flags` is the set's `pSync`.
#[expect(clippy::too_many_arguments, reason = "the specification's parameters")]
pub unsafe fn reduce<O: Combine<T>, T: Copy>(
    call: &str,
    dest: *mut T,
    source: *const T,
    nreduce: c_int,
    start: c_int,
    log_stride: c_int,
    size: c_int,
    _work: *mut T,
    flags: *mut c_long,
) {
    let set = Set::new(call, (start, log_stride, size), flags);
    let elements = usize::try_from(nreduce).unwrap_or(0);
    set.meet();
    if elements > 0 {
        let (me, size) = (set.me, set.size());
        // SAFETY: all PEs of the set are in this call, so their sources are ready and their
        // destinations free; that both are there is checked.
        unsafe {
            if space::has_far() {
                let pe = |member| set.members.pe(member);
                combine_slices_across::<O, T>(call, (me, size, elements), source, dest, pe);
            } else {
                let at = |member: usize, address: *const T| set.at(member, address, elements);
                combine_slices::<O, T>(me, size, elements, source, dest, at);
            }
        }
    }
    // The slices that went to other hosts are there.
    set.barrier();
}
