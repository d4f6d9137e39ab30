//! Cases: partitions that endpoints of other users come into, by a service and by a ticket.

use std::time::Duration;

use weft_fabric::{
    Access, Audience, ConnectError, Endpoint, EndpointOptions, Group, InviteError, LocalRange,
    MessageHeader, NodeId, OpenError, Operation, OperationError, Partition, PartitionId, Region,
    ServiceName, Source, Target, Ticket, Value,
};

use crate::{Bench, Rig};

const WITHIN: Duration = Duration::from_secs(1000);

fn name(text: &str) -> ServiceName {
    ServiceName::new(text).expect("a name")
}

fn options(partition: Partition) -> EndpointOptions {
    EndpointOptions { partition, ..EndpointOptions::default() }
}

/// The users of a case: the owner of partitions, and a guest.
fn users<B: Bench>() -> (u32, u32) {
    let owner = B::new().user();
    (owner, owner.wrapping_add(1))
}

/// A partition of a user.
fn shared(user: u32) -> PartitionId {
    PartitionId::of_user_named(user, 9)
}

fn offered(user: u32, service: &str) -> EndpointOptions {
    options(Partition::Offered(shared(user), name(service)))
}

fn service(text: &str) -> EndpointOptions {
    options(Partition::Service(name(text)))
}

/// A rig with a bench under these rules, and the endpoint 0 with these options.
fn rig<B: Bench>(rules: &str, first: &EndpointOptions) -> Rig<B> {
    let mut rig = Rig::<B>::with_services(rules);
    let opened = rig.bench.open(first).expect("the user may open it");
    rig.add(opened);
    rig
}

/// Opens an endpoint as another user. The bench must be able to.
fn open_as<B: Bench>(
    rig: &mut Rig<B>,
    user: u32,
    options: &EndpointOptions,
) -> Result<usize, OpenError> {
    let opened = rig.bench.open_as(user, options).expect("the bench opens as any user")?;
    Ok(rig.add(opened))
}

/// Checks that two endpoints are members of one partition: messages, groups, keys.
fn are_members<B: Bench>(rig: &mut Rig<B>, host: usize, guest: usize) {
    let (there, back) = (rig.connect(guest, host), rig.connect(host, guest));
    for (from, peer, to) in [(guest, there, host), (host, back, guest)] {
        rig.send(from, peer, MessageHeader::tag(1), &[b"hello"]);
        assert_eq!(rig.messages(to, 1)[0].payload, b"hello");
        rig.take_messages(to);
    }
    let (region, key) = rig.share(host, 64, Access::WRITE);
    let put = rig.run(guest, |endpoint, context| {
        let (source, target) = (Source::Bytes(&[7; 8]), Target::new(key, 0));
        endpoint.put(there, source, target, Operation::new(context))
    });
    assert_eq!((put, region.load(0)), (Ok(Value::Nothing), Ok(u64::from_le_bytes([7; 8]))));
    let sent = rig.multicast(host, Group::BROADCAST, MessageHeader::tag(2), &[b"x"]);
    assert_eq!(sent, Ok(1));
    assert_eq!(rig.messages(guest, 1)[0].group, Some(Group::BROADCAST));
    rig.take_messages(guest);
}

/// A user whom the rules name comes into the partition by the service's name, is told who offers
/// it, and is a member like any other.
pub fn a_service_lets_the_named_users_in<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv:{guest}"), &offered(owner, "kv"));
    let number = open_as(&mut rig, guest, &service("kv")).expect("the rules name the user");
    let host = rig.address(0);
    assert_eq!(rig.endpoint(number).host(), Some(host));
    assert_eq!(rig.endpoint(number).partition(), shared(owner));
    assert_eq!((rig.endpoint(0).host(), rig.endpoint(0).partition()), (None, shared(owner)));
    are_members(&mut rig, 0, number);
}

