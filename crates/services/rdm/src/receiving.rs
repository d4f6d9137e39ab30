//! Receiving messages.

use weft_fabric::{Endpoint, Region, Window};

use crate::fetching::{Fetch, Place, Purpose};
use crate::machine::{Core, Rdm};
use crate::matching::{Envelope, Selector, Source, Spot};
use crate::memory::{Fault, Memory, Surface};
use crate::outcome::{Failure, Kind, Outcome};
use crate::packet::{ANSWERED, Body, Code, DATA, First, Packet, Reader};
use crate::peers::{PeerId, State};
use crate::slab::Slab;

/// The messages that a receive is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// True for tagged messages.
    pub is_tagged: bool,
    /// The sender; `None` stands for any.
    pub from: Option<PeerId>,
    /// The tag; 0 for messages without one.
    pub tag: u64,
    /// The bits of the tag that do not count.
    pub ignore: u64,
}

impl Wanted {
    fn selector(&self) -> Selector {
        Selector { source: self.from.map(PeerId::source), tag: self.tag, ignore: self.ignore }
    }

    fn side(&self) -> usize {
        usize::from(self.is_tagged)
    }
}

/// A message that was found by a peek and taken out of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found(u64);

/// A receive that waits.
#[derive(Debug)]
pub(crate) struct Receive<S: Surface> {
    token: S::Token,
    memory: S::Memory,
    /// A rare one has it, so it is elsewhere.
    many: Option<Box<Many>>,
}

/// A receive of several messages.
#[derive(Clone, Copy, Debug)]
struct Many {
    /// Its entry in the table of such receives.
    number: u64,
    /// Bytes that are taken.
    at: usize,
    /// It is over when it has less room than this.
    least: usize,
}

/// The state of a receive of several messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multi {
    /// Messages whose bodies are still coming.
    coming: usize,
    /// No further message goes into it.
    is_over: bool,
}

/// The head of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    pub(crate) from: PeerId,
    pub(crate) is_tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) total: u64,
    /// The number by which the sender wants an answer when it is received.
    pub(crate) answer: Option<u64>,
}

/// A message for a receive: where it goes, and what its end is reported by.
#[derive(Debug)]
pub(crate) struct Taken<S: Surface> {
    token: S::Token,
    pub(crate) card: Card,
    at: usize,
    multi: Option<u64>,
}

/// A message that nobody waits for, or that was found.
#[derive(Debug)]
pub(crate) struct Arrival {
    card: Card,
    body: Waiting,
}

#[derive(Debug)]
enum Waiting {
    /// It is here.
    Whole(Vec<u8>),
    /// Its bytes are coming.
    Coming(Vec<u8>),
    /// Its chunk is being got from another node.
    Got,
    /// It is at the sender.
    Remote { number: u64, place: Place },
    /// Its sender ended before all of it was here.
    Lost,
}

/// A body that comes in packets.
#[derive(Debug)]
pub(crate) struct Incoming<S: Surface> {
    pub(crate) into: Inbound<S>,
    pub(crate) at: usize,
    pub(crate) length: usize,
    /// Whether the bytes so far are in the memory.
    pub(crate) written: Result<(), Fault>,
}

#[derive(Debug)]
pub(crate) enum Inbound<S: Surface> {
    /// To memory of the program.
    Memory(S::Memory, Purpose<S>),
    /// To a message that waits.
    Arrival(u64),
    /// Nowhere: the operation was refused.
    Nowhere,
    /// To memory of its own: operands of an atomic.
    Operands(Vec<u8>, crate::remote::Order),
}

