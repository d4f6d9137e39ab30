//! A lane: a connection on the fabric, which is a pair of ends in a partition of their own.
//!
//! An [`crate::Endpoint`] talks to many peers; a lane has exactly two ends. Each end has a mailbox
//! for short messages from the other end, a *sink* (a byte ring, registered for the other end's
//! puts) and a few control words, which the other end writes with immediate puts. Direct sockets
//! use lanes (EXTOLL-THESIS#5.5).
//!
//! A lane stores no cursors. The caller keeps them in memory that all processes sharing an end can
//! access, under a lock for each direction. Any bytes are a cursor, as far as memory is concerned:
//! another process may have written them. No call blocks.
//!
//! Carrying and waking are two halves ([`Carry`], [`Wake`]), and what needs one of them asks for no
//! more. A lane of shared memory and a lane over endpoints have the same halves; [`Medium`] says
//! what the layer above may rely on.
//!
//! # Exact numbers, and numbers that may lag
//! Everything that an end sends, puts and posts becomes visible at the other in that order, never
//! in part, and never before the bytes that it tells of. The number that the peer *took* may be
//! known late: [`Carry::slots_free`], [`Carry::sink_free`] and [`Carry::messages_read`] never say
//! more than is true, and catch up without a call of either end. [`Carry::look_back`] and
//! [`Carry::view_back`] are exact, and no peer has to be alive for them.
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
//!
//! Across a network the peer cannot read the word in time. There the arrival rings it at the
//! sleeper's own side ([`Medium::Network`]): arming, one more look and the sleep are the same, and
//! the peer has nothing to do.

use zerocopy::{FromBytes, IntoBytes};

/// Whether more may arrive on a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Things may arrive. A lane of shared memory always says so: the layer above has other ways to
    /// learn of the end of its peer.
    Open,
    /// The peer closed the lane, and all that it ever sent is visible.
    Closed,
    /// The peer is dead or out of reach, or the lane failed. Some of what it sent may be missing,
    /// but only from the end: all that is visible came in order.
    Lost,
}

/// The way between the two ends of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Memory that both ends share. All that the peer wrote is visible at once, and before anything
    /// that it does later on another way: a byte that it sends over TCP comes after the words that
    /// it posted before. The peer claims an armed word and rings ([`Wake::must_ring`]).
    Memory,
    /// A network. Things arrive later than they were sent, and in no order with other ways: a byte
    /// over TCP may come before the words that were posted earlier ([`Carry::has_landed`]). Two
    /// ends that post at the same time both miss the other's word. The arrival of a message, a
    /// word or of returned room rings an armed word by itself, and the peer never does.
    Network,
}

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
    /// Bytes of payload, at most [`Carry::MESSAGE_BYTES`].
    pub length: u8,
}

/// The half of a lane that carries. The module describes the rules.
///
/// ```
/// use std::os::fd::AsFd;
/// use weft_fabric::{Carry, LaneFull, ReceiveCursor, SendCursor};
/// # use weft_memory::CopyMode;
/// # use weft_transport_shm::lane::{LaneLayout, ShmLane};
///
/// /// Puts bytes into the peer's sink, and sends a message that tells how many.
/// fn stream<C: Carry>(lane: &C, cursor: &mut SendCursor, bytes: &[u8]) -> Result<(), LaneFull> {
///     let length = bytes.len() as u64;
///     if lane.slots_free(cursor, 1) == 0 || lane.sink_free(cursor, length) < length {
///         return Err(LaneFull);
///     }
///     lane.put(cursor, bytes);
///     lane.send(cursor, 1, &[&length.to_le_bytes()])
/// }
///
/// # let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
/// # let (one, file) = ShmLane::create(layout, CopyMode::Plain)?;
/// # let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain)?;
/// let (mut sent, mut taken) = (SendCursor::default(), ReceiveCursor::default());
/// stream(&one, &mut sent, b"bytes of a stream").expect("an empty lane");
/// assert_eq!(stream(&one, &mut sent, &[0; 4096]), Err(LaneFull));
///
/// let slot = two.peek(&taken).unwrap().expect("a message");
/// assert_eq!(slot.length, 8, "a number");
/// let mut text = [0; 17];
/// two.view(&taken, 0, &mut text);
/// two.release(&mut taken, 17);
/// two.advance(&mut taken, true);
/// assert_eq!(&text, b"bytes of a stream");
/// stream(&one, &mut sent, &[0; 4096]).expect("the room came back");
///
/// // A control word is a number that the peer sees, whether or not it takes messages.
/// two.post(3, taken.bytes);
/// assert_eq!(one.posted(3), 17);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Carry {
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
    /// When the parts are longer than [`Carry::MESSAGE_BYTES`] together.
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull>;

    /// Appends bytes to the peer's sink. The caller then sends a message that tells the peer about
    /// them. A peer that has seen the message also sees the bytes.
    ///
    /// # Panics
    /// When there are fewer free bytes than `bytes` has. The caller asks [`Carry::sink_free`]
    /// first.
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
    /// [`Carry::slots_free`] lag. Across a network it lags by one way, and comes to rest at the
    /// true number when the peer has taken all. `None` if the transport cannot tell. The peer
    /// writes the number, so it is untrusted.
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
    /// sent, put and posted before.
    fn post(&self, word: usize, value: u64);

    /// Reads one of the own control words, which the peer writes.
    fn posted(&self, word: usize) -> u64;

    /// The way between the two ends.
    fn medium(&self) -> Medium;

    /// The number for which the two ends made the lane, by which they know it. 0 where a lane has
    /// none.
    fn token(&self) -> u64 {
        0
    }

    /// True if everything that this end sent, put and posted so far is visible at the peer, whether
    /// or not the peer looks. Until then, what the caller does on another way may arrive first.
    /// After a call that returned false, the words of this end are rung when it has landed.
    fn has_landed(&self) -> bool {
        true
    }

    /// Whether more may arrive.
    fn standing(&self) -> Standing {
        Standing::Open
    }

    /// True if nothing more will arrive, and all that did is visible.
    #[inline]
    fn is_over(&self) -> bool {
        self.standing() != Standing::Open
    }

    /// Publishes the total number of bytes of the caller's stream that were sent, for observers of
    /// the lane.
    fn account(&self, _bytes_total: u64) {}
}

