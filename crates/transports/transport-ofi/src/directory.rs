//! An endpoint's connection to the broker, which introduces it to others: questions become the
//! broker's messages, and its messages become news.
//!
//! # Invariants
//! - Each question ends: with its answer, with the connection, or after [`ANSWER_WITHIN`].
//! - A broker that is restarted is told of the endpoint, its groups and its peers before anything
//!   else. An endpoint that another transport has opened is told of by that one, and this
//!   connection waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use weft_broker::answers::{self, PortKnown};
use weft_broker::calls::{self, Opened};
use weft_broker::{ANSWER_WITHIN, BrokerError, Client, Connection, Waker};
use weft_fabric::{
    ConnectError, EndpointAddress, Group, GroupError, NodeId, OpenError, OperationError, Partition,
    ServiceName, Ticket, Vpid,
};
use weft_wire::endpoint_control::{
    AskAllMembers, Attach, Doubt, EndpointControl, Invitation, Invite, Join, Leave, Meet,
    MembersOf, Met, Open, Part, Port, PortName, Recall, Reply, Secret, flags, gone, status,
};
use weft_wire::versions::PACKETS;

/// How often a connection is looked at while the program polls.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a broker that is gone is looked for.
const SEEK_EVERY: Duration = Duration::from_millis(20);

/// An endpoint's question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// To meet the endpoint at an address, with this secret.
    Connect(EndpointAddress, [u8; 16]),
    /// To join a group.
    Join(Group),
    /// To leave a group.
    Leave(Group),
    /// To let one endpoint in by a ticket, for a time.
    Invite(Ticket, Duration),
    /// To learn the other members of a group.
    Members(Group),
}

/// The answer to a question that was good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It is done.
    Done,
    /// The peer.
    Introduced(Introduction),
    /// The other members.
    Members(Vec<EndpointAddress>),
}

/// A new pair, as each of its ends is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Introduction {
    /// The peer's address.
    pub address: EndpointAddress,
    /// The name of its port.
    pub name: Vec<u8>,
    /// The secret that both ends show each other.
    pub secret: [u8; 16],
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
    /// Whether this end greets first. The other waits for the greeting: of two connections that are
    /// opened at the same time some providers lose one, with what went over it.
    pub greets_first: bool,
}

/// News for an endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// The answer to the question with this number.
    Answer(u32, Result<Answer, OperationError>),
    /// A peer has connected.
    Introduced(Introduction),
    /// The endpoint at this address, which had a pair with this secret, has ended.
    Ended(EndpointAddress, [u8; 16]),
    /// No way leads to the peer at this address for now, or (`false`) one leads there again.
    Apart(EndpointAddress, bool),
    /// The peer at this address is stopped, as its host says.
    Stands(EndpointAddress),
    /// No way has led to the peer at this address for the promised silence.
    Unreachable(EndpointAddress),
    /// The members of these groups have changed, by a bit for each.
    Groups(u64),
    /// A broker that was restarted wants to know the peers ([`Directory::recall`]).
    Recall,
    /// A broker that was restarted has given the address to another endpoint.
    Replaced,
}

/// A pair that is told to a broker that was restarted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub address: EndpointAddress,
    pub secret: [u8; 16],
    pub greets_first: bool,
}

/// How an endpoint is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    /// The VPID wanted.
    pub vpid: Vpid,
    /// The partition, and the way into it.
    pub partition: Partition,
    /// A random number that differs from that of a later endpoint with the same VPID.
    pub birth: u64,
    /// The name of its port.
    pub name: Vec<u8>,
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
    /// Its peers at most.
    pub peers_max: usize,
}

/// The port of an endpoint that another transport has opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attaching {
    /// The endpoint.
    pub opened: Opened,
    /// The random number of the endpoint.
    pub birth: u64,
    /// The name of the port.
    pub name: Vec<u8>,
    /// The messages that fit in its mailbox.
    pub mailbox_depth: usize,
}

/// How the broker came to know the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entrance {
    /// This connection opened it, and offers its partition by this name.
    Opened(Open, Option<ServiceName>),
    /// Another connection did. The endpoint has this birth.
    Attached(u64),
}

/// The broker's knowledge of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Announcement {
    Known,
    /// It was restarted, and another connection has not opened the endpoint again yet. It is asked
    /// again at this time.
    Awaited(Duration),
    /// The broker was restarted, and is told of the endpoint in the request with this ticket.
    Greeting(u32),
    /// The same where another connection opens the endpoint again.
    Attaching(u32),
    /// Another endpoint has the address by now.
    Replaced,
}

