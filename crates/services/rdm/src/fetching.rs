//! Bodies that the receiver fetches: by the kernel's copy, or in parts that it asks for.

use weft_fabric::{Endpoint, RemoteKey};

use crate::getting::Into;
use crate::machine::Core;
use crate::memory::{Fault, Memory, Span, Surface};
use crate::outcome::Failure;
use crate::packet::{Body, Code, First, LENT, Packet, Reader, Staged};
use crate::peers::{PeerId, Way};
use crate::receiving::Taken;
use crate::sending::short;

/// The step after a body is there.
#[derive(Debug)]
pub(crate) enum Purpose<S: Surface> {
    /// A receive is reported. The sender is answered if it wants that.
    Receive(Taken<S>),
    /// A write is reported, if it has data, and answered by this number unless it was fetched.
    Write { answer: Option<u64>, key: u64, data: Option<u64> },
    /// The own operation with this number ends.
    Operation(u64),
}

/// The place of a body at its sender.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where the kernel finds it; none if it is to be asked for.
    spans: Vec<Span>,
    /// Its first bytes are in a chunk.
    staged: Option<Staged>,
    /// The key by which all of it can be got.
    lent: Option<RemoteKey>,
}

/// A body that is being fetched.
#[derive(Debug)]
pub(crate) struct Fetch<S: Surface> {
    pub(crate) peer: PeerId,
    /// The sender's number of it, by which it is asked and told the end. A body that the sender
    /// copied to a chunk has none.
    number: Option<u64>,
    /// As many bytes of it as are wanted.
    pub(crate) memory: S::Memory,
    purpose: Option<Purpose<S>>,
    /// The room of the receive, which may be less or more than the body has.
    room: usize,
    spans: Vec<Span>,
    done: usize,
}

impl<S: Surface> Fetch<S> {
    pub(crate) fn new(
        peer: PeerId,
        number: Option<u64>,
        total: u64,
        memory: S::Memory,
        purpose: Purpose<S>,
    ) -> Self {
        let room = memory.length();
        let wanted = room.min(usize::try_from(total).unwrap_or(usize::MAX));
        let memory = memory.part(0, wanted);
        Self { peer, number, memory, purpose: Some(purpose), room, spans: Vec::new(), done: 0 }
    }
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// True for a peer of this node.
    pub(crate) fn is_near(&mut self, peer: PeerId) -> bool {
        self.peers.at(peer).is_near
    }

    /// True for this endpoint itself, which reads its own chunks without mapping them.
    pub(crate) fn is_own(&self, peer: PeerId) -> bool {
        self.peers.get(peer).is_some_and(|it| it.address == self.own)
    }

    /// Reads the place of a body of `total` bytes. `None` if there is no such place.
    pub(crate) fn place_of(
        &mut self,
        from: PeerId,
        first: First,
        reader: &mut Reader<'_>,
        total: u64,
    ) -> Option<Place> {
        let is_lent = first.flags & LENT != 0;
        let lent = if is_lent { Some(RemoteKey(reader.word()?)) } else { None };
        let (mut spans, mut sum) = (Vec::new(), 0_u64);
        while !reader.rest().is_empty() {
            let span = Span { address: reader.word()?, length: reader.word()? };
            sum = sum.checked_add(span.length)?;
            spans.push(span);
        }
        let staged = first.staged();
        if let Some(Staged { chunk, length }) = staged {
            let has_chunk = chunk < self.peers.at(from).hello?.chunks;
            let fits = length as usize <= self.options.chunk_bytes && u64::from(length) <= total;
            (has_chunk && fits).then_some(())?;
        }
        (spans.is_empty() || sum == total).then_some(Place { spans, staged, lent })
    }

    /// Nobody fetches a body: its sender gets its chunk back.
    pub(crate) fn leave(&mut self, from: PeerId, place: &Place) {
        if let Some(Staged { chunk, .. }) = place.staged {
            self.release(from, chunk);
        }
    }

    pub(crate) fn start_fetch(&mut self, mut fetch: Fetch<S>, place: Place) {
        let (peer, wanted) = (fetch.peer, fetch.memory.length());
        let by_kernel = !place.spans.is_empty() && wanted > 0 && self.open_way(peer);
        if wanted == 0 || by_kernel {
            self.leave(peer, &place);
        }
        fetch.spans = place.spans;
        let number = self.fetches.insert(fetch);
        if wanted == 0 {
            self.end_fetch(number, Ok(()));
        } else if by_kernel {
            self.copies.push_back(number);
            // Short bodies are done at once, so that they are in order.
            if self.copies.len() == 1 && wanted <= self.options.slice_bytes {
                self.copy_by_kernel();
            }
        } else {
            self.get_or_ask(number, place.staged, place.lent);
        }
    }

    /// Gets the first bytes of a body from their chunk, and the others where they were lent, or
    /// asks for them.
    fn get_or_ask(&mut self, number: u64, staged: Option<Staged>, lent: Option<RemoteKey>) {
        let Some(fetch) = self.fetches.get(number) else { return };
        let (peer, wanted) = (fetch.peer, fetch.memory.length());
        let mut at = 0;
        if let Some(Staged { chunk, length }) = staged {
            at = wanted.min(length as usize);
            let first = First { flags: 0, body: Body::Chunk, chunk, length: short(at) };
            if self.get_chunk(peer, first, Into::Fetch(number, 0)).is_none() {
                return self.fail_fetch(number, Failure::PeerDown);
            }
        }
        let is_whole = at == wanted;
        if !is_whole && !lent.is_some_and(|key| self.take_loan((peer, number), key, (at, wanted))) {
            self.ask(number, at);
        }
    }

