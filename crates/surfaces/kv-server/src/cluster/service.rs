//! A node's service on the fabric, which a primary uses.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use weft_fabric::{Access, Endpoint, LocalRange, Region};
use weft_kv::replication::message::{Envelope, Message};
use weft_open::{AnyEndpoint, Waiter, Woken, turn};
use weft_session::{BlockId, Event, Options, RequestError, SessionId, Sessions};

use super::backup::{Backup, Done, Work};
use super::wire::{self, Hello, Word};

/// Bytes of messages that wait for the writer. Blocks are given back when there are fewer.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// How often the service looks around when nothing comes.
const LOOK: Duration = Duration::from_millis(200);
/// The code of a refusal: the node takes nothing from this primary at present.
const NOT_NOW: u16 = 1;

/// Starts the service at an endpoint that offers its name, and the writer.
pub(super) fn start(
    backup: &Arc<Backup>,
    endpoint: AnyEndpoint,
) -> io::Result<[JoinHandle<()>; 2]> {
    let (send, receive) = channel();
    let (server, writer) = (Arc::clone(backup), Arc::clone(backup));
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    backup.is_served.store(true, Ordering::Release);
    Ok([
        named("kv-backup").spawn(move || Service::new(&server, endpoint, send).run())?,
        named("kv-replica").spawn(move || writer.write(&receive))?,
    ])
}

/// The thread of the service.
struct Service<'b> {
    backup: &'b Backup,
    sessions: Sessions<AnyEndpoint>,
    writer: Sender<Work<SessionId>>,
    /// The message that comes.
    bytes: Vec<u8>,
    /// Bytes of messages at the writer.
    at_writer: usize,
    /// Blocks that are not given back yet.
    blocks: VecDeque<BlockId>,
    /// Regions of sessions, and those that a new session may use.
    lent: BTreeMap<SessionId, <AnyEndpoint as Endpoint>::Region>,
    spare: Vec<<AnyEndpoint as Endpoint>::Region>,
    /// Messages for the primary.
    out: VecDeque<Envelope>,
}

/// News of a turn.
enum News {
    Hello(SessionId, u16, Option<Hello>),
    Asked(SessionId, u32, Option<Word>),
    Block(SessionId, BlockId, u32, bool),
    Ended(SessionId, bool),
}

impl<'b> Service<'b> {
    fn new(backup: &'b Backup, endpoint: AnyEndpoint, writer: Sender<Work<SessionId>>) -> Self {
        let mut sessions = Sessions::new(endpoint, Options::default());
        sessions.serve(wire::protocol(), &(wire::VERSION..=wire::VERSION));
        Self {
            backup,
            sessions,
            writer,
            bytes: Vec::new(),
            at_writer: 0,
            blocks: VecDeque::new(),
            lent: BTreeMap::new(),
            spare: Vec::new(),
            out: VecDeque::new(),
        }
    }

    fn run(mut self) {
        let mut waiter = Waiter::default();
        while !self.backup.is_over.load(Ordering::Acquire) {
            let mut news = Vec::new();
            let beside = [self.backup.bell.descriptor()];
            let woken =
                turn(&mut self.sessions, &mut waiter, &beside, Some(LOOK), |event| match event {
                    Event::Hello { session, version, options, .. } => {
                        let hello = postcard::from_bytes(options).ok();
                        news.push(News::Hello(session, version, hello));
                    }
                    Event::Request { session, number, head, .. } => {
                        news.push(News::Asked(session, number, Word::parse(head)));
                    }
                    Event::Block { session, block, length, head } => {
                        news.push(News::Block(session, block, length, head == wire::LAST));
                    }
                    Event::Ended { session, is_revoked, .. } => {
                        news.push(News::Ended(session, is_revoked));
                    }
                    _ => {}
                });
            if woken == Woken::Beside(0) {
                self.backup.bell.quiet();
            }
            for news in news {
                self.take(news);
            }
            self.finish();
            self.end_others();
            self.send();
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Hello(session, version, hello) => self.admit(session, version, hello),
            News::Asked(session, number, word) => {
                let given = self.backup.give(session, word);
                let code = if given.is_some() { wire::GIVEN } else { wire::REFUSED };
                let time = given.map(wire::emit_time);
                let head = time.as_ref().map_or(&b""[..], |time| &time[..]);
                // A primary that is gone needs none.
                let _ = self.sessions.answer(session, number, code, head, &[]);
            }
            News::Block(session, block, length, is_last) => {
                if self.backup.current() == Some(session) {
                    self.block(session, block, length, is_last);
                }
            }
            News::Ended(session, is_revoked) => {
                // Memory that a peer may still write is not used again.
                self.spare.extend(self.lent.remove(&session).filter(|_| is_revoked));
                self.backup.ended(session);
            }
        }
    }

