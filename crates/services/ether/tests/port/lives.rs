//! Ports that end and begin again while others do not know it, on simulated networks alone.

use weft_ether::hostile::Venue;
use weft_ether::message::tag;
use weft_ether::{MacAddress, Port, Seat};
use weft_fabric::{Blocking, Endpoint, MessageHeader, NodeId, PATIENCE};
use weft_transport_sim::{Link, Settings, SimEndpoint, SimWorld};
use zerocopy::IntoBytes;

use super::venue::Sim;
use super::{NOW, Net, frame, hello_of, of, payload};

const FAST: Link = Link { latency_ns: 1_000, jitter_ns: 0, bits_per_second: 100_000_000_000 };
const LATE: Link = Link { latency_ns: 20_000_000, ..FAST };
/// Longer than anything is on its way.
const LONG_NS: u64 = 50_000_000;

/// A network where the end of a port is reported after some time.
fn settings() -> Settings {
    Settings { link: FAST, detection_ns: 2_000_000, ..Settings::seeded(1) }
}

fn net(settings: Settings, nodes: u32) -> Net<Sim> {
    Net::at(Sim::of(SimWorld::new(settings)), nodes)
}

impl Net<Sim> {
    /// Kills the port of node 1, which is the last one.
    fn kill(&mut self) {
        let address = self.ports[1].endpoint().address();
        assert!(self.venue.world().kill(address));
        self.ports.pop();
    }

    /// Sends a long packet each way. Both arrive.
    fn exchange(&mut self, seed: u8) {
        let packets =
            [(0, 1), (1, 0)].map(|(to, from)| frame(of(to), of(from), &payload(3_000, seed)));
        self.ports[1].depart(&packets[0], NOW);
        self.ports[0].depart(&packets[1], NOW);
        let got = self.settle();
        assert!(got[0] == packets[..1] && got[1] == packets[1..], "exchange {seed}");
    }
}

/// A port that was killed and begins again before others hear of its end is met at once, not at
/// the next second.
#[test]
fn a_life_is_told_from_the_one_before() {
    let mut net = net(settings(), 2);
    for life in 0..3 {
        net.exchange(life);
        net.kill();
        net.add(1, 1);
        net.exchange(life + 10);
        net.venue.world().advance(LONG_NS);
        net.settle();
        net.exchange(life + 20);
    }
}

/// The greeting of a life comes behind that of the next one.
#[test]
fn a_greeting_that_comes_late_ends_nothing_for_good() {
    let mut net = net(settings(), 1);
    let world = net.venue.world().clone();
    let mut former = net.venue.open(Sim::segment(1), Seat { node: NodeId(1), queue: 0 });
    let address = net.ports[0].endpoint().address();
    let to = former.connect_within(address, PATIENCE).expect("it is there");
    world.set_link(NodeId(1), NodeId(0), LATE);
    let hello = hello_of(1, 1);
    former.send_short(to, MessageHeader::tag(tag::HELLO), &[hello.as_bytes()]).expect("room");
    assert!(world.kill(former.address()));
    world.set_link(NodeId(1), NodeId(0), FAST);
    net.add(1, 1);
    net.exchange(1);
    world.advance(LONG_NS);
    net.settle();
    // Both have forgotten each other. Ports greet once a second.
    for port in &mut net.ports {
        assert_eq!(port.peers().count(), 0);
        port.tick(NOW, &mut |_| {});
    }
    net.settle();
    net.exchange(2);
}

/// A node has no room for the greeting of one that it greeted, and gets room before that one looks
/// again. It would take no packet of a port that it does not know.
#[test]
fn a_packet_for_all_waits_for_the_greeting_that_waits_for_room() {
    let mut net = net(settings(), 1);
    let world = net.venue.world().clone();
    let address = net.ports[0].endpoint().address();
    assert!(world.starve(address));
    net.add(1, 1);
    net.ports[0].tick(NOW, &mut |_| {});
    net.settle();
    let known = |net: &Net<Sim>| [0, 1].map(|port: usize| net.ports[port].peers().count());
    assert_eq!(known(&net), [0, 1], "node 1 heard the greeting, and its own was refused");
    assert!(world.relieve(address));
    let packet = frame(MacAddress::BROADCAST, of(1), &payload(40, 1));
    net.ports[1].depart(&packet, NOW);
    assert_eq!(net.settle(), [vec![packet], vec![]]);
    net.exchange(2);
}

/// A node whose first packet is on its way, and whose second one was fetched already, greets anew.
#[test]
fn the_buffers_of_a_former_life_are_given_back() {
    let mut net = net(Settings { ordered: false, ..settings() }, 2);
    let world = net.venue.world().clone();
    net.exchange(1);
    // The first request comes late, and the second is answered at once.
    for (seed, link) in [(2, LATE), (3, FAST)] {
        net.ports[1].depart(&frame(of(0), of(1), &payload(3_000, seed)), NOW);
        world.set_link(NodeId(0), NodeId(1), link);
        for _ in 0..2 {
            world.advance(5_000);
            net.ports[0].poll(64, NOW, &mut |_| panic!("the first packet comes late"));
        }
    }
    assert_eq!(net.ports[0].in_use(), (1, 2, 2), "one is under way, two hold a buffer");
    net.kill();
    net.add(1, 1);
    world.advance(LONG_NS);
    net.settle();
    net.exchange(4);
}

/// A grant ends after its peer did. Such keys would fill the table.
#[test]
fn the_key_of_a_ring_that_nobody_will_read_is_revoked() {
    let control_ns = 250_000;
    let mut net = net(Settings { control_ns, keys_max: 3, detection_ns: 100_000, ..settings() }, 2);
    for life in 0..6 {
        net.ports[0].depart(&frame(of(1), of(0), &payload(3_000, life)), NOW);
        net.kill();
        // The end is reported, and then the grant ends.
        let look = |port: &mut Port<SimEndpoint>, time| {
            net.venue.world().advance(time);
            port.poll(64, NOW, &mut |_| {});
        };
        look(&mut net.ports[0], 150_000);
        assert_eq!(net.ports[0].peers().count(), 0);
        look(&mut net.ports[0], 150_000);
        net.settle();
        net.add(1, 1);
    }
    net.exchange(9);
}
