//! The endpoint and the broker: requests and answers, peers that come and go.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use weft_broker::answers::{Connected, Retracted};
use weft_broker::conversation::{Announcement, Answer, Conversation, Heard, Told, Unanswered};
use weft_broker::{ANSWER_WITHIN, BrokerError, calls};
use weft_fabric::{
    ConnectError, DownReason, EndpointAddress, GrantError, GroupError, InviteError, Issued, NodeId,
    OperationError, Peer, Revoked, Value, Vpid,
};
use weft_wire::endpoint_control::{
    Connect, Disconnect, EndpointControl, Paired, Reply, flags, status,
};

use crate::address_vector::{Acquaintance, PeerState, Standing};
use crate::attention;
use crate::doorbell::Doorbell;
use crate::endpoint::{Leaving, ShmEndpoint};
use crate::moves::Call;
use crate::pair::{Pair, PairMemory};
use crate::recent::Recently;
use crate::registers::Registers;
use crate::requests::{Asked, Question, Waiting};
use crate::rights::resolved_memory;
use crate::sys;

/// Messages of the broker that one look handles. Each may add a peer, which maps memory and takes
/// up to a tenth of a millisecond.
const MESSAGES_PER_LOOK: usize = 4;
/// Longest sleep of [`ShmEndpoint::do_finish`] between two looks.
const FINISH_SLICE: Duration = Duration::from_millis(100);

/// The broker's report about a peer.
struct Introduction {
    address: EndpointAddress,
    flags: u32,
    birth: u64,
    /// The peer's doorbell segment, register segment and wakeup socket.
    files: Vec<OwnedFd>,
}

/// A connect that was asked for.
pub(crate) enum Asking {
    /// The pair is there.
    There(Peer),
    /// The request has this ticket.
    Sent(u32),
}

/// A request that was started.
pub(crate) enum Started {
    /// The answer was there at once.
    Ended(Result<Value, OperationError>),
    /// The answer comes later.
    Pending,
}

impl Started {
    /// The result of the call. An error of the kind that `take` knows is the call's own.
    pub fn issued<E: From<BrokerError>>(
        self,
        take: impl FnOnce(OperationError) -> Option<E>,
    ) -> Result<Issued, E> {
        match self {
            Self::Pending => Ok(Issued::Pending),
            Self::Ended(Ok(value)) => Ok(Issued::Done(value)),
            Self::Ended(Err(error)) => {
                Err(take(error).unwrap_or(BrokerError::InvalidAnswer.into()))
            }
        }
    }
}

impl ShmEndpoint {
    /// Sends a request, whose answer [`ShmEndpoint::handle_broker_messages`] will find.
    pub(crate) fn send_request(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
        asked: Asked,
        context: Option<u64>,
    ) -> Result<(), BrokerError> {
        let until = sys::now().saturating_add(ANSWER_WITHIN);
        self.send_until(ticket, request, files, Question { asked, context }, until)
    }

    /// The same, for a question that ends at this time at the latest.
    pub(crate) fn send_until(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
        question: Question,
        until: Duration,
    ) -> Result<(), BrokerError> {
        if !question.asked.takes_back() {
            self.check_requests()?;
        }
        self.broker.ask_until(ticket, request, files, question, until)
    }

    pub(crate) fn check_requests(&self) -> Result<(), BrokerError> {
        if self.has_many_requests() {
            let reason = "too many requests wait for an answer; poll first".to_owned();
            return Err(BrokerError::Unreachable { reason });
        }
        Ok(())
    }

