//! The rings of 004 section 2.1, one for each direction of a pair of nodes that sends packets too
//! long for messages: places for packets, a write and a read counter, made at first contact.
//!
//! The memory is the sender's, and its receiver gets packets out of it (003 section 5.4.1.3: the
//! data waits at its sender until the receiver has room). The sender advertises each packet; the
//! receiver says now and then how many it has taken, which is the sender's credit.

use weft_fabric::{Region, RemoteKey, Window};
use zerocopy::little_endian::{U32, U64};

use crate::assembly::{PACKET_BYTES_MAX, check_length};
use crate::message::{Advert, MessageError, Ring};

/// Bytes of a place: the longest packet, on pages of its own.
pub const SLOT_BYTES: u32 = 68 << 10;
/// Places that a peer may have in its ring.
const SLOTS_MAX: u32 = 4_096;

const _: () = assert!(SLOT_BYTES as usize >= PACKET_BYTES_MAX);

/// The end that sends.
#[derive(Debug)]
pub struct SendRing<R> {
    region: R,
    ring: Ring,
    written: u64,
    taken: u64,
}

impl<R: Region> SendRing<R> {
    /// In `region`, of `slots` times [`SLOT_BYTES`] bytes, which the receiver reads by `key`.
    pub const fn new(region: R, key: RemoteKey, slots: u32) -> Self {
        let ring =
            Ring { key: U64::new(key.0), slots: U32::new(slots), slot_bytes: U32::new(SLOT_BYTES) };
        Self { region, ring, written: 0, taken: 0 }
    }

    /// What the receiver has to know.
    pub const fn described(&self) -> Ring {
        self.ring
    }

    /// Where in the region the next packet goes; `None` when all places are taken.
    pub fn place(&self) -> Option<u64> {
        let slots = u64::from(self.ring.slots.get());
        let is_free = self.written - self.taken < slots;
        is_free.then(|| self.written % slots * u64::from(SLOT_BYTES))
    }

    /// Its memory.
    pub const fn region(&self) -> &R {
        &self.region
    }

    /// Puts a packet into the next place; `None` when all are taken, or it does not fit. It is
    /// there for the receiver once [`SendRing::advertised`] was called.
    pub fn put(&self, packet: &[u8]) -> Option<Advert> {
        let place = self.place()?;
        self.region.write(place, packet).ok()?;
        self.advert(packet.len())
    }

    /// What the receiver is told of a packet of `length` bytes in the next place.
    pub fn advert(&self, length: usize) -> Option<Advert> {
        let length = u32::try_from(length).ok().filter(|length| *length <= SLOT_BYTES)?;
        Some(Advert { number: U32::new(number(self.written)), length: U32::new(length) })
    }

    /// The receiver was told.
    pub const fn advertised(&mut self) {
        self.written += 1;
    }

    /// The receiver says how many it has taken in all.
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

    /// Packets that lie there.
    pub const fn waiting(&self) -> u64 {
        self.written - self.taken
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct ReceiveRing<W> {
    window: W,
    slots: u64,
    slot_bytes: u64,
    read: u64,
    told: u64,
}

/// Checks what a peer says of its ring.
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
    /// The ring that `ring` describes, seen through `window`.
    ///
    /// # Errors
    /// [`MessageError::Ring`] when the peer's memory is smaller than it says.
    pub fn new(window: W, ring: &Ring) -> Result<Self, MessageError> {
        let (slots, slot_bytes) = (ring.slots.get(), ring.slot_bytes.get());
        if window.length() < u64::from(slots) * u64::from(slot_bytes) {
            return Err(MessageError::Ring { slots, slot_bytes });
        }
        let (slots, slot_bytes) = (u64::from(slots), u64::from(slot_bytes));
        Ok(Self { window, slots, slot_bytes, read: 0, told: 0 })
    }

    /// Takes the advertised packet: where it lies, and how long it is. Its place is the sender's
    /// again once that is told.
    ///
    /// # Errors
    /// [`MessageError`]: the peer is not to be believed.
    pub fn take(&mut self, advert: &Advert) -> Result<(u64, usize), MessageError> {
        let length = check_length(advert.length.get())?;
        let due = number(self.read);
        let wrong =
            MessageError::Advert { number: advert.number.get(), due, length: advert.length.get() };
        if advert.number.get() != due || length as u64 > self.slot_bytes {
            return Err(wrong);
        }
        let place = self.read % self.slots * self.slot_bytes;
        self.read += 1;
        Ok((place, length))
    }

    /// The sender's memory.
    pub const fn window(&self) -> &W {
        &self.window
    }

    /// How many were taken in all, when that is due to be told.
    pub fn owes(&self) -> Option<u64> {
        // The sender has the rest of the places meanwhile.
        let due = (self.slots / 4).max(1);
        (self.read - self.told >= due).then_some(self.read)
    }

    /// The sender was told.
    pub const fn told(&mut self, taken: u64) {
        self.told = taken;
    }
}

const fn number(count: u64) -> u32 {
    (count & 0xffff_ffff) as u32
}
