//! What an endpoint has: its peers, what it waits for, and the queue that polling empties.
//!
//! Invariants: messages and remote notifications in the queue are paid for by credits that their
//! senders hold, completions by slots of operations, so the queue is bounded by the settings; a
//! credit or slot comes back when the program took the event; an operation completes once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Weak;

use weft_fabric::{
    Completion, EndpointAddress, Event, Group, Message, MessageHeader, Notification,
    OperationError, PartitionId, Peer, Register,
};

use crate::memory::RegionInner;
use crate::progress::{Body, CreditOf, Flight, Occasion};
use crate::rma::Pending;
use crate::trace::Kind;
use crate::world::{Id, State};

/// One endpoint.
#[derive(Debug)]
pub(crate) struct EndpointState {
    pub address: EndpointAddress,
    pub partition: PartitionId,
    pub alive: bool,
    /// By handle.
    pub peers: Vec<PeerState>,
    /// The handles of peers that are up.
    pub handles: BTreeMap<Id, u32>,
    /// Who connected to this endpoint.
    pub known_by: BTreeSet<Id>,
    pub events: VecDeque<Queued>,
    pub pending: BTreeMap<u64, Pending>,
    /// Operations that are pending, or completed and not polled.
    pub slots: usize,
    /// Handles that were refused for lack of slots.
    pub starved: BTreeSet<u32>,
    /// What accesses through windows came to.
    pub window_results: BTreeMap<u64, Result<Vec<u8>, OperationError>>,
    pub locks: BTreeMap<u32, i32>,
    pub registers: [u64; Register::COUNT],
    pub regions: Vec<Weak<RegionInner>>,
    pub keys: usize,
    pub pace: Pace,
    /// When a slow receiver takes the next message.
    pub next_take: u64,
    pub wake_at: Option<u64>,
}

/// How an endpoint stands to another that it connected to.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub target: Id,
    pub down: bool,
    /// Messages sent and not known to be taken.
    pub messages_out: usize,
    /// Notifications caused there and not known to be taken.
    pub notifications_out: usize,
    /// A call was refused since the last [`Event::Room`].
    pub refused: bool,
}

/// How fast a program takes what came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Free,
    Paused,
    /// A message each so many nanoseconds.
    Every(u64),
}

/// An event that waits to be polled.
#[derive(Debug)]
pub(crate) enum Queued {
    Message {
        from: Id,
        peer: u32,
        source: EndpointAddress,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    },
    /// With whom to pay back, when a peer caused it.
    Notification {
        notification: Notification,
        paid_by: Option<(Id, u32)>,
    },
    Completion(Completion),
    PeerDown(EndpointAddress),
    Room(Peer),
}

impl Queued {
    /// As the program sees it.
    pub fn as_event(&self) -> Event<'_> {
        match self {
            Self::Message { source, header, group, payload, .. } => {
                Event::Message(Message { source: *source, header: *header, group: *group, payload })
            }
            Self::Notification { notification, .. } => Event::Notification(*notification),
            Self::Completion(completion) => Event::Completion(completion.clone()),
            Self::PeerDown(address) => Event::PeerDown { address: *address },
            Self::Room(peer) => Event::Room { peer: *peer },
        }
    }
}

impl EndpointState {
    pub fn new(address: EndpointAddress, partition: PartitionId) -> Self {
        Self {
            address,
            partition,
            alive: true,
            peers: Vec::new(),
            handles: BTreeMap::new(),
            known_by: BTreeSet::new(),
            events: VecDeque::new(),
            pending: BTreeMap::new(),
            slots: 0,
            starved: BTreeSet::new(),
            window_results: BTreeMap::new(),
            locks: BTreeMap::new(),
            registers: [0; Register::COUNT],
            regions: Vec::new(),
            keys: 0,
            pace: Pace::Free,
            next_take: 0,
            wake_at: None,
        }
    }

    /// Adds to a counter.
    pub fn count(&mut self, register: Register, by: u64) {
        let value = &mut self.registers[register.index()];
        *value = value.wrapping_add(by);
    }

    /// The state behind a handle.
    pub fn peer(&self, peer: Peer) -> Option<&PeerState> {
        self.peers.get(usize::try_from(peer.0).ok()?)
    }

    /// The state behind a handle that is known to be one.
    pub fn peer_mut(&mut self, peer: u32) -> &mut PeerState {
        &mut self.peers[usize::try_from(peer).expect("handles are places in memory")]
    }

