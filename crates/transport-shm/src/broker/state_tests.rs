//! The rules of the broker, tested through requests of clients.

use super::*;
use crate::registers::Registers;
use crate::sys;

const NOBODY: u16 = 0xffff;

struct World {
    state: State,
}

fn files() -> Vec<OwnedFd> {
    let (wakeup, _woken) = sys::wakeup_socket().expect("sockets");
    let (doorbell, file) = Doorbell::create(wakeup).expect("memory");
    let (_registers, registers) = Registers::create().expect("memory");
    vec![file, registers, doorbell.wakeup().try_clone_to_owned().expect("descriptor")]
}

fn memory() -> OwnedFd {
    weft_memory::Segment::create_file("weft-test", 4096).expect("memory")
}

impl World {
    fn new(endpoints_max: u16) -> Self {
        let limits = Limits { endpoints_max, keys_max: 4, user_share: 50, user_unbounded: 9 };
        Self { state: State::new(NodeId(7), limits) }
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
            .handle(id, credentials, message.kind(), &message.emit(), files, &mut out)
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
                assert_eq!(first >> 16, 7, "the node");
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
fn an_invalid_message_ends_the_connection() {
    let mut world = World::new(8);
    let credentials = Credentials { pid: 1, uid: 1000 };
    let reply = EndpointControl::from(Reply::default());
    let mut out = Vec::new();
    let id = ProcessId(1);
    let answered = world.state.handle(id, credentials, 48, &reply.emit(), vec![], &mut out);
    assert!(answered.is_err() && out.is_empty());
    assert!(world.state.handle(id, credentials, 32, &[0; 3], vec![], &mut out).is_err());
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
