//! The state machine of an endpoint: calls and packets in, packets and events out.
//!
//! It drives a [`Nic`] and knows no socket, thread or clock. The same code runs over libfabric's
//! providers and over a seeded network in memory.
//!
//! # Invariants
//! - What a peer sent is checked before it is used, and a peer that breaks the rules is reported
//!   [`DownReason::Misbehaved`]. A packet that shows no pair's label is dropped.
//! - An operation ends once. Memory that the NIC may still use is kept until it said so.
//! - Nothing here waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weft_fabric::{
    Capabilities, Completion, DownReason, EndpointAddress, Group, OperationError, Peer, Register,
    RemoteKey, Value,
};
use weft_libfabric::{Error, Peer as NicPeer, Report};
use weft_sync::OwnTime;

use crate::meeting::Known;
use crate::nic::Nic;
use crate::packet::{Body, Greeting, PACKET_BYTES, Packet};
use crate::region::Ended;
use crate::registers::Registers;

mod apart;
mod bounce;
mod bulk;
mod events;
#[cfg(test)]
mod hostile;
mod messages;
mod offers;
mod operations;
mod order;
mod pair;
mod peers;
mod rights;
mod sending;
mod serve;
mod short;
mod wanted;

pub(crate) use events::Queued;
pub(crate) use operations::Reply;
pub(crate) use wanted::{Into, Wanted};

use bounce::Bounce;
use offers::Unanswered;
use operations::Operation;
use pair::{Life, Pair};
use rights::Grant;

/// Reports that are taken from the NIC at once.
const BATCH: usize = 64;
/// Batches of one call.
const BATCHES: usize = 4;
/// Greetings of peers that the directory has not announced yet, at most.
const STRANGERS_MAX: usize = 64;
/// How often pairs are looked at for silence, at least.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The state machine of one endpoint.
#[derive(Debug)]
pub(crate) struct Engine<N> {
    nic: N,
    clock: OwnTime,
    pub(crate) address: EndpointAddress,
    pub(crate) capabilities: Capabilities,
    /// A peer of which nothing is heard for so long is unreachable.
    silence: Duration,
    /// The pairs, by handle.
    pairs: Vec<Slot>,
    /// The handles of living peers.
    living: BTreeMap<EndpointAddress, u32>,
    /// Peers of the endpoint on another way.
    peers_elsewhere: usize,
    /// Buffers of the NIC that no pair has.
    buffers: usize,
    keeps_messages_behind_writes: bool,
    /// Greetings of peers that the directory has not announced yet, and when they came.
    strangers: VecDeque<(Greeting, Duration)>,
    operations: BTreeMap<u64, Operation>,
    next_number: u64,
    /// Pairs with pieces that the NIC had no room for, in turn.
    stalled: VecDeque<u32>,
    events: VecDeque<Queued>,
    /// Operations that are pending, or whose ends were not polled.
    places: usize,
    /// Peers for which a call was refused for lack of places.
    starved: BTreeSet<u32>,
    /// Calls that hold no place and have not ended, or whose ends were not polled.
    pub(crate) controls_open: usize,
    pub(crate) registers: Registers,
    /// Questions of peers for keys that could not be answered yet.
    unanswered: Vec<Unanswered>,
    grants: BTreeMap<RemoteKey, Grant>,
    regions: Vec<std::sync::Weak<dyn Send + Sync>>,
    ended: Ended,
    bounce: Bounce,
    /// The results of accesses through windows.
    window_results: BTreeMap<u64, Result<(u64, Vec<u8>), OperationError>>,
    /// Fences of all peers: by number, the context and how many peers have not answered.
    fences: BTreeMap<u64, (u64, usize)>,
    /// Groups to which a message was refused, with their other members.
    refused_groups: BTreeMap<Group, Vec<EndpointAddress>>,
    /// Pairs that may have something to send, in turn. Only one whose [`Turn`](pair::Turn) is
    /// `Next` has it.
    turns: VecDeque<u32>,
    /// Pairs that have ended, for the directory: the peer's address and the secret.
    lost: Vec<(EndpointAddress, [u8; 16])>,
    /// Pairs for which the NIC had no room.
    busy: Vec<u32>,
    /// Reports of the NIC that are not handled.
    arrived: Vec<Arrived>,
    /// The bytes of the packets among them.
    arrived_bytes: Vec<u8>,
    /// The packet that is handed to the NIC.
    leaving: Vec<u8>,
    /// The payload of the message that the program sends.
    payload: Vec<u8>,
    /// Peers about which their hosts are to be asked.
    doubted: Vec<EndpointAddress>,
    next_look: Duration,
    /// Packets that were dropped: of no pair, or malformed.
    dropped: u64,
    /// The time of the last progress.
    seen: Duration,
    /// Reports that were handled.
    taken: u64,
    /// How often a progress looks at a NIC that has nothing to report.
    looks: u32,
    /// The NIC does not work any more.
    broken: Option<Error>,
}

