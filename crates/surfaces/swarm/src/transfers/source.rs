//! The end that reads: it opens a session, and puts blocks into those that the other end lent.
//!
//! # Invariant
//! An end that was refused for lack of room tries again only when it was told of room.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Blocking, Endpoint, EndpointAddress, OperationError, Source as Bytes};
use weft_session::{BlockError, BlockId, End, Event, PoolId, RequestError, SessionId, Sessions};
use weft_transfer::{
    BlockNumber, Frame, Job, Kind, Leaf, Limits, Loaded, Message, Metadata, Piece, Source,
    SourceEvent, Steadiness, Summary, TreePath, hash,
};

use super::disk::{BLOCK, Files, id, place};
use super::{frames_of, protocol};

/// How long a peer is waited for.
const SOON: Duration = Duration::from_secs(1);

/// A block on its way out.
struct Filled {
    block: BlockId,
    bytes: Vec<u8>,
    frame: u32,
}

enum Work {
    Read(BlockNumber, BlockId, Vec<Piece>),
    Close(u64),
}

/// A run of a transfer.
struct Run {
    session: SessionId,
    is_open: bool,
    machine: Source,
    walk: VecDeque<TreePath>,
    is_walked: bool,
    pool: Option<PoolId>,
    /// A block that is free to be filled.
    space: Option<BlockId>,
    works: Vec<Work>,
    messages: VecDeque<Message>,
    filled: VecDeque<Filled>,
    /// Requests of the other end that have no answer yet.
    unanswered: Vec<u32>,
    waits_for_room: bool,
    /// The other end had no memory for a message.
    has_lost: bool,
    /// Bytes of files that it read.
    sent: u64,
}

/// The end.
pub(super) struct Reader<E: Endpoint> {
    pub sessions: Sessions<E>,
    run: Option<Run>,
    /// Why the last run ended; taken by the pair.
    pub ended: Option<End>,
    /// The last run came to its end: what it told, and how many bytes it sent.
    pub over: Option<(Summary, u64)>,
    /// Programs get no memory for a while.
    may_lose: bool,
}

impl<E: Endpoint> Reader<E> {
    pub fn new(sessions: Sessions<E>, may_lose: bool) -> Self {
        Self { sessions, run: None, ended: None, over: None, may_lose }
    }

    pub const fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// True if it waits for room.
    pub fn waits(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.waits_for_room)
    }

    /// Begins a run, if the other end is reached.
    pub fn begin(&mut self, to: EndpointAddress, files: &Files, now: Duration) {
        let Ok(peer) = self.sessions.endpoint().connect_within(to, SOON) else { return };
        let opened = self.sessions.open(peer, protocol(), &(1..=1), b"", now);
        let Ok(session) = opened else { return };
        let limits = Limits { entries_open: 4, blocks: 32, ..Limits::default() };
        self.run = Some(Run {
            session,
            is_open: false,
            machine: Source::new(BLOCK, limits),
            walk: files.keys().cloned().collect(),
            is_walked: false,
            pool: None,
            space: None,
            works: Vec::new(),
            messages: VecDeque::new(),
            filled: VecDeque::new(),
            unanswered: Vec::new(),
            waits_for_room: false,
            has_lost: false,
            sent: 0,
        });
    }

    /// Takes up to so many events.
    pub fn poll(&mut self, now: Duration, budget: usize) -> Result<(), String> {
        let (run, ended) = (&mut self.run, &mut self.ended);
        let mut fault = None;
        self.sessions.poll(now, budget, |event| {
            if let Err(why) = take_in(run, ended, event) {
                fault.get_or_insert(why);
            }
        });
        match (fault, run) {
            // Without memory an end loses a message, and the next ones do not fit.
            (Some(_), Some(run)) if self.may_lose => run.has_lost = true,
            (Some(why), _) => return Err(why),
            (None, _) => {}
        }
        Ok(())
    }

    /// Does one thing. False if there is none.
    pub fn step(&mut self, files: &Files, random: &mut ChaCha8Rng) -> Result<bool, String> {
        let Some(run) = &mut self.run else { return Ok(false) };
        if !run.is_open {
            return Ok(false);
        }
        if std::mem::take(&mut run.has_lost) {
            self.sessions.end(run.session, 4, "a message was lost");
            return Ok(true);
        }
        if let Some(number) = run.unanswered.pop() {
            // The end of the session says why not.
            let _ = self.sessions.answer(run.session, number, 0, b"", &[]);
            return Ok(true);
        }
        run.collect(&mut self.sessions);
        match run.machine.poll_event() {
            Some(SourceEvent::Over(summary)) => {
                self.over = Some((summary, run.sent));
                self.sessions.end(run.session, 0, "");
                return Ok(true);
            }
            Some(event) => return Err(format!("a transfer went wrong: {event:?}")),
            None => {}
        }
        if run.walk_on(files) || run.send(&mut self.sessions)? {
            return Ok(true);
        }
        if run.works.is_empty() {
            return Ok(false);
        }
        match run.works.swap_remove(random.random_range(0..run.works.len())) {
            Work::Read(number, block, pieces) => run.read(files, number, block, &pieces),
            Work::Close(number) => run.machine.closed(number, Steadiness::Same),
        }
        Ok(true)
    }
}

