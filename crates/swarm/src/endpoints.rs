//! Programs that use endpoints: short messages, notifications, puts, gets, atomics, groups, and
//! regions whose keys come and go.
//!
//! # Invariants
//! - A program that was refused for lack of room asks again only when it was told of room, so that
//!   a lost wakeup leaves it waiting.
//! - A slot of memory has one put under way at a time, so that its content is known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Access, Atomic, Audience, Blocking, Completion, DownReason, Endpoint, EndpointAddress, Event,
    Group, Issued, LocalRange, MessageHeader, Notification, Notify, Operation, OperationError,
    Peer, Region, RemoteKey, SendError, Side, Source, Target,
};

use crate::ledger::{Ledger, Life, Stream};
use crate::plan::{LIVES_MAX, PROGRAMS_MAX, Plan};
use crate::stage::Stage;
use crate::workload::{Workload, pattern};

const USER: u32 = 1_000;
/// Control calls end within it.
const SOON: Duration = Duration::from_secs(1);
/// Slots of a program in the region of each other one.
const SLOTS: usize = 2;
/// Bytes of a slot; longer than a packet of the network.
const SLOT_BYTES: usize = 1_536;
/// Bytes of a region that only its owner writes, for gets.
const OWN_BYTES: usize = 2_048;
/// Bytes of a region whose key is revoked in the run.
const EXTRA_BYTES: u64 = 256;
/// Such regions of a program at most.
const EXTRAS_MAX: usize = 3;
/// The pair of a message to a group, which has none.
const NO_PAIR: u16 = u16::MAX;
const GROUPS: u8 = 3;

/// An operation that has not ended.
#[derive(Clone, Debug)]
enum Pending {
    Put {
        slot: Slot,
        number: u64,
    },
    Get {
        at: usize,
        length: usize,
        owner: Life,
    },
    Add {
        to: Life,
    },
    /// With a key that may be void.
    Stray,
}

/// A slot of memory: whose region, who writes, and which.
type Slot = (Life, Life, usize);

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// The bytes of this number; none of it was written for 0.
    Known { number: u64, length: usize },
    /// A put of these bytes is under way, or ended with an error.
    Unknown { number: u64, length: usize },
}

/// Additions of one program to the word of another.
#[derive(Default, Debug)]
struct Sum {
    begun: u64,
    /// Those that ended well.
    well: u64,
    /// Former values that were answered.
    answers: BTreeSet<u64>,
}

struct Extra<R> {
    region: R,
    key: RemoteKey,
    /// The bytes at the end of the revocation.
    revoked: Option<Vec<u8>>,
}

struct Link {
    to: Life,
    is_down: bool,
    waits: bool,
}

struct Program<E: Endpoint> {
    life: Life,
    host: usize,
    endpoint: E,
    region: E::Region,
    /// Where gets put their bytes.
    scratch: E::Region,
    key: RemoteKey,
    links: BTreeMap<Peer, Link>,
    pending: BTreeMap<u64, (Peer, Pending)>,
    waits_for_group: BTreeSet<Group>,
    extras: Vec<Extra<E::Region>>,
    next: u64,
    sent_to_groups: u32,
}

/// An event, as the program keeps it until the call is over.
enum Seen {
    Message { group: Option<Group>, payload: Vec<u8> },
    Notification(Notification),
    Completion(Completion),
    Down { peer: Peer, reason: DownReason },
    Room(Peer),
    GroupRoom(Group),
}

/// A message to a group.
struct Multicast {
    receivers: usize,
    arrived: usize,
    sent_ns: u64,
}

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

fn word(from: Life, pair: u16, number: u32) -> u64 {
    u64::from(from.0) << 56 | u64::from(from.1) << 48 | u64::from(pair) << 32 | u64::from(number)
}

fn parts(word: u64) -> (Life, u16, u32) {
    let bytes = word.to_be_bytes();
    let pair = u16::from_be_bytes([bytes[2], bytes[3]]);
    let number = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    ((bytes[0], bytes[1]), pair, number)
}

fn pair_of(peer: Peer) -> u16 {
    u16::try_from(peer.0).expect("a run has few pairs")
}

fn size(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("a length in memory fits 64 bits")
}

/// Number of the bytes that only their owner writes.
fn own_number(life: Life) -> u64 {
    1 << 40 | u64::from(life.0) << 8 | u64::from(life.1)
}

