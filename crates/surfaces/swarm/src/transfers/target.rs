//! The end that writes: it accepts one session at a time, and lends it blocks.

use std::collections::VecDeque;
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{Access, Endpoint, LocalRange, Region};
use weft_session::{BlockError, BlockId, End, Event, RequestError, SessionId, Sessions};
use weft_transfer::{
    BLOCK_FRAME_BYTES_MAX, Frame, Limits, Message, Store, Target, TargetOptions, Task, Window,
};

use super::disk::{BLOCK, Disk};
use super::frames_of;

/// Blocks of the pool, and those that are granted at first.
const BLOCKS: u32 = 8;
const BLOCKS_FIRST: u32 = 2;
/// Bytes of a frame in the tests at most: far fewer than the protocol allows.
const FRAME_BYTES: u32 = 1_024;

enum Work {
    Store(BlockId, Vec<Store>, Vec<u8>),
    Task(Task),
}

/// A run of a transfer.
struct Run<R> {
    session: SessionId,
    machine: Target,
    region: R,
    works: Vec<Work>,
    messages: VecDeque<Message>,
    unanswered: Vec<u32>,
    waits_for_room: bool,
    /// The other end had no memory for a message.
    has_lost: bool,
}

/// The end.
pub(super) struct Writer<E: Endpoint> {
    pub sessions: Sessions<E>,
    run: Option<Run<E::Region>>,
    /// Hellos that wait for an answer.
    hellos: Vec<SessionId>,
    /// Why the last run ended; taken by the pair.
    pub ended: Option<End>,
    /// Programs get no memory for a while.
    may_lose: bool,
}

impl<E: Endpoint> Writer<E> {
    pub fn new(mut sessions: Sessions<E>, may_lose: bool) -> Self {
        sessions.serve(super::protocol(), &(1..=1));
        Self { sessions, run: None, hellos: Vec::new(), ended: None, may_lose }
    }

