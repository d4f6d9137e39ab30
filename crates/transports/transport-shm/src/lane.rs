//! A lane: two rings and two sinks in one segment, mapped by its two ends only.
//!
//! ```text
//! 0      layout: magic, version, slots, sink bytes      (written once, read once)
//! 64     words of a lane in reserve                     (`reserve`)
//! 512    block of direction 0 (end 0 sends)             words, see `Block`
//! 1024   block of direction 1 (end 1 sends)
//! 4096   slots of direction 0, slots of direction 1
//! …      sink of direction 0, sink of direction 1       page aligned
//! ```
//!
//! Untouched pages take no memory, so an idle lane takes one page.
//!
//! # Invariants
//! - The layout is checked against the size of the segment when the lane is opened. It is never
//!   read again, so the peer cannot change it afterwards.
//! - Positions in a sink are 64-bit byte counts, reduced modulo the size of the sink at each use.
//! - A byte count that the peer reports as taken is ignored when it exceeds the bytes put.

pub mod nap;
pub mod reserve;
pub mod tap;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use thiserror::Error;
use weft_fabric::{
    Attention, Carry, LaneClosed, LaneFull, Medium, ReceiveCursor, SendCursor, Slot, WaitFor, Wake,
};
use weft_memory::{CopyMode, Segment, SegmentError};
use weft_sync::fence;

use crate::ring::{Ring, SLOT_BYTES};
use crate::sleeper::{Asking, Sleeper};
use crate::slot::{Direction, DirectionWords};

/// Sizes of a lane. Both directions have the same sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneLayout {
    /// Slots of a mailbox, a power of two, 16 to 65,536.
    pub slots: u32,
    /// Bytes of a sink, a power of two, 4 KiB to 1 GiB.
    pub sink_bytes: u32,
}

impl LaneLayout {
    /// Bytes of the largest segment that the options allow.
    pub const BYTES_MAX: u64 = 64 << 20;

    /// Whether the sizes are within their bounds.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.slots.is_power_of_two()
            && (16..=65_536).contains(&self.slots)
            && self.sink_bytes.is_power_of_two()
            && (4096..=1 << 30).contains(&self.sink_bytes)
    }

    /// Bytes of the segment.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.sink_start(0) + 2 * self.sink_bytes as usize
    }

    fn slots_start(self, direction: usize) -> usize {
        HEADER_BYTES + direction * self.slots as usize * SLOT_BYTES
    }

    fn sink_start(self, direction: usize) -> usize {
        let slots_end = self.slots_start(2);
        slots_end.next_multiple_of(4096) + direction * self.sink_bytes as usize
    }
}

/// Why a descriptor could not be opened as a lane.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The memory cannot be mapped or is not sealed.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The header is not that of a lane.
    #[error("the memory passed is not a lane of version {VERSION} with valid sizes")]
    InvalidLayout,
}

const MAGIC: u64 = u64::from_le_bytes(*b"weftlane");
const VERSION: u32 = 10;
const HEADER_BYTES: usize = 4096;
const BLOCK_START: usize = 512;
const BLOCK_BYTES: usize = 512;
/// Number of control words of an end.
const WORDS: usize = <ShmLane as Carry>::WORDS;

/// The shared words of one direction. Each group of words has one writer and its own cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Block {
    // Written by the receiver.
    taken: AtomicU64,
    sink_taken: AtomicU64,
    data_attention: AtomicU32,
    receiver_sleeps: Sleeper,
    messages_read: AtomicU64,
    data_nap: AtomicU32,
    receiver_pad: [AtomicU32; 7],
    // Written by the sender.
    room_attention: AtomicU32,
    sender_sleeps: Sleeper,
    room_nap: AtomicU32,
    sender_pad: [AtomicU32; 13],
    // Written by the sender, rarely.
    words: [AtomicU64; WORDS],
    words_pad: [AtomicU64; 16 - WORDS],
    // Written by the sender at each write, read by the node daemon from time to time.
    stream_bytes: AtomicU64,
}