    /// Sends a request, and takes its answer if it is there at once. First handles earlier
    /// messages.
    pub(crate) fn start_request(
        &mut self,
        ticket: u32,
        request: impl Into<EndpointControl>,
        files: &[BorrowedFd<'_>],
        asked: Asked,
        context: Option<u64>,
    ) -> Result<Started, BrokerError> {
        self.start(asked, context, |broker, question, now| {
            broker.ask(ticket, request, files, question, now).map(|()| ticket)
        })
    }

    /// The same for a question that `ask` asks, and whose ticket it returns.
    pub(crate) fn start<E: From<BrokerError>>(
        &mut self,
        asked: Asked,
        context: Option<u64>,
        ask: impl FnOnce(&mut Conversation<Question>, Question, Duration) -> Result<u32, E>,
    ) -> Result<Started, E> {
        self.handle_broker_messages();
        if !asked.takes_back() {
            self.check_requests()?;
        }
        let ticket = ask(&mut self.broker, Question { asked, context }, sys::now())?;
        self.handle_broker_messages();
        let ended = self.requests.take_ended(ticket);
        Ok(ended.map_or(Started::Pending, Started::Ended))
    }

    /// Handles messages of the broker, and what goes on because of them: moves of own memory, and
    /// keys of peers whose memory moves.
    pub(crate) fn handle_broker_messages(&mut self) {
        self.handle_some_messages();
        self.drive_partings();
        self.drive_moves();
        if self.broker.waits() {
            self.ask_where_settled();
        }
    }

    /// Handles messages of the broker, but not more than a loop has time for: `unread` is then set.
    fn handle_some_messages(&mut self) {
        let (mut left, now) = (MESSAGES_PER_LOOK, sys::now());
        loop {
            self.unread = left == 0;
            if self.unread {
                return self.stir();
            }
            let (doorbell, registers) = (self.doorbell_file.as_fd(), self.registers_file.as_fd());
            let shown = [doorbell, registers, self.doorbell.wakeup()];
            let Some(heard) = self.broker.hear(now, &shown) else { break };
            left -= usize::from(matches!(heard, Heard::Answer { .. } | Heard::Told(_)));
            self.handle_heard(heard, now);
        }
        if self.broker.announcement() == Announcement::Expected {
            self.watch_line();
        }
        self.name_some();
        self.stir();
    }

    /// The line may be a new one.
    fn watch_line(&self) {
        if let (Some(wakeup_and_line), Some(line)) = (&self.wakeup_and_line, self.broker.line()) {
            // This fails when it is watched already, and when no descriptors are left; waits still
            // look once per slice.
            let _ = sys::watch_also(wakeup_and_line.as_fd(), line);
        }
    }

    /// Makes the descriptor readable, if the program may sleep on it and something can be polled.
    fn stir(&mut self) {
        let asks = self.unread || self.port_is_wanted();
        let has_events = asks || self.requests.has_ended() || !self.leaving.is_empty();
        if self.armed && (has_events || self.groups.wait() && self.groups_with_room() != 0) {
            sys::ring(self.doorbell.wakeup());
        }
    }

    fn handle_heard(&mut self, heard: Heard<Question>, now: Duration) {
        match heard {
            Heard::Answer { ticket, question, answer } => self.answered(ticket, question, answer),
            Heard::Unanswered { ticket, question, why } => self.unanswered(ticket, question, why),
            Heard::Told(told) => self.told(told),
            Heard::Restarted => {
                self.restarted = Some(now);
                self.watch_line();
            }
            Heard::KnownAgain => self.known_again(),
            Heard::Replaced => self.replaced(),
        }
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Paired(paired, files) => self.handle_paired(paired, files),
            Told::Gone { peer, reason } => self.peer_gone(peer.vpid.0, reason),
            Told::Held { peer, is_held } => self.peer_cut_off(peer.vpid.0, is_held),
            Told::Groups(groups) => self.groups_changed(groups),
            Told::PortWanted => self.want_port(),
            // The port beside the memory hears of these.
            Told::Met(_) | Told::Parted { .. } | Told::Stands { .. } => {}
        }
    }