/// A pair by its handle.
#[derive(Debug)]
enum Slot {
    Used(Box<Pair>),
    /// The pair has ended. The address was that of the peer.
    Ended(EndpointAddress),
}

/// A report of the NIC.
#[derive(Debug)]
enum Arrived {
    /// A packet, at this place among the bytes of all.
    Packet(std::ops::Range<usize>),
    Done(u64),
    Failed(u64, Error),
    Unreachable(NicPeer),
    Unfit,
}

impl<N: Nic> Engine<N> {
    /// The machine of an endpoint at `address`, which counts in `registers`.
    pub(crate) fn new(
        nic: N,
        registers: Registers,
        address: EndpointAddress,
        capabilities: Capabilities,
        silence: Duration,
    ) -> Self {
        Self {
            buffers: nic.receives(),
            keeps_messages_behind_writes: nic.keeps_messages_behind_writes(),
            nic,
            clock: OwnTime::new(silence / 4),
            address,
            capabilities,
            silence,
            pairs: Vec::new(),
            living: BTreeMap::new(),
            peers_elsewhere: 0,
            strangers: VecDeque::new(),
            operations: BTreeMap::new(),
            next_number: 0,
            stalled: VecDeque::new(),
            events: VecDeque::new(),
            places: 0,
            starved: BTreeSet::new(),
            controls_open: 0,
            registers,
            unanswered: Vec::new(),
            grants: BTreeMap::new(),
            regions: Vec::new(),
            ended: Ended::default(),
            bounce: Bounce::default(),
            window_results: BTreeMap::new(),
            fences: BTreeMap::new(),
            refused_groups: BTreeMap::new(),
            turns: VecDeque::new(),
            lost: Vec::new(),
            busy: Vec::new(),
            arrived: Vec::new(),
            arrived_bytes: Vec::new(),
            leaving: Vec::with_capacity(PACKET_BYTES),
            payload: Vec::new(),
            doubted: Vec::new(),
            next_look: Duration::ZERO,
            dropped: 0,
            seen: Duration::ZERO,
            taken: 0,
            looks: 1,
            broken: None,
        }
    }

    pub(crate) fn nic(&self) -> &N {
        &self.nic
    }

    pub(crate) fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// How long a peer may be silent before it is down.
    pub(crate) const fn silence(&self) -> Duration {
        self.silence
    }

    /// A register of this endpoint.
    pub(crate) fn register_value(&self, register: Register) -> u64 {
        self.registers.value(register)
    }

    /// So many peers are living elsewhere. Returns the number of those here.
    pub(crate) fn count_peers_elsewhere(&mut self, count: usize) -> usize {
        self.peers_elsewhere = count;
        self.living.len()
    }

    /// The time now. It stands while this process is stopped, so that nobody was silent meanwhile.
    pub(crate) fn now(&mut self) -> Duration {
        self.clock.at(self.nic.tick())
    }

    /// The time of the last progress. Looking at the clock again would cost each message.
    pub(crate) const fn seen(&self) -> Duration {
        self.seen
    }

    /// How many reports of the NIC were handled.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// See [`OfiEndpoint::look_often`](crate::OfiEndpoint::look_often).
    pub(crate) fn look_often(&mut self, looks: u32) {
        self.looks = looks.max(1);
    }

    /// Handles what has come, and sends what can be sent.
    pub(crate) fn progress(&mut self) {
        for _ in 0..BATCHES {
            if !self.take_reports() {
                break;
            }
        }
        let now = self.seen;
        if now >= self.next_look {
            self.next_look = now + LOOK_EVERY;
            self.look_at_pairs(now);
            self.look_at_revocations(now);
            self.look_at_unanswered();
            self.close_regions();
        }
        self.send_all();
    }

