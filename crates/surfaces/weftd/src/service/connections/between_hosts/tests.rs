//! Two daemons, whose messages a test passes on, changes and makes up.

use std::net::SocketAddr;
use std::time::Instant;

use rustix::io::pread;
use weft_options::Options;
use weft_socket::ways::{Figures, Measured};
use weft_wire::control::OfferBetweenHosts::{self, Always, IfFaster, Never};
use weft_wire::control::{Control, End};

use super::*;
use crate::evidence::Shown;
use crate::quota::{Pool, Quota};
use crate::service::{Event, Request, Service};

const USER: u32 = 1000;
const NETWORK: u64 = 1;
const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn address_of(node: NodeId) -> std::net::IpAddr {
    [10, 9, 0, u8::try_from(node.0).expect("few") + 1].into()
}

fn ways() -> SharedWays {
    SharedWays::new(Instant::now())
}

/// The service of node `own`, which knows both others.
fn service(own: NodeId) -> Connections {
    let nothing: [(&str, &str); 0] = [];
    let mut service =
        Connections::new(&Options::from_environment(nothing).0, ways(), SharedPaths::default());
    service.others.network = Some(NETWORK);
    service.others.hosts.set_own(&[address_of(own)]);
    for node in [A, B, C].into_iter().filter(|node| *node != own) {
        service.others.hosts.up(node.0);
        service.others.hosts.claim(node.0, &[address_of(node)]);
    }
    service
}

fn peer(user: u32) -> Peer {
    let process = ProcessId(u64::from(user));
    let origin = Origin::Home;
    let (is_numbered_here, may_command, site) = (true, false, None);
    Peer { process, pid: user, uid: user, is_numbered_here, may_command, origin, site }
}

/// An offer of an end of the connection from A to B, with the memory that it brings.
fn offer(user: u32, end: End, between_hosts: OfferBetweenHosts, memory: Option<Vec<u8>>) -> Event {
    let tuple = Tuple::new(NETWORK, at("10.9.0.1:5000"), at("10.9.0.2:80"));
    let tuple = if end == End::Connected { tuple } else { tuple.mirrored() };
    let mut shown = vec![Shown::Connection { tuple, inode: 9, owner: user }];
    if let Some(bytes) = memory {
        let file = Segment::create_file("weft-test", ADDRESS_MEMORY).expect("memory");
        pwrite(&file, &bytes, 0).expect("written");
        let pool = Pool::new(100, Quota { user_share: 100, own_user: 0 });
        let examined = crate::evidence::examine(vec![file], user, &pool, |_, tuple| tuple);
        shown.extend(examined);
    }
    let control = Control::Offer { token: 7, end, descriptor: 3, between_hosts };
    Event::Packet(Request { from: peer(user), bytes: control.emit(), shown })
}

fn handle(service: &mut Connections, event: Event) -> Outbox {
    let mut out = Outbox::default();
    service.handle_event(event, Instant::now(), &mut out);
    if let Some(question) = out.question.take() {
        service.handle_event(Event::Answer(question, true), Instant::now(), &mut out);
    }
    out
}

fn says(service: &mut Connections, from: NodeId, message: &BetweenHosts) -> Outbox {
    let mut out = Outbox::default();
    service.handle_node(NodeEvent::Message(from, message.emit()), Instant::now(), &mut out);
    out
}

fn told(out: &Outbox) -> Vec<Control> {
    out.packets.iter().map(|packet| Control::parse(&packet.bytes).expect("our own")).collect()
}

/// The one message to a node.
fn sent(out: &Outbox, to: NodeId) -> BetweenHosts {
    let [(node, bytes)] = &out.to_nodes[..] else { panic!("{:?}", out.to_nodes) };
    assert_eq!(*node, to);
    BetweenHosts::parse(bytes).expect("our own")
}

const PENDING: Control = Control::Pending { token: 7, listening: true };
const WANTED: Control = Control::WantedBetweenHosts { token: 7 };

/// A's message to B when its program offers the connecting end.
fn asked(a: &mut Connections) -> BetweenHosts {
    let out = handle(a, offer(USER, End::Connected, Always, None));
    assert_eq!(told(&out), [PENDING]);
    sent(&out, B)
}

