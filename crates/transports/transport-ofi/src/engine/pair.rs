//! One pair of endpoints, as one end has it: what waits to be sent, and who may send how much.
//!
//! # Invariants
//! - Messages, notifications and short puts leave in the order of their calls, and the peer handles
//!   them so. A notification of an operation keeps its place until the operation is over.
//! - What comes behind an order waits until everything before it is over.
//! - A packet that needs room at the peer leaves only when the peer has a buffer for it. A response
//!   needs none: its asker has kept one, also for each short put until the peer has handled it. A
//!   return of packets needs none either: the peer has to send half of what it may before the next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weft_fabric::{
    DownReason, EndpointAddress, Group, MessageHeader, OperationError, RemoteKey, SignalChange,
    Target,
};
use weft_libfabric::Peer as NicPeer;

use super::bulk::Bulk;
use crate::packet::{Answer, Body, Credits, Label, Range, Short, Told};

/// Buffers of a pair for packets that need no room: a greeting, a farewell, returns and answers to
/// pings.
pub(super) const SPARE: usize = 6;

/// A pair that has not ended.
#[derive(Debug)]
pub(super) struct Pair {
    pub address: EndpointAddress,
    /// The peer, as the network card knows it.
    pub to: NicPeer,
    /// The secret that both ends show in their greetings.
    pub secret: [u8; 16],
    /// How the peer labels what it sends.
    pub own: Label,
    /// How this end labels what it sends; `None` until the peer has greeted.
    pub theirs: Option<Label>,
    pub life: Life,
    pub sending: Sending,
    pub receiving: Receiving,
    pub order: Order,
    pub bulk: Bulk,
    /// The peer's keys, as far as they are known.
    pub keys: BTreeMap<RemoteKey, Known>,
    /// Keys of the peer that are void, and on which operations of this end are under way.
    pub voids: BTreeSet<RemoteKey>,
    /// When the pair was made.
    pub made: Duration,
    /// When the peer was heard last.
    pub heard: Duration,
    pub doubt: Doubt,
    /// No way leads to the peer for now: nothing leaves.
    pub apart: Option<Apart>,
    pub turn: Turn,
}

/// The parties that were asked whether a peer lives, since it was heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    Nobody,
    /// The peer.
    Peer,
    /// Its host too, last at this time: a peer that is stopped cannot answer.
    Host(Duration),
}

/// Whether a pair is looked at for something to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    None,
    /// When its turn comes.
    Next,
    /// With the next look at the NIC, which had no room.
    Card,
}

/// A time in which no way leads to a peer.
#[derive(Debug)]
pub(super) struct Apart {
    /// When it began.
    pub since: Duration,
    /// Packets that came meanwhile.
    pub packets: VecDeque<Vec<u8>>,
}

/// How long a pair goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// Both ends use it.
    Living,
    /// The peer has ended or cannot be reached. What it sent before may still come.
    Orphaned(LastWords),
    /// This end has given it up. What was accepted before still leaves, until this time.
    Parting(Duration),
}

/// The last words of a peer that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LastWords {
    /// If none come until this time, there are none any more.
    pub until: Duration,
    /// At this time it is over in any case.
    pub at_most: Duration,
    /// Why the peer is down.
    pub reason: DownReason,
    /// The NIC cannot reach it: nothing is sent any more. Else it may wait for a greeting or for
    /// room, to say its last words.
    pub is_deaf: bool,
}

/// The state of a key of the peer, as this end knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// The owner was asked. These operations wait for it, and these calls, by context.
    Asked { operations: Vec<u64>, calls: Vec<u64> },
    /// The owner has told.
    Valid(Range),
}

