//! The directory: it knows the endpoints of a fabric, in which partitions they are, and the names
//! of their ports. It introduces two endpoints to each other, and is on the way of nothing else.
//!
//! [`State`] is a state machine without input or output. [`local`] keeps one in this process.

use std::time::Duration;

use weft_fabric::{
    EndpointAddress, Group, OpenError, OperationError, Partition, PartitionId, Ticket, Vpid,
};

pub mod local;
mod state;

pub use state::{Limits, State};

/// An endpoint's question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// To be introduced to the endpoint at an address.
    Connect(EndpointAddress),
    /// To end a pair, which has this secret.
    Disconnect(EndpointAddress, [u8; 16]),
    /// To join a group.
    Join(Group),
    /// To leave a group.
    Leave(Group),
    /// To let one endpoint in by a ticket, for a time.
    Invite(Ticket, Duration),
    /// To learn the other members of a group.
    Members(Group),
}

/// The answer to a question that was good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// The peer.
    Introduced(Introduction),
    /// The other members.
    Members(Vec<EndpointAddress>),
}

/// A new pair, as each of its ends is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Introduction {
    /// The peer's address.
    pub address: EndpointAddress,
    /// The name of its port.
    pub name: Vec<u8>,
    /// The secret that both ends show each other.
    pub secret: [u8; 16],
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
    /// Whether this end greets first. The other waits for the greeting: of two connections that are
    /// opened at the same time some providers lose one, with what went over it.
    pub greets_first: bool,
}

/// News of the directory for an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// The answer to the question with this number.
    Answer(u64, Result<Answer, OperationError>),
    /// A peer has connected.
    Introduced(Introduction),
    /// The endpoint at this address, which had a pair with this secret, has ended.
    Ended(EndpointAddress, [u8; 16]),
    /// The members of these groups have changed, by a bit for each.
    Groups(u64),
}

/// How an endpoint is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The VPID wanted.
    pub vpid: Vpid,
    /// The partition, and the way into it.
    pub partition: Partition,
    /// The name of its port.
    pub name: Vec<u8>,
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
    /// Its peers at most.
    pub peers_max: usize,
}

/// An endpoint that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Its address.
    pub address: EndpointAddress,
    /// Its partition.
    pub partition: PartitionId,
    /// The endpoint that offered the service or gave the ticket.
    pub host: Option<EndpointAddress>,
}

/// An endpoint's connection to the directory. Dropping it closes the endpoint there.
pub trait Client: Send {
    /// Opens the endpoint. Called once, first.
    ///
    /// # Errors
    /// [`OpenError`].
    fn open(&mut self, opening: &Opening) -> Result<Opened, OpenError>;

    /// Asks a question, whose answer comes from [`Client::next`] with its number. Never blocks.
    ///
    /// # Errors
    /// Why the directory cannot be asked.
    fn ask(&mut self, number: u64, question: Question) -> Result<(), String>;

    /// The next news. Never blocks.
    fn next(&mut self) -> Option<News>;

    /// The waker that is to be called when there are news: from any thread, and before the first
    /// call of [`Client::next`] that finds them.
    fn wake_by(&mut self, waker: Waker);
}

/// Wakes an endpoint's threads.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// Connects endpoints to a directory.
pub trait Directory: Send + Sync {
    /// A new connection.
    ///
    /// # Errors
    /// [`OpenError::NoBroker`].
    fn client(&self) -> Result<Box<dyn Client>, OpenError>;
}
