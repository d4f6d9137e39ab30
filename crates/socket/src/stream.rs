//! One end of a TCP connection over a lane: the BCopy mode of 003 section 5.5.3.2.
//!
//! The kernel's connection stays as it is (the shadow socket); a direction moves to the lane at a
//! byte boundary and stays there. Bytes travel as the messages of Table 5.3:
//!
//! - `VELO`, `VELO_LAST`: messages with payload, for writes up to [`Limits::eager_bytes`].
//! - `RMA_INFO`: a message that announces bytes put into the sink.
//! - `RMA_AVAIL`: the sink's credit, an immediate put instead of a message: a message would queue
//!   behind data that the program does not read, and the two ends could wait for each other.
//! - `SHUTDOWN`: a control word with the number of the last message, for the same reason: close
//!   must never wait for room.
//!
//! # The switch
//! Each end says once that it has the lane ([`SendSide::attach`]); an end that knows the other has
//! it may move its sending direction by posting how many bytes it wrote to TCP before. The reader
//! takes exactly that many from TCP, then the lane. What arrives on TCP behind them are bells:
//! single bytes without meaning that wake whoever sleeps on the kernel's socket. A bell in front
//! of the switch would be taken for data, so an end that must ring moves its own sending direction
//! first ([`SendSide::switch`], which succeeds for whoever has a peer that can wait).
//!
//! A direction that ended on TCP ([`SendSide::shut`]) can ring no more: the other direction then
//! stays on TCP too, unless it moved before, in which case both ends know of the lane and the half
//! close happens there.
//!
//! # Invariants
//! - All state of an end is in [`SendSide`] and [`ReceiveSide`], plain values that are valid when
//!   zeroed, each used under a lock of its own by whichever process holds the end.
//! - Positions are published after the copy they stand for, so a process that dies in between has
//!   moved nothing.
//! - Whatever the peer writes gives bytes, an end or an error, never a panic or a loop.

use weft_fabric::{Lane, ReceiveCursor, SendCursor, WaitFor};

/// Which end of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// It accepted: it made the lane, so the other end may rely on it.
    Accepted,
    /// It connected: it says when it has the lane.
    Connected,
}

/// Tunable sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Writes up to this many bytes go as messages, longer ones through the sink.
    pub eager_bytes: usize,
    /// Bytes put before they are announced.
    pub chunk_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { eager_bytes: 480, chunk_bytes: 16 << 10 }
    }
}

/// Longest chunk, whatever the limits say.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Tags of Table 5.3.
mod tag {
    pub const VELO: u8 = 1;
    pub const VELO_LAST: u8 = 2;
    pub const RMA_INFO: u8 = 3;
}

/// Control words.
mod word {
    /// 1 when the end has the lane.
    pub const ATTACHED: usize = 0;
    /// Bytes written to TCP before the switch, plus one.
    pub const SWITCHED: usize = 1;
    /// `(messages sent + 1) << 2 | how`.
    pub const CLOSED: usize = 2;
    /// Bytes that the end's receive buffer holds, 0 when its program did not fix that.
    pub const RECEIVE_BUFFER: usize = 3;
}

/// How a direction ended.
pub mod closed {
    /// The writing half is shut; the other still reads.
    pub const WRITING: u64 = 0;
    /// Closed in both directions, everything received was read.
    pub const ORDERLY: u64 = 1;
    /// Closed with unread data, or aborted: the other end gets a reset.
    pub const RESET: u64 = 2;
    pub(super) const MASK: u64 = 3;
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Bytes accepted, at least 1 unless none were given.
    pub bytes: usize,
    /// The caller must ring the peer.
    pub ring: bool,
}

/// Why a write did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// No room; arm [`WaitFor::Room`] and try again.
    Full,
    /// This side shut its writing half, or the peer closed: EPIPE.
    Closed,
    /// The peer aborted: ECONNRESET.
    Reset,
}

/// What a read did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Bytes copied.
    pub bytes: usize,
    /// The caller must ring the peer.
    pub ring: bool,
}

