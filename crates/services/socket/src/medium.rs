//! The rules of an end that depend on the way between the two ends of a lane.

use weft_fabric::{Carry, Medium};

/// True if the peer rings the words of this end, and a wakeup comes for each that it rang. Across a
/// network arrivals ring, and no wakeup goes over TCP.
#[inline]
pub(crate) fn peer_rings<L: Carry>(lane: &L) -> bool {
    lane.medium() == Medium::Memory
}
