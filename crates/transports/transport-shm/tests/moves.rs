//! Memory moves out of reach of a revoked key while others write to it by keys that stay.
//!
//! Threads that stop at the doors of an operation stand in for peers that were stopped by a signal.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, Event, Issued, LocalRange,
    NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Revoked, Signal,
    SignalChange, Source, Target, Transport, Value, Window,
};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::door::{Door, on_passing};
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

type Result<T> = std::result::Result<T, OperationError>;

const BYTES: u64 = 8192;
/// The words of the region, by offset.
const PUT: u64 = 0;
const SIGNAL: u64 = 2048;
const ATOMIC: u64 = 2056;
const HAND: u64 = 2064;

fn transport() -> ShmTransport {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    ShmTransport::new(broker, Parameters::default())
}

fn open(transport: &ShmTransport) -> ShmEndpoint {
    transport.open(&EndpointOptions::default()).expect("room")
}

/// A key to the whole region for one peer, and the handle by which that peer uses it.
fn grant(owner: &mut ShmEndpoint, region: &ShmRegion, of: &mut ShmEndpoint) -> (Peer, RemoteKey) {
    let to = of.connect_within(owner.address(), PATIENCE).expect("there");
    let peer = owner.connect_within(of.address(), PATIENCE).expect("there");
    let (whole, access) = (LocalRange::whole(region), Access::all());
    (to, owner.grant_within(whole, Audience::Peer(peer), access, PATIENCE).expect("a grant"))
}

/// Calls `operation` until it is not refused, and polls for room in between.
fn until_room<T>(
    of: &mut ShmEndpoint,
    mut operation: impl FnMut(&mut ShmEndpoint) -> Result<T>,
) -> Result<T> {
    loop {
        match operation(of) {
            Err(OperationError::WouldBlock) => {}
            other => return other,
        }
        let mut has_room = false;
        while !has_room {
            assert_eq!(of.wait(Some(PATIENCE)), weft_fabric::Waited::Ready, "no room came");
            of.poll(16, &mut |event| has_room |= matches!(event, Event::Room { .. }));
        }
    }
}

fn put(of: &mut ShmEndpoint, to: Peer, target: Target, bytes: &[u8]) -> Result<()> {
    let put = |of: &mut ShmEndpoint| of.put(to, Source::Bytes(bytes), target, Operation::new(0));
    until_room(of, put).map(drop)
}

fn get(of: &mut ShmEndpoint, to: Peer, target: Target, into: &ShmRegion) -> Result<u64> {
    let range = LocalRange::new(into, 0, 8);
    let _ = until_room(of, |of| of.get(to, target, range, Operation::new(0)))?;
    Ok(into.load(0).expect("inside"))
}

fn add_one(of: &mut ShmEndpoint, to: Peer, target: Target) -> Result<Issued> {
    until_room(of, |of| of.atomic(to, target, Atomic::fetch_add(1), Operation::new(0)))
}

/// The work of a writer, and how often it does not know whether it was done.
#[derive(Default)]
struct Done {
    atomics: u64,
    signals: u64,
    unknown: u64,
}

impl Done {
    fn count<T>(&mut self, result: Result<T>) -> u64 {
        match result {
            Ok(_) => 1,
            Err(OperationError::Interrupted) => {
                self.unknown += 1;
                0
            }
            Err(other) => panic!("a valid key: {other}"),
        }
    }
}

