//! A session as the two ends of a transfer see it.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use weft_session::SessionId;
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

    /// Ends the session when what was said has arrived. There is no transfer.
    pub fn end(self) {
        let (done, _) = mpsc::channel();
        self.hub.post.order(Order::Finish(self.session, done));
    }

    /// The transfer begins, and this end reads. Returns where its blocks come from.
    pub fn read(
        self,
        terms: &Terms,
        settings: &Settings,
        listener: Arc<dyn Listener>,
    ) -> (Arc<Idle>, Arc<Posting>) {
        let ((stride, blocks), idle) = (super::shape(terms, settings), Arc::new(Idle::default()));
        let (way, told) = mpsc::channel();
        let part = Part::Source(Wish { stride, blocks, idle: Arc::clone(&idle), way });
        (idle, self.begin(part, listener, Some(told)))
    }

    /// The transfer begins, and this end writes. Returns how many blocks it grants.
    pub fn write(
        self,
        terms: &Terms,
        settings: &Settings,
        listener: Arc<dyn Listener>,
    ) -> (u32, Arc<Posting>) {
        let (stride, blocks) = super::shape(terms, settings);
        (blocks, self.begin(Part::Target { stride, blocks }, listener, None))
    }

    fn begin(
        self,
        part: Part,
        listener: Arc<dyn Listener>,
        way: Option<mpsc::Receiver<bool>>,
    ) -> Arc<Posting> {
        let Self { hub, session, early } = self;
        hub.post.order(Order::Begin(session, part, Ear::Loop(listener), early));
        Arc::new(Posting { hub, session, way: Mutex::new(way) })
    }
}

/// The way to the other end over a session.
#[derive(Debug)]
pub(crate) struct Posting {
    hub: Arc<Hub>,
    session: SessionId,
    way: Mutex<Option<mpsc::Receiver<bool>>>,
}

impl Posting {
    /// Whether blocks lie in memory that both ends have mapped; `None` if this end does not know.
    pub fn shares_memory(&self) -> Option<bool> {
        self.way.lock().as_ref()?.recv_timeout(WAY_WITHIN).ok()
    }
}

fn messages(message: Message) -> Out {
    Out::Messages(Frame::Message(message).bytes())
}

impl Outlet for Posting {
    fn message(&self, message: Message) {
        self.hub.post.order(Order::Send(self.session, messages(message)));
    }

    fn block(&self, block: Block, space: Space) {
        let Space::Lent(lease) = space else { unreachable!("its supply gives leases") };
        let payload = u32::try_from(block.payload()).expect("it fits a block");
        let frame = Frame::Block(block).bytes();
        lease.store(u64::from(payload), &frame);
        let frame = u32::try_from(frame.len()).expect("it is bounded");
        let out = Out::Block(lease, payload + frame, frame);
        self.hub.post.order(Order::Send(self.session, out));
    }

    fn finish(&self) {
        let (done, ended) = mpsc::channel();
        self.hub.post.order(Order::Finish(self.session, done));
        // The hub drops its half when the session is over.
        let _ = ended.recv_timeout(SILENCE);
    }
}
