//! The target's side: sessions of initiators, each with one unit.
//!
//! Invariants: a request has one answer. Blocks of the initiator are used only for the request
//! whose tag they came with. All that an initiator says is checked here or by `weft-session`; a
//! mistake of it is answered by CHECK CONDITION, or ends its session.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use weft_fabric::{
    Access, Completion, Endpoint, EndpointAddress, Event as FabricEvent, Region, ServiceName,
};
use weft_session::{BlockId, Event as SessionEvent, PoolId, SessionId, Sessions};

use super::moves::{Moving, Waiting};
use super::{BLOCK_BYTES, BLOCKS, MOVED, PROTOCOL, Request, VERSIONS};
use crate::iscsi::initiator::keys;
use crate::iscsi::{Target as Named, Targets};
use crate::scsi::{Begun, Job, Link, Outcome, Port, Reply, Sense, Status, Unit};
use crate::store::Store;

/// Events that are taken in one round of a poll.
const EVENTS_MAX: usize = 64;
/// Rounds of a poll at most.
const ROUNDS_MAX: usize = 4;
/// Blocks that data are got into, for all sessions.
const STAGES: usize = 64;
/// Moves that do not end within this end their session: their peer stands still, and others may
/// wait for the memory.
const MOVES_WITHIN: Duration = Duration::from_secs(10);

const NO_TARGET: u16 = 1;
const MALFORMED: u16 = 2;
const ASKS_FOR_SECRET: u16 = 3;
const NO_ROOM: u16 = 4;
const GONE: u16 = 6;
const STANDS_STILL: u16 = 7;

/// A command whose job runs outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    session: SessionId,
    number: u32,
    tag: u32,
}

/// Work for a driver.
#[derive(Debug)]
pub enum Event {
    /// Run a job, and tell its end by [`Target::finished`].
    Run {
        /// To be given back.
        ticket: Ticket,
        /// The job.
        job: Job,
        /// Its data.
        data: Vec<u8>,
        /// A buffer for what the initiator gets.
        into: Vec<u8>,
        /// The target that the unit belongs to.
        target: Arc<Named>,
    },
    /// Run a job whose end nobody is told.
    RunUnasked {
        /// The job.
        job: Job,
        /// The target that the unit belongs to.
        target: Arc<Named>,
    },
}

/// The knowledge of a driver that a target needs.
pub trait Surroundings<E: Endpoint> {
    /// The endpoint that sessions with this unit are served by, if it is another one.
    fn elsewhere(&mut self, unit: &Unit) -> Option<EndpointAddress>;

    /// The memory of a store as a region of the endpoint, if it is one.
    fn region(&mut self, endpoint: &mut E, store: &Arc<dyn Store>) -> Option<E::Region>;

    /// The time, for latencies.
    fn now(&self) -> Duration;
}

/// A session with its unit.
pub(super) struct Served<E: Endpoint> {
    pub target: Arc<Named>,
    number: u64,
    pub unit: Arc<Unit>,
    link: Arc<Link>,
    /// The pool that data are put into.
    pub reads: Option<PoolId>,
    /// Blocks with data, by the tag of their command.
    pub passed: HashMap<u32, BlockId>,
    /// Data on their way, by their block.
    pub moving: HashMap<BlockId, Moving>,
    /// Commands that were answered before their block came.
    refused: HashSet<u32>,
    /// Commands that wait for a block or for room, in order.
    pub waiting: VecDeque<Waiting>,
    /// The memory of the unit's store as a region, and the store.
    pub region: Option<(Weak<dyn Store>, E::Region)>,
}

impl<E: Endpoint> Drop for Served<E> {
    fn drop(&mut self) {
        self.unit.abort_tasks(&self.link);
        self.unit.detach(&self.link);
    }
}

/// The target's side of all sessions of one endpoint. The module lists its invariants.
pub struct Target<E: Endpoint, S> {
    pub(super) sessions: Sessions<E>,
    targets: Arc<Targets>,
    pub(super) surroundings: S,
    pub(super) served: HashMap<SessionId, Served<E>>,
    pub(super) stage: E::Region,
    pub(super) free_stages: Vec<usize>,
    events: VecDeque<Event>,
    /// Gets of sessions that have ended, which may still write: until a fence is over.
    pub(super) leaving: HashMap<u64, Vec<Moving>>,
    pub(super) fences: u64,
    /// Moves that hold the gate of a unit.
    pub(super) direct: usize,
    looked: Duration,
}

