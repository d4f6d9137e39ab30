//! Two state machines and an adversary between them: it delivers packets, ends gets and grants,
//! refuses and gives room when it likes.
//!
//! Packets of one direction stay in order, as the fabric promises. All else is in the adversary's
//! hands: which direction moves, how long an operation takes, and which one ends first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use weft_fabric::{OperationError, Peer, RemoteKey, Revoked, Value};
use weft_message::{
    Action, Body, CopyRegion, Event, Machine, MessageError, Options, Packet, Placement, Share,
    Ticket,
};

type Memory = Arc<Mutex<Vec<u8>>>;

/// Memory that both machines' world has.
#[derive(Clone, Debug)]
struct Fake(Memory);

/// An operation of a machine that has not ended.
enum Operation {
    Get { operation: u32, key: RemoteKey, from: u64, into: Fake, at: u64, length: u64 },
    Grant { operation: u32, region: Fake },
    Revoke { operation: u32, key: RemoteKey },
    Allocate { ticket: Ticket, bytes: u64 },
}

struct Side {
    machine: Machine<Fake>,
    /// Packets on their way to this side.
    wire: VecDeque<Packet>,
    /// The sender's mailbox refuses once it holds this many.
    depth: usize,
    was_refused: bool,
    operations: Vec<Operation>,
    granted: BTreeMap<u64, Fake>,
    next_key: u64,
    share: Share,
    sent: Vec<(u64, Vec<u8>, bool)>,
    ends: BTreeMap<u64, Result<(), MessageError>>,
    received: Vec<(u64, Vec<u8>)>,
    asked: Vec<Ticket>,
    next_id: u64,
}

/// Each side knows the other by this handle.
const OTHER: Peer = Peer(7);

fn body_of(id: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (size(id) * 7 + at / 3).to_le_bytes()[0]).collect()
}

fn size(value: u64) -> usize {
    usize::try_from(value).expect("it is small")
}

impl Side {
    fn new(options: &Options, depth: usize) -> Self {
        let mut machine = Machine::new(options.clone());
        let region = Fake(Arc::new(Mutex::new(body_of(99, 5_000))));
        let share = machine.share(region, 5_000);
        machine.greet(OTHER);
        Self {
            machine,
            wire: VecDeque::new(),
            depth,
            was_refused: false,
            operations: Vec::new(),
            granted: BTreeMap::new(),
            next_key: 1,
            share,
            sent: Vec::new(),
            ends: BTreeMap::new(),
            received: Vec::new(),
            asked: Vec::new(),
            next_id: 0,
        }
    }

    /// Sends a message of `length` bytes, out of the shared region or copied.
    fn send(&mut self, length: usize, is_range: bool) {
        let id = self.next_id;
        let head = id.to_le_bytes();
        let eager = self.machine.options().eager_bytes_max;
        let (body, result, is_pending) = if is_range && length > 0 {
            let body = body_of(99, 5_000)[..length].to_vec();
            let range = (self.share, 0, length as u64);
            (body, self.machine.announce(OTHER, &head, range, id), true)
        } else if length + head.len() <= eager {
            let body = body_of(id, length);
            // Whether it is pending does not matter here: its bytes are in the machine.
            (body.clone(), self.machine.enqueue(OTHER, &head, &[&body], id), false)
        } else {
            let body = body_of(id, length);
            let (share, region) = match self.machine.copy_for(OTHER, length as u64) {
                Ok(CopyRegion::Idle(share, region)) => (share, region),
                Ok(CopyRegion::Register(bytes)) => {
                    let region = Fake(Arc::new(Mutex::new(vec![0; size(bytes)])));
                    (self.machine.add_copy(OTHER, region.clone(), bytes), region)
                }
                _ => return,
            };
            region.0.lock().expect("one thread")[..length].copy_from_slice(&body);
            let range = (share, 0, length as u64);
            (body, self.machine.announce(OTHER, &head, range, id), true)
        };
        if result.is_ok() {
            self.sent.push((id, body, is_pending));
            self.next_id += 1;
        }
    }