/// Writes by every kind of operation until `stop`, and reads back what it put.
fn write_all(
    of: &mut ShmEndpoint,
    (to, key): (Peer, RemoteKey),
    area: u64,
    progress: &AtomicU64,
    stop: &AtomicBool,
) -> Done {
    let into = of.register(8).expect("memory");
    let mut done = Done::default();
    let at = |offset| Target::new(key, offset);
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let bytes = number.to_le_bytes().repeat(32);
        let before = done.unknown;
        let first = put(of, to, at(PUT + area), &bytes);
        done.count(first);
        let (halves, word) = (bytes.split_at(64), at(PUT + area + 256));
        let ranges = [(Source::Bytes(halves.0), word), (Source::Bytes(halves.1), at(PUT + area))];
        let vectored = until_room(of, |of| of.put_vectored(to, &ranges, Operation::new(0)));
        done.count(vectored);
        let target = at(PUT + area + 8);
        let brief = until_room(of, |of| of.put_immediate(to, number, 8, target, Operation::new(0)));
        done.count(brief);
        for offset in [area, area + 8, area + 184, area + 256] {
            let seen = get(of, to, at(PUT + offset), &into).expect("a valid key");
            if done.unknown == before {
                assert_eq!(seen, number, "a put that ended well is not there");
            }
        }
        let signal = Signal { target: at(SIGNAL), change: SignalChange::Add(1) };
        let source = Source::Bytes(&bytes);
        let told = until_room(of, |of| {
            of.put_signal(to, source, at(PUT + area), signal, Operation::new(0))
        });
        done.signals += done.count(told);
        let added = add_one(of, to, at(ATOMIC));
        done.atomics += done.count(added);
        progress.fetch_add(1, Ordering::Relaxed);
    }
    done
}

/// Moves at the least, and what the writers have to get done meanwhile.
const MOVES_MIN: u64 = 100;
const PROGRESS_MIN: u64 = 200;

/// Revokes keys of `victim` to the region, one after another, each of which was used, until the
/// writers have made progress.
fn revoke_often(
    owner: &mut ShmEndpoint,
    region: &ShmRegion,
    victim: &mut ShmEndpoint,
    progress: &AtomicU64,
) {
    let mut round = 0;
    while round < MOVES_MIN || progress.load(Ordering::Relaxed) < PROGRESS_MIN {
        round += 1;
        let (to, key) = grant(owner, region, victim);
        put(victim, to, Target::new(key, BYTES - 8), &round.to_le_bytes()).expect("a valid key");
        assert_eq!(owner.revoke_within(key, PATIENCE), Ok(Revoked::Published));
        assert_eq!(region.load(BYTES - 8), Ok(round));
        let late = put(victim, to, Target::new(key, BYTES - 8), b"too late");
        assert_eq!(late, Err(OperationError::InvalidKey));
    }
}

#[test]
fn writers_by_keys_that_stay_lose_nothing_to_moves() {
    let transport = transport();
    let (mut owner, mut victim) = (open(&transport), open(&transport));
    let region = owner.register(BYTES).expect("memory");
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|number| {
            let mut writer = open(&transport);
            let (to, key) = grant(&mut owner, &region, &mut writer);
            (writer, to, key, number * 512)
        })
        .collect();
    std::thread::scope(|scope| {
        let writing: Vec<_> = writers
            .into_iter()
            .map(|(mut writer, to, key, area)| {
                let (stop, progress) = (&stop, &progress);
                scope.spawn(move || write_all(&mut writer, (to, key), area, progress, stop))
            })
            .collect();
        revoke_often(&mut owner, &region, &mut victim, &progress);
        stop.store(true, Ordering::Relaxed);
        let (mut all, mut threads) = (Done::default(), 0);
        for writer in writing {
            let done = loop {
                // The last keys are published by polls of the owner.
                owner.poll(16, &mut |_| {});
                if writer.is_finished() {
                    break writer.join().expect("no panic");
                }
            };
            all.atomics += done.atomics;
            all.signals += done.signals;
            all.unknown += done.unknown;
            threads += 1;
        }
        assert_eq!(threads, 3);
        for (offset, told) in [(ATOMIC, all.atomics), (SIGNAL, all.signals)] {
            let sum = region.load(offset).expect("inside");
            assert!((told..=told + all.unknown).contains(&sum), "{sum} where {told} were told");
        }
    });
}