impl<E: Endpoint, S> std::fmt::Debug for Target<E, S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Target({} sessions)", self.served.len())
    }
}

/// Events of one poll, for work that needs the sessions again.
enum Came {
    Hello { session: SessionId, version: u16, options: Vec<u8> },
    Request { session: SessionId, number: u32, head: Vec<u8> },
    Pool { session: SessionId, pool: PoolId, is_for_reads: bool },
    Block { session: SessionId, block: BlockId, head: Vec<u8> },
    Moved { session: SessionId, block: BlockId, is_good: bool },
    Room { session: SessionId },
    Ended { session: SessionId },
    Fenced { context: u64 },
}

impl<E: Endpoint, S: Surroundings<E>> Target<E, S> {
    /// Serves targets over the sessions of an endpoint. `stage` is a region of its own.
    ///
    /// # Panics
    /// When the region is shorter than [`Target::stage_bytes`].
    #[must_use]
    pub fn new(
        mut sessions: Sessions<E>,
        targets: Arc<Targets>,
        stage: E::Region,
        surroundings: S,
    ) -> Self {
        assert!(stage.length() >= Self::stage_bytes(), "the region has room for all stages");
        let protocol = ServiceName::new(PROTOCOL).expect("a short name");
        sessions.serve(protocol, &VERSIONS);
        Self {
            sessions,
            targets,
            surroundings,
            served: HashMap::new(),
            stage,
            free_stages: (0..STAGES).collect(),
            events: VecDeque::new(),
            leaving: HashMap::new(),
            fences: 0,
            direct: 0,
            looked: Duration::ZERO,
        }
    }

    /// Bytes of the region that data are got into.
    #[must_use]
    pub const fn stage_bytes() -> u64 {
        STAGES as u64 * BLOCK_BYTES as u64
    }

    /// The sessions, for waiting on their endpoint.
    pub fn sessions(&mut self) -> &mut Sessions<E> {
        &mut self.sessions
    }

    /// Initiators that have a session.
    #[must_use]
    pub fn load(&self) -> usize {
        self.served.len()
    }

    /// Whether bytes are on their way to or from the memory of a unit. A job that runs on this
    /// thread meanwhile could wait for their end, which this thread has to see.
    #[must_use]
    pub const fn is_moving_in_place(&self) -> bool {
        self.direct > 0
    }

    /// Takes what came, and answers what can be answered.
    pub fn poll(&mut self, now: Duration) {
        // Moves that were done at once are told by the next round.
        for _ in 0..ROUNDS_MAX {
            let mut all = Vec::new();
            self.sessions.poll(now, EVENTS_MAX, |event| all.extend(came(event)));
            if all.is_empty() {
                break;
            }
            for came in all {
                self.take(came);
            }
        }
        if now.saturating_sub(self.looked) >= MOVES_WITHIN / 10 {
            self.looked = now;
            self.end_those_that_stand_still(now);
        }
    }

    fn end_those_that_stand_still(&mut self, now: Duration) {
        let is_late = |moving: &Moving| now.saturating_sub(moving.began) > MOVES_WITHIN;
        let served = self.served.iter();
        let late: Vec<SessionId> = served
            .filter(|(_, served)| served.moving.values().any(is_late))
            .map(|(session, _)| *session)
            .collect();
        for session in late {
            self.sessions.end(session, STANDS_STILL, "its memory is not reached");
            // So that what is on its way ends.
            let _ = self.sessions.endpoint().disconnect(session.peer());
        }
    }

    /// Work for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// A job has ended, with what the initiator gets.
    pub fn finished(&mut self, ticket: Ticket, outcome: Outcome, data: Vec<u8>) {
        let Ticket { session, number, tag } = ticket;
        let Some(served) = self.served.get_mut(&session) else { return };
        let status = match outcome {
            Outcome::Done(status) => status,
            Outcome::Continues(job) => {
                let target = Arc::clone(&served.target);
                self.events.push_back(Event::RunUnasked { job, target });
                Status::Good
            }
            // Over the fabric every request has an answer: COMMANDS CLEARED.
            Outcome::Aborted => Sense::new(crate::scsi::Key::Aborted, 0x2f, 0x00).into(),
        };
        if status == Status::Good && !data.is_empty() {
            served.waiting.push_back(Waiting::Put { number, tag, data });
            self.proceed(session);
        } else {
            self.answer(session, number, status, &[]);
        }
    }

