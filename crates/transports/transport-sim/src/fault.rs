//! Faults: deaths, cuts and slow programs.
//!
//! Invariants: an endpoint is told that a peer is down after all its operations pending on the peer
//! completed. No packet sent before the report arrives after it. A dead endpoint is told nothing.

use weft_fabric::{DownReason, EndpointAddress, NodeId, OperationError, Peer, Register};

use crate::completion::{Pace, Queued};
use crate::progress::{Body, Flight, Occasion};
use crate::rma::Pending;
use crate::trace::Kind;
use crate::world::{Id, Rail, Sequence, SimWorld, Way, WorldState, pair};

/// A cut between two nodes, on one rail.
#[derive(Debug)]
pub(crate) struct Cut {
    number: u64,
    expired: bool,
    held: Vec<Flight>,
}

impl Cut {
    /// Packets that wait at the cut.
    pub fn packets(&self) -> usize {
        self.held.len()
    }
}

/// Whether a packet can pass between its two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crossing {
    Open,
    Held,
    Lost,
}

impl SimWorld {
    /// Kills the endpoint at `address`: its program stops. False if there is none.
    pub fn kill(&self, address: EndpointAddress) -> bool {
        let mut state = self.lock();
        let Some(id) = state.addresses.get(&address).copied() else { return false };
        let notice = state.settings.detection_ns;
        state.end(id, notice);
        true
    }

    /// Kills every endpoint of a node. Returns their number.
    pub fn kill_node(&self, node: NodeId) -> usize {
        let mut state = self.lock();
        let on_node =
            |(address, id): (&EndpointAddress, &Id)| (address.node == node).then_some(*id);
        let ids: Vec<Id> = state.addresses.iter().filter_map(on_node).collect();
        let notice = state.settings.detection_ns;
        for id in &ids {
            state.end(*id, notice);
        }
        ids.len()
    }

    /// Cuts the links between two nodes on every rail: packets wait. After
    /// [`crate::Settings::cut_down_after_ns`] the endpoints of each node get the report that their
    /// peers on the other node are down.
    ///
    /// # Panics
    /// When both are the same node.
    pub fn cut(&self, a: NodeId, b: NodeId) {
        let mut state = self.lock();
        for rail in 0..state.settings.rails.len() {
            state.cut(a, b, rail);
        }
    }

    /// Cuts the link between two nodes on one rail. Endpoints on other rails go on.
    ///
    /// # Panics
    /// When both are the same node, or there is no such rail.
    pub fn cut_rail(&self, a: NodeId, b: NodeId, rail: &str) {
        let mut state = self.lock();
        let rail = state.rail_named(rail);
        state.cut(a, b, rail);
    }

    /// Mends the cuts on every rail: packets that wait at them arrive at once, before those still
    /// on their way.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        let mut state = self.lock();
        for rail in 0..state.settings.rails.len() {
            state.heal(a, b, rail);
        }
    }

    /// Mends the cut on one rail.
    ///
    /// # Panics
    /// When there is no such rail.
    pub fn heal_rail(&self, a: NodeId, b: NodeId, rail: &str) {
        let mut state = self.lock();
        let rail = state.rail_named(rail);
        state.heal(a, b, rail);
    }

    /// Stops the program at `address` from taking events, until [`SimWorld::resume`]. False if
    /// there is no endpoint.
    pub fn pause(&self, address: EndpointAddress) -> bool {
        self.set_pace(address, Pace::Paused)
    }

    /// Lets the program at `address` take at most one message every `interval_ns`. False if there
    /// is no endpoint.
    pub fn slow_down(&self, address: EndpointAddress, interval_ns: u64) -> bool {
        self.set_pace(address, Pace::Every(interval_ns))
    }

    /// Lets the program at `address` take events at any time. False if there is no endpoint.
    pub fn resume(&self, address: EndpointAddress) -> bool {
        self.set_pace(address, Pace::Free)
    }

    /// When the endpoints of two nodes were last told that they do not reach each other, in ns of
    /// virtual time. A program hears it when it takes its events, which may be much later. `None`
    /// if they never were.
    #[must_use]
    pub fn parted_ns(&self, a: NodeId, b: NodeId) -> Option<u64> {
        let state = self.lock();
        let ways = (0..state.settings.rails.len()).map(|rail| (pair(a, b), rail));
        ways.filter_map(|way| state.parted.get(&way).copied()).max()
    }

    /// Whether the program at `address` has yet to take a report that a peer on `node` is down.
    #[must_use]
    pub fn has_report_of(&self, address: EndpointAddress, node: NodeId) -> bool {
        let state = self.lock();
        let Some(id) = state.addresses.get(&address) else { return false };
        state.endpoints[*id].events.iter().any(
            |queued| matches!(queued, Queued::PeerDown { address, .. } if address.node == node),
        )
    }

    fn set_pace(&self, address: EndpointAddress, pace: Pace) -> bool {
        let mut state = self.lock();
        let Some(id) = state.addresses.get(&address).copied() else { return false };
        let now = state.now;
        let endpoint = &mut state.endpoints[id];
        endpoint.pace = pace;
        endpoint.next_take = now;
        true
    }
}

