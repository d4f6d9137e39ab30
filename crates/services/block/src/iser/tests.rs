//! An initiator and a target over the simulated fabric.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, NodeId, PATIENCE, Region, Transport, Vpid,
};
use weft_session::{Options, Sessions};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

use super::*;
use crate::fuzz::{Bytes, unit_over};
use crate::gate::{Gate, Held};
use crate::iscsi::{Target as Named, Targets};
use crate::scsi::{Port, Unit};
use crate::store::{Store, StoreError};

const IQN: &str = "iqn.2026-11.example:test";
const BYTES: u64 = 4 << 20;

type SimRegion = <SimEndpoint as Endpoint>::Region;

/// A store that is a region of the target's endpoint.
struct Memory {
    region: SimRegion,
    gate: Arc<Gate>,
    copies: AtomicU32,
}

impl Store for Memory {
    fn bytes(&self) -> u64 {
        BYTES
    }

    fn is_quick(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<&dyn Any> {
        Some(&self.region)
    }

    fn hold(&self, _: u64, _: u64, _: bool) -> Option<Held> {
        self.gate.try_shared()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.region.read(at, into).map_err(|_| StoreError::Unreadable)
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), StoreError> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.region.write(at, from).map_err(|_| StoreError::Unwritable)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn zero(&self, at: u64, length: u64, _: bool) -> Result<(), StoreError> {
        self.write(at, &vec![0; usize::try_from(length).expect("a small store")])
    }
}

/// Names another endpoint if it has one.
struct Near(Option<EndpointAddress>);

impl Surroundings<SimEndpoint> for Near {
    fn elsewhere(&mut self, _: &Unit) -> Option<EndpointAddress> {
        self.0
    }

    fn region(&mut self, _: &mut SimEndpoint, store: &Arc<dyn Store>) -> Option<SimRegion> {
        store.memory()?.downcast_ref::<SimRegion>().cloned()
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

struct Pair {
    world: SimWorld,
    initiator: Initiator<SimEndpoint>,
    target: Target<SimEndpoint, Near>,
    unit: Arc<Unit>,
    memory: Arc<Memory>,
    done: Vec<Done>,
}

impl Pair {
    /// Over a byte array.
    fn new(seed: u64, lun: u64) -> Self {
        Self::with(seed, lun, false, Near(None))
    }

    /// Over a store that is a region.
    fn in_place(seed: u64) -> Self {
        Self::with(seed, 0, true, Near(None))
    }

    fn with(seed: u64, lun: u64, is_in_place: bool, near_it: Near) -> Self {
        let world = SimWorld::new(Settings::seeded(seed));
        let open = |node| {
            world.transport(NodeId(node), 1000).open(&EndpointOptions::default()).expect("room")
        };
        let (mut near, mut far) = (open(0), open(1));
        let address = far.address();
        let peer = near.connect_within(address, PATIENCE).expect("it is there");
        let region = |endpoint: &mut SimEndpoint, bytes| endpoint.register(bytes).expect("memory");
        let bytes = Initiator::<SimEndpoint>::REGION_BYTES;
        let regions = (region(&mut near, bytes), region(&mut near, bytes));
        let stage = region(&mut far, Target::<SimEndpoint, Near>::stage_bytes());
        let (gate, copies) = (Arc::default(), AtomicU32::new(0));
        let memory = Arc::new(Memory { region: region(&mut far, BYTES), gate, copies });
        let targets = Targets::default();
        let named = Named::new(IQN, Vec::new()).expect("a name");
        let unit = match is_in_place {
            true => unit_over(Arc::clone(&memory) as Arc<dyn Store>),
            false => unit_over(Bytes::new(4 << 20)),
        };
        named.add(0, Arc::clone(&unit)).expect("free");
        targets.add(Arc::new(named)).expect("free");
        let sessions = Sessions::new(far, Options::default());
        let target = Target::new(sessions, Arc::new(targets), stage, near_it);
        let port = Port { name: "iqn.i".to_owned(), isid: [0x80, 0, 0, 0, 0, 1] };
        let sessions = Sessions::new(near, Options::default());
        let initiator =
            Initiator::connect(sessions, peer, (IQN, lun), &port, regions, Duration::ZERO);
        let initiator = initiator.expect("room");
        let mut pair = Self { world, initiator, target, unit, memory, done: Vec::new() };
        pair.until(|pair| pair.initiator.is_open() || pair.initiator.end().is_some());
        pair
    }

    fn step(&mut self) {
        self.world.advance(1_000);
        let now = Duration::from_nanos(self.world.now());
        self.target.poll(now);
        while let Some(event) = self.target.poll_event() {
            if let Event::Run { ticket, job, data, mut into, target } = event {
                let outcome = job.run(&data, &mut into, &*target);
                self.target.finished(ticket, outcome, into);
            }
        }
        let done = &mut self.done;
        self.initiator.poll(now, |it| done.push(it));
    }

    fn until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_so(self) {
                return;
            }
            self.step();
        }
        panic!("it does not come: {:?}", self.done);
    }

