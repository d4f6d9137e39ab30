//! Brokers of several nodes under seeds: messages between them take their time, nodes part and join
//! again, brokers are restarted, endpoints end. In the end, both ends of a meeting know it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use weft_fabric::{EndpointAddress, NodeId, PartitionId, ServiceName, Vpid};
use weft_options::ServicePolicy;
use weft_wire::endpoint_control::{
    Attach, EndpointControl, Invitation, Invite, Meet, NoPort, Open, Part, Port, PortName, Recall,
    Secret, flags, status,
};
use weft_wire::versions::{DAEMONS_HIGHEST, fingerprint};

use crate::later::{PORT_WITHIN, PortState};
use crate::state::{fuzz_files, silent_bell};
use crate::{Credentials, Limits, Listed, NodeMessage, Outgoing, ProcessId, Refusal, State};

/// A message of each kind, with each kind of field filled.
fn examples() -> Vec<NodeMessage> {
    let (secret, ticket, name) = ([7; 16], [8; 16], vec![9, 10]);
    let offers = Some("a service".to_owned());
    let listed = Listed { vpid: 1, partition: 2, groups: 3, user: 4, offers };
    let endpoints = vec![listed.clone()];
    let refused =
        [Refusal::NotFound, Refusal::Full(6), Refusal::NoPort].map(Err::<(u32, Vec<u8>), _>);
    let met = [Ok((5, name.clone()))].into_iter().chain(refused);
    let mut all = vec![
        NodeMessage::List { endpoints, is_last: true, is_settled: false },
        NodeMessage::Meetings { meetings: vec![(1, 2, secret)], is_last: false, asks: true },
        NodeMessage::Changed(listed),
        NodeMessage::Ended { vpid: 1 },
        NodeMessage::Meet { number: 1, from: 2, depth: 3, name, to: 4, secret },
        NodeMessage::Ticket { number: 1, ticket },
        NodeMessage::Invited { number: 1, host: Some((2, 3)) },
        NodeMessage::Part { from: 1, to: 2, secret },
        NodeMessage::Doubt { from: 1, to: 2, secret },
        NodeMessage::Stands { from: 1, to: 2, secret },
    ];
    all.extend(met.map(|outcome| NodeMessage::Met { number: 1, outcome }));
    all
}

#[test]
fn the_form_of_messages_is_that_of_their_version() {
    for example in examples() {
        assert_eq!(NodeMessage::parse(&example.emit()), Ok(example.clone()));
        // A new kind needs an example above.
        match example {
            NodeMessage::List { .. }
            | NodeMessage::Meetings { .. }
            | NodeMessage::Changed(_)
            | NodeMessage::Ended { .. }
            | NodeMessage::Meet { .. }
            | NodeMessage::Met { .. }
            | NodeMessage::Ticket { .. }
            | NodeMessage::Invited { .. }
            | NodeMessage::Part { .. }
            | NodeMessage::Doubt { .. }
            | NodeMessage::Stands { .. } => {}
        }
    }
    let formats = fingerprint(examples().iter().map(NodeMessage::emit));
    assert_eq!((DAEMONS_HIGHEST, formats), (4, 0xa956_a266_0d1c_07e2), "raise the version");
}

const NODES: u32 = 3;
const STEPS: usize = 400;
const NOW: Duration = Duration::ZERO;

/// An endpoint, as its program knows it.
struct Program {
    address: EndpointAddress,
    birth: u64,
    user: u32,
    met: BTreeMap<EndpointAddress, ([u8; 16], bool)>,
    kind: Kind,
    /// The endpoint that let it into its partition.
    host: Option<EndpointAddress>,
    /// The broker has said that a port is wanted.
    is_wanted: bool,
}

/// How a program is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// By a port alone.
    Port,
    /// By memory, and by a port of this client if there is one.
    Memory(Option<ProcessId>),
}

/// The user of the partition in which all meet.
const OWNER: u32 = 1000;

