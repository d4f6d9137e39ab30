//! One program: it serves, asks, lends blocks, fills those of others, and checks what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Access, Blocking, DownReason, Endpoint, EndpointAddress, LocalRange, OperationError, Region,
    Source,
};
use weft_session::{
    AnswerError, BlockError, BlockId, End, Event, Options, PoolId, RequestError, SessionError,
    SessionId, Sessions, Shape, bytes_of, refusals,
};

use super::book::Book;
use super::protocol;
use crate::ledger::Life;
use crate::plan::one_of;
use crate::workload::pattern;

/// How long a peer is waited for.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// Pools that a program lends in a session at most, and the blocks of each.
pub(super) const POOLS_MAX: usize = 2;
pub(super) const BLOCKS: u32 = 4;
const BLOCK_BYTES: u32 = 256;
const POOL_BYTES: u64 = BLOCKS as u64 * BLOCK_BYTES as u64;
/// Pools that fit in the region, and places of blocks that are got, behind them.
const PLACES: u64 = 8;
const SCRATCHES: u64 = 16;
const REGION_BYTES: u64 = PLACES * POOL_BYTES + SCRATCHES * BLOCK_BYTES as u64;
/// Numbers of the protocol: an answer, an end, a refusal.
const SAID: u16 = 9;
const ENOUGH: u16 = 1;
const NOT_NOW: u16 = 77;

/// A session, as its program knows it.
struct Talk {
    /// Its mark and the program at the other end; `None` if that is the hostile endpoint.
    with: Option<(u64, Life)>,
    /// This program asked for it.
    is_own: bool,
    is_open: bool,
    /// The program was refused for lack of room, and was not told of room.
    waits: bool,
    /// The marks of the last request, and of the last block that was passed without a put.
    last_request: u64,
    last_pass: u64,
}

/// Something that was told, as the program keeps it until the call is over.
enum Seen {
    Hello(SessionId, Vec<u8>),
    Opened(SessionId, u16),
    Request(SessionId, u32, Vec<u8>),
    Cancelled(SessionId, u32),
    Answer(SessionId, u32, Result<(u16, Vec<u8>, Vec<u8>), RequestError>),
    Pool(SessionId, PoolId, Shape),
    Block(SessionId, BlockId, u32, Vec<u8>),
    Moved(SessionId, BlockId, Result<(), OperationError>),
    Room(SessionId),
    Ended(SessionId, End, bool),
    Other,
}

/// A block that came: its length and head.
type Came = (SessionId, BlockId, u32, Vec<u8>);

/// A block whose bytes are on their way, to a place behind the pools.
struct Getting {
    session: SessionId,
    block: BlockId,
    length: u32,
    mark: u64,
    scratch: u64,
}

pub(super) struct Program<E: Endpoint> {
    pub life: Life,
    pub host: usize,
    sessions: Sessions<E>,
    options: Options,
    region: Option<E::Region>,
    talks: BTreeMap<SessionId, Talk>,
    /// Requests that have no end, with their marks.
    asked: BTreeMap<(SessionId, u32), u64>,
    to_answer: Vec<(SessionId, u32, Vec<u8>)>,
    /// Pools that others lent, those that this program fills, and own ones with their places.
    lent: BTreeSet<(SessionId, PoolId)>,
    pools: BTreeMap<(SessionId, PoolId), Shape>,
    own_pools: BTreeMap<(SessionId, PoolId), u64>,
    /// Places that a peer may still write to.
    lost_places: BTreeSet<u64>,
    came: Vec<Came>,
    getting: Option<Getting>,
    scratch: u64,
    /// Programs that were told as not reached; `None` for the hostile endpoint.
    unreachable: Vec<Option<Life>>,
}

/// The mark at the begin of some bytes, and the bytes behind it.
fn mark_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mark, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*mark), rest))
}

/// Some of a list.
fn any<T: Clone>(random: &mut ChaCha8Rng, among: impl ExactSizeIterator<Item = T>) -> Option<T> {
    let (count, mut among) = (among.len(), among);
    if count == 0 { None } else { among.nth(random.random_range(0..count)) }
}

fn is_over(error: &BlockError) -> bool {
    matches!(error, BlockError::Session(SessionError::Unknown))
}

