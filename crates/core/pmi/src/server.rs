//! The launcher's side: answers what the processes of a job ask, without I/O.
//!
//! [`Server::receive`] takes bytes of a process, [`Server::next_action`] gives bytes for processes
//! and what the launcher has to do. Each process speaks PMI-1 or PMI-2, whichever it begins with;
//! both sorts see each other's values and meet at the same barrier.
//!
//! # Invariants
//! - The values of a job need at most [`VALUE_BYTES_PER_PROCESS`] for each of its processes.
//! - A barrier ends when all processes of the job are at it, and never otherwise.
//! - After an [`Action::Offence`] nothing of that process is looked at.

mod answer;

use std::collections::{BTreeMap, VecDeque};

use crate::Malformed;
use crate::message::{Decoder, Form, Message};

/// Bytes of keys and values that are kept, for each process of the job.
pub const VALUE_BYTES_PER_PROCESS: usize = 64 * 1024;
/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 64;
/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Longest name of a job in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Requests of a process that wait for a value of its host.
const WAITING_MAX: usize = 64;

/// A job, as its processes see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Name of the job and of its values: visible ASCII, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Which ranks share a host: `PMI_process_mapping`.
    pub mapping: String,
    /// The processes in the order of their ranks.
    pub processes: Vec<Membership>,
}

/// One process of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The number of its host.
    pub host: u32,
    /// The number of its program, from 0.
    pub program: u32,
}

/// The work of a launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send these bytes to a process.
    Send {
        /// The rank of the process.
        rank: u32,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A process ends the job.
    Abort {
        /// The rank of the process.
        rank: u32,
        /// The exit code of the job.
        code: i32,
        /// The reason that it gave; may be empty.
        message: String,
    },
    /// A process broke the protocol.
    Offence {
        /// The rank of the process.
        rank: u32,
        /// The fault.
        problem: Malformed,
    },
}

/// How far a process has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It has sent nothing: perhaps it is no program for PMI.
    Silent,
    /// It is a member of the job.
    Member,
    /// It is at a barrier.
    AtBarrier,
    /// It said that it needs the launcher no more.
    Finalized,
    /// It closed its connection before that.
    Lost,
}

/// A process that waits for the others, and how its answer is written.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Waiting {
    form: Form,
    thread: Option<String>,
}

/// A process that waits for a value of its host.
#[derive(Clone, Debug)]
struct WaitingForValue {
    rank: u32,
    key: String,
    thread: Option<String>,
}

#[derive(Debug)]
enum ClientState {
    Silent,
    Member,
    AtBarrier(Waiting),
    Finalized,
    Lost,
}

#[derive(Debug)]
struct Process {
    membership: Membership,
    decoder: Decoder,
    state: ClientState,
    /// It broke the protocol, or ended the job.
    is_deaf: bool,
}

/// The launcher's side of a job.
#[derive(Debug)]
pub struct Server {
    name: String,
    mapping: String,
    processes: Vec<Process>,
    values: BTreeMap<String, String>,
    values_of_hosts: BTreeMap<(u32, String), String>,
    ports: BTreeMap<String, String>,
    waiting_for_values: Vec<WaitingForValue>,
    value_bytes: usize,
    actions: VecDeque<Action>,
}

impl Server {
    /// A server of a job whose processes have said nothing yet.
    pub fn new(job: Description) -> Self {
        let process = |membership| Process {
            membership,
            decoder: Decoder::default(),
            state: ClientState::Silent,
            is_deaf: false,
        };
        Self {
            name: job.name,
            mapping: job.mapping,
            processes: job.processes.into_iter().map(process).collect(),
            values: BTreeMap::new(),
            values_of_hosts: BTreeMap::new(),
            ports: BTreeMap::new(),
            waiting_for_values: Vec::new(),
            value_bytes: 0,
            actions: VecDeque::new(),
        }
    }

    /// Takes bytes that a process sent. Bytes of a rank that is none are not looked at.
    pub fn receive(&mut self, rank: u32, bytes: &[u8]) {
        let Some(process) = self.process(rank) else { return };
        if process.is_deaf {
            return;
        }
        process.decoder.push(bytes);
        loop {
            let Some(process) = self.process(rank) else { return };
            if process.is_deaf {
                return;
            }
            match process.decoder.next_message() {
                Ok(Some((form, message))) => self.serve(rank, form, &message),
                Ok(None) => return,
                Err(problem) => {
                    process.is_deaf = true;
                    self.actions.push_back(Action::Offence { rank, problem });
                }
            }
        }
    }

