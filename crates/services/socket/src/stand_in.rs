//! A reader that left for good stands in for a peer that does not look.
//!
//! The peer may sleep, compute or be stopped, while the reader is to hand the kernel's socket on
//! and has bytes unread on the lane. A driver that can reach the peer's own socket puts them on TCP
//! there, as the peer would when it follows. The request for a resend then names the place behind
//! them, so that the peer sends again only what it wrote since.
//!
//! # Invariants
//! - The reader says that it stands in, fences, and looks whether the peer leaves. The peer says
//!   that it leaves, fences, and looks whether the reader stands in. So at least one of the two
//!   sees the other. A reader that sees the peer lets it follow; a peer waits until the reader is
//!   done.
//! - No wakeup of the peer is on its way, and no word is armed for one. So nothing else is written
//!   to the peer's socket meanwhile. Where a wakeup lies behind bytes of TCP that nobody has read,
//!   these are sent again, too, before the bytes of the lane, and then taken with the wakeup.
//! - The bytes lie on TCP before the place of the request moves.

use std::sync::atomic::{Ordering, fence};

use weft_fabric::{Carry, Lane, WaitFor};

use crate::common::Peer;
use crate::medium::peer_rings;
use crate::receive::ReceiveSide;
use crate::receiving::Receiving;
use crate::route::{Origin, PeerRoute, word};
use crate::shadow::{Shadow, WAKEUP};
use crate::stream::closed;

/// The part of the peer's direction that is on the lane alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnLaneAlone {
    /// The bytes that this end has not read.
    pub bytes: Vec<u8>,
    /// True if the direction ends behind them. The kernel is not told that on the lane.
    pub is_end: bool,
    /// The bytes on TCP before them.
    before: Before,
}

/// Unread bytes on TCP before those of the lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    /// Data alone, or nothing. They stay.
    Stays,
    /// Data, and behind them wakeups. The data are the first that are sent again.
    Taken { data: usize, wakeups: usize },
}

impl Before {
    /// How many bytes are sent again.
    const fn data(self) -> usize {
        match self {
            Self::Stays => 0,
            Self::Taken { data, .. } => data,
        }
    }
}

/// How many bytes may lie on TCP before those of the lane.
const BEFORE_MAX: u64 = 16 << 20;