impl<E: Endpoint> Program<E> {
    pub fn new(life: Life, host: usize, endpoint: E, options: &Options) -> Self {
        let mut sessions = Sessions::new(endpoint, options.clone());
        sessions.serve(protocol(), &(1..=3));
        Self {
            life,
            host,
            sessions,
            options: options.clone(),
            region: None,
            talks: BTreeMap::new(),
            asked: BTreeMap::new(),
            to_answer: Vec::new(),
            lent: BTreeSet::new(),
            pools: BTreeMap::new(),
            own_pools: BTreeMap::new(),
            lost_places: BTreeSet::new(),
            came: Vec::new(),
            getting: None,
            scratch: 0,
            unreachable: Vec::new(),
        }
    }

    pub fn address(&mut self) -> EndpointAddress {
        self.sessions.endpoint().address()
    }

    pub fn take_unreachable(&mut self) -> Vec<Option<Life>> {
        std::mem::take(&mut self.unreachable)
    }

    pub fn keys(&self) -> usize {
        self.sessions.census().keys + self.own_pools.len()
    }

    pub fn region_bytes(&self) -> u64 {
        let census = self.sessions.census();
        let own = self.region.as_ref().map_or(0, Region::length);
        own + census.copy_bytes + census.receive_bytes
    }

    /// Asks for a session, with the program of this life or with the hostile endpoint.
    pub fn open(
        &mut self,
        to: EndpointAddress,
        life: Option<Life>,
        book: &mut Book,
        now: Duration,
    ) {
        let Ok(peer) = self.sessions.endpoint().connect_within(to, SOON) else { return };
        let mark = book.mark();
        let opened = self.sessions.open(peer, protocol(), &(2..=2), &mark.to_le_bytes(), now);
        // There may be too many.
        let Ok(session) = opened else { return };
        if let Some(other) = life {
            book.open(mark, [self.life, other]);
        }
        self.add(session, life.map(|life| (mark, life)), true);
    }

    fn add(&mut self, session: SessionId, with: Option<(u64, Life)>, is_own: bool) {
        let (is_open, waits, last_request, last_pass) = (false, false, 0, 0);
        let talk = Talk { with, is_own, is_open, waits, last_request, last_pass };
        self.talks.insert(session, talk);
    }

    fn any_open(&self, random: &mut ChaCha8Rng) -> Option<SessionId> {
        let open: Vec<_> = self.talks.iter().filter(|(_, talk)| talk.is_open).collect();
        any(random, open.iter().map(|(session, _)| **session))
    }

    fn refused(&mut self, session: SessionId) {
        if let Some(talk) = self.talks.get_mut(&session) {
            talk.waits = true;
        }
    }

    pub fn ask(
        &mut self,
        book: &mut Book,
        random: &mut ChaCha8Rng,
        now: Duration,
    ) -> Result<(), String> {
        let Some(session) = self.any_open(random) else { return Ok(()) };
        let talk = &self.talks[&session];
        if talk.waits {
            return Ok(());
        }
        let (mark, length) = (book.mark(), one_of(random, &[0, 10, 300, 3_000]));
        let is_short = talk.with.is_none() || random.random_bool(0.4);
        let until = is_short.then(|| now + Duration::from_micros(random.random_range(1..100)));
        let body = pattern(mark, length);
        match self.sessions.request(session, b"ask", &[&mark.to_le_bytes(), &body], until) {
            Ok(number) => match self.asked.insert((session, number), mark) {
                None => {}
                Some(_) => return Err(format!("{:?}: number {number} was open", self.life)),
            },
            Err(RequestError::WouldBlock) => self.refused(session),
            Err(RequestError::Session(_)) => {}
            Err(error) => return Err(format!("{:?}: a request: {error}", self.life)),
        }
        Ok(())
    }

    pub fn answer(&mut self, book: &mut Book, random: &mut ChaCha8Rng) -> Result<(), String> {
        let count = self.to_answer.len();
        if count == 0 {
            return Ok(());
        }
        self.answer_one(book, random.random_range(0..count))
    }

    fn answer_one(&mut self, book: &mut Book, place: usize) -> Result<(), String> {
        let (session, number, body) = self.to_answer.swap_remove(place);
        let is_honest = self.talks.get(&session).is_some_and(|talk| talk.with.is_some());
        let (mark, length) = mark_of(&body).map_or((0, 0), |(mark, rest)| (mark, rest.len()));
        if is_honest {
            book.serve(mark)?;
        }
        let said = pattern(!mark, length);
        let head = mark.to_le_bytes();
        match self.sessions.answer(session, number, SAID, &head, &[&said]) {
            Ok(()) | Err(AnswerError::Session(_)) => Ok(()),
            Err(error) => Err(format!("{:?}: an answer: {error}", self.life)),
        }
    }

