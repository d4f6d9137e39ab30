//! The target's side: sessions of initiators, each with one unit.
//!
//! Invariants: a request has one answer. Blocks of the initiator are used only for the request
//! whose tag they came with. All that an initiator says is checked here or by `weft-session`; a
//! mistake of it is answered by CHECK CONDITION, or ends its session.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{Access, Endpoint, LocalRange, Region, ServiceName, Source};
use weft_session::{BlockError, BlockId, Event as SessionEvent, PoolId, SessionId, Sessions};

use super::{BLOCK_BYTES, BLOCKS, PROTOCOL, Request, VERSIONS};
use crate::iscsi::initiator::keys;
use crate::iscsi::{Target as Named, Targets};
use crate::scsi::{Begun, Job, Link, Outcome, Port, Reply, Sense, Status, Unit};

/// Events that are taken in one poll.
const EVENTS_MAX: usize = 64;
/// Blocks that data are got into, for all sessions.
const STAGES: usize = 64;

const NO_TARGET: u16 = 1;
const MALFORMED: u16 = 2;
const ASKS_FOR_SECRET: u16 = 3;
const NO_ROOM: u16 = 4;

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

/// A session with its unit.
struct Served {
    target: Arc<Named>,
    unit: Arc<Unit>,
    link: Arc<Link>,
    /// The pool that data are put into.
    reads: Option<PoolId>,
    /// Blocks with data, by the tag of their command.
    passed: HashMap<u32, BlockId>,
    /// Commands whose data are being got, by their block.
    getting: HashMap<BlockId, (u32, Request, Job, usize)>,
    /// Commands whose data are being put, by their block.
    putting: HashMap<BlockId, u32>,
    /// Commands that were answered before their block came.
    refused: HashSet<u32>,
    /// Commands that wait for a block or for room, in order.
    waiting: VecDeque<Waiting>,
}

enum Waiting {
    Get { number: u32, request: Request, job: Job },
    Put { number: u32, tag: u32, data: Vec<u8> },
}

impl Drop for Served {
    fn drop(&mut self) {
        self.unit.abort_tasks(&self.link);
        self.unit.detach(&self.link);
    }
}

/// The target's side of all sessions of one endpoint. The module lists its invariants.
pub struct Target<E: Endpoint> {
    sessions: Sessions<E>,
    targets: Arc<Targets>,
    served: HashMap<SessionId, Served>,
    stage: E::Region,
    free_stages: Vec<usize>,
    events: VecDeque<Event>,
}

impl<E: Endpoint> std::fmt::Debug for Target<E> {
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
}

impl<E: Endpoint> Target<E> {
    /// Serves targets over the sessions of an endpoint. `stage` is a region of its own.
    ///
    /// # Panics
    /// When the region is shorter than [`Target::stage_bytes`].
    #[must_use]
    pub fn new(mut sessions: Sessions<E>, targets: Arc<Targets>, stage: E::Region) -> Self {
        assert!(stage.length() >= Self::stage_bytes(), "the region has room for all stages");
        let protocol = ServiceName::new(PROTOCOL).expect("a short name");
        sessions.serve(protocol, &VERSIONS);
        let free_stages = (0..STAGES).collect();
        let (served, events) = (HashMap::new(), VecDeque::new());
        Self { sessions, targets, served, stage, free_stages, events }
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

    /// Takes what came, and answers what can be answered.
    pub fn poll(&mut self, now: Duration) {
        let mut all = Vec::new();
        self.sessions.poll(now, EVENTS_MAX, |event| all.extend(came(event)));
        for came in all {
            self.take(came);
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
                    let _ = self.sessions.refuse(session, code, text);
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
                if let Some(served) = self.served.remove(&session) {
                    self.free_stages.extend(served.getting.values().map(|getting| getting.3));
                }
            }
        }
    }

