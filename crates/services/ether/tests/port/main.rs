//! Ports of several nodes: packets from one device reach the others, on every transport.
#![allow(clippy::disallowed_methods, reason = "tests own sockets")]

mod fetches;
mod lives;
#[path = "../venue/mod.rs"]
mod venue;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use weft_ether::groups::LEARN_FOR;
use weft_ether::hostile::{Venue, fuzz_port};
use weft_ether::message::Hello;
use weft_ether::{
    Delivery, Limits, MacAddress, Port, Reach, STALLS_AFTER, Seat, SharedSwitch, Space, Switch, Way,
};
use weft_fabric::{Blocking, Endpoint, MessageHeader, NodeId, PATIENCE};
use zerocopy::IntoBytes;

use venue::{Shm, Sim, Slow};

/// Runs each test at every venue.
macro_rules! everywhere {
    ($($test:ident),* $(,)?) => {
        everywhere!(shm Shm $($test)*);
        everywhere!(sim Sim $($test)*);
        everywhere!(slow Slow $($test)*);
    };
    ($venue:ident $Venue:ident $($test:ident)*) => {
        mod $venue {
            $(#[test] fn $test() { super::$test::<super::$Venue>(); })*
        }
    };
}

everywhere!(
    packets_of_every_size_arrive_once_and_unchanged,
    packets_of_all_sizes_come_in_order_and_wait_for_room,
    packets_that_the_kernel_copies_arrive_unchanged,
    broadcasts_reach_everybody_once_whatever_their_size,
    a_peer_that_does_not_look_stops_its_own_traffic_first,
    packets_for_a_node_that_goes_away_are_lost_and_it_may_come_back,
    a_node_that_came_back_unseen_is_met_again,
    group_packets_go_to_the_nodes_that_joined,
    hosts_are_queried_when_a_port_starts_and_when_another_appears,
    a_forged_address_is_refused_and_named,
    a_node_out_of_reach_gets_nothing_until_it_is_back,
    hosts_are_queried_when_a_cut_link_is_mended,
    short_packets_stay_behind_long_ones,
    the_corpus_of_hostile_nodes_hurts_nobody,
    whatever_a_node_says_hurts_nobody,
    ports_of_one_queue_talk_and_the_ports_of_a_node_share_a_switch,
    devices_with_different_numbers_of_queues_do_not_talk,
);

const NOW: Duration = Duration::from_secs(1_000);
const OFFLOAD: [u8; 12] = [0; 12];

struct Net<V: Venue> {
    venue: V,
    ports: Vec<Port<V::Endpoint>>,
}

impl<V: Venue + Default> Net<V> {
    /// Nodes 0 to `count` - 1, which have greeted each other.
    fn new(count: u32) -> Self {
        Self::at(V::default(), count)
    }
}

impl<V: Venue> Net<V> {
    /// The same at a venue.
    fn at(venue: V, count: u32) -> Self {
        let mut net = Self { venue, ports: Vec::new() };
        for node in 0..count {
            net.add(node, 1);
        }
        net
    }

    /// Adds the ports of a node whose device has `queues` queues.
    fn add(&mut self, node: u32, queues: u8) {
        let switch = SharedSwitch::new(Switch::new(NodeId(node), NOW - LEARN_FOR));
        let segment = V::segment(queues);
        for queue in 0..queues {
            let endpoint = self.venue.open(segment, Seat { node: NodeId(node), queue });
            let (switch, limits) = (switch.clone(), Limits::default());
            self.ports.push(Port::new(endpoint, segment, switch, limits, NOW - LEARN_FOR));
        }
        self.settle();
    }

    /// Polls all ports until nothing happens. Returns the packets that each port delivered.
    fn settle(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut delivered = vec![Vec::new(); self.ports.len()];
        let (mut idle, mut rounds) = (0, 0);
        while idle < 3 {
            rounds += 1;
            assert!(rounds < 50_000, "the ports do not come to rest");
            self.venue.pass();
            let before: usize = delivered.iter().map(Vec::len).sum();
            let mut events = 0;
            for (port, delivered) in self.ports.iter_mut().zip(&mut delivered) {
                events += port.poll(64, NOW, &mut |packet| delivered.push(packet.to_vec()));
            }
            let after: usize = delivered.iter().map(Vec::len).sum();
            idle = if events == 0 && before == after { idle + 1 } else { 0 };
        }
        for port in &self.ports {
            assert_eq!((port.arriving(), port.in_use().0, port.in_use().1), (0, 0, 0));
        }
        delivered
    }

    fn complaints(&mut self) -> Vec<String> {
        self.ports.iter_mut().filter_map(Port::complaint).collect()
    }

    fn way(&mut self) -> Way {
        Way::over(self.ports[0].endpoint().capabilities())
    }
}

fn frame(to: MacAddress, from: MacAddress, payload: &[u8]) -> Vec<u8> {
    [&OFFLOAD[..], &to.0, &from.0, &[0x88, 0xb5], payload].concat()
}

fn of(node: u32) -> MacAddress {
    MacAddress::of_node(NodeId(node)).expect("16 bits")
}

fn hello_of(node: u32, queues: u8) -> Hello {
    Hello::new(Seat { node: NodeId(node), queue: 0 }, queues)
}

/// Bytes with a period that no message, page or slot is a multiple of.
fn payload(length: usize, seed: u8) -> Vec<u8> {
    let period: Vec<u8> = (0..251).map(|at| at ^ seed).collect();
    let mut bytes = period.repeat(length.div_ceil(period.len()));
    bytes.truncate(length);
    bytes
}

fn packets_of_every_size_arrive_once_and_unchanged<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    let around = [120, 240, 480, 496, 992, 4_096, 16_384, 65_535];
    let near = around.iter().flat_map(|size| size - 40..=size + 4);
    for size in (0..140).chain(near).filter(|size| *size <= 65_535) {
        let packet = frame(of(1), of(0), &payload(size, 7));
        net.ports[0].depart(&packet, NOW);
        let delivered = net.settle();
        assert!(delivered[1] == [packet], "{size} bytes");
        assert!(delivered[0].is_empty() && delivered[2].is_empty(), "{size} bytes came elsewhere");
    }
    assert_eq!(net.complaints(), Vec::<String>::new());
}

