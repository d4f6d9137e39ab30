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
//! 4. The keys are published again, each by the endpoint that granted it. A stamp says *still* when
//!    the broker has the new memory.
//!
//! The first three are in [`crate::sharing`], because the keys may be those of several endpoints.
//!
//! Memory in place does not move: see [`crate::partings`].
//!
//! # Invariants
//! - A stamp says *still* only while the broker passes the memory that the region is.
//! - A write that a peer made before it saw *still* or *closing* is in the region: the fences order
//!   it before the first byte is copied.
//! - A memory has at most one move. A key that is revoked during a move joins it, if nobody has the
//!   new memory yet.
//! - A step takes no longer than [`LOOKS`] looks at each peer, or a copy of [`BYTES_MAX`]. No step
//!   waits for a peer or the broker.

use std::time::Duration;

use weft_broker::conversation::Announcement;
use weft_fabric::{Access, GrantError, OperationError, Revoked, Value};
use weft_memory::{Memory, SegmentError};

use crate::endpoint::ShmEndpoint;
use crate::greeting;
use crate::memory::{Granted, ShmRegion};
use crate::requests::Asked;
use crate::rights::{Publication, descriptors};
use crate::sharing::{Awaited, Outcome, Standing};
use crate::sys;

/// How long a move waits for peers that announced a write, before it leaves them behind. A peer
/// that the system has put off is back sooner; one that is stopped, or lies, costs its time once.
pub const QUIET_WITHIN: Duration = Duration::from_millis(250);
/// Bytes that one step copies: some hundred microseconds.
pub const BYTES_MAX: usize = 1 << 20;
/// Looks at the peers in one step, some microseconds. A write of a peer that runs takes less.
pub const LOOKS: u32 = 64;

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

/// A move that this endpoint waits for and drives, whoever began it.
#[derive(Debug)]
struct Move {
    /// A region with the memory.
    region: ShmRegion,
    awaited: Awaited,
    calls: Vec<Call>,
}

