//! An endpoint's conversation with the broker: questions and their answers, news, and the
//! announcement to a broker that was restarted. Each transport has one for each endpoint.
//!
//! The endpoint asks by [`Conversation::ask`] and hears by [`Conversation::hear`], which also looks
//! after the connection and the time. Nothing here waits but opening and closing. `Q` is what the
//! transport keeps of a question until it ends.
//!
//! # Invariants
//! - Each question ends once: with its answer, with the connection, or when its time is over. One
//!   that was put off ends when it is asked and ends, or when its time is over.
//! - A broker that was restarted hears of the endpoint, its groups and its port before anything
//!   else, and from the beginning if it is restarted once more. An endpoint that another connection
//!   has opened is announced by that one, and this connection waits for it.
//! - A broker that does not answer the announcement hears it once: it would find the address taken.
//! - Messages for other endpoints and answers that nobody waits for are dropped. A meeting that
//!   nobody waits for is ended.

mod account;
mod heard;
mod questions;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use weft_fabric::{
    EndpointAddress, Group, GroupError, InviteError, OpenError, Partition, Ticket, Vpid,
};
use weft_wire::endpoint_control::{
    Close, EndpointControl, Invitation, Invite, Join, Leave, Met, NoPort, Part, PortName, flags,
    status,
};

use self::account::{Account, Said};
pub use self::heard::{Answer, Heard, Told, Unanswered};
use self::questions::{Form, Questions};
use crate::calls::{self, Opened};
use crate::{ANSWER_WITHIN, BrokerError, Client, Connection, Received, Waker, ticket_of};

/// How soon a broker is asked again that has not heard of the endpoint from another connection.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How an endpoint is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Its partition, and the way into it.
    pub partition: Partition,
    /// The VPID wanted.
    pub vpid: Vpid,
    /// A random number that differs from that of a later endpoint with the same VPID.
    pub birth: u64,
    /// The bits of [`flags`] that peers have to know.
    pub flags: u32,
    /// Slots of the rings that it owns.
    pub slots: u32,
    /// Its peers at most.
    pub peers_max: usize,
}

/// The port of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortOffer {
    /// The messages that fit in its mailbox.
    pub depth: u32,
    /// Its name.
    pub name: PortName,
}

/// The broker's knowledge of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announcement {
    /// It knows the endpoint, or there is no broker.
    Known,
    /// The connection is new, and its broker has said nothing.
    Expected,
    /// It has to be told, at this time.
    Due(Duration),
    /// It was told in the request with this ticket. Nobody waits for the answer after `until`, but
    /// it is taken.
    Said {
        /// The ticket.
        ticket: u32,
        /// The end of the wait.
        until: Duration,
    },
    /// It knows the endpoint, which still has to name its pairs.
    Naming,
    /// Another endpoint has the address by now.
    Replaced,
}

/// The conversation.
pub struct Conversation<Q> {
    client: Box<dyn Client>,
    opened: Opened,
    account: Account,
    silence: Option<Duration>,
    /// The groups that were joined, one bit each.
    joined: u64,
    announcement: Announcement,
    ticket: u32,
    questions: Questions<Q>,
    /// To be heard before the next message.
    ended: VecDeque<Heard<Q>>,
}

impl<Q> std::fmt::Debug for Conversation<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { opened, announcement, .. } = self;
        f.debug_struct("Conversation")
            .field("opened", opened)
            .field("announcement", announcement)
            .finish_non_exhaustive()
    }
}

impl<Q> Conversation<Q> {
    /// Opens an endpoint with memory, of which peers get the descriptors `shown`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        client: Box<dyn Client>,
        opening: Opening,
        shown: &[BorrowedFd<'_>],
    ) -> Result<Self, OpenError> {
        Self::enter(client, opening, shown)
    }