    fn answered(&mut self, ticket: u32, question: Question, answer: Answer) {
        let context = question.context;
        match answer {
            Answer::Reply(reply, files) => self.replied(ticket, question, reply, files),
            Answer::Group(result, ..) => {
                let value = result.map(|()| Value::Nothing);
                self.requests.end(ticket, context, value.map_err(OperationError::Group));
            }
            Answer::Invited(result) => {
                let value = result.map(|()| Value::Nothing);
                self.requests.end(ticket, context, value.map_err(OperationError::Invite));
            }
            Answer::Members(members) => self.members_named(ticket, &members),
            // An endpoint with memory asks for no meeting.
            Answer::Met(_) => {}
        }
    }

    /// Handles the answer to a question that has no other form.
    fn replied(&mut self, ticket: u32, question: Question, reply: Reply, files: Vec<OwnedFd>) {
        let Question { asked, context } = question;
        match asked {
            Asked::Connect { to, pair } => {
                let result = self.connected(to, pair, reply, files);
                self.member_answered(ticket, result.is_ok());
                let value = result.map(Value::Peer);
                self.requests.end(ticket, context, value.map_err(OperationError::Connect));
            }
            Asked::Grant { key, moves } => self.granted(key, moves, reply, context),
            Asked::Revoke { lost } => {
                // A broker that does not know the key was restarted: it may have been handed out.
                let handed_out =
                    if reply.status == status::DONE { Retracted::of(&reply).told } else { 1 };
                let call = Call { ticket, context, revoked: Revoked::Published };
                self.withdrawn(&lost, handed_out, call);
            }
            Asked::Again { slot, generation, moves, call } => {
                if reply.status == status::DONE {
                    self.published_again(slot, generation, moves);
                }
                self.end_revocation(call, context);
            }
            Asked::Resolve { peer, key, for_whom, until, .. }
                if reply.status == status::NOT_FOUND && self.may_be_told_of(peer, key) =>
            {
                let resolve = Waiting { peer, key, for_whom, context, until };
                self.resolve_later(ticket, resolve);
            }
            Asked::Resolve { peer, key, stamp, for_whom, .. } => {
                let result = resolved_memory(key, stamp, reply, files);
                self.resolved(peer, key, result, for_whom, (ticket, context));
            }
            Asked::Members { group } => {
                self.members_not_named(group, BrokerError::InvalidAnswer.to_string());
            }
            // A peer that is there by now is one of the pair that was ended, made in between.
            Asked::Disconnect { vpid } if reply.status == status::DONE => {
                self.peer_gone(vpid, DownReason::Disconnected);
            }
            // The first two have answers of their own, and the last was not asked.
            Asked::Group | Asked::Invite | Asked::Settle { .. } | Asked::Disconnect { .. } => {}
        }
    }

    fn end_revocation(&mut self, call: Option<Call>, context: Option<u64>) {
        if let Some(call) = call {
            self.requests.end(call.ticket, context, Ok(Value::Revoked(call.revoked)));
        }
    }

