//! One end of a TCP connection over a lane: the BCopy mode of 003 section 5.5.3.2.
//!
//! The kernel's connection stays as it is (the shadow socket); a direction moves to the lane at a
//! byte boundary, and back at another. Bytes travel as the messages of Table 5.3:
//!
//! - `VELO`, `VELO_LAST`: messages with payload, for writes up to [`Limits::eager_bytes`].
//! - `RMA_INFO`: a message that announces bytes put into the sink.
//! - `RMA_AVAIL`: the sink's credit, an immediate put instead of a message: a message would queue
//!   behind data that the program does not read, and the two ends could wait for each other.
//! - `SHUTDOWN`: a control word with the number of the last message, for the same reason: close
//!   must never wait for room.
//!
//! # The switch
//! Each end says once that it has the lane ([`crate::SendSide::attach`]); an end that knows the
//! other has it may move its sending direction at a boundary of bytes ([`crate::route`]). What
//! arrives on TCP behind the boundary are wakeups: single bytes without meaning that wake whoever
//! sleeps on the kernel's socket. A wakeup in front of it would be taken for data, so an end that
//! must ring moves its own sending direction first ([`crate::SendSide::switch`], which succeeds for
//! whoever has a peer that can wait).
//!
//! A direction that ended on TCP ([`crate::SendSide::shut`]) can ring no more: the other direction
//! then stays on TCP too, unless it moved before, in which case both ends know of the lane and the
//! half close happens there.
//!
//! # The way back
//! A writer may go back to TCP at any time ([`crate::SendSide::leave`],
//! [`crate::SendSide::go_back`]): for bytes that only the kernel can carry, or since the lane is
//! full and stays so, while the kernel has room for more. It can ring no more then. Whoever waits
//! on the lane for room is rung before, and who begins to wait later sees it
//! ([`crate::SendSide::is_answered`]) and goes back, too.
//!
//! # Invariants
//! - All state of an end is in [`crate::SendSide`] and [`crate::ReceiveSide`], plain values, each
//!   used under a lock of its own by whichever process holds the end. Zeroed ones are the
//!   beginning, and any bytes are valid.
//! - Positions are published after the copy they stand for, so a process that dies in between has
//!   moved nothing.
//! - The stream gives bytes, an end or an error, never a panic or a loop, whatever the peer writes
//!   into the lane, and whatever a process that shares the end writes into its two values.

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// It accepted: it made the lane, so the other end may rely on it.
    Accepted,
    /// It connected: it says when it has the lane.
    Connected,
}

/// Tunable sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Writes up to this many bytes go as messages, longer ones through the sink.
    pub eager_bytes: usize,
    /// Bytes put before they are announced.
    pub chunk_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { eager_bytes: 480, chunk_bytes: 16 << 10 }
    }
}

/// Longest chunk, whatever the limits say.
pub(crate) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Tags of Table 5.3.
pub(crate) mod tag {
    pub const VELO: u8 = 1;
    pub const VELO_LAST: u8 = 2;
    pub const RMA_INFO: u8 = 3;
}

/// How a direction ended.
pub mod closed {
    /// The writing half is shut; the other still reads.
    pub const WRITING: u64 = 0;
    /// Closed in both directions, everything received was read.
    pub const ORDERLY: u64 = 1;
    /// Closed with unread data, or aborted: the other end gets a reset.
    pub const RESET: u64 = 2;
    pub(crate) const MASK: u64 = 3;
}

/// The result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes accepted, at least 1 unless none were given.
    pub bytes: usize,
    /// The caller must ring the peer.
    pub ring: bool,
}

/// Why a write did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// No room; arm [`weft_fabric::WaitFor::Room`] and try again.
    Full,
    /// This side shut its writing half, or the peer closed: EPIPE.
    Closed,
    /// The peer aborted: ECONNRESET.
    Reset,
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Bytes copied.
    pub bytes: usize,
    /// The peer may wait for the room that this made: [`crate::SendSide::rings_for_room`] is due.
    pub room: bool,
}

/// Why a read gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// Nothing there; arm [`weft_fabric::WaitFor::Data`] and try again.
    Empty,
    /// The peer ended its direction in order, and all of it was read.
    Ended,
    /// The peer aborted, or wrote what no peer of ours writes: ECONNRESET.
    Reset,
    /// It goes on over TCP: ask [`crate::ReceiveSide::origin`] again.
    Back,
}
