//! Programs that send messages of any length.
//!
//! # Invariant
//! A program that was refused for lack of room sends again only when it was told of room.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Blocking, DownReason, Endpoint, EndpointAddress, Event as FabricEvent, GrantError, Issued,
    Peer, Region, RegisterError,
};
use weft_message::{Body, Event, MessageError, Messages, Options, Placement, SendError, Ticket};

use crate::ledger::{Ledger, Life, Stream};
use crate::plan::{LIVES_MAX, Plan, one_of};
use crate::stage::Stage;
use crate::workload::{Workload, pattern};

const USER: u32 = 1_001;
const SOON: Duration = Duration::from_secs(1);
/// Bytes of the longest body.
const BODY_BYTES_MAX: usize = 20_000;

struct Link {
    to: Life,
    is_down: bool,
    waits: bool,
}

/// A message that has not ended.
#[derive(Clone, Copy)]
struct Pending {
    stream: Stream,
    number: u32,
    /// Its receiver fetches it, and answers when it has it.
    is_announced: bool,
}

struct Program<E: Endpoint> {
    life: Life,
    host: usize,
    messages: Messages<E>,
    links: BTreeMap<Peer, Link>,
    /// Messages that have not ended, by context.
    pending: BTreeMap<u64, Pending>,
    /// Announced messages on which this program has to decide.
    asked: Vec<Ticket>,
    next: u64,
}

/// An event, as the program keeps it until the call is over.
enum Seen {
    Message { head: Vec<u8>, body: Vec<u8> },
    Announced(Ticket),
    Lost(Ticket),
    Completion { context: u64, result: Result<(), MessageError> },
    Room(Peer),
    Misbehaved(String),
    Down { peer: Peer, reason: DownReason },
    Other,
}

/// All programs of this kind.
pub(crate) struct Letters<E: Endpoint> {
    programs: Vec<Program<E>>,
    options: Options,
    ledger: Ledger,
    /// Announced messages that ended well, and have to have arrived.
    well: BTreeSet<(Stream, u32)>,
    arrived: BTreeSet<(Stream, u32)>,
    dead: BTreeSet<Life>,
}

fn bytes_of(stream: Stream, number: u32, length: usize) -> Vec<u8> {
    let Stream { from, to, pair } = stream;
    let seed = u64::from(from.0) << 56 | u64::from(from.1) << 52 | u64::from(to.0) << 44;
    pattern(seed | u64::from(pair) << 32 | u64::from(number), length)
}