    /// Ends what waited for an answer that will not come.
    fn unanswered(&mut self, ticket: u32, question: Question, why: Unanswered) {
        let Question { asked, context } = question;
        let reason = why.to_string();
        match asked {
            Asked::Connect { to, .. } => {
                // A broker that is only late makes the pair yet.
                if why == Unanswered::Late {
                    self.end_pair(to.vpid.0);
                }
                self.member_unanswered(ticket, &reason);
                let error = ConnectError::Broker { reason };
                self.requests.end(ticket, context, Err(OperationError::Connect(error)));
            }
            Asked::Group => {
                let error = GroupError::Broker { reason };
                self.requests.end(ticket, context, Err(OperationError::Group(error)));
            }
            Asked::Grant { key, .. } => {
                match why {
                    Unanswered::Late => self.give_up_grant(key),
                    Unanswered::Gone => self.free_grant(key),
                }
                let error = GrantError::Broker { reason };
                self.requests.end(ticket, context, Err(OperationError::Grant(error)));
            }
            Asked::Revoke { lost } => {
                self.withdrawn(&lost, 1, Call { ticket, context, revoked: Revoked::Local });
            }
            // The memory is out of reach, and no peer has a way to the new one yet: the stamp says
            // so until the broker knows of it.
            Asked::Again { slot, generation, call, .. } => {
                self.not_published_again(slot, generation);
                self.end_revocation(call, context);
            }
            // The memory is there, and a new broker will know it.
            Asked::Resolve { peer, key, for_whom, until, .. } if why == Unanswered::Gone => {
                self.resolve_later(ticket, Waiting { peer, key, for_whom, context, until });
            }
            Asked::Resolve { peer, key, for_whom, .. }
            | Asked::Settle { peer, key, for_whom, .. } => {
                let error = Err(OperationError::Broker { reason });
                self.resolved(peer, key, error, for_whom, (ticket, context));
            }
            Asked::Members { group } => self.members_not_named(group, reason),
            Asked::Invite => {
                let error = InviteError::Broker { reason };
                self.requests.end(ticket, context, Err(OperationError::Invite(error)));
            }
            Asked::Disconnect { .. } => {}
        }
    }

    /// Waits for the end of a call.
    pub(crate) fn do_finish(
        &mut self,
        context: u64,
        timeout: Duration,
    ) -> Option<Result<Value, OperationError>> {
        let until = sys::now().saturating_add(timeout);
        loop {
            self.handle_broker_messages();
            if let Some(result) = self.requests.take_context(context) {
                return Some(result);
            }
            let moves = self.moves.awaits(context) || self.partings.awaits(context);
            if !self.awaits_answer(context) && !moves {
                return None;
            }
            if !self.await_broker(until) {
                self.forget_call(context);
                self.moves.forget(context);
                self.partings.forget(context);
                return None;
            }
        }
    }

    /// Sleeps until the broker sent something. False when `until` has passed.
    fn await_broker(&mut self, until: Duration) -> bool {
        let left = until.saturating_sub(sys::now());
        if left.is_zero() {
            return false;
        }
        if self.has_steps() {
            self.adaptive_wait.give_way();
        } else if !self.unread
            && let Some(line) = self.broker.line()
        {
            sys::await_readable(line, left.min(FINISH_SLICE));
        }
        true
    }

    //= EXTOLL-THESIS#3.2.3
    //# An endpoint is addressed by its node and its VPID.
    pub(crate) fn do_connect(
        &mut self,
        to: EndpointAddress,
        context: u64,
    ) -> Result<Issued, ConnectError> {
        if !to.is_exact() {
            return Err(ConnectError::NotExact(to));
        }
        self.handle_broker_messages();
        let ticket = match self.ask_to_connect(to, Some(context))? {
            Asking::There(peer) => return Ok(Issued::Done(Value::Peer(peer))),
            Asking::Sent(ticket) => ticket,
        };
        self.handle_broker_messages();
        let ended = self.requests.take_ended(ticket);
        ended.map_or(Started::Pending, Started::Ended).issued(|error| match error {
            OperationError::Connect(error) => Some(error),
            _ => None,
        })
    }

    /// Asks the broker for a pair with the endpoint at an address, if there is none.
    pub(crate) fn ask_to_connect(
        &mut self,
        to: EndpointAddress,
        context: Option<u64>,
    ) -> Result<Asking, ConnectError> {
        let vpid = to.vpid.0;
        if to.node != self.address.node {
            return Err(ConnectError::NotFound(to));
        }
        if let Some(peer) = self.peers.by_vpid(vpid) {
            return Ok(Asking::There(peer.handle));
        }
        if to == self.address {
            return self.connect_itself().map(Asking::There);
        }
        if self.peers.next_handle(vpid).is_none() {
            return Err(ConnectError::NotFound(to));
        }
        self.check_peers()?;
        let (pair, file) = PairMemory::create(self.parameters.ring_slots).map_err(no_memory)?;
        pair.label(self.address.vpid.0, vpid);
        let ticket = self.broker.next_ticket();
        let connect = Connect { ticket, vpid: self.address.vpid.0, node: to.node.0, peer: vpid };
        let asked = Asked::Connect { to, pair };
        self.send_request(ticket, connect, &[file.as_fd()], asked, context)?;
        Ok(Asking::Sent(ticket))
    }

