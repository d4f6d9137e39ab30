//! An endpoint behind its lock: the state machine, and its connection to the directory.
//!
//! Invariant: what the directory says is handled in the order in which it said it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use weft_fabric::{
    ConnectError, EndpointAddress, Group, GroupError, InviteError, Issued, MessageHeader,
    OperationError, Peer, SendError, Ticket, Value,
};

use crate::directory::{Answer, Directory, Known, News, Question};
use crate::engine::Engine;
use crate::nic::Nic;

/// Calls of one endpoint that have not ended, or whose ends were not polled.
const CALLS_MAX: usize = 8192;

/// The state of an endpoint.
pub(crate) struct Station<N> {
    pub engine: Engine<N>,
    /// `None` when the endpoint is closed.
    directory: Option<Directory>,
    /// The directory has told something since the last look.
    news: Arc<AtomicBool>,
    /// Questions that were not answered, by number.
    asked: BTreeMap<u32, Asked>,
    groups: BTreeMap<Group, Members>,
    line: Line,
}

/// Whether a sleep ends when the broker sends something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Watched,
    Unwatched,
}

fn watch(file: BorrowedFd<'_>, line: BorrowedFd<'_>) -> Result<(), Errno> {
    match epoll::add(file, line, EventData::new_u64(2), EventFlags::IN) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// The purpose of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// A call of the program, by its context.
    Call(u64),
    /// A call that the program gave up, or a question whose answer nobody needs.
    Nobody,
    /// The members of a group.
    Members(Group),
    /// A member of groups, to send to it.
    Member(EndpointAddress),
}

/// The members of a group, as far as they are known.
#[derive(Debug, Default)]
struct Members {
    /// The other members; `None` while the directory is asked.
    known: Option<Vec<EndpointAddress>>,
    /// Members that are being connected to.
    connecting: BTreeSet<EndpointAddress>,
    /// Members that take no further peer.
    full: BTreeSet<EndpointAddress>,
    /// The program waits for another try.
    waits: bool,
}

impl<N: Nic> Station<N> {
    /// An endpoint's state. `news` is set when the directory has told something.
    pub fn new(engine: Engine<N>, directory: Directory, news: Arc<AtomicBool>) -> Self {
        let (asked, groups) = (BTreeMap::new(), BTreeMap::new());
        Self { engine, directory: Some(directory), news, asked, groups, line: Line::Unwatched }
    }

    /// Has the next [`Station::progress`] look at the connection to the broker.
    pub fn look(&self) {
        self.news.store(true, Ordering::Relaxed);
    }

    /// See [`Directory::awaits_other`].
    pub fn awaits_other(&self) -> bool {
        self.directory.as_ref().is_some_and(Directory::awaits_other)
    }

