//! The world: virtual time, the scheduled events, and the state of all endpoints.
//!
//! Invariants: time never goes back. Occasions of the same time happen in the order in which they
//! were scheduled. Everything random comes from the seeded generator, in an order that depends only
//! on the calls. No container iterates in a random order.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Capabilities, EndpointAddress, NodeId, PartitionId, ServiceName, TrafficClass};

use crate::attr::{Link, Settings};
use crate::completion::EndpointState;
use crate::domain::SimTransport;
use crate::fault::Cut;
use crate::memory::Key;
use crate::network::Carrier;
use crate::opening::Invitation;
use crate::progress::{Body, Flight, Occasion};
use crate::trace::{Entry, Kind, Trace};

/// The number of an endpoint in its world. Never reused.
pub(crate) type Id = usize;

/// A handle of a simulated world. Clones refer to the same world.
#[derive(Clone, Debug)]
pub struct SimWorld {
    state: Arc<Mutex<WorldState>>,
}

/// The state of a world.
pub(crate) struct WorldState {
    pub settings: Settings,
    pub capabilities: Capabilities,
    pub identity: u64,
    pub now: u64,
    pub endpoints: Vec<EndpointState>,
    pub addresses: BTreeMap<EndpointAddress, Id>,
    pub groups: BTreeMap<(PartitionId, u8), BTreeSet<Id>>,
    /// The endpoints of which a message to a group was refused.
    pub group_waiters: BTreeSet<Id>,
    /// The endpoints that offer a service.
    pub services: BTreeMap<(ServiceName, NodeId), Id>,
    pub invitations: Vec<Invitation>,
    pub keys: BTreeMap<u64, Key>,
    pub next_key: u64,
    pub next_operation: u64,
    pub cuts: BTreeMap<Way, Cut>,
    pub epochs: BTreeMap<Way, u64>,
    /// When two nodes last reported each other down, in ns.
    pub parted: BTreeMap<Way, u64>,
    pub trace: Trace,
    queue: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    pub random: ChaCha8Rng,
    links: BTreeMap<(NodeId, NodeId, Rail), LinkState>,
    /// The network, if there is one in place of private links.
    pub carrier: Option<Box<Carrier>>,
    arrivals: BTreeMap<(Id, Id), Arrivals>,
}

/// When packets between two endpoints arrive.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    /// The last message or notification.
    mailbox: u64,
    /// The last response.
    response: u64,
    /// The last packet of any kind.
    last: u64,
    /// Nothing that is sent from now on arrives earlier.
    barrier: u64,
}

/// How a packet is ordered with earlier ones between the same two endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sequence {
    /// Behind messages and notifications.
    Mailbox,
    /// Behind nothing, where operations are unordered.
    Operation,
    /// Behind earlier responses.
    Response,
    /// Behind everything.
    Last,
    /// Behind everything, and in front of later messages and notifications.
    Ordered,
}

/// The number of a class in the network, where lower ones go first.
pub(crate) fn number_of(class: TrafficClass) -> u8 {
    match class {
        TrafficClass::Latency => 0,
        TrafficClass::Bulk => 1,
    }
}

/// A rail, by its place in the settings.
pub(crate) type Rail = usize;

/// Two nodes, the lower number first, and a rail between them.
pub(crate) type Way = (NodePair, Rail);

/// Two nodes, the lower number first.
pub(crate) type NodePair = (NodeId, NodeId);

/// The pair of two nodes in any order.
pub(crate) fn pair(a: NodeId, b: NodeId) -> NodePair {
    if a <= b { (a, b) } else { (b, a) }
}

struct LinkState {
    link: Link,
    /// When the last packet of class latency has left.
    free_at: u64,
    /// When the last packet of any class has left.
    bulk_free_at: u64,
}

impl LinkState {
    const fn new(link: Link) -> Self {
        Self { link, free_at: 0, bulk_free_at: 0 }
    }

    /// How long the link is busy with a packet.
    fn busy(&self, bytes: u64) -> u64 {
        let bits = (u128::from(bytes) + u128::from(HEADER_BYTES)) * 8;
        let busy = bits * 1_000_000_000 / u128::from(self.link.bits_per_second);
        u64::try_from(busy).unwrap_or(u64::MAX)
    }

