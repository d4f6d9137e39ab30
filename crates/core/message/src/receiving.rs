//! The machine's side that receives: checks, order, memory for announced messages.

use weft_fabric::{OperationError, Peer, RegionError};

use crate::error::{MessageError, Offence, PlaceError};
use crate::event::{Body, Event, Message, Notice, Ticket};
use crate::link::{Buffer, Entry, Incoming, Link, OfferState, Parts, is_fault_of_peer, low_bits};
use crate::machine::{Action, Machine};
use crate::options::{EAGER_BYTES_MAX, Placement};
use crate::packet::{Announcement, HEAD_BYTES_MAX, Header, Kind, PAYLOAD_BYTES};
use crate::pool::Taken;

impl<R: Clone> Machine<R> {
    /// Takes a packet of a peer. A message that is next in order goes to `sink` at once.
    #[inline]
    pub fn packet(
        &mut self,
        peer: Peer,
        is_to_group: bool,
        packet: &[u8],
        sink: &mut impl FnMut(Event<'_, R>),
    ) {
        if is_to_group {
            return self.offend(peer, Offence::Multicast);
        }
        let link = match self.links.get_mut(peer) {
            Some(link) => link,
            None => {
                self.greet(peer);
                self.links.get_mut(peer).expect("it was just made")
            }
        };
        let Link::Live(live) = link else { return };
        let (header, rest) = match Header::parse(packet) {
            Ok(parsed) => parsed,
            Err(offence) => return self.offend(peer, offence),
        };
        // The usual packet: a whole message, and none before it that waits.
        let result = if header.kind == Kind::Whole && live.receiver.inbox.is_empty() {
            let result = live.receiver.whole(header, rest);
            let result = result.and_then(|()| live.sender.credit(header.credits));
            if result.is_ok() {
                live.receiver.owed += 1;
                let (head, body) = rest.split_at(usize::from(header.head));
                sink(Event::Message(Message { peer, head, body: Body::Bytes(body) }));
                if !live.owes_much() && (header.credits == 0 || live.sender.wants == 0) {
                    return;
                }
            }
            result
        } else {
            let result = live.sender.credit(header.credits);
            result.and_then(|()| self.other_packet(peer, header, rest, sink))
        };
        match result {
            Ok(()) => self.answer_credits(peer, header.credits),
            Err(offence) => self.offend(peer, offence),
        }
    }

    /// Returns credits if many are owed, and tells of those that came.
    fn answer_credits(&mut self, peer: Peer, credits: u16) {
        let Some(live) = self.links.live(peer) else { return };
        let (owes, told) = (live.owes_much(), credits > 0 && live.sender.wants > 0);
        if owes {
            self.make_ready(peer);
        }
        if told {
            self.tell_room(peer);
        }
    }

    #[cold]
    fn offend(&mut self, peer: Peer, offence: Offence) {
        if matches!(self.links.get_mut(peer), Some(Link::Ended)) {
            return;
        }
        if !self.knows(peer) {
            self.greet(peer);
        }
        self.misbehaved(peer, offence);
    }

    #[inline(never)]
    fn other_packet(
        &mut self,
        peer: Peer,
        header: Header,
        rest: &[u8],
        sink: &mut impl FnMut(Event<'_, R>),
    ) -> Result<(), Offence> {
        let Some(live) = self.links.live(peer) else { return Ok(()) };
        let receiver = &mut live.receiver;
        match header.kind {
            Kind::Whole => {
                receiver.whole(header, rest)?;
                let (head, bytes) = (header.head, rest.to_vec());
                receiver.inbox.push_back(Entry::Bytes { head, bytes, packets: 1 });
            }
            Kind::Part => {
                let Some(parts) = receiver.part(header, rest)? else { return Ok(()) };
                let Parts { head, packets, .. } = parts;
                if receiver.inbox.is_empty() {
                    let (head, body) = receiver.buffer.split_at(usize::from(head));
                    sink(Event::Message(Message { peer, head, body: Body::Bytes(body) }));
                    receiver.owed += u32::from(packets);
                } else {
                    let bytes = receiver.buffer.clone();
                    receiver.inbox.push_back(Entry::Bytes { head, bytes, packets });
                }
            }
            Kind::Announcement => {
                receiver.take_credit()?;
                if receiver.parts.is_some() {
                    return Err(Offence::WrongPart);
                }
                receiver.check_number(header.number)?;
                let Announcement { target, length, head } = Announcement::parse(header.head, rest)?;
                let ticket = Ticket { peer, sequence: receiver.arrived };
                let state = OfferState::Fresh;
                let incoming = Incoming { ticket, target, length, head, state };
                receiver.inbox.push_back(Entry::Announced(incoming));
                receiver.arrived += 1;
                self.advance(peer);
            }
            kind => {
                if !rest.is_empty() {
                    return Err(Offence::Malformed { what: "an answer with a body" });
                }
                match kind {
                    Kind::Credit => {}
                    Kind::Cancel => self.cancelled_by_sender(peer, header.number)?,
                    _ => self.answered(peer, kind, header.number)?,
                }
            }
        }
        Ok(())
    }

    /// Decides what becomes of the announced messages of a peer, in order.
    fn advance(&mut self, peer: Peer) {
        let asks = self.options.placement == Placement::Ask;
        let Some(live) = self.links.live(peer) else { return };
        let mut sequence = live.receiver.first();
        loop {
            let Some(live) = self.links.live(peer) else { return };
            let place = sequence - live.receiver.first();
            let place = usize::try_from(place).expect("the window bounds the inbox");
            match live.receiver.inbox.get_mut(place) {
                None => break,
                // The program meets messages in their order, so it is not asked past this one.
                Some(Entry::Bytes { .. }) if asks => break,
                Some(Entry::Bytes { .. }) => {}
                Some(Entry::Announced(incoming)) => match incoming.state {
                    OfferState::Fresh if asks => {
                        incoming.state = OfferState::Asked;
                        let Incoming { ticket, head, length, .. } = *incoming;
                        self.notices.push_back(Notice::Announced { ticket, head, length });
                    }
                    OfferState::Fresh | OfferState::Hungry if !asks => {
                        let ticket = incoming.ticket;
                        if !self.feed(ticket) {
                            break;
                        }
                    }
                    _ => {}
                },
            }
            sequence += 1;
        }
    }

    /// Finds memory for an announced message. False if it has to wait.
    fn feed(&mut self, ticket: Ticket) -> bool {
        let peer = ticket.peer;
        let maximum = self.pool.maximum();
        let Some(live) = self.links.live(peer) else { return true };
        let Some(incoming) = live.receiver.incoming(ticket.sequence) else { return true };
        if incoming.length > maximum {
            self.turn_down(ticket);
            return true;
        }
        match self.pool.take(incoming.length) {
            Taken::Region(bytes, region) => {
                let buffer = Buffer { region, offset: 0, pooled: Some(bytes) };
                self.begin(ticket, buffer);
                true
            }
            Taken::Register(bytes) => {
                incoming.state = OfferState::Allocating;
                self.actions.push_back(Action::Allocate { ticket, bytes });
                true
            }
            Taken::Full => {
                incoming.state = OfferState::Hungry;
                if !live.receiver.is_hungry {
                    live.receiver.is_hungry = true;
                    self.hungry.push_back(peer);
                }
                false
            }
        }
    }

    /// A region was registered, or not, as [`Action::Allocate`] asked.
    pub fn allocated(&mut self, ticket: Ticket, bytes: u64, region: Option<R>) {
        let Some(region) = region else {
            self.pool.forget(bytes);
            if matches!(self.incoming(ticket), Some(Incoming { state: OfferState::Allocating, .. }))
            {
                self.turn_down(ticket);
                self.lose(ticket, MessageError::Refused);
            }
            return self.feed_the_hungry();
        };
        let buffer = Buffer { region, offset: 0, pooled: Some(bytes) };
        match self.incoming(ticket).map(|incoming| &incoming.state) {
            Some(OfferState::Allocating) => self.begin(ticket, buffer),
            _ => self.put_back(buffer),
        }
    }

    fn incoming(&mut self, ticket: Ticket) -> Option<&mut Incoming<R>> {
        self.live(ticket.peer)?.receiver.incoming(ticket.sequence)
    }

    /// Starts to fetch an announced message.
    fn begin(&mut self, ticket: Ticket, buffer: Buffer<R>) {
        let incoming = self.incoming(ticket).expect("the caller found the message");
        incoming.state = OfferState::Fetching;
        let (target, length) = (incoming.target, incoming.length);
        self.fetch(ticket, target, length, buffer);
    }

    /// Refuses an announced message.
    fn turn_down(&mut self, ticket: Ticket) {
        self.give_up(ticket, Kind::Refused);
    }

    /// An announced message does not come: its sender is told, and its place is empty.
    fn give_up(&mut self, ticket: Ticket, kind: Kind) {
        let Some(live) = self.live(ticket.peer) else { return };
        let Some(incoming) = live.receiver.incoming(ticket.sequence) else { return };
        incoming.state = OfferState::Gone;
        let number = low_bits(ticket.sequence);
        live.receiver.note_answer(number);
        live.sender.answers.push_back((kind, number));
        self.make_ready(ticket.peer);
        self.list(ticket.peer);
    }

    /// The sender cancels an announced message.
    fn cancelled_by_sender(&mut self, peer: Peer, number: u16) -> Result<(), Offence> {
        let Some(live) = self.live(peer) else { return Ok(()) };
        let Some(Incoming { ticket, state, .. }) = live.receiver.by_number(number) else {
            let crosses = live.receiver.crosses(number);
            return if crosses { Ok(()) } else { Err(Offence::NothingToCancel { number }) };
        };
        let ticket = *ticket;
        match state {
            OfferState::Fresh => self.give_up(ticket, Kind::Cancelled),
            OfferState::Asked | OfferState::Hungry | OfferState::Allocating => {
                self.give_up(ticket, Kind::Cancelled);
                self.lose(ticket, MessageError::Cancelled);
                self.hunger(peer);
            }
            // It ends as it would have.
            OfferState::Fetching => {}
            OfferState::Landed(_) | OfferState::Gone => {
                if !live.receiver.crosses(number) {
                    return Err(Offence::NothingToCancel { number });
                }
            }
        }
        Ok(())
    }

    /// A get has ended.
    pub(crate) fn fetched(
        &mut self,
        ticket: Ticket,
        buffer: Buffer<R>,
        result: Result<(), OperationError>,
    ) {
        let peer = ticket.peer;
        // Else the peer is down or was ended, and its messages with it.
        let live = self.live(peer).filter(|live| live.receiver.is_in_inbox(ticket.sequence));
        let Some(live) = live else {
            return self.release(ticket, buffer, MessageError::PeerDown);
        };
        match result {
            Ok(()) => {
                if let Some(incoming) = live.receiver.incoming(ticket.sequence) {
                    incoming.state = OfferState::Landed(buffer);
                }
                let number = low_bits(ticket.sequence);
                live.receiver.note_answer(number);
                live.sender.answers.push_back((Kind::Done, number));
                self.make_ready(peer);
                self.list(peer);
            }
            Err(error) if is_fault_of_peer(&error) => {
                self.release(ticket, buffer, MessageError::Get(error.clone()));
                self.misbehaved(peer, Offence::Range(error));
            }
            // The report that the peer is down comes after this, and ends the others.
            Err(error) => {
                let error = match error {
                    OperationError::PeerDown => MessageError::PeerDown,
                    error => MessageError::Get(error),
                };
                self.turn_down(ticket);
                self.release(ticket, buffer, error);
            }
        }
    }

    /// Gives memory back to its owner.
    pub(crate) fn put_back(&mut self, buffer: Buffer<R>) {
        if let Some(bytes) = buffer.pooled {
            self.pool.put(bytes, buffer.region);
            self.feed_the_hungry();
        }
    }

    /// Memory came back: those that wait for it are looked at once more.
    fn feed_the_hungry(&mut self) {
        for peer in std::mem::take(&mut self.hungry) {
            if let Some(live) = self.live(peer) {
                live.receiver.is_hungry = false;
                self.hunger(peer);
            }
        }
    }

    /// Feeds the announced messages of a peer that wait for memory. An earlier message gets memory
    /// before a later one, which could not be handed out before it and would keep its memory.
    fn hunger(&mut self, peer: Peer) {
        if self.options.placement == Placement::Allocate {
            return self.advance(peer);
        }
        let Some(live) = self.live(peer) else { return };
        let mut hungry = Vec::new();
        for entry in &live.receiver.inbox {
            match entry {
                Entry::Announced(Incoming { ticket, state: OfferState::Hungry, .. }) => {
                    hungry.push(*ticket);
                }
                Entry::Announced(Incoming {
                    state: OfferState::Asked | OfferState::Fresh, ..
                }) => break,
                _ => {}
            }
        }
        for ticket in hungry {
            if !self.feed(ticket) {
                return;
            }
        }
    }

    /// Lists a peer that may have messages to hand out.
    fn list(&mut self, peer: Peer) {
        let Some(live) = self.links.live(peer) else { return };
        if !live.receiver.is_listed {
            live.receiver.is_listed = true;
            self.listed.push_back(peer);
        }
    }

    /// The announced messages of a peer that have not arrived whole do not come any more.
    pub(crate) fn lose_unfinished(&mut self, peer: Peer) {
        let Some(live) = self.live(peer) else { return };
        let mut lost = Vec::new();
        for entry in &mut live.receiver.inbox {
            let Entry::Announced(incoming) = entry else { continue };
            match incoming.state {
                OfferState::Asked | OfferState::Hungry | OfferState::Allocating => {
                    lost.push(incoming.ticket)
                }
                // The end of the get finds that the message is gone.
                OfferState::Fetching | OfferState::Fresh => {}
                OfferState::Landed(_) | OfferState::Gone => continue,
            }
            incoming.state = OfferState::Gone;
        }
        for ticket in lost {
            self.lose(ticket, MessageError::PeerDown);
        }
    }

    /// Hands out the messages of a peer that are next in order.
    pub(crate) fn deliver(&mut self, peer: Peer, sink: &mut impl FnMut(Event<'_, R>)) {
        if let Some(live) = self.live(peer) {
            live.receiver.is_listed = false;
        }
        while let Some(live) = self.live(peer) {
            let receiver = &mut live.receiver;
            match receiver.inbox.front() {
                Some(Entry::Bytes { .. }) => {}
                Some(Entry::Announced(incoming))
                    if matches!(incoming.state, OfferState::Landed(_) | OfferState::Gone) => {}
                _ => break,
            }
            match receiver.inbox.pop_front().expect("it was looked at") {
                Entry::Bytes { head, bytes, packets } => {
                    let (head, body) = bytes.split_at(usize::from(head));
                    receiver.owed += u32::from(packets);
                    sink(Event::Message(Message { peer, head, body: Body::Bytes(body) }));
                }
                Entry::Announced(Incoming { ticket, length, head, state, .. }) => {
                    receiver.owed += 1;
                    if let OfferState::Landed(buffer) = state {
                        let Buffer { region, offset, .. } = &buffer;
                        let body = Body::Range { ticket, region, offset: *offset, length };
                        sink(Event::Message(Message { peer, head: &head, body }));
                        self.put_back(buffer);
                    }
                }
            }
        }
        if self.options.placement == Placement::Ask {
            self.advance(peer);
        }
        self.answer_credits(peer, 0);
    }

    /// The program gives memory for an announced message: a region of `region_bytes`.
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`], [`PlaceError::Range`].
    pub fn accept_into(
        &mut self,
        ticket: Ticket,
        (region, region_bytes, offset): (R, u64, u64),
    ) -> Result<(), PlaceError> {
        let length = self.asked(ticket)?;
        if offset.checked_add(length).is_none_or(|end| end > region_bytes) {
            let region = region_bytes;
            return Err(RegionError::OutOfBounds { offset, length, region }.into());
        }
        self.begin(ticket, Buffer { region, offset, pooled: None });
        self.hunger(ticket.peer);
        Ok(())
    }

    /// The program takes an announced message into memory of the messages.
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`], [`PlaceError::TooLong`].
    pub fn accept(&mut self, ticket: Ticket) -> Result<(), PlaceError> {
        let length = self.asked(ticket)?;
        let maximum = self.pool.maximum();
        if length > maximum {
            return Err(PlaceError::TooLong { length, maximum });
        }
        if let Some(incoming) = self.incoming(ticket) {
            incoming.state = OfferState::Hungry;
        }
        self.hunger(ticket.peer);
        Ok(())
    }

    /// The program does not take an announced message.
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`].
    pub fn refuse(&mut self, ticket: Ticket) -> Result<(), PlaceError> {
        self.asked(ticket)?;
        self.turn_down(ticket);
        self.hunger(ticket.peer);
        Ok(())
    }

    /// The length of a message that waits for a decision of the program.
    fn asked(&mut self, ticket: Ticket) -> Result<u64, PlaceError> {
        match self.incoming(ticket) {
            Some(Incoming { state: OfferState::Asked, length, .. }) => Ok(*length),
            _ => Err(PlaceError::UnknownTicket),
        }
    }
}

impl<R> crate::link::Receiver<R> {
    /// Checks a message in one packet.
    #[inline]
    fn whole(&mut self, header: Header, rest: &[u8]) -> Result<(), Offence> {
        self.take_credit()?;
        if self.parts.is_some() {
            return Err(Offence::WrongPart);
        }
        self.check_number(header.number)?;
        if usize::from(header.head) > rest.len().min(HEAD_BYTES_MAX) {
            return Err(Offence::Malformed { what: "a head that is longer than its message" });
        }
        self.arrived += 1;
        Ok(())
    }

    /// Adds a part. Returns the message if that was its last; it is in `buffer` then.
    fn part(&mut self, header: Header, rest: &[u8]) -> Result<Option<Parts>, Offence> {
        self.take_credit()?;
        self.check_number(header.number)?;
        let Header { head, length, .. } = header;
        let total = usize::from(length);
        let parts = match &mut self.parts {
            Some(parts) if (parts.head, parts.length) == (head, length) => parts,
            Some(_) => return Err(Offence::WrongPart),
            None if total > PAYLOAD_BYTES && total <= EAGER_BYTES_MAX => {
                if usize::from(head) > HEAD_BYTES_MAX {
                    return Err(Offence::Malformed { what: "a head that is too long" });
                }
                self.buffer.clear();
                self.parts.insert(Parts { head, length, packets: 0 })
            }
            None => return Err(Offence::Malformed { what: "parts of an impossible length" }),
        };
        let left = total - self.buffer.len();
        if rest.len() != left.min(PAYLOAD_BYTES) {
            return Err(Offence::WrongPart);
        }
        parts.packets += 1;
        self.buffer.extend_from_slice(rest);
        if self.buffer.len() < total {
            return Ok(None);
        }
        self.arrived += 1;
        Ok(self.parts.take())
    }
}
