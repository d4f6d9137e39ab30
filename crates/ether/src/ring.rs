//! The rings of 004 section 2.1, for packets too long for messages. There is one for each direction
//! of a pair of nodes, made when the first such packet is sent: slots, a write counter and a read
//! counter.
//!
//! The memory belongs to the sender, and the receiver reads packets out of it (003 section 5.4.1.3:
//! the data waits at its sender until the receiver has room). The sender advertises each packet.
//! The receiver reports now and then how many packets it has taken, which is the sender's credit.

use weft_fabric::{Region, RemoteKey, Window};
use zerocopy::little_endian::{U32, U64};

use crate::assembly::{PACKET_BYTES_MAX, check_length};
use crate::message::{Advert, MessageError, Ring};

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
}

impl<R: Region> SendRing<R> {
    /// A ring in `region`, which has `slots` times [`SLOT_BYTES`] bytes. The receiver reads it by
    /// `key`.
    pub const fn new(region: R, key: RemoteKey, slots: u32) -> Self {
        let ring =
            Ring { key: U64::new(key.0), slots: U32::new(slots), slot_bytes: U32::new(SLOT_BYTES) };
        Self { region, ring, written: 0, taken: 0 }
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
    pub const fn advertised(&mut self) {
        self.written += 1;
    }

    /// The receiver reports how many packets it has taken in all.
    ///
    /// # Errors
    /// [`MessageError::Taken`].
    pub const fn taken(&mut self, taken: u64) -> Result<(), MessageError> {
        if taken < self.taken || taken > self.written {
            return Err(MessageError::Taken { taken, written: self.written });
        }
        self.taken = taken;
        Ok(())
    }

    /// Packets in the ring that were not reported as taken.
    pub const fn waiting(&self) -> u64 {
        self.written - self.taken
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct ReceiveRing<W> {
    window: W,
    slots: u64,
    slot_bytes: u64,
    read: u64,
    told: u64,
}

/// Checks the description of a peer's ring. Returns its key.
///
/// # Errors
/// [`MessageError::Ring`].
pub fn check(ring: &Ring) -> Result<RemoteKey, MessageError> {
    let (slots, slot_bytes) = (ring.slots.get(), ring.slot_bytes.get());
    if !(1..=SLOTS_MAX).contains(&slots) || slot_bytes != SLOT_BYTES {
        return Err(MessageError::Ring { slots, slot_bytes });
    }
    Ok(RemoteKey(ring.key.get()))
}

impl<W: Window> ReceiveRing<W> {
    /// The ring that `ring` describes, read through `window`.
    ///
    /// # Errors
    /// [`MessageError::Ring`] when the peer's memory is smaller than the description says.
    pub fn new(window: W, ring: &Ring) -> Result<Self, MessageError> {
        let (slots, slot_bytes) = (ring.slots.get(), ring.slot_bytes.get());
        if window.length() < u64::from(slots) * u64::from(slot_bytes) {
            return Err(MessageError::Ring { slots, slot_bytes });
        }
        let (slots, slot_bytes) = (u64::from(slots), u64::from(slot_bytes));
        Ok(Self { window, slots, slot_bytes, read: 0, told: 0 })
    }

    /// Takes the advertised packet: its offset in the window, and its length. The slot belongs to
    /// the sender again once it got the count of taken packets.
    ///
    /// # Errors
    /// [`MessageError`] if the advert is wrong.
    pub fn take(&mut self, advert: &Advert) -> Result<(u64, usize), MessageError> {
        let length = check_length(advert.length.get())?;
        let due = number(self.read);
        let error =
            MessageError::Advert { number: advert.number.get(), due, length: advert.length.get() };
        if advert.number.get() != due || length as u64 > self.slot_bytes {
            return Err(error);
        }
        let place = self.read % self.slots * self.slot_bytes;
        self.read += 1;
        Ok((place, length))
    }

    /// The sender's memory.
    pub const fn window(&self) -> &W {
        &self.window
    }

    /// The count of packets taken in all, if the sender has to be told now.
    pub fn owes(&self) -> Option<u64> {
        // The sender has the other three quarters of the slots meanwhile.
        let due = (self.slots / 4).max(1);
        (self.read - self.told >= due).then_some(self.read)
    }

    /// The sender was told `taken`.
    pub const fn told(&mut self, taken: u64) {
        self.told = taken;
    }
}

const fn number(count: u64) -> u32 {
    (count & 0xffff_ffff) as u32
}
