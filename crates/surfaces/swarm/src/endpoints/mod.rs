//! Programs that use endpoints: short messages, notifications, puts, gets, atomics, groups, and
//! regions whose keys come and go.
//!
//! # Invariant
//! A program that was refused for lack of room asks again only when it was told of room, so that a
//! lost wakeup leaves it waiting.

mod events;
mod keys;
mod messages;
mod operations;
mod program;
mod settled;

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Blocking, Endpoint, EndpointAddress, Event, Peer, Region};

use self::events::Seen;
use self::keys::EXTRA_BYTES;
use self::messages::Multicast;
use self::operations::{Content, Slot, Sum};
use self::program::{Link, Program, SOON, size, small};
use crate::ledger::{Ledger, Life};
use crate::plan::{LIVES_MAX, Plan};
use crate::stage::Stage;
use crate::workload::Workload;

/// All programs of this kind.
pub(crate) struct Endpoints<E: Endpoint> {
    programs: Vec<Program<E>>,
    ledger: Ledger,
    slots: BTreeMap<Slot, Content>,
    sums: BTreeMap<(Life, Life), Sum>,
    multicasts: BTreeMap<(Life, u32), Multicast>,
    /// The next number of a message to a group from one program to another.
    heard: BTreeMap<(Life, Life), u32>,
    /// Completer notifications of puts that came, by number.
    told: BTreeSet<u64>,
    /// Puts that asked for one and ended well, with the two ends.
    owed: BTreeMap<u64, (Life, Life, u16)>,
    ended_pairs: BTreeSet<(Life, u16)>,
    dead: BTreeSet<Life>,
    /// When a pair last ended or a program died.
    disturbed_ns: Option<u64>,
    numbers: u64,
    done: u64,
}

impl<E: Endpoint> Endpoints<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let mut all = Self {
            programs: Vec::new(),
            ledger: Ledger::default(),
            slots: BTreeMap::new(),
            sums: BTreeMap::new(),
            multicasts: BTreeMap::new(),
            heard: BTreeMap::new(),
            told: BTreeSet::new(),
            owed: BTreeMap::new(),
            ended_pairs: BTreeSet::new(),
            dead: BTreeSet::new(),
            disturbed_ns: None,
            numbers: 0,
            done: 0,
        };
        let first = random.random_range(0..stage.hosts());
        for place in 0..plan.programs {
            let host = (first + place) % stage.hosts();
            let program = Program::start(stage, (small(place), 0), host)?;
            all.programs.push(program);
        }
        Ok(all)
    }

    fn program(&self, life: Life) -> Option<&Program<E>> {
        self.programs.get(usize::from(life.0)).filter(|program| program.life == life)
    }

    /// A pair with another program, unless one waits for room there or cannot be had.
    fn pair(&mut self, from: usize, to: usize) -> Option<Peer> {
        let (address, life) = (self.programs[to].endpoint.address(), self.programs[to].life);
        let program = &mut self.programs[from];
        let peer = program.endpoint.connect_within(address, SOON).ok()?;
        let new = Link { to: life, is_down: false, waits: false };
        let link = program.links.entry(peer).or_insert(new);
        (!link.waits && !link.is_down).then_some(peer)
    }
}

impl<E: Endpoint> Workload<E> for Endpoints<E> {
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let from = random.random_range(0..self.programs.len());
        let to = random.random_range(0..self.programs.len());
        match random.random_range(0..100) {
            0..4 => self.multicast(stage, from, random),
            4..9 => self.churn(from, random)?,
            choice => {
                let Some(peer) = self.pair(from, to).filter(|_| from != to) else { return Ok(()) };
                let ends = (from, to, peer);
                match choice {
                    9..40 => self.send(ends, random),
                    40..50 => self.notify(ends),
                    50..68 => self.put(ends, random)?,
                    68..80 => self.get(ends, random)?,
                    80..92 => self.add(ends)?,
                    92..98 => self.stray(ends, random)?,
                    98 => drop(self.programs[from].endpoint.order(peer)),
                    _ if random.random_bool(0.2) => {
                        drop(self.programs[from].endpoint.disconnect(peer));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        budget: usize,
    ) -> Result<(), String> {
        let places = program.map_or(0..self.programs.len(), |place| place..place + 1);
        for place in places {
            let mut events = Vec::new();
            let sink = &mut |event: Event<'_>| events.push(Seen::of(event));
            self.programs[place].endpoint.poll(budget, sink);
            for seen in events {
                self.see(stage, place, seen)?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let program = program % self.programs.len();
        let former = &self.programs[program];
        let (life, host) = (former.life, former.host);
        if usize::from(life.1) + 1 == LIVES_MAX {
            return Ok(());
        }
        stage.world.kill(former.endpoint.address());
        self.dead.insert(life);
        self.ledger.die(life);
        self.disturbed_ns = Some(stage.world.now());
        self.programs[program] = Program::start(stage, (life.0, life.1 + 1), host)?;
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let is_idle = |program: &Program<E>| {
            program.pending.is_empty()
                && program.waits_for_group.is_empty()
                && !program.links.values().any(|link| link.waits)
        };
        self.programs.iter().all(is_idle) && !self.ledger.lacks()
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        self.check_settled()
    }

    fn keys(&self) -> Option<usize> {
        let extras = |program: &Program<E>| {
            program.extras.iter().filter(|extra| extra.revoked.is_none()).count()
        };
        Some(self.programs.iter().map(|program| 1 + extras(program)).sum())
    }

    fn region_bytes(&self) -> Option<u64> {
        let bytes = |program: &Program<E>| {
            let extras = EXTRA_BYTES * size(program.extras.len());
            program.region.length() + program.scratch.length() + extras
        };
        Some(self.programs.iter().map(bytes).sum())
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        Some(self.programs[program % self.programs.len()].endpoint.address())
    }

    fn done(&self) -> u64 {
        self.done + self.ledger.arrived
    }
}
