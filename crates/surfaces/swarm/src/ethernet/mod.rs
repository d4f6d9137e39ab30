//! Ethernet: ports of nodes that send each other packets of all sizes.
//!
//! All that arrives is whole, and in the order in which its sender gave it. No call of a port lets
//! time pass, and no memory grows beyond its bound. When all faults are over nothing waits any
//! more, every node reaches every other, and nothing is missing of what was sent between two nodes
//! that knew each other all the time.
//!
//! # Invariant
//! A port has the clock of its host, which may be fast or slow.

mod ledger;
mod traffic;

use std::collections::BTreeSet;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_ether::groups::LEARN_FOR;
use weft_ether::{Limits, Port, Seat, Segment, SharedSwitch, Switch};
use weft_fabric::{
    Endpoint, EndpointAddress, EndpointLimits, EndpointOptions, NodeId, Register, Vpid,
};

use self::ledger::Ledger;
use self::traffic::{Life, PATTERN_MAX, Seen, packet};
use crate::plan::{LIVES_MAX, Plan};
use crate::stage::Stage;
use crate::workload::Workload;

const USER: u32 = 1_004;
/// The ports have this number on every node, which other programs of a run do not take.
const SEGMENT: Segment = Segment::Fabric { vpid: Vpid(200), queues: 1 };
/// The ports' clocks at the start of virtual time.
const START: Duration = Duration::from_secs(1_000);
/// A port is asked for the work that depends on time this often, in ns: the runs are short.
const TICK_EVERY_NS: u64 = 200_000;

/// How far the end of a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Packets are sent at random.
    Running,
    /// All is mended; the ports find each other, and what waits leaves.
    Resting,
    /// Every node has sent to every other.
    Probing,
    /// All of that arrived, and nothing waits.
    Settled,
}

/// A node.
struct Node<E: Endpoint> {
    host: usize,
    /// `None` while it is dead.
    port: Option<Port<E>>,
    life: u32,
    seen: Seen,
    /// The number of its next packet.
    next: u64,
    ticks_at: u64,
    /// The nodes that its port knows, by their places.
    known: BTreeSet<usize>,
    /// Reports of the end of a peer that its endpoint got.
    reports: u64,
}

/// All nodes.
pub(crate) struct Ethernet<E: Endpoint> {
    nodes: Vec<Node<E>>,
    limits: Limits,
    ledger: Ledger,
    phase: Phase,
}

fn number(host: usize) -> u32 {
    u32::try_from(host).expect("a plan has few hosts")
}

fn limits(random: &mut ChaCha8Rng) -> Limits {
    Limits {
        eager_bytes: random.random_range(60..=600),
        eager_group_bytes: random.random_range(60..=2_400),
        slots: random.random_range(1..=16),
        backlog: random.random_range(1..=16),
        backlog_stalled: 1_024,
        fetches: random.random_range(1..=8),
        fetches_each: random.random_range(1..=4),
    }
}