/// Packets that wait to be sent, and the room that there is for them.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// This end greets first.
    pub greets_first: bool,
    /// The greeting has left.
    pub greeted: bool,
    /// The number of the last packet that has left.
    pub sequence: u32,
    /// Packets that the peer has buffers for.
    pub room: usize,
    /// Messages, notifications and short puts, in order.
    pub outbox: VecDeque<Out>,
    /// Operations whose requests wait, by number.
    pub asks: VecDeque<u64>,
    /// Requests without a response.
    pub asked: usize,
    /// Requests that may be without a response.
    pub asked_max: usize,
    pub answers: VecDeque<Response>,
    /// Keys to announce as void, and keys that are released.
    pub rights: VecDeque<Body<'static>>,
    /// The farewell that leaves last, or has left.
    pub farewell: Farewell,
    /// The peer's farewell has come: nothing of its own is under way any more.
    pub peer_left: bool,
    /// The peer waits for a sign of life.
    pub pong: bool,
    /// The peer shall give one.
    pub ping: bool,
    /// Messages at the peer that its program has not taken, and how many there may be.
    pub messages: usize,
    pub messages_max: usize,
    /// The same of notifications.
    pub notifications: usize,
    pub notifications_max: usize,
    /// A call was refused since the last report of room.
    pub refused: bool,
}

/// The end of what this end sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Farewell {
    /// The pair goes on.
    #[default]
    None,
    /// It leaves behind everything else.
    Waits(DownReason),
    /// It has left. The peer answers with its own: until then the NIC must not be closed, as it
    /// may have kept something.
    Left,
}

/// An answer that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Response {
    pub number: u64,
    pub result: Result<Answer, OperationError>,
    /// It refuses the short put with this place among what was handled.
    pub short: Option<u32>,
}

/// A short put of this end.
#[derive(Debug)]
pub(super) struct ShortPut {
    pub number: u64,
    pub is_immediate: bool,
    /// It leaves behind all operations that were called for before.
    pub is_ordered: bool,
    pub target: Target,
    pub signal: Option<(u64, SignalChange)>,
    /// The class and the immediate value of its notification.
    pub notify: Option<(u8, u64)>,
    /// The caller's.
    pub context: u64,
    pub bytes: Vec<u8>,
}

impl ShortPut {
    pub fn packet(&self) -> Short<'_> {
        let notify = self.notify.map(|(class, immediate)| (class, self.context, immediate));
        let Self { number, is_immediate, target, signal, .. } = *self;
        Short { number, is_immediate, target, signal, notify, bytes: &self.bytes }
    }

    /// The part of it that is kept when it has left, as the one with this place.
    pub fn flying(&self, place: u64) -> Flying {
        let (length, notifies) = (self.bytes.len() as u64, self.notify.is_some());
        Flying { place, number: self.number, context: self.context, length, notifies }
    }
}

/// A short put that has left, until the peer has handled it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flying {
    /// Its place among all that left: see [`Order::gone`].
    pub place: u64,
    pub number: u64,
    pub context: u64,
    pub length: u64,
    pub notifies: bool,
}

/// A message, a notification or a short put that waits.
#[derive(Debug)]
pub(super) enum Out {
    Message {
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    },
    Told(Told),
    /// The notification of an operation that is not over.
    Later(u64, Told),
    Short(Box<ShortPut>),
    /// The place of a notification that will not come.
    Never,
}

/// The room of the peer here, and the part of it that has to be returned.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// Buffers that the pair has for packets and for responses.
    pub packets_max: usize,
    pub responses_max: usize,
    /// The number of the last packet that has come.
    pub sequence: u32,
    /// Messages, notifications and short puts that were handled, the low half of the number.
    pub handled: u32,
    /// Packets that the peer may send before some are returned.
    pub packets: usize,
    /// Messages and notifications that the peer may send.
    pub messages: usize,
    pub notifications: usize,
    /// Messages and notifications of former pairs with the peer that waited when this one began.
    pub former: (usize, usize),
    /// Things that have been taken, and not been returned.
    pub owed_packets: usize,
    pub owed_messages: usize,
    pub owed_notifications: usize,
}

