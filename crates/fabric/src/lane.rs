//! A lane: a connection on the fabric, which is a pair of ends in a partition of their own.
//!
//! An [`crate::Endpoint`] talks to many peers; a lane has exactly two ends. Each end has a mailbox
//! for short messages from the other end, a *sink* (a byte ring, registered for the other end's
//! puts) and a few control words, which the other end writes with immediate puts. Direct sockets
//! use lanes (003 section 5.5).
//!
//! A lane stores no cursors. The caller keeps them in memory that all processes sharing an end can
//! access, under a lock for each direction. Any bytes are a cursor, as far as memory is concerned:
//! another process may have written them. No call blocks.
//!
//! # Waiting
//! An end that is going to sleep until data or room comes arms an attention word. The peer reads
//! the word after it has sent data or returned room. The sleeper checks once more between arming
//! and sleeping:
//!
//! ```text
//! sleeper: arm · settle · check · sleep        peer: publish · light fence · read word
//! ```
//!
//! If the peer finds the word armed, it claims the word and then rings the sleeper's doorbell by
//! its own means. While the other end is awake, a sender pays one load only.

use zerocopy::{FromBytes, IntoBytes};

/// The peer's mailbox has no free slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneFull;

/// The other end broke the protocol. The lane is unusable from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneClosed;

/// The state of one attention word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Attention {
    /// The owner polls by itself and needs no doorbell.
    Watching = 0,
    /// The owner sleeps, or is about to: the peer claims the word and rings.
    Armed = 1,
    /// A peer claimed the word, and rings or has rung.
    Rung = 2,
}

/// The condition that an end waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFor {
    /// A message in the own mailbox.
    Data,
    /// Room in the peer's mailbox or sink.
    Room,
}

/// The sending position of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct SendCursor {
    /// Messages sent.
    pub messages: u64,
    /// Messages that the peer is known to have taken. The true number may be higher.
    pub messages_taken: u64,
    /// Bytes put into the peer's sink.
    pub bytes: u64,
    /// Bytes that the peer is known to have taken from its sink. The true number may be higher.
    pub bytes_taken: u64,
}

/// The receiving position of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct ReceiveCursor {
    /// Messages taken.
    pub messages: u64,
    /// Messages whose slots were returned to the peer.
    pub messages_returned: u64,
    /// Bytes taken from the sink.
    pub bytes: u64,
}

/// The message at the head of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The user's tag.
    pub tag: u8,
    /// Bytes of payload, at most [`Lane::MESSAGE_BYTES`].
    pub length: u8,
}

/// One end of a lane. The module describes the rules.
pub trait Lane {
    /// Payload of a message in bytes, as of a VELO slot.
    const MESSAGE_BYTES: usize = 120;
    /// Number of control words of an end.
    const WORDS: usize = 12;

    /// Capacity of the peer's mailbox in messages.
    fn mailbox_depth(&self) -> u64;

    /// Capacity of the peer's sink in bytes.
    fn sink_bytes(&self) -> u64;

    /// Number of free slots of the peer's mailbox, at least `wanted` if that many are free. Reads
    /// the peer's counter only if fewer are known to be free.
    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64;

    /// Number of free bytes of the peer's sink, at least `wanted` if that many are free.
    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64;

    /// Sends a message gathered from `parts`.
    ///
    /// # Errors
    /// [`LaneFull`].
    ///
    /// # Panics
    /// When the parts are longer than [`Lane::MESSAGE_BYTES`] together.
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull>;

    /// Appends bytes to the peer's sink. The caller then sends a message that tells the peer about
    /// them. A peer that has seen the message also sees the bytes.
    ///
    /// # Panics
    /// When there are fewer free bytes than `bytes` has. The caller asks [`Lane::sink_free`] first.
    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]);

    /// The message at the head of the own mailbox, if there is one.
    ///
    /// # Errors
    /// [`LaneClosed`] when the peer broke the protocol.
    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed>;

    /// Copies payload of the message at the head, from `offset` on.
    ///
    /// # Panics
    /// When the range leaves the slot.
    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]);

    /// Takes the message at the head. Slots return to the peer in batches, or at once with `flush`.
    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool);

    /// Number of messages that the peer has taken, without the batching that makes
    /// [`Lane::slots_free`] lag. `None` if the transport cannot tell. The peer writes the number,
    /// so it is untrusted.
    fn messages_read(&self) -> Option<u64> {
        None
    }

    /// Copies bytes of the own sink that are `skip` bytes behind those taken, without taking them.
    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]);

    /// Takes `length` bytes from the own sink and returns their room to the peer.
    fn release(&self, cursor: &mut ReceiveCursor, length: u64);

    /// The slot and payload of a message that was sent and that the peer has not taken. `None` if
    /// the transport cannot read it back.
    fn look_back(&self, _message: u64, _payload: &mut [u8; 120]) -> Option<Slot> {
        None
    }

    /// Copies bytes that were put from `position` on and that the peer has not taken. `false` if
    /// the transport cannot read them back.
    fn view_back(&self, _position: u64, _target: &mut [u8]) -> bool {
        false
    }

    /// Writes one of the peer's control words. A peer that has seen the value also sees everything
    /// sent before.
    fn post(&self, word: usize, value: u64);

    /// Reads one of the own control words, which the peer writes.
    fn posted(&self, word: usize) -> u64;

    /// Changes the attention word from watching to armed; armed and rung stay. The peer is sure to
    /// see it only after [`Lane::settle`].
    fn arm(&self, what: WaitFor);

    /// The heavy half of the fence. One call serves any number of lanes armed before.
    fn settle(&self) {}

    /// Publishes the total number of bytes of the caller's stream that were sent, for observers of
    /// the lane.
    fn account(&self, _bytes_total: u64) {}

    /// The state of the own attention word.
    fn attention(&self, what: WaitFor) -> Attention;

    /// Changes the attention word to watching. True if it was rung: a doorbell is on its way or has
    /// come.
    fn disarm(&self, what: WaitFor) -> bool;

    /// Changes the attention word from rung to armed in one step, for a word that other threads
    /// still wait on. True if it was rung. Watching and armed stay.
    fn rearm(&self, what: WaitFor) -> bool;

    /// True when the peer waits for `what`, so that [`Lane::must_ring`] would claim its word.
    /// Includes the light fence.
    fn is_awaited(&self, what: WaitFor) -> bool;

    /// Call it after sending (`Data`) or returning room (`Room`). Includes the light half of the
    /// fence. True when the peer waits for `what` and the caller has claimed its word: the caller
    /// has to ring.
    fn must_ring(&self, what: WaitFor) -> bool;
}
