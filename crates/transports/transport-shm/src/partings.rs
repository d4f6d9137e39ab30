//! Revocations of keys to memory in place, which cannot move out of the reach of its writers.
//!
//! The key is void at once, and the other keys to the memory stay in force. The owner only waits
//! for the peers that announced a write, because the kernel carries out the rest of a piece that
//! they have asked it for. If one does not end within [`PARTING_WITHIN`], the revocation fails and
//! names it.

use std::time::Duration;

use weft_fabric::{Access, EndpointAddress, GrantError, OperationError, Value};
use weft_sync::{atomic::pause, fence};

use crate::endpoint::ShmEndpoint;
use crate::moves::{Call, LOOKS};
use crate::sharing::Writer;
use crate::sys;

/// How long a revocation waits for writes to memory in place that the kernel carries out. They are
/// made in pieces, which take some milliseconds.
pub const PARTING_WITHIN: Duration = Duration::from_secs(1);

/// The revocations of an endpoint that wait for writers.
#[derive(Debug)]
pub struct Partings {
    within: Duration,
    under_way: Vec<Parting>,
}

/// A revocation. It ends when these peers have ended their writes.
#[derive(Debug)]
struct Parting {
    call: Call,
    inside: Vec<(EndpointAddress, Writer)>,
    until: Duration,
}

impl Partings {
    /// No revocations.
    pub fn new() -> Self {
        Self { within: PARTING_WITHIN, under_way: Vec::new() }
    }

    /// Whether one is under way, so that the endpoint must not sleep.
    #[inline]
    pub fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether the call with this context waits for writers.
    pub fn awaits(&self, context: u64) -> bool {
        self.under_way.iter().any(|parting| parting.call.context == Some(context))
    }

    /// No call waits any more for writers with this context.
    pub fn forget(&mut self, context: u64) {
        for Parting { call, .. } in &mut self.under_way {
            if call.context == Some(context) {
                call.context = None;
            }
        }
    }

    /// Waits so long in place of [`PARTING_WITHIN`].
    #[cfg(any(test, feature = "test-doors"))]
    pub fn wait_at_most(&mut self, within: Duration) {
        self.within = within;
    }
}

impl ShmEndpoint {
    /// A key with this access to memory in place is void: ends the call when nobody writes by it.
    pub(crate) fn begin_parting(&mut self, access: Access, call: Call) {
        let inside = if access.contains(Access::WRITE) { self.writers() } else { Vec::new() };
        let until = sys::now().saturating_add(self.partings.within);
        self.part(Parting { call, inside, until });
    }

    /// The peers that announced a write and may not have ended it.
    fn writers(&self) -> Vec<(EndpointAddress, Writer)> {
        let inside = self
            .peers
            .iter()
            .filter_map(|peer| Some((peer.address, Writer::of(&peer.registers, &peer.standing)?)));
        inside.collect()
    }

    /// Takes the next step of each revocation.
    pub(crate) fn drive_partings(&mut self) {
        for parting in std::mem::take(&mut self.partings.under_way) {
            self.part(parting);
        }
    }

    /// Looks after the writers, and ends the revocation when there are none, or when their time is
    /// over.
    fn part(&mut self, Parting { call, mut inside, until }: Parting) {
        for _ in 0..LOOKS {
            inside.retain(|(_, writer)| writer.lasts());
            if inside.is_empty() {
                break;
            }
            pause();
        }
        let result = match inside.first() {
            None => Ok(Value::Revoked(call.revoked)),
            Some(_) if sys::now() < until => {
                self.partings.under_way.push(Parting { call, inside, until });
                return;
            }
            Some((peer, _)) => Err(OperationError::Grant(GrantError::StillWriting { peer: *peer })),
        };
        self.requests.end(call.ticket, call.context, result);
    }

    /// The endpoint ends: all keys to memory in place are void, and peers that are writing to it
    /// have their time to end.
    pub(crate) fn part_from_writers(&self) {
        let mut any = false;
        for (slot, _, granted) in self.grants.iter() {
            let memory = granted.region.memory();
            if memory.is_in_place() && granted.access.contains(Access::WRITE) {
                granted.region.sharing().void(&self.granter, slot);
                any = true;
            }
        }
        if !any {
            return;
        }
        fence::heavy();
        let mut inside = self.writers();
        let until = sys::now().saturating_add(self.partings.within);
        while !inside.is_empty() && sys::now() < until {
            inside.retain(|(_, writer)| writer.lasts());
            pause();
        }
    }
}
