//! Transfers of trees: pairs of programs, one of which reads and one of which writes, over sessions
//! that lend blocks. Whatever ends a session, the next one goes on.
//!
//! # Invariants
//! - What is under a name is a whole file of the source.
//! - A run that came to its end has copied the tree, and sent no byte that was there before.

mod disk;
mod source;
mod target;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{DownReason, Endpoint, EndpointAddress, Region, ServiceName};
use weft_message::Body;
use weft_session::{End, Options, Sessions, bytes_of};
use weft_transfer::{Frame, Message};

use crate::plan::{Fault, LIVES_MAX, Plan};
use crate::stage::Stage;
use crate::workload::Workload;
use disk::{Disk, Files};
use source::Reader;
use target::Writer;

const USER: u32 = 1_003;

fn protocol() -> ServiceName {
    ServiceName::new("swarm-transfer").expect("a name")
}

/// The messages of a request.
fn frames_of<R: Region>(body: &Body<'_, R>) -> Result<Vec<Message>, String> {
    let bytes = bytes_of(body);
    let (mut rest, mut messages) = (&bytes[..], Vec::new());
    while let Some((frame, length)) = Frame::parse(rest).map_err(|error| error.to_string())? {
        let Frame::Message(message) = frame else { return Err("a block in a request".into()) };
        messages.push(message);
        rest = &rest[length..];
    }
    if rest.is_empty() { Ok(messages) } else { Err("a message is cut".into()) }
}

/// Two programs and their files.
struct Pair<E: Endpoint> {
    reader: Reader<E>,
    writer: Writer<E>,
    hosts: [usize; 2],
    lives: [usize; 2],
    /// The tree, and its number.
    files: Files,
    number: u64,
    disk: Disk,
    /// There is more of the tree to copy.
    is_due: bool,
    /// Files that were copied.
    done: u64,
}

/// All pairs.
pub(crate) struct Transfers<E: Endpoint> {
    pairs: Vec<Pair<E>>,
    options: Options,
    may_lose: bool,
}

impl<E: Endpoint> Transfers<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let options = Options {
            requests_max: random.random_range(2..20),
            messages: weft_message::Options {
                window: random.random_range(32..100),
                eager_bytes_max: random.random_range(112..=1_792),
                queue_packets_max: random.random_range(16..64),
                ..Options::default().messages
            },
            ..Options::default()
        };
        let may_lose = plan.faults.contains(&Fault::Pressure);
        let mut all = Self { pairs: Vec::new(), options, may_lose };
        let first = random.random_range(0..stage.hosts());
        for number in 0..plan.programs / 2 {
            let hosts = [0, 1].map(|end| (first + 2 * number + end) % stage.hosts());
            all.pairs.push(Pair {
                reader: Reader::new(all.open(stage, hosts[0])?, may_lose),
                writer: Writer::new(all.open(stage, hosts[1])?, may_lose),
                hosts,
                lives: [0; 2],
                files: Files::new(),
                number: number as u64 * 1_000,
                disk: Disk::default(),
                is_due: false,
                done: 0,
            });
        }
        Ok(all)
    }

    fn open(&self, stage: &Stage<'_, E>, host: usize) -> Result<Sessions<E>, String> {
        Ok(Sessions::new(stage.open(host, USER)?, self.options.clone()))
    }
}

impl<E: Endpoint> Pair<E> {
    /// There is another tree.
    fn plant(&mut self, random: &mut ChaCha8Rng) {
        self.number += 1;
        (self.files, self.disk) = (disk::files(self.number, random), Disk::default());
        self.is_due = true;
    }

    /// Begins a run if one is due and none is under way.
    fn begin(&mut self, stage: &Stage<'_, E>) -> bool {
        let begins = self.is_due && !self.reader.has_run();
        if begins {
            let to = self.writer.sessions.endpoint().address();
            self.reader.begin(to, &self.files, stage.clock(self.hosts[0]));
        }
        begins
    }

    /// Does one thing at one end. False if there is none.
    fn step(&mut self, end: usize, random: &mut ChaCha8Rng) -> Result<bool, String> {
        if end == 0 {
            return self.reader.step(&self.files, random);
        }
        let has_done = self.writer.step(&mut self.disk, random)?;
        let wrong = self.disk.files.iter().find(|(path, bytes)| self.files[*path] != **bytes);
        match wrong {
            None => Ok(has_done),
            Some((path, _)) => Err(format!("{path} is under its name and is not whole")),
        }
    }