/// A question without an answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    question: Question,
    until: Duration,
}

/// The connection.
pub(crate) struct Directory {
    client: Box<dyn Client>,
    opened: Opened,
    silence: Option<Duration>,
    entrance: Entrance,
    port: Port,
    /// The file with the counters of the port.
    counts: OwnedFd,
    /// One bit for each group that was joined.
    joined: u64,
    standing: Announcement,
    ticket: u32,
    asked: BTreeMap<u32, Asked>,
    /// Members of which more are to come.
    gathering: BTreeMap<u32, Vec<EndpointAddress>>,
    news: VecDeque<News>,
    looked: Duration,
}

fn broker(reason: impl std::fmt::Display) -> OperationError {
    OperationError::Broker { reason: reason.to_string() }
}

impl Directory {
    /// Opens an endpoint at the broker.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        mut client: Box<dyn Client>,
        opening: &Opening,
        counts: OwnedFd,
    ) -> Result<Self, OpenError> {
        let mut open = calls::way_into(opening.partition);
        open.flags |= flags::PORT;
        (open.ticket, open.birth, open.vpid) = (1, opening.birth, opening.vpid.0);
        open.peers_max = u16::try_from(opening.peers_max).unwrap_or(u16::MAX);
        let depth = u32::try_from(opening.mailbox_depth).unwrap_or(u32::MAX);
        let name = named(&opening.name)?;
        let opened = calls::open(client.as_mut(), open, opening.partition, &[])?;
        let port = Port { ticket: 2, vpid: opened.address.vpid.0, depth, name };
        let offers = match opening.partition {
            Partition::Offered(_, name) => Some(name),
            _ => None,
        };
        Self::told(client, opened, Entrance::Opened(open, offers), (port, counts), port.into())
    }

    /// Says the port of an endpoint that another transport has opened.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn attach(
        client: Box<dyn Client>,
        to: &Attaching,
        counts: OwnedFd,
    ) -> Result<Self, OpenError> {
        let name = named(&to.name)?;
        let depth = u32::try_from(to.mailbox_depth).unwrap_or(u32::MAX);
        let port = Port { ticket: 2, vpid: to.opened.address.vpid.0, depth, name };
        let attach = attach_of(to.birth, port);
        let entrance = Entrance::Attached(to.birth);
        Self::told(client, to.opened, entrance, (port, counts), attach.into())
    }

    /// Tells the broker of the port by this request.
    fn told(
        mut client: Box<dyn Client>,
        opened: Opened,
        entrance: Entrance,
        (port, counts): (Port, OwnedFd),
        request: EndpointControl,
    ) -> Result<Self, OpenError> {
        let answer =
            client.call(request, port.ticket, &[counts.as_fd()]).map_err(calls::no_broker)?;
        let silence_ms = match answer.message {
            EndpointControl::Reply(reply) if reply.status == status::DONE => {
                PortKnown::of(&reply).silence_ms
            }
            _ => return Err(calls::no_broker(BrokerError::InvalidAnswer)),
        };
        Ok(Self {
            client,
            opened,
            silence: (silence_ms > 0).then(|| Duration::from_millis(silence_ms)),
            entrance,
            port,
            counts,
            joined: 0,
            standing: Announcement::Known,
            ticket: 2,
            asked: BTreeMap::new(),
            gathering: BTreeMap::new(),
            news: VecDeque::new(),
            looked: Duration::ZERO,
        })
    }

    /// The endpoint that was opened.
    pub const fn opened(&self) -> Opened {
        self.opened
    }

    /// How long a peer may be silent before it is down, if the broker says so.
    pub const fn silence(&self) -> Option<Duration> {
        self.silence
    }

    /// See [`Client::wake_by`].
    pub fn wake_by(&mut self, waker: Waker) {
        self.client.wake_by(waker);
    }

    /// Whether a broker that was restarted has to hear of the endpoint from another connection
    /// first.
    pub const fn awaits_other(&self) -> bool {
        matches!(self.standing, Announcement::Awaited(_) | Announcement::Attaching(_))
    }

    /// A descriptor that is readable when there may be news, while the broker is there.
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.client.line().filter(|_| !self.client.is_lost())
    }

    /// Whether it is time to look for news that no waker tells of.
    pub fn is_due(&self, now: Duration) -> bool {
        let every = if self.client.is_lost() { SEEK_EVERY } else { LOOK_EVERY };
        self.client.line().is_some() && now.saturating_sub(self.looked) >= every
    }

    fn next_ticket(&mut self) -> u32 {
        self.ticket = self.ticket.wrapping_add(1).max(1);
        self.ticket
    }

    /// Asks a question, whose answer comes from [`Directory::next`] with the number that is
    /// returned. Never blocks.
    ///
    /// # Errors
    /// Why the broker cannot be asked.
    pub fn ask(&mut self, question: Question, now: Duration) -> Result<u32, String> {
        if self.standing == Announcement::Replaced {
            return Err("it does not know this endpoint any more; open a new one".to_owned());
        }
        if self.awaits_other() {
            return Err("the node daemon was started anew; try again".to_owned());
        }
        let ticket = self.next_ticket();
        let vpid = self.opened.address.vpid.0;
        let request = match question {
            Question::Connect(to, secret) => {
                let (node, peer, secret) = (to.node.0, to.vpid.0, Secret(secret));
                Meet { ticket, vpid, node, peer, secret }.into()
            }
            Question::Join(group) => Join { ticket, vpid, group: group.number() }.into(),
            Question::Leave(group) => Leave { ticket, vpid, group: group.number() }.into(),
            Question::Invite(invitation, within) => {
                let within_ms = u32::try_from(within.as_millis().max(1)).unwrap_or(u32::MAX);
                let invitation = Invitation(invitation.0);
                Invite { ticket, vpid, within_ms, invitation }.into()
            }
            Question::Members(group) => {
                AskAllMembers { ticket, vpid, group: group.number() }.into()
            }
        };
        self.client.start(request, &[]).map_err(|error| error.to_string())?;
        self.asked.insert(ticket, Asked { question, until: now + ANSWER_WITHIN });
        Ok(ticket)
    }

    /// Ends a pair. A broker that is gone finds out by itself.
    pub fn part(&mut self, with: EndpointAddress, secret: [u8; 16]) {
        let (vpid, secret) = (self.opened.address.vpid.0, Secret(secret));
        let part = Part { vpid, node: with.node.0, peer: with.vpid.0, secret };
        let _ = self.client.start(part.into(), &[]);
    }

    /// Asks the host of a peer whether it is stopped. There is an answer ([`News::Stands`]) if it
    /// is.
    pub fn doubt(&mut self, peer: EndpointAddress) {
        let vpid = self.opened.address.vpid.0;
        let doubt = Doubt { vpid, node: peer.node.0, peer: peer.vpid.0 };
        // Without a broker there is no answer either.
        let _ = self.client.start(doubt.into(), &[]);
    }

    /// Tells a broker that was restarted of the peers.
    pub fn recall(&mut self, pairs: &[Known]) {
        let vpid = self.opened.address.vpid.0;
        for Known { address, secret, greets_first } in pairs {
            let (node, peer, secret) = (address.node.0, address.vpid.0, Secret(*secret));
            let greets_first = u8::from(*greets_first);
            let recall = Recall { vpid, node, peer, secret, greets_first };
            // This fails with the connection, and then all begins again.
            let _ = self.client.start(recall.into(), &[]);
        }
    }

    /// The next news. Never blocks.
    pub fn next(&mut self, now: Duration) -> Option<News> {
        if self.news.is_empty() {
            self.looked = now;
            self.look(now);
        }
        self.news.pop_front()
    }

    fn look(&mut self, now: Duration) {
        while let Some(received) = self.client.next() {
            self.take(received.message, now);
        }
        if self.client.reconnected() {
            self.greet(now);
        }
        if let Announcement::Awaited(again) = self.standing
            && again <= now
        {
            self.greet(now);
        }
        let is_lost = self.client.connection() == Connection::Lost;
        let is_over = |asked: &Asked| is_lost || asked.until <= now;
        let over: Vec<u32> = self
            .asked
            .iter()
            .filter(|(_, asked)| is_over(asked))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.asked.remove(&number);
            self.gathering.remove(&number);
            let reason = if is_lost { "it is gone" } else { "it did not answer in time" };
            self.news.push_back(News::Answer(number, Err(broker(reason))));
        }
    }

    /// Tells a broker that was restarted of the endpoint.
    fn greet(&mut self, now: Duration) {
        match self.entrance {
            Entrance::Opened(open, offers) => self.open_again(open, offers),
            Entrance::Attached(birth) => {
                let ticket = self.next_ticket();
                let attach = attach_of(birth, Port { ticket, ..self.port });
                self.standing = match self.client.start(attach.into(), &[self.counts.as_fd()]) {
                    Ok(()) => Announcement::Attaching(ticket),
                    Err(_) => Announcement::Awaited(now + SEEK_EVERY),
                };
            }
        }
    }

    fn open_again(&mut self, former: Open, offers: Option<ServiceName>) {
        let ticket = self.next_ticket();
        let partition = match offers {
            Some(name) => Partition::Offered(self.opened.partition, name),
            None => Partition::Numbered(self.opened.partition),
        };
        let way = calls::way_into(partition);
        let vpid = self.opened.address.vpid.0;
        let flags = way.flags | flags::AGAIN | flags::PORT;
        let open = Open { ticket, vpid, flags, ..way };
        let open = Open { birth: former.birth, peers_max: former.peers_max, ..open };
        if self.client.start(open.into(), &[]).is_err() {
            return;
        }
        self.standing = Announcement::Greeting(ticket);
        let joined = self.joined;
        for group in (0..63).filter(|group| joined & (1 << group) != 0) {
            let ticket = self.next_ticket();
            let _ = self.client.start(Join { ticket, vpid, group }.into(), &[]);
        }
        let port = Port { ticket: self.next_ticket(), ..self.port };
        let _ = self.client.start(port.into(), &[self.counts.as_fd()]);
    }

    /// The broker answered the announcement.
    fn greeted(&mut self, refused: Option<u16>) {
        match refused {
            None => {
                self.standing = Announcement::Known;
                self.news.extend([News::Recall, News::Groups(u64::MAX)]);
            }
            // Another endpoint was faster: this one stays, without the name.
            Some(status::NAME_TAKEN) if let Entrance::Opened(open, Some(_)) = self.entrance => {
                self.entrance = Entrance::Opened(open, None);
                self.open_again(open, None);
            }
            Some(_) => {
                self.standing = Announcement::Replaced;
                self.news.push_back(News::Replaced);
            }
        }
    }

    /// The broker answered the announcement of an endpoint that another connection has opened.
    fn attached(&mut self, reply: Reply, now: Duration) {
        let is_same = PortKnown::of(&reply).address == self.opened.address;
        match reply.status {
            status::DONE if is_same => self.greeted(None),
            // The other connection is not as far.
            status::NOT_FOUND => self.standing = Announcement::Awaited(now + SEEK_EVERY),
            _ => self.greeted(Some(reply.status)),
        }
    }

    fn take(&mut self, message: EndpointControl, now: Duration) {
        let own = self.opened.address.vpid.0;
        match message {
            EndpointControl::Reply(reply)
                if Announcement::Attaching(reply.ticket) == self.standing =>
            {
                self.attached(reply, now);
            }
            EndpointControl::Reply(reply)
                if Announcement::Greeting(reply.ticket) == self.standing =>
            {
                self.greeted(Some(reply.status));
            }
            EndpointControl::Opened(opened)
                if Announcement::Greeting(opened.ticket) == self.standing =>
            {
                // A daemon with another number has another address for it.
                let is_same = opened.node == self.opened.address.node.0;
                self.greeted((!is_same).then_some(status::IN_USE));
            }
            EndpointControl::Reply(reply) => {
                if let Some(asked) = self.asked.remove(&reply.ticket) {
                    let result = self.meaning(asked.question, reply);
                    self.news.push_back(News::Answer(reply.ticket, result));
                }
            }
            EndpointControl::MembersOf(part) => self.gather(part),
            EndpointControl::Met(met) if met.vpid == own => self.met(&met),
            EndpointControl::Parted(parted) if parted.vpid == own => {
                let with = EndpointAddress::new(NodeId(parted.node), Vpid(parted.peer));
                self.news.push_back(News::Ended(with, parted.secret.0));
            }
            EndpointControl::Held(held) if held.vpid == own => {
                let peer = EndpointAddress::new(NodeId(held.node), Vpid(held.peer));
                self.news.push_back(News::Apart(peer, held.is_held != 0));
            }
            EndpointControl::Stands(stands) if stands.vpid == own => {
                let peer = EndpointAddress::new(NodeId(stands.node), Vpid(stands.peer));
                self.news.push_back(News::Stands(peer));
            }
            EndpointControl::PeerGone(lost)
                if lost.vpid == own && lost.reason == gone::UNREACHABLE =>
            {
                let peer = EndpointAddress::new(NodeId(lost.node), Vpid(lost.peer));
                self.news.push_back(News::Unreachable(peer));
            }
            EndpointControl::GroupsChanged(changed) if changed.vpid == own => {
                self.news.push_back(News::Groups(changed.groups));
            }
            // Another message is not for an endpoint over a port.
            _ => {}
        }
    }

    fn met(&mut self, met: &Met) {
        let address = EndpointAddress::new(NodeId(met.node), Vpid(met.peer));
        let asked = self.asked.remove(&met.ticket);
        let name = match name_in(met.name.bytes().unwrap_or_default()) {
            Ok(name) if met.ticket == 0 || asked.is_some() => name,
            other => {
                // Nobody waits for it any more, or the two ends would not understand each other.
                self.part(address, met.secret.0);
                if let (Err(error), Some(_)) = (other, asked) {
                    let refused = Err(OperationError::Connect(error));
                    self.news.push_back(News::Answer(met.ticket, refused));
                }
                return;
            }
        };
        let introduction = Introduction {
            address,
            name: name.to_vec(),
            secret: met.secret.0,
            mailbox_depth: usize::try_from(met.depth).unwrap_or(usize::MAX),
            greets_first: met.greets_first != 0,
        };
        self.news.push_back(match asked {
            Some(_) => News::Answer(met.ticket, Ok(Answer::Introduced(introduction))),
            None => News::Introduced(introduction),
        });
    }

    fn gather(&mut self, part: MembersOf) {
        if !self.asked.contains_key(&part.ticket) {
            return;
        }
        let members = self.gathering.entry(part.ticket).or_default();
        for (word, bits) in (0_u16..).zip(part.vpids) {
            let of_word = (0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| word * 64 + bit);
            let node = NodeId(part.node);
            members.extend(of_word.map(|vpid| EndpointAddress::new(node, Vpid(vpid))));
        }
        if part.further == 0 {
            self.asked.remove(&part.ticket);
            let members = self.gathering.remove(&part.ticket).unwrap_or_default();
            self.news.push_back(News::Answer(part.ticket, Ok(Answer::Members(members))));
        }
    }

    /// The meaning of a reply.
    fn meaning(&mut self, question: Question, reply: Reply) -> Result<Answer, OperationError> {
        let unknown = OperationError::Group(GroupError::UnknownEndpoint);
        match (question, reply.status) {
            (Question::Join(group), status::DONE) => {
                self.joined |= 1 << group.number();
                Ok(Answer::Done)
            }
            (Question::Leave(group), status::DONE) => {
                self.joined &= !(1 << group.number());
                Ok(Answer::Done)
            }
            (Question::Join(_) | Question::Leave(_), status::NOT_FOUND) => Err(unknown),
            (Question::Invite(..), _) => {
                calls::invited(reply).map_err(OperationError::Invite)?;
                Ok(Answer::Done)
            }
            (Question::Connect(to, _), _) => Err(OperationError::Connect(refused(to, &reply))),
            _ => Err(broker(BrokerError::InvalidAnswer)),
        }
    }
}

