//! The driver: the sessions of one endpoint. All calls of the endpoint are here.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Endpoint, Event as FabricEvent, GrantError, Issued, LocalRange,
    Operation, OperationError, Peer, Region, ServiceName, Source, Waited,
};
use weft_message::{Body, Event as MessageEvent, Messages, SendError};

use crate::calls::check_head;
use crate::error::{AnswerError, BlockError, RequestError, SessionError};
use crate::event::{BlockId, End, Event, PoolId, SessionId, Shape};
use crate::machine::{Action, Letter, Machine, Matter, Move};
use crate::options::Options;

/// Contexts with this bit are those of sessions and of their messages. A program that starts
/// operations of its own on the endpoint uses contexts below it.
pub const OWN_CONTEXTS: u64 = 1 << 62;

/// An operation of the endpoint that is pending.
#[derive(Debug)]
enum Pending {
    Grant(SessionId, PoolId),
    Revoke(SessionId),
    Move(Move),
}

/// Sessions over an endpoint: those that it opens, and those that it accepts.
///
/// Time is an argument of the calls that need it: since any moment, and never backwards.
#[derive(Debug)]
pub struct Sessions<E: Endpoint> {
    messages: Messages<E>,
    machine: Machine<E::Region>,
    /// Frames that wait for room, by peer. Each list is bounded: by the peer's requests and
    /// blocks, and a few more.
    waiting: BTreeMap<Peer, VecDeque<Letter>>,
    /// Frames that have left and not arrived, by context.
    on_their_way: BTreeMap<u64, Matter>,
    pending: BTreeMap<u64, Pending>,
    next_context: u64,
}

impl<E: Endpoint> Sessions<E> {
    /// Sessions over `endpoint`.
    ///
    /// # Panics
    /// When an option is out of its range.
    #[must_use]
    pub fn new(endpoint: E, options: Options) -> Self {
        let messages = Messages::new(endpoint, options.messages.clone());
        Self {
            messages,
            machine: Machine::new(options),
            waiting: BTreeMap::new(),
            on_their_way: BTreeMap::new(),
            pending: BTreeMap::new(),
            next_context: 0,
        }
    }

    /// The endpoint, for everything else that it does; see [`Messages::endpoint`].
    pub fn endpoint(&mut self) -> &mut E {
        self.messages.endpoint()
    }

    /// The number of sessions, in whatever state.
    #[must_use]
    pub fn count(&self) -> usize {
        self.machine.sessions.len()
    }

    /// The things that the messages of the sessions hold.
    #[must_use]
    pub fn census(&self) -> weft_message::Census {
        self.messages.census()
    }

