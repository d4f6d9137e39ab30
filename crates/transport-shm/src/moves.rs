//! The move of memory out of reach of those who hold a revoked key, while others write to it.
//!
//! Peers keep what they mapped, so the owner goes: the bytes move to new memory at its addresses,
//! and the keys that stay in force lead there from then on. A move has four steps.
//!
//! 1. *Closing*: the stamps of all keys to the memory say so, behind them a heavy fence. No
//!    operation begins any more. The owner waits for the peers that announced one.
//! 2. *Left*: the stamps say so, behind them a heavy fence. An operation that has not ended yet
//!    fails. That is the lot of a peer that stood still for [`QUIET_WITHIN`], and of a window whose
//!    store took as long as the first step.
//! 3. The bytes are copied, [`BYTES_MAX`] a step, and the new memory takes the place of the old.
//! 4. The keys are published again. A stamp says *still* when the broker has the new memory.
//!
//! # Invariants
//! - A stamp says *still* only while the broker passes the memory that the region is.
//! - What a peer wrote before it saw *still* or *closing* is in the region: the fences order it
//!   before the first byte is copied.
//! - A memory has at most one move. A key that is revoked during a move joins it: nobody has the
//!   new memory yet.
//! - A step takes no longer than [`LOOKS`] looks at each peer, or a copy of [`BYTES_MAX`]. No step
//!   waits for a peer or the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weft_fabric::{Access, GrantError, OperationError, Revoked};
use weft_memory::{Memory, Moving, SegmentError};
use weft_sync::{atomic::pause, fence};

use crate::endpoint::ShmEndpoint;
use crate::greeting;
use crate::memory::Granted;
use crate::registers::{Inside, Phase, Stamp};
use crate::requests::Asked;
use crate::sys;

/// How long a move waits for peers that announced a write, before it leaves them behind. A peer
/// that the system has put off is back sooner; one that is stopped, or lies, costs its time once.
pub const QUIET_WITHIN: Duration = Duration::from_millis(250);
/// Bytes that one step copies: some hundred microseconds.
pub const BYTES_MAX: usize = 1 << 20;
/// Looks at the peers in one step, some microseconds. A write of a peer that runs takes less.
const LOOKS: u32 = 64;

/// The moves of an endpoint, and what they left to do.
#[derive(Debug)]
pub struct Moves {
    quiet_within: Duration,
    under_way: Vec<Move>,
    /// Keys, by slot and generation, that could not be published again yet.
    unpublished: Vec<(u16, u32)>,
    /// A key serves again, and the peers do not know.
    untold: bool,
}

#[derive(Debug)]
struct Move {
    memory: Memory,
    calls: Vec<Call>,
    step: Step,
}

/// A revocation that ends with the move.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub ticket: u32,
    /// `None` when nobody waits for the end.
    pub context: Option<u64>,
    pub revoked: Revoked,
}

#[derive(Debug)]
enum Step {
    Closing { inside: Vec<Writer>, until: Duration },
    Copying(Moving),
}

impl Step {
    fn phase(&self) -> Phase {
        match self {
            Self::Closing { .. } => Phase::Closing,
            Self::Copying(_) => Phase::Left,
        }
    }
}

/// A peer that announced a write before the move.
#[derive(Debug)]
struct Writer {
    inside: Inside,
    down: Arc<AtomicBool>,
}

impl Writer {
    fn lasts(&self) -> bool {
        self.inside.lasts() && !self.down.load(Ordering::Relaxed)
    }
}

impl Moves {
    /// No moves.
    pub fn new() -> Self {
        Self {
            quiet_within: QUIET_WITHIN,
            under_way: Vec::new(),
            unpublished: Vec::new(),
            untold: false,
        }
    }

    /// Whether a move is under way, so that the endpoint must not sleep.
    #[inline]
    pub fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether the broker has to be told of moves that are over.
    pub fn are_behind(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// The phase of the move of a memory.
    pub fn phase_of(&self, memory: &Memory) -> Phase {
        let of = self.under_way.iter().find(|of| of.memory.is(memory));
        of.map_or(Phase::Still, |of| of.step.phase())
    }

    /// Whether the call with this context waits for a move.
    pub fn awaits(&self, context: u64) -> bool {
        self.under_way.iter().flat_map(|of| &of.calls).any(|call| call.context == Some(context))
    }

    /// No call waits any more for a move with this context.
    pub fn forget(&mut self, context: u64) {
        for call in self.under_way.iter_mut().flat_map(|of| &mut of.calls) {
            if call.context == Some(context) {
                call.context = None;
            }
        }
    }
}

impl ShmEndpoint {
    /// Has moves wait so long for peers that announced a write, in place of [`QUIET_WITHIN`].
    #[cfg(any(test, feature = "test-doors"))]
    pub fn wait_for_writers(&mut self, quiet_within: Duration) {
        self.moves.quiet_within = quiet_within;
    }

