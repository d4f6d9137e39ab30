//! Layer 2: one suite of cases that every transport passes unchanged.
//!
//! A transport's integration test implements [`Bench`] (how to open endpoints, make progress, and
//! kill), names it in [`conformance_tests!`], and gets one `#[test]` for each case. [`LaneBench`]
//! and [`lane_tests!`] do the same for lanes. The crate may depend on `weft-fabric` only.
//!
//! Source: EXTOLL-THESIS#3, as far as `weft-fabric` promises it.
//!
//! # Rules for cases
//! - A case must work with transports that complete operations inside the call and with those that
//!   complete them later: it starts operations through [`Rig::run`], which waits for either.
//! - A case never reads a clock. It turns the rig (poll all endpoints, then [`Bench::progress`])
//!   until its condition holds, and fails after a bounded number of turns without an event. A
//!   transport whose progress comes from other threads sleeps a little in [`Bench::progress`].
//! - An error from the call and an error from the completion count the same.
//! - A case does not assert what the fabric leaves open.
//!
//! ```text
//! struct Sim { /* .. */ }
//! impl weft_conformance::Bench for Sim { /* .. */ }
//! weft_conformance::conformance_tests!(Sim);
//! ```
//!
//! A transport with several ways to do the same makes one bench for all, and runs the cases once in
//! each: `conformance_tests!(Sim, in_this_way)` calls `in_this_way` first in the thread of each
//! case, where [`Bench::with_services`] then finds the way. A bench for each way would have the
//! compiler make all cases anew.
#![forbid(unsafe_code)]

use std::time::Duration;

use weft_fabric::{Endpoint, EndpointOptions, HostMemory, Lane, OpenError, Reach, Way};

pub mod addressing;
pub mod atomic;
mod cases;
pub mod failure;
pub mod familiar;
pub mod group;
pub mod host_memory;
pub mod lane;
pub mod limits;
pub mod mailbox;
pub mod membership;
pub mod memory;
pub mod notification;
pub mod ordering;
pub mod partition;
pub mod register;
mod rig;
pub mod rma;
pub mod vector;
pub mod waiting;
pub mod window;

pub use rig::{Down, Mail, Rig, Seen, pattern};

/// The preparation of a case if none is asked for.
#[doc(hidden)]
pub fn nothing_before() {}

/// A transport under test. One value is one new, empty fabric.
pub trait Bench: Sized {
    /// The endpoints under test.
    type Endpoint: Endpoint;

    /// A new fabric without endpoints, under these rules for services, as the option
    /// `daemon.services` has them.
    fn with_services(rules: &str) -> Self;

    /// A new fabric without endpoints and rules.
    fn new() -> Self {
        Self::with_services("")
    }

    /// Whether a window to a region can be opened. Memory that cannot be mapped has none.
    fn has_windows(&self) -> bool {
        true
    }

    /// The user for whom [`Bench::open`] opens endpoints.
    fn user(&self) -> u32;

    /// Opens an endpoint. All of them are on one node.
    ///
    /// # Errors
    /// [`OpenError`] of the transport.
    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError>;

    /// Opens an endpoint on another node, if the transport has more than one.
    ///
    /// # Errors
    /// [`OpenError`] of the transport.
    fn open_apart(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        self.open(options)
    }

    /// Opens an endpoint as another user. `None` if the bench cannot do that.
    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        let _ = (user, options);
        None
    }

    /// Lets time pass for the broker: tickets become too late.
    fn let_pass(&mut self, time: Duration);

    /// Gives virtual time or other threads the chance to make progress. Called whenever no endpoint
    /// had an event. True if something may have moved; on false, virtual time stands still.
    fn progress(&mut self) -> bool;

    /// Cuts a rail between all nodes, or mends it. False if the bench cannot do that.
    fn set_rail(&mut self, rail: &str, is_up: bool) -> bool {
        let _ = (rail, is_up);
        false
    }

    /// Ends the endpoint as if its process had died. False if the bench cannot do that inside one
    /// process: the endpoint is then dropped, which looks the same to its peers.
    fn kill(&mut self, endpoint: Self::Endpoint) -> bool {
        drop(endpoint);
        false
    }
}

/// A transport under test whose regions are memory of the host.
pub trait HostBench: Bench
where
    Self::Endpoint: HostMemory,
{
    /// The number of kinds of memory that the transport has: fresh, from a descriptor, existing and
    /// adopted, existing and in place.
    fn kinds() -> usize;

    /// Memory of a kind with these bytes.
    fn memory(kind: usize, bytes: &[u8]) -> <Self::Endpoint as HostMemory>::Memory;

    /// The way to memory of a kind, as the endpoint says.
    fn way(kind: usize, reach: Reach) -> Way;

    /// The bytes of the memory, as the program that has it sees them.
    fn bytes(memory: &<Self::Endpoint as HostMemory>::Memory) -> Vec<u8>;
}

/// Data that a hostile peer may have written into the memory of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    /// The length of the message at the head of the end's mailbox.
    MessageLength(u8),
    /// The number of messages that the peer claims to have taken from the end.
    MessagesTaken(u64),
    /// The number of bytes that the peer claims to have taken from the end.
    BytesTaken(u64),
}

/// Lanes under test. One value is one new pair of ends.
pub trait LaneBench: Sized {
    /// The ends under test.
    type Lane: Lane;

    /// A new pair with mailboxes of about `mailbox_depth` messages and sinks of about `sink_bytes`.
    /// The transport may round up.
    fn new(mailbox_depth: u64, sink_bytes: u64) -> Self;

    /// One of the ends, 0 or 1.
    fn end(&self, which: usize) -> &Self::Lane;

    /// Returns when everything sent, put, posted and taken is visible to the other end.
    fn settle(&mut self);

    /// Lets a little of what is on its way become visible. False if nothing is on its way.
    fn step(&mut self) -> bool {
        false
    }

    /// Kills the end `which` as if its process had died: it does nothing more. False if the bench
    /// cannot do that.
    fn kill(&mut self, which: usize) -> bool {
        let _ = which;
        false
    }

    /// Writes the data of a hostile peer where the end `which` reads it. False if the bench cannot
    /// do that.
    fn corrupt(&mut self, which: usize, what: Hostile) -> bool {
        let _ = (which, what);
        false
    }
}