    /// True if nothing is on its way: no frame, no operation.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.on_their_way.is_empty() && self.pending.is_empty()
    }

    /// Lets clients open sessions of a protocol, of any of these versions. [`Event::Hello`] asks
    /// for each.
    ///
    /// # Panics
    /// When there is no version.
    pub fn serve(&mut self, protocol: ServiceName, versions: &RangeInclusive<u16>) {
        self.machine.serve(protocol, versions);
    }

    /// Asks the endpoint `to`, a peer, for a session. [`Event::Opened`] or [`Event::Ended`]
    /// follows.
    ///
    /// # Errors
    /// [`SessionError::TooLong`], [`SessionError::Exhausted`].
    ///
    /// # Panics
    /// When there is no version.
    pub fn open(
        &mut self,
        to: Peer,
        protocol: ServiceName,
        versions: &RangeInclusive<u16>,
        options: &[u8],
        now: Duration,
    ) -> Result<SessionId, SessionError> {
        let id = self.machine.open(to, (protocol, versions), options, now)?;
        self.flush();
        Ok(id)
    }

    /// Accepts a session that [`Event::Hello`] asked for, in one of the versions that both ends
    /// speak.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn accept(
        &mut self,
        session: SessionId,
        version: u16,
        options: &[u8],
    ) -> Result<(), SessionError> {
        self.machine.accept(session, version, options)?;
        self.flush();
        Ok(())
    }

    /// Refuses a session that [`Event::Hello`] asked for, with a number of the protocol's and a
    /// text for people. [`Event::Ended`] follows.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn refuse(
        &mut self,
        session: SessionId,
        code: u16,
        text: &str,
    ) -> Result<(), SessionError> {
        self.machine.refuse(session, code, text)?;
        self.flush();
        Ok(())
    }

    /// Ends a session. [`Event::Ended`] follows at both ends. Ends nothing if it is over.
    pub fn end(&mut self, session: SessionId, code: u16, text: &str) {
        let why = End::Ended { by_peer: false, code, text: text.to_owned() };
        self.machine.end(session, why, true);
        self.flush();
    }

    /// Asks the peer something. The parts of the body may be reused when the call returns.
    /// [`Event::Answer`] follows, with this number, at `until` at the latest.
    ///
    /// # Errors
    /// [`RequestError`]; nothing was asked then.
    pub fn request(
        &mut self,
        session: SessionId,
        head: &[u8],
        body: &[&[u8]],
        until: Option<Duration>,
    ) -> Result<u32, RequestError> {
        let (number, head) = self.machine.request(session, head)?;
        let peer = session.peer;
        let sent = if self.waiting.contains_key(&peer) {
            Err(SendError::WouldBlock)
        } else {
            self.send(peer, &head, body, Matter::Request(session, number))
        };
        match sent {
            Ok(()) => {
                self.machine.asks(session, until);
                Ok(number)
            }
            Err(SendError::WouldBlock) => {
                self.machine.wants_room(session);
                Err(RequestError::WouldBlock)
            }
            Err(SendError::TooLong { .. }) => Err(RequestError::TooLong),
            // The report of the peer ends the session.
            Err(_) => Err(SessionError::Unknown.into()),
        }
    }

    /// Answers a request of the peer, once. The answer waits here while there is no room for it.
    ///
    /// # Errors
    /// [`AnswerError`].
    pub fn answer(
        &mut self,
        session: SessionId,
        number: u32,
        code: u16,
        head: &[u8],
        body: &[&[u8]],
    ) -> Result<(), AnswerError> {
        self.machine.answer(session, number, code, (head, body.concat()))?;
        self.flush();
        Ok(())
    }

    /// Asks the peer to give up a request of this end. Its end is still [`Event::Answer`]:
    /// [`RequestError::Cancelled`], unless its answer was under way. False if it had its end.
    pub fn cancel(&mut self, session: SessionId, number: u32) -> bool {
        let is_open = self.machine.cancel(session, number);
        self.flush();
        is_open
    }

    /// Lends the peer a pool: `range` of an own region, as `range.length / block_bytes` blocks.
    /// With [`Access::WRITE`] the peer fills blocks by [`Sessions::put`], and with
    /// [`Access::READ`] as well it may look at what it wrote; with [`Access::READ`] alone
    /// this end fills them through the region, and the peer reads them by [`Sessions::get`]. The
    /// pool lives as long as the session.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn lend(
        &mut self,
        session: SessionId,
        range: LocalRange<'_, E::Region>,
        block_bytes: u32,
        access: Access,
    ) -> Result<PoolId, BlockError> {
        if access.is_empty() || !(Access::READ | Access::WRITE).contains(access) {
            return Err(BlockError::Shape("a peer writes or reads"));
        }
        let blocks = range.length.checked_div(u64::from(block_bytes)).unwrap_or(0);
        let blocks = u32::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        let blocks = blocks.ok_or(BlockError::Shape("there is no block, or too many"))?;
        if range.offset.checked_add(range.length).is_none_or(|end| end > range.region.length()) {
            return Err(BlockError::Shape("the range leaves the region"));
        }
        let shape = Shape { block_bytes, blocks, access };
        let pool = self.machine.lend(session, shape, range.region.clone())?;
        let context = self.context();
        let audience = Audience::Peer(session.peer);
        let result = match self.messages.endpoint().grant(range, audience, access, context) {
            Ok(Issued::Done(value)) => Ok(value),
            Ok(Issued::Pending) => {
                self.pending.insert(context, Pending::Grant(session, pool));
                return Ok(pool);
            }
            Err(error) => Err(error.into()),
        };
        self.machine.granted(session, pool, result);
        self.flush();
        Ok(pool)
    }

    /// Takes an idle block of a pool that this end fills. `None` until [`Event::Room`]: all are
    /// under way, or the key of the pool is being granted.
    ///
    /// # Errors
    /// [`BlockError::Unknown`], [`BlockError::Session`].
    pub fn take(
        &mut self,
        session: SessionId,
        pool: PoolId,
    ) -> Result<Option<BlockId>, BlockError> {
        self.machine.take(session, pool)
    }

    /// Puts bytes into a block of the peer that was taken, from its begin on, and passes it to the
    /// peer with `head` when they are there. [`Event::Moved`] follows, and at the peer
    /// [`Event::Block`].
    ///
    /// # Errors
    /// [`BlockError`]; the block is still this end's. Errors that say that the session is over are
    /// those of [`Event::Moved`].
    pub fn put(
        &mut self,
        session: SessionId,
        block: BlockId,
        source: Source<'_, E::Region>,
        head: &[u8],
    ) -> Result<(), BlockError> {
        check_head(head)?;
        let length = source.length();
        let target = self.machine.target(session, block, (0, length), Access::WRITE)?;
        let context = self.context();
        let how = Operation::new(context);
        let issued = self.messages.endpoint().put(session.peer, source, target, how);
        let length = u32::try_from(length).expect("it fits a block");
        self.moves(Move { session, block, pass: Some((length, head.to_vec())) }, context, issued)
    }

    /// Gets bytes of a block that the peer passed, from `offset` on. [`Event::Moved`] follows.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn get(
        &mut self,
        session: SessionId,
        block: BlockId,
        offset: u64,
        into: LocalRange<'_, E::Region>,
    ) -> Result<(), BlockError> {
        let range = (offset, into.length);
        let source = self.machine.target(session, block, range, Access::READ)?;
        let context = self.context();
        let issued =
            self.messages.endpoint().get(session.peer, source, into, Operation::new(context));
        self.moves(Move { session, block, pass: None }, context, issued)
    }

    fn moves(
        &mut self,
        moved: Move,
        context: u64,
        issued: Result<Issued, OperationError>,
    ) -> Result<(), BlockError> {
        match issued {
            Ok(issued) => {
                self.machine.begins(moved.session, moved.block);
                match issued {
                    Issued::Done(_) => self.machine.moved(moved, Ok(())),
                    Issued::Pending => drop(self.pending.insert(context, Pending::Move(moved))),
                }
                self.flush();
                Ok(())
            }
            Err(error) => {
                if error == OperationError::WouldBlock {
                    self.machine.wants_room(moved.session);
                }
                self.machine.failed(moved.session, &error);
                Err(BlockError::Operation(error))
            }
        }
    }

    /// Opens the memory of a pool of the peer's as a window: a program may fill blocks that it took
    /// through it, and [`Sessions::pass`] them, in place of [`Sessions::put`]. What was written
    /// has to be confirmed before ([`weft_fabric::Window`]).
    ///
    /// # Errors
    /// [`BlockError`]; [`OperationError::WouldBlock`] until [`Event::Room`].
    pub fn window(&mut self, session: SessionId, pool: PoolId) -> Result<E::Window, BlockError> {
        let key = self.machine.key(session, pool)?;
        let window = self.messages.endpoint().window(session.peer, key);
        if matches!(window, Err(OperationError::WouldBlock)) {
            self.machine.wants_room(session);
        }
        window.map_err(BlockError::Operation)
    }

    /// Passes a block, which was taken and filled through the own region or the window of the
    /// peer's, to the peer.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn pass(
        &mut self,
        session: SessionId,
        block: BlockId,
        length: u32,
        head: &[u8],
    ) -> Result<(), BlockError> {
        self.machine.pass(session, block, length, head)?;
        self.flush();
        Ok(())
    }

    /// Gives a block back: one that came and was used, or one that was taken and is not filled.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn free(&mut self, session: SessionId, block: BlockId) -> Result<(), BlockError> {
        self.machine.free(session, block)?;
        self.flush();
        Ok(())
    }

    /// Takes up to `budget` events of the endpoint, passes what follows from them to `sink`, and
    /// returns the number of events passed. Never blocks. Makes progress.
    pub fn poll(
        &mut self,
        now: Duration,
        budget: usize,
        mut sink: impl FnMut(Event<'_, E::Region>),
    ) -> usize {
        let mut passed = 0;
        let mut sink = |event: Event<'_, E::Region>| {
            passed += 1;
            sink(event);
        };
        let Self { messages, machine, waiting, on_their_way, pending, .. } = self;
        let mut has_room = Vec::new();
        messages.poll(budget, |event| match event {
            MessageEvent::Message(message) => {
                machine.message(message.peer, message.head, message.body, now, &mut sink);
            }
            MessageEvent::Completion { context, result } => {
                let matter = on_their_way.remove(&context);
                if let (Some(matter), Err(error)) = (matter, result) {
                    machine.not_arrived(matter, error);
                }
            }
            MessageEvent::Room { peer } => {
                has_room.push(peer);
                machine.room(peer);
            }
            MessageEvent::Endpoint(event) => {
                match &event {
                    FabricEvent::PeerDown { peer, reason, .. } => {
                        waiting.remove(peer);
                        machine.down(*peer, *reason);
                    }
                    // For puts and gets that were refused; messages have a report of their own.
                    FabricEvent::Room { peer } => machine.room(*peer),
                    _ => {}
                }
                if !ended(machine, pending, &event) {
                    sink(Event::Endpoint(event));
                }
            }
            // The endpoint tells of the peer, too.
            MessageEvent::Misbehaved { .. } => {}
            MessageEvent::Announced { .. } | MessageEvent::Lost { .. } => {
                unreachable!("messages are placed without a question")
            }
        });
        for peer in has_room {
            self.send_waiting(peer);
        }
        self.machine.tick(now);
        self.flush();
        while let Some(notice) = self.machine.notices.pop_front() {
            sink(notice.into_event());
        }
        passed
    }

    /// As [`Endpoint::wait`]. The caller waits no longer than until [`Sessions::timeout`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        if self.machine.notices.is_empty() { self.messages.wait(timeout) } else { Waited::Ready }
    }

    /// As [`Endpoint::arm`]. The caller sleeps no longer than until [`Sessions::timeout`].
    pub fn arm(&mut self) -> Armed {
        if self.machine.notices.is_empty() { self.messages.arm() } else { Armed::Busy }
    }

    /// When [`Sessions::poll`] has something to do though nothing comes. May change after every
    /// call.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.machine.timeout()
    }

    fn context(&mut self) -> u64 {
        self.next_context = (self.next_context + 1) % OWN_CONTEXTS;
        self.next_context | OWN_CONTEXTS
    }

    /// Does what the machine wants done.
    fn flush(&mut self) {
        while let Some(action) = self.machine.actions.pop_front() {
            match action {
                Action::Send(letter) => {
                    let peer = letter.peer;
                    let queue = self.waiting.entry(peer).or_default();
                    queue.push_back(letter);
                    if queue.len() == 1 {
                        self.send_waiting(peer);
                    }
                }
                Action::Revoke { session, key } => {
                    let context = self.context();
                    match self.messages.endpoint().revoke(key, context) {
                        Ok(Issued::Done(_)) => self.machine.key_ended(session, true),
                        Ok(Issued::Pending) => {
                            self.pending.insert(context, Pending::Revoke(session));
                        }
                        Err(error) => {
                            let well = !matches!(error, GrantError::StillWriting { .. });
                            self.machine.key_ended(session, well);
                        }
                    }
                }
                Action::Disconnect { peer } => {
                    self.waiting.remove(&peer);
                    // A peer that is down already needs nothing more.
                    let _ = self.messages.endpoint().disconnect(peer);
                }
            }
        }
    }

    /// Sends frames to a peer, as far as there is room.
    fn send_waiting(&mut self, peer: Peer) {
        while let Some(letter) = self.waiting.get_mut(&peer).and_then(VecDeque::pop_front) {
            let matters = letter.matters;
            match self.send(peer, &letter.head, &[&letter.body], matters) {
                Ok(()) => {}
                Err(SendError::WouldBlock) => {
                    let queue = self.waiting.get_mut(&peer).expect("it was just there");
                    return queue.push_front(letter);
                }
                // The report of the peer ends its sessions.
                Err(SendError::PeerDown | SendError::UnknownPeer) => {}
                // It is too long, or there is no memory for a copy of it.
                Err(_) => self.machine.not_arrived(matters, weft_message::MessageError::Refused),
            }
        }
        self.waiting.remove(&peer);
    }

    fn send(
        &mut self,
        peer: Peer,
        head: &[u8],
        body: &[&[u8]],
        matters: Matter,
    ) -> Result<(), SendError> {
        let context = self.context();
        match self.messages.send(peer, head, body, context)? {
            Issued::Done(_) => {}
            Issued::Pending => drop(self.on_their_way.insert(context, matters)),
        }
        Ok(())
    }
}

