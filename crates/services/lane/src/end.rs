//! One end of a lane over an endpoint.
//!
//! Bytes that the peer wrote are read in the own memory, without a call of the endpoint. Everything
//! else takes the lock of the carrier.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weft_fabric::{
    Attention, Carry, Endpoint, LaneClosed, LaneFull, Medium, ReceiveCursor, Region, SendCursor,
    Slot, Standing, WaitFor, Wake,
};

use crate::carrier::Carrier;
use crate::hub::Shared;
use crate::layout::{
    BYTES_TAKEN, Layout, MESSAGES_TAKEN, PAYLOAD_BYTES, STATUS_BYTES, WORDS, slot_of,
};
use crate::table::LaneNumber;

/// One end of a lane over an endpoint. Dropping it closes it, and the lane is over at the peer.
pub struct EndpointLane<E: Endpoint> {
    carrier: Carrier<E>,
    shared: Arc<Shared<E::Region>>,
    number: LaneNumber,
    token: u64,
}

impl<E: Endpoint> EndpointLane<E> {
    pub(crate) const fn new(
        carrier: Carrier<E>,
        shared: Arc<Shared<E::Region>>,
        number: LaneNumber,
        token: u64,
    ) -> Self {
        Self { carrier, shared, number, token }
    }

    /// The number of the lane at its carrier.
    #[must_use]
    pub const fn number(&self) -> LaneNumber {
        self.number
    }

    /// The sizes in force.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.shared.layout
    }

    /// The region in which the peer writes, and where the memory of this lane begins in it.
    #[must_use]
    pub fn memory(&self) -> (&E::Region, u64) {
        (&self.shared.cell.region, self.shared.cell.start)
    }

    /// Tells the peer that nothing more will come, behind everything that was sent. Bytes
    /// that have arrived can still be read here. Dropping the end does the same.
    pub fn finish(&self) {
        self.carrier.lock().finish(self.number);
    }

    /// Loads a word of the own memory.
    fn load(&self, offset: u64) -> u64 {
        let cell = &self.shared.cell;
        cell.region.load(cell.start + offset).expect("the words of a cell lie in its region")
    }

    /// Copies bytes of the own memory.
    fn copy_out(&self, offset: u64, target: &mut [u8]) {
        let cell = &self.shared.cell;
        let read = cell.region.read(cell.start + offset, target);
        assert_eq!(read, Ok(()), "a cell lies in its region");
    }

    fn slot(&self, message: u64) -> Option<Slot> {
        slot_of(self.load(self.shared.layout.slot(message)), message)
    }

    /// The room in a queue of `size` after `sent` items went in and `taken` came out, at least
    /// `wanted` if that much is free.
    fn room(&self, size: u64, sent: u64, taken: &mut u64, wanted: u64, count_at: u64) -> u64 {
        let free = |taken: u64| size.saturating_sub(sent.wrapping_sub(taken));
        if free(*taken) < wanted {
            self.carrier.lock().poll();
            let told = self.load(count_at);
            // A count of the peer never goes back, and never exceeds what was sent.
            if told.wrapping_sub(*taken) <= sent.wrapping_sub(*taken) {
                *taken = told;
            }
        }
        if self.shared.is_refused.load(Ordering::Acquire) || self.is_over() {
            return 0;
        }
        free(*taken)
    }

    /// Tells the peer what was taken, if that is worth it or nothing is left to take.
    fn give_back(&self, cursor: &mut ReceiveCursor, flush: bool) {
        let held = cursor.messages.wrapping_sub(cursor.messages_returned);
        let Shared { bytes_returned, messages_rung, .. } = &*self.shared;
        let bytes_held = cursor.bytes.wrapping_sub(bytes_returned.load(Ordering::Relaxed));
        let is_drained = self.slot(cursor.messages).is_none();
        // Counts told quietly do not count here: the peer may wait for all of them together.
        let since_ring = cursor.messages.wrapping_sub(messages_rung.load(Ordering::Relaxed));
        let many = flush || since_ring >= self.mailbox_depth() / 4;
        let much = bytes_held >= self.sink_bytes() / 16;
        let (messages, bytes) = (held > 0 && many, bytes_held > 0 && (much || is_drained));
        if held > 0 && is_drained && !many && !bytes {
            // Nobody waits for a few slots, so this may be told later, with others.
            cursor.messages_returned = cursor.messages;
            return self.carrier.lock().took_quietly(self.number, cursor.messages);
        }
        if messages {
            cursor.messages_returned = cursor.messages;
            messages_rung.store(cursor.messages, Ordering::Relaxed);
        }
        if bytes {
            bytes_returned.store(cursor.bytes, Ordering::Relaxed);
        }
        if messages || bytes {
            let mut hub = self.carrier.lock();
            hub.change(self.number, |out| {
                if messages {
                    out.took_messages(cursor.messages, true);
                }
                if bytes {
                    out.took_bytes(cursor.bytes);
                }
                true
            });
            hub.poll();
        }
    }
}

