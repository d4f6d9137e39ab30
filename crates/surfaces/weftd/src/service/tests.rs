//! A daemon with an additional echo service with a timer. The tests check that its programs, other
//! users and its panics do not affect the other services.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use weft_channel::{Channel, Credentials};
use weft_fabric::NodeId;
use weft_wire::control::{CONNECTION_KINDS, join, split};

use super::queue::{Next, PACKETS_MAX, Queue};
use super::*;
use crate::hub::Hub;
use crate::intake::Intakes;
use crate::quota::Quota;

/// Kinds far above those in use.
const ECHO: u16 = 0xff00;
const LATER: u16 = 0xff01;
const PANIC: u16 = 0xff02;
const KINDS: &[RangeInclusive<u16>] = &[ECHO..=PANIC];
const DELAY: Duration = Duration::from_millis(20);
/// Longer than any step of these tests.
const WATCHDOG_MS: u32 = 10_000;

/// Sends each packet back, at once or later. Panics on request.
struct Echo {
    later: Vec<(Instant, ProcessId, Vec<u8>)>,
    known: HashMap<ProcessId, u64>,
    placement: Placement,
    /// The service waits for a message on this channel before it handles a packet.
    gate: Option<Receiver<()>>,
}

impl Echo {
    fn new(placement: Placement) -> Self {
        Self { later: Vec::new(), known: HashMap::new(), placement, gate: None }
    }

    /// A service that blocks on each packet until the sender allows one more.
    fn stuck() -> (Self, Sender<()>) {
        let (sender, gate) = channel();
        (Self { gate: Some(gate), ..Self::new(Placement::Thread) }, sender)
    }
}

impl Service for Echo {
    fn manifest(&self) -> Manifest {
        let events = &[("echoed", "A packet was sent back.")];
        Manifest { name: "echo", kinds: KINDS, placement: self.placement, options: &[], events }
    }

    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox) {
        let request = match event {
            Event::Packet(request) => request,
            Event::Gone(peer) => {
                self.known.remove(&peer.process);
                return;
            }
            Event::Ended(_) | Event::Answer(..) => return,
        };
        if let Some(gate) = &self.gate {
            let _ = gate.recv();
        }
        let process = request.from.process;
        *self.known.entry(process).or_default() += 1;
        match split(&request.bytes) {
            Ok((ECHO, _)) => {
                out.event("echoed", request.from, || format!("{:?}", request.bytes));
                out.send(Outgoing::plain(process, request.bytes));
            }
            Ok((LATER, _)) => self.later.push((now + DELAY, process, request.bytes)),
            _ => panic!("as it was told to"),
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        for (_, process, bytes) in self.later.extract_if(.., |(at, ..)| *at <= now) {
            out.send(Outgoing::plain(process, bytes));
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.later.iter().map(|(at, ..)| *at).min()
    }

    fn counters(&self) -> Vec<Counter> {
        let value = self.known.len() as u64;
        vec![Counter { name: "programs", unit: "programs", help: "Those that asked.", value }]
    }
}

fn config() -> Config {
    let nothing: [(&str, &str); 0] = [];
    let (options, _) = weft_options::Options::from_environment(nothing);
    let (socket, node) = (PathBuf::new(), "test".to_owned());
    Config { socket, node, options, foreground: false, devices: Vec::new(), links: None }
}

/// A daemon without a control socket; the tests pass programs to it.
struct Daemon {
    intakes: Arc<Intakes>,
}

impl Daemon {
    fn with(echo: Echo) -> Self {
        Self::beside(vec![Box::new(echo)])
    }

    /// A daemon with these services beside its own.
    fn beside(others: Vec<Box<dyn Service>>) -> Self {
        let config = config();
        let mut services = all(&config, NodeId::LOCAL, None, None, None);
        services.extend(others);
        let hub = Hub::new(&config, services, None, 1000).expect("threads");
        let (_, stop) = std::os::unix::net::UnixStream::pair().expect("sockets");
        Self { intakes: Intakes::new(Arc::new(hub), stop) }
    }

    /// Connects a program of `user`.
    fn program(&self, user: u32) -> Channel {
        let (one, other) = Channel::pair().expect("sockets");
        self.intakes.admit(other, Credentials { pid: std::process::id(), uid: user });
        one
    }

    fn services(&self) -> HashMap<String, crate::ServiceStatus> {
        let asks = self.program(0);
        asks.send(&Control::Status.emit(), &[]).expect("room");
        let packet = asks.receive_within(WATCHDOG_MS).expect("in time").expect("open");
        let file = std::fs::File::from(packet.descriptors.into_iter().next().expect("a file"));
        let mut text =
            vec![0; usize::try_from(file.metadata().expect("memory").len()).expect("fits")];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut text, 0).expect("memory");
        let status: Status = serde_json::from_slice(&text).expect("JSON");
        status.services.into_iter().map(|service| (service.name.clone(), service)).collect()
    }

    fn counter(&self, name: &str) -> u64 {
        let services = self.services();
        services["echo"].counters.iter().find(|counter| counter.name == name).expect("one").value
    }
}