/// Why a read gave nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// Nothing there; arm [`WaitFor::Data`] and try again.
    Empty,
    /// The peer ended its direction in order, and all of it was read.
    Ended,
    /// The peer aborted, or wrote what no peer of ours writes: ECONNRESET.
    Reset,
}

/// Where the next bytes of the receiving direction come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From TCP, at most so many: behind them come bells.
    Tcp {
        /// `None` while the peer has not switched.
        at_most: Option<u64>,
    },
    /// From the lane.
    Lane,
}

/// The sending direction of an end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SendSide {
    cursor: SendCursor,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Bytes that the send buffer holds, 0 when the program did not fix that.
    send_buffer: u64,
    switched: bool,
    shut: bool,
}

impl SendSide {
    /// Tells the peer that this end has the lane. Once, before anything else.
    ///
    /// Before any thread of this end uses the lane. One that sleeps on TCP knows nothing of it, so
    /// the word for data is armed for whoever that may be. With the fence of the sleepers: either
    /// this end sees that the other ended on TCP, or the other sees this one
    /// ([`SendSide::shut`]).
    pub fn attach<L: Lane>(lane: &L) {
        lane.arm(WaitFor::Data);
        lane.post(word::ATTACHED, 1);
        lane.settle();
    }

    /// True when the peer has the lane, so that data sent there will be read.
    #[inline]
    pub fn peer_attached<L: Lane>(lane: &L, side: Side) -> bool {
        side == Side::Connected || lane.posted(word::ATTACHED) == 1
    }

    /// Moves this direction to the lane if the peer has it; true when it is there.
    #[inline]
    pub fn switch<L: Lane>(&mut self, lane: &L, side: Side) -> bool {
        if self.switched {
            return true;
        }
        if self.shut || !Self::peer_attached(lane, side) || Self::peer_ended_on_tcp(lane) {
            return false;
        }
        lane.post(word::SWITCHED, self.tcp_bytes + 1);
        self.switched = true;
        true
    }

    /// The peer ended its direction before it moved: it sends no bells any more.
    fn peer_ended_on_tcp<L: Lane>(lane: &L) -> bool {
        lane.posted(word::CLOSED) != 0 && lane.posted(word::SWITCHED) == 0
    }

    /// True when this direction is on the lane.
    #[must_use]
    pub const fn switched(&self) -> bool {
        self.switched
    }

    /// Bytes went to TCP, before the switch.
    pub fn wrote_tcp(&mut self, bytes: usize) {
        assert!(!self.switched || bytes == 0, "nothing but bells goes to TCP after the switch");
        self.tcp_bytes += bytes as u64;
    }

    /// The program fixed the sizes of its kernel buffers to so many bytes, 0 where it did not.
    ///
    /// As on TCP, what is on its way is then at most what the sender's and the receiver's buffer
    /// hold together; a size that nobody fixed grows beyond the sink.
    pub fn fix_buffers<L: Lane>(&mut self, lane: &L, send: u64, receive: u64) {
        self.send_buffer = send;
        lane.post(word::RECEIVE_BUFFER, receive);
    }

    /// Bytes of the peer's sink that may be used.
    #[inline]
    fn capacity<L: Lane>(&self, lane: &L) -> u64 {
        let sink = lane.sink_bytes();
        if self.send_buffer == 0 {
            return sink;
        }
        match lane.posted(word::RECEIVE_BUFFER) {
            0 => sink,
            held => self.send_buffer.saturating_add(held).min(sink),
        }
    }

    /// Free bytes of that, at least `wanted` if that many are free.
    #[inline]
    fn sink_free<L: Lane>(&mut self, lane: &L, wanted: u64) -> u64 {
        let beyond = lane.sink_bytes() - self.capacity(lane);
        lane.sink_free(&mut self.cursor, wanted + beyond).saturating_sub(beyond)
    }

