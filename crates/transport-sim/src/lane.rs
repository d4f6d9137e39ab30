//! Lanes in virtual time: what one end does becomes visible at the other after the latency, in
//! order.
//!
//! Invariants: nothing is visible before it arrived: neither messages, bytes, control words nor the
//! peer's counts of taken messages and bytes. All clones of an end see the same. Invalid counts of
//! the peer are ignored.
//!
//! # Attention
//! The attention words themselves are visible at once, as on one host. Data published before its
//! receiver armed may still be on its way when the receiver checks. So its arrival rings by itself:
//! the armed word becomes [`Attention::Rung`]. For data published after arming only
//! [`Lane::must_ring`] rings, so that a test finds a sender that forgets to call it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use weft_fabric::{
    Attention, Lane, LaneClosed, LaneFull, ReceiveCursor, SendCursor, Slot, WaitFor,
};

use crate::memory::{bytes_of, index};
use crate::world::SimWorld;

/// The settings of a lane; they hold for both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneSettings {
    /// Capacity of a mailbox in messages, at least 1.
    pub mailbox_depth: u64,
    /// Capacity of a sink in bytes, at least 1.
    pub sink_bytes: u64,
    /// The time until an action of one end becomes visible at the other.
    pub latency_ns: u64,
    /// The largest random addition to the latency. It never reorders.
    pub jitter_ns: u64,
}

impl Default for LaneSettings {
    fn default() -> Self {
        Self { mailbox_depth: 256, sink_bytes: 1 << 16, latency_ns: 850, jitter_ns: 100 }
    }
}

/// One end of a simulated lane. Clones are the same end, as for processes that share it.
#[derive(Clone, Debug)]
pub struct SimLane {
    world: SimWorld,
    shared: Arc<Mutex<Shared>>,
    end: usize,
}

/// The state of both ends.
#[derive(Debug)]
struct Shared {
    settings: LaneSettings,
    /// Numbers all actions, so that two actions at the same time have an order.
    sequence: u64,
    /// The memory of each end, which the other end writes.
    ends: [End; 2],
}

/// The memory of one end.
#[derive(Debug)]
struct End {
    /// Items on their way to this end, in order.
    arriving: VecDeque<Arriving>,
    slots: Vec<SlotMemory>,
    sink: Vec<u8>,
    words: [u64; WORDS],
    /// The peer's counts of what it took from this end.
    messages_taken: u64,
    bytes_taken: u64,
    newest_message: usize,
    data: Word,
    room: Word,
    alive: bool,
    /// When the other end notices the death of this one.
    death_known_at: u64,
    /// When the last item on its way to this end arrives.
    last_arrival: u64,
}

#[derive(Debug)]
struct Arriving {
    time: u64,
    sequence: u64,
    item: Item,
}

#[derive(Debug)]
enum Item {
    Message { number: u64, tag: u8, bytes: Vec<u8> },
    Bytes { at: u64, bytes: Vec<u8> },
    Word { word: usize, value: u64 },
    MessagesTaken(u64),
    BytesTaken(u64),
}

#[derive(Clone, Debug)]
struct SlotMemory {
    /// The number of the slot's message plus one; 0 for none.
    sequence: u64,
    tag: u8,
    length: u8,
    bytes: [u8; MESSAGE_BYTES],
}

/// An attention word.
#[derive(Debug)]
struct Word {
    state: Attention,
    armed_at: u64,
}

const MESSAGE_BYTES: usize = <SimLane as Lane>::MESSAGE_BYTES;
const WORDS: usize = <SimLane as Lane>::WORDS;
/// The slots of a mailbox return in this many batches.
const BATCHES: u64 = 4;

impl SimWorld {
    /// Creates a lane in this world. Returns its two ends.
    ///
    /// # Panics
    /// When a capacity in the settings is zero.
    #[must_use]
    pub fn lane(&self, settings: LaneSettings) -> (SimLane, SimLane) {
        assert!(settings.mailbox_depth >= 1, "a mailbox holds at least one message");
        assert!(settings.sink_bytes >= 1, "a sink holds at least one byte");
        let ends = [End::new(settings), End::new(settings)];
        let shared = Arc::new(Mutex::new(Shared { settings, sequence: 0, ends }));
        let end = |end| SimLane { world: self.clone(), shared: Arc::clone(&shared), end };
        (end(0), end(1))
    }
}