fn answer(program: &Channel) -> Vec<u8> {
    program.receive_within(WATCHDOG_MS).expect("in time").expect("open").bytes
}

fn is_answered_elsewhere(program: &Channel) {
    program.send(&Control::Listening { token: 7 }.emit(), &[]).expect("room");
    let pending = Control::Pending { token: 7, listening: true }.emit();
    assert_eq!(answer(program), pending);
}

#[test]
fn an_added_service_answers_in_order_and_is_told_of_gone_programs() {
    for placement in [Placement::Thread, Placement::InPlace] {
        let daemon = Daemon::with(Echo::new(placement));
        let program = daemon.program(1000);
        for number in 0..100u8 {
            program.send(&join(ECHO, &[number]), &[]).expect("room");
        }
        for number in 0..100u8 {
            assert_eq!(answer(&program), join(ECHO, &[number]), "in order");
        }
        is_answered_elsewhere(&program);
        assert_eq!((daemon.counter("echoed"), daemon.counter("programs")), (100, 1));
        drop(program);
        while daemon.counter("programs") > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_timer_fires_after_its_delay() {
    let daemon = Daemon::with(Echo::new(Placement::Thread));
    let program = daemon.program(1000);
    let start = Instant::now();
    program.send(&join(LATER, b"later"), &[]).expect("room");
    program.send(&join(ECHO, b"now"), &[]).expect("room");
    assert_eq!(answer(&program), join(ECHO, b"now"));
    assert_eq!(answer(&program), join(LATER, b"later"));
    assert!(start.elapsed() >= DELAY);
}

#[test]
fn services_own_different_kinds_and_read_existing_options() {
    let daemon = Daemon::with(Echo::new(Placement::Thread));
    let services = daemon.services();
    assert_eq!(services.len(), 7);
    let known = |option: &String| weft_options::TABLE.iter().any(|row| row.name == option);
    assert!(services.values().flat_map(|service| &service.options).all(known));
    for taken in [CONNECTION_KINDS, weft_wire::control::NODE_KINDS] {
        let clash = std::panic::catch_unwind(|| {
            struct Clash(&'static [RangeInclusive<u16>]);
            impl Service for Clash {
                fn manifest(&self) -> Manifest {
                    Manifest { kinds: self.0, ..Echo::new(Placement::InPlace).manifest() }
                }
                fn handle_event(&mut self, _: Event, _: Instant, _: &mut Outbox) {}
            }
            let config = config();
            let mut services = all(&config, NodeId::LOCAL, None, None, None);
            services.push(Box::new(Clash(taken)));
            Hub::new(&config, services, None, 1000).map(drop)
        });
        assert!(clash.is_err(), "{taken:?}");
    }
}

#[test]
fn a_service_that_is_stuck_holds_up_no_other() {
    let (echo, gate) = Echo::stuck();
    let daemon = Daemon::with(echo);
    let (flood, other) = (daemon.program(1000), daemon.program(1000));
    let mut sent = 0;
    loop {
        match flood.send(&join(ECHO, &[0; 64]), &[]) {
            Ok(()) => sent += 1,
            Err(_) if daemon.services()["echo"].queued == PACKETS_MAX / 2 => break,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    // The queue is bounded; further packets wait in the kernel.
    is_answered_elsewhere(&other);
    is_answered_elsewhere(&daemon.program(1001));
    let echo = &daemon.services()["echo"];
    assert!(!echo.answers && echo.queued == PACKETS_MAX / 2, "{echo:?}");
    for _ in 0..sent {
        gate.send(()).expect("it waits");
        assert_eq!(answer(&flood), join(ECHO, &[0; 64]));
    }
}

/// Reports its status when another service is asked for its own, too.
struct Meets(&'static str, Arc<Barrier>);

impl Service for Meets {
    fn manifest(&self) -> Manifest {
        let placement = Placement::Thread;
        Manifest { name: self.0, kinds: &[], placement, options: &[], events: &[] }
    }

    fn handle_event(&mut self, _: Event, _: Instant, _: &mut Outbox) {}

    fn report(&self) -> Report {
        self.1.wait();
        Box::new(|_| ())
    }
}

/// Services that are busy at the same time would else take longer together than a program waits.
#[test]
fn services_are_asked_for_their_status_together() {
    let barrier = Arc::new(Barrier::new(2));
    let one = |name| Box::new(Meets(name, Arc::clone(&barrier))) as Box<dyn Service>;
    let daemon = Daemon::beside(vec![one("left"), one("right")]);
    let answer = || {
        let services = daemon.services();
        services["left"].answers && services["right"].answers
    };
    // On a busy machine they may be late, and are asked again.
    let start = Instant::now();
    while !answer() {
        assert!(start.elapsed() < Duration::from_millis(WATCHDOG_MS.into()), "one after the other");
    }
}

#[test]
fn a_panic_costs_a_program_its_channel_and_nobody_else_anything() {
    for placement in [Placement::Thread, Placement::InPlace] {
        let daemon = Daemon::with(Echo::new(placement));
        let (program, other) = (daemon.program(1000), daemon.program(1000));
        program.send(&join(PANIC, &[]), &[]).expect("room");
        assert!(program.receive_within(WATCHDOG_MS).expect("in time").is_none(), "closed");
        other.send(&join(ECHO, b"still there"), &[]).expect("room");
        assert_eq!(answer(&other), join(ECHO, b"still there"));
        let services = daemon.services();
        assert_eq!((services["echo"].panics, services["endpoints"].panics), (1, 0));
    }
}

fn request(user: u32, number: u8) -> Request {
    let process = ProcessId(u64::from(user));
    let from = Peer {
        process,
        pid: 1,
        uid: user,
        is_numbered_here: false,
        may_command: false,
        origin: Origin::Home,
        site: None,
    };
    Request { from, bytes: vec![number], shown: Vec::new() }
}

#[test]
fn users_take_turns_and_none_fills_the_queue() {
    let queue = Queue::new(Quota { user_share: 50, own_user: 0 });
    let filled = (0..=255).cycle().take_while(|number| queue.enqueue(request(1, *number)).is_ok());
    assert_eq!(filled.count(), PACKETS_MAX / 2);
    queue.enqueue(request(2, 1)).expect("room for others");
    queue.enqueue(request(2, 2)).expect("room for others");
    let next = || match queue.next(None) {
        Next::Event(Event::Packet(request)) => (request.from.uid, request.bytes[0]),
        _ => panic!("only packets are there"),
    };
    assert_eq!([next(), next(), next(), next(), next()], [(1, 0), (2, 1), (1, 1), (2, 2), (1, 2)]);
    assert!(queue.enqueue(request(1, 0)).is_ok(), "taken packets make room");
    assert_eq!(queue.len(), PACKETS_MAX / 2 - 2);
    assert!(matches!(queue.next(Some(Instant::now())), Next::Timeout), "a due timeout comes first");
}
