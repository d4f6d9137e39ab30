//! The state machine: all peers, the operations that are pending, and what is to be done next.
//!
//! Packets, completions, reports of room and of peers that are down go in. [`Action`]s and events
//! come out. Sending is in `sending`, receiving in `receiving`; here is what both need.
//!
//! Invariants: nothing here calls an endpoint. A region that an operation uses is held until the
//! operation ends. Each list of peers holds a peer once.

use std::collections::VecDeque;

use weft_fabric::{GrantError, OperationError, Peer, RemoteKey, Target, Value};

use crate::error::{MessageError, Offence};
use crate::event::{Event, Notice, Ticket};
use crate::link::{Buffer, Entry, Link, Live, OfferState};
use crate::links::Links;
use crate::options::{Options, Placement};
use crate::packet::{Kind, Packet};
use crate::pool::Pool;
use crate::share::{Revocation, Share, Shares};

/// Something that the driver has to do.
#[derive(Debug)]
pub enum Action<R> {
    /// Send a packet, then call [`Machine::transmitted`] or [`Machine::stalled`].
    Transmit {
        /// The peer.
        peer: Peer,
        /// The packet.
        packet: Packet,
        /// Belongs into the call of [`Machine::transmitted`].
        piece: Piece,
    },
    /// Register a region, then call [`Machine::allocated`].
    Allocate {
        /// The message that it is for.
        ticket: Ticket,
        /// Its length.
        bytes: u64,
    },
    /// Start a get, then call [`Machine::completed`] when it ended, or [`Machine::blocked`].
    Get {
        /// Names the operation.
        operation: u32,
        /// The peer.
        peer: Peer,
        /// The first byte.
        target: Target,
        /// The local region.
        region: R,
        /// The first byte in it.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Grant reading of a region to a peer, then call [`Machine::completed`] with the key.
    Grant {
        /// Names the operation.
        operation: u32,
        /// The peer.
        peer: Peer,
        /// The region.
        region: R,
    },
    /// Revoke a key, then call [`Machine::completed`].
    Revoke {
        /// Names the operation.
        operation: u32,
        /// The key.
        key: RemoteKey,
    },
    /// Give up a peer that broke the protocol, so that it hears of it.
    Disconnect {
        /// The peer.
        peer: Peer,
    },
}

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub(crate) kind: Kind,
    pub(crate) credits: u16,
    /// Bytes of the message in the packet.
    pub(crate) bytes: usize,
}

/// An operation of the endpoint that is pending.
#[derive(Debug)]
enum Pending<R> {
    Fetch {
        ticket: Ticket,
        target: Target,
        length: u64,
        buffer: Buffer<R>,
    },
    /// The region lives until it is granted.
    Grant {
        share: Share,
        peer: Peer,
        region: R,
    },
    /// The region lives until its key is revoked.
    Revoke {
        _region: R,
    },
}

/// The things that the messages hold, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Peers with a state.
    pub peers: usize,
    /// Operations that are pending.
    pub operations: usize,
    /// Shared regions, those for copies included.
    pub shares: usize,
    /// Keys that were granted or asked for.
    pub keys: usize,
    /// Bytes of memory for copies.
    pub copy_bytes: u64,
    /// Bytes of memory for announced messages.
    pub receive_bytes: u64,
    /// Those of them that no message uses.
    pub idle_receive_bytes: u64,
    /// Messages in queues, in both directions.
    pub messages: usize,
}

/// The state machine. `R` is the region of the transport.
#[derive(Debug)]
pub struct Machine<R> {
    pub(crate) options: Options,
    pub(crate) links: Links<R>,
    pub(crate) shares: Shares<R>,
    pub(crate) pool: Pool<R>,
    pending: Vec<Option<Pending<R>>>,
    free: Vec<u32>,
    pub(crate) actions: VecDeque<Action<R>>,
    /// Peers with packets to send.
    pub(crate) ready: VecDeque<Peer>,
    /// Peers with messages to hand out.
    pub(crate) listed: VecDeque<Peer>,
    /// Peers whose announced messages wait for memory.
    pub(crate) hungry: VecDeque<Peer>,
    /// Peers for which a message was refused for lack of memory for a copy.
    pub(crate) without_copy: Vec<Peer>,
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) ids: u64,
}

impl<R: Clone> Machine<R> {
    /// A machine without peers.
    ///
    /// # Panics
    /// When an option is out of its range.
    #[must_use]
    pub fn new(options: Options) -> Self {
        options.assert_sound();
        Self {
            shares: Shares::new(options.bounce_bytes_max, options.regions_max),
            pool: Pool::new(options.receive_bytes_max, options.regions_max),
            options,
            links: Links::new(),
            pending: Vec::new(),
            free: Vec::new(),
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            listed: VecDeque::new(),
            hungry: VecDeque::new(),
            without_copy: Vec::new(),
            notices: VecDeque::new(),
            ids: 0,
        }
    }