impl End {
    fn new(settings: LaneSettings) -> Self {
        let slot = SlotMemory { sequence: 0, tag: 0, length: 0, bytes: [0; MESSAGE_BYTES] };
        Self {
            arriving: VecDeque::new(),
            slots: vec![slot; index(settings.mailbox_depth)],
            sink: vec![0; index(settings.sink_bytes)],
            words: [0; WORDS],
            messages_taken: 0,
            bytes_taken: 0,
            newest_message: 0,
            data: Word { state: Attention::Watching, armed_at: 0 },
            room: Word { state: Attention::Watching, armed_at: 0 },
            alive: true,
            death_known_at: u64::MAX,
            last_arrival: 0,
        }
    }

    fn word(&mut self, what: WaitFor) -> &mut Word {
        match what {
            WaitFor::Data => &mut self.data,
            WaitFor::Room => &mut self.room,
        }
    }

    /// The slot of message `number`.
    fn slot(&self, number: u64) -> &SlotMemory {
        &self.slots[index(number % bytes_of(self.slots.len()))]
    }

    /// Makes every item visible whose time has come.
    fn arrive(&mut self, now: u64) {
        while self.arriving.front().is_some_and(|arriving| arriving.time <= now) {
            let Some(Arriving { sequence, item, .. }) = self.arriving.pop_front() else { return };
            let wakes = match &item {
                Item::Message { .. } | Item::Word { .. } => Some(WaitFor::Data),
                Item::MessagesTaken(_) | Item::BytesTaken(_) => Some(WaitFor::Room),
                Item::Bytes { .. } => None,
            };
            self.apply(item);
            let Some(what) = wakes else { continue };
            let word = self.word(what);
            if word.state == Attention::Armed && sequence < word.armed_at {
                word.state = Attention::Rung;
            }
        }
    }

    fn apply(&mut self, item: Item) {
        match item {
            Item::Message { number, tag, bytes } => {
                let slot_index = index(number % bytes_of(self.slots.len()));
                let slot = &mut self.slots[slot_index];
                slot.sequence = number + 1;
                slot.tag = tag;
                slot.length = u8::try_from(bytes.len()).expect("send() checked the length");
                slot.bytes[..bytes.len()].copy_from_slice(&bytes);
                self.newest_message = slot_index;
            }
            Item::Bytes { at, bytes } => {
                let start = index(at % bytes_of(self.sink.len()));
                let first = bytes.len().min(self.sink.len() - start);
                self.sink[start..start + first].copy_from_slice(&bytes[..first]);
                self.sink[..bytes.len() - first].copy_from_slice(&bytes[first..]);
            }
            Item::Word { word, value } => self.words[word] = value,
            Item::MessagesTaken(count) => self.messages_taken = count,
            Item::BytesTaken(count) => self.bytes_taken = count,
        }
    }
}

impl SimLane {
    /// Kills this end: it sends nothing more, and its calls have no effect. Items that it sent
    /// before still arrive.
    pub fn kill(&self) {
        let mut shared = self.lock();
        let mut state = self.world.lock();
        let known = state.now + shared.settings.latency_ns + state.settings.detection_ns;
        state.ticks.insert(known);
        let end = &mut shared.ends[self.end];
        end.alive = false;
        end.death_known_at = known;
    }

    /// True when the death of the other end was noticed. Programs learn of it outside the lane.
    #[must_use]
    pub fn peer_is_down(&self) -> bool {
        let shared = self.lock();
        self.world.now() >= shared.ends[1 - self.end].death_known_at
    }

    /// Changes the length of the newest message in the own mailbox, as a hostile peer could.
    pub fn forge_message_length(&self, length: u8) {
        let mut shared = self.lock();
        let end = &mut shared.ends[self.end];
        let slot_index = end.newest_message;
        end.slots[slot_index].length = length;
    }

    /// Changes the peer's count of taken messages, as a hostile peer could.
    pub fn forge_messages_taken(&self, count: u64) {
        self.lock().ends[self.end].messages_taken = count;
    }

    /// Changes the peer's count of taken bytes, as a hostile peer could.
    pub fn forge_bytes_taken(&self, count: u64) {
        self.lock().ends[self.end].bytes_taken = count;
    }

