//! One end of a TCP connection over a lane: the BCopy mode of EXTOLL-THESIS#5.5.3.2.
//!
//! The kernel's connection (the shadow socket) stays open. A direction moves to the lane at a byte
//! boundary, and back at another one. Bytes travel as the messages of Table 5.3:
//!
//! - `VELO`, `VELO_LAST`: messages with payload, for writes up to [`Limits::eager_bytes`].
//! - `RMA_INFO`: a message that announces bytes put into the sink.
//! - `RMA_AVAIL`: the sink's credit. It is an immediate put and no message: a message would queue
//!   behind data that the program does not read, and the two ends could wait for each other.
//! - `SHUTDOWN`: a control word with the number of the last message. It is no message either, since
//!   close must never wait for room.
//!
//! # The switch
//! Each end says once that it has the lane ([`crate::SendSide::attach`]). An end that knows this of
//! its peer may move its sending direction at a byte boundary ([`crate::route`]). Bytes on TCP
//! behind the boundary are wakeups: single bytes without meaning that wake a thread that sleeps on
//! the kernel's socket. The peer would take a wakeup in front of the boundary for data. So an end
//! that must ring moves its own sending direction first. [`crate::SendSide::switch`] succeeds for
//! every end whose peer can wait on the lane.
//!
//! A direction that ended on TCP ([`crate::SendSide::shut`]) can carry no more wakeups. The other
//! direction may move all the same ([`crate::SendSide::switch_for_data`]): its writer looks for
//! room while it waits. If it moved before, both ends know of the lane, and the half close happens
//! there.
//!
//! # The way back
//! A writer may go back to TCP at any time ([`crate::SendSide::leave`],
//! [`crate::SendSide::return_to_tcp`]): for bytes that only the kernel can carry, or because the
//! lane stays full while the kernel has room. From then on the writer can ring no more. So it rings
//! a peer that waits on the lane for room before it goes. A peer that is about to wait later sees
//! that the writer would not ring ([`crate::SendSide::peer_can_ring`]), and goes back to TCP, too.
//!
//! # Invariants
//! - The state of an end consists of two plain values, [`crate::SendSide`] and
//!   [`crate::ReceiveSide`]. Each has a lock, which a process that uses it holds. Zeroed values are
//!   those of a new connection, and any bytes are valid.
//! - Positions are published after the copy they stand for, so a process that dies in between has
//!   moved nothing.
//! - The stream gives bytes, an end or an error. It never panics or loops, even if the peer writes
//!   anything into the lane, or a process that shares the end writes anything into the two values.

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// The end that accepted. It made the lane, so its peer may rely on the lane.
    Accepted,
    /// The end that connected. It says when it has the lane.
    Connected,
}

/// Tunable sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Writes up to this many bytes go as messages, longer writes through the sink.
    pub eager_bytes: usize,
    /// Number of bytes put into the sink before they are announced.
    pub chunk_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { eager_bytes: 480, chunk_bytes: 16 << 10 }
    }
}

/// Upper bound of [`Limits::chunk_bytes`].
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Tags of the messages of Table 5.3.
pub(crate) mod tag {
    pub const VELO: u8 = 1;
    pub const VELO_LAST: u8 = 2;
    pub const RMA_INFO: u8 = 3;
}

/// Ways to end a direction.
pub mod closed {
    /// The writing half is shut. The end still reads.
    pub const WRITING: u64 = 0;
    /// Both directions are closed, and the end read all that it received.
    pub const ORDERLY: u64 = 1;
    /// The end closed with unread data, or aborted: its peer gets a reset.
    pub const RESET: u64 = 2;
    /// As [`RESET`], by an end whose writing half was shut before. As on TCP, the peer reads that
    /// end, and its writes fail with EPIPE.
    pub const RESET_AFTER_END: u64 = 3;
    pub(crate) const MASK: u64 = 3;

    /// True if the end of the direction is a reset.
    #[must_use]
    pub const fn is_reset(how: Option<u64>) -> bool {
        matches!(how, Some(RESET | RESET_AFTER_END))
    }
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Number of bytes accepted: at least 1, unless the write was empty.
    pub bytes: usize,
    /// The caller must ring the peer.
    pub ring: bool,
}

/// The reason why a write accepted no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// There is no room. Arm [`weft_fabric::WaitFor::Room`] and try again.
    Full,
    /// This side shut its writing half, or the peer closed: EPIPE.
    Closed,
    /// The peer aborted: ECONNRESET.
    Reset,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Number of bytes copied.
    pub bytes: usize,
    /// The peer may wait for the room that this read made. Call
    /// [`crate::SendSide::rings_for_room`].
    pub room: bool,
}

/// The reason why a read gave no bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// No bytes are there. Arm [`weft_fabric::WaitFor::Data`] and try again.
    Empty,
    /// The peer ended its direction in order, and all of it was read.
    Ended,
    /// The peer aborted, or broke the protocol: ECONNRESET.
    Reset,
    /// The direction goes on over TCP. Call [`crate::ReceiveSide::origin`] again.
    Return,
}
