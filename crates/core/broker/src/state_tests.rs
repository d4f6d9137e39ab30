//! The rules of the broker, tested through requests of clients.

use super::*;
use weft_fabric::ServiceName;
use weft_wire::endpoint_control::{Attach, Invitation, Invite, Open, flags};

const NOBODY: u16 = 0xffff;
const NOW: Duration = Duration::ZERO;

struct World {
    state: State,
    now: Duration,
}

fn files() -> Vec<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
    let (wakeup, _woken) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("sockets");
    vec![memory(), memory(), wakeup]
}

fn memory() -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("weft-test", flags).expect("memory")
}

impl World {
    fn new(endpoints_max: u16) -> Self {
        let limits = Limits {
            endpoints_max,
            keys_max: 4,
            invitations_max: 4,
            user_share: 50,
            user_unbounded: 9,
        };
        Self { state: State::new(NodeId(7), limits, silent_bell), now: NOW }
    }

    fn ask(
        &mut self,
        process: u64,
        uid: u32,
        message: impl Into<EndpointControl>,
        files: Vec<OwnedFd>,
    ) -> Vec<Outgoing> {
        let (message, mut out) = (message.into(), Vec::new());
        let credentials = Credentials { pid: 1, uid };
        let id = ProcessId(process);
        self.state
            .handle(id, credentials, message.kind(), &message.emit(), files, self.now, &mut out)
            .expect("a message that parses");
        out
    }

    /// The status of the answer, and the messages that were sent before it.
    fn status(
        &mut self,
        process: u64,
        message: impl Into<EndpointControl>,
        files: Vec<OwnedFd>,
    ) -> (u16, Vec<Outgoing>) {
        let mut out = self.ask(process, 1000, message, files);
        let last = out.pop().expect("an answer");
        assert_eq!(last.to, ProcessId(process));
        match last.message {
            EndpointControl::Reply(reply) => (reply.status, out),
            other => panic!("{other:?}"),
        }
    }

    fn open(&mut self, process: u64, uid: u32) -> Option<u16> {
        let open = Open { vpid: NOBODY, birth: process, ..Open::default() };
        let out = self.ask(process, uid, open, files());
        match out.last().expect("an answer").message {
            EndpointControl::Reply(Reply { status: status::DONE, first, .. }) => {
                assert_eq!((first >> 16) & 0xffff_ffff, 7, "the node");
                Some(u16::try_from(first & 0xffff).expect("masked"))
            }
            _ => None,
        }
    }

    fn connect(&mut self, process: u64, vpid: u16, peer: u16) -> (u16, Vec<Outgoing>) {
        let connect = Connect { ticket: 1, vpid, node: 7, peer };
        self.status(process, connect, vec![memory()])
    }
}

#[test]
fn vpids_are_handed_out_once_and_come_back() {
    let mut world = World::new(2);
    assert_eq!((world.open(1, 0), world.open(2, 0), world.open(3, 0)), (Some(0), Some(1), None));
    let taken = Open { vpid: 1, ..Open::default() };
    assert_eq!(world.status(3, taken, files()).0, status::IN_USE);
    world.state.process_gone(ProcessId(1), &mut Vec::new());
    assert_eq!(world.open(3, 0), Some(0));
}

#[test]
fn one_user_cannot_take_all_endpoints() {
    let mut world = World::new(8);
    for process in 0..4 {
        assert!(world.open(process, 1000).is_some());
    }
    assert_eq!(world.open(4, 1000), None);
    assert!(world.open(5, 1001).is_some());
    assert!(world.open(6, 1001).is_some());
    assert_eq!(world.open(7, 1001), None, "user 1001 has half of what user 1000 left");
    assert!(world.open(8, 1002).is_some());
    assert!(world.open(9, 0).is_some(), "root takes the last");
}

#[test]
fn a_partition_is_its_users_alone_but_for_root() {
    let mut world = World::new(8);
    let flags = flags::PARTITION;
    let open = Open { vpid: NOBODY, flags, partition: 1001, ..Open::default() };
    assert_eq!(world.status(1, open, files()).0, status::FORBIDDEN);
    let out = world.ask(2, 0, open, files());
    assert!(matches!(
        out[0].message,
        EndpointControl::Reply(Reply { status: status::DONE, second: 1001, .. })
    ));
}