    /// True if the peer has a state. Else [`Machine::greet`] makes one before the first message.
    #[inline]
    #[must_use]
    pub fn knows(&self, peer: Peer) -> bool {
        self.links.contains(peer)
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The packet that greets a peer, with the credits that it has not had at first.
    #[must_use]
    pub fn greeting(options: &Options) -> Packet {
        let live = Live::<R>::new(Peer(0), options.window);
        Packet::new(live.header(Kind::Credit, 0), &[])
    }

    /// Makes the state of a peer that was sent the greeting.
    pub fn greeted(&mut self, peer: Peer) {
        let mut live = Live::new(peer, self.options.window);
        live.returned(live.credits_to_return());
        let former = self.links.insert(peer, Link::Live(live));
        assert!(former.is_none(), "a peer is greeted once");
    }

    /// Makes the state of a peer. The credits that it has not had at first go with the next
    /// packet, or alone if they are many.
    pub fn greet(&mut self, peer: Peer) {
        assert!(!self.knows(peer), "a peer is greeted once");
        self.links.insert(peer, Link::Live(Live::new(peer, self.options.window)));
        self.make_ready(peer);
    }

    /// The state of a peer that is not down.
    pub(crate) fn live(&mut self, peer: Peer) -> Option<&mut Live<R>> {
        self.links.live(peer)
    }

    /// True if [`Machine::next_action`], [`Machine::hand_out`] or both have something.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !(self.actions.is_empty() && self.ready.is_empty()) || self.has_events()
    }

