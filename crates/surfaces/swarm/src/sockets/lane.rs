//! A lane that lets other threads run between any two of its operations.
//!
//! A call of the stream at one end is a sequence of operations on the lane. Between two of them,
//! threads of the other end, and the other thread of this end, run at random.

use weft_fabric::{
    Attention, Carry, Endpoint, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot,
    Standing, WaitFor, Wake,
};
use weft_lane::EndpointLane;
use weft_transport_shm::lane::ShmLane;

use super::connection::Connection;

/// One end of a lane of either kind.
pub enum End<'a, E: Endpoint> {
    Memory(&'a ShmLane),
    Network(&'a EndpointLane<E>),
}

impl<E: Endpoint> Clone for End<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Endpoint> Copy for End<'_, E> {}

/// Calls the end that is there.
macro_rules! on {
    ($end:expr, $lane:ident => $call:expr) => {
        match $end {
            End::Memory($lane) => $call,
            End::Network($lane) => $call,
        }
    };
}

/// One end of the lane, as a thread of the simulation uses it.
pub struct Hooked<'a, E: Endpoint> {
    pub end: End<'a, E>,
    pub connection: &'a Connection<E>,
    pub number: usize,
}

impl<'a, E: Endpoint> Hooked<'a, E> {
    fn now(&self) -> End<'a, E> {
        self.connection.meanwhile();
        self.end
    }

    /// The end, unless its process was killed: then the call is none that it makes. The endpoint of
    /// a killed process does nothing by itself.
    fn alive(&self) -> Option<End<'a, E>> {
        let end = self.now();
        (!self.connection.is_killed(self.number)).then_some(end)
    }
}

impl<E: Endpoint> Carry for Hooked<'_, E> {
    fn mailbox_depth(&self) -> u64 {
        on!(self.end, lane => lane.mailbox_depth())
    }

    fn sink_bytes(&self) -> u64 {
        on!(self.end, lane => lane.sink_bytes())
    }

    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.alive().map_or(0, |end| on!(end, lane => lane.slots_free(cursor, wanted)))
    }

    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        self.alive().map_or(0, |end| on!(end, lane => lane.sink_free(cursor, wanted)))
    }

    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        let Some(end) = self.alive() else { return Err(LaneFull) };
        on!(end, lane => lane.send(cursor, tag, parts))
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        if let Some(end) = self.alive() {
            on!(end, lane => lane.put(cursor, bytes));
        }
    }

    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        let Some(end) = self.alive() else { return Err(LaneClosed) };
        on!(end, lane => lane.peek(cursor))
    }

    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        on!(self.now(), lane => lane.read(cursor, offset, target));
    }

    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        if let Some(end) = self.alive() {
            on!(end, lane => lane.advance(cursor, flush));
        }
    }

    fn messages_read(&self) -> Option<u64> {
        on!(self.now(), lane => lane.messages_read())
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        on!(self.now(), lane => lane.view(cursor, skip, target));
    }

    fn look_back(&self, message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        on!(self.now(), lane => lane.look_back(message, payload))
    }

    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        on!(self.now(), lane => lane.view_back(position, target))
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        if let Some(end) = self.alive() {
            on!(end, lane => lane.release(cursor, length));
        }
    }

    fn post(&self, word: usize, value: u64) {
        if let Some(end) = self.alive() {
            on!(end, lane => lane.post(word, value));
        }
    }

    fn posted(&self, word: usize) -> u64 {
        on!(self.now(), lane => lane.posted(word))
    }

    fn medium(&self) -> Medium {
        on!(self.end, lane => lane.medium())
    }

    fn token(&self) -> u64 {
        on!(self.end, lane => lane.token())
    }

    fn has_landed(&self) -> bool {
        on!(self.now(), lane => lane.has_landed())
    }

    fn standing(&self) -> Standing {
        on!(self.now(), lane => lane.standing())
    }
}

impl<E: Endpoint> Wake for Hooked<'_, E> {
    fn arm(&self, what: WaitFor) {
        on!(self.now(), lane => lane.arm(what));
    }

    fn settle(&self) {
        on!(self.now(), lane => lane.settle());
    }

    fn attention(&self, what: WaitFor) -> Attention {
        on!(self.now(), lane => lane.attention(what))
    }

    fn disarm(&self, what: WaitFor) -> bool {
        on!(self.now(), lane => lane.disarm(what))
    }

    fn rearm(&self, what: WaitFor) -> bool {
        on!(self.now(), lane => lane.rearm(what))
    }

    fn is_awaited(&self, what: WaitFor) -> bool {
        self.alive().is_some_and(|end| on!(end, lane => lane.is_awaited(what)))
    }

    fn must_ring(&self, what: WaitFor) -> bool {
        self.alive().is_some_and(|end| on!(end, lane => lane.must_ring(what)))
    }
}