    /// Takes the link for a packet at `now` or later, and returns when it leaves and when the link
    /// is free again.
    ///
    /// A packet of class latency goes before all bulk but the piece of `mtu_bytes` that is on the
    /// link. Bulk that comes later waits as much longer; bulk that has its time already keeps it.
    fn take(&mut self, class: TrafficClass, bytes: u64, mtu_bytes: u64, now: u64) -> (u64, u64) {
        let busy = self.busy(bytes);
        match class {
            TrafficClass::Latency => {
                // Behind another packet of its class no bulk is on the link.
                let departure = if self.free_at > now {
                    self.free_at
                } else {
                    let of_bulk = self.bulk_free_at.saturating_sub(now);
                    now.saturating_add(of_bulk.min(self.busy(mtu_bytes)))
                };
                self.free_at = departure.saturating_add(busy);
                self.bulk_free_at = self.bulk_free_at.max(departure).saturating_add(busy);
                (departure, self.free_at)
            }
            TrafficClass::Bulk => {
                let departure = self.bulk_free_at.max(now);
                self.bulk_free_at = departure.saturating_add(busy);
                (departure, self.bulk_free_at)
            }
        }
    }
}

/// A time, and the place among what happens at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment {
    time: u64,
    sequence: u64,
}

struct Scheduled {
    time: u64,
    sequence: u64,
    occasion: Occasion,
}

impl SimWorld {
    /// A world without endpoints.
    ///
    /// # Panics
    /// When a limit in the settings is zero.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        settings.assert_sound();
        Self { state: Arc::new(Mutex::new(WorldState::new(settings))) }
    }

    /// The fabric as seen by programs of `user` on `node`.
    ///
    /// # Panics
    /// When the number names no node, or none of the network.
    #[must_use]
    pub fn transport(&self, node: NodeId, user: u32) -> SimTransport {
        assert!(node <= NodeId::MAX, "{node:?} names no node");
        let state = self.lock();
        let is_there = state.carrier.as_ref().is_none_or(|carrier| carrier.has(node));
        assert!(is_there, "{node:?} is no host of the network");
        let capabilities = state.capabilities.clone();
        drop(state);
        SimTransport::new(self.clone(), node, user, capabilities)
    }

    /// The virtual time in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.lock().now
    }

    /// The virtual time of the next scheduled event.
    #[must_use]
    pub fn next_event(&self) -> Option<u64> {
        self.lock().next_time()
    }

    /// Lets `duration_ns` pass, and handles everything due until then.
    pub fn advance(&self, duration_ns: u64) {
        let mut state = self.lock();
        let end = state.now.saturating_add(duration_ns);
        while state.step_until(end) {}
        state.now = end;
    }

    /// Lets time pass until the next scheduled event was handled. False when nothing is scheduled.
    pub fn step(&self) -> bool {
        self.lock().step_until(u64::MAX)
    }

    /// As [`SimWorld::step`], up to `time_ns` at most. False when nothing happens until then; time
    /// does not pass in that case.
    pub fn step_to(&self, time_ns: u64) -> bool {
        self.lock().step_until(time_ns)
    }

    /// Steps until nothing is scheduled, at most `steps_max` times. True when nothing is scheduled.
    pub fn run(&self, steps_max: usize) -> bool {
        let mut state = self.lock();
        (0..steps_max).any(|_| !state.step_until(u64::MAX))
    }

    /// Sets the links from one node to another, on every rail. Packets that already left keep their
    /// times.
    ///
    /// # Panics
    /// When the bandwidth is zero.
    pub fn set_link(&self, from: NodeId, to: NodeId, link: Link) {
        assert!(link.bits_per_second >= 1, "a link moves at least one bit per second");
        let mut state = self.lock();
        for rail in 0..state.settings.rails.len() {
            state.link(from, to, rail).link = link;
        }
    }

    /// Sets the link from one node to another on one rail.
    ///
    /// # Panics
    /// When the bandwidth is zero, or there is no such rail.
    pub fn set_rail_link(&self, from: NodeId, to: NodeId, rail: &str, link: Link) {
        assert!(link.bits_per_second >= 1, "a link moves at least one bit per second");
        let mut state = self.lock();
        let rail = state.rail_named(rail);
        state.link(from, to, rail).link = link;
    }

    /// The digest of all events so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.lock().trace.digest()
    }

    /// The last events, at most [`Settings::trace_entries_max`].
    #[must_use]
    pub fn trace(&self) -> Vec<Entry> {
        self.lock().trace.entries()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock()
    }
}

