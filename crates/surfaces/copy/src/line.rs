//! The conversation before a transfer, over whatever it goes.

use weft_transfer::Message;

use crate::channel::{Channel, ReadHalf, SILENCE, WriteHalf, hear_from, say_to};
use crate::error::CopyError;
use crate::fabric::{Early, Mouth, Wire};

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

    /// Its two halves, for a conversation beside a transfer. The end that speaks says
    /// [`Message::Alive`] every [`crate::channel::ALIVE`], or is taken for gone.
    pub fn parted(self) -> (Saying, Hearing) {
        match self {
            Self::Stream(Channel { reader, writer }) => {
                (Saying::Stream(writer), Hearing::Stream(reader))
            }
            Self::Fabric(wire) => {
                let (mouth, early) = wire.parted();
                (Saying::Fabric(mouth), Hearing::Fabric(early))
            }
        }
    }
}

/// The half of a connection that is spoken to.
pub(crate) enum Saying {
    Stream(WriteHalf),
    Fabric(Mouth),
}

impl Saying {
    pub fn say(&mut self, message: Message) -> Result<(), CopyError> {
        match self {
            Self::Stream(writer) => say_to(writer, message),
            Self::Fabric(mouth) => {
                mouth.say(message);
                Ok(())
            }
        }
    }
}

/// The half of a connection that is listened to.
pub(crate) enum Hearing {
    Stream(ReadHalf),
    Fabric(Early),
}

impl Hearing {
    /// Waits for the next message. The wait ends when the other end is gone.
    pub fn hear(&mut self) -> Result<Message, CopyError> {
        match self {
            Self::Stream(reader) => hear_from(reader),
            // The session says when it is over.
            Self::Fabric(early) => early
                .recv()
                .unwrap_or_else(|_| Err(CopyError::Lost("the other end has ended".to_owned()))),
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