impl<E: Endpoint, S: Surface> Rdm<E, S> {
    /// Waits for a message. Its end is reported by `token`.
    ///
    /// With `least`, the memory takes one message behind the other, until it has less room than
    /// that; each is reported, the last one as such.
    pub fn receive(
        &mut self,
        wanted: &Wanted,
        memory: S::Memory,
        least: Option<usize>,
        token: S::Token,
    ) {
        let core = &mut self.core;
        let many = least.map(|least| {
            let number = core.multis.insert(Multi { coming: 0, is_over: false });
            Box::new(Many { number, at: 0, least })
        });
        let mut receive = Receive { token, memory, many };
        let (selector, side) = (wanted.selector(), wanted.side());
        while core.unexpected[side].length() > 0
            && let Some(spot) = core.unexpected[side].find(&selector)
        {
            let Some(number) = core.unexpected[side].remove(spot) else { break };
            let Some(card) = core.arrivals.get(number).map(|arrival| arrival.card) else { break };
            let (memory, taken, is_over) = take(&mut core.multis, &mut receive, card);
            core.take_arrival(number, memory, taken);
            if is_over {
                return;
            }
        }
        core.posted[side].post(selector, receive);
        if let Some(from) = wanted.from {
            self.watch(from);
        }
    }

    /// Meets the one peer that a receive waits for, as only the end of a peer that was met is told.
    /// One that has ended already sends nothing more.
    #[inline]
    fn watch(&mut self, from: PeerId) {
        match self.core.peers.at(from).state {
            State::Live(_) | State::Connecting => {}
            // A failure ends the receive.
            State::Idle => drop(self.make_ready(from)),
            State::Down => self.core.lose_messages(from, None),
        }
    }

    /// Looks for a message that has arrived. Its card is reported as [`Kind::Peek`], or that there
    /// is none. With `claim`, it is taken out of the queue, for [`Rdm::receive_found`] or
    /// [`Rdm::discard`].
    pub fn peek(&mut self, wanted: &Wanted, claim: bool, token: S::Token) -> Option<Found> {
        let core = &mut self.core;
        let side = wanted.side();
        let spot = core.unexpected[side].find(&wanted.selector());
        let number = spot.and_then(|spot| core.unexpected[side].get_mut(spot).copied());
        let card = number.and_then(|number| core.arrivals.get(number)).map(|it| it.card);
        let (Some(spot), Some(number), Some(card)) = (spot, number, card) else {
            self.report_nothing(wanted, token);
            return None;
        };
        if claim {
            core.unexpected[side].remove(spot);
        }
        let length = usize::try_from(card.total).unwrap_or(usize::MAX);
        let outcome = Outcome::of(Some(token), Kind::Peek, card.from);
        let Card { is_tagged, tag, data, .. } = card;
        core.done.push(Outcome { is_tagged, tag, data, length, ..outcome });
        claim.then_some(Found(number))
    }

    /// Receives a message that was claimed.
    pub fn receive_found(&mut self, found: Found, memory: S::Memory, token: S::Token) {
        let core = &mut self.core;
        let Some(card) = core.arrivals.get(found.0).map(|arrival| arrival.card) else { return };
        let mut receive = Receive { token, memory, many: None };
        let (memory, taken, _) = take(&mut core.multis, &mut receive, card);
        core.take_arrival(found.0, memory, taken);
    }

    /// Drops a message that was claimed. It is reported as found, without its bytes.
    pub fn discard(&mut self, found: Found, token: S::Token) {
        let Some(card) = self.core.arrivals.get(found.0).map(|arrival| arrival.card) else {
            return;
        };
        self.forget(found);
        let outcome = Outcome::of(Some(token), Kind::Peek, card.from);
        let Card { is_tagged, tag, data, .. } = card;
        self.core.done.push(Outcome { is_tagged, tag, data, ..outcome });
    }

    /// Drops a message that was claimed. Nothing is reported.
    pub fn forget(&mut self, found: Found) {
        self.core.discard_arrival(found.0);
    }

    /// Reports that no such message has arrived.
    pub fn report_nothing(&mut self, wanted: &Wanted, token: S::Token) {
        let outcome = Outcome::of(Some(token), Kind::Peek, PeerId(0));
        let (is_tagged, tag) = (wanted.is_tagged, wanted.tag);
        let (peer, failure) = (None, Some(Failure::NoMessage));
        self.core.done.push(Outcome { peer, tag, is_tagged, failure, ..outcome });
    }

    /// Cancels the first receive whose token is the one. It is reported as cancelled. False if no
    /// such receive waits.
    pub fn cancel(&mut self, is_it: impl Fn(&S::Token) -> bool) -> bool {
        for side in 0..2 {
            if let Some(receive) = self.core.posted[side].take_if(|_, it| is_it(&it.token)) {
                self.core.end_receive(&receive, side == 1, None, Failure::Cancelled);
                return true;
            }
        }
        false
    }

