//! Programs with lanes, on which direct sockets stand: bytes in the sink, short messages that tell
//! of them, and threads that sleep until data or room comes.
//!
//! # Invariant
//! An end that found no data, or no room, looks again only when it was rung.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Blocking, Carry, Endpoint, EndpointAddress, LaneFull, ReceiveCursor, Region, SendCursor,
    Standing, WaitFor, Wake,
};
use weft_lane::{Carrier, EndpointLane, LaneNumber, Layout, Settings, Told};

use crate::ledger::Life;
use crate::plan::{LIVES_MAX, Plan};
use crate::stage::Stage;
use crate::workload::{Workload, pattern};

const USER: u32 = 1_002;
const SOON: Duration = Duration::from_secs(1);
const LANES_MAX: u32 = 8;
/// Bytes in the sink for one message at most.
const PIECE_BYTES_MAX: u64 = 700;

/// One end of a lane.
struct End<E: Endpoint> {
    lane: EndpointLane<E>,
    /// The direction in which this end sends.
    flow: Flow,
    send: SendCursor,
    receive: ReceiveCursor,
    sleeps_for_data: bool,
    sleeps_for_room: bool,
    /// It was seen that the lane is lost.
    has_lost: bool,
}

/// A direction of a lane: the token of the lane, and whether its opener sends.
type Flow = (u64, bool);

struct Program<E: Endpoint> {
    life: Life,
    host: usize,
    carrier: Carrier<E>,
    ends: BTreeMap<LaneNumber, End<E>>,
    /// Lanes that are being made, by number: the direction in which this end will send.
    opening: BTreeMap<LaneNumber, Flow>,
}

/// All programs of this kind.
pub(crate) struct Lanes<E: Endpoint> {
    programs: Vec<Program<E>>,
    layout: Layout,
    /// Messages that were accepted in a direction.
    sent: BTreeMap<Flow, u64>,
    tokens: u64,
    /// The two programs of each lane, and their hosts.
    makers: BTreeMap<u64, [(Life, usize); 2]>,
    dead: BTreeSet<Life>,
    arrived: u64,
    has_faults: bool,
}

/// The bytes in the sink for a message of a direction.
fn piece((token, is_opener): Flow, number: u64) -> Vec<u8> {
    let seed = token << 24 | u64::from(is_opener) << 23 | number;
    let length = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let length = usize::try_from(length % PIECE_BYTES_MAX).expect("it is small");
    pattern(seed, length)
}