    pub fn lend(&mut self, random: &mut ChaCha8Rng) -> Result<(), String> {
        let Some(session) = self.any_open(random) else { return Ok(()) };
        if self.region.is_none() {
            // Without memory, another time.
            self.region = self.sessions.endpoint().register(REGION_BYTES).ok();
        }
        let Some(region) = &self.region else { return Ok(()) };
        let its = self.own_pools.keys().filter(|(id, _)| *id == session).count();
        let is_taken = |place: &u64| {
            self.own_pools.values().any(|other| other == place) || self.lost_places.contains(place)
        };
        let free = (0..PLACES).find(|place| !is_taken(place));
        let Some(place) = free.filter(|_| its < POOLS_MAX) else { return Ok(()) };
        let access = one_of(random, &[Access::READ, Access::WRITE]);
        let range = LocalRange::new(region, place * POOL_BYTES, POOL_BYTES);
        match self.sessions.lend(session, range, BLOCK_BYTES, access) {
            Ok(pool) => {
                self.own_pools.insert((session, pool), place);
                if access == Access::READ {
                    let shape = Shape { block_bytes: BLOCK_BYTES, blocks: BLOCKS, access };
                    self.pools.insert((session, pool), shape);
                }
                Ok(())
            }
            Err(error) if is_over(&error) => Ok(()),
            Err(error) => Err(format!("{:?}: a pool: {error}", self.life)),
        }
    }

    /// Fills a block: by put, or through the own region.
    pub fn fill(&mut self, book: &mut Book, random: &mut ChaCha8Rng) -> Result<(), String> {
        let Some((session, pool)) = any(random, self.pools.keys().copied()) else { return Ok(()) };
        if self.talks.get(&session).is_none_or(|talk| talk.waits) {
            return Ok(());
        }
        let block = match self.sessions.take(session, pool) {
            Ok(Some(block)) => block,
            Ok(None) => {
                self.refused(session);
                return Ok(());
            }
            Err(error) if is_over(&error) => return Ok(()),
            Err(error) => return Err(format!("{:?}: a block to fill: {error}", self.life)),
        };
        let (mark, length) = (book.mark(), random.random_range(0..=BLOCK_BYTES));
        let (bytes, head) = (pattern(mark, length as usize), mark.to_le_bytes());
        let filled = match (self.own_pools.get(&(session, pool)), &self.region) {
            (Some(place), Some(region)) => {
                let at = place * POOL_BYTES + u64::from(block.place * BLOCK_BYTES);
                region.write(at, &bytes).expect("it lies in the region");
                self.sessions.pass(session, block, length, &head)
            }
            _ => self.sessions.put(session, block, Source::Bytes(&bytes), &head),
        };
        match filled {
            Ok(()) => Ok(()),
            Err(BlockError::Operation(error)) => {
                if error == OperationError::WouldBlock {
                    self.refused(session);
                }
                let freed = self.sessions.free(session, block);
                freed.map_err(|error| format!("{:?}: a block that was taken: {error}", self.life))
            }
            Err(error) if is_over(&error) => Ok(()),
            Err(error) => Err(format!("{:?}: a block: {error}", self.life)),
        }
    }

    /// Looks at a block that came, and gives it back. One in the memory of a peer is got first.
    pub fn use_block(&mut self, book: &mut Book) -> Result<(), String> {
        let Some((session, block, length, head)) = self.came.pop() else { return Ok(()) };
        let is_honest = self.talks.get(&session).is_some_and(|talk| talk.with.is_some());
        let mark = mark_of(&head).map_or(0, |(mark, _)| mark);
        match (self.own_pools.get(&(session, block.pool)), &self.region) {
            (Some(place), Some(region)) if is_honest => {
                let at = place * POOL_BYTES + u64::from(block.place * BLOCK_BYTES);
                check_bytes(region, at, length, mark)?;
                book.block(mark)?;
            }
            (None, Some(region)) if is_honest && self.getting.is_none() => {
                let scratch = self.scratch % SCRATCHES;
                let at = PLACES * POOL_BYTES + scratch * u64::from(BLOCK_BYTES);
                let into = LocalRange::new(region, at, u64::from(length));
                if length > 0 && self.sessions.get(session, block, 0, into).is_ok() {
                    self.getting = Some(Getting { session, block, length, mark, scratch: at });
                    return Ok(());
                }
                book.block(mark)?;
            }
            _ if is_honest => book.block(mark)?,
            _ => {}
        }
        self.give_back(session, block)
    }