fn packets_of_all_sizes_come_in_order_and_wait_for_room<V: Venue + Default>() {
    let mut net = Net::<V>::new(2);
    let mut sent = Vec::new();
    let mut delivered = Vec::new();
    for number in 0..3_000_usize {
        for round in 0.. {
            if net.ports[0].may_depart(NOW) {
                break;
            }
            assert!(round < 100_000, "the port takes nothing more");
            net.venue.pass();
            net.ports[0].poll(64, NOW, &mut |_| {});
            // The receiver handles one event at a time.
            net.ports[1].poll(1, NOW, &mut |packet| delivered.push(packet.to_vec()));
        }
        let size = [0, 100, 700, 9_000, 60_000][number * 7 % 5] + number % 100;
        let packet = frame(of(1), of(0), &payload(size, u8::try_from(number % 256).unwrap_or(0)));
        net.ports[0].depart(&packet, NOW);
        sent.push(packet);
    }
    delivered.extend(net.settle().swap_remove(1));
    assert_eq!(delivered.len(), sent.len());
    assert!(delivered == sent);
}

type SpaceAt<'a, V> = Space<'a, <<V as Venue>::Endpoint as Endpoint>::Region>;
type DeliveryAt<'a, V> = Delivery<'a, <<V as Venue>::Endpoint as Endpoint>::Window>;