    /// A key to what `lost` says is void: takes its memory out of reach of the peers that mapped
    /// it, and ends the call then. `handed_out` is how often the broker passed the memory.
    pub(crate) fn withdrawn(&mut self, lost: &Granted, handed_out: u64, call: Call) {
        let memory = lost.region.memory();
        if handed_out == 0 {
            self.requests.end(call.ticket, call.context, Ok(call.revoked.value()));
            return;
        }
        if let Some(of) = self.moves.under_way.iter_mut().find(|of| of.memory.is(memory)) {
            of.calls.push(call);
            return;
        }
        let keys = self.keys_to(memory);
        // Only the endpoint that granted a key can publish new memory for it.
        let own = self.grants.all().filter(|granted| granted.region.memory().is(memory)).count();
        let of_others = memory.keys() > own;
        if of_others || keys.iter().any(|(.., other)| other.replaces(lost)) {
            self.requests.end(call.ticket, call.context, Ok(call.revoked.value()));
            return;
        }
        self.set_phase(memory, Phase::Closing);
        let inside = self.peers.iter().filter_map(|peer| {
            let inside = Inside::of(&peer.registers)?;
            Some(Writer { inside, down: Arc::clone(&peer.down) })
        });
        let inside = inside.collect();
        let until = sys::now().saturating_add(self.moves.quiet_within);
        let step = Step::Closing { inside, until };
        self.moves.under_way.push(Move { memory: memory.clone(), calls: vec![call], step });
        self.drive_moves();
    }

    /// The keys in force to a memory.
    fn keys_to(&self, memory: &Memory) -> Vec<(u16, u32, Granted)> {
        let all = self.grants.iter();
        all.filter(|(.., granted)| granted.region.memory().is(memory))
            .map(|(slot, generation, granted)| (slot, generation, granted.clone()))
            .collect()
    }

    /// Sets the stamps of all keys to a memory, and has every processor see them.
    fn set_phase(&self, memory: &Memory, phase: Phase) {
        let moves = memory.moves();
        for (slot, generation, granted) in self.grants.iter() {
            if granted.region.memory().is(memory) {
                self.registers.set_stamp(slot, Stamp::of(generation, moves, phase));
            }
        }
        fence::heavy();
    }

    /// Takes the next step of each move.
    pub(crate) fn drive_moves(&mut self) {
        for Move { memory, calls, step } in std::mem::take(&mut self.moves.under_way) {
            match self.step(&memory, step) {
                Ok(Some(step)) => self.moves.under_way.push(Move { memory, calls, step }),
                Ok(None) => self.moved(&memory, &calls),
                Err(error) => self.stayed(&memory, &calls, &error),
            }
        }
        if !self.moves.unpublished.is_empty() && !self.client.is_lost() {
            // Each takes a descriptor: all at once would hold up a poll.
            let some = self.moves.unpublished.len().min(greeting::STEP);
            let some: Vec<_> = self.moves.unpublished.drain(..some).collect();
            for (slot, generation) in some {
                self.publish_again(slot, generation, None);
            }
        }
        if std::mem::take(&mut self.moves.untold) {
            for peer in self.peers.iter() {
                peer.doorbell.ring(self.address.vpid.0);
            }
        }
    }

    /// Takes the next step of a move. Returns the one behind it, if there is one.
    fn step(&self, memory: &Memory, step: Step) -> Result<Option<Step>, SegmentError> {
        let moving = match step {
            Step::Closing { mut inside, until } => {
                for _ in 0..LOOKS {
                    inside.retain(Writer::lasts);
                    if inside.is_empty() {
                        break;
                    }
                    pause();
                }
                if !inside.is_empty() && sys::now() < until {
                    return Ok(Some(Step::Closing { inside, until }));
                }
                // Memory that somebody else has, too, stays: those who were writing have ended.
                if !memory.may_move() {
                    return Ok(None);
                }
                self.set_phase(memory, Phase::Left);
                memory.begin_move()?
            }
            Step::Copying(moving) => moving,
        };
        Ok(moving.on(BYTES_MAX)?.map(Step::Copying))
    }