#[test]
fn numbers_that_are_handed_over_and_acknowledged_survive_moves() {
    let transport = transport();
    let (mut owner, mut victim, mut writer) =
        (open(&transport), open(&transport), open(&transport));
    let region = owner.register(BYTES).expect("memory");
    let (to, key) = grant(&mut owner, &region, &mut writer);
    let into = writer.register(8).expect("memory");
    let (number_at, answer_at) = (Target::new(key, HAND), Target::new(key, HAND + 8));
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            let mut number = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                match put(&mut writer, to, number_at, &number.to_le_bytes()) {
                    Ok(()) => {}
                    // It stood still for too long. Whether it is there is not known.
                    Err(OperationError::Interrupted) => break,
                    Err(other) => panic!("a valid key: {other}"),
                }
                let since = Instant::now();
                while get(&mut writer, to, answer_at, &into).expect("a valid key") != number {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    assert!(since.elapsed() < PATIENCE, "{number} or its answer was lost");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        // A thread of the owner answers each number.
        let answering = scope.spawn(|| {
            let mut last = 0;
            while !stop.load(Ordering::Relaxed) {
                let number = region.load(HAND).expect("inside");
                if number != last {
                    assert_eq!(number, last + 1, "a former number came back");
                    last = number;
                    region.store(HAND + 8, last).expect("inside");
                    progress.store(last, Ordering::Relaxed);
                }
            }
        });
        while !stop.load(Ordering::Relaxed) && progress.load(Ordering::Relaxed) < PROGRESS_MIN {
            revoke_often(&mut owner, &region, &mut victim, &AtomicU64::new(PROGRESS_MIN));
            let ended = putting.is_finished() || answering.is_finished();
            assert!(!ended || stop.load(Ordering::Relaxed), "a thread panicked");
        }
        stop.store(true, Ordering::Relaxed);
        while !putting.is_finished() {
            owner.poll(16, &mut |_| {});
        }
        putting.join().expect("no panic");
        answering.join().expect("no panic");
    });
}

/// An operation of a writer that owns its key.
type Write = fn(&mut ShmEndpoint, Peer, RemoteKey) -> Result<()>;

fn one_put(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    of.put(to, Source::Bytes(b"new bytes"), Target::new(key, PUT), Operation::new(0)).map(drop)
}

fn one_immediate(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    of.put_immediate(to, 7, 8, Target::new(key, PUT), Operation::new(0)).map(drop)
}

fn one_vectored(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    let ranges = [8, 0].map(|offset| (Source::Bytes(b"new word"), Target::new(key, offset)));
    of.put_vectored(to, &ranges, Operation::new(0)).map(drop)
}

fn one_signal(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    let signal = Signal { target: Target::new(key, SIGNAL), change: SignalChange::Set(1) };
    of.put_signal(to, Source::Bytes(b"n"), Target::new(key, PUT), signal, Operation::new(0))
        .map(drop)
}

fn one_atomic(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    of.atomic(to, Target::new(key, PUT), Atomic::fetch_add(1), Operation::new(0)).map(drop)
}

fn one_store(of: &mut ShmEndpoint, to: Peer, key: RemoteKey) -> Result<()> {
    of.window(to, key)?.store(PUT, b"new bytes")
}

const WRITES: [(&str, Write); 6] = [
    ("put", one_put),
    ("immediate put", one_immediate),
    ("vectored put", one_vectored),
    ("put with signal", one_signal),
    ("atomic", one_atomic),
    ("store", one_store),
];

/// The two channels of a thread that stops at a door.
struct Stop {
    reached: Receiver<()>,
    go: Sender<()>,
}

/// Has the calling thread stop the first time that it passes `door`.
fn stop_at(door: Door, reached: Sender<()>, go: Receiver<()>) {
    let mut stopped = false;
    on_passing(move |passed| {
        if passed == door && !stopped {
            stopped = true;
            reached.send(()).expect("the test waits");
            go.recv().expect("the test continues the thread");
        }
    });
}

/// The scene of a writer that stops in an operation while a key is revoked.
struct Scene {
    owner: ShmEndpoint,
    region: ShmRegion,
    /// A key that was used and will be revoked.
    lost: RemoteKey,
    _victim: ShmEndpoint,
}

