//! The links of simulated primaries: as `link`, over packets that are late, and lost by cuts.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rand::RngExt;
use weft_kv::replication::message::Envelope;
use weft_kv::replication::primary::Peer;

use super::super::bell::Bell;
use super::super::catch_up::{CatchUp, Next};
use super::super::court::Task;
use super::super::reign::Reign;
use super::super::wire::{Hello, Word};
use super::{LEASE, Line, Planted, RATE, World, millis, now, world};

/// The pause before a backup is looked for again, and the time in which it has to be reached.
const PAUSE: Duration = Duration::from_millis(100);
const REACHED_WITHIN: Duration = Duration::from_millis(500);
/// So long after the beginning of a reign a backup that is not reached is not given up.
const GRACE: Duration = Duration::from_millis(500);

/// A link.
pub(super) struct Link {
    peer: Peer,
    /// The machine of the peer.
    machine: usize,
    reign: Arc<Reign>,
    bell: Arc<Bell>,
    begun: Duration,
    has_joined: bool,
    next_try: Duration,
    live: Option<Live>,
}

/// A session of a link.
struct Live {
    line: Line,
    /// The backup took it.
    is_open: bool,
    catch_up: Option<CatchUp>,
    asks_next: Duration,
    /// When the lease was given last, or the session began.
    given: Duration,
    /// The time that the backup said in its last answer.
    answered: Option<Duration>,
}

/// Something on its way.
pub(super) enum Packet {
    Hello(u32),
    Accepted,
    Block(Vec<u8>),
    Answer(Vec<u8>),
    Ask(Duration, Option<Word>),
    /// With the time of the backup.
    Given(Duration, Duration),
    Ended,
}

/// Packets of a session in one direction. They keep their order.
#[derive(Default)]
pub(super) struct Way {
    packets: VecDeque<(Duration, Packet)>,
    last: Duration,
}

impl Link {
    pub fn new(peer: Peer, machine: usize, reign: Arc<Reign>) -> Self {
        let (bell, begun) = (Arc::new(Bell::new().expect("a descriptor")), now());
        Self { peer, machine, reign, bell, begun, has_joined: false, next_try: begun, live: None }
    }

    /// The machine of the peer, if it gets what it lacks.
    pub fn catches_up(&self) -> Option<usize> {
        self.live.as_ref()?.catch_up.as_ref().map(|_| self.machine)
    }

    fn end(&mut self) {
        self.live = None;
        self.next_try = now() + PAUSE;
        if self.has_joined || now() > self.begun + GRACE {
            self.reign.court.down(self.peer);
        }
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.live {
            None => "without a session",
            Some(live) if !live.is_open => "not accepted",
            Some(live) if live.catch_up.is_some() => "catching up",
            Some(_) => "open",
        };
        write!(f, "link to {}: {state}; ", self.machine)
    }
}

impl World {
    /// The nodes in words, for a run that failed.
    pub(super) fn described(&self) -> String {
        let mut text = String::new();
        for (number, machine) in self.machines.iter().enumerate() {
            let Some(process) = &machine.process else {
                text += &format!("\n{number} is down");
                continue;
            };
            for part in &process.parts {
                let (current, works) = (part.backup.current(), part.works.len());
                text += &format!("\n{number}: session {current:?}, {works} messages; ");
                text += &part.backup.trouble().unwrap_or_default();
                let links = part.links.lock().unwrap_or_else(PoisonError::into_inner);
                links.values().for_each(|link| text += &link.to_string());
            }
        }
        text
    }

    /// Sends a packet of a session from one node to another.
    fn put(&mut self, line: Line, from: usize, to: usize, packet: Packet) {
        let delay = millis(self.random.random_range(0..if self.is_calm { 3 } else { 25 }));
        let way = self.ways.entry((line, from, to)).or_default();
        way.last = way.last.max(world() + delay);
        way.packets.push_back((way.last, packet));
    }

    /// The region of a session.
    fn region_of(&self, line: Line) -> usize {
        usize::try_from(line).unwrap_or(0) % self.regions
    }

