//! The way to one PE of another host: small changes are gathered into messages.
//!
//! # Invariants
//! - Entries leave in the order in which they came, and so take effect in that order.
//! - At most [`QUEUE_MAX`] full messages of the program wait, and the answers that the peer may ask
//!   for. Behind them come steps of collectives, which wait for those of others.

use std::collections::{BTreeSet, VecDeque};

use super::eager::Eager;
use super::entry::{Breach, Entry};

/// Full messages that may wait for the peer. With more, the program waits.
pub const QUEUE_MAX: usize = 64;
/// Questions of a PE to another one that may be open.
pub const QUESTIONS_MAX: usize = 64;
/// Answers that may wait for a PE: to its questions, and to as many of those of a quiet.
const ANSWERS_MAX: usize = 2 * QUESTIONS_MAX;

/// Whether a PE of another host is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It is there.
    Up,
    /// It is not reached any more.
    Down,
}

/// A message that waits, and how many answers it has.
#[derive(Debug, Default)]
struct Message {
    bytes: Vec<u8>,
    answers: usize,
}

/// How much of something was begun, asked about, and is known to be over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// So many were begun.
    pub begun: u64,
    /// The peer was asked about so many of them.
    pub asked: u64,
    /// So many are over.
    pub over: u64,
}

impl Progress {
    /// Whether something is under way.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.over < self.begun
    }

    /// The count to ask about, if there is one. It counts as asked from now on.
    pub fn ask(&mut self) -> Option<u64> {
        (self.asked < self.begun).then(|| {
            self.asked = self.begun;
            self.begun
        })
    }

    /// So many are over.
    pub fn reached(&mut self, count: u64) {
        self.over = self.over.max(count);
    }
}

/// The way to one PE.
#[derive(Debug)]
pub struct Link {
    /// Whether it is there.
    pub standing: Standing,
    /// Bytes of a message at most.
    message_bytes: usize,
    /// The message that is being filled.
    filling: Message,
    /// It may leave before it is full.
    is_urgent: bool,
    waiting: VecDeque<Message>,
    /// Memory of messages that have left.
    spare: Vec<Vec<u8>>,
    /// Answers that wait to leave.
    owed: usize,
    /// Own questions that are open.
    pub questions: usize,
    /// Questions of quiets among the open ones, beside those.
    pub confirms: usize,
    /// Changes by messages.
    pub changes: Progress,
    /// Answers whose bytes go to memory of the program by themselves.
    pub landings: Progress,
    /// Gets of the fabric that land by themselves and are under way, by their numbers.
    pub gets: BTreeSet<u64>,
    /// Large puts, which the transport carries.
    pub puts: Progress,
    /// A large put has to wait until so many changes are over: they came before a fence.
    pub fenced: u64,
    /// Data for collective calls, both ways.
    pub eager: Eager,
}

impl Link {
    /// A way without anything on it, whose messages have up to so many bytes.
    #[must_use]
    pub fn new(message_bytes: usize) -> Self {
        Self {
            standing: Standing::Up,
            message_bytes,
            filling: Message::default(),
            is_urgent: false,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            owed: 0,
            questions: 0,
            confirms: 0,
            changes: Progress::default(),
            landings: Progress::default(),
            gets: BTreeSet::new(),
            puts: Progress::default(),
            fenced: 0,
            eager: Eager::default(),
        }
    }