    /// Opens an endpoint to which a port alone leads. `counts` is the file with the port's
    /// counters.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with_port(
        client: Box<dyn Client>,
        opening: Opening,
        port: PortOffer,
        counts: BorrowedFd<'_>,
    ) -> Result<Self, OpenError> {
        let opening = Opening { flags: opening.flags | flags::PORT, ..opening };
        let mut conversation = Self::enter(client, opening, &[])?;
        conversation.account.add_port(port);
        conversation.tell_port(counts)?;
        Ok(conversation)
    }

    /// Says the port of an endpoint that another connection has opened, and that has this birth.
    ///
    /// # Errors
    /// [`OpenError`] when the broker does not know the endpoint.
    pub fn attach(
        client: Box<dyn Client>,
        opened: Opened,
        birth: u64,
        port: PortOffer,
        counts: BorrowedFd<'_>,
    ) -> Result<Self, OpenError> {
        let mut conversation = Self::begun(client, opened, Account::attached(birth, port));
        conversation.tell_port(counts)?;
        Ok(conversation)
    }

    fn enter(
        mut client: Box<dyn Client>,
        opening: Opening,
        files: &[BorrowedFd<'_>],
    ) -> Result<Self, OpenError> {
        let open = account::first(&opening);
        let opened = calls::open(client.as_mut(), open, opening.partition, files)?;
        Ok(Self::begun(client, opened, Account::opened(&opening, opened.partition)))
    }

    fn begun(client: Box<dyn Client>, opened: Opened, account: Account) -> Self {
        Self {
            client,
            opened,
            account,
            silence: None,
            joined: 0,
            announcement: Announcement::Known,
            ticket: 1,
            questions: Questions::new(),
            ended: VecDeque::new(),
        }
    }

    fn tell_port(&mut self, counts: BorrowedFd<'_>) -> Result<(), OpenError> {
        let ticket = self.next_ticket();
        let Some(request) = self.account.port(ticket, self.vpid()) else { return Ok(()) };
        let answer = self.client.call(request, ticket, &[counts]).map_err(calls::no_broker)?;
        let silence = calls::silence_in(&answer.message);
        self.silence = silence.map_err(calls::no_broker)?;
        Ok(())
    }

    /// The endpoint, as it was opened.
    #[must_use]
    pub const fn opened(&self) -> Opened {
        self.opened
    }

    /// How long a peer may be silent before it is down, if the broker says so.
    #[must_use]
    pub const fn silence(&self) -> Option<Duration> {
        self.silence
    }

    /// The VPID of the endpoint, as requests have it.
    #[must_use]
    pub const fn vpid(&self) -> u16 {
        self.opened.address.vpid.0
    }

    /// The broker's knowledge of the endpoint.
    #[must_use]
    pub const fn announcement(&self) -> Announcement {
        self.announcement
    }

    /// Whether a broker that was restarted has to hear of the endpoint from another connection
    /// first.
    #[must_use]
    pub const fn awaits_other(&self) -> bool {
        self.account.is_attached()
            && matches!(self.announcement, Announcement::Due(_) | Announcement::Said { .. })
    }

    /// Whether the announcement goes on and the endpoint has to look after it. Polls ask this.
    #[inline]
    #[must_use]
    pub fn is_announcing(&self, now: impl FnOnce() -> Duration) -> bool {
        !matches!(self.announcement, Announcement::Known) && self.goes_on(now())
    }

    #[cold]
    fn goes_on(&self, now: Duration) -> bool {
        match self.announcement {
            Announcement::Known | Announcement::Replaced => false,
            Announcement::Expected | Announcement::Due(_) | Announcement::Naming => true,
            Announcement::Said { until, .. } => now < until,
        }
    }

    /// Whether the next step of the announcement waits for nobody, so that the endpoint must not
    /// sleep.
    #[must_use]
    pub const fn has_steps(&self) -> bool {
        matches!(self.announcement, Announcement::Due(_) | Announcement::Naming)
    }

    /// See [`Client::line`].
    #[must_use]
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.client.line()
    }

    /// See [`Client::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.client.is_lost()
    }

    /// See [`Client::wake_by`].
    pub fn wake_by(&mut self, waker: Waker) {
        self.client.wake_by(waker);
    }

    /// The ticket of the next question. It is not 0.
    pub const fn next_ticket(&mut self) -> u32 {
        self.ticket = if self.ticket == u32::MAX { 1 } else { self.ticket + 1 };
        self.ticket
    }

    /// Asks a question by a request with this ticket. Never blocks.
    ///
    /// # Errors
    /// The broker cannot be asked, or does not know the endpoint.
    pub fn ask(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
        question: Q,
        now: Duration,
    ) -> Result<(), BrokerError> {
        self.ask_until(ticket, request, files, question, now.saturating_add(ANSWER_WITHIN))
    }

    /// As [`Conversation::ask`]. The question ends at this time at the latest, which is not earlier
    /// than that of a question with a lower ticket.
    ///
    /// # Errors
    /// As for [`Conversation::ask`].
    pub fn ask_until(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
        question: Q,
        until: Duration,
    ) -> Result<(), BrokerError> {
        let refused = |reason: &str| Err(BrokerError::Unreachable { reason: reason.to_owned() });
        match self.announcement {
            Announcement::Replaced => {
                return refused("it does not know this endpoint any more; open a new one");
            }
            Announcement::Due(_) => return refused("the node daemon was started anew; try again"),
            Announcement::Said { .. } if self.account.is_attached() => {
                return refused("the node daemon was started anew; try again");
            }
            _ => {}
        }
        let request = request.into();
        let form = Form::of(&request);
        self.client.start(request, files)?;
        self.questions.add(ticket, question, form, until);
        Ok(())
    }

    /// Asks to join or leave a group. The answer is [`Answer::Group`]. Returns the ticket.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn change_group(
        &mut self,
        group: Group,
        join: bool,
        question: Q,
        now: Duration,
    ) -> Result<u32, GroupError> {
        if group == Group::BROADCAST {
            return Err(GroupError::Broadcast);
        }
        let (ticket, vpid, group) = (self.next_ticket(), self.vpid(), group.number());
        let request: EndpointControl = if join {
            Join { ticket, vpid, group }.into()
        } else {
            Leave { ticket, vpid, group }.into()
        };
        self.ask(ticket, request, &[], question, now)?;
        Ok(ticket)
    }

    /// Asks to let one endpoint in by a ticket, for a time. The answer is [`Answer::Invited`].
    /// Returns the ticket of the question.
    ///
    /// # Errors
    /// [`InviteError`].
    pub fn invite(
        &mut self,
        invitation: Ticket,
        within: Duration,
        question: Q,
        now: Duration,
    ) -> Result<u32, InviteError> {
        if within.is_zero() || within > Ticket::WITHIN_MAX {
            return Err(InviteError::InvalidTime);
        }
        let within_ms = u32::try_from(within.as_millis().max(1)).unwrap_or(u32::MAX);
        let (ticket, vpid, invitation) =
            (self.next_ticket(), self.vpid(), Invitation(invitation.0));
        let invite = Invite { ticket, vpid, within_ms, invitation };
        self.ask(ticket, invite, &[], question, now)?;
        Ok(ticket)
    }

    /// Keeps a question that is asked later, with this ticket. It ends at this time at the latest.
    pub fn put_off(&mut self, ticket: u32, question: Q, until: Duration) {
        self.questions.add(ticket, question, Form::PutOff, until);
    }

    /// Takes the questions that were put off and are to be asked now.
    pub fn take_put_off(&mut self, is_time: impl FnMut(&Q) -> bool) -> Vec<(u32, Q, Duration)> {
        self.questions.take_put_off(is_time)
    }

    /// Whether any question has not ended.
    #[inline]
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.questions.is_empty()
    }

    /// The questions that have not ended.
    #[must_use]
    pub fn questions(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.questions.all()
    }

    /// The same, to be changed.
    pub fn questions_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.questions.all_mut()
    }

    /// The time at which the oldest question has waited too long.
    #[must_use]
    pub fn next_late(&self) -> Option<Duration> {
        self.questions.next_late()
    }

    /// Says something that has no answer. A broker that is gone does not hear it, and one that is
    /// restarted is told everything.
    pub fn tell(&mut self, message: impl Into<EndpointControl>) {
        let _ = self.client.start(message.into(), &[]);
    }

    /// The pairs are named to a broker that was restarted: it knows everything.
    pub fn named_all(&mut self) {
        if self.announcement == Announcement::Naming {
            self.announcement = Announcement::Known;
        }
    }

    /// The endpoint opens no port from now on.
    pub fn refuse_port(&mut self) {
        // A broker that is restarted hears it with the announcement.
        self.account.refuse_port();
        let vpid = self.vpid();
        self.tell(NoPort { vpid });
    }

    /// Ends the endpoint at the broker, and waits until it is done. Where that fails, the broker
    /// notices the end of the connection.
    pub fn close(&mut self) {
        let (ticket, vpid) = (self.next_ticket(), self.vpid());
        let _ = self.client.call(Close { ticket, vpid }.into(), ticket, &[]);
    }

    /// The next that there is to hear. `shown` are the descriptors that go with an announcement:
    /// those with which the endpoint was opened, or the file with the counters of its port. Never
    /// blocks.
    pub fn hear(&mut self, now: Duration, shown: &[BorrowedFd<'_>]) -> Option<Heard<Q>> {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return Some(ended);
            }
            if let Some(received) = self.client.next() {
                let heard = self.take(received, now);
                if heard.is_some() {
                    return heard;
                }
            } else if !self.look_after(now, shown) {
                return self.ended.pop_front();
            }
        }
    }

    /// Looks at the connection and the time. True when the broker was asked something.
    fn look_after(&mut self, now: Duration, shown: &[BorrowedFd<'_>]) -> bool {
        let restarted = self.client.reconnected();
        if restarted {
            self.ended.push_back(Heard::Restarted);
        }
        if restarted || self.client.is_lost() {
            self.give_up(Unanswered::Gone, |questions| questions.take_asked());
        }
        self.give_up(Unanswered::Late, |questions| questions.take_late(now));
        match self.client.connection() {
            Connection::Lost if self.announcement == Announcement::Replaced => {}
            Connection::Lost => self.announcement = Announcement::Known,
            Connection::Greeting => self.announcement = Announcement::Expected,
            Connection::Open if restarted => self.announcement = Announcement::Due(now),
            Connection::Open => {}
        }
        matches!(self.announcement, Announcement::Due(at) if at <= now) && self.announce(now, shown)
    }

    fn give_up(&mut self, why: Unanswered, take: impl Fn(&mut Questions<Q>) -> Option<(u32, Q)>) {
        while let Some((ticket, question)) = take(&mut self.questions) {
            self.ended.push_back(Heard::Unanswered { ticket, question, why });
        }
    }

    /// Tells a broker that was restarted of the endpoint. False when that could not be sent; the
    /// next look tries again.
    fn announce(&mut self, now: Duration, shown: &[BorrowedFd<'_>]) -> bool {
        let (ticket, vpid) = (self.next_ticket(), self.vpid());
        let files =
            if self.account.has_memory() || self.account.is_attached() { shown } else { &[] };
        if self.client.start(self.account.again(ticket, vpid), files).is_err() {
            return false;
        }
        let until = now.saturating_add(ANSWER_WITHIN);
        self.announcement = Announcement::Said { ticket, until };
        // Before any request of the program, which may be to leave one of them.
        let joined = self.joined;
        for group in (0..64).filter(|group| joined & (1 << group) != 0) {
            let ticket = self.next_ticket();
            self.tell(Join { ticket, vpid, group });
        }
        if !self.account.is_attached() {
            let ticket = self.next_ticket();
            if let Some(port) = self.account.port(ticket, vpid) {
                let _ = self.client.start(port, shown);
            }
        }
        true
    }

    fn take(&mut self, received: Received, now: Duration) -> Option<Heard<Q>> {
        let Received { message, files } = received;
        match (ticket_of(&message), self.announcement) {
            (Some(ticket), Announcement::Said { ticket: of, .. }) if of == ticket => {
                self.announced(&message, now)
            }
            (Some(ticket), _) => {
                let unwanted = match &message {
                    &EndpointControl::Met(Met { node, peer, secret, .. })
                        if !self.questions.awaits_meeting(ticket) =>
                    {
                        Some(Part { vpid: self.vpid(), node, peer, secret })
                    }
                    _ => None,
                };
                if let Some(part) = unwanted {
                    self.tell(part);
                    return None;
                }
                let (question, answer) =
                    self.questions.answer(ticket, message, files, self.opened.address)?;
                if let Answer::Group(Ok(()), group, join) = answer {
                    let bit = 1 << group.number();
                    self.joined = if join { self.joined | bit } else { self.joined & !bit };
                }
                Some(Heard::Answer { ticket, question, answer })
            }
            (None, _) => Told::of(message, files, self.vpid()).map(Heard::Told),
        }
    }

    /// The broker answered the announcement.
    fn announced(&mut self, message: &EndpointControl, now: Duration) -> Option<Heard<Q>> {
        let own: EndpointAddress = self.opened.address;
        match self.account.said(message)? {
            Said::At(address) if address == own => {
                self.announcement = Announcement::Naming;
                Some(Heard::KnownAgain)
            }
            // Another endpoint was faster: this one stays, without the name.
            Said::Refused(status::NAME_TAKEN) if self.account.give_up_name() => {
                self.announcement = Announcement::Due(now);
                None
            }
            // The connection that opened the endpoint is not as far.
            Said::Refused(status::NOT_FOUND) if self.account.is_attached() => {
                self.announcement = Announcement::Due(now.saturating_add(AGAIN_AFTER));
                None
            }
            // Too late: another endpoint has the address, and the peers were told of the end of
            // this one.
            Said::At(_) | Said::Refused(_) => {
                self.announcement = Announcement::Replaced;
                Some(Heard::Replaced)
            }
        }
    }

    /// All questions wait so much longer, and so does the announcement, at once.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn age(&mut self, time: Duration) {
        self.questions.age(time);
        if let Announcement::Said { until, .. } = &mut self.announcement {
            *until = until.saturating_sub(time);
        }
    }
}

#[cfg(test)]
mod tests;
