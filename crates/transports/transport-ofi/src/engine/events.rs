//! The queue of events for the program.
//!
//! Invariant: each message and each notification of a peer holds a credit of the pair that it came
//! by, each end of an operation a place among `Capabilities::operations_max`, so that the queue is
//! bounded. The credit or the place goes back when the program takes the event.

use weft_fabric::{
    Completion, DownReason, EndpointAddress, Event, Group, Message, MessageHeader, Notification,
    Peer, Register, Timed,
};

use super::Engine;
use crate::nic::Nic;

/// An event that waits.
#[derive(Debug)]
pub(crate) enum Queued {
    Message {
        peer: Peer,
        source: EndpointAddress,
        header: MessageHeader,
        group: Option<Group>,
        payload: Vec<u8>,
    },
    /// A notification that a peer caused.
    Told(Notification),
    /// A notification of an own operation, and whether it holds the operation's place.
    Own(Notification, bool),
    Completion(Completion),
    /// The end of a call that holds no place of an operation.
    Ended(Completion),
    PeerDown {
        peer: Peer,
        address: EndpointAddress,
        reason: DownReason,
    },
    Room(Peer),
    GroupRoom(Group),
}

impl Queued {
    /// The event for the program.
    pub(crate) fn as_event(&self) -> Event<'_> {
        match self {
            Self::Message { peer, source, header, group, payload } => {
                let (peer, source, header, group) = (*peer, *source, *header, *group);
                Event::Message(Message { peer, source, header, group, payload })
            }
            Self::Told(notification) | Self::Own(notification, _) => {
                Event::Notification(*notification)
            }
            Self::Completion(completion) | Self::Ended(completion) => {
                Event::Completion(completion.clone())
            }
            Self::PeerDown { peer, address, reason } => {
                Event::PeerDown { peer: *peer, address: *address, reason: *reason }
            }
            Self::Room(peer) => Event::Room { peer: *peer },
            Self::GroupRoom(group) => Event::GroupRoom { group: *group },
        }
    }
}

impl<N: Nic> Engine<N> {
    /// Whether an event waits.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Takes the next event for the program.
    pub(crate) fn take(&mut self) -> Option<Queued> {
        let queued = self.events.pop_front()?;
        match &queued {
            Queued::Message { source, payload, .. } => {
                self.count(Register::MessagesReceived, 1);
                self.count(Register::MessageBytesReceived, payload.len() as u64);
                if let Some(pair) = self.living_at(*source) {
                    pair.receiving.owed_messages += 1;
                }
            }
            Queued::Told(notification) => {
                self.count(Register::NotificationsReceived, 1);
                if let Some(pair) = self.living_at(notification.source) {
                    pair.receiving.owed_notifications += 1;
                }
            }
            Queued::Own(_, holds_a_place) => {
                let holds_a_place = *holds_a_place;
                self.count(Register::NotificationsReceived, 1);
                if holds_a_place {
                    self.free_place();
                }
            }
            Queued::Completion(_) => self.free_place(),
            Queued::Ended(_) => self.controls_open -= 1,
            Queued::PeerDown { .. } | Queued::Room(_) | Queued::GroupRoom(_) => {}
        }
        Some(queued)
    }

    /// Takes the end of the call with this context, if it waits.
    pub(crate) fn take_ended(&mut self, context: u64) -> Option<Completion> {
        let is_it =
            |queued: &Queued| matches!(queued, Queued::Ended(end) if end.context == context);
        let place = self.events.iter().position(is_it)?;
        match self.events.remove(place) {
            Some(Queued::Ended(end)) => {
                self.controls_open -= 1;
                Some(end)
            }
            _ => None,
        }
    }

    /// Messages and notifications of an endpoint that wait.
    pub(super) fn waiting_from(&self, address: EndpointAddress) -> (usize, usize) {
        let mut waiting = (0, 0);
        for queued in &self.events {
            match queued {
                Queued::Message { source, .. } if *source == address => waiting.0 += 1,
                Queued::Told(notification) if notification.source == address => waiting.1 += 1,
                _ => {}
            }
        }
        waiting
    }

    /// Frees the place of an operation.
    pub(super) fn free_place(&mut self) {
        self.places -= 1;
        for peer in std::mem::take(&mut self.starved) {
            if self.pair(Peer(peer)).is_ok() {
                self.events.push_back(Queued::Room(Peer(peer)));
            }
        }
    }

    /// Takes the time of an operation that was called for, if it is its turn.
    pub(super) fn time(&mut self, number: u64, what: Timed) {
        if self.registers.times_next() {
            let now = self.now();
            self.registers.begin(number, what, now);
        }
    }

    /// An operation is over.
    pub(super) fn timed(&mut self, number: u64, is_good: bool) {
        let Self { registers, clock, nic, .. } = self;
        registers.end(number, is_good, || clock.at(nic.tick()));
    }

    /// Increases a counter.
    pub(crate) fn count(&mut self, register: Register, by: u64) {
        self.registers.count(register, by);
    }
}
