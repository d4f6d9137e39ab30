//! A lane that lets other threads run between any two of its operations.
//!
//! A call of the stream at one end is a sequence of operations on the lane. Between two of them,
//! threads of the other end, and the other thread of this end, run at random.

use weft_fabric::{
    Attention, Lane, LaneClosed, LaneFull, ReceiveCursor, SendCursor, Slot, WaitFor,
};
use weft_transport_sim::SimLane;

use crate::world::World;

/// One end of the lane, as a thread of the simulation uses it.
pub struct Hooked<'a> {
    pub lane: &'a SimLane,
    pub world: &'a World,
}

impl Hooked<'_> {
    fn now(&self) -> &SimLane {
        self.world.meanwhile();
        self.lane
    }
}

impl Lane for Hooked<'_> {
    fn mailbox_depth(&self) -> u64 {
        self.lane.mailbox_depth()
    }

    fn sink_bytes(&self) -> u64 {
        self.lane.sink_bytes()
    }

    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.now().slots_free(cursor, wanted)
    }

    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.now().sink_free(cursor, wanted)
    }

    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        self.now().send(cursor, tag, parts)
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        self.now().put(cursor, bytes);
    }

    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        self.now().peek(cursor)
    }

    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        self.now().read(cursor, offset, target);
    }

    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        self.now().advance(cursor, flush);
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        self.now().view(cursor, skip, target);
    }

    fn look_back(&self, message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        self.now().look_back(message, payload)
    }

    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        self.now().view_back(position, target)
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        self.now().release(cursor, length);
    }

    fn post(&self, word: usize, value: u64) {
        self.now().post(word, value);
    }

    fn posted(&self, word: usize) -> u64 {
        self.now().posted(word)
    }

    fn arm(&self, what: WaitFor) {
        self.now().arm(what);
    }

    fn settle(&self) {
        self.now().settle();
    }

    fn attention(&self, what: WaitFor) -> Attention {
        self.now().attention(what)
    }

    fn disarm(&self, what: WaitFor) -> bool {
        self.now().disarm(what)
    }

    fn rearm(&self, what: WaitFor) -> bool {
        self.now().rearm(what)
    }

    fn is_awaited(&self, what: WaitFor) -> bool {
        self.now().is_awaited(what)
    }

    fn must_ring(&self, what: WaitFor) -> bool {
        self.now().must_ring(what)
    }
}