/// The name of a port as other endpoints get it: the version of its packets, and the provider's
/// name.
fn named(name: &[u8]) -> Result<PortName, OpenError> {
    let with_version = [&PACKETS.to_le_bytes(), name].concat();
    PortName::of(&with_version).ok_or_else(|| OpenError::Provider {
        reason: format!("its port has a name of {} bytes", name.len()),
    })
}

/// The provider's name of a peer's port.
///
/// # Errors
/// The peer has another version of the packets, or its name is none.
fn name_in(told: &[u8]) -> Result<&[u8], ConnectError> {
    let (version, name) = told.split_first_chunk().ok_or(BrokerError::InvalidAnswer)?;
    let version = u16::from_le_bytes(*version);
    if version == PACKETS {
        return Ok(name);
    }
    let older = if version < PACKETS { "there" } else { "here" };
    Err(ConnectError::Broker {
        reason: format!(
            "the two releases of weft do not work together: the peer's packets have version \
             {version}, and those of this program {PACKETS}; update weft {older}, and start that \
             program anew"
        ),
    })
}

fn attach_of(birth: u64, port: Port) -> Attach {
    let Port { ticket, vpid, depth, name } = port;
    Attach { ticket, vpid, birth, depth, name }
}

/// Why there is no meeting.
fn refused(to: EndpointAddress, reply: &Reply) -> ConnectError {
    match reply.status {
        status::NOT_FOUND => ConnectError::NotFound(to),
        status::EXHAUSTED => ConnectError::Exhausted { maximum: answers::maximum(reply) },
        status::AWAY => ConnectError::Broker {
            reason: format!(
                "no way leads to node {} at present, or it is not joined; try again later",
                to.node.0
            ),
        },
        status::NO_PORT => ConnectError::Broker {
            reason: format!(
                "endpoint {to} opened no port; look there whether libfabric is installed \
                 (`weft info`), and try again"
            ),
        },
        _ => BrokerError::InvalidAnswer.into(),
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
