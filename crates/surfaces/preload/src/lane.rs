//! A lane of either kind: in memory that both processes map, or over an endpoint of each.
//!
//! All calls are passed on. The kind of a lane never changes, so each call has one branch that the
//! processor predicts.

use weft_fabric::{
    Attention, Carry, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot, Standing,
    WaitFor, Wake,
};
use weft_transport_shm::lane::ShmLane;

use crate::carrier::FarLane;

/// A lane of either kind.
#[derive(Debug)]
pub enum Lane {
    /// Memory of both processes.
    Memory(ShmLane),
    /// An endpoint of each process ([`crate::carrier`]).
    Endpoint(FarLane),
}

impl Lane {
    /// The lane, if it is memory of both processes.
    #[inline(always)]
    pub const fn in_memory(&self) -> Option<&ShmLane> {
        match self {
            Self::Memory(lane) => Some(lane),
            Self::Endpoint(_) => None,
        }
    }

    /// True for a lane over an endpoint.
    #[inline(always)]
    pub const fn is_far(&self) -> bool {
        matches!(self, Self::Endpoint(_))
    }
}

/// Makes a call for the kind that a lane is of. The other code of the caller is as if there were
/// lanes in memory alone: a call that has to be fast does all its work in here, so that it looks
/// once at the kind.
macro_rules! either {
    ($lane:expr, $each:ident => $call:expr) => {
        match $lane {
            $crate::lane::Lane::Memory($each) => $call,
            $crate::lane::Lane::Endpoint(far) => $crate::lane::aside(move || {
                let $each = &**far;
                $call
            }),
        }
    };
}

pub(crate) use either;

/// Keeps the code for lanes over endpoints out of the callers, so that the compiler inlines that
/// for lanes in memory as if there were no other kind.
#[cold]
#[inline(never)]
pub fn aside<T>(call: impl FnOnce() -> T) -> T {
    call()
}

impl Carry for Lane {
    #[inline]
    fn mailbox_depth(&self) -> u64 {
        either!(self, lane => lane.mailbox_depth())
    }

    #[inline]
    fn sink_bytes(&self) -> u64 {
        either!(self, lane => lane.sink_bytes())
    }

    #[inline]
    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        either!(self, lane => lane.slots_free(cursor, wanted))
    }

    #[inline]
    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        either!(self, lane => lane.sink_free(cursor, wanted))
    }

    #[inline]
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        either!(self, lane => lane.send(cursor, tag, parts))
    }

    #[inline]
    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        either!(self, lane => lane.put(cursor, bytes));
    }

    #[inline]
    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        either!(self, lane => lane.peek(cursor))
    }

    #[inline]
    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        either!(self, lane => lane.read(cursor, offset, target));
    }

    #[inline]
    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        either!(self, lane => lane.advance(cursor, flush));
    }

    #[inline]
    fn messages_read(&self) -> Option<u64> {
        either!(self, lane => lane.messages_read())
    }

    #[inline]
    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        either!(self, lane => lane.view(cursor, skip, target));
    }

    #[inline]
    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        either!(self, lane => lane.release(cursor, length));
    }

    #[inline]
    fn look_back(&self, message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        either!(self, lane => lane.look_back(message, payload))
    }

    #[inline]
    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        either!(self, lane => lane.view_back(position, target))
    }

    #[inline]
    fn post(&self, word: usize, value: u64) {
        either!(self, lane => lane.post(word, value));
    }

    #[inline]
    fn posted(&self, word: usize) -> u64 {
        either!(self, lane => lane.posted(word))
    }

    #[inline]
    fn medium(&self) -> Medium {
        either!(self, lane => lane.medium())
    }

    #[inline]
    fn token(&self) -> u64 {
        either!(self, lane => lane.token())
    }

    #[inline]
    fn has_landed(&self) -> bool {
        either!(self, lane => lane.has_landed())
    }

    #[inline]
    fn standing(&self) -> Standing {
        either!(self, lane => lane.standing())
    }

    #[inline]
    fn account(&self, bytes_total: u64) {
        either!(self, lane => lane.account(bytes_total));
    }
}

impl Wake for Lane {
    #[inline]
    fn arm(&self, what: WaitFor) {
        either!(self, lane => lane.arm(what));
    }

    #[inline]
    fn settle(&self) {
        either!(self, lane => lane.settle());
    }

    #[inline]
    fn attention(&self, what: WaitFor) -> Attention {
        either!(self, lane => lane.attention(what))
    }

    #[inline]
    fn disarm(&self, what: WaitFor) -> bool {
        either!(self, lane => lane.disarm(what))
    }

    #[inline]
    fn rearm(&self, what: WaitFor) -> bool {
        either!(self, lane => lane.rearm(what))
    }

    #[inline]
    fn is_awaited(&self, what: WaitFor) -> bool {
        either!(self, lane => lane.is_awaited(what))
    }

    #[inline]
    fn must_ring(&self, what: WaitFor) -> bool {
        either!(self, lane => lane.must_ring(what))
    }
}
