//! Collectives of active sets (deprecated): their flags are in the program's `pSync`.
//!
//! Word 0 of `pSync` counts arrivals at the first PE, word 1 releases a PE, word 2 has a number of
//! elements, word 3 the call where calls are compared (`SHMEM_DEBUG`). All are 0 again when a call
//! returns. A collective is a meeting, copies by all readers in parallel, and a meeting; neither is
//! a quiet.
//!
//! On several hosts the first PE of each leads: the PEs of a host meet there, and the leaders meet
//! by messages that name `pSync` ([`crate::far::eager`]). Short data go with such messages, so
//! their collectives need no meeting: each PE of another host gets them before it asks. Longer data
//! go as those of teams do.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{
    AtomicI64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use weft_fabric::AtomicOperation;

use crate::collective::plan::Across;
use crate::collective::{
    FLAT_MAX, Group, Memory, STAGE_BYTES, Step, combine_first, combine_slices, copy_strided, steps,
};
use crate::control;
use crate::far::{self, calls};
use crate::fault::{Fault, raise};
use crate::number::Combine;
use crate::order;
use crate::rma::copy;
use crate::space::{self, Reach};
use crate::team::Members;
use crate::waiting;

const ARRIVED: usize = 0;
const RELEASED: usize = 1;
const ELEMENTS: usize = 2;
const CALL: usize = 3;

