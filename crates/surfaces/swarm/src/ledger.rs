//! The ledger: what was accepted, what arrived, and what has an excuse.
//!
//! # Invariants
//! - Numbers of a stream begin at 0 and grow by one with each message that was accepted.
//! - A message has an excuse if its end was told with an error, or if its pair ended.

use std::collections::{BTreeMap, BTreeSet};

/// One life of a program: its place among the programs of the workload, and how many were there
/// before it.
pub(crate) type Life = (u8, u8);

/// The messages from one program to another, over one pair of them: each pair has another number at
/// the sender.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stream {
    pub from: Life,
    pub to: Life,
    pub pair: u16,
}

#[derive(Default, Debug)]
struct Account {
    sent: u32,
    /// The number after that of the last message that arrived.
    next: u32,
    /// Numbers that were passed over.
    missing: BTreeSet<u32>,
    /// Numbers of messages that ended with an error.
    excused: BTreeSet<u32>,
    /// The pair has ended, as its sender was told.
    has_ended: bool,
}

/// All streams of a workload.
#[derive(Default, Debug)]
pub(crate) struct Ledger {
    accounts: BTreeMap<Stream, Account>,
    /// The last pair from one life to another over which a message arrived.
    last_pairs: BTreeMap<(Life, Life), u16>,
    dead: BTreeSet<Life>,
    /// Messages that arrived.
    pub arrived: u64,
}

impl Ledger {
    /// The number of the next message.
    pub fn next(&self, stream: Stream) -> u32 {
        self.accounts.get(&stream).map_or(0, |account| account.sent)
    }

    /// A message was accepted.
    pub fn sent(&mut self, stream: Stream) {
        self.accounts.entry(stream).or_default().sent += 1;
    }

    /// A message arrived.
    pub fn arrive(&mut self, stream: Stream, number: u32) -> Result<(), String> {
        let last = self.last_pairs.entry((stream.from, stream.to)).or_insert(stream.pair);
        if *last > stream.pair {
            return Err(format!("{stream:?}: message {number} came after those of pair {last}"));
        }
        *last = stream.pair;
        let account = self.accounts.entry(stream).or_default();
        if number >= account.sent {
            return Err(format!("{stream:?}: message {number} arrived, and was never accepted"));
        }
        if number < account.next {
            let next = account.next;
            return Err(format!(
                "{stream:?}: message {number} arrived where {next} was due: twice \
                                or out of order"
            ));
        }
        account.missing.extend(account.next..number);
        account.next = number + 1;
        self.arrived += 1;
        Ok(())
    }

    /// The end of a message was told with an error.
    pub fn excuse(&mut self, stream: Stream, number: u32) {
        self.accounts.entry(stream).or_default().excused.insert(number);
    }

    /// The sender was told that the pair has ended.
    pub fn end(&mut self, stream: Stream) {
        self.accounts.entry(stream).or_default().has_ended = true;
    }

    /// A program has died.
    pub fn die(&mut self, life: Life) {
        self.dead.insert(life);
    }

    /// Whether a message is yet to arrive.
    pub fn lacks(&self) -> bool {
        self.check().is_err()
    }

    /// Checks that all arrived that has no excuse.
    pub fn check(&self) -> Result<(), String> {
        for (stream, account) in &self.accounts {
            let lost = |number: &u32| !account.excused.contains(number);
            if let Some(number) = account.missing.iter().find(|number| lost(number)) {
                return Err(format!("{stream:?}: message {number} was lost, and later ones came"));
            }
            let is_over = account.has_ended
                || self.dead.contains(&stream.from)
                || self.dead.contains(&stream.to);
            let late = (account.next..account.sent).find(|number| lost(number));
            if let (false, Some(number)) = (is_over, late) {
                let sent = account.sent;
                return Err(format!(
                    "{stream:?}: message {number} of {sent} was accepted and never arrived"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream { from: (0, 0), to: (1, 0), pair: 0 };

    fn ledger(sent: u32) -> Ledger {
        let mut ledger = Ledger::default();
        (0..sent).for_each(|_| ledger.sent(STREAM));
        ledger
    }

    #[test]
    fn a_message_arrives_once_in_order_and_not_before_it_was_sent() {
        let mut ledger = ledger(2);
        assert!(ledger.arrive(STREAM, 2).is_err(), "never sent");
        assert_eq!(ledger.arrive(STREAM, 0), Ok(()));
        assert!(ledger.arrive(STREAM, 0).is_err(), "twice");
        assert_eq!(ledger.arrive(STREAM, 1), Ok(()));
        assert_eq!(ledger.check(), Ok(()));
        let later = Stream { pair: 1, ..STREAM };
        ledger.sent(later);
        ledger.sent(STREAM);
        assert_eq!(ledger.arrive(later, 0), Ok(()));
        assert!(ledger.arrive(STREAM, 2).is_err(), "of a former pair");
    }

    #[test]
    fn a_lost_message_needs_an_excuse() {
        let mut ledger = ledger(3);
        assert_eq!(ledger.arrive(STREAM, 0), Ok(()));
        assert!(ledger.check().is_err());
        ledger.end(STREAM);
        assert_eq!(ledger.check(), Ok(()), "the pair ended behind it");
        assert_eq!(ledger.arrive(STREAM, 2), Ok(()));
        assert!(ledger.check().is_err(), "a gap needs an error of its own");
        ledger.excuse(STREAM, 1);
        assert_eq!(ledger.check(), Ok(()));
    }
}