    /// Writes as much of `parts` as there is room for.
    ///
    /// # Errors
    /// [`WriteError`]; nothing was written then.
    pub fn write<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        limits: Limits,
    ) -> Result<Written, WriteError> {
        assert!(self.switched, "the direction moves to the lane before it is written to");
        if self.shut {
            return Err(WriteError::Closed);
        }
        match lane.posted(word::CLOSED) {
            0 => {}
            value => match value & closed::MASK {
                closed::WRITING => {}
                closed::RESET => return Err(WriteError::Reset),
                _ => return Err(WriteError::Closed),
            },
        }
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = match parts {
            _ if total == 0 => return Ok(Written { bytes: 0, ring: false }),
            _ if total <= L::MESSAGE_BYTES => self.send_one(lane, parts, total),
            _ if total <= limits.eager_bytes => self.send_many(lane, parts, total),
            _ => self.put_all(lane, parts, total, limits),
        };
        if bytes == 0 {
            return Err(WriteError::Full);
        }
        self.lane_bytes += bytes as u64;
        lane.account(self.lane_bytes);
        Ok(Written { bytes, ring: lane.must_ring(WaitFor::Data) })
    }

    #[inline]
    fn send_one<L: Lane>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        match lane.send(&mut self.cursor, tag::VELO_LAST, parts) {
            Ok(()) => total,
            Err(_) => 0,
        }
    }

    /// Eager: a run of messages, the last one marked.
    fn send_many<L: Lane>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        let mut sent = 0;
        for part in parts {
            for piece in part.chunks(L::MESSAGE_BYTES) {
                let last = sent + piece.len() == total;
                let tag = if last { tag::VELO_LAST } else { tag::VELO };
                if lane.send(&mut self.cursor, tag, &[piece]).is_err() {
                    return sent;
                }
                sent += piece.len();
            }
        }
        sent
    }

    /// Rendezvous put: pieces into the sink, each announced.
    fn put_all<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        total: usize,
        limits: Limits,
    ) -> usize {
        // Small leftovers of room would make small pieces of everything that follows.
        let wanted = (self.capacity(lane) / 4).min(total as u64);
        if self.sink_free(lane, wanted) < wanted {
            return 0;
        }
        let mut written = 0;
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let size = rest.len().min(limits.chunk_bytes.clamp(1, CHUNK_BYTES_MAX));
                let free = self.sink_free(lane, size as u64);
                let size = size.min(usize::try_from(free).unwrap_or(usize::MAX));
                if size == 0 || lane.slots_free(&mut self.cursor, 1) == 0 {
                    return written;
                }
                let (piece, behind) = rest.split_at(size);
                let bytes_before = self.cursor.bytes;
                lane.put(&mut self.cursor, piece);
                let length = u32::try_from(size).expect("a chunk is at most 1 MiB");
                let announcement = length.to_le_bytes();
                if lane.send(&mut self.cursor, tag::RMA_INFO, &[&announcement]).is_err() {
                    // The lane died under us: what nobody learns of was not put.
                    self.cursor.bytes = bytes_before;
                    return written;
                }
                written += size;
                rest = behind;
            }
        }
        written
    }

    /// True when a write of any size would move something.
    pub fn writable<L: Lane>(&mut self, lane: &L) -> bool {
        let sink = self.capacity(lane) / 4;
        let slots = lane.mailbox_depth().min(4);
        self.shut
            || (lane.slots_free(&mut self.cursor, slots) >= slots
                && self.sink_free(lane, sink) >= sink)
            || lane.posted(word::CLOSED) & closed::MASK != closed::WRITING
    }

    /// Ends this direction (see [`closed`]) and returns whether the caller must ring. A direction
    /// that is still on TCP ends by the kernel's own shutdown or close, which wakes as a bell does.
    pub fn close<L: Lane>(&mut self, lane: &L, how: u64) -> bool {
        assert!(how <= closed::RESET, "{how} is not a way to close");
        self.shut = true;
        lane.post(word::CLOSED, (self.cursor.messages + 1) << 2 | how);
        if !self.switched {
            return false;
        }
        let data = lane.must_ring(WaitFor::Data);
        // A half close is nothing to a writer that waits for room; and a word claimed beyond the
        // one bell that is rung would be counted as a second bell.
        data | (how != closed::WRITING && lane.must_ring(WaitFor::Room))
    }

    /// Ends this direction and leaves the other alone. On the lane that is `Some`, with whether the
    /// caller must ring; `None` asks for the kernel's own half close.
    ///
    /// A peer that attaches later, or right now, learns that no bells will come and stays on TCP.
    pub fn shut<L: Lane>(&mut self, lane: &L, side: Side) -> Option<bool> {
        if self.switch(lane, side) {
            return Some(self.close(lane, closed::WRITING));
        }
        lane.post(word::CLOSED, 1 << 2 | closed::WRITING);
        lane.settle();
        // Attached meanwhile: it may have moved already, and needs bells from here.
        let rings = self.switch(lane, side).then(|| self.close(lane, closed::WRITING));
        self.shut = true;
        rings
    }

    /// True after [`SendSide::close`].
    #[must_use]
    pub const fn is_shut(&self) -> bool {
        self.shut
    }

    /// True while the peer has not taken everything sent on the lane.
    pub fn unread_by_peer<L: Lane>(&mut self, lane: &L) -> bool {
        lane.slots_free(&mut self.cursor, u64::MAX);
        lane.sink_free(&mut self.cursor, u64::MAX);
        // Bytes of the sink come back at once.
        if self.cursor.bytes != self.cursor.bytes_taken {
            return true;
        }
        match lane.messages_read() {
            Some(read) => read != self.cursor.messages,
            // Slots come back in batches; whatever is beyond one batch was certainly not read.
            None => {
                let slots = self.cursor.messages - self.cursor.messages_taken;
                slots > lane.mailbox_depth() / 4
            }
        }
    }

    /// Bytes sent: over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}

