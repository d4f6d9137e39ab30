//! Writes to the lane, as messages or through the peer's sink.

use weft_fabric::{Carry, Lane, WaitFor};

use super::SendSide;
use crate::route::{presence, word};
use crate::state::SendState;
use crate::stream::{CHUNK_BYTES_MAX, Limits, WriteError, Written, closed, tag};

impl SendSide {
    /// True if the program set buffer sizes that hold less than the sink. A write must then stop
    /// where it would stop on TCP.
    pub fn has_small_buffers<L: Carry>(&self, lane: &L) -> bool {
        self.capacity(lane) < lane.sink_bytes()
    }

    /// Notes the sizes in bytes that the program set for its kernel buffers, 0 for one that it did
    /// not set.
    ///
    /// As on TCP, the bytes on their way are then at most what the sender's and the receiver's
    /// buffer hold together. A buffer without a set size can grow beyond the sink.
    pub fn fix_buffers<L: Carry>(&mut self, lane: &L, send: u64, receive: u64) {
        self.send_buffer = send;
        lane.post(word::RECEIVE_BUFFER, receive);
    }

    /// Number of bytes of the peer's sink that may be used.
    #[inline]
    fn capacity<L: Carry>(&self, lane: &L) -> u64 {
        let sink = lane.sink_bytes();
        if self.send_buffer == 0 {
            return sink;
        }
        match lane.posted(word::RECEIVE_BUFFER) {
            0 => sink,
            held => self.send_buffer.saturating_add(held).min(sink),
        }
    }

    /// Number of free bytes of the capacity, at least `wanted` if that many are free.
    #[inline]
    fn sink_free<L: Carry>(&mut self, lane: &L, wanted: u64) -> u64 {
        let beyond = lane.sink_bytes() - self.capacity(lane);
        lane.sink_free(&mut self.cursor, wanted + beyond).saturating_sub(beyond)
    }

    /// Writes as many bytes of `parts` as there is room for.
    ///
    /// # Errors
    /// [`WriteError`], if no byte was written.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "a call costs a short write 5 % of its instructions")]
    pub fn write<L: Lane>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        limits: Limits,
    ) -> Result<Written, WriteError> {
        match self.state.get() {
            SendState::Open if self.on_lane() => {}
            SendState::Shut => return Err(WriteError::Closed),
            // An open direction is not on the lane. The caller had to move it there first.
            SendState::Open | SendState::Broken => return Err(self.break_off()),
        }
        match lane.posted(word::CLOSED) {
            0 => {}
            value => match value & closed::MASK {
                closed::WRITING => {}
                closed::RESET => return Err(WriteError::Reset),
                _ => return Err(WriteError::Closed),
            },
        }
        if lane.is_over() {
            return Err(self.why_over(lane));
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
        self.lane_bytes = self.lane_bytes.wrapping_add(bytes as u64);
        self.stream = self.stream.wrapping_add(bytes as u64);
        lane.account(self.lane_bytes);
        Ok(Written { bytes, ring: lane.must_ring(WaitFor::Data) })
    }

    /// The error of a write to a lane that is over without a goodbye. A peer whose process ended by
    /// itself, and had read all, is one that closed.
    #[cold]
    fn why_over<L: Carry>(&mut self, lane: &L) -> WriteError {
        let ended = presence::taken_at_end(lane).is_some() && !self.unread_by_peer(lane);
        if ended { WriteError::Closed } else { WriteError::Reset }
    }

    #[inline]
    fn send_one<L: Carry>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
        match lane.send(&mut self.cursor, tag::VELO_LAST, parts) {
            Ok(()) => total,
            Err(_) => 0,
        }
    }

    /// Sends an eager write as several messages and marks the last one.
    fn send_many<L: Carry>(&mut self, lane: &L, parts: &[&[u8]], total: usize) -> usize {
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

    /// Puts pieces into the sink and announces each.
    fn put_all<L: Carry>(
        &mut self,
        lane: &L,
        parts: &[&[u8]],
        total: usize,
        limits: Limits,
    ) -> usize {
        // Without this bound, a little free room would cut all later writes into small pieces.
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
                    // The lane died. The peer never learns of this piece, so it does not count as
                    // put.
                    self.cursor.bytes = bytes_before;
                    return written;
                }
                written += size;
                rest = behind;
            }
        }
        written
    }

    /// True if a write of any size would move at least one byte, or fail at once.
    pub fn writable<L: Carry>(&mut self, lane: &L) -> bool {
        let sink = self.capacity(lane) / 4;
        let slots = lane.mailbox_depth().min(4);
        self.is_shut()
            || lane.is_over()
            || (lane.slots_free(&mut self.cursor, slots) >= slots
                && self.sink_free(lane, sink) >= sink)
            || lane.posted(word::CLOSED) & closed::MASK != closed::WRITING
    }
}
