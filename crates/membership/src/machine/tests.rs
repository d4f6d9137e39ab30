//! The machine among others, over a network in memory with virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use weft_fabric::NodeId;

use super::*;
use crate::message::NODES_MAX;

const SILENCE: Duration = Duration::from_secs(2);

fn address(place: usize) -> SocketAddr {
    format!("10.9.0.{}:7700", place + 1).parse().expect("an address")
}

fn identity(place: usize) -> Identity {
    Identity([u8::try_from(place + 1).expect("few"); 32])
}

/// A host: its daemon, and what is left when that dies.
struct Host {
    identity: Identity,
    fabric: String,
    seeds: Vec<SocketAddr>,
    machine: Option<Machine>,
    kept: Option<Roster>,
    starts: u64,
    /// The nodes that were told to be up.
    up: BTreeMap<u32, u64>,
    complaints: BTreeSet<String>,
    messages: usize,
}

/// One connection: host and connection of each side. The second is there when it has arrived.
struct Link {
    ends: [(usize, Option<ConnectionId>); 2],
    is_open: bool,
    /// Nothing arrives any more, and nobody is told.
    is_dark: bool,
}

#[derive(Clone)]
enum Arrival {
    Connected,
    Proved { end: usize },
    Message { end: usize, message: Message },
    Closed { end: usize },
}

struct Net {
    hosts: Vec<Host>,
    links: Vec<Link>,
    arrivals: BTreeMap<(Duration, u64), (usize, Arrival)>,
    sequence: u64,
    now: Duration,
    random: u64,
    cut: BTreeSet<(usize, usize)>,
    /// All numbers that were ever kept, with their identity.
    numbers: BTreeMap<u32, Identity>,
}

impl Net {
    fn new(count: usize, seed: u64) -> Self {
        let host = |place: usize| Host {
            identity: identity(place),
            fabric: "f".to_owned(),
            seeds: if place == 0 { vec![] } else { vec![address(0)] },
            machine: None,
            kept: None,
            starts: 0,
            up: BTreeMap::new(),
            complaints: BTreeSet::new(),
            messages: 0,
        };
        Self {
            hosts: (0..count).map(host).collect(),
            links: Vec::new(),
            arrivals: BTreeMap::new(),
            sequence: 0,
            now: Duration::ZERO,
            random: seed,
            cut: BTreeSet::new(),
            numbers: BTreeMap::new(),
        }
    }

    fn random(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % bound
    }

    fn start(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        host.starts += 1;
        host.up.clear();
        let about = NodeAbout {
            name: format!("h{place}"),
            address: address(place),
            release: "1".to_owned(),
            facts: Vec::new(),
        };
        let config = MachineConfig {
            fabric: host.fabric.clone(),
            own: host.identity,
            about,
            incarnation: host.starts * 1_000 + u64::try_from(place).expect("few"),
            is_first: host.seeds.is_empty(),
            seeds: host.seeds.clone(),
            silence: SILENCE,
        };
        host.machine = Some(Machine::new(config, host.kept.clone(), self.now));
        self.drain(place);
    }

    /// The daemon dies; its peers hear of it, or do not, as where the power failed.
    fn kill(&mut self, place: usize, is_told: bool) {
        self.hosts[place].machine = None;
        for link in 0..self.links.len() {
            let Some(end) = self.links[link].ends.iter().position(|(host, _)| *host == place)
            else {
                continue;
            };
            if is_told {
                self.arrive(link, Arrival::Closed { end: 1 - end });
            } else {
                self.links[link].is_dark = true;
            }
        }
    }