    /// The unit and the initiator of a hello: keys as a login has them.
    fn admit(
        &mut self,
        session: SessionId,
        version: u16,
        options: &[u8],
    ) -> Result<(), (u16, &'static str)> {
        let keys = keys(options).ok_or((MALFORMED, "the hello is malformed"))?;
        let value =
            |name: &str| keys.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let missing = (MALFORMED, "the hello lacks a name or a number");
        let name = value("InitiatorName").filter(|name| name.len() <= 223).ok_or(missing)?;
        let target = value("TargetName").ok_or(missing)?;
        let number: u64 = value("LUN").and_then(|text| text.parse().ok()).ok_or(missing)?;
        let isid = value("ISID").and_then(|text| u64::from_str_radix(text, 16).ok());
        let [_, _, isid @ ..] = isid.ok_or(missing)?.to_be_bytes();
        let target = self.targets.get(target).ok_or((NO_TARGET, "there is no such target"))?;
        if !target.credentials().is_empty() {
            return Err((ASKS_FOR_SECRET, "the target asks for a secret: use iSCSI"));
        }
        let unit = target.unit(number).ok_or((NO_TARGET, "the target has no such LUN"))?;
        let port = Port { name: name.to_owned(), isid };
        let link = unit.attach(&port).ok_or((NO_ROOM, "the LUN has too many sessions"))?;
        let served = Served {
            target,
            unit,
            link,
            reads: None,
            passed: HashMap::new(),
            getting: HashMap::new(),
            putting: HashMap::new(),
            refused: HashSet::new(),
            waiting: VecDeque::new(),
        };
        self.served.insert(session, served);
        self.sessions.accept(session, version, b"").map_err(|_| (NO_ROOM, "it came too late"))
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
                if request.data_out == 0 {
                    return self.run(session, number, request.tag, job, Vec::new());
                }
                served.waiting.push_back(Waiting::Get { number, request, job });
                self.proceed(session);
            }
        }
    }

    fn run(&mut self, session: SessionId, number: u32, tag: u32, job: Job, data: Vec<u8>) {
        let Some(served) = self.served.get(&session) else { return };
        let (ticket, target) = (Ticket { session, number, tag }, Arc::clone(&served.target));
        self.events.push_back(Event::Run { ticket, job, data, into: Vec::new(), target });
    }

    /// Goes on with commands that wait for a block, a stage or room, in order.
    fn proceed(&mut self, session: SessionId) {
        loop {
            let Some(served) = self.served.get_mut(&session) else { return };
            let Some(first) = served.waiting.pop_front() else { return };
            let again = match first {
                Waiting::Get { number, request, job } => self.get(session, number, request, job),
                Waiting::Put { number, tag, data } => self.put(session, number, tag, data),
            };
            if let Some(again) = again {
                if let Some(served) = self.served.get_mut(&session) {
                    served.waiting.push_front(again);
                }
                return;
            }
        }
    }

    /// Gets the data of a write. Returns it when it has to wait.
    fn get(
        &mut self,
        session: SessionId,
        number: u32,
        request: Request,
        job: Job,
    ) -> Option<Waiting> {
        let served = self.served.get_mut(&session)?;
        let Some(block) = served.passed.get(&request.tag).copied() else {
            // It is behind the request.
            return Some(Waiting::Get { number, request, job });
        };
        let Some(stage) = self.free_stages.pop() else {
            return Some(Waiting::Get { number, request, job });
        };
        let at = stage as u64 * u64::from(BLOCK_BYTES);
        let into = LocalRange::new(&self.stage, at, request.data_out.into());
        // The end of the get may be told at once.
        served.passed.remove(&request.tag);
        served.getting.insert(block, (number, request, job, stage));
        match self.sessions.get(session, block, 0, into) {
            Ok(()) => None,
            Err(error) => {
                let served = self.served.get_mut(&session)?;
                let (number, request, job, stage) = served.getting.remove(&block)?;
                served.passed.insert(request.tag, block);
                self.free_stages.push(stage);
                if is_full(&error) {
                    return Some(Waiting::Get { number, request, job });
                }
                self.give_back(session, request.tag);
                self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
                None
            }
        }
    }

    /// Puts the data of a read. Returns it when it has to wait.
    fn put(&mut self, session: SessionId, number: u32, tag: u32, data: Vec<u8>) -> Option<Waiting> {
        let served = self.served.get_mut(&session)?;
        let Some(pool) = served.reads else {
            // The initiator lent nothing.
            self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
            return None;
        };
        let Ok(Some(block)) = self.sessions.take(session, pool) else {
            return Some(Waiting::Put { number, tag, data });
        };
        served.putting.insert(block, number);
        match self.sessions.put(session, block, Source::Bytes(&data), &tag.to_le_bytes()) {
            Ok(()) => None,
            Err(error) => {
                self.served.get_mut(&session)?.putting.remove(&block);
                let _ = self.sessions.free(session, block);
                if is_full(&error) {
                    return Some(Waiting::Put { number, tag, data });
                }
                self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
                None
            }
        }
    }

    fn moved(&mut self, session: SessionId, block: BlockId, is_good: bool) {
        let Some(served) = self.served.get_mut(&session) else { return };
        if let Some(number) = served.putting.remove(&block) {
            let status = if is_good { Status::Good } else { Status::Check(Sense::TOO_LITTLE_DATA) };
            return self.answer(session, number, status, &[]);
        }
        let Some((number, request, job, stage)) = served.getting.remove(&block) else { return };
        let mut data = vec![0; request.data_out as usize];
        let at = stage as u64 * u64::from(BLOCK_BYTES);
        let is_read = self.stage.read(at, &mut data).is_ok();
        self.free_stages.push(stage);
        let _ = self.sessions.free(session, block);
        if is_good && is_read {
            self.run(session, number, request.tag, job, data);
        } else {
            self.answer(session, number, Sense::TOO_LITTLE_DATA.into(), &[]);
        }
        self.serve_others();
    }

    /// A stage came free: whoever waits for one goes on.
    fn serve_others(&mut self) {
        let waiting: Vec<SessionId> = self
            .served
            .iter()
            .filter(|(_, served)| matches!(served.waiting.front(), Some(Waiting::Get { .. })))
            .map(|(session, _)| *session)
            .collect();
        for session in waiting {
            self.proceed(session);
        }
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
    fn give_back(&mut self, session: SessionId, tag: u32) {
        let block = self.served.get_mut(&session).and_then(|served| served.passed.remove(&tag));
        if let Some(block) = block {
            let _ = self.sessions.free(session, block);
        }
    }

    fn answer(&mut self, session: SessionId, number: u32, status: Status, data: &[u8]) {
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

fn is_full(error: &BlockError) -> bool {
    matches!(error, BlockError::Operation(weft_fabric::OperationError::WouldBlock))
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
            Came::Pool { session, pool, is_for_reads: shape.access == Access::WRITE }
        }
        SessionEvent::Block { session, block, head, .. } => {
            Came::Block { session, block, head: head.to_vec() }
        }
        SessionEvent::Moved { session, block, result } => {
            Came::Moved { session, block, is_good: result.is_ok() }
        }
        SessionEvent::Room { session } => Came::Room { session },
        SessionEvent::Ended { session, .. } => Came::Ended { session },
        _ => return None,
    })
}
