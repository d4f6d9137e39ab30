//! The memory into which packets are fetched.
//!
//! Invariants: a node that holds no buffer always gets one, so that nodes that do not answer hold
//! up nobody else. All others share a fixed number, of which one node gets a part alone.

use std::collections::BTreeMap;

use weft_fabric::Peer;

/// Buffers of regions `R`.
#[derive(Debug)]
pub(crate) struct Buffers<R> {
    free: Vec<R>,
    /// Buffers in use, by the peer whose packets they are for. No peer has zero.
    held: BTreeMap<Peer, usize>,
    in_use: usize,
    shared: usize,
    each: usize,
}

impl<R> Buffers<R> {
    /// No buffers yet. Beyond one for each peer there will be at most `shared`, and a peer will
    /// have at most `each`.
    pub const fn new(shared: usize, each: usize) -> Self {
        Self { free: Vec::new(), held: BTreeMap::new(), in_use: 0, shared, each }
    }

    /// Buffers that exist.
    pub fn count(&self) -> usize {
        self.in_use + self.free.len()
    }

    /// Buffers that are in use.
    pub const fn in_use(&self) -> usize {
        self.in_use
    }

    /// A buffer for packets of `peer`, which `make` makes if none is free. `None` if the peer has
    /// to wait.
    pub fn take(&mut self, peer: Peer, make: impl FnOnce() -> Option<R>) -> Option<R> {
        let held = self.held.get(&peer).copied().unwrap_or(0);
        let beyond_first = self.in_use - self.held.len();
        if held > 0 && (held >= self.each || beyond_first >= self.shared) {
            return None;
        }
        let buffer = self.free.pop().or_else(make)?;
        self.in_use += 1;
        self.held.insert(peer, held + 1);
        Some(buffer)
    }

    /// Takes back a buffer that `peer` had.
    pub fn give_back(&mut self, peer: Peer, buffer: R) {
        let held = self.held.get_mut(&peer).expect("the peer has a buffer");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&peer);
        }
        self.in_use -= 1;
        if self.count() < self.shared {
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_peers_leave_one_for_everybody() {
        let mut buffers = Buffers::new(4, 3);
        let mut made = 0;
        let mut take = |buffers: &mut Buffers<i32>, peer| {
            let make = || {
                made += 1;
                Some(made)
            };
            buffers.take(Peer(peer), make)
        };
        for peer in 0..3 {
            while take(&mut buffers, peer).is_some() {}
        }
        let held: Vec<usize> = buffers.held.values().copied().collect();
        assert_eq!(held, [3, 3, 1], "three at most, and one at least");
        assert!(take(&mut buffers, 3).is_some() && take(&mut buffers, 3).is_none());
        assert_eq!((buffers.in_use(), buffers.count()), (8, 8));
        buffers.give_back(Peer(0), 1);
        assert!(take(&mut buffers, 3).is_some(), "the part of another");
        for peer in [0, 0, 1, 1, 1, 2, 3, 3] {
            buffers.give_back(Peer(peer), 0);
        }
        assert_eq!((buffers.in_use(), buffers.count()), (0, 4), "no more than that are kept");
        assert!(buffers.held.is_empty());
    }

    #[test]
    fn without_memory_a_peer_waits() {
        let mut buffers = Buffers::<i32>::new(4, 3);
        assert_eq!(buffers.take(Peer(0), || None), None);
        assert_eq!((buffers.in_use(), buffers.count()), (0, 0));
    }
}
