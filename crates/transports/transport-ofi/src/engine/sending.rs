//! Sending: packets of each pair in turn, and pieces of operations.

use weft_fabric::{DownReason, Peer, Register};
use weft_libfabric::Refused;

use super::operations::Reply;
use super::pair::{Farewell, Life, Out, Pair, Turn};
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::{Body, Greeting, Label, Packet, Request};

/// The fate of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It has left.
    Yes,
    /// The NIC has no room.
    Busy,
    /// The peer cannot be reached.
    Lost,
}

impl<N: Nic> Engine<N> {
    /// Sends whatever can be sent. Room of the NIC goes to packets first: among them are signs of
    /// life, and pieces would take all of it again and again.
    pub(super) fn send_all(&mut self) {
        for place in 0..self.busy.len() {
            let handle = self.busy[place];
            if let Some(pair) = self.pair_mut(handle) {
                pair.turn = Turn::None;
                self.give_turn(handle);
            }
        }
        self.busy.clear();
        self.take_turns();
        if !self.stalled.is_empty() {
            self.move_stalled();
            self.take_turns();
        }
    }

    /// A pair may have something to send.
    pub(super) fn give_turn(&mut self, handle: u32) {
        let place = usize::try_from(handle).ok();
        if let Some(super::Slot::Used(pair)) = place.and_then(|place| self.pairs.get_mut(place)) {
            pair.take_turn(&mut self.turns);
        }
    }

    fn take_turns(&mut self) {
        while let Some(handle) = self.turns.pop_front() {
            if let Some(pair) = self.pair_mut(handle).filter(|pair| pair.turn == Turn::Next) {
                pair.turn = Turn::None;
                self.send(handle);
            }
        }
    }

    /// Whether something waits until the NIC has room, of which it does not tell.
    pub(crate) fn waits_for_the_card(&self) -> bool {
        !self.busy.is_empty() || !self.stalled.is_empty()
    }

    /// Sends what waits for a peer, as far as there is room.
    pub(super) fn send(&mut self, handle: u32) {
        self.look_at_order(handle);
        match self.send_some(handle) {
            Some(Sent::Busy) => {
                if let Some(pair) = self.pair_mut(handle)
                    && std::mem::replace(&mut pair.turn, Turn::Card) != Turn::Card
                {
                    self.busy.push(handle);
                }
            }
            Some(Sent::Lost) => self.orphan(handle, DownReason::Unreachable),
            Some(Sent::Yes) | None => {}
        }
    }

    /// Sends until nothing can be sent. `None` if there is no such pair any more.
    fn send_some(&mut self, handle: u32) -> Option<Sent> {
        let pair = self.pair_mut(handle)?;
        if matches!(pair.life, Life::Orphaned(words) if words.is_deaf) {
            return None;
        }
        if pair.apart.is_some() || !pair.sending.greets_first && pair.theirs.is_none() {
            return Some(Sent::Yes);
        }
        if !pair.sending.greeted {
            let greeting = greeting(pair);
            let sent = self.transmit(handle, Body::Greeting(greeting))?;
            if sent != Sent::Yes {
                return Some(sent);
            }
            self.pair_mut(handle)?.sending.greeted = true;
        }
        if self.pair_mut(handle)?.theirs.is_none() {
            return Some(Sent::Yes);
        }
        loop {
            let step = self.send_next(handle)?;
            if step != Some(Sent::Yes) {
                // Without a packet that carries what is owed, it needs one of its own.
                return match step {
                    None => self.send_debts(handle),
                    sent => sent,
                };
            }
        }
    }

