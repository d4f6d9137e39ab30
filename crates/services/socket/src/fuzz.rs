//! The fuzz target of direct sockets: both sides of a stream over a lane whose answers are the
//! input.
//!
//! The lane keeps the promises that [`Carry`] makes to its caller: a slot has at most 120 bytes,
//! and room that it reported stays. All else is hostile. The arrived messages, the posted
//! words and the attention words change from one call to the next.

use std::cell::Cell;

use weft_fabric::{
    Attention, Carry, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot, Standing,
    WaitFor, Wake,
};

use crate::{Leave, Limits, Origin, ReceiveSide, SendSide, Side};

const DEPTH: u64 = 16;
const SINK_BYTES: u64 = 4096;
/// The limit of lane operations in one call. A call may need a few for each byte that it moves.
const OPERATIONS_MAX: u64 = 1 << 14;

/// The answers of the lane, read off the input. At the end of the input nothing arrives any more.
struct Script<'a> {
    rest: Cell<&'a [u8]>,
    operations: Cell<u64>,
    medium: Cell<Medium>,
}

impl<'a> Script<'a> {
    fn new(input: &'a [u8]) -> Self {
        let medium = Cell::new(Medium::Memory);
        Self { rest: Cell::new(input), operations: Cell::new(0), medium }
    }

    fn is_over(&self) -> bool {
        self.rest.get().is_empty()
    }

    fn byte(&self) -> u8 {
        let Some((first, rest)) = self.rest.get().split_first() else { return 0 };
        self.rest.set(rest);
        *first
    }

    fn number(&self) -> u64 {
        match self.byte() {
            // Small numbers are common, since the stream more often accepts them.
            small @ 0..=0xef => u64::from(small),
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    fn count(&self) {
        self.operations.set(self.operations.get() + 1);
        assert!(self.operations.get() < OPERATIONS_MAX, "a call needs too many operations");
    }

    /// The room in a buffer of `size` bytes or slots, of which `sent` were sent in all. The input
    /// says how many the peer took since, but not more than were sent.
    fn room(&self, size: u64, sent: u64, taken: &mut u64) -> u64 {
        self.count();
        *taken = taken.saturating_add(self.number()).min(sent);
        size.saturating_sub(sent - *taken)
    }
}

impl Carry for Script<'_> {
    fn mailbox_depth(&self) -> u64 {
        DEPTH
    }

    fn sink_bytes(&self) -> u64 {
        SINK_BYTES
    }

    fn slots_free(&self, cursor: &mut SendCursor, _wanted: u64) -> u64 {
        self.room(DEPTH, cursor.messages, &mut cursor.messages_taken)
    }

    fn sink_free(&self, cursor: &mut SendCursor, _wanted: u64) -> u64 {
        self.room(SINK_BYTES, cursor.bytes, &mut cursor.bytes_taken)
    }

    fn send(&self, cursor: &mut SendCursor, _tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        assert!(length <= Self::MESSAGE_BYTES, "a message of {length} bytes");
        if self.slots_free(cursor, 1) == 0 {
            return Err(LaneFull);
        }
        cursor.messages += 1;
        Ok(())
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        let free = SINK_BYTES - (cursor.bytes - cursor.bytes_taken);
        assert!(bytes.len() as u64 <= free, "{} bytes put into {free}", bytes.len());
        cursor.bytes += bytes.len() as u64;
    }

    fn peek(&self, _cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        self.count();
        match self.byte() {
            0 => Ok(None),
            255 => Err(LaneClosed),
            tag => {
                let length = self.byte().min(120);
                Ok(Some(Slot { tag: tag % 5, length }))
            }
        }
    }

    fn read(&self, _cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= Self::MESSAGE_BYTES, "a read beyond its slot");
        target.iter_mut().for_each(|byte| *byte = self.byte());
    }

    fn advance(&self, cursor: &mut ReceiveCursor, _flush: bool) {
        cursor.messages = cursor.messages.wrapping_add(1);
    }

    fn view(&self, _cursor: &ReceiveCursor, _skip: u64, target: &mut [u8]) {
        assert!(target.len() as u64 <= SINK_BYTES, "a view beyond the sink");
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        cursor.bytes = cursor.bytes.wrapping_add(length);
    }

    fn look_back(&self, _message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        let slot = self.peek(&ReceiveCursor::default()).ok()??;
        self.read(&ReceiveCursor::default(), 0, &mut payload[..usize::from(slot.length)]);
        Some(slot)
    }

    fn view_back(&self, _position: u64, target: &mut [u8]) -> bool {
        assert!(target.len() as u64 <= SINK_BYTES, "a view beyond the sink");
        self.byte() & 7 != 0
    }

    fn post(&self, _word: usize, _value: u64) {}

    fn posted(&self, _word: usize) -> u64 {
        self.count();
        self.number()
    }

    fn medium(&self) -> Medium {
        self.medium.get()
    }

    fn has_landed(&self) -> bool {
        self.medium.get() == Medium::Memory || self.byte() & 1 == 1
    }

