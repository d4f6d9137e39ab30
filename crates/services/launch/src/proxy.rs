//! The proxy of a launcher on one host: starts processes, and sees to it that they end.
//!
//! # Invariants
//! - When the launcher is gone, all processes are ended as if it had asked for it.
//! - [`Work::Finish`] comes when all processes have ended, or could not be ended in time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::frame::{Ending, FromProxy, Plan, Process, ToProxy};

/// After SIGKILL, processes have this time to end.
const KILL_WITHIN: Duration = Duration::from_secs(4);
/// Outputs of a process that ended may be held open by others for this time.
const DRAIN_WITHIN: Duration = Duration::from_millis(500);

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
const SIGCONT: i32 = 18;

/// The next thing that the driver of a proxy has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Start a process, and say [`Proxy::not_started`] if that cannot be.
    Start(Process),
    /// Send a message to the launcher.
    Send(FromProxy),
    /// Send a signal to a process and what it started.
    Signal {
        /// The rank of the process.
        rank: u32,
        /// The number of the signal.
        number: i32,
    },
    /// Write bytes of the launcher to the PMI connection of a process.
    Pmi {
        /// The rank of the process.
        rank: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Write bytes to the standard input of rank 0; empty closes it.
    Input(Vec<u8>),
    /// Close the outputs of a process, which others hold open.
    CloseOutputs {
        /// The rank of the process.
        rank: u32,
    },
    /// All is over.
    Finish,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChildState {
    Running,
    /// It ended, and its outputs are read to their end or until then.
    Draining {
        until: Duration,
    },
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    /// Asked to end; killed at the time.
    Asked {
        kill_at: Duration,
    },
    /// Killed; given up at the time.
    Killed {
        give_up: Duration,
    },
    Over,
}

/// The processes of one host.
#[derive(Debug)]
pub struct Proxy {
    grace: Duration,
    processes: BTreeMap<u32, ChildState>,
    phase: Phase,
    is_paused: bool,
    work: VecDeque<Work>,
}

impl Proxy {
    /// A proxy that starts the processes of a plan.
    pub fn new(plan: Plan) -> Self {
        let processes = plan.processes.iter().map(|process| (process.rank, ChildState::Running));
        Self {
            grace: Duration::from_millis(plan.grace_ms.into()),
            processes: processes.collect(),
            phase: Phase::Running,
            is_paused: false,
            work: plan.processes.into_iter().map(Work::Start).collect(),
        }
    }

    /// The next thing to do, in their order.
    pub fn next_work(&mut self) -> Option<Work> {
        if self.work.is_empty() {
            self.look();
        }
        self.work.pop_front()
    }

    /// Whether output of the processes is to be read now.
    pub fn reads_output(&self) -> bool {
        !self.is_paused
    }

    /// A process could not be started.
    pub fn not_started(&mut self, rank: u32, code: u8, reason: String) {
        self.processes.insert(rank, ChildState::Over);
        self.work.push_back(Work::Send(FromProxy::NotStarted { rank, code, reason }));
    }

    /// A process ended.
    pub fn ended(&mut self, rank: u32, how: Ending, now: Duration) {
        if let Some(state @ ChildState::Running) = self.processes.get_mut(&rank) {
            *state = ChildState::Draining { until: now + DRAIN_WITHIN };
            self.work.push_back(Work::Send(FromProxy::Ended { rank, how }));
        }
    }

    /// The outputs of a process were read to their end.
    pub fn drained(&mut self, rank: u32) {
        if let Some(state @ ChildState::Draining { .. }) = self.processes.get_mut(&rank) {
            *state = ChildState::Over;
        }
    }

    /// A message of the launcher; the start is not one of them.
    pub fn hear(&mut self, message: ToProxy, now: Duration) {
        match message {
            // A launcher starts once.
            ToProxy::Start(_) => {}
            ToProxy::Pmi { rank, bytes } => self.work.push_back(Work::Pmi { rank, bytes }),
            ToProxy::Input(bytes) => self.work.push_back(Work::Input(bytes)),
            ToProxy::Pause => self.is_paused = true,
            ToProxy::Resume => self.is_paused = false,
            ToProxy::Signal(number) => self.signal_all(number),
            ToProxy::End => self.end(now),
            ToProxy::Kill => self.kill(now),
        }
    }

    /// The launcher is gone: it died, or the way to it broke.
    pub fn lose_launcher(&mut self, now: Duration) {
        // Nobody reads the output any more.
        self.is_paused = false;
        self.end(now);
    }

    /// The time has come that [`Proxy::deadline`] named.
    pub fn tick(&mut self, now: Duration) {
        match self.phase {
            Phase::Asked { kill_at } if kill_at <= now => self.kill(now),
            Phase::Killed { give_up } if give_up <= now => self.over(),
            _ => {}
        }
        for (&rank, state) in &mut self.processes {
            match state {
                ChildState::Draining { until } if *until <= now && !self.is_paused => {
                    *state = ChildState::Over;
                    self.work.push_back(Work::CloseOutputs { rank });
                }
                _ => {}
            }
        }
    }

    /// When [`Proxy::tick`] is wanted.
    pub fn deadline(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Asked { kill_at } => Some(kill_at),
            Phase::Killed { give_up } => Some(give_up),
            Phase::Running | Phase::Over => None,
        };
        let draining = self.processes.values().filter_map(|state| match state {
            ChildState::Draining { until } if !self.is_paused => Some(*until),
            _ => None,
        });
        draining.chain(phase).min()
    }

    fn end(&mut self, now: Duration) {
        if self.phase == Phase::Running {
            self.phase = Phase::Asked { kill_at: now + self.grace };
            self.signal_all(SIGTERM);
            // A stopped process has to run to end.
            self.signal_all(SIGCONT);
        }
    }

    fn kill(&mut self, now: Duration) {
        if matches!(self.phase, Phase::Running | Phase::Asked { .. }) {
            self.phase = Phase::Killed { give_up: now + KILL_WITHIN };
            self.signal_all(SIGKILL);
        }
    }

    fn signal_all(&mut self, number: i32) {
        for (&rank, state) in &self.processes {
            if *state == ChildState::Running {
                self.work.push_back(Work::Signal { rank, number });
            }
        }
    }

    fn look(&mut self) {
        if self.processes.values().all(|state| *state == ChildState::Over) {
            self.over();
        }
    }

    fn over(&mut self) {
        if self.phase != Phase::Over {
            self.phase = Phase::Over;
            self.work.push_back(Work::Send(FromProxy::Done));
            self.work.push_back(Work::Finish);
        }
    }
}
