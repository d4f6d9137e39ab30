//! An initiator and a target over the simulated fabric.

use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{Endpoint, EndpointOptions, NodeId, PATIENCE, Transport};
use weft_session::{Options, Sessions};
use weft_transport_sim::{Settings, SimEndpoint, SimWorld};

use super::*;
use crate::fuzz::{Bytes, unit_over};
use crate::iscsi::{Target as Named, Targets};
use crate::scsi::{Port, Unit};
use weft_fabric::Blocking;

const IQN: &str = "iqn.2026-11.example:test";

struct Pair {
    world: SimWorld,
    initiator: Initiator<SimEndpoint>,
    target: Target<SimEndpoint>,
    unit: Arc<Unit>,
    done: Vec<Done>,
}

impl Pair {
    fn new(seed: u64, lun: u64) -> Self {
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
        let stage = region(&mut far, Target::<SimEndpoint>::stage_bytes());
        let targets = Targets::default();
        let named = Named::new(IQN, Vec::new()).expect("a name");
        let unit = unit_over(Bytes::new(4 << 20));
        named.add(0, Arc::clone(&unit)).expect("free");
        targets.add(Arc::new(named)).expect("free");
        let sessions = Sessions::new(far, Options::default());
        let target = Target::new(sessions, Arc::new(targets), stage);
        let port = Port { name: "iqn.i".to_owned(), isid: [0x80, 0, 0, 0, 0, 1] };
        let sessions = Sessions::new(near, Options::default());
        let initiator =
            Initiator::connect(sessions, peer, (IQN, lun), &port, regions, Duration::ZERO);
        let initiator = initiator.expect("room");
        let mut pair = Self { world, initiator, target, unit, done: Vec::new() };
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
        let tag = self.initiator.submit(&command, data, data_in).expect("room");
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
        match pair.initiator.submit(&command, &[byte; 4096], 0) {
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
