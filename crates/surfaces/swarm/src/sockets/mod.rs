//! Direct sockets: connections of two programs over lanes and a modelled kernel socket.
//!
//! Each connection has two programs with two threads each. The threads read and write at random, at
//! random moments get a lane and leave it, and may close, abort or be killed at any moment. The
//! bytes must arrive unchanged, an end only behind all of them, and no thread may sleep for ever or
//! spin. A network that ends all lanes ends no connection: the bytes arrive all the same, over TCP.
//!
//! [`run`] runs a connection in a world of its own. Here are those of a swarm.

mod alone;
mod connection;
mod events;
mod lane;
mod lanes;
mod opening;
mod plan;
mod reader;
mod socket;
mod tcp;
mod writer;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Endpoint, EndpointAddress, Region, Register};
use weft_lane::Refusal;

use self::connection::Connection;
use self::opening::{Lanes, Opened, Opening};
use crate::plan::Plan as SwarmPlan;
use crate::stage::Stage;
use crate::workload::Workload;

pub use self::alone::run;
pub use self::plan::{Apart, Mistakes, Plan};

const USER: u32 = 1_003;
/// Steps of the threads of a connection that one call lets happen at most, after all is mended.
const TURNS_MAX: u32 = 400;
/// One of so many connections is between two programs of one host.
const ONE_OF_ON_ONE_HOST: u32 = 6;

enum State<E: Endpoint> {
    /// Its lanes are being made.
    Opening(Box<(Plan, Opening<E>)>),
    Open(Box<Connection<E>>),
    Over,
}

struct Pair<E: Endpoint> {
    /// The hosts of the two programs.
    hosts: [usize; 2],
    state: State<E>,
    /// It was told once that the lane is lost.
    has_lost: bool,
}

/// All connections.
pub(crate) struct Sockets<E: Endpoint> {
    pairs: Vec<Pair<E>>,
    done: u64,
}

impl<E: Endpoint> Sockets<E> {
    pub fn new(
        plan: &SwarmPlan,
        stage: &Stage<'_, E>,
        random: &mut ChaCha8Rng,
    ) -> Result<Self, String> {
        let pairs = (0..plan.programs.div_ceil(2)).map(|_| Pair::begin(stage, random));
        Ok(Self { pairs: pairs.collect::<Result<_, _>>()?, done: 0 })
    }

    fn place(&self, program: usize) -> (usize, usize) {
        (program / 2 % self.pairs.len(), program % 2)
    }
}

impl<E: Endpoint> Pair<E> {
    /// Begins a connection between two hosts, or on one.
    fn begin(stage: &Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<Self, String> {
        let first = random.random_range(0..stage.hosts());
        let other = (first + random.random_range(1..stage.hosts())) % stage.hosts();
        let seed = random.random();
        if random.random_ratio(1, ONE_OF_ON_ONE_HOST) {
            let plan = Plan::in_swarm(seed, Apart::OneHost);
            let connection = Connection::new(plan, &stage.world, opening::memory(&plan)?);
            let state = State::Open(Box::new(connection));
            return Ok(Self { hosts: [first, first], state, has_lost: false });
        }
        let plan = Plan::in_swarm(seed, Apart::TwoNodes);
        let endpoints = [stage.open(first, USER)?, stage.open(other, USER)?];
        let opening = Opening::begin(&plan, endpoints);
        let state =
            opening.map_or(State::Over, |opening| State::Opening(Box::new((plan, opening))));
        Ok(Self { hosts: [first, other], state, has_lost: false })
    }

    /// Whether one of the two endpoints was told that the other is down.
    fn was_told(connection: &Connection<E>) -> bool {
        let reports = |endpoint: &mut E| endpoint.register_value(Register::PeersDown);
        let mut carriers = (0..2).filter_map(|number| connection.carrier(number));
        carriers.any(|carrier| carrier.with_endpoint(reports) > 0)
    }

    /// Lets the threads take up to `turns` steps. Returns the number of moves of a connection that
    /// has ended.
    fn proceed(&mut self, stage: &mut Stage<'_, E>, turns: u32) -> Result<u64, String> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Opening(opening) => {
                let (plan, opening) = *opening;
                self.state = match opening.poll()? {
                    Opened::NotYet(opening) => State::Opening(Box::new((plan, opening))),
                    Opened::All(ends) => {
                        let lanes = Lanes::Network(ends);
                        State::Open(Box::new(Connection::new(plan, &stage.world, lanes)))
                    }
                    Opened::Refused(why) => {
                        // A program that is killed takes its opening with it.
                        if why == Refusal::PeerDown {
                            stage.check_unreachable(self.hosts[0], self.hosts[1])?;
                        }
                        State::Over
                    }
                };
            }
            State::Open(connection) => {
                for _ in 0..turns {
                    if !connection.turn() {
                        break;
                    }
                }
                if !self.has_lost && connection.lost() {
                    self.has_lost = true;
                    // An endpoint that takes words too slowly ends a lane, too.
                    if Self::was_told(&connection) {
                        stage.check_unreachable(self.hosts[0], self.hosts[1])?;
                    }
                }
                if connection.is_over() {
                    connection.judge();
                    return Ok(connection.moves());
                }
                self.state = State::Open(connection);
            }
            State::Over => {}
        }
        Ok(0)
    }
}

