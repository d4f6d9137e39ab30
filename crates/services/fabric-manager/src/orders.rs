//! Orders that were given, until they are answered or given up.
//!
//! # Invariants
//! - At most [`WINDOW`] orders are under way. Each is sent [`TRIES_MAX`] times at most.

use std::collections::{BTreeMap, VecDeque};

use weft_topology::Port;

use crate::message::{Body, HOPS_MAX, Order, Packet};

/// Orders under way at a time.
pub(crate) const WINDOW: usize = 64;
/// Times that an order is sent before its node counts as failed.
const TRIES_MAX: u32 = 20;
/// Milliseconds until an order is sent again.
const RETRY_MS: u64 = 50;

/// An order for the node at the end of a route. `tag` tells the giver about what it was.
#[derive(Clone, Debug)]
pub(crate) struct Task<T> {
    pub(crate) tag: T,
    pub(crate) route: Vec<Port>,
    pub(crate) order: Order,
}

#[derive(Clone, Debug)]
struct Pending<T> {
    task: Task<T>,
    tries: u32,
    due: u64,
}

/// Orders that wait, and those that are under way.
#[derive(Clone, Debug)]
pub(crate) struct Orders<T> {
    waiting: VecDeque<Task<T>>,
    pending: BTreeMap<u64, Pending<T>>,
    sequence: u64,
}

impl<T> Orders<T> {
    /// No orders. `start` is above the sequences of orders that may still be answered.
    pub(crate) fn new(start: u64) -> Self {
        Self { waiting: VecDeque::new(), pending: BTreeMap::new(), sequence: start }
    }

    /// Adds an order. One for a node that is too far away is left out.
    pub(crate) fn give(&mut self, task: Task<T>) {
        if task.route.len() <= HOPS_MAX {
            self.waiting.push_back(task);
        }
    }

    /// True when all orders were answered or given up.
    pub(crate) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.pending.is_empty()
    }

    /// The sequence of the last order.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The order that an answer is about. It is over.
    pub(crate) fn answered(&mut self, sequence: u64) -> Option<Task<T>> {
        self.pending.remove(&sequence).map(|pending| pending.task)
    }

    /// Sends what is due. Puts orders without an answer into `failed`.
    pub(crate) fn tick(&mut self, now: u64, term: u64, failed: &mut Vec<Task<T>>) -> Vec<Packet> {
        let mut packets = Vec::new();
        let packet = |sequence: u64, task: &Task<T>| {
            let body = Body::Order { term, sequence, order: task.order.clone() };
            Packet::new(task.route.clone(), body)
        };
        let mut given_up = Vec::new();
        for (sequence, pending) in self.pending.iter_mut().filter(|(_, own)| own.due <= now) {
            if pending.tries >= TRIES_MAX {
                given_up.push(*sequence);
                continue;
            }
            pending.tries += 1;
            pending.due = now + RETRY_MS;
            packets.push(packet(*sequence, &pending.task));
        }
        failed.extend(given_up.into_iter().filter_map(|sequence| self.answered(sequence)));
        while self.pending.len() < WINDOW
            && let Some(task) = self.waiting.pop_front()
        {
            self.sequence += 1;
            packets.push(packet(self.sequence, &task));
            let pending = Pending { task, tries: 1, due: now + RETRY_MS };
            self.pending.insert(self.sequence, pending);
        }
        packets
    }
}