    /// Sends one packet. The inner `None` says that there is none that can leave.
    fn send_next(&mut self, handle: u32) -> Option<Option<Sent>> {
        let pair = self.pair_mut(handle)?;
        if let Some(answer) = pair.sending.answers.pop_front() {
            let body = Body::Response(answer.number, answer.result.clone());
            let sent = self.transmit(handle, body)?;
            let pair = self.pair_mut(handle)?;
            if sent == Sent::Yes {
                pair.receiving.owed_packets += 1;
            } else {
                pair.sending.answers.push_front(answer);
            }
            return Some(Some(sent));
        }
        if pair.sending.room > 0 {
            if let Some(body) = pair.sending.rights.pop_front() {
                let is_release = matches!(body, Body::Released(_));
                let sent = self.transmit(handle, body.clone())?;
                let pair = self.pair_mut(handle)?;
                match sent {
                    Sent::Yes => {
                        pair.sending.room -= 1;
                        // The announcement of the key is returned with its answer.
                        pair.receiving.owed_packets += usize::from(is_release);
                    }
                    Sent::Busy | Sent::Lost => pair.sending.rights.push_front(body),
                }
                return Some(Some(sent));
            }
            let waits = match pair.sending.outbox.front() {
                None | Some(Out::Later(..)) => true,
                Some(Out::Short(_)) if !pair.may_fly() => {
                    if !std::mem::replace(&mut pair.order.flushing, true) {
                        self.ask(handle, Request::Flush, Reply::Flush);
                    }
                    true
                }
                Some(Out::Short(short)) if short.is_ordered => {
                    let number = short.number;
                    !self.has_left_before(handle, number)
                }
                Some(Out::Short(_) | Out::Message { .. } | Out::Told(_) | Out::Never) => false,
            };
            if !waits {
                return self.send_front(handle).map(Some);
            }
            let pair = self.pair_mut(handle)?;
            let asks_now = pair.sending.asked + pair.order.flying.len() < pair.sending.asked_max;
            if asks_now && let Some(number) = pair.sending.asks.pop_front() {
                return self.send_request(handle, number).map(Some);
            }
        }
        let pair = self.pair_mut(handle)?;
        if pair.sending.outbox.is_empty()
            && let Farewell::Waits(reason) = pair.sending.farewell
            && !self.is_moving(handle)
        {
            let sent = self.transmit(handle, Body::Farewell(reason))?;
            let pair = self.pair_mut(handle)?;
            if sent == Sent::Yes {
                pair.sending.farewell = Farewell::Left;
                if pair.sending.peer_left {
                    self.forget(handle);
                    return None;
                }
            }
            return Some(Some(sent));
        }
        Some(None)
    }

    /// Sends the first message, notification or short put.
    fn send_front(&mut self, handle: u32) -> Option<Sent> {
        let out = self.pair_mut(handle)?.sending.outbox.pop_front()?;
        let sent = match &out {
            Out::Message { header, group, payload } => {
                let (header, group) = (*header, *group);
                self.transmit(handle, Body::Message { header, group, payload })?
            }
            Out::Told(told) => self.transmit(handle, Body::Told(*told))?,
            Out::Short(short) => self.transmit(handle, Body::Short(short.packet()))?,
            Out::Never => self.transmit(handle, Body::Never)?,
            Out::Later(..) => return Some(Sent::Yes),
        };
        let pair = self.pair_mut(handle)?;
        if sent == Sent::Yes {
            pair.sending.room -= 1;
            pair.order.gone += 1;
            let notifies = match &out {
                Out::Told(_) => true,
                Out::Short(short) => {
                    pair.order.flying.push_back(short.flying(pair.order.gone));
                    short.notify.is_some()
                }
                _ => false,
            };
            if pair.order.is_awaited() {
                self.give_turn(handle);
            }
            if notifies {
                self.count(Register::NotificationsSent, 1);
            }
        } else {
            pair.sending.outbox.push_front(out);
        }
        Some(sent)
    }

