//! The rings of ANGARA-ETH#2.1, for packets too long for messages. There is one for each direction
//! of a pair of nodes, made when the first such packet is sent: slots, a write counter and a read
//! counter.
//!
//! The memory belongs to the sender, and the receiver reads packets out of it
//! (EXTOLL-THESIS#5.4.1.3: the data waits at its sender until the receiver has room). The receiver
//! opens the ring and says so by a first report. From then on the sender advertises each packet,
//! and the receiver reports now and then how many packets it has taken, which is the sender's
//! credit.

use weft_fabric::{Region, RemoteKey};
use zerocopy::little_endian::{U32, U64};

use crate::assembly::{PACKET_BYTES_MAX, check_length};
use crate::behind::Behind;
use crate::message::{Advert, MessageError, Ring};
use crate::way::Way;

/// Bytes of a slot: room for the longest packet, on pages of its own.
pub const SLOT_BYTES: u32 = 68 << 10;
/// Slots of a peer's ring at most.
const SLOTS_MAX: u32 = 4_096;

const _: () = assert!(SLOT_BYTES as usize >= PACKET_BYTES_MAX);

/// The sending end.
#[derive(Debug)]
pub struct SendRing<R> {
    region: R,
    ring: Ring,
    written: u64,
    taken: u64,
    /// Where packets are fetched: the short packets that may wait for those in the ring.
    behind: Option<Behind>,
}

impl<R: Region> SendRing<R> {
    /// A ring in `region`, which has `slots` times [`SLOT_BYTES`] bytes. The receiver reads it by
    /// `key`, the way `way`.
    #[must_use]
    pub fn new(region: R, key: RemoteKey, slots: u32, way: Way) -> Self {
        let ring =
            Ring { key: U64::new(key.0), slots: U32::new(slots), slot_bytes: U32::new(SLOT_BYTES) };
        let behind = (way == Way::Fetched).then(Behind::default);
        Self { region, ring, written: 0, taken: 0, behind }
    }

    /// The description for the receiver.
    pub const fn described(&self) -> Ring {
        self.ring
    }

    /// The offset of the next slot in the region. `None` when all slots are taken.
    pub fn place(&self) -> Option<u64> {
        let slots = u64::from(self.ring.slots.get());
        let is_free = self.written - self.taken < slots;
        is_free.then(|| self.written % slots * u64::from(SLOT_BYTES))
    }

    /// The ring's memory.
    pub const fn region(&self) -> &R {
        &self.region
    }

    /// Writes a packet into the next slot. `None` when all slots are taken, or the packet does not
    /// fit. The caller sends the advert and then calls [`SendRing::advertised`].
    pub fn put(&self, packet: &[u8]) -> Option<Advert> {
        let place = self.place()?;
        self.region.write(place, packet).ok()?;
        self.advert(packet.len())
    }

    /// The advert of a packet of `length` bytes in the next slot. `None` if no slot holds so many.
    pub fn advert(&self, length: usize) -> Option<Advert> {
        let length = u32::try_from(length).ok().filter(|length| *length <= SLOT_BYTES)?;
        Some(Advert { number: U32::new(number(self.written)), length: U32::new(length) })
    }

    /// The receiver got the advert: the next slot is in use.
    pub fn advertised(&mut self) {
        self.written += 1;
        if let Some(behind) = &mut self.behind {
            behind.advertised();
        }
    }

    /// Whether a short packet may go in messages now. If not, it goes through the ring.
    pub fn may_pass(&self, length: usize) -> bool {
        self.behind.as_ref().is_none_or(|behind| behind.has_room(length))
    }

    /// A short packet went in messages.
    pub fn passed(&mut self, length: usize) {
        if let Some(behind) = &mut self.behind {
            behind.sent(length);
        }
    }

    /// The receiver reports how many packets it has taken in all.
    ///
    /// # Errors
    /// [`MessageError::Taken`].
    pub fn taken(&mut self, taken: u64) -> Result<(), MessageError> {
        if taken < self.taken || taken > self.written {
            return Err(MessageError::Taken { taken, written: self.written });
        }
        if let Some(behind) = &mut self.behind {
            behind.taken(taken - self.taken);
        }
        self.taken = taken;
        Ok(())
    }

    /// Packets in the ring that were not reported as taken.
    pub const fn waiting(&self) -> u64 {
        self.written - self.taken
    }
}

/// Where an advertised packet lies in the ring's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketSpan {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: usize,
}

/// The receiving end: it counts. Another reads the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveRing {
    key: RemoteKey,
    slots: u64,
    /// Packets that were advertised, and those of them that have left their slots.
    advertised: u64,
    taken: u64,
    /// The count that the sender was told; `None` before the first report.
    told: Option<u64>,
}

impl ReceiveRing {
    /// The ring that `ring` describes.
    ///
    /// # Errors
    /// [`MessageError::Ring`].
    pub fn new(ring: &Ring) -> Result<Self, MessageError> {
        let (slots, slot_bytes) = (ring.slots.get(), ring.slot_bytes.get());
        if !(1..=SLOTS_MAX).contains(&slots) || slot_bytes != SLOT_BYTES {
            return Err(MessageError::Ring { slots, slot_bytes });
        }
        let key = RemoteKey(ring.key.get());
        Ok(Self { key, slots: slots.into(), advertised: 0, taken: 0, told: None })
    }

    /// The key of the ring's memory.
    pub const fn key(&self) -> RemoteKey {
        self.key
    }

    /// Why the ring is refused, if its memory cannot be read.
    pub(crate) fn refused(&self) -> MessageError {
        let slots = u32::try_from(self.slots).unwrap_or(u32::MAX);
        MessageError::Ring { slots, slot_bytes: SLOT_BYTES }
    }

    /// Bytes of the ring's memory.
    pub fn bytes(&self) -> u64 {
        self.slots * u64::from(SLOT_BYTES)
    }

    /// The place of an advertised packet. Its slot belongs to the sender again once it was told so.
    ///
    /// # Errors
    /// [`MessageError`] if the advert is wrong: of another packet than the next, or of one for
    /// which the sender has no slot.
    pub fn next(&mut self, advert: &Advert) -> Result<PacketSpan, MessageError> {
        let length = check_length(advert.length.get())?;
        let due = number(self.advertised);
        let has_slot = self.told.is_some_and(|told| self.advertised - told < self.slots);
        if advert.number.get() != due || !has_slot {
            let (number, length) = (advert.number.get(), advert.length.get());
            return Err(MessageError::Advert { number, due, length });
        }
        let offset = self.advertised % self.slots * u64::from(SLOT_BYTES);
        self.advertised += 1;
        Ok(PacketSpan { offset, length })
    }

    /// The next of the advertised packets has left its slot.
    pub const fn took(&mut self) {
        assert!(self.taken < self.advertised, "only what was advertised is taken");
        self.taken += 1;
    }

    /// The count of packets taken in all, if the sender has to be told now.
    pub fn owes(&self) -> Option<u64> {
        // The sender has the other three quarters of the slots meanwhile.
        let due = (self.slots / 4).max(1);
        let is_due = self.told.is_none_or(|told| self.taken - told >= due);
        is_due.then_some(self.taken)
    }

    /// The sender was told `taken`.
    pub const fn told(&mut self, taken: u64) {
        self.told = Some(taken);
    }
}

const fn number(count: u64) -> u32 {
    (count & 0xffff_ffff) as u32
}
