//! The packets that are due: those between two ports that knew each other from before they were
//! sent until the end.
//!
//! # Invariant
//! A packet may be lost only if its sender or its receiver died, or either missed the other in the
//! time since it was sent.

use std::collections::{BTreeMap, BTreeSet};

use super::traffic::Life;

/// The packets from one life of a node to another node.
type Flow = (Life, u32);

#[derive(Default)]
pub struct Ledger {
    /// Numbers that did not arrive, and when each was sent, in ns.
    open: BTreeMap<Flow, BTreeMap<u64, u64>>,
    /// When one of two nodes last missed the other, in ns.
    missed: BTreeMap<(u32, u32), u64>,
    dead: BTreeSet<Life>,
    /// Packets that arrived.
    pub arrived: u64,
}

impl Ledger {
    /// A packet was accepted for a node.
    pub fn sent(&mut self, from: Life, to: u32, number: u64, now: u64) {
        self.open.entry((from, to)).or_default().insert(number, now);
    }

    /// A packet arrived at a node.
    ///
    /// # Errors
    /// Text, if it was not due: it came twice, or was never sent there.
    pub fn arrive(&mut self, from: Life, to: u32, number: u64) -> Result<(), String> {
        let open = self.open.get_mut(&(from, to));
        if open.and_then(|open| open.remove(&number)).is_none() {
            return Err(format!("packet {number} of {from:?} came twice or unsent to node {to}"));
        }
        self.arrived += 1;
        Ok(())
    }

    /// One of two nodes missed the other at a time, or was told that it ended.
    pub fn miss(&mut self, a: u32, b: u32, now: u64) {
        self.missed.insert((a.min(b), a.max(b)), now);
    }

    /// A life of a node ended.
    pub fn die(&mut self, life: Life) {
        self.dead.insert(life);
    }

    /// Checks that every packet arrived that has no excuse.
    ///
    /// # Errors
    /// Text, with the first one that did not.
    pub fn check(&self) -> Result<(), String> {
        for ((from, to), open) in &self.open {
            if self.dead.contains(from) {
                continue;
            }
            let missed = self.missed.get(&(from.0.min(*to), from.0.max(*to)));
            let due = open.iter().find(|(_, sent)| missed.is_none_or(|missed| missed < *sent));
            if let Some((number, sent)) = due {
                return Err(format!(
                    "packet {number} of {from:?}, sent at {sent} ns, never arrived at node {to}"
                ));
            }
        }
        Ok(())
    }
}
