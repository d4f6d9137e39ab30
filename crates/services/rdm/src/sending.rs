//! Sending messages, and the bodies of all parcels.

use weft_fabric::{Access, Audience, Endpoint, Issued, LocalRange, RemoteKey, Value};

use crate::machine::{Core, Door, LEND, Rdm};
use crate::memory::{Memory, Span, Surface};
use crate::outcome::{Begun, Failure, Kind, Refusal};
use crate::packet::{
    ANSWERED, Body, Code, DATA, First, PACKET_BYTES, Packet, Reader, SPANS_MAX, Staged,
};
use crate::peers::PeerId;

/// The name of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label {
    /// The tag; `None` for a message without one.
    pub tag: Option<u64>,
    /// A word that comes with it.
    pub data: Option<u64>,
}

/// When an operation is over for its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// When its memory may be used again.
    Sent,
    /// When the peer has what was sent.
    Delivered,
    /// At once: the memory may be used again when the call returns. Only a failure is reported.
    Injected,
}

/// An operation that the peer has to answer, or a body that it fetches.
#[derive(Debug)]
pub(crate) struct Operation<S: Surface> {
    pub(crate) peer: PeerId,
    pub(crate) token: Option<S::Token>,
    pub(crate) kind: Kind,
    pub(crate) is_tagged: bool,
    pub(crate) tag: u64,
    pub(crate) key: u64,
    /// The source of a body, or the target of an answer.
    pub(crate) memory: Option<S::Memory>,
    /// The key by which the peer gets it from where it is.
    pub(crate) lent: Option<RemoteKey>,
    /// The memory is a copy: the operation is over for its caller, and its end is told to nobody.
    pub(crate) is_copy: bool,
    pub(crate) push: Option<Push>,
}

/// A body that the peer asked for, part by part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push {
    /// The peer's number of it.
    fetch: u64,
    at: usize,
    end: usize,
}

