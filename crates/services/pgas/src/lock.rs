//! Locks: a queue in the lock's own word.
//!
//! The lower half of the word at the lock's *home* PE has the last PE of the queue. The upper half
//! of the word at each PE has the PE behind it, and whether it still waits. Each PE waits at its
//! own word, and the lock goes to the PEs in the order of their calls.
//!
//! # Invariants
//! - PEs are stored as their number plus 1, so that a free lock is 0 everywhere.
//! - A holder leaves its own half 0 before it lets the next one go on.

use std::ffi::{c_int, c_long};
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use weft_fabric::AtomicOperation;

use crate::control;
use crate::far::calls;
use crate::fault::{Fault, raise};
use crate::order;
use crate::space::{self, Reach};
use crate::via::World;
use crate::waiting;

const WAITS: u32 = 1 << 31;

/// Half of the word of a lock at a PE.
#[derive(Clone, Copy)]
enum Half<'a> {
    /// On this host.
    Near(&'static AtomicU32),
    /// On another host: its PE and its symmetric address.
    Far { call: &'a str, pe: usize, at: *mut u32 },
}

impl<'a> Half<'a> {
    fn of(call: &'a str, address: usize, pe: usize, which: usize) -> Self {
        match space::reach_of(pe) {
            Reach::Near(pe) => {
                let word = space::remote(call, address, size_of::<c_long>(), pe).cast::<u32>();
                // SAFETY: `remote` checked the 8 bytes, which stay mapped, and the lock is aligned
                // to them. By contract they are used by locks alone.
                Self::Near(unsafe { AtomicU32::from_ptr(word.wrapping_add(which)) })
            }
            Reach::Far(pe) => {
                let word = std::ptr::without_provenance_mut::<u32>(address);
                Self::Far { call, pe, at: word.wrapping_add(which) }
            }
        }
    }

    fn load(self) -> u32 {
        match self {
            Self::Near(word) => word.load(Relaxed),
            Self::Far { call, pe, at } => {
                calls::fetch(call, (pe, at.cast_const()), AtomicOperation::Read, None)
            }
        }
    }

    fn swap(self, value: u32) -> u32 {
        match self {
            Self::Near(word) => word.swap(value, AcqRel),
            Self::Far { call, pe, at } => {
                let operands = Some((value, value));
                calls::fetch(call, (pe, at.cast_const()), AtomicOperation::Swap, operands)
            }
        }
    }

    /// Stores a value if there is another one, and gives the former.
    fn swap_if(self, is: u32, value: u32) -> u32 {
        match self {
            Self::Near(word) => {
                word.compare_exchange(is, value, AcqRel, Relaxed).unwrap_or_else(|former| former)
            }
            Self::Far { call, pe, at } => {
                let operands = Some((value, is));
                calls::fetch(call, (pe, at.cast_const()), AtomicOperation::CompareSwap, operands)
            }
        }
    }

    fn set(self, bits: u32) {
        match self {
            Self::Near(word) => drop(word.fetch_or(bits, Release)),
            Self::Far { call, pe, at } => calls::change(call, (pe, at), AtomicOperation::Or, bits),
        }
    }

    fn clear(self, bits: u32) {
        match self {
            Self::Near(word) => drop(word.fetch_and(!bits, Release)),
            Self::Far { call, pe, at } => {
                calls::change(call, (pe, at), AtomicOperation::And, !bits);
            }
        }
    }
}

struct Lock<'a> {
    call: &'a str,
    address: usize,
    last: Half<'a>,
}

impl<'a> Lock<'a> {
    fn new(call: &'a str, lock: *mut c_long) -> Self {
        space::expect_started(call);
        let address = lock.addr();
        if !lock.is_aligned() {
            raise(call, &Fault::Misaligned { address, bytes: size_of::<c_long>() });
        }
        // Locks of a program spread over the PEs.
        let place = space::place(address).unwrap_or(0) / size_of::<c_long>();
        let home = place % space::pes();
        Self { call, address, last: Half::of(call, address, home, 0) }
    }

    /// The half of a PE that says who is behind it.
    fn behind(&self, pe: usize) -> Half<'a> {
        Half::of(self.call, self.address, pe, 1)
    }

    /// The half of this PE.
    fn own_half(&self) -> &'static AtomicU32 {
        let word = space::remote(self.call, self.address, size_of::<c_long>(), space::me());
        // SAFETY: as in `Half::of`.
        unsafe { AtomicU32::from_ptr(word.cast::<u32>().wrapping_add(1)) }
    }

    fn own(&self) -> u32 {
        of(space::me())
    }

    fn fault(&self, problem: &'static str) -> ! {
        raise(self.call, &Fault::Lock { address: self.address, problem })
    }
}

fn of(pe: usize) -> u32 {
    u32::try_from(pe + 1).expect("a job has fewer PEs than 2^31")
}

/// Takes a lock.
///
/// # Safety
/// `lock` is used by the functions of this module alone.
pub unsafe fn set(call: &str, lock: *mut c_long) {
    let lock = Lock::new(call, lock);
    let (me, own) = (lock.own(), lock.own_half());
    if lock.last.load() == me {
        lock.fault("is held by this PE already; clear it before it is set again");
    }
    own.store(WAITS, Relaxed);
    let before = lock.last.swap(me);
    if before == 0 {
        own.fetch_and(!WAITS, Relaxed);
        return;
    }
    let holder = (before - 1) as usize;
    lock.behind(holder).set(me);
    waiting::until(
        call,
        || own.load(Acquire) & WAITS == 0,
        || control::has_ended(holder).then_some(holder),
    );
}

/// Releases a lock.
///
/// # Safety
/// As [`set`].
pub unsafe fn clear(call: &str, lock: *mut c_long) {
    let lock = Lock::new(call, lock);
    let (me, own) = (lock.own(), lock.own_half());
    // The next holder sees the writes of this one.
    // SAFETY: it has no condition.
    unsafe { order::quiet(call, World) };
    if own.load(Acquire) == 0 {
        match lock.last.swap_if(me, 0) {
            former if former == me => return,
            0 => lock.fault("is not held by this PE; set it first"),
            _ => {}
        }
    }
    // Somebody is behind this PE, or has just come and is about to say so.
    waiting::until(call, || own.load(Acquire) != 0, || None);
    let next = own.swap(0, AcqRel) & !WAITS;
    let Some(next) = next.checked_sub(1) else {
        lock.fault("is not held by this PE; set it first")
    };
    lock.behind(next as usize).clear(WAITS);
}

/// Takes a lock if it is free: 0 when it was taken, 1 when it is held.
///
/// # Safety
/// As [`set`].
pub unsafe fn test(call: &str, lock: *mut c_long) -> c_int {
    let lock = Lock::new(call, lock);
    let is_taken = lock.last.swap_if(0, lock.own()) == 0;
    if !is_taken {
        waiting::in_vain();
    }
    c_int::from(!is_taken)
}

const _: () = assert!(size_of::<c_long>() == size_of::<AtomicU64>(), "a lock has two halves");