impl<E: Endpoint> Lanes<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let layout = Layout { slots: 16 << random.random_range(0..3), sink_bytes: 4_096 };
        let mut all = Self {
            programs: Vec::new(),
            layout,
            sent: BTreeMap::new(),
            tokens: 0,
            makers: BTreeMap::new(),
            dead: BTreeSet::new(),
            arrived: 0,
            has_faults: !plan.faults.is_empty(),
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
        let settings =
            Settings { layout: self.layout, lanes_max: LANES_MAX, ..Settings::default() };
        let carrier = Carrier::new(stage.open(host, USER)?, settings);
        Ok(Program { life, host, carrier, ends: BTreeMap::new(), opening: BTreeMap::new() })
    }

    /// Begins to make a lane.
    fn open(&mut self, from: usize, to: usize) {
        let address = self.programs[to].carrier.with_endpoint(|endpoint| endpoint.address());
        let makers = [from, to].map(|at| (self.programs[at].life, self.programs[at].host));
        let program = &mut self.programs[from];
        let connect = |endpoint: &mut E| endpoint.connect_within(address, SOON);
        let Ok(peer) = program.carrier.with_endpoint(connect) else { return };
        let token = self.tokens + 1;
        if let Ok(number) = program.carrier.open(peer, token) {
            self.tokens = token;
            self.makers.insert(token, makers);
            program.opening.insert(number, (token, true));
        }
    }

    /// Sends as long as there is room, `most` messages at most, and sleeps then.
    fn send(&mut self, at: usize, number: LaneNumber, most: u64) {
        let Some(end) = self.programs[at].ends.get_mut(&number) else { return };
        for _ in 0..most {
            if end.sleeps_for_room || end.lane.is_over() {
                return;
            }
            if !end.try_send() {
                end.lane.arm(WaitFor::Room);
                end.lane.settle();
                if end.try_send() {
                    end.lane.disarm(WaitFor::Room);
                } else {
                    end.sleeps_for_room = true;
                    return;
                }
            }
            *self.sent.entry(end.flow).or_default() += 1;
        }
    }

    /// Takes what is there, and sleeps then.
    fn receive(&mut self, at: usize, number: LaneNumber) -> Result<(), String> {
        let own = self.programs[at].life;
        let Some(end) = self.programs[at].ends.get_mut(&number) else { return Ok(()) };
        while !end.sleeps_for_data {
            let took = end.take().map_err(|error| format!("{own:?}: {error}"))?;
            if took {
                self.arrived += 1;
                continue;
            }
            if end.lane.is_over() {
                return Ok(());
            }
            end.lane.arm(WaitFor::Data);
            end.lane.settle();
            if end.take().map_err(|error| format!("{own:?}: {error}"))? {
                self.arrived += 1;
                end.lane.disarm(WaitFor::Data);
            } else {
                end.sleeps_for_data = true;
            }
        }
        Ok(())
    }

    fn told(&mut self, at: usize, told: Told<E>) -> Result<(), String> {
        let program = &mut self.programs[at];
        let own = program.life;
        match told {
            Told::Offered(offer) => {
                let token = offer.token;
                if let Ok(number) = program.carrier.accept(offer) {
                    program.opening.insert(number, (token, false));
                }
            }
            Told::Opened { token, lane } => {
                let found = program.opening.iter().find(|(_, flow)| flow.0 == token);
                let Some((number, flow)) = found.map(|(number, flow)| (*number, *flow)) else {
                    return Err(format!("{own:?}: lane {token} opened twice, or unasked"));
                };
                program.opening.remove(&number);
                let end = End {
                    lane,
                    flow,
                    send: SendCursor::default(),
                    receive: ReceiveCursor::default(),
                    sleeps_for_data: false,
                    sleeps_for_room: false,
                    has_lost: false,
                };
                program.ends.insert(number, end);
                return self.receive(at, number);
            }
            Told::Refused { token, .. } => program.opening.retain(|_, flow| flow.0 != token),
            Told::Misbehaved { how, .. } => return Err(format!("{own:?}: told that {how}")),
            Told::Rung(number, what) => {
                let Some(end) = program.ends.get_mut(&number) else { return Ok(()) };
                end.lane.disarm(what);
                match what {
                    WaitFor::Data => {
                        end.sleeps_for_data = false;
                        return self.receive(at, number);
                    }
                    WaitFor::Room => end.sleeps_for_room = false,
                }
            }
        }
        Ok(())
    }

    /// Checks that lanes are lost only with a program, or with the way to it.
    fn check_lost(&mut self, stage: &Stage<'_, E>, at: usize) -> Result<(), String> {
        let is_lost = |end: &&mut End<E>| !end.has_lost && end.lane.standing() == Standing::Lost;
        for end in self.programs[at].ends.values_mut().filter(is_lost) {
            end.has_lost = true;
            let [one, other] = self.makers[&end.flow.0];
            if !self.dead.contains(&one.0) && !self.dead.contains(&other.0) {
                let checked = stage.check_unreachable(one.1, other.1);
                checked.map_err(|error| format!("lane {} is lost: {error}", end.flow.0))?;
            }
        }
        Ok(())
    }

    /// Says what an end lacks, when nothing is under way.
    fn lacks(&self, end: &End<E>) -> Result<(), String> {
        let (token, is_opener) = end.flow;
        let standing = end.lane.standing();
        if standing == Standing::Lost {
            let reason = format!("lane {token} was lost, and nothing has failed");
            return if self.has_faults { Ok(()) } else { Err(reason) };
        }
        let sent = self.sent.get(&(token, !is_opener)).copied().unwrap_or(0);
        let took = end.receive.messages;
        if took != sent {
            let sleeps = end.sleeps_for_data;
            return Err(format!(
                "lane {token}, {standing:?}: {took} messages of {sent} were taken, and its reader \
                 {}",
                if sleeps { "sleeps" } else { "looks" }
            ));
        }
        if end.sleeps_for_room && standing == Standing::Open {
            return Err(format!("lane {token}: all was taken, and its writer sleeps for room"));
        }
        Ok(())
    }
}

