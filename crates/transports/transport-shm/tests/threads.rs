//! Both ends in one process, on a thread each, for the thread sanitizer.
//!
//! Small enough to pass under the sanitizer in seconds. Run alone it is the stress test of the
//! arm-and-ring protocol, since receivers sleep as often as they can.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Atomic, Audience, Blocking, Endpoint, EndpointOptions, Event, LocalRange,
    MessageHeader, NodeId, Notify, OpenError, Operation, PATIENCE, Partition, PartitionId, Region,
    SendError, Source, Target, Transport, Waited, Watchable,
};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

const MESSAGES: u64 = 20_000;
/// Longer than any wait should take. A lost wake-up fails the test instead of hanging it.
const LOST: Duration = Duration::from_secs(20);

fn transport(parameters: Parameters) -> ShmTransport {
    ShmTransport::new(Arc::new(local_broker(NodeId::LOCAL, Limits::default())), parameters)
}

fn open(transport: &ShmTransport) -> ShmEndpoint {
    transport.open(&EndpointOptions::default()).expect("room")
}

/// Parameters with which a receiver sleeps as soon as its rings are empty.
const SLEEPY: Parameters = Parameters {
    endpoints: 256,
    ring_slots: 16,
    spin_us: 0,
    yields: 0,
    copy: weft_memory::CopyMode::Plain,
    plain_bytes_max: 1 << 20,
};

/// Sends numbered messages, and waits for room when the ring is full.
fn send_all(endpoint: &mut ShmEndpoint, to: weft_fabric::Peer) {
    let mut number = 0u64;
    while number < MESSAGES {
        match endpoint.send_short(to, MessageHeader::tag(1), &[&number.to_le_bytes()]) {
            Ok(()) => number += 1,
            Err(SendError::WouldBlock) => {
                assert_eq!(endpoint.wait(Some(LOST)), Waited::Ready, "no event reported room");
                let mut room = 0;
                endpoint.poll(8, &mut |event| {
                    room += usize::from(matches!(event, Event::Room { .. }));
                });
                assert_eq!(room, 1);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn sleepers_on_both_sides_lose_nothing() {
    let transport = transport(SLEEPY);
    let (mut sender, mut receiver) = (open(&transport), open(&transport));
    let to = sender.connect_within(receiver.address(), PATIENCE).expect("there");
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || send_all(&mut sender, to));
        let mut next = 0u64;
        while next < MESSAGES {
            assert_eq!(receiver.wait(Some(LOST)), Waited::Ready, "message {next} was lost");
            receiver.poll(3, &mut |event| match event {
                Event::Message(message) => {
                    assert_eq!(message.payload, next.to_le_bytes());
                    next += 1;
                }
                Event::PeerDown { .. } => assert_eq!(next, MESSAGES),
                other => panic!("{other:?}"),
            });
        }
        sending.join().expect("no panic");
    });
}

#[test]
fn a_sleeper_on_its_descriptor_loses_nothing() {
    let transport = transport(SLEEPY);
    let (mut sender, mut receiver) = (open(&transport), open(&transport));
    let to = sender.connect_within(receiver.address(), PATIENCE).expect("there");
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || send_all(&mut sender, to));
        let mut next = 0u64;
        while next < MESSAGES {
            if receiver.arm() == Armed::Sleep {
                let file = receiver.descriptor();
                let mut waits =
                    [rustix::event::PollFd::from_borrowed_fd(file, rustix::event::PollFlags::IN)];
                let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                let ready = rustix::event::poll(&mut waits, Some(&limit)).expect("a poll");
                assert_eq!(ready, 1, "message {next} was lost");
            }
            receiver.poll(64, &mut |event| {
                if let Event::Message(message) = event {
                    assert_eq!(message.payload, next.to_le_bytes());
                    next += 1;
                }
            });
        }
        sending.join().expect("no panic");
    });
}