    fn take(&mut self, came: Came) {
        match came {
            Came::Hello { session, version, options } => {
                if let Err((code, text)) = self.admit(session, version, &options) {
                    // It ends, whatever becomes of the refusal.
                    let _ = self.sessions.refuse(session, code, &text);
                }
            }
            Came::Pool { session, pool, is_for_reads } => {
                if let Some(served) = self.served.get_mut(&session)
                    && is_for_reads
                {
                    served.reads = Some(pool);
                }
            }
            Came::Block { session, block, head } => self.passed(session, block, &head),
            Came::Request { session, number, head } => self.request(session, number, &head),
            Came::Moved { session, block, is_good } => self.moved(session, block, is_good),
            Came::Room { session } => self.proceed(session),
            Came::Ended { session } => {
                if let Some(mut served) = self.served.remove(&session) {
                    let moving = std::mem::take(&mut served.moving).into_values().collect();
                    self.abandon(session.peer(), moving);
                }
            }
            Came::Fenced { context } => self.fenced(context),
        }
    }

    /// The unit and the initiator of a hello: keys as a login has them.
    fn admit(
        &mut self,
        session: SessionId,
        version: u16,
        options: &[u8],
    ) -> Result<(), (u16, String)> {
        let refused = |code, text: &str| (code, text.to_owned());
        let keys = keys(options).ok_or_else(|| refused(MALFORMED, "the hello is malformed"))?;
        let value =
            |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let missing = || refused(MALFORMED, "the hello lacks a name or a number");
        let name = value("InitiatorName").filter(|name| name.len() <= 223).ok_or_else(missing)?;
        let target = value("TargetName").ok_or_else(missing)?;
        let number: u64 = value("LUN").and_then(|text| text.parse().ok()).ok_or_else(missing)?;
        let isid = value("ISID").and_then(|text| u64::from_str_radix(text, 16).ok());
        let [_, _, isid @ ..] = isid.ok_or_else(missing)?.to_be_bytes();
        let target = self
            .targets
            .get(target)
            .ok_or_else(|| refused(NO_TARGET, "there is no such target"))?;
        if !target.credentials().is_empty() {
            return Err(refused(ASKS_FOR_SECRET, "the target asks for a secret: use iSCSI"));
        }
        let unit =
            target.unit(number).ok_or_else(|| refused(NO_TARGET, "the target has no such LUN"))?;
        if value("Placed").is_none()
            && let Some(address) = self.surroundings.elsewhere(&unit)
        {
            return Err((MOVED, address.to_string()));
        }
        let port = Port { name: name.to_owned(), isid };
        let link =
            unit.attach(&port).ok_or_else(|| refused(NO_ROOM, "the LUN has too many sessions"))?;
        let served = Served {
            target,
            number,
            unit,
            link,
            reads: None,
            passed: HashMap::new(),
            moving: HashMap::new(),
            refused: HashSet::new(),
            waiting: VecDeque::new(),
            region: None,
        };
        self.served.insert(session, served);
        self.sessions
            .accept(session, version, b"")
            .map_err(|_| refused(NO_ROOM, "it came too late"))
    }

    fn passed(&mut self, session: SessionId, block: BlockId, head: &[u8]) {
        let tag = head.try_into().ok().map(u32::from_le_bytes);
        let Some((served, tag)) = self.served.get_mut(&session).zip(tag) else {
            return self.sessions.end(session, MALFORMED, "a block without a tag");
        };
        if served.passed.insert(tag, block).is_some() {
            return self.sessions.end(session, MALFORMED, "two blocks with one tag");
        }
        if served.refused.remove(&tag) {
            return self.give_back(session, tag);
        }
        self.proceed(session);
    }