/// The operations on the peer, and what waits for them.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Operations that are not over, by number.
    pub open: BTreeSet<u64>,
    /// Operations with lower numbers are over, or the NIC has all of them and keeps messages
    /// behind them.
    pub left: u64,
    /// Calls that wait behind an order.
    pub held: VecDeque<Held>,
    pub fences: Vec<Fence>,
    /// Messages, notifications and short puts that were called for.
    pub called: u64,
    /// Those of them that have left.
    pub gone: u64,
    /// Those of them that the peer has handled, as far as it is known.
    pub confirmed: u64,
    /// Operations wait until the peer has handled so many of them, which an order demands. Further
    /// messages and their like keep behind those by themselves.
    pub behind: u64,
    /// Short puts that the peer has not handled, as far as it is known.
    pub flying: VecDeque<Flying>,
    /// A flush is under way.
    pub flushing: bool,
}

/// Calls that wait behind an order.
#[derive(Debug)]
pub(super) enum Held {
    /// An order: operations with lower numbers come before it, and so many messages.
    Order(Fence),
    Operation(u64),
    Out(Out),
}

/// A point in the order of calls, by all that comes before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fence {
    /// Operations with lower numbers. A fence has this number itself.
    pub operation: u64,
    /// So many messages and notifications.
    pub called: u64,
}

impl Order {
    /// Whether an order or a fence waits for something.
    pub fn is_awaited(&self) -> bool {
        !self.fences.is_empty() || !self.held.is_empty()
    }
}

impl Pair {
    /// Has the pair looked at for something to send.
    pub fn take_turn(&mut self, turns: &mut VecDeque<u32>) {
        if self.turn == Turn::None {
            self.turn = Turn::Next;
            turns.push_back(self.own.number);
        }
    }

    /// Whether a key of the peer is in force, as far as it is known.
    pub fn has_in_force(&self, key: RemoteKey) -> bool {
        matches!(self.keys.get(&key), Some(Known::Valid(_)))
    }

    /// Whether packets that come are kept, since no way leads to the peer.
    pub fn keeps_apart(&self) -> bool {
        self.apart.is_some() && self.life == Life::Living
    }

    /// Gives up all that has not left.
    pub fn drop_unsent(&mut self) {
        self.order = Order::default();
        self.sending.outbox.clear();
        self.sending.asks.clear();
        self.sending.answers.clear();
        self.sending.rights.clear();
    }

    /// Whether a message that is called for now is the next to leave, as far as the NIC has room.
    pub fn is_clear(&self) -> bool {
        let sending = &self.sending;
        let nothing_waits = sending.outbox.is_empty()
            && sending.answers.is_empty()
            && sending.rights.is_empty()
            && !self.order.is_awaited();
        nothing_waits
            && self.life == Life::Living
            && self.apart.is_none()
            && sending.greeted
            && self.theirs.is_some()
            && sending.room > 0
    }

    /// Adds a message, a notification or a short put behind what was called before.
    pub fn post(&mut self, out: Out) {
        self.order.called += 1;
        if self.order.held.is_empty() {
            self.sending.outbox.push_back(out);
        } else {
            self.order.held.push_back(Held::Out(out));
        }
    }

    /// An operation is over: its notification may leave, if it ended well, or never will.
    pub fn settle(&mut self, operation: u64, is_good: bool) {
        let held = self.order.held.iter_mut().filter_map(|held| match held {
            Held::Out(out) => Some(out),
            Held::Order(_) | Held::Operation(_) => None,
        });
        for out in self.sending.outbox.iter_mut().chain(held) {
            if let Out::Later(number, told) = out
                && *number == operation
            {
                *out = if is_good { Out::Told(*told) } else { Out::Never };
                return;
            }
        }
    }

