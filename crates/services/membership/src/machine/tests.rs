//! The machine among others, over a network in memory with virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use weft_fabric::NodeId;

use super::*;
use crate::message::NODES_MAX;

#[path = "directory_tests.rs"]
mod directory;
#[path = "moved_tests.rs"]
mod moved;
#[path = "pause_tests.rs"]
mod pause;
#[path = "seeds_tests.rs"]
mod seeds;

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
    seed_names: Vec<String>,
    machine: Option<Machine>,
    kept: Option<Roster>,
    starts: u64,
    /// The nodes that were told to be up.
    up: BTreeMap<u32, u64>,
    complaints: BTreeSet<String>,
    messages: usize,
    /// The directory that it uses, by its place.
    directory: Option<usize>,
    /// When it looks there next.
    looks: Duration,
}

impl Host {
    const fn admission(&self) -> Admission {
        match self.directory {
            Some(_) => Admission::ByDirectory,
            None if self.seeds.is_empty() && self.seed_names.is_empty() => Admission::First,
            None => Admission::ByFirst,
        }
    }
}

/// A directory in memory.
#[derive(Clone, Default)]
struct Store {
    table: Option<Roster>,
    version: u64,
    /// For each number the incarnation, and when it was last heard of.
    present: BTreeMap<u32, (u64, Duration)>,
    is_away: bool,
}

/// How long a presence lasts.
const LEASE: Duration = Duration::from_secs(8);

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
    stores: Vec<Store>,
    hosts: Vec<Host>,
    links: Vec<Link>,
    arrivals: BTreeMap<(Duration, u64), (usize, Arrival)>,
    sequence: u64,
    now: Duration,
    random: u64,
    cut: BTreeSet<(usize, usize)>,
    /// All numbers that were ever kept, with how many had them before, and their identity.
    numbers: BTreeMap<(u32, u32), Identity>,
}

impl Net {
    fn new(count: usize, seed: u64) -> Self {
        let host = |place: usize| Host {
            identity: identity(place),
            fabric: "f".to_owned(),
            seeds: if place == 0 { vec![] } else { vec![address(0)] },
            seed_names: Vec::new(),
            machine: None,
            kept: None,
            starts: 0,
            up: BTreeMap::new(),
            complaints: BTreeSet::new(),
            messages: 0,
            directory: None,
            looks: Duration::ZERO,
        };
        Self {
            stores: vec![Store::default(); 2],
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
            admission: host.admission(),
            seeds: host.seeds.clone(),
            seed_names: host.seed_names.clone(),
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
                Output::Propose { table, version } => self.proposed(place, table, version),
                Output::DirectoryLost(reason) => {
                    self.hosts[place].complaints.insert(reason);
                }
                Output::DirectoryFound => {}
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
            let key = (member.number, member.former);
            let known = self.numbers.entry(key).or_insert(member.identity);
            assert_eq!(*known, member.identity, "number {} twice", member.number);
        }
        self.hosts[place].kept = Some(roster);
    }

    /// A daemon looks at its directory now and then.
    fn look(&mut self, place: usize) {
        let host = &mut self.hosts[place];
        let (Some(machine), Some(store)) = (&mut host.machine, host.directory) else { return };
        if host.looks > self.now {
            return;
        }
        host.looks = self.now + Duration::from_secs(2);
        let store = &mut self.stores[store];
        let news = if store.is_away {
            DirectoryNews::Away("no leader".to_owned())
        } else {
            let now = self.now;
            store.present.retain(|_, (_, heard)| *heard + LEASE > now);
            if let Some(NodeId(number)) = machine.present_as() {
                let own = machine.config.incarnation;
                let holder = store.present.entry(number).or_insert((own, now));
                if holder.0 == own {
                    holder.1 = now;
                }
            }
            let (table, version) = (store.table.clone(), store.version);
            let present = store.present.iter().map(|(number, (one, _))| (*number, *one));
            DirectoryNews::Table { table, version, present: present.collect() }
        };
        machine.directory_says(news, self.now);
        self.drain(place);
    }

    fn proposed(&mut self, place: usize, table: Roster, version: u64) {
        assert!(table.is_valid());
        let host = &mut self.hosts[place];
        let store = &mut self.stores[host.directory.expect("it uses one")];
        host.looks = self.now;
        if store.is_away || store.version != version {
            return;
        }
        (store.table, store.version) = (Some(table), version + 1);
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
                self.look(place);
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
        assert!(net.hosts[..3].iter().any(is_told), "the other end says so, too");
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

/// A table in which no number is free. These hosts are at these numbers; all others were expelled,
/// after so many of their kind that their numbers are not given any more.
fn full(hosts: &[(usize, usize)]) -> Roster {
    let member = |number: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(number as u64 + 1_000).to_le_bytes());
        let host = hosts.iter().find(|(_, at)| *at == number).map(|(host, _)| *host);
        crate::roster::Member {
            number: u32::try_from(number).expect("few"),
            identity: host.map_or(Identity(bytes), identity),
            name: "n".to_owned(),
            address: address(host.unwrap_or(0)),
            is_expelled: host.is_none(),
            former: if host.is_none() { u32::MAX } else { 0 },
        }
    };
    let members = (0..NODES_MAX).map(member).collect();
    Roster { revision: 9, first: identity(0), members, numbering: Numbering::First }
}

