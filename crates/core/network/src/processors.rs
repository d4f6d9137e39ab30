//! Processors that hosts share.
//!
//! A message takes a processor when it is sent and when it has arrived. Its cost depends on where
//! its ends run: on one processor its bytes are in that processor's cache, and between two
//! processors they have to move.
//!
//! # Invariants
//! - A processor works on one message at a time, in the order in which they ask for it.
//! - Hosts are dealt out to the processors in turn, so a host has the same one for ever.

use crate::arena::index;
use crate::settings::{MessageTime, Processors};
use crate::time::Time;

/// When each processor is free.
#[derive(Debug)]
pub(crate) struct Schedule {
    model: Processors,
    free_at: Vec<Time>,
}

impl Schedule {
    pub fn new(model: Processors) -> Self {
        let count = usize::try_from(model.count).unwrap_or(usize::MAX);
        Self { model, free_at: vec![0; count] }
    }

    /// Has the processor of a host send a message to another one, or to a group. Returns when it
    /// has.
    pub fn send(&mut self, now: Time, from: u32, to: Option<u32>) -> Time {
        let time = self.cost(from, to).send;
        self.work(now, from, time)
    }

    /// Has the processor of a host take a message. Returns when it has.
    pub fn take(&mut self, now: Time, to: u32, from: Option<u32>) -> Time {
        let time = self.cost(to, from).receive;
        self.work(now, to, time)
    }

    /// The times of a message between a host and its peer. Members of a group may be anywhere.
    fn cost(&self, host: u32, peer: Option<u32>) -> MessageTime {
        let own = self.processor(host);
        match peer.map(|peer| self.processor(peer)) {
            Some(other) if other == own => self.model.within,
            _ => self.model.across,
        }
    }

    fn processor(&self, host: u32) -> usize {
        index(host) % self.free_at.len()
    }

    fn work(&mut self, now: Time, host: u32, time: Time) -> Time {
        let processor = self.processor(host);
        let free_at = &mut self.free_at[processor];
        *free_at = now.max(*free_at).saturating_add(time);
        *free_at
    }
}