    /// Locks both ends, after everything due has arrived.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        let mut shared = self.shared.lock();
        let now = self.world.now();
        for end in &mut shared.ends {
            end.arrive(now);
        }
        shared
    }

    /// Sends an item to the other end, unless this end is dead.
    fn transmit(&self, shared: &mut Shared, item: Item) {
        if !shared.ends[self.end].alive {
            return;
        }
        let LaneSettings { latency_ns, jitter_ns, .. } = shared.settings;
        shared.sequence += 1;
        let sequence = shared.sequence;
        let other = &mut shared.ends[1 - self.end];
        let mut state = self.world.lock();
        let time = state.now + latency_ns + state.jitter(jitter_ns);
        let time = time.max(other.last_arrival);
        other.last_arrival = time;
        // If two posts to a control word arrive at the same time, only the last value is ever
        // visible.
        if let (Item::Word { word: new, value }, Some(last)) = (&item, other.arriving.back_mut())
            && last.time == time
            && let Item::Word { word, value: old } = &mut last.item
            && word == new
        {
            *old = *value;
            last.sequence = sequence;
            return;
        }
        other.arriving.push_back(Arriving { time, sequence, item });
        state.ticks.insert(time);
    }
}

impl Shared {
    fn slots_free(&self, end: usize, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let depth = self.settings.mailbox_depth;
        let seen = self.ends[end].messages_taken;
        room(depth, cursor.messages, &mut cursor.messages_taken, seen, wanted)
    }

    fn sink_free(&self, end: usize, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let sink = self.settings.sink_bytes;
        let seen = self.ends[end].bytes_taken;
        room(sink, cursor.bytes, &mut cursor.bytes_taken, seen, wanted)
    }
}

/// The room in a queue of `size` after `sent` items went in and `taken` came out. `seen` is the
/// peer's count of what it took; a count that decreases or exceeds `sent` is ignored.
fn room(size: u64, sent: u64, taken: &mut u64, seen: u64, wanted: u64) -> u64 {
    let free = |taken: u64| size.saturating_sub(sent.saturating_sub(taken));
    if free(*taken) < wanted && (*taken..=sent).contains(&seen) {
        *taken = seen;
    }
    free(*taken)
}

fn copy_out(sink: &[u8], position: u64, target: &mut [u8]) {
    assert!(target.len() <= sink.len(), "a view is not longer than the sink");
    let start = index(position % bytes_of(sink.len()));
    let first = target.len().min(sink.len() - start);
    let (head, tail) = target.split_at_mut(first);
    head.copy_from_slice(&sink[start..start + first]);
    tail.copy_from_slice(&sink[..tail.len()]);
}

impl Lane for SimLane {
    fn mailbox_depth(&self) -> u64 {
        self.shared.lock().settings.mailbox_depth
    }

    fn sink_bytes(&self) -> u64 {
        self.shared.lock().settings.sink_bytes
    }

