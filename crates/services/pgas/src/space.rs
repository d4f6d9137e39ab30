//! The address space of a job: where the memory of each PE lies in this process.
//!
//! All segments are mapped in one range, a *slot* for each PE. A slot holds the symmetric heap, the
//! control area and the statics of its PE, at the same offsets in each. So a symmetric address of
//! this PE becomes that of another by adding a multiple of the stride.
//!
//! Memory of a PE of another host is not mapped: of its slot only the control area is memory, a
//! copy that its owner keeps ([`crate::far`]). A job on one host looks for no such PE: it compares
//! the number of a PE with a bound, which is that of all PEs there. In a job across hosts the bound
//! is 0, and each operation looks at a table ([`is_far`]).
//!
//! # Invariants
//! - While [`pes`] is not 0, the slots of the PEs of this host are mapped for reading and writing,
//!   and the numbers here do not change. They are written before `pes`.
//! - Slots stay mapped until the process ends.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::control::Control;
use crate::far::{Place, Segment};
use crate::fault::{Fault, raise};

/// Where everything lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// This PE.
    pub me: usize,
    /// PEs of the job, at least 1.
    pub pes: usize,
    /// Address of the first slot.
    pub base: usize,
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// A power of two: each slot begins at a multiple of it.
    pub alignment: usize,
    /// Bytes of the heap, at the start of a slot.
    pub heap_bytes: usize,
    /// Offset of the control area in a slot.
    pub control: usize,
    /// The program's own address of its statics.
    pub statics: usize,
    /// Bytes of the statics; 0 where they are not shared.
    pub statics_bytes: usize,
    /// Offset of the statics in a slot. It may wrap around.
    pub statics_offset: usize,
}

/// The layout in one cache line, read by every operation.
#[repr(align(64))]
struct Space {
    /// PEs below it are reached by loads and stores: all, or none are known to be.
    near: AtomicUsize,
    pes: AtomicUsize,
    own: AtomicUsize,
    heap_bytes: AtomicUsize,
    stride: AtomicUsize,
    base: AtomicUsize,
    statics: AtomicUsize,
    statics_bytes: AtomicUsize,
    statics_offset: AtomicUsize,
    me: AtomicUsize,
    control: AtomicUsize,
    alignment: AtomicUsize,
}

const fn zero() -> AtomicUsize {
    AtomicUsize::new(0)
}

static SPACE: Space = Space {
    near: zero(),
    pes: zero(),
    own: zero(),
    heap_bytes: zero(),
    stride: zero(),
    base: zero(),
    statics: zero(),
    statics_bytes: zero(),
    statics_offset: zero(),
    me: zero(),
    control: zero(),
    alignment: zero(),
};

/// Why the statics of the program are not symmetric; a line of text for messages.
/// This process is a child of a PE.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

static HINT: std::sync::OnceLock<&'static str> = std::sync::OnceLock::new();

#[inline(always)]
fn get(word: &AtomicUsize) -> usize {
    word.load(Ordering::Relaxed)
}

/// The number of the host of each PE; not set in a job on one host.
static HOSTS: std::sync::OnceLock<Box<[u32]>> = std::sync::OnceLock::new();

/// Says, before the space is opened for the first time, that the PEs are of several hosts: the
/// number of the host of each one.
pub fn is_across_hosts(hosts: Box<[u32]>) {
    let _ = HOSTS.set(hosts);
}

/// The number of the host of a PE; 0 in a job on one host.
pub fn host(pe: usize) -> u32 {
    HOSTS.get().and_then(|hosts| hosts.get(pe)).copied().unwrap_or(0)
}

/// Whether a PE is of another host.
pub fn is_far(pe: usize) -> bool {
    host(pe) != host(me())
}

/// Whether any PE is of another host.
pub fn has_far() -> bool {
    HOSTS.get().is_some()
}

/// The PEs of other hosts.
pub(crate) fn far_pes() -> impl Iterator<Item = usize> {
    (0..pes()).filter(|pe| is_far(*pe))
}

/// How a PE is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By loads and stores.
    Near(usize),
    /// By messages: it is of another host.
    Far(usize),
}

