//! Endpoints of several processes and a real daemon: messages, death by SIGKILL at any moment,
//! death and restart of the daemon.
//!
//! The other processes run this test program again, with a role in their environment.

#![allow(clippy::disallowed_methods, reason = "tests own their clocks")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointAddress, Event, Issued, LocalRange,
    MessageHeader, Notify, Operation, PATIENCE, Peer, Progress, Region, RemoteKey, SendError,
    Source, Target, Value,
};
use weft_transport_shm::{Parameters, ShmEndpoint};

use common::{Daemon, WATCHDOG, open_with, spawn, target, until};

/// Not a test: the role of the other processes.
#[test]
fn role() {
    let Some((role, socket)) = common::role() else { return };
    match role.as_str() {
        "daemon" => common::serve(socket),
        "chatter" => chatter(&socket),
        "forked chatter" => {
            let endpoint = open(&socket);
            // The forked copy has the channel to the daemon and everything else, and does nothing
            // until it is killed.
            // SAFETY: the child only makes system calls, one after the other, and never returns.
            if unsafe { libc::fork() } == 0 {
                // SAFETY: as above. The alarm ends the child when the test fails.
                unsafe { libc::alarm(60) };
                loop {
                    // SAFETY: as above.
                    unsafe { libc::pause() };
                }
            }
            chat(endpoint)
        }
        "holder" => {
            let mut endpoint = open(&socket);
            let _region = introduce(&mut endpoint);
            loop {
                endpoint.wait(Some(Duration::from_millis(1)));
                endpoint.poll(16, &mut |_| {});
            }
        }
        _ => {}
    }
}

/// Talks to the endpoint named in the environment as fast as it can, until it is killed.
fn chatter(socket: &Path) -> ! {
    chat(open(socket))
}

/// Sends the key of a region to the endpoint named in the environment.
fn introduce(endpoint: &mut ShmEndpoint) -> <ShmEndpoint as Endpoint>::Region {
    let to = target(endpoint);
    let region = endpoint.register(1 << 16).expect("memory");
    let key = endpoint
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::all(), PATIENCE)
        .expect("a grant");
    let told = endpoint.send_short(to, MessageHeader::tag(1), &[&key.0.to_le_bytes()]);
    told.expect("an empty mailbox");
    region
}

fn chat(mut endpoint: ShmEndpoint) -> ! {
    let to = target(&mut endpoint);
    let region = endpoint.register(1 << 16).expect("memory");
    let key = endpoint
        .grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::READ | Access::WRITE,
            PATIENCE,
        )
        .expect("a grant");
    let mut number = 0u64;
    loop {
        let text = [number.to_le_bytes(), key.0.to_le_bytes()];
        match endpoint.send_short(to, MessageHeader::tag(1), &[&text[0], &text[1]]) {
            Ok(()) => number += 1,
            Err(SendError::WouldBlock) => {
                endpoint.wait(Some(Duration::from_millis(1)));
            }
            Err(_) => std::process::exit(0),
        }
        endpoint.poll(16, &mut |_| {});
    }
}

fn open(socket: &Path) -> ShmEndpoint {
    open_with(socket, Parameters::default())
}

fn is_down(event: &Event<'_>, who: EndpointAddress) -> bool {
    matches!(event, Event::PeerDown { address, .. } if *address == who)
}

fn exchange(one: &mut ShmEndpoint, to: Peer, two: &mut ShmEndpoint, text: &[u8]) {
    one.send_short(to, MessageHeader::tag(9), &[text]).expect("room");
    until(
        two,
        "a message",
        |event| matches!(event, Event::Message(message) if message.payload == text),
    );
}

#[test]
fn two_endpoints_meet_at_the_daemon_and_talk() {
    let daemon = Daemon::start();
    let (mut one, mut two) = (open(&daemon.socket()), open(&daemon.socket()));
    let to_two = one.connect_within(two.address(), PATIENCE).expect("there");
    exchange(&mut one, to_two, &mut two, b"hello");
    let to_one = two.connect_within(one.address(), PATIENCE).expect("there");
    exchange(&mut two, to_one, &mut one, b"hello yourself");
    let region = two.register(8192).expect("memory");
    let key = two
        .grant_within(LocalRange::whole(&region), Audience::Partition, Access::WRITE, PATIENCE)
        .expect("a grant");
    let target = Target::new(key, 100);
    one.resolve_within(to_two, key, PATIENCE).expect("published");
    let _ = one
        .put(to_two, Source::Bytes(b"data"), target, Operation::new(5).notify(Notify::COMPLETER))
        .expect("done");
    until(&mut two, "a notification", |event| matches!(event, Event::Notification(_)));
    let mut seen = [0; 4];
    weft_fabric::Region::read(&region, 100, &mut seen).expect("inside");
    assert_eq!(&seen, b"data");
    let status = weftd::client::status(&daemon.socket()).expect("a status");
    assert_eq!(status.endpoints.len(), 2);
    assert!(status.endpoints.iter().all(|endpoint| endpoint.peers == 1));
    let address = one.address();
    drop(one);
    until(&mut two, "the end of a peer", |event| is_down(event, address));
}