    /// Looks at the ends of runs.
    fn look(&mut self, stage: &Stage<'_, E>) -> Result<(), String> {
        let ends = [self.reader.ended.take(), self.writer.ended.take()];
        for (end, why) in ends.into_iter().enumerate() {
            match why {
                None
                | Some(
                    End::Refused { .. }
                    | End::Ended { .. }
                    | End::Down(DownReason::Ended | DownReason::Disconnected),
                ) => {}
                Some(End::Down(DownReason::Unreachable)) => {
                    stage.check_unreachable(self.hosts[end], self.hosts[1 - end])?;
                }
                Some(why) => return Err(format!("end {end} of a transfer: {why}")),
            }
        }
        let Some((summary, sent)) = self.reader.over.take() else { return Ok(()) };
        let all: u64 = self.files.values().map(|bytes| bytes.len() as u64).sum();
        if self.disk.files != self.files || summary.troubled > 0 {
            return Err(format!("a transfer is over and the trees differ: {summary:?}"));
        }
        if summary.repaired > 0 {
            return Err(format!("{} pieces had other bytes when they came", summary.repaired));
        }
        if sent + self.disk.resumed > all {
            let resumed = self.disk.resumed;
            return Err(format!("{sent} of {all} bytes were sent, and {resumed} were there"));
        }
        self.is_due = false;
        self.done += summary.files;
        Ok(())
    }
}

impl<E: Endpoint> Workload<E> for Transfers<E> {
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let place = random.random_range(0..self.pairs.len());
        let pair = &mut self.pairs[place];
        let is_idle = !pair.is_due && !pair.reader.has_run() && !pair.writer.has_run();
        if is_idle {
            pair.plant(random);
        }
        if !pair.begin(stage) {
            let end = random.random_range(0..2);
            // One step at a time lets both ends die, or be cut off, at each.
            pair.step(end, random)?;
        }
        pair.look(stage)
    }

    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        budget: usize,
    ) -> Result<(), String> {
        for (place, pair) in self.pairs.iter_mut().enumerate() {
            for end in [0, 1] {
                if program.is_some_and(|program| program != 2 * place + end) {
                    continue;
                }
                let now = stage.clock(pair.hosts[end]);
                match end {
                    0 => pair.reader.poll(now, budget)?,
                    _ => pair.writer.poll(now, budget)?,
                }
            }
            pair.look(stage)?;
            if program.is_none() {
                pair.begin(stage);
                let random = &mut crate::plan::random(pair.number, 3);
                while pair.step(0, random)? | pair.step(1, random)? {}
                pair.look(stage)?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let (place, end) = (program / 2 % self.pairs.len(), program % 2);
        let pair = &self.pairs[place];
        if pair.lives[end] + 1 == LIVES_MAX {
            return Ok(());
        }
        let sessions = self.open(stage, pair.hosts[end])?;
        let pair = &mut self.pairs[place];
        pair.lives[end] += 1;
        if end == 0 {
            stage.world.kill(pair.reader.sessions.endpoint().address());
            pair.reader = Reader::new(sessions, self.may_lose);
        } else {
            stage.world.kill(pair.writer.sessions.endpoint().address());
            pair.writer = Writer::new(sessions, self.may_lose);
            // A program's death keeps what it wrote; that of its host does not.
            let parts = [1_000, 630, 1_000, 285];
            pair.disk.lose(parts[(pair.lives[end] + place) % parts.len()]);
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let is_idle = |pair: &Pair<E>| {
            let runs = pair.is_due || pair.reader.has_run() || pair.writer.has_run();
            !runs && pair.reader.sessions.is_idle() && pair.writer.sessions.is_idle()
        };
        self.pairs.iter().all(is_idle)
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        for (number, pair) in self.pairs.iter().enumerate() {
            for (end, waits) in [pair.reader.waits(), pair.writer.waits()].into_iter().enumerate() {
                if waits {
                    return Err(format!("end {end} of pair {number} waits for room for ever"));
                }
            }
            if pair.is_due {
                return Err(format!("the transfer of pair {number} never came to its end"));
            }
            if pair.reader.has_run() || pair.writer.has_run() {
                return Err(format!("the session of pair {number} never ended"));
            }
        }
        Ok(())
    }

    fn keys(&self) -> Option<usize> {
        let keys = |pair: &Pair<E>| {
            pair.reader.sessions.census().keys + pair.writer.sessions.census().keys
        };
        Some(self.pairs.iter().map(keys).sum())
    }

    fn region_bytes(&self) -> Option<u64> {
        let bytes = |census: weft_message::Census| census.copy_bytes + census.receive_bytes;
        let of = |pair: &Pair<E>| {
            let own = pair.writer.lent_bytes();
            own + bytes(pair.reader.sessions.census()) + bytes(pair.writer.sessions.census())
        };
        Some(self.pairs.iter().map(of).sum())
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let pair = program / 2 % self.pairs.len();
        let pair = &mut self.pairs[pair];
        Some(match program % 2 {
            0 => pair.reader.sessions.endpoint().address(),
            _ => pair.writer.sessions.endpoint().address(),
        })
    }

    fn done(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.done).sum()
    }
}
