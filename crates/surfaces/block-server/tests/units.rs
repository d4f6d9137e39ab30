//! Units beside each other, and over a restart, as initiators see them.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_block::iscsi::Target;
use weft_block::scsi::{Identity, Unit, UnitOptions};
use weft_block::store::{Store, StoreError};
use weft_block_server::configuration::{Config, TargetConfig};
use weft_block_server::initiator::Initiator;
use weft_block_server::service::Service;
use weft_block_server::{Listener, MemoryStore, Running, Shared, Speaks};
use weft_numa::Topology;

const IQN: &str = "iqn.2026-11.example:units";
const READ_1: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// A store whose calls wait until the test lets them end, or fail.
struct Stuck {
    is_stuck: Arc<AtomicBool>,
    fails: Option<StoreError>,
}

impl Store for Stuck {
    fn bytes(&self) -> u64 {
        1 << 20
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), StoreError> {
        while self.is_stuck.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
        into.fill(9);
        self.fails.map_or(Ok(()), Err)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        self.read(at, &mut vec![0; from.len()])
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.fails.map_or(Ok(()), Err)
    }

    fn zero(&self, _: u64, _: u64, _: bool) -> Result<(), StoreError> {
        self.fails.map_or(Ok(()), Err)
    }
}

fn served(stores: Vec<Arc<dyn Store>>) -> (SocketAddr, Running) {
    let shared = Shared::new(Topology::of_host().expect("readable"));
    let target = Arc::new(Target::new(IQN, Vec::new()).expect("a name"));
    for (number, store) in (0..).zip(stores) {
        let identity = Identity::new(IQN, number);
        let unit = Unit::new(identity, UnitOptions::default(), store, None, None).expect("fresh");
        let unit = Arc::new(unit);
        shared.place_unit(&unit, None);
        target.add(number, unit).expect("free");
    }
    shared.targets.add(target).expect("alone");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("bound");
    let listeners = vec![(Listener::Tcp(listener), Speaks::Iscsi)];
    (address, Running::start(&shared, listeners, 2).expect("threads"))
}

fn login(at: SocketAddr, number: u8) -> Initiator {
    Initiator::login_as(
        &[at],
        Some(IQN),
        None,
        "iqn.2026-11.example:host",
        [0x80, 0, 0, 0, 0, number],
    )
    .expect("it is admitted")
}

#[test]
fn a_unit_that_is_stuck_disturbs_no_other_not_even_in_its_session() {
    let is_stuck = Arc::new(AtomicBool::new(true));
    let stuck = Stuck { is_stuck: Arc::clone(&is_stuck), fails: None };
    let memory = MemoryStore::new(1 << 20, None).expect("memory");
    let (at, running) = served(vec![Arc::new(stuck), Arc::new(memory)]);
    let mut session = login(at, 1);
    session.read(1, &READ_1, 512).expect("the unit in memory");
    // 40 commands wait at the stuck unit: more than it has threads.
    session.read(0, &[0], 0).expect("ready");
    for _ in 0..40 {
        session.start(0, &READ_1, 512).expect("sent");
    }
    let began = Instant::now();
    for _ in 0..100 {
        session.read(1, &READ_1, 512).expect("the unit in memory");
        login(at, 2).read(1, &READ_1, 512).expect("another session");
    }
    assert!(began.elapsed() < Duration::from_secs(8), "others were kept waiting");
    is_stuck.store(false, Ordering::Release);
    drop(session);
    running.stop();
}

#[test]
fn a_store_that_fails_or_is_full_is_told_by_its_sense() {
    let never = Arc::new(AtomicBool::new(false));
    let failing = |error| Stuck { is_stuck: Arc::clone(&never), fails: Some(error) };
    let full = Arc::new(failing(StoreError::NoSpace));
    let broken = Arc::new(failing(StoreError::Unreadable));
    let (at, running) = served(vec![full, broken]);
    let mut session = login(at, 1);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    for lun in [0, 1] {
        session.read(lun, &[0], 0).expect("ready");
    }
    let sense = session.write(0, &write, &[1; 512]).expect("an answer").expect_err("full");
    assert_eq!((sense[2] & 15, sense[12], sense[13]), (7, 0x27, 7));
    let error = session.read(1, &READ_1, 512).expect_err("broken").to_string();
    assert!(error.contains("key 3"), "{error}");
    session.read(1, &[0], 0).expect("it still answers");
    drop(session);
    running.stop();
}

#[test]
fn reservations_outlast_a_restart_and_are_preempted_by_another_initiator() {
    let directory = tempfile::tempdir().expect("a directory");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|probe| probe.local_addr());
    let at = port.expect("a port");
    let config = Config {
        listen: vec![at.to_string()],
        state: Some(directory.path().join("state")),
        targets: vec![TargetConfig {
            name: IQN.to_owned(),
            luns: vec!["0=mem:1M".to_owned()],
            ..TargetConfig::default()
        }],
        ..Config::default()
    };
    let start = || Service::start(&config, directory.path().join("control")).expect("it starts");
    let reserve = |session: &mut Initiator, action: u8, own: u64, other: u64| {
        let mut data = [own.to_be_bytes(), other.to_be_bytes()].concat();
        data.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        session.write(0, &[0x5f, action, 3, 0, 0, 0, 0, 0, 24, 0], &data).expect("an answer")
    };
    let (service, running) = start();
    let mut one = login(at, 1);
    one.read(0, &[0], 0).expect("ready");
    reserve(&mut one, 0, 0, 11).expect("registered");
    reserve(&mut one, 1, 11, 0).expect("exclusive access");
    drop(one);
    running.stop();
    drop(service);
    let (service, running) = start();
    let (mut one, mut two) = (login(at, 1), login(at, 2));
    assert!(two.read(0, &READ_1, 512).is_err(), "the reservation is still there");
    one.read(0, &READ_1, 512).expect("the holder");
    reserve(&mut two, 0, 0, 22).expect("registered");
    reserve(&mut two, 5, 22, 11).expect("preempted");
    two.read(0, &READ_1, 512).expect("the new holder");
    assert!(one.read(0, &READ_1, 512).is_err(), "the old holder");
    drop((one, two));
    running.stop();
    drop(service);
}