/// A user whom the rules do not name is refused: all but the owner and root, if there is no rule.
pub fn a_service_refuses_everybody_else<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv:{guest}"), &offered(owner, "kv"));
    let private = offered(owner, "private");
    let opened = rig.bench.open(&private).expect("a free name");
    rig.add(opened);
    let forbidden = |text| OpenError::ServiceForbidden { name: name(text) };
    let stranger = guest.wrapping_add(1);
    assert_eq!(open_as(&mut rig, stranger, &service("kv")), Err(forbidden("kv")));
    assert_eq!(open_as(&mut rig, guest, &service("private")), Err(forbidden("private")));
    for user in [owner, 0] {
        for text in ["kv", "private"] {
            assert!(open_as(&mut rig, user, &service(text)).is_ok(), "{user} {text}");
        }
    }
}

/// A service ends with the endpoint that offers it. Its members stay together.
pub fn a_service_ends_with_its_endpoint<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv:any"), &offered(owner, "kv"));
    let gone = OpenError::NotOffered { name: name("kv") };
    assert_eq!(
        open_as(&mut rig, guest, &service("kv2")),
        Err(OpenError::NotOffered { name: name("kv2") })
    );
    let member = open_as(&mut rig, guest, &service("kv")).expect("offered");
    let other = open_as(&mut rig, owner, &service("kv")).expect("offered");
    drop(rig.remove(0));
    assert_eq!(open_as(&mut rig, guest, &service("kv")), Err(gone.clone()));
    are_members(&mut rig, other, member);
    let again = rig.bench.open(&offered(owner, "kv")).expect("the name is free again");
    let again = rig.add(again);
    assert!(open_as(&mut rig, guest, &service("kv")).is_ok());
    rig.kill(again);
    assert_eq!(open_as(&mut rig, guest, &service("kv")), Err(gone));
}

/// A service is found at its node, and at no other.
pub fn a_service_is_found_at_its_node<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv:{guest}"), &offered(owner, "kv"));
    let host = rig.address(0);
    let at = |node| options(Partition::ServiceAt(name("kv"), node));
    let found = open_as(&mut rig, guest, &at(host.node)).expect("it is there");
    assert_eq!(rig.endpoint(found).host(), Some(host));
    are_members(&mut rig, 0, found);
    let nobody = OpenError::NotOffered { name: name("kv") };
    let elsewhere = NodeId(host.node.0.wrapping_add(1_000));
    assert_eq!(open_as(&mut rig, guest, &at(elsewhere)), Err(nobody));
    let forbidden = OpenError::ServiceForbidden { name: name("kv") };
    assert_eq!(open_as(&mut rig, guest.wrapping_add(1), &at(host.node)), Err(forbidden));
}

/// A name is offered by one endpoint of a node at a time.
pub fn a_name_is_offered_once<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &offered(owner, "kv"));
    let host = rig.address(0);
    for user in [owner, guest] {
        match open_as(&mut rig, user, &offered(user, "kv")) {
            Err(error) => assert_eq!(error, OpenError::NameTaken { name: name("kv") }),
            // Each node has its own names.
            Ok(other) => {
                assert_ne!(rig.address(other).node, host.node);
                drop(rig.remove(other));
            }
        }
    }
    let own = open_as(&mut rig, owner, &service("kv")).expect("still offered");
    assert_eq!(rig.endpoint(own).host(), Some(host));
    drop(rig.remove(0));
    assert!(open_as(&mut rig, guest, &offered(guest, "kv")).is_ok(), "a name without rules");
}

/// A name that the rules give to a user is offered by nobody else, so that nobody passes for it.
pub fn a_name_of_another_user_cannot_be_offered<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv*:any"), &EndpointOptions::default());
    for text in ["kv", "kv-2"] {
        let refused = OpenError::OfferForbidden { name: name(text) };
        assert_eq!(open_as(&mut rig, guest, &offered(guest, text)), Err(refused));
        assert!(rig.bench.open(&offered(owner, text)).is_ok());
    }
}