    fn give_back(&mut self, session: SessionId, block: BlockId) -> Result<(), String> {
        match self.sessions.free(session, block) {
            Ok(()) => Ok(()),
            Err(error) if is_over(&error) => Ok(()),
            Err(error) => Err(format!("{:?}: a block back: {error}", self.life)),
        }
    }

    pub fn end(&mut self, random: &mut ChaCha8Rng) {
        if let Some(session) = any(random, self.talks.keys().copied()) {
            self.sessions.end(session, ENOUGH, "enough");
        }
    }

    pub fn cancel(&mut self, random: &mut ChaCha8Rng) {
        if let Some((session, number)) = any(random, self.asked.keys().copied()) {
            self.sessions.cancel(session, number);
        }
    }

    /// Answers everything, and uses every block.
    pub fn do_everything(&mut self, book: &mut Book) -> Result<(), String> {
        while !self.to_answer.is_empty() {
            self.answer_one(book, 0)?;
        }
        for _ in 0..self.came.len() {
            self.use_block(book)?;
        }
        Ok(())
    }

    /// Takes up to so many events, and checks them.
    pub fn poll(&mut self, book: &mut Book, now: Duration, budget: usize) -> Result<(), String> {
        let mut events = Vec::new();
        self.sessions.poll(now, budget, |event| events.push(seen(event)));
        for event in events {
            self.see(book, event).map_err(|why| format!("{:?}: {why}", self.life))?;
        }
        let (count, maximum) = (self.sessions.count(), self.options.sessions_max);
        if count > maximum {
            return Err(format!("{:?}: {count} sessions, and {maximum} may be", self.life));
        }
        Ok(())
    }

    fn see(&mut self, book: &mut Book, event: Seen) -> Result<(), String> {
        match event {
            Seen::Hello(session, options) => self.hello(book, session, &options)?,
            Seen::Opened(session, version) => {
                let talk = self.talks.get_mut(&session).ok_or("nobody opened this session")?;
                if talk.is_open || version != 2 && talk.with.is_some() {
                    return Err(format!("{session:?} opens twice, or in version {version}"));
                }
                talk.is_open = true;
            }
            Seen::Request(session, number, body) => self.request(session, number, body)?,
            Seen::Cancelled(session, number) => {
                self.to_answer.retain(|(id, other, _)| (*id, *other) != (session, number));
            }
            Seen::Answer(session, number, answer) => {
                let mark = self.asked.remove(&(session, number));
                let mark = mark.ok_or(format!("{session:?}: a second end of {number}"))?;
                let is_honest = self.talks[&session].with.is_some();
                match answer {
                    Ok(answer) if is_honest => check_answer(mark, &answer, book)?,
                    Ok(_) => {}
                    Err(error) => check_error(&error, book.may_lose || !is_honest)?,
                }
            }
            Seen::Pool(session, pool, shape) => {
                self.lent.insert((session, pool));
                if shape.access.contains(Access::WRITE) {
                    self.pools.insert((session, pool), shape);
                }
                let count = self.lent.iter().filter(|(id, _)| *id == session).count();
                let blocks = shape.blocks;
                if count > self.options.pools_max || blocks > self.options.blocks_max {
                    return Err(format!("{session:?}: {count} pools, the last of {blocks} blocks"));
                }
            }
            Seen::Block(session, block, length, head) => {
                let talk = self.talks.get_mut(&session).ok_or("a block of no session")?;
                let is_own = self.own_pools.contains_key(&(session, block.pool));
                if let (Some((mark, _)), false, true) =
                    (mark_of(&head), is_own, talk.with.is_some())
                {
                    if mark <= talk.last_pass {
                        return Err(format!("{session:?}: block {mark} came out of order"));
                    }
                    talk.last_pass = mark;
                }
                self.came.push((session, block, length, head));
            }
            Seen::Moved(session, block, result) => self.moved(book, session, block, &result)?,
            Seen::Room(session) => {
                if let Some(talk) = self.talks.get_mut(&session) {
                    talk.waits = false;
                }
            }
            Seen::Ended(session, why, is_revoked) => {
                self.ended(book, session, why, is_revoked)?;
            }
            Seen::Other => {}
        }
        Ok(())
    }