impl<E: Endpoint> Ethernet<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let limits = limits(random);
        let first = random.random_range(0..stage.hosts());
        let mut all =
            Self { nodes: Vec::new(), limits, ledger: Ledger::default(), phase: Phase::Running };
        for place in 0..plan.programs {
            let host = (first + place) % stage.hosts();
            let port = Some(all.open(stage, host, plan.programs)?);
            all.nodes.push(Node {
                host,
                port,
                life: 0,
                seen: Seen::default(),
                next: 0,
                ticks_at: 0,
                known: BTreeSet::new(),
                reports: 0,
            });
        }
        Ok(all)
    }

    fn open(&self, stage: &Stage<'_, E>, host: usize, nodes: usize) -> Result<Port<E>, String> {
        let seat = Seat { node: NodeId(number(host)), queue: 0 };
        // One ring for each other node, and one whose grant is late; buffers and those rings.
        let limits = EndpointLimits {
            keys: Some(nodes),
            regions: Some(self.limits.fetches + 5 * nodes),
            ..EndpointLimits::default()
        };
        let vpid = SEGMENT.vpid_of(seat).expect("the VPID exists");
        let options = EndpointOptions { vpid, limits, ..EndpointOptions::default() };
        let endpoint = stage.open_with(host, USER, &options)?;
        let now = START + stage.clock(host);
        let switch = Switch::new(seat.node, now.saturating_sub(LEARN_FOR));
        Ok(Port::new(endpoint, SEGMENT, SharedSwitch::new(switch), self.limits, now))
    }

    /// Calls a port, and checks what it delivers, that no time passes meanwhile, and its bounds.
    fn call(
        &mut self,
        stage: &Stage<'_, E>,
        place: usize,
        call: impl FnOnce(&mut Port<E>, Duration, &mut dyn FnMut(Vec<u8>)),
    ) -> Result<(), String> {
        let nodes = self.nodes.len();
        let node = &mut self.nodes[place];
        let own = number(node.host);
        let Some(port) = &mut node.port else { return Ok(()) };
        let (before, now) = (stage.world.now(), START + stage.clock(node.host));
        let mut packets = Vec::new();
        call(port, now, &mut |packet| packets.push(packet));
        if let Some(complaint) = port.complaint() {
            return Err(format!("node {own}: {complaint}"));
        }
        for packet in packets {
            let (from, number) = node.seen.check(own, &packet)?;
            self.ledger.arrive(from, own, number)?;
        }
        let (_, in_use, buffers) = port.in_use();
        let bound = self.limits.fetches + 3 * nodes;
        if in_use > buffers || buffers > bound {
            return Err(format!("node {own} has {buffers} buffers, {in_use} in use, of {bound}"));
        }
        if stage.world.now() != before {
            return Err(format!("node {own}: a call of the port let time pass"));
        }
        self.note_misses(stage, place)
    }

    /// Notes which nodes a port misses, or is told the end of. Until it takes the report, which a
    /// slow program does late, it sends to the life of the node that has ended.
    ///
    /// It may miss a node that it knew, and that lives, only where there was no way to it. That
    /// holds between first lives alone. A greeting of an earlier life may come late, and takes the
    /// place of the life that goes on until both have met again (docs/design/004).
    fn note_misses(&mut self, stage: &Stage<'_, E>, place: usize) -> Result<(), String> {
        let now = stage.world.now();
        let node = &mut self.nodes[place];
        let Some(port) = &mut node.port else { return Ok(()) };
        let reports = port.endpoint().register_value(Register::PeersDown);
        let address = port.endpoint().address();
        // It may have taken the report and met the next life in one call.
        let has_heard = reports != node.reports;
        node.reports = reports;
        let (host, is_first) = (node.host, node.life == 0);
        let peers: Vec<u32> = port.peers().map(|(peer, ..)| peer.0).collect();
        for other in (0..self.nodes.len()).filter(|other| *other != place) {
            let Node { host: far, life, port, .. } = &self.nodes[other];
            let (far, life, lives) = (*far, *life, port.is_some());
            let knows = peers.contains(&number(far));
            let is_told = stage.world.has_report_of(address, NodeId(number(far)));
            if has_heard || is_told || !knows {
                self.ledger.miss(number(host), number(far), now);
            }
            let known = &mut self.nodes[place].known;
            if knows {
                known.insert(other);
            } else if known.remove(&other) && is_first && life == 0 && lives {
                stage.check_unreachable(host, far)?;
            }
        }
        Ok(())
    }

    fn look(&mut self, stage: &Stage<'_, E>, place: usize, budget: usize) -> Result<(), String> {
        self.call(stage, place, |port, now, take| {
            port.poll(budget, now, &mut |packet| take(packet.to_vec()));
        })
    }

    fn tick(&mut self, stage: &Stage<'_, E>, place: usize) -> Result<(), String> {
        let now = stage.world.now();
        if now < self.nodes[place].ticks_at {
            return Ok(());
        }
        self.nodes[place].ticks_at = now + TICK_EVERY_NS;
        // Its queries for hosts behind a device are no packets of the run.
        self.call(stage, place, |port, now, _| port.tick(now, &mut |_| {}))
    }

    /// Sends a packet from a node to one other, or to all.
    fn depart(
        &mut self,
        stage: &Stage<'_, E>,
        place: usize,
        to: Option<u32>,
        length: usize,
    ) -> Result<bool, String> {
        let clock = START + stage.clock(self.nodes[place].host);
        let node = &self.nodes[place];
        let life: Life = (number(node.host), node.life);
        let Some(port) = &node.port else { return Ok(false) };
        if !port.may_depart(clock) {
            return Ok(false);
        }
        let (sequence, now) = (node.next, stage.world.now());
        let packet = packet(life, to, sequence, length);
        self.nodes[place].next += 1;
        for other in 0..self.nodes.len() {
            let other = number(self.nodes[other].host);
            if other != life.0 && to.is_none_or(|to| to == other) {
                self.ledger.sent(life, other, sequence, now);
            }
        }
        self.call(stage, place, |port, now, _| port.depart(&packet, now))?;
        Ok(true)
    }

    fn send(
        &mut self,
        stage: &Stage<'_, E>,
        place: usize,
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        for _ in 0..random.random_range(1..=4) {
            let length = match random.random_range(0..10) {
                0..5 => random.random_range(0..500),
                5..8 => random.random_range(500..3_000),
                _ => random.random_range(3_000..=PATTERN_MAX / 4),
            };
            let other = random.random_range(0..self.nodes.len());
            // Itself stands for all.
            let to = (other != place).then(|| number(self.nodes[other].host));
            self.depart(stage, place, to, length)?;
        }
        Ok(())
    }

    /// A dead node comes back.
    fn begin(&mut self, stage: &Stage<'_, E>, place: usize) -> Result<(), String> {
        if self.nodes[place].port.is_none() {
            let port = self.open(stage, self.nodes[place].host, self.nodes.len())?;
            let node = &mut self.nodes[place];
            node.port = Some(port);
            node.life += 1;
            (node.seen, node.next, node.reports) = (Seen::default(), 0, 0);
            node.known.clear();
        }
        Ok(())
    }

    /// Says what a node waits for, or misses.
    fn lacks(&self, stage: &Stage<'_, E>, node: &Node<E>) -> Result<(), String> {
        let own = number(node.host);
        let Some(port) = &node.port else { return Err(format!("node {own} is dead")) };
        let peers = port.peers().count();
        if peers != self.nodes.len() - 1 {
            return Err(format!("node {own} knows {peers} of {} nodes", self.nodes.len()));
        }
        let (calls, in_use, buffers) = port.in_use();
        if (port.arriving(), calls, in_use) != (0, 0, 0) {
            return Err(format!("node {own} waits: {calls} calls, {in_use} buffers in use"));
        }
        if buffers > self.limits.fetches {
            return Err(format!("node {own} keeps {buffers} buffers"));
        }
        if !port.may_depart(START + stage.clock(node.host)) {
            return Err(format!("node {own} may not read its device, for ever"));
        }
        let unreported = u64::from((self.limits.slots / 4).max(1)) - 1;
        let waiting = port.peers().map(|(_, waiting, _)| waiting).max().unwrap_or(0);
        if waiting > unreported {
            return Err(format!("{waiting} packets of node {own} wait for ever"));
        }
        Ok(())
    }

    /// Goes on towards the end of the run.
    fn settle(&mut self, stage: &Stage<'_, E>) -> Result<(), String> {
        for place in 0..self.nodes.len() {
            self.begin(stage, place)?;
            self.tick(stage, place)?;
        }
        let is_idle = self.nodes.iter().all(|node| self.lacks(stage, node).is_ok());
        match self.phase {
            Phase::Running => self.phase = Phase::Resting,
            Phase::Resting if is_idle => {
                self.phase = Phase::Probing;
                let hosts: Vec<u32> = self.nodes.iter().map(|node| number(node.host)).collect();
                for place in 0..hosts.len() {
                    let others = hosts.iter().copied().filter(|host| *host != hosts[place]);
                    for to in others.map(Some).chain([None]).collect::<Vec<_>>() {
                        self.depart(stage, place, to, 2_000)?;
                        self.depart(stage, place, to, 40)?;
                    }
                }
            }
            Phase::Probing if is_idle && self.ledger.check().is_ok() => self.phase = Phase::Settled,
            Phase::Resting | Phase::Probing | Phase::Settled => {}
        }
        Ok(())
    }
}

