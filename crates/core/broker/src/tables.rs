//! The broker's tables: endpoints, their pairs, groups and keys.
//!
//! Invariant: [`Limits`] or the number of VPIDs bounds every table.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weft_fabric::{Access, EndpointAddress, PartitionId, ServiceName};
use weft_options::share;
use weft_wire::endpoint_control::{EndpointControl, KEYS_MAX, VPID_WORDS, VPIDS_MAX};

use crate::cuts::Site;
use crate::later::PortState;
use crate::ports::Meeting;
use crate::state::Outgoing;
use crate::{Bell, ProcessId};

/// VPIDs of a node that was not told otherwise, as on Extoll's NIC (EXTOLL-THESIS#3.2.3).
pub const VPIDS: u16 = 256;

/// Bounds of the broker's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Endpoints of the node, at most [`VPIDS_MAX`].
    pub endpoints_max: u16,
    /// Keys of all endpoints together. Most keys hold a descriptor.
    pub keys_max: usize,
    /// Invitations of all endpoints together.
    pub invitations_max: usize,
    /// Percentage that one user may have of the endpoints, keys and invitations that other
    /// users leave.
    pub user_share: u8,
    /// A user besides root whom `user_share` does not bound.
    pub user_unbounded: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            endpoints_max: VPIDS,
            keys_max: 16_384,
            invitations_max: 1024,
            user_share: share::ALL,
            user_unbounded: 0,
        }
    }
}

impl Limits {
    /// How many of `maximum` places `user` may have. The user has `own` of the `all` taken places.
    pub(crate) fn allowance(&self, user: u32, maximum: usize, own: usize, all: usize) -> usize {
        let is_bounded = user != 0 && user != self.user_unbounded;
        let percent = if is_bounded { self.user_share } else { share::ALL };
        share::allowance(maximum, all.saturating_sub(own), percent)
    }
}

/// One bit for each VPID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VpidSet(pub [u64; VPID_WORDS]);

impl Default for VpidSet {
    fn default() -> Self {
        Self([0; VPID_WORDS])
    }
}

impl VpidSet {
    pub fn insert(&mut self, vpid: u16) {
        self.0[usize::from(vpid / 64) % VPID_WORDS] |= 1 << (vpid % 64);
    }

    pub fn remove(&mut self, vpid: u16) {
        self.0[usize::from(vpid / 64) % VPID_WORDS] &= !(1 << (vpid % 64));
    }

    pub fn contains(&self, vpid: u16) -> bool {
        vpid < VPIDS_MAX && self.0[usize::from(vpid / 64) % VPID_WORDS] & (1 << (vpid % 64)) != 0
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..).zip(self.0).flat_map(|(word, bits): (u16, u64)| {
            (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| word * 64 + bit)
        })
    }
}

/// The descriptors that an endpoint sent for its peers.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub doorbell: Arc<OwnedFd>,
    pub registers: Arc<OwnedFd>,
    pub wakeup: Arc<OwnedFd>,
}

/// The memory of an endpoint for its peers, and its bell. An endpoint without them reads its
/// connection by itself.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub files: Files,
    pub bell: Arc<dyn Bell>,
}

/// The memory of a published key.
#[derive(Debug)]
pub(crate) enum PublishedMemory {
    /// Peers map it.
    File(Arc<OwnedFd>),
    /// No file holds it. The start of the key is an address in the owner's process.
    InPlace,
}

/// A published key.
#[derive(Debug)]
pub(crate) struct Key {
    pub generation: u32,
    pub access: Access,
    /// Start and length of the range that the key names, in bytes; the start is one of the memory,
    /// or an address.
    pub start: u64,
    pub length: u64,
    /// VPID and birth of the only endpoint that may resolve the key; `None` for all of the
    /// partition.
    pub audience: Option<(u16, u64)>,
    pub memory: PublishedMemory,
    /// How often the key was resolved.
    pub resolved: u64,
}

