//! One run: random steps, then quiet, then the checks.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric::NodeId;
use weft_message::Options;
use weft_transport_sim::SimWorld;

use crate::ledger::{Ledger, Life, Seen};
use crate::node::Node;
use crate::plan;

const NODES: usize = 3;
const STEPS: usize = 500;

struct Run {
    world: SimWorld,
    options: Options,
    nodes: Vec<Node>,
    random: ChaCha8Rng,
    ledger: Ledger,
    seen: Seen,
    lives: u64,
}

/// Runs a seed and returns what was seen.
pub fn run(seed: u64) -> Seen {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let world = SimWorld::new(plan::settings(seed, &mut random));
    let options = plan::options(&mut random);
    let open = |node| Node::open(&world, Life { node, number: 0 }, &options);
    let nodes = (0..NODES).map(open).collect();
    let (ledger, seen) = (Ledger::default(), Seen::default());
    let mut run = Run { world, options, nodes, random, ledger, seen, lives: 0 };
    for _ in 0..STEPS {
        run.step();
    }
    run.settle();
    run.seen.digest = run.world.digest();
    run.seen
}

impl Run {
    fn step(&mut self) {
        let at = self.random.random_range(0..NODES);
        let other = (at + self.random.random_range(1..NODES)) % NODES;
        match self.random.random_range(0..100) {
            0..45 => {
                for _ in 0..self.random.random_range(1..8) {
                    self.send(at, other);
                }
            }
            45..52 => {
                let pending = self.ledger.sent.iter().rev().take(60);
                let pending: Vec<(u64, weft_fabric::Peer)> = pending
                    .filter(|(_, sent)| sent.is_pending && sent.way.0 == self.nodes[at].life)
                    .map(|(id, sent)| (*id, sent.way.1))
                    .collect();
                if !pending.is_empty() {
                    let (id, peer) = pending[self.random.random_range(0..pending.len())];
                    self.nodes[at].messages.cancel(peer, id);
                }
            }
            52..62 => self.nodes[at].decide(self.random.random_range(0..1000)),
            62..63 => self.kill(at),
            63..65 => {
                self.seen.count("cut");
                self.world.cut(node(at), node(other));
            }
            65..69 => self.world.heal(node(at), node(other)),
            69..72 => {
                let address = self.nodes[at].address;
                match self.random.random_range(0..3) {
                    0 => self.world.pause(address),
                    1 => self.world.slow_down(address, 2_000),
                    _ => self.world.resume(address),
                };
            }
            _ => {
                let budget = self.random.random_range(1..40);
                self.nodes[at].poll(budget, &mut self.ledger, &mut self.seen);
            }
        }
        let pause = [0, 100, 2_000, 30_000][self.random.random_range(0..4)];
        self.world.advance(pause);
    }

    fn send(&mut self, at: usize, other: usize) {
        let (address, life) = (self.nodes[other].address, self.nodes[other].life);
        let Some(peer) = self.nodes[at].connect(address, life) else { return };
        let length = plan::length(&mut self.random);
        let head = self.random.random_range(8..=88);
        let what = (length, self.random.random_bool(0.3));
        self.nodes[at].send(peer, head, what, &mut self.ledger, &mut self.seen);
    }

    fn kill(&mut self, at: usize) {
        self.seen.count("killed");
        self.world.kill(self.nodes[at].address);
        self.lives += 1;
        let life = Life { node: at, number: self.lives };
        self.nodes[at] = Node::open(&self.world, life, &self.options);
    }

    /// Everything heals, everybody polls, until nothing happens any more.
    fn settle(&mut self) {
        for a in 0..NODES {
            self.world.resume(self.nodes[a].address);
            for b in 0..a {
                self.world.heal(node(a), node(b));
            }
        }
        for round in 0..4_000 {
            self.world.advance(5_000);
            for node in &mut self.nodes {
                node.poll(64, &mut self.ledger, &mut self.seen);
                node.decide(round);
            }
        }
        for node in &self.nodes {
            node.assert_idle();
        }
        let nodes = &self.nodes;
        self.ledger.close(|sent| {
            let (life, peer) = sent.way;
            let from = &nodes[life.node];
            let is_alive = from.life == life && nodes[sent.to.node].life == sent.to;
            is_alive && from.peers.contains_key(&peer)
        });
    }
}

fn node(number: usize) -> NodeId {
    NodeId(u32::try_from(number).expect("few nodes"))
}
