//! The conversation before a transfer, over whatever it goes.

use weft_transfer::Message;

use crate::channel::{Channel, SILENCE};
use crate::error::CopyError;
use crate::fabric::Wire;

/// One connection.
pub(crate) enum Line {
    /// A stream of bytes.
    Stream(Channel),
    /// A session of the fabric.
    Fabric(Wire),
}

impl Line {
    /// Sends a message.
    pub fn say(&mut self, message: Message) -> Result<(), CopyError> {
        match self {
            Self::Stream(channel) => channel.say(message),
            Self::Fabric(wire) => {
                wire.say(message);
                Ok(())
            }
        }
    }

    /// Receives a message.
    pub fn hear(&mut self) -> Result<Message, CopyError> {
        match self {
            Self::Stream(channel) => channel.hear(),
            Self::Fabric(wire) => wire.hear(SILENCE),
        }
    }
}

/// The connections that a transfer goes over.
pub(crate) enum Lines {
    /// Streams, of which the first carries messages.
    Streams(Vec<Channel>),
    /// Sessions of the fabric, of which the first carries messages.
    Fabric(Vec<Wire>),
}