impl Run {
    fn collect<E: Endpoint>(&mut self, sessions: &mut Sessions<E>) {
        self.machine.flush_entries();
        while let Some(message) = self.machine.poll_message() {
            self.messages.push_back(message);
        }
        loop {
            if let (None, Some(pool)) = (self.space, self.pool) {
                // The end of the session says why not.
                self.space = sessions.take(self.session, pool).ok().flatten();
            }
            match (self.machine.poll_job(self.space.is_some()), self.space) {
                (Some(Job::Load { block, pieces }), Some(space)) => {
                    self.works.push(Work::Read(block, space, pieces));
                    self.space = None;
                }
                (Some(Job::Close { number, .. }), _) => self.works.push(Work::Close(number)),
                (Some(job), _) => unreachable!("no file has holes: {job:?}"),
                (None, _) => return,
            }
        }
    }

    fn walk_on(&mut self, files: &Files) -> bool {
        if self.is_walked || self.machine.room() == 0 {
            return false;
        }
        match self.walk.pop_front() {
            Some(path) => {
                let kind = Kind::File(id(&path, &files[&path]));
                self.machine.entry(path, Metadata::default(), kind, false);
            }
            None => {
                self.is_walked = true;
                self.machine.walk_end();
            }
        }
        true
    }

    fn read(&mut self, files: &Files, number: BlockNumber, block: BlockId, pieces: &[Piece]) {
        let (mut bytes, mut all): (Vec<u8>, Vec<Loaded>) = Default::default();
        for piece in pieces {
            let leaf = Leaf { offset: piece.offset, length: piece.length, hash: 0 };
            let read = &files[&piece.path][place(&leaf)];
            bytes.extend_from_slice(read);
            all.push(Ok((Leaf { hash: hash(read), ..leaf }, Steadiness::Same)));
        }
        self.sent += bytes.len() as u64;
        let told = self.machine.loaded(number, all).expect("all was read");
        let frame = Frame::Block(told).bytes();
        bytes.extend_from_slice(&frame);
        let frame = u32::try_from(frame.len()).expect("frames are short");
        self.filled.push_back(Filled { block, bytes, frame });
    }

    /// Sends the first thing that waits. False if there is none, or no room.
    fn send<E: Endpoint>(&mut self, sessions: &mut Sessions<E>) -> Result<bool, String> {
        if self.waits_for_room {
            return Ok(false);
        }
        let result = if let Some(message) = self.messages.pop_front() {
            let bytes = Frame::Message(message.clone()).bytes();
            match sessions.request(self.session, b"", &[&bytes], None) {
                Err(RequestError::WouldBlock) => {
                    self.messages.push_front(message);
                    self.waits_for_room = true;
                    Ok(())
                }
                Err(error @ (RequestError::TooLong | RequestError::HeadTooLong { .. })) => {
                    Err(error.to_string())
                }
                // The end of the session says why not.
                _ => Ok(()),
            }
        } else if let Some(Filled { block, bytes, frame }) = self.filled.pop_front() {
            let put = sessions.put(self.session, block, Bytes::Bytes(&bytes), &frame.to_le_bytes());
            match put {
                Err(BlockError::Operation(OperationError::WouldBlock)) => {
                    self.filled.push_front(Filled { block, bytes, frame });
                    self.waits_for_room = true;
                    Ok(())
                }
                Ok(()) | Err(BlockError::Session(_) | BlockError::Operation(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        } else {
            return Ok(false);
        };
        result.map(|()| true)
    }
}

fn take_in<R: weft_fabric::Region>(
    run: &mut Option<Run>,
    ended: &mut Option<End>,
    event: Event<'_, R>,
) -> Result<(), String> {
    let session = match &event {
        Event::Opened { session, .. }
        | Event::Request { session, .. }
        | Event::Answer { session, .. }
        | Event::Pool { session, .. }
        | Event::Moved { session, .. }
        | Event::Room { session }
        | Event::Ended { session, .. } => *session,
        _ => return Ok(()),
    };
    let Some(of) = run.as_mut().filter(|run| run.session == session) else { return Ok(()) };
    match event {
        Event::Opened { .. } => of.is_open = true,
        Event::Request { number, body, .. } => {
            of.unanswered.push(number);
            for message in frames_of(&body)? {
                of.machine.message(message).map_err(|offence| offence.to_string())?;
            }
        }
        Event::Answer { answer: Err(error), .. } => {
            of.has_lost |= !matches!(error, RequestError::Session(_));
        }
        Event::Pool { pool, .. } => of.pool = Some(pool),
        Event::Room { .. } => of.waits_for_room = false,
        Event::Moved { result: Err(error), .. } => {
            let is_end = matches!(error, OperationError::PeerDown | OperationError::InvalidKey);
            if !is_end {
                return Err(format!("a block was not moved: {error}"));
            }
        }
        Event::Ended { why, .. } => {
            *ended = Some(why);
            *run = None;
        }
        _ => {}
    }
    Ok(())
}