/// A partition is offered by its own user, and never the one that all programs of a user share.
pub fn a_partition_is_offered_by_its_user_alone<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &EndpointOptions::default());
    let partition = shared(owner);
    let foreign = open_as(&mut rig, guest, &offered(owner, "kv"));
    assert_eq!(foreign, Err(OpenError::Forbidden { partition: partition.0 }));
    let default = options(Partition::Offered(PartitionId::of_user(owner), name("kv")));
    assert_eq!(rig.bench.open(&default).err(), Some(OpenError::DefaultPartition));
    assert_eq!(rig.invite(0, WITHIN), Err(InviteError::DefaultPartition));
    let nobody = OpenError::NotOffered { name: name("kv") };
    assert_eq!(open_as(&mut rig, owner, &service("kv")), Err(nobody));
}

/// A ticket opens one endpoint, of whatever user, and no second one.
pub fn a_ticket_opens_one_endpoint<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &options(Partition::Numbered(shared(owner))));
    let ticket = rig.invite(0, WITHIN).expect("the user's own partition");
    let by_ticket = options(Partition::Ticket(ticket));
    // An opening that fails for another reason leaves the ticket good.
    let taken = EndpointOptions { vpid: rig.address(0).vpid, ..by_ticket.clone() };
    let refused = OpenError::AddressInUse(rig.address(0));
    assert_eq!(open_as(&mut rig, guest, &taken), Err(refused));
    let number = open_as(&mut rig, guest, &by_ticket).expect("the ticket is good");
    let host = rig.address(0);
    assert_eq!(rig.endpoint(number).host(), Some(host));
    assert_eq!(rig.endpoint(number).partition(), shared(owner));
    for user in [guest, owner, 0] {
        assert_eq!(open_as(&mut rig, user, &by_ticket), Err(OpenError::InvalidTicket));
    }
    are_members(&mut rig, 0, number);
}

/// A ticket that was never given is refused, however near it is to one that was.
pub fn a_wrong_ticket_is_refused<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &options(Partition::Numbered(shared(owner))));
    let nothing = options(Partition::Ticket(Ticket([0; 16])));
    assert_eq!(open_as(&mut rig, guest, &nothing), Err(OpenError::InvalidTicket));
    let (first, second) = (rig.invite(0, WITHIN), rig.invite(0, WITHIN));
    let (first, second) = (first.expect("a ticket"), second.expect("a ticket"));
    assert_ne!(first, second);
    for place in 0..16 {
        let mut wrong = first;
        wrong.0[place] ^= 1;
        let refused = open_as(&mut rig, guest, &options(Partition::Ticket(wrong)));
        assert_eq!(refused, Err(OpenError::InvalidTicket), "byte {place}");
    }
    for ticket in [second, first] {
        assert!(open_as(&mut rig, guest, &options(Partition::Ticket(ticket))).is_ok());
    }
}

/// A ticket is good for its time, and no longer.
pub fn a_ticket_is_good_for_its_time<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &options(Partition::Numbered(shared(owner))));
    let mut give = |within| {
        let ticket = rig.invite(0, within).expect("a ticket");
        options(Partition::Ticket(ticket))
    };
    let (early, late, long) = (give(WITHIN), give(WITHIN), give(2 * WITHIN));
    rig.bench.let_pass(WITHIN / 2);
    assert!(open_as(&mut rig, guest, &early).is_ok());
    rig.bench.let_pass(WITHIN / 2);
    assert_eq!(open_as(&mut rig, guest, &late), Err(OpenError::InvalidTicket));
    assert!(open_as(&mut rig, guest, &long).is_ok());
    for within in [Duration::ZERO, Ticket::WITHIN_MAX + Duration::from_nanos(1), Duration::MAX] {
        assert_eq!(rig.invite(0, within), Err(InviteError::InvalidTime), "{within:?}");
    }
    assert!(rig.invite(0, Ticket::WITHIN_MAX).is_ok());
}

