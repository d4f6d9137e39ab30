//! The pairs of an endpoint: how they are made, and how they end.

use std::time::Duration;

use weft_fabric::{ConnectError, DownReason, EndpointAddress, OperationError, Peer, Register};
use weft_libfabric::Peer as NicPeer;

use super::pair::{
    Doubt, Farewell, Held, LastWords, Life, Order, Out, Pair, Receiving, SPARE, Sending, Turn,
};
use super::{Engine, Queued, STRANGERS_MAX, Slot};
use crate::meeting::Introduction;
use crate::nic::Nic;
use crate::packet::{Greeting, Label};

/// How long the last words of a peer that has ended may take.
pub(super) const LAST_WORDS_WITHIN: Duration = Duration::from_millis(100);
/// The same where the pair is younger than that: providers may take as long for a connection.
const YOUNG_FOR: Duration = Duration::from_secs(1);
/// How long what was accepted may take to leave when a pair or an endpoint is given up.
const PARTING_WITHIN: Duration = Duration::from_secs(2);
/// Packets of one pair that may be under way at most, each way; and responses.
const WINDOW_MAX: usize = 64;
/// The same at least.
const WINDOW_MIN: usize = 2;
/// Notifications of one peer that may wait.
pub(super) const NOTIFICATIONS_MAX: usize = 256;

impl<N: Nic> Engine<N> {
    /// The handle for a peer that the directory has introduced.
    pub(crate) fn introduce(&mut self, of: &Introduction) -> Result<u32, ConnectError> {
        if let Some(handle) = self.living.get(&of.address).copied() {
            if self.pair_mut(handle).is_some_and(|pair| pair.secret == of.secret) {
                return Ok(handle);
            }
            // The peer has given the former pair up, or is another one by now.
            // Its farewell comes later than the directory's word.
            self.part(handle, DownReason::Disconnected);
        }
        let maximum = self.capabilities.peers_max;
        if self.peers() >= maximum {
            return Err(ConnectError::Exhausted { maximum });
        }
        let to = self.nic.insert(&of.name).map_err(|error| ConnectError::Provider {
            reason: format!("it does not take the peer's name: {error}"),
        })?;
        let handle = u32::try_from(self.pairs.len()).unwrap_or(u32::MAX);
        let check = u32::try_from(self.nic.random() & u64::from(u32::MAX)).unwrap_or(0);
        let own = Label { number: handle, check };
        let now = self.now();
        let depth = of.mailbox_depth.min(self.capabilities.mailbox_depth);
        let (messages, notifications) = self.waiting_from(of.address);
        let (packets, responses) = self.window();
        let sending = Sending {
            greets_first: of.greets_first,
            asked_max: responses,
            messages_max: depth,
            notifications_max: NOTIFICATIONS_MAX,
            ..Sending::default()
        };
        let receiving = Receiving {
            packets_max: packets,
            responses_max: responses,
            packets,
            // Messages that wait of a former pair are credited to this one; the peer counts them.
            messages: depth + messages,
            notifications: NOTIFICATIONS_MAX + notifications,
            former: (messages, notifications),
            ..Receiving::default()
        };
        let pair = Pair {
            address: of.address,
            to,
            secret: of.secret,
            own,
            theirs: None,
            life: Life::Living,
            sending,
            receiving,
            order: Order::default(),
            bulk: Default::default(),
            keys: Default::default(),
            voids: Default::default(),
            made: now,
            heard: now,
            doubt: Doubt::Nobody,
            apart: None,
            turn: Turn::None,
        };
        self.pairs.push(Slot::Used(Box::new(pair)));
        self.living.insert(of.address, handle);
        let waits = self.strangers.iter().position(|(greeting, _)| greeting.secret == of.secret);
        if let Some((greeting, _)) = waits.and_then(|place| self.strangers.remove(place)) {
            self.greeted(greeting);
        }
        self.give_turn(handle);
        self.send(handle);
        Ok(handle)
    }

    /// Buffers for a new pair, for packets and for responses: a share of those that are left.
    fn window(&mut self) -> (usize, usize) {
        let share = (self.buffers / 4).saturating_sub(SPARE) / 2;
        let window = share.clamp(WINDOW_MIN, WINDOW_MAX);
        self.buffers = self.buffers.saturating_sub(2 * window + SPARE);
        (window, window)
    }

    /// A peer greets.
    pub(super) fn greeted(&mut self, greeting: Greeting) {
        let now = self.now();
        let is_it = |slot: &Slot| match slot {
            Slot::Used(pair) => pair.secret == greeting.secret && pair.theirs.is_none(),
            Slot::Ended(_) => false,
        };
        let Some(place) = self.pairs.iter().position(is_it) else {
            // The directory may announce it later.
            if self.strangers.len() >= STRANGERS_MAX {
                self.strangers.pop_front();
            }
            return self.strangers.push_back((greeting, now));
        };
        let Slot::Used(pair) = &mut self.pairs[place] else { return };
        pair.hear(now);
        pair.theirs = Some(greeting.label);
        pair.sending.room = greeting.packets.into();
        pair.sending.messages += usize::from(greeting.messages);
        pair.sending.notifications += usize::from(greeting.notifications);
        let handle = pair.own.number;
        self.give_turn(handle);
        self.send(handle);
    }