/// A body that is to be sent.
pub(crate) enum Cargo<'a, M> {
    Memory(&'a M),
    Bytes(&'a [u8]),
}

impl<M: Memory> Cargo<'_, M> {
    #[inline]
    pub(crate) fn length(&self) -> usize {
        match self {
            Self::Memory(memory) => memory.length(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    #[inline]
    fn read(&self, at: usize, target: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Memory(memory) => memory.read(at, target).map_err(|_| Failure::Fault),
            Self::Bytes(bytes) => {
                target.copy_from_slice(&bytes[at..at + target.len()]);
                Ok(())
            }
        }
    }
}

/// The length of a body that is not fetched.
#[inline]
pub(crate) fn short(length: usize) -> u32 {
    u32::try_from(length).expect("longer bodies are fetched")
}

impl<E: Endpoint, S: Surface> Rdm<E, S> {
    /// Sends a message. A short one is over at once: its bytes have left the memory.
    ///
    /// # Errors
    /// [`Refusal`]: nothing was sent. [`Refusal::TooLong`] for more than
    /// [`crate::Options::inline_bytes_max`] bytes that are to be [`How::Injected`].
    #[inline]
    pub fn send(
        &mut self,
        to: PeerId,
        label: Label,
        memory: &S::Memory,
        how: How,
        token: Option<S::Token>,
    ) -> Result<Begun, Refusal> {
        let door = self.ready(to)?;
        let length = memory.length();
        let flags = if label.data.is_some() { DATA } else { 0 };
        if length <= self.core.options.inline_bytes_max && how != How::Delivered {
            let mut packet = begin(label);
            name(&mut packet, label, First::inline(flags, short(length)));
            self.emit_inline(door, to, &mut packet, &Cargo::Memory(memory))?;
            return Ok(Begun::Over);
        }
        self.send_long(door, to, (label, flags), memory, (how, token))
    }

    #[inline(never)]
    fn send_long(
        &mut self,
        door: Door,
        to: PeerId,
        (label, flags): (Label, u8),
        memory: &S::Memory,
        (how, token): (How, Option<S::Token>),
    ) -> Result<Begun, Refusal> {
        let length = memory.length();
        if length > self.core.options.inline_bytes_max && how == How::Injected {
            return Err(Refusal::TooLong);
        }
        let is_inline = length <= self.core.inline_bytes_to(to);
        let answered = how == How::Delivered;
        if is_inline && !answered {
            let mut packet = begin(label);
            name(&mut packet, label, First::inline(flags, short(length)));
            self.emit_inline(door, to, &mut packet, &Cargo::Memory(memory))?;
            return Ok(Begun::Over);
        }
        // A chunk: the memory is free at once, if nobody waits for the delivery.
        let is_short = !is_inline && !answered && length <= self.core.options.chunk_bytes_max;
        if is_short
            && self.core.fits_chunk(to, length)
            && let Some(chunk) = self.core.chunk_for(to, (memory, 0, length))
        {
            let chunk = chunk.map_err(|_| Refusal::TooLong)?;
            let first = First { flags, body: Body::Chunk, chunk, length: short(length) };
            let mut packet = begin(label);
            name(&mut packet, label, first);
            if let Err(refusal) = self.emit(door, to, &packet) {
                self.core.take_back(to, chunk);
                return Err(refusal);
            }
            return Ok(Begun::Over);
        }
        if !is_short && self.core.under_way() >= self.core.options.operations_max {
            return Err(Refusal::Busy);
        }
        // Without a chunk the peer takes the body from a copy: a program may send, wait until its
        // memory is free, and receive then what the peer sends meanwhile.
        let memory = if is_short { memory.copy() } else { Ok(memory.clone()) };
        let memory = &memory.map_err(|_| Refusal::TooLong)?;
        let lent = if is_short || is_inline { None } else { self.lend(door, to, memory) };
        let operation = Operation {
            peer: to,
            token,
            kind: Kind::Send,
            is_tagged: label.tag.is_some(),
            tag: label.tag.unwrap_or(0),
            key: 0,
            memory: Some(memory.clone()),
            lent,
            is_copy: is_short,
            push: None,
        };
        self.core.copies_kept += usize::from(is_short);
        let number = self.core.operations.insert(operation);
        let mut staged = None;
        let sent = if is_inline {
            let first = First::inline(flags | ANSWERED, short(length));
            let mut packet = begin(label);
            name(&mut packet, label, first);
            packet.word(number);
            self.emit_inline(door, to, &mut packet, &Cargo::Memory(memory))
        } else {
            staged = self.core.stage(to, memory);
            let mut packet = begin(label);
            name(&mut packet, label, First::fetch(flags, staged, lent));
            packet.word(number);
            self.core.add_place(to, &mut packet, memory, lent);
            self.emit(door, to, &packet)
        };
        if sent.is_err() {
            self.core.remove_operation(number);
            self.core.unstage(to, staged);
        }
        sent.map(|()| if is_short { Begun::Over } else { Begun::UnderWay })
    }

    /// Lends a long body to a peer of another node, which then reads it where it is.
    pub(crate) fn lend(&mut self, door: Door, to: PeerId, memory: &S::Memory) -> Option<RemoteKey> {
        let (lend, handle) = (self.lend?, door?);
        if memory.length() < self.core.options.lent_bytes_min || self.core.is_near(to) {
            return None;
        }
        let region = lend(&mut self.endpoint, memory)?;
        let (whole, reader) = (LocalRange::whole(&region), Audience::Peer(handle));
        match self.endpoint.grant(whole, reader, Access::READ, LEND) {
            Ok(Issued::Done(Value::Key(key))) => {
                self.core.lent.insert(key, region);
                Some(key)
            }
            // The body goes by chunks.
            _ => None,
        }
    }

    /// Sends a packet with as many bytes of the body as fit, and the others behind it. If the first
    /// was sent, then the others are, now or later.
    #[inline]
    pub(crate) fn emit_inline(
        &mut self,
        door: Door,
        to: PeerId,
        packet: &mut Packet,
        cargo: &Cargo<'_, S::Memory>,
    ) -> Result<(), Refusal> {
        let length = cargo.length();
        let mut at = length.min(packet.room());
        if at > 0 {
            cargo.read(0, packet.space(at)).map_err(|_| Refusal::TooLong)?;
        }
        if at < length {
            let most = self.core.peers.at(to).packet_bytes;
            fill_behind(packet, &mut at, cargo, most).map_err(|_| Refusal::TooLong)?;
        }
        self.emit(door, to, packet)?;
        if at < length {
            self.emit_more(door, to, at, cargo);
        }
        Ok(())
    }

    #[inline(never)]
    fn emit_more(&mut self, door: Door, to: PeerId, mut at: usize, cargo: &Cargo<'_, S::Memory>) {
        let mut refused = false;
        let most = self.core.peers.at(to).packet_bytes;
        while at < cargo.length() {
            let packet = next_part(&mut at, cargo, most);
            refused = refused || self.emit(door, to, &packet).is_err();
            if refused {
                self.core.queue(to, packet);
            }
        }
    }

    /// Sends parts of the bodies that were asked for, as far as there are chunks.
    pub(crate) fn push_parts(&mut self) {
        while let Some(peer) = self.core.pushing.pop_front() {
            self.core.peers.at(peer).is_pushed = false;
            while self.core.push_part(peer) {}
        }
    }
}

/// The next packet of a body, of up to `most` bytes.
fn next_part<M: Memory>(at: &mut usize, cargo: &Cargo<'_, M>, most: usize) -> Packet {
    let mut packet = Packet::new(Code::More);
    let part = (cargo.length() - *at).min(packet.room());
    // Memory that went away between two packets: the peer gets zeros, which is as good as what the
    // program promised.
    let _ = cargo.read(*at, packet.space(part));
    *at += part;
    let _ = fill_behind(&mut packet, at, cargo, most);
    packet
}

/// Adds bytes of a body to a full packet, for a peer that takes packets of `most` bytes.
fn fill_behind<M: Memory>(
    packet: &mut Packet,
    at: &mut usize,
    cargo: &Cargo<'_, M>,
    most: usize,
) -> Result<(), Failure> {
    let part = (cargo.length() - *at).min(most - PACKET_BYTES);
    if part > 0 {
        let filled = cargo.read(*at, packet.space_behind(part));
        *at += part;
        filled?;
    }
    Ok(())
}

#[inline]
const fn begin(label: Label) -> Packet {
    Packet::new(if label.tag.is_some() { Code::Tagged } else { Code::Untagged })
}

/// Writes the head of a message. It is written in place: a packet that is returned is copied.
#[inline]
fn name(packet: &mut Packet, label: Label, first: First) {
    packet.word(first.word());
    if let Some(tag) = label.tag {
        packet.word(tag);
    }
    if let Some(data) = label.data {
        packet.word(data);
    }
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// Bytes of a body that goes in the mailbox to a peer, at most.
    pub(crate) fn inline_bytes_to(&mut self, to: PeerId) -> usize {
        let near = self.options.inline_bytes_max;
        if self.is_near(to) { near } else { near.max(self.options.far_inline_bytes_max) }
    }

    /// Copies the first bytes of a body to a chunk for a peer of another node, which so gets them
    /// as soon as it has matched. They may stay there for long, so half of the chunks are left to
    /// bodies that were asked for: those must not wait for what nobody receives.
    pub(crate) fn stage(&mut self, to: PeerId, memory: &S::Memory) -> Option<Staged> {
        let has_many = self.peers.at(to).chunks >= self.pool.share() / 2;
        if self.is_near(to) || has_many || self.pool.taken() >= self.pool.share() {
            return None;
        }
        let length = memory.length().min(self.options.chunk_bytes);
        let chunk = self.chunk_for(to, (memory, 0, length))?.ok()?;
        Some(Staged { chunk, length: short(length) })
    }

    /// Takes a chunk back that was not sent.
    pub(crate) fn unstage(&mut self, to: PeerId, staged: Option<Staged>) {
        if let Some(Staged { chunk, .. }) = staged {
            self.take_back(to, chunk);
        }
    }

    /// True if a body of this length may go in a chunk to a peer.
    pub(crate) fn fits_chunk(&mut self, to: PeerId, length: usize) -> bool {
        let reads = !self.is_near(to) || self.is_own(to) || self.peers.at(to).maps;
        length <= self.options.chunk_bytes_max && reads
    }

    /// Adds where a body is: its length, then the key by which it is lent, or the spans where the
    /// kernel finds it, or nothing.
    pub(crate) fn add_place(
        &mut self,
        to: PeerId,
        packet: &mut Packet,
        memory: &S::Memory,
        lent: Option<RemoteKey>,
    ) {
        packet.word(memory.length() as u64);
        if let Some(key) = lent {
            packet.word(key.0);
        }
        let near = self.is_near(to) && self.options.kernel;
        let spans = if near { memory.spans() } else { None };
        let fit = |spans: &Vec<Span>| spans.len() <= SPANS_MAX.min(packet.room() / 16);
        let spans = spans.filter(fit).unwrap_or_default();
        for span in spans {
            packet.word(span.address).word(span.length);
        }
    }

    /// Queues a packet with a body of bytes, and what does not fit behind it.
    pub(crate) fn queue_inline(
        &mut self,
        to: PeerId,
        mut packet: Packet,
        cargo: &Cargo<'_, S::Memory>,
    ) -> Result<(), Failure> {
        let most = self.peers.at(to).packet_bytes;
        let mut at = cargo.length().min(packet.room());
        cargo.read(0, packet.space(at))?;
        fill_behind(&mut packet, &mut at, cargo, most)?;
        self.queue(to, packet);
        while at < cargo.length() {
            let packet = next_part(&mut at, cargo, most);
            self.queue(to, packet);
        }
        Ok(())
    }

    /// The peer asks for a body: number here, number there, the first byte that it wants, the end.
    pub(crate) fn asked(&mut self, from: PeerId, mut reader: Reader<'_>) -> Option<()> {
        let (number, fetch) = (reader.word()?, reader.word()?);
        let place = |word: u64| usize::try_from(word).ok();
        let (at, end) = (place(reader.word()?)?, place(reader.word()?)?);
        let operation = self.operations.get_mut(number)?;
        let length = operation.memory.as_ref().map_or(0, Memory::length);
        if operation.peer != from || operation.push.is_some() || at > end || end > length {
            return None;
        }
        operation.push = Some(Push { fetch, at, end });
        self.peers.at(from).pushes.push_back(number);
        if !std::mem::replace(&mut self.peers.at(from).is_pushed, true) {
            self.pushing.push_back(from);
        }
        Some(())
    }

    /// Tells a peer that no more comes of a body that it asked for: the memory is not there any
    /// more. It answers that as the end of each body, and so the operation ends here.
    fn withhold(&mut self, peer: PeerId, number: u64, push: Push) {
        let mut packet = Packet::new(Code::Withheld);
        packet.word(push.fetch);
        self.queue(peer, packet);
        if let Some(operation) = self.operations.get_mut(number) {
            operation.push = Some(Push { at: push.end, ..push });
        }
    }

    /// A chunk is free again: the peers that wait for one go on.
    pub(crate) fn released(&mut self) {
        self.pushing.append(&mut self.starved);
    }

    /// Queues the next part of the first body that a peer asked for: each body is sent whole before
    /// the next, so that its receive ends early. False if there is none, or no chunk for it.
    fn push_part(&mut self, peer: PeerId) -> bool {
        let it = self.peers.at(peer);
        let Some(number) = it.pushes.front().copied() else { return false };
        let has_share = it.chunks < self.pool.share();
        let operation = self.operations.get(number);
        let left = |push: &Push| push.at < push.end;
        let push = operation.and_then(|operation| operation.push).filter(left);
        let (Some(push), Some(operation)) = (push, operation) else {
            // It has been sent, or has ended.
            self.peers.at(peer).pushes.pop_front();
            return true;
        };
        let length = (push.end - push.at).min(self.options.chunk_bytes);
        let memory = operation.memory.clone().filter(|_| has_share);
        let chunk = memory.and_then(|memory| self.chunk_for(peer, (&memory, push.at, length)));
        let Some(chunk) = chunk else {
            if !std::mem::replace(&mut self.peers.at(peer).is_pushed, true) {
                self.starved.push_back(peer);
            }
            return false;
        };
        let Ok(chunk) = chunk else {
            self.withhold(peer, number, push);
            return true;
        };
        let first = First { flags: 0, body: Body::Chunk, chunk, length: short(length) };
        let mut packet = Packet::new(Code::Part);
        packet.word(first.word()).word(push.fetch).word(push.at as u64);
        self.queue(peer, packet);
        if let Some(operation) = self.operations.get_mut(number) {
            operation.push = Some(Push { at: push.at + length, ..push });
        }
        true
    }
}