    pub const fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// True if it waits for room.
    pub fn waits(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.waits_for_room)
    }

    /// Bytes of the memory that it lends.
    pub fn lent_bytes(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.region.length())
    }

    /// Takes up to so many events.
    pub fn poll(&mut self, now: Duration, budget: usize) -> Result<(), String> {
        let Self { sessions, run, hellos, ended, .. } = self;
        let mut fault = None;
        sessions.poll(now, budget, |event| {
            if let Err(why) = take_in(run, hellos, ended, event) {
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
    pub fn step(&mut self, disk: &mut Disk, random: &mut ChaCha8Rng) -> Result<bool, String> {
        if let Some(session) = self.hellos.pop() {
            self.admit(session, disk);
            return Ok(true);
        }
        let Some(run) = &mut self.run else { return Ok(false) };
        if std::mem::take(&mut run.has_lost) {
            self.sessions.end(run.session, 4, "a message was lost");
            return Ok(true);
        }
        if let Some(number) = run.unanswered.pop() {
            // The end of the session says why not.
            let _ = self.sessions.answer(run.session, number, 0, b"", &[]);
            return Ok(true);
        }
        run.collect();
        if run.send(&mut self.sessions)? {
            return Ok(true);
        }
        if run.works.is_empty() {
            return Ok(false);
        }
        match run.works.swap_remove(random.random_range(0..run.works.len())) {
            Work::Store(block, stores, bytes) => {
                run.store(&stores, &bytes, disk);
                match self.sessions.free(run.session, block) {
                    Ok(()) | Err(BlockError::Session(_)) => {}
                    Err(error) => return Err(format!("a block is not given back: {error}")),
                }
            }
            Work::Task(task) => run.task(task, disk)?,
        }
        Ok(true)
    }

    /// Accepts a session, unless there is one already: two would write the same files.
    fn admit(&mut self, session: SessionId, disk: &mut Disk) {
        if self.run.is_some() {
            let _ = self.sessions.refuse(session, 1, "there is a transfer");
            return;
        }
        let length = u64::from(BLOCK + FRAME_BYTES) * u64::from(BLOCKS);
        let Ok(region) = self.sessions.endpoint().register(length) else {
            let _ = self.sessions.refuse(session, 2, "there is no memory");
            return;
        };
        // It may be over already.
        if self.sessions.accept(session, 1, b"").is_err() {
            return;
        }
        let range = LocalRange::whole(&region);
        if let Err(error) = self.sessions.lend(session, range, BLOCK + FRAME_BYTES, Access::WRITE) {
            self.sessions.end(session, 3, &error.to_string());
        }
        let limits = Limits { entries_open: 4, blocks: 32, ..Limits::default() };
        let window = Window::new(BLOCKS_FIRST, BLOCKS);
        let mut machine = Target::new(TargetOptions::default(), limits, window, disk.begin());
        machine.begin();
        self.run = Some(Run {
            session,
            machine,
            region,
            works: Vec::new(),
            messages: VecDeque::new(),
            unanswered: Vec::new(),
            waits_for_room: false,
            has_lost: false,
        });
    }
}

impl<R: Region> Run<R> {
    fn collect(&mut self) {
        while let Some(message) = self.machine.poll_message() {
            // The driver of a real transfer waits for this one.
            if message != Message::Ready {
                self.messages.push_back(message);
            }
        }
        while let Some(task) = self.machine.poll_task() {
            self.works.push(Work::Task(task));
        }
        while self.machine.poll_event().is_some() {}
    }

    fn send<E: Endpoint<Region = R>>(
        &mut self,
        sessions: &mut Sessions<E>,
    ) -> Result<bool, String> {
        if self.waits_for_room {
            return Ok(false);
        }
        let Some(message) = self.messages.pop_front() else { return Ok(false) };
        let bytes = Frame::Message(message.clone()).bytes();
        match sessions.request(self.session, b"", &[&bytes], None) {
            Err(RequestError::WouldBlock) => {
                self.messages.push_front(message);
                self.waits_for_room = true;
            }
            Err(error @ (RequestError::TooLong | RequestError::HeadTooLong { .. })) => {
                return Err(error.to_string());
            }
            // The end of the session says why not.
            _ => {}
        }
        Ok(true)
    }

    /// A block with its frame behind it has come.
    fn block(&mut self, block: BlockId, length: u32, head: &[u8]) -> Result<(), String> {
        let begin = u64::from(block.place) * u64::from(BLOCK + FRAME_BYTES);
        let mut bytes = vec![0; usize::try_from(length).expect("a block is small")];
        self.region.read(begin, &mut bytes).map_err(|error| error.to_string())?;
        let frame = head.try_into().map(u32::from_le_bytes).map_err(|_| "a head is cut")?;
        let payload = length.checked_sub(frame).ok_or("a frame is longer than its block")?;
        let frame = bytes.split_off(usize::try_from(payload).expect("a block is small"));
        assert!(frame.len() <= BLOCK_FRAME_BYTES_MAX, "frames are bounded");
        let told = match Frame::parse(&frame).map_err(|error| error.to_string())? {
            Some((Frame::Block(told), _)) if told.payload() == u64::from(payload) => told,
            other => return Err(format!("a block has another frame: {other:?}")),
        };
        let stores = self.machine.block(&told).map_err(|offence| offence.to_string())?;
        self.works.push(Work::Store(block, stores, bytes));
        Ok(())
    }

    fn store(&mut self, stores: &[Store], bytes: &[u8], disk: &mut Disk) {
        let mut rest = bytes;
        for store in stores {
            let length = usize::try_from(store.leaf.length).expect("a block is small");
            let (piece, behind) = rest.split_at(length);
            rest = behind;
            self.machine.stored(store.number, store.leaf, disk.store(store, piece));
        }
        self.machine.freed();
    }

    fn task(&mut self, task: Task, disk: &mut Disk) -> Result<(), String> {
        match task {
            Task::Check { entry, kept } => {
                self.machine.checked(entry.number, disk.check(&entry, kept));
            }
            Task::Finish { entry, leaves } => {
                self.machine.finished(entry.number, disk.finish(&entry, &leaves));
            }
            Task::Sync => self.machine.synced(Ok(())),
            task => return Err(format!("there are files alone: {task:?}")),
        }
        Ok(())
    }
}

fn take_in<R: Region>(
    run: &mut Option<Run<R>>,
    hellos: &mut Vec<SessionId>,
    ended: &mut Option<End>,
    event: Event<'_, R>,
) -> Result<(), String> {
    if let Event::Hello { session, .. } = event {
        hellos.push(session);
        return Ok(());
    }
    if let Event::Ended { session, .. } = &event {
        hellos.retain(|other| other != session);
    }
    let is_of = |session: SessionId| run.as_ref().is_some_and(|run| run.session == session);
    match event {
        Event::Request { session, number, body, .. } if is_of(session) => {
            let of = run.as_mut().expect("it was looked at");
            of.unanswered.push(number);
            for message in frames_of(&body)? {
                of.machine.message(message).map_err(|offence| offence.to_string())?;
            }
        }
        Event::Answer { session, answer: Err(error), .. } if is_of(session) => {
            let has_lost = !matches!(error, RequestError::Session(_));
            run.as_mut().expect("it was looked at").has_lost |= has_lost;
        }
        Event::Block { session, block, length, head } if is_of(session) => {
            run.as_mut().expect("it was looked at").block(block, length, head)?;
        }
        Event::Room { session } if is_of(session) => {
            run.as_mut().expect("it was looked at").waits_for_room = false;
        }
        Event::Ended { session, why, .. } if is_of(session) => {
            *ended = Some(why);
            *run = None;
        }
        _ => {}
    }
    Ok(())
}
