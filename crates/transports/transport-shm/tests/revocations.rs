//! A revocation is a fence: writers that race with it, each on a thread.
//!
//! When it is over, no byte by the key appears any more, and every put that ended well is in the
//! region.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointOptions, Issued, LocalRange, NodeId,
    Operation, OperationError, PATIENCE, Peer, Region, RemoteKey, Source, Target, Transport, Value,
    Window,
};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

const ROUNDS: u64 = 150;
/// Large enough that a revocation often meets a copy.
const BYTES: usize = 2048;

/// Puts the numbers from 1 on, each in all words of the range, until the key is refused. Returns
/// the last number whose put ended well. Counts the puts in `progress`.
type Write = fn(&mut ShmEndpoint, Peer, RemoteKey, progress: &AtomicU64) -> u64;

fn numbers(number: u64) -> [u8; BYTES] {
    std::array::from_fn(|place| number.to_le_bytes()[place % 8])
}

/// Calls `write` with the number of writes that ended well, until it is refused. Returns that.
fn until_refused(
    progress: &AtomicU64,
    mut write: impl FnMut(u64) -> Result<(), OperationError>,
) -> u64 {
    let mut done = 0;
    loop {
        match write(done) {
            Ok(()) => done += 1,
            Err(OperationError::InvalidKey) => return done,
            Err(other) => panic!("{other}"),
        }
        progress.store(done, Ordering::Relaxed);
    }
}

fn puts(writer: &mut ShmEndpoint, to: Peer, key: RemoteKey, progress: &AtomicU64) -> u64 {
    until_refused(progress, |done| {
        let (bytes, target) = (numbers(done + 1), Target::new(key, 0));
        writer.put(to, Source::Bytes(&bytes), target, Operation::new(0)).map(|_| ())
    })
}

fn immediates(writer: &mut ShmEndpoint, to: Peer, key: RemoteKey, progress: &AtomicU64) -> u64 {
    until_refused(progress, |done| {
        let target = Target::new(key, (done % (BYTES as u64 / 8)) * 8);
        writer.put_immediate(to, done + 1, 8, target, Operation::new(0)).map(|_| ())
    })
}

fn atomics(writer: &mut ShmEndpoint, to: Peer, key: RemoteKey, progress: &AtomicU64) -> u64 {
    until_refused(progress, |done| {
        let target = Target::new(key, 0);
        let former = writer.atomic(to, target, Atomic::fetch_add(1), Operation::new(0))?;
        assert_eq!(former, Issued::Done(Value::Word(done)));
        Ok(())
    })
}

fn stores(writer: &mut ShmEndpoint, to: Peer, key: RemoteKey, progress: &AtomicU64) -> u64 {
    match writer.window(to, key) {
        Ok(window) => until_refused(progress, |done| window.store(0, &numbers(done + 1))),
        Err(OperationError::InvalidKey) => 0,
        Err(other) => panic!("{other}"),
    }
}

/// Revokes the key of a writer after some of its writes, `ROUNDS` times. `check` gets the words of
/// the region and the last number that the writer was told is there.
fn race(write: Write, check: fn(&[u64], u64)) {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let open = || transport.open(&EndpointOptions::default()).expect("room");
    let (mut owner, mut writer) = (open(), open());
    let to = writer.connect_within(owner.address(), PATIENCE).expect("there");
    for round in 0..ROUNDS {
        let region = owner.register(BYTES as u64).expect("memory");
        let key = owner
            .grant_within(LocalRange::whole(&region), Audience::Partition, Access::all(), PATIENCE)
            .expect("a grant");
        let progress = AtomicU64::new(0);
        let read = || {
            let mut bytes = [0; BYTES];
            region.read(0, &mut bytes).expect("inside");
            let words = bytes.chunks_exact(8);
            words.map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write(&mut writer, to, key, &progress));
            while progress.load(Ordering::Relaxed) < 1 + round % 50 {
                std::hint::spin_loop();
            }
            owner.revoke_within(key, PATIENCE).expect("granted");
            let after = read();
            let done = writing.join().expect("no panic");
            check(&after, done);
            assert_eq!(read(), after, "round {round}: a byte appeared after the revocation");
        });
    }
}

/// A put that failed may have left a part of the next number.
fn whole(words: &[u64], done: u64) {
    for word in words {
        assert!((done..=done + 1).contains(word), "{word} where {done} was told to be there");
    }
}

#[test]
fn puts_that_race_with_a_revocation_are_there_or_fail() {
    race(puts, whole);
}

#[test]
fn atomics_that_race_with_a_revocation_are_there_or_fail() {
    race(atomics, |words, done| {
        let sum = words[0];
        assert!((done..=done + 1).contains(&sum), "{sum} where {done} was told to be there");
    });
}

#[test]
fn stores_through_a_window_that_race_with_a_revocation_are_there_or_fail() {
    race(stores, whole);
}

#[test]
fn immediate_puts_that_race_with_a_revocation_are_there_or_fail() {
    race(immediates, |words, done| {
        let last = words.iter().max().expect("words");
        assert!((done..=done + 1).contains(last), "{last} where {done} was told to be there");
    });
}