/// An open endpoint.
#[derive(Debug)]
pub(crate) struct Entry {
    pub process: ProcessId,
    /// The number of its process; 0 where the kernel does not tell.
    pub pid: u32,
    pub uid: u32,
    /// The node of a lab in which it is.
    pub site: Option<Site>,
    pub partition: PartitionId,
    /// False for a guest from before a restart, until somebody vouches for it.
    pub is_member: bool,
    /// The name by which the endpoint offers its partition.
    pub offers: Option<ServiceName>,
    pub flags: u32,
    /// Slots of its rings, as the endpoint says. Its peers check them.
    pub slots: u32,
    pub peers_max: usize,
    pub birth: u64,
    /// Its memory for peers; `None` for an endpoint that a port alone leads to.
    pub shared: Option<Shared>,
    pub port: PortState,
    /// The counters of the last port that told of some. They stay when the port is gone: they are
    /// the endpoint's.
    pub port_counts: Option<Arc<OwnedFd>>,
    /// The peers that it met at its port.
    pub met: BTreeMap<EndpointAddress, Meeting>,
    pub pairs: VpidSet,
    /// Peers that this endpoint remembers from before a restart and that have not come back yet:
    /// VPID and expected birth.
    pub awaited: Vec<(u16, u64)>,
    /// One bit for each group that the endpoint joined.
    pub groups: u64,
    /// One bit for each group whose members the endpoint asked for. A change is reported once.
    pub asked: u64,
    pub keys: Vec<Option<Key>>,
    /// Number of keys in `keys`.
    pub keys_count: usize,
}

impl Entry {
    /// The partition that the endpoint is a member of.
    pub fn inside(&self) -> Option<PartitionId> {
        self.is_member.then_some(self.partition)
    }

    /// The maximum of peers, if the endpoint has it.
    pub fn full(&self) -> Option<usize> {
        (self.pairs.count() + self.met.len() >= self.peers_max).then_some(self.peers_max)
    }

    /// Whether this client asks about the ports of the endpoint, and hears of them.
    pub fn has_plugged(&self, client: ProcessId) -> bool {
        match self.port {
            PortState::Untold => client == self.process,
            PortState::Open(_, of) => client == of,
            PortState::Never | PortState::Later(_) => false,
        }
    }

    /// A message about ports that the endpoint did not ask for. None if it has no port.
    pub fn news_of_ports(&self, message: impl Into<EndpointControl>) -> Option<Outgoing> {
        match self.port {
            PortState::Open(_, client) => Some(Outgoing::plain(client, message)),
            PortState::Never | PortState::Untold | PortState::Later(_) => None,
        }
    }

    /// A message for the endpoint that it did not ask for.
    pub fn news(&self, message: impl Into<EndpointControl>) -> Outgoing {
        let wakeup = self.shared.as_ref().map(|shared| Arc::clone(&shared.bell));
        Outgoing { wakeup, ..Outgoing::plain(self.process, message) }
    }

    pub fn key(&self, slot: u16, generation: u32) -> Option<&Key> {
        let key = self.keys.get(usize::from(slot))?.as_ref()?;
        (key.generation == generation).then_some(key)
    }

    pub fn key_mut(&mut self, slot: u16, generation: u32) -> Option<&mut Key> {
        let key = self.keys.get_mut(usize::from(slot))?.as_mut()?;
        (key.generation == generation).then_some(key)
    }

    /// Puts a key in its slot, or replaces the memory of the same key. Returns how many keys were
    /// added; `None` when there is no such slot or another key has it.
    pub fn publish(&mut self, slot: u16, key: Key) -> Option<usize> {
        if slot >= KEYS_MAX {
            return None;
        }
        let place = usize::from(slot);
        if self.keys.len() <= place {
            self.keys.resize_with(place + 1, || None);
        }
        let same = |former: &Key| former.generation == key.generation;
        let more = match &self.keys[place] {
            Some(former) if !same(former) => return None,
            Some(_) => 0,
            None => 1,
        };
        self.keys[place] = Some(key);
        self.keys_count += more;
        Some(more)
    }
}