    /// Whether the program may send more.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.waiting.len() < QUEUE_MAX
    }

    /// Whether the program may ask one question more.
    #[must_use]
    pub fn may_ask(&self) -> bool {
        self.has_room() && self.questions < QUESTIONS_MAX
    }

    /// Whether something is under way that a quiet waits for.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let is_getting = self.landings.is_open() || !self.gets.is_empty();
        is_getting || self.changes.is_open() || self.puts.is_open()
    }

    /// Whether so many answers have landed, and all gets with lower numbers.
    #[must_use]
    pub fn has_landed(&self, answers: u64, gets: u64) -> bool {
        self.landings.over >= answers && self.gets.first().is_none_or(|first| *first >= gets)
    }

    /// Adds an entry behind all others.
    pub fn push(&mut self, entry: &Entry<'_>) {
        if self.filling.bytes.len() + entry.length() > self.message_bytes {
            let bytes = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.message_bytes));
            let full = std::mem::replace(&mut self.filling, Message { bytes, answers: 0 });
            self.waiting.push_back(full);
            self.is_urgent = false;
        }
        entry.write(&mut self.filling.bytes);
    }

    /// Adds an answer behind all others.
    ///
    /// # Errors
    /// [`Breach::Questions`] when the peer asked more than it may.
    pub fn answer(&mut self, id: u32, bytes: &[u8]) -> Result<(), Breach> {
        if self.owed == ANSWERS_MAX {
            return Err(Breach::Questions(ANSWERS_MAX));
        }
        self.push(&Entry::Answer { id, bytes });
        self.owed += 1;
        self.filling.answers += 1;
        self.is_urgent = true;
        Ok(())
    }

    /// Lets all leave that is there. What comes later waits for more again.
    pub fn hurry(&mut self) {
        self.is_urgent = !self.filling.bytes.is_empty();
    }

    /// Whether something waits for more of its kind.
    #[must_use]
    pub fn lingers(&self) -> bool {
        !self.filling.bytes.is_empty() && !self.is_urgent
    }

    /// The next message that is to leave.
    #[must_use]
    pub fn next(&self) -> Option<&[u8]> {
        let filling = Some(&self.filling).filter(|it| self.is_urgent && !it.bytes.is_empty());
        self.waiting.front().or(filling).map(|message| message.bytes.as_slice())
    }

    /// The message that [`Link::next`] gave has left.
    pub fn sent(&mut self) {
        let answers = match self.waiting.pop_front() {
            Some(Message { mut bytes, answers }) => {
                bytes.clear();
                self.spare.push(bytes);
                answers
            }
            None => {
                self.is_urgent = false;
                self.filling.bytes.clear();
                std::mem::take(&mut self.filling.answers)
            }
        };
        self.owed -= answers;
    }

    /// The peer is not reached any more: nothing is sent or waited for. Data that came for
    /// collective calls stay, and it is known what never comes.
    pub fn end(&mut self) {
        let (eager, landings) = (self.eager.last(), self.landings);
        let gets = std::mem::take(&mut self.gets);
        let ended = Self::new(self.message_bytes);
        *self = Self { standing: Standing::Down, eager, landings, gets, ..ended };
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entries, MESSAGE_BYTES, Place, Segment};
    use super::*;

    fn put(link: &mut Link, offset: u64) {
        let place = Place { segment: Segment::Heap, offset };
        link.push(&Entry::Put { place, bytes: &[7; 8] });
    }

    fn places(message: &[u8]) -> Vec<u64> {
        let of = |entry| match entry {
            Ok(Entry::Put { place, .. }) => place.offset,
            other => panic!("{other:?}"),
        };
        Entries::of(message).map(of).collect()
    }

    #[test]
    fn small_puts_are_gathered_and_leave_when_full_or_urgent() {
        let mut link = Link::new(MESSAGE_BYTES);
        for offset in 0..7 {
            put(&mut link, offset);
        }
        assert_eq!(link.next(), None, "it waits for more");
        assert!(link.lingers());
        put(&mut link, 7);
        assert_eq!(places(link.next().expect("it is full")), [0, 1, 2, 3, 4, 5, 6]);
        link.sent();
        assert_eq!(link.next(), None);
        link.hurry();
        assert_eq!(places(link.next().expect("it is urgent")), [7]);
        link.sent();
        assert_eq!((link.next(), link.lingers()), (None, false));
        link.hurry();
        put(&mut link, 8);
        assert_eq!((link.next(), link.lingers()), (None, true), "it came later");
    }

    #[test]
    fn a_full_queue_and_a_peer_that_asks_too_much_are_told() {
        let mut link = Link::new(MESSAGE_BYTES);
        while link.has_room() {
            put(&mut link, 0);
        }
        for id in 0..128 {
            assert_eq!(link.answer(id, &[0; 8]), Ok(()));
        }
        assert_eq!(link.answer(128, &[0; 8]), Err(Breach::Questions(128)));
        while link.next().is_some() {
            link.sent();
        }
        assert!(link.has_room());
        assert_eq!(link.answer(129, &[]), Ok(()), "all are given");
    }
}
