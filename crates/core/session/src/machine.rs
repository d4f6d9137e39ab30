//! The state machine: all sessions, what comes in for them, and what has to be done.
//!
//! Frames, ends of operations, reports of peers and the time go in. [`Action`]s and events come
//! out. Calls of the program are in `calls`; frames that come are in `incoming`.
//!
//! Invariants: nothing here calls an endpoint. A session that is over is told once, behind the ends
//! of its requests and of its keys.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use weft_fabric::{DownReason, OperationError, Peer, RemoteKey, ServiceName, Value};
use weft_message::MessageError;

use crate::blocks::Memory;
use crate::error::{Offence, RequestError, SessionError};
use crate::event::{BlockId, End, Event, PoolId, SessionId};
use crate::frame::{Frame, Kind, cut, of_session};
use crate::options::Options;
use crate::session::{Fate, Session, State};

/// Something that the driver has to do.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a frame, and keep it while there is no room.
    Send(Letter),
    /// Revoke a key of a session, then call [`Machine::key_ended`].
    Revoke { session: SessionId, key: RemoteKey },
    /// Give up a peer that broke the protocol.
    Disconnect { peer: Peer },
}

/// A frame on its way.
#[derive(Debug)]
pub(crate) struct Letter {
    pub peer: Peer,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    pub matters: Matter,
}

/// The consequence of a frame that does not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Matter {
    /// A request has no answer then.
    Request(SessionId, u32),
    /// The peer is told so in place of the answer.
    Answer(SessionId, u32),
    /// Nothing: the peer is down, and that is told.
    Nothing,
}

/// A put or get of a block.
#[derive(Debug)]
pub(crate) struct Move {
    pub session: SessionId,
    pub block: BlockId,
    /// Bytes and head, if the block goes to the peer behind a put.
    pub pass: Option<(u32, Vec<u8>)>,
}

/// An event that waits to be handed out.
#[derive(Debug)]
pub(crate) enum Notice {
    NoAnswer { session: SessionId, number: u32, error: RequestError },
    Moved { session: SessionId, block: BlockId, result: Result<(), OperationError> },
    Room { session: SessionId },
    Ended { session: SessionId, why: End, is_revoked: bool },
}

impl Notice {
    pub fn into_event<'a, R>(self) -> Event<'a, R> {
        match self {
            Self::NoAnswer { session, number, error } => {
                Event::Answer { session, number, answer: Err(error) }
            }
            Self::Moved { session, block, result } => Event::Moved { session, block, result },
            Self::Room { session } => Event::Room { session },
            Self::Ended { session, why, is_revoked } => Event::Ended { session, why, is_revoked },
        }
    }
}

/// Something that happens when a time has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Due {
    /// The hello is given up.
    Hello,
    /// The request is given up.
    Request(u32),
    /// The peer took its memory back, and did not say why.
    LastWords,
}

/// How long a session goes on when the memory of the peer is not there any more. Its word that the
/// session is over, or the endpoint's that the peer is down, may come later than the end of a put.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(3);

/// A protocol that this end serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Protocol {
    pub name: ServiceName,
    pub low: u16,
    pub high: u16,
}

/// The state machine. `R` is the region of the transport.
#[derive(Debug)]
pub(crate) struct Machine<R> {
    pub options: Options,
    pub protocols: Vec<Protocol>,
    pub sessions: BTreeMap<SessionId, Session<R>>,
    pub actions: VecDeque<Action>,
    pub notices: VecDeque<Notice>,
    due: BTreeSet<(Duration, SessionId, Due)>,
    pub next_number: u16,
    ticked: Duration,
}

impl<R> Machine<R> {
    pub fn new(options: Options) -> Self {
        options.assert_sound();
        Self {
            options,
            protocols: Vec::new(),
            sessions: BTreeMap::new(),
            actions: VecDeque::new(),
            notices: VecDeque::new(),
            due: BTreeSet::new(),
            next_number: 0,
            ticked: Duration::ZERO,
        }
    }

    /// The session, if it is open.
    pub fn open_session(&mut self, id: SessionId) -> Result<&mut Session<R>, SessionError> {
        match self.sessions.get_mut(&id) {
            Some(session) if session.is_open() => Ok(session),
            Some(session) if !session.is_ending() => Err(SessionError::NotOpen),
            _ => Err(SessionError::Unknown),
        }
    }

    /// Sends a frame of a session.
    pub fn frame(&mut self, id: SessionId, kind: Kind, numbers: [u32; 3]) {
        self.letter(id, kind, numbers, (&[], Vec::new()), Matter::Nothing);
    }