    /// Runs one command to its end.
    fn run(&mut self, command: &[u8], data: &[u8], data_in: u32) -> Answered {
        let command = std::array::from_fn(|at| command.get(at).copied().unwrap_or(0));
        let tag = self.initiator.submit(&command, data, data_in, None).expect("room");
        self.until(|pair| pair.done.iter().any(|done| done.tag == tag));
        let at = self.done.iter().position(|done| done.tag == tag).expect("it came");
        self.done.remove(at).result.expect("an answer")
    }
}

fn transfer(opcode: u8, block: u32, blocks: u16) -> Vec<u8> {
    let [a, b, c, d] = block.to_be_bytes();
    let [e, f] = blocks.to_be_bytes();
    vec![opcode, 0, a, b, c, d, 0, e, f, 0]
}

#[test]
fn what_the_target_gets_it_puts_back() {
    for seed in 0..4 {
        let mut pair = Pair::new(seed, 0);
        assert_eq!(pair.run(&[0], &[], 0).sense[2] & 15, 6, "a unit attention");
        let data: Vec<u8> = (0..=255).cycle().take(200 << 10).collect();
        assert_eq!(pair.run(&transfer(0x2a, 7, 400), &data, 0).status, 0);
        let seen = pair.run(&transfer(0x28, 7, 400), &[], 200 << 10);
        assert!(seen.data == data, "seed {seed}");
        assert_eq!(pair.run(&[0x12, 0, 0, 0, 36, 0], &[], 36).data.len(), 36);
    }
}

#[test]
fn many_commands_are_on_their_way_and_all_end() {
    let mut pair = Pair::new(9, 0);
    pair.run(&[0], &[], 0);
    let mut sent = 0_u16;
    let mut expected = Vec::new();
    while sent < 200 {
        let byte = u8::try_from(sent % 251).expect("a byte");
        let mut command = [0; 16];
        command[..10].copy_from_slice(&transfer(0x2a, u32::from(sent) * 8, 8));
        match pair.initiator.submit(&command, &[byte; 4096], 0, None) {
            Ok(tag) => {
                expected.push(tag);
                sent += 1;
            }
            Err(_) => pair.step(),
        }
    }
    pair.until(|pair| pair.done.len() == 200);
    assert!(pair.done.iter().all(|done| done.result.as_ref().is_ok_and(|it| it.status == 0)));
    pair.done.clear();
    for number in (0..200_u16).step_by(17) {
        let byte = u8::try_from(number % 251).expect("a byte");
        let seen = pair.run(&transfer(0x28, u32::from(number) * 8, 8), &[], 4096);
        assert_eq!(seen.data, [byte; 4096]);
    }
}

#[test]
fn mistakes_are_answered_and_a_unit_that_is_not_there_is_refused() {
    let mut pair = Pair::new(3, 0);
    pair.run(&[0], &[], 0);
    // Data of another length than the command has, and data for a command that takes none.
    assert_eq!(pair.run(&transfer(0x2a, 0, 2), &[1; 512], 0).status, 2);
    assert_eq!(pair.run(&transfer(0x28, 0, 2), &[], 512).status, 2);
    assert_eq!(pair.run(&transfer(0x28, 0, 1), &[1; 512], 512).status, 2);
    assert_eq!(pair.run(&transfer(0x28, u32::MAX, 1), &[], 512).sense[12], 0x21);
    assert_eq!(pair.run(&transfer(0x28, 0, 1), &[], 512).status, 0);
    let refused = Pair::new(4, 5);
    assert!(refused.initiator.end().is_some_and(|end| end.to_string().contains("no such LUN")));
}

#[test]
fn an_initiator_that_goes_leaves_nothing_at_the_unit() {
    let mut pair = Pair::new(5, 0);
    pair.run(&[0], &[], 0);
    assert_eq!(pair.unit.links(), 1);
    pair.initiator.close();
    pair.until(|pair| pair.unit.links() == 0);
}

#[test]
fn a_store_that_is_memory_is_read_and_written_in_place() {
    for seed in 0..4 {
        let mut pair = Pair::in_place(seed);
        pair.run(&[0], &[], 0);
        let data: Vec<u8> = (0..=255).cycle().take(200 << 10).collect();
        assert_eq!(pair.run(&transfer(0x2a, 7, 400), &data, 0).status, 0);
        let seen = pair.run(&transfer(0x28, 7, 400), &[], 200 << 10);
        assert!(seen.data == data, "seed {seed}");
        assert_eq!(pair.memory.copies.load(Ordering::Relaxed), 0);
        let reads = pair.unit.statistics().reads.summary();
        let writes = pair.unit.statistics().writes.summary();
        assert_eq!((reads.bytes, writes.bytes), (200 << 10, 200 << 10));
        // COMPARE AND WRITE holds the gate alone and goes by the store.
        let mut command = vec![0x89; 16];
        command[1..].fill(0);
        (command[9], command[13]) = (7, 1);
        let both = [&data[..512], &[9; 512][..]].concat();
        assert_eq!(pair.run(&command, &both, 0).status, 0);
        assert_eq!(pair.run(&transfer(0x28, 7, 1), &[], 512).data, [9; 512]);
        assert!(pair.memory.gate.is_free() && pair.unit.statistics().queue() == 0);
    }
}

#[test]
fn an_initiator_that_goes_amid_writes_in_place_leaves_the_memory_free() {
    let mut pair = Pair::in_place(2);
    pair.run(&[0], &[], 0);
    for number in 0..8 {
        let mut command = [0; 16];
        command[..10].copy_from_slice(&transfer(0x2a, number * 512, 512));
        pair.initiator.submit(&command, &[7; 256 << 10], 0, None).expect("room");
    }
    pair.until(|pair| pair.target.is_moving_in_place());
    assert!(!pair.memory.gate.is_free());
    pair.initiator.close();
    pair.until(|pair| pair.unit.links() == 0 && !pair.target.is_moving_in_place());
    assert!(pair.memory.gate.is_free() && pair.unit.statistics().queue() == 0);
}

#[test]
fn an_endpoint_that_does_not_serve_the_unit_names_the_one_that_does() {
    let there = EndpointAddress::new(NodeId(3), Vpid(9));
    let mut pair = Pair::with(6, 0, false, Near(Some(there)));
    assert_eq!(pair.initiator.moved_to(), Some(there));
    // An initiator that was sent here is served, whatever others would be told.
    let here = pair.target.sessions().endpoint().address();
    let endpoint = pair.initiator.sessions().endpoint();
    let peer = endpoint.connect_within(here, PATIENCE).expect("it is there");
    pair.initiator.ask_again(peer, Duration::ZERO).expect("room");
    pair.until(|pair| pair.initiator.is_open() || pair.initiator.end().is_some());
    assert!(pair.initiator.is_open());
    assert_eq!(pair.run(&[0x12, 0, 0, 0, 36, 0], &[], 36).data.len(), 36);
}