// SAFETY: all fields are atomics.
unsafe impl DirectionWords for Block {
    #[inline]
    fn taken(&self) -> &AtomicU64 {
        &self.taken
    }
}

/// Offsets of the two sinks.
#[derive(Clone, Copy, Debug)]
struct Sinks {
    sends: usize,
    receives: usize,
}

/// One end of a lane in shared memory.
#[derive(Debug)]
pub struct ShmLane {
    segment: Arc<Segment>,
    layout: LaneLayout,
    sends: Direction<Block>,
    receives: Direction<Block>,
    /// Where the sinks of the two directions begin in the segment.
    sinks: Sinks,
    copy: CopyMode,
    /// This process or the peer lacks the asymmetric fence.
    full_fences: bool,
}

impl ShmLane {
    /// Makes a lane and returns its end 0 and the descriptor for end 1.
    ///
    /// # Errors
    /// [`LaneError`].
    pub fn create(layout: LaneLayout, copy: CopyMode) -> Result<(Self, OwnedFd), LaneError> {
        if !layout.is_valid() {
            return Err(LaneError::InvalidLayout);
        }
        let (segment, file) = Segment::create("weft-lane", layout.bytes())?;
        segment.word32(8).store(VERSION, Ordering::Relaxed);
        segment.word32(12).store(layout.slots, Ordering::Relaxed);
        segment.word32(16).store(layout.sink_bytes, Ordering::Relaxed);
        segment.word64(0).store(MAGIC, Ordering::Release);
        Ok((Self::with_segment(segment, layout, 0, copy), file))
    }

    /// Opens end `side` of a lane that another process made.
    ///
    /// # Errors
    /// [`LaneError`] when the memory is not a sealed memfd or its layout does not fit its size.
    pub fn open(file: BorrowedFd<'_>, side: usize, copy: CopyMode) -> Result<Self, LaneError> {
        assert!(side < 2, "a lane has two ends");
        let (segment, layout) = Self::mapped(file)?;
        Ok(Self::with_segment(segment, layout, side, copy))
    }

    /// The memory of a lane, and its sizes.
    fn mapped(file: BorrowedFd<'_>) -> Result<(Segment, LaneLayout), LaneError> {
        let length = Segment::sealed_length(file)?;
        let length = usize::try_from(length).map_err(|_| LaneError::InvalidLayout)?;
        if length < HEADER_BYTES {
            return Err(LaneError::InvalidLayout);
        }
        let segment = Segment::open(file, length, true)?;
        let layout = LaneLayout {
            slots: segment.word32(12).load(Ordering::Relaxed),
            sink_bytes: segment.word32(16).load(Ordering::Relaxed),
        };
        let ours = segment.word64(0).load(Ordering::Acquire) == MAGIC
            && segment.word32(8).load(Ordering::Relaxed) == VERSION;
        if !ours || !layout.is_valid() || layout.bytes() != length {
            return Err(LaneError::InvalidLayout);
        }
        Ok((segment, layout))
    }

    fn with_segment(segment: Segment, layout: LaneLayout, side: usize, copy: CopyMode) -> Self {
        let segment = Arc::new(segment);
        let direction = |number: usize| {
            let words = BLOCK_START + number * BLOCK_BYTES;
            Direction::new(&segment, words, layout.slots_start(number), layout.slots)
        };
        let (sends, receives) = (direction(side), direction(1 - side));
        let sinks = Sinks { sends: layout.sink_start(side), receives: layout.sink_start(1 - side) };
        let mut lane = Self { segment, layout, sends, receives, sinks, copy, full_fences: false };
        lane.full_fences = !lane.open_sleepers();
        lane
    }

    /// Records in the sleeper words whether this process has the asymmetric fence, and returns it.
    fn open_sleepers(&self) -> bool {
        let has_heavy_fence = fence::register();
        for what in [WaitFor::Data, WaitFor::Room] {
            self.own_sleeper(what).open(has_heavy_fence);
        }
        has_heavy_fence
    }

