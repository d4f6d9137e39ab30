//! Hands the steps and messages of a lane to the endpoint.
//!
//! Invariant: what a peer must not see before something else is ordered behind it.

use weft_fabric::{
    Endpoint, Issued, Notify, Operation, OperationError, Signal, SignalChange, Source, Target,
};

use crate::layout::{BYTES_TAKEN, Layout, MESSAGES_TAKEN, STATUS_BYTES, WORDS};
use crate::outgoing::{Outgoing, Step};
use crate::table::{LaneNumber, Remote};

/// Classes of notifications: which words they ring.
pub(crate) mod class {
    pub const DATA: u8 = 1;
    pub const ROOM: u8 = 2;
    pub const BOTH: u8 = 3;
}

/// Kinds of calls, in the upper half of their contexts. The lower half is the lane.
pub(crate) mod call {
    pub const GRANT: u64 = 1;
    pub const REVOKE: u64 = 2;
    pub const FENCE: u64 = 3;
    pub const TRANSFER: u64 = 4;
    /// Behind it the peer has heard of the end of a lane.
    pub const CLOSE: u64 = 5;
    /// Of no lane.
    pub const FENCE_ALL: u64 = 6;
}

pub(crate) const fn context(call: u64, number: LaneNumber) -> u64 {
    call << 32 | number.0 as u64
}

/// The result of handing something to the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handed {
    Taken,
    NoRoom,
    Failed,
}

impl Handed {
    fn of(result: &Result<Issued, OperationError>) -> Self {
        match result {
            Ok(_) => Self::Taken,
            Err(OperationError::WouldBlock) => Self::NoRoom,
            Err(_) => Self::Failed,
        }
    }
}

/// Hands a step to the endpoint. `number` is the own number of the lane.
pub(crate) fn hand_step<E: Endpoint>(
    endpoint: &mut E,
    is_ordered: bool,
    out: &mut Outgoing,
    number: LaneNumber,
    step: Step,
) -> Handed {
    let Remote { peer, key, number: peers_number, .. } = out.remote;
    let mut ordered = !is_ordered && out.needs_order(step);
    if ordered && matches!(step, Step::Put { .. }) {
        // Bytes of former puts may be under way to the places of all of its pieces.
        if endpoint.order(peer).is_err() {
            return Handed::Failed;
        }
        out.ordered();
        ordered = false;
    }
    let quiet = Operation { ordered, ..Operation::new(context(call::TRANSFER, number)).quiet() };
    let rings = |class: u8| {
        let notify = Notify::COMPLETER.class(class).immediate(u64::from(peers_number.0));
        quiet.notify(notify)
    };
    let (value, offset, operation) = match step {
        Step::Put { at, length, offset } => {
            let source = Source::Bytes(out.bytes(at, length));
            let result = endpoint.put(peer, source, Target::new(key, offset), quiet);
            return Handed::of(&result);
        }
        Step::Post { word, value } => {
            assert!(word < WORDS, "there are {WORDS} control words");
            (value, Layout::word(word), rings(class::BOTH))
        }
        Step::MessagesTaken { count, rings: true } => (count, MESSAGES_TAKEN, rings(class::ROOM)),
        Step::MessagesTaken { count, rings: false } => (count, MESSAGES_TAKEN, quiet),
        Step::BytesTaken { count } => (count, BYTES_TAKEN, rings(class::ROOM)),
    };
    Handed::of(&endpoint.put_immediate(peer, value, 8, Target::new(key, offset), operation))
}

/// A message, at its number in the lane with the own number `number`.
pub(crate) struct Sent<'a> {
    pub number: LaneNumber,
    pub message: u64,
    pub tag: u8,
    pub parts: &'a [&'a [u8]],
}

/// Hands a message to the endpoint: the payload, and behind it the status word.
pub(crate) fn hand_message<E: Endpoint>(
    endpoint: &mut E,
    is_ordered: bool,
    out: &mut Outgoing,
    sent: Sent<'_>,
) -> Handed {
    let Sent { number: own_number, message, tag, parts } = sent;
    let Remote { peer, key, number, layout } = out.remote;
    // Messages need no order among themselves: the receiver looks at their slots one by one.
    let ordered = !is_ordered && out.has_puts();
    let slot = layout.slot(message);
    let (payload, status) = out.gather(message, tag, parts);
    let signal = Signal { target: Target::new(key, slot), change: SignalChange::Set(status) };
    let notify = Notify::COMPLETER.class(class::DATA).immediate(u64::from(number.0));
    let quiet = Operation::new(context(call::TRANSFER, own_number)).quiet();
    let operation = Operation { ordered, ..quiet.notify(notify) };
    let target = Target::new(key, slot + STATUS_BYTES);
    let result = endpoint.put_signal(peer, Source::Bytes(payload), target, signal, operation);
    let handed = Handed::of(&result);
    if handed == Handed::Taken {
        out.sent(message, status);
    }
    handed
}