/// A ticket is void when the endpoint that gave it has ended, whether it closed or died.
pub fn a_ticket_of_an_ended_endpoint_is_void<B: Bench>() {
    let (owner, guest) = users::<B>();
    let of_owner = options(Partition::Numbered(shared(owner)));
    let mut rig = rig::<B>("", &of_owner);
    for dies in [false, true] {
        let opened = rig.bench.open(&of_owner).expect("the user's own partition");
        let host = rig.add(opened);
        let by_ticket = options(Partition::Ticket(rig.invite(host, WITHIN).expect("a ticket")));
        let vpid = rig.address(host).vpid;
        if dies {
            rig.kill(host);
        } else {
            drop(rig.remove(host));
        }
        let refused = open_as(&mut rig, guest, &by_ticket);
        assert_eq!(refused, Err(OpenError::InvalidTicket), "dies: {dies}");
        // The next endpoint at that address has not invited anybody.
        let next = rig.bench.open(&EndpointOptions { vpid, ..of_owner.clone() });
        let next = rig.add(next.expect("the address is free"));
        let refused = open_as(&mut rig, guest, &by_ticket);
        assert_eq!(refused, Err(OpenError::InvalidTicket), "dies: {dies}, with a successor");
        drop(rig.remove(next));
    }
}

/// A user has a maximum of tickets. Tickets that are too late do not count.
pub fn tickets_are_bounded<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>("", &options(Partition::Numbered(shared(owner))));
    let mut tickets = Vec::new();
    let full = loop {
        match rig.invite(0, WITHIN) {
            Ok(ticket) => tickets.push(ticket),
            Err(error) => break error,
        }
        assert!(tickets.len() < 100_000, "there is no maximum");
    };
    assert_eq!(full, InviteError::Exhausted { maximum: tickets.len() });
    let first = options(Partition::Ticket(tickets[0]));
    assert!(open_as(&mut rig, guest, &first).is_ok());
    assert!(rig.invite(0, WITHIN).is_ok(), "a used ticket makes room");
    assert_eq!(rig.invite(0, WITHIN), Err(full));
    rig.bench.let_pass(WITHIN);
    assert!(rig.invite(0, WITHIN).is_ok(), "late tickets make room");
}

/// A guest is a member and not the owner: it invites nobody, offers nothing, and sees nothing of
/// the owner's other partitions.
pub fn a_guest_gets_no_more_than_a_member<B: Bench>() {
    let (owner, guest) = users::<B>();
    let mut rig = rig::<B>(&format!("{owner}:kv:any"), &offered(owner, "kv"));
    let number = open_as(&mut rig, guest, &service("kv")).expect("offered");
    let ticket = rig.invite(0, WITHIN).expect("a ticket");
    let second = options(Partition::Ticket(ticket));
    let second = open_as(&mut rig, guest, &second).expect("invited");
    for guest in [number, second] {
        assert_eq!(rig.invite(guest, WITHIN), Err(InviteError::Forbidden));
    }
    let partition = shared(owner).0;
    let forbidden = Err(OpenError::Forbidden { partition });
    let numbered = options(Partition::Numbered(shared(owner)));
    assert_eq!(open_as(&mut rig, guest, &numbered), forbidden);
    assert_eq!(open_as(&mut rig, guest, &offered(owner, "mine")), forbidden);
    let other = rig.bench.open(&EndpointOptions::default()).expect("the default partition");
    let other = rig.add(other);
    let hidden = rig.address(other);
    assert_eq!(rig.try_connect(number, hidden), Err(ConnectError::NotFound(hidden)));
    let (first, to_host) = (rig.connect(0, number), rig.connect(second, 0));
    let region = rig.endpoint(0).register(64).expect("memory is available");
    let whole = LocalRange::whole(&region);
    let key = rig.grant_range(0, whole, Audience::Peer(first), Access::all()).expect("a grant");
    let put = rig.run(second, |endpoint, context| {
        let (source, target) = (Source::Bytes(&[7; 8]), Target::new(key, 0));
        endpoint.put(to_host, source, target, Operation::new(context))
    });
    assert_eq!((put, region.load(0)), (Err(OperationError::InvalidKey), Ok(0)));
}
