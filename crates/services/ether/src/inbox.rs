//! The packets of one node that wait for those before them, where long packets are fetched.
//!
//! Invariants: packets leave in the order in which they arrived, whatever the order in which their
//! fetches end. Fetches begin in that order, too. The ring's slots bound the long packets, and
//! [`WAITING_MAX`] the short ones.

use std::collections::VecDeque;

use crate::behind::{WAITING_MAX, weight};
use crate::message::MessageError;
use crate::ring::PacketSpan;

/// Waiting packets. A fetched packet lies in a buffer `B`.
#[derive(Debug)]
pub(crate) struct Inbox<B> {
    entries: VecDeque<Entry<B>>,
    /// The first packets of `entries`, whose fetches have begun, and the short ones among them.
    begun: usize,
    /// The weight of the short packets.
    weight: usize,
}

#[derive(Debug)]
enum Entry<B> {
    /// A long packet that lies in the ring of its sender.
    Advertised(PacketSpan),
    /// It is on its way. The call that fetches it has this number.
    Fetching { call: u64, length: usize },
    /// A packet whose turn comes when those before it have left.
    Ready(Ready<B>),
}

/// A packet whose wait is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ready<B> {
    /// A long packet: its buffer, and its length.
    Long(B, usize),
    /// A long packet that could not be fetched.
    Lost,
    /// A short packet.
    Short(Box<[u8]>),
}

impl<B> Default for Inbox<B> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), begun: 0, weight: 0 }
    }
}

impl<B> Inbox<B> {
    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether a packet that arrives now has to wait for none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A long packet was advertised. True if no other one waits for its fetch to begin.
    pub fn advertised(&mut self, place: PacketSpan) -> bool {
        let is_first = self.next().is_none();
        self.entries.push_back(Entry::Advertised(place));
        is_first
    }

    /// A short packet arrived.
    ///
    /// # Errors
    /// [`MessageError::Flood`]: its sender sent more than may wait.
    pub fn push(&mut self, packet: &[u8]) -> Result<(), MessageError> {
        if self.weight + weight(packet.len()) > WAITING_MAX {
            return Err(MessageError::Flood);
        }
        self.weight += weight(packet.len());
        self.entries.push_back(Entry::Ready(Ready::Short(packet.into())));
        Ok(())
    }

    /// The next packet to fetch.
    pub fn next(&self) -> Option<PacketSpan> {
        self.entries.iter().skip(self.begun).find_map(|entry| match entry {
            Entry::Advertised(place) => Some(*place),
            Entry::Fetching { .. } | Entry::Ready(_) => None,
        })
    }

    /// Call `call` fetches the next packet.
    pub fn began(&mut self, call: u64) {
        self.begin(|length| Entry::Fetching { call, length });
    }

    /// The next packet was fetched at once, into a buffer, or is lost.
    pub fn done(&mut self, buffer: Option<B>) {
        self.begin(|length| Entry::Ready(fetched(buffer, length)));
    }

    fn begin(&mut self, entry: impl FnOnce(usize) -> Entry<B>) {
        let is_next = |entry: &Entry<B>| matches!(entry, Entry::Advertised(_));
        let waiting = self.entries.iter().skip(self.begun).position(is_next);
        let next = self.begun + waiting.expect("a packet waits for its fetch");
        let Entry::Advertised(PacketSpan { length, .. }) = self.entries[next] else {
            unreachable!("the packet was found")
        };
        self.entries[next] = entry(length);
        self.begun = next + 1;
    }

    /// Call `call` has fetched its packet into a buffer, or the packet is lost.
    pub fn ended(&mut self, call: u64, buffer: Option<B>) {
        let found = self.entries.iter_mut().find_map(|entry| match *entry {
            Entry::Fetching { call: other, length } if other == call => Some((entry, length)),
            _ => None,
        });
        if let Some((entry, length)) = found {
            *entry = Entry::Ready(fetched(buffer, length));
        }
    }

    /// Takes the packet whose turn it is, if it is there.
    pub fn pop(&mut self) -> Option<Ready<B>> {
        match self.entries.pop_front()? {
            Entry::Ready(ready) => {
                if let Ready::Short(packet) = &ready {
                    self.weight -= weight(packet.len());
                }
                self.begun = self.begun.saturating_sub(1);
                Some(ready)
            }
            waiting => {
                self.entries.push_front(waiting);
                None
            }
        }
    }

    /// The buffers of the packets that were fetched.
    pub fn into_buffers(self) -> impl Iterator<Item = B> {
        self.entries.into_iter().filter_map(|entry| match entry {
            Entry::Ready(Ready::Long(buffer, _)) => Some(buffer),
            _ => None,
        })
    }
}

fn fetched<B>(buffer: Option<B>, length: usize) -> Ready<B> {
    buffer.map_or(Ready::Lost, |buffer| Ready::Long(buffer, length))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_packets_beyond_the_bound_are_refused() {
        let mut inbox = Inbox::<()>::default();
        assert!(inbox.advertised(PacketSpan { offset: 0, length: 9_000 }));
        assert_eq!(inbox.push(&vec![0; WAITING_MAX - 64]), Ok(()));
        assert_eq!(inbox.push(&[]), Err(MessageError::Flood));
        inbox.done(Some(()));
        assert_eq!(inbox.pop(), Some(Ready::Long((), 9_000)));
        assert!(inbox.pop().is_some() && inbox.is_empty());
        assert_eq!(inbox.push(&vec![0; WAITING_MAX - 64]), Ok(()), "the first has left");
    }

    proptest! {
        /// Packet `number` has the length `number` + 1. Each step lets one arrive, begins the next
        /// fetch, or ends one of those that go on.
        #[test]
        fn packets_leave_in_the_order_of_their_arrival(
            steps in prop::collection::vec((0..5_u8, any::<u8>()), 0..400),
        ) {
            let mut inbox = Inbox::default();
            let (mut arrived, mut begun, mut calls, mut left) = (0_usize, 0_usize, Vec::new(), 0);
            let mut expected = Vec::new();
            for (step, choice) in steps {
                match step {
                    0 => {
                        let place = PacketSpan { offset: 0, length: arrived + 1 };
                        inbox.advertised(place);
                        expected.push(true);
                        arrived += 1;
                    }
                    1 => {
                        prop_assert_eq!(inbox.push(&vec![0; arrived + 1]), Ok(()));
                        expected.push(false);
                        arrived += 1;
                    }
                    2 => if let Some(place) = inbox.next() {
                        prop_assert!(place.length > begun, "fetches begin in order");
                        begun = place.length;
                        match choice % 3 {
                            0 => inbox.done(Some(begun)),
                            _ => {
                                inbox.began(begun as u64);
                                calls.push(begun);
                            }
                        }
                    },
                    3 => if !calls.is_empty() {
                        let call = calls.swap_remove(usize::from(choice) % calls.len());
                        inbox.ended(call as u64, (choice % 4 > 0).then_some(call));
                    },
                    _ => while let Some(ready) = inbox.pop() {
                        left += 1;
                        match ready {
                            Ready::Long(buffer, length) => {
                                prop_assert_eq!((buffer, length), (left, left));
                            }
                            Ready::Lost => prop_assert!(expected[left - 1]),
                            Ready::Short(packet) => {
                                prop_assert!(packet.len() == left && !expected[left - 1]);
                            }
                        }
                    },
                }
                prop_assert_eq!(inbox.len(), arrived - left);
            }
        }
    }
}
