//! The peers of an endpoint: one table slot for each VPID, and the state of each living peer.
//!
//! A handle holds the VPID in the low 12 bits. The bits above count the handles given out for that
//! VPID, this one included; the highest is not used. A look-up is therefore an index and a
//! comparison, and the handle of a dead peer never names its successor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use weft_fabric::{
    EndpointAddress, NodeId, OperationError, Peer, ReceiveCursor, RemoteKey, SendCursor, Vpid,
};

use crate::doorbell::Doorbell;
use crate::memory::Mapped;
use crate::pair::Pair;
use crate::registers::Registers;
use crate::wakeup::VPIDS_MAX;
use crate::ways::{InPlace, Owner};

/// Whether a peer can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Standing {
    /// It can.
    There = 0,
    /// No way leads to its node for now.
    CutOff = 1,
    /// It is gone.
    Down = 2,
}

/// The [`Standing`] of a peer, for its windows.
#[derive(Debug, Default)]
pub struct StandingWord(AtomicU8);

impl StandingWord {
    /// The peer can be reached: the look of each access.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Standing::There as u8
    }

    /// The peer is gone.
    pub fn is_down(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Standing::Down as u8
    }

    /// Changes it. Only the endpoint does so, and a peer that is gone stays so.
    pub fn set(&self, standing: Standing) {
        self.0.store(standing as u8, Ordering::Relaxed);
    }
}

/// The state of a living peer.
#[derive(Debug)]
pub struct PeerState {
    pub handle: Peer,
    /// The handle that [`AddressVector::live`] compares, or one that nobody has while no way leads
    /// to the node of the peer.
    serving: Peer,
    pub address: EndpointAddress,
    pub birth: u64,
    pub pair: Pair,
    pub send: SendCursor,
    pub receive: ReceiveCursor,
    /// This endpoint or the peer lacks the asymmetric fence.
    pub full_fences: bool,
    /// The peer's ring is polled. When false, the attention word of the ring is armed.
    pub active: bool,
    /// How many polls in a row found the ring empty.
    pub idle: u32,
    /// The peer is listed in `waits_for_room`.
    pub wants_room: bool,
    pub doorbell: Doorbell,
    pub registers: Arc<Registers>,
    /// Shared with windows, which outlive this state.
    pub standing: Arc<StandingWord>,
    /// The resolved keys of the peer, by key slot.
    pub keys: Vec<Option<Mapped>>,
    /// Keys that could not be resolved, for the next operation that uses them.
    pub unresolved: Vec<(RemoteKey, OperationError)>,
    /// The resolved keys to memory in place.
    pub in_place: Vec<InPlace>,
    /// The peer's process, as far as its memory is copied by the kernel.
    pub owner: Owner,
    /// A call was refused while the peer was cut off: room is told at the end of that.
    refused: bool,
}

/// A peer that was just met.
#[derive(Debug)]
pub struct Acquaintance {
    pub handle: Peer,
    pub address: EndpointAddress,
    pub birth: u64,
    pub pair: Pair,
    pub full_fences: bool,
    pub doorbell: Doorbell,
    pub registers: Registers,
}

impl PeerState {
    /// A peer that was just met.
    pub fn new(met: Acquaintance) -> Self {
        let Acquaintance { handle, address, birth, pair, full_fences, doorbell, registers } = met;
        Self {
            handle,
            serving: handle,
            address,
            birth,
            pair,
            send: SendCursor::default(),
            receive: ReceiveCursor::default(),
            full_fences,
            active: false,
            idle: 0,
            wants_room: false,
            doorbell,
            registers: Arc::new(registers),
            standing: Arc::default(),
            keys: Vec::new(),
            unresolved: Vec::new(),
            in_place: Vec::new(),
            owner: Owner::Unknown,
            refused: false,
        }
    }

    /// Whether a message to a group would go to this member.
    pub fn takes_more(&mut self) -> bool {
        !self.is_cut_off() && self.has_room()
    }

    /// Whether no way leads to the node of the peer.
    pub fn is_cut_off(&self) -> bool {
        self.serving != self.handle
    }

    /// No way leads to the node of the peer any more, or one leads there again. Windows of the peer
    /// follow, and [`AddressVector::live`] does not find it meanwhile. True if a call was refused
    /// for that and it is over.
    pub fn set_cut_off(&mut self, is_cut_off: bool) -> bool {
        self.standing.set(if is_cut_off { Standing::CutOff } else { Standing::There });
        // No handle counts nothing given out, and this one is looked up at another VPID.
        let nobody = Peer(u32::from(self.vpid() ^ 1));
        self.serving = if is_cut_off { nobody } else { self.handle };
        !is_cut_off && std::mem::take(&mut self.refused)
    }
}