    /// Receives that wait.
    #[must_use]
    pub fn waiting_receives(&self) -> usize {
        self.core.posted.iter().map(|posted| posted.length()).sum()
    }

    /// Messages that nobody waits for.
    #[must_use]
    pub fn waiting_messages(&self) -> usize {
        self.core.unexpected.iter().map(|unexpected| unexpected.length()).sum()
    }
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// A message without or with a tag.
    #[inline]
    pub(crate) fn message_parcel(
        &mut self,
        from: PeerId,
        code: Code,
        mut reader: Reader<'_>,
    ) -> Option<()> {
        let first = First::of(reader.word()?)?;
        let is_tagged = code == Code::Tagged;
        let tag = if is_tagged { reader.word()? } else { 0 };
        let data = if first.flags & DATA != 0 { Some(reader.word()?) } else { None };
        let is_answered = first.flags & ANSWERED != 0 || first.body == Body::Fetch;
        let answer = if is_answered { Some(reader.word()?) } else { None };
        let mut card = Card { from, is_tagged, tag, data, total: u64::from(first.length), answer };
        let envelope = Envelope { source: from.source(), tag };
        let side = usize::from(is_tagged);
        let body = reader.rest();
        if first.body == Body::Inline && body.len() == first.length as usize {
            let Some(spot) = self.posted[side].find(envelope) else {
                self.wait(side, envelope, Arrival { card, body: Waiting::Whole(body.to_vec()) });
                return Some(());
            };
            let (memory, taken) = self.take_posted(side, spot, card)?;
            let length = body.len().min(memory.length());
            let written = if length == 0 { Ok(()) } else { memory.write(0, &body[..length]) };
            self.received(&taken, &memory, written);
            return Some(());
        }
        let found = self.posted[side].find(envelope);
        match first.body {
            Body::Inline => self.begin_inline((card, envelope), body, found),
            Body::Chunk => self.message_in_chunk((card, envelope), first, found),
            Body::Fetch => {
                card.total = reader.word()?;
                let place = self.place_of(from, first, &mut reader, card.total)?;
                let number = card.answer?;
                let Some(spot) = found else {
                    let body = Waiting::Remote { number, place };
                    self.wait(side, envelope, Arrival { card, body });
                    return Some(());
                };
                let (memory, taken) = self.take_posted(side, spot, card)?;
                let purpose = Purpose::Receive(taken);
                let fetch = Fetch::new(from, Some(number), card.total, memory, purpose);
                self.start_fetch(fetch, place);
                Some(())
            }
        }
    }

    /// A message whose body comes in several packets.
    fn begin_inline(
        &mut self,
        (card, envelope): (Card, Envelope),
        body: &[u8],
        found: Option<Spot>,
    ) -> Option<()> {
        let (side, length) = (usize::from(card.is_tagged), usize::try_from(card.total).ok()?);
        let busy = self.peers.at(card.from).incoming.is_some();
        if length > 4096 || body.len() > length || busy {
            return None;
        }
        let mut written = Ok(());
        let (into, at) = match found {
            Some(spot) => {
                let (memory, taken) = self.take_posted(side, spot, card)?;
                let fits = body.len().min(memory.length());
                written = memory.write(0, &body[..fits]);
                (Inbound::Memory(memory, Purpose::Receive(taken)), body.len())
            }
            None => {
                let mut bytes = Vec::with_capacity(length);
                bytes.extend_from_slice(body);
                let arrival = Arrival { card, body: Waiting::Coming(bytes) };
                (Inbound::Arrival(self.wait(side, envelope, arrival)), body.len())
            }
        };
        self.peers.at(card.from).incoming = Some(Incoming { into, at, length, written });
        Some(())
    }

