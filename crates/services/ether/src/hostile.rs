//! The entry point of the fuzz target, which tests call, too: a node that sends arbitrary messages,
//! and a device that hands over arbitrary packets.

use std::time::Duration;

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, Group, LocalRange, MessageHeader, NodeId, PATIENCE, Peer,
    Region, RemoteKey, Window,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::arrival::split;
use crate::mac::MacAddress;
use crate::message::{Advert, CLASS_TAKEN, Hello, Ring, tag};
use crate::packet::Delivery;
use crate::port::{Limits, Port};

use crate::ring::SLOT_BYTES;
use crate::segment::{Seat, Segment};
use crate::switch::{SharedSwitch, Switch};

const VICTIM: u32 = 1;
const FRIEND: u32 = 0;
const HOSTILE: u32 = 9;
const SLOTS: u32 = 2;

/// Where the ports of a test meet: a transport.
pub trait Venue {
    /// Its endpoints.
    type Endpoint: Endpoint;

    /// The addresses of the ports, where each device has `queues` queues.
    fn segment(queues: u8) -> Segment;

    /// An endpoint at the address of the port at `seat`.
    ///
    /// # Panics
    /// When the address is taken.
    fn open(&self, segment: Segment, seat: Seat) -> Self::Endpoint;

    /// Lets some time pass, in which what is on its way can arrive.
    fn pass(&self);
}

fn own_address(node: u32) -> MacAddress {
    MacAddress::of_node(NodeId(node)).expect("16 bits")
}

struct Scene<'a, E: Endpoint> {
    victim: Port<E>,
    friend: Port<E>,
    hostile: E,
    at_victim: Peer,
    region: E::Region,
    key: RemoteKey,
    now: Duration,
    pass: &'a dyn Fn(),
}

impl<'a, E: Endpoint> Scene<'a, E> {
    fn new<V: Venue<Endpoint = E>>(venue: &V, pass: &'a dyn Fn()) -> Self {
        let segment = V::segment(1);
        let open = |node| venue.open(segment, Seat { node: NodeId(node), queue: 0 });
        let now = Duration::from_secs(1_000);
        let port = |node: u32| {
            let switch = SharedSwitch::new(Switch::new(NodeId(node), now));
            Port::new(open(node), segment, switch, Limits::default(), now)
        };
        let (mut victim, friend, mut hostile) = (port(VICTIM), port(FRIEND), open(HOSTILE));
        let address = victim.endpoint().address();
        let at_victim = hostile.connect_within(address, PATIENCE).expect("the target is open");
        let length = u64::from(SLOTS) * u64::from(SLOT_BYTES);
        let region = hostile.register(length).expect("memory");
        let key = hostile
            .grant_within(LocalRange::whole(&region), Audience::Partition, Access::READ, PATIENCE)
            .expect("a grant");
        let mut scene = Self { victim, friend, hostile, at_victim, region, key, now, pass };
        let hello = Hello::new(Seat { node: NodeId(HOSTILE), queue: 0 }, 1);
        scene.say(tag::HELLO, false, hello.as_bytes());
        scene.settle();
        scene
    }

    fn say(&mut self, tag: u8, to_all: bool, bytes: &[u8]) {
        let header = MessageHeader::tag(tag);
        // Also more than a port sends, where the fabric carries it.
        let bytes_max = self.hostile.capabilities().message_bytes_max;
        let bytes = &bytes[..bytes.len().min(bytes_max)];
        // If there is no room, the message is dropped.
        let _ = if to_all {
            self.hostile.send_multicast(Group::BROADCAST, header, &[bytes]).map(drop)
        } else {
            self.hostile.send_short(self.at_victim, header, &[bytes])
        };
    }

    /// Polls until nothing happens. Returns the packets that the victim's device got.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut delivered = Vec::new();
        for _ in 0..8 {
            (self.pass)();
            // It takes nothing of what it is told, so that its mailbox would fill.
            self.hostile.poll(64, &mut |_| {});
            let now = self.now;
            self.friend.poll(64, now, &mut |_| {});
            self.victim.poll(64, now, &mut |packet| delivered.push(checked(&packet)));
        }
        delivered
    }

    fn step(&mut self, action: u8, bytes: &[u8]) {
        let number = |at: usize| bytes.get(at).copied().map_or(0, u32::from);
        let to_all = action & 8 != 0;
        match action & 7 {
            tag @ 0..=5 if action & 0x40 == 0 => self.say(tag, to_all, bytes),
            0 => {
                let slots = if number(0) < 200 { SLOTS } else { number(1) };
                let ring = Ring {
                    key: U64::new(self.key.0),
                    slots: U32::new(slots),
                    slot_bytes: U32::new(SLOT_BYTES),
                };
                self.say(tag::RING, to_all, ring.as_bytes());
            }
            1 | 2 => {
                let length = number(1) << (number(2) % 10);
                let advert = Advert { number: U32::new(number(0)), length: U32::new(length) };
                self.say(tag::ADVERT, to_all, advert.as_bytes());
            }
            // A device is trusted as little as a node: any program behind it may send frames.
            3 => self.victim.depart(bytes, self.now),
            4 => {
                self.now += Duration::from_secs(u64::from(number(0)));
                let Self { victim, now, .. } = self;
                victim.tick(*now, &mut |packet| drop(checked(&packet)));
            }
            5 => {
                let place = u64::from(number(0) % SLOTS) * u64::from(SLOT_BYTES);
                let _ = self.region.write(place, bytes);
            }
            6 => {
                let taken = u64::from(number(0));
                let _ = self.hostile.put_notification(self.at_victim, CLASS_TAKEN, taken);
            }
            // Packets of a ring whose memory was taken back may be on their way.
            _ => {
                let _ = self.hostile.revoke_within(self.key, PATIENCE);
            }
        }
    }
}

/// Asserts that a packet for a device is well-formed and that its offload header fits its frame.
/// Returns its bytes.
fn checked<W: Window>(packet: &Delivery<'_, W>) -> Vec<u8> {
    let bytes = packet.to_vec();
    let (offload, frame) = split(&bytes).expect("a frame");
    let length = frame.header().len() + frame.payload().len();
    offload.check(length).expect("offloads that fit the frame");
    bytes
}

/// Runs a script of actions by a hostile node and a hostile device. Checks that the victim still
/// receives what a friendly node sends. Each step of the script is an action, a length, and that
/// many bytes.
///
/// # Panics
/// When the victim panics, delivers a malformed packet or stops receiving: that is the finding.
pub fn fuzz_port<V: Venue>(venue: &V, script: &[u8]) {
    let pass = || venue.pass();
    let mut scene = Scene::new(venue, &pass);
    let mut rest = script;
    while let [action, length, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        scene.step(*action, bytes);
        if action & 0x80 != 0 {
            for packet in scene.settle() {
                let source = split(&packet).map(|(_, frame)| frame.source());
                let own = [VICTIM, FRIEND].map(own_address);
                assert!(!source.is_ok_and(|source| own.contains(&source)), "a forged address");
            }
        }
        rest = tail;
    }
    scene.settle();
    let (to, from) = (own_address(VICTIM), own_address(FRIEND));
    let packet = [&[0; 12][..], &to.0, &from.0, &[0x88, 0xb5], &[7; 5_000]].concat();
    scene.friend.depart(&packet, scene.now);
    assert!(scene.settle().contains(&packet), "the victim is lost");
    assert_eq!(scene.victim.arriving(), 0, "packets wait for ever");
    assert_eq!(scene.victim.in_use().1, 0, "buffers were not given back");
}
