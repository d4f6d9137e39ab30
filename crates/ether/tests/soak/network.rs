//! The nodes of a run, and what happens to them.

use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_ether::groups::LEARN_FOR;
use weft_ether::{Port, Seat, Segment, SharedSwitch, Switch};
use weft_fabric::{Endpoint, EndpointOptions, NodeId, Transport, Vpid};
use weft_transport_sim::{SimEndpoint, SimWorld};

use crate::plan::Plan;
use crate::traffic::{PATTERN_MAX, Seen, packet};

const SEGMENT: Segment = Segment::Fabric { vpid: Vpid(3), queues: 1 };
/// The ports' clock at the start of virtual time.
const START: Duration = Duration::from_secs(1_000);
/// Rounds within which a network without faults has nothing left to do.
const ROUNDS_MAX: usize = 20_000;

/// Packets that were to arrive, and those that did. A packet to all counts once for each.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    pub sent: u64,
    pub delivered: u64,
}

/// A node.
struct Node {
    /// `None` while it is dead.
    port: Option<Port<SimEndpoint>>,
    life: u32,
    seen: Seen,
    /// The number of its next packet.
    next: u64,
    /// It looks once in so many steps.
    looks: usize,
}

pub struct Network {
    plan: Plan,
    random: ChaCha8Rng,
    world: SimWorld,
    nodes: Vec<Node>,
    counts: Counts,
    /// The link of the torus that is cut.
    flapped: Option<(u32, u16)>,
    /// When it is mended, or the next one is cut.
    flaps_at: u64,
}

/// The time between a cut of a link of the torus and its end: longer than packets need to find
/// another way.
const FLAPS_EVERY_NS: u64 = 50_000;

impl Network {
    pub fn new(plan: Plan) -> Self {
        let world = SimWorld::new(plan.settings.clone());
        let random = ChaCha8Rng::seed_from_u64(plan.seed ^ 0x5eed);
        let mut network = Self {
            world,
            random,
            nodes: Vec::new(),
            counts: Counts::default(),
            flapped: None,
            flaps_at: 0,
            plan,
        };
        for number in 0..network.plan.nodes {
            let port = Some(network.open(number));
            let seen = Seen::default();
            network.nodes.push(Node { port, life: 0, seen, next: 0, looks: 1 });
        }
        network
    }

    /// Runs the plan.
    pub fn run(mut self) -> Counts {
        self.rest();
        for step in 0..self.plan.steps {
            self.fault();
            for node in 0..self.nodes.len() {
                if self.random.random_bool(0.5) {
                    self.send(node);
                }
                if step % self.nodes[node].looks == 0 {
                    let budget = self.random.random_range(1..=64);
                    self.look(node, budget);
                }
            }
            let pause = self.random.random_range(0..=self.plan.pause_ns);
            self.world.advance(pause);
        }
        self.end_faults();
        self.rest();
        let faults = self.plan.faults;
        if !faults.cuts && !faults.deaths {
            assert_eq!(self.counts.sent, self.counts.delivered, "without a fault nothing is lost");
        }
        self.probe();
        self.counts
    }

    fn now(&self) -> Duration {
        START + Duration::from_nanos(self.world.now())
    }

    fn open(&mut self, node: u32) -> Port<SimEndpoint> {
        let seat = Seat { node: NodeId(node), queue: 0 };
        let vpid = SEGMENT.vpid_of(seat).expect("the VPID exists");
        let options = EndpointOptions { vpid, ..EndpointOptions::default() };
        let transport = self.world.transport(NodeId(node), 1000);
        let endpoint = transport.open(&options).expect("the number is free");
        let switch = Switch::new(NodeId(node), self.now() - LEARN_FOR);
        Port::new(endpoint, SEGMENT, SharedSwitch::new(switch), self.plan.limits, self.now())
    }

    /// Calls a port, checks what it delivers, and that no time passes meanwhile.
    fn call(
        &mut self,
        node: usize,
        call: impl FnOnce(&mut Port<SimEndpoint>, Duration, &mut dyn FnMut(&[u8])) -> usize,
    ) -> usize {
        let now = self.now();
        let number = u32::try_from(node).expect("few nodes");
        let Node { port: Some(port), seen, .. } = &mut self.nodes[node] else { return 0 };
        let delivered = &mut self.counts.delivered;
        let events = call(port, now, &mut |packet| {
            seen.check(number, packet);
            *delivered += 1;
        });
        let (_, in_use, buffers) = port.in_use();
        let bound = self.plan.limits.fetches + 3 * self.nodes.len();
        assert!(in_use <= buffers && buffers <= bound, "{buffers} buffers, {in_use} in use");
        assert_eq!(self.now(), now, "a call let time pass");
        events
    }

    fn look(&mut self, node: usize, budget: usize) -> usize {
        self.call(node, |port, now, check| {
            let mut count = 0;
            let events = port.poll(budget, now, &mut |packet| {
                count += 1;
                check(&packet.to_vec());
            });
            if let Some(complaint) = port.complaint() {
                panic!("{complaint}");
            }
            events + count
        })
    }

    /// Sends a few packets from a node to one other or to all.
    fn send(&mut self, node: usize) {
        for _ in 0..self.random.random_range(1..=6) {
            let length = match self.random.random_range(0..10) {
                0..5 => self.random.random_range(0..500),
                5..8 => self.random.random_range(500..3_000),
                _ => self.random.random_range(3_000..=PATTERN_MAX),
            };
            let others = self.plan.nodes - 1;
            let other = self.random.random_range(0..=others);
            // Itself stands for all.
            let to = (usize::try_from(other) != Ok(node)).then_some(other);
            self.depart(node, to, length);
        }
    }