    /// The memory is out of reach: its keys lead to the new one, and the calls end when they do.
    fn moved(&mut self, memory: &Memory, calls: &[Call]) {
        // The broker answers in order, so that the last request carries the first call.
        let carried = self.publish_keys_to(memory, calls.first().copied());
        for call in &calls[usize::from(carried)..] {
            self.requests.end(call.ticket, call.context, Ok(call.revoked.value()));
        }
    }

    /// The memory could not be moved: its keys serve again, where it was.
    fn stayed(&mut self, memory: &Memory, calls: &[Call], error: &SegmentError) {
        self.publish_keys_to(memory, None);
        for call in calls {
            let reason = format!("the memory could not be moved out of reach: {error}");
            let error = OperationError::Grant(GrantError::Broker { reason });
            self.requests.end(call.ticket, call.context, Err(error));
        }
    }

    /// Publishes all keys to a memory again. True if the last request carries the call.
    fn publish_keys_to(&mut self, memory: &Memory, call: Option<Call>) -> bool {
        let mut keys = self.keys_to(memory);
        let Some((slot, generation, _)) = keys.pop() else { return false };
        for (slot, generation, _) in keys {
            self.publish_again(slot, generation, None);
        }
        self.publish_again(slot, generation, call).is_some()
    }

    /// Asks the broker to replace the memory of a key by what its region is now. `call` ends with
    /// the answer. Returns it if the request was sent.
    fn publish_again(&mut self, slot: u16, generation: u32, call: Option<Call>) -> Option<Call> {
        let granted = self.grants.in_force(slot, generation)?.clone();
        let moves = granted.region.memory().moves();
        let sent = self.publication(slot, generation, &granted).and_then(|(publish, file)| {
            let asked = Asked::Again { slot, generation, moves, call };
            let context = call.and_then(|call| call.context);
            let files = [std::os::fd::AsFd::as_fd(&*file)];
            Ok(self.send_request(publish.ticket, publish, &files, asked, context)?)
        });
        if sent.is_err() {
            self.moves.unpublished.push((slot, generation));
            return None;
        }
        call
    }

    /// The broker has the memory of a key as it was after `moves` moves.
    pub(crate) fn published_again(&mut self, slot: u16, generation: u32, moves: u32) {
        // The key may have been revoked meanwhile, and the memory moved once more.
        let Some(granted) = self.grants.in_force(slot, generation) else { return };
        let memory = granted.region.memory();
        if memory.moves() == moves && self.moves.phase_of(memory) == Phase::Still {
            self.registers.set_stamp(slot, Stamp::of(generation, moves, Phase::Still));
            self.moves.untold = true;
        }
    }

    /// The broker did not answer the request to replace the memory of a key.
    pub(crate) fn not_published_again(&mut self, slot: u16, generation: u32) {
        // A broker that is back is told everything.
        if !self.client.is_lost() {
            self.moves.unpublished.push((slot, generation));
        }
    }

    /// A key is in force from now on, which the broker passes with the memory as it was after
    /// `moves` moves.
    pub(crate) fn put_in_force(&mut self, slot: u16, generation: u32, moves: u32) {
        let Some(granted) = self.grants.in_force(slot, generation) else { return };
        let memory = granted.region.memory();
        let now = memory.moves();
        let mut phase = self.moves.phase_of(memory);
        let is_behind = phase == Phase::Still && now != moves;
        if is_behind {
            phase = Phase::Left;
        }
        self.registers.set_stamp(slot, Stamp::of(generation, now, phase));
        if is_behind {
            self.publish_again(slot, generation, None);
        }
    }

    /// Publishes all keys at a broker that was restarted, some in each look at its messages.
    pub(crate) fn publish_all(&mut self) {
        let keys = self.grants.iter().map(|(slot, generation, _)| (slot, generation));
        self.moves.unpublished = keys.collect();
    }
}

impl Granted {
    /// Whether all that `lost` allowed its holders is allowed them by this key, too, so that its
    /// memory can stay where it is. What the lost key could write must not appear any more.
    fn replaces(&self, lost: &Self) -> bool {
        !lost.access.contains(Access::WRITE)
            && self.access.contains(lost.access)
            && (self.audience.is_none() || self.audience == lost.audience)
            && self.start <= lost.start
            && lost.start + lost.length <= self.start + self.length
    }
}