    /// Does what the machine wants done; what takes time is left to the adversary.
    fn flush(&mut self, other: &mut Self) {
        while let Some(action) = self.machine.next_action() {
            match action {
                Action::Transmit { peer, packet, piece } => {
                    assert_eq!(peer, OTHER);
                    if other.wire.len() < self.depth {
                        other.wire.push_back(packet);
                        self.machine.transmitted(peer, piece);
                    } else {
                        self.was_refused = true;
                        self.machine.stalled(peer);
                    }
                }
                Action::Allocate { ticket, bytes } => {
                    self.operations.push(Operation::Allocate { ticket, bytes });
                }
                Action::Get { operation, peer, target, region, offset, length } => {
                    assert_eq!(peer, OTHER);
                    let (key, from) = (target.key, target.offset);
                    let (into, at) = (region, offset);
                    let get = Operation::Get { operation, key, from, into, at, length };
                    self.operations.push(get);
                }
                Action::Grant { operation, region, .. } => {
                    self.operations.push(Operation::Grant { operation, region });
                }
                Action::Revoke { operation, key } => {
                    self.operations.push(Operation::Revoke { operation, key });
                }
                Action::Disconnect { .. } => panic!("both are honest"),
            }
        }
    }

    /// Ends one operation.
    fn end_operation(&mut self, choice: usize, other: &mut Self) {
        if self.operations.is_empty() {
            return;
        }
        match self.operations.swap_remove(choice % self.operations.len()) {
            Operation::Get { operation, key, from, into, at, length } => {
                let result = match other.granted.get(&key.0) {
                    None => Err(OperationError::InvalidKey),
                    Some(source) => {
                        let range = size(from)..size(from + length);
                        let bytes = source.0.lock().expect("one thread")[range].to_vec();
                        let mut target = into.0.lock().expect("one thread");
                        target[size(at)..size(at + length)].copy_from_slice(&bytes);
                        Ok(Value::Nothing)
                    }
                };
                self.machine.completed(operation, result);
            }
            Operation::Grant { operation, region } => {
                let key = self.next_key;
                self.next_key += 1;
                self.granted.insert(key, region);
                self.machine.completed(operation, Ok(Value::Key(RemoteKey(key))));
            }
            Operation::Revoke { operation, key } => {
                assert!(self.granted.remove(&key.0).is_some(), "a key is revoked once");
                self.machine.completed(operation, Ok(Value::Revoked(Revoked::Published)));
            }
            Operation::Allocate { ticket, bytes } => {
                let region = Fake(Arc::new(Mutex::new(vec![0; size(bytes)])));
                let region = (choice % 16 != 15).then_some(region);
                self.machine.allocated(ticket, bytes, region);
            }
        }
    }