/// Where the reader stands.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Position {
    cursor: ReceiveCursor,
    /// Bytes of the message at the head that were read.
    slot_offset: usize,
    /// Announced bytes of the sink that were not read.
    chunk_left: u64,
}

/// The receiving direction of an end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReceiveSide {
    position: Position,
    tcp_bytes: u64,
    lane_bytes: u64,
    /// Given back since the peer was last considered for a bell.
    unrung_bytes: u64,
    unrung_messages: u64,
    switched: bool,
    broken: bool,
}

impl ReceiveSide {
    /// Where the next bytes come from. May turn from TCP to the lane at any time; call it again
    /// after reading from TCP ([`ReceiveSide::took_tcp`] does).
    #[inline]
    pub fn origin<L: Lane>(&mut self, lane: &L) -> Origin {
        if self.switched {
            return Origin::Lane;
        }
        match lane.posted(word::SWITCHED) {
            0 => Origin::Tcp { at_most: None },
            value if value - 1 <= self.tcp_bytes => {
                self.switched = true;
                Origin::Lane
            }
            value => Origin::Tcp { at_most: Some(value - 1 - self.tcp_bytes) },
        }
    }

    /// `bytes` were read (or, with `peek`, looked at) from TCP while [`ReceiveSide::origin`] said
    /// so. Returns how many of them are data; the rest are bells that came behind a switch.
    pub fn took_tcp<L: Lane>(&mut self, lane: &L, bytes: usize, peek: bool) -> usize {
        assert!(!self.switched, "after the switch only bells come from TCP");
        let data = match lane.posted(word::SWITCHED) {
            0 => bytes,
            value => {
                let left = (value - 1).saturating_sub(self.tcp_bytes);
                bytes.min(usize::try_from(left).unwrap_or(usize::MAX))
            }
        };
        if !peek {
            self.tcp_bytes += data as u64;
        }
        data
    }

    /// `bytes` were read from TCP while there was no lane, so that all of them are data.
    pub fn took_tcp_alone(&mut self, bytes: usize) {
        self.tcp_bytes += bytes as u64;
    }

    /// True when this direction is on the lane.
    #[must_use]
    pub const fn switched(&self) -> bool {
        self.switched
    }