    fn message_in_chunk(
        &mut self,
        (card, envelope): (Card, Envelope),
        first: First,
        found: Option<Spot>,
    ) -> Option<()> {
        let side = usize::from(card.is_tagged);
        let Some(spot) = found else {
            if !self.reads_chunks_of(card.from) {
                let number = self.wait(side, envelope, Arrival { card, body: Waiting::Got });
                return self.get_arrival(card.from, first, number);
            }
            let mut bytes = vec![0; first.length as usize];
            self.read_chunk(card.from, first, &mut bytes)?;
            self.wait(side, envelope, Arrival { card, body: Waiting::Whole(bytes) });
            return Some(());
        };
        let (memory, taken) = self.take_posted(side, spot, card)?;
        self.take_chunk(card.from, first, memory, Purpose::Receive(taken))
    }

    /// True if the chunks of a peer are mapped, or the own.
    pub(crate) fn reads_chunks_of(&mut self, peer: PeerId) -> bool {
        self.is_own(peer) || self.peers.at(peer).window.is_some()
    }

    /// The chunk of a message that waits was got, or not.
    pub(crate) fn arrived(&mut self, number: u64, bytes: Option<Vec<u8>>) {
        // It may have been discarded.
        if let Some(arrival) = self.arrivals.get_mut(number) {
            arrival.body = bytes.map_or(Waiting::Lost, Waiting::Whole);
        }
    }

    /// The place of a chunk in the window of its owner, if the peer may name it.
    fn chunk_place(&mut self, from: PeerId, first: First) -> Option<u64> {
        let hello = self.peers.at(from).hello?;
        let fits = first.length as usize <= hello.chunk_bytes && first.chunk < hello.chunks;
        fits.then_some(u64::from(first.chunk) * hello.chunk_bytes as u64)
    }

    fn read_chunk(&mut self, from: PeerId, first: First, target: &mut [u8]) -> Option<()> {
        let place = self.chunk_place(from, first)?;
        self.load_chunk(from, place, target)?;
        self.release(from, first.chunk);
        Some(())
    }

    /// Reads from the chunks of a peer: through its window, or from the own memory. `None` if
    /// neither is there.
    #[inline]
    fn load_chunk(&self, from: PeerId, place: u64, target: &mut [u8]) -> Option<()> {
        match &self.peers.get(from)?.window {
            Some(window) => window.load(place, target).ok(),
            None if self.is_own(from) => self.pool_region.read(place, target).ok(),
            None => None,
        }
    }

    /// Copies a chunk to memory of the program, as far as it fits.
    pub(crate) fn fill_from_chunk(
        &mut self,
        from: PeerId,
        first: First,
        memory: &S::Memory,
    ) -> Option<Result<(), Fault>> {
        let mut place = self.chunk_place(from, first)?;
        let length = memory.length().min(first.length as usize);
        let mut loaded = Some(());
        let filled = memory.fill(0, length, &mut |piece| {
            loaded = loaded.and_then(|()| self.load_chunk(from, place, piece));
            place += piece.len() as u64;
        });
        loaded?;
        self.release(from, first.chunk);
        Some(filled)
    }

    /// Gives a chunk of a peer back to it.
    pub(crate) fn release(&mut self, from: PeerId, chunk: u16) {
        let mut packet = Packet::new(Code::Release);
        packet.word(u64::from(chunk));
        self.queue(from, packet);
    }

    fn wait(&mut self, side: usize, envelope: Envelope, arrival: Arrival) -> u64 {
        let number = self.arrivals.insert(arrival);
        self.unexpected[side].push(envelope, number);
        number
    }

    /// Takes the memory of a posted receive for a message.
    #[inline]
    fn take_posted(
        &mut self,
        side: usize,
        spot: Spot,
        card: Card,
    ) -> Option<(S::Memory, Taken<S>)> {
        let receive = self.posted[side].get_mut(spot)?;
        if receive.many.is_none() {
            let Receive { token, memory, .. } = self.posted[side].remove(spot)?;
            return Some((memory, Taken { token, card, at: 0, multi: None }));
        }
        let (memory, taken, is_over) = take(&mut self.multis, receive, card);
        if is_over {
            self.posted[side].remove(spot);
        }
        Some((memory, taken))
    }

    /// Reports a message that is in its memory, as far as it fits, and answers the sender.
    #[inline]
    pub(crate) fn received(
        &mut self,
        taken: &Taken<S>,
        memory: &S::Memory,
        result: Result<(), Fault>,
    ) {
        let result = result.map_err(|_| Failure::Fault);
        self.end_taken(taken, memory.length(), result);
        if let Some(number) = taken.card.answer {
            self.queue_answer(taken.card.from, number, result);
        }
    }

