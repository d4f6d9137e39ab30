//! The state of the messages to and from one peer.
//!
//! Invariants: `credits` is what the peer gave and no accepted message took. `holds` plus `owed`,
//! plus the packets of messages that were not handed out, is the window. The numbers of messages
//! are consecutive in each direction, in the order of their first packet.

use std::collections::VecDeque;

use weft_fabric::{OperationError, Peer, Target};

use crate::error::Offence;
use crate::event::Ticket;
use crate::options::CREDITS_AT_FIRST;
use crate::packet::{Head, Header, Kind};
use crate::share::Share;

/// The most credits that a count may have.
const CREDITS_MAX: u32 = u16::MAX as u32;

/// A peer: messages go and come, or it broke the protocol and its packets are ignored.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "nearly all are live, and are looked up often")]
pub(crate) enum Link<R> {
    Live(Live<R>),
    Ended,
}

/// A peer to and from which messages go.
#[derive(Debug)]
pub(crate) struct Live<R> {
    pub peer: Peer,
    pub sender: Sender,
    pub receiver: Receiver<R>,
    /// The mailbox of the peer was full. Its report of room ends that.
    pub stalled: bool,
    /// The peer is in the list of those with packets to send.
    pub is_ready: bool,
    /// Operations that the endpoint had no room for.
    pub blocked: Vec<u32>,
}

/// Messages to the peer.
#[derive(Debug)]
pub(crate) struct Sender {
    pub credits: u32,
    /// The number of the next message.
    pub number: u16,
    pub outbox: VecDeque<Queued>,
    /// Packets in `outbox`.
    pub packets: u32,
    pub answers: VecDeque<(Kind, u16)>,
    pub announced: VecDeque<Announced>,
    /// Announced messages, those in `outbox` included.
    pub outstanding: u32,
    /// Packets of the message that was refused last; 0 after a report of room.
    pub wants: u16,
}

/// A message that waits to be sent.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Names it inside this crate.
    pub id: u64,
    pub context: u64,
    /// The program was told that it is pending.
    pub is_pending: bool,
    pub what: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    /// Head and body, of which so many bytes were sent.
    Bytes { head: u8, bytes: Vec<u8>, sent: usize, packets: u16 },
    /// A range of a region.
    Range { share: Share, offset: u64, length: u64, head: Head },
}

impl Content {
    /// Packets that the message takes.
    pub fn packets(&self) -> u16 {
        match self {
            Self::Bytes { packets, .. } => *packets,
            Self::Range { .. } => 1,
        }
    }
}

/// A message that was announced and has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced {
    pub number: u16,
    pub context: u64,
    pub share: Share,
    pub is_cancelled: bool,
}

/// Messages from the peer.
#[derive(Debug)]
pub(crate) struct Receiver<R> {
    pub window: u16,
    /// Credits that the peer has.
    pub holds: u32,
    /// Credits that go back with the next packet.
    pub owed: u32,
    /// Messages that arrived or were announced.
    pub arrived: u64,
    /// The message whose parts are arriving.
    pub parts: Option<Parts>,
    /// Memory of `parts`, used again.
    pub buffer: Vec<u8>,
    /// Messages that were not handed out, in order.
    pub inbox: VecDeque<Entry<R>>,
    /// The last announced messages that were answered. Each can be cancelled by a packet that
    /// crosses the answer. The peer has had the answer once as many credits as the window has came
    /// back, so the window bounds them.
    pub answered: VecDeque<u16>,
    /// The peer is in the list of those with messages to hand out.
    pub is_listed: bool,
    /// An announced message waits for memory.
    pub is_hungry: bool,
}

/// A message whose parts are arriving.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub head: u8,
    pub length: u16,
    pub packets: u16,
}

/// A message that was not handed out.
#[derive(Debug)]
pub(crate) enum Entry<R> {
    Bytes { head: u8, bytes: Vec<u8>, packets: u16 },
    Announced(Incoming<R>),
}

/// An announced message.
#[derive(Debug)]
pub(crate) struct Incoming<R> {
    pub ticket: Ticket,
    pub target: Target,
    pub length: u64,
    pub head: Head,
    pub state: OfferState<R>,
}

/// How far an announced message is.
#[derive(Debug)]
pub(crate) enum OfferState<R> {
    /// Nothing was done.
    Fresh,
    /// The program was asked.
    Asked,
    /// It shall go into memory of the messages, which is not there yet.
    Hungry,
    /// Memory for it is being registered.
    Allocating,
    /// Its get is on its way, and has the memory.
    Fetching,
    /// It is there.
    Landed(Buffer<R>),
    /// It was refused or cancelled.
    Gone,
}