    /// Copies what has arrived on the lane, without taking it when `peek`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read<L: Lane>(
        &mut self,
        lane: &L,
        target: &mut [u8],
        peek: bool,
    ) -> Result<Reading, ReadError> {
        if self.broken {
            return Err(ReadError::Reset);
        }
        let mut walk = Walk { position: self.position, skip: 0 };
        let mut filled = 0;
        while filled < target.len() {
            let more = self.step(lane, &mut walk, &mut target[filled..], peek);
            match more {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if filled == 0 && !target.is_empty() {
            return Err(self.why_empty(lane));
        }
        if peek {
            return Ok(Reading { bytes: filled, ring: false });
        }
        self.lane_bytes += filled as u64;
        Ok(Reading { bytes: filled, ring: self.gave_room(lane) })
    }

    /// Copies from the chunk or message at the head; 0 when nothing is there.
    #[inline]
    fn step<L: Lane>(
        &mut self,
        lane: &L,
        walk: &mut Walk,
        target: &mut [u8],
        peek: bool,
    ) -> Result<usize, ReadError> {
        loop {
            if walk.position.chunk_left > 0 {
                return Ok(self.step_chunk(lane, walk, target, peek));
            }
            let slot = match lane.peek(&walk.position.cursor) {
                Ok(Some(slot)) => slot,
                Ok(None) => return Ok(0),
                Err(_) => return Err(self.break_off()),
            };
            let length = usize::from(slot.length);
            match slot.tag {
                tag::VELO | tag::VELO_LAST if walk.position.slot_offset < length => {
                    let offset = walk.position.slot_offset;
                    let size = (length - offset).min(target.len());
                    lane.read(&walk.position.cursor, offset, &mut target[..size]);
                    walk.position.slot_offset += size;
                    if walk.position.slot_offset == length {
                        walk.position.slot_offset = 0;
                        self.pass(lane, walk, peek);
                    } else if !peek {
                        self.position = walk.position;
                    }
                    return Ok(size);
                }
                tag::RMA_INFO if length == 4 => {
                    let mut bytes = [0; 4];
                    lane.read(&walk.position.cursor, 0, &mut bytes);
                    let chunk = u64::from(u32::from_le_bytes(bytes));
                    if chunk == 0 || chunk > lane.sink_bytes() {
                        return Err(self.break_off());
                    }
                    walk.position.chunk_left = chunk;
                    self.pass(lane, walk, peek);
                }
                _ => return Err(self.break_off()),
            }
        }
    }

    fn step_chunk<L: Lane>(
        &mut self,
        lane: &L,
        walk: &mut Walk,
        target: &mut [u8],
        peek: bool,
    ) -> usize {
        let left = usize::try_from(walk.position.chunk_left).unwrap_or(usize::MAX);
        let size = left.min(target.len());
        lane.view(&walk.position.cursor, walk.skip, &mut target[..size]);
        walk.position.chunk_left -= size as u64;
        if peek {
            walk.skip += size as u64;
        } else {
            // The position moves before the room is given back: whoever dies in between has read
            // the bytes once, and the peer misses a credit that no one waits for any more.
            let mut cursor = walk.position.cursor;
            cursor.bytes = cursor.bytes.wrapping_add(size as u64);
            self.position = Position { cursor, ..walk.position };
            lane.release(&mut walk.position.cursor, size as u64);
            self.unrung_bytes += size as u64;
        }
        size
    }

    /// Goes past the message at the head.
    fn pass<L: Lane>(&mut self, lane: &L, walk: &mut Walk, peek: bool) {
        if peek {
            walk.position.cursor.messages = walk.position.cursor.messages.wrapping_add(1);
            return;
        }
        lane.advance(&mut walk.position.cursor, false);
        self.position = walk.position;
        self.unrung_messages += 1;
    }

    fn break_off(&mut self) -> ReadError {
        self.broken = true;
        ReadError::Reset
    }

    /// Whether the peer, if it waits for room, is to be rung: when a good part came free, or when
    /// nothing is left to read, so that it can never wait for what will not come.
    fn gave_room<L: Lane>(&mut self, lane: &L) -> bool {
        let much = self.unrung_bytes >= lane.sink_bytes() / 4
            || self.unrung_messages >= lane.mailbox_depth() / 2;
        if !much && !self.is_drained(lane) {
            return false;
        }
        self.unrung_bytes = 0;
        self.unrung_messages = 0;
        lane.must_ring(WaitFor::Room)
    }

    fn is_drained<L: Lane>(&self, lane: &L) -> bool {
        self.position.chunk_left == 0 && matches!(lane.peek(&self.position.cursor), Ok(None))
    }

    fn why_empty<L: Lane>(&self, lane: &L) -> ReadError {
        match self.ended(lane) {
            None => ReadError::Empty,
            Some(closed::RESET) => ReadError::Reset,
            Some(_) => ReadError::Ended,
        }
    }

    /// How the peer ended its direction, once everything before was read.
    #[inline]
    pub fn ended<L: Lane>(&self, lane: &L) -> Option<u64> {
        let value = lane.posted(word::CLOSED);
        // A message sent before the end is visible with it, so an end that counts more messages
        // than were read means: look again.
        let read_all =
            value != 0 && (value >> 2).saturating_sub(1) <= self.position.cursor.messages;
        (read_all && self.position.chunk_left == 0).then_some(value & closed::MASK)
    }

    /// How the peer closed, whether or not everything was read.
    pub fn peer_closed<L: Lane>(lane: &L) -> Option<u64> {
        match lane.posted(word::CLOSED) {
            0 => None,
            value => Some(value & closed::MASK),
        }
    }

    /// True when a read would not be [`ReadError::Empty`].
    #[inline]
    pub fn readable<L: Lane>(&self, lane: &L) -> bool {
        self.broken || !self.is_drained(lane) || self.ended(lane).is_some()
    }

    /// True while data lies unread.
    pub fn has_data<L: Lane>(&self, lane: &L) -> bool {
        !self.is_drained(lane)
    }

    /// How many messages arrived in all, one more after the peer's end: when this grows, there is
    /// an edge. `from` is what was answered before.
    pub fn arrived<L: Lane>(&self, lane: &L, from: u64) -> u64 {
        let taken = self.position.cursor.messages;
        // A mailbox holds no more, though a hostile peer could fill slots as fast as we look.
        let arrived_max = taken.wrapping_add(lane.mailbox_depth());
        let mut probe = self.position.cursor;
        probe.messages = from.clamp(taken, arrived_max.max(taken));
        while probe.messages < arrived_max && matches!(lane.peek(&probe), Ok(Some(_))) {
            probe.messages += 1;
        }
        probe.messages + u64::from(lane.posted(word::CLOSED) != 0)
    }

    /// Bytes that can be read at once (FIONREAD), as far as what the peer wrote makes sense.
    pub fn available<L: Lane>(&self, lane: &L) -> u64 {
        let mut cursor = self.position.cursor;
        let mut messages = 0;
        let mut chunks = self.position.chunk_left;
        let mut offset = self.position.slot_offset as u64;
        for _ in 0..lane.mailbox_depth() {
            let Ok(Some(slot)) = lane.peek(&cursor) else { break };
            if slot.tag == tag::RMA_INFO {
                let mut bytes = [0; 4];
                lane.read(&cursor, 0, &mut bytes);
                chunks = chunks.saturating_add(u64::from(u32::from_le_bytes(bytes)));
            } else {
                messages += u64::from(slot.length).saturating_sub(offset);
            }
            offset = 0;
            cursor.messages = cursor.messages.wrapping_add(1);
        }
        messages + chunks.min(lane.sink_bytes())
    }

    /// Bytes received: over TCP and over the lane.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.tcp_bytes, self.lane_bytes)
    }
}

/// A read in progress: the position it is at, and what a peek went past in the sink.
struct Walk {
    position: Position,
    skip: u64,
}