    fn hello(&mut self, book: &mut Book, session: SessionId, options: &[u8]) -> Result<(), String> {
        let with = match <[u8; 8]>::try_from(options) {
            Ok(mark) => {
                let mark = u64::from_le_bytes(mark);
                Some((mark, book.hello(mark, self.life)?))
            }
            // The hostile endpoint sends no mark.
            Err(_) => None,
        };
        self.add(session, with, false);
        let refuses = with.is_some_and(|(mark, _)| mark % 11 == 0);
        let done = if refuses {
            self.sessions.refuse(session, NOT_NOW, "not now")
        } else {
            self.sessions.accept(session, 2, b"")
        };
        match done {
            Ok(()) => {
                let talk = self.talks.get_mut(&session).expect("it was just added");
                talk.is_open = !refuses;
                Ok(())
            }
            // It has ended meanwhile, and the end is told.
            Err(SessionError::Unknown) => Ok(()),
            Err(error) => Err(format!("{session:?} was asked for: {error}")),
        }
    }

    fn request(&mut self, session: SessionId, number: u32, body: Vec<u8>) -> Result<(), String> {
        let talk = self.talks.get_mut(&session).ok_or("a request of no session")?;
        if talk.with.is_some() {
            let (mark, rest) = mark_of(&body).ok_or("a request without a mark")?;
            if mark <= talk.last_request {
                return Err(format!("{session:?}: request {mark} came again, or out of order"));
            }
            talk.last_request = mark;
            if rest != pattern(mark, rest.len()) {
                return Err(format!("{session:?}: request {mark} has other bytes"));
            }
        }
        self.to_answer.push((session, number, body));
        let open = self.to_answer.iter().filter(|(id, ..)| *id == session).count();
        let maximum = self.options.requests_max as usize;
        if open > maximum {
            return Err(format!("{session:?}: {open} requests, and {maximum} may be open"));
        }
        Ok(())
    }

    fn moved(
        &mut self,
        book: &mut Book,
        session: SessionId,
        block: BlockId,
        result: &Result<(), OperationError>,
    ) -> Result<(), String> {
        match result {
            // The end of the session follows.
            Ok(()) | Err(OperationError::PeerDown | OperationError::InvalidKey) => {}
            Err(error) => return Err(format!("{session:?}: {block:?} was not moved: {error}")),
        }
        let is_got = |of: &mut Getting| of.session == session && of.block == block;
        if let Some(Getting { length, mark, scratch, .. }) = self.getting.take_if(is_got) {
            if let (Ok(()), Some(region)) = (result, &self.region) {
                check_bytes(region, scratch, length, mark)?;
                book.block(mark)?;
            }
            return self.give_back(session, block);
        }
        if result.is_ok() {
            return Ok(());
        }
        // A block that was filled and did not get there is this end's, and so there is room.
        if let Some(talk) = self.talks.get_mut(&session) {
            talk.waits = false;
        }
        self.give_back(session, block)
    }

    fn ended(
        &mut self,
        book: &mut Book,
        session: SessionId,
        why: End,
        is_revoked: bool,
    ) -> Result<(), String> {
        let talk = self.talks.remove(&session).ok_or(format!("{session:?} ends again"))?;
        if let Some((mark, _)) = talk.with {
            book.over(mark, self.life, why == End::Down(DownReason::Disconnected));
        }
        if let Some((_, number)) = self.asked.keys().find(|(id, _)| *id == session) {
            return Err(format!("{session:?} ended before its request {number}"));
        }
        self.to_answer.retain(|(id, ..)| *id != session);
        self.lent.retain(|(id, _)| *id != session);
        self.pools.retain(|(id, _), _| *id != session);
        self.came.retain(|(id, ..)| *id != session);
        if self.getting.take_if(|of| of.session == session).is_some() {
            // Its bytes may still come.
            self.scratch += 1;
        }
        let lost_places = &mut self.lost_places;
        self.own_pools.retain(|(id, _), place| {
            if *id == session && !is_revoked {
                lost_places.insert(*place);
            }
            *id != session
        });
        self.check_end(&talk, session, why, book.may_lose)
    }

