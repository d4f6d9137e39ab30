//! How long packets get out of the ring of their sender.

use weft_fabric::Capabilities;

/// The way of a long packet out of the ring of its sender. It is the same for all ports of a
/// network, which has one transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The ring is memory here, too: the receiver's kernel copies out of it.
    Mapped,
    /// The receiver gets each packet into memory of its own, several at once, and hands them out
    /// in order.
    Fetched,
}

impl Way {
    /// The way over a transport.
    #[must_use]
    pub const fn over(capabilities: &Capabilities) -> Self {
        if capabilities.window_is_memory { Self::Mapped } else { Self::Fetched }
    }
}
