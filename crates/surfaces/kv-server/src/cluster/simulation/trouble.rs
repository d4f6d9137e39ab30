//! The trouble of a run: how often which kind comes, and the steps that bring it.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_kv::disk::simulated::SimulatedDisk;
use weft_kv::node::Failover;

use super::client::ISOLATED_CLIENTS;
use super::{CLIENTS, COMMITS, LEASE_MS, NODES, Planted, THREADS, World, millis, world};

/// How often which trouble comes in a run, of 2,000 steps, and what clients do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swarm {
    kills: u32,
    /// All nodes are killed at a time.
    ends: u32,
    stops: u32,
    cuts: u32,
    /// A node reaches neither the others nor the record; clients reach it.
    isolations: u32,
    blinds: u32,
    waits: u32,
    handovers: u32,
    /// Of 100 times so often a node is killed soon after its reign began, or after it cut off a
    /// client.
    falls: u32,
    /// Of 100 backups that begin to catch up so many are killed meanwhile, or their primary is.
    interruptions: u32,
    /// By so many thousandths clocks run too fast or too slow, at most.
    pub drift: u32,
    /// Writes of 100 commands.
    pub writes: u32,
    /// Clients that only read.
    pub readers: usize,
    /// Clients that only read, and at replicas: the last ones.
    pub replica_readers: usize,
    /// The longest pause of a client, in milliseconds.
    pub pause: u64,
}

impl Swarm {
    pub fn new(random: &mut ChaCha8Rng) -> Self {
        let mut weight = |weights: [u32; 4]| weights[random.random_range(0..4)];
        Self {
            kills: weight([0, 1, 4, 12]),
            ends: weight([0, 0, 1, 3]),
            stops: weight([0, 2, 6, 20]),
            cuts: weight([0, 1, 4, 12]),
            isolations: weight([0, 1, 3, 8]),
            blinds: weight([0, 2, 8, 20]),
            waits: weight([0, 10, 60, 150]),
            handovers: weight([4, 15, 50, 120]),
            falls: weight([0, 5, 20, 60]),
            interruptions: weight([0, 0, 5, 30]),
            drift: weight([0, 0, 20, 45]),
            writes: weight([10, 30, 50, 90]),
            readers: weight([0, 1, 2, 4]) as usize,
            pause: weight([20, 50, 100, 200]).into(),
            replica_readers: weight([0, 1, 1, 2]) as usize,
        }
    }
}

impl World {
    pub(super) fn kill(&mut self, node: usize) {
        let starts_at = world() + millis(self.random.random_range(0..1_500));
        let machine = &mut self.machines[node];
        (machine.dies_at, machine.reigns, machine.catches_up) = (None, Vec::new(), None);
        if machine.process.take().is_none() {
            return;
        }
        machine.disks.iter().for_each(SimulatedDisk::kill);
        machine.starts_at = starts_at;
        machine.stopped_until = Duration::ZERO;
        if self.planted == Some(Planted::EndIsForgotten) {
            machine.disks.iter().for_each(forget_end);
        }
        self.totals.kills += 1;
        self.ways.retain(|(_, _, to), _| *to != node);
        for client in 0..CLIENTS {
            self.hang_up(client, Some(node));
        }
    }

    /// Something goes wrong, at times.
    pub(super) fn trouble(&mut self) {
        self.directed();
        let Swarm { kills, ends, stops, cuts, isolations, blinds, waits, handovers, .. } =
            self.swarm;
        let a = self.random.random_range(0..NODES as usize);
        let b = (a + self.random.random_range(1..NODES as usize)) % NODES as usize;
        let long = world() + millis(self.random.random_range(0..3 * LEASE_MS));
        let mut chance = |weight: u32| self.random.random_range(0..2_000) < weight;
        let (is_killed, is_stopped) = (chance(kills), chance(stops));
        let (one, both, none) = (chance(cuts), chance(cuts), chance(4 * cuts));
        let (is_blind, waits, hands_over) = (chance(blinds), chance(waits), chance(handovers));
        let (all_end, is_isolated) = (chance(ends), chance(isolations));
        let any = self.random.random_range(0..THREADS);
        let thread = if self.random.random_bool(0.5) { COMMITS } else { any };
        if all_end {
            (0..NODES as usize).for_each(|node| self.kill(node));
        } else if is_killed {
            self.kill(a);
        } else if is_stopped {
            self.machines[a].stopped_until = long;
        }
        if one {
            self.cut.insert((a, b));
        }
        if both {
            self.cut.extend([(a, b), (b, a)]);
        }
        if none {
            self.cut.clear();
        }
        if is_isolated {
            self.isolated_until[a] = long + millis(LEASE_MS);
            (ISOLATED_CLIENTS..CLIENTS).for_each(|client| self.hang_up(client, Some(a)));
            self.cells().for_each(|mut cell| cell.blind_until[a] = long + millis(LEASE_MS));
        }
        if is_blind {
            self.cells().for_each(|mut cell| cell.blind_until[a] = long);
        }
        if waits {
            self.machines[a].waits_until[thread] = long;
        }
        if hands_over {
            let how = Failover {
                to: (a == 0).then_some(b),
                within: Some(millis(500)),
                is_forced: a == 0,
            };
            let processes = self.machines.iter().filter_map(|it| it.process.as_ref());
            for part in processes.flat_map(|process| &process.parts) {
                *part.shared.failover.lock() = Some(how.clone());
            }
        }
    }

    /// A node is killed within so many milliseconds, at times.
    pub(super) fn falls_soon(&mut self, node: usize, most: u64) {
        if self.random.random_range(0..100) < self.swarm.falls {
            let at = world() + millis(self.random.random_range(0..most));
            self.machines[node].dies_at = Some(at);
        }
    }

    /// Trouble at moments that are rare: soon after a reign begins, and while a backup catches up.
    fn directed(&mut self) {
        let Swarm { interruptions, .. } = self.swarm;
        for node in 0..NODES as usize {
            let machine = &mut self.machines[node];
            let Some(process) = &machine.process else { continue };
            let (reigns, catches_up) = (process.reigns(), process.catches_up());
            if !reigns.is_empty() && reigns != machine.reigns {
                machine.reigns = reigns;
                self.falls_soon(node, 600);
            }
            let machine = &mut self.machines[node];
            let begins = catches_up.filter(|_| machine.catches_up.is_none());
            machine.catches_up = catches_up;
            if let Some(other) = begins
                && self.random.random_range(0..100) < interruptions
            {
                let victim = if self.random.random_bool(0.5) { node } else { other };
                let at = world() + millis(self.random.random_range(0..80));
                self.machines[victim].dies_at = Some(at);
            }
        }
        for node in 0..NODES as usize {
            if self.machines[node].dies_at.is_some_and(|at| at <= world()) {
                self.kill(node);
            }
        }
    }
}

/// Cuts off the last part of what was written to the log: a device that lies.
fn forget_end(disk: &SimulatedDisk) {
    let mut logs: Vec<_> =
        disk.sizes().into_iter().filter(|(name, _)| name.starts_with("log-")).collect();
    logs.sort();
    if let Some((name, _)) = logs.pop() {
        disk.damage(&name, |bytes| {
            let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            let from = end.saturating_sub(80).max(200).min(end);
            bytes[from..=end].fill(0);
        });
    }
}
