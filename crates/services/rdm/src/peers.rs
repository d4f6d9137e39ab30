//! The table of peers.

use std::collections::{HashMap, VecDeque};

use weft_fabric::{EndpointAddress, NodeId, Peer as Handle, RemoteKey};

use crate::matching::Source;
use crate::memory::{Introduction, Surface};
use crate::packet::{PACKET_BYTES, Packet};
use crate::receiving::Incoming;

/// A peer: an endpoint in one life. It stays the same number, also when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

impl PeerId {
    pub(crate) const fn source(self) -> Source {
        Source(self.0)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How far two ends have met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Nothing was sent to it yet.
    Idle,
    /// The endpoint is being asked for it.
    Connecting,
    /// It can be sent to.
    Live(Handle),
    /// It ended, or was never there.
    Down,
}

/// The kernel's way to the memory of a peer.
#[derive(Debug)]
pub(crate) enum Way<P> {
    /// Not tried yet.
    Unknown,
    /// The process was found and recognised.
    Open(P),
    /// There is no such way.
    None,
}

/// A peer's introduction of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) introduction: Introduction,
    /// The key of its chunks.
    pub(crate) key: RemoteKey,
    pub(crate) chunk_bytes: usize,
    pub(crate) chunks: u16,
}

pub(crate) struct Peer<S: Surface, W> {
    pub(crate) address: EndpointAddress,
    /// It is on this node.
    pub(crate) is_near: bool,
    pub(crate) state: State,
    /// Packets that wait for its mailbox.
    pub(crate) outbox: VecDeque<Packet>,
    /// Bytes of a packet to it at most, as far as that is known.
    pub(crate) packet_bytes: usize,
    /// The peer is listed to be sent its packets.
    pub(crate) is_listed: bool,
    /// It was sent the greeting, or that is in the outbox.
    pub(crate) is_greeted: bool,
    pub(crate) hello: Option<Hello>,
    /// Its chunks, mapped here.
    pub(crate) window: Option<W>,
    /// It has mapped the own chunks.
    pub(crate) maps: bool,
    /// Own chunks that it has.
    pub(crate) chunks: usize,
    /// Operations whose bodies it asked for, in the order in which they are sent.
    pub(crate) pushes: VecDeque<u64>,
    /// The peer is listed to be sent parts of these, or waits for a chunk.
    pub(crate) is_pushed: bool,
    pub(crate) way: Way<S::Process>,
    /// The body that comes in packets.
    pub(crate) incoming: Option<Incoming<S>>,
}

impl<S: Surface, W> Peer<S, W> {
    const fn new(address: EndpointAddress, is_near: bool) -> Self {
        Self {
            address,
            is_near,
            state: State::Idle,
            outbox: VecDeque::new(),
            packet_bytes: PACKET_BYTES,
            is_listed: false,
            is_greeted: false,
            hello: None,
            window: None,
            maps: false,
            chunks: 0,
            pushes: VecDeque::new(),
            is_pushed: false,
            way: Way::Unknown,
            incoming: None,
        }
    }
}

/// All peers that were ever named or heard of.
pub(crate) struct Peers<S: Surface, W> {
    own_node: NodeId,
    all: Vec<Peer<S, W>>,
    births: Vec<u64>,
    by_name: HashMap<(EndpointAddress, u64), PeerId>,
    by_handle: HashMap<Handle, PeerId>,
    /// The handle that was looked up last.
    last: Option<(Handle, PeerId)>,
}

impl<S: Surface, W> Peers<S, W> {
    pub(crate) fn new(own_node: NodeId) -> Self {
        Self {
            own_node,
            all: Vec::new(),
            births: Vec::new(),
            by_name: HashMap::new(),
            by_handle: HashMap::new(),
            last: None,
        }
    }

    /// The peer of this name, which may be new.
    pub(crate) fn named(&mut self, address: EndpointAddress, birth: u64) -> PeerId {
        *self.by_name.entry((address, birth)).or_insert_with(|| {
            self.all.push(Peer::new(address, address.node == self.own_node));
            self.births.push(birth);
            PeerId(u32::try_from(self.all.len() - 1).expect("memory ends before 2^32 peers"))
        })
    }

    pub(crate) fn birth(&self, id: PeerId) -> u64 {
        self.births[id.index()]
    }

    #[inline]
    pub(crate) fn of_handle(&mut self, handle: Handle) -> Option<PeerId> {
        if let Some((last, id)) = self.last
            && last == handle
        {
            return Some(id);
        }
        let id = self.by_handle.get(&handle).copied()?;
        self.last = Some((handle, id));
        Some(id)
    }

    /// Notes the handle of a peer that can be sent to.
    pub(crate) fn met(&mut self, id: PeerId, handle: Handle) {
        self.by_handle.insert(handle, id);
        self.all[id.index()].state = State::Live(handle);
    }

    pub(crate) fn forget_handle(&mut self, handle: Handle) {
        self.by_handle.remove(&handle);
        self.last = None;
    }

    /// True if there is a peer that lives, or may.
    pub(crate) fn any_lives(&self) -> bool {
        self.all.iter().any(|peer| matches!(peer.state, State::Live(_) | State::Connecting))
    }

    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer<S, W>> {
        self.all.get(id.index())
    }

    /// A peer that the table gave.
    #[inline]
    pub(crate) fn at(&mut self, id: PeerId) -> &mut Peer<S, W> {
        &mut self.all[id.index()]
    }
}