/// Memory for one message.
#[derive(Debug)]
pub(crate) struct Buffer<R> {
    pub region: R,
    pub offset: u64,
    /// Bytes of the region, if it is of the pool and goes back there.
    pub pooled: Option<u64>,
}

impl<R> Live<R> {
    pub fn new(peer: Peer, window: u16) -> Self {
        let first = u32::from(CREDITS_AT_FIRST);
        Self {
            peer,
            sender: Sender {
                credits: first,
                number: 0,
                outbox: VecDeque::new(),
                packets: 0,
                answers: VecDeque::new(),
                announced: VecDeque::new(),
                outstanding: 0,
                wants: 0,
            },
            receiver: Receiver {
                window,
                holds: first,
                owed: u32::from(window) - first,
                arrived: 0,
                parts: None,
                buffer: Vec::new(),
                inbox: VecDeque::new(),
                answered: VecDeque::new(),
                is_listed: false,
                is_hungry: false,
            },
            stalled: false,
            is_ready: false,
            blocked: Vec::new(),
        }
    }

    /// The credits for the next packet.
    #[inline]
    pub fn credits_to_return(&self) -> u16 {
        u16::try_from(self.receiver.owed).expect("the window bounds what is owed")
    }

    /// A packet with these credits went.
    #[inline]
    pub fn returned(&mut self, credits: u16) {
        self.receiver.owed -= u32::from(credits);
        self.receiver.holds += u32::from(credits);
    }

    /// A header to this peer, with the credits that are owed.
    pub fn header(&self, kind: Kind, number: u16) -> Header {
        Header { kind, head: 0, credits: self.credits_to_return(), number, length: 0 }
    }

    /// True when credits are worth a packet of their own.
    #[inline]
    pub fn owes_much(&self) -> bool {
        self.receiver.owed >= u32::from(self.receiver.window / 2)
    }
}

impl Sender {
    /// Adds credits of the peer.
    #[inline]
    pub fn credit(&mut self, credits: u16) -> Result<(), Offence> {
        let sum = self.credits + u32::from(credits);
        if sum > CREDITS_MAX {
            return Err(Offence::CreditOverflow { maximum: CREDITS_MAX });
        }
        self.credits = sum;
        Ok(())
    }
}

impl<R> Receiver<R> {
    /// A packet of a message takes a credit of the peer.
    #[inline]
    pub fn take_credit(&mut self) -> Result<(), Offence> {
        self.holds = self.holds.checked_sub(1).ok_or(Offence::CreditExceeded)?;
        Ok(())
    }

    /// Checks the number of a message.
    #[inline]
    pub fn check_number(&self, number: u16) -> Result<(), Offence> {
        let expected = low_bits(self.arrived);
        if number == expected { Ok(()) } else { Err(Offence::OutOfTurn { number, expected }) }
    }

    /// The sequence of the first message in the inbox.
    pub fn first(&self) -> u64 {
        self.arrived - self.inbox.len() as u64
    }

    /// Whether the message with this sequence was not handed out yet.
    pub fn is_in_inbox(&self, sequence: u64) -> bool {
        (self.first()..self.arrived).contains(&sequence)
    }

    /// The announced message with this sequence.
    pub fn incoming(&mut self, sequence: u64) -> Option<&mut Incoming<R>> {
        let place = sequence.checked_sub(self.first())?;
        match self.inbox.get_mut(usize::try_from(place).ok()?)? {
            Entry::Announced(incoming) => Some(incoming),
            Entry::Bytes { .. } => None,
        }
    }

    /// The announced message with this number.
    pub fn by_number(&mut self, number: u16) -> Option<&mut Incoming<R>> {
        let place = number.wrapping_sub(low_bits(self.first()));
        let sequence = self.first() + u64::from(place);
        self.incoming(sequence)
    }

    /// Notes that an announced message was answered.
    pub fn note_answer(&mut self, number: u16) {
        if self.answered.len() == usize::from(self.window) {
            self.answered.pop_front();
        }
        self.answered.push_back(number);
    }

    /// A cancellation of a message that was answered crosses the answer. False if no such message
    /// was answered.
    pub fn crosses(&mut self, number: u16) -> bool {
        let place = self.answered.iter().rposition(|answered| *answered == number);
        place.and_then(|place| self.answered.remove(place)).is_some()
    }
}

/// The number of the message with this sequence.
#[inline]
pub(crate) fn low_bits(sequence: u64) -> u16 {
    let [a, b, ..] = sequence.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// Whether a get that failed says that the sender announced what it did not grant.
pub(crate) fn is_fault_of_peer(error: &OperationError) -> bool {
    matches!(
        error,
        OperationError::InvalidKey
            | OperationError::AccessDenied { .. }
            | OperationError::OutOfBounds { .. }
    )
}
