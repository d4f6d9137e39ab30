//! Layer 1: puts bytes that only a lane has into the kernel's connection.
//!
//! A process that hands a connection on, with bytes unread on its lane, needs them in the kernel's
//! connection. A peer that looks sends them itself. Otherwise the caller puts them there in one of
//! two ways. While the peer is there, its own socket leads to the place ([`PeerSocket`]). When
//! the peer has closed, the kernel lets a privileged process fill the receive queue
//! ([`replace_unread`]).
//!
//! The preload library does this by itself where the kernel permits it. Elsewhere it asks the node
//! daemon, which may be of root. May depend on `weft-channel` and the operating system.

mod peer;
mod repair;
pub mod socket_table;
mod sys;

pub use peer::{PeerSocket, room_to_send};
pub use repair::replace_unread;

/// The bytes that are put in one connection, at most. The kernel holds about as many by itself.
pub const BYTES_MAX: u64 = 8 << 20;

/// The fate of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// Nothing changed.
    Nothing,
    /// All lie in the kernel's connection.
    All,
    /// The kernel took a part of them, so the connection was reset.
    Reset,
}