impl PeerState {
    /// The peer's VPID.
    #[inline]
    pub fn vpid(&self) -> u16 {
        self.address.vpid.0
    }
}

/// Why a handle names no living peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// The handle was never given out.
    Unknown,
    /// The peer is gone.
    Down,
    /// No way leads to it for now. The peer remembers that it was asked for.
    CutOff,
}

#[derive(Debug)]
struct Slot {
    issued: u32,
    live: Option<Box<PeerState>>,
}

impl Slot {
    const EMPTY: Self = Self { issued: 0, live: None };

    /// Why a handle does not name a living peer to which a way leads.
    #[cold]
    fn lost(&mut self, handle: Peer, issued: u32) -> Lost {
        match &mut self.live {
            Some(peer) if peer.handle == handle => {
                peer.refused = true;
                Lost::CutOff
            }
            _ if issued == 0 || issued > self.issued => Lost::Unknown,
            _ => Lost::Down,
        }
    }
}

/// The table of peers, by VPID.
#[derive(Debug)]
pub struct AddressVector {
    node: NodeId,
    /// By VPID, as far as the table was needed.
    slots: Vec<Slot>,
}

const VPID_BITS: u32 = VPIDS_MAX.trailing_zeros();
/// The highest bit of a handle is left to those who tell handles of several transports apart.
const ISSUED_MAX: u32 = u32::MAX >> 1 >> VPID_BITS;

fn split(handle: Peer) -> (usize, u32) {
    ((handle.0 & (u32::from(VPIDS_MAX) - 1)) as usize, handle.0 >> VPID_BITS)
}

impl AddressVector {
    /// An empty table for an endpoint of `node`.
    pub fn new(node: NodeId) -> Self {
        Self { node, slots: Vec::new() }
    }

    /// The living peer that a handle names, cut off or not.
    pub fn find(&mut self, handle: Peer) -> Result<&mut PeerState, Lost> {
        let (place, issued) = split(handle);
        let Some(slot) = self.slots.get_mut(place) else { return Err(Lost::Unknown) };
        match &mut slot.live {
            Some(peer) if peer.handle == handle => Ok(peer),
            _ if issued == 0 || issued > slot.issued => Err(Lost::Unknown),
            _ => Err(Lost::Down),
        }
    }

    /// The living peer that a handle names, unless it is cut off.
    #[inline]
    pub fn live(&mut self, handle: Peer) -> Result<&mut PeerState, Lost> {
        let (place, issued) = split(handle);
        let Some(slot) = self.slots.get_mut(place) else { return Err(Lost::Unknown) };
        if slot.live.as_ref().is_none_or(|peer| peer.serving != handle) {
            return Err(slot.lost(handle, issued));
        }
        slot.live.as_deref_mut().ok_or(Lost::Down)
    }

    /// The living peer with a VPID.
    #[inline]
    pub fn by_vpid(&mut self, vpid: u16) -> Option<&mut PeerState> {
        self.slots.get_mut(usize::from(vpid))?.live.as_deref_mut()
    }

    /// All living peers.
    pub fn iter(&self) -> impl Iterator<Item = &PeerState> {
        self.slots.iter().filter_map(|slot| slot.live.as_deref())
    }

    /// The address that a handle was given out for; `None` for a handle that was never given out.
    pub fn address(&self, handle: Peer) -> Option<EndpointAddress> {
        let (place, issued) = split(handle);
        if issued == 0 || issued > self.slots.get(place)?.issued {
            return None;
        }
        Some(EndpointAddress::new(self.node, Vpid(u16::try_from(place).ok()?)))
    }

    /// The handle that the next peer with this VPID gets. `None` when the VPID is out of range, its
    /// handles are used up, or its slot is taken.
    pub fn next_handle(&self, vpid: u16) -> Option<Peer> {
        if vpid >= VPIDS_MAX {
            return None;
        }
        let slot = self.slots.get(usize::from(vpid)).unwrap_or(&Slot::EMPTY);
        let free = slot.live.is_none() && slot.issued < ISSUED_MAX;
        free.then(|| Peer((slot.issued + 1) << VPID_BITS | u32::from(vpid)))
    }

    /// Adds a peer whose handle came from [`AddressVector::next_handle`].
    pub fn insert(&mut self, peer: PeerState) {
        let (place, issued) = split(peer.handle);
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || Slot::EMPTY);
        }
        let slot = &mut self.slots[place];
        assert!(
            slot.live.is_none() && issued == slot.issued + 1,
            "the handle came from next_handle"
        );
        slot.issued = issued;
        slot.live = Some(Box::new(peer));
    }

    /// Removes the peer with a VPID.
    pub fn remove(&mut self, vpid: u16) -> Option<Box<PeerState>> {
        self.slots.get_mut(usize::from(vpid))?.live.take()
    }
}