    fn is_cut(&self, link: usize) -> bool {
        let [(one, _), (other, _)] = self.links[link].ends;
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    fn arrive(&mut self, link: usize, arrival: Arrival) {
        let delay = Duration::from_micros(50 + self.random(20_000));
        // Bytes of a connection stay in order.
        let last = self.arrivals.iter().filter(|(_, (other, _))| *other == link);
        let last = last.map(|((at, _), _)| *at).max().unwrap_or_default();
        self.sequence += 1;
        let at = (self.now + delay).max(last);
        self.arrivals.insert((at, self.sequence), (link, arrival));
    }

    /// Carries out what a machine wants.
    fn drain(&mut self, place: usize) {
        while let Some(output) = self.hosts[place].machine.as_mut().and_then(Machine::output) {
            match output {
                Output::Dial { connection, address: to } => {
                    let other = (0..self.hosts.len()).find(|other| address(*other) == to);
                    let other = other.expect("a host of the network");
                    let ends = [(place, Some(connection)), (other, None)];
                    self.links.push(Link { ends, is_open: true, is_dark: false });
                    self.arrive(self.links.len() - 1, Arrival::Connected);
                }
                Output::Send { connection, message } => {
                    let parsed = Message::parse(&message.emit());
                    assert_eq!(parsed.as_ref(), Ok(&message), "others take it");
                    if let Some((link, end)) = self.find(place, connection) {
                        self.arrive(link, Arrival::Message { end: 1 - end, message });
                    }
                }
                Output::Close { connection } => {
                    if let Some((link, end)) = self.find(place, connection) {
                        self.links[link].ends[end].1 = None;
                        self.arrive(link, Arrival::Closed { end: 1 - end });
                    }
                }
                Output::Save(roster) => self.save(place, roster),
                Output::Tell(event) => self.told(place, event),
                Output::Complain { fault, .. } => {
                    self.hosts[place].complaints.insert(fault.to_string());
                }
            }
        }
    }

    fn save(&mut self, place: usize, roster: Roster) {
        assert!(roster.is_valid());
        for member in &roster.members {
            let known = self.numbers.entry(member.number).or_insert(member.identity);
            assert_eq!(*known, member.identity, "number {} twice", member.number);
        }
        self.hosts[place].kept = Some(roster);
    }

    fn told(&mut self, place: usize, event: Event) {
        let host = &mut self.hosts[place];
        match event {
            Event::Numbered(node) => {
                let kept = host.kept.as_ref().and_then(|kept| kept.of_number(node.0));
                assert_eq!(kept.expect("kept before it is told").identity, host.identity);
            }
            Event::Up { node, incarnation, .. } => {
                let before = host.up.insert(node.0, incarnation);
                assert_eq!(before, None, "{node:?} was up at {place}");
                // A message behind each Up, which must find the other side ready.
                let machine = host.machine.as_mut().expect("it told");
                machine.send_user(node, vec![7; 3]).expect("it is up");
            }
            Event::Down { node, .. } => {
                assert!(host.up.remove(&node.0).is_some(), "{node:?} was not up at {place}");
            }
            Event::Message { node, bytes } => {
                assert!(host.up.contains_key(&node.0), "a message of {node:?} that is not up");
                assert_eq!(bytes, [7; 3]);
                host.messages += 1;
            }
        }
    }

    fn find(&self, place: usize, connection: ConnectionId) -> Option<(usize, usize)> {
        let end = (place, Some(connection));
        let mut links = self.links.iter().enumerate().rev();
        links.find_map(|(link, found)| {
            let place = found.ends.iter().position(|other| *other == end)?;
            found.is_open.then_some((link, place))
        })
    }

    fn deliver(&mut self, link: usize, arrival: Arrival) {
        if self.is_cut(link) {
            self.links[link].is_dark = true;
        }
        if self.links[link].is_dark || !self.links[link].is_open {
            return;
        }
        let now = self.now;
        match arrival {
            Arrival::Connected => {
                let [(from, _), (to, _)] = self.links[link].ends;
                let Some(machine) = self.hosts[to].machine.as_mut() else {
                    self.arrive(link, Arrival::Closed { end: 0 });
                    return;
                };
                let connection = machine.inbound(format!("h{from}"), now);
                self.links[link].ends[1].1 = Some(connection);
                self.arrive(link, Arrival::Proved { end: 0 });
                self.arrive(link, Arrival::Proved { end: 1 });
            }
            Arrival::Proved { end } => {
                let (place, connection) = self.links[link].ends[end];
                let identity = self.hosts[self.links[link].ends[1 - end].0].identity;
                self.with(place, connection, |machine, id| machine.proved(id, identity, now));
            }
            Arrival::Message { end, message } => {
                let (place, connection) = self.links[link].ends[end];
                self.with(place, connection, |machine, id| machine.message(id, message, now));
            }
            Arrival::Closed { end } => {
                let (place, connection) = self.links[link].ends[end];
                self.links[link].is_open = false;
                let fault = Fault::Other("the connection ended".to_owned());
                self.with(place, connection, |machine, id| machine.closed(id, &fault, now));
            }
        }
    }

    fn with(
        &mut self,
        place: usize,
        connection: Option<ConnectionId>,
        act: impl FnOnce(&mut Machine, ConnectionId),
    ) {
        if let (Some(machine), Some(id)) = (self.hosts[place].machine.as_mut(), connection) {
            act(machine, id);
            self.drain(place);
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let step = self.now + Duration::from_millis(10);
            let next = self.arrivals.keys().next().map_or(step, |(at, _)| (*at).min(step));
            self.now = next.max(self.now);
            while let Some(entry) = self.arrivals.first_entry() {
                if entry.key().0 > self.now {
                    break;
                }
                let (link, arrival) = entry.remove();
                self.deliver(link, arrival);
            }
            for place in 0..self.hosts.len() {
                let Some(machine) = self.hosts[place].machine.as_mut() else { continue };
                if machine.wakes_at() <= self.now {
                    machine.tick(self.now);
                    self.drain(place);
                }
            }
        }
    }

    fn machine(&mut self, place: usize) -> &mut Machine {
        self.hosts[place].machine.as_mut().expect("its daemon runs")
    }

    fn number(&mut self, place: usize) -> u32 {
        self.machine(place).number().expect("it was admitted").0
    }

    fn assert_mesh(&mut self, places: &[usize], seed: u64) {
        let numbers: Vec<u32> = places.iter().map(|place| self.number(*place)).collect();
        for place in places {
            let own = self.number(*place);
            for number in numbers.iter().filter(|number| **number != own) {
                let nodes = self.machine(*place).nodes();
                assert!(
                    self.hosts[*place].up.contains_key(number),
                    "seed {seed}: {number} is not up at {own}: {nodes:?}"
                );
            }
            assert_eq!(self.hosts[*place].up.len(), numbers.len() - 1, "seed {seed}");
        }
    }

    fn state(&mut self, place: usize) -> NodeState {
        let own = address(place);
        let nodes = self.machine(place).nodes();
        nodes.iter().find(|node| node.address == own).expect("it is there").state.clone()
    }
}

#[test]
fn hosts_join_in_any_order_and_see_each_other() {
    for seed in 0..50 {
        let mut net = Net::new(5, seed);
        for place in [3, 1, 0, 4, 2] {
            net.start(place);
            let pause = net.random(300);
            net.run(Duration::from_millis(pause));
        }
        net.run(Duration::from_secs(15));
        net.assert_mesh(&[0, 1, 2, 3, 4], seed);
        assert_eq!(net.number(0), 0);
        assert!(net.hosts.iter().all(|host| host.messages >= 4), "messages come after each Up");
        assert!(net.hosts.iter().all(|host| host.complaints.is_empty()));
    }
}

#[test]
fn a_host_that_joins_at_leisure_is_up_once() {
    let mut net = Net::new(3, 1);
    for place in 0..3 {
        net.start(place);
        net.run(Duration::from_secs(4));
    }
    // Each has told every other one once that it is up, and got one message for it.
    assert!(net.hosts.iter().all(|host| host.messages == 2));
    assert_eq!(net.links.len(), 3, "a connection for each two hosts");
}

#[test]
fn after_any_accidents_numbers_are_the_same_and_all_that_live_are_up() {
    for seed in 0..60 {
        let mut net = Net::new(5, seed);
        (0..5).for_each(|place| net.start(place));
        net.run(Duration::from_secs(8));
        let before: Vec<u32> = (0..5).map(|place| net.number(place)).collect();
        for _ in 0..12 {
            let place = usize::try_from(net.random(5)).expect("few");
            let other = usize::try_from(net.random(5)).expect("few");
            match net.random(4) {
                0 if net.hosts[place].machine.is_some() => {
                    let is_told = net.random(2) == 0;
                    net.kill(place, is_told);
                }
                1 if net.hosts[place].machine.is_none() => net.start(place),
                2 if place != other => {
                    net.cut.insert((place.min(other), place.max(other)));
                }
                _ => net.cut.clear(),
            }
            let pause = net.random(4_000);
            net.run(Duration::from_millis(pause));
        }
        net.cut.clear();
        for place in 0..5 {
            if net.hosts[place].machine.is_none() {
                net.start(place);
            }
        }
        net.run(Duration::from_secs(30));
        net.assert_mesh(&[0, 1, 2, 3, 4], seed);
        let after: Vec<u32> = (0..5).map(|place| net.number(place)).collect();
        assert_eq!(before, after, "seed {seed}");
    }
}

#[test]
fn without_the_first_daemon_nobody_joins_and_the_others_go_on() {
    for seed in 0..20 {
        let mut net = Net::new(4, seed);
        net.hosts[3].seeds = vec![address(1)];
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        net.kill(0, true);
        net.kill(2, true);
        net.run(Duration::from_secs(1));
        net.start(2);
        net.start(3);
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[1, 2], seed);
        assert_eq!(net.machine(3).number(), None);
        let NodeState::Joining(reason) = net.state(3) else { panic!("{:?}", net.state(3)) };
        assert!(reason.contains("first daemon") && reason.contains("10.9.0.1"), "{reason}");
        net.start(0);
        net.run(Duration::from_secs(10));
        net.assert_mesh(&[0, 1, 2, 3], seed);
    }
}