    fn admit(&mut self, session: SessionId, version: u16, hello: Option<Hello>) {
        if !self.backup.admit(session, hello.as_ref()) {
            let _ = self.sessions.refuse(session, NOT_NOW, "this node takes nothing at present");
            return;
        }
        self.bytes = Vec::new();
        self.blocks.clear();
        self.out.clear();
        if let Err(why) = self.lend(session, version) {
            tracing::warn!("a primary cannot be served: {why}");
            self.sessions.end(session, NOT_NOW, &why);
        }
    }

    fn lend(&mut self, session: SessionId, version: u16) -> Result<(), String> {
        self.sessions.accept(session, version, b"").map_err(|error| error.to_string())?;
        let length = u64::from(wire::BLOCK_BYTES) * u64::from(wire::BLOCKS);
        let region = match self.spare.pop() {
            Some(region) => region,
            None => {
                let registered = self.sessions.endpoint().register(length);
                registered.map_err(|error| error.to_string())?
            }
        };
        let range = LocalRange { region: &region, offset: 0, length };
        let lent = self.sessions.lend(session, range, wire::BLOCK_BYTES, Access::WRITE);
        self.lent.insert(session, region);
        lent.map(drop).map_err(|error| error.to_string())
    }

    fn block(&mut self, session: SessionId, block: BlockId, length: u32, is_last: bool) {
        self.backup.counters.received.fetch_add(length.into(), Ordering::Relaxed);
        let start = self.bytes.len();
        let is_too_long = start + length as usize > wire::MESSAGE_BYTES_MAX;
        if !is_too_long && let Some(region) = self.lent.get(&session) {
            self.bytes.resize(start + length as usize, 0);
            let offset = u64::from(block.place) * u64::from(wire::BLOCK_BYTES);
            if region.read(offset, &mut self.bytes[start..]).is_ok() {
                self.blocks.push_back(block);
                if is_last {
                    let bytes = std::mem::take(&mut self.bytes);
                    self.at_writer += bytes.len();
                    // The writer ends after this thread.
                    let _ = self.writer.send(Work { session, bytes });
                }
                self.give_back(session);
                return;
            }
        }
        self.sessions.end(session, NOT_NOW, "the message is too long");
    }

    /// Gives blocks back, while the writer keeps up.
    fn give_back(&mut self, session: SessionId) {
        while self.at_writer < WAITING_BYTES_MAX
            && let Some(block) = self.blocks.pop_front()
        {
            // A session that has ended needs none.
            let _ = self.sessions.free(session, block);
        }
    }

    /// Takes the results of the writer.
    fn finish(&mut self) {
        let done = std::mem::take(&mut *self.backup.done.lock());
        let current = self.backup.current();
        for Done { session, bytes, answer } in done {
            self.at_writer -= bytes;
            match answer {
                _ if current != Some(session) => {}
                Ok(Some(envelope)) => self.say(envelope),
                Ok(None) => {}
                Err(why) => self.sessions.end(session, NOT_NOW, &why),
            }
        }
        if let Some(session) = current {
            self.give_back(session);
        }
    }

    /// A message for the primary. Of two that say how far this backup is, the later one is enough.
    fn say(&mut self, envelope: Envelope) {
        let is_delivered =
            |envelope: &Envelope| matches!(envelope.message, Message::Delivered { .. });
        if is_delivered(&envelope) && self.out.back().is_some_and(is_delivered) {
            self.out.pop_back();
        }
        self.out.push_back(envelope);
    }

    fn send(&mut self) {
        let Some(session) = self.backup.current() else { return };
        while let Some(envelope) = self.out.front() {
            match self.sessions.request(session, b"", &[&envelope.emit()], None) {
                // There is room when an answer comes.
                Err(RequestError::WouldBlock) => return,
                _ => drop(self.out.pop_front()),
            }
        }
    }

    /// Ends sessions that are not current any more.
    fn end_others(&mut self) {
        let current = self.backup.current();
        let others: Vec<_> =
            self.lent.keys().copied().filter(|session| Some(*session) != current).collect();
        for session in others {
            self.sessions.end(session, NOT_NOW, "this node follows another primary");
        }
    }
}