    fn sink<'a>(
        received: &'a mut Vec<(u64, Vec<u8>)>,
        ends: &'a mut BTreeMap<u64, Result<(), MessageError>>,
        asked: &'a mut Vec<Ticket>,
    ) -> impl FnMut(Event<'_, Fake>) + 'a {
        move |event| match event {
            Event::Message(message) => {
                let id = u64::from_le_bytes(message.head.try_into().expect("8 bytes"));
                let body = match message.body {
                    Body::Bytes(bytes) => bytes.to_vec(),
                    Body::Range { region, offset, length, .. } => {
                        let range = size(offset)..size(offset + length);
                        region.0.lock().expect("one thread")[range].to_vec()
                    }
                };
                received.push((id, body));
            }
            Event::Announced { ticket, .. } => asked.push(ticket),
            Event::Lost { ticket, .. } => asked.retain(|other| *other != ticket),
            Event::Completion { context, result } => {
                assert!(ends.insert(context, result).is_none(), "message {context} ended twice");
            }
            Event::Room { .. } => {}
            Event::Misbehaved { offence, .. } => panic!("both are honest: {offence}"),
            Event::Endpoint(_) => unreachable!("a machine has no endpoint"),
        }
    }

    /// Takes up to `budget` packets.
    fn poll(&mut self, budget: usize, other: &mut Self) {
        for _ in 0..budget {
            let Some(packet) = self.wire.pop_front() else { break };
            let Self { received, ends, asked, machine, .. } = self;
            machine.packet(OTHER, false, &packet, &mut Self::sink(received, ends, asked));
        }
        while self.machine.is_busy() {
            self.flush(other);
            let Self { received, ends, asked, machine, .. } = self;
            machine.hand_out(&mut Self::sink(received, ends, asked));
        }
    }

    fn decide(&mut self, choice: usize) {
        if self.asked.is_empty() {
            return;
        }
        let ticket = self.asked.remove(choice % self.asked.len());
        match choice % 4 {
            0 => self.machine.refuse(ticket).expect("asked"),
            1 => {
                let region = Fake(Arc::new(Mutex::new(vec![0; 6_000])));
                self.machine.accept_into(ticket, (region, 6_000, 500)).expect("asked");
            }
            _ => self.machine.accept(ticket).expect("asked"),
        }
    }

    fn room(&mut self, other: &Self) {
        if self.was_refused && other.wire.len() < self.depth {
            self.was_refused = false;
            self.machine.room(OTHER);
        }
    }

    /// Checks what came from `other`, when nothing is under way.
    fn check(&self, other: &Self) {
        let mut expected = Vec::new();
        for (id, body, is_pending) in &other.sent {
            match other.ends.get(id) {
                Some(Err(MessageError::Cancelled | MessageError::Refused)) => continue,
                Some(Err(error)) => panic!("message {id}: {error}"),
                Some(Ok(())) => {}
                None => assert!(!is_pending, "message {id} never ended"),
            }
            expected.push((*id, body.clone()));
        }
        assert!(self.received == expected, "{:?}", self.machine.census());
        let census = self.machine.census();
        assert_eq!((census.messages, census.operations), (0, 0));
        assert_eq!(census.receive_bytes, census.idle_receive_bytes);
        assert_eq!(census.keys, self.granted.len());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send { length: usize, is_range: bool },
    Cancel(usize),
    Poll(usize),
    End(usize),
    Decide(usize),
    Room,
}

fn step() -> impl Strategy<Value = (bool, Step)> {
    let length = prop_oneof![0usize..=104, 0usize..=1784, 1usize..=5_000];
    let what = prop_oneof![
        3 => (length, any::<bool>()).prop_map(|(length, is_range)| Step::Send { length, is_range }),
        1 => (0usize..6).prop_map(Step::Cancel),
        3 => (0usize..10).prop_map(Step::Poll),
        2 => (0usize..64).prop_map(Step::End),
        1 => (0usize..64).prop_map(Step::Decide),
        1 => Just(Step::Room),
    ];
    (any::<bool>(), what)
}

fn run(options: &Options, depth: usize, steps: Vec<(bool, Step)>) {
    let mut left = Side::new(options, depth);
    let mut right = Side::new(options, depth);
    for (is_left, step) in steps {
        let (side, other) = if is_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
        match step {
            Step::Send { length, is_range } => side.send(length, is_range),
            Step::Cancel(back) => {
                if let Some((id, ..)) = side.sent.iter().rev().nth(back) {
                    side.machine.cancel(OTHER, *id);
                }
            }
            Step::Poll(budget) => side.poll(budget, other),
            Step::End(choice) => side.end_operation(choice, other),
            Step::Decide(choice) => side.decide(choice),
            Step::Room => side.room(other),
        }
    }
    for round in 0..3_000 {
        for is_left in [true, false] {
            let (side, other) =
                if is_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
            side.end_operation(round, other);
            side.decide(round);
            side.room(other);
            side.poll(8, other);
        }
    }
    left.check(&right);
    right.check(&left);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]
    #[test]
    fn no_schedule_loses_doubles_or_reorders_a_message(
        steps in prop::collection::vec(step(), 1..250),
        window in 32u16..80,
        eager_bytes_max in 112usize..=1792,
        outstanding_max in 1u32..9,
        regions_max in 1usize..4,
        asks: bool,
        depth in 1usize..40,
    ) {
        let placement = if asks { Placement::Ask } else { Placement::Allocate };
        let options = Options {
            window, eager_bytes_max, outstanding_max, regions_max, placement,
            queue_packets_max: 20,
            receive_bytes_max: 16_384,
            bounce_bytes_max: 16_384,
            ..Options::default()
        };
        run(&options, depth, steps);
    }
}
