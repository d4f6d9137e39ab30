//! One memory, registered by the endpoints of several threads, all of which grant keys to it and
//! revoke them while peers put, get and add.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods, reason = "tests own their threads")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointAddress, EndpointOptions, Event,
    HostMemory, LocalRange, NodeId, Operation, OperationError, PATIENCE, Peer, Region, RemoteKey,
    Source, Target, Transport, Waited,
};
use weft_memory::{Memory, MemoryOptions};
use weft_transport_shm::broker::Limits;
use weft_transport_shm::local_broker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmRegion, ShmTransport};

type Result<T> = std::result::Result<T, OperationError>;

const OWNERS: usize = 3;
const BYTES: usize = 64 << 10;
/// The words of the memory: what writers add to, and what owners store.
const SUM: u64 = 0;
const OWN: u64 = 1024;
/// Where each writer puts, and where each victim does.
const PUT: u64 = 4096;
const LOST: u64 = 32 << 10;
/// The least that has to get done.
const ROUNDS: u64 = 40;
const PROGRESS_MIN: u64 = 100;

fn open(transport: &ShmTransport) -> ShmEndpoint {
    transport.open(&EndpointOptions::default()).expect("room")
}

/// Calls `operation` until it is not refused.
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
            assert_eq!(of.wait(Some(PATIENCE)), Waited::Ready, "no room came");
            of.poll(16, &mut |event| has_room |= matches!(event, Event::Room { .. }));
        }
    }
}

fn put(of: &mut ShmEndpoint, to: Peer, target: Target, bytes: &[u8]) -> Result<()> {
    let put = |of: &mut ShmEndpoint| of.put(to, Source::Bytes(bytes), target, Operation::new(0));
    until_room(of, put).map(drop)
}

/// The sums that a writer knows.
#[derive(Default)]
struct Sums {
    added: u64,
    unknown: u64,
}

