//! The way from a primary to one backup: a thread with a session, opened again when it ended.
//!
//! Always true: a backup joins anew in each session. Messages go in their order, each in blocks of
//! the pool that the backup lent; a block that comes back is the credit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_fabric::{Access, Blocking, Endpoint, OperationError, Source};
use weft_kv::replication::message::Envelope;
use weft_kv::replication::primary::Peer;
use weft_open::{AnyEndpoint, Opening, ServicePlace, Waiter, Woken, now, turn};
use weft_session::{BlockError, BlockId, Event, Options, PoolId, SessionId, Sessions, bytes_of};

use super::Counters;
use super::bell::Bell;
use super::catch_up::{CatchUp, Next};
use super::court::{Over, Task};
use super::reign::Reign;
use super::wire::{self, Hello, Word};

/// How long a backup may take to be reached and to accept.
const REACHED_WITHIN: Duration = Duration::from_secs(2);
/// The pause before a backup is looked for again.
const PAUSE: Duration = Duration::from_millis(100);
/// So long after the beginning of a reign a backup that is not reached is not given up.
const GRACE: Duration = Duration::from_millis(500);
/// Questions for the lease in the time of one.
const ASKS_A_LEASE: u32 = 6;

/// The data of a link.
pub(super) struct Link {
    pub peer: Peer,
    /// The place of the backup on the fabric.
    pub service: String,
    pub cluster: String,
    pub opening: Opening,
    pub reign: Arc<Reign>,
    pub lease: Duration,
    pub bell: Arc<Bell>,
    pub counters: Arc<Counters>,
}

/// A session that is open.
struct Live {
    sessions: Sessions<AnyEndpoint>,
    session: SessionId,
    pool: Option<PoolId>,
    catch_up: Option<CatchUp>,
    /// The message that is on its way, and how much of it went.
    current: Option<(Vec<u8>, usize)>,
    /// A block that was taken and not filled.
    block: Option<BlockId>,
    /// When which question for the lease was sent.
    asked: BTreeMap<u32, Duration>,
    asks_next: Duration,
    given: Duration,
    /// The time that the backup said in its last answer.
    answered: Option<Duration>,
}

/// News of a turn.
enum News {
    Pool(PoolId),
    Request(u32, Vec<u8>),
    /// With the code and the time, if it was carried out.
    Answer(u32, Option<(u16, Option<Duration>)>),
    Broken(String),
}

impl Link {
    /// Runs until the reign is over.
    pub fn run(&self) {
        let begun = now();
        let mut has_joined = false;
        while !self.reign.court.is_over() {
            match self.session(&mut has_joined) {
                Ok(()) => {}
                Err(why) => tracing::debug!("backup {}: {why}", self.peer),
            }
            if has_joined || now() > begun + GRACE {
                self.reign.court.down(self.peer);
            }
            self.bell.wait(PAUSE);
        }
    }

