//! The other hosts of the fabric: which are up, and messages to and from their daemons.
//!
//! A part of the daemon that talks to other daemons implements [`FabricUser`] and is given to
//! [`Fabric::start`].
//!
//! # Invariants
//! - Each [`FabricEvent::Up`] of a node is followed by one [`FabricEvent::Down`] before the next.
//! - Messages of a node come between its `Up` and its `Down`, in order, each once.

use weft_fabric::NodeId;
pub use weft_membership::NodeAbout;

/// Something that happened at the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FabricEvent {
    /// The own number became known after the daemon had begun to serve its host without one. Told
    /// once, and only if [`Own::Joining`] was the answer at start. The user takes the number over
    /// when no endpoint is open whose address has the former one, [`NodeId::LOCAL`].
    Numbered {
        /// The own number.
        node: NodeId,
    },
    /// A node can be sent messages.
    Up {
        /// Its number.
        node: NodeId,
        /// The random number of its daemon's start. If it is the same as before a `Down`, the
        /// daemon has lost nothing but messages that were under way.
        incarnation: u64,
        /// Facts about it.
        about: NodeAbout,
    },
    /// A node cannot be sent messages any more. Those that were under way may be lost.
    Down {
        /// Its number.
        node: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// A message of the daemon of a node.
    Message {
        /// The node's number.
        node: NodeId,
        /// The message, of at most [`weft_membership::USER_BYTES_MAX`] bytes. A peer can send
        /// anything that it likes.
        bytes: Vec<u8>,
    },
}

/// A part of the daemon that talks to daemons of other hosts.
pub trait FabricUser: Send + Sync {
    /// Takes an event, on the thread of the fabric: it must not wait.
    fn handle(&self, event: FabricEvent);
}

/// The own number in the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Own {
    /// It is known, and never changes while the daemon runs.
    Known(NodeId),
    /// It was never given, and the daemon goes on asking for it.
    Joining {
        /// The cause that it waits for, for people.
        reason: String,
    },
}