fn is_at_rest(service: &Connections) -> bool {
    let others = &service.others;
    service.matchmaker.is_empty() && others.sent.is_empty() && others.numbers.is_empty()
}

#[test]
fn the_ends_on_two_hosts_meet_whoever_comes_first() {
    for accepting_end_comes_first in [true, false] {
        let (mut a, mut b) = (service(A), service(B));
        let accepts =
            |b: &mut Connections| told(&handle(b, offer(USER, End::Accepted, Always, None)));
        if accepting_end_comes_first {
            assert_eq!(accepts(&mut b), [Control::Pending { token: 7, listening: false }]);
            let message = asked(&mut a);
            assert_eq!(told(&says(&mut b, A, &message)), [WANTED]);
        } else {
            let message = asked(&mut a);
            assert_eq!(told(&says(&mut b, A, &message)), []);
            assert_eq!(accepts(&mut b), [WANTED]);
        }
        let address: Vec<u8> = (0..32).collect();
        let out = handle(&mut b, offer(USER, End::Accepted, Always, Some(address.clone())));
        let lane = sent(&out, A);
        let out = says(&mut a, B, &lane);
        assert_eq!(told(&out), [Control::Matched { token: 7, partner: None }]);
        let mut got = vec![0; 32];
        pread(out.packets[0].descriptors[0].as_fd(), &mut got, 0).expect("memory");
        assert_eq!(got, address);
        assert!(is_at_rest(&a) && is_at_rest(&b));
        assert_eq!(told(&says(&mut a, B, &lane)), [], "once");
    }
}

#[test]
fn an_end_that_does_not_want_it_or_is_another_users_stays_on_tcp() {
    for (user, between_hosts) in [(USER, Never), (USER + 1, Always)] {
        let (mut a, mut b) = (service(A), service(B));
        let message = asked(&mut a);
        says(&mut b, A, &message);
        let out = handle(&mut b, offer(user, End::Accepted, between_hosts, None));
        assert!(!told(&out).contains(&WANTED));
    }
    let mut a = service(A);
    let out = handle(&mut a, offer(USER, End::Connected, Never, None));
    assert!(out.to_nodes.is_empty());
}

#[test]
fn an_end_that_leaves_the_choice_goes_where_the_fabric_was_measured_to_be_faster() {
    let mut a = service(A);
    let out = handle(&mut a, offer(USER, End::Connected, IfFaster, None));
    assert!(out.to_nodes.is_empty(), "nothing was measured");
    let refused = out.packets.iter().any(|packet| {
        matches!(Control::parse(&packet.bytes), Ok(Control::Refused { reason, .. })
            if reason.contains("TCP is faster"))
    });
    assert!(refused);
    let tcp = Figures { round_trip_ns: 20_000, bytes_per_s: 1_000_000_000 };
    let fabric = Figures { round_trip_ns: 2_000, bytes_per_s: 9_000_000_000 };
    let at = a.others.ways.at(Instant::now());
    a.others.ways.lock().up(B.0);
    a.others.ways.lock().told(B.0, Ok(Measured { tcp, fabric }), at);
    let out = handle(&mut a, offer(USER, End::Connected, IfFaster, None));
    assert!(matches!(&out.to_nodes[..], [(to, _)] if *to == B));
}