    /// Bytes of the stream that each side sent, read from the descriptor without mapping the lane.
    ///
    /// # Errors
    /// [`SegmentError::Os`] when the descriptor cannot be read.
    pub fn stream_bytes(file: BorrowedFd<'_>) -> Result<[u64; 2], SegmentError> {
        let mut bytes = [0; 2];
        for (direction, value) in bytes.iter_mut().enumerate() {
            let start = BLOCK_START + direction * BLOCK_BYTES;
            let offset = start + std::mem::offset_of!(Block, stream_bytes);
            let mut word = [0; 8];
            rustix::io::pread(file, &mut word, offset as u64).map_err(|e| SegmentError::Os {
                call: "pread",
                length: word.len(),
                errno: e.raw_os_error(),
            })?;
            *value = u64::from_le_bytes(word);
        }
        Ok(bytes)
    }

    /// Sets bits of a control word, as if each of the two ends had posted them. For the node
    /// daemon, which is at neither end.
    ///
    /// # Errors
    /// [`LaneError`] when the memory is not that of a lane.
    ///
    /// # Panics
    /// When there is no such word.
    pub fn raise(file: BorrowedFd<'_>, word: usize, bits: u64) -> Result<(), LaneError> {
        assert!(word < WORDS, "a lane has {WORDS} words, and not one of number {word}");
        let (segment, _) = Self::mapped(file)?;
        for direction in 0..2 {
            let words = BLOCK_START + direction * BLOCK_BYTES + std::mem::offset_of!(Block, words);
            segment.word64(words + 8 * word).fetch_or(bits, Ordering::Release);
        }
        Ok(())
    }

    /// The sizes in force.
    #[must_use]
    pub const fn layout(&self) -> LaneLayout {
        self.layout
    }

    #[inline]
    fn outgoing(&self) -> &Block {
        &self.sends.words
    }

    #[inline]
    fn incoming(&self) -> &Block {
        &self.receives.words
    }

    /// The attention word that this end arms when it waits for `what`.
    #[inline]
    fn own_attention(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => &self.incoming().data_attention,
            WaitFor::Room => &self.outgoing().room_attention,
        }
    }

    /// The attention word that the peer arms when it waits for `what`.
    #[inline]
    fn peer_attention(&self, what: WaitFor) -> &AtomicU32 {
        match what {
            WaitFor::Data => &self.outgoing().data_attention,
            WaitFor::Room => &self.incoming().room_attention,
        }
    }

    /// True if the peer has armed its word for `what`.
    #[inline]
    fn is_armed(&self, what: WaitFor) -> bool {
        self.peer_attention(what).load(Ordering::Relaxed) == Attention::Armed as u32
    }

    #[inline]
    fn own_sleeper(&self, what: WaitFor) -> &Sleeper {
        match what {
            WaitFor::Data => &self.incoming().receiver_sleeps,
            WaitFor::Room => &self.outgoing().sender_sleeps,
        }
    }

    #[inline]
    fn peer_sleeper(&self, what: WaitFor) -> &Sleeper {
        match what {
            WaitFor::Data => &self.outgoing().receiver_sleeps,
            WaitFor::Room => &self.incoming().sender_sleeps,
        }
    }

    /// As [`Wake::settle`], and cheaper for an end that sleeps often. The caller has armed `what`
    /// and is about to look once more and sleep. When the result is some, [`fence::heavy`] and then
    /// [`ShmLane::slept`] must follow; one heavy fence serves any number of lanes.
    #[must_use]
    pub fn sleeps(&self, what: WaitFor) -> Option<Asking> {
        self.own_sleeper(what).fence_of_owner()
    }

    /// Completes [`ShmLane::sleeps`], after the heavy fence.
    pub fn slept(&self, what: WaitFor, asking: Asking) {
        self.own_sleeper(what).agree(asking);
    }

    /// The kernel refused the heavy fence although it had registered this process: a filter of
    /// system calls was set. From now on the peer executes full fences for this end.
    #[cold]
    pub fn lost_heavy_fence(&self) {
        for what in [WaitFor::Data, WaitFor::Room] {
            self.own_sleeper(what).open(false);
        }
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// This end waited for `what` and found it without sleeping.
    #[inline]
    pub fn found_awake(&self, what: WaitFor) {
        self.own_sleeper(what).found_awake();
    }

    /// The one or two segment ranges (offset, length) of `length` bytes at `position` of the sink
    /// at `start`. The second range is empty unless the bytes wrap around the end of the sink.
    #[inline]
    fn pieces(&self, start: usize, position: u64, length: usize) -> [(usize, usize); 2] {
        let size = self.layout.sink_bytes as usize;
        assert!(length <= size, "{length} bytes do not fit a sink of {size}");
        let at = usize::try_from(position & (size as u64 - 1)).expect("below the sink's size");
        let first = length.min(size - at);
        [(start + at, first), (start, length - first)]
    }
}