    /// Takes that a process closed its connection or ended.
    pub fn hang_up(&mut self, rank: u32) {
        let Some(process) = self.process(rank) else { return };
        process.is_deaf = true;
        if !matches!(process.state, ClientState::Silent | ClientState::Finalized) {
            process.state = ClientState::Lost;
        }
        self.waiting_for_values.retain(|waiting| waiting.rank != rank);
    }

    /// The next action, in their order.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How far a process has come; `Silent` for a rank that is none.
    pub fn standing(&self, rank: u32) -> Standing {
        let process = usize::try_from(rank).ok().and_then(|rank| self.processes.get(rank));
        match process.map(|process| &process.state) {
            None | Some(ClientState::Silent) => Standing::Silent,
            Some(ClientState::Member) => Standing::Member,
            Some(ClientState::AtBarrier(_)) => Standing::AtBarrier,
            Some(ClientState::Finalized) => Standing::Finalized,
            Some(ClientState::Lost) => Standing::Lost,
        }
    }

    /// Whether a process waits at a barrier.
    pub fn is_awaited(&self) -> bool {
        self.processes.iter().any(|process| matches!(process.state, ClientState::AtBarrier(_)))
    }

    fn process(&mut self, rank: u32) -> Option<&mut Process> {
        usize::try_from(rank).ok().and_then(|rank| self.processes.get_mut(rank))
    }

    fn send(&mut self, rank: u32, form: Form, message: &Message) {
        self.actions.push_back(Action::Send { rank, bytes: message.encode(form) });
    }

    /// A process has come to a barrier.
    fn arrive(&mut self, rank: u32, waiting: Waiting) {
        if let Some(process) = self.process(rank) {
            process.state = ClientState::AtBarrier(waiting);
        }
        let is_there = |process: &Process| matches!(process.state, ClientState::AtBarrier(_));
        if !self.processes.iter().all(is_there) {
            return;
        }
        for rank in 0..self.processes.len() {
            let Ok(rank) = u32::try_from(rank) else { return };
            let Some(process) = self.process(rank) else { return };
            let state = std::mem::replace(&mut process.state, ClientState::Member);
            let ClientState::AtBarrier(waiting) = state else { return };
            let answer = answer::of_barrier(&waiting);
            self.send(rank, waiting.form, &answer);
        }
    }

    /// Keeps a value of the job; `Err` says why not.
    fn keep(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        self.admit(key, value, self.values.get(key).map(String::len))?;
        self.values.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// Counts a value against what a job may keep, in place of a former one of `former` bytes;
    /// `Err` says why it has no place.
    fn admit(&mut self, key: &str, value: &str, former: Option<usize>) -> Result<(), &'static str> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err("the_key_is_too_long");
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err("the_value_is_too_long");
        }
        if key.starts_with("PMI_") {
            return Err("keys_that_begin_with_PMI_belong_to_the_launcher");
        }
        let others = self.value_bytes - former.map_or(0, |former| key.len() + former);
        let bytes = others + key.len() + value.len();
        if bytes > VALUE_BYTES_PER_PROCESS * self.processes.len() {
            return Err("the_job_has_too_many_values");
        }
        self.value_bytes = bytes;
        Ok(())
    }

    /// A value of the job or of the launcher.
    fn value(&self, key: &str) -> Option<String> {
        match key {
            "PMI_process_mapping" => Some(self.mapping.clone()),
            "universeSize" => Some(self.processes.len().to_string()),
            _ => self.values.get(key).cloned(),
        }
    }

    /// Keeps a value for the processes of one host, and answers those that wait for it.
    fn keep_for_host(&mut self, rank: u32, key: &str, value: &str) -> Result<(), &'static str> {
        let host = self.host(rank);
        let place = (host, key.to_owned());
        self.admit(key, value, self.values_of_hosts.get(&place).map(String::len))?;
        self.values_of_hosts.insert(place, value.to_owned());
        let waiting = std::mem::take(&mut self.waiting_for_values);
        for one in waiting {
            if one.key == key && self.host(one.rank) == host {
                let answer = answer::of_value_of_host(Some(value), one.thread.as_deref());
                self.send(one.rank, Form::Frame, &answer);
            } else {
                self.waiting_for_values.push(one);
            }
        }
        Ok(())
    }

    fn host(&self, rank: u32) -> u32 {
        let process = usize::try_from(rank).ok().and_then(|rank| self.processes.get(rank));
        process.map_or(0, |process| process.membership.host)
    }
}

#[cfg(test)]
mod tests;
