//! Short puts: bytes, a signal and a notification in one packet, where the usual way is a write of
//! the NIC, its end, a request, its answer and a notification.
//!
//! A put goes so if its good end is not reported, its bytes are given by the call, and its key is
//! known. The target writes it and says nothing, but for the number of what it has handled in the
//! head of whatever it sends. It answers a put that it refuses.
//!
//! # Invariants
//! - A short put keeps its place among messages and notifications, so it needs no order behind
//!   them, nor they behind it. An ordered one waits there for the operations before it, and what
//!   is behind it waits, too.
//! - It holds a place among `Capabilities::operations_max` until the peer has handled it.

use weft_fabric::{
    Command, Completion, Operation as Asked, OperationError, Peer, Register, Report, Source,
    Target, Timed, Value,
};

use super::operations::Reply;
use super::pair::{Held, Known, Out, ShortPut};
use super::wanted::Wanted;
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::{BODY_BYTES, Range, Request};

impl<N: Nic> Engine<N> {
    /// The short put that a call can be, without its number. `None` if it goes the usual way, also
    /// with its errors.
    pub(super) fn short_of(
        &self,
        handle: u32,
        wanted: &Wanted<'_>,
        asked: Asked,
        reply: Reply,
    ) -> Option<ShortPut> {
        let Asked { context, notify, report, ordered: is_ordered, .. } = asked;
        if report != Report::Errors || reply != Reply::Event || notify.requester() {
            return None;
        }
        let (target, bytes, signal, is_immediate) = match wanted {
            Wanted::Put(ranges, signal) => match ranges[..] {
                [(Source::Bytes(bytes), target)] if bytes.len() <= BODY_BYTES => {
                    (target, bytes.to_vec(), *signal, false)
                }
                _ => return None,
            },
            Wanted::Ask(
                Some(Command::ImmediatePut),
                Request::Store { target, value, length, .. },
                _,
            ) => {
                let bytes = value.to_le_bytes().get(..usize::from(*length))?.to_vec();
                (*target, bytes, None, true)
            }
            _ => return None,
        };
        let Known::Valid(range) = self.pair(Peer(handle)).ok()?.keys.get(&target.key)? else {
            return None;
        };
        let command = if is_immediate { Command::ImmediatePut } else { Command::Put };
        let length = bytes.len() as u64;
        range
            .access
            .check((command, command.access()), (target.offset, length), range.length)
            .ok()?;
        let signal = match signal {
            Some(signal) if signal.target.key != target.key => return None,
            Some(signal) => {
                let Target { offset, .. } = signal.target;
                range
                    .access
                    .check((command, signal.change.access()), (offset, 8), range.length)
                    .ok()?;
                is_aligned(range, offset).then_some(())?;
                Some((offset, signal.change))
            }
            None => None,
        };
        let notify = notify.completer().then_some((notify.class, notify.immediate));
        let number = 0;
        Some(ShortPut { number, is_immediate, is_ordered, target, signal, notify, context, bytes })
    }

    /// Sends a short put, behind everything that was called for before.
    pub(super) fn issue_short(
        &mut self,
        handle: u32,
        mut short: ShortPut,
    ) -> Result<u64, OperationError> {
        if self.places >= self.capabilities.operations_max {
            self.starved.insert(handle);
            return Err(OperationError::WouldBlock);
        }
        if short.notify.is_some() {
            self.take_notification_room(handle)?;
        }
        self.places += 1;
        self.count(Register::Puts, 1);
        let number = self.next_number();
        self.time(number, Timed::Put);
        short.number = number;
        if let Some(pair) = self.pair_mut(handle) {
            pair.post(Out::Short(Box::new(short)));
        }
        self.send(handle);
        Ok(number)
    }

    /// The head of a packet says how much the peer has handled.
    pub(super) fn confirm_by(&mut self, handle: u32, handled: u32) {
        let Some(pair) = self.pair_mut(handle) else { return };
        match pair.confirmed_by(handled) {
            Some(confirmed) if confirmed > pair.order.confirmed => {
                self.confirm(handle, confirmed);
                self.give_turn(handle);
            }
            Some(_) => {}
            None => self.expel(handle, weft_fabric::DownReason::Misbehaved),
        }
    }

    /// The peer has handled so many of the messages, notifications and short puts.
    pub(super) fn confirm(&mut self, handle: u32, confirmed: u64) {
        let Some(pair) = self.pair_mut(handle) else { return };
        pair.order.confirmed = pair.order.confirmed.max(confirmed);
        while let Some(pair) = self.pair_mut(handle)
            && let Some(put) = pair.order.flying.pop_front_if(|put| put.place <= confirmed)
        {
            self.count(Register::PutBytes, put.length);
            self.timed(put.number, true);
            self.free_place();
        }
    }

    /// The peer has refused a short put. False if there is none with this number.
    pub(super) fn refuse_short(
        &mut self,
        handle: u32,
        number: u64,
        error: &OperationError,
    ) -> bool {
        let Some(pair) = self.pair_mut(handle) else { return false };
        let flying = &mut pair.order.flying;
        let Some(place) = flying.iter().position(|put| put.number == number) else {
            return false;
        };
        if let Some(put) = flying.remove(place) {
            let result = Err(error.clone());
            self.fail_short(put.context, result);
            if put.notifies
                && let Some(pair) = self.pair_mut(handle)
            {
                pair.sending.notifications = pair.sending.notifications.saturating_sub(1);
                self.tell_room(handle);
            }
        }
        self.give_turn(handle);
        true
    }

    /// Ends all short puts to a peer that is down.
    pub(super) fn end_short_puts(&mut self, handle: u32) {
        let Some(pair) = self.pair_mut(handle) else { return };
        let mut contexts: Vec<u64> =
            std::mem::take(&mut pair.order.flying).iter().map(|put| put.context).collect();
        let is_short = |out: &Out| matches!(out, Out::Short(_));
        let held = std::mem::take(&mut pair.order.held);
        let outbox = std::mem::take(&mut pair.sending.outbox);
        for out in &outbox {
            contexts.extend(context_of(out));
        }
        pair.sending.outbox = outbox.into_iter().filter(|out| !is_short(out)).collect();
        for one in held {
            match one {
                Held::Out(out) if is_short(&out) => contexts.extend(context_of(&out)),
                one => pair.order.held.push_back(one),
            }
        }
        for context in contexts {
            self.fail_short(context, Err(OperationError::PeerDown));
        }
    }

    /// Reports the end of a short put, which holds its place until the program takes it.
    fn fail_short(&mut self, context: u64, result: Result<Value, OperationError>) {
        self.count(Register::Errors, 1);
        self.registers.forget_time();
        self.events.push_back(Queued::Completion(Completion { context, result }));
    }
}

fn context_of(out: &Out) -> Option<u64> {
    match out {
        Out::Short(short) => Some(short.context),
        Out::Message { .. } | Out::Told(_) | Out::Later(..) | Out::Never => None,
    }
}

/// Whether a word at this offset of a range is one in the owner's memory.
pub(super) fn is_aligned(range: &Range, offset: u64) -> bool {
    offset.wrapping_add(range.skew.into()).is_multiple_of(8)
}