    /// The directory says that the endpoint at this address has ended.
    pub(crate) fn peer_ended(&mut self, address: EndpointAddress, secret: [u8; 16]) {
        if let Some(handle) = self.living.get(&address).copied()
            && self.pair_mut(handle).is_some_and(|pair| pair.secret == secret)
        {
            self.orphan(handle, DownReason::Ended);
        }
    }

    /// The host of a peer says that it is stopped: it is silent and not gone.
    pub(crate) fn peer_stands(&mut self, address: EndpointAddress) {
        let now = self.now();
        let Some(handle) = self.living.get(&address).copied() else { return };
        if let Some(pair) = self.pair_mut(handle)
            && matches!(pair.doubt, Doubt::Host(_))
        {
            (pair.heard, pair.doubt) = (now, Doubt::Peer);
        }
    }

    /// The NIC cannot reach a peer.
    pub(super) fn lose(&mut self, to: NicPeer) {
        let is_it = |slot: &&Slot| matches!(slot, Slot::Used(pair) if pair.to == to);
        if let Some(Slot::Used(pair)) = self.pairs.iter().find(is_it) {
            let handle = pair.own.number;
            self.orphan(handle, DownReason::Unreachable);
        }
    }

    /// A peer is gone. Its last words may still come.
    pub(super) fn orphan(&mut self, handle: u32, reason: DownReason) {
        let now = self.now();
        let Some(pair) = self.pair_mut(handle) else { return };
        let keeps = pair.keeps_apart();
        match &mut pair.life {
            Life::Living => {
                let is_young = now.saturating_sub(pair.made) < YOUNG_FOR;
                let until = now + if is_young { YOUNG_FOR } else { LAST_WORDS_WITHIN };
                let at_most = now + PARTING_WITHIN;
                let is_deaf = reason == DownReason::Unreachable;
                pair.life = Life::Orphaned(LastWords { until, at_most, reason, is_deaf });
            }
            // The directory's word says more than the NIC's.
            Life::Orphaned(words) if reason == DownReason::Ended => words.reason = reason,
            Life::Orphaned(words) => words.is_deaf = true,
            Life::Parting(_) => self.forget(handle),
        }
        if keeps {
            self.take_kept(handle);
        }
    }

    /// Ends the pair with a peer at the program's wish. What was accepted still leaves.
    pub(crate) fn disconnect(&mut self, peer: Peer) -> Result<EndpointAddress, OperationError> {
        let address = self.pair(peer).map(|pair| pair.address)?;
        self.part(peer.0, DownReason::Disconnected);
        Ok(address)
    }

    /// Ends all pairs because the endpoint is closed.
    pub(crate) fn close(&mut self) {
        for handle in self.living.values().copied().collect::<Vec<_>>() {
            self.part(handle, DownReason::Ended);
        }
        self.progress();
    }

    fn part(&mut self, handle: u32, reason: DownReason) {
        let until = self.now() + PARTING_WITHIN;
        self.end_operations(handle);
        let Some(pair) = self.pair_mut(handle) else { return };
        let address = pair.address;
        pair.life = Life::Parting(until);
        pair.sending.farewell = Farewell::Waits(reason);
        for held in std::mem::take(&mut pair.order.held) {
            if let Held::Out(out @ (Out::Message { .. } | Out::Told(_))) = held {
                pair.sending.outbox.push_back(out);
            }
        }
        pair.sending.outbox.retain(|out| matches!(out, Out::Message { .. } | Out::Told(_)));
        self.told_down(handle, address, reason);
        self.part_apart(handle);
        self.give_turn(handle);
        self.send(handle);
    }

    /// Ends a pair: everything pending on it, then the report.
    pub(super) fn report_down(&mut self, handle: u32, reason: DownReason) {
        let Some(pair) = self.pair_mut(handle) else { return };
        let (address, life) = (pair.address, pair.life);
        if !matches!(life, Life::Parting(_)) {
            self.end_operations(handle);
            self.told_down(handle, address, reason);
        }
        self.forget(handle);
    }

    /// Tells the program, and everybody here, that a peer is down.
    fn told_down(&mut self, handle: u32, address: EndpointAddress, reason: DownReason) {
        self.living.remove(&address);
        if let Some(secret) = self.pair_mut(handle).map(|pair| pair.secret) {
            self.lost.push((address, secret));
        }
        self.count(Register::PeersDown, 1);
        self.events.push_back(Queued::PeerDown { peer: Peer(handle), address, reason });
        self.tell_group_room();
    }