    fn request(&mut self, session: SessionId, number: u32, head: &[u8]) {
        let Some(served) = self.served.get_mut(&session) else { return };
        let is_there = served.target.unit(served.number);
        if !is_there.is_some_and(|unit| Arc::ptr_eq(&unit, &served.unit)) {
            return self.sessions.end(session, GONE, "the LUN was removed");
        }
        let Some(request) = Request::parse(head) else {
            return self.answer(session, number, Sense::INVALID_COMMAND.into(), &[]);
        };
        match served.unit.begin(&served.link, &request.command, &*served.target) {
            Begun::Done(Reply { status, mut data }) => {
                data.truncate(request.data_in as usize);
                self.refuse_block(session, &request);
                self.answer(session, number, status, &data);
            }
            Begun::Job(job) => {
                // A block has the data of the whole command: more of it is a mistake.
                let fits = job.data_out() == u64::from(request.data_out)
                    && job.data_in() <= u64::from(request.data_in);
                if !fits {
                    self.refuse_block(session, &request);
                    return self.answer(session, number, Sense::INVALID_COMMAND.into(), &[]);
                }
                let waiting = match request.data_out {
                    0 if job.data_in() > 0 && job.may_be_direct() => {
                        Waiting::Read { number, tag: request.tag, job }
                    }
                    0 => return self.run(session, number, request.tag, job, Vec::new()),
                    _ => Waiting::Get { number, request, job },
                };
                served.waiting.push_back(waiting);
                self.proceed(session);
            }
        }
    }

    pub(super) fn run(
        &mut self,
        session: SessionId,
        number: u32,
        tag: u32,
        job: Job,
        data: Vec<u8>,
    ) {
        let Some(served) = self.served.get(&session) else { return };
        let (ticket, target) = (Ticket { session, number, tag }, Arc::clone(&served.target));
        self.events.push_back(Event::Run { ticket, job, data, into: Vec::new(), target });
    }

    /// The block of a command that is answered without its data goes back, now or when it comes.
    fn refuse_block(&mut self, session: SessionId, request: &Request) {
        let Some(served) = self.served.get_mut(&session) else { return };
        if request.data_out == 0 {
            return;
        }
        if served.passed.contains_key(&request.tag) {
            self.give_back(session, request.tag);
        } else if served.refused.len() < BLOCKS as usize {
            served.refused.insert(request.tag);
        } else {
            self.sessions.end(session, MALFORMED, "data that were announced do not come");
        }
    }

    /// Gives back the block of a command that does not need its data.
    pub(super) fn give_back(&mut self, session: SessionId, tag: u32) {
        let block = self.served.get_mut(&session).and_then(|served| served.passed.remove(&tag));
        if let Some(block) = block {
            let _ = self.sessions.free(session, block);
        }
    }

    pub(super) fn answer(&mut self, session: SessionId, number: u32, status: Status, data: &[u8]) {
        let sense = match (status, self.served.get(&session)) {
            (Status::Check(sense), Some(served)) => served.unit.encode(&sense),
            _ => Vec::new(),
        };
        let code = match status {
            Status::Good => 0x00,
            Status::Check(_) => 0x02,
            Status::Busy => 0x08,
            Status::Conflict => 0x18,
        };
        let body = if sense.is_empty() { data } else { &sense };
        // A request that was cancelled, or whose session has ended, needs no answer.
        let _ = self.sessions.answer(session, number, code, &[], &[body]);
    }
}

fn came<R: Region>(event: SessionEvent<'_, R>) -> Option<Came> {
    Some(match event {
        SessionEvent::Hello { session, version, options, .. } => {
            Came::Hello { session, version, options: options.to_vec() }
        }
        SessionEvent::Request { session, number, head, .. } => {
            Came::Request { session, number, head: head.to_vec() }
        }
        SessionEvent::Pool { session, pool, shape } => {
            // Blocks of another size are none of this protocol.
            let is_for_reads = shape.access == Access::WRITE && shape.block_bytes == BLOCK_BYTES;
            Came::Pool { session, pool, is_for_reads }
        }
        SessionEvent::Block { session, block, head, .. } => {
            Came::Block { session, block, head: head.to_vec() }
        }
        SessionEvent::Moved { session, block, result } => {
            Came::Moved { session, block, is_good: result.is_ok() }
        }
        SessionEvent::Room { session } => Came::Room { session },
        SessionEvent::Ended { session, .. } => Came::Ended { session },
        SessionEvent::Endpoint(FabricEvent::Completion(Completion { context, .. })) => {
            Came::Fenced { context }
        }
        _ => return None,
    })
}
