//! Layer 1: the broker. It knows the endpoints of a node, pairs them and passes their memory.
//!
//! [`State`] is a state machine without input or output. There are two ways to reach one: [`local`]
//! keeps it in this process (tests, conformance, programs of one process), and [`remote`] talks to
//! the node daemon, which keeps one for the host. The broker is never on the path of a message, a
//! put or a get: memory that it passed stays mapped after the broker dies.
//!
//! Source: EXTOLL-THESIS#3.2.3 (the kernel hands out VPIDs), EXTOLL-THESIS#3.2.5 (the ATU checks
//! initiators).
//!
//! May depend on `weft-fabric`, `weft-channel`, `weft-wire`, `weft-options`, `weft-metrics` and the
//! operating system.

#![forbid(unsafe_code)]

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_wire::endpoint_control::EndpointControl;

pub mod answers;
pub mod calls;
mod clock;
pub mod conversation;
pub mod counts;
mod cuts;
mod doubts;
mod errors;
mod guests;
mod invitations;
mod later;
pub mod local;
mod nodes;
mod opening;
mod ports;
pub mod remote;
mod state;
mod tables;

pub use cuts::{Cuts, Site};
pub use doubts::IsStopped;
pub use nodes::{InvalidNodeMessage, Listed, NodeMessage, Offer, Refusal};
#[cfg(any(test, feature = "test-doors"))]
pub use state::fuzz_state;
pub use state::{Listing, Outgoing, State};
pub use tables::{Limits, VPIDS};

/// How long a request may wait for its answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Wakes an endpoint, so that it reads the broker's messages. Never blocks.
pub trait Bell: Send + Sync + fmt::Debug {
    /// Rings.
    fn ring_broker(&self);
}

/// Opens the bell of an endpoint: from its doorbell segment and its wakeup, which a program sent.
/// `None` when they are not of the right kind.
pub type OpenBell = fn(BorrowedFd<'_>, OwnedFd) -> Option<Arc<dyn Bell>>;

/// A client of the broker: one control socket. The owner of the [`State`] chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessId(pub u64);

/// The credentials of a client, as the kernel reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Process number.
    pub pid: u32,
    /// User number.
    pub uid: u32,
}

/// Why a request to the broker failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The broker is not running or does not answer.
    #[error("{reason}")]
    Unreachable {
        /// The attempted step and its error.
        reason: String,
    },
    /// The message is not an answer to the request.
    #[error("the broker sent an answer that does not fit the request")]
    InvalidAnswer,
}

/// A message from the broker and its descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: EndpointControl,
    /// The descriptors that came with the message.
    pub files: Vec<OwnedFd>,
}

/// The use that an endpoint's connection to the broker still has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// Requests reach the broker.
    Open,
    /// It leads to a broker that was restarted and has not answered yet.
    Greeting,
    /// The broker is gone, and no other was found.
    Lost,
}

/// Tells an endpoint of messages.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// For a broker of endpoints that ports alone lead to: it refuses all others.
#[must_use]
pub fn no_bells(_: BorrowedFd<'_>, _: OwnedFd) -> Option<Arc<dyn Bell>> {
    None
}

/// An endpoint's connection to the broker.
pub trait Client: Send {
    /// Sends a request and waits a bounded time for its answer. Other messages that arrive
    /// meanwhile are kept in order for [`Client::next`].
    ///
    /// # Errors
    /// [`BrokerError`].
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError>;

    /// Sends a request whose answer comes from [`Client::next`], or a message that has no answer.
    /// Never blocks.
    ///
    /// # Errors
    /// [`BrokerError`].
    fn start(
        &mut self,
        request: EndpointControl,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), BrokerError>;

    /// The next message of the broker that is not the answer to a [`Client::call`]. Never blocks.
    fn next(&mut self) -> Option<Received>;

    /// Whether the broker was restarted: true once for each restart. The endpoint must then
    /// announce itself. While the broker is gone, tries to find the next. Never blocks.
    fn reconnected(&mut self) -> bool {
        false
    }

    /// The use that the connection still has.
    fn connection(&self) -> Connection {
        Connection::Open
    }

    /// A descriptor that is readable when the broker sent a message or is gone. `None` where the
    /// broker cannot go away.
    fn line(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The waker to call when there are messages, from any thread, before the first
    /// [`Client::next`] that finds them. Not used where there is a [`Client::line`].
    fn wake_by(&mut self, _waker: Waker) {}

    /// Whether the broker is gone and no other has answered.
    fn is_lost(&self) -> bool {
        self.connection() != Connection::Open
    }
}

/// Connects endpoints to a broker.
pub trait Connector: Send + Sync {
    /// Opens a new connection.
    ///
    /// # Errors
    /// [`BrokerError::Unreachable`].
    fn client(&self) -> Result<Box<dyn Client>, BrokerError>;
}

/// The ticket of an answer; `None` for an unsolicited message.
fn ticket_of(message: &EndpointControl) -> Option<u32> {
    match message {
        EndpointControl::Reply(reply) => Some(reply.ticket),
        EndpointControl::Members(members) => Some(members.ticket),
        EndpointControl::Opened(opened) => Some(opened.ticket),
        EndpointControl::MembersOf(members) => Some(members.ticket),
        EndpointControl::Met(met) => (met.ticket != 0).then_some(met.ticket),
        _ => None,
    }
}