impl<L: Lane, S: Shadow> Receiving<'_, L, S> {
    /// True if [`Receiving::begin_stand_in`] may find something.
    pub fn may_stand_in(&mut self) -> bool {
        let is_end = ReceiveSide::peer_closed(self.lane) == Some(closed::WRITING);
        self.state.has_asked()
            && (is_end || self.state.has_unread(self.lane))
            && self.before().is_some()
    }

    /// The bytes on TCP behind which those of the lane belong. `None` while a wakeup may come.
    fn before(&mut self) -> Option<Before> {
        match self.origin() {
            Origin::Lane => self.is_quiet().then_some(Before::Stays),
            // Bytes that lie on TCP before the lane stay there.
            Origin::Tcp { at_most: Some(left @ ..=BEFORE_MAX) } => {
                for what in [WaitFor::Data, WaitFor::Room] {
                    self.common.note_stale_if(|| self.lane.disarm(what));
                }
                // Some may not have come, since the kernel has no more room for them here. They are
                // in the peer's socket, where the bytes of the lane go behind them.
                let data = usize::try_from(left).unwrap_or(usize::MAX);
                let wakeups = self.common.remaining(self.common.stale());
                let mut seen = vec![0; data + wakeups + 1];
                match (self.shadow.peek(&mut seen), wakeups) {
                    (there, 0) => (there <= data).then_some(Before::Stays),
                    (there, _) => {
                        let behind = &seen[data..data + wakeups];
                        let are_there = there == data + wakeups;
                        (are_there && behind.iter().all(|byte| *byte == WAKEUP))
                            .then_some(Before::Taken { data, wakeups })
                    }
                }
            }
            _ => None,
        }
    }

    /// Begins to stand in for the peer, for an end that requested a resend and left for good.
    /// Returns what the caller has to send by the peer's own socket, at once and as a whole. `None`
    /// if there is nothing, or the peer follows by itself. Otherwise [`Receiving::end_stand_in`]
    /// must follow before the lock is given back.
    pub fn begin_stand_in(&mut self) -> Option<OnLaneAlone> {
        if !self.may_stand_in() {
            return None;
        }
        self.lane.post(word::STANDS_IN, 1);
        fence(Ordering::SeqCst);
        let peer = PeerRoute::of(self.lane);
        let stays = !peer.is_on_tcp() && peer.leaving().is_none();
        let is_end = ReceiveSide::peer_closed(self.lane) == Some(closed::WRITING);
        let found = if stays { self.on_lane_alone(is_end) } else { None };
        if found.is_none() {
            self.lane.post(word::STANDS_IN, 0);
        }
        found
    }

    fn on_lane_alone(&mut self, is_end: bool) -> Option<OnLaneAlone> {
        let before = self.before()?;
        let mut bytes = vec![0; before.data()];
        if self.shadow.peek(&mut bytes) < bytes.len() {
            return None;
        }
        bytes.extend(self.state.look_at_rest(self.lane)?);
        Some(OnLaneAlone { bytes, is_end, before })
    }

    /// The bytes that this end has not read of a peer that is gone: those on TCP before the lane,
    /// and those of the lane. `None` if the peer may send more, or all that is unread lies on TCP.
    pub fn rest_of_gone_peer(&mut self) -> Option<Vec<u8>> {
        let before = match self.origin() {
            Origin::Lane => 0,
            Origin::Tcp { at_most: Some(left @ ..=BEFORE_MAX) } => left,
            _ => return None,
        };
        let is_gone = match ReceiveSide::peer_closed(self.lane) {
            None | Some(closed::WRITING) => {
                self.common.peer() != Peer::Alive && !ReceiveSide::ended_on_tcp(self.lane)
            }
            Some(_) => true,
        };
        let stays = PeerRoute::of(self.lane).leaving().is_none();
        if !peer_rings(self.lane) || !is_gone || !stays {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(before).ok()?];
        if self.shadow.peek(&mut bytes) < bytes.len() {
            return None;
        }
        let rest = self.state.look_at_rest(self.lane).filter(|rest| !rest.is_empty())?;
        bytes.extend(rest);
        Some(bytes)
    }

    /// Call it when all that [`Receiving::rest_of_gone_peer`] returned lies in the kernel's socket,
    /// before the lock is given back: others that hold the connection, and threads that wait for
    /// the lock, must not find it on the lane, too.
    pub fn rest_is_on_tcp(&mut self) {
        self.state.drop_rest(self.lane);
    }

    /// Ends what [`Receiving::begin_stand_in`] began. `sent` is what it returned, if that lies in
    /// the peer's socket now.
    pub fn end_stand_in(&mut self, sent: Option<&OnLaneAlone>) {
        if let Some(sent) = sent {
            if let Before::Taken { data, wakeups } = sent.before {
                self.take_before(data, wakeups);
            }
            self.state.pass_rest(self.lane, sent.bytes.len() - sent.before.data());
        }
        self.lane.post(word::STANDS_IN, 0);
    }

    /// Takes data on TCP that were sent again, and the wakeups behind them.
    fn take_before(&mut self, data: usize, wakeups: usize) {
        self.state.begin_tcp();
        let taken = self.shadow.take_wakeups(data + wakeups);
        self.state.took_tcp(taken.min(data));
        // Crosses to the lane, behind which wakeups count.
        self.origin();
        self.state.begin_tcp();
        self.state.took_wakeups(taken.saturating_sub(data));
        self.common.note_drained(taken.saturating_sub(data));
        if taken < data + wakeups {
            self.state.break_off();
        }
    }
}

/// True while the peer, as the reader of a direction that this end leaves, puts bytes of it on TCP.
/// Called when this end has said that it leaves.
pub(crate) fn is_at_work<L: Carry>(lane: &L) -> bool {
    fence(Ordering::SeqCst);
    lane.posted(word::STANDS_IN) != 0
}
