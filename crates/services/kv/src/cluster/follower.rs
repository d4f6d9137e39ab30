//! The next step of a node that is no primary.

use std::time::Duration;

use super::record::{Has, Record};
use crate::format::Epoch;
use crate::replication::primary::Peer;

/// How long a candidate waits for others to stand.
const WINDOW: Duration = Duration::from_millis(250);
/// So long a new primary may take to open its store, before it asks for its lease. A shorter time
/// is as safe; but nodes that stand while a store is opened depose one primary after the other.
const OPENED_WITHIN: Duration = Duration::from_secs(3);
/// How much longer it waits for each candidate before it.
const TURN: Duration = Duration::from_millis(400);

/// The next step of a node that is no primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Takes what the primary of this epoch, or of a later one, sends.
    Follow(Epoch),
    /// Takes nothing from a primary, and looks again soon.
    Wait,
    /// Takes nothing from a primary from now on, and then changes the record by
    /// [`Record::stand`].
    Stand,
    /// Changes the record by [`Record::promote`].
    Promote,
    /// The record names this node: it opens its store as the primary of this epoch.
    Lead(Epoch),
}

/// A node that is no primary.
#[derive(Clone, Debug)]
pub struct Follower {
    me: Peer,
    lease: Duration,
    /// When it gave a lease last, or began: it may have given one before.
    given: Duration,
    /// Until when a new primary may open its store, if it did not ask for its lease yet.
    opens_until: Duration,
    /// It is about to stand, and takes nothing from the primary any more: a lease that was given
    /// from now on would go on while there is another primary.
    is_due: bool,
    /// When it stood.
    stood: Option<Duration>,
    /// The epoch of the record that it read last.
    epoch: Epoch,
}

impl Follower {
    /// A node that begins now.
    #[must_use]
    pub fn new(me: Peer, lease: Duration, now: Duration) -> Self {
        let opens_until = Duration::ZERO;
        Self { me, lease, given: now, opens_until, is_due: false, stood: None, epoch: 0 }
    }

    /// The length of a lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A question for the lease came. True if it is given. It is given by a node that takes what
    /// the primary sends, which the caller knows.
    pub fn give(&mut self, now: Duration) -> bool {
        let may = self.stood.is_none() && !self.is_due;
        if may {
            self.given = now;
            self.opens_until = Duration::ZERO;
        }
        may
    }

    /// [`Record::stand`] was carried out, after this node ceased to take anything.
    pub fn stands(&mut self, now: Duration) {
        self.stood = Some(now);
    }

    /// The next step, by a record that was just read and the end of the own store.
    pub fn step(&mut self, record: &Record, has: Has, now: Duration) -> Step {
        let me = self.me;
        self.is_due = false;
        if record.epoch == 0 {
            return Step::Wait;
        }
        if record.primary == Some(me) && has.epoch < record.epoch {
            return Step::Lead(record.epoch);
        }
        if record.epoch != self.epoch {
            // The record that it finds when it begins may be old.
            if self.epoch > 0 {
                self.given = self.given.max(now);
                self.opens_until = now + OPENED_WITHIN;
            }
            self.epoch = record.epoch;
        }
        if !record.in_sync.contains(&me) {
            self.stood = None;
            return Step::Follow(record.epoch);
        }
        let is_alone = record.in_sync.len() == 1;
        let Some(stood) = self.stood.filter(|_| record.candidates.contains_key(&me)) else {
            if self.stood.take().is_some() {
                // There is a new primary, or the old one is back.
                self.given = self.given.max(now);
            }
            self.is_due = is_alone || now >= self.opens_until.max(self.given + self.lease);
            return if self.is_due { Step::Stand } else { Step::Follow(record.epoch) };
        };
        let others = record.in_sync.iter().filter(|peer| Some(**peer) != record.primary);
        let all_stand = others.clone().all(|peer| record.candidates.contains_key(peer));
        // The preferred one comes first among those that have as much.
        let rank = |peer: Peer, has: Has| (has, std::cmp::Reverse(record.preference(peer)));
        let own = rank(me, has);
        let better = record.candidates.iter().filter(|(peer, other)| rank(**peer, **other) > own);
        let window = if all_stand { Duration::ZERO } else { WINDOW };
        let turn = TURN * u32::try_from(better.count()).unwrap_or(u32::MAX);
        if now >= stood + window + turn { Step::Promote } else { Step::Wait }
    }
}