    /// True when the next event may be taken at `now`.
    pub fn ready(&self, now: u64) -> bool {
        let due = match (self.pace, self.events.front()) {
            (_, None) | (Pace::Paused, _) => return false,
            (Pace::Every(_), Some(Queued::Message { .. })) => self.next_take,
            _ => 0,
        };
        due <= now
    }
}

impl State {
    /// Takes the next event of an endpoint, for its program.
    pub(crate) fn take(&mut self, id: Id) -> Option<Queued> {
        let now = self.now;
        let endpoint = &mut self.endpoints[id];
        if !endpoint.ready(now) {
            self.wake_later(id);
            return None;
        }
        let queued = endpoint.events.pop_front()?;
        let (kind, payload): (u64, &[u8]) = match &queued {
            Queued::Message { payload, .. } => (1, payload),
            Queued::Notification { .. } => (2, &[]),
            Queued::Completion(_) => (3, &[]),
            Queued::PeerDown(_) => (4, &[]),
            Queued::Room(_) => (5, &[]),
        };
        let address = endpoint.address;
        self.record(Kind::Take, address, address, kind, payload);
        self.taken(id, &queued);
        Some(queued)
    }

    /// Gives back what an event had taken up.
    fn taken(&mut self, id: Id, queued: &Queued) {
        let now = self.now;
        let endpoint = &mut self.endpoints[id];
        match queued {
            Queued::Message { from, peer, payload, .. } => {
                endpoint.count(Register::MessagesReceived, 1);
                let length = crate::memory::bytes_of(payload.len());
                endpoint.count(Register::MessageBytesReceived, length);
                if let Pace::Every(interval) = endpoint.pace {
                    endpoint.next_take = now.saturating_add(interval);
                }
                self.give_back(id, *from, *peer, CreditOf::Mailbox);
            }
            Queued::Notification { paid_by, .. } => {
                endpoint.count(Register::NotificationsReceived, 1);
                if let Some((from, peer)) = paid_by {
                    self.give_back(id, *from, *peer, CreditOf::Notifications);
                }
            }
            Queued::Completion(_) => self.free_slot(id),
            Queued::PeerDown(_) | Queued::Room(_) => {}
        }
    }

    /// Tells `to` that `from` took something of its.
    fn give_back(&mut self, from: Id, to: Id, peer: u32, queue: CreditOf) {
        if self.endpoints[to].alive {
            let epoch = self.epoch(from, to);
            self.fly(Flight { from, to, epoch, body: Body::Credit { peer, queue } }, 0);
        }
    }

    /// A peer took something of `id`'s.
    pub(crate) fn credit(&mut self, id: Id, peer: u32, queue: CreditOf) {
        let state = self.endpoints[id].peer_mut(peer);
        let out = match queue {
            CreditOf::Mailbox => &mut state.messages_out,
            CreditOf::Notifications => &mut state.notifications_out,
        };
        assert!(*out > 0, "a credit came back that was never taken");
        *out -= 1;
        if state.refused && !state.down {
            state.refused = false;
            self.endpoints[id].events.push_back(Queued::Room(Peer(peer)));
        }
    }

    /// An operation slot is free again.
    fn free_slot(&mut self, id: Id) {
        let endpoint = &mut self.endpoints[id];
        endpoint.slots -= 1;
        for peer in std::mem::take(&mut endpoint.starved) {
            if !endpoint.peer_mut(peer).down {
                endpoint.events.push_back(Queued::Room(Peer(peer)));
            }
        }
    }

    /// Makes sure that something happens when a slow receiver takes its next message.
    pub(crate) fn wake_later(&mut self, id: Id) {
        let now = self.now;
        let endpoint = &mut self.endpoints[id];
        let waits = matches!(endpoint.pace, Pace::Every(_)) && !endpoint.events.is_empty();
        if waits && endpoint.wake_at.is_none() && endpoint.next_take > now {
            endpoint.wake_at = Some(endpoint.next_take);
            let time = endpoint.next_take;
            self.schedule(time, Occasion::Wake { endpoint: id });
        }
    }

    /// Hands a notification to an endpoint.
    pub(crate) fn notify(
        &mut self,
        id: Id,
        notification: Notification,
        paid_by: Option<(Id, u32)>,
    ) {
        self.endpoints[id].events.push_back(Queued::Notification { notification, paid_by });
    }
}
