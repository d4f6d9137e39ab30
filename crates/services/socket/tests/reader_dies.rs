//! A reader dies in any of its calls of the lane, just before it or just after it. Another process
//! that shares the connection reads on: no byte that the dead one had not read is lost, and the
//! writer gets back the room of all that was read.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use weft_fabric::{
    Attention, Carry, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot, WaitFor, Wake,
};
use weft_socket::{Limits, ReadError, ReceiveSide, SendSide, Side, WriteError};
use weft_transport_shm::lane::{LaneLayout, ShmLane};

mod ends;

const LIMITS: Limits = Limits { eager_bytes: 300, chunk_bytes: 4096 };
/// The sizes of writes and reads, and the bytes in all. That is more than the lane holds, several
/// times over: a slot that is returned is written again at once, and the sink is full.
struct Mix {
    writes: &'static [usize],
    reads: &'static [usize],
    total: usize,
}

const SMALL: Mix =
    Mix { writes: &[7, 130, 290, 60, 400], reads: &[61, 7, 500, 1200, 120], total: 12_000 };
const LARGE: Mix = Mix { writes: &[9000, 3000], reads: &[5000, 900, 4096], total: 60_000 };

/// The bytes do not repeat themselves, so that they tell their place.
fn byte(place: usize) -> u8 {
    let mixed = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40).to_le_bytes()[0]
}

/// A lane on which the process dies at one of its calls.
struct Mortal<'a> {
    lane: &'a ShmLane,
    /// Half calls that are left: each call has a moment before it and one after it.
    left: Cell<usize>,
}

impl Mortal<'_> {
    fn moment(&self) {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => resume_unwind(Box::new(())),
        }
    }

    fn call<T>(&self, act: impl FnOnce(&ShmLane) -> T) -> T {
        self.moment();
        let result = act(self.lane);
        self.moment();
        result
    }
}

impl Carry for Mortal<'_> {
    fn mailbox_depth(&self) -> u64 {
        self.lane.mailbox_depth()
    }
    fn sink_bytes(&self) -> u64 {
        self.lane.sink_bytes()
    }
    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.lane.slots_free(cursor, wanted)
    }
    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.lane.sink_free(cursor, wanted)
    }
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        self.lane.send(cursor, tag, parts)
    }
    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        self.lane.put(cursor, bytes);
    }
    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        self.call(|lane| lane.peek(cursor))
    }
    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        self.call(|lane| lane.read(cursor, offset, target));
    }
    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        self.call(|lane| lane.advance(cursor, flush));
    }
    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        self.call(|lane| lane.view(cursor, skip, target));
    }
    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        self.call(|lane| lane.release(cursor, length));
    }
    fn post(&self, word: usize, value: u64) {
        self.lane.post(word, value);
    }
    fn posted(&self, word: usize) -> u64 {
        self.lane.posted(word)
    }
    fn medium(&self) -> Medium {
        self.lane.medium()
    }
}

impl Wake for Mortal<'_> {
    fn arm(&self, what: WaitFor) {
        self.lane.arm(what);
    }
    fn attention(&self, what: WaitFor) -> Attention {
        self.lane.attention(what)
    }
    fn disarm(&self, what: WaitFor) -> bool {
        self.lane.disarm(what)
    }
    fn rearm(&self, what: WaitFor) -> bool {
        self.lane.rearm(what)
    }
    fn is_awaited(&self, what: WaitFor) -> bool {
        self.lane.is_awaited(what)
    }
    fn must_ring(&self, what: WaitFor) -> bool {
        self.lane.must_ring(what)
    }
}

/// The writer of the bytes, by whose pieces some go as messages and some through the sink.
struct Writer<'a> {
    side: SendSide,
    lane: &'a ShmLane,
    mix: &'a Mix,
    written: usize,
    turns: usize,
}

impl Writer<'_> {
    /// Writes until the lane is full or all is written.
    fn fill(&mut self) {
        while self.written < self.mix.total {
            let size = self.mix.writes[self.turns % self.mix.writes.len()];
            let size = size.min(self.mix.total - self.written);
            self.turns += 1;
            let piece: Vec<u8> = (self.written..self.written + size).map(byte).collect();
            match self.side.write(self.lane, &[&piece], LIMITS) {
                Ok(written) => self.written += written.bytes,
                Err(WriteError::Full) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

/// Runs with a first reader that dies at `moment`; false when it read all and did not die.
fn dies_at(mix: &Mix, moment: usize) -> bool {
    let (server, client) = ends::memory_of(LaneLayout { slots: 16, sink_bytes: 4096 });
    let side = SendSide::default();
    let mut writer = Writer { side, lane: &client, mix, written: 0, turns: 0 };
    assert!(writer.side.switch(&client, Side::Connected));
    let mut shared = ReceiveSide::default();
    shared.origin(&server);
    let mortal = Mortal { lane: &server, left: Cell::new(moment) };
    let (mut known, mut turns) = (0, 0);
    let mut size;
    let died = loop {
        writer.fill();
        turns += 1;
        size = mix.reads[turns % mix.reads.len()];
        let mut target = vec![0; size];
        let call = || shared.read(&mortal, &mut target, turns % 5 == 0);
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(Ok(reading)) => {
                let right = (known..known + reading.bytes).map(byte);
                assert!(target[..reading.bytes].iter().copied().eq(right), "moment {moment}");
                known += if turns % 5 == 0 { 0 } else { reading.bytes };
            }
            Ok(Err(error)) => {
                assert_eq!((error, known), (ReadError::Empty, mix.total), "moment {moment}");
                break false;
            }
            Err(_) => break true,
        }
    };
    // The peer goes on meanwhile.
    writer.fill();
    let (mut place, mut first) = (None, true);
    while place != Some(mix.total) {
        let mut target = vec![0; 777];
        let bytes = match shared.read(&server, &mut target, false) {
            Ok(reading) => reading.bytes,
            // The one that died may have read the last byte.
            Err(ReadError::Empty) if first && known + size >= mix.total => break,
            Err(ReadError::Empty) => {
                // The writer found no room, and waits.
                client.arm(WaitFor::Room);
                assert!(shared.settle_room(&server), "moment {moment}: both wait");
                client.disarm(WaitFor::Room);
                let written = writer.written;
                writer.fill();
                assert!(writer.written > written, "moment {moment}: there is no room");
                continue;
            }
            Err(error) => panic!("moment {moment}: {error:?} at {place:?} of {known}"),
        };
        let is_next = |at: usize| target[..bytes].iter().copied().eq((at..at + bytes).map(byte));
        // The last call of the one that died may have read as much as it asked for. A few bytes do
        // not tell their place; they are the last ones that were written.
        let is_sure = |at: usize| bytes >= 16 || at + bytes == writer.written;
        let found = match place {
            Some(place) => Some(place).filter(|at| is_next(*at)),
            None => (known..=known + size).find(|at| is_next(*at) && is_sure(*at)),
        };
        place = Some(found.unwrap_or_else(|| panic!("moment {moment}: lost")) + bytes);
        first = false;
        writer.fill();
    }
    died
}

#[test]
fn those_that_share_the_connection_read_on_where_a_reader_died() {
    for mix in [SMALL, LARGE] {
        let mut moment = 0;
        while dies_at(&mix, moment) {
            moment += 1;
        }
        assert!(moment > 100, "only {moment} moments");
    }
}