/// Opens the space: operations work from now on.
///
/// # Safety
/// The slots of the PEs of this host must be mapped for reading and writing until the process ends.
/// In the slot of each PE, also of other hosts, there must be a control area of [`Control::BYTES`]
/// bytes that was zeroed memory at first.
pub unsafe fn open(layout: &Layout) {
    for (word, value) in [
        (&SPACE.me, layout.me),
        (&SPACE.own, layout.base + layout.me * layout.stride),
        (&SPACE.base, layout.base),
        (&SPACE.stride, layout.stride),
        (&SPACE.heap_bytes, layout.heap_bytes),
        (&SPACE.control, layout.control),
        (&SPACE.alignment, layout.alignment),
        (&SPACE.statics, layout.statics),
        (&SPACE.statics_bytes, layout.statics_bytes),
        (&SPACE.statics_offset, layout.statics_offset),
    ] {
        word.store(value, Ordering::Relaxed);
    }
    SPACE.pes.store(layout.pes, Ordering::Release);
    SPACE.near.store(if has_far() { 0 } else { layout.pes }, Ordering::Release);
}

/// Closes the space: every operation is refused from now on. The memory stays mapped.
pub fn close() {
    SPACE.near.store(0, Ordering::Release);
    SPACE.pes.store(0, Ordering::Release);
}

/// The same in a child of this process, which is no PE.
pub fn close_in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
    close();
}

/// Why there is no space.
#[cold]
pub(crate) fn closed() -> Fault {
    if IS_CHILD.load(Ordering::Relaxed) { Fault::OfChild } else { Fault::NotStarted }
}

/// Says why statics are not symmetric; the text begins with a semicolon.
pub fn without_statics(hint: &'static str) {
    let _ = HINT.set(hint);
}

/// The number of PEs; 0 while the space is closed.
#[inline(always)]
pub fn pes() -> usize {
    get(&SPACE.pes)
}

/// Whether all PEs are reached by loads and stores. Also false while the space is closed.
#[inline(always)]
pub fn is_all_near() -> bool {
    get(&SPACE.near) != 0
}

/// This PE. 0 before the space was opened.
#[inline(always)]
pub fn me() -> usize {
    get(&SPACE.me)
}

/// This PE, if there is a job.
pub fn number() -> Option<usize> {
    (get(&SPACE.stride) != 0).then(me)
}

/// Bytes of the symmetric heap.
pub fn heap_bytes() -> usize {
    get(&SPACE.heap_bytes)
}

/// The largest alignment that memory of the heap can have on all PEs.
pub fn alignment() -> usize {
    get(&SPACE.alignment)
}

/// The first byte of this PE's own heap.
pub fn own_heap() -> *mut u8 {
    pointer(get(&SPACE.own))
}

/// An address of the space as a pointer. The slots were mapped as raw memory, whose provenance was
/// exposed when [`open`] got their address as a number.
#[inline(always)]
fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Ends the job unless the space is open.
#[inline(always)]
pub fn expect_started(call: &str) {
    if pes() == 0 {
        raise(call, &closed());
    }
}

#[cold]
#[inline(never)]
pub(crate) fn no_such_pe(call: &str, pe: c_int, pes: usize) -> ! {
    expect_started(call);
    raise(call, &Fault::Pe { pe, pes })
}

/// A number of a PE of the world that a program passed.
#[inline(always)]
pub fn checked_pe(call: &str, pe: c_int) -> usize {
    // A negative number becomes a large one.
    let number = pe.cast_unsigned() as usize;
    let pes = pes();
    if number >= pes {
        no_such_pe(call, pe, pes);
    }
    number
}

/// The PE with a number of the world, in a job on one host; nothing for a wrong number.
#[inline(always)]
pub fn near(pe: c_int) -> Option<usize> {
    // A negative number becomes a large one.
    let number = pe.cast_unsigned() as usize;
    (number < get(&SPACE.near)).then_some(number)
}

/// How the PE with a number of the world is reached.
pub fn reach(call: &str, pe: c_int) -> Reach {
    reach_of(checked_pe(call, pe))
}