    /// Handles a batch of reports. False if there may be no more.
    fn take_reports(&mut self) -> bool {
        if self.broken.is_some() {
            self.seen = self.now();
            return false;
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let mut bytes = std::mem::take(&mut self.arrived_bytes);
        let mut polled = Ok(0);
        for _ in 0..self.looks {
            polled =
                self.nic.poll(BATCH, &mut |report| arrived.push(arrived_of(report, &mut bytes)));
            if polled != Ok(0) {
                break;
            }
        }
        // One look at the clock for all of them.
        self.seen = self.now();
        for one in arrived.drain(..) {
            match one {
                Arrived::Packet(place) => self.receive(&bytes[place]),
                Arrived::Done(token) => self.moved(token, None),
                Arrived::Failed(token, error) => self.moved(token, Some(error)),
                Arrived::Unreachable(to) => self.lose(to),
                Arrived::Unfit => self.dropped += 1,
            }
        }
        bytes.clear();
        (self.arrived, self.arrived_bytes) = (arrived, bytes);
        match polled {
            Ok(count) => {
                self.taken = self.taken.wrapping_add(count as u64);
                count >= BATCH
            }
            Err(error) => {
                self.broken = Some(error);
                for handle in self.living.values().copied().collect::<Vec<_>>() {
                    self.report_down(handle, DownReason::Unreachable);
                }
                false
            }
        }
    }

    /// Handles a packet.
    fn receive(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            self.dropped += 1;
            return;
        };
        if let Body::Greeting(greeting) = packet.body {
            return self.greeted(greeting);
        }
        let handle = packet.label.number;
        let now = self.seen;
        let Some(pair) = self.pair_mut(handle).filter(|pair| pair.own == packet.label) else {
            self.dropped += 1;
            return;
        };
        if pair.keeps_apart() {
            return self.keep(handle, bytes);
        }
        pair.hear(now);
        if let Life::Orphaned(words) = &mut pair.life {
            let later = words.until.max(now + peers::LAST_WORDS_WITHIN);
            words.until = later.min(words.at_most);
        }
        // Some providers connect anew behind a break, and say nothing of what was lost.
        let is_next = packet.sequence == pair.receiving.sequence.wrapping_add(1);
        pair.receiving.sequence = packet.sequence;
        if !is_next {
            return self.expel(handle, DownReason::Unreachable);
        }
        let is_parting = matches!(pair.life, Life::Parting(_));
        let returned = pair.returned(packet.credits);
        let has_room = !uses_room(&packet.body) || pair.receiving.packets > 0;
        if returned.is_none() || !has_room || pair.theirs.is_none() {
            return self.expel(handle, DownReason::Misbehaved);
        }
        // The room of a request is returned when its answer leaves.
        let is_counted = uses_room(&packet.body);
        let answered = matches!(packet.body, Body::Request(..) | Body::Void(_) | Body::Short(_));
        let at_once = is_parting || !answered;
        if is_numbered(&packet.body) {
            pair.receiving.handled = pair.receiving.handled.wrapping_add(1);
        }
        if is_counted {
            pair.receiving.packets -= 1;
            pair.receiving.owed_packets += usize::from(at_once);
        }
        let told_of_room = packet.credits.messages > 0 || packet.credits.notifications > 0;
        self.give_turn(handle);
        if told_of_room {
            self.tell_room(handle);
        }
        match packet.body {
            Body::Farewell(reason) => self.farewell_came(handle, reason),
            _ if is_parting => {}
            body => {
                self.handle(handle, body);
                // Behind the body, which may refuse a short put.
                self.confirm_by(handle, packet.handled);
            }
        }
    }

    fn handle(&mut self, handle: u32, body: Body<'_>) {
        let Some(pair) = self.pair_mut(handle) else { return };
        match body {
            Body::Message { header, group, payload } => {
                self.deliver(handle, header, group, payload);
            }
            Body::Told(told) => self.deliver_notification(handle, told),
            Body::Short(short) => {
                if self.serve_short(handle, &short)
                    && let Some(pair) = self.pair_mut(handle)
                {
                    pair.receiving.owed_packets += 1;
                }
            }
            Body::Request(number, request) => self.serve(handle, number, request),
            Body::Response(number, result) => self.answered(handle, number, result),
            Body::Void(key) => self.key_is_void(handle, key),
            Body::Released(key) => self.key_is_released(handle, key),
            Body::Never | Body::Credit(_) | Body::Greeting(_) | Body::Farewell(_) => {}
            Body::Ping => pair.sending.pong = true,
        }
    }