#[test]
fn other_partitions_are_not_found() {
    let mut world = World::new(8);
    let own = world.open(1, 1000).expect("room");
    let foreign = world.open(2, 1001).expect("room");
    assert_eq!(world.connect(1, own, foreign).0, status::NOT_FOUND);
    assert_eq!(world.connect(1, own, 200).0, status::NOT_FOUND);
    assert_eq!(world.connect(1, own, own).0, status::NOT_FOUND);
    assert_eq!(world.connect(2, own, foreign).0, status::INVALID, "not its endpoint");
}

#[test]
fn the_other_end_hears_of_a_pair_before_the_answer_and_only_once() {
    let mut world = World::new(8);
    let (a, b) = (world.open(1, 1000).expect("room"), world.open(2, 1000).expect("room"));
    let (status, told) = world.connect(1, a, b);
    assert_eq!((status, told.len(), told[0].to, told[0].files.len()), (0, 1, ProcessId(2), 4));
    assert!(told[0].wakeup.is_some());
    assert_eq!(world.connect(2, b, a).0, status::PAIRED);
    let mut out = Vec::new();
    world.state.process_gone(ProcessId(1), &mut out);
    let gone = PeerGone { vpid: b, node: 7, peer: a, reason: gone::ENDED };
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].to, out[0].message), (ProcessId(2), gone.into()));
}

#[test]
fn keys_are_bounded_found_in_their_partition_and_gone_when_retracted() {
    let mut world = World::new(8);
    let owner = world.open(1, 1000).expect("room");
    let other = world.open(2, 1000).expect("room");
    let foreign = world.open(3, 1001).expect("room");
    let publish = Publish {
        vpid: owner,
        generation: 5,
        access: 1,
        length: 9,
        audience: 0xffff,
        ..Publish::default()
    };
    assert_eq!(world.status(1, publish, vec![memory()]).0, status::DONE);
    assert_eq!(world.status(1, publish, vec![memory()]).0, status::DONE, "with other memory");
    let taken = Publish { generation: 6, ..publish };
    assert_eq!(world.status(1, taken, vec![memory()]).0, status::INVALID, "the slot is taken");
    let next = Publish { slot: 1023, ..publish };
    assert_eq!(world.status(1, next, vec![memory()]).0, status::DONE);
    let more = Publish { slot: 1, ..publish };
    assert_eq!(world.status(1, more, vec![memory()]).0, status::EXHAUSTED);
    for (slot, access) in [(1024, 1), (1, 0xff)] {
        let wrong = Publish { slot, access, ..publish };
        assert_ne!(world.status(1, wrong, vec![memory()]).0, status::DONE);
    }
    let resolve = Resolve { vpid: other, owner, slot: 0, generation: 5, ticket: 1 };
    assert_eq!(world.status(2, resolve, vec![]).0, status::DONE);
    let stale = Resolve { generation: 4, ..resolve };
    assert_eq!(world.status(2, stale, vec![]).0, status::NOT_FOUND);
    let spy = Resolve { vpid: foreign, ..resolve };
    assert_eq!(world.status(3, spy, vec![]).0, status::NOT_FOUND);
    let retract = Retract { vpid: owner, slot: 0, generation: 5, ticket: 1 };
    assert_eq!(world.status(2, retract, vec![]).0, status::INVALID, "not its endpoint");
    assert_eq!(world.status(1, retract, vec![]).0, status::DONE);
    assert_eq!(world.status(2, resolve, vec![]).0, status::NOT_FOUND);
    assert_eq!(world.status(1, more, vec![memory()]).0, status::DONE, "there is room again");
}