    /// True if the kernel copies from the peer.
    fn open_way(&mut self, peer: PeerId) -> bool {
        let is_near = self.is_near(peer);
        let it = self.peers.at(peer);
        if matches!(it.way, Way::Unknown)
            && let Some(hello) = it.hello
        {
            let may = self.options.kernel && is_near && hello.introduction.process != 0;
            let found = if may { self.surface.find(&hello.introduction) } else { None };
            it.way = found.map_or(Way::None, Way::Open);
        }
        matches!(it.way, Way::Open(_))
    }

    /// Has the kernel copy one slice of the oldest body.
    pub(crate) fn copy_by_kernel(&mut self) {
        let Some(number) = self.copies.front().copied() else { return };
        let Some(fetch) = self.fetches.get_mut(number) else {
            self.copies.pop_front();
            return;
        };
        let Way::Open(process) = &self.peers.at(fetch.peer).way else {
            self.copies.pop_front();
            self.ask(number, 0);
            return;
        };
        let length = (fetch.memory.length() - fetch.done).min(self.options.slice_bytes);
        let target = fetch.memory.part(fetch.done, length);
        match self.surface.fetch(process, &fetch.spans, fetch.done as u64, &target) {
            Ok(()) => {
                fetch.done += length;
                if fetch.done == fetch.memory.length() {
                    self.copies.pop_front();
                    self.end_fetch(number, Ok(()));
                }
            }
            Err(Fault) => {
                // The kernel refuses, or the process is ending: the peer is asked, which answers or
                // is reported down.
                self.copies.pop_front();
                fetch.done = 0;
                self.ask(number, 0);
            }
        }
    }

    /// Asks for a body from byte `at` on.
    fn ask(&mut self, number: u64, at: usize) {
        let Some(fetch) = self.fetches.get(number) else { return };
        let Some(theirs) = fetch.number else { return };
        let mut packet = Packet::new(Code::Ask);
        packet.word(theirs).word(number).word(at as u64).word(fetch.memory.length() as u64);
        self.queue(fetch.peer, packet);
    }

    /// Takes a body that the peer copied to a chunk: at once if the chunk is mapped, else by a get.
    pub(crate) fn take_chunk(
        &mut self,
        from: PeerId,
        first: First,
        memory: S::Memory,
        purpose: Purpose<S>,
    ) -> Option<()> {
        if self.reads_chunks_of(from) {
            let filled = self.fill_from_chunk(from, first, &memory)?;
            self.fulfil(from, purpose, &memory, filled.map_err(|Fault| Failure::Fault));
            return Some(());
        }
        let fetch = Fetch::new(from, None, u64::from(first.length), memory, purpose);
        let is_wanted = fetch.memory.length() > 0;
        let number = self.fetches.insert(fetch);
        if is_wanted {
            return self.get_chunk(from, first, Into::Fetch(number, 0));
        }
        self.release(from, first.chunk);
        self.end_fetch(number, Ok(()));
        Some(())
    }

    /// A part of a body that was asked for.
    pub(crate) fn part(&mut self, from: PeerId, mut reader: Reader<'_>) -> Option<()> {
        let first = First::of(reader.word()?)?;
        let (number, offset) = (reader.word()?, usize::try_from(reader.word()?).ok()?);
        let length = first.length as usize;
        let Some(fetch) = self.fetches.get(number) else {
            // It has failed at an earlier part, of which the peer hears now.
            self.release(from, first.chunk);
            return Some(());
        };
        let end = offset.checked_add(length)?;
        if fetch.peer != from || length == 0 || end > fetch.memory.length() {
            return None;
        }
        let target = fetch.memory.part(offset, length);
        if !self.reads_chunks_of(from) {
            return self.get_chunk(from, first, Into::Fetch(number, offset));
        }
        match self.fill_from_chunk(from, first, &target)? {
            Ok(()) => self.part_arrived(number, length),
            Err(Fault) => self.fail_fetch(number, Failure::Fault),
        }
        Some(())
    }

    /// The rest of a body that was asked for does not come.
    pub(crate) fn withheld(&mut self, from: PeerId, mut reader: Reader<'_>) -> Option<()> {
        let number = reader.word()?;
        // It may have ended here meanwhile.
        if let Some(fetch) = self.fetches.get(number) {
            (fetch.peer == from).then_some(())?;
            self.fail_fetch(number, Failure::Fault);
        }
        Some(())
    }

    /// So many bytes of a body are in its memory.
    pub(crate) fn part_arrived(&mut self, number: u64, length: usize) {
        let Some(fetch) = self.fetches.get_mut(number) else { return };
        fetch.done += length;
        if fetch.done >= fetch.memory.length() {
            self.end_fetch(number, Ok(()));
        }
    }

    pub(crate) fn fail_fetch(&mut self, number: u64, failure: Failure) {
        self.end_fetch(number, Err(failure));
    }

    /// A body is there, or does not come. Its sender is told.
    fn end_fetch(&mut self, number: u64, result: Result<(), Failure>) {
        let Some(mut fetch) = self.fetches.remove(number) else { return };
        if let Some(number) = fetch.number {
            self.queue_answer(fetch.peer, number, result);
        }
        match fetch.purpose.take() {
            Some(Purpose::Receive(taken)) => self.end_taken(&taken, fetch.room, result),
            Some(purpose) => self.fulfil(fetch.peer, purpose, &fetch.memory, result),
            None => {}
        }
    }
}