    fn send_request(&mut self, handle: u32, number: u64) -> Option<Sent> {
        let request = self.operations.get(&number).and_then(|operation| operation.request());
        // It has ended meanwhile.
        let Some(request) = request else { return Some(Sent::Yes) };
        let sent = self.transmit(handle, Body::Request(number, request))?;
        let pair = self.pair_mut(handle)?;
        if sent == Sent::Yes {
            pair.sending.room -= 1;
            pair.sending.asked += 1;
            let gone = pair.order.gone;
            if let Some(operation) = self.operations.get_mut(&number) {
                operation.asked(gone);
            }
        } else {
            pair.sending.asks.push_front(number);
        }
        Some(sent)
    }

    /// Sends what is owed, if nothing carried it.
    fn send_debts(&mut self, handle: u32) -> Option<Sent> {
        let pair = self.pair_mut(handle)?;
        let body = if pair.sending.ping {
            pair.sending.ping = false;
            Body::Ping
        } else if pair.owes_packets() || pair.sending.pong {
            Body::Credit(false)
        } else if pair.owes_room() && pair.sending.room > 0 {
            pair.sending.room -= 1;
            Body::Credit(true)
        } else {
            return Some(Sent::Yes);
        };
        let was_asked = std::mem::take(&mut pair.sending.pong);
        let (took_room, is_ping) = (body == Body::Credit(true), body == Body::Ping);
        let sent = self.transmit(handle, body)?;
        if sent != Sent::Yes {
            let sending = &mut self.pair_mut(handle)?.sending;
            sending.room += usize::from(took_room);
            sending.ping |= is_ping;
            sending.pong |= was_asked;
        }
        Some(sent)
    }

    /// See [`OfiEndpoint::knock`](crate::OfiEndpoint::knock).
    pub(crate) fn knock(&mut self, peer: Peer) {
        let Some(pair) = self.pair_mut(peer.0).filter(|pair| pair.is_clear()) else { return };
        pair.sending.room -= 1;
        if !self.transmitted(peer.0, Body::Credit(true))
            && let Some(pair) = self.pair_mut(peer.0)
        {
            pair.sending.room += 1;
        }
    }

    /// Ends a pair because of what the peer sent, or because something of it is missing.
    pub(super) fn expel(&mut self, handle: u32, reason: DownReason) {
        let _ = self.transmit(handle, Body::Farewell(reason));
        self.report_down(handle, reason);
    }

    /// Hands a packet to the NIC. False if it has not left.
    pub(super) fn transmitted(&mut self, handle: u32, body: Body<'_>) -> bool {
        self.transmit(handle, body) == Some(Sent::Yes)
    }

    /// Hands a packet to the NIC. `None` if there is no such pair.
    fn transmit(&mut self, handle: u32, body: Body<'_>) -> Option<Sent> {
        let super::Slot::Used(pair) = self.pairs.get_mut(usize::try_from(handle).ok()?)? else {
            return None;
        };
        let credits = pair.credits();
        let label = pair.theirs.unwrap_or(Label { number: u32::MAX, check: 0 });
        let is_counted = !matches!(body, Body::Greeting(_));
        let sequence = pair.sending.sequence.wrapping_add(1);
        let handled = pair.handled();
        self.leaving.clear();
        Packet { label, credits, sequence, handled, body }.emit(&mut self.leaving);
        Some(match self.nic.send(pair.to, &self.leaving) {
            Ok(()) => {
                if is_counted {
                    pair.sending.sequence = sequence;
                }
                Sent::Yes
            }
            Err(refused) => {
                pair.take_back(credits);
                if refused == Refused::Busy { Sent::Busy } else { Sent::Lost }
            }
        })
    }

    /// The peer has more room: tells a program that was refused.
    pub(super) fn tell_room(&mut self, handle: u32) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if pair.life == Life::Living && std::mem::take(&mut pair.sending.refused) {
            self.events.push_back(Queued::Room(Peer(handle)));
        }
        self.tell_group_room();
    }
}

fn greeting(pair: &Pair) -> Greeting {
    let half = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    Greeting {
        secret: pair.secret,
        label: pair.own,
        packets: half(pair.receiving.packets_max),
        messages: half(pair.receiving.former.0),
        notifications: half(pair.receiving.former.1),
    }
}