#[test]
fn many_senders_keep_their_order() {
    let transport = transport(SLEEPY);
    let mut receiver = open(&transport);
    let senders: Vec<_> = (0..6).map(|_| open(&transport)).collect();
    let addresses: Vec<_> = senders.iter().map(Endpoint::address).collect();
    std::thread::scope(|scope| {
        let address = receiver.address();
        let spawn = |mut sender: ShmEndpoint| {
            let to = sender.connect_within(address, PATIENCE).expect("there");
            scope.spawn(move || send_all(&mut sender, to))
        };
        let sending: Vec<_> = senders.into_iter().map(spawn).collect();
        let mut next = [0u64; 6];
        let mut ended = 0;
        while ended < 6 {
            assert_eq!(receiver.wait(Some(LOST)), Waited::Ready, "lost after {next:?}");
            receiver.poll(16, &mut |event| match event {
                Event::Message(message) => {
                    let who = addresses.iter().position(|a| *a == message.source).expect("known");
                    assert_eq!(message.payload, next[who].to_le_bytes());
                    next[who] += 1;
                }
                Event::PeerDown { address, .. } => {
                    let who = addresses.iter().position(|a| *a == address).expect("known");
                    assert_eq!(next[who], MESSAGES, "messages came after the end");
                    ended += 1;
                }
                other => panic!("{other:?}"),
            });
        }
        for thread in sending {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn put_data_is_visible_when_its_notification_arrives() {
    let transport = transport(Parameters::default());
    let (mut writer, mut reader) = (open(&transport), open(&transport));
    let region = reader.register(4096).expect("memory");
    let key = reader
        .grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::READ | Access::WRITE | Access::ATOMIC,
            PATIENCE,
        )
        .expect("key");
    let counts = reader.register(4096).expect("memory");
    let all = Access::READ | Access::WRITE | Access::ATOMIC;
    let counter = reader
        .grant_within(LocalRange::whole(&counts), Audience::Partition, all, PATIENCE)
        .expect("key");
    let to = writer.connect_within(reader.address(), PATIENCE).expect("there");
    let back = reader.connect_within(writer.address(), PATIENCE).expect("there");
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            for round in 0..2_000u64 {
                let bytes = [round.to_le_bytes()[0]; 512];
                let notify = Notify::COMPLETER.immediate(round);
                let source = Source::Bytes(&bytes);
                let _ = writer
                    .put(to, source, Target::new(key, 64), Operation::new(round).notify(notify))
                    .expect("room");
                let word = Target::new(counter, 8);
                let add = Atomic::fetch_add(1);
                let _ = writer.atomic(to, word, add, Operation::new(0)).expect("a word");
                // The reader answers when it has read, so that the next put does not race with the
                // read.
                let mut heard = 0;
                while heard == 0 {
                    writer.wait(Some(LOST));
                    heard = writer.poll(1, &mut |_| {});
                }
            }
        });
        let mut seen = [0; 512];
        for round in 0..2_000u64 {
            let mut told = None;
            while told.is_none() {
                assert_eq!(reader.wait(Some(LOST)), Waited::Ready);
                reader.poll(1, &mut |event| {
                    if let Event::Notification(notification) = event {
                        told = Some(notification.immediate);
                    }
                });
            }
            assert_eq!(told, Some(round));
            region.read(64, &mut seen).expect("inside");
            assert_eq!(seen, [round.to_le_bytes()[0]; 512]);
            reader.send_short(back, MessageHeader::default(), &[]).expect("room");
        }
        // Joined explicitly: the thread sanitizer does not see the join at the end of a scope.
        writing.join().expect("no panic");
        assert!(counts.load(8).expect("a word") == 2_000);
    });
}

/// Two threads ask with the same ticket at the same time, again and again.
#[test]
fn one_of_two_that_race_gets_in_by_a_ticket() {
    let broker = local_broker(NodeId::LOCAL, Limits::default());
    let shared = Partition::Numbered(PartitionId::of_user_named(1000, 7));
    let open = |user, partition| {
        let transport = ShmTransport::new(Arc::new(broker.as_user(user)), Parameters::default());
        transport.open(&EndpointOptions { partition, ..EndpointOptions::default() })
    };
    let mut host = open(1000, shared).expect("the user's own partition");
    for round in 0..200 {
        let ticket = host.invite_within(Duration::from_secs(100), PATIENCE).expect("a ticket");
        let barrier = std::sync::Barrier::new(2);
        let opened = std::thread::scope(|scope| {
            let racers = [1001, 1002].map(|user| {
                let (open, barrier) = (&open, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    open(user, Partition::Ticket(ticket)).map(drop)
                })
            });
            racers.map(|racer| racer.join().expect("it ends"))
        });
        let winners = opened.iter().filter(|opened| opened.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {opened:?}");
        assert!(opened.contains(&Err(OpenError::InvalidTicket)), "round {round}: {opened:?}");
    }
}