impl<E: Endpoint> fmt::Debug for EndpointLane<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, layout) = (self.number, self.layout());
        write!(f, "EndpointLane({number:?}, {layout:?}, over: {})", self.is_over())
    }
}

impl<E: Endpoint> Drop for EndpointLane<E> {
    fn drop(&mut self) {
        self.carrier.lock().close(self.number);
    }
}

impl<E: Endpoint> Carry for EndpointLane<E> {
    fn mailbox_depth(&self) -> u64 {
        u64::from(self.shared.layout.slots)
    }

    fn sink_bytes(&self) -> u64 {
        u64::from(self.shared.layout.sink_bytes)
    }

    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let size = self.mailbox_depth();
        let wanted = wanted.min(size);
        self.room(size, cursor.messages, &mut cursor.messages_taken, wanted, MESSAGES_TAKEN)
    }

    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let size = self.sink_bytes();
        let wanted = wanted.min(size);
        self.room(size, cursor.bytes, &mut cursor.bytes_taken, wanted, BYTES_TAKEN)
    }

    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        if self.slots_free(cursor, 1) == 0 {
            return Err(LaneFull);
        }
        let mut hub = self.carrier.lock();
        if !hub.send(self.number, cursor.messages, tag, parts) {
            return Err(LaneFull);
        }
        cursor.messages = cursor.messages.wrapping_add(1);
        Ok(())
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        let length = bytes.len() as u64;
        let known = self.sink_bytes().saturating_sub(cursor.bytes.wrapping_sub(cursor.bytes_taken));
        assert!(length <= known, "{length} bytes do not fit the {known} free bytes of the sink");
        let position = cursor.bytes;
        self.carrier.lock().change(self.number, |out| {
            out.put(position, bytes);
            true
        });
        cursor.bytes = position.wrapping_add(length);
    }

    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        let slot = self.slot(cursor.messages).or_else(|| {
            self.carrier.lock().poll();
            self.slot(cursor.messages)
        });
        match slot {
            Some(slot) if usize::from(slot.length) > PAYLOAD_BYTES => Err(LaneClosed),
            slot => Ok(slot),
        }
    }

    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= PAYLOAD_BYTES, "a read beyond its slot");
        let start = self.shared.layout.slot(cursor.messages) + STATUS_BYTES;
        self.copy_out(start + offset as u64, target);
    }

    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        cursor.messages = cursor.messages.wrapping_add(1);
        self.give_back(cursor, flush);
    }

    fn messages_read(&self) -> Option<u64> {
        Some(self.load(MESSAGES_TAKEN))
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        let position = cursor.bytes.wrapping_add(skip);
        let mut rest = target;
        for (offset, length) in self.shared.layout.sink(position, rest.len() as u64) {
            let length = usize::try_from(length).expect("not longer than the target");
            let (piece, behind) = rest.split_at_mut(length);
            if !piece.is_empty() {
                self.copy_out(offset, piece);
            }
            rest = behind;
        }
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        cursor.bytes = cursor.bytes.wrapping_add(length);
        self.give_back(cursor, false);
    }

    fn look_back(&self, message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        self.carrier.lock().kept(self.number, |out| out.look_back(message, payload))?
    }

    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        let seen = self.carrier.lock().kept(self.number, |out| out.view_back(position, target));
        seen == Some(true)
    }

    fn post(&self, word: usize, value: u64) {
        assert!(word < WORDS, "there are {WORDS} control words");
        self.carrier.lock().change(self.number, |out| out.post(word, value));
    }

    fn posted(&self, word: usize) -> u64 {
        assert!(word < WORDS, "there are {WORDS} control words");
        self.load(Layout::word(word))
    }

    fn medium(&self) -> Medium {
        Medium::Network
    }

    fn token(&self) -> u64 {
        self.token
    }

    fn has_landed(&self) -> bool {
        self.carrier.lock().has_landed(self.number)
    }

    fn standing(&self) -> Standing {
        self.shared.ending.standing()
    }
}

impl<E: Endpoint> Wake for EndpointLane<E> {
    fn arm(&self, what: WaitFor) {
        self.shared.word(what).arm();
    }

    fn attention(&self, what: WaitFor) -> Attention {
        self.carrier.lock().poll();
        self.shared.word(what).state()
    }

    fn disarm(&self, what: WaitFor) -> bool {
        self.shared.word(what).disarm()
    }

    fn rearm(&self, what: WaitFor) -> bool {
        self.shared.word(what).rearm()
    }

    fn is_awaited(&self, _what: WaitFor) -> bool {
        false
    }

    fn must_ring(&self, _what: WaitFor) -> bool {
        false
    }
}