#[test]
fn a_host_gets_no_connection_of_others() {
    let of = |number, local, remote| BetweenHosts::Offer {
        number,
        user: USER,
        local: at(local),
        remote: at(remote),
    };
    let forged = [
        // It is A's, and told by C.
        (C, of(1, "10.9.0.1:5000", "10.9.0.2:80")),
        // To a third host, and between others.
        (A, of(2, "10.9.0.1:5000", "10.9.0.3:80")),
        (C, of(3, "10.9.0.3:5000", "10.9.0.1:80")),
        // Another end than that which the program has.
        (A, of(4, "10.9.0.1:5001", "10.9.0.2:80")),
        (A, of(5, "10.9.0.1:5000", "10.9.0.2:81")),
        // An end of this host's own connections.
        (A, of(6, "10.9.0.2:80", "10.9.0.1:5000")),
        (A, of(7, "127.0.0.1:5000", "127.0.0.1:80")),
    ];
    let mut b = service(B);
    handle(&mut b, offer(USER, End::Accepted, Always, None));
    for (from, message) in forged {
        let out = says(&mut b, from, &message);
        assert!(told(&out).is_empty() && out.to_nodes.is_empty(), "{message:?}");
    }
    // C claims A's address: then nobody has it.
    says(&mut b, C, &BetweenHosts::Addresses { addresses: vec![address_of(A)] });
    let out = says(&mut b, A, &of(8, "10.9.0.1:5000", "10.9.0.2:80"));
    assert!(told(&out).is_empty());
}

#[test]
fn an_answer_counts_from_the_host_that_was_asked_alone() {
    let mut a = service(A);
    let BetweenHosts::Offer { number, .. } = asked(&mut a) else { panic!("an offer") };
    let lane = |number| BetweenHosts::Lane { number, address: [1; 32] };
    for (from, message) in [(C, lane(number)), (B, lane(number + 1)), (B, lane(u64::MAX))] {
        assert!(told(&says(&mut a, from, &message)).is_empty(), "{message:?}");
    }
    let mut out = Outbox::default();
    a.handle_node(NodeEvent::Message(B, vec![3; 9]), Instant::now(), &mut out);
    assert!(out.packets.is_empty());
    assert_eq!(told(&says(&mut a, B, &lane(number))).len(), 1);
}

#[test]
fn nothing_is_left_of_an_offer_that_is_withdrawn_and_of_hosts_and_programs_that_are_gone() {
    let withdraw = || {
        let bytes = Control::Withdraw { token: 7 }.emit();
        Event::Packet(Request { from: peer(USER), bytes, shown: Vec::new() })
    };
    for end in [withdraw(), Event::Gone(peer(USER))] {
        let (mut a, mut b) = (service(A), service(B));
        let message = asked(&mut a);
        says(&mut b, A, &message);
        assert_eq!(b.matchmaker.waiting(), 1);
        let out = handle(&mut a, end);
        says(&mut b, A, &sent(&out, B));
        assert!(is_at_rest(&a) && is_at_rest(&b));
    }
    let (mut a, mut b) = (service(A), service(B));
    let message = asked(&mut a);
    says(&mut b, A, &message);
    let down = |service: &mut Connections, node| {
        service.handle_node(NodeEvent::Down(node), Instant::now(), &mut Outbox::default());
    };
    down(&mut a, B);
    down(&mut b, A);
    assert!(is_at_rest(&a) && is_at_rest(&b));
    // It is asked for again and again: one offer each time.
    let mut a = service(A);
    for _ in 0..100 {
        handle(&mut a, offer(USER, End::Connected, Always, None));
    }
    assert_eq!((a.matchmaker.waiting(), a.others.sent.len(), a.others.numbers.len()), (1, 1, 1));
}

#[test]
fn a_host_fills_no_more_than_its_part_of_the_table() {
    let environment = [("WEFT_DAEMON_CONNECTIONS_MAX", "64"), ("WEFT_DAEMON_USER_SHARE", "50")];
    let mut b = service(B);
    let (options, problems) = Options::from_environment(environment);
    assert!(problems.is_empty(), "{problems:?}");
    b.matchmaker = Connections::new(&options, ways(), SharedPaths::default()).matchmaker;
    for number in 0..1000_u16 {
        // Of all users, root among them.
        let (local, user) = (SocketAddr::new(address_of(A), number + 1), u32::from(number));
        let (number, remote) = (u64::from(number), at("10.9.0.2:80"));
        says(&mut b, A, &BetweenHosts::Offer { number, user, local, remote });
    }
    assert_eq!(b.matchmaker.waiting(), 32);
    let out = handle(&mut b, offer(USER, End::Accepted, Never, None));
    assert!(matches!(told(&out)[..], [Control::Pending { .. }]), "others have room");
}