#[test]
fn two_daemons_with_one_identity_are_never_the_same_node() {
    for seed in 0..20 {
        let mut net = Net::new(4, seed);
        (0..3).for_each(|place| net.start(place));
        net.run(Duration::from_secs(5));
        // Host 3 has a copy of the state of host 2.
        net.hosts[3].identity = net.hosts[2].identity;
        net.hosts[3].kept = net.hosts[2].kept.clone();
        net.start(3);
        net.run(Duration::from_secs(4));
        net.assert_mesh(&[0, 1, 2], seed);
        assert_eq!(net.hosts[3].up, BTreeMap::new(), "seed {seed}");
        let told = Refusal::SameIdentity.to_string();
        assert!(net.hosts[3].complaints.contains(&told), "{:?}", net.hosts[3].complaints);
        let is_told = |host: &Host| host.complaints.contains(&told);
        assert!(net.hosts[..2].iter().any(is_told), "the other end says so, too");
        // It takes the place of the other one when that is gone.
        net.kill(2, false);
        net.run(Duration::from_secs(20));
        assert_eq!(net.hosts[3].up.len(), 2, "seed {seed}");
    }
}

#[test]
fn a_node_that_was_expelled_is_told_and_does_not_come_back() {
    let mut net = Net::new(3, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    let node = net.machine(2).number().expect("admitted");
    let now = net.now;
    assert!(matches!(net.machine(1).expel(node, now), Err(NotExpelled::NotFirst(_))));
    assert_eq!(net.machine(0).expel(NodeId(0), now), Err(NotExpelled::Own));
    assert_eq!(net.machine(0).expel(NodeId(77), now), Err(NotExpelled::Unknown(77)));
    net.machine(0).expel(node, now).expect("it is there");
    net.drain(0);
    net.run(Duration::from_secs(3));
    net.assert_mesh(&[0, 1], 1);
    assert!(net.hosts[2].up.is_empty());
    assert!(net.hosts[2].complaints.contains(&Refusal::Expelled.to_string()));
    net.kill(2, true);
    net.start(2);
    net.run(Duration::from_secs(10));
    assert!(net.hosts[2].up.is_empty());
    // With its state removed it has another identity, and gets another number.
    net.kill(2, true);
    net.hosts[2].identity = identity(9);
    net.hosts[2].kept = None;
    net.start(2);
    net.run(Duration::from_secs(10));
    net.assert_mesh(&[0, 1, 2], 1);
    assert_eq!(net.number(2), 3);
}

#[test]
fn another_name_of_the_fabric_is_told_at_both_ends() {
    let mut net = Net::new(2, 1);
    net.hosts[1].fabric = "g".to_owned();
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(3));
    let told = |name: &str| Refusal::Fabric(name.to_owned()).to_string();
    assert!(net.hosts[0].complaints.contains(&told("g")), "{:?}", net.hosts[0].complaints);
    assert!(net.hosts[1].complaints.contains(&told("f")), "{:?}", net.hosts[1].complaints);
    assert!(matches!(net.state(1), NodeState::Refused(reason) if reason.contains("\"f\"")));
}