impl<E: Endpoint> Workload<E> for Sockets<E> {
    fn act(&mut self, stage: &mut Stage<'_, E>, random: &mut ChaCha8Rng) -> Result<(), String> {
        let pair = random.random_range(0..self.pairs.len());
        let pair = &mut self.pairs[pair];
        if matches!(pair.state, State::Over) {
            *pair = Pair::begin(stage, random)?;
        }
        self.done += pair.proceed(stage, random.random_range(1..64))?;
        Ok(())
    }

    fn poll(
        &mut self,
        stage: &mut Stage<'_, E>,
        program: Option<usize>,
        budget: usize,
    ) -> Result<(), String> {
        if let Some(program) = program {
            let pair = self.place(program).0;
            let turns = u32::try_from(budget).expect("a small budget");
            self.done += self.pairs[pair].proceed(stage, turns)?;
            return Ok(());
        }
        for pair in &mut self.pairs {
            self.done += pair.proceed(stage, TURNS_MAX)?;
        }
        Ok(())
    }

    fn kill(&mut self, stage: &mut Stage<'_, E>, program: usize) -> Result<(), String> {
        let (pair, side) = self.place(program);
        match &self.pairs[pair].state {
            State::Opening(opening) => {
                let carrier = opening.1.carrier(side);
                stage.world.kill(carrier.with_endpoint(|endpoint| endpoint.address()));
                self.pairs[pair].state = State::Over;
            }
            State::Open(connection)
                if connection.carrier(side).is_none() || connection.chance(2) =>
            {
                connection.kill(side);
            }
            State::Open(connection) => connection.node_dies(side),
            State::Over => {}
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.pairs.iter().all(|pair| matches!(pair.state, State::Over))
    }

    fn check(&mut self, _: &Stage<'_, E>) -> Result<(), String> {
        self.pairs.iter().try_for_each(|pair| match &pair.state {
            State::Over => Ok(()),
            State::Opening(_) => {
                Err(format!("hosts {:?}: lanes were neither made nor refused", pair.hosts))
            }
            State::Open(connection) => Err(format!(
                "hosts {:?}: threads of a connection sleep for ever: {}",
                pair.hosts,
                connection.describe()
            )),
        })
    }

    fn keys(&self) -> Option<usize> {
        None
    }

    fn region_bytes(&self) -> Option<u64> {
        let bytes = |_: &E, regions: &[E::Region]| regions.iter().map(Region::length).sum::<u64>();
        let of_pair = |pair: &Pair<E>| {
            let carriers = (0..2).filter_map(|number| match &pair.state {
                State::Opening(opening) => Some(opening.1.carrier(number)),
                State::Open(connection) => connection.carrier(number),
                State::Over => None,
            });
            carriers.map(|carrier| carrier.look_at_endpoint(bytes)).sum::<u64>()
        };
        Some(self.pairs.iter().map(of_pair).sum())
    }

    fn address(&mut self, program: usize) -> Option<EndpointAddress> {
        let (pair, side) = self.place(program);
        let carrier = match &self.pairs[pair].state {
            State::Opening(opening) => Some(opening.1.carrier(side)),
            State::Open(connection) => connection.carrier(side),
            State::Over => None,
        };
        carrier.map(|carrier| carrier.with_endpoint(|endpoint| endpoint.address()))
    }

    fn done(&self) -> u64 {
        self.done
    }
}