/// A revocation that ends with the move.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub ticket: u32,
    /// `None` when nobody waits for the end.
    pub context: Option<u64>,
    pub revoked: Revoked,
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

    /// Whether the call with this context waits for a move.
    pub fn awaits(&self, context: u64) -> bool {
        let mut calls = self.under_way.iter().flat_map(|of| &of.calls);
        calls.any(|call| call.context == Some(context))
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
    /// Has moves and revocations wait so long for peers that announced a write, in place of
    /// `QUIET_WITHIN` and `PARTING_WITHIN`.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn wait_for_writers(&mut self, within: Duration) {
        self.moves.quiet_within = within;
        self.partings.wait_at_most(within);
    }

    /// A key to what `lost` says is void: takes its memory out of reach of the peers that mapped
    /// it, and ends the call then. `handed_out` is how often the broker passed the memory.
    pub(crate) fn withdrawn(&mut self, lost: &Granted, handed_out: u64, call: Call) {
        let memory = lost.region.memory();
        if handed_out == 0 {
            self.requests.end(call.ticket, call.context, Ok(Value::Revoked(call.revoked)));
            return;
        }
        if memory.is_in_place() {
            return self.begin_parting(lost.access, call);
        }
        let keys = self.keys_to(memory);
        if keys.iter().any(|(.., other)| other.replaces(lost)) {
            self.requests.end(call.ticket, call.context, Ok(Value::Revoked(call.revoked)));
            return;
        }
        let region = lost.region.clone();
        let awaited = self.withdraw(&region);
        self.moves.under_way.push(Move { region, awaited, calls: vec![call] });
        self.drive_moves();
    }

    fn withdraw(&self, region: &ShmRegion) -> Awaited {
        let until = sys::now().saturating_add(self.moves.quiet_within);
        region.sharing().withdraw(region.memory(), &self.granter, until)
    }

    /// Takes part in the move of a region's memory that is under way or has just ended, unless it
    /// does already.
    fn join(&mut self, region: &ShmRegion) {
        let takes_part = |of: &Move| of.region.memory().is(region.memory());
        if !self.moves.under_way.iter().any(takes_part) {
            let awaited = region.sharing().join(region.memory());
            self.moves.under_way.push(Move { region: region.clone(), awaited, calls: Vec::new() });
        }
    }

    /// Takes part in the moves that other endpoints of this process began.
    #[cold]
    fn join_moves(&mut self) {
        let registers = &self.registers;
        let in_moves = self.grants.iter().filter(|(slot, ..)| registers.stamp(*slot).is_moving());
        let regions: Vec<_> = in_moves.map(|(.., granted)| granted.region.clone()).collect();
        for region in &regions {
            self.join(region);
        }
    }

    /// The endpoint ends, and its keys with it.
    pub(crate) fn leave_moves(&self) {
        let granted = self.grants.iter().map(|(.., granted)| &granted.region);
        for region in granted.chain(self.moves.under_way.iter().map(|of| &of.region)) {
            region.sharing().leave(&self.granter);
        }
    }

    /// The keys in force to a memory.
    fn keys_to(&self, memory: &Memory) -> Vec<(u16, u32, Granted)> {
        let all = self.grants.iter();
        all.filter(|(.., granted)| granted.region.memory().is(memory))
            .map(|(slot, generation, granted)| (slot, generation, granted.clone()))
            .collect()
    }

    /// Takes the next step of each move.
    pub(crate) fn drive_moves(&mut self) {
        if self.granter.take_call() {
            self.join_moves();
        }
        for mut of in std::mem::take(&mut self.moves.under_way) {
            let (sharing, memory) = (of.region.sharing(), of.region.memory());
            sharing.drive(memory, sys::now());
            match sharing.outcome(memory, of.awaited) {
                Outcome::Pending => self.moves.under_way.push(of),
                Outcome::Moved => self.moved(memory, &of.calls),
                Outcome::Stayed(error) => self.stayed(memory, &of.calls, &error),
                Outcome::Again if of.calls.is_empty() => self.moved(memory, &[]),
                Outcome::Again => {
                    of.awaited = self.withdraw(&of.region);
                    self.moves.under_way.push(of);
                }
            }
        }
        if !self.moves.unpublished.is_empty() && !self.broker.is_lost() {
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

    /// The memory is out of reach: its keys lead to the new one, and the calls end when they do.
    fn moved(&mut self, memory: &Memory, calls: &[Call]) {
        // The broker answers in order, so that the last request carries the first call.
        let carried = self.publish_keys_to(memory, calls.first().copied());
        for call in &calls[usize::from(carried)..] {
            self.requests.end(call.ticket, call.context, Ok(Value::Revoked(call.revoked)));
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
        if call.is_none() && self.publishes((slot, generation), moves) {
            return None;
        }
        let sent = self.publication(slot, generation, &granted).and_then(|publication| {
            let Publication { publish, file, moves } = publication;
            let asked = Asked::Again { slot, generation, moves, call };
            let context = call.and_then(|call| call.context);
            let files = descriptors(&file);
            Ok(self.send_request(publish.ticket, publish, &files, asked, context)?)
        });
        if sent.is_err() {
            // A broker that has another endpoint at the address never has this key.
            if self.broker.announcement() != Announcement::Replaced {
                self.moves.unpublished.push((slot, generation));
            }
            return None;
        }
        call
    }

    /// The broker has the memory of a key as it was after `moves` moves.
    pub(crate) fn published_again(&mut self, slot: u16, generation: u32, moves: u32) {
        // The key may have been revoked meanwhile, and the memory moved once more.
        let Some(granted) = self.grants.in_force(slot, generation) else { return };
        let (sharing, memory) = (granted.region.sharing(), granted.region.memory());
        self.moves.untold |= sharing.settle(memory, &self.granter, (slot, generation), moves);
    }

    /// The broker did not answer the request to replace the memory of a key.
    pub(crate) fn not_published_again(&mut self, slot: u16, generation: u32) {
        // A broker that is back is told everything.
        if !self.broker.is_lost() {
            self.moves.unpublished.push((slot, generation));
        }
    }

    /// A key is in force from now on, which the broker passes with the memory as it was after
    /// `moves` moves.
    pub(crate) fn put_in_force(&mut self, slot: u16, generation: u32, moves: u32) {
        let Some(granted) = self.grants.in_force(slot, generation) else { return };
        let (region, key) = (granted.region.clone(), (slot, generation));
        let standing = region.sharing().put_in_force(region.memory(), &self.granter, key, moves);
        match standing {
            Standing::Serves => {}
            Standing::Moves => self.join(&region),
            Standing::Behind => drop(self.publish_again(slot, generation, None)),
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
    /// memory can stay where it is. Nothing that the lost key could write may appear any more.
    fn replaces(&self, lost: &Self) -> bool {
        !lost.access.contains(Access::WRITE)
            && self.access.contains(lost.access)
            && (self.audience.is_none() || self.audience == lost.audience)
            && self.start <= lost.start
            && lost.start + lost.length <= self.start + self.length
    }
}