fn weft_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc");
    maps.lines().filter(|line| line.contains("memfd:weft-")).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc").count()
}

#[test]
fn a_killed_process_is_reported_and_leaves_nothing() {
    let daemon = Daemon::start();
    let mut survivor = open(&daemon.socket());
    let mut before = None;
    let mut slowest = Duration::ZERO;
    for round in 0..30u64 {
        let mut child = spawn("chatter", &daemon.socket(), survivor.address().vpid);
        let mut source = None;
        let mut next = 0;
        until(&mut survivor, "a first message", |event| {
            if let Event::Message(message) = event {
                source = Some(message.source);
                next += 1;
            }
            source.is_some()
        });
        let source = source.expect("a message came");
        let back = survivor.connect_within(source, PATIENCE).expect("it came from there");
        // A different moment in each round.
        let pause = Instant::now();
        while pause.elapsed() < Duration::from_micros(round * 137 % 2000) {
            survivor.poll(64, &mut |event| check_order(&event, &mut next));
        }
        child.kill().expect("ours");
        let took = until(&mut survivor, "the death of a peer", |event| {
            check_order(event, &mut next);
            is_down(event, source)
        });
        slowest = slowest.max(took);
        child.wait().expect("ours");
        assert_eq!(
            survivor.send_short(back, MessageHeader::tag(0), &[b"x"]),
            Err(SendError::PeerDown)
        );
        let now = (weft_mappings(), descriptors());
        // Other tests of this program come and go; the limits catch unbounded growth.
        let first = *before.get_or_insert(now);
        assert!(now.0 < first.0 + 30 && now.1 < first.1 + 60, "{first:?} became {now:?}");
    }
    println!("slowest report of a death: {slowest:?}");
}

/// The copy still holds the channel to the daemon open, but the endpoint belongs to the process
/// that opened it.
#[test]
fn the_death_of_a_process_that_forked_is_reported() {
    let daemon = Daemon::start();
    let mut survivor = open(&daemon.socket());
    let mut child = spawn("forked chatter", &daemon.socket(), survivor.address().vpid);
    let mut source = None;
    until(&mut survivor, "a first message", |event| {
        if let Event::Message(message) = event {
            source = Some(message.source);
        }
        source.is_some()
    });
    let source = source.expect("a message came");
    let copies = children_of(child.id());
    child.kill().expect("ours");
    let took = until(&mut survivor, "the death of a peer", |event| is_down(event, source));
    child.wait().expect("ours");
    assert_eq!(copies.len(), 1, "one forked copy");
    for copy in copies {
        let copy = rustix::process::Pid::from_raw(copy).expect("a number");
        let still_there = rustix::process::kill_process(copy, rustix::process::Signal::KILL);
        assert_eq!(still_there, Ok(()), "the copy was there all the time");
    }
    println!("the death was reported after {took:?}");
}

fn children_of(process: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it lives");
    let lists = threads.map(|thread| thread.expect("it lives").path().join("children"));
    let texts: Vec<_> =
        lists.map(|list| std::fs::read_to_string(list).expect("it lives")).collect();
    let numbers = texts.iter().flat_map(|text| text.split_whitespace());
    numbers.map(|number| number.parse().expect("a number")).collect()
}