/// Runs `write` on a thread that stops at `door`, and `during` meanwhile. Returns what the write
/// said, and the bytes of the region when `during` was over and at the end.
fn stopped(
    write: Write,
    door: Door,
    key_is_lost: bool,
    quiet_within: Duration,
    during: impl FnOnce(&mut Scene, &dyn Fn()),
) -> (Result<()>, Vec<u8>, Vec<u8>) {
    let transport = transport();
    let (mut owner, mut victim, mut writer) =
        (open(&transport), open(&transport), open(&transport));
    owner.wait_for_writers(quiet_within);
    let region = owner.register(BYTES).expect("memory");
    let (to, key) = grant(&mut owner, &region, &mut writer);
    put(&mut writer, to, Target::new(key, 4096), b"resolved").expect("a valid key");
    let _ = add_one(&mut writer, to, Target::new(key, ATOMIC)).expect("a valid key");
    let (other, lost) = grant(&mut owner, &region, &mut victim);
    put(&mut victim, other, Target::new(lost, 4096), b"resolved").expect("a valid key");
    let lost = if key_is_lost { key } else { lost };
    let mut scene = Scene { owner, region, lost, _victim: victim };
    let ((tell, reached), (go, wait)) = (channel(), channel());
    let stop = Stop { reached, go };
    // Moved, so that a panic lets the thread go on, too.
    std::thread::scope(move |scope| {
        let writing = scope.spawn(move || {
            stop_at(door, tell, wait);
            write(&mut writer, to, key)
        });
        stop.reached.recv_timeout(PATIENCE).expect("it passes the door");
        let gone = AtomicBool::new(false);
        let go_on = || {
            if !gone.swap(true, Ordering::Relaxed) {
                stop.go.send(()).expect("it waits");
            }
        };
        during(&mut scene, &go_on);
        let all = |region: &ShmRegion| {
            let mut bytes = vec![0; usize::try_from(BYTES).expect("few")];
            region.read(0, &mut bytes).expect("inside");
            bytes
        };
        let before = all(&scene.region);
        go_on();
        let said = writing.join().expect("no panic");
        (said, before, all(&scene.region))
    })
}

#[test]
fn a_writer_that_stood_still_during_a_move_reaches_nothing() {
    for (name, write) in WRITES {
        for door in [Door::Before, Door::Behind] {
            for key_is_lost in [false, true] {
                let at_once = Duration::ZERO;
                let (said, before, after) =
                    stopped(write, door, key_is_lost, at_once, |scene, _| {
                        let revoked = scene.owner.revoke_within(scene.lost, PATIENCE);
                        assert_eq!(revoked, Ok(Revoked::Published));
                    });
                let expected = if key_is_lost {
                    OperationError::InvalidKey
                } else {
                    OperationError::Interrupted
                };
                assert_eq!(said, Err(expected), "{name}, {door:?}, key is lost: {key_is_lost}");
                assert!(before == after, "{name}, {door:?}: a byte appeared after the revocation");
            }
        }
    }
}

#[test]
fn a_move_waits_for_an_operation_that_began_before_it() {
    for (name, write) in WRITES {
        if name == "store" {
            continue;
        }
        for door in [Door::Before, Door::Behind, Door::Confirmed] {
            let (said, before, after) = stopped(write, door, false, PATIENCE, |scene, go_on| {
                let owner = &mut scene.owner;
                assert_eq!(owner.revoke(scene.lost, 5), Ok(Issued::Pending), "{name}, {door:?}");
                assert_eq!(owner.poll(16, &mut |_| {}), 0, "{name}, {door:?}");
                go_on();
                assert_eq!(
                    owner.finish(5, PATIENCE),
                    Some(Ok(Value::Revoked(Revoked::Published))),
                    "{name}, {door:?}"
                );
            });
            assert_eq!(said, Ok(()), "{name}, {door:?}");
            assert!(before == after, "{name}, {door:?}: it came behind the move");
            assert!(after[..8] != [0; 8], "{name}, {door:?}: it is not in the region");
        }
    }
}