#[test]
fn members_are_endpoints_that_joined_and_a_change_is_reported_once() {
    let mut world = World::new(8);
    let (a, b) = (world.open(1, 1000).expect("room"), world.open(2, 1000).expect("room"));
    let members = |world: &mut World, group| {
        let out = world.ask(1, 1000, AskMembers { ticket: 1, vpid: a, group }, vec![]);
        match out[0].message {
            EndpointControl::Members(members) => members.vpids[0],
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(members(&mut world, 63), 1 << a | 1 << b);
    assert_eq!(members(&mut world, 5), 0);
    let join = Join { ticket: 1, vpid: b, group: 5 };
    assert_eq!(
        world.status(2, join, vec![]).1.len(),
        1,
        "the endpoint that asked for members is notified"
    );
    let leave = Leave { ticket: 1, vpid: b, group: 5 };
    assert_eq!(world.status(2, leave, vec![]).1.len(), 0, "once");
    assert_eq!(world.status(2, join, vec![]).0, status::DONE);
    assert_eq!(members(&mut world, 5), 1 << b);
    assert_eq!(members(&mut world, 200), 0);
    let broadcast = Join { ticket: 1, vpid: b, group: 63 };
    assert_eq!(world.status(2, broadcast, vec![]).0, status::INVALID);
    assert_eq!(world.status(1, join, vec![]).0, status::NOT_FOUND, "not its endpoint");
}

#[test]
fn an_endpoint_that_does_not_come_back_after_a_restart_is_gone() {
    let mut world = World::new(8);
    let again = |vpid, birth| Open { vpid, birth, flags: flags::AGAIN, ..Open::default() };
    assert_eq!(world.status(1, again(3, 30), files()).0, status::DONE);
    // Peer 4 comes back, peer 5 does not, and another endpoint now has the VPID of peer 6.
    for (peer, birth) in [(4, 40), (5, 50), (6, 60)] {
        assert!(world.ask(1, 1000, Remember { vpid: 3, peer, birth }, vec![]).is_empty());
    }
    assert_eq!(world.status(2, again(4, 40), files()).1.len(), 0);
    assert!(world.ask(2, 1000, Remember { vpid: 4, peer: 3, birth: 30 }, vec![]).is_empty());
    let (_, told) = world.status(3, again(6, 61), files());
    let gone =
        |peer| EndpointControl::from(PeerGone { vpid: 3, node: 7, peer, reason: gone::ENDED });
    assert_eq!(told.iter().map(|o| o.message).collect::<Vec<_>>(), [gone(6)]);
    assert_eq!(world.open(4, 0), Some(0));
    let mut out = Vec::new();
    world.state.settle(&mut out);
    assert_eq!(out.iter().map(|o| o.message).collect::<Vec<_>>(), [gone(5)]);
    assert_eq!(world.connect(1, 3, 4).0, status::PAIRED);
}

#[test]
fn what_a_port_counts_is_shown_until_the_endpoint_ends() {
    let mut world = World::new(8);
    let open = Open { vpid: 3, birth: 30, flags: flags::PORT_LATER, ..Open::default() };
    world.ask(1, 1000, open, files());
    let shown = |world: &World| {
        let listing = world.state.endpoints_of(ProcessId(1)).next().expect("open");
        (listing.vpid, listing.registers.is_some(), listing.port_counts.is_some())
    };
    assert_eq!(shown(&world), (3, true, false));
    let name = weft_wire::endpoint_control::PortName::of(b"port").expect("short");
    let attach = Attach { ticket: 2, vpid: 3, birth: 30, depth: 8, name };
    let too_many = vec![memory(), memory()];
    assert_eq!(world.status(2, attach, too_many).0, status::INVALID);
    assert_eq!(world.status(2, attach, vec![memory()]).0, status::DONE);
    assert_eq!(shown(&world), (3, true, true));
    world.state.process_gone(ProcessId(2), &mut Vec::new());
    assert_eq!(shown(&world), (3, true, true), "the endpoint goes on");
    world.state.process_gone(ProcessId(1), &mut Vec::new());
    assert!(world.state.endpoints_of(ProcessId(1)).next().is_none());
}

/// An endpoint that starts several connects at once has not counted its peers yet.
#[test]
fn the_limit_of_peers_holds_for_both_ends_of_a_pair() {
    let mut world = World::new(8);
    let limited = Open { vpid: 0, peers_max: 1, ..Open::default() };
    assert_eq!(world.status(1, limited, files()).0, status::DONE);
    let others = [2, 3].map(|process| world.open(process, 1000).expect("room"));
    assert_eq!(world.connect(1, 0, others[0]).0, status::DONE);
    let connect = Connect { ticket: 1, vpid: 0, node: 7, peer: others[1] };
    for (process, ask) in [(1, connect), (3, Connect { vpid: others[1], peer: 0, ..connect })] {
        let out = world.ask(process, 1000, ask, vec![memory()]);
        let [Outgoing { message: EndpointControl::Reply(reply), .. }] = out[..] else {
            panic!("nobody else is told: {out:?}");
        };
        assert_eq!((reply.status, reply.first), (status::EXHAUSTED, 1));
    }
}

#[test]
fn memory_in_place_has_an_address_and_no_descriptor() {
    let mut world = World::new(16);
    let shared = Open { birth: 1, ..numbered(3) };
    assert_eq!(world.status_of(1000, shared), status::DONE);
    assert_eq!(world.status_of(1000, invite(3, 1)), status::DONE);
    assert_eq!(world.status_of(1002, Open { vpid: 5, ..by_ticket(1) }), status::DONE);
    assert_eq!(world.status_of(1000, Open { birth: 2, ..numbered(4) }), status::DONE);
    let publish = Publish {
        vpid: 3,
        generation: 5,
        access: 1,
        memory: memory::IN_PLACE,
        start: 0x7f00_1234_5678,
        length: 9,
        audience: 0xffff,
        ..Publish::default()
    };
    let mut status = |ask, files| match world.ask(1000, 1000, ask, files).pop() {
        Some(Outgoing { message: EndpointControl::Reply(reply), .. }) => reply.status,
        other => panic!("{other:?}"),
    };
    assert_eq!(status(publish, vec![memory()]), status::INVALID, "a descriptor as well");
    assert_eq!(status(Publish { memory: 2, ..publish }, vec![]), status::INVALID);
    assert_eq!(status(Publish { memory: memory::FILE, ..publish }, vec![]), status::INVALID);
    assert_eq!(status(Publish { start: 1 << 56, ..publish }, vec![]), status::INVALID);
    assert_eq!(status(publish, vec![]), status::DONE);
    // The address is for the owner's user alone.
    let told = u64::from(1 | weft_wire::endpoint_control::IN_PLACE);
    for (user, vpid, second) in [(1000, 4, publish.start << 8 | told), (1002, 5, told)] {
        let resolve = Resolve { vpid, owner: 3, slot: 0, generation: 5, ticket: 1 };
        let out = world.ask(user.into(), user, resolve, vec![]);
        let [Outgoing { message: EndpointControl::Reply(reply), files, .. }] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!((reply.status, reply.first, reply.second), (status::DONE, 9, second));
        assert!(files.is_empty());
    }
}

/// The partition that users share in these tests, of user 1000.
const SHARED: u64 = 7 << 32 | 1000;

fn numbered(vpid: u16) -> Open {
    Open { vpid, partition: SHARED, flags: flags::PARTITION, ..Open::default() }
}

fn invite(vpid: u16, secret: u8) -> Invite {
    let invitation = Invitation([secret; 16]);
    Invite { ticket: 1, vpid, within_ms: 1000, invitation }
}

fn by_ticket(secret: u8) -> Open {
    let invitation = Invitation([secret; 16]);
    Open { vpid: NOBODY, flags: flags::INVITATION, invitation, ..Open::default() }
}

impl World {
    /// The status of the answer to a request of a user, whose process has the same number.
    fn status_of(&mut self, user: u32, message: impl Into<EndpointControl>) -> u16 {
        let message = message.into();
        let files = if matches!(message, EndpointControl::Open(_)) { files() } else { vec![] };
        let mut out = self.ask(user.into(), user, message, files);
        match out.pop().expect("an answer").message {
            EndpointControl::Reply(reply) => reply.status,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn tickets_are_divided_among_users_and_counted_when_they_are_not_good() {
    let mut world = World::new(16);
    assert_eq!(world.status_of(1000, numbered(3)), status::DONE);
    let other = Open { vpid: 4, partition: 7 << 32 | 1001, ..numbered(4) };
    assert_eq!(world.status_of(1001, other), status::DONE);
    // Of four, user 1000 has half, and the other one half of what is left.
    for (user, vpid, expected) in [(1000, 3, [0, 0, 2]), (1001, 4, [0, 2, 2])] {
        let got = [1, 2, 3].map(|secret| world.status_of(user, invite(vpid, secret)));
        assert_eq!(got, expected, "user {user}");
    }
    assert_eq!(world.status_of(1002, invite(3, 9)), status::INVALID, "not its endpoint");
    assert_eq!(world.status_of(1002, by_ticket(9)), status::NOT_INVITED);
    assert_eq!((world.state.tickets_refused(), world.state.invitations()), (1, 3));
    for within_ms in [0, u32::MAX] {
        let ask = Invite { within_ms, ..invite(3, 4) };
        assert_eq!(world.status_of(1000, ask), status::INVALID);
    }
    world.now = Duration::from_millis(999);
    assert_eq!(world.status_of(1002, by_ticket(2)), status::DONE);
    world.now = Duration::from_millis(1000);
    assert_eq!(world.status_of(1002, by_ticket(1)), status::NOT_INVITED);
    assert_eq!((world.state.tickets_refused(), world.state.invitations()), (2, 0));
}

#[test]
fn an_opening_that_fails_does_not_use_the_ticket() {
    let mut world = World::new(16);
    assert_eq!(world.status_of(1000, numbered(3)), status::DONE);
    assert_eq!(world.status_of(1000, invite(3, 1)), status::DONE);
    let without_files = world.ask(1002, 1002, by_ticket(1), vec![]);
    let EndpointControl::Reply(reply) = without_files[0].message else { panic!("an answer") };
    assert_eq!(reply.status, status::INVALID);
    let taken = Open { vpid: 3, ..by_ticket(1) };
    assert_eq!(world.status_of(1002, taken), status::IN_USE);
    assert_eq!(world.status_of(1002, by_ticket(1)), status::DONE);
    assert_eq!(world.status_of(1002, by_ticket(1)), status::NOT_INVITED);
}

#[test]
fn ways_into_a_partition_that_contradict_each_other_are_refused() {
    let mut world = World::new(16);
    let name = ServiceName::new("kv").expect("a name").padded();
    let open = Open { name, partition: SHARED, vpid: NOBODY, ..Open::default() };
    let ways = [flags::PARTITION, flags::OFFER, flags::SERVICE, flags::INVITATION];
    for combination in 0..16_u32 {
        let chosen = ways.iter().enumerate().filter(|(place, _)| combination & 1 << place != 0);
        let flags = chosen.fold(0, |all, (_, way)| all | way);
        let allowed = [0b0000, 0b0001, 0b0011, 0b0100, 0b1000].contains(&combination);
        let got = world.status_of(1000, Open { flags, ..open });
        assert_eq!(got == status::INVALID, !allowed, "{combination:#b} gives {got}");
        world.state.process_gone(ProcessId(1000), &mut Vec::new());
    }
    for name in [[0; 48], [b'*'; 48]] {
        let offer = Open { name, flags: flags::PARTITION | flags::OFFER, ..open };
        assert_eq!(world.status_of(1000, offer), status::INVALID);
        let service = Open { name, flags: flags::SERVICE, ..open };
        assert_eq!(world.status_of(1000, service), status::INVALID);
    }
}

/// The option and the fabric have the same idea of a name.
#[test]
fn a_rule_can_be_for_each_name_and_for_nothing_else() {
    let rule = |name: &str| ServicePolicy::parse(&format!("any:{name}:any")).is_some();
    let is_name = |name: &str| ServiceName::new(name).is_ok();
    for byte in (0..=127_u8).filter(|byte| *byte != b'*') {
        let name = char::from(byte).to_string();
        assert_eq!(rule(&name), is_name(&name), "{name:?}");
    }
    for length in [0, 1, 47, 48, 49, 100] {
        let name = "x".repeat(length);
        assert_eq!(rule(&name), is_name(&name), "{length}");
    }
}

/// A guest that comes back after a restart is outside until an endpoint of the partition's user
/// remembers it.
#[test]
fn a_guest_comes_back_when_the_owner_vouches_for_it() {
    let mut world = World::new(16);
    let again = |vpid, birth| {
        let open = numbered(vpid);
        Open { birth, flags: open.flags | flags::AGAIN, ..open }
    };
    let remember = |vpid, peer, birth| Remember { vpid, peer, birth };
    let connects = |world: &mut World, user: u32, vpid, peer| {
        let connect = Connect { ticket: 1, vpid, node: 7, peer };
        let mut out = world.ask(user.into(), user, connect, vec![memory()]);
        match out.pop().expect("an answer").message {
            EndpointControl::Reply(reply) => reply.status,
            other => panic!("{other:?}"),
        }
    };
    let members = |world: &mut World| {
        let ask = AskMembers { ticket: 1, vpid: 3, group: 63 };
        match world.ask(1000, 1000, ask, vec![])[0].message {
            EndpointControl::Members(members) => members.vpids[0],
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(world.status_of(1000, again(3, 30)), status::DONE);
    // Users 1001 to 1003 say that they were guests. The owner remembers the first one alone.
    for (user, vpid, birth) in [(1001, 4, 40), (1002, 5, 50), (1003, 6, 60)] {
        assert_eq!(world.status_of(user, again(vpid, birth)), status::DONE);
        world.ask(user.into(), user, remember(vpid, 3, 30), vec![]);
        assert_eq!(connects(&mut world, user, vpid, 3), status::NOT_FOUND);
        assert_eq!(connects(&mut world, 1000, 3, vpid), status::NOT_FOUND);
    }
    // Two that are outside do not vouch for each other.
    world.ask(1001, 1001, remember(4, 5, 50), vec![]);
    world.ask(1002, 1002, remember(5, 4, 40), vec![]);
    assert_eq!(members(&mut world), 1 << 3);
    world.ask(1000, 1000, remember(3, 4, 40), vec![]);
    assert_eq!(members(&mut world), 1 << 3 | 1 << 4);
    assert_eq!(connects(&mut world, 1001, 4, 3), status::PAIRED);
    // Nor does a guest that is inside.
    world.ask(1003, 1003, remember(6, 4, 40), vec![]);
    world.ask(1001, 1001, remember(4, 6, 60), vec![]);
    assert_eq!(connects(&mut world, 1001, 4, 6), status::PAIRED);
    assert_eq!(members(&mut world), 1 << 3 | 1 << 4);
    let mut out = Vec::new();
    world.state.settle(&mut out);
    assert_eq!(world.state.endpoints(), 2);
    for peer in [5, 6] {
        let gone = PeerGone { vpid: 4, node: 7, peer, reason: gone::ENDED };
        assert!(out.iter().any(|told| told.message == gone.into()), "{peer}: {out:?}");
    }
    assert_eq!(world.status_of(1002, again(5, 50)), status::FORBIDDEN, "too late");
}

#[test]
fn an_invalid_message_ends_the_connection() {
    let mut world = World::new(8);
    let credentials = Credentials { pid: 1, uid: 1000 };
    let reply = EndpointControl::from(Reply::default());
    let mut out = Vec::new();
    let id = ProcessId(1);
    let answered = world.state.handle(id, credentials, 48, &reply.emit(), vec![], NOW, &mut out);
    assert!(answered.is_err() && out.is_empty());
    assert!(world.state.handle(id, credentials, 32, &[0; 3], vec![], NOW, &mut out).is_err());
    // Descriptors of the wrong number and kind.
    let open = Open { vpid: NOBODY, ..Open::default() };
    assert_eq!(world.status(1, open, vec![]).0, status::INVALID);
    assert_eq!(world.status(1, open, vec![memory(), memory(), memory()]).0, status::INVALID);
    assert_eq!(world.state.endpoints(), 0);
}

proptest::proptest! {
    #[test]
    fn no_script_makes_the_broker_lose_count(
        script in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..1500),
    ) {
        fuzz_state(&script);
    }
}