/// An active set that this PE is in.
struct Set<'a> {
    call: &'a str,
    members: Members,
    me: usize,
    flags: *mut c_long,
    /// Where its members are, if they are on several hosts.
    across: Option<Across>,
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
        let across = if space::has_far() { members.across() } else { None };
        Self { call, members, me, flags, across }
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

    /// Adds one to a flag of a member of this host.
    fn add_one(&self, member: usize, which: usize) {
        self.flag(self.members.pe(member), which).fetch_add(1, AcqRel);
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

    /// Waits for a flag that members of this host change, who do so before they end.
    fn wait(&self, flag: &AtomicI64, value: usize, awaited: &mut dyn Iterator<Item = usize>) {
        let awaited: Vec<usize> = awaited.map(|member| self.members.pe(member)).collect();
        waiting::until(
            self.call,
            || usize::try_from(flag.load(Acquire)) == Ok(value),
            || awaited.iter().copied().find(|pe| control::has_ended(*pe)),
        );
    }

    /// Ends the job if the members do not call the same with the same values, if that is asked for.
    fn compare(&self, elements: usize, root: c_int) {
        if !steps::compares() || self.size() == 1 {
            return;
        }
        let mine = call_as_word(self.call, elements, root);
        self.own_flag(CALL).store(mine, Relaxed);
        self.meet();
        for member in 0..self.size() {
            let theirs = self.value(member, CALL);
            if theirs != mine {
                let fault = Fault::Mismatch {
                    pe: self.members.pe(member),
                    theirs: shown(self.call, theirs, mine),
                    me: space::me(),
                    mine: shown(self.call, mine, mine),
                };
                raise(self.call, &fault);
            }
        }
        self.meet();
        self.own_flag(CALL).store(0, Relaxed);
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
        match &self.across {
            None => self.meet_near(0, || 0..self.size(), || {}),
            Some(across) => self.meet_led(across, || self.meet_leaders(across)),
        }
    }

    /// The members of this host meet. Their leader does something meanwhile, when all are here.
    fn meet_led(&self, across: &Across, leads: impl FnOnce()) {
        let near = || across.near().iter().copied();
        self.meet_near(across.leader(), near, leads);
    }

    fn meet_near<N: Iterator<Item = usize>>(
        &self,
        leader: usize,
        near: impl Fn() -> N,
        leads: impl FnOnce(),
    ) {
        let others = || near().filter(|member| *member != leader);
        if self.me != leader {
            let released = self.own_flag(RELEASED);
            self.add_one(leader, ARRIVED);
            self.wait(released, 1, &mut std::iter::once(leader));
            return released.store(0, Relaxed);
        }
        let count = others().count();
        if count > 0 {
            let arrived = self.own_flag(ARRIVED);
            self.wait(arrived, count, &mut others());
            arrived.store(0, Relaxed);
        }
        leads();
        for member in others() {
            self.add_one(member, RELEASED);
        }
    }

    /// The leaders meet: each says to all that it is here, or to the first one where they are many.
    fn meet_leaders(&self, across: &Across) {
        let leaders = across.leaders();
        let first = across.hosts[0][0];
        let others = || leaders.clone().filter(|leader| *leader != self.me);
        if across.hosts.len() <= FLAT_MAX {
            others().for_each(|leader| self.send(leader, &[]));
            others().for_each(|leader| self.take(leader, &mut []));
        } else if self.me == first {
            others().for_each(|leader| self.take(leader, &mut []));
            others().for_each(|leader| self.send(leader, &[]));
        } else {
            self.send(first, &[]);
            self.take(first, &mut []);
        }
    }

    /// The way to a call of this collective at a member of another host.
    fn call_at(&self, member: usize) -> (usize, far::Place) {
        let bytes = size_of::<c_long>();
        (self.members.pe(member), space::place_of(self.call, self.flags.addr(), bytes))
    }

    /// Sends bytes ahead to a member of another host.
    fn send(&self, member: usize, bytes: &[u8]) {
        far::remote().send_eager(self.call, self.call_at(member), bytes);
    }

    /// Takes the bytes that a member of another host sent.
    fn take(&self, member: usize, into: &mut [u8]) {
        far::remote().take_eager(self.call, self.call_at(member), into);
    }

    /// Sends the own elements to all members of other hosts, and has `read` get those of each
    /// member, in order. No member of this host has left before all have read.
    ///
    /// # Safety
    /// `source` must have the elements.
    unsafe fn exchange<T: Copy>(
        &self,
        across: &Across,
        source: *const T,
        elements: usize,
        mut read: impl FnMut(usize, *const T),
    ) {
        // SAFETY: the caller's promise.
        let own = unsafe { bytes_of(source, elements) };
        (0..self.size())
            .filter(|member| !across.is_near(*member))
            .for_each(|to| self.send(to, &own));
        self.meet_led(across, || {});
        let mut theirs: Vec<T> = Vec::with_capacity(elements);
        let mut bytes = vec![0; own.len()];
        for member in 0..self.size() {
            if across.is_near(member) {
                read(member, self.at(member, source, elements));
                continue;
            }
            self.take(member, &mut bytes);
            let to = theirs.as_mut_ptr();
            // SAFETY: it has room for so many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), bytes.len()) };
            read(member, to);
        }
        self.meet_led(across, || {});
    }

    /// Has the PEs of a set on several hosts do something together.
    fn together<R>(&self, across: &Across, act: impl FnOnce(&Group<'_>) -> R) -> R {
        let meet = |step: Step| match step.is_near() {
            true => self.meet_led(across, || {}),
            false => self.meet(),
        };
        let pe = |member: usize| self.members.pe(member);
        act(&Group { call: self.call, across, me: self.me, pe: &pe, meet: &meet })
    }

    fn at<T>(&self, member: usize, address: *const T, elements: usize) -> *mut T {
        let bytes = elements.saturating_mul(size_of::<T>());
        space::remote(self.call, address.addr(), bytes, self.members.pe(member)).cast()
    }
}

/// A call as a word: 24 bits of its name, 8 of its root, 32 of its elements.
fn call_as_word(call: &str, elements: usize, root: c_int) -> i64 {
    let name = call.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte));
    let root = i64::from(root).cast_unsigned() & 0xff;
    (name << 40 | root << 32 | elements as u64 & 0xffff_ffff).cast_signed()
}

/// The call that a word says, if it has the name of the own one.
fn shown(call: &str, word: i64, own: i64) -> String {
    if word >> 40 != own >> 40 {
        return "another collective".to_owned();
    }
    format!("{call}({}, {})", word & 0xffff_ffff, word >> 32 & 0xff)
}