/// Puts, reads back and adds by a key that stays, until `stop`.
fn write(
    of: &mut ShmEndpoint,
    (owner, key): (EndpointAddress, RemoteKey),
    area: u64,
    progress: &AtomicU64,
    stop: &AtomicBool,
) -> Sums {
    let to = of.connect_within(owner, PATIENCE).expect("there");
    let into = of.register(8).expect("memory");
    let mut sums = Sums::default();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let bytes = number.to_le_bytes().repeat(100);
        let done = put(of, to, Target::new(key, area), &bytes);
        match &done {
            Ok(()) => {
                let at = Target::new(key, area + 792);
                let range = LocalRange::whole(&into);
                let got = until_room(of, |of| of.get(to, at, range, Operation::new(0)));
                assert!(got.is_ok(), "{got:?}");
                assert_eq!(into.load(0), Ok(number), "a put that ended well is not there");
            }
            Err(OperationError::Interrupted) => {}
            Err(other) => panic!("a valid key: {other}"),
        }
        let target = Target::new(key, SUM);
        let add = Atomic::fetch_add(1);
        match until_room(of, |of| of.atomic(to, target, add, Operation::new(0))) {
            Ok(_) => sums.added += 1,
            Err(OperationError::Interrupted) => sums.unknown += 1,
            Err(other) => panic!("a valid key: {other}"),
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
    sums
}

/// Counts a thread out when it ends, in a panic, too.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One owner: gives its victim a key, has it used, revokes it, and looks at the memory. At the end
/// it polls until all have ended.
fn revoke_often(
    owner: &mut ShmEndpoint,
    region: &ShmRegion,
    victim: &mut ShmEndpoint,
    number: u64,
    progress: &AtomicU64,
) {
    let to = victim.connect_within(owner.address(), PATIENCE).expect("there");
    let peer = owner.connect_within(victim.address(), PATIENCE).expect("there");
    let (own, lost) = (OWN + 8 * number, LOST + 1024 * number);
    let mut round = 0;
    while round < ROUNDS || progress.load(Ordering::Relaxed) < PROGRESS_MIN {
        round += 1;
        let audience = Audience::Peer(peer);
        let whole = LocalRange::whole(region);
        let key = owner.grant_within(whole, audience, Access::all(), PATIENCE).expect("a grant");
        let target = Target::new(key, lost);
        // The key serves when the moves of the other owners let it, for which this one has to poll.
        let used = loop {
            let source = Source::Bytes(&[7; 512]);
            match victim.put(to, source, target, Operation::new(0)) {
                Err(OperationError::WouldBlock) => {}
                other => break other,
            }
            owner.poll(16, &mut |_| {});
            victim.poll(16, &mut |_| {});
        };
        assert!(matches!(used, Ok(_) | Err(OperationError::Interrupted)), "{used:?}");
        region.store(own, round).expect("inside");
        owner.revoke_within(key, PATIENCE).expect("in force");
        assert_eq!(region.load(own), Ok(round), "what a thread of this process wrote is gone");
        if used.is_ok() {
            assert_eq!(region.load(lost + 504), Ok(u64::from_le_bytes([7; 8])));
        }
        region.write(lost, &[0; 512]).expect("inside");
        let late = victim.put(to, Source::Bytes(b"too late"), target, Operation::new(0));
        assert_eq!(late, Err(OperationError::InvalidKey));
        assert_eq!(region.load(lost), Ok(0), "a byte came behind the revocation");
    }
}

#[test]
fn threads_that_share_a_memory_put_get_revoke_and_move_it_at_the_same_time() {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    let transport = ShmTransport::new(broker, Parameters::default());
    let memory = Memory::fresh(MemoryOptions::bytes(BYTES)).expect("memory");
    let (progress, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (busy, writing) = (AtomicUsize::new(OWNERS), AtomicUsize::new(OWNERS));
    let numbers = 0..u64::try_from(OWNERS).expect("few");
    let owners: Vec<_> = numbers
        .map(|number| {
            let mut owner = open(&transport);
            let region = owner.register_memory(&memory).expect("room");
            let (whole, all) = (LocalRange::whole(&region), Audience::Partition);
            let key = owner.grant_within(whole, all, Access::all(), PATIENCE).expect("a grant");
            (number, owner, region, key, open(&transport), open(&transport))
        })
        .collect();
    let sums = std::thread::scope(|scope| {
        let (progress, stop, busy, writing) = (&progress, &stop, &busy, &writing);
        let (mut writers, mut revokers) = (Vec::new(), Vec::new());
        for (number, mut owner, region, key, mut victim, mut writer) in owners {
            let address = owner.address();
            writers.push(scope.spawn(move || {
                let area = PUT + 1024 * number;
                let _writes = Counted(writing);
                write(&mut writer, (address, key), area, progress, stop)
            }));
            revokers.push(scope.spawn(move || {
                let revokes = Counted(busy);
                revoke_often(&mut owner, &region, &mut victim, number, progress);
                drop(revokes);
                // The key that stays serves only if its endpoint publishes it after each move.
                while busy.load(Ordering::Relaxed) > 0 || writing.load(Ordering::Relaxed) > 0 {
                    if busy.load(Ordering::Relaxed) == 0 {
                        stop.store(true, Ordering::Relaxed);
                    }
                    owner.wait(Some(std::time::Duration::from_millis(5)));
                    owner.poll(16, &mut |_| {});
                }
            }));
        }
        for revoker in revokers {
            revoker.join().expect("no panic");
        }
        let sums = writers.into_iter().map(|writer| writer.join().expect("no panic"));
        sums.fold(Sums::default(), |all, one| Sums {
            added: all.added + one.added,
            unknown: all.unknown + one.unknown,
        })
    });
    let sum = memory.segment().word64(0).load(Ordering::Acquire);
    let known = sums.added..=sums.added + sums.unknown;
    assert!(known.contains(&sum), "{sum} is not in {known:?}");
    assert!(memory.moves() >= 20, "{} moves", memory.moves());
}
