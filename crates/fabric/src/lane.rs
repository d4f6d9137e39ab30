//! A lane: one pair of ends in a partition of their own, the fabric's form of a connection.
//!
//! Where an [`crate::Endpoint`] talks to many peers, a lane has exactly two ends. Each end has a
//! mailbox that the other sends short messages to, a *sink* (a ring of bytes registered for the
//! other's puts) and a few control words that the other writes with immediate puts. Direct sockets
//! (003 section 5.5) are built on it.
//!
//! A lane holds no position of its own: the cursors belong to the caller, who keeps them where the
//! processes that share an end can see them, under a lock for each direction. Every call is
//! non-blocking.
//!
//! # Waiting
//! Whoever is about to sleep until data (or room) comes arms the attention word that the other
//! side looks at after it did something, and looks once more before it sleeps:
//!
//! ```text
//! sleeper: arm · settle · look · sleep        peer: publish · light fence · read word
//! ```
//!
//! The peer that finds the word armed claims it and then rings a bell by means of its own. So a
//! peer that is awake costs the sender one load.

/// No free slot in the peer's mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneFull;

/// What the other end wrote makes no sense; the lane is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneClosed;

/// The state of one attention word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Attention {
    /// Its owner looks by itself: no bell needed.
    Watching = 0,
    /// Its owner sleeps, or is about to: claim the word and ring.
    Armed = 1,
    /// Somebody claimed it; a bell is on its way.
    Rung = 2,
}

/// What somebody can wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFor {
    /// A message in the own mailbox.
    Data,
    /// Room in the peer's mailbox or sink.
    Room,
}

/// Where the sending side of an end stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct SendCursor {
    /// Messages sent.
    pub messages: u64,
    /// Messages that the peer is known to have taken.
    pub messages_taken: u64,
    /// Bytes put into the peer's sink.
    pub bytes: u64,
    /// Bytes that the peer is known to have taken out of its sink.
    pub bytes_taken: u64,
}

/// Where the receiving side of an end stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct ReceiveCursor {
    /// Messages taken.
    pub messages: u64,
    /// Messages whose slots were given back to the peer.
    pub messages_returned: u64,
    /// Bytes taken out of the sink.
    pub bytes: u64,
}

/// The message at the head of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The user tag.
    pub tag: u8,
    /// Bytes of payload, at most [`Lane::MESSAGE_BYTES`].
    pub length: u8,
}

/// One end of a lane. See the module for the rules.
pub trait Lane {
    /// Payload of a message, bytes: that of a VELO slot.
    const MESSAGE_BYTES: usize = 120;
    /// Control words an end has.
    const WORDS: usize = 12;

    /// Messages the peer's mailbox holds.
    fn mailbox_depth(&self) -> u64;

    /// Bytes the peer's sink holds.
    fn sink_bytes(&self) -> u64;

    /// Free slots of the peer's mailbox, at least `wanted` if that many are free: the peer's
    /// count is read only when the known ones do not suffice.
    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64;

    /// Free bytes of the peer's sink, at least `wanted` if that many are free.
    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64;

    /// Sends a message gathered from `parts`.
    ///
    /// # Errors
    /// [`LaneFull`].
    ///
    /// # Panics
    /// When the parts are longer than [`Lane::MESSAGE_BYTES`] together.
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull>;

    /// Puts bytes behind those put before. The peer learns of them by a message that the caller
    /// sends; data put is visible to whoever sees the message.
    ///
    /// # Panics
    /// When there is less room than [`Lane::sink_free`] must have told.
    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]);

    /// The message at the head of the own mailbox.
    ///
    /// # Errors
    /// [`LaneClosed`] when the peer wrote what no peer of ours writes.
    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed>;

    /// Copies payload of the message at the head, from `offset` on.
    ///
    /// # Panics
    /// When the range leaves the slot.
    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]);

    /// Takes the message at the head; slots go back to the peer in batches, or at once when
    /// `flush`.
    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool);

    /// Messages that the peer took, to the last one, where that can be seen; what
    /// [`Lane::slots_free`] tells lags by a batch. The peer says so: it is data, not a bound.
    fn messages_read(&self) -> Option<u64> {
        None
    }

    /// Copies bytes of the own sink, `skip` bytes behind those taken, without taking them.
    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]);

    /// Takes `length` bytes out of the own sink and gives their room back to the peer.
    fn release(&self, cursor: &mut ReceiveCursor, length: u64);

    /// A message that was sent and that the peer did not take, looked up again with its payload;
    /// `None` where that cannot be.
    fn look_back(&self, _message: u64, _payload: &mut [u8; 120]) -> Option<Slot> {
        None
    }

    /// Copies bytes that were put, from `position` on, and that the peer did not take; false where
    /// that cannot be.
    fn view_back(&self, _position: u64, _target: &mut [u8]) -> bool {
        false
    }

    /// Writes one of the peer's control words; everything sent before is visible to whoever sees
    /// the value.
    fn post(&self, word: usize, value: u64);

    /// Reads one of the own control words, which the peer writes.
    fn posted(&self, word: usize) -> u64;

    /// From watching to armed; armed and rung stay as they are. Not in force before
    /// [`Lane::settle`].
    fn arm(&self, what: WaitFor);

    /// The heavy half of the fence: once for any number of lanes armed before.
    fn settle(&self) {}

    /// Tells whoever watches the lane from outside how many bytes of the caller's stream were
    /// sent in all.
    fn account(&self, _bytes_total: u64) {}

    /// The own attention word.
    fn attention(&self, what: WaitFor) -> Attention;

    /// Back to watching; true when it was rung, so that a bell is on its way or has come.
    fn disarm(&self, what: WaitFor) -> bool;

    /// From rung to armed without a gap, for a word that others still wait on; true when it was
    /// rung. Watching and armed stay as they are.
    fn rearm(&self, what: WaitFor) -> bool;

    /// True when the peer waits for that: what [`Lane::must_ring`] would claim, fence included.
    fn is_awaited(&self, what: WaitFor) -> bool;

    /// After sending (`Data`) or giving room back (`Room`), with the light half of the fence: true
    /// when the peer waits for that and the caller is the one who must ring.
    fn must_ring(&self, what: WaitFor) -> bool;
}
