//! The sessions of a transfer as its two ends see them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use weft_session::{HEAD_BYTES_MAX, SessionId};
use weft_transfer::{Block, Frame, Message, Terms};

use super::hub::{Hub, Order};
use super::lease::Idle;
use super::talk::{Ear, Early, Out, Part, Wish};
use crate::assembly::Settings;
use crate::channel::SILENCE;
use crate::error::CopyError;
use crate::link::{Listener, Outlet};
use crate::space::Space;

/// How long a person waits for the way of the blocks to be known, which it is when the first one
/// was granted.
const WAY_WITHIN: Duration = Duration::from_millis(1);

/// How long the last word of a conversation may take to arrive.
const LAST_WORD_WITHIN: Duration = Duration::from_secs(5);

/// A session before the transfer begins.
#[derive(Debug)]
pub(crate) struct Wire {
    hub: Arc<Hub>,
    session: SessionId,
    early: Early,
}

impl Wire {
    pub fn new(hub: Arc<Hub>, session: SessionId, early: Early) -> Self {
        Self { hub, session, early }
    }

    /// Sends a message.
    pub fn say(&self, message: Message) {
        self.hub.post.order(Order::Send(self.session, messages(message)));
    }

    /// Receives a message.
    pub fn hear(&mut self, within: Duration) -> Result<Message, CopyError> {
        let lost = |_| CopyError::Lost(format!("nothing came for {} s", within.as_secs()));
        self.early.recv_timeout(within).map_err(lost)?
    }

    /// Its two halves, for a conversation beside a transfer.
    pub fn parted(self) -> (Mouth, Early) {
        let Self { hub, session, early } = self;
        (Mouth { hub, session }, early)
    }

    /// Ends the session when what was said has arrived. There is no transfer.
    pub fn end(self) {
        drop(self.parted());
    }
}

/// The half of a session that is spoken to. When it is dropped the session ends, as soon as what
/// was said has arrived.
#[derive(Debug)]
pub(crate) struct Mouth {
    hub: Arc<Hub>,
    session: SessionId,
}

impl Mouth {
    /// Sends a message.
    pub fn say(&self, message: Message) {
        self.hub.post.order(Order::Send(self.session, messages(message)));
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        // The hub of a single session ends with it, so the last word is waited for.
        let (done, ended) = mpsc::channel();
        self.hub.post.order(Order::Finish(self.session, done));
        let _ = ended.recv_timeout(LAST_WORD_WITHIN);
    }
}

/// The transfer begins over these sessions, and this end reads. Returns where its blocks come from.
pub(crate) fn read(
    wires: Vec<Wire>,
    terms: &Terms,
    settings: &Settings,
    listener: &Arc<dyn Listener>,
) -> (Vec<Arc<Idle>>, Arc<Posting>) {
    let (stride, blocks) = super::shape(terms, settings, wires.len());
    let idle: Vec<_> = (0..wires.len()).map(|stream| Arc::new(Idle::of(stream))).collect();
    let (way, told) = mpsc::channel();
    let part = |stream: usize| {
        let (idle, way) = (Arc::clone(&idle[stream]), way.clone());
        Part::Source(Wish { stride, blocks, idle, way })
    };
    let posting = begin(wires, part, listener, Some(told));
    (idle, posting)
}

/// The transfer begins over these sessions, and this end writes. Returns how many blocks it grants.
pub(crate) fn write(
    wires: Vec<Wire>,
    terms: &Terms,
    settings: &Settings,
    listener: &Arc<dyn Listener>,
) -> (usize, Arc<Posting>) {
    let sessions = wires.len();
    let (stride, blocks) = super::shape(terms, settings, sessions);
    let granted = usize::try_from(blocks).expect("blocks are bounded") * sessions;
    (granted, begin(wires, |_| Part::Target { stride, blocks }, listener, None))
}

fn begin(
    wires: Vec<Wire>,
    part: impl Fn(usize) -> Part,
    listener: &Arc<dyn Listener>,
    way: Option<mpsc::Receiver<bool>>,
) -> Arc<Posting> {
    let begun = wires.into_iter().enumerate().map(|(stream, wire)| {
        let Wire { hub, session, early } = wire;
        let ear = Ear::Loop(Arc::clone(listener));
        hub.post.order(Order::Begin(session, part(stream), ear, early));
        (hub, session)
    });
    Arc::new(Posting { sessions: begun.collect(), way: Mutex::new(way) })
}

/// The way to the other end over sessions, of which the first carries messages.
#[derive(Debug)]
pub(crate) struct Posting {
    sessions: Vec<(Arc<Hub>, SessionId)>,
    way: Mutex<Option<mpsc::Receiver<bool>>>,
}

impl Posting {
    /// Whether blocks lie in memory that both ends have mapped; `None` if this end does not know.
    pub fn shares_memory(&self) -> Option<bool> {
        self.way.lock().as_ref()?.recv_timeout(WAY_WITHIN).ok()
    }

    /// Where the thread that carries messages stays, if it is bound.
    pub fn near(&self) -> Option<String> {
        self.sessions[0].0.bound().map(ToString::to_string)
    }

    /// Ends a session when all that was sent has arrived. The hub drops the other half of what is
    /// returned when it is over.
    fn end(&self, stream: usize) -> mpsc::Receiver<()> {
        let (hub, session) = &self.sessions[stream];
        let (done, ended) = mpsc::channel();
        hub.post.order(Order::Finish(*session, done));
        ended
    }
}

fn messages(message: Message) -> Out {
    Out::Messages(Frame::Message(message).bytes())
}

impl Outlet for Posting {
    fn message(&self, message: Message) {
        let (hub, session) = &self.sessions[0];
        hub.post.order(Order::Send(*session, messages(message)));
    }

    fn block(&self, block: Block, space: Space) {
        let Space::Lent(lease) = space else { unreachable!("its supply gives leases") };
        let (hub, session) = &self.sessions[lease.stream()];
        let payload = u32::try_from(block.payload()).expect("it fits a block");
        let frame = Frame::Block(block).bytes();
        // A block without bytes has its frame in it, as there is no put of nothing.
        let (length, head) = if payload > 0 && frame.len() <= HEAD_BYTES_MAX {
            (payload, frame)
        } else {
            lease.store(u64::from(payload), &frame);
            let frame = u32::try_from(frame.len()).expect("it is bounded");
            (payload + frame, frame.to_le_bytes().to_vec())
        };
        hub.post.order(Order::Send(*session, Out::Block(lease, length, head)));
    }

    fn finish(&self) {
        // The end of another session says that the other end is gone. So the first, which carries
        // the last word, ends before them.
        let _ = self.end(0).recv_timeout(SILENCE);
        let others: Vec<_> = (1..self.sessions.len()).map(|stream| self.end(stream)).collect();
        for ended in others {
            let _ = ended.recv_timeout(SILENCE);
        }
    }
}