    /// The peer says that it has given the pair up. It waits for an answer, which leaves when
    /// nothing of this end is under way to it any more.
    pub(super) fn farewell_came(&mut self, handle: u32, reason: DownReason) {
        let until = self.now() + PARTING_WITHIN;
        let Some(pair) = self.pair_mut(handle) else { return };
        if matches!(pair.life, Life::Parting(_)) {
            pair.sending.peer_left = true;
            // It takes nothing of what still waits.
            pair.sending.outbox.clear();
            if pair.sending.farewell == Farewell::Left {
                return self.forget(handle);
            }
            self.give_turn(handle);
            return;
        }
        self.end_operations(handle);
        let Some(pair) = self.pair_mut(handle) else { return };
        let address = pair.address;
        pair.life = Life::Parting(until);
        pair.apart = None;
        pair.drop_unsent();
        (pair.sending.farewell, pair.sending.peer_left) = (Farewell::Waits(reason), true);
        self.told_down(handle, address, reason);
        self.give_turn(handle);
        self.send(handle);
    }

    /// Gives back what a pair had.
    pub(super) fn forget(&mut self, handle: u32) {
        let has_left = self.pair_mut(handle).is_some_and(|pair| pair.sending.peer_left);
        self.holder_is_down(handle, has_left);
        let Some(pair) = self.pair_mut(handle) else { return };
        let (address, to, receiving) = (pair.address, pair.to, &pair.receiving);
        let buffers = receiving.packets_max + receiving.responses_max + SPARE;
        self.buffers = (self.buffers + buffers).min(self.nic.receives());
        self.nic.remove(to);
        if let Ok(place) = usize::try_from(handle) {
            self.pairs[place] = Slot::Ended(address);
        }
    }

    /// Looks for peers that are silent, and for pairs whose time is over.
    pub(super) fn look_at_pairs(&mut self, now: Duration) {
        let silence = self.silence;
        self.strangers.retain(|(_, came)| now.saturating_sub(*came) < PARTING_WITHIN);
        let (mut over, mut unreachable) = (Vec::new(), Vec::new());
        for slot in &mut self.pairs {
            let Slot::Used(pair) = slot else { continue };
            let handle = pair.own.number;
            match pair.life {
                Life::Orphaned(words) if now >= words.until => over.push((handle, words.reason)),
                Life::Orphaned(_) => {}
                Life::Parting(until) if now >= until => {
                    over.push((handle, DownReason::Disconnected));
                }
                Life::Living if let Some(apart) = &pair.apart => {
                    // The broker tells it, unless it is gone.
                    if now.saturating_sub(apart.since) >= silence {
                        unreachable.push(handle);
                    }
                }
                Life::Living if now.saturating_sub(pair.heard) >= silence => {
                    over.push((handle, DownReason::Unreachable));
                }
                Life::Parting(_) => {}
                Life::Living => match (pair.doubt, now.saturating_sub(pair.heard)) {
                    (Doubt::Nobody, quiet) if quiet >= silence / 4 => {
                        pair.doubt = Doubt::Peer;
                        // Before it has greeted, its greeting is waited for.
                        if pair.theirs.is_some() {
                            pair.sending.ping = true;
                            pair.take_turn(&mut self.turns);
                        }
                    }
                    (Doubt::Peer, quiet) if quiet >= silence / 2 => {
                        pair.doubt = Doubt::Host(now);
                        self.doubted.push(pair.address);
                    }
                    (Doubt::Host(asked), _) if now.saturating_sub(asked) >= silence / 8 => {
                        pair.doubt = Doubt::Host(now);
                        self.doubted.push(pair.address);
                    }
                    _ => {}
                },
            }
        }
        for (handle, reason) in over {
            self.report_down(handle, reason);
        }
        for handle in unreachable {
            self.lose_apart(handle);
        }
    }

    /// Whether something waits to leave, or a peer has not greeted yet.
    #[cfg(feature = "test-doors")]
    pub(crate) fn is_busy(&self) -> bool {
        self.pairs.iter().any(|slot| match slot {
            Slot::Used(pair) => pair.theirs.is_none() || !pair.sending.outbox.is_empty(),
            Slot::Ended(_) => false,
        }) || !self.operations.is_empty()
    }

    /// The number of living peers, and of those that the endpoint has elsewhere.
    pub(crate) fn peers(&self) -> usize {
        self.living.len() + self.peers_elsewhere
    }

    /// The address behind a handle.
    pub(crate) fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        match self.pairs.get(usize::try_from(peer.0).ok()?)? {
            Slot::Used(pair) => Some(pair.address),
            Slot::Ended(address) => Some(*address),
        }
    }

    /// The handle of a peer that is not gone. Behind one whose last words are awaited, another
    /// endpoint may have its address already.
    pub(crate) fn handle_of(&self, address: EndpointAddress) -> Option<u32> {
        let handle = *self.living.get(&address)?;
        self.pair(Peer(handle)).is_ok_and(|pair| pair.life == Life::Living).then_some(handle)
    }
}
