//! The bytes of puts and gets: the NIC gets them in pieces, a few at a time.
//!
//! The NIC sends in the order in which it was asked. So an answer to a peer that wants to know
//! whether this end lives waits behind all pieces for that peer that the NIC has. They are few
//! enough that the answer comes in time, also where the way is slow.
//!
//! # Invariants
//! - The NIC has no more bytes of a pair than its window, or a single piece.
//! - Pieces of a pair go to the NIC in the order in which their operations began. Pairs for which
//!   the NIC has no room take turns.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use weft_fabric::{Command, DownReason, OperationError, Peer, Target};
use weft_libfabric::{Error, Refused, Registration, Spot};

use super::operations::{Operation, Stage, What};
use super::pair::Known;
use super::short::is_aligned;
use super::{Engine, Slot};
use crate::nic::Nic;

/// Bytes of a piece at most.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// The window of a pair at first, at least, and at most.
const WINDOW_FIRST: usize = 1 << 20;
const WINDOW_MIN: usize = 64 << 10;
const WINDOW_MAX: usize = 8 << 20;

/// Bytes that the NIC moves at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    local: (Registration, usize, usize),
    spot: Spot,
}

/// The lengths of pieces that the NIC has of one operation.
///
/// The NIC tells that a piece is over, and not which one. The shortest is taken for it, so that the
/// NIC never has more bytes than are counted.
#[derive(Debug, Default)]
pub(super) struct Flight(BinaryHeap<Reverse<usize>>);

impl Flight {
    fn add(&mut self, bytes: usize) {
        self.0.push(Reverse(bytes));
    }

    /// A piece is over. Returns the bytes that it counts for.
    fn over(&mut self) -> usize {
        self.0.pop().map_or(0, |Reverse(bytes)| bytes)
    }

    /// Whether the NIC has none.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// The pieces of one pair that the NIC moves, or will.
#[derive(Debug)]
pub(super) struct Bulk {
    /// Operations with pieces that the NIC does not have.
    waiting: VecDeque<u64>,
    /// Bytes that the NIC has, and as many as it may have.
    bytes: usize,
    window: usize,
    /// When the NIC got each of its pieces. They may be over in another order.
    since: VecDeque<Duration>,
    /// The NIC had no room.
    is_stalled: bool,
}

impl Default for Bulk {
    fn default() -> Self {
        let (waiting, since) = Default::default();
        Self { waiting, bytes: 0, window: WINDOW_FIRST, since, is_stalled: false }
    }
}

impl Bulk {
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= self.window
    }

    fn begun(&mut self, bytes: usize, now: Duration) {
        self.bytes += bytes;
        self.since.push_back(now);
    }

    /// A piece is over. The window follows how long pieces take: an answer behind them, and that
    /// to it, together take a part of the silence after which a peer is given up.
    fn over(&mut self, bytes: usize, now: Duration, silence: Duration) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(since) = self.since.pop_front() else { return };
        let took = now.saturating_sub(since);
        if took > silence / 8 {
            self.window = (self.window / 2).max(WINDOW_MIN);
        } else if took < silence / 32 {
            self.window = (self.window * 2).min(WINDOW_MAX);
        }
    }
}

impl<N: Nic> Engine<N> {
    /// The pieces of an operation, all of whose keys are known. Checks everything, so that an
    /// operation that is refused moves nothing.
    pub(super) fn plan(&self, number: u64) -> Result<VecDeque<Piece>, OperationError> {
        let operation = self.operations.get(&number).ok_or(OperationError::PeerDown)?;
        let pair = self.pair(Peer(operation.peer))?;
        let known = |target: Target| match pair.keys.get(&target.key) {
            Some(Known::Valid(range)) => Ok(*range),
            _ => Err(OperationError::InvalidKey),
        };
        let command = operation.command.unwrap_or(Command::Get);
        let most = self.nic.operation_bytes_max().clamp(1, PIECE_BYTES_MAX);
        let mut pieces = VecDeque::new();
        for (target, length, (registration, start)) in &operation.ranges {
            let range = known(*target)?;
            let length = *length;
            range.access.check(
                (command, command.access()),
                (target.offset, length as u64),
                range.length,
            )?;
            let mut done = 0;
            while done < length {
                let bytes = (length - done).min(most);
                let address = range.spot.address.wrapping_add(target.offset + done as u64);
                let spot = Spot { address, key: range.spot.key };
                pieces.push_back(Piece { local: (*registration, start + done, bytes), spot });
                done += bytes;
            }
        }
        if let What::Put(Some(signal)) = operation.what {
            let range = known(signal.target)?;
            let offset = signal.target.offset;
            range.access.check((command, signal.change.access()), (offset, 8), range.length)?;
            if !is_aligned(&range, offset) {
                return Err(OperationError::Misaligned { offset, alignment: 8 });
            }
        }
        Ok(pieces)
    }

