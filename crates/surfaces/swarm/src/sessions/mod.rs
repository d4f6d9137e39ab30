//! Sessions: programs that each serve and ask the others, lend blocks and fill them, and end
//! sessions as they like, beside an endpoint that sends any frame.
//!
//! # Invariants
//! - A request has one answer or one error, and is asked once.
//! - A session ends at both ends or at none, if both programs live.
//! - A block is at one end at a time, has the bytes that were put, and all come back.
//! - The tables of a program keep their limits, whatever a peer sends.

mod book;
mod hostile;
mod program;

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Endpoint, EndpointAddress, ServiceName};
use weft_session::Options;

use crate::ledger::Life;
use crate::plan::{Fault, LIVES_MAX, Plan, one_of};
use crate::stage::Stage;
use crate::workload::Workload;
use book::Book;
use hostile::Hostile;
use program::Program;

const USER: u32 = 1_005;
const PROTOCOL: &str = "swarm-session";

fn protocol() -> ServiceName {
    ServiceName::new(PROTOCOL).expect("a name")
}

/// All programs of this kind.
pub(crate) struct Dialogues<E: Endpoint> {
    programs: Vec<Program<E>>,
    /// Its host, too.
    hostile: Option<(Hostile<E>, usize)>,
    options: Options,
    book: Book,
}

impl<E: Endpoint> Dialogues<E> {
    pub fn new(plan: &Plan, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let open_within = one_of(random, &[Duration::from_micros(100), Duration::from_millis(5)]);
        let options = Options {
            requests_max: random.random_range(1..=8),
            sessions_max: random.random_range(4..=16),
            hello_bytes_max: 64,
            pools_max: random.random_range(program::POOLS_MAX..=4),
            blocks_max: random.random_range(program::BLOCKS..=8),
            open_within,
            // No fault of a run lasts so long: nobody that lives may be taken for silent.
            silence: random.random_bool(0.5).then_some(Duration::from_millis(40)),
            messages: weft_message::Options {
                window: random.random_range(32..100),
                eager_bytes_max: random.random_range(112..=1_792),
                queue_packets_max: random.random_range(16..64),
                outstanding_max: random.random_range(1..20),
                ..Options::default().messages
            },
            ..Options::default()
        };
        let may_lose = plan.faults.contains(&Fault::Pressure);
        let mut all =
            Self { programs: Vec::new(), hostile: None, options, book: Book::new(may_lose) };
        let first = random.random_range(0..stage.hosts());
        for place in 0..plan.programs {
            let life = (u8::try_from(place).expect("a plan has few programs"), 0);
            let program = all.start(stage, life, (first + place) % stage.hosts())?;
            all.programs.push(program);
        }
        if random.random_bool(0.5) {
            let host = random.random_range(0..stage.hosts());
            all.hostile = Some((all.hostile_at(stage, host)?, host));
        }
        Ok(all)
    }

    fn start(&self, stage: &Stage<'_, E>, life: Life, host: usize) -> Result<Program<E>, String> {
        Ok(Program::new(life, host, stage.open(host, USER)?, &self.options))
    }

    fn hostile_at(&self, stage: &Stage<'_, E>, host: usize) -> Result<Hostile<E>, String> {
        Ok(Hostile::new(stage.open(host, USER)?, self.options.messages.clone()))
    }

    /// A program asks another one, or the hostile endpoint, for a session.
    fn open(&mut self, at: usize, stage: &Stage<'_, E>, random: &mut ChaCha8Rng) {
        let to = random.random_range(0..=self.programs.len());
        let now = stage.clock(self.programs[at].host);
        let other = self.programs.get_mut(to).map(|other| (other.address(), other.life));
        match (other, &mut self.hostile) {
            (Some((address, life)), _) if to != at => {
                self.programs[at].open(address, Some(life), &mut self.book, now);
            }
            (None, Some((hostile, _))) => {
                let address = hostile.address();
                self.programs[at].open(address, None, &mut self.book, now);
            }
            _ => {}
        }
    }

    /// Takes up to so many events of a program, and handles them.
    fn look(&mut self, stage: &Stage<'_, E>, at: usize, budget: usize) -> Result<(), String> {
        let program = &mut self.programs[at];
        program.poll(&mut self.book, stage.clock(program.host), budget)?;
        let host = program.host;
        for life in program.take_unreachable() {
            let other = match life {
                Some((place, _)) => self.programs[usize::from(place)].host,
                None => self.hostile.as_ref().map_or(host, |(_, host)| *host),
            };
            // Two of one host do not reach each other while its router stands still.
            if other != host {
                stage.check_unreachable(host, other)?;
            }
        }
        Ok(())
    }
}

impl<E: Endpoint> Workload<E> for Dialogues<E> {
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let at = random.random_range(0..self.programs.len());
        let now = stage.clock(self.programs[at].host);
        let (program, book) = (&mut self.programs[at], &mut self.book);
        match random.random_range(0..100) {
            0..10 => self.open(at, stage, random),
            10..35 => program.ask(book, random, now)?,
            35..55 => program.answer(book, random)?,
            55..61 => program.lend(random)?,
            61..73 => program.fill(book, random)?,
            73..83 => program.use_block(book)?,
            83..85 => program.end(random),
            85..88 => program.cancel(random),
            _ => {
                if let Some((hostile, _)) = &mut self.hostile {
                    let victim = self.programs[at].address();
                    hostile.act(victim, random);
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
        if let Some((hostile, _)) = &mut self.hostile {
            hostile.poll(budget);
        }
        let places = program.map_or(0..self.programs.len(), |place| place..place + 1);
        for place in places {
            self.look(stage, place, budget)?;
            if program.is_none() {
                self.programs[place].do_everything(&mut self.book)?;
            }
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        if program == 0
            && let Some((hostile, host)) = &mut self.hostile
        {
            let (address, host) = (hostile.address(), *host);
            stage.world.kill(address);
            self.hostile = Some((self.hostile_at(stage, host)?, host));
            return Ok(());
        }
        let program = program % self.programs.len();
        let (life, host) = (self.programs[program].life, self.programs[program].host);
        if usize::from(life.1) + 1 == LIVES_MAX {
            return Ok(());
        }
        stage.world.kill(self.programs[program].address());
        self.book.die(life);
        self.programs[program] = self.start(stage, (life.0, life.1 + 1), host)?;
        Ok(())
    }

    fn is_settled(&self) -> bool {
        let is_idle = |program: &Program<E>| program.lacks().is_none();
        self.programs.iter().all(is_idle) && self.book.check().is_ok()
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        for program in &mut self.programs {
            if let Some(lack) = program.lacks() {
                return Err(format!("{:?}: {lack}", program.life));
            }
            program.check_blocks()?;
        }
        self.book.check()
    }

    fn keys(&self) -> Option<usize> {
        let hostile = self.hostile.as_ref().map_or(0, |(hostile, _)| hostile.census().keys);
        Some(self.programs.iter().map(Program::keys).sum::<usize>() + hostile)
    }

    fn region_bytes(&self) -> Option<u64> {
        let hostile = self.hostile.as_ref().map(|(hostile, _)| hostile.census());
        let hostile = hostile.map_or(0, |census| census.copy_bytes + census.receive_bytes);
        Some(self.programs.iter().map(Program::region_bytes).sum::<u64>() + hostile)
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let program = program % self.programs.len();
        Some(self.programs[program].address())
    }

    fn done(&self) -> u64 {
        self.book.done
    }
}