    /// Checks that there is room for one more peer.
    pub(crate) fn check_peers(&self) -> Result<(), ConnectError> {
        let maximum = self.capabilities.peers_max;
        let is_full = self.peers_here() + self.peers_elsewhere >= maximum;
        if is_full { Err(ConnectError::Exhausted { maximum }) } else { Ok(()) }
    }

    /// The broker answered a connect.
    fn connected(
        &mut self,
        to: EndpointAddress,
        pair: PairMemory,
        reply: Reply,
        files: Vec<OwnedFd>,
    ) -> Result<Peer, ConnectError> {
        let vpid = to.vpid.0;
        match reply.status {
            status::DONE => {
                let Connected { flags, slots, birth } = Connected::of(&reply);
                let introduction = Introduction { address: to, flags, birth, files };
                let pair = pair.end(slots);
                let added = pair.and_then(|pair| self.add_peer(introduction, pair));
                if added.is_none() {
                    self.end_pair(vpid);
                }
                added.ok_or(BrokerError::InvalidAnswer.into())
            }
            // The peer connected first; its `Paired` message came before this answer.
            status::PAIRED => match self.peers.by_vpid(vpid) {
                Some(peer) => Ok(peer.handle),
                // This endpoint could not take part in that pair.
                None => {
                    self.end_pair(vpid);
                    let reason = "an earlier pair was still there; try again".to_owned();
                    Err(ConnectError::Broker { reason })
                }
            },
            _ => Err(calls::not_introduced(to, &reply)),
        }
    }