/// How the driver of a device moves packets.
trait Driver: Venue + Default {
    fn read(space: SpaceAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize>;
    fn write(packet: &DeliveryAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize>;
}

impl Driver for Shm {
    fn read(space: SpaceAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize> {
        space.fill(device.as_fd(), |_, bytes| device.recv(bytes))
    }

    fn write(packet: &DeliveryAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize> {
        packet.pour(device.as_fd(), |_, bytes| device.send(bytes))
    }
}

/// Without memory that has addresses, every packet goes through private memory.
macro_rules! private {
    ($($venue:ty)*) => { $(
        impl Driver for $venue {
            fn read(space: SpaceAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize> {
                let Space::Bytes(bytes) = space else { panic!("there is no ring to read into") };
                device.recv(bytes)
            }

            fn write(packet: &DeliveryAt<'_, Self>, device: &UnixDatagram) -> io::Result<usize> {
                let Delivery::Bytes(bytes) = packet else { panic!("there is no ring") };
                device.send(bytes)
            }
        }
    )* };
}

private!(Sim Slow);

/// Sockets in place of TAP devices. They preserve packet boundaries, too.
struct Sockets {
    /// A packet that the test sends on the first socket is read as one from node 0's device.
    from: [UnixDatagram; 2],
    to: [UnixDatagram; 2],
}

impl Sockets {
    fn new() -> Self {
        let pair = || <[_; 2]>::from(UnixDatagram::pair().expect("a pair"));
        Self { from: pair(), to: pair() }
    }

    fn depart<V: Driver>(&self, port: &mut Port<V::Endpoint>, packet: &[u8]) {
        let [near, far] = &self.from;
        assert_eq!(near.send(packet).expect("room"), packet.len());
        port.depart_by(NOW, |space| V::read(space, far)).expect("a packet waits");
    }

    fn deliver<V: Driver>(&self, packet: &DeliveryAt<'_, V>, delivered: &mut Vec<Vec<u8>>) {
        let [near, far] = &self.to;
        let written = V::write(packet, near).expect("room");
        assert_eq!(written, packet.length());
        let mut bytes = packet.to_vec();
        assert_eq!(far.recv(&mut bytes).expect("the message was sent"), packet.length());
        delivered.push(bytes);
    }
}

fn packets_that_the_kernel_copies_arrive_unchanged<V: Driver>() {
    let (mut net, sockets) = (Net::<V>::new(3), Sockets::new());
    let mut due = [const { Vec::new() }; 3];
    let mut delivered = [const { Vec::new() }; 3];
    for number in 0..1_500_usize {
        for round in 0.. {
            if net.ports[0].may_depart(NOW) {
                break;
            }
            assert!(round < 100_000, "the port takes nothing more");
            net.venue.pass();
            for (port, delivered) in net.ports.iter_mut().zip(&mut delivered) {
                port.poll(5, NOW, &mut |packet| sockets.deliver::<V>(&packet, delivered));
            }
        }
        // Long packets for one node, which are read into its ring, and other packets between them.
        let size = [1_500, 60_000, 474, 9_000, 0, 487, 486][number * 11 % 7] + number % 9;
        let (to, at): (_, &[usize]) = match number % 23 {
            3 => (MacAddress::BROADCAST, &[1, 2]),
            7 | 8 => (of(2), &[2]),
            _ => (of(1), &[1]),
        };
        let packet = frame(to, of(0), &payload(size, u8::try_from(number % 256).unwrap_or(0)));
        sockets.depart::<V>(&mut net.ports[0], &packet);
        for node in at {
            due[*node].push(packet.clone());
        }
    }
    for (delivered, more) in delivered.iter_mut().zip(net.settle()) {
        delivered.extend(more);
    }
    assert!(
        delivered == due,
        "{:?} of {:?}",
        delivered.map(|list| list.len()),
        due.map(|list| list.len())
    );
    assert_eq!(net.ports[0].counters().packets_from_device, 1_500);
    assert_eq!(net.complaints(), Vec::<String>::new());
}

fn broadcasts_reach_everybody_once_whatever_their_size<V: Venue + Default>() {
    let mut net = Net::<V>::new(4);
    for size in [46, 500, 1_486, 3_000, 9_000, 65_000] {
        let packet = frame(MacAddress::BROADCAST, of(2), &payload(size, 1));
        net.ports[2].depart(&packet, NOW);
        let delivered = net.settle();
        for (node, delivered) in delivered.iter().enumerate() {
            let due = usize::from(node != 2);
            assert_eq!(delivered.len(), due, "node {node}, {size} bytes");
            assert!(delivered.iter().all(|got| *got == packet));
        }
    }
    assert_eq!(net.ports[2].counters().multicast, 3, "the small ones by one message each");
}

fn a_peer_that_does_not_look_stops_its_own_traffic_first<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    let big = frame(of(1), of(0), &payload(9_000, 1));
    let small = frame(of(2), of(0), &payload(60, 2));
    net.ports[0].depart(&big, NOW);
    assert_eq!(net.settle()[1].len(), 1, "now there is a ring");
    let mut given = 0;
    while net.ports[0].may_depart(NOW) {
        net.ports[0].depart(&big, NOW);
        given += 1;
    }
    // The first packet has left its slot, but its taking is reported with others.
    let waiting = if net.way() == Way::Mapped { 0 } else { 32 };
    assert_eq!(given, 31 + waiting, "the ring is full, and copies need not wait for it");
    net.ports[0].depart(&small, NOW);
    net.venue.pass();
    let mut delivered = Vec::new();
    net.ports[2].poll(64, NOW, &mut |packet| delivered.push(packet.to_vec()));
    assert!(delivered == [small.clone()]);
    // The peer has stalled: its backlog may grow, so that packets for other nodes do not wait.
    let later = NOW + STALLS_AFTER;
    while net.ports[0].may_depart(later) {
        net.ports[0].depart(&big, later);
        given += 1;
    }
    assert_eq!(given, 31 + 1_024);
    // The peer is given up: nothing waits for it, and packets beyond its backlog are lost.
    let much_later = NOW + Duration::from_secs(5);
    assert!(net.ports[0].may_depart(much_later));
    net.ports[0].depart(&big, much_later);
    assert_eq!(net.ports[0].counters().lost, 1);
    // The peer polls again: nothing else was lost.
    assert_eq!(net.settle()[1].len(), given);
    assert!(net.ports[0].may_depart(NOW));
}

fn packets_for_a_node_that_goes_away_are_lost_and_it_may_come_back<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    let packet = frame(of(2), of(0), &payload(9_000, 1));
    for now in [NOW, NOW + STALLS_AFTER] {
        while net.ports[0].may_depart(now) {
            net.ports[0].depart(&packet, now);
        }
    }
    drop(net.ports.pop());
    net.settle();
    assert!(net.ports[0].may_depart(NOW));
    assert_eq!(net.ports[0].counters().lost, 1_024);
    assert_eq!(net.ports[0].peers().count(), 1);
    net.ports[0].depart(&packet, NOW);
    assert_eq!(net.ports[0].counters().unreachable, 1);
    // For all, while nobody is there.
    drop(net.ports.pop());
    net.settle();
    net.ports[0].depart(&frame(MacAddress::BROADCAST, of(0), &payload(60, 9)), NOW);
    let counters = net.ports[0].counters();
    assert_eq!((counters.unreachable, counters.filtered), (2, 0));
    net.add(1, 1);
    net.settle();
    net.add(2, 1);
    net.ports[0].depart(&packet, NOW);
    assert!(net.settle()[2] == [packet]);
}

/// A port's life may end and another begin before anybody hears of the end.
fn a_node_that_came_back_unseen_is_met_again<V: Venue + Default>() {
    let mut net = Net::<V>::new(2);
    let long = |from: u32, seed| frame(of(1 - from), of(from), &payload(3_000, seed));
    for life in 0..3 {
        for from in [0, 1] {
            net.ports[from as usize].depart(&long(from, life), NOW);
        }
        assert_eq!(net.settle(), [vec![long(1, life)], vec![long(0, life)]], "life {life}");
        net.ports[1].depart(&long(1, 9), NOW);
        drop(net.ports.pop());
        net.add(1, 1);
    }
}

/// Most of the packets are too short for the ring; those behind a long one wait for it.
fn short_packets_stay_behind_long_ones<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    let mut sent = [const { Vec::new() }; 3];
    let mut delivered = [const { Vec::new() }; 3];
    for number in 0..4_000_usize {
        let size = if number % 300 == 0 { 30_000 } else { 60 + number * 13 % 300 };
        let (to, at): (_, &[usize]) = match number % 5 {
            1 => (MacAddress::BROADCAST, &[1, 2]),
            2 => (of(2), &[2]),
            _ => (of(1), &[1]),
        };
        let packet = frame(to, of(0), &payload(size, u8::try_from(number % 256).unwrap_or(0)));
        net.ports[0].depart(&packet, NOW);
        at.iter().for_each(|node| sent[*node].push(packet.clone()));
        if number % 40 == 39 {
            for (port, delivered) in net.ports.iter_mut().zip(&mut delivered) {
                port.poll(200, NOW, &mut |packet| delivered.push(packet.to_vec()));
            }
        }
        while !net.ports[0].may_depart(NOW) {
            delivered.iter_mut().zip(net.settle()).for_each(|(all, more)| all.extend(more));
        }
    }
    delivered.iter_mut().zip(net.settle()).for_each(|(all, more)| all.extend(more));
    assert!(delivered == sent);
    assert_eq!(net.complaints(), Vec::<String>::new());
}

fn group_packets_go_to_the_nodes_that_joined<V: Venue + Default>() {
    let mut net = Net::<V>::new(4);
    let mut report = frame(MacAddress([1, 0, 0x5e, 1, 2, 3]), of(3), &[]);
    report.truncate(24);
    report.extend_from_slice(&[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 9]);
    report.extend_from_slice(&[239, 1, 2, 3, 0x16, 0, 0xf8, 0xfa, 239, 1, 2, 3]);
    net.ports[3].depart(&report, NOW);
    net.settle();
    for port in &mut net.ports {
        port.tick(NOW, &mut |_| {});
    }
    for size in [100, 1_400, 20_000] {
        let data = frame(MacAddress([1, 0, 0x5e, 1, 2, 3]), of(0), &payload(size, 1));
        net.ports[0].depart(&data, NOW);
        let delivered = net.settle();
        assert!(delivered[3] == [data], "{size} bytes");
        assert!(delivered[..3].iter().all(Vec::is_empty), "{size} bytes came elsewhere");
    }
}

fn hosts_are_queried_when_a_port_starts_and_when_another_appears<V: Venue + Default>() {
    let mut net = Net::<V>::new(1);
    let asked = |net: &mut Net<V>| {
        let mut count = 0;
        net.ports[0].tick(NOW, &mut |_| count += 1);
        count
    };
    assert_eq!(asked(&mut net), 2, "one question of IPv4 and one of IPv6");
    assert_eq!(asked(&mut net), 0);
    net.add(1, 1);
    assert_eq!(asked(&mut net), 2);
}

/// On a fabric that carries longer messages than ports send.
#[test]
fn a_message_longer_than_any_of_a_port_is_refused_and_named() {
    let mut net = Net::<Slow>::new(2);
    let mut hostile = net.venue.open(Slow::segment(1), Seat { node: NodeId(9), queue: 0 });
    let address = net.ports[1].endpoint().address();
    let to = hostile.connect_within(address, PATIENCE).expect("the target is open");
    hostile.send_short(to, MessageHeader::tag(1), &[hello_of(9, 1).as_bytes()]).expect("room");
    let packet = frame(of(1), of(9), &[0; 200]);
    let length = u32::try_from(packet.len()).expect("short").to_le_bytes();
    hostile.send_short(to, MessageHeader::tag(2), &[&length, &packet]).expect("room");
    assert!(net.settle()[1].is_empty());
    assert_eq!(net.ports[1].counters().refused_from_fabric, 1);
    let complaints = net.complaints();
    assert!(complaints[0].contains("a message with tag 2 of 230 bytes"), "{complaints:?}");
}

fn a_forged_address_is_refused_and_named<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    net.ports[0].depart(&frame(of(1), of(2), &[0; 50]), NOW);
    assert_eq!(net.ports[0].counters().refused_here, 1);
    assert!(net.complaints()[0].contains("2e:87:04:07:00:02"));
    // A node whose port does not check its own frames can send it anyway.
    let mut hostile = net.venue.open(V::segment(1), Seat { node: NodeId(9), queue: 0 });
    let address = net.ports[1].endpoint().address();
    let to = hostile.connect_within(address, PATIENCE).expect("the target is open");
    hostile.send_short(to, MessageHeader::tag(1), &[hello_of(9, 1).as_bytes()]).expect("room");
    let packet = frame(of(1), of(2), &[0; 50]);
    let length = u32::try_from(packet.len()).expect("short").to_le_bytes();
    hostile.send_short(to, MessageHeader::tag(2), &[&length, &packet]).expect("room");
    assert!(net.settle()[1].is_empty());
    assert_eq!(net.ports[1].counters().refused_from_fabric, 1);
    assert!(net.complaints()[0].contains("own address of another node"));
}

fn a_node_out_of_reach_gets_nothing_until_it_is_back<V: Venue + Default>() {
    let mut net = Net::<V>::new(3);
    let long = |seed| frame(of(1), of(0), &payload(3_000, seed));
    let all = frame(MacAddress::BROADCAST, of(0), &payload(60, 9));
    net.ports[0].depart(&long(1), NOW);
    assert_eq!(net.settle()[1], [long(1)]);
    // The link between 0 and 1 is cut; packets on their way are lost.
    net.ports[0].depart(&long(2), NOW);
    net.ports[0].set_reach(Reach::of_bits([0b101, 0, 0, 0]), NOW);
    net.ports[1].set_reach(Reach::of_bits([0b110, 0, 0, 0]), NOW);
    net.ports[0].depart(&long(3), NOW);
    net.ports[0].depart(&all, NOW);
    net.ports[1].depart(&frame(of(0), of(1), &payload(100, 4)), NOW);
    assert_eq!(net.settle(), [vec![], vec![], vec![all.clone()]]);
    assert_eq!(net.ports[0].counters().unreachable, 1);
    for port in &mut net.ports {
        port.set_reach(Reach::ALL, NOW);
    }
    net.ports[0].depart(&long(5), NOW);
    net.ports[0].depart(&all, NOW);
    assert_eq!(net.settle(), [vec![], vec![long(5), all.clone()], vec![all]]);
    assert!(net.complaints().is_empty());
}

fn hosts_are_queried_when_a_cut_link_is_mended<V: Venue + Default>() {
    let mut net = Net::<V>::new(2);
    net.settle();
    net.ports[0].tick(NOW, &mut |_| {});
    let mut asked = 0;
    net.ports[0].tick(NOW, &mut |_| asked += 1);
    assert_eq!(asked, 0, "the hosts were queried already");
    net.ports[0].set_reach(Reach::of_bits([1, 0, 0, 0]), NOW);
    net.ports[0].tick(NOW, &mut |_| asked += 1);
    assert_eq!(asked, 0, "no node came into reach");
    net.ports[0].set_reach(Reach::ALL, NOW);
    net.ports[0].tick(NOW, &mut |_| asked += 1);
    assert!(asked > 0);
}

fn the_corpus_of_hostile_nodes_hurts_nobody<V: Venue + Default>() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/ether_port");
    let files = std::fs::read_dir(&folder).expect("the corpus is committed");
    let mut count = 0;
    for file in files {
        let path = file.expect("a folder can be read").path();
        fuzz_port(&V::default(), &std::fs::read(&path).expect("a file can be read"));
        count += 1;
    }
    assert!(count > 0, "the corpus is empty");
}