    /// The credits for the head of the next packet.
    pub fn credits(&mut self) -> Credits {
        let receiving = &mut self.receiving;
        let packets = u8::try_from(receiving.owed_packets).unwrap_or(u8::MAX);
        let half = |owed: usize| u16::try_from(owed).unwrap_or(u16::MAX);
        let messages = half(receiving.owed_messages);
        let notifications = half(receiving.owed_notifications);
        receiving.owed_packets -= usize::from(packets);
        receiving.packets += usize::from(packets);
        receiving.owed_messages -= usize::from(messages);
        receiving.messages += usize::from(messages);
        receiving.owed_notifications -= usize::from(notifications);
        receiving.notifications += usize::from(notifications);
        Credits { packets, messages, notifications }
    }

    /// A packet with these did not leave.
    pub fn take_back(&mut self, credits: Credits) {
        let receiving = &mut self.receiving;
        receiving.owed_packets += usize::from(credits.packets);
        receiving.packets -= usize::from(credits.packets);
        receiving.owed_messages += usize::from(credits.messages);
        receiving.messages -= usize::from(credits.messages);
        receiving.owed_notifications += usize::from(credits.notifications);
        receiving.notifications -= usize::from(credits.notifications);
    }

    /// The peer was heard.
    pub fn hear(&mut self, now: Duration) {
        (self.heard, self.doubt) = (now, Doubt::Nobody);
    }

    /// Takes what the peer returned. `None` if it returned more than it had.
    pub fn returned(&mut self, credits: Credits) -> Option<()> {
        let sending = &mut self.sending;
        sending.room += usize::from(credits.packets);
        sending.messages = sending.messages.checked_sub(credits.messages.into())?;
        sending.notifications = sending.notifications.checked_sub(credits.notifications.into())?;
        Some(())
    }

    /// Whether so many packets are owed that the peer has to be told without another packet.
    pub fn owes_packets(&self) -> bool {
        self.receiving.owed_packets >= (self.receiving.packets_max / 2).max(1)
    }

    /// Whether the program has taken something that the peer was not told of.
    pub fn owes_room(&self) -> bool {
        self.receiving.owed_messages + self.receiving.owed_notifications > 0
    }

    /// Whether a short put may leave. A response buffer is kept for each until the peer has handled
    /// it, and one more for the question whether it has.
    pub fn may_fly(&self) -> bool {
        self.sending.asked + self.order.flying.len() + 1 < self.sending.asked_max
    }

    /// Whether nothing that was called for is on its way or waits.
    pub fn is_idle(&self) -> bool {
        let order = &self.order;
        order.open.is_empty() && order.held.is_empty() && order.confirmed == order.called
    }

    /// Whether the operations before the point are over.
    pub fn are_operations_over(&self, point: Fence) -> bool {
        self.order.open.first().is_none_or(|first| *first >= point.operation)
    }

    /// Whether everything before the point is over at this end. The peer's word that it has
    /// handled the messages may be missing.
    pub fn is_over(&self, point: Fence) -> bool {
        self.are_operations_over(point) && self.order.gone >= point.called
    }

    /// The number for the head of the next packet of what was handled. A short put that was refused
    /// is not among them before its answer has left.
    pub fn handled(&self) -> u32 {
        let refused = self.sending.answers.iter().find_map(|answer| answer.short);
        refused.map_or(self.receiving.handled, |place| place.wrapping_sub(1))
    }

    /// The number in full of what the peer has handled, from the head of a packet. `None` if that
    /// is more than has left.
    pub fn confirmed_by(&self, handled: u32) -> Option<u64> {
        let low = u32::try_from(self.order.confirmed & u64::from(u32::MAX)).unwrap_or(0);
        let ahead = handled.wrapping_sub(low);
        // Behind an answer that has said more already.
        if ahead > u32::MAX / 2 {
            return Some(self.order.confirmed);
        }
        let confirmed = self.order.confirmed + u64::from(ahead);
        (confirmed <= self.order.gone).then_some(confirmed)
    }
}
