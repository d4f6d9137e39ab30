//! The sending half of an end, without I/O: copies of what the peer has not taken, and what the
//! endpoint had no room for.
//!
//! The carrier asks for the next [`Step`], hands it to its endpoint, and says what came of it.
//!
//! # Invariants
//! - A message is handed over only when nothing that was posted or put before is kept back, so a
//!   peer that has seen something has seen all before it.
//! - Control words are kept in their order, and none is left out: a later value must not be seen
//!   before words that were posted between the two.
//! - Counts of what was taken only grow, so the latest one stands for all.

use std::collections::VecDeque;

use weft_fabric::Slot;

use crate::layout::{Layout, PAYLOAD_BYTES, slot_of, status};
use crate::table::Remote;

/// Control words of a lane that may be kept at most. A direction posts five at each crossing, and
/// crosses again only when its peer has followed. Honest programs reach this all the same where the
/// endpoint has room for very few operations (seeds of `weft-swarm` did); the connection then goes
/// on over TCP.
pub const POSTS_MAX: usize = 256;

/// Something to hand to the endpoint, besides messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The first bytes at `position` of the sink, without a wrap: `length` of them lie in the copy
    /// from `at` on, and go to `offset` of the peer's memory.
    Put { at: usize, length: usize, offset: u64 },
    /// A control word.
    Post { word: usize, value: u64 },
    /// The number of messages taken. It rings the peer for room, or not.
    MessagesTaken { count: u64, rings: bool },
    /// The number of bytes taken. It rings the peer for room.
    BytesTaken { count: u64 },
}

/// The calls handed over that something later may have to come behind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Since {
    Nothing,
    /// No bytes of the sink that a message has not told of.
    Transfers,
    Puts,
}

/// The sending side of an end.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub remote: Remote,
    /// Status word and payload of the messages sent last: twice as many as there are slots. So the
    /// message before the first that the peer may not have taken is there, too: it tells which
    /// bytes of the sink may be unread.
    slots: Vec<(u64, [u8; PAYLOAD_BYTES])>,
    /// The bytes put last.
    sink: Vec<u8>,
    /// Positions of the bytes that were put behind the last message.
    tail: (u64, u64),
    /// Position of the first byte of the tail that was not handed over.
    unput: u64,
    /// Bytes of the tail come where others were handed over that no message told of.
    rewrites: bool,
    posts: VecDeque<(usize, u64)>,
    messages_taken: Option<(u64, bool)>,
    /// The same of those that are told with the next ones, or later.
    taken_quietly: Option<u64>,
    bytes_taken: Option<u64>,
    since_order: Since,
    /// Messages, puts and posts handed over, and how many of them have landed.
    handed: u64,
    landed: u64,
    /// The number that was handed over when the fence under way began.
    fenced: Option<u64>,
}

impl Outgoing {
    pub fn new(remote: Remote) -> Self {
        let Layout { slots, sink_bytes } = remote.layout;
        Self {
            remote,
            slots: vec![(0, [0; PAYLOAD_BYTES]); 2 * slots as usize],
            sink: vec![0; sink_bytes as usize],
            tail: (0, 0),
            unput: 0,
            rewrites: false,
            posts: VecDeque::new(),
            messages_taken: None,
            taken_quietly: None,
            bytes_taken: None,
            since_order: Since::Nothing,
            handed: 0,
            landed: 0,
            fenced: None,
        }
    }

    fn place(&self, message: u64) -> usize {
        let places = self.slots.len() as u64;
        usize::try_from(message & (places - 1)).expect("below the number of slots")
    }