#[test]
fn two_first_daemons_do_not_mix_their_numbers() {
    let mut net = Net::new(4, 1);
    net.hosts[2].seeds = vec![];
    net.hosts[3].seeds = vec![address(2)];
    (0..4).for_each(|place| net.start_alone(place));
    // Host 3 is told of the other fabric by mistake.
    net.kill(3, true);
    net.hosts[3].seeds = vec![address(0)];
    net.start(3);
    net.run(Duration::from_secs(5));
    let complaints = &net.hosts[3].complaints;
    assert!(complaints.iter().any(|told| told.contains("another first daemon")), "{complaints:?}");
    let complaints = &net.hosts[0].complaints;
    assert!(complaints.iter().any(|told| told.contains("another first daemon")), "{complaints:?}");
    net.assert_mesh(&[0, 1], 1);
}

impl Net {
    /// Starts a daemon whose numbers are those of a fabric of its own.
    fn start_alone(&mut self, place: usize) {
        self.numbers.clear();
        self.start(place);
        self.run(Duration::from_secs(3));
        self.numbers.clear();
    }
}

#[test]
fn an_address_that_changed_is_passed_on() {
    let mut net = Net::new(4, 1);
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    // Host 2 moves to the address of host 3.
    net.kill(2, true);
    net.hosts[3].identity = net.hosts[2].identity;
    net.hosts[3].kept = net.hosts[2].kept.clone();
    net.start(3);
    net.run(Duration::from_secs(10));
    net.assert_mesh(&[0, 1, 3], 1);
    let nodes = net.machine(1).nodes();
    assert!(nodes.iter().any(|node| node.address == address(3)), "{nodes:?}");
}