impl<E: Endpoint> End<E> {
    /// Sends the next message. False if there is no room.
    fn try_send(&mut self) -> bool {
        let number = self.send.messages;
        let piece = piece(self.flow, number);
        let length = u64::try_from(piece.len()).expect("it is small");
        if self.lane.slots_free(&mut self.send, 1) < 1
            || self.lane.sink_free(&mut self.send, length) < length
        {
            return false;
        }
        let before = self.send.bytes;
        self.lane.put(&mut self.send, &piece);
        let sent = self.lane.send(&mut self.send, 1, &[&number.to_le_bytes()]);
        if sent == Err(LaneFull) {
            self.send.bytes = before;
        }
        sent.is_ok()
    }

    /// Takes the next message and checks it. False if there is none.
    fn take(&mut self) -> Result<bool, String> {
        let Ok(slot) = self.lane.peek(&self.receive) else { return Ok(false) };
        if slot.is_none() {
            return Ok(false);
        }
        let (flow, number) = ((self.flow.0, !self.flow.1), self.receive.messages);
        let mut bytes = [0; 8];
        self.lane.read(&self.receive, 0, &mut bytes);
        let wanted = piece(flow, number);
        let mut there = vec![0; wanted.len()];
        self.lane.view(&self.receive, 0, &mut there);
        if u64::from_le_bytes(bytes) != number || there != wanted {
            return Err(format!("lane {flow:?}: message {number} came out of order or changed"));
        }
        let length = u64::try_from(wanted.len()).expect("it is small");
        self.lane.release(&mut self.receive, length);
        self.lane.advance(&mut self.receive, false);
        Ok(true)
    }
}

impl<E: Endpoint> Workload<E> for Lanes<E> {
    fn act(&mut self, _: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let from = random.random_range(0..self.programs.len());
        let to = random.random_range(0..self.programs.len());
        let program = &mut self.programs[from];
        let count = program.ends.len();
        if from != to && (count == 0 || random.random_ratio(1, 30)) {
            self.open(from, to);
            return Ok(());
        }
        let place = random.random_range(0..count.max(1));
        let Some(number) = program.ends.keys().nth(place).copied() else { return Ok(()) };
        if random.random_ratio(1, 100) {
            program.ends.remove(&number);
        } else {
            self.send(from, number, random.random_range(1..12));
        }
        Ok(())
    }

    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        _budget: usize,
    ) -> Result<(), String> {
        let places = program.map_or(0..self.programs.len(), |place| place..place + 1);
        for place in places {
            self.programs[place].carrier.poll();
            while let Some(told) = self.programs[place].carrier.told() {
                self.told(place, told)?;
            }
            self.check_lost(stage, place)?;
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let program = program % self.programs.len();
        let (life, host) = (self.programs[program].life, self.programs[program].host);
        if usize::from(life.1) + 1 == LIVES_MAX {
            return Ok(());
        }
        let address = |endpoint: &mut E| endpoint.address();
        self.dead.insert(life);
        stage.world.kill(self.programs[program].carrier.with_endpoint(address));
        self.programs[program] = self.start(stage, (life.0, life.1 + 1), host)?;
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.programs.iter().all(|program| {
            program.opening.is_empty()
                && !program.carrier.has_backlog()
                && program.ends.values().all(|end| self.lacks(end).is_ok())
        })
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        for program in &self.programs {
            let own = program.life;
            let lacks = |end| self.lacks(end).map_err(|error| format!("{own:?}: {error}"));
            program.ends.values().try_for_each(lacks)?;
            if let Some((token, _)) = program.opening.values().next() {
                return Err(format!("{own:?}: lane {token} was neither opened nor refused"));
            }
            if program.carrier.has_backlog() {
                return Err(format!("{own:?}: something waits for room in the endpoint for ever"));
            }
        }
        Ok(())
    }

    fn keys(&self) -> Option<usize> {
        None
    }

    fn region_bytes(&self) -> Option<u64> {
        let bytes = |_: &E, regions: &[E::Region]| regions.iter().map(Region::length).sum::<u64>();
        let of_program = |program: &Program<E>| program.carrier.look_at_endpoint(bytes);
        Some(self.programs.iter().map(of_program).sum())
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let program = &self.programs[program % self.programs.len()];
        Some(program.carrier.with_endpoint(|endpoint| endpoint.address()))
    }

    fn done(&self) -> u64 {
        self.arrived
    }
}
