//! An endpoint at a broker beside a program of another release, which speaks to the broker here.

use weft_broker::Limits;
use weft_broker::local::LocalBroker;
use weft_broker::{Connector, no_bells};
use weft_options::ServicePolicy;

use super::*;
use crate::registers::Registers;

const NOW: Duration = Duration::ZERO;

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

fn met(client: &mut dyn Client) -> Vec<EndpointControl> {
    std::iter::from_fn(|| client.next()).map(|received| received.message).collect()
}

fn world() -> (LocalBroker, Directory) {
    let policy = ServicePolicy::parse("").expect("no rules");
    let broker = LocalBroker::new(NodeId::LOCAL, Limits::default(), policy, no_bells);
    let opening = Opening {
        vpid: Vpid(1),
        partition: Partition::OfUser,
        birth: 1,
        name: vec![98],
        mailbox_depth: 4,
        peers_max: 8,
    };
    let client = broker.client().expect("a client");
    let (_, counts) = Registers::create().expect("memory");
    let own = Directory::open(client, &opening, counts).expect("opened");
    (broker, own)
}

fn address(vpid: u16) -> EndpointAddress {
    EndpointAddress::new(NodeId::LOCAL, Vpid(vpid))
}

#[test]
fn a_peer_of_the_same_version_is_introduced_by_the_provider_s_name() {
    let (broker, mut own) = world();
    let _peer = of_release(&broker, PACKETS, 2);
    own.ask(Question::Connect(address(2), [5; 16]), NOW).expect("asked");
    let Some(News::Answer(_, Ok(Answer::Introduced(told)))) = own.next(NOW) else {
        panic!("no introduction");
    };
    assert_eq!((told.address, told.name), (address(2), vec![99]));
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_named_and_the_meeting_ends() {
    for version in [PACKETS - 1, PACKETS + 1] {
        let (broker, mut own) = world();
        let mut peer = of_release(&broker, version, 2);
        own.ask(Question::Connect(address(2), [5; 16]), NOW).expect("asked");
        let Some(News::Answer(_, Err(OperationError::Connect(error)))) = own.next(NOW) else {
            panic!("no refusal");
        };
        let told = error.to_string();
        assert!(told.contains(&format!("version {version}, and")), "{told}");
        assert!(told.contains(&format!("this program {PACKETS};")), "{told}");
        let told = met(peer.as_mut());
        assert!(matches!(told[..], [EndpointControl::Met(_), EndpointControl::Parted(_)]));
    }
}

#[test]
fn a_peer_of_another_version_that_asks_is_parted_from() {
    let (broker, mut own) = world();
    let mut peer = of_release(&broker, PACKETS + 1, 2);
    let meet = Meet { ticket: 3, vpid: 2, node: 0, peer: 1, secret: Secret([5; 16]) };
    peer.start(meet.into(), &[]).expect("sent");
    assert_eq!(own.next(NOW), None, "no pair is made");
    let told = met(peer.as_mut());
    assert!(matches!(told[..], [EndpointControl::Met(_), EndpointControl::Parted(_)]), "{told:?}");
}
