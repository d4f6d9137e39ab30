//! Layer 2: one suite of cases that every transport passes unchanged.
//!
//! A transport's integration test implements [`Bench`] (how to open endpoints, let things move,
//! and kill), names it in [`conformance_tests!`], and gets one `#[test]` per case; [`LaneBench`]
//! and [`lane_tests!`] do the same for lanes. The crate may depend on `weft-fabric` alone.
//!
//! Source: 003 chapter 3, as far as `weft-fabric` promises it.
//!
//! # Rules that the cases keep
//! - A case holds for transports that end operations inside the call and for those that end them
//!   by a completion: it starts them through [`Rig::run`], which waits for either.
//! - A case never looks at a clock. It turns the rig (poll all, then [`Bench::progress`]) up to a
//!   bound on turns in which nothing happened; transports whose progress comes from elsewhere
//!   sleep a little in [`Bench::progress`].
//! - An error counts the same whether the call returned it or the completion did.
//! - What the fabric leaves open is not asserted.
//!
//! ```text
//! struct Sim { /* .. */ }
//! impl weft_conformance::Bench for Sim { /* .. */ }
//! weft_conformance::conformance_tests!(Sim);
//! ```
#![forbid(unsafe_code)]

use weft_fabric::{Endpoint, EndpointOptions, Lane, OpenError};

pub mod addressing;
pub mod atomic;
mod cases;
pub mod failure;
pub mod group;
pub mod lane;
pub mod limits;
pub mod mailbox;
pub mod memory;
pub mod notification;
pub mod register;
mod rig;
pub mod rma;
pub mod waiting;
pub mod window;

pub use rig::{Mail, Rig, Seen, pattern};

/// What the suite needs of a transport under test. One value is one fresh, empty fabric.
pub trait Bench: Sized {
    /// The endpoints under test.
    type Endpoint: Endpoint;

    /// A fresh fabric without endpoints.
    fn new() -> Self;

    /// The user whose programs [`Bench::open`] speaks for.
    fn user(&self) -> u32;

    /// Opens an endpoint, all of them on one node.
    ///
    /// # Errors
    /// [`OpenError`], as the transport says.
    fn open(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError>;

    /// Opens an endpoint on some other node, where the transport has more than one.
    ///
    /// # Errors
    /// [`OpenError`], as the transport says.
    fn open_apart(&mut self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        self.open(options)
    }

    /// Opens an endpoint as another user, or `None` when the bench cannot pose as one.
    fn open_as(
        &mut self,
        user: u32,
        options: &EndpointOptions,
    ) -> Option<Result<Self::Endpoint, OpenError>> {
        let _ = (user, options);
        None
    }

    /// Lets time or other threads do their part; called whenever nobody had an event. True when
    /// something may have moved (virtual time stands still on false).
    fn progress(&mut self) -> bool;

    /// Ends the endpoint as if its process had died without a word. False when the bench cannot
    /// do that in process; the endpoint is dropped then, which peers see in the same way.
    fn kill(&mut self, endpoint: Self::Endpoint) -> bool {
        drop(endpoint);
        false
    }
}

/// Something a hostile peer may have written into the memory of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    /// The length of the message that is at the head of the end's mailbox.
    MessageLength(u8),
    /// The count of messages that the peer says it took from the end.
    MessagesTaken(u64),
    /// The count of bytes that the peer says it took from the end.
    BytesTaken(u64),
}

/// What the suite needs to test lanes. One value is one fresh pair of ends.
pub trait LaneBench: Sized {
    /// The ends under test.
    type Lane: Lane;

    /// A fresh pair whose mailboxes hold about `mailbox_depth` messages and whose sinks hold about
    /// `sink_bytes`; the transport may round up.
    fn new(mailbox_depth: u64, sink_bytes: u64) -> Self;

    /// One of the ends, 0 or 1.
    fn end(&self, which: usize) -> &Self::Lane;

    /// Returns when all that was sent, put, posted and taken is visible to the other end.
    fn settle(&mut self);

    /// Makes the end `which` see what a hostile peer wrote; false when the bench cannot.
    fn corrupt(&mut self, which: usize, what: Hostile) -> bool {
        let _ = (which, what);
        false
    }
}
