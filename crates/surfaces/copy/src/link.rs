//! The link between the two ends of a transfer, as the loops of the ends see it.

use std::sync::Arc;

use weft_transfer::{Block, Message};

use crate::inbox::Inbox;
use crate::space::Space;

/// Events from the other end.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A message.
    Message(Message),
    /// A block, with its bytes.
    Block(Block, Space),
    /// There is memory for another block: one has left, or was granted.
    Sent,
    /// The connection has ended.
    Lost(String),
}

/// The way to the other end. Sending never waits for the other end: what may be on its way is
/// bounded by the protocol.
pub(crate) trait Outlet: Send + Sync {
    /// Sends a message.
    fn message(&self, message: Message);
    /// Sends a block. Its memory is free again when the block has left.
    fn block(&self, block: Block, space: Space);
    /// The last item that was sent arrives, then nothing more comes.
    fn finish(&self);
}

/// Whether somebody heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// A loop.
    InTime,
    /// Nobody listens any more.
    ByNobody,
}

/// A receiver of what comes.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Waits for room. False if nobody listens any more.
    fn hear(&self, incoming: Incoming) -> bool;
    /// Waits for nothing. Whoever tells so bounds what it tells while the loop is behind.
    fn hear_at_once(&self, incoming: Incoming) -> Heard;
    /// Whether much waits for the loop.
    fn is_behind(&self) -> bool;
}

impl<T: From<Incoming> + Send + 'static> Listener for Inbox<T> {
    fn hear(&self, incoming: Incoming) -> bool {
        self.tell_in_time(incoming.into())
    }

    fn hear_at_once(&self, incoming: Incoming) -> Heard {
        if self.tell_if_open(incoming.into()) { Heard::InTime } else { Heard::ByNobody }
    }

    fn is_behind(&self) -> bool {
        Self::is_behind(self)
    }
}

/// The other end is in this process: what is sent goes into its inbox as it is.
pub(crate) struct Direct<T>(pub Arc<Inbox<T>>);

impl<T: From<Incoming> + Send + 'static> Outlet for Direct<T> {
    fn message(&self, message: Message) {
        self.0.tell(Incoming::Message(message).into());
    }

    fn block(&self, block: Block, space: Space) {
        self.0.tell(Incoming::Block(block, space).into());
    }

    fn finish(&self) {}
}