    fn connect_itself(&mut self) -> Result<Peer, ConnectError> {
        self.check_peers()?;
        let slots = self.parameters.ring_slots;
        let pair = PairMemory::with_itself(slots).map_err(no_memory)?.end(slots);
        let pair = pair.ok_or(BrokerError::InvalidAnswer)?;
        let os = |call: &'static str| {
            move |error: std::io::Error| ConnectError::Os {
                call,
                errno: error.raw_os_error().unwrap_or(0),
            }
        };
        let wakeup = self.doorbell.wakeup().try_clone_to_owned().map_err(os("dup"))?;
        let files = vec![
            self.doorbell_file.try_clone().map_err(os("dup"))?,
            self.registers_file.try_clone().map_err(os("dup"))?,
            wakeup,
        ];
        let (address, birth) = (self.address, self.birth);
        let introduction = Introduction { address, flags: 0, birth, files };
        self.add_peer(introduction, pair).ok_or(BrokerError::InvalidAnswer.into())
    }

    pub(crate) fn do_disconnect(&mut self, peer: Peer) -> Result<(), OperationError> {
        let vpid = self.peers.find(peer)?.vpid();
        self.peer_gone(vpid, DownReason::Disconnected);
        if vpid != self.address.vpid.0 {
            self.end_pair(vpid);
        }
        Ok(())
    }

    /// Tells the broker, and so the peer, that a pair has ended. A broker that cannot be reached
    /// tells the peer after its restart, because this endpoint does not announce the pair.
    pub(crate) fn end_pair(&mut self, peer: u16) {
        let ticket = self.broker.next_ticket();
        let request = Disconnect { ticket, vpid: self.address.vpid.0, peer };
        let asked = Asked::Disconnect { vpid: peer };
        let _ = self.send_request(ticket, request, &[], asked, None);
    }

    /// A peer made a pair and sent its memory.
    fn handle_paired(&mut self, paired: Paired, mut files: Vec<OwnedFd>) {
        let whole = files.len() == 4;
        let memory = whole.then(|| PairMemory::open(files.remove(0).as_fd())).flatten();
        let pair = memory.and_then(|memory| memory.end(self.parameters.ring_slots));
        let Some(pair) = pair else {
            // No descriptors were left, or the memory is not a pair: the peer learns it.
            return self.end_pair(paired.peer);
        };
        // An earlier peer with this VPID has been reported gone, or its report was withheld.
        self.peer_gone(paired.peer, DownReason::Ended);
        if self.check_peers().is_err() {
            // The broker does not count this endpoint as a peer of its own.
            self.end_pair(paired.peer);
            return;
        }
        let address = EndpointAddress::new(NodeId(paired.node), Vpid(paired.peer));
        let Paired { flags, birth, .. } = paired;
        if self.add_peer(Introduction { address, flags, birth, files }, pair).is_none() {
            self.end_pair(paired.peer);
        }
    }

    /// Adds a peer, if its descriptors are valid.
    fn add_peer(&mut self, introduction: Introduction, pair: Pair) -> Option<Peer> {
        let Introduction { address, flags, birth, files } = introduction;
        let handle = self.peers.next_handle(address.vpid.0)?;
        let [doorbell, registers, wakeup] = <[OwnedFd; 3]>::try_from(files).ok()?;
        let doorbell = Doorbell::open(doorbell.as_fd(), wakeup).ok()?;
        let registers = Registers::open(registers.as_fd()).ok()?;
        let full_fences = self.full_fences || flags & flags::FULL_FENCES != 0;
        // The ring is armed from the start, so that a silent peer costs nothing.
        attention::arm(pair.own_data());
        weft_sync::fence::heavy();
        let met = Acquaintance { handle, address, birth, pair, full_fences, doorbell, registers };
        let peer = PeerState::new(met);
        self.granter.add_peer(&peer.registers, &peer.standing);
        self.peers.insert(peer);
        self.activate_if_filled(address.vpid.0);
        Some(handle)
    }

    /// A peer is gone: its last messages are still handed out, and then its end.
    pub(crate) fn peer_gone(&mut self, vpid: u16, reason: DownReason) {
        let Some(peer) = self.peers.remove(vpid) else { return };
        self.forget(vpid);
        self.recently = Recently::default();
        peer.standing.set(Standing::Down);
        self.granter.forget_the_dead();
        let until = peer.receive.messages.wrapping_add(peer.pair.incoming().depth());
        self.leaving.push(Leaving { peer, until, reason });
    }

    /// No way leads to the node of a peer any more, or one leads there again. Until then calls are
    /// refused as for lack of room, and what lies in the peer's ring waits.
    fn peer_cut_off(&mut self, vpid: u16, is_cut_off: bool) {
        let Some(peer) = self.peers.by_vpid(vpid).filter(|peer| peer.is_cut_off() != is_cut_off)
        else {
            return;
        };
        let (peer, was_refused) = (peer.handle, peer.set_cut_off(is_cut_off));
        if is_cut_off {
            // The translation at hand knows nothing of peers that are cut off.
            self.recently = Recently::default();
            self.stop_polling(vpid);
        } else {
            self.activate(vpid);
            if was_refused {
                self.requests.tell_room(peer);
            }
        }
    }

    /// Removes a VPID from all lists of peers.
    fn forget(&mut self, vpid: u16) {
        self.active.retain(|other| *other != vpid);
        self.waits_for_room.retain(|other| *other != vpid);
        self.turn = 0;
        self.member_gone(vpid);
    }
}

fn no_memory(error: weft_memory::SegmentError) -> ConnectError {
    match error {
        weft_memory::SegmentError::Os { call, errno, .. } => ConnectError::Os { call, errno },
        other => ConnectError::Broker { reason: other.to_string() },
    }
}

#[cfg(test)]
#[path = "cut_off_tests.rs"]
mod tests;