    /// Reports the end of a message for a receive with `room` bytes.
    #[inline]
    pub(crate) fn end_taken(&mut self, taken: &Taken<S>, room: usize, result: Result<(), Failure>) {
        let Card { from, is_tagged, tag, data, total, .. } = taken.card;
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let surplus = total.saturating_sub(room);
        let truncated = (surplus > 0).then_some(Failure::Truncated);
        let length = if result.is_err() { 0 } else { total - surplus };
        let last = taken.multi.is_none_or(|number| self.multi_ended(number));
        self.done.push(Outcome {
            is_tagged,
            tag,
            data,
            length,
            surplus,
            at: taken.at,
            last,
            failure: result.err().or(truncated),
            ..Outcome::of(Some(taken.token), Kind::Receive, from)
        });
    }

    /// One of several messages has ended. True if the memory is the caller's again.
    fn multi_ended(&mut self, number: u64) -> bool {
        let Some(multi) = self.multis.get_mut(number) else { return true };
        multi.coming -= 1;
        let is_last = multi.is_over && multi.coming == 0;
        if is_last {
            self.multis.remove(number);
        }
        is_last
    }

    /// Gives a message that waits to a receive.
    fn take_arrival(&mut self, number: u64, memory: S::Memory, taken: Taken<S>) {
        let Some(arrival) = self.arrivals.remove(number) else { return };
        match arrival.body {
            Waiting::Whole(bytes) => {
                let written = memory.write(0, &bytes[..bytes.len().min(memory.length())]);
                self.received(&taken, &memory, written);
            }
            Waiting::Coming(bytes) => self.hand_over(number, bytes, memory, taken),
            Waiting::Got => {
                let (from, total) = (arrival.card.from, arrival.card.total);
                let purpose = Purpose::Receive(taken);
                self.redirect(number, Fetch::new(from, None, total, memory, purpose));
            }
            Waiting::Remote { number, place } => {
                let (from, total) = (arrival.card.from, arrival.card.total);
                let purpose = Purpose::Receive(taken);
                self.start_fetch(Fetch::new(from, Some(number), total, memory, purpose), place);
            }
            Waiting::Lost => self.end_taken(&taken, memory.length(), Err(Failure::PeerDown)),
        }
    }

    /// The rest of a message that waits comes to the memory of a receive.
    fn hand_over(&mut self, number: u64, bytes: Vec<u8>, memory: S::Memory, taken: Taken<S>) {
        let at = bytes.len();
        let written = memory.write(0, &bytes[..at.min(memory.length())]);
        match &mut self.peers.at(taken.card.from).incoming {
            Some(incoming) if matches!(incoming.into, Inbound::Arrival(it) if it == number) => {
                incoming.into = Inbound::Memory(memory, Purpose::Receive(taken));
                incoming.written = written;
            }
            _ => self.received(&taken, &memory, written),
        }
    }

    /// Drops a message that waits. Its sender is answered as if it was received.
    fn discard_arrival(&mut self, number: u64) {
        let Some(arrival) = self.arrivals.remove(number) else { return };
        let Card { from, answer, .. } = arrival.card;
        if let Waiting::Remote { place, .. } = &arrival.body {
            self.leave(from, place);
        }
        if let Some(number) = answer {
            self.queue_answer(from, number, Ok(()));
        }
    }

    /// The next bytes of a body.
    pub(crate) fn more(&mut self, from: PeerId, bytes: &[u8]) -> Option<()> {
        let incoming = self.peers.at(from).incoming.as_mut()?;
        let (at, length) = (incoming.at, incoming.length);
        let end = at + bytes.len();
        if bytes.is_empty() || end > length {
            return None;
        }
        incoming.at = end;
        match &mut incoming.into {
            Inbound::Memory(memory, _) => {
                let fits = memory.length().saturating_sub(at).min(bytes.len());
                if fits > 0 && incoming.written.is_ok() {
                    incoming.written = memory.write(at, &bytes[..fits]);
                }
            }
            Inbound::Operands(operands, _) => operands.extend_from_slice(bytes),
            Inbound::Nowhere => {}
            Inbound::Arrival(number) => {
                // It may have been discarded.
                if let Some(Arrival { body: Waiting::Coming(waiting), .. }) =
                    self.arrivals.get_mut(*number)
                {
                    waiting.extend_from_slice(bytes);
                }
            }
        }
        if end == length {
            let Incoming { into, written, .. } = self.peers.at(from).incoming.take()?;
            self.body_arrived(from, into, written.map_err(|Fault| Failure::Fault));
        }
        Some(())
    }

