//! One endpoint with peers on both ways: words, locks, keys, registers, the port that is opened
//! late, and the ends of peers.
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use weft_broker::local::LocalBroker;
use weft_broker::{Client, Connector, Limits};
use weft_fabric::{
    Access, Armed, Atomic, Audience, Blocking, ConnectError, DownReason, Endpoint, EndpointAddress,
    EndpointOptions, Event, Group, HostMemory, Issued, LocalRange, MessageHeader, NodeId,
    Operation, OperationError, PATIENCE, Peer, Region, Register, Revoked, SendError, Source,
    Target, Transport, Value, Waited, Watchable, Window,
};
use weft_layers::{LayeredEndpoint, LayeredTransport, LayeredWindow, Work, on_a_thread};
use weft_libfabric::Error;
use weft_memory::kinds::Kind;
use weft_options::ServicePolicy;
use weft_transport_ofi::seeded::{SeededNet, SeededNic, Settings};
use weft_transport_ofi::{Cards, OfiTransport};
use weft_transport_shm::{ShmTransport, open_bell};
use weft_wire::endpoint_control as wire;

type Layered = LayeredEndpoint<Counted>;

/// Cards of a network, or none, and how often one was opened.
#[derive(Clone)]
struct Counted {
    net: SeededNet,
    works: Arc<AtomicBool>,
}

impl Cards for Counted {
    type Nic = SeededNic;

    fn open(&self) -> Result<SeededNic, Error> {
        if self.works.load(Ordering::Relaxed) {
            return self.net.open();
        }
        Err(Error::NoOffer("provider of this test".to_owned()))
    }
}

/// Two nodes, a network between them, and whether each has cards.
struct Hosts {
    net: SeededNet,
    brokers: [LocalBroker; 2],
    works: [Arc<AtomicBool>; 2],
}

impl Hosts {
    fn new() -> Self {
        let policy = ServicePolicy::default();
        let one = LocalBroker::new(NodeId(1), Limits::default(), policy, open_bell);
        let two = one.beside(NodeId(2));
        let works = [true; 2].map(|works| Arc::new(AtomicBool::new(works)));
        Self { net: SeededNet::new(Settings::default()), brokers: [one, two], works }
    }

    fn transport(&self, host: usize) -> LayeredTransport<Counted> {
        self.transport_that(host, |work| work())
    }

    fn transport_that(&self, host: usize, run: weft_layers::Run) -> LayeredTransport<Counted> {
        let broker = Arc::new(self.brokers[host].clone());
        let near = ShmTransport::new(Arc::clone(&broker) as _, Default::default());
        let cards = Counted { net: self.net.clone(), works: Arc::clone(&self.works[host]) };
        LayeredTransport::new(near, OfiTransport::new(cards, broker, Default::default()), run)
    }

    fn open(&self, host: usize) -> Layered {
        self.transport(host).open(&EndpointOptions::default()).expect("a broker")
    }

