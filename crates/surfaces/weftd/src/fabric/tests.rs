//! Daemons' fabrics among each other over the loopback interface.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_membership::{FabricKeys, new_key_line};

use super::*;

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(30);

struct Told(Mutex<Sender<FabricEvent>>);

impl FabricUser for Told {
    fn handle(&self, event: FabricEvent) {
        // A test that has ended hears no more.
        let _ = self.0.lock().expect("no panic").send(event);
    }
}

struct Host {
    directory: tempfile::TempDir,
    listen: SocketAddr,
    seeds: Vec<SocketAddr>,
    key: String,
}

fn free_address() -> SocketAddr {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    probe.local_addr().expect("bound")
}

impl Host {
    fn new(key: &str, seeds: &[SocketAddr]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (listen, seeds, key) = (free_address(), seeds.to_vec(), key.to_owned());
        Self { directory, listen, seeds, key }
    }

    const fn admission(&self) -> Admission {
        if self.seeds.is_empty() { Admission::First } else { Admission::ByFirst }
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn start(&self) -> (Fabric, Receiver<FabricEvent>) {
        let (sender, told) = channel();
        (self.start_for(Arc::new(Told(Mutex::new(sender)))), told)
    }

    fn start_for(&self, user: Arc<dyn FabricUser>) -> Fabric {
        let config = FabricConfig {
            fabric: "f".to_owned(),
            name: "a host".to_owned(),
            listen: self.listen,
            seeds: self.seeds.iter().copied().map(Seed::Address).collect(),
            admission: self.admission(),
            etcd: None,
            silence: Duration::from_secs(10),
            keys: Arc::new(FabricKeys::parse(&self.key).expect("a key")),
            state: self.state(),
            facts: vec!["provider=net".to_owned()],
        };
        Fabric::start(config, user, Duration::from_secs(5)).expect("it starts")
    }
}

fn next(told: &Receiver<FabricEvent>) -> FabricEvent {
    told.recv_timeout(LIMIT).expect("an event")
}

/// Waits for a node that is up, and returns its incarnation.
fn up(told: &Receiver<FabricEvent>, wanted: u32) -> u64 {
    loop {
        match next(told) {
            FabricEvent::Up { node, incarnation, about } if node == NodeId(wanted) => {
                assert_eq!(about.facts, ["provider=net"]);
                return incarnation;
            }
            FabricEvent::Numbered { .. } | FabricEvent::Down { .. } => {}
            event => panic!("{event:?}"),
        }
    }
}

fn await_state(fabric: &Fabric, wanted: impl Fn(&[NodeStatus]) -> bool) {
    let start = Instant::now();
    while !wanted(&fabric.nodes()) {
        assert!(start.elapsed() < LIMIT, "{:?}", fabric.nodes());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn key() -> String {
    new_key_line().expect("random bytes")
}

#[test]
fn messages_arrive_in_order_and_a_restart_is_told_by_another_incarnation() {
    let key = key();
    let first = Host::new(&key, &[]);
    let second = Host::new(&key, &[first.listen]);
    let (one, told_one) = first.start();
    let (other, told_other) = second.start();
    assert_eq!((one.own(), other.own()), (Own::Known(NodeId(0)), Own::Known(NodeId(1))));
    let before = up(&told_one, 1);
    up(&told_other, 0);
    for number in 0..2_000_u32 {
        one.send(NodeId(1), number.to_le_bytes().repeat(100)).expect("up");
        other.send(NodeId(0), number.to_le_bytes().to_vec()).expect("up");
    }
    for number in 0..2_000_u32 {
        let bytes = number.to_le_bytes().to_vec();
        assert_eq!(next(&told_one), FabricEvent::Message { node: NodeId(1), bytes });
        let bytes = number.to_le_bytes().repeat(100);
        assert_eq!(next(&told_other), FabricEvent::Message { node: NodeId(0), bytes });
    }
    assert_eq!(one.send(NodeId(2), vec![1]), Err(NotSent::NotUp));
    let long = vec![0; weft_membership::USER_BYTES_MAX + 1];
    assert_eq!(one.send(NodeId(1), long), Err(NotSent::TooLong));
    drop(other);
    let down = next(&told_one);
    assert!(matches!(down, FabricEvent::Down { node: NodeId(1), .. }), "{down:?}");
    assert_eq!(one.send(NodeId(1), vec![1]), Err(NotSent::NotUp));
    let (other, _told_other) = second.start();
    assert_eq!(other.own(), Own::Known(NodeId(1)), "the number is kept");
    assert_ne!(up(&told_one, 1), before, "{down:?}");
}

/// Stands still at the first message until the test lets go of the lock.
struct Stands {
    told: Told,
    gate: Mutex<()>,
}

impl FabricUser for Stands {
    fn handle(&self, event: FabricEvent) {
        let is_message = matches!(event, FabricEvent::Message { .. });
        self.told.handle(event);
        if is_message {
            drop(self.gate.lock().expect("no panic"));
        }
    }
}

#[test]
fn a_node_that_takes_no_messages_is_given_up_and_comes_back() {
    let key = key();
    let first = Host::new(&key, &[]);
    let second = Host::new(&key, &[first.listen]);
    let (one, told_one) = first.start();
    let (sender, told_other) = channel();
    let user = Arc::new(Stands { told: Told(Mutex::new(sender)), gate: Mutex::new(()) });
    let shut = user.gate.lock().expect("no panic");
    let _other = second.start_for(Arc::clone(&user) as Arc<dyn FabricUser>);
    up(&told_one, 1);
    up(&told_other, 0);
    // The kernel and the bounds hold far less than this.
    let sent = (0..4_000).take_while(|_| one.send(NodeId(1), vec![7; 60_000]).is_ok()).count();
    assert!(sent < 4_000, "240 MB were kept");
    let down = next(&told_one);
    let FabricEvent::Down { node: NodeId(1), reason } = down else { panic!("{down:?}") };
    assert!(reason.contains("does not take its messages"), "{reason}");
    drop(shut);
    up(&told_one, 1);
}

#[test]
fn another_key_is_told_at_the_end_that_asks() {
    let first = Host::new(&key(), &[]);
    let second = Host::new(&key(), &[first.listen]);
    let (_one, _told) = first.start();
    let (other, _told) = second.start();
    await_state(&other, |nodes| {
        nodes.iter().any(|node| {
            let is_key = |reason: &str| reason.contains("different fabric keys");
            matches!(&node.state, NodeState::Refused(reason) if is_key(reason))
        })
    });
    assert!(matches!(other.own(), Own::Joining { reason } if reason.contains("fabric keys")));
}

#[test]
fn an_address_that_answers_and_is_no_weft_is_told_as_such() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    // It ends with the process of the tests.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // A daemon that has gone away already has heard enough.
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
            let _ = stream.read(&mut [0; 512]);
        }
    });
    let host = Host::new(&key(), &[address]);
    let (fabric, _told) = host.start();
    await_state(&fabric, |nodes| {
        let told = |reason: &str| reason.contains("is no weft daemon");
        nodes.iter().any(
            |node| matches!(&node.state, NodeState::Down(r) | NodeState::Joining(r) if told(r)),
        )
    });
}

