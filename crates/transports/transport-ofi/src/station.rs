//! An endpoint behind its lock: the state machine, and its conversation with the broker.
//!
//! Invariant: everything that the broker says is handled in the order in which it said it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use weft_broker::conversation::{Answer, Conversation, Heard, Told};
use weft_broker::{BrokerError, calls};
use weft_fabric::{
    ConnectError, DownReason, EndpointAddress, Group, GroupError, InviteError, Issued,
    MessageHeader, OperationError, Peer, SendError, Ticket, Value,
};
use weft_wire::endpoint_control::{AskAllMembers, Doubt, Meet, Met, Part, Recall, Secret};

use crate::engine::Engine;
use crate::meeting::{Introduction, Known, peer_of};
use crate::nic::Nic;

/// How often the broker is listened to while the program polls.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a broker that is gone is looked for.
const SEEK_EVERY: Duration = Duration::from_millis(20);
/// Calls of one endpoint that have not ended, or whose ends were not polled.
const CALLS_MAX: usize = 8192;

/// The state of an endpoint.
pub(crate) struct Station<N> {
    pub engine: Engine<N>,
    /// `None` when the endpoint is closed.
    broker: Option<Conversation<Asked>>,
    /// The file with the counters of the port, which the broker shows.
    counts: OwnedFd,
    /// When the broker was listened to last.
    listened: Duration,
    /// The broker has told something since then.
    news: Arc<AtomicBool>,
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

/// A question to the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// That of a call of the program with this context, or of one that it gave up. To meet the
    /// endpoint at an address, or something else.
    Call { context: Option<u64>, to: Option<EndpointAddress> },
    /// The members of a group.
    Members(Group),
    /// To meet a member of groups, to send to it.
    Member(EndpointAddress),
}

impl Asked {
    fn is_of(&self, wanted: u64) -> bool {
        matches!(self, Self::Call { context: Some(context), .. } if *context == wanted)
    }
}

/// The members of a group, as far as they are known.
#[derive(Debug, Default)]
struct Members {
    /// The other members; `None` while the broker is asked.
    known: Option<Vec<EndpointAddress>>,
    /// Members that are being connected to.
    connecting: BTreeSet<EndpointAddress>,
    /// Members that take no further peer.
    full: BTreeSet<EndpointAddress>,
    /// The program waits for another try.
    waits: bool,
}

impl<N: Nic> Station<N> {
    /// An endpoint's state. `counts` is the file with its counters, and `news` is set when the
    /// broker has told something.
    pub fn new(
        engine: Engine<N>,
        broker: Conversation<Asked>,
        counts: OwnedFd,
        news: Arc<AtomicBool>,
    ) -> Self {
        Self {
            engine,
            broker: Some(broker),
            counts,
            listened: Duration::ZERO,
            news,
            groups: BTreeMap::new(),
            line: Line::Unwatched,
        }
    }

    /// Has the next [`Station::progress`] look at the connection to the broker.
    pub fn look(&self) {
        self.news.store(true, Ordering::Relaxed);
    }

    /// See [`Conversation::awaits_other`].
    pub fn awaits_other(&self) -> bool {
        self.broker.as_ref().is_some_and(Conversation::awaits_other)
    }