fn whatever_a_node_says_hurts_nobody<V: Venue + Default>() {
    let scripts = prop::collection::vec(any::<u8>(), 0..1_000);
    proptest!(ProptestConfig::with_cases(500), |(script in scripts)| {
        fuzz_port(&V::default(), &script);
    });
}

/// The packets at the ports of each of `nodes` devices with three queues, with their queue.
fn by_node(delivered: Vec<Vec<Vec<u8>>>, nodes: usize) -> Vec<Vec<(usize, Vec<u8>)>> {
    let mut all = vec![Vec::new(); nodes];
    for (port, packets) in delivered.into_iter().enumerate() {
        all[port / 3].extend(packets.into_iter().map(|packet| (port % 3, packet)));
    }
    all
}

fn ports_of_one_queue_talk_and_the_ports_of_a_node_share_a_switch<V: Venue + Default>() {
    let mut net = Net::<V>::new(0);
    (0..3).for_each(|node| net.add(node, 3));
    assert_eq!(net.complaints(), Vec::<String>::new());
    let guest = MacAddress([2, 0, 0, 0, 0, 9]);
    for queue in 0..3_usize {
        for size in [46, 9_000, 60_000] {
            let there = frame(of(1), of(0), &payload(size, 3));
            net.ports[queue].depart(&there, NOW);
            let delivered = by_node(net.settle(), 3);
            assert!(delivered[1] == [(queue, there)], "{size} bytes on queue {queue}");
            assert!(delivered[0].is_empty() && delivered[2].is_empty());
        }
        let all = frame(MacAddress([0xff; 6]), of(0), &payload(46, 4));
        net.ports[queue].depart(&all, NOW);
        let delivered = by_node(net.settle(), 3);
        let once = [(queue, all)];
        assert!(delivered[1] == once && delivered[2] == once, "once to each, on queue {queue}");
        assert!(delivered[0].is_empty());
    }
    // One queue learns an address, and another queue uses it.
    net.ports[8].depart(&frame(of(1), guest, &payload(46, 5)), NOW);
    net.settle();
    let to_guest = frame(guest, of(1), &payload(46, 6));
    net.ports[3].depart(&to_guest, NOW);
    let delivered = by_node(net.settle(), 3);
    assert!(delivered[0].is_empty() && delivered[2] == [(0, to_guest)], "it is not flooded");
    assert_eq!(net.complaints(), Vec::<String>::new());
}

fn devices_with_different_numbers_of_queues_do_not_talk<V: Venue + Default>() {
    let mut net = Net::<V>::new(0);
    net.add(0, 1);
    net.add(1, 2);
    let complaints = net.complaints();
    let named = complaints.iter().any(|complaint| complaint.contains("set ether.queues"));
    assert!(named, "{complaints:?}");
    net.ports[0].depart(&frame(of(1), of(0), &payload(46, 5)), NOW);
    assert!(net.settle().iter().all(Vec::is_empty));
    assert_eq!(net.ports[0].counters().unreachable, 1);
}