fn offset_of(writer: Life, slot: usize) -> usize {
    let words = 8 * PROGRAMS_MAX * LIVES_MAX;
    OWN_BYTES + words + (number_of(writer) * SLOTS + slot) * SLOT_BYTES
}

fn word_of(writer: Life) -> usize {
    OWN_BYTES + 8 * number_of(writer)
}

/// The place of a life among all. A put of a program that has died may still be on its way, so each
/// life has memory of its own.
fn number_of(life: Life) -> usize {
    usize::from(life.0) * LIVES_MAX + usize::from(life.1)
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
            let program = Self::start(stage, (small(place), 0), host)?;
            all.programs.push(program);
        }
        Ok(all)
    }

    fn start(stage: &Stage<'_, E>, life: Life, host: usize) -> Result<Program<E>, String> {
        let mut endpoint = stage.open(host, USER)?;
        let length = offset_of((small(PROGRAMS_MAX), 0), 0);
        let failed = |error: &dyn std::error::Error| format!("{life:?} does not start: {error}");
        let region = endpoint.register(size(length)).map_err(|error| failed(&error))?;
        let scratch = endpoint.register(size(OWN_BYTES)).map_err(|error| failed(&error))?;
        region.write(0, &pattern(own_number(life), OWN_BYTES)).map_err(|error| failed(&error))?;
        let whole = LocalRange::whole(&region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), SOON);
        let key = key.map_err(|error| failed(&error))?;
        for number in 0..GROUPS {
            if !(life.0 + life.1 + number).is_multiple_of(3) {
                let group = Group::new(number).expect("there are 64");
                endpoint.join_within(group, SOON).map_err(|error| failed(&error))?;
            }
        }
        Ok(Program {
            life,
            host,
            endpoint,
            region,
            scratch,
            key,
            links: BTreeMap::new(),
            pending: BTreeMap::new(),
            waits_for_group: BTreeSet::new(),
            extras: Vec::new(),
            next: 0,
            sent_to_groups: 0,
        })
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

    fn stream(&self, from: usize, to: usize, peer: Peer) -> Stream {
        let (from, to) = (self.programs[from].life, self.programs[to].life);
        Stream { from, to, pair: pair_of(peer) }
    }

    fn send(&mut self, (from, to, peer): (usize, usize, Peer), random: &mut ChaCha8Rng) {
        let stream = self.stream(from, to, peer);
        let number = self.ledger.next(stream);
        let word = word(stream.from, stream.pair, number);
        let filler = pattern(word, random.random_range(0..=112));
        let program = &mut self.programs[from];
        let header = MessageHeader::tag(7);
        match program.endpoint.send_short(peer, header, &[&word.to_le_bytes(), &filler]) {
            Ok(()) => self.ledger.sent(stream),
            Err(SendError::WouldBlock) => self.wait(from, peer),
            Err(_) => {}
        }
    }

    fn notify(&mut self, (from, to, peer): (usize, usize, Peer)) {
        let stream = self.stream(from, to, peer);
        let number = self.ledger.next(stream);
        let word = word(stream.from, stream.pair, number);
        match self.programs[from].endpoint.put_notification(peer, 9, word) {
            Ok(()) => self.ledger.sent(stream),
            Err(OperationError::WouldBlock) => self.wait(from, peer),
            Err(_) => {}
        }
    }

    fn wait(&mut self, from: usize, peer: Peer) {
        if let Some(link) = self.programs[from].links.get_mut(&peer) {
            link.waits = true;
        }
    }

    /// Notes the answer to a call that began an operation.
    fn begun(
        &mut self,
        (from, peer): (usize, Peer),
        answer: Result<Issued, OperationError>,
        pending: Pending,
    ) -> Result<(), String> {
        let program = &mut self.programs[from];
        let context = program.next;
        match answer {
            Ok(Issued::Pending) => {
                program.next += 1;
                program.pending.insert(context, (peer, pending));
            }
            Ok(Issued::Done(value)) => {
                program.next += 1;
                self.ended(from, peer, pending, Ok(value))?;
            }
            Err(OperationError::WouldBlock) => self.wait(from, peer),
            Err(OperationError::PeerDown) => {}
            Err(error) => return Err(format!("{:?}: {pending:?}: {error}", program.life)),
        }
        Ok(())
    }

    fn put(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        let (own, owner) = (self.programs[from].life, self.programs[to].life);
        let place = random.random_range(0..SLOTS);
        let slot = (owner, own, place);
        let is_busy = self.programs[from].pending.values().any(
            |(_, pending)| matches!(pending, Pending::Put { slot: busy, .. } if *busy == slot),
        );
        if is_busy {
            return Ok(());
        }
        let number = self.numbers + 1;
        let length = random.random_range(1..=SLOT_BYTES);
        let bytes = pattern(number, length);
        let target = Target::new(self.programs[to].key, size(offset_of(own, place)));
        let tells = random.random_bool(0.5);
        let program = &mut self.programs[from];
        let operation = Operation::new(program.next);
        let notify =
            if tells { Notify::COMPLETER.class(5).immediate(number) } else { Notify::NONE };
        let answer =
            program.endpoint.put(peer, Source::Bytes(&bytes), target, operation.notify(notify));
        if answer.is_ok() {
            self.numbers = number;
            self.slots.insert(slot, Content::Unknown { number, length });
            if tells {
                self.owed.insert(number, (own, owner, pair_of(peer)));
            }
        }
        self.begun((from, peer), answer, Pending::Put { slot, number })
    }

    fn get(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        // The scratch has one get at a time.
        let is_busy = |(_, pending): &(Peer, Pending)| matches!(pending, Pending::Get { .. });
        if self.programs[from].pending.values().any(is_busy) {
            return Ok(());
        }
        let at = random.random_range(0..OWN_BYTES);
        let length = random.random_range(1..=OWN_BYTES - at);
        let (key, owner) = (self.programs[to].key, self.programs[to].life);
        let program = &mut self.programs[from];
        let into = LocalRange::new(&program.scratch, size(at), size(length));
        let operation = Operation::new(program.next);
        let answer = program.endpoint.get(peer, Target::new(key, size(at)), into, operation);
        self.begun((from, peer), answer, Pending::Get { at, length, owner })
    }

    fn add(&mut self, (from, to, peer): (usize, usize, Peer)) -> Result<(), String> {
        let (own, owner) = (self.programs[from].life, self.programs[to].life);
        let target = Target::new(self.programs[to].key, size(word_of(own)));
        let program = &mut self.programs[from];
        let operation = Operation::new(program.next);
        let answer = program.endpoint.atomic(peer, target, Atomic::fetch_add(1), operation);
        if answer.is_ok() {
            self.sums.entry((own, owner)).or_default().begun += 1;
        }
        self.begun((from, peer), answer, Pending::Add { to: owner })
    }

    fn multicast(&mut self, stage: &Stage<'_, E>, from: usize, random: &mut ChaCha8Rng) {
        let group = match random.random_range(0..=GROUPS) {
            GROUPS => Group::BROADCAST,
            number => Group::new(number).expect("there are 64"),
        };
        let program = &mut self.programs[from];
        if program.waits_for_group.contains(&group) {
            return;
        }
        let number = program.sent_to_groups;
        let word = word(program.life, NO_PAIR, number);
        let (header, filler) = (MessageHeader::tag(7), pattern(word, 20));
        let parts: [&[u8]; 2] = [&word.to_le_bytes(), &filler];
        match program.endpoint.send_multicast(group, header, &parts) {
            Ok(receivers) => {
                program.sent_to_groups += 1;
                let sent_ns = stage.world.now();
                let multicast = Multicast { receivers, arrived: 0, sent_ns };
                self.multicasts.insert((program.life, number), multicast);
            }
            Err(SendError::WouldBlock) => drop(program.waits_for_group.insert(group)),
            Err(_) => {}
        }
    }

    /// Grants a further key, revokes one, or lets its region go.
    fn churn(&mut self, from: usize, random: &mut ChaCha8Rng) -> Result<(), String> {
        let program = &mut self.programs[from];
        let place = random.random_range(0..EXTRAS_MAX);
        let life = program.life;
        let Some(extra) = program.extras.get_mut(place) else {
            let failed = |error: &dyn std::error::Error| format!("{life:?}: a region: {error}");
            let region = program.endpoint.register(EXTRA_BYTES).map_err(|e| failed(&e))?;
            let whole = LocalRange::whole(&region);
            let access = Access::READ | Access::WRITE;
            let key = program.endpoint.grant_within(whole, Audience::Partition, access, SOON);
            let key = key.map_err(|error| failed(&error))?;
            program.extras.push(Extra { region, key, revoked: None });
            return Ok(());
        };
        if extra.revoked.is_none() {
            let revoked = program.endpoint.revoke_within(extra.key, SOON);
            revoked.map_err(|error| format!("{life:?}: a key in force: {error}"))?;
            extra.revoked = Some(bytes_of(&extra.region, 0, index(EXTRA_BYTES))?);
        } else {
            let extra = program.extras.swap_remove(place);
            check_revoked(life, &extra)?;
        }
        Ok(())
    }

    /// Puts with a key that may be void.
    fn stray(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        if self.programs[to].extras.is_empty() {
            return Ok(());
        }
        let place = random.random_range(0..self.programs[to].extras.len());
        let target = Target::new(self.programs[to].extras[place].key, 0);
        let program = &mut self.programs[from];
        let bytes = pattern(random.random(), 200);
        let operation = Operation::new(program.next);
        let answer = program.endpoint.put(peer, Source::Bytes(&bytes), target, operation);
        if answer == Err(OperationError::InvalidKey) {
            return Ok(());
        }
        self.begun((from, peer), answer, Pending::Stray)
    }

    fn ended(
        &mut self,
        from: usize,
        peer: Peer,
        pending: Pending,
        result: Result<u64, OperationError>,
    ) -> Result<(), String> {
        let own = self.programs[from].life;
        self.done += 1;
        match (pending, result) {
            (Pending::Stray, _) => {}
            (Pending::Put { slot, number }, Ok(_)) => {
                let Some(Content::Unknown { length, .. }) = self.slots.get(&slot).copied() else {
                    return Err(format!("{own:?}: the put into {slot:?} ended twice"));
                };
                self.slots.insert(slot, Content::Known { number, length });
                self.check_slot(slot)?;
            }
            (Pending::Get { at, length, owner }, Ok(_)) => {
                let there = bytes_of(&self.programs[from].scratch, at, length)?;
                let wanted = pattern(own_number(owner), OWN_BYTES);
                if there != wanted[at..at + length] {
                    return Err(format!("{own:?}: a get from {owner:?} brought other bytes"));
                }
            }
            (Pending::Add { to }, Ok(former)) => {
                let sum = self.sums.entry((own, to)).or_default();
                sum.well += 1;
                if former >= sum.begun || !sum.answers.insert(former) {
                    return Err(format!(
                        "{own:?}: an addition at {to:?} answered {former} of {} begun, or twice",
                        sum.begun
                    ));
                }
            }
            (Pending::Put { number, .. }, Err(OperationError::PeerDown)) => {
                self.owed.remove(&number);
            }
            (_, Err(OperationError::PeerDown)) => {}
            (pending, Err(error)) => {
                return Err(format!("{own:?}: {pending:?} over {peer:?} failed: {error}"));
            }
        }
        Ok(())
    }

    /// Checks the bytes of a slot, if they are known and their owner lives.
    fn check_slot(&self, slot: Slot) -> Result<(), String> {
        let (owner, writer, place) = slot;
        let Some(Content::Known { number, length }) = self.slots.get(&slot) else { return Ok(()) };
        let Some(program) = self.program(owner) else { return Ok(()) };
        let there = bytes_of(&program.region, offset_of(writer, place), *length)?;
        if there != pattern(*number, *length) {
            return Err(format!(
                "the put {number} into {slot:?} ended well and its bytes are not \
                                there"
            ));
        }
        Ok(())
    }

    fn see(&mut self, stage: &mut Stage<'_, E>, at: usize, seen: Seen) -> Result<(), String> {
        let own = self.programs[at].life;
        match seen {
            Seen::Message { group: None, payload } => self.message(own, &payload),
            Seen::Message { group: Some(_), payload } => self.group_message(own, &payload),
            Seen::Notification(told) if told.side == Side::Completer && told.class == 9 => {
                let (from, pair, number) = parts(told.immediate);
                self.ledger.arrive(Stream { from, to: own, pair }, number)
            }
            Seen::Notification(told) => self.put_arrived(own, told.immediate),
            Seen::Completion(Completion { context, result }) => {
                let Some((peer, pending)) = self.programs[at].pending.remove(&context) else {
                    return Err(format!("{own:?}: operation {context} ended and was not pending"));
                };
                self.ended(at, peer, pending, result)
            }
            Seen::Down { peer, reason } => self.down(stage, at, peer, reason),
            Seen::Room(peer) => {
                if let Some(link) = self.programs[at].links.get_mut(&peer) {
                    link.waits = false;
                }
                Ok(())
            }
            Seen::GroupRoom(group) => {
                self.programs[at].waits_for_group.remove(&group);
                Ok(())
            }
        }
    }

    fn message(&mut self, own: Life, payload: &[u8]) -> Result<(), String> {
        let (word, filler) = split(payload)?;
        let (from, pair, number) = parts(word);
        if filler != pattern(word, filler.len()) {
            return Err(format!("{own:?}: message {number} of {from:?} has other bytes"));
        }
        self.ledger.arrive(Stream { from, to: own, pair }, number)
    }

    fn group_message(&mut self, own: Life, payload: &[u8]) -> Result<(), String> {
        let (word, filler) = split(payload)?;
        let (from, _, number) = parts(word);
        let next = self.heard.entry((from, own)).or_default();
        let Some(multicast) = self.multicasts.get_mut(&(from, number)) else {
            return Err(format!("{own:?}: {from:?} never sent message {number} to a group"));
        };
        multicast.arrived += 1;
        let is_sound = filler == pattern(word, 20) && multicast.arrived <= multicast.receivers;
        if number < *next || !is_sound {
            return Err(format!(
                "{own:?}: message {number} of {from:?} to a group came twice, out of order or with \
                 other bytes"
            ));
        }
        *next = number + 1;
        self.done += 1;
        Ok(())
    }

    fn put_arrived(&mut self, own: Life, number: u64) -> Result<(), String> {
        if !self.told.insert(number) {
            return Err(format!("{own:?}: put {number} was told twice"));
        }
        let of_number = |content: &Content| {
            let (Content::Known { number: of, length } | Content::Unknown { number: of, length }) =
                *content;
            (of == number).then_some(length)
        };
        let found = self.slots.iter().find_map(|(slot, content)| {
            of_number(content).filter(|_| slot.0 == own).map(|length| (*slot, length))
        });
        // Another put may be under way in the slot by now.
        let Some(((_, writer, place), length)) = found else { return Ok(()) };
        let program = &self.programs[usize::from(own.0)];
        let there = bytes_of(&program.region, offset_of(writer, place), length)?;
        if there != pattern(number, length) {
            return Err(format!("{own:?}: put {number} was told before its bytes were there"));
        }
        Ok(())
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
        if let Some((context, _)) = program.pending.iter().find(|(_, (of, _))| *of == peer) {
            return Err(format!(
                "{own:?}: {peer:?} was told as down, and operation {context} on it had not ended"
            ));
        }
        self.disturbed_ns = Some(stage.world.now());
        self.ended_pairs.insert((own, pair_of(peer)));
        // A peer that came by itself, and that this program never called.
        let Some(link) = program.links.get_mut(&peer) else { return Ok(()) };
        if link.is_down {
            return Err(format!("{own:?}: {peer:?} was told as down twice"));
        }
        link.is_down = true;
        link.waits = false;
        let to = link.to;
        self.ledger.end(Stream { from: own, to, pair: pair_of(peer) });
        match reason {
            DownReason::Unreachable => {
                let hosts = [at, usize::from(to.0)].map(|place| self.programs[place].host);
                stage.check_unreachable(hosts[0], hosts[1])
            }
            DownReason::Misbehaved => Err(format!("{own:?}: {to:?} was told as misbehaving")),
            DownReason::Ended if !self.dead.contains(&to) => {
                Err(format!("{own:?}: {to:?} was told as ended, and lives"))
            }
            DownReason::Ended | DownReason::Disconnected => Ok(()),
        }
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
            self.programs[place].endpoint.poll(budget, &mut |event| {
                events.push(match event {
                    Event::Message(message) => {
                        Seen::Message { group: message.group, payload: message.payload.to_vec() }
                    }
                    Event::Notification(notification) => Seen::Notification(notification),
                    Event::Completion(completion) => Seen::Completion(completion),
                    Event::PeerDown { peer, reason, .. } => Seen::Down { peer, reason },
                    Event::Room { peer } => Seen::Room(peer),
                    Event::GroupRoom { group } => Seen::GroupRoom(group),
                });
            });
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
        self.programs[program] = Self::start(stage, (life.0, life.1 + 1), host)?;
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

    fn check(&mut self) -> Result<(), String> {
        for program in &self.programs {
            let own = program.life;
            if let Some((context, (peer, pending))) = program.pending.first_key_value() {
                return Err(format!("{own:?}: {pending:?} ({context}, {peer:?}) never ended"));
            }
            let waits = program.links.iter().find(|(_, link)| link.waits);
            if let Some((peer, link)) = waits {
                return Err(format!(
                    "{own:?}: waits for room at {:?} ({peer:?}) for ever",
                    link.to
                ));
            }
            if let Some(group) = program.waits_for_group.first() {
                return Err(format!("{own:?}: waits for room in {group:?} for ever"));
            }
            let there = bytes_of(&program.region, 0, OWN_BYTES)?;
            if there != pattern(own_number(own), OWN_BYTES) {
                return Err(format!("{own:?}: bytes changed that only it writes"));
            }
            program.extras.iter().try_for_each(|extra| check_revoked(own, extra))?;
        }
        self.ledger.check()?;
        self.slots.keys().try_for_each(|slot| self.check_slot(*slot))?;
        for ((writer, owner), sum) in &self.sums {
            let Some(program) = self.program(*owner) else { continue };
            let offset = size(word_of(*writer));
            let value = program.region.load(offset).map_err(|error| error.to_string())?;
            let Sum { begun, well, .. } = sum;
            if !(*well..=*begun).contains(&value) {
                return Err(format!(
                    "{owner:?}: the word of {writer:?} is {value}; {well} to {begun} were added"
                ));
            }
        }
        let is_excused = |(from, to, pair): &(Life, Life, u16)| {
            self.dead.contains(from)
                || self.dead.contains(to)
                || self.ended_pairs.contains(&(*from, *pair))
        };
        let untold = self
            .owed
            .iter()
            .find(|(number, ends)| !self.told.contains(number) && !is_excused(ends));
        if let Some((number, (from, to, _))) = untold {
            return Err(format!("{to:?}: was never told of put {number} of {from:?}"));
        }
        for ((from, number), multicast) in &self.multicasts {
            let Multicast { receivers, arrived, sent_ns } = multicast;
            let is_excused = self.disturbed_ns.is_some_and(|at| at >= *sent_ns);
            if arrived < receivers && !is_excused {
                return Err(format!(
                    "message {number} of {from:?} to a group arrived at {arrived} of {receivers}"
                ));
            }
        }
        Ok(())
    }

    fn keys(&self) -> Option<usize> {
        let extras = |program: &Program<E>| {
            program.extras.iter().filter(|extra| extra.revoked.is_none()).count()
        };
        Some(self.programs.iter().map(|program| 1 + extras(program)).sum())
    }

    fn region_bytes(&self) -> u64 {
        let bytes = |program: &Program<E>| {
            let extras = EXTRA_BYTES * size(program.extras.len());
            program.region.length() + program.scratch.length() + extras
        };
        self.programs.iter().map(bytes).sum()
    }

    fn address(&mut self, program: usize) -> EndpointAddress {
        self.programs[program % self.programs.len()].endpoint.address()
    }

    fn done(&self) -> u64 {
        self.done + self.ledger.arrived
    }
}

fn check_revoked<R: Region>(life: Life, extra: &Extra<R>) -> Result<(), String> {
    let Some(then) = &extra.revoked else { return Ok(()) };
    if bytes_of(&extra.region, 0, then.len())? != *then {
        return Err(format!("{life:?}: bytes appeared by a key after its revocation"));
    }
    Ok(())
}

fn bytes_of<R: Region>(region: &R, offset: usize, length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    region.read(size(offset), &mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn split(payload: &[u8]) -> Result<(u64, &[u8]), String> {
    let (word, filler) = payload.split_first_chunk::<8>().ok_or("a message is too short")?;
    Ok((u64::from_le_bytes(*word), filler))
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("it is small")
}

fn small(place: usize) -> u8 {
    u8::try_from(place).expect("a plan has few programs")
}