impl<E: Endpoint> Letters<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let options = Options {
            window: random.random_range(32..100),
            eager_bytes_max: random.random_range(112..=1_792),
            queue_packets_max: random.random_range(16..64),
            outstanding_max: random.random_range(1..20),
            bounce_bytes_max: random.random_range(65_536..1_000_000),
            receive_bytes_max: random.random_range(65_536..1_000_000),
            regions_max: random.random_range(1..10),
            placement: one_of(random, &[Placement::Allocate, Placement::Ask]),
            ..Options::default()
        };
        let mut all = Self {
            programs: Vec::new(),
            options,
            ledger: Ledger::default(),
            well: BTreeSet::new(),
            arrived: BTreeSet::new(),
            dead: BTreeSet::new(),
        };
        let first = random.random_range(0..stage.hosts());
        for place in 0..plan.programs {
            let life = (u8::try_from(place).expect("a plan has few programs"), 0);
            let program = all.start(stage, life, (first + place) % stage.hosts())?;
            all.programs.push(program);
        }
        Ok(all)
    }

    fn start(&self, stage: &Stage<'_, E>, life: Life, host: usize) -> Result<Program<E>, String> {
        let messages = Messages::new(stage.open(host, USER)?, self.options.clone());
        Ok(Program {
            life,
            host,
            messages,
            links: BTreeMap::new(),
            pending: BTreeMap::new(),
            asked: Vec::new(),
            next: 0,
        })
    }

    fn send(&mut self, from: usize, to: usize, random: &mut ChaCha8Rng) -> Result<(), String> {
        let (address, life) = {
            let other = &mut self.programs[to];
            (other.messages.endpoint().address(), other.life)
        };
        let program = &mut self.programs[from];
        let Ok(peer) = program.messages.endpoint().connect_within(address, SOON) else {
            return Ok(());
        };
        let new = Link { to: life, is_down: false, waits: false };
        let link = program.links.entry(peer).or_insert(new);
        if link.waits || link.is_down {
            return Ok(());
        }
        let pair = u16::try_from(peer.0).expect("a run has few pairs");
        let stream = Stream { from: program.life, to: life, pair };
        let number = self.ledger.next(stream);
        let length_max = one_of(random, &[0, 100, 1_000, BODY_BYTES_MAX]);
        let body = bytes_of(stream, number, random.random_range(0..=length_max));
        let context = program.next;
        let head = [&pair.to_le_bytes()[..], &number.to_le_bytes(), &[program.life.0]].concat();
        let head = [&head[..], &[program.life.1]].concat();
        match program.messages.send(peer, &head, &[&body], context) {
            Ok(issued) => {
                program.next += 1;
                self.ledger.sent(stream);
                if issued == Issued::Pending {
                    let is_announced = head.len() + body.len() > self.options.eager_bytes_max;
                    program.pending.insert(context, Pending { stream, number, is_announced });
                }
            }
            Err(SendError::WouldBlock) => link.waits = true,
            // Without memory for a copy, the program tries again some time.
            Err(SendError::PeerDown | SendError::Register(RegisterError::Exhausted { .. })) => {}
            Err(error) => return Err(format!("{stream:?}: {} bytes: {error}", body.len())),
        }
        Ok(())
    }

    /// Decides on a message that was announced.
    fn decide(&mut self, at: usize, random: &mut ChaCha8Rng) -> Result<(), String> {
        let program = &mut self.programs[at];
        if program.asked.is_empty() {
            return Ok(());
        }
        let ticket = program.asked.remove(random.random_range(0..program.asked.len()));
        let decided = if random.random_bool(0.2) {
            program.messages.refuse(ticket)
        } else {
            program.messages.accept(ticket)
        };
        decided.map_err(|error| format!("{:?}: {ticket:?}: {error}", program.life))
    }

    fn cancel(&mut self, from: usize, random: &mut ChaCha8Rng) {
        let program = &mut self.programs[from];
        let contexts: Vec<u64> = program.pending.keys().copied().collect();
        if contexts.is_empty() {
            return;
        }
        let context = one_of(random, &contexts);
        let to = program.pending[&context].stream;
        program.messages.cancel(Peer(u32::from(to.pair)), context);
    }

    fn see(&mut self, stage: &mut Stage<'_, E>, at: usize, seen: Seen) -> Result<(), String> {
        let own = self.programs[at].life;
        match seen {
            Seen::Message { head, body } => {
                let head: [u8; 8] = head.try_into().map_err(|_| "a head has other bytes")?;
                let pair = u16::from_le_bytes([head[0], head[1]]);
                let number = u32::from_le_bytes([head[2], head[3], head[4], head[5]]);
                let stream = Stream { from: (head[6], head[7]), to: own, pair };
                if body != bytes_of(stream, number, body.len()) {
                    return Err(format!("{stream:?}: the body of {number} has other bytes"));
                }
                self.arrived.insert((stream, number));
                self.ledger.arrive(stream, number)
            }
            Seen::Announced(ticket) => {
                self.programs[at].asked.push(ticket);
                Ok(())
            }
            Seen::Lost(ticket) => {
                self.programs[at].asked.retain(|other| *other != ticket);
                Ok(())
            }
            Seen::Completion { context, result } => {
                let Some(pending) = self.programs[at].pending.remove(&context) else {
                    return Err(format!("{own:?}: message {context} ended and was not pending"));
                };
                let Pending { stream, number, is_announced } = pending;
                match result {
                    Ok(()) if is_announced => drop(self.well.insert((stream, number))),
                    Ok(()) => {}
                    Err(
                        MessageError::Cancelled
                        | MessageError::Refused
                        | MessageError::PeerDown
                        | MessageError::Grant(GrantError::Exhausted { .. }),
                    ) => self.ledger.excuse(stream, number),
                    Err(error) => return Err(format!("{stream:?}: message {number}: {error}")),
                }
                Ok(())
            }
            Seen::Room(peer) => {
                if let Some(link) = self.programs[at].links.get_mut(&peer) {
                    link.waits = false;
                }
                Ok(())
            }
            Seen::Misbehaved(offence) => Err(format!("{own:?}: told that {offence}")),
            Seen::Down { peer, reason } => self.down(stage, at, peer, reason),
            Seen::Other => Ok(()),
        }
    }

    fn down(
        &mut self,
        stage: &mut Stage<'_, E>,
        at: usize,
        peer: Peer,
        reason: DownReason,
    ) -> Result<(), String> {
        let program = &mut self.programs[at];
        let own = program.life;
        program.asked.retain(|ticket| ticket.peer() != peer);
        let Some(link) = program.links.get_mut(&peer) else { return Ok(()) };
        link.is_down = true;
        link.waits = false;
        let (to, pair) = (link.to, u16::try_from(peer.0).expect("a run has few pairs"));
        let stream = Stream { from: own, to, pair };
        if let Some((context, _)) = program.pending.iter().find(|(_, of)| of.stream == stream) {
            return Err(format!("{stream:?} was told as down, and {context} on it had not ended"));
        }
        self.ledger.end(stream);
        if reason == DownReason::Unreachable {
            let hosts = [at, usize::from(to.0)].map(|place| self.programs[place].host);
            return stage.check_unreachable(hosts[0], hosts[1]);
        }
        Ok(())
    }
}