    /// Copies a message and gives its payload and status word. [`Outgoing::sent`] must follow when
    /// the endpoint took it.
    pub fn gather(&mut self, message: u64, tag: u8, parts: &[&[u8]]) -> (&[u8], u64) {
        let place = self.place(message);
        let (_, payload) = &mut self.slots[place];
        let mut length = 0;
        for part in parts {
            assert!(part.len() <= PAYLOAD_BYTES - length, "a message does not fit a slot");
            payload[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        let length = u8::try_from(length).expect("at most 120");
        let status = status(message, Slot { tag, length });
        (&self.slots[place].1[..usize::from(length)], status)
    }

    /// The endpoint took the message with this status word.
    pub fn sent(&mut self, message: u64, status: u64) {
        let place = self.place(message);
        self.slots[place].0 = status;
        self.tail.0 = self.tail.1;
        // It is behind all bytes before it, and further messages are read behind it.
        self.since_order = Since::Transfers;
        self.handed += 1;
    }

    /// The slot and payload of a message that was sent, as long as no other came to its place.
    pub fn look_back(&self, message: u64, target: &mut [u8; PAYLOAD_BYTES]) -> Option<Slot> {
        let (status, payload) = &self.slots[self.place(message)];
        let slot = slot_of(*status, message)?;
        target.copy_from_slice(payload);
        Some(slot)
    }

    /// Keeps bytes at `position` of the sink.
    ///
    /// A program whose message finds no room takes the bytes before it back, and puts them again
    /// later. They are not handed over twice: the second put would take the room of the message.
    pub fn put(&mut self, position: u64, bytes: &[u8]) {
        let known = self.known(position, bytes);
        if known == 0 && position != self.tail.1 {
            // Other bytes come where some of the former may still be on their way.
            self.rewrites = true;
            self.tail = (position, position);
            self.unput = position;
        }
        let mut rest = &bytes[known..];
        for (at, length) in self.ranges(self.tail.1, rest.len()) {
            let (piece, behind) = rest.split_at(length);
            self.sink[at..at + length].copy_from_slice(piece);
            rest = behind;
        }
        self.tail.1 = self.tail.1.wrapping_add((bytes.len() - known) as u64);
    }

    /// How many of `bytes` at `position` are the same as those at the end of the tail. 0 unless
    /// they reach that end or lie in the tail as a whole.
    fn known(&self, position: u64, bytes: &[u8]) -> usize {
        let (from, to) = self.tail;
        let (before, behind) = (position.wrapping_sub(from), to.wrapping_sub(position));
        if before.checked_add(behind) != Some(to.wrapping_sub(from)) {
            return 0;
        }
        let length = usize::try_from(behind).unwrap_or(usize::MAX).min(bytes.len());
        let [(at, first), (second, last)] = self.ranges(position, length);
        let (head, tail) = bytes[..length].split_at(first);
        let is_same = self.sink[at..at + first] == *head && self.sink[second..last] == *tail;
        if is_same { length } else { 0 }
    }

    /// Copies bytes that were put. False if there are more than the sink holds.
    pub fn view_back(&self, position: u64, target: &mut [u8]) -> bool {
        if target.len() > self.sink.len() {
            return false;
        }
        let mut rest = target;
        for (at, length) in self.ranges(position, rest.len()) {
            let (piece, behind) = rest.split_at_mut(length);
            piece.copy_from_slice(&self.sink[at..at + length]);
            rest = behind;
        }
        true
    }

    /// The ranges of the copy (start, length) of `length` bytes at `position`.
    fn ranges(&self, position: u64, length: usize) -> [(usize, usize); 2] {
        let size = self.sink.len();
        let at = usize::try_from(position & (size as u64 - 1)).expect("below the sink's size");
        let first = length.min(size - at);
        [(at, first), (0, length - first)]
    }

    /// Keeps a control word. False if too many are kept: the lane must end.
    pub fn post(&mut self, word: usize, value: u64) -> bool {
        self.posts.push_back((word, value));
        self.posts.len() <= POSTS_MAX
    }

    /// Keeps the number of messages that this end took.
    pub fn took_messages(&mut self, count: u64, rings: bool) {
        let rings = rings || matches!(self.messages_taken, Some((_, true)));
        self.messages_taken = Some((count, rings));
        self.taken_quietly = None;
    }

    /// The same, but it makes no step before [`Outgoing::tell_taken`].
    pub const fn took_quietly(&mut self, count: u64) {
        self.taken_quietly = Some(count);
    }

    /// The peer is to be told what was taken.
    pub fn tell_taken(&mut self) {
        if let Some(count) = self.taken_quietly {
            self.took_messages(count, false);
        }
    }

    /// Keeps the number of bytes that this end took.
    pub fn took_bytes(&mut self, count: u64) {
        self.bytes_taken = Some(count);
    }

    /// The next step. [`Outgoing::done`] must follow when the endpoint took it.
    pub fn next_step(&self) -> Option<Step> {
        if let Some((count, rings)) = self.messages_taken {
            return Some(Step::MessagesTaken { count, rings });
        }
        if let Some(count) = self.bytes_taken {
            return Some(Step::BytesTaken { count });
        }
        let (from, to) = (self.unput, self.tail.1);
        if from != to {
            let length = usize::try_from(to.wrapping_sub(from)).unwrap_or(usize::MAX);
            let [(at, length), _] = self.ranges(from, length.min(self.sink.len()));
            let [(offset, _), _] = self.remote.layout.sink(from, length as u64);
            return Some(Step::Put { at, length, offset });
        }
        self.posts.front().map(|(word, value)| Step::Post { word: *word, value: *value })
    }

    /// The bytes of a [`Step::Put`].
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        &self.sink[at..at + length]
    }

    /// The endpoint took `step`.
    pub fn done(&mut self, step: Step) {
        let kind = if matches!(step, Step::Put { .. }) { Since::Puts } else { Since::Transfers };
        self.since_order = self.since_order.max(kind);
        match step {
            Step::MessagesTaken { .. } => self.messages_taken = None,
            Step::BytesTaken { .. } => self.bytes_taken = None,
            Step::Put { length, .. } => {
                self.unput = self.unput.wrapping_add(length as u64);
                self.handed += 1;
            }
            Step::Post { .. } => {
                self.posts.pop_front();
                self.handed += 1;
            }
        }
    }

    /// True if `step` must take effect behind what was handed over before.
    pub fn needs_order(&self, step: Step) -> bool {
        match step {
            Step::Put { .. } => self.rewrites,
            _ => self.since_order > Since::Nothing,
        }
    }

    /// True if the next message must come behind bytes of the sink.
    pub fn has_puts(&self) -> bool {
        self.since_order == Since::Puts
    }

    /// The next call is ordered behind all before.
    pub fn ordered(&mut self) {
        self.since_order = Since::Nothing;
        self.rewrites = false;
    }

    /// Forgets what is kept, since the lane is over.
    pub fn give_up(&mut self) {
        self.unput = self.tail.1;
        self.posts.clear();
        self.messages_taken = None;
        self.taken_quietly = None;
        self.bytes_taken = None;
    }

    /// True if a message may be handed over: nothing before it is kept.
    pub fn is_through(&self) -> bool {
        self.posts.is_empty() && self.unput == self.tail.1
    }

    /// True if all that was handed over has landed, and nothing is kept.
    pub fn has_landed(&self) -> bool {
        self.is_through() && self.landed == self.handed
    }

    /// True while a fence is under way that the answer to [`Outgoing::has_landed`] waits for.
    pub const fn is_fencing(&self) -> bool {
        self.fenced.is_some()
    }

    /// A fence begins.
    pub fn begin_fence(&mut self) {
        self.fenced = Some(self.handed);
    }

    /// The fence has ended. True if it did well.
    pub fn end_fence(&mut self, well: bool) {
        if let Some(handed) = self.fenced.take()
            && well
        {
            self.landed = handed;
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_fabric::{Peer, RemoteKey};

    use super::*;
    use crate::table::LaneNumber;

    fn outgoing() -> Outgoing {
        let layout = Layout { slots: 16, sink_bytes: 4096 };
        let (peer, number, key) = (Peer(1), LaneNumber(2), RemoteKey(3));
        Outgoing::new(Remote { peer, number, key, layout })
    }

    /// Takes all steps.
    fn steps(out: &mut Outgoing) -> Vec<Step> {
        let mut all = Vec::new();
        while let Some(step) = out.next_step() {
            all.push(step);
            out.done(step);
        }
        all
    }

    #[test]
    fn messages_are_looked_back_at_until_their_place_is_used_again() {
        let mut out = outgoing();
        let (payload, status) = out.gather(5, 9, &[b"ab", b"", b"c"]);
        assert_eq!(payload, b"abc");
        let mut target = [0; 120];
        assert_eq!(out.look_back(5, &mut target), None, "the endpoint did not take it yet");
        out.sent(5, status);
        assert_eq!(out.look_back(5, &mut target), Some(Slot { tag: 9, length: 3 }));
        assert_eq!(&target[..3], b"abc");
        assert_eq!(out.look_back(37, &mut target), None);
        let (_, status) = out.gather(37, 1, &[]);
        out.sent(37, status);
        assert_eq!(out.look_back(5, &mut target), None);
    }

    #[test]
    fn bytes_that_wrap_around_go_in_two_puts() {
        let mut out = outgoing();
        out.put(4090, b"0123456789");
        let start = out.remote.layout.sink_start();
        let first = Step::Put { at: 4090, length: 6, offset: start + 4090 };
        let second = Step::Put { at: 0, length: 4, offset: start };
        assert!(!out.is_through());
        assert_eq!(steps(&mut out), [first, second]);
        assert!(out.is_through());
        assert_eq!(out.bytes(4090, 6), b"012345");
        let mut back = [0; 8];
        assert!(out.view_back(4091, &mut back));
        assert_eq!(&back, b"12345678");
        assert!(!out.view_back(0, &mut [0; 4097]));
    }

    #[test]
    fn bytes_that_were_taken_back_are_not_put_behind_others() {
        let mut out = outgoing();
        out.put(0, b"former");
        out.put(0, b"later ones");
        let offset = out.remote.layout.sink_start();
        assert_eq!(steps(&mut out), [Step::Put { at: 0, length: 10, offset }]);
        assert_eq!(out.bytes(0, 10), b"later ones");
    }

    #[test]
    fn bytes_that_are_put_again_are_handed_over_once() {
        let mut out = outgoing();
        out.put(4090, b"0123456789");
        assert_eq!(steps(&mut out).len(), 2);
        out.put(4090, b"01234");
        out.put(4095, b"56789ab");
        let offset = out.remote.layout.sink_start() + 4;
        assert_eq!(steps(&mut out), [Step::Put { at: 4, length: 2, offset }]);
        let (_, status) = out.gather(0, 1, &[]);
        out.sent(0, status);
        out.put(4102, b"next");
        assert_eq!(steps(&mut out).len(), 1, "behind a message everything is new");
    }

    #[test]
    fn other_bytes_at_the_same_place_come_behind_the_former() {
        let mut out = outgoing();
        out.put(0, b"former");
        let step = out.next_step().expect("a put");
        assert!(!out.needs_order(step));
        out.done(step);
        out.put(0, b"others");
        assert!(out.needs_order(out.next_step().expect("a put")));
        out.ordered();
        assert!(!out.needs_order(out.next_step().expect("a put")));
    }

    #[test]
    fn words_keep_their_order_and_come_behind_bytes() {
        let mut out = outgoing();
        for (word, value) in [(3, 1), (4, 2), (3, 5)] {
            assert!(out.post(word, value));
        }
        out.put(0, b"x");
        let all = steps(&mut out);
        assert!(matches!(all[0], Step::Put { length: 1, .. }));
        let posts = [(3, 1), (4, 2), (3, 5)].map(|(word, value)| Step::Post { word, value });
        assert_eq!(all[1..], posts);
        assert!((0..POSTS_MAX).all(|_| out.post(0, 0)));
        assert!(!out.post(0, 0), "more are not kept");
    }

    #[test]
    fn counts_are_told_once_with_their_last_value() {
        let mut out = outgoing();
        out.took_messages(3, true);
        out.took_messages(5, false);
        out.took_bytes(7);
        out.took_bytes(9);
        let messages = Step::MessagesTaken { count: 5, rings: true };
        assert_eq!(steps(&mut out), [messages, Step::BytesTaken { count: 9 }]);
    }

    #[test]
    fn a_count_that_was_taken_quietly_waits_and_is_never_told_behind_a_later_one() {
        let mut out = outgoing();
        out.took_quietly(3);
        assert_eq!(out.next_step(), None);
        out.took_quietly(4);
        out.tell_taken();
        let told = |count, rings| Step::MessagesTaken { count, rings };
        assert_eq!(steps(&mut out), [told(4, false)]);
        out.tell_taken();
        assert_eq!(out.next_step(), None, "it was told");
        out.took_quietly(5);
        out.took_messages(6, true);
        out.tell_taken();
        assert_eq!(steps(&mut out), [told(6, true)]);
        out.took_quietly(7);
        out.give_up();
        out.tell_taken();
        assert_eq!(out.next_step(), None);
    }

    #[test]
    fn what_is_handed_over_during_a_fence_has_not_landed_with_it() {
        let mut out = outgoing();
        assert!(out.has_landed());
        out.sent(0, 1);
        assert!(!out.has_landed());
        out.begin_fence();
        out.end_fence(true);
        assert!(out.has_landed());
        out.sent(1, 2);
        out.begin_fence();
        out.sent(2, 3);
        out.end_fence(true);
        assert!(!out.has_landed(), "the last message came behind the fence");
        out.begin_fence();
        out.end_fence(false);
        assert!(!out.has_landed(), "the fence failed");
    }
}