    fn depart(&mut self, node: usize, to: Option<u32>, length: usize) {
        let number = u32::try_from(node).expect("few nodes");
        let Node { port: Some(port), life, next, .. } = &self.nodes[node] else { return };
        if !port.may_depart(self.now()) {
            return;
        }
        let packet = packet((number, *life), to, *next, length);
        self.nodes[node].next += 1;
        self.counts.sent += if to.is_some() { 1 } else { u64::from(self.plan.nodes) - 1 };
        self.call(node, |port, now, _| {
            port.depart(&packet, now);
            0
        });
    }

    /// Mends the link of the torus that is cut, or cuts one: a way is always left.
    fn flap(&mut self) {
        if let Some((vertex, port)) = self.flapped.take() {
            assert!(self.world.heal_link(vertex, port));
        } else {
            let link = (self.random.random_range(0..6), self.random.random_range(0..2));
            assert!(self.world.cut_link(link.0, link.1));
            self.flapped = Some(link);
        }
        self.flaps_at = self.world.now() + FLAPS_EVERY_NS;
    }

    /// Lets some fault begin or end.
    fn fault(&mut self) {
        if self.plan.settings.network.is_some() && self.world.now() >= self.flaps_at {
            self.flap();
        }
        let faults = self.plan.faults;
        let nodes = self.plan.nodes;
        let one = self.random.random_range(0..nodes);
        let (a, b) = (NodeId(one), NodeId((one + self.random.random_range(1..nodes)) % nodes));
        let one = usize::try_from(one).expect("few nodes");
        if faults.cuts && self.random.random_bool(0.05) {
            self.world.cut(a, b);
        }
        if faults.cuts && self.random.random_bool(0.1) {
            self.world.heal(a, b);
        }
        if faults.slow && self.random.random_bool(0.05) {
            self.nodes[one].looks = self.random.random_range(1..=20);
        }
        if faults.deaths && self.random.random_bool(0.02) {
            self.end(one);
            // Before anybody hears of its end.
            if self.random.random_bool(0.5) {
                self.begin(one);
            }
        }
        if faults.deaths && self.random.random_bool(0.1) {
            self.begin(one);
        }
    }

    /// A node dies, or ends in order.
    fn end(&mut self, node: usize) {
        let Some(mut port) = self.nodes[node].port.take() else { return };
        if self.random.random_bool(0.5) {
            self.world.kill(port.endpoint().address());
        }
    }

    /// A dead node comes back.
    fn begin(&mut self, node: usize) {
        if self.nodes[node].port.is_none() {
            let port = self.open(u32::try_from(node).expect("few nodes"));
            let Node { life, .. } = self.nodes[node];
            let (port, seen) = (Some(port), Seen::default());
            self.nodes[node] = Node { port, life: life + 1, seen, next: 0, looks: 1 };
        }
    }

    fn end_faults(&mut self) {
        if self.flapped.is_some() {
            self.flap();
        }
        for a in 0..self.plan.nodes {
            for b in a + 1..self.plan.nodes {
                self.world.heal(NodeId(a), NodeId(b));
            }
        }
        for node in 0..self.nodes.len() {
            self.begin(node);
            self.nodes[node].looks = 1;
        }
    }

    /// Lets the nodes look until nothing happens, in each of some seconds. Then nothing waits.
    fn rest(&mut self) {
        for _ in 0..3 {
            self.world.advance(1_000_000_000);
            for node in 0..self.nodes.len() {
                self.call(node, |port, now, _| {
                    port.tick(now, &mut |_| {});
                    0
                });
            }
            let (mut idle, mut rounds) = (0, 0);
            while idle < 5 {
                self.world.advance(300_000);
                let done: usize = (0..self.nodes.len()).map(|node| self.look(node, 64)).sum();
                idle = if done == 0 { idle + 1 } else { 0 };
                rounds += 1;
                assert!(rounds < ROUNDS_MAX, "the network does not come to rest");
            }
        }
        let now = self.now();
        for (number, node) in self.nodes.iter().enumerate() {
            let port = node.port.as_ref().expect("all are alive");
            assert_eq!(port.peers().count(), self.nodes.len() - 1, "node {number} misses some");
            let (calls, in_use, buffers) = port.in_use();
            assert_eq!((port.arriving(), calls, in_use), (0, 0, 0), "node {number} waits");
            assert!(buffers <= self.plan.limits.fetches, "node {number} keeps {buffers} buffers");
            assert!(port.may_depart(now), "node {number} must wait");
            let unreported = u64::from((self.plan.limits.slots / 4).max(1)) - 1;
            let waiting = port.peers().map(|(_, waiting, _)| waiting).max().unwrap_or(0);
            assert!(waiting <= unreported, "{waiting} packets of node {number} wait");
        }
    }

    /// Every node sends to every other, and all of it arrives.
    fn probe(&mut self) {
        let before = self.counts;
        for node in 0..self.nodes.len() {
            let others = (0..self.plan.nodes).filter(|other| usize::try_from(*other) != Ok(node));
            for to in others.map(Some).chain([None]).collect::<Vec<_>>() {
                for length in [20_000, 40] {
                    self.depart(node, to, length);
                    self.rest();
                }
            }
        }
        let nodes = u64::from(self.plan.nodes);
        let due = 2 * nodes * 2 * (nodes - 1);
        assert_eq!(self.counts.sent - before.sent, due, "a port takes nothing");
        assert_eq!(self.counts.delivered - before.delivered, due, "a probe is lost");
    }
}