/// How a PE that was checked is reached.
pub fn reach_of(pe: usize) -> Reach {
    if is_far(pe) { Reach::Far(pe) } else { Reach::Near(pe) }
}

/// Where `bytes` at a symmetric address lie in the memory of each PE.
pub(crate) fn place_of(call: &str, address: usize, bytes: usize) -> Place {
    place_of_bytes(address, bytes).unwrap_or_else(|| not_symmetric(address, bytes, call))
}

/// The same; nothing where they are not symmetric.
pub fn place_of_bytes(address: usize, bytes: usize) -> Option<Place> {
    offset(address, bytes)?;
    let in_heap = address.wrapping_sub(get(&SPACE.own));
    if in_heap < get(&SPACE.heap_bytes) {
        return Some(Place { segment: Segment::Heap, offset: in_heap as u64 });
    }
    let in_statics = address.wrapping_sub(get(&SPACE.statics));
    Some(Place { segment: Segment::Statics, offset: in_statics as u64 })
}

/// The address in this PE of bytes that another PE named, if they are symmetric.
pub(crate) fn own(segment: Segment, offset: usize, bytes: usize) -> Option<*mut u8> {
    let (start, length) = match segment {
        Segment::Heap => (get(&SPACE.own), get(&SPACE.heap_bytes)),
        Segment::Statics => (get(&SPACE.statics), get(&SPACE.statics_bytes)),
    };
    let end = offset.checked_add(bytes)?;
    (end <= length).then(|| pointer(start.wrapping_add(offset)))
}

/// The offset in a slot of a symmetric address of this PE, if `bytes` from there on are symmetric.
#[inline(always)]
fn offset(address: usize, bytes: usize) -> Option<usize> {
    let in_heap = address.wrapping_sub(get(&SPACE.own));
    let heap_bytes = get(&SPACE.heap_bytes);
    if in_heap < heap_bytes {
        return (bytes <= heap_bytes - in_heap).then_some(in_heap);
    }
    let in_statics = address.wrapping_sub(get(&SPACE.statics));
    let statics_bytes = get(&SPACE.statics_bytes);
    if in_statics < statics_bytes && bytes <= statics_bytes - in_statics {
        return Some(in_statics.wrapping_add(get(&SPACE.statics_offset)));
    }
    None
}

/// Where `bytes` at a symmetric address of this PE lie at a PE of this host.
#[inline(always)]
pub fn remote(call: &str, address: usize, bytes: usize, pe: usize) -> *mut u8 {
    match offset(address, bytes) {
        Some(offset) => {
            let slot = get(&SPACE.base).wrapping_add(pe.wrapping_mul(get(&SPACE.stride)));
            pointer(slot.wrapping_add(offset))
        }
        None => not_symmetric(address, bytes, call),
    }
}

/// As [`remote`], and `None` for an address that is not symmetric or a PE of another host.
pub fn find(address: usize, pe: usize) -> Option<*mut u8> {
    let offset = offset(address, 1).filter(|_| !is_far(pe))?;
    let slot = get(&SPACE.base).wrapping_add(pe.wrapping_mul(get(&SPACE.stride)));
    Some(pointer(slot.wrapping_add(offset)))
}

/// The offset of a symmetric address, which is the same on all PEs.
pub fn place(address: usize) -> Option<usize> {
    offset(address, 1)
}

#[cold]
#[inline(never)]
fn not_symmetric(address: usize, bytes: usize, call: &str) -> ! {
    expect_started(call);
    let end = get(&SPACE.base).wrapping_add(get(&SPACE.pes).wrapping_mul(get(&SPACE.stride)));
    let hint = if (get(&SPACE.base)..end).contains(&address) {
        "; this address leads to another PE, or behind the heap"
    } else {
        HINT.get().copied().unwrap_or("")
    };
    raise(call, &Fault::NotSymmetric { address, bytes, hint })
}

/// The address of the control area of a PE below [`pes`].
#[inline(always)]
pub(crate) fn control(pe: usize) -> *const Control {
    let slot = get(&SPACE.base).wrapping_add(pe.wrapping_mul(get(&SPACE.stride)));
    pointer(slot.wrapping_add(get(&SPACE.control))).cast()
}
