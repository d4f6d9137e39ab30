//! Short packets that wait at their receiver behind long ones.
//!
//! Where long packets are fetched, short packets that arrive meanwhile wait for them, so that the
//! packets of one node stay in order. Both ends count them alike: a receiver keeps no more than
//! [`WAITING_MAX`] for one sender, and a sender sends no more, but puts further packets into its
//! ring, whose slots are bounded.

use std::collections::VecDeque;

/// The weight of the short packets of one sender that may wait for its long ones.
pub(crate) const WAITING_MAX: usize = 64 << 10;

/// The weight of a short packet: its bytes, and what it costs to keep it.
pub(crate) const fn weight(length: usize) -> usize {
    length + 64
}

/// The sender's account of the short packets that may wait at one receiver.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// For each long packet that was not reported as taken, the weight sent behind it.
    of_each: VecDeque<usize>,
    total: usize,
}

impl Behind {
    /// Whether a short packet may be sent as messages now.
    pub fn has_room(&self, length: usize) -> bool {
        self.of_each.is_empty() || self.total + weight(length) <= WAITING_MAX
    }

    /// A long packet was advertised.
    pub fn advertised(&mut self) {
        self.of_each.push_back(0);
    }

    /// A short packet was sent.
    pub fn sent(&mut self, length: usize) {
        if let Some(last) = self.of_each.back_mut() {
            *last += weight(length);
            self.total += weight(length);
        }
    }

    /// The receiver reported so many further long packets as taken.
    pub fn taken(&mut self, packets: u64) {
        for _ in 0..packets {
            self.total -= self.of_each.pop_front().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_counts_until_those_before_it_are_taken() {
        let mut behind = Behind::default();
        behind.sent(WAITING_MAX);
        assert!(behind.has_room(WAITING_MAX), "nothing is in front");
        behind.advertised();
        behind.sent(WAITING_MAX / 2 - 64);
        behind.advertised();
        behind.sent(WAITING_MAX / 4 - 64);
        assert!(behind.has_room(WAITING_MAX / 4 - 64) && !behind.has_room(WAITING_MAX / 4 - 63));
        behind.taken(1);
        assert!(behind.has_room(WAITING_MAX / 4 * 3 - 64));
        assert!(!behind.has_room(WAITING_MAX / 4 * 3 - 63));
        behind.taken(1);
        assert!(behind.has_room(WAITING_MAX), "all were taken");
    }
}
