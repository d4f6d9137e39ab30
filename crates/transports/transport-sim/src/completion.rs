//! The state of an endpoint: its peers, its pending operations, and its event queue.
//!
//! Invariants: each message and remote notification in the queue holds a credit of its sender, and
//! each completion an operation slot, so the settings bound the queue. The credit or slot returns
//! when the program takes the event. An operation completes once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Weak;

use weft_fabric::{
    Capabilities, Completion, DownReason, EndpointAddress, Event, Group, Message, MessageHeader,
    Notification, OperationError, PartitionId, Peer, Register,
};

use crate::control::Control;
use crate::memory::RegionInner;
use crate::progress::{Body, CreditOf, Flight, Occasion};
use crate::rma::Pending;
use crate::trace::Kind;
use crate::world::{Id, Rail, WorldState};

/// The state of one endpoint.
#[derive(Debug)]
pub(crate) struct EndpointState {
    pub address: EndpointAddress,
    pub partition: PartitionId,
    pub user: u32,
    /// The place of its rail in the settings.
    pub rail: Rail,
    /// The capabilities that the endpoint got.
    pub capabilities: Capabilities,
    pub alive: bool,
    /// It gets memory: it registers, takes messages and begins operations.
    pub has_memory: bool,
    /// The peers, by handle.
    pub peers: Vec<PeerState>,
    /// The handles of peers that are not down.
    pub handles: BTreeMap<Id, u32>,
    pub events: VecDeque<Queued>,
    pub pending: BTreeMap<u64, Pending>,
    /// Peers to which operations, or pieces of them, had not left when the endpoint ended.
    pub silenced: BTreeSet<Id>,
    /// Operations that are pending, or completed but not polled.
    pub slots: usize,
    /// Peers for which a call was refused for lack of slots.
    pub starved: BTreeSet<u32>,
    /// Groups to which a message was refused.
    pub refused_groups: BTreeSet<Group>,
    /// Messages and notifications that came by pairs that have ended and wait here, by sender.
    formers: BTreeMap<Id, Former>,
    /// Fences of all peers: by number, the context and how many peers have not answered.
    pub fences: BTreeMap<u64, (u64, usize)>,
    /// Calls of membership and rights that have not taken effect.
    pub controls: BTreeMap<u64, Control>,
    /// Calls of that kind that have not taken effect, or whose ends were not polled.
    pub controls_open: usize,
    /// The results of accesses through windows.
    pub window_results: BTreeMap<u64, Result<Vec<u8>, OperationError>>,
    pub registers: [u64; Register::COUNT],
    pub regions: Vec<Weak<RegionInner>>,
    pub keys: usize,
    pub pace: Pace,
    /// When a slow receiver may take the next message.
    pub next_take: u64,
    pub wake_at: Option<u64>,
}

/// The state of an endpoint for one peer.
#[derive(Debug)]
pub(crate) struct PeerState {
    pub target: Id,
    /// The target's handle for this endpoint.
    pub mirror: u32,
    pub down: bool,
    /// Messages sent whose credits have not returned.
    pub messages_out: usize,
    /// Notifications at the peer whose credits have not returned.
    pub notifications_out: usize,
    /// A call was refused since the last [`Event::Room`].
    pub refused: bool,
}

/// How fast a program takes its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Free,
    Paused,
    /// One message in so many nanoseconds.
    Every(u64),
}

/// An event that waits to be polled.
#[derive(Debug)]
pub(crate) enum Queued {
    /// `paid_by` is the sender and its handle for this endpoint, whose credit the message holds.
    Message {
        paid_by: (Id, u32),
        peer: Peer,
        source: EndpointAddress,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    },
    /// `paid_by` is the peer whose credit the notification holds, if a peer caused it.
    Notification {
        notification: Notification,
        paid_by: Option<(Id, u32)>,
    },
    Completion(Completion),
    /// The end of a call that holds no operation slot.
    Ended(Completion),
    PeerDown {
        peer: Peer,
        address: EndpointAddress,
        reason: DownReason,
    },
    Room(Peer),
    GroupRoom(Group),
}

/// The messages and notifications of one sender that came by pairs that have ended and wait.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Former {
    pub messages: usize,
    pub notifications: usize,
}

impl Former {
    fn of(&mut self, queue: CreditOf) -> &mut usize {
        match queue {
            CreditOf::Mailbox => &mut self.messages,
            CreditOf::Notifications => &mut self.notifications,
        }
    }
}