impl ShmLane {
    /// Copies bytes from `position` of the sink at `start` into `target`.
    fn copy_out(&self, start: usize, position: u64, target: &mut [u8]) {
        let [(first, length), (second, _)] = self.pieces(start, position, target.len());
        let (head, tail) = target.split_at_mut(length);
        self.segment.read(first, head);
        if !tail.is_empty() {
            self.segment.read(second, tail);
        }
    }
}

impl Carry for ShmLane {
    const WORDS: usize = 14;

    fn mailbox_depth(&self) -> u64 {
        u64::from(self.layout.slots)
    }

    fn sink_bytes(&self) -> u64 {
        u64::from(self.layout.sink_bytes)
    }

    #[inline]
    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        Ring::new(&self.sends).free(cursor, wanted)
    }

    #[inline]
    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let known = |cursor: &SendCursor| {
            self.sink_bytes().saturating_sub(cursor.bytes.wrapping_sub(cursor.bytes_taken))
        };
        if known(cursor) < wanted {
            let taken = self.outgoing().sink_taken.load(Ordering::Acquire);
            let outstanding = cursor.bytes.wrapping_sub(cursor.bytes_taken);
            if taken.wrapping_sub(cursor.bytes_taken) <= outstanding {
                cursor.bytes_taken = taken;
            }
        }
        known(cursor)
    }

    #[inline]
    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        Ring::new(&self.sends).send(cursor, tag, 0, parts)
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        let free = self.sink_free(cursor, bytes.len() as u64);
        assert!(
            bytes.len() as u64 <= free,
            "{} bytes do not fit the {free} free bytes of the sink",
            bytes.len()
        );
        let [(first, length), (second, _)] =
            self.pieces(self.sinks.sends, cursor.bytes, bytes.len());
        let (head, tail) = bytes.split_at(length);
        self.segment.write(first, head, self.copy);
        if !tail.is_empty() {
            self.segment.write(second, tail, self.copy);
        }
        cursor.bytes = cursor.bytes.wrapping_add(bytes.len() as u64);
    }

    #[inline]
    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        Ok(Ring::new(&self.receives).peek(cursor)?.map(Slot::from))
    }

    #[inline]
    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        Ring::new(&self.receives).read(cursor, offset, target);
    }

    #[inline]
    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        Ring::new(&self.receives).advance(cursor, flush);
        self.incoming().messages_read.store(cursor.messages, Ordering::Release);
    }

    fn messages_read(&self) -> Option<u64> {
        Some(self.outgoing().messages_read.load(Ordering::Acquire))
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        self.copy_out(self.sinks.receives, cursor.bytes.wrapping_add(skip), target);
    }

    #[inline]
    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        cursor.bytes = cursor.bytes.wrapping_add(length);
        self.incoming().sink_taken.store(cursor.bytes, Ordering::Release);
    }

    fn look_back(&self, message: u64, payload: &mut [u8; 120]) -> Option<Slot> {
        let ring = Ring::new(&self.sends);
        let cursor = ReceiveCursor { messages: message, ..ReceiveCursor::default() };
        let slot = ring.peek(&cursor).ok()??;
        ring.read(&cursor, 0, &mut payload[..usize::from(slot.length)]);
        Some(Slot::from(slot))
    }

    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        if target.len() > self.layout.sink_bytes as usize {
            return false;
        }
        self.copy_out(self.sinks.sends, position, target);
        true
    }

    fn post(&self, word: usize, value: u64) {
        self.outgoing().words[word].store(value, Ordering::Release);
    }

    #[inline]
    fn posted(&self, word: usize) -> u64 {
        self.incoming().words[word].load(Ordering::Acquire)
    }

    #[inline]
    fn medium(&self) -> Medium {
        Medium::Memory
    }

    #[inline]
    fn account(&self, bytes_total: u64) {
        self.outgoing().stream_bytes.store(bytes_total, Ordering::Relaxed);
    }
}

