//! The packets that wait for virtual channels.
//!
//! A packet with several ways on waits for all of them, and leaves by the first that has room: so
//! it can always take the escape channel, on which the freedom from deadlock rests.
//!
//! # Invariants
//! - The entries of a channel are in the order in which they are served among one input.
//! - An entry is in the list of its channel and in the ring of entries of its packet.

use weft_topology::Port;

use crate::arena::{Arena, NONE};
use crate::links::{ChannelId, Links};
use crate::settings::Arbitration;
use crate::time::Time;

/// A packet that waits for a channel.
#[derive(Debug)]
pub(crate) struct Entry {
    pub packet: u32,
    pub channel: ChannelId,
    /// The port by which the packet came.
    pub input: Port,
    /// When its message was sent.
    sent_at: Time,
    previous: u32,
    next: u32,
    /// The next entry of the same packet.
    sibling: u32,
}

/// All entries.
#[derive(Debug)]
pub(crate) struct Waiting {
    entries: Arena<Entry>,
    arbitration: Arbitration,
}

impl Waiting {
    pub const fn new(arbitration: Arbitration) -> Self {
        Self { entries: Arena::new(), arbitration }
    }

    /// Makes a packet wait for channels, and returns its first entry. `NONE` without channels.
    pub fn enter(
        &mut self,
        links: &mut Links,
        packet: u32,
        (input, sent_at): (Port, Time),
        channels: impl Iterator<Item = ChannelId>,
    ) -> u32 {
        let mut sibling = NONE;
        for channel in channels {
            let entry =
                Entry { packet, channel, input, sent_at, previous: NONE, next: NONE, sibling };
            sibling = self.entries.insert(entry);
            self.append(links, channel, sibling);
            let link = links.link_of(channel);
            links.get_mut(link).waiting += 1;
        }
        sibling
    }

    /// Puts an entry behind those of its channel that go before it.
    fn append(&mut self, links: &mut Links, channel: ChannelId, number: u32) {
        let list = links.channel_mut(channel);
        let mut previous = list.last;
        let sent_at = self.entries.at(number).sent_at;
        if self.arbitration == Arbitration::Age {
            while previous != NONE && self.entries.at(previous).sent_at > sent_at {
                previous = self.entries.at(previous).previous;
            }
        }
        let next = if previous == NONE { list.first } else { self.entries.at(previous).next };
        match previous {
            NONE => list.first = number,
            _ => self.entries.at_mut(previous).next = number,
        }
        match next {
            NONE => list.last = number,
            _ => self.entries.at_mut(next).previous = number,
        }
        let entry = self.entries.at_mut(number);
        (entry.previous, entry.next) = (previous, next);
    }

    /// Takes all entries of a packet out of their lists, from its first entry on.
    pub fn leave(&mut self, links: &mut Links, first: u32) {
        let mut number = first;
        while let Some(entry) = self.entries.remove(number) {
            let list = links.channel_mut(entry.channel);
            match entry.previous {
                NONE => list.first = entry.next,
                previous => self.entries.at_mut(previous).next = entry.next,
            }
            match entry.next {
                NONE => list.last = entry.previous,
                next => self.entries.at_mut(next).previous = entry.previous,
            }
            let link = links.link_of(entry.channel);
            links.get_mut(link).waiting -= 1;
            number = entry.sibling;
        }
    }

    /// The entry that a channel serves next, after one from `last_input`.
    pub fn next(&self, first: u32, last_input: Port) -> Option<&Entry> {
        let mut best = self.entries.get(first)?;
        if self.arbitration == Arbitration::Age {
            return Some(best);
        }
        // The next input in turn is the one that is least far behind the last.
        let far = |entry: &Entry| entry.input.wrapping_sub(last_input).wrapping_sub(1);
        let mut number = best.next;
        while let Some(entry) = self.entries.get(number) {
            if far(best) == 0 {
                break;
            }
            if far(entry) < far(best) {
                best = entry;
            }
            number = entry.next;
        }
        Some(best)
    }
}