    /// Lets all endpoints proceed until `over` has something.
    fn until<const N: usize, R>(
        &self,
        mut endpoints: [&mut Layered; N],
        mut over: impl FnMut(usize, &Event<'_>) -> Option<R>,
    ) -> R {
        for _ in 0..100_000 {
            let mut found = None;
            for (number, endpoint) in endpoints.iter_mut().enumerate() {
                endpoint.poll(64, &mut |event| {
                    if found.is_none() {
                        found = over(number, &event);
                    }
                });
            }
            if let Some(found) = found {
                return found;
            }
            self.net.step();
        }
        panic!("it does not end");
    }

    /// Connects the first endpoint to the second.
    fn connect(&self, from: &mut Layered, to: &mut Layered) -> Peer {
        let issued = from.connect(to.address(), 77).expect("it is there");
        let value = self.end(issued, 77, [from, to]).expect("it is there");
        value.peer().expect("a peer")
    }

    /// The end of a call of the first endpoint.
    fn end<const N: usize>(
        &self,
        issued: Issued,
        context: u64,
        endpoints: [&mut Layered; N],
    ) -> Result<Value, OperationError> {
        match issued {
            Issued::Done(value) => Ok(value),
            Issued::Pending => self.until(endpoints, |number, event| match event {
                Event::Completion(end) if (number, end.context) == (0, context) => {
                    Some(end.result.clone())
                }
                _ => None,
            }),
        }
    }
}

const WHOLE: Access = Access::all();

#[test]
fn peers_on_both_ways_add_to_one_word_at_the_same_time() {
    // The kernel copies memory in place, and changes no word of it.
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::InPlace) {
        let hosts = Hosts::new();
        let (mut owner, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
        let memory = kind.memory(&[0; 4096]);
        let region = owner.register_memory(&memory).expect("memory");
        let range = LocalRange::whole(&region);
        let key = owner.grant_within(range, Audience::Partition, WHOLE, PATIENCE).expect("a key");
        let word = Target::new(key, 64);
        let to_owner = near.connect_within(owner.address(), PATIENCE).expect("it is there");
        let from_afar = hosts.connect(&mut far, &mut owner);
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        // It adds as fast as it can, while the owner's engine adds for the other one.
        let thread = std::thread::spawn(move || {
            let (mut added, mut ended) = (0, 0);
            while !stops.load(Ordering::Relaxed) || ended < added {
                if !stops.load(Ordering::Relaxed) && added - ended < 8 {
                    match near.atomic(to_owner, word, Atomic::fetch_add(1), Operation::new(1)) {
                        Ok(Issued::Done(_)) => (added, ended) = (added + 1, ended + 1),
                        Ok(Issued::Pending) => added += 1,
                        Err(OperationError::WouldBlock) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                near.poll(16, &mut |event| {
                    if let Event::Completion(end) = event {
                        assert!(end.result.is_ok());
                        ended += 1;
                    }
                });
            }
            (added, near)
        });
        let (mut from_far, mut ended) = (0, 0);
        while from_far < 3_000 || region.load(64).expect("a word") < from_far + 500 {
            // Many at a time, so that the owner adds them in a row.
            while from_far < ended + 64 {
                let add = Atomic::fetch_add(1);
                match far.atomic(from_afar, word, add, Operation::new(5)) {
                    Ok(_) => from_far += 1,
                    Err(OperationError::WouldBlock) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            hosts.until([&mut far, &mut owner], |number, event| {
                if let (0, Event::Completion(end)) = (number, event) {
                    assert!(end.result.is_ok(), "the key is valid");
                    ended += 1;
                }
                (ended == from_far).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
        while !thread.is_finished() {
            owner.poll(16, &mut |_| {});
        }
        let (from_near, _near) = thread.join().expect("no panic");
        assert!(from_near >= 500, "both took part");
        assert_eq!(region.load(64), Ok(from_near + from_far), "{kind:?}");
    }
}

#[test]
fn the_registers_count_on_both_ways() {
    let hosts = Hosts::new();
    let (mut owner, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let to_owner = near.connect_within(owner.address(), PATIENCE).expect("it is there");
    let from_afar = hosts.connect(&mut far, &mut owner);
    let header = MessageHeader::tag(1);
    near.send_short(to_owner, header, &[b"near"]).expect("room");
    far.send_short(from_afar, header, &[b"from afar"]).expect("room");
    let mut heard = 0;
    hosts.until([&mut owner, &mut far], |number, event| {
        heard += usize::from(number == 0 && matches!(event, Event::Message(_)));
        (heard == 2).then_some(())
    });
    for (register, expected) in
        [(Register::MessagesReceived, 2), (Register::MessageBytesReceived, 13)]
    {
        assert_eq!(owner.register_value(register), expected, "{}", register.name());
    }
}

#[test]
fn a_key_serves_on_both_ways_and_is_void_on_both() {
    let hosts = Hosts::new();
    let (mut owner, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let region = owner.register(4096).expect("memory");
    let range = LocalRange::whole(&region);
    // Granted before the port is there.
    let key = owner.grant_within(range, Audience::Partition, WHOLE, PATIENCE).expect("a key");
    assert!(!owner.has_port());
    let to_owner = near.connect_within(owner.address(), PATIENCE).expect("it is there");
    let from_afar = hosts.connect(&mut far, &mut owner);
    assert!(owner.has_port());
    // And one behind that.
    let late = owner.grant_within(range, Audience::Partition, WHOLE, PATIENCE).expect("a key");
    let own = far.register(4096).expect("memory");
    own.write(0, b"from a region").expect("inside");
    for (place, key) in [(0, key), (64, late)] {
        let put = near.put(to_owner, Source::Bytes(b"near"), Target::new(key, place), quiet());
        assert!(matches!(put, Ok(Issued::Done(_))));
        let source = Source::Region(LocalRange::new(&own, 0, 13));
        let issued = far.put(from_afar, source, Target::new(key, place + 8), Operation::new(6));
        let issued = issued.expect("room");
        hosts.end(issued, 6, [&mut far, &mut owner]).expect("the key is valid");
        let mut bytes = [0; 21];
        region.read(place, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"near\0\0\0\0from a region");
    }
    let window = near.window(to_owner, key).expect("the key is valid");
    assert!(matches!(window, LayeredWindow::Near(_)));
    window.store(100, b"seen").expect("inside");

    let issued = owner.revoke(key, 8).expect("a key");
    let ended = hosts.end(issued, 8, [&mut owner, &mut far]);
    assert_eq!(ended, Ok(Value::Revoked(Revoked::Published)));
    assert_eq!(owner.revoke(key, 8).err(), Some(weft_fabric::GrantError::UnknownKey));
    let invalid = Err(OperationError::InvalidKey);
    let put = near.put(to_owner, Source::Bytes(b"late"), Target::new(key, 0), quiet());
    assert_eq!(put, invalid);
    assert_eq!(window.store(100, b"late"), Err(OperationError::InvalidKey));
    let issued = far.put(from_afar, Source::Bytes(b"late"), Target::new(key, 0), Operation::new(7));
    let put = issued.and_then(|issued| hosts.end(issued, 7, [&mut far, &mut owner]));
    assert_eq!(put, Err(OperationError::InvalidKey));
    // The other key to the same memory serves on.
    let mut put = near.put(to_owner, Source::Bytes(b"good"), Target::new(late, 0), quiet());
    for _ in 0..1000 {
        if put != Err(OperationError::WouldBlock) {
            break;
        }
        owner.poll(16, &mut |_| {});
        near.poll(16, &mut |_| {});
        put = near.put(to_owner, Source::Bytes(b"good"), Target::new(late, 0), quiet());
    }
    assert!(matches!(put, Ok(Issued::Done(_))), "{put:?}");
    let mut bytes = [0; 4];
    region.read(100, &mut bytes).expect("inside");
    assert_eq!(&bytes, b"seen");
}

fn quiet() -> Operation {
    Operation::new(0)
}

#[test]
fn a_key_of_one_peer_serves_it_on_its_way_alone() {
    let hosts = Hosts::new();
    let (mut owner, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let region = owner.register(64).expect("memory");
    let range = LocalRange::whole(&region);
    let to_owner = near.connect_within(owner.address(), PATIENCE).expect("it is there");
    let from_afar = hosts.connect(&mut far, &mut owner);
    let of_near = owner.connect_within(near.address(), PATIENCE).expect("a peer");
    let of_far = hosts.connect(&mut owner, &mut far);
    let key_of = |owner: &mut Layered, peer| {
        owner.grant_within(range, Audience::Peer(peer), WHOLE, PATIENCE).expect("a key")
    };
    let (for_near, for_far) = (key_of(&mut owner, of_near), key_of(&mut owner, of_far));
    let near_put = |near: &mut Layered, key| {
        near.put(to_owner, Source::Bytes(b"near"), Target::new(key, 0), quiet())
    };
    assert!(matches!(near_put(&mut near, for_near), Ok(Issued::Done(_))));
    assert_eq!(near_put(&mut near, for_far), Err(OperationError::InvalidKey));
    for (key, expected) in
        [(for_far, Ok(Value::Nothing)), (for_near, Err(OperationError::InvalidKey))]
    {
        let put =
            far.put(from_afar, Source::Bytes(b"far."), Target::new(key, 8), Operation::new(6));
        assert_eq!(hosts.end(put.expect("room"), 6, [&mut far, &mut owner]), expected);
    }
    for key in [for_near, for_far] {
        let issued = owner.revoke(key, 9).expect("a key");
        let ended = hosts.end(issued, 9, [&mut owner, &mut far]);
        assert_eq!(ended, Ok(Value::Revoked(Revoked::Published)));
    }
}

#[test]
fn the_port_is_opened_at_the_first_need_of_another_node() {
    let hosts = Hosts::new();
    let (mut one, mut two) = (hosts.open(0), hosts.open(0));
    let group = Group::new(5).expect("below 64");
    one.join_within(group, PATIENCE).expect("a group");
    two.join_within(group, PATIENCE).expect("a group");
    let to_two = one.connect_within(two.address(), PATIENCE).expect("it is there");
    one.send_short(to_two, MessageHeader::tag(1), &[b"near"]).expect("room");
    assert_eq!(one.send_multicast(group, MessageHeader::tag(1), &[b"to all"]), Ok(1));
    assert!(!one.has_port() && !two.has_port(), "all are on one node");
    let mut far = hosts.open(1);
    far.join_within(group, PATIENCE).expect("a group");
    assert!(!far.has_port(), "a member alone needs none");
    // A message to a group that has members elsewhere does.
    let header = MessageHeader::tag(2);
    let mut sent = one.send_multicast(group, header, &[b"to all"]);
    let mut rooms = 0;
    for _ in 0..10_000 {
        if sent != Err(SendError::WouldBlock) {
            break;
        }
        one.poll(16, &mut |event| rooms += usize::from(event == Event::GroupRoom { group }));
        far.poll(16, &mut |_| {});
        hosts.net.step();
        if rooms > 0 {
            (rooms, sent) = (0, one.send_multicast(group, header, &[b"to all"]));
        }
    }
    assert_eq!(sent, Ok(2));
    assert!(one.has_port() && far.has_port() && !two.has_port());
    let mut heard = [0; 2];
    let mut of_group = |number: usize, event: &Event<'_>| {
        if let Event::Message(message) = event
            && message.header == header
        {
            assert_eq!((message.group, message.payload), (Some(group), b"to all".as_slice()));
            heard[number] += 1;
        }
    };
    hosts.until([&mut two, &mut far, &mut one], |number, event| {
        of_group(number, event);
        (number == 1 && matches!(event, Event::Message(_))).then_some(())
    });
    for _ in 0..100 {
        two.poll(16, &mut |event| of_group(0, &event));
        far.poll(16, &mut |event| of_group(1, &event));
        hosts.net.step();
    }
    assert_eq!(heard, [1, 1], "each member once");
}

#[test]
fn an_endpoint_without_cards_stays_on_its_node_and_says_why() {
    let hosts = Hosts::new();
    let (mut alone, mut near) = (hosts.open(0), hosts.open(0));
    let mut far = hosts.open(1);
    hosts.works[0].store(false, Ordering::Relaxed);
    for _ in 0..2 {
        let refused = alone.connect_within(far.address(), PATIENCE).err();
        let Some(ConnectError::Provider { reason }) = &refused else { panic!("{refused:?}") };
        assert!(reason.contains("provider of this test"), "{reason}");
    }
    // It is no member between nodes any more, and goes on with its own.
    let all = Group::BROADCAST;
    assert_eq!(alone.send_multicast(all, MessageHeader::tag(1), &[b"near"]), Ok(1));
    assert!(!alone.has_port());
    // Others hear so: at once, and if they ask before it knows.
    let refused = hosts.connect_error(&mut far, [&mut alone, &mut near], 0);
    assert!(matches!(refused, ConnectError::NotFound(_)), "{refused}");
    let refused = hosts.connect_error(&mut far, [&mut alone, &mut near], 1);
    let ConnectError::Broker { reason } = &refused else { panic!("{refused}") };
    assert!(reason.contains("opened no port"), "{reason}");
}

impl Hosts {
    /// Why `from` does not reach one of the others.
    fn connect_error(
        &self,
        from: &mut Layered,
        [one, two]: [&mut Layered; 2],
        which: usize,
    ) -> ConnectError {
        let to = [one.address(), two.address()][which];
        let ended = match from.connect(to, 77) {
            Ok(issued) => self.end(issued, 77, [from, one, two]),
            Err(error) => return error,
        };
        match ended {
            Err(OperationError::Connect(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_peer_of_the_own_node_without_memory_is_met_at_its_port() {
    let hosts = Hosts::new();
    let broker = Arc::new(hosts.brokers[0].clone());
    let alone = OfiTransport::new(hosts.net.clone(), broker, Default::default());
    let mut peer = alone.open(&EndpointOptions::default()).expect("a broker");
    let mut one = hosts.open(0);
    // Nobody there: no port is opened in vain.
    let nobody = EndpointAddress::new(NodeId(1), weft_fabric::Vpid(77));
    let refused = one.connect_within(nobody, PATIENCE);
    assert_eq!(refused, Err(ConnectError::NotFound(nobody)));
    assert!(!one.has_port());
    let mut met = None;
    if let Issued::Done(value) = one.connect(peer.address(), 7).expect("it is there") {
        met = value.peer();
    }
    let (mut sent, mut heard) = (false, false);
    for _ in 0..100_000 {
        one.poll(16, &mut |event| match event {
            Event::Completion(end) if end.context == 7 => {
                met = end.result.expect("it is there").peer();
            }
            other => panic!("{other:?}"),
        });
        peer.poll(16, &mut |event| heard |= matches!(event, Event::Message(_)));
        if let (Some(to), false) = (met, sent) {
            sent = one.send_short(to, MessageHeader::tag(1), &[b"hello"]).is_ok();
        }
        if heard {
            break;
        }
        hosts.net.step();
    }
    assert!(heard && one.has_port());
    assert_eq!(met.and_then(|peer| one.peer_address(peer)), Some(peer.address()));
    // Where there are no cards, the reason is told.
    hosts.works[0].store(false, Ordering::Relaxed);
    let mut other = hosts.open(0);
    let refused = other.connect_within(peer.address(), PATIENCE);
    assert!(matches!(refused, Err(ConnectError::Provider { .. })), "{refused:?}");
}

#[test]
fn the_end_of_a_peer_is_told_once_on_its_way() {
    let hosts = Hosts::new();
    let (mut one, near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let to_near = one.connect_within(near.address(), PATIENCE).expect("it is there");
    let to_far = hosts.connect(&mut one, &mut far);
    let (near_at, far_at) = (near.address(), far.address());
    assert_eq!(
        (one.peer_address(to_near), one.peer_address(to_far)),
        (Some(near_at), Some(far_at))
    );
    // An operation that was under way ends before.
    let region = far.register(64).expect("memory");
    let range = LocalRange::whole(&region);
    let key = far.grant_within(range, Audience::Partition, WHOLE, PATIENCE).expect("a key");
    let put = one.put(to_far, Source::Bytes(b"late"), Target::new(key, 0), Operation::new(3));
    assert_eq!(put, Ok(Issued::Pending));
    drop(near);
    drop(far);
    let (mut downs, mut ended) = (Vec::new(), false);
    hosts.until([&mut one], |_, event| {
        match event {
            Event::PeerDown { peer, address, .. } => downs.push((*peer, *address)),
            Event::Completion(end) => {
                assert_eq!(end.context, 3);
                assert!(!downs.iter().any(|(peer, _)| *peer == to_far), "before its peer");
                ended = true;
            }
            _ => {}
        }
        (downs.len() == 2 && ended).then_some(())
    });
    downs.sort_unstable();
    assert_eq!(downs, [(to_near, near_at), (to_far, far_at)]);
    for peer in [to_near, to_far] {
        let sent = one.send_short(peer, MessageHeader::tag(1), &[b"late"]);
        assert_eq!(sent, Err(SendError::PeerDown));
    }
    assert_eq!(one.poll(16, &mut |event| panic!("{event:?}")), 0);
    let unknown = Peer(to_far.0 + 1);
    assert_eq!(one.send_short(unknown, MessageHeader::tag(1), &[]), Err(SendError::UnknownPeer));
}

#[test]
fn a_peer_that_is_silent_is_down_after_the_time_that_the_broker_says() {
    let hosts = Hosts::new();
    let silence = Duration::from_secs(2);
    hosts.brokers[0].tell_silence(silence);
    let (mut one, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let to_near = one.connect_within(near.address(), PATIENCE).expect("it is there");
    let to_far = hosts.connect(&mut one, &mut far);
    // Both ends are silent for longer than that, and ask for signs of life.
    while hosts.net.now() < 3 * silence {
        one.poll(16, &mut |event| panic!("{event:?}"));
        far.poll(16, &mut |_| {});
        hosts.net.step();
    }
    hosts.net.fall_silent();
    let begin = hosts.net.now();
    let (peer, reason) = hosts.until([&mut one, &mut far], |number, event| match event {
        Event::PeerDown { peer, reason, .. } if number == 0 => Some((*peer, *reason)),
        _ => None,
    });
    let after = hosts.net.now() - begin;
    assert_eq!((peer, reason), (to_far, DownReason::Unreachable));
    // It was heard last a quarter of the time before, at the earliest.
    assert!(silence * 3 / 4 <= after && after <= silence * 5 / 4, "after {after:?}");
    one.send_short(to_near, MessageHeader::tag(1), &[b"near"]).expect("it is there");
    assert_eq!(near.poll(1, &mut |_| {}), 1);
}

#[test]
fn a_fence_of_all_peers_is_over_when_both_ways_are() {
    let hosts = Hosts::new();
    let (mut one, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let regions = [near.register(64).expect("memory"), far.register(64).expect("memory")];
    let mut keys = Vec::new();
    for (endpoint, region) in [&mut near, &mut far].into_iter().zip(&regions) {
        let range = LocalRange::whole(region);
        let key = endpoint.grant_within(range, Audience::Partition, WHOLE, PATIENCE);
        keys.push(key.expect("a key"));
    }
    assert_eq!(one.fence_all(1), Ok(Issued::Done(Value::Nothing)));
    let to_near = one.connect_within(near.address(), PATIENCE).expect("it is there");
    let to_far = hosts.connect(&mut one, &mut far);
    for (to, key) in [(to_near, keys[0]), (to_far, keys[1])] {
        let quiet = Operation::new(2).quiet();
        let put = one.put(to, Source::Bytes(b"before"), Target::new(key, 0), quiet);
        assert!(put.is_ok(), "{put:?}");
    }
    let issued = one.fence_all(9).expect("room");
    assert_eq!(issued, Issued::Pending, "the far one is under way");
    assert_eq!(hosts.end(issued, 9, [&mut one, &mut near, &mut far]), Ok(Value::Nothing));
    for region in &regions {
        let mut bytes = [0; 6];
        region.read(0, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"before");
    }
}

/// Closed while a port shall not be opened yet.
static GATE: Mutex<()> = Mutex::new(());

/// Does the work on a thread, when the gate is open.
fn behind_the_gate(work: Work) {
    on_a_thread(Box::new(move || {
        let _gate = GATE.lock();
        work();
    }));
}

#[test]
fn a_sleeper_is_woken_by_peers_of_its_node_and_by_its_port() {
    let hosts = Hosts::new();
    let transport = hosts.transport_that(0, behind_the_gate);
    let mut sleeper = transport.open(&EndpointOptions::default()).expect("a broker");
    let (mut near, mut far) = (hosts.open(0), hosts.open(1));
    let readable = |endpoint: &Layered, within: i64| {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let file = endpoint.descriptor();
        let time = Timespec { tv_sec: within, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(file, PollFlags::IN)], Some(&time)) == Ok(1)
    };
    let arm = |endpoint: &mut Layered| {
        for _ in 0..100 {
            if endpoint.arm() == Armed::Sleep {
                return;
            }
            endpoint.poll(16, &mut |_| {});
        }
        panic!("it never sleeps");
    };
    arm(&mut sleeper);
    assert!(!readable(&sleeper, 0));
    let to_sleeper = near.connect_within(sleeper.address(), PATIENCE).expect("it is there");
    near.send_short(to_sleeper, MessageHeader::tag(1), &[b"up"]).expect("room");
    assert!(readable(&sleeper, 10), "by a peer of its node");
    let mut heard = 0;
    sleeper.poll(16, &mut |event| heard += usize::from(matches!(event, Event::Message(_))));
    assert_eq!(heard, 1);
    // The thread that opens the port wakes it as well.
    let gate = GATE.lock();
    assert_eq!(sleeper.connect(far.address(), 5), Ok(Issued::Pending));
    arm(&mut sleeper);
    assert!(!readable(&sleeper, 0));
    drop(gate);
    assert!(readable(&sleeper, 10), "by its port");
    assert_eq!(sleeper.poll(16, &mut |event| panic!("{event:?}")), 0);
    assert!(!readable(&sleeper, 0), "it has heard of it");
    // A peer of another node that wants the port.
    let transport = hosts.transport_that(0, |_: Work| panic!("not before it polls"));
    let mut other = transport.open(&EndpointOptions::default()).expect("a broker");
    arm(&mut other);
    assert_eq!(far.connect(other.address(), 6), Ok(Issued::Pending));
    assert!(readable(&other, 10), "by the broker");
    assert_eq!(other.arm(), Armed::Busy, "it has to poll");
}

#[test]
fn a_poll_behind_a_wait_hands_out_what_the_wait_has_found() {
    let hosts = Hosts::new();
    let (mut one, mut far) = (hosts.open(0), hosts.open(1));
    let to_one = hosts.connect(&mut far, &mut one);
    for number in 0..40u8 {
        // Polls that find nothing, so that the next ones leave the port out.
        for _ in 0..number {
            assert_eq!(one.poll(16, &mut |event| panic!("{event:?}")), 0);
        }
        far.send_short(to_one, MessageHeader::tag(number), &[b"from afar"]).expect("room");
        let found = if number % 2 == 0 {
            one.wait(Some(PATIENCE)) == Waited::Ready
        } else {
            (0..10_000).any(|_| hosts.net.step() && one.arm() == Armed::Busy)
        };
        assert!(found, "message {number} arrives");
        let mut heard = 0;
        one.poll(16, &mut |event| heard += usize::from(matches!(event, Event::Message(_))));
        assert_eq!(heard, 1, "message {number}");
        far.poll(16, &mut |_| {});
    }
}

#[test]
fn neither_way_keeps_the_events_of_the_other_back() {
    let hosts = Hosts::new();
    let (mut one, mut near, mut far) = (hosts.open(0), hosts.open(0), hosts.open(1));
    let near_to_one = near.connect_within(one.address(), PATIENCE).expect("it is there");
    let far_to_one = hosts.connect(&mut far, &mut one);
    let send = |from: &mut Layered, to| from.send_short(to, MessageHeader::tag(1), &[b"again"]);
    let mut heard = [0; 2];
    // Both mailboxes are full all the time, and a poll takes one message.
    for _ in 0..2000 {
        while send(&mut near, near_to_one).is_ok() {}
        while send(&mut far, far_to_one).is_ok() {}
        hosts.net.step();
        one.poll(1, &mut |event| {
            if let Event::Message(message) = event {
                heard[usize::from(message.source == far.address())] += 1;
            }
        });
    }
    assert!(heard.iter().all(|count| *count > 500), "{heard:?}");
}

#[test]
fn work_that_nobody_does_ends_what_waits_for_it() {
    let hosts = Hosts::new();
    let transport = hosts.transport_that(0, drop::<Work>);
    let mut one = transport.open(&EndpointOptions::default()).expect("a broker");
    let far = hosts.open(1);
    for _ in 0..2 {
        let refused = one.connect_within(far.address(), PATIENCE).err();
        assert!(matches!(refused, Some(ConnectError::Provider { .. })), "{refused:?}");
    }
}

#[test]
fn a_meeting_with_an_endpoint_that_does_not_poll_ends() {
    let hosts = Hosts::new();
    let (mut one, silent) = (hosts.open(0), hosts.open(1));
    let issued = one.connect(silent.address(), 7);
    assert_eq!(issued, Ok(Issued::Pending));
    for _ in 0..100 {
        one.poll(16, &mut |event| panic!("{event:?}"));
        hosts.net.step();
    }
    hosts.brokers[0].let_pass(Duration::from_secs(5));
    // Any request has the broker look at its clock.
    let _another = hosts.open(1);
    let ended = hosts.until([&mut one], |_, event| match event {
        Event::Completion(end) => Some(end.result.clone()),
        _ => None,
    });
    assert!(
        matches!(&ended, Err(OperationError::Connect(ConnectError::Broker { .. }))),
        "{ended:?}"
    );
}

#[test]
fn a_port_of_another_user_or_of_another_endpoint_is_not_attached() {
    let hosts = Hosts::new();
    let one = hosts.open(0);
    let address: EndpointAddress = one.address();
    let name = wire::PortName::of(b"a port").expect("short");
    let attach = |client: &mut dyn Client, birth: u64| {
        let vpid = address.vpid.0;
        let attach = wire::Attach { ticket: 3, vpid, birth, depth: 16, name };
        let answer = client.call(attach.into(), 3, &[]).expect("a broker");
        let wire::EndpointControl::Reply(reply) = answer.message else { panic!("{answer:?}") };
        reply.status
    };
    let mut client = hosts.brokers[0].client().expect("a broker");
    assert_eq!(attach(client.as_mut(), 1), wire::status::IN_USE, "its birth is not known");
    drop(one);
    assert_eq!(attach(client.as_mut(), 1), wire::status::NOT_FOUND);
}