/// The half of a lane that wakes. The module describes the rules.
///
/// ```
/// use std::os::fd::AsFd;
/// use weft_fabric::{Attention, WaitFor, Wake};
/// # use weft_memory::CopyMode;
/// # use weft_transport_shm::lane::{LaneLayout, ShmLane};
///
/// /// Whether the caller may sleep. `has_come` looks for what it waits for.
/// fn prepare<W: Wake>(lane: &W, has_come: impl Fn() -> bool) -> bool {
///     lane.arm(WaitFor::Data);
///     lane.settle();
///     // A message from before the peer could see the word would wake nobody.
///     if !has_come() {
///         return true;
///     }
///     lane.disarm(WaitFor::Data);
///     false
/// }
///
/// # let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
/// # let (one, file) = ShmLane::create(layout, CopyMode::Plain)?;
/// # let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain)?;
/// assert!(!prepare(&two, || true), "it came meanwhile");
/// assert!(!one.must_ring(WaitFor::Data), "nobody sleeps");
/// assert!(prepare(&two, || false));
/// assert!(one.must_ring(WaitFor::Data) && !one.must_ring(WaitFor::Data), "one rings, once");
/// assert_eq!(two.attention(WaitFor::Data), Attention::Rung);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Wake {
    /// Changes the attention word from watching to armed; armed and rung stay. The peer is sure to
    /// see it only after [`Wake::settle`].
    fn arm(&self, what: WaitFor);

    /// The heavy half of the fence. One call serves any number of lanes armed before.
    fn settle(&self) {}

    /// The state of the own attention word.
    fn attention(&self, what: WaitFor) -> Attention;

    /// Changes the attention word to watching. True if it was rung. With [`Medium::Memory`] the
    /// peer did it, and its doorbell is on its way or has come.
    fn disarm(&self, what: WaitFor) -> bool;

    /// Changes the attention word from rung to armed in one step, for a word that other threads
    /// still wait on. True if it was rung. Watching and armed stay.
    fn rearm(&self, what: WaitFor) -> bool;

    /// True when the peer waits for `what`, so that [`Wake::must_ring`] would claim its word.
    /// Includes the light fence. Always false across a network.
    fn is_awaited(&self, what: WaitFor) -> bool;

    /// Call it after sending (`Data`) or returning room (`Room`). Includes the light half of the
    /// fence. True when the peer waits for `what` and the caller has claimed its word: the caller
    /// has to ring. Always false across a network, where arrivals ring.
    fn must_ring(&self, what: WaitFor) -> bool;
}

/// One end of a lane: it carries and wakes.
///
/// ```
/// use std::os::fd::AsFd;
/// use weft_fabric::{Attention, Carry, Lane, ReceiveCursor, SendCursor, WaitFor, Wake};
/// # use weft_memory::CopyMode;
/// # use weft_transport_shm::lane::{LaneLayout, ShmLane};
///
/// /// Sends one message. True if the caller has to ring the peer.
/// fn tell<L: Lane>(lane: &L, cursor: &mut SendCursor, text: &[u8]) -> bool {
///     lane.send(cursor, 7, &[text]).expect("the mailbox has room");
///     lane.must_ring(WaitFor::Data)
/// }
///
/// # let layout = LaneLayout { slots: 16, sink_bytes: 4096 };
/// # let (one, file) = ShmLane::create(layout, CopyMode::Plain)?;
/// # let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain)?;
/// // The receiver is about to sleep: it arms its word, and looks once more.
/// let (mut sent, mut taken) = (SendCursor::default(), ReceiveCursor::default());
/// two.arm(WaitFor::Data);
/// two.settle();
/// assert_eq!(two.peek(&taken), Ok(None));
///
/// assert!(tell(&one, &mut sent, b"hello"), "the receiver sleeps");
/// assert!(!tell(&one, &mut sent, b"again"), "its wakeup is on the way");
///
/// assert!(two.disarm(WaitFor::Data), "it was rung");
/// let slot = two.peek(&taken).unwrap().expect("a message");
/// let mut text = [0; 5];
/// two.read(&taken, 0, &mut text);
/// two.advance(&mut taken, true);
/// assert_eq!((slot.tag, slot.length, &text), (7, 5, b"hello"));
/// assert_eq!(two.attention(WaitFor::Data), Attention::Watching);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Lane: Carry + Wake {}

impl<L: Carry + Wake> Lane for L {}