    fn check_end(
        &mut self,
        talk: &Talk,
        session: SessionId,
        why: End,
        may_lose: bool,
    ) -> Result<(), String> {
        let is_honest = talk.with.is_some();
        match why {
            End::Down(DownReason::Unreachable) => {
                self.unreachable.push(talk.with.map(|(_, life)| life));
                Ok(())
            }
            End::Down(DownReason::Ended | DownReason::Disconnected) => Ok(()),
            End::Refused { code, .. } if code == u32::from(NOT_NOW) || code == refusals::BUSY => {
                Ok(())
            }
            End::NoAnswer if !talk.is_open => Ok(()),
            End::Ended { code: ENOUGH, .. } => Ok(()),
            // The other end gave up its hello before the welcome came, or had no memory for a key.
            End::Ended { by_peer: true, code: 0, .. } if !talk.is_own || may_lose => Ok(()),
            // The peer went away meanwhile.
            End::Ended { code: 0, ref text, .. }
                if may_lose || text.ends_with("is not connected") =>
            {
                Ok(())
            }
            why if is_honest => Err(format!("{session:?}: {why}")),
            _ => Ok(()),
        }
    }

    /// Something that has not come to its end.
    pub fn lacks(&self) -> Option<String> {
        if let Some((session, number)) =
            self.asked.keys().find(|(session, _)| self.talks[session].with.is_some())
        {
            return Some(format!("{session:?}: request {number} never ended"));
        }
        if !self.to_answer.is_empty() || !self.came.is_empty() || self.getting.is_some() {
            return Some("requests or blocks are left".to_owned());
        }
        for (session, talk) in self.talks.iter().filter(|(_, talk)| talk.with.is_some()) {
            if talk.waits {
                return Some(format!("{session:?}: waits for room for ever"));
            }
            if !talk.is_open {
                return Some(format!("{session:?}: neither opens nor ends"));
            }
        }
        let is_idle = self.sessions.is_idle();
        (!is_idle)
            .then(|| format!("something is on its way for ever: {:?}", self.sessions.census()))
    }

    /// Checks that all blocks of others are here again.
    pub fn check_blocks(&mut self) -> Result<(), String> {
        for ((session, pool), shape) in &self.pools {
            if self.talks[session].with.is_none() {
                continue;
            }
            let mut count = 0;
            while let Ok(Some(_)) = self.sessions.take(*session, *pool) {
                count += 1;
            }
            if count != shape.blocks {
                let (life, blocks) = (self.life, shape.blocks);
                return Err(format!("{life:?}: {session:?}: {count} of {blocks} blocks came back"));
            }
        }
        Ok(())
    }
}

fn check_bytes<R: Region>(region: &R, at: u64, length: u32, mark: u64) -> Result<(), String> {
    let mut bytes = vec![0; length as usize];
    region.read(at, &mut bytes).map_err(|error| error.to_string())?;
    let is_right = bytes == pattern(mark, bytes.len());
    if is_right { Ok(()) } else { Err(format!("block {mark} has other bytes")) }
}

fn check_answer(
    mark: u64,
    (code, head, body): &(u16, Vec<u8>, Vec<u8>),
    book: &mut Book,
) -> Result<(), String> {
    book.answered(mark)?;
    if *code != SAID || head[..] != mark.to_le_bytes() || *body != pattern(!mark, body.len()) {
        return Err(format!("request {mark} has the answer of another one: {code}, {head:?}"));
    }
    Ok(())
}

/// Whether a request may end like this.
fn check_error(error: &RequestError, may_lose: bool) -> Result<(), String> {
    match error {
        RequestError::Late | RequestError::Cancelled | RequestError::Session(_) => Ok(()),
        _ if may_lose => Ok(()),
        error => Err(format!("a request ended: {error}")),
    }
}

/// Copies the parts of an event that the program needs.
fn seen<R: Region>(event: Event<'_, R>) -> Seen {
    match event {
        Event::Hello { session, options, .. } => Seen::Hello(session, options.to_vec()),
        Event::Opened { session, version, .. } => Seen::Opened(session, version),
        Event::Request { session, number, body, .. } => {
            Seen::Request(session, number, bytes_of(&body))
        }
        Event::Cancelled { session, number } => Seen::Cancelled(session, number),
        Event::Answer { session, number, answer } => {
            let answer =
                answer.map(|answer| (answer.code, answer.head.to_vec(), bytes_of(&answer.body)));
            Seen::Answer(session, number, answer)
        }
        Event::Pool { session, pool, shape } => Seen::Pool(session, pool, shape),
        Event::Block { session, block, length, head } => {
            Seen::Block(session, block, length, head.to_vec())
        }
        Event::Moved { session, block, result } => Seen::Moved(session, block, result),
        Event::Room { session } => Seen::Room(session),
        Event::Ended { session, why, is_revoked } => Seen::Ended(session, why, is_revoked),
        Event::Endpoint(_) => Seen::Other,
    }
}