/// Put, get, atomics and locks work while all threads of the target are stopped.
#[test]
fn one_sided_operations_need_nothing_of_a_stopped_target() {
    let daemon = Daemon::start();
    let mut near = open(&daemon.socket());
    assert_eq!(near.capabilities().progress, Progress::Auto);
    let mut child = spawn("holder", &daemon.socket(), near.address().vpid);
    let mut heard = None;
    until(&mut near, "a key", |event| {
        if let Event::Message(message) = event {
            let key = u64::from_le_bytes(message.payload.try_into().expect("a key"));
            heard = Some((message.source, RemoteKey(key)));
        }
        heard.is_some()
    });
    let (source, key) = heard.expect("a key came");
    let far = near.connect_within(source, PATIENCE).expect("it came from there");
    // The first use of a key asks the daemon for the memory.
    near.resolve_within(far, key, PATIENCE).expect("published");
    let first = near.put(far, Source::Bytes(b"first"), Target::new(key, 0), Operation::new(0));
    assert!(first.is_ok(), "{first:?}");
    let holder = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(holder, rustix::process::Signal::STOP).expect("ours");
    let state = format!("/proc/{}/stat", child.id());
    let is_stopped = || std::fs::read_to_string(&state).is_ok_and(|text| text.contains(") T "));
    let start = Instant::now();
    while !is_stopped() {
        assert!(start.elapsed() < WATCHDOG, "it does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }

    let bytes: Vec<u8> = (0..60_000u32).map(|number| number.to_le_bytes()[0]).collect();
    let target = Target::new(key, 8);
    let put =
        near.put(far, Source::Bytes(&bytes), target, Operation::new(1).notify(Notify::REQUESTER));
    assert!(matches!(put, Ok(Issued::Done(_))), "{put:?}");
    until(
        &mut near,
        "the requester's notification",
        |event| matches!(event, Event::Notification(told) if told.operation == 1),
    );
    let into = near.register(60_000).expect("memory");
    let got = near.get(far, target, LocalRange::new(&into, 0, 60_000), Operation::new(2));
    assert!(matches!(got, Ok(Issued::Done(_))), "{got:?}");
    let mut found = vec![0; 60_000];
    into.read(0, &mut found).expect("inside");
    assert!(found == bytes, "get returns the bytes of the put");
    let word = Target::new(key, 0);
    for old in [u64::from_le_bytes(*b"first\0\0\0"), u64::from_le_bytes(*b"first\0\0\0") + 5] {
        let added = near.atomic(far, word, Atomic::fetch_add(5), Operation::new(3));
        assert_eq!(added, Ok(Issued::Done(Value::Word(old))));
    }
    assert!(is_stopped(), "it was stopped all the time");
    child.kill().expect("ours");
    child.wait().expect("ours");
}

/// A chatter numbers its messages from 0, without gaps.
fn check_order(event: &Event<'_>, next: &mut u64) {
    if let Event::Message(message) = event {
        let (number, _) = message.payload.split_first_chunk().expect("16 bytes");
        assert_eq!(u64::from_le_bytes(*number), *next);
        *next += 1;
    }
}

#[test]
fn endpoints_outlive_their_daemon_and_find_the_next() {
    let mut daemon = Daemon::start();
    let (mut one, mut two) = (open(&daemon.socket()), open(&daemon.socket()));
    let to_two = one.connect_within(two.address(), PATIENCE).expect("there");
    let to_one = two.connect_within(one.address(), PATIENCE).expect("there");
    let region = two.register(4096).expect("memory");
    let key = two
        .grant_within(
            LocalRange::whole(&region),
            Audience::Partition,
            Access::READ | Access::WRITE,
            PATIENCE,
        )
        .expect("a grant");
    exchange(&mut one, to_two, &mut two, b"before");
    daemon.kill();
    exchange(&mut one, to_two, &mut two, b"without a daemon");
    exchange(&mut two, to_one, &mut one, b"and back");
    daemon.start_again();
    let mut three = open(&daemon.socket());
    // The other endpoints find the new daemon by themselves.
    let start = Instant::now();
    let to_three = loop {
        one.wait(Some(Duration::from_millis(20)));
        two.wait(Some(Duration::from_millis(20)));
        match one.connect_within(three.address(), PATIENCE) {
            Ok(peer) => break peer,
            Err(error) => assert!(start.elapsed() < WATCHDOG, "{error}"),
        }
    };
    exchange(&mut one, to_three, &mut three, b"new friends");
    exchange(&mut one, to_two, &mut two, b"old friends");
    let target = Target::new(key, 0);
    // The owner may still be telling the new daemon of its pairs and keys. It has this thread, too.
    while let Err(error) = one.resolve_within(to_two, key, Duration::from_millis(20)) {
        assert!(start.elapsed() < WATCHDOG, "published again: {error}");
        two.wait(Some(Duration::from_millis(5)));
        two.poll(64, &mut |_| {});
    }
    let _ =
        one.put(to_two, Source::Bytes(b"x"), target, Operation::new(0)).expect("published again");
    let address = two.address();
    drop(two);
    until(&mut one, "the end of an old friend", |event| is_down(event, address));
}

#[test]
fn an_endpoint_that_does_not_come_back_is_reported_by_the_next_daemon() {
    let mut daemon = Daemon::start();
    let mut survivor = open(&daemon.socket());
    let mut child = spawn("chatter", &daemon.socket(), survivor.address().vpid);
    let mut source = None;
    until(&mut survivor, "a first message", |event| {
        if let Event::Message(message) = event {
            source = Some(message.source);
        }
        source.is_some()
    });
    daemon.kill();
    child.kill().expect("ours");
    child.wait().expect("ours");
    daemon.start_again();
    let source = source.expect("a message came");
    until(&mut survivor, "a death in the absence of a daemon", |event| is_down(event, source));
}