    fn standing(&self) -> Standing {
        match self.medium.get() {
            Medium::Memory => Standing::Open,
            Medium::Network => match self.byte() & 15 {
                14 => Standing::Closed,
                15 => Standing::Lost,
                _ => Standing::Open,
            },
        }
    }
}

impl Wake for Script<'_> {
    fn arm(&self, _what: WaitFor) {}

    fn attention(&self, _what: WaitFor) -> Attention {
        Attention::Watching
    }

    fn disarm(&self, _what: WaitFor) -> bool {
        self.byte() & 1 == 1
    }

    fn rearm(&self, _what: WaitFor) -> bool {
        self.byte() & 1 == 1
    }

    fn is_awaited(&self, _what: WaitFor) -> bool {
        self.byte() & 1 == 1
    }

    fn must_ring(&self, _what: WaitFor) -> bool {
        self.byte() & 1 == 1
    }
}

/// Drives a stream over a lane that answers as `input` says. Each call must return bytes, an end or
/// an error after a bounded number of steps.
///
/// # Panics
/// When a call breaks a promise of the stream.
pub fn fuzz_stream(input: &[u8]) {
    let script = Script::new(input);
    let kind = script.byte();
    let side = if kind & 1 == 0 { Side::Accepted } else { Side::Connected };
    if kind & 2 != 0 {
        script.medium.set(Medium::Network);
    }
    let (mut send, mut receive) = (SendSide::default(), ReceiveSide::default());
    while !script.is_over() {
        script.operations.set(0);
        let choice = script.byte();
        let size = usize::from(script.byte()) << (choice >> 6);
        if choice & 1 == 0 {
            drive_send(&mut send, &script, side, choice >> 1 & 7, size);
        } else {
            drive_receive(&mut receive, &script, choice >> 1 & 7, size);
        }
    }
}

fn drive_send(send: &mut SendSide, lane: &Script<'_>, side: Side, choice: u8, size: usize) {
    match choice {
        0 => {
            send.writable(lane);
        }
        1 => {
            send.unread_by_peer(lane);
        }
        2 => {
            send.close(lane, size as u64 % 3);
        }
        3 => {
            send.shut(lane, side);
        }
        4 => {
            let how = [Leave::ForNow, Leave::GivingBack, Leave::ForGood][size % 3];
            if send.leave(lane, side, how).is_some() {
                let most = SINK_BYTES + DEPTH * Script::MESSAGE_BYTES as u64;
                let again = send.to_send_again(lane);
                assert!(again.bytes.len() as u64 <= most, "more than a lane holds");
                let sent = size.min(again.bytes.len());
                send.wrote_copies(sent);
                send.return_to_tcp(lane, &again, sent);
            }
        }
        5 => {
            send.rings_for_room(lane, side);
        }
        _ if send.switch(lane, side) => {
            let limits = Limits { eager_bytes: 480, chunk_bytes: 1 + size };
            let bytes = vec![1; size];
            if let Ok(written) = send.write(lane, &[&bytes], limits) {
                assert!(written.bytes <= size, "a write took more bytes than it was given");
                assert!(
                    written.bytes > 0 || size == 0,
                    "a call that moves no bytes must return an error"
                );
            }
        }
        _ => {
            send.begin_tcp();
            send.wrote_tcp(size);
        }
    }
}

fn drive_receive(receive: &mut ReceiveSide, lane: &Script<'_>, choice: u8, size: usize) {
    match choice {
        0 => {
            let (arrived, depth) = (receive.arrived(lane, size as u64), lane.mailbox_depth());
            assert!(arrived <= receive.arrived(&Script::new(&[]), 0) + depth + 1, "too many");
        }
        1 => {
            let most = SINK_BYTES + DEPTH * Script::MESSAGE_BYTES as u64;
            assert!(receive.available(lane) <= most, "more than a lane holds");
        }
        2 => {
            receive.readable(lane);
            receive.ended(lane);
            if size == 7 {
                receive.request_resend(lane);
            }
        }
        _ => match receive.origin(lane) {
            Origin::Lane => {
                let mut target = vec![0; size];
                if let Ok(reading) = receive.read(lane, &mut target, choice == 3) {
                    assert!(reading.bytes <= size, "a read gave more bytes than fit");
                    assert!(
                        reading.bytes > 0 || size == 0,
                        "a call that moves no bytes must return an error"
                    );
                }
            }
            Origin::Tcp { at_most } => {
                let limit = at_most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0));
                let bytes = size.min(limit);
                let data = receive.data_of(lane, bytes);
                assert!(data <= bytes, "wakeups became data");
                receive.begin_tcp();
                receive.took_tcp(data);
            }
            Origin::Wakeups(left) => {
                let wakeups = receive.wakeups_of(lane, size);
                assert!(wakeups as u64 <= left, "data became wakeups");
                receive.begin_tcp();
                receive.took_wakeups(wakeups);
            }
            Origin::Return => receive.return_to_tcp(lane),
        },
    }
}