#[test]
fn strangers_are_cut_off_and_hold_up_nobody() {
    let key = key();
    let first = Host::new(&key, &[]);
    let (_one, told) = first.start();
    // More than are let in: silent ones, and those that talk of something else.
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(first.listen)).collect();
    let mut loud = TcpStream::connect(first.listen).expect("it listens");
    loud.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it takes some");
    loud.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut rest = Vec::new();
    // An answer or a reset, but an end.
    let _ = loud.read_to_end(&mut rest);
    assert!(rest.len() < 512, "a stranger learns little");
    let second = Host::new(&key, &[first.listen]);
    let (_other, _told) = second.start();
    up(&told, 1);
    drop(silent);
}

#[test]
fn a_state_is_used_by_one_daemon_and_a_copy_of_it_is_refused() {
    let key = key();
    let first = Host::new(&key, &[]);
    let second = Host::new(&key, &[first.listen]);
    let copy = Host::new(&key, &[first.listen]);
    let (_one, told_one) = first.start();
    let (_other, _told) = second.start();
    up(&told_one, 1);
    std::fs::create_dir(copy.state()).expect("free");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(copy.state(), mode).expect("our own");
    for name in ["identity", "nodes.json"] {
        std::fs::copy(second.state().join(name), copy.state().join(name)).expect("copied");
    }
    let (copied, _told) = copy.start();
    await_state(&copied, |nodes| {
        let told = |reason: &str| reason.contains("same identity");
        nodes.iter().any(|node| matches!(&node.state, NodeState::Refused(reason) if told(reason)))
    });
}