impl Queued {
    /// The event for the program.
    pub fn as_event(&self) -> Event<'_> {
        match self {
            Self::Message { peer, source, header, group, payload, .. } => {
                let (peer, source, header, group) = (*peer, *source, *header, *group);
                Event::Message(Message { peer, source, header, group, payload })
            }
            Self::Notification { notification, .. } => Event::Notification(*notification),
            Self::Completion(completion) | Self::Ended(completion) => {
                Event::Completion(completion.clone())
            }
            Self::PeerDown { peer, address, reason } => {
                Event::PeerDown { peer: *peer, address: *address, reason: *reason }
            }
            Self::Room(peer) => Event::Room { peer: *peer },
            Self::GroupRoom(group) => Event::GroupRoom { group: *group },
        }
    }
}

impl EndpointState {
    pub fn new(
        address: EndpointAddress,
        partition: PartitionId,
        user: u32,
        rail: Rail,
        capabilities: Capabilities,
    ) -> Self {
        Self {
            address,
            partition,
            user,
            rail,
            capabilities,
            alive: true,
            has_memory: true,
            peers: Vec::new(),
            handles: BTreeMap::new(),
            events: VecDeque::new(),
            pending: BTreeMap::new(),
            silenced: BTreeSet::new(),
            slots: 0,
            starved: BTreeSet::new(),
            refused_groups: BTreeSet::new(),
            formers: BTreeMap::new(),
            fences: BTreeMap::new(),
            controls: BTreeMap::new(),
            controls_open: 0,
            window_results: BTreeMap::new(),
            registers: [0; Register::COUNT],
            regions: Vec::new(),
            keys: 0,
            pace: Pace::Free,
            next_take: 0,
            wake_at: None,
        }
    }

    /// The messages and notifications of a sender that came by pairs that have ended and wait.
    pub fn former(&self, sender: Id) -> Former {
        self.formers.get(&sender).copied().unwrap_or_default()
    }

    /// The pair with `sender`, whose handle for this endpoint is `mirror`, has ended: what came by
    /// it and waits is kept count of.
    pub fn keep_count(&mut self, sender: Id, mirror: u32) {
        let mut count = Former::default();
        for queued in &self.events {
            match queued {
                Queued::Message { paid_by, .. } if *paid_by == (sender, mirror) => {
                    count.messages += 1;
                }
                Queued::Notification { paid_by, .. } if *paid_by == Some((sender, mirror)) => {
                    count.notifications += 1;
                }
                _ => {}
            }
        }
        if count.messages + count.notifications > 0 {
            let former = self.formers.entry(sender).or_default();
            former.messages += count.messages;
            former.notifications += count.notifications;
        }
    }

    /// A message or notification that came by a pair that has ended was taken.
    fn forget_one(&mut self, sender: Id, queue: CreditOf) {
        let Some(former) = self.formers.get_mut(&sender) else { return };
        *former.of(queue) -= 1;
        if former.messages + former.notifications == 0 {
            self.formers.remove(&sender);
        }
    }

    /// Adds a peer and returns its handle.
    /// `mirror` is the handle that the target has for this endpoint.
    pub fn add_peer(&mut self, target: Id, mirror: u32) -> u32 {
        let handle =
            u32::try_from(self.peers.len()).expect("a simulation has fewer than 2^32 peers");
        self.peers.push(PeerState {
            target,
            mirror,
            down: false,
            messages_out: 0,
            notifications_out: 0,
            refused: false,
        });
        let former = self.handles.insert(target, handle);
        assert_eq!(former, None, "a living peer has one handle");
        handle
    }

    /// The handle of an endpoint that is not down.
    pub fn handle_of(&self, other: Id) -> Option<Peer> {
        self.handles.get(&other).copied().map(Peer)
    }

    /// Whether one more operation may begin.
    pub fn has_slot(&self) -> bool {
        self.has_memory && self.slots < self.capabilities.operations_max
    }

    /// Increases a counter.
    pub fn count(&mut self, register: Register, by: u64) {
        let value = &mut self.registers[register.index()];
        *value = value.wrapping_add(by);
    }

    /// The state of a peer.
    pub fn peer(&self, peer: Peer) -> Option<&PeerState> {
        self.peers.get(usize::try_from(peer.0).ok()?)
    }