/// Takes the end of an operation of a session. False if the event is another one.
fn ended<R>(
    machine: &mut Machine<R>,
    pending: &mut BTreeMap<u64, Pending>,
    event: &FabricEvent<'_>,
) -> bool {
    let FabricEvent::Completion(completion) = event else { return false };
    let Some(one) = pending.remove(&completion.context) else {
        return completion.context >= OWN_CONTEXTS;
    };
    let result = completion.result.clone();
    match one {
        Pending::Grant(session, pool) => machine.granted(session, pool, result),
        Pending::Revoke(session) => {
            let still =
                |error| matches!(error, OperationError::Grant(GrantError::StillWriting { .. }));
            machine.key_ended(session, !result.is_err_and(still));
        }
        Pending::Move(moved) => machine.moved(moved, result.map(drop)),
    }
    true
}

/// The bytes of a body: of a short one a copy, of a long one those of its region.
///
/// # Panics
/// When the body does not fit the memory.
#[must_use]
pub fn bytes_of<R: Region>(body: &Body<'_, R>) -> Vec<u8> {
    match body {
        Body::Bytes(bytes) => bytes.to_vec(),
        Body::Range { region, offset, length, .. } => {
            let mut bytes = vec![0; usize::try_from(*length).expect("it fits the memory")];
            region.read(*offset, &mut bytes).expect("the range is inside");
            bytes
        }
    }
}