impl WorldState {
    fn new(settings: Settings) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let network = settings.network.clone();
        Self {
            capabilities: settings.capabilities(),
            identity: WORLDS.fetch_add(1, Ordering::Relaxed),
            now: 0,
            endpoints: Vec::new(),
            addresses: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_waiters: BTreeSet::new(),
            services: BTreeMap::new(),
            invitations: Vec::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            next_operation: 0,
            cuts: BTreeMap::new(),
            epochs: BTreeMap::new(),
            parted: BTreeMap::new(),
            trace: Trace::new(settings.trace_entries_max),
            queue: BinaryHeap::new(),
            sequence: 0,
            random: ChaCha8Rng::seed_from_u64(settings.seed),
            links: BTreeMap::new(),
            carrier: network.map(|network| Box::new(Carrier::new(network, settings.seed))),
            arrivals: BTreeMap::new(),
            settings,
        }
    }

    /// The time of the next event.
    pub fn next_time(&mut self) -> Option<u64> {
        let network = self.carrier.as_mut().and_then(|carrier| carrier.next_time());
        [self.next_occasion(), network].into_iter().flatten().min()
    }

    fn next_occasion(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(scheduled)| scheduled.time)
    }

    /// Handles the next scheduled event if it is not later than `end`. False if there is none.
    pub fn step_until(&mut self, end: u64) -> bool {
        let occasion = self.next_occasion();
        if self.step_network(occasion.map_or(end, |time| time.min(end))) {
            return true;
        }
        let Some(time) = occasion.filter(|time| *time <= end) else { return false };
        assert!(time >= self.now, "time went back");
        self.now = time;
        let Reverse(scheduled) = self.queue.pop().expect("it was seen");
        self.happen(scheduled.occasion);
        true
    }

    /// Packets on their way, or held until they may go on.
    pub fn packets(&self) -> usize {
        let is_packet = |scheduled: &&Reverse<Scheduled>| {
            matches!(
                scheduled.0.occasion,
                Occasion::Arrive(_) | Occasion::Leave { .. } | Occasion::InOrder { .. }
            )
        };
        let on_links = self.queue.iter().filter(is_packet).count();
        let in_network = self.carrier.as_ref().map_or(0, |carrier| carrier.packets());
        let held: usize = self.cuts.values().map(Cut::packets).sum();
        on_links + in_network + held
    }

    /// Handles everything that is due now.
    pub fn run_due(&mut self) {
        while self.step_until(self.now) {}
    }

    /// Schedules `occasion` at `time`.
    pub fn schedule(&mut self, time: u64, occasion: Occasion) {
        let moment = self.reserve(time);
        self.schedule_at(moment, occasion);
    }

    /// A moment for an occasion that is scheduled later.
    pub fn reserve(&mut self, time: u64) -> Moment {
        self.sequence += 1;
        Moment { time, sequence: self.sequence }
    }

    /// Schedules `occasion` at a moment that was reserved.
    pub fn schedule_at(&mut self, moment: Moment, occasion: Occasion) {
        let Moment { time, sequence } = moment;
        assert!(time >= self.now, "nothing can be scheduled in the past");
        self.queue.push(Reverse(Scheduled { time, sequence, occasion }));
    }

    /// Occupies the link with `bytes` of payload. Returns when the first byte leaves and when the
    /// last arrives, in the order that `sequence` asks for.
    pub fn transmit(
        &mut self,
        (from, to): (Id, Id),
        class: TrafficClass,
        bytes: u64,
        sequence: Sequence,
    ) -> (u64, u64) {
        let nodes = (self.endpoints[from].address.node, self.endpoints[to].address.node);
        let (now, mtu_bytes) = (self.now, crate::memory::bytes_of(self.capabilities.mtu_bytes));
        let rail = self.endpoints[from].rail;
        let state = self.link(nodes.0, nodes.1, rail);
        let link = state.link;
        let (departure, free) = state.take(class, bytes, mtu_bytes, now);
        let sent = free.saturating_add(link.latency_ns);
        let arrival = sent.saturating_add(self.jitter(link.jitter_ns));
        (departure, self.in_order((from, to), arrival, sequence))
    }

    /// Sends a packet now.
    pub fn send_now(&mut self, flight: Flight, bytes: u64) {
        let sequence = match &flight.body {
            Body::Response(_) => Sequence::Response,
            Body::Down { .. } => Sequence::Last,
            _ => Sequence::Mailbox,
        };
        let Flight { from, to, .. } = flight;
        // Answers are of the class of what they answer.
        let asker = match &flight.body {
            Body::Response(_) | Body::Credit { .. } => to,
            _ => from,
        };
        let class = self.endpoints[asker].capabilities.class;
        if let Some(place) = self.next_place((from, to)) {
            self.carry(flight, place, number_of(class), bytes);
            return;
        }
        let (departure, arrival) = self.transmit((from, to), class, bytes, sequence);
        // The end of a pair is told whatever becomes of the sender.
        if departure == self.now || matches!(flight.body, Body::Down { .. }) {
            return self.schedule(arrival, Occasion::Arrive(flight));
        }
        let arrival = self.reserve(arrival);
        self.schedule(departure, Occasion::Leave { flight, arrival });
    }

    /// A packet leaves that waited for its turn. The last words of an endpoint leave, too, but not
    /// behind operations that died with it.
    pub fn leave(&mut self, flight: Flight, arrival: Moment) {
        if !self.endpoints[flight.from].silenced.contains(&flight.to) {
            self.schedule_at(arrival, Occasion::Arrive(flight));
        }
    }

    /// The earliest time from `arrival` on that keeps the order of packets between two endpoints.
    pub fn in_order(&mut self, ends: (Id, Id), arrival: u64, sequence: Sequence) -> u64 {
        let ordered = self.settings.ordered;
        let times = self.arrivals.entry(ends).or_default();
        let behind = match sequence {
            _ if ordered => times.last,
            Sequence::Mailbox => times.mailbox,
            Sequence::Operation => 0,
            Sequence::Response => times.response,
            Sequence::Last | Sequence::Ordered => times.last,
        };
        let arrival = arrival.max(behind).max(times.barrier);
        times.last = times.last.max(arrival);
        match sequence {
            Sequence::Mailbox | Sequence::Ordered => times.mailbox = arrival,
            Sequence::Response => times.response = arrival,
            Sequence::Operation | Sequence::Last => {}
        }
        arrival
    }

    /// Nothing that is sent from one endpoint to another later arrives before what was sent.
    pub fn put_in_order(&mut self, ends: (Id, Id)) {
        let times = self.arrivals.entry(ends).or_default();
        times.barrier = times.last;
    }

    /// A random number from 0 to `jitter_ns`.
    pub fn jitter(&mut self, jitter_ns: u64) -> u64 {
        if jitter_ns == 0 { 0 } else { self.random.random_range(0..=jitter_ns) }
    }

    /// How often the nodes of two endpoints reported each other down.
    pub fn epoch(&self, a: Id, b: Id) -> u64 {
        self.ways(a, b).map(|way| self.epochs.get(&way).copied().unwrap_or(0)).sum()
    }

    /// The ways that the packets between two endpoints need: on the rails of both.
    pub fn ways(&self, a: Id, b: Id) -> impl Iterator<Item = Way> + use<> {
        let [one, two] =
            [a, b].map(|id| (self.endpoints[id].address.node, self.endpoints[id].rail));
        let (nodes, other) = (pair(one.0, two.0), (one.1 != two.1).then_some(two.1));
        std::iter::once(one.1).chain(other).map(move |rail| (nodes, rail))
    }

    /// The rail with this name.
    pub fn rail_named(&self, name: &str) -> Rail {
        let rail = self.settings.rails.iter().position(|rail| rail == name);
        rail.unwrap_or_else(|| panic!("there is no rail {name:?}"))
    }

    /// Adds an entry to the trace.
    pub fn record(
        &mut self,
        kind: Kind,
        from: EndpointAddress,
        to: EndpointAddress,
        number: u64,
        payload: &[u8],
    ) {
        let length = crate::memory::bytes_of(payload.len());
        let payload = crate::trace::digest_of(payload);
        self.trace.push(Entry { time_ns: self.now, kind, from, to, number, length, payload });
    }

    fn link(&mut self, from: NodeId, to: NodeId, rail: Rail) -> &mut LinkState {
        let link = self.settings.link;
        self.links.entry((from, to, rail)).or_insert(LinkState::new(link))
    }
}

impl std::fmt::Debug for WorldState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("endpoints", &self.addresses.len())
            .field("on_their_way", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

//= EXTOLL-THESIS#3.2.1.2
//# A packet carries 16 bytes of network descriptor beside its payload.
/// Bytes of every packet without its payload.
const HEADER_BYTES: u64 = 16;