    /// The state of a peer with a valid handle.
    pub fn peer_mut(&mut self, peer: u32) -> &mut PeerState {
        &mut self.peers[usize::try_from(peer).expect("a handle is an index")]
    }

    /// True when the program may take the next event at `now`.
    pub fn ready(&self, now: u64) -> bool {
        let due = match (self.pace, self.events.front()) {
            (_, None) | (Pace::Paused, _) => return false,
            (Pace::Every(_), Some(Queued::Message { .. })) => self.next_take,
            _ => 0,
        };
        due <= now
    }
}

impl WorldState {
    /// Takes the next event of an endpoint for its program.
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
            Queued::Completion(_) | Queued::Ended(_) => (3, &[]),
            Queued::PeerDown { .. } => (4, &[]),
            Queued::Room(_) => (5, &[]),
            Queued::GroupRoom(_) => (6, &[]),
        };
        let address = endpoint.address;
        self.record(Kind::Take, address, address, kind, payload);
        self.taken(id, &queued);
        Some(queued)
    }

    /// Returns the credit or slot that an event held.
    fn taken(&mut self, id: Id, queued: &Queued) {
        let now = self.now;
        let endpoint = &mut self.endpoints[id];
        match queued {
            Queued::Message { paid_by: (from, peer), payload, .. } => {
                endpoint.count(Register::MessagesReceived, 1);
                let length = crate::memory::bytes_of(payload.len());
                endpoint.count(Register::MessageBytesReceived, length);
                if let Pace::Every(interval) = endpoint.pace {
                    endpoint.next_take = now.saturating_add(interval);
                }
                self.return_credit(id, *from, *peer, CreditOf::Mailbox);
            }
            Queued::Notification { paid_by, .. } => {
                endpoint.count(Register::NotificationsReceived, 1);
                if let Some((from, peer)) = paid_by {
                    self.return_credit(id, *from, *peer, CreditOf::Notifications);
                }
            }
            Queued::Completion(_) => self.free_slot(id),
            Queued::Ended(_) => endpoint.controls_open -= 1,
            Queued::PeerDown { .. } | Queued::Room(_) | Queued::GroupRoom(_) => {}
        }
    }

    /// Sends a credit back to `to` after `from` took its message or notification.
    fn return_credit(&mut self, from: Id, to: Id, peer: u32, queue: CreditOf) {
        let mirror = self.endpoints[to].peer_mut(peer).mirror;
        if self.endpoints[from].peer_mut(mirror).down {
            self.endpoints[from].forget_one(to, queue);
        }
        if self.endpoints[to].alive {
            let epoch = self.epoch(from, to);
            self.send_now(Flight { from, to, epoch, body: Body::Credit { peer, queue } }, 0);
        }
    }

    /// A credit for a message or notification of `id` returned.
    pub(crate) fn credit(&mut self, id: Id, peer: u32, queue: CreditOf) {
        let state = self.endpoints[id].peer_mut(peer);
        // Operations pending on a peer end, and return their credits, when the peer is reported
        // down. The peer may take a notification later, and return its credit again. That is room
        // for the pair that was made since.
        let target = state.target;
        let peer = if state.down {
            let Some(Peer(peer)) = self.endpoints[id].handle_of(target) else { return };
            peer
        } else {
            let out = match queue {
                CreditOf::Mailbox => &mut state.messages_out,
                CreditOf::Notifications => &mut state.notifications_out,
            };
            assert!(*out > 0, "a credit returned that was not taken");
            *out -= 1;
            peer
        };
        let state = self.endpoints[id].peer_mut(peer);
        if std::mem::take(&mut state.refused) {
            self.endpoints[id].events.push_back(Queued::Room(Peer(peer)));
        }
        self.tell_group_room(id);
    }

    /// Frees an operation slot.
    pub(crate) fn free_slot(&mut self, id: Id) {
        let endpoint = &mut self.endpoints[id];
        endpoint.slots -= 1;
        for peer in std::mem::take(&mut endpoint.starved) {
            if !endpoint.peer_mut(peer).down {
                endpoint.events.push_back(Queued::Room(Peer(peer)));
            }
        }
    }

    /// Schedules the moment at which a slow receiver may take its next message.
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

    /// Adds a notification to an endpoint's queue.
    pub(crate) fn notify(
        &mut self,
        id: Id,
        notification: Notification,
        paid_by: Option<(Id, u32)>,
    ) {
        self.endpoints[id].events.push_back(Queued::Notification { notification, paid_by });
    }
}