impl<E: Endpoint> Workload<E> for Ethernet<E> {
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let place = random.random_range(0..self.nodes.len());
        if self.nodes[place].port.is_none() {
            return if random.random_ratio(1, 10) { self.begin(stage, place) } else { Ok(()) };
        }
        self.tick(stage, place)?;
        self.send(stage, place, random)
    }

    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        budget: usize,
    ) -> Result<(), String> {
        let places = program.map_or(0..self.nodes.len(), |place| place..place + 1);
        for place in places {
            self.look(stage, place, budget)?;
        }
        if program.is_none() && self.phase != Phase::Settled {
            self.settle(stage)?;
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let program = program % self.nodes.len();
        let node = &mut self.nodes[program];
        let life = (number(node.host), node.life);
        if usize::try_from(node.life).is_ok_and(|life| life + 1 == LIVES_MAX) {
            return Ok(());
        }
        let Some(mut port) = node.port.take() else { return Ok(()) };
        if node.next.is_multiple_of(2) {
            stage.world.kill(port.endpoint().address());
        }
        self.ledger.die(life);
        for other in 0..self.nodes.len() {
            self.ledger.miss(life.0, number(self.nodes[other].host), stage.world.now());
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.phase == Phase::Settled
    }

    fn check(&mut self, stage: &Stage<'_, E>) -> Result<(), String> {
        for node in &self.nodes {
            self.lacks(stage, node)?;
        }
        self.ledger.check()?;
        if self.phase != Phase::Settled {
            return Err(format!("the ports do not come to rest: {:?}", self.phase));
        }
        Ok(())
    }

    fn keys(&self) -> Option<usize> {
        None
    }

    fn region_bytes(&self) -> Option<u64> {
        None
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let program = program % self.nodes.len();
        self.nodes[program].port.as_mut().map(|port| port.endpoint().address())
    }

    fn done(&self) -> u64 {
        self.ledger.arrived
    }
}
