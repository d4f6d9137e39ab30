//! Bodies that the receiver fetches: by the kernel's copy, or in parts that it asks for.

use weft_fabric::{Endpoint, Region};

use crate::machine::Core;
use crate::memory::{Fault, Memory, Span, Surface};
use crate::outcome::Failure;
use crate::packet::{Code, First, Packet, Reader};
use crate::peers::{PeerId, Way};
use crate::receiving::Taken;

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

/// A body that is being fetched.
#[derive(Debug)]
pub(crate) struct Fetch<S: Surface> {
    pub(crate) peer: PeerId,
    /// The sender's number of it, by which it is asked and told the end. A body that the sender
    /// copied to a chunk has none.
    number: Option<u64>,
    /// As many bytes of it as are wanted.
    memory: S::Memory,
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

/// A chunk of another node that is got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get {
    pub(crate) peer: PeerId,
    into: Into,
    pub(crate) chunk: u16,
    pub(crate) length: usize,
}

/// The place of the bytes that are got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Into {
    /// This offset of a body that is fetched.
    Fetch(u64, usize),
    /// A message that waits for a receive.
    Arrival(u64),
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// True for a peer of this node.
    pub(crate) fn is_near(&mut self, peer: PeerId) -> bool {
        let own = self.own_node();
        self.peers.at(peer).address.node == own
    }

    /// True for this endpoint itself, which reads its own chunks without mapping them.
    pub(crate) fn is_own(&self, peer: PeerId) -> bool {
        self.peers.get(peer).is_some_and(|it| it.address == self.own)
    }

    pub(crate) fn start_fetch(&mut self, mut fetch: Fetch<S>, spans: Vec<Span>) {
        let (peer, wanted) = (fetch.peer, fetch.memory.length());
        let by_kernel = !spans.is_empty() && wanted > 0 && self.open_way(peer);
        fetch.spans = spans;
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
            self.ask(number);
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
            self.ask(number);
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
                self.ask(number);
            }
        }
    }

    fn ask(&mut self, number: u64) {
        let Some(fetch) = self.fetches.get(number) else { return };
        let Some(theirs) = fetch.number else { return };
        let mut packet = Packet::new(Code::Ask);
        packet.word(theirs).word(number).word(fetch.memory.length() as u64);
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

    /// Gets a chunk of another node for a message that waits.
    pub(crate) fn get_arrival(&mut self, from: PeerId, first: First, number: u64) -> Option<()> {
        self.get_chunk(from, first, Into::Arrival(number))
    }

    fn get_chunk(&mut self, from: PeerId, first: First, into: Into) -> Option<()> {
        let (chunk, length) = (first.chunk, first.length as usize);
        let has_chunk = chunk < self.peers.at(from).hello?.chunks;
        let fits = length > 0 && length <= self.options.chunk_bytes;
        // As many as the peer has chunks.
        if !has_chunk || !fits || self.gets.len() >= usize::from(u16::MAX) {
            return None;
        }
        self.gets.push_back(Get { peer: from, into, chunk, length });
        Some(())
    }

    /// A receive takes a message whose chunk is being got.
    pub(crate) fn redirect(&mut self, arrival: u64, fetch: Fetch<S>) {
        let number = self.fetches.insert(fetch);
        let mut gets = self.gets.iter_mut().chain(self.landing.iter_mut().flatten());
        match gets.find(|get| get.into == Into::Arrival(arrival)) {
            Some(get) => get.into = Into::Fetch(number, 0),
            None => self.fail_fetch(number, Failure::PeerDown),
        }
    }

    /// A part of a body that was asked for.
    pub(crate) fn part(&mut self, from: PeerId, mut reader: Reader<'_>) -> Option<()> {
        let first = First::of(reader.word()?)?;
        let (number, offset) = (reader.word()?, usize::try_from(reader.word()?).ok()?);
        let length = first.length as usize;
        let fetch = self.fetches.get(number)?;
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

    fn part_arrived(&mut self, number: u64, length: usize) {
        let Some(fetch) = self.fetches.get_mut(number) else { return };
        fetch.done += length;
        if fetch.done >= fetch.memory.length() {
            self.end_fetch(number, Ok(()));
        }
    }

    /// A get has ended, whose bytes are in a place of the landing.
    pub(crate) fn got(&mut self, slot: usize, is_good: bool) {
        let Some(get) = self.landing.get_mut(slot).and_then(Option::take) else { return };
        if !is_good {
            // The key of its chunks is in force as long as the peer lives.
            return self.fail_get(&get, Failure::PeerDown);
        }
        let Some(region) = &self.landing_region else { return };
        let mut place = slot as u64 * self.options.chunk_bytes as u64;
        let mut read = Ok(());
        match get.into {
            Into::Fetch(number, offset) => {
                let mut length = 0;
                let filled = self.fetches.get(number).map(|fetch| {
                    // A receive may have less room.
                    length = get.length.min(fetch.memory.length() - offset);
                    fetch.memory.fill(offset, length, &mut |piece| {
                        read = read.clone().and(region.read(place, piece));
                        place += piece.len() as u64;
                    })
                });
                self.release(get.peer, get.chunk);
                match filled {
                    Some(Ok(())) if read.is_ok() => self.part_arrived(number, length),
                    _ => self.fail_fetch(number, Failure::Fault),
                }
            }
            Into::Arrival(number) => {
                let mut bytes = vec![0; get.length];
                let read = region.read(place, &mut bytes);
                self.release(get.peer, get.chunk);
                self.arrived(number, read.is_ok().then_some(bytes));
            }
        }
    }

    pub(crate) fn fail_get(&mut self, get: &Get, failure: Failure) {
        match get.into {
            Into::Fetch(number, _) => self.fail_fetch(number, failure),
            Into::Arrival(number) => self.arrived(number, None),
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
