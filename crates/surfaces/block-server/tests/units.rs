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
use weft_block_server::remote::{RemoteLun, RemoteStore};
use weft_block_server::service::Service;
use weft_block_server::{Listener, MemoryStore, Running, Shared, Speaks};
use weft_broker::Limits;
use weft_fabric::NodeId;
use weft_numa::Topology;
use weft_open::Opening;
use weft_options::Options;
use weft_transport_shm::local_broker;

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

/// Endpoints at a broker of this process.
fn opening() -> Opening {
    let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
    Opening::with("a test", &Options::default()).by(broker)
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
    let start = || {
        Service::start(&config, directory.path().join("control"), &opening(), None)
            .expect("it starts")
    };
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

/// A server of one LUN in memory and one in a file, over the fabric.
fn over_the_fabric(opening: &Opening, directory: &std::path::Path) -> (Arc<Service>, Running) {
    let file = directory.join("disk");
    std::fs::File::create(&file).and_then(|file| file.set_len(2 << 20)).expect("fresh");
    let target = TargetConfig {
        name: IQN.to_owned(),
        luns: vec!["0=mem:4M".to_owned(), format!("1=file:{}", file.display())],
        ..TargetConfig::default()
    };
    let config = Config {
        listen: vec!["weft:3260".to_owned()],
        state: Some(directory.join("state")),
        targets: vec![target],
        ..Config::default()
    };
    Service::start(&config, directory.join("control"), opening, None).expect("it starts")
}

fn lun(number: u64) -> RemoteLun {
    format!("weft://localhost/{IQN}/{number}").parse().expect("a place")
}

#[test]
fn a_lun_over_the_fabric_is_a_store_as_any_other() {
    let (opening, directory) = (opening(), tempfile::tempdir().expect("a directory"));
    let (service, running) = over_the_fabric(&opening, directory.path());
    for number in [0, 1] {
        let store = RemoteStore::open(&opening, &lun(number), Box::new(|_| {})).expect("a LUN");
        assert_eq!(
            (store.bytes(), store.is_read_only()),
            (if number == 0 { 4 << 20 } else { 2 << 20 }, false)
        );
        let bytes: Vec<u8> = (0..=250).cycle().take(1_500_160).collect();
        store.write(512, &bytes).expect("room");
        let mut seen = vec![0; bytes.len()];
        store.read(512, &mut seen).expect("written");
        assert!(seen == bytes, "LUN {number}");
        // Parts of sectors, as clients of NBD have them.
        let place = |at: u64| usize::try_from(at - 512).expect("a small store");
        for (at, length) in [(700, 100), (1000, 30), (513, 4000), (300_001, 300_000)] {
            store.write(at, &vec![9; length]).expect("room");
            let mut seen = vec![0; length + 2];
            store.read(at - 1, &mut seen).expect("written");
            let is_whole = |byte: u8, at: u64| byte == bytes[place(at)] || byte == 9;
            assert!(is_whole(seen[0], at - 1) && is_whole(seen[length + 1], at + length as u64));
            assert!(seen[1..=length].iter().all(|byte| *byte == 9));
            store.zero(at, length as u64, true).expect("a store");
            store.read(at - 1, &mut seen).expect("written");
            assert!(seen[1..=length].iter().all(|byte| *byte == 0));
            store.write(at, &bytes[place(at)..][..length]).expect("room");
        }
        store.read(512, &mut seen).expect("written");
        assert!(seen == bytes, "LUN {number}");
        store.flush().expect("a store");
        store.zero(1 << 20, 64 << 10, true).expect("a store");
        store.read(1 << 20, &mut seen[..64 << 10]).expect("written");
        assert!(seen[..64 << 10].iter().all(|byte| *byte == 0));
        // Also as the first command of a session whose data are put.
        let other = RemoteStore::open(&opening, &lun(number), Box::new(|_| {})).expect("a LUN");
        let extents = other.extents(0, store.bytes(), 3).expect("a store");
        assert_eq!(extents.iter().map(|it| it.is_hole).collect::<Vec<_>>(), [false, true, false]);
        // Several at a time, each in its own part.
        std::thread::scope(|scope| {
            for part in 0..4_u8 {
                let store = &store;
                scope.spawn(move || {
                    let at = u64::from(part) * (256 << 10);
                    let mut seen = vec![0; 4096];
                    for number in 0..50 {
                        store.write(at + number * 4096, &[part; 4096]).expect("room");
                        store.read(at + number * 4096, &mut seen).expect("written");
                        assert_eq!(seen, [part; 4096]);
                    }
                });
            }
        });
    }
    assert_eq!(service.status().units[0].writes.errors, 0);
    let begun = Instant::now();
    while service.status().units.iter().any(|unit| unit.sessions > 0) {
        assert!(begun.elapsed() < Duration::from_secs(20), "sessions end with their stores");
        std::thread::sleep(Duration::from_millis(5));
    }
    service.leave_fabric();
    running.stop();
}

#[test]
fn a_lun_whose_server_goes_is_offline_at_once_and_for_good() {
    let (opening, directory) = (opening(), tempfile::tempdir().expect("a directory"));
    let (service, running) = over_the_fabric(&opening, directory.path());
    let missing = RemoteStore::open(&opening, &lun(7), Box::new(|_| {})).expect_err("no LUN 7");
    assert!(format!("{missing:#}").contains("no such LUN"), "{missing:#}");
    let (tell, told) = std::sync::mpsc::channel();
    let when_over = Box::new(move |why: &str| tell.send(why.to_owned()).expect("the test waits"));
    let store = RemoteStore::open(&opening, &lun(0), when_over).expect("a LUN");
    store.write(0, &[1; 4096]).expect("room");
    service.leave_fabric();
    let why = told.recv_timeout(Duration::from_secs(20)).expect("it is told");
    assert!(why.contains("ended"), "{why}");
    assert_eq!(store.read(0, &mut [0; 4096]), Err(StoreError::Offline));
    assert_eq!(store.flush(), Err(StoreError::Offline));
    running.stop();
}