    /// Sends a frame with something behind the header and a body.
    pub fn letter(
        &mut self,
        id: SessionId,
        kind: Kind,
        numbers: [u32; 3],
        (behind, body): (&[u8], Vec<u8>),
        matters: Matter,
    ) {
        let head = Self::head(id, kind, numbers, behind);
        self.actions.push_back(Action::Send(Letter { peer: id.peer, head, body, matters }));
    }

    pub fn head(id: SessionId, kind: Kind, numbers: [u32; 3], behind: &[u8]) -> Vec<u8> {
        let frame = Frame { kind, from_opener: id.opened_here, session: id.number, numbers };
        frame.emit(behind)
    }

    /// Has [`Machine::tick`] do something at a time.
    pub fn at(&mut self, until: Duration, id: SessionId, due: Due) {
        self.due.insert((until, id, due));
    }

    /// Gives a request of this end its end without an answer.
    pub fn without_answer(&mut self, id: SessionId, number: u32, error: RequestError) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(asked) = session.asked.get_mut(&number) else { return };
        if asked.fate == Fate::Awaited {
            self.notices.push_back(Notice::NoAnswer { session: id, number, error });
        }
    }

    /// A request of this end is over: its answer came, or it never left.
    pub fn settle(&mut self, id: SessionId, number: u32) -> Option<Fate> {
        let session = self.sessions.get_mut(&id)?;
        let asked = session.asked.remove(&number)?;
        let is_wanted = std::mem::take(&mut session.wants_room);
        if let Some(until) = asked.until {
            self.due.remove(&(until, id, Due::Request(number)));
        }
        if is_wanted {
            self.notices.push_back(Notice::Room { session: id });
        }
        Some(asked.fate)
    }

    /// A frame did not arrive although the peer lives.
    pub fn not_arrived(&mut self, matters: Matter, error: MessageError) {
        match matters {
            Matter::Request(id, number) => {
                let error = match error {
                    MessageError::Refused => RequestError::TooLong,
                    // The report of the peer ends it.
                    MessageError::PeerDown => return,
                    other => RequestError::Message(other),
                };
                self.without_answer(id, number, error);
                self.settle(id, number);
            }
            Matter::Answer(id, number) if error != MessageError::PeerDown => {
                if self.sessions.get(&id).is_some_and(Session::is_open) {
                    self.frame(id, Kind::Answer, [number, of_session::NOT_TAKEN, 0]);
                }
            }
            Matter::Answer(..) | Matter::Nothing => {}
        }
    }

    /// A put or get of a block has ended.
    pub fn moved(&mut self, moved: Move, result: Result<(), OperationError>) {
        let Move { session: id, block, pass } = moved;
        let Ok(session) = self.open_session(id) else { return };
        let Some(pool) = session.pools.get_mut(&block.pool) else { return };
        pool.end(block.place);
        match (&result, pass) {
            (Ok(()), Some((length, head))) => {
                pool.pass(block.place)
                    .expect("it was taken before the put, and put is what fillers do");
                let numbers = [block.pool.wire(), block.place, length];
                self.letter(id, Kind::Pass, numbers, (&head, Vec::new()), Matter::Nothing);
            }
            (Ok(()), None) => {}
            (Err(error), _) => self.failed(id, error),
        }
        self.notices.push_back(Notice::Moved { session: id, block, result });
    }

    /// A put or get of a block failed. A peer takes the memory of its blocks back when the session
    /// is over, so its reason is on its way. It is not waited for without end.
    pub fn failed(&mut self, id: SessionId, error: &OperationError) {
        if matches!(error, OperationError::InvalidKey | OperationError::PeerDown) {
            self.at(self.ticked + LAST_WORDS_WITHIN, id, Due::LastWords);
        }
    }

    /// The key of an own pool was granted, or not.
    pub fn granted(&mut self, id: SessionId, pool: PoolId, result: Result<Value, OperationError>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let is_ending = session.is_ending();
        let no_key = || OperationError::Broker { reason: "it told no key".to_owned() };
        match result.and_then(|value| value.key().ok_or_else(no_key)) {
            Ok(key) if is_ending => {
                self.actions.push_back(Action::Revoke { session: id, key });
            }
            Ok(granted) => {
                let Some(own) = session.pools.get_mut(&pool) else { return };
                let Memory::Own { key, .. } = &mut own.memory else { return };
                *key = Some(granted);
                let shape = own.shape;
                let lent = crate::frame::Lent { key: granted, access: shape.access };
                let numbers = [pool.number, shape.block_bytes, shape.blocks];
                let behind = lent.emit();
                let is_wanted = std::mem::take(&mut session.wants_room);
                self.letter(id, Kind::Pool, numbers, (&behind, Vec::new()), Matter::Nothing);
                if is_wanted {
                    self.notices.push_back(Notice::Room { session: id });
                }
            }
            Err(_) if is_ending => self.key_ended(id, true),
            Err(error) => {
                session.pools.remove(&pool);
                let text = format!("memory cannot be granted: {error}");
                self.end(id, End::Ended { by_peer: false, code: 0, text }, true);
            }
        }
    }

    /// A key of a session that ends is revoked, or was never granted.
    pub fn key_ended(&mut self, id: SessionId, well: bool) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let State::Ending { keys, is_revoked, .. } = &mut session.state {
            *keys = keys.saturating_sub(1);
            *is_revoked &= well;
        }
        self.forget_ended(id);
    }

    fn forget_ended(&mut self, id: SessionId) {
        let over = |session: &Session<R>| matches!(session.state, State::Ending { keys: 0, .. });
        if !self.sessions.get(&id).is_some_and(over) {
            return;
        }
        let session = self.sessions.remove(&id).expect("it was just looked up");
        if let State::Ending { why, is_revoked, .. } = session.state {
            self.notices.push_back(Notice::Ended { session: id, why, is_revoked });
        }
    }

    /// Ends a session. Tells the peer, if it is to be told.
    pub fn end(&mut self, id: SessionId, why: End, tells_peer: bool) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if session.is_ending() {
            return;
        }
        if tells_peer {
            let (kind, code, text) = match &why {
                End::Refused { code, text } => (Kind::Refusal, *code, text.clone()),
                End::Ended { code, text, .. } => (Kind::End, u32::from(*code), text.clone()),
                other => (Kind::End, 0, other.to_string()),
            };
            let body = cut(&text).as_bytes().to_vec();
            self.letter(id, kind, [0, code, 0], (&[], body), Matter::Nothing);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let asked: Vec<u32> = session.asked.keys().copied().collect();
        for number in asked {
            self.without_answer(id, number, SessionError::Unknown.into());
        }
        self.due.retain(|(_, of, _)| *of != id);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.asked.clear();
        for key in session.end(why) {
            self.actions.push_back(Action::Revoke { session: id, key });
        }
        self.forget_ended(id);
    }

    /// Ends all sessions of a peer.
    pub fn end_all(&mut self, peer: Peer, why: &End) {
        let its: Vec<SessionId> = self.of(peer).collect();
        for id in its {
            self.end(id, why.clone(), false);
        }
    }

    /// The endpoint reports a peer down.
    pub fn down(&mut self, peer: Peer, reason: DownReason) {
        self.end_all(peer, &End::Down(reason));
    }

    /// A peer broke the protocol.
    pub fn offend(&mut self, peer: Peer, offence: Offence) {
        self.end_all(peer, &End::Misbehaved(offence));
        self.actions.push_back(Action::Disconnect { peer });
    }

    /// The endpoint has room for a peer again.
    pub fn room(&mut self, peer: Peer) {
        let its: Vec<SessionId> = self.of(peer).collect();
        for id in its {
            let session = self.sessions.get_mut(&id).expect("it was just listed");
            if std::mem::take(&mut session.wants_room) {
                self.notices.push_back(Notice::Room { session: id });
            }
        }
    }

    fn of(&self, peer: Peer) -> impl Iterator<Item = SessionId> {
        self.sessions.keys().copied().filter(move |id| id.peer == peer)
    }

    /// Does what is due. Called behind a look at all that came.
    pub fn tick(&mut self, now: Duration) {
        while let Some((until, id, due)) = self.due.first().copied()
            && until <= now
        {
            self.due.remove(&(until, id, due));
            match due {
                Due::Hello => self.hello_is_late(id),
                Due::Request(number) => self.request_is_late(id, number),
                Due::LastWords => {
                    let text = "the other end took the memory of its blocks back".to_owned();
                    self.end(id, End::Ended { by_peer: false, code: 0, text }, true);
                }
            }
        }
        if let Some(silence) = self.options.silence {
            self.listen(silence, now);
        }
        self.ticked = now;
    }

    fn hello_is_late(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(&id) else { return };
        match session.state {
            State::Greeting { .. } => self.end(id, End::NoAnswer, true),
            State::Greeted { .. } => {
                let text = "the program of the service did not answer in time".to_owned();
                self.end(id, End::Refused { code: crate::refusals::BUSY, text }, true);
            }
            State::Open | State::Ending { .. } => {}
        }
    }

    fn request_is_late(&mut self, id: SessionId, number: u32) {
        self.without_answer(id, number, RequestError::Late);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Some(asked) = session.asked.get_mut(&number) else { return };
        asked.fate = Fate::Forgotten;
        asked.until = None;
        self.frame(id, Kind::Cancel, [number, 0, 0]);
    }

    /// Asks silent peers whether they are there, and ends sessions with those that do not answer.
    fn listen(&mut self, silence: Duration, now: Duration) {
        let pause = silence / 3;
        // This end was stopped, or had other work: what peers said meanwhile may not be read yet.
        let away = now.saturating_sub(self.ticked);
        let excused = if away > pause { away } else { Duration::ZERO };
        let (mut ask, mut dead) = (Vec::new(), Vec::new());
        for (id, session) in self.sessions.iter_mut().filter(|(_, session)| session.is_open()) {
            session.heard = session.heard.saturating_add(excused).min(now);
            let silent = now.saturating_sub(session.heard);
            if silent >= silence {
                dead.push(*id);
            } else if silent >= pause && now.saturating_sub(session.asked_alive) >= pause {
                session.asked_alive = now;
                ask.push(*id);
            }
        }
        for id in ask {
            self.frame(id, Kind::Alive, [1, 0, 0]);
        }
        for id in dead {
            self.end(id, End::Silent, true);
        }
    }

    /// When [`Machine::tick`] has something to do, at the latest. May change after every call.
    pub fn timeout(&self) -> Option<Duration> {
        let first = self.due.first().map(|(until, ..)| *until);
        let listens = self.options.silence.filter(|_| !self.sessions.is_empty());
        let look = listens.map(|silence| self.ticked + silence / 6);
        [first, look].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Pool;
    use crate::event::Shape;
    use weft_fabric::Access;

    /// A session of a machine, and a block of the peer's that this end takes and fills.
    fn with_a_block() -> (Machine<()>, SessionId, BlockId) {
        let mut machine = Machine::new(Options { silence: None, ..Options::default() });
        let id = SessionId { peer: Peer(1), opened_here: true, number: 0 };
        let mut session = Session::new(State::Open, Duration::ZERO);
        let shape = Shape { block_bytes: 64, blocks: 2, access: Access::WRITE };
        let lent = Pool::new(shape, Memory::Lent { key: RemoteKey(7) });
        let pool = session.lent(0, lent, 1).expect("the first one");
        machine.sessions.insert(id, session);
        let block = machine.take(id, pool).expect("it is open").expect("both are free");
        machine.begins(id, block);
        (machine, id, block)
    }

    fn ended(machine: &mut Machine<()>) -> Option<String> {
        std::mem::take(&mut machine.notices).into_iter().find_map(|notice| match notice {
            Notice::Ended { why, .. } => Some(why.to_string()),
            _ => None,
        })
    }

    #[test]
    fn the_reason_of_a_peer_that_took_its_memory_back_is_waited_for() {
        for error in [OperationError::InvalidKey, OperationError::PeerDown] {
            let (mut machine, id, block) = with_a_block();
            machine.moved(Move { session: id, block, pass: None }, Err(error));
            machine.tick(LAST_WORDS_WITHIN / 2);
            assert_eq!(ended(&mut machine), None);
            machine.down(id.peer, DownReason::Unreachable);
            assert_eq!(ended(&mut machine).as_deref(), Some("the other end is not reached"));
            assert_eq!(machine.timeout(), None);
        }
    }

    #[test]
    fn a_peer_that_took_its_memory_back_and_says_nothing_is_not_waited_for_without_end() {
        let (mut machine, id, block) = with_a_block();
        machine.moved(Move { session: id, block, pass: None }, Err(OperationError::InvalidKey));
        assert_eq!(machine.timeout(), Some(LAST_WORDS_WITHIN));
        machine.tick(LAST_WORDS_WITHIN);
        let why = ended(&mut machine).expect("it is over");
        assert!(why.ends_with("took the memory of its blocks back"), "{why}");
        // Another failure is the operation's own.
        let (mut machine, id, block) = with_a_block();
        let denied = Err(OperationError::Cancelled);
        machine.moved(Move { session: id, block, pass: None }, denied);
        assert_eq!(machine.timeout(), None);
    }
}