    /// The line to the broker, while there is one: it is readable when there may be news.
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.broker.as_ref().filter(|broker| !broker.is_lost())?.line()
    }

    /// Whether it is time to look for news that no waker tells of.
    fn is_due(&self, now: Duration) -> bool {
        self.broker.as_ref().is_some_and(|broker| {
            let every = if broker.is_lost() { SEEK_EVERY } else { LOOK_EVERY };
            broker.line().is_some() && now.saturating_sub(self.listened) >= every
        })
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
        if self.is_due(now) || self.news.load(Ordering::Relaxed) {
            self.news.store(false, Ordering::Relaxed);
            self.take_news(None);
        }
        self.engine.progress();
        for (address, secret) in self.engine.take_lost() {
            self.part(address, secret);
        }
        for peer in self.engine.take_doubted() {
            // Its host answers if the peer is stopped.
            if let Some(broker) = &mut self.broker {
                let (vpid, node, peer) = (broker.vpid(), peer.node.0, peer.vpid.0);
                broker.tell(Doubt { vpid, node, peer });
            }
        }
    }

    /// Ends a pair. A broker that is gone finds out by itself.
    fn part(&mut self, with: EndpointAddress, secret: [u8; 16]) {
        if let Some(broker) = &mut self.broker {
            let (vpid, node, peer) = (broker.vpid(), with.node.0, with.vpid.0);
            broker.tell(Part { vpid, node, peer, secret: Secret(secret) });
        }
    }

    /// Closes the endpoint. Everything that was accepted still leaves, by further calls of
    /// [`Station::progress`].
    pub fn close(&mut self) {
        self.engine.close();
        self.broker = None;
    }

    /// A number that nobody can guess.
    fn secret(&mut self) -> [u8; 16] {
        let halves = [self.engine.nic_mut().random(), self.engine.nic_mut().random()];
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&halves[0].to_le_bytes());
        secret[8..].copy_from_slice(&halves[1].to_le_bytes());
        secret
    }

    /// Handles the news of the broker. Returns the end of the call whose question has the ticket
    /// `wanted`, if its answer is among them.
    fn take_news(&mut self, wanted: Option<u32>) -> Option<Result<Value, OperationError>> {
        let mut found = None;
        let now = self.engine.now();
        self.listened = now;
        loop {
            let Some(broker) = &mut self.broker else { return found };
            let Some(heard) = broker.hear(now, &[self.counts.as_fd()]) else { return found };
            let (ticket, asked, result) = match heard {
                Heard::Answer { question: Asked::Members(group), answer, .. } => {
                    self.members_named(group, answer);
                    continue;
                }
                Heard::Answer { ticket, question, answer } => {
                    let result = self.value_of(question, answer);
                    (ticket, question, result)
                }
                Heard::Unanswered { ticket, question, why } => {
                    (ticket, question, Err(OperationError::Broker { reason: why.to_string() }))
                }
                Heard::Told(told) => {
                    self.told(told);
                    continue;
                }
                Heard::Restarted => continue,
                Heard::KnownAgain => {
                    self.name_pairs();
                    continue;
                }
                Heard::Replaced => {
                    let pairs: Vec<Known> = self.engine.living_pairs().collect();
                    for Known { address, secret, .. } in pairs {
                        self.engine.peer_ended(address, secret);
                    }
                    continue;
                }
            };
            if Some(ticket) == wanted {
                found = Some(result);
            } else {
                self.ended(asked, result);
            }
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Met(met) => match Introduction::of(&met) {
                Ok(introduction) => {
                    // A peer that this endpoint cannot take hears nothing of it, and gives up.
                    let _ = self.engine.introduce(&introduction);
                }
                Err(_) => self.part(peer_of(&met), met.secret.0),
            },
            Told::Parted { peer, secret } => self.engine.peer_ended(peer, secret),
            Told::Held { peer, is_held } => self.engine.set_apart(peer, is_held),
            Told::Stands { peer } => self.engine.peer_stands(peer),
            Told::Gone { peer, reason: DownReason::Unreachable } => {
                self.engine.peer_unreachable(peer);
            }
            Told::Groups(bits) => self.groups_changed(bits),
            // These are for an endpoint with memory.
            Told::Gone { .. } | Told::Paired(..) | Told::PortWanted => {}
        }
    }

    /// Tells a broker that was restarted of the pairs.
    fn name_pairs(&mut self) {
        let pairs: Vec<Known> = self.engine.living_pairs().collect();
        if let Some(broker) = &mut self.broker {
            let vpid = broker.vpid();
            for Known { address, secret, greets_first } in pairs {
                let (node, peer, secret) = (address.node.0, address.vpid.0, Secret(secret));
                let greets_first = u8::from(greets_first);
                broker.tell(Recall { vpid, node, peer, secret, greets_first });
            }
            broker.named_all();
        }
        self.groups_changed(u64::MAX);
    }

    /// A question that no call waits for in this moment has ended.
    fn ended(&mut self, asked: Asked, result: Result<Value, OperationError>) {
        match asked {
            Asked::Call { context: Some(context), .. } => self.engine.end_call(context, result),
            Asked::Call { context: None, .. } => {}
            Asked::Members(group) => self.members_named(group, Answer::Members(Vec::new())),
            Asked::Member(address) => {
                let groups: Vec<Group> = self.groups.keys().copied().collect();
                for group in groups {
                    let Some(state) = self.groups.get_mut(&group) else { continue };
                    if state.connecting.remove(&address) && result.is_err() {
                        state.full.insert(address);
                    }
                    self.look_at_group(group);
                }
            }
        }
    }

    /// The broker named the other members of a group, or did not.
    fn members_named(&mut self, group: Group, answer: Answer) {
        if let Some(state) = self.groups.get_mut(&group) {
            state.known = Some(match answer {
                Answer::Members(members) => members,
                _ => Vec::new(),
            });
        }
        self.look_at_group(group);
    }

    /// The value that a question ends with.
    fn value_of(&mut self, asked: Asked, answer: Answer) -> Result<Value, OperationError> {
        match answer {
            Answer::Met(met) => self.met(&met).map_err(OperationError::Connect),
            Answer::Group(result, ..) => {
                result.map(|()| Value::Nothing).map_err(OperationError::Group)
            }
            Answer::Invited(result) => {
                result.map(|()| Value::Nothing).map_err(OperationError::Invite)
            }
            Answer::Reply(reply, _) => Err(match asked {
                Asked::Call { to: Some(to), .. } | Asked::Member(to) => {
                    OperationError::Connect(calls::not_introduced(to, &reply))
                }
                Asked::Call { to: None, .. } | Asked::Members(_) => {
                    OperationError::Broker { reason: BrokerError::InvalidAnswer.to_string() }
                }
            }),
            Answer::Members(_) => Ok(Value::Nothing),
        }
    }

    /// The meeting that was asked for is there.
    fn met(&mut self, met: &Met) -> Result<Value, ConnectError> {
        let introduction =
            Introduction::of(met).inspect_err(|_| self.part(peer_of(met), met.secret.0))?;
        Ok(Value::Peer(Peer(self.engine.introduce(&introduction)?)))
    }

    /// Asks the broker for a call of the program. It may answer at once.
    fn call<E>(
        &mut self,
        ask: impl FnOnce(&mut Conversation<Asked>, Duration) -> Result<u32, E>,
        as_operation: impl FnOnce(E) -> OperationError,
    ) -> Result<Issued, OperationError> {
        if self.engine.controls_open >= CALLS_MAX {
            let reason = "too many calls wait for their end; poll first".to_owned();
            return Err(OperationError::Broker { reason });
        }
        let now = self.engine.now();
        let broker = self.broker.as_mut().ok_or_else(closed)?;
        let ticket = ask(broker, now).map_err(as_operation)?;
        match self.take_news(Some(ticket)) {
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
        let secret = self.secret();
        let asked = Asked::Call { context: Some(context), to: Some(to) };
        let ask = |broker: &mut Conversation<Asked>, now| meet(broker, (to, secret), asked, now);
        self.call(ask, as_broker).map_err(|error| match error {
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
        let asked = Asked::Call { context: Some(context), to: None };
        let ask =
            |broker: &mut Conversation<Asked>, now| broker.change_group(group, join, asked, now);
        self.call(ask, OperationError::Group).map_err(|error| match error {
            OperationError::Group(error) => error,
            other => GroupError::Broker { reason: reason_of(other) },
        })
    }

    pub fn invite(
        &mut self,
        within: Duration,
        context: u64,
    ) -> Result<(Ticket, Issued), InviteError> {
        let ticket = Ticket(self.secret());
        let asked = Asked::Call { context: Some(context), to: None };
        let ask = |broker: &mut Conversation<Asked>, now| broker.invite(ticket, within, asked, now);
        match self.call(ask, OperationError::Invite) {
            Ok(issued) => Ok((ticket, issued)),
            Err(OperationError::Invite(error)) => Err(error),
            Err(other) => Err(InviteError::Broker { reason: reason_of(other) }),
        }
    }

    /// The program does not wait for the call with this context any more.
    pub fn give_up(&mut self, context: u64) {
        let mut questions = self.broker.iter_mut().flat_map(Conversation::questions_mut);
        if let Some(asked) = questions.find(|asked| asked.is_of(context))
            && let Asked::Call { context, .. } = asked
        {
            *context = None;
            self.engine.controls_open -= 1;
            return;
        }
        self.engine.give_up(context);
    }

    /// Whether a call with this context has not ended.
    pub fn awaits(&self, context: u64) -> bool {
        let mut questions = self.broker.iter().flat_map(Conversation::questions);
        questions.any(|asked| asked.is_of(context)) || self.engine.awaits(context)
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
        let now = self.engine.now();
        let broker = self.broker.as_mut().ok_or_else(|| not_sent(closed()))?;
        let (ticket, vpid) = (broker.next_ticket(), broker.vpid());
        let request = AskAllMembers { ticket, vpid, group: group.number() };
        let asked = broker.ask(ticket, request, &[], Asked::Members(group), now);
        asked.map_err(|error| not_sent(as_broker(error)))?;
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
            let (now, to) = (self.engine.now(), (*member, self.secret()));
            let broker = self.broker.as_mut().ok_or_else(|| not_sent(closed()))?;
            let asked = meet(broker, to, Asked::Member(*member), now);
            asked.map_err(|error| not_sent(as_broker(error)))?;
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

/// Asks for a meeting with the endpoint at an address, with this secret. Returns the ticket.
fn meet(
    broker: &mut Conversation<Asked>,
    (to, secret): (EndpointAddress, [u8; 16]),
    asked: Asked,
    now: Duration,
) -> Result<u32, BrokerError> {
    let (ticket, vpid) = (broker.next_ticket(), broker.vpid());
    let (node, peer, secret) = (to.node.0, to.vpid.0, Secret(secret));
    broker.ask(ticket, Meet { ticket, vpid, node, peer, secret }, &[], asked, now)?;
    Ok(ticket)
}

fn closed() -> OperationError {
    OperationError::Broker { reason: "the endpoint is closed".to_owned() }
}

fn as_broker(error: BrokerError) -> OperationError {
    OperationError::Broker { reason: error.to_string() }
}

/// Why a message to a group could not be sent.
fn not_sent(error: OperationError) -> SendError {
    SendError::Broker { reason: reason_of(error) }
}

fn reason_of(error: OperationError) -> String {
    match error {
        OperationError::Broker { reason } => reason,
        other => other.to_string(),
    }
}