/// A copy of elements as bytes.
///
/// # Safety
/// `source` must have them.
unsafe fn bytes_of<T>(source: *const T, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0; elements * size_of::<T>()];
    // SAFETY: the caller promises the elements, and there is room for as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(source.cast(), bytes.as_mut_ptr(), bytes.len()) };
    bytes
}

/// Whether so many elements go with messages, where members are on several hosts.
fn is_short<T>(elements: usize) -> bool {
    elements.saturating_mul(size_of::<T>()) <= STAGE_BYTES
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
    let set = Set::new(call, (start, log_stride, size), flags);
    set.compare(0, 0);
    set.barrier();
}

/// Waits until all PEs of a set called it.
///
/// # Safety
/// `flags` is the set's `pSync`.
pub unsafe fn sync(call: &str, start: c_int, log_stride: c_int, size: c_int, flags: *mut c_long) {
    let set = Set::new(call, (start, log_stride, size), flags);
    set.compare(0, 0);
    set.meet();
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
    set.compare(nelems, root);
    if nelems > 0
        && let Some(across) = &set.across
    {
        let memory = Memory::new(source, dest);
        // SAFETY: the caller's promise.
        return unsafe {
            match is_short::<T>(nelems) {
                true => broadcast_short(&set, across, (dest, source, nelems), root_member),
                false => set.together(across, |group| {
                    group.broadcast(&memory, nelems, root_member, false);
                }),
            }
        };
    }
    set.meet();
    if set.me != root_member && nelems > 0 {
        let from = set.at(root_member, source, nelems);
        // SAFETY: the root is in this call until all have copied; the caller promises its room.
        unsafe { copy::<u8>(from.cast(), dest.cast(), nelems * size_of::<T>()) };
    }
    set.meet();
}

