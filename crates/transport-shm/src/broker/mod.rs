//! The broker: who is there, who may talk to whom, and whose memory goes where.
//!
//! [`State`] is the whole of it as a state machine without input or output. Two ways to reach it:
//! [`local`] holds one in the own process (tests, conformance, programs of one process), and
//! [`remote`] talks to the node daemon, which holds one for the host. The broker is never on the
//! path of a message, a put or a get: what it passed stays mapped when it dies.
//!
//! Source: 003 section 3.2.3 (VPIDs handed out by the kernel) and 3.2.5 (the ATU checks who asks).

use std::os::fd::{BorrowedFd, OwnedFd};

use weft_wire::endpoint_control::EndpointControl;

pub mod local;
pub mod remote;
mod state;
mod tables;

#[doc(hidden)]
pub use state::fuzz_state;
pub use state::{Outgoing, State};
pub use tables::Limits;

/// A client of the broker, as whoever runs it counts them: one control socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessId(pub u64);

/// Who a client is, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// Why the broker could not be asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Nobody is there, or nobody answers.
    #[error("{reason}")]
    Unreachable {
        /// What was tried and what came of it.
        reason: String,
    },
    /// What came back is not an answer to the question.
    #[error("the broker answered what was not asked")]
    InvalidAnswer,
}

/// A message from the broker and the descriptors beside it.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: EndpointControl,
    /// Its descriptors.
    pub files: Vec<OwnedFd>,
}

/// An endpoint's line to the broker.
pub trait Client: Send {
    /// Sends a request and waits for its answer, a bounded time. What the broker says unasked in
    /// the meantime is kept for [`Client::next`], in order.
    ///
    /// # Errors
    /// [`BrokerError`].
    fn call(
        &mut self,
        request: EndpointControl,
        ticket: u32,
        files: &[BorrowedFd<'_>],
    ) -> Result<Received, BrokerError>;

    /// Says something that is not answered.
    ///
    /// # Errors
    /// [`BrokerError`].
    fn tell(&mut self, message: EndpointControl) -> Result<(), BrokerError>;

    /// The next thing that the broker said unasked. Never blocks.
    fn next(&mut self) -> Option<Received>;

    /// Looks whether the broker was started anew: `true` once for each time, and the endpoint must
    /// announce itself. Never blocks.
    fn reconnected(&mut self) -> bool {
        false
    }

    /// Readable when the broker said something or is gone; for sleeping on. `None` where the
    /// broker cannot go away.
    fn line(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The broker is gone and there is no other yet.
    fn is_lost(&self) -> bool {
        false
    }
}

/// A way to reach a broker.
pub trait Connector: Send + Sync {
    /// A new line.
    ///
    /// # Errors
    /// [`BrokerError::Unreachable`].
    fn client(&self) -> Result<Box<dyn Client>, BrokerError>;
}

/// The ticket of an answer, or `None` for what was said unasked.
#[must_use]
pub(crate) fn ticket_of(message: &EndpointControl) -> Option<u32> {
    match message {
        EndpointControl::Reply(reply) => Some(reply.ticket),
        EndpointControl::Members(members) => Some(members.ticket),
        _ => None,
    }
}