    /// Has the NIC move these pieces of an operation, behind those of operations before it.
    pub(super) fn begin_moving(&mut self, number: u64, pieces: VecDeque<Piece>) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        let handle = operation.peer;
        (operation.pieces, operation.stage) = (pieces, Stage::Moving);
        if let Some(pair) = self.pair_mut(handle) {
            pair.bulk.waiting.push_back(number);
            self.move_pieces(handle);
        }
    }

    /// Hands pieces of a pair to the NIC, as many as the window and the NIC have room for.
    pub(super) fn move_pieces(&mut self, handle: u32) {
        while let Some(number) = self.move_first(handle) {
            self.advance(number);
            // A packet may wait until the NIC has them.
            if self.pair(Peer(handle)).is_ok_and(|pair| !pair.sending.outbox.is_empty()) {
                self.give_turn(handle);
            }
        }
    }

    /// Goes on with pairs for which the NIC had no room.
    pub(super) fn move_stalled(&mut self) {
        for handle in std::mem::take(&mut self.stalled) {
            if let Some(pair) = self.pair_mut(handle) {
                pair.bulk.is_stalled = false;
                self.move_pieces(handle);
            }
        }
    }

    /// Hands pieces of the first operation that waits to the NIC. Gives its number when the NIC
    /// has all of them.
    fn move_first(&mut self, handle: u32) -> Option<u64> {
        // The last report may have come long ago.
        let now = self.now();
        let place = usize::try_from(handle).ok()?;
        let Some(Slot::Used(pair)) = self.pairs.get_mut(place) else { return None };
        if pair.apart.is_some() || pair.bulk.is_stalled {
            return None;
        }
        let number = *pair.bulk.waiting.front()?;
        let operation = self.operations.get_mut(&number);
        // It may have ended meanwhile.
        let Some(operation) = operation.filter(|it| it.stage == Stage::Moving) else {
            pair.bulk.waiting.pop_front();
            return Some(number);
        };
        while let Some(piece) = operation.pieces.front() {
            if !operation.ranges.iter().all(|(target, ..)| pair.has_in_force(target.key)) {
                operation.error = Some(OperationError::InvalidKey);
                operation.pieces.clear();
                break;
            }
            let Piece { local, spot } = *piece;
            let bytes = local.2;
            if !pair.bulk.has_room(bytes) {
                return None;
            }
            let begun = match operation.what {
                What::Get => self.nic.read(pair.to, local, spot, number),
                _ => self.nic.write(pair.to, local, spot, number),
            };
            match begun {
                Ok(()) => {
                    pair.bulk.begun(bytes, now);
                    operation.moving.add(bytes);
                    operation.touched = true;
                    operation.pieces.pop_front();
                }
                Err(Refused::Busy) => {
                    pair.bulk.is_stalled = true;
                    self.stalled.push_back(handle);
                    return None;
                }
                Err(Refused::Failed(error)) => {
                    pair.bulk.waiting.pop_front();
                    self.fail(handle, number, &error);
                    return Some(number);
                }
            }
        }
        pair.bulk.waiting.pop_front();
        Some(number)
    }

    /// The NIC has moved a piece, or failed to.
    pub(super) fn moved(&mut self, number: u64, error: Option<Error>) {
        let (now, silence) = (self.seen, self.silence);
        let Some(operation) = self.operations.get_mut(&number) else { return };
        let (handle, bytes) = (operation.peer, operation.moving.over());
        if let Some(Slot::Used(pair)) =
            usize::try_from(handle).ok().and_then(|place| self.pairs.get_mut(place))
        {
            pair.bulk.over(bytes, now, silence);
            // The peer, or its NIC, has answered.
            if error.is_none() {
                pair.hear(now);
            }
        }
        if let Some(error) = error {
            self.fail(handle, number, &error);
        }
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.stage != Stage::Over {
            self.advance(number);
        } else {
            if operation.moving.is_over() {
                self.remove(number);
                // A farewell may wait for it.
                self.give_turn(handle);
            }
            self.release_keys(handle);
        }
        self.move_pieces_in_turn(handle);
    }

    /// The NIC failed to do an operation. Where its keys are in force, as far as it is known, a
    /// connection broke: an owner says that a key is void long before it takes the memory away.
    /// Behind a write that is lost so the next packet may go over a new connection, and tell of
    /// bytes that are not there: so the pair ends.
    fn fail(&mut self, handle: u32, number: u64, error: &Error) {
        let Ok(pair) = self.pair(Peer(handle)) else { return };
        let Some(operation) = self.operations.get(&number) else { return };
        let is_write = matches!(operation.what, What::Put(_));
        let in_force = operation.ranges.iter().all(|(target, ..)| pair.has_in_force(target.key));
        let error = match (in_force, is_write) {
            (false, _) => OperationError::InvalidKey,
            (true, true) => OperationError::PeerDown,
            (true, false) => OperationError::Provider { reason: error.to_string() },
        };
        if let Some(operation) = self.operations.get_mut(&number) {
            operation.error = Some(error);
            operation.pieces.clear();
        }
        if in_force && is_write {
            self.orphan(handle, DownReason::Unreachable);
        }
    }

    /// Hands pieces of a pair to the NIC, behind those of pairs that wait for its room.
    fn move_pieces_in_turn(&mut self, handle: u32) {
        if self.stalled.is_empty() {
            return self.move_pieces(handle);
        }
        if let Some(pair) = self.pair_mut(handle)
            && !pair.bulk.is_stalled
            && !pair.bulk.waiting.is_empty()
        {
            pair.bulk.is_stalled = true;
            self.stalled.push_back(handle);
        }
    }

    /// Goes on with an operation whose pieces the NIC has got, when it has moved them.
    fn advance(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        let is_moving = !operation.moving.is_over() || !operation.pieces.is_empty();
        if operation.stage != Stage::Moving || is_moving {
            return;
        }
        if let Some(error) = operation.error.take() {
            return self.end(number, Err(error));
        }
        match operation.what {
            What::Put(Some(_)) => self.begin_asking(number),
            _ => self.end(number, Ok(0)),
        }
    }

    /// Whether the NIC moves something from or to a peer.
    pub(super) fn is_moving(&self, handle: u32) -> bool {
        let moves = |operation: &Operation| operation.peer == handle && !operation.moving.is_over();
        self.operations.values().any(moves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_counts_for_its_own_bytes_and_the_nic_has_no_more_than_are_counted() {
        let (mut flight, mut bulk) = (Flight::default(), Bulk::default());
        let now = Duration::ZERO;
        for bytes in [WINDOW_FIRST / 2, 8, 16] {
            assert!(bulk.has_room(bytes), "{bytes} bytes fit");
            bulk.begun(bytes, now);
            flight.add(bytes);
        }
        assert!(!bulk.has_room(WINDOW_FIRST / 2), "the long one is in the way");
        let mut over = || {
            let bytes = flight.over();
            bulk.over(bytes, now, Duration::ZERO);
            bytes
        };
        // The long one may be the last.
        assert_eq!([over(), over()], [8, 16]);
        assert_eq!(over(), WINDOW_FIRST / 2);
        assert_eq!((over(), bulk.bytes, flight.is_over()), (0, 0, true));
    }
}