/// The data are sent to the leader of each host.
///
/// # Safety
/// As [`broadcast`].
unsafe fn broadcast_short<T>(
    set: &Set<'_>,
    across: &Across,
    (dest, source, nelems): (*mut T, *const T, usize),
    root: usize,
) {
    let (leader, count) = (across.leader(), nelems * size_of::<T>());
    // The member of this host that has the data first, and where.
    let (first, from) =
        if across.is_near(root) { (root, source) } else { (leader, dest.cast_const()) };
    if set.me == root {
        // SAFETY: the caller promises the elements.
        let bytes = unsafe { bytes_of(source, nelems) };
        let others = across.leaders().filter(|other| *other != leader);
        others.for_each(|leader| set.send(leader, &bytes));
    } else if set.me == first {
        let mut bytes = vec![0; count];
        set.take(root, &mut bytes);
        // SAFETY: the caller promises the room.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dest.cast(), count) };
    }
    set.meet_led(across, || {});
    if set.me != first {
        let from = set.at(first, from, nelems);
        // SAFETY: the first one is in this call until all of its host have met.
        unsafe { copy::<u8>(from.cast(), dest.cast(), count) };
    }
    set.meet_led(across, || {});
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
    set.compare(0, 0);
    let own = set.own_flag(ELEMENTS);
    own.store(i64::try_from(nelems).unwrap_or(i64::MAX), Relaxed);
    let count = |elements: i64| usize::try_from(elements).unwrap_or(0);
    if let Some(across) = &set.across {
        let mut counts = vec![0; set.size()];
        let flag = flags.wrapping_add(ELEMENTS).cast_const();
        // SAFETY: the flag is there, as it was stored. What comes of a member is a number, and all
        // sources are ready then.
        unsafe {
            set.exchange(across, flag, 1, |member, from| counts[member] = count(from.read()));
            set.together(across, |group| {
                group.gather(&Memory::new(source, dest), counts.into_iter());
            });
        }
        return own.store(0, Relaxed);
    }
    set.meet();
    let mut first = 0_usize;
    for member in 0..set.size() {
        let count = count(set.value(member, ELEMENTS));
        if count > 0 {
            let (to, from) = (dest.wrapping_add(first), set.at(member, source, count));
            // SAFETY: the members promise their elements, the caller room for those of all.
            unsafe { copy::<u8>(from.cast(), to.cast(), count * size_of::<T>()) };
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
pub unsafe fn fcollect<T: Copy>(
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
    set.compare(nelems, 0);
    if nelems > 0
        && is_short::<T>(nelems)
        && let Some(across) = &set.across
    {
        let read = |member: usize, from: *const T| {
            let to = dest.wrapping_add(member * nelems);
            // SAFETY: the caller promises room for the elements of all members.
            unsafe { copy::<u8>(from.cast(), to.cast(), nelems * size_of::<T>()) };
        };
        // SAFETY: the caller promises its elements.
        return unsafe { set.exchange(across, source, nelems, read) };
    }
    set.meet();
    if nelems > 0
        && let Some(across) = &set.across
    {
        let counts = std::iter::repeat_n(nelems, set.size());
        return set.together(across, |group| {
            // SAFETY: the caller's promise. The sources are ready.
            unsafe { group.gather(&Memory::new(source, dest), counts) };
        });
    }
    for member in (0..set.size()).filter(|_| nelems > 0) {
        let (to, from) = (dest.wrapping_add(member * nelems), set.at(member, source, nelems));
        // SAFETY: the members promise their elements, the caller room for those of all.
        unsafe { copy::<u8>(from.cast(), to.cast(), nelems * size_of::<T>()) };
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
    set.compare(nelems, 0);
    if nelems > 0
        && let Some(across) = &set.across
    {
        return set.together(across, |group| {
            // SAFETY: the caller's promise.
            unsafe { group.exchange((source, sst), (dest, dst), nelems) };
        });
    }
    set.meet();
    let first = |number: usize, stride: isize| (number * nelems).cast_signed() * stride;
    for member in (0..set.size()).filter(|_| nelems > 0) {
        let from = set.at(member, source.wrapping_offset(first(set.me, sst)), 1);
        let to = dest.wrapping_offset(first(member, dst));
        // SAFETY: the members promise their elements, the caller its room.
        unsafe { copy_strided((from.cast_const(), sst), (to, dst), nelems) };
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
    set.compare(elements, 0);
    if elements > 0
        && is_short::<T>(elements)
        && let Some(across) = &set.across
    {
        let mut combined: Vec<T> = Vec::with_capacity(elements);
        let to = combined.as_mut_ptr();
        let read = |member: usize, from: *const T| {
            let pair = |which| if which == 0 { to.cast_const() } else { from };
            let (count, first) = if member == 0 { (1, 1) } else { (2, 0) };
            // SAFETY: there is room for the elements, which are there behind the first member.
            unsafe { combine_first::<O, T>(to, elements, count, |which| pair(which + first)) };
        };
        // SAFETY: the caller promises its elements. All have read the source when it may change.
        unsafe {
            set.exchange(across, source, elements, read);
            return copy::<u8>(to.cast(), dest.cast(), elements * size_of::<T>());
        }
    }
    if elements > 0
        && let Some(across) = &set.across
    {
        return set.together(across, |group| {
            // SAFETY: the caller's promise.
            unsafe { group.reduce::<O, T>(&Memory::new(source, dest), elements) };
        });
    }
    set.meet();
    if elements > 0 {
        let at = |member: usize, address: *const T| set.at(member, address, elements);
        // SAFETY: all PEs of the set are in this call, so their sources are ready and their
        // destinations free; that both are there is checked.
        unsafe { combine_slices::<O, T>(set.me, set.size(), elements, source, dest, at) };
    }
    set.meet();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_shown_with_its_values_and_not_with_those_of_another_name() {
        let own = call_as_word("shmem_long_sum_to_all", 4, 0);
        let other = call_as_word("shmem_long_sum_to_all", 5, 3);
        let name = "shmem_long_sum_to_all";
        assert_eq!(shown(name, own, own), "shmem_long_sum_to_all(4, 0)");
        assert_eq!(shown(name, other, own), "shmem_long_sum_to_all(5, 3)");
        let barrier = call_as_word("shmem_barrier", 0, 0);
        assert_eq!(shown(name, barrier, own), "another collective");
    }
}