struct World {
    random: SmallRng,
    states: BTreeMap<NodeId, State>,
    programs: BTreeMap<ProcessId, Program>,
    /// The programs of the clients that have ports of their own.
    ports: BTreeMap<ProcessId, ProcessId>,
    /// Between two nodes, each way; `None` while they are apart.
    links: BTreeMap<(NodeId, NodeId), Option<VecDeque<NodeMessage>>>,
    next: u64,
}

fn broker(node: NodeId) -> State {
    State::new(node, Limits { endpoints_max: 6, ..Limits::default() }, silent_bell)
}

impl World {
    fn new(seed: u64) -> Self {
        let random = SmallRng::seed_from_u64(seed);
        let states: BTreeMap<_, _> = (0..NODES).map(|n| (NodeId(n), broker(NodeId(n)))).collect();
        let mut links = BTreeMap::new();
        for from in states.keys() {
            for to in states.keys().filter(|to| *to != from) {
                links.insert((*from, *to), None);
            }
        }
        let (programs, ports) = (BTreeMap::new(), BTreeMap::new());
        Self { random, states, programs, ports, links, next: 1 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A program's request.
    fn ask(&mut self, process: ProcessId, message: impl Into<EndpointControl>) -> u16 {
        let message = message.into();
        let owner = self.owner(process);
        let Program { address: EndpointAddress { node, .. }, user, kind, .. } =
            self.programs[&owner];
        let is_open = matches!(message, EndpointControl::Open(_));
        let files = if kind != Kind::Port && is_open { fuzz_files(0) } else { Vec::new() };
        let state = self.states.get_mut(&node).expect("a node");
        let mut out = Vec::new();
        let credentials = Credentials { pid: 1, uid: user };
        let (kind, body) = (message.kind(), message.emit());
        state
            .handle(process, credentials, kind, &body, files, NOW, &mut out)
            .expect("a message that parses");
        let refused = out.iter().find_map(|told| match told.message {
            EndpointControl::Reply(reply) if told.to == process => Some(reply.status),
            _ => None,
        });
        self.tell(out);
        refused.unwrap_or(status::DONE)
    }

    /// The program whose client this is.
    fn owner(&self, process: ProcessId) -> ProcessId {
        self.ports.get(&process).copied().unwrap_or(process)
    }

    /// The client that asks about the ports of a program.
    fn asks(&self, process: ProcessId) -> Option<ProcessId> {
        match self.programs[&process].kind {
            Kind::Port => Some(process),
            Kind::Memory(port) => port,
        }
    }

    /// A program opens its port, or says that it has none.
    fn attach(&mut self, process: ProcessId) {
        let Kind::Memory(None) = self.programs[&process].kind else { return };
        let vpid = self.programs[&process].address.vpid.0;
        if self.random.random_ratio(1, 10) {
            self.ask(process, NoPort { vpid });
            return;
        }
        let port = ProcessId(self.number());
        self.ports.insert(port, process);
        self.programs.get_mut(&process).expect("it is there").kind = Kind::Memory(Some(port));
        if self.say_port(process, port) != status::DONE {
            // It has said that it opens none.
            self.programs.get_mut(&process).expect("it is there").kind = Kind::Memory(None);
        }
    }

    fn say_port(&mut self, process: ProcessId, port: ProcessId) -> u16 {
        let (vpid, birth) = (self.programs[&process].address.vpid.0, self.programs[&process].birth);
        let name = PortName::of(&port.0.to_le_bytes()).expect("short");
        self.ask(port, Attach { ticket: 2, vpid, birth, depth: 8, name })
    }

    /// A program loses its port, and goes on with its memory.
    fn unplug(&mut self, process: ProcessId) {
        let program = self.programs.get_mut(&process).expect("it is there");
        let Kind::Memory(Some(port)) = program.kind else { return };
        program.kind = Kind::Memory(None);
        program.met.clear();
        self.gone(process, port);
    }

    fn gone(&mut self, process: ProcessId, client: ProcessId) {
        let node = self.programs[&process].address.node;
        let mut out = Vec::new();
        self.states.get_mut(&node).expect("a node").process_gone(client, &mut out);
        self.tell(out);
    }

    /// A broker's messages reach programs at once, and other brokers later.
    fn tell(&mut self, out: Vec<Outgoing>) {
        for told in out {
            let owner = self.owner(told.to);
            let Some(program) = self.programs.get_mut(&owner) else { continue };
            let is_of_port = match program.kind {
                Kind::Port => true,
                Kind::Memory(port) => port == Some(told.to),
            };
            assert!(
                is_of_port
                    || !matches!(
                        told.message,
                        EndpointControl::Met(_) | EndpointControl::Parted(_)
                    ),
                "the client of the port alone hears of meetings"
            );
            match told.message {
                EndpointControl::Opened(opened) => {
                    program.address = EndpointAddress::new(NodeId(opened.node), Vpid(opened.vpid));
                    program.host =
                        Some(EndpointAddress::new(NodeId(opened.host_node), Vpid(opened.host)));
                }
                EndpointControl::Met(met) => {
                    let with = EndpointAddress::new(NodeId(met.node), Vpid(met.peer));
                    program.met.insert(with, (met.secret.0, met.greets_first != 0));
                }
                EndpointControl::Parted(parted) => {
                    let with = EndpointAddress::new(NodeId(parted.node), Vpid(parted.peer));
                    let is_it = |met: &([u8; 16], bool)| met.0 == parted.secret.0;
                    if program.met.get(&with).is_some_and(is_it) {
                        program.met.remove(&with);
                    }
                }
                EndpointControl::PortWanted(_) => program.is_wanted = true,
                _ => {}
            }
        }
        for (node, state) in &mut self.states {
            for (to, message) in state.take_node_messages() {
                if let Some(Some(queue)) = self.links.get_mut(&(*node, to)) {
                    let bytes = message.emit();
                    queue.push_back(NodeMessage::parse(&bytes).expect("it was written"));
                }
            }
        }
    }

    fn open(&mut self, node: NodeId) {
        let flags = if self.random.random() { flags::PORT_LATER } else { flags::PORT };
        self.open_as(node, OWNER, Open { flags, ..Open::default() });
    }

    fn open_as(&mut self, node: NodeId, user: u32, open: Open) -> ProcessId {
        let process = ProcessId(self.number());
        let birth = self.random.next_u64();
        let address = EndpointAddress::new(node, Vpid(0xffff));
        let has_memory = open.flags & flags::PORT_LATER != 0;
        let kind = if has_memory { Kind::Memory(None) } else { Kind::Port };
        let met = BTreeMap::new();
        let program = Program { address, birth, user, met, kind, host: None, is_wanted: false };
        self.programs.insert(process, program);
        let open = Open { ticket: 1, birth, vpid: 0xffff, ..open };
        if self.ask(process, open) != status::DONE {
            self.programs.remove(&process);
            return process;
        }
        // A guest's ticket is good when another node says so.
        while self.programs[&process].address.vpid.0 == 0xffff && self.deliver() {}
        if !has_memory {
            self.name_port(process);
        }
        process
    }

    fn name_port(&mut self, process: ProcessId) {
        let name = PortName::of(&process.0.to_le_bytes()).expect("short");
        let vpid = self.programs[&process].address.vpid.0;
        let named = self.ask(process, Port { ticket: 2, vpid, depth: 8, name });
        assert_eq!(named, status::DONE);
    }

    fn close(&mut self, process: ProcessId) {
        self.unplug(process);
        self.gone(process, process);
        self.programs.remove(&process);
    }

    fn meet(&mut self, process: ProcessId, to: EndpointAddress) {
        let number = u128::from(self.number()) << 64 | u128::from(self.random.next_u64());
        let vpid = self.programs[&process].address.vpid.0;
        let (node, peer, secret) = (to.node.0, to.vpid.0, Secret(number.to_le_bytes()));
        if !self.programs[&process].met.contains_key(&to)
            && let Some(client) = self.asks(process)
        {
            self.ask(client, Meet { ticket: 3, vpid, node, peer, secret });
        }
    }

    fn part(&mut self, process: ProcessId) {
        let program = self.programs.get_mut(&process).expect("it is there");
        let Some((with, (secret, _))) = program.met.pop_first() else { return };
        let (node, peer, secret) = (with.node.0, with.vpid.0, Secret(secret));
        let vpid = program.address.vpid.0;
        let client = self.asks(process).expect("it has met somebody");
        self.ask(client, Part { vpid, node, peer, secret });
    }

    fn join(&mut self, one: NodeId, two: NodeId) {
        for (from, to) in [(one, two), (two, one)] {
            if let Some(link @ None) = self.links.get_mut(&(from, to)) {
                *link = Some(VecDeque::new());
            }
        }
        for (at, other) in [(one, two), (two, one)] {
            self.states.get_mut(&at).expect("a node").node_up(other);
            self.tell(Vec::new());
        }
    }

    fn cut(&mut self, one: NodeId, two: NodeId) {
        for (at, other) in [(one, two), (two, one)] {
            self.links.insert((at, other), None);
            let mut out = Vec::new();
            self.states.get_mut(&at).expect("a node").node_down(other, &mut out);
            self.tell(out);
        }
    }

    /// The broker of a node is killed and started anew. Its programs come back, or have ended.
    fn restart(&mut self, node: NodeId) {
        for other in (0..NODES).map(NodeId).filter(|other| *other != node) {
            self.cut(node, other);
        }
        self.states.insert(node, broker(node));
        let own = |program: &Program| program.address.node == node;
        let own: Vec<_> =
            self.programs.iter().filter(|(_, p)| own(p)).map(|(process, _)| *process).collect();
        for process in own {
            if self.random.random_ratio(1, 4) {
                self.programs.remove(&process);
                continue;
            }
            self.come_back(process, PartitionId::of_user(OWNER));
            let other = NodeId(self.random.random_range(0..NODES));
            if other != node && self.links[&(node, other)].is_none() {
                self.join(node, other);
            }
            for _ in 0..self.random.random_range(0..3) {
                self.deliver();
            }
        }
        for other in (0..NODES).map(NodeId).filter(|other| *other != node) {
            if self.links[&(node, other)].is_none() && self.random.random() {
                self.join(node, other);
            }
        }
        for _ in 0..self.random.random_range(0..20) {
            self.deliver();
        }
        self.settle(node);
    }

    /// A program announces itself to a broker that was started anew.
    fn come_back(&mut self, process: ProcessId, partition: PartitionId) {
        let Program { address, birth, kind, .. } = self.programs[&process];
        let vpid = address.vpid.0;
        let way = if kind == Kind::Port { flags::PORT } else { flags::PORT_LATER };
        let flags = way | flags::AGAIN | flags::PARTITION;
        let partition = partition.0;
        let open = Open { ticket: 1, birth, vpid, flags, partition, ..Open::default() };
        assert_eq!(self.ask(process, open), status::DONE);
        match kind {
            Kind::Port => self.name_port(process),
            Kind::Memory(None) => {}
            Kind::Memory(Some(port)) => assert_eq!(self.say_port(process, port), status::DONE),
        }
        for (with, (secret, greets)) in self.programs[&process].met.clone() {
            let client = self.asks(process).expect("it has met somebody");
            let (node, peer, secret) = (with.node.0, with.vpid.0, Secret(secret));
            let greets_first = greets.into();
            self.ask(client, Recall { vpid, node, peer, secret, greets_first });
        }
    }

    fn settle(&mut self, node: NodeId) {
        let mut out = Vec::new();
        self.states.get_mut(&node).expect("a node").settle(&mut out);
        self.tell(out);
    }

    /// Delivers one message of any link. False if there is none.
    fn deliver(&mut self) -> bool {
        let filled = |queue: &Option<VecDeque<_>>| queue.as_ref().is_some_and(|q| !q.is_empty());
        let filled: Vec<_> =
            self.links.iter().filter(|(_, queue)| filled(queue)).map(|(link, _)| *link).collect();
        let Some((from, to)) = filled.choose(&mut self.random).copied() else { return false };
        let queue = self.links.get_mut(&(from, to)).and_then(Option::as_mut).expect("it is filled");
        let message = queue.pop_front().expect("it is filled");
        let mut out = Vec::new();
        self.states.get_mut(&to).expect("a node").node_says(from, message, NOW, &mut out);
        self.tell(out);
        true
    }

    fn step(&mut self) {
        let processes: Vec<_> = self.programs.keys().copied().collect();
        let process = processes.choose(&mut self.random).copied();
        let addresses: Vec<_> = self.programs.values().map(|program| program.address).collect();
        let node = NodeId(self.random.random_range(0..NODES));
        let other = NodeId(self.random.random_range(0..NODES));
        match (self.random.random_range(0..100), process) {
            (0..10, _) => self.open(node),
            (10..14, Some(process)) => self.close(process),
            (14..40, Some(process)) => {
                let to = addresses.choose(&mut self.random).copied().expect("there are some");
                self.meet(process, to);
            }
            (40..50, Some(process)) => self.part(process),
            (50..52, _) if node != other => self.cut(node, other),
            (52..57, _) if node != other && self.links[&(node, other)].is_none() => {
                self.join(node, other);
            }
            (57, _) => self.restart(node),
            (58..60, Some(process)) => self.unplug(process),
            (60..70, Some(process))
                if std::mem::take(
                    &mut self.programs.get_mut(&process).expect("it is there").is_wanted,
                ) =>
            {
                self.attach(process);
            }
            (70..73, Some(process)) => self.attach(process),
            _ => {
                self.deliver();
            }
        }
    }

    /// Joins all nodes and delivers everything.
    fn converge(&mut self) {
        for (one, two) in [(0, 1), (0, 2), (1, 2)] {
            let (one, two) = (NodeId(one), NodeId(two));
            if self.links[&(one, two)].is_none() {
                self.join(one, two);
            }
        }
        while self.deliver() {}
        // Those who still wait for a port have waited long enough.
        for node in (0..NODES).map(NodeId) {
            let mut out = Vec::new();
            let state = self.states.get_mut(&node).expect("a node");
            state.handle_timeout(NOW + PORT_WITHIN, &mut out);
            assert_eq!(state.poll_timeout(), None, "nobody waits any more");
            self.tell(out);
        }
        while self.deliver() {}
    }

    fn check(&self) {
        let at: BTreeMap<_, _> = self.programs.values().map(|p| (p.address, p)).collect();
        assert_eq!(at.len(), self.programs.len(), "each endpoint has an address of its own");
        for (address, program) in &at {
            for (with, (secret, greets_first)) in &program.met {
                let other =
                    at.get(with).unwrap_or_else(|| panic!("{address} met {with}, which ended"));
                let theirs = other.met.get(address);
                assert_eq!(theirs.map(|met| met.0), Some(*secret), "{address} met {with}");
                if address != with {
                    assert_ne!(theirs.map(|met| met.1), Some(*greets_first), "one greets");
                }
            }
            let entry = self.states[&address.node].entry(address.vpid.0).expect("it is open");
            assert!(entry.met.keys().eq(program.met.keys()), "{address} and its broker agree");
            let client = match entry.port {
                PortState::Open(_, client) => Some(client),
                _ => None,
            };
            let expected = match program.kind {
                Kind::Port => client,
                Kind::Memory(port) => port,
            };
            assert_eq!(client, expected, "{address} has its port");
        }
    }
}

fn run(seed: u64) -> usize {
    let mut world = World::new(seed);
    for node in (0..NODES).map(NodeId) {
        world.settle(node);
    }
    for _ in 0..STEPS {
        world.step();
    }
    world.converge();
    world.check();
    world.programs.values().map(|program| program.met.len()).sum()
}

#[test]
fn both_ends_of_a_meeting_know_it_whatever_becomes_of_brokers_and_links() {
    let seeds = std::env::var("WEFT_SEEDS").unwrap_or_default();
    let (first, last) = seeds.split_once('-').unwrap_or(("1", "200"));
    let (first, last) = (first.parse().expect("a seed"), last.parse::<u64>().expect("a seed"));
    let met: usize = (first..=last)
        .map(|seed| {
            println!("WEFT_SEEDS={seed}-{seed}");
            run(seed)
        })
        .sum();
    assert!(met > 0, "some have met");
}

/// Anything that a broker of another node could say, with numbers that mean something here.
fn anything(random: &mut SmallRng) -> NodeMessage {
    let vpid = random.random_range(0..8);
    let to = if random.random_ratio(1, 10) { 0xffff } else { random.random_range(0..8) };
    let secret = [random.random_range(0..4); 16];
    let number = random.random_range(0..20);
    let listed = |random: &mut SmallRng| Listed {
        vpid: if random.random_ratio(1, 10) { 0xffff } else { random.random_range(0..8) },
        partition: if random.random() { 1000 } else { random.next_u64() },
        groups: random.next_u64(),
        user: random.random_range(999..1002),
        offers: random.random::<bool>().then(|| "n".repeat(random.random_range(0..60))),
    };
    let name = vec![7; random.random_range(0..300)];
    match random.random_range(0..9) {
        0 => NodeMessage::List {
            endpoints: (0..random.random_range(0..5)).map(|_| listed(random)).collect(),
            is_last: random.random(),
            is_settled: random.random(),
        },
        1 => NodeMessage::Meetings {
            meetings: vec![(vpid, to, secret)],
            is_last: random.random(),
            asks: random.random(),
        },
        2 => NodeMessage::Changed(listed(random)),
        3 => NodeMessage::Ended { vpid },
        4 => NodeMessage::Meet { number, from: vpid, depth: 9, name, to, secret },
        5 => {
            let outcome = match random.random_range(0..4) {
                0 => Ok((random.random(), name)),
                1 => Err(Refusal::NotFound),
                2 => Err(Refusal::NoPort),
                _ => Err(Refusal::Full(random.random())),
            };
            NodeMessage::Met { number, outcome }
        }
        6 => NodeMessage::Ticket { number, ticket: secret },
        7 => NodeMessage::Invited { number, host: random.random::<bool>().then_some((1000, to)) },
        _ => NodeMessage::Part { from: vpid, to, secret },
    }
}

#[test]
fn a_node_that_says_anything_breaks_nothing() {
    for seed in 1..=60 {
        let mut world = World::new(seed);
        let (own, hostile) = (NodeId(0), NodeId(1));
        for _ in 0..4 {
            world.open(own);
        }
        for _ in 0..600 {
            let mut out = Vec::new();
            let state = world.states.get_mut(&own).expect("a node");
            match world.random.random_range(0..20) {
                0 => state.node_up(hostile),
                1 => state.node_down(hostile, &mut out),
                2..5 => {
                    let to = EndpointAddress::new(hostile, Vpid(world.random.random_range(0..8)));
                    let processes: Vec<_> = world.programs.keys().copied().collect();
                    let process = *processes.choose(&mut world.random).expect("four");
                    world.meet(process, to);
                }
                _ => state.node_says(hostile, anything(&mut world.random), NOW, &mut out),
            }
            world.tell(out);
        }
        let state = &world.states[&own];
        assert_eq!(state.endpoints(), 4, "the node's own endpoints are there");
        for program in world.programs.values() {
            let entry = state.entry(program.address.vpid.0).expect("it is open");
            assert!(entry.met.len() <= 16, "peers of this node and of the other");
        }
    }
}

/// Two nodes: a guest on the first, endpoints of the owner on both and a member of another user.
/// The guest has met one of them.
struct Party {
    world: World,
    partition: PartitionId,
    guest: ProcessId,
    owner: ProcessId,
    other: ProcessId,
    /// Of the owner, on the second node.
    third: ProcessId,
}

const GUEST: u32 = 1001;
const HOME: NodeId = NodeId(0);
const AWAY: NodeId = NodeId(1);

impl Party {
    /// The guest has met an endpoint of this user, at this node.
    fn new(of_met: u32, at: NodeId) -> Self {
        let mut world = World::new(1);
        (0..NODES).map(NodeId).for_each(|node| world.settle(node));
        world.join(HOME, AWAY);
        let partition = PartitionId::of_user(OWNER).0 | 7 << 32;
        let (flags, into) = (flags::PORT, flags::PORT | flags::PARTITION);
        let third = world.open_as(AWAY, OWNER, Open { flags: into, partition, ..Open::default() });
        let owner = world.open_as(AWAY, OWNER, Open { flags: into, partition, ..Open::default() });
        let other = world.open_as(HOME, OWNER, Open { flags: into, partition, ..Open::default() });
        let mut guests = [GUEST, 1002].into_iter().zip([HOME, at]).map(|(user, node)| {
            let invitation =
                Invitation(world.number().to_le_bytes().repeat(2).try_into().expect("16"));
            let vpid = world.programs[&owner].address.vpid.0;
            let within_ms = 1_000;
            world.ask(owner, Invite { ticket: 5, vpid, invitation, within_ms });
            let flags = flags | flags::INVITATION;
            world.open_as(node, user, Open { flags, invitation, ..Open::default() })
        });
        let (guest, member) = (guests.next().expect("two"), guests.next().expect("two"));
        drop(guests);
        let met = [owner, other, member].into_iter().find(|process| {
            let program = &world.programs[process];
            program.user == of_met && program.address.node == at
        });
        let to = world.programs[&met.expect("there is such a one")].address;
        while world.deliver() {}
        world.meet(guest, to);
        while world.deliver() {}
        assert!(world.programs[&guest].met.contains_key(&to));
        let partition = PartitionId(partition);
        Self { world, partition, guest, owner, other, third }
    }

    /// The broker of the guest's node is started anew. The others on it come back.
    fn restart(&mut self, guest_is_first: bool, joins_early: bool) {
        self.world.cut(HOME, AWAY);
        self.world.states.insert(HOME, broker(HOME));
        let mut all = vec![self.other, self.guest];
        if guest_is_first {
            all.reverse();
        }
        if joins_early {
            self.world.join(HOME, AWAY);
            while self.world.deliver() {}
        }
        all.into_iter().for_each(|process| self.world.come_back(process, self.partition));
        while self.world.deliver() {}
        self.world.settle(HOME);
        if !joins_early {
            self.world.join(HOME, AWAY);
        }
        while self.world.deliver() {}
    }

    /// Whether the guest can meet one that it has not met.
    fn is_inside(&mut self) -> bool {
        for process in [self.owner, self.other, self.third] {
            let to = self.world.programs[&process].address;
            self.world.meet(self.guest, to);
            while self.world.deliver() {}
            if !self.world.programs[&self.guest].met.contains_key(&to) {
                return false;
            }
        }
        true
    }

    fn guests_entry_is_there(&self) -> bool {
        let vpid = self.world.programs[&self.guest].address.vpid.0;
        self.world.states[&HOME].entry(vpid).is_some()
    }
}

#[test]
fn a_guest_comes_back_when_an_endpoint_of_the_owner_on_any_node_has_met_it() {
    for at in [HOME, AWAY] {
        for (guest_is_first, joins_early) in [(false, false), (true, false), (false, true)] {
            let mut party = Party::new(OWNER, at);
            party.restart(guest_is_first, joins_early);
            assert!(party.is_inside(), "{at:?} {guest_is_first} {joins_early}");
        }
    }
}

#[test]
fn a_stranger_does_not_come_in_as_a_guest_that_was_there() {
    // Met by a guest, who vouches for nobody: it stays outside with the peer that it has.
    let mut party = Party::new(1002, AWAY);
    party.restart(false, false);
    assert!(!party.is_inside() && party.guests_entry_is_there());
    // With a wrong secret, or in another partition than that of its peer: it is removed, or stays
    // outside.
    for at in [HOME, AWAY] {
        let mut wrong = Party::new(OWNER, at);
        let guest = wrong.world.programs.get_mut(&wrong.guest).expect("it is there");
        guest.met.values_mut().for_each(|(secret, _)| secret[0] ^= 1);
        wrong.restart(at == HOME, false);
        assert!(!wrong.is_inside());
        // On its own node both ends say that they have met, so that they are not parted.
        assert_eq!(wrong.guests_entry_is_there(), at == HOME);
    }
    let mut other = Party::new(OWNER, AWAY);
    other.world.cut(HOME, AWAY);
    other.world.states.insert(HOME, broker(HOME));
    other.world.come_back(other.guest, PartitionId(other.partition.0 ^ 1 << 40));
    other.world.settle(HOME);
    other.world.join(HOME, AWAY);
    while other.world.deliver() {}
    let vpid = other.world.programs[&other.guest].address.vpid.0;
    let entry = other.world.states[&HOME].entry(vpid);
    assert!(entry.is_none_or(|entry| !entry.is_member), "no partition that it was not in");
    // Without any meeting nobody can vouch for it.
    let mut alone = Party::new(OWNER, AWAY);
    alone.world.programs.get_mut(&alone.guest).expect("it is there").met.clear();
    alone.restart(false, true);
    assert!(!alone.guests_entry_is_there());
}

/// Three nodes whose users may use each other's services.
struct Market {
    world: World,
    name: [u8; 48],
}

impl Market {
    fn new() -> Self {
        let mut world = World::new(3);
        for node in (0..NODES).map(NodeId) {
            let policy = ServicePolicy::parse("1000:kv:1001").expect("rules");
            world.states.insert(node, broker(node).with_policy(policy));
            world.settle(node);
        }
        for (one, two) in [(0, 1), (0, 2), (1, 2)] {
            world.join(NodeId(one), NodeId(two));
        }
        while world.deliver() {}
        Self { world, name: ServiceName::new("kv").expect("a name").padded() }
    }

    /// Offers the service at a node.
    fn offer(&mut self, node: u32) -> ProcessId {
        let flags = flags::PORT | flags::PARTITION | flags::OFFER;
        let partition = PartitionId::of_user_named(OWNER, 7 + node).0;
        let open = Open { flags, partition, name: self.name, ..Open::default() };
        let process = self.world.open_as(NodeId(node), OWNER, open);
        while self.world.deliver() {}
        process
    }

    /// The node of the service that a user at a node finds, there if one is given.
    fn find(&mut self, user: u32, node: u32, at: Option<u32>) -> Option<u32> {
        let flags = flags::PORT | flags::SERVICE | at.map_or(0, |_| flags::SERVICE_AT);
        let (name, at) = (self.name, at.unwrap_or_default());
        let open = Open { flags, name, node: at, ..Open::default() };
        let process = self.world.open_as(NodeId(node), user, open);
        let host = self.world.programs.get(&process)?.host?;
        self.world.close(process);
        Some(host.node.0)
    }
}

#[test]
fn a_service_is_found_by_its_name_on_each_node() {
    let mut market = Market::new();
    assert_eq!(market.find(GUEST, 0, None), None);
    let (one, two) = (market.offer(1), market.offer(2));
    assert!(market.world.programs.contains_key(&two), "each node has its own names");
    let again = market.offer(2);
    assert!(!market.world.programs.contains_key(&again), "a name is offered once on a node");
    // The own node goes before others, and those by their numbers.
    let found = [0, 1, 2].map(|node| market.find(GUEST, node, None));
    assert_eq!(found, [Some(1), Some(1), Some(2)]);
    let found = [0, 1, 2].map(|at| market.find(GUEST, 0, Some(at)));
    assert_eq!(found, [None, Some(1), Some(2)]);
    assert_eq!(market.find(GUEST + 1, 0, None), None, "the rules do not name the user");
    let offered: Vec<_> = market.world.states[&NodeId(0)].offers().collect();
    let offered: Vec<_> = offered.iter().map(|one| (one.name, one.address.node.0)).collect();
    assert_eq!(offered, [("kv", 1), ("kv", 2)]);
    // A name goes with its endpoint, and with its node.
    market.world.close(one);
    while market.world.deliver() {}
    assert_eq!([None, Some(1)].map(|at| market.find(GUEST, 0, at)), [Some(2), None]);
    market.world.cut(NodeId(0), NodeId(2));
    assert_eq!(market.find(GUEST, 0, None), None);
    market.world.join(NodeId(0), NodeId(2));
    while market.world.deliver() {}
    assert_eq!(market.find(GUEST, 0, None), Some(2));
}