#[test]
fn a_full_fabric_refuses_and_messages_out_of_order_end_their_connection() {
    let mut net = Net::new(2, 1);
    let member = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64 + 1_000).to_le_bytes());
        crate::message::Member {
            number: u32::try_from(number).expect("few"),
            identity: if number == 0 { identity(0) } else { Identity(bytes) },
            name: "n".to_owned(),
            address: address(0),
            is_expelled: number > 0,
        }
    };
    let members = (0..NODES_MAX).map(member).collect();
    net.hosts[0].kept = Some(Roster { revision: 9, first: identity(0), members });
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(2));
    assert!(net.hosts[1].complaints.contains(&Refusal::Full.to_string()));

    let now = net.now;
    let bad = [Message::Ping, Message::User(vec![1]), Message::Accepted { number: 0 }];
    for message in bad {
        let machine = net.machine(0);
        let id = machine.inbound("a stranger".to_owned(), now);
        machine.proved(id, Identity([99; 32]), now);
        machine.message(id, message, now);
        let outputs: Vec<Output> = std::iter::from_fn(|| machine.output()).collect();
        assert!(outputs.contains(&Output::Close { connection: id }), "{outputs:?}");
    }
}

#[test]
fn arbitrary_messages_of_one_that_has_the_key_break_nothing() {
    for seed in 0..100 {
        let mut net = Net::new(2, seed);
        (0..2).for_each(|place| net.start(place));
        net.run(Duration::from_secs(1));
        let kept = net.hosts[0].kept.clone().expect("founded");
        for _ in 0..40 {
            let now = net.now;
            let stranger = Identity([u8::try_from(net.random(4)).expect("few"); 32]);
            let choices: Vec<u64> = (0..8).map(|_| net.random(7)).collect();
            let changes = net.random(3);
            let machine = net.machine(0);
            let about = machine.config.about.clone();
            let id = machine.inbound("a stranger".to_owned(), now);
            machine.proved(id, stranger, now);
            for choice in choices {
                let mut roster = kept.clone();
                roster.revision = roster.revision.saturating_add(changes);
                let hello = Hello {
                    fabric: "f".to_owned(),
                    incarnation: choice,
                    number: (changes > 0).then_some(u32::try_from(changes).expect("small")),
                    first: (changes > 1).then_some(stranger),
                    about: about.clone(),
                };
                let message = match choice {
                    0 | 1 => Message::Hello(hello),
                    2 => Message::Roster(roster),
                    3 => Message::Accepted { number: u32::try_from(changes).expect("small") },
                    4 => Message::User(vec![7; 3]),
                    5 => Message::Refused(Refusal::Duplicate),
                    _ => Message::Ping,
                };
                net.machine(0).message(id, message, now);
                net.drain(0);
            }
            let machine = net.machine(0);
            machine.closed(id, &Fault::Other("gone".to_owned()), now);
            net.drain(0);
            net.run(Duration::from_millis(20));
        }
        let own = net.machine(0);
        assert_eq!(own.number(), Some(NodeId(0)));
        assert!(own.connections.len() < 50, "nothing grows");
    }
}