    /// The links of a primary do a step.
    pub(super) fn links(&mut self, me: usize) {
        let region = self.region();
        let Some(process) = &self.machines[me].process else { return };
        let links = Arc::clone(&process.parts[region].links);
        for link in links.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
            let to = link.machine;
            let court = Arc::clone(&link.reign.court);
            let epoch = court.epoch;
            if court.is_over() {
                if let Some(live) = link.live.take() {
                    self.put(live.line, me, to, Packet::Ended);
                }
                continue;
            }
            let Some(live) = &mut link.live else {
                if now() >= link.next_try {
                    self.lines += 1;
                    let line = self.lines * self.regions as u64 + region as u64;
                    let given = now();
                    let live = Live {
                        line,
                        is_open: false,
                        catch_up: None,
                        asks_next: given,
                        given,
                        answered: None,
                    };
                    link.live = Some(live);
                    self.put(line, me, to, Packet::Hello(epoch));
                }
                continue;
            };
            let line = live.line;
            let patience = if live.is_open { LEASE * 6 / 10 } else { REACHED_WITHIN };
            if now() > live.given + patience {
                self.put(line, me, to, Packet::Ended);
                link.end();
                continue;
            }
            if !live.is_open {
                continue;
            }
            if now() >= live.asks_next {
                live.asks_next = now() + LEASE / 6;
                let acknowledged = match self.planted {
                    Some(Planted::WordWithoutLease) => Some(court.acknowledged()),
                    _ => link.reign.acknowledged(),
                };
                let word = live.answered.zip(acknowledged);
                let word = word.map(|(answered, acknowledged)| Word { acknowledged, answered });
                self.put(line, me, to, Packet::Ask(now(), word));
            }
            while let Some(live) = &mut link.live {
                let next = live.catch_up.as_mut().map_or(Ok(Next::Unknown), CatchUp::next);
                let message = match next.expect("the disk is well") {
                    Next::Part(message) => Some(Envelope { epoch, message: *message }),
                    Next::Over => {
                        live.catch_up = None;
                        court.caught_up(link.peer);
                        None
                    }
                    Next::Unknown => None,
                };
                let message = match message {
                    Some(message) => message,
                    None => match court.next(link.peer) {
                        Ok(None) => break,
                        Ok(Some(Task::Send(envelope))) => *envelope,
                        Ok(Some(Task::Fetch { tables, log })) => {
                            if let Some(catch_up) = &mut live.catch_up {
                                catch_up.lacks(tables, log);
                            }
                            continue;
                        }
                        Err(_) => {
                            self.put(line, me, to, Packet::Ended);
                            link.end();
                            break;
                        }
                    },
                };
                self.put(line, me, to, Packet::Block(message.emit()));
            }
        }
    }

    /// The service of a backup ends sessions that are not current, and its writer writes.
    pub(super) fn service(&mut self, me: usize) {
        let writes = self.random.random_range(0..4);
        let region = self.region();
        let mut out = Vec::new();
        let Some(process) = &mut self.machines[me].process else { return };
        let part = &mut process.parts[region];
        for _ in 0..writes {
            let Some((line, bytes)) = part.works.pop_front() else { break };
            match part.backup.written(line, &bytes) {
                Ok(Some(answer)) => out.push((line, Packet::Answer(answer.emit()))),
                Ok(None) => {}
                Err(_) => {
                    part.backup.ended(line);
                    part.lent.remove(&line);
                    out.push((line, Packet::Ended));
                }
            }
        }
        let current = part.backup.current();
        for line in part.lent.extract_if(.., |line| Some(*line) != current) {
            out.push((line, Packet::Ended));
        }
        for (line, packet) in out {
            if let Some(to) = self.others_of(line, me) {
                self.put(line, me, to, packet);
            }
        }
    }

    fn others_of(&self, line: Line, me: usize) -> Option<usize> {
        self.ways.keys().find(|(of, _, to)| *of == line && *to == me).map(|(_, from, _)| *from)
    }

    /// Delivers what is due.
    pub(super) fn deliver(&mut self) {
        let all: Vec<_> = self.ways.keys().copied().collect();
        for (line, from, to) in all {
            let is_isolated = [from, to].iter().any(|it| self.isolated_until[*it] > world());
            if is_isolated || self.cut.contains(&(from, to)) || !self.is_running(to) {
                continue;
            }
            while let Some(way) = self.ways.get_mut(&(line, from, to)) {
                match way.packets.front() {
                    Some((at, _)) if *at <= world() => {}
                    _ => break,
                }
                let Some((_, packet)) = way.packets.pop_front() else { break };
                RATE.set(self.machines[to].rate);
                self.arrive(line, from, to, packet);
                RATE.set(1_000);
            }
        }
        self.ways.retain(|_, way| !way.packets.is_empty() || way.last + millis(5_000) > world());
    }

    fn arrive(&mut self, line: Line, from: usize, to: usize, packet: Packet) {
        let (planted, region) = (self.planted, self.region_of(line));
        let Some(process) = &mut self.machines[to].process else { return };
        let part = &mut process.parts[region];
        match packet {
            Packet::Hello(epoch) => {
                let hello = Hello { cluster: "c".to_owned(), epoch };
                let is_taken = part.backup.admit(line, Some(&hello));
                if is_taken {
                    part.lent.insert(line);
                }
                let answer = if is_taken { Packet::Accepted } else { Packet::Ended };
                self.put(line, to, from, answer);
            }
            Packet::Block(bytes) => {
                if part.backup.current() == Some(line) {
                    part.works.push_back((line, bytes));
                }
            }
            Packet::Ask(asked, word) => {
                if let Some(time) = part.backup.give(line, word) {
                    self.put(line, to, from, Packet::Given(asked, time));
                }
            }
            Packet::Ended if part.lent.remove(&line) => part.backup.ended(line),
            Packet::Accepted | Packet::Answer(_) | Packet::Given(..) | Packet::Ended => {
                let links = Arc::clone(&part.links);
                let mut links = links.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(link) = links.values_mut().find(|it| it.machine == from) else { return };
                let peer = link.peer;
                let Some(live) = link.live.as_mut().filter(|it| it.line == line) else { return };
                match packet {
                    Packet::Accepted => {
                        (live.is_open, live.given, link.has_joined) = (true, now(), true);
                        let (court, bell) = (&link.reign.court, &link.bell);
                        link.reign.engine.offer(|offer, snapshot| {
                            live.catch_up = Some(CatchUp::new(&offer, snapshot));
                            court.join(peer, offer, Arc::clone(bell));
                        });
                    }
                    Packet::Answer(bytes) => {
                        let envelope = Envelope::parse(&bytes).expect("it was emitted");
                        link.reign.court.handle(peer, envelope);
                    }
                    Packet::Given(asked, time) => {
                        let is_long = planted == Some(Planted::LeaseIsNotCounted);
                        let more = if is_long { millis(60_000) } else { Duration::ZERO };
                        link.reign.court.give(peer, asked + more);
                        (live.given, live.answered) = (now(), Some(time));
                    }
                    _ => link.end(),
                }
            }
        }
    }
}