/// Copies what an event has.
fn seen<R: Region>(event: Event<'_, R>) -> Seen {
    match event {
        Event::Message(message) => {
            let body = match message.body {
                Body::Bytes(bytes) => bytes.to_vec(),
                Body::Range { region, offset, length, .. } => {
                    let mut bytes = vec![0; usize::try_from(length).expect("it is short")];
                    region.read(offset, &mut bytes).expect("the range is inside");
                    bytes
                }
            };
            Seen::Message { head: message.head.to_vec(), body }
        }
        Event::Announced { ticket, .. } => Seen::Announced(ticket),
        Event::Lost { ticket, .. } => Seen::Lost(ticket),
        Event::Completion { context, result } => Seen::Completion { context, result },
        Event::Room { peer } => Seen::Room(peer),
        Event::Misbehaved { offence, .. } => Seen::Misbehaved(offence.to_string()),
        Event::Endpoint(FabricEvent::PeerDown { peer, reason, .. }) => Seen::Down { peer, reason },
        Event::Endpoint(_) => Seen::Other,
    }
}

impl<E: Endpoint> Workload<E> for Letters<E> {
    fn act(&mut self, _: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let from = random.random_range(0..self.programs.len());
        let to = random.random_range(0..self.programs.len());
        match random.random_range(0..100) {
            0..70 if from != to => self.send(from, to, random),
            70..95 => self.decide(from, random),
            95..98 => {
                self.cancel(from, random);
                Ok(())
            }
            _ => Ok(()),
        }
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
            self.programs[place].messages.poll(budget, |event| events.push(seen(event)));
            for event in events {
                self.see(stage, place, event)?;
            }
            // A program that polls all takes all.
            while program.is_none() && !self.programs[place].asked.is_empty() {
                let ticket = self.programs[place].asked.remove(0);
                let accepted = self.programs[place].messages.accept(ticket);
                accepted.map_err(|error| format!("{ticket:?}: {error}"))?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let program = program % self.programs.len();
        let (life, host) = (self.programs[program].life, self.programs[program].host);
        if usize::from(life.1) + 1 == LIVES_MAX {
            return Ok(());
        }
        stage.world.kill(self.programs[program].messages.endpoint().address());
        self.dead.insert(life);
        self.ledger.die(life);
        // A receiver that was fetching one of these passes it over.
        for Pending { stream, number, .. } in self.programs[program].pending.values() {
            self.ledger.excuse(*stream, *number);
        }
        self.programs[program] = self.start(stage, (life.0, life.1 + 1), host)?;
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let is_idle = |program: &Program<E>| {
            let census = program.messages.census();
            program.pending.is_empty()
                && (census.messages, census.operations) == (0, 0)
                && !program.links.values().any(|link| link.waits)
        };
        self.programs.iter().all(is_idle) && !self.ledger.lacks()
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        self.ledger.check()?;
        for program in &self.programs {
            let own = program.life;
            if let Some(Pending { stream, number, .. }) = program.pending.values().next() {
                return Err(format!("{stream:?}: message {number} never ended"));
            }
            if let Some(link) = program.links.values().find(|link| link.waits) {
                return Err(format!("{own:?}: waits for room at {:?} for ever", link.to));
            }
            let census = program.messages.census();
            let is_idle = (census.messages, census.operations) == (0, 0);
            if !is_idle || census.receive_bytes != census.idle_receive_bytes {
                return Err(format!("{own:?}: holds things of messages that ended: {census:?}"));
            }
        }
        // A receiver that has died had it, and its program had not taken it.
        let mut lost = self.well.difference(&self.arrived);
        if let Some((stream, number)) = lost.find(|(stream, _)| !self.dead.contains(&stream.to)) {
            return Err(format!("{stream:?}: message {number} ended well and never arrived"));
        }
        Ok(())
    }

    fn keys(&self) -> Option<usize> {
        Some(self.programs.iter().map(|program| program.messages.census().keys).sum())
    }

    fn region_bytes(&self) -> Option<u64> {
        let census = |program: &Program<E>| program.messages.census();
        let bytes = |census: weft_message::Census| census.copy_bytes + census.receive_bytes;
        Some(self.programs.iter().map(census).map(bytes).sum())
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let program = program % self.programs.len();
        Some(self.programs[program].messages.endpoint().address())
    }

    fn done(&self) -> u64 {
        self.ledger.arrived
    }
}