    /// True if [`Machine::hand_out`] has events.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !(self.notices.is_empty() && self.listed.is_empty())
    }

    /// Passes all events that wait to `sink`.
    pub fn hand_out(&mut self, sink: &mut impl FnMut(Event<'_, R>)) {
        loop {
            while let Some(notice) = self.notices.pop_front() {
                sink(notice.into_event());
            }
            let Some(peer) = self.listed.pop_front() else { return };
            self.deliver(peer, sink);
        }
    }

    /// The next thing to do.
    pub fn next_action(&mut self) -> Option<Action<R>> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        while let Some(peer) = self.ready.front().copied() {
            if let Some(action) = self.next_packet(peer) {
                return Some(action);
            }
            self.ready.pop_front();
            if let Some(live) = self.live(peer) {
                live.is_ready = false;
            }
        }
        None
    }

    /// Lists a peer that may have packets to send.
    pub(crate) fn make_ready(&mut self, peer: Peer) {
        let Some(live) = self.links.live(peer) else { return };
        if !live.is_ready && !live.stalled {
            live.is_ready = true;
            self.ready.push_back(peer);
        }
    }

    /// The mailbox of the peer is full. [`Machine::room`] ends that.
    pub fn stalled(&mut self, peer: Peer) {
        if let Some(live) = self.live(peer) {
            live.stalled = true;
            live.is_ready = false;
        }
        self.ready.retain(|other| *other != peer);
    }

    /// The endpoint reports room to a peer.
    pub fn room(&mut self, peer: Peer) {
        let Some(live) = self.live(peer) else { return };
        live.stalled = false;
        for operation in std::mem::take(&mut live.blocked) {
            self.push_get(operation);
        }
        self.make_ready(peer);
        self.tell_room(peer);
    }

    /// An operation that was started has ended.
    pub fn completed(&mut self, operation: u32, result: Result<Value, OperationError>) {
        match self.take_pending(operation) {
            Some(Pending::Fetch { ticket, buffer, .. }) => {
                self.fetched(ticket, buffer, result.map(|_| ()));
            }
            Some(Pending::Grant { share, peer, region }) => match key_of(result) {
                Ok(key) if self.shares.granted(share, peer, key) => self.make_ready(peer),
                // Nobody waits for the key any more.
                Ok(key) => self.revoke(vec![(region, key)]),
                Err(error) => self.grant_failed((share, peer), &grant_error(error)),
            },
            Some(Pending::Revoke { .. }) | None => {}
        }
    }

    /// The endpoint has no room for a get. [`Machine::room`] starts it again.
    pub fn blocked(&mut self, operation: u32) {
        let Some(Some(Pending::Fetch { ticket, .. })) = self.pending.get(place(operation)) else {
            return;
        };
        let peer = ticket.peer;
        match self.live(peer) {
            Some(live) => live.blocked.push(operation),
            None => self.completed(operation, Err(OperationError::PeerDown)),
        }
    }

    /// The endpoint reports a peer down. Ends all messages to and from it.
    pub fn down(&mut self, peer: Peer, sink: &mut impl FnMut(Event<'_, R>)) {
        // The sender was told of messages that arrived whole. They are handed out before, also
        // behind those that do not come any more.
        self.lose_unfinished(peer);
        self.deliver(peer, sink);
        if let Some(Link::Live(live)) = self.links.remove(peer) {
            self.end(live);
        }
        while let Some(notice) = self.notices.pop_front() {
            sink(notice.into_event());
        }
    }

    /// Ends a peer that broke the protocol.
    pub(crate) fn misbehaved(&mut self, peer: Peer, offence: Offence) {
        if let Some(Link::Live(live)) = self.links.insert(peer, Link::Ended) {
            self.end(live);
            self.notices.push_back(Notice::Misbehaved { peer, offence });
            self.actions.push_back(Action::Disconnect { peer });
        }
    }

    /// Ends all messages of a peer whose state was taken out of the table.
    fn end(&mut self, live: Live<R>) {
        let Live { peer, sender, receiver, blocked, .. } = live;
        for list in [&mut self.ready, &mut self.listed, &mut self.hungry] {
            list.retain(|other| *other != peer);
        }
        self.without_copy.retain(|other| *other != peer);
        for queued in sender.outbox {
            self.fail(queued, MessageError::PeerDown);
        }
        for announced in sender.announced {
            let result = Err(MessageError::PeerDown);
            self.notices.push_back(Notice::Completion { context: announced.context, result });
            self.end_use(announced.share);
        }
        let mut revocations = Vec::new();
        self.shares.forget_peer(peer, &mut revocations);
        self.revoke(revocations);
        for entry in receiver.inbox {
            let Entry::Announced(incoming) = entry else { continue };
            match incoming.state {
                OfferState::Asked | OfferState::Hungry | OfferState::Allocating => {
                    self.lose(incoming.ticket, MessageError::PeerDown);
                }
                OfferState::Landed(buffer) => {
                    self.release(incoming.ticket, buffer, MessageError::PeerDown);
                }
                // The end of the get finds that the message is gone.
                OfferState::Fetching | OfferState::Fresh | OfferState::Gone => {}
            }
        }
        for operation in blocked {
            self.completed(operation, Err(OperationError::PeerDown));
        }
    }

    /// Tells the program that an announced message does not come.
    pub(crate) fn lose(&mut self, ticket: Ticket, error: MessageError) {
        if self.options.placement == Placement::Ask {
            self.notices.push_back(Notice::Lost { ticket, error });
        }
    }

    /// Gives the memory of a lost message back.
    pub(crate) fn release(&mut self, ticket: Ticket, buffer: Buffer<R>, error: MessageError) {
        self.put_back(buffer);
        self.lose(ticket, error);
    }

    /// Starts a get into `buffer`.
    pub(crate) fn fetch(&mut self, ticket: Ticket, target: Target, length: u64, buffer: Buffer<R>) {
        let operation = self.add_pending(Pending::Fetch { ticket, target, length, buffer });
        self.push_get(operation);
    }

    fn push_get(&mut self, operation: u32) {
        let Some(Some(Pending::Fetch { ticket, target, length, buffer })) =
            self.pending.get(place(operation))
        else {
            return;
        };
        self.actions.push_back(Action::Get {
            operation,
            peer: ticket.peer,
            target: *target,
            region: buffer.region.clone(),
            offset: buffer.offset,
            length: *length,
        });
    }

    pub(crate) fn grant(&mut self, share: Share, peer: Peer, region: R) {
        let pending = Pending::Grant { share, peer, region: region.clone() };
        let operation = self.add_pending(pending);
        self.actions.push_back(Action::Grant { operation, peer, region });
    }

    pub(crate) fn revoke(&mut self, revocations: Vec<Revocation<R>>) {
        for (region, key) in revocations {
            let operation = self.add_pending(Pending::Revoke { _region: region });
            self.actions.push_back(Action::Revoke { operation, key });
        }
    }

    fn add_pending(&mut self, pending: Pending<R>) -> u32 {
        let operation = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            u32::try_from(self.pending.len() - 1).expect("memory ends before 2^32 operations")
        });
        self.pending[place(operation)] = Some(pending);
        operation
    }

    fn take_pending(&mut self, operation: u32) -> Option<Pending<R>> {
        let pending = self.pending.get_mut(place(operation))?.take()?;
        self.free.push(operation);
        Some(pending)
    }

    /// The things that the machine holds.
    #[must_use]
    pub fn census(&self) -> Census {
        let (shares, keys, copy_bytes) = self.shares.census();
        let messages = |link: &Link<R>| match link {
            Link::Live(Live { sender, receiver, .. }) => {
                sender.outbox.len() + sender.announced.len() + receiver.inbox.len()
            }
            Link::Ended => 0,
        };
        Census {
            peers: self.links.iter().count(),
            operations: self.pending.iter().flatten().count(),
            shares,
            keys,
            copy_bytes,
            receive_bytes: self.pool.bytes(),
            idle_receive_bytes: self.pool.idle_bytes(),
            messages: self.links.iter().map(messages).sum(),
        }
    }
}

/// The key that a grant ended with.
fn key_of(result: Result<Value, OperationError>) -> Result<RemoteKey, OperationError> {
    result?.key().ok_or_else(|| OperationError::Broker { reason: "it told no key".to_owned() })
}

/// How a message ends whose memory was not granted.
fn grant_error(error: OperationError) -> MessageError {
    match error {
        OperationError::Grant(GrantError::Peer) | OperationError::PeerDown => {
            MessageError::PeerDown
        }
        OperationError::Grant(error) => MessageError::Grant(error),
        error => MessageError::Grant(GrantError::Broker { reason: error.to_string() }),
    }
}

fn place(operation: u32) -> usize {
    usize::try_from(operation).expect("32 bits fit an index")
}