    fn body_arrived(&mut self, from: PeerId, into: Inbound<S>, written: Result<(), Failure>) {
        match into {
            Inbound::Memory(memory, purpose) => self.fulfil(from, purpose, &memory, written),
            Inbound::Operands(operands, order) => self.change(from, &order, &operands),
            Inbound::Nowhere => {}
            Inbound::Arrival(number) => {
                let Some(arrival) = self.arrivals.get_mut(number) else { return };
                if let Waiting::Coming(bytes) = &mut arrival.body {
                    arrival.body = Waiting::Whole(std::mem::take(bytes));
                }
            }
        }
    }

    /// Reports a receive that nothing came for.
    fn end_receive(
        &mut self,
        receive: &Receive<S>,
        is_tagged: bool,
        peer: Option<PeerId>,
        failure: Failure,
    ) {
        let mut last = true;
        if let Some(many) = &receive.many
            && let Some(multi) = self.multis.get_mut(many.number)
        {
            multi.is_over = true;
            last = multi.coming == 0;
            if last {
                self.multis.remove(many.number);
            }
        }
        let outcome = Outcome::of(Some(receive.token), Kind::Receive, PeerId(0));
        let failure = Some(failure);
        self.done.push(Outcome { peer, is_tagged, last, failure, ..outcome });
    }

    /// A peer has ended: what it was sending does not come, and receives from it alone fail.
    pub(crate) fn lose_messages(&mut self, peer: PeerId, incoming: Option<Incoming<S>>) {
        match incoming.map(|incoming| incoming.into) {
            Some(Inbound::Memory(memory, purpose)) => {
                self.fulfil(peer, purpose, &memory, Err(Failure::PeerDown));
            }
            Some(Inbound::Arrival(_) | Inbound::Operands(..) | Inbound::Nowhere) | None => {}
        }
        let is_cut = |arrival: &Arrival| {
            let is_here = matches!(arrival.body, Waiting::Whole(_));
            arrival.card.from == peer && !is_here
        };
        for number in self.arrivals.numbers(is_cut) {
            if let Some(arrival) = self.arrivals.get_mut(number) {
                arrival.body = Waiting::Lost;
            }
        }
        self.end_receives(Some(peer.source()), peer);
    }

    /// Fails the receives that are for this source, `None` standing for any, as a peer has ended.
    pub(crate) fn end_receives(&mut self, from: Option<Source>, peer: PeerId) {
        for side in 0..2 {
            while let Some(receive) =
                self.posted[side].take_if(|selector, _| selector.source == from)
            {
                self.end_receive(&receive, side == 1, Some(peer), Failure::PeerDown);
            }
        }
    }
}

/// Takes memory of a receive for a message. True if the receive is over.
fn take<S: Surface>(
    multis: &mut Slab<Multi>,
    receive: &mut Receive<S>,
    card: Card,
) -> (S::Memory, Taken<S>, bool) {
    let token = receive.token;
    let Some(many) = &mut receive.many else {
        return (receive.memory.clone(), Taken { token, card, at: 0, multi: None }, true);
    };
    let room = receive.memory.length() - many.at;
    let length = usize::try_from(card.total).unwrap_or(usize::MAX).min(room);
    let memory = receive.memory.part(many.at, length);
    let taken = Taken { token, card, at: many.at, multi: Some(many.number) };
    many.at += length;
    let is_over = room - length < many.least.max(1);
    if let Some(multi) = multis.get_mut(many.number) {
        multi.coming += 1;
        multi.is_over = is_over;
    }
    (memory, taken, is_over)
}
