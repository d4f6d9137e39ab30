//! The messages that were sent, and what became of each.

use std::collections::BTreeMap;

use weft_fabric::Peer;
use weft_message::MessageError;

/// One life of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Life {
    pub node: usize,
    pub number: u64,
}

/// A connection, as its sender sees it.
pub type Way = (Life, Peer);

#[derive(Debug)]
pub struct Sent {
    pub way: Way,
    pub to: Life,
    pub sequence: u64,
    pub body: Vec<u8>,
    pub is_pending: bool,
    pub outcome: Option<Result<(), MessageError>>,
    pub is_delivered: bool,
}

/// How often things happened.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    pub counts: BTreeMap<&'static str, u64>,
    pub digest: u64,
}

impl Seen {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_insert(0) += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_insert(0) += count;
        }
    }

    pub fn assert_all(&self) {
        for what in [
            "short",
            "packets",
            "copied",
            "range",
            "refused for lack of room",
            "room",
            "delivered short",
            "delivered long",
            "done",
            "cancelled",
            "refused",
            "peer down",
            "asked",
            "lost",
            "killed",
            "cut",
        ] {
            assert!(self.counts.get(what).is_some_and(|count| *count > 0), "never: {what}");
        }
    }
}

#[derive(Default, Debug)]
pub struct Ledger {
    pub sent: BTreeMap<u64, Sent>,
    sequences: BTreeMap<Way, u64>,
    last_delivered: BTreeMap<Way, u64>,
}

impl Ledger {
    pub fn next_id(&self) -> u64 {
        self.sent.len() as u64 + 1
    }

    /// Notes a message that was accepted.
    pub fn accepted(&mut self, id: u64, way: Way, to: Life, body: Vec<u8>, is_pending: bool) {
        let sequence = self.sequences.entry(way).or_insert(0);
        *sequence += 1;
        let sequence = *sequence;
        let (outcome, is_delivered) = (None, false);
        let sent = Sent { way, to, sequence, body, is_pending, outcome, is_delivered };
        assert!(self.sent.insert(id, sent).is_none());
    }

    /// Checks a message that arrived at `at` from the node `from`.
    pub fn delivered(&mut self, at: Life, from: usize, id: u64, body: &[u8]) {
        let sent = self.sent.get_mut(&id).expect("somebody sent it");
        assert_eq!((sent.to, sent.way.0.node), (at, from), "message {id} went astray");
        assert!(!sent.is_delivered, "message {id} came twice");
        assert!(sent.body == body, "message {id} of {} bytes changed", body.len());
        let excluded =
            matches!(sent.outcome, Some(Err(MessageError::Cancelled | MessageError::Refused)));
        assert!(!excluded, "message {id} came after its end: {:?}", sent.outcome);
        sent.is_delivered = true;
        let last = self.last_delivered.entry(sent.way).or_insert(0);
        assert!(*last < sent.sequence, "message {id} came out of order");
        *last = sent.sequence;
    }

    /// Notes the end of a pending message.
    pub fn ended(&mut self, id: u64, result: Result<(), MessageError>) {
        let sent = self.sent.get_mut(&id).expect("it was sent");
        assert!(sent.is_pending && sent.outcome.is_none(), "message {id} ended twice");
        let is_excluded = matches!(result, Err(MessageError::Cancelled | MessageError::Refused));
        assert!(!(is_excluded && sent.is_delivered), "message {id} came, and: {result:?}");
        sent.outcome = Some(result);
    }

    /// Checks that all pending messages of a connection ended.
    pub fn down(&self, way: Way) {
        for (id, sent) in &self.sent {
            let has_ended = !sent.is_pending || sent.outcome.is_some();
            assert!(sent.way != way || has_ended, "message {id} is pending on a dead peer");
        }
    }

    /// Checks the end of the run; `is_open` says which connections are open at both ends.
    pub fn close(&self, is_open: impl Fn(&Sent) -> bool) {
        for (id, sent) in &self.sent {
            if !is_open(sent) {
                continue;
            }
            if sent.is_pending {
                assert!(sent.outcome.is_some(), "message {id} never ended: {:?}", sent.way);
            }
            let must_come = !sent.is_pending || sent.outcome == Some(Ok(()));
            assert_eq!(sent.is_delivered, must_come, "message {id}, {:?}", sent.outcome);
        }
    }
}
