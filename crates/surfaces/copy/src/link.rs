//! The link between the two ends of a transfer, as the loops of the ends see it.

use std::sync::Arc;

use weft_file_io::Buffer;
use weft_transfer::{Block, Message};

use crate::inbox::Inbox;

/// Events from the other end.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A message.
    Message(Message),
    /// A block, with its bytes.
    Block(Block, Buffer),
    /// A block has left, and its buffer is free.
    Sent,
    /// The connection has ended.
    Lost(String),
}

/// The way to the other end. Sending never waits for the other end: what may be on its way is
/// bounded by the protocol.
pub(crate) trait Outlet: Send + Sync {
    /// Sends a message.
    fn message(&self, message: Message);
    /// Sends a block. Its buffer is free again when the block has left.
    fn block(&self, block: Block, buffer: Buffer);
    /// What was sent last arrives, then nothing more comes.
    fn finish(&self);
}

/// A receiver of what comes.
pub(crate) trait Listener: Send + Sync + 'static {
    /// False if nobody listens any more.
    fn hear(&self, incoming: Incoming) -> bool;
}

impl<T: From<Incoming> + Send + 'static> Listener for Inbox<T> {
    fn hear(&self, incoming: Incoming) -> bool {
        self.tell_in_time(incoming.into())
    }
}

/// The other end is in this process: what is sent goes into its inbox as it is.
pub(crate) struct Direct<T>(pub Arc<Inbox<T>>);

impl<T: From<Incoming> + Send + 'static> Outlet for Direct<T> {
    fn message(&self, message: Message) {
        self.0.tell(Incoming::Message(message).into());
    }

    fn block(&self, block: Block, buffer: Buffer) {
        self.0.tell(Incoming::Block(block, buffer).into());
    }

    fn finish(&self) {}
}