impl WorldState {
    /// Ends an endpoint. Its peers get the report after `notice_ns`, and after the packets that it
    /// sent before.
    pub(crate) fn end(&mut self, id: Id, notice_ns: u64) {
        let endpoint = &mut self.endpoints[id];
        if !endpoint.alive {
            return;
        }
        endpoint.alive = false;
        let address = endpoint.address;
        let observers = std::mem::take(&mut endpoint.handles);
        endpoint.events.clear();
        let pending = std::mem::take(&mut endpoint.pending);
        endpoint.silenced = pending.values().filter_map(Pending::waits_for_its_turn).collect();
        endpoint.slots = 0;
        endpoint.starved.clear();
        endpoint.refused_groups.clear();
        self.group_waiters.remove(&id);
        endpoint.fences.clear();
        endpoint.controls.clear();
        endpoint.controls_open = 0;
        endpoint.window_results.clear();
        self.addresses.remove(&address);
        self.close_doors(id);
        for members in self.groups.values_mut() {
            members.remove(&id);
        }
        self.groups.retain(|_, members| !members.is_empty());
        self.tell_all_group_room();
        self.revoke_all(id);
        self.record(Kind::Close, address, address, notice_ns, &[]);
        let time = self.now.saturating_add(notice_ns);
        for (observer, handle) in observers {
            if observer != id && self.endpoints[observer].alive {
                let epoch = self.epoch(id, observer);
                let peer = self.endpoints[id].peer_mut(handle).mirror;
                let body = Body::Down { peer, reason: DownReason::Ended };
                let flight = Flight { from: id, to: observer, epoch, body };
                match self.next_place((id, observer)) {
                    Some(place) => self.schedule(time, Occasion::InOrder { place, flight }),
                    None => {
                        let arrival = self.in_order((id, observer), time, Sequence::Last);
                        self.schedule(arrival, Occasion::Arrive(flight));
                    }
                }
            }
        }
    }

    /// Reports to `observer` that `subject` is down, if either connected to the other.
    pub(crate) fn report_down(&mut self, observer: Id, subject: Id, reason: DownReason) {
        let address = self.endpoints[subject].address;
        let endpoint = &mut self.endpoints[observer];
        let Some(peer) = endpoint.handles.remove(&subject) else { return };
        let state = endpoint.peer_mut(peer);
        state.down = true;
        let mirror = state.mirror;
        endpoint.keep_count(subject, mirror);
        let on_it = |(number, pending): (&u64, &crate::rma::Pending)| {
            (pending.peer == peer).then_some(*number)
        };
        let operations: Vec<u64> = endpoint.pending.iter().filter_map(on_it).collect();
        for operation in operations {
            self.complete(observer, operation, Err(OperationError::PeerDown));
        }
        let endpoint = &mut self.endpoints[observer];
        endpoint.count(Register::PeersDown, 1);
        endpoint.events.push_back(Queued::PeerDown { peer: Peer(peer), address, reason });
        let own = endpoint.address;
        self.record(Kind::Down, address, own, 0, &[]);
        self.tell_group_room(observer);
    }

