//! Long packets that are fetched, on simulated networks alone.

use weft_ether::groups::LEARN_FOR;
use weft_ether::hostile::Venue;
use weft_ether::message::{Advert, Ring, tag};
use weft_ether::ring::SLOT_BYTES;
use weft_ether::{Limits, MacAddress, Port, Seat, SharedSwitch, Switch};
use weft_fabric::{
    Access, Audience, Blocking, Endpoint, Event, LocalRange, MessageHeader, NodeId, PATIENCE,
    Region,
};
use weft_transport_sim::SimEndpoint;
use zerocopy::IntoBytes;

use super::venue::{Sim, Slow};
use super::{NOW, Net, frame, hello_of, of, payload};

/// While the receiver fetches long packets one by one, short ones come faster than it may hand them
/// out.
#[test]
fn a_flood_behind_slow_fetches_is_held_back() {
    let mut net = Net::<Slow>::new(2);
    let limits = Limits { fetches_each: 1, ..Limits::default() };
    net.ports.pop();
    let endpoint = net.venue.open(Slow::segment(1), Seat { node: NodeId(1), queue: 0 });
    let switch = SharedSwitch::new(Switch::new(NodeId(1), NOW - LEARN_FOR));
    net.ports.push(Port::new(endpoint, Slow::segment(1), switch, limits, NOW - LEARN_FOR));
    let ring = frame(of(1), of(0), &payload(3_000, 1));
    net.settle();
    net.ports[0].depart(&ring, NOW);
    assert!(net.settle()[1] == [ring]);
    let (mut sent, mut delivered) = (Vec::new(), Vec::new());
    for number in 0..6_000_usize {
        let size = if number < 30 { 60_000 } else { 40 };
        let to = if number % 2 == 0 { of(1) } else { MacAddress::BROADCAST };
        let packet = frame(to, of(0), &payload(size, u8::try_from(number % 256).unwrap_or(0)));
        for _ in 0..10_000 {
            if number % 100 != 0 && net.ports[0].may_depart(NOW) {
                break;
            }
            net.venue.world().advance(20_000);
            net.ports[0].poll(64, NOW, &mut |_| {});
            net.ports[1].poll(512, NOW, &mut |packet| delivered.push(packet.to_vec()));
            if net.ports[0].may_depart(NOW) {
                break;
            }
        }
        net.ports[0].depart(&packet, NOW);
        sent.push(packet);
    }
    delivered.extend(net.settle().swap_remove(1));
    assert_eq!(net.complaints(), Vec::<String>::new());
    assert_eq!(delivered.len(), sent.len());
    assert!(delivered == sent);
}

/// A peer whose ring is longer than its memory: its packets beyond that are lost, and their slots
/// are free again. It has no more slots than it said, and none before it was told that its ring is
/// open.
#[test]
fn a_packet_that_cannot_be_fetched_frees_its_slot() {
    let mut net = Net::<Sim>::new(2);
    let mut peer = net.venue.open(Sim::segment(1), Seat { node: NodeId(9), queue: 0 });
    let address = net.ports[1].endpoint().address();
    let to = peer.connect_within(address, PATIENCE).expect("it is there");
    let region = peer.register(2 * u64::from(SLOT_BYTES)).expect("memory");
    let packet = frame(of(1), of(9), &payload(3_000, 1));
    for slot in 0..2 {
        region.write(slot * u64::from(SLOT_BYTES), &packet).expect("inside");
    }
    let key = peer
        .grant_within(LocalRange::whole(&region), Audience::Peer(to), Access::READ, PATIENCE)
        .expect("a grant");
    let ring = Ring { key: key.0.into(), slots: 4.into(), slot_bytes: SLOT_BYTES.into() };
    let say = |peer: &mut SimEndpoint, tag, bytes: &[u8]| {
        peer.send_short(to, MessageHeader::tag(tag), &[bytes]).expect("room");
    };
    let advert = |number: u32| {
        let length = u32::try_from(packet.len()).expect("short");
        Advert { number: number.into(), length: length.into() }
    };
    say(&mut peer, tag::HELLO, hello_of(9, 1).as_bytes());
    say(&mut peer, tag::ADVERT, advert(0).as_bytes());
    net.settle();
    assert!(net.complaints()[0].contains("an advert of packet 0"), "there is no ring");
    say(&mut peer, tag::RING, ring.as_bytes());
    for number in 0..4 {
        net.settle();
        say(&mut peer, tag::ADVERT, advert(number).as_bytes());
    }
    net.settle();
    assert_eq!(net.ports[1].counters().packets_to_device, 2);
    assert!(net.complaints()[0].contains("can no longer be read"));
    let mut taken = Vec::new();
    peer.poll(100, &mut |event| {
        if let Event::Notification(told) = event {
            taken.push(told.immediate);
        }
    });
    assert_eq!(taken, [0, 1, 2, 3, 4]);
    // Five at once, with four slots: the last one is refused.
    (4..9).for_each(|number| say(&mut peer, tag::ADVERT, advert(number).as_bytes()));
    net.settle();
    let counters = net.ports[1].counters();
    assert_eq!(counters.packets_to_device, 4);
    // Before that one: one without a ring, and four beyond the memory.
    assert_eq!(counters.refused_from_fabric, 1 + 4 + 1);
}