impl Wake for ShmLane {
    fn arm(&self, what: WaitFor) {
        let word = self.own_attention(what);
        let seen = word.load(Ordering::Relaxed);
        if attention(seen) == Attention::Watching {
            // Another thread of this end may have armed the word first, and the peer may have rung.
            let armed = Attention::Armed as u32;
            let _ = word.compare_exchange(seen, armed, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn settle(&self) {
        fence::heavy();
    }

    #[inline]
    fn attention(&self, what: WaitFor) -> Attention {
        attention(self.own_attention(what).load(Ordering::Acquire))
    }

    fn disarm(&self, what: WaitFor) -> bool {
        let word = self.own_attention(what);
        if word.load(Ordering::Relaxed) == Attention::Watching as u32 {
            return false;
        }
        word.swap(Attention::Watching as u32, Ordering::AcqRel) == Attention::Rung as u32
    }

    fn rearm(&self, what: WaitFor) -> bool {
        let (rung, armed) = (Attention::Rung as u32, Attention::Armed as u32);
        self.own_attention(what)
            .compare_exchange(rung, armed, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    #[inline]
    fn is_awaited(&self, what: WaitFor) -> bool {
        let may_nap = self.peer_sleeper(what).fence_of_other(self.full_fences);
        may_nap && self.peer_naps(what) || self.is_armed(what)
    }

    #[inline]
    fn must_ring(&self, what: WaitFor) -> bool {
        if self.peer_sleeper(what).fence_of_other(self.full_fences) && self.peer_naps(what) {
            self.end_nap_of_peer(what);
        }
        if !self.is_armed(what) {
            return false;
        }
        let (armed, rung) = (Attention::Armed as u32, Attention::Rung as u32);
        self.peer_attention(what)
            .compare_exchange(armed, rung, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

const fn attention(value: u32) -> Attention {
    match value {
        1 => Attention::Armed,
        2 => Attention::Rung,
        // The peer may write any value. An unknown value means that no wake-up is needed.
        _ => Attention::Watching,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const LAYOUT: LaneLayout = LaneLayout { slots: 16, sink_bytes: 4096 };

    fn pair() -> (ShmLane, ShmLane) {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
        (one, two)
    }

    #[test]
    fn sixteen_messages_arrive_and_the_17th_does_not_fit() {
        let (one, two) = pair();
        let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
        for number in 0..16u8 {
            one.send(&mut send, number, &[&[number], b"x"]).expect("room");
        }
        assert_eq!(one.send(&mut send, 0, &[b"y"]), Err(LaneFull));
        for number in 0..16u8 {
            let slot = two.peek(&receive).expect("sane").expect("sent");
            let mut payload = [0; 2];
            two.read(&receive, 0, &mut payload);
            assert_eq!((slot.tag, slot.length, payload), (number, 2, [number, b'x']));
            two.advance(&mut receive, false);
        }
        assert_eq!(two.peek(&receive), Ok(None));
        one.send(&mut send, 0, &[b"y"]).expect("the receiver gave slots back");
    }

    #[test]
    fn a_sink_wraps_around_and_gives_room_back() {
        let (one, two) = pair();
        let (mut send, mut receive) = (SendCursor::default(), ReceiveCursor::default());
        for round in 0..100u8 {
            let bytes: Vec<u8> = (0..1000).map(|i: u16| i.to_le_bytes()[0] ^ round).collect();
            assert!(one.sink_free(&mut send, 1000) >= 1000);
            one.put(&mut send, &bytes);
            let mut seen = vec![0; 1000];
            two.view(&receive, 0, &mut seen);
            two.release(&mut receive, 1000);
            assert_eq!(seen, bytes);
        }
    }

    #[test]
    fn hostile_counts_and_lengths_are_not_believed() {
        let (one, two) = pair();
        let (mut send, receive) = (SendCursor::default(), ReceiveCursor::default());
        one.send(&mut send, 0, &[b"x"]).expect("room");
        two.incoming().taken.store(1 << 40, Ordering::Relaxed);
        two.incoming().sink_taken.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(one.slots_free(&mut send, 16), 15);
        assert_eq!(one.sink_free(&mut send, u64::MAX), 4096);
        let slot = one.layout.slots_start(0);
        one.segment.word64(slot).store(1 | 121 << 32, Ordering::Relaxed);
        assert_eq!(two.peek(&receive), Err(LaneClosed));
    }

    #[test]
    fn a_lane_with_a_forged_layout_is_refused() {
        let (segment, file) = Segment::create("weft-test", LAYOUT.bytes()).expect("memory");
        let open = || ShmLane::open(file.as_fd(), 1, CopyMode::Plain).err();
        assert_eq!(open(), Some(LaneError::InvalidLayout));
        segment.word64(0).store(MAGIC, Ordering::Relaxed);
        segment.word32(8).store(VERSION, Ordering::Relaxed);
        for (slots, sink) in [(0, 4096), (15, 4096), (32, 4096), (16, 0), (16, 8192), (16, 4097)] {
            segment.word32(12).store(slots, Ordering::Relaxed);
            segment.word32(16).store(sink, Ordering::Relaxed);
            assert_eq!(open(), Some(LaneError::InvalidLayout), "{slots} {sink}");
        }
    }

    #[test]
    fn bits_are_raised_at_both_ends_beside_those_that_are_there() {
        let (one, file) = ShmLane::create(LAYOUT, CopyMode::Plain).expect("memory");
        let two = ShmLane::open(file.as_fd(), 1, CopyMode::Plain).expect("a lane");
        one.post(3, 8);
        ShmLane::raise(file.as_fd(), 3, 4).expect("a lane");
        assert_eq!((two.posted(3), one.posted(3)), (12, 4));
        assert_eq!((two.posted(2), two.posted(4)), (0, 0));
        let (_, other) = Segment::create("weft-test", 4096).expect("memory");
        assert_eq!(ShmLane::raise(other.as_fd(), 3, 4), Err(LaneError::InvalidLayout));
    }

    #[test]
    fn a_wakeup_is_claimed_once_and_only_when_armed() {
        let (one, two) = pair();
        assert!(!one.must_ring(WaitFor::Data));
        two.arm(WaitFor::Data);
        two.settle();
        assert_eq!(two.attention(WaitFor::Data), Attention::Armed);
        assert!(one.must_ring(WaitFor::Data));
        assert!(!one.must_ring(WaitFor::Data));
        assert!(two.disarm(WaitFor::Data));
        assert!(!two.disarm(WaitFor::Data));
        one.arm(WaitFor::Room);
        one.settle();
        assert!(two.must_ring(WaitFor::Room));
        assert!(!one.must_ring(WaitFor::Data));
    }
}