    /// Whether a packet can pass between its two nodes now.
    pub(crate) fn crossing(&self, flight: &Flight) -> Crossing {
        if flight.epoch != self.epoch(flight.from, flight.to) {
            return Crossing::Lost;
        }
        match self.oldest_cut(flight) {
            None => Crossing::Open,
            Some(way) if self.cuts[&way].expired => Crossing::Lost,
            Some(_) => Crossing::Held,
        }
    }

    /// The oldest cut in the way of a packet. Packets between two endpoints wait at the same one,
    /// so that none overtakes another when one of two cuts is mended.
    fn oldest_cut(&self, flight: &Flight) -> Option<Way> {
        let cut = |way: &Way| self.cuts.get(way).map(|cut| cut.number);
        self.ways(flight.from, flight.to).filter(|way| cut(way).is_some()).min_by_key(cut)
    }

    /// Keeps a packet at a cut.
    pub(crate) fn hold(&mut self, flight: Flight) {
        let way = self.oldest_cut(&flight).expect("a cut holds the packet");
        self.cuts.get_mut(&way).expect("it is a cut").held.push(flight);
    }

    /// True when a cut between two nodes has expired, so that their endpoints do not reach each
    /// other.
    pub(crate) fn is_cut_off(&self, a: Id, b: Id) -> bool {
        self.ways(a, b).any(|way| self.cuts.get(&way).is_some_and(|cut| cut.expired))
    }

    /// The cut has lasted for the limit: reports the endpoints of each node down to the other's, if
    /// one of them is on its rail.
    pub(crate) fn cut_expired(&mut self, way: Way, number: u64) {
        let Some(cut) = self.cuts.get_mut(&way).filter(|cut| cut.number == number) else {
            return;
        };
        cut.expired = true;
        cut.held.clear();
        self.part(way);
    }

    /// Two nodes do not reach each other on a rail: nothing that was sent between them arrives any
    /// more, and the endpoints of each are told that those of the other are down.
    pub(crate) fn part(&mut self, way: Way) {
        *self.epochs.entry(way).or_insert(0) += 1;
        self.parted.insert(way, self.now);
        let (nodes, rail) = way;
        let of = |node: NodeId| -> Vec<Id> {
            let all = self.endpoints.iter().enumerate();
            let there = all.filter(|(_, endpoint)| endpoint.address.node == node);
            there.map(|(id, _)| id).collect()
        };
        let (left, right) = (of(nodes.0), of(nodes.1));
        for a in left {
            for b in &right {
                if self.endpoints[a].rail == rail || self.endpoints[*b].rail == rail {
                    self.report_if_alive(a, *b);
                    self.report_if_alive(*b, a);
                }
            }
        }
    }

    fn report_if_alive(&mut self, observer: Id, subject: Id) {
        if self.endpoints[observer].alive {
            self.report_down(observer, subject, DownReason::Unreachable);
        }
    }

    fn cut(&mut self, a: NodeId, b: NodeId, rail: Rail) {
        assert_ne!(a, b, "a node cannot be cut off from itself");
        let way = (pair(a, b), rail);
        if self.cuts.contains_key(&way) {
            return;
        }
        self.next_operation += 1;
        let number = self.next_operation;
        self.cuts.insert(way, Cut { number, expired: false, held: Vec::new() });
        self.record_nodes(Kind::Cut, a, b, rail);
        if let Some(limit) = self.settings.cut_down_after_ns {
            let time = self.now.saturating_add(limit);
            self.schedule(time, Occasion::CutExpired { way, number });
        }
    }

    fn heal(&mut self, a: NodeId, b: NodeId, rail: Rail) {
        // Packets that are due now arrive behind those that wait already.
        self.run_due();
        let Some(cut) = self.cuts.remove(&(pair(a, b), rail)) else { return };
        self.record_nodes(Kind::Heal, a, b, rail);
        // They wait at the end of the link. Packets that were sent behind them may arrive at any
        // time from now on, and must not overtake them.
        for flight in cut.held {
            self.schedule(self.now, Occasion::Arrive(flight));
        }
    }

    fn record_nodes(&mut self, kind: Kind, a: NodeId, b: NodeId, rail: Rail) {
        let at = |node| EndpointAddress::new(node, weft_fabric::Vpid::ANY);
        self.record(kind, at(a), at(b), crate::memory::bytes_of(rail), &[]);
    }
}