    /// Pairs that have ended since the last call.
    pub(crate) fn take_lost(&mut self) -> Vec<(EndpointAddress, [u8; 16])> {
        std::mem::take(&mut self.lost)
    }

    /// Peers that are silent, and whose hosts are to be asked about them since the last call.
    pub(crate) fn take_doubted(&mut self) -> Vec<EndpointAddress> {
        std::mem::take(&mut self.doubted)
    }

    /// The pairs that live, for a broker that was restarted.
    pub(crate) fn living_pairs(&self) -> impl Iterator<Item = Known> {
        self.living.iter().filter_map(|(address, handle)| {
            let Slot::Used(pair) = self.pairs.get(*handle as usize)? else { return None };
            let greets_first = pair.sending.greets_first;
            Some(Known { address: *address, secret: pair.secret, greets_first })
        })
    }

    /// Reports the end of a call that holds no place of an operation.
    pub(crate) fn end_call(&mut self, context: u64, result: Result<Value, OperationError>) {
        self.events.push_back(Queued::Ended(Completion { context, result }));
    }

    /// Whether everything that was accepted has left.
    pub(crate) fn is_drained(&self) -> bool {
        self.broken.is_some() || !self.pairs.iter().any(|slot| matches!(slot, Slot::Used(_)))
    }

    fn pair_mut(&mut self, handle: u32) -> Option<&mut Pair> {
        match self.pairs.get_mut(usize::try_from(handle).ok()?)? {
            Slot::Used(pair) => Some(pair),
            Slot::Ended(_) => None,
        }
    }

    /// Whether a handle is that of a living peer; counts a refusal.
    pub(crate) fn check_peer(&mut self, peer: Peer) -> Result<(), OperationError> {
        self.pair(peer).map(drop).map_err(|error| self.count_refusal(error))
    }

    /// The living pair of a handle.
    fn pair(&self, peer: Peer) -> Result<&Pair, OperationError> {
        let place = usize::try_from(peer.0).map_err(|_| OperationError::UnknownPeer)?;
        match self.pairs.get(place) {
            None => Err(OperationError::UnknownPeer),
            Some(Slot::Used(pair)) if !matches!(pair.life, Life::Parting(_)) => Ok(pair),
            Some(_) => Err(OperationError::PeerDown),
        }
    }

    fn living_at(&mut self, address: EndpointAddress) -> Option<&mut Pair> {
        let handle = *self.living.get(&address)?;
        self.give_turn(handle);
        self.pair_mut(handle)
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

/// A report, with the bytes of a packet behind those of others.
fn arrived_of(report: Report<'_>, bytes: &mut Vec<u8>) -> Arrived {
    match report {
        Report::Message(packet) => {
            let start = bytes.len();
            bytes.extend_from_slice(&packet[..packet.len().min(PACKET_BYTES)]);
            Arrived::Packet(start..bytes.len())
        }
        Report::Done { token } => Arrived::Done(token),
        Report::Failed { token, error } => Arrived::Failed(token, error),
        Report::SendFailed { to, .. } => Arrived::Unreachable(to),
        Report::Unfit { .. } | Report::Stray { .. } => Arrived::Unfit,
    }
}

/// Whether a packet is counted among what was handled: it came by the outbox.
const fn is_numbered(body: &Body<'_>) -> bool {
    matches!(body, Body::Message { .. } | Body::Told(_) | Body::Short(_) | Body::Never)
}

/// Whether a packet takes a buffer that its sender was given.
fn uses_room(body: &Body<'_>) -> bool {
    match body {
        Body::Message { .. }
        | Body::Told(_)
        | Body::Short(_)
        | Body::Never
        | Body::Request(..)
        | Body::Void(_)
        | Body::Released(_)
        | Body::Credit(true) => true,
        Body::Greeting(_)
        | Body::Response(..)
        | Body::Credit(false)
        | Body::Ping
        | Body::Farewell(_) => false,
    }
}