    fn slots_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let shared = self.lock();
        if shared.ends[self.end].alive { shared.slots_free(self.end, cursor, wanted) } else { 0 }
    }

    fn sink_free(&self, cursor: &mut SendCursor, wanted: u64) -> u64 {
        let shared = self.lock();
        if shared.ends[self.end].alive { shared.sink_free(self.end, cursor, wanted) } else { 0 }
    }

    fn send(&self, cursor: &mut SendCursor, tag: u8, parts: &[&[u8]]) -> Result<(), LaneFull> {
        let bytes = parts.concat();
        assert!(bytes.len() <= MESSAGE_BYTES, "a message of {} bytes is too long", bytes.len());
        let mut shared = self.lock();
        if !shared.ends[self.end].alive || shared.slots_free(self.end, cursor, 1) == 0 {
            return Err(LaneFull);
        }
        let number = cursor.messages;
        cursor.messages += 1;
        self.transmit(&mut shared, Item::Message { number, tag, bytes });
        Ok(())
    }

    fn put(&self, cursor: &mut SendCursor, bytes: &[u8]) {
        let mut shared = self.lock();
        if !shared.ends[self.end].alive {
            return;
        }
        let length = bytes_of(bytes.len());
        assert!(
            shared.sink_free(self.end, cursor, length) >= length,
            "a put of {length} bytes where there is no room"
        );
        let at = cursor.bytes;
        cursor.bytes += length;
        self.transmit(&mut shared, Item::Bytes { at, bytes: bytes.to_vec() });
    }

    fn peek(&self, cursor: &ReceiveCursor) -> Result<Option<Slot>, LaneClosed> {
        let shared = self.lock();
        let end = &shared.ends[self.end];
        let slot = end.slot(cursor.messages);
        let expected = cursor.messages + 1;
        if !end.alive || slot.sequence > expected {
            return Err(LaneClosed);
        }
        if slot.sequence < expected {
            return Ok(None);
        }
        if usize::from(slot.length) > MESSAGE_BYTES {
            return Err(LaneClosed);
        }
        Ok(Some(Slot { tag: slot.tag, length: slot.length }))
    }

    fn look_back(&self, message: u64, payload: &mut [u8; MESSAGE_BYTES]) -> Option<Slot> {
        // A message still on its way cannot be read back.
        let shared = self.lock();
        let slot = shared.ends[1 - self.end].slot(message);
        let length = usize::from(slot.length);
        if slot.sequence != message + 1 || length > MESSAGE_BYTES {
            return None;
        }
        payload[..length].copy_from_slice(&slot.bytes[..length]);
        Some(Slot { tag: slot.tag, length: slot.length })
    }

    fn read(&self, cursor: &ReceiveCursor, offset: usize, target: &mut [u8]) {
        let shared = self.lock();
        let slot = shared.ends[self.end].slot(cursor.messages);
        target.copy_from_slice(&slot.bytes[offset..offset + target.len()]);
    }

    fn advance(&self, cursor: &mut ReceiveCursor, flush: bool) {
        let mut shared = self.lock();
        let arrived = shared.ends[self.end].slot(cursor.messages).sequence;
        assert_eq!(arrived, cursor.messages + 1, "there is a message to take");
        cursor.messages += 1;
        let batch = (shared.settings.mailbox_depth / BATCHES).max(1);
        if flush || cursor.messages - cursor.messages_returned >= batch {
            cursor.messages_returned = cursor.messages;
            self.transmit(&mut shared, Item::MessagesTaken(cursor.messages));
        }
    }

    fn view(&self, cursor: &ReceiveCursor, skip: u64, target: &mut [u8]) {
        let shared = self.lock();
        copy_out(&shared.ends[self.end].sink, cursor.bytes + skip, target);
    }

    fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        let shared = self.lock();
        let sink = &shared.ends[1 - self.end].sink;
        let fits = target.len() <= sink.len();
        if fits {
            copy_out(sink, position, target);
        }
        fits
    }

    fn release(&self, cursor: &mut ReceiveCursor, length: u64) {
        cursor.bytes += length;
        let mut shared = self.lock();
        self.transmit(&mut shared, Item::BytesTaken(cursor.bytes));
    }

    fn post(&self, word: usize, value: u64) {
        assert!(word < WORDS, "there are {WORDS} control words");
        let mut shared = self.lock();
        self.transmit(&mut shared, Item::Word { word, value });
    }

    fn posted(&self, word: usize) -> u64 {
        self.lock().ends[self.end].words[word]
    }

    fn arm(&self, what: WaitFor) {
        let mut shared = self.lock();
        shared.sequence += 1;
        let armed_at = shared.sequence;
        let word = shared.ends[self.end].word(what);
        if word.state == Attention::Watching {
            *word = Word { state: Attention::Armed, armed_at };
        }
    }

    fn attention(&self, what: WaitFor) -> Attention {
        self.lock().ends[self.end].word(what).state
    }

    fn disarm(&self, what: WaitFor) -> bool {
        let mut shared = self.lock();
        let word = shared.ends[self.end].word(what);
        let rung = word.state == Attention::Rung;
        word.state = Attention::Watching;
        rung
    }

    fn rearm(&self, what: WaitFor) -> bool {
        let mut shared = self.lock();
        shared.sequence += 1;
        let armed_at = shared.sequence;
        let word = shared.ends[self.end].word(what);
        let rung = word.state == Attention::Rung;
        if rung {
            *word = Word { state: Attention::Armed, armed_at };
        }
        rung
    }

    fn is_awaited(&self, what: WaitFor) -> bool {
        let mut shared = self.lock();
        let alive = shared.ends[self.end].alive;
        alive && shared.ends[1 - self.end].word(what).state == Attention::Armed
    }

    fn must_ring(&self, what: WaitFor) -> bool {
        let mut shared = self.lock();
        if !shared.ends[self.end].alive {
            return false;
        }
        let word = shared.ends[1 - self.end].word(what);
        let claims = word.state == Attention::Armed;
        if claims {
            word.state = Attention::Rung;
        }
        claims
    }
}