    /// The line to the broker, while there is one.
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().and_then(Directory::line)
    }

    /// Keeps the line to the broker watched as long as there is one.
    pub fn watch(&mut self, files: [BorrowedFd<'_>; 2]) {
        match (self.line(), self.line) {
            (Some(line), Line::Unwatched) => {
                let added = files.map(|file| watch(file, line));
                if added.iter().all(Result::is_ok) {
                    self.line = Line::Watched;
                }
            }
            (None, Line::Watched) => self.line = Line::Unwatched,
            _ => {}
        }
    }

    /// Whether a sleep ends when the broker sends something.
    pub fn is_line_watched(&self) -> bool {
        self.line == Line::Watched && self.line().is_some()
    }

    /// Handles what has come.
    pub fn progress(&mut self) {
        let now = self.engine.seen();
        let is_due = self.directory.as_ref().is_some_and(|directory| directory.is_due(now));
        if is_due || self.news.load(Ordering::Relaxed) {
            self.news.store(false, Ordering::Relaxed);
            self.take_news(None);
        }
        self.engine.progress();
        for (address, secret) in self.engine.take_lost() {
            if let Some(directory) = &mut self.directory {
                directory.part(address, secret);
            }
        }
        for address in self.engine.take_doubted() {
            if let Some(directory) = &mut self.directory {
                directory.doubt(address);
            }
        }
    }

    /// Closes the endpoint. What was accepted still leaves, by further calls of
    /// [`Station::progress`].
    pub fn close(&mut self) {
        self.engine.close();
        self.directory = None;
    }

    fn ask(&mut self, question: Question, purpose: Asked) -> Result<u32, String> {
        let now = self.engine.now();
        let directory = self.directory.as_mut().ok_or("the endpoint is closed")?;
        let number = directory.ask(question, now)?;
        self.asked.insert(number, purpose);
        Ok(number)
    }

    /// A number that nobody can guess.
    fn secret(&mut self) -> [u8; 16] {
        let halves = [self.engine.nic_mut().random(), self.engine.nic_mut().random()];
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&halves[0].to_le_bytes());
        secret[8..].copy_from_slice(&halves[1].to_le_bytes());
        secret
    }

    /// Handles the news of the directory. Returns the value that the call ends with whose question
    /// is `wanted`, if its answer is among them.
    fn take_news(&mut self, wanted: Option<u32>) -> Option<Result<Value, OperationError>> {
        let mut found = None;
        let now = self.engine.now();
        while let Some(news) = self.directory.as_mut().and_then(|directory| directory.next(now)) {
            match news {
                News::Answer(number, result) => {
                    let Some(asked) = self.asked.remove(&number) else { continue };
                    if Some(number) == wanted {
                        found = Some(result.and_then(|answer| self.value_of(answer)));
                    } else {
                        self.answered(asked, result);
                    }
                }
                News::Introduced(introduction) => {
                    // A peer that this endpoint cannot take hears nothing of it, and gives up.
                    let _ = self.engine.introduce(&introduction);
                }
                News::Ended(address, secret) => self.engine.peer_ended(address, secret),
                News::Apart(address, is_apart) => self.engine.set_apart(address, is_apart),
                News::Stands(address) => self.engine.peer_stands(address),
                News::Unreachable(address) => self.engine.peer_unreachable(address),
                News::Groups(bits) => self.groups_changed(bits),
                News::Recall => {
                    let pairs: Vec<Known> = self.engine.living_pairs().collect();
                    if let Some(directory) = &mut self.directory {
                        directory.recall(&pairs);
                    }
                }
                News::Replaced => {
                    let pairs: Vec<Known> = self.engine.living_pairs().collect();
                    for Known { address, secret, .. } in pairs {
                        self.engine.peer_ended(address, secret);
                    }
                }
            }
        }
        found
    }

    fn answered(&mut self, asked: Asked, result: Result<Answer, OperationError>) {
        match asked {
            Asked::Call(context) => {
                let result = result.and_then(|answer| self.value_of(answer));
                self.engine.end_call(context, result);
            }
            Asked::Nobody => {
                let _ = result.and_then(|answer| self.value_of(answer));
            }
            Asked::Members(group) => {
                let members = match result {
                    Ok(Answer::Members(members)) => members,
                    _ => Vec::new(),
                };
                if let Some(state) = self.groups.get_mut(&group) {
                    state.known = Some(members);
                }
                self.look_at_group(group);
            }
            Asked::Member(address) => {
                let is_peer = result.and_then(|answer| self.value_of(answer)).is_ok();
                let groups: Vec<Group> = self.groups.keys().copied().collect();
                for group in groups {
                    let Some(state) = self.groups.get_mut(&group) else { continue };
                    if state.connecting.remove(&address) && !is_peer {
                        state.full.insert(address);
                    }
                    self.look_at_group(group);
                }
            }
        }
    }

    /// The value that a call ends with.
    fn value_of(&mut self, answer: Answer) -> Result<Value, OperationError> {
        match answer {
            Answer::Introduced(introduction) => {
                let handle = self.engine.introduce(&introduction);
                Ok(Value::Peer(Peer(handle.map_err(OperationError::Connect)?)))
            }
            Answer::Done | Answer::Members(_) => Ok(Value::Nothing),
        }
    }

    /// Asks the directory for a call of the program. It may answer at once.
    fn call(&mut self, question: Question, context: u64) -> Result<Issued, OperationError> {
        if self.engine.controls_open >= CALLS_MAX {
            let reason = "too many calls wait for their end; poll first".to_owned();
            return Err(OperationError::Broker { reason });
        }
        let number = self.ask(question, Asked::Call(context));
        let number = number.map_err(|reason| OperationError::Broker { reason })?;
        match self.take_news(Some(number)) {
            Some(result) => Ok(Issued::Done(result?)),
            None => {
                self.engine.controls_open += 1;
                Ok(Issued::Pending)
            }
        }
    }

    pub fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError> {
        if !to.is_exact() {
            return Err(ConnectError::NotExact(to));
        }
        self.progress();
        if let Some(handle) = self.engine.handle_of(to) {
            return Ok(Issued::Done(Value::Peer(Peer(handle))));
        }
        let question = Question::Connect(to, self.secret());
        self.call(question, context).map_err(|error| match error {
            OperationError::Connect(error) => error,
            other => ConnectError::Broker { reason: reason_of(other) },
        })
    }

    pub fn change_group(
        &mut self,
        group: Group,
        join: bool,
        context: u64,
    ) -> Result<Issued, GroupError> {
        if group == Group::BROADCAST {
            return Err(GroupError::Broadcast);
        }
        let question = if join { Question::Join(group) } else { Question::Leave(group) };
        self.call(question, context).map_err(|error| match error {
            OperationError::Group(error) => error,
            other => GroupError::Broker { reason: reason_of(other) },
        })
    }

    pub fn invite(
        &mut self,
        within: Duration,
        context: u64,
    ) -> Result<(Ticket, Issued), InviteError> {
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Err(InviteError::InvalidTime);
        }
        let ticket = Ticket(self.secret());
        match self.call(Question::Invite(ticket, within), context) {
            Ok(issued) => Ok((ticket, issued)),
            Err(OperationError::Invite(error)) => Err(error),
            Err(other) => Err(InviteError::Broker { reason: reason_of(other) }),
        }
    }

    /// The program does not wait for the call with this context any more.
    pub fn give_up(&mut self, context: u64) {
        for asked in self.asked.values_mut() {
            if *asked == Asked::Call(context) {
                *asked = Asked::Nobody;
                self.engine.controls_open -= 1;
                return;
            }
        }
        self.engine.give_up(context);
    }

    /// Whether a call with this context has not ended.
    pub fn awaits(&self, context: u64) -> bool {
        let asked = self.asked.values().any(|asked| *asked == Asked::Call(context));
        asked || self.engine.awaits(context)
    }

    /// Sends a message to all other members of a group; see [`Engine::send_to_members`].
    pub fn send_multicast(
        &mut self,
        group: Group,
        (header, parts): (MessageHeader, &[&[u8]]),
        others: impl FnOnce() -> Result<usize, SendError>,
    ) -> Result<usize, SendError> {
        self.engine.check_message(header, parts)?;
        self.take_news(None);
        if let Entry::Vacant(vacant) = self.groups.entry(group) {
            vacant.insert(Members::default());
            self.ask_members(group)?;
        }
        let Some(members) = self.connected_members(group)? else {
            if let Some(state) = self.groups.get_mut(&group) {
                state.waits = true;
            }
            return Err(SendError::WouldBlock);
        };
        self.engine.send_to_members(group, &members, (header, parts), others)
    }

    fn ask_members(&mut self, group: Group) -> Result<(), SendError> {
        let asked = self.ask(Question::Members(group), Asked::Members(group));
        asked.map_err(|reason| SendError::Broker { reason })?;
        self.take_news(None);
        Ok(())
    }

    /// The members of a group that are peers; `None` if some are being connected to.
    fn connected_members(
        &mut self,
        group: Group,
    ) -> Result<Option<Vec<EndpointAddress>>, SendError> {
        let Some(state) = self.groups.get(&group) else { return Ok(None) };
        let Some(known) = state.known.clone() else { return Ok(None) };
        for member in &known {
            let Some(state) = self.groups.get_mut(&group) else { return Ok(None) };
            let is_peer = self.engine.handle_of(*member).is_some();
            if is_peer || state.full.contains(member) || !state.connecting.insert(*member) {
                continue;
            }
            // Those that are being connected to count, too.
            let maximum = self.engine.capabilities.peers_max;
            if self.engine.peers() + state.connecting.len() > maximum {
                state.connecting.remove(member);
                return Err(SendError::Exhausted { maximum });
            }
            let question = Question::Connect(*member, self.secret());
            let asked = self.ask(question, Asked::Member(*member));
            asked.map_err(|reason| SendError::Broker { reason })?;
        }
        self.take_news(None);
        let Some(state) = self.groups.get(&group) else { return Ok(None) };
        if state.known.as_ref() != Some(&known) || !state.connecting.is_empty() {
            return Ok(None);
        }
        let is_peer = |member: &EndpointAddress| self.engine.handle_of(*member).is_some();
        Ok(Some(known.into_iter().filter(is_peer).collect()))
    }

    /// Another try may be worth it.
    fn look_at_group(&mut self, group: Group) {
        let Some(state) = self.groups.get_mut(&group) else { return };
        if state.known.is_some() && state.connecting.is_empty() && std::mem::take(&mut state.waits)
        {
            self.engine.group_changed(group);
        }
    }

    fn groups_changed(&mut self, bits: u64) {
        let changed = |group: &Group| bits & (1 << group.number()) != 0;
        let changed: Vec<Group> = self.groups.keys().copied().filter(changed).collect();
        for group in changed {
            let Some(state) = self.groups.remove(&group) else { continue };
            // The next message asks anew.
            if state.waits || self.engine.waits_for_group(group) {
                self.engine.group_changed(group);
            }
        }
    }
}

fn reason_of(error: OperationError) -> String {
    match error {
        OperationError::Broker { reason } => reason,
        other => other.to_string(),
    }
}
