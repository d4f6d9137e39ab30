//! An endpoint at a broker beside a program of another release, which speaks to the broker here.

use std::sync::Arc;

use weft_broker::local::LocalBroker;
use weft_broker::{Client, Connector, Limits, calls, no_bells};
use weft_fabric::{Blocking, Endpoint, EndpointOptions, PATIENCE, Partition, Transport};
use weft_options::ServicePolicy;
use weft_wire::endpoint_control::{EndpointControl, Meet, Port, Reply, Secret, flags, status};

use super::*;
use crate::seeded::{SeededNet, SeededNic, Settings};
use crate::{OfiEndpoint, OfiTransport, Parameters};

/// An endpoint of a release with this version of the packets.
fn of_release(broker: &LocalBroker, version: u16, vpid: u16) -> Box<dyn Client> {
    let mut client = broker.client().expect("a client");
    let mut open = calls::way_into(Partition::OfUser);
    open.flags |= flags::PORT;
    (open.ticket, open.birth, open.vpid, open.peers_max) = (1, 7, vpid, 8);
    calls::open(client.as_mut(), open, Partition::OfUser, &[]).expect("opened");
    let [low, high] = version.to_le_bytes();
    let name = PortName::of(&[low, high, 99]).expect("short");
    let port = Port { ticket: 2, vpid, depth: 4, name };
    let answer = client.call(port.into(), 2, &[]).expect("answered").message;
    assert!(matches!(answer, EndpointControl::Reply(Reply { status: status::DONE, .. })));
    client
}

fn world() -> (LocalBroker, OfiEndpoint<SeededNic>) {
    let policy = ServicePolicy::parse("").expect("no rules");
    let broker = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells);
    let net = SeededNet::new(Settings::default());
    let transport = OfiTransport::new(net, Arc::new(broker.clone()), Parameters::default());
    let options = EndpointOptions { vpid: Vpid(1), ..EndpointOptions::default() };
    (broker, transport.open(&options).expect("room"))
}

/// Everything that the broker says to an endpoint: it has met this one, and the meeting has ended.
fn has_parted(client: &mut dyn Client) -> bool {
    let said: Vec<_> = std::iter::from_fn(|| client.next()).map(|said| said.message).collect();
    matches!(said[..], [EndpointControl::Met(_), EndpointControl::Parted(_)])
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_named_and_the_meeting_ends() {
    for version in [PACKETS - 1, PACKETS + 1] {
        let (broker, mut own) = world();
        let mut peer = of_release(&broker, version, 2);
        let address = EndpointAddress::new(NodeId::LOCAL, Vpid(2));
        let told = own.connect_within(address, PATIENCE).expect_err("no peer").to_string();
        assert!(told.contains(&format!("version {version}, and")), "{told}");
        assert!(told.contains(&format!("this program {PACKETS};")), "{told}");
        assert!(has_parted(peer.as_mut()));
    }
}

#[test]
fn a_peer_of_another_version_that_asks_is_parted_from() {
    let (broker, mut own) = world();
    let mut peer = of_release(&broker, PACKETS + 1, 2);
    let meet = Meet { ticket: 3, vpid: 2, node: 0, peer: 1, secret: Secret([5; 16]) };
    peer.start(meet.into(), &[]).expect("sent");
    own.poll(64, &mut |event| panic!("{event:?}"));
    assert!(has_parted(peer.as_mut()));
}

#[test]
fn a_peer_of_the_same_version_is_told_by_the_provider_s_name() {
    let (version, name) = (PACKETS.to_le_bytes(), PortName::of);
    let name = name(&[version[0], version[1], 99]).expect("short");
    let (secret, ticket, vpid, node, peer) = (Secret([5; 16]), 0, 1, 4, 2);
    let met = Met { ticket, vpid, node, peer, depth: 4, greets_first: 1, secret, name };
    let told = Introduction::of(&met).expect("they understand each other");
    assert_eq!((told.address, told.name), (peer_of(&met), vec![99]));
    assert!(told.greets_first && told.mailbox_depth == 4);
}

#[test]
fn a_name_without_a_version_is_none() {
    assert!(name_in(&[]).is_err() && name_in(&[1]).is_err());
}
