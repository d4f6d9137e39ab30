//! Pairs whose sites are cut off, tested through requests of clients.

use std::os::fd::OwnedFd;

use weft_fabric::NodeId;
use weft_wire::endpoint_control::{
    AskAllMembers, AskMembers, Connect, EndpointControl, Meet, Members, MembersOf, NO_VPID, Open,
    PeerGone, Port, PortName, Recall, Remember, Reply, Secret, flags, status,
};

use super::*;
use crate::state::{fuzz_files, silent_bell};
use crate::{Credentials, Limits};

const SILENCE: Duration = Duration::from_secs(5);
const NODE: u32 = 7;

struct World {
    state: State,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let state = State::new(NodeId(NODE), Limits::default(), silent_bell).with_silence(SILENCE);
        Self { state, now: Duration::ZERO }
    }

    fn ask(
        &mut self,
        process: u64,
        message: impl Into<EndpointControl>,
        files: Vec<OwnedFd>,
    ) -> Vec<Outgoing> {
        let (message, mut out) = (message.into(), Vec::new());
        let (id, credentials) = (ProcessId(process), Credentials { pid: 1, uid: 5 });
        self.state
            .handle(id, credentials, message.kind(), &message.emit(), files, self.now, &mut out)
            .expect("a message that parses");
        out
    }

    /// An endpoint of a process of the same number, at a site.
    fn open(&mut self, process: u64, site: Option<u16>, with: Open) -> u16 {
        if let Some(site) = site {
            self.state.is_at(ProcessId(process), Site(site));
        }
        let open = Open { birth: process, slots: 16, ..with };
        let out = self.ask(process, open, fuzz_files(0));
        match out.last().expect("an answer").message {
            EndpointControl::Reply(Reply { status: status::DONE, first, .. }) => {
                u16::try_from(first & 0xffff).expect("masked")
            }
            other => panic!("{other:?}"),
        }
    }

    /// An endpoint of a process of the same number, at a site, with a port alone.
    fn open_port(&mut self, process: u64, site: u16, with: Open) -> u16 {
        self.state.is_at(ProcessId(process), Site(site));
        let open = Open { birth: process, flags: flags::PORT | with.flags, ..with };
        let out = self.ask(process, open, Vec::new());
        let vpid = match out.last().expect("an answer").message {
            EndpointControl::Opened(opened) => opened.vpid,
            other => panic!("{other:?}"),
        };
        let name = PortName::of(&[1]).expect("short");
        self.ask(process, Port { ticket: 2, vpid, depth: 8, name }, Vec::new());
        vpid
    }

    /// Whether the endpoint of this process met another one at its port.
    fn meet(&mut self, process: u64, vpid: u16, peer: u16) -> Result<(), u16> {
        let meet = Meet { ticket: 3, vpid, node: NODE, peer, secret: Secret([7; 16]) };
        let out = self.ask(process, meet, Vec::new());
        match out.last().expect("an answer").message {
            EndpointControl::Met(_) => Ok(()),
            EndpointControl::Reply(Reply { status, .. }) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    fn members_by_port(&mut self, process: u64, vpid: u16) -> u64 {
        let ask = AskAllMembers { ticket: 4, vpid, group: 63 };
        match self.ask(process, ask, Vec::new()).last().expect("an answer").message {
            EndpointControl::MembersOf(MembersOf { vpids, further: 0, .. }) => vpids[0],
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self, process: u64, vpid: u16, peer: u16) -> u16 {
        let connect = Connect { ticket: 1, vpid, node: NODE, peer };
        let out = self.ask(process, connect, fuzz_files(2));
        match out.last().expect("an answer").message {
            EndpointControl::Reply(reply) => reply.status,
            other => panic!("{other:?}"),
        }
    }

    fn cut(&mut self, pairs: &[(u16, u16)]) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let cuts = pairs.iter().map(|(one, other)| (Site(*one), Site(*other))).collect();
        self.state.set_cuts(cuts, self.now, &mut out);
        out
    }

    fn members(&mut self, process: u64, vpid: u16) -> u64 {
        let out = self.ask(process, AskMembers { ticket: 1, vpid, group: 63 }, Vec::new());
        match out.last().expect("an answer").message {
            EndpointControl::Members(Members { vpids, .. }) => vpids[0],
            other => panic!("{other:?}"),
        }
    }
}

/// The endpoints that were told, with their peer, and whether they hold it.
fn held(out: &[Outgoing]) -> Vec<(u16, u16, bool)> {
    let held = out.iter().filter_map(|told| match told.message {
        EndpointControl::Held(Held { vpid, peer, is_held, node: NODE }) => {
            Some((vpid, peer, is_held != 0))
        }
        _ => None,
    });
    held.collect()
}

const ANY: Open = Open { vpid: NO_VPID, ..zeroed() };

const fn zeroed() -> Open {
    Open {
        ticket: 0,
        flags: 0,
        partition: 0,
        birth: 0,
        vpid: 0,
        peers_max: 0,
        slots: 0,
        name: [0; 48],
        node: 0,
        invitation: weft_wire::endpoint_control::Invitation([0; 16]),
    }
}

#[test]
fn both_ends_hold_each_other_while_no_way_leads_between_their_sites() {
    let mut world = World::new();
    let [a, b, c] = [0, 1, 2].map(|site| world.open(site.into(), Some(site), ANY));
    let outside = world.open(3, None, ANY);
    for peer in [b, c, outside] {
        assert_eq!(world.connect(0, a, peer), status::DONE);
    }
    let told = world.cut(&[(1, 0)]);
    assert_eq!(held(&told), [(a, b, true), (b, a, true)]);
    let wakes = |told: &Outgoing| told.wakeup.is_some();
    assert!(told.iter().all(wakes), "an endpoint that sleeps has to hear of it");
    assert!(held(&world.cut(&[(0, 1)])).is_empty(), "nothing has changed");
    assert_eq!(held(&world.cut(&[(0, 2)])).len(), 4, "one pair is free, another is held");
    assert_eq!(held(&world.cut(&[])), [(a, c, false), (c, a, false)]);
}

#[test]
fn a_pair_ends_after_the_promised_silence_and_not_before() {
    let mut world = World::new();
    let [a, b] = [0, 1].map(|site| world.open(site.into(), Some(site), ANY));
    assert_eq!(world.connect(0, a, b), status::DONE);
    world.cut(&[(0, 1)]);
    assert_eq!(world.state.poll_timeout(), Some(SILENCE));
    let mut out = Vec::new();
    world.state.handle_timeout(SILENCE - Duration::from_millis(1), &mut out);
    assert!(out.is_empty());
    world.state.handle_timeout(SILENCE, &mut out);
    let gone = |vpid, peer| {
        EndpointControl::from(PeerGone { vpid, node: NODE, peer, reason: gone::UNREACHABLE })
    };
    for (vpid, peer) in [(a, b), (b, a)] {
        assert!(out.iter().any(|told| told.message == gone(vpid, peer)), "{vpid}: {out:?}");
    }
    assert_eq!(world.state.poll_timeout(), None);
    assert_eq!(world.connect(0, a, b), status::AWAY);
    world.cut(&[]);
    assert_eq!(world.connect(0, a, b), status::DONE);
    // A cut that heals in time ends nothing, and the next one has its whole time.
    world.cut(&[(0, 1)]);
    world.cut(&[]);
    world.now = Duration::from_secs(3);
    world.cut(&[(0, 1)]);
    assert_eq!(world.state.poll_timeout(), Some(SILENCE + Duration::from_secs(3)));
}

#[test]
fn members_out_of_reach_are_left_out_unless_they_are_peers() {
    let mut world = World::new();
    let [a, b, c] = [0, 1, 2].map(|site| world.open(site.into(), Some(site), ANY));
    assert_eq!(world.connect(0, a, b), status::DONE);
    assert_eq!(world.members(0, a), 0b111);
    let told = world.cut(&[(0, 1), (0, 2)]);
    let changed = |told: &Outgoing| match told.message {
        EndpointControl::GroupsChanged(changed) => changed.vpid == a,
        _ => false,
    };
    assert!(told.iter().any(changed), "{told:?}");
    assert_eq!(world.members(0, a), 1 << a | 1 << b);
    world.state.handle_timeout(SILENCE, &mut Vec::new());
    assert_eq!(world.members(0, a), 1 << a);
    world.cut(&[]);
    assert_eq!(world.members(0, a), 1 << a | 1 << b | 1 << c);
}

#[test]
fn pairs_from_before_a_restart_are_told_how_it_is_now() {
    let mut world = World::new();
    world.cut(&[(0, 1)]);
    let again = |vpid| Open { vpid, flags: flags::AGAIN, ..ANY };
    let [a, b] = [0, 1].map(|site| world.open(u64::from(site), Some(site), again(site)));
    let remember = |vpid, peer, birth| Remember { vpid, peer, birth };
    assert!(world.ask(0, remember(a, b, 1), Vec::new()).is_empty());
    let out = world.ask(1, remember(b, a, 0), Vec::new());
    let told = held(&out);
    assert!(told.contains(&(a, b, true)) && told.contains(&(b, a, true)), "{out:?}");
}

#[test]
fn endpoints_that_met_at_their_ports_hold_each_other_and_end_as_unreachable() {
    let mut world = World::new();
    let [a, b, c] = [0, 1, 2].map(|site| world.open_port(site.into(), site, ANY));
    for peer in [b, c] {
        assert_eq!(world.meet(0, a, peer), Ok(()));
    }
    assert_eq!(held(&world.cut(&[(1, 0)])), [(a, b, true), (b, a, true)]);
    assert!(held(&world.cut(&[(0, 1)])).is_empty(), "nothing has changed");
    assert_eq!(held(&world.cut(&[(0, 2)])).len(), 4, "one is free, another is held");
    assert_eq!(world.members_by_port(0, a), 1 << b | 1 << c, "peers are not left out");
    world.now = SILENCE;
    assert_eq!(held(&world.cut(&[(0, 1)])).len(), 4);
    let mut out = Vec::new();
    world.state.handle_timeout(2 * SILENCE - Duration::from_millis(1), &mut out);
    assert!(out.is_empty());
    world.state.handle_timeout(2 * SILENCE, &mut out);
    let gone = |vpid, peer| {
        EndpointControl::from(PeerGone { vpid, node: NODE, peer, reason: gone::UNREACHABLE })
    };
    let told: Vec<_> = out.iter().map(|told| told.message).collect();
    assert_eq!(told, [gone(a, b), gone(b, a)]);
    assert_eq!(world.meet(0, a, b), Err(status::AWAY));
    assert_eq!(world.members_by_port(0, a), 1 << c);
    world.cut(&[]);
    assert_eq!(world.meet(0, a, b), Ok(()));
}

#[test]
fn meetings_from_before_a_restart_are_told_how_it_is_now() {
    let mut world = World::new();
    world.cut(&[(0, 1)]);
    let again = |vpid| Open { vpid, flags: flags::AGAIN, ..ANY };
    let [a, b] = [0, 1].map(|site| world.open_port(u64::from(site), site, again(site)));
    let recall = |vpid, peer, greets_first| Recall {
        vpid,
        node: NODE,
        peer,
        secret: Secret([7; 16]),
        greets_first,
    };
    assert!(world.ask(0, recall(a, b, 1), Vec::new()).is_empty());
    let told = held(&world.ask(1, recall(b, a, 0), Vec::new()));
    assert!(told.contains(&(a, b, true)) && told.contains(&(b, a, true)), "{told:?}");
}