    fn open(&self) -> Result<(Sessions<AnyEndpoint>, SessionId), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let place = ServicePlace::parse(&self.service, "weft-kv").map_err(|it| text(&it))?;
        let opening = self.opening.clone().finding(&place).map_err(|it| text(&it))?;
        let mut endpoint = opening.open().map_err(|it| text(&it))?;
        let host = endpoint.host().ok_or("its address is not known")?;
        let peer = endpoint.connect_within(host, REACHED_WITHIN).map_err(|it| text(&it))?;
        let options = Options { open_within: REACHED_WITHIN, ..Options::default() };
        let mut sessions = Sessions::new(endpoint, options);
        let hello = Hello { cluster: self.cluster.clone(), epoch: self.reign.court.epoch };
        let hello = postcard::to_allocvec(&hello).map_err(|it| text(&it))?;
        let versions = wire::VERSION..=wire::VERSION;
        let opened = sessions.open(peer, wire::protocol(), &versions, &hello, now());
        Ok((sessions, opened.map_err(|it| text(&it))?))
    }

    fn session(&self, has_joined: &mut bool) -> Result<(), String> {
        let (sessions, session) = self.open()?;
        let mut live = Live {
            sessions,
            session,
            pool: None,
            catch_up: None,
            current: None,
            block: None,
            asked: BTreeMap::new(),
            asks_next: now(),
            given: now() + REACHED_WITHIN,
            answered: None,
        };
        let mut waiter = Waiter::default();
        let court = &self.reign.court;
        loop {
            let most = match live.pool {
                Some(_) => live.asks_next.saturating_sub(now()),
                None => PAUSE,
            };
            for news in live.turn(&mut waiter, &self.bell, most) {
                match news {
                    News::Pool(pool) => {
                        live.pool = Some(pool);
                        live.given = now();
                        self.join(&mut live);
                        *has_joined = true;
                    }
                    News::Request(number, body) => {
                        let envelope = Envelope::parse(&body).ok_or("it sent no message")?;
                        live.answer(number);
                        court.handle(self.peer, envelope);
                    }
                    News::Answer(number, answer) => {
                        let asked = live.asked.remove(&number);
                        if let (Some(asked), Some((wire::GIVEN, time))) = (asked, answer) {
                            court.give(self.peer, asked);
                            live.given = now();
                            live.answered = time.or(live.answered);
                        }
                    }
                    News::Broken(why) => return Err(why),
                }
            }
            if live.pool.is_some() {
                live.ask(self.lease, &self.reign);
            }
            if court.is_over() || !self.send(&mut live)? {
                live.sessions.end(session, 0, "the primary ends the session");
                return Ok(());
            }
            if now() > live.given + self.lease * 6 / 10 {
                live.sessions.end(session, 0, "no lease");
                return Err("it gave no lease for too long".to_owned());
            }
        }
    }

    /// The backup joins: all that is written from here on waits for it.
    fn join(&self, live: &mut Live) {
        self.reign.engine.offer(|offer, snapshot| {
            live.catch_up = Some(CatchUp::new(&offer, snapshot));
            self.reign.court.join(self.peer, offer, Arc::clone(&self.bell));
        });
    }

    /// Sends what there is, as far as there are blocks. False if the session has to end.
    fn send(&self, live: &mut Live) -> Result<bool, String> {
        let Some(pool) = live.pool else { return Ok(true) };
        loop {
            if live.current.is_none() {
                let next = match self.missing(live)? {
                    Some(envelope) => Some(envelope),
                    None => match self.reign.court.next(self.peer) {
                        Err(Over) => return Ok(false),
                        Ok(None) => None,
                        Ok(Some(Task::Send(envelope))) => Some(*envelope),
                        Ok(Some(Task::Fetch { tables, log })) => {
                            let catch_up = live.catch_up.as_mut().ok_or("it wants more")?;
                            catch_up.lacks(tables, log);
                            continue;
                        }
                    },
                };
                let Some(envelope) = next else { return Ok(true) };
                live.current = Some((envelope.emit(), 0));
            }
            match live.put(pool)? {
                None => return Ok(true),
                Some(bytes) => {
                    self.counters.sent.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
        }
    }

    /// The next part that the backup lacks.
    fn missing(&self, live: &mut Live) -> Result<Option<Envelope>, String> {
        let Some(catch_up) = &mut live.catch_up else { return Ok(None) };
        let message = match catch_up.next()? {
            Next::Unknown => return Ok(None),
            Next::Part(message) => *message,
            Next::Over => {
                live.catch_up = None;
                self.reign.court.caught_up(self.peer);
                return Ok(None);
            }
        };
        Ok(Some(Envelope { epoch: self.reign.court.epoch, message }))
    }
}

impl Live {
    fn turn(&mut self, waiter: &mut Waiter, bell: &Bell, most: Duration) -> Vec<News> {
        let mut news = Vec::new();
        let beside = [bell.descriptor()];
        let woken = turn(&mut self.sessions, waiter, &beside, Some(most), |event| match event {
            Event::Pool { pool, shape, .. } if shape.access == Access::WRITE => {
                news.push(News::Pool(pool));
            }
            Event::Request { number, body, .. } => {
                news.push(News::Request(number, bytes_of(&body)));
            }
            Event::Answer { number, answer, .. } => {
                let told = answer.ok().map(|it| (it.code, wire::parse_time(it.head)));
                news.push(News::Answer(number, told));
            }
            Event::Moved { result: Err(error), .. } => news.push(News::Broken(error.to_string())),
            Event::Ended { why, .. } => news.push(News::Broken(why.to_string())),
            _ => {}
        });
        if woken == Woken::Beside(0) {
            bell.quiet();
        }
        news
    }

    fn answer(&mut self, number: u32) {
        // A backup that is gone needs none.
        let _ = self.sessions.answer(self.session, number, 0, b"", &[]);
    }

    /// Asks for the lease, if it is time.
    fn ask(&mut self, lease: Duration, reign: &Reign) {
        let asked = now();
        if asked < self.asks_next {
            return;
        }
        self.asks_next = asked + lease / ASKS_A_LEASE;
        let word = self.answered.zip(reign.acknowledged());
        let word = word.map(|(answered, acknowledged)| Word { acknowledged, answered }.emit());
        let head = word.as_ref().map_or(&b""[..], |word| &word[..]);
        // Without room it is asked the next time.
        if let Ok(number) = self.sessions.request(self.session, head, &[], Some(asked + lease)) {
            self.asked.insert(number, asked);
        }
    }

    /// Puts the next part of the message. `None` if there is no block or no room at present.
    fn put(&mut self, pool: PoolId) -> Result<Option<usize>, String> {
        let Some((bytes, sent)) = &mut self.current else { return Ok(None) };
        if self.block.is_none() {
            let taken = self.sessions.take(self.session, pool);
            self.block = taken.map_err(|error| error.to_string())?;
        }
        let Some(block) = self.block else { return Ok(None) };
        let end = bytes.len().min(*sent + wire::BLOCK_BYTES as usize);
        let part = &bytes[*sent..end];
        let is_last = end == bytes.len();
        let head = if is_last { wire::LAST } else { wire::MORE };
        match self.sessions.put(self.session, block, Source::Bytes(part), head) {
            Ok(()) => {
                let count = part.len();
                self.block = None;
                *sent = end;
                if is_last {
                    self.current = None;
                }
                Ok(Some(count))
            }
            Err(BlockError::Operation(OperationError::WouldBlock)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}
