//! The control area of a PE: the words by which PEs wait for each other, outside of their heaps.
//!
//! Of a PE of another host there is a copy here. A PE shows each of these what it writes, as far as
//! they look at it: in the order in which it wrote it.
//!
//! # Invariants
//! - A word has one writer, its owner, unless it says otherwise. Steps only grow.
//! - Everything here is atomics, so a reference to it may be shared with other processes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::collective::BUFFER_BYTES;
use crate::far;
use crate::space;

/// Teams of which a PE is a member at a time, with the world and the shared team.
pub const TEAMS_MAX: usize = 64;
/// Words that a PE of a team can tell the others at a step.
pub const WORDS: usize = 8;

/// Words on a line of the cache of their own.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Line<T>(pub T);

/// Where a PE stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Standing {
    /// Not started yet.
    Absent = 0,
    /// Between start and end.
    Running = 1,
    /// Its library or its process has ended.
    Ended = 2,
}

/// The part of a control area for one team.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct TeamArea {
    /// The last step that the PE reached.
    pub progress: Line<AtomicU64>,
    /// The last step that the PE and all below it in the tree reached.
    pub gathered: Line<AtomicU64>,
    /// At the first PE: the last step that all reached.
    pub released: Line<AtomicU64>,
    /// The word of the PE to the others, for even and odd steps.
    pub words: [Line<[AtomicU64; WORDS]>; 2],
    /// Data of short collectives, for even and odd steps.
    pub staging: [Line<[AtomicU64; BUFFER_BYTES / 8]>; 2],
}

/// The control area of a PE.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    standing: Line<AtomicU32>,
    /// How often the library was started, for a start after an end.
    starts: Line<AtomicU64>,
    pub(crate) teams: [TeamArea; TEAMS_MAX],
}

impl Control {
    /// Bytes of a control area.
    pub const BYTES: usize = size_of::<Self>();
}

/// The control area of a PE.
///
/// # Panics
/// When there is no such PE, or the space was never opened.
#[inline(always)]
pub(crate) fn of(pe: usize) -> &'static Control {
    debug_assert!(space::number().is_some(), "the space was opened");
    // SAFETY: `space::open` was promised that every slot has a control area of this size, zeroed at
    // first, which stays mapped until the process ends. It starts on a page, so it is aligned.
    // Callers pass the number of a PE of the job. All of it is atomics.
    unsafe { &*space::control(pe) }
}

/// Tells all PEs where this one stands.
pub fn stand(standing: Standing) {
    let own = of(space::me());
    if standing == Standing::Ended && space::has_far() {
        // Whoever waits for a step of this PE sees it before it hears of the end.
        for area in &own.teams {
            if area.progress.0.load(Ordering::Relaxed) > 0 {
                show(&area.progress.0, space::far_pes());
            }
        }
    }
    own.standing.0.store(standing as u32, Ordering::Release);
    if space::has_far() {
        let bytes = (standing as u32).to_ne_bytes();
        show_bytes(own.standing.0.as_ptr().cast(), &bytes, space::far_pes());
    }
}

/// Shows PEs of other hosts bytes of the own control area, which begin at an address in it.
pub(crate) fn show_bytes(at: *const u8, bytes: &[u8], mut to: impl Iterator<Item = usize>) {
    let offset = at.addr() - space::control(space::me()).addr();
    far::remote().show(&mut to, offset, bytes);
}

/// Shows PEs of other hosts a word of the own control area.
pub(crate) fn show(word: &AtomicU64, to: impl Iterator<Item = usize>) {
    let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    show_bytes(word.as_ptr().cast(), &bytes, to);
}

/// Whether a PE has ended.
pub fn has_ended(pe: usize) -> bool {
    of(pe).standing.0.load(Ordering::Acquire) == Standing::Ended as u32
}

/// Counts a start of this PE, and gives how many there were with it.
pub fn count_start() -> u64 {
    let starts = &of(space::me()).starts.0;
    let times = starts.fetch_add(1, Ordering::AcqRel) + 1;
    if space::has_far() {
        show(starts, space::far_pes());
    }
    times
}

/// Whether a PE was started as often.
pub fn is_started(pe: usize, times: u64) -> bool {
    of(pe).starts.0.load(Ordering::Acquire) >= times
}