#[test]
fn a_full_fabric_refuses_until_a_host_is_expelled_and_its_number_is_given_again() {
    let mut net = Net::new(3, 1);
    // Host 2 has the number 7, and sleeps through all.
    for host in [0, 2] {
        net.hosts[host].kept = Some(full(&[(0, 0), (2, 7)]));
    }
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(2));
    assert!(net.hosts[1].complaints.contains(&Refusal::Full.to_string()));
    let now = net.now;
    net.machine(0).expel(NodeId(7), now).expect("it is there");
    net.drain(0);
    net.run(Duration::from_secs(12));
    assert_eq!(net.number(1), 7);
    net.assert_mesh(&[0, 1], 1);
    // The former one comes back with its old table, and is nobody's node 7.
    net.start(2);
    net.run(Duration::from_secs(12));
    net.assert_mesh(&[0, 1], 1);
    assert_eq!(net.hosts[2].up, BTreeMap::new());
    assert_eq!(net.state(2), NodeState::Refused(Refusal::Expelled.to_string()));
}

#[test]
fn messages_out_of_order_end_their_connection() {
    let mut net = Net::new(1, 1);
    net.start(0);
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

#[test]
fn one_that_knows_the_former_holder_of_a_number_alone_lets_go_of_it_when_it_meets_another() {
    let mut net = Net::new(4, 1);
    let kept = full(&[(0, 0), (1, 1), (2, 2)]);
    (0..3).for_each(|host| net.hosts[host].kept = Some(kept.clone()));
    (0..3).for_each(|place| net.start(place));
    net.run(Duration::from_secs(5));
    net.assert_mesh(&[0, 1, 2], 1);
    // Hosts 1 and 2 are cut off from the first one, which gives the number of host 2 to host 3.
    net.cut.extend([(0, 1), (0, 2), (1, 3), (2, 3)]);
    let now = net.now;
    net.machine(0).expel(NodeId(2), now).expect("it is there");
    net.drain(0);
    net.start(3);
    net.run(Duration::from_secs(5));
    assert_eq!(net.number(3), 2);
    assert!(net.hosts[1].up.contains_key(&2) && net.hosts[2].up.contains_key(&1));
    net.cut.clear();
    net.run(Duration::from_secs(15));
    net.assert_mesh(&[0, 1, 3], 1);
    assert_eq!(net.hosts[2].up, BTreeMap::new());
}

#[test]
fn the_number_of_a_daemon_that_runs_does_not_change_whatever_a_table_says() {
    let mut net = Net::new(2, 1);
    (0..2).for_each(|place| net.start(place));
    net.run(Duration::from_secs(3));
    let now = net.now;
    let mut table = net.hosts[1].kept.clone().expect("it was told");
    table.revision += 1;
    table.members[1].former = 1;
    table.members[1].identity = identity(7);
    table.members.push(crate::roster::Member {
        number: 5,
        identity: identity(1),
        ..table.members[1].clone()
    });
    let machine = net.machine(1);
    let id = machine.inbound("one with the key".to_owned(), now);
    machine.proved(id, identity(0), now);
    let about = machine.config.about.clone();
    let first = Some(identity(0));
    let hello = Hello { fabric: "f".to_owned(), incarnation: 9, number: Some(0), first, about };
    machine.message(id, Message::Hello(hello), now);
    machine.message(id, Message::Roster(table), now);
    assert_eq!(machine.number(), Some(NodeId(1)));
    let own = |one: &NodeStatus| matches!(&one.state, NodeState::Own);
    let nodes = machine.nodes();
    assert!(!nodes.iter().any(own), "it is told that it is out: {nodes:?}");
    // The next holder of its number is not its peer, whatever that says.
    let id = machine.inbound("the next holder".to_owned(), now);
    machine.proved(id, identity(7), now);
    let about = machine.config.about.clone();
    let first = Some(identity(0));
    let hello = Hello { fabric: "f".to_owned(), incarnation: 7, number: Some(1), first, about };
    machine.message(id, Message::Hello(hello), now);
    machine.message(id, Message::Accepted { number: 1 }, now);
    let outputs: Vec<Output> = std::iter::from_fn(|| machine.output()).collect();
    let is_up = |output: &Output| matches!(output, Output::Tell(Event::Up { .. }));
    assert!(!outputs.iter().any(is_up), "{outputs:?}");
    assert!(outputs.contains(&Output::Close { connection: id }), "{outputs:?}");
}
