//! Questions of an initiator to the owner of memory, and the answers, as they are in the rings.
//!
//! ```text
//! flags of a slot   2-3 content: packet   4 answer
//! question          word 0: number (32), verb (8), detail (8), place (8)
//!                   key, offset, length · start and length of the piece · operand, compare
//! answer            word 0: number (32), outcome (8) · value
//! ```
//!
//! A question is about the range of a key that begins at `offset` and has `length` bytes. A piece
//! of the range goes through a place in the memory of the pair.

use weft_fabric::{
    Access, Atomic, AtomicOperation, Command, OperationError, RemoteKey, SignalChange, Target,
    Width,
};

use crate::pair::{PLACE_BYTES, Place};
use crate::ring::{SlotMemory, Status};

const WHAT_MASK: u16 = 0b11 << 2;
const PACKET: u16 = 3 << 2;
const ANSWER: u16 = 1 << 4;

/// Flags of a slot with a question.
pub const QUESTION_FLAGS: u16 = PACKET;
/// Flags of a slot with an answer.
pub const ANSWER_FLAGS: u16 = PACKET | ANSWER;

/// Words of a question and of an answer.
pub type QuestionWords = [u64; 8];
pub type AnswerWords = [u64; 2];

/// Whether a slot holds a packet, valid or not.
#[inline]
pub fn is_packet(status: Status) -> bool {
    status.flags & WHAT_MASK == PACKET
}

/// A range of a key, and the piece of it that a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub target: Target,
    /// Bytes of the range.
    pub length: u64,
    /// Where the piece begins in the range.
    pub start: u64,
    /// Bytes of the piece.
    pub bytes: u64,
}

/// The thing to do with a piece, for which the owner is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// Nothing: only to say whether the key allows it. An access to a word must be aligned.
    Check { access: Access, width: u8 },
    /// To copy the bytes in a place to the piece.
    Write(Place),
    /// To copy the piece to a place.
    Read(Place),
    /// To write the low bytes of a number.
    Immediate(u64),
    /// To change a word.
    Atomic(Atomic),
    /// To change a word of 64 bits.
    Signal(SignalChange),
}

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    pub number: u32,
    pub verb: Verb,
    pub piece: Piece,
}

/// How the owner carried out what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done. The value is the former one of a word.
    Done(u64),
    /// The key is not in force, or not for this peer.
    InvalidKey,
    /// The key does not allow it.
    Denied,
    /// The range leaves that of the key, which has so many bytes.
    OutOfBounds(u64),
    /// The word is not aligned to so many bytes.
    Misaligned(u64),
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    pub number: u32,
    pub outcome: Outcome,
}

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet {
    Question(Question),
    Answer(Answer),
}

const CHECK: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const IMMEDIATE: u8 = 3;
const ATOMIC: u8 = 4;
const SET: u8 = 5;
const ADD: u8 = 6;

const OPERATIONS: [AtomicOperation; 7] = [
    AtomicOperation::Read,
    AtomicOperation::FetchAdd,
    AtomicOperation::Swap,
    AtomicOperation::CompareSwap,
    AtomicOperation::And,
    AtomicOperation::Or,
    AtomicOperation::Xor,
];
/// The bit of the detail of an atomic on 32 bits.
const HALF: u8 = 0x80;

impl Question {
    pub fn encode(&self) -> QuestionWords {
        let Self { number, verb, piece } = *self;
        let (name, detail, place, operand, compare) = match verb {
            Verb::Check { access, width } => (CHECK, access.bits(), width, 0, 0),
            Verb::Write(place) => (WRITE, 0, place.number(), 0, 0),
            Verb::Read(place) => (READ, 0, place.number(), 0, 0),
            Verb::Immediate(value) => (IMMEDIATE, 0, 0, value, 0),
            Verb::Atomic(atomic) => {
                let is = |operation: &AtomicOperation| *operation == atomic.operation;
                let operation = OPERATIONS.iter().position(is).unwrap_or(0);
                let half = if atomic.width == Width::Bits32 { HALF } else { 0 };
                let detail = u8::try_from(operation).unwrap_or(0) | half;
                (ATOMIC, detail, 0, atomic.operand, atomic.compare)
            }
            Verb::Signal(SignalChange::Set(value)) => (SET, 0, 0, value, 0),
            Verb::Signal(SignalChange::Add(value)) => (ADD, 0, 0, value, 0),
        };
        let [n0, n1, n2, n3] = number.to_le_bytes();
        let first = u64::from_le_bytes([n0, n1, n2, n3, name, detail, place, 0]);
        let Piece { target, length, start, bytes } = piece;
        [first, target.key.0, target.offset, length, start, bytes, operand, compare]
    }

    /// The question in these words; `None` when they are none. Its piece lies inside its range, and
    /// fits what carries it.
    fn decode(words: QuestionWords) -> Option<Self> {
        let [first, key, offset, length, start, bytes, operand, compare] = words;
        let [n0, n1, n2, n3, name, detail, place, _] = first.to_le_bytes();
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        let (verb, most) = match name {
            CHECK if matches!(place, 1 | 8) => {
                let access = Access::from_bits(detail)?;
                (Verb::Check { access, width: place }, u64::MAX)
            }
            WRITE => (Verb::Write(Place::new(place)?), PLACE_BYTES as u64),
            READ => (Verb::Read(Place::new(place)?), PLACE_BYTES as u64),
            IMMEDIATE => (Verb::Immediate(operand), 8),
            ATOMIC => {
                let operation = *OPERATIONS.get(usize::from(detail & !HALF))?;
                let width = if detail & HALF != 0 { Width::Bits32 } else { Width::Bits64 };
                let atomic = Atomic { compare, ..Atomic::new(operation, width, operand) };
                (Verb::Atomic(atomic), width.bytes())
            }
            SET => (Verb::Signal(SignalChange::Set(operand)), 8),
            ADD => (Verb::Signal(SignalChange::Add(operand)), 8),
            _ => return None,
        };
        let is_word = matches!(verb, Verb::Atomic(_) | Verb::Signal(_));
        let inside = start <= length && bytes <= length - start;
        if !inside || bytes > most || (is_word && (start, bytes) != (0, most)) {
            return None;
        }
        let target = Target::new(RemoteKey(key), offset);
        Some(Self { number, verb, piece: Piece { target, length, start, bytes } })
    }
}

impl Answer {
    pub fn encode(&self) -> AnswerWords {
        let (code, value) = match self.outcome {
            Outcome::Done(value) => (0, value),
            Outcome::InvalidKey => (1, 0),
            Outcome::Denied => (2, 0),
            Outcome::OutOfBounds(region) => (3, region),
            Outcome::Misaligned(alignment) => (4, alignment),
        };
        [u64::from(self.number) | code << 32, value]
    }

    fn decode([first, value]: AnswerWords) -> Option<Self> {
        let [n0, n1, n2, n3, code, ..] = first.to_le_bytes();
        let outcome = match code {
            0 => Outcome::Done(value),
            1 => Outcome::InvalidKey,
            2 => Outcome::Denied,
            3 => Outcome::OutOfBounds(value),
            4 => Outcome::Misaligned(value),
            _ => return None,
        };
        Some(Self { number: u32::from_le_bytes([n0, n1, n2, n3]), outcome })
    }
}

impl Outcome {
    /// The value of what was done, or the error of the operation whose command this is.
    pub fn result(self, command: Command, piece: &Piece) -> Result<u64, OperationError> {
        let Piece { target: Target { offset, .. }, length, .. } = *piece;
        Err(match self {
            Self::Done(value) => return Ok(value),
            Self::InvalidKey => OperationError::InvalidKey,
            Self::Denied => OperationError::AccessDenied { command },
            Self::OutOfBounds(region) => OperationError::OutOfBounds { offset, length, region },
            Self::Misaligned(alignment) => OperationError::Misaligned { offset, alignment },
        })
    }
}

/// The packet in a slot; `None` when it is not valid. Every word is read once.
pub fn decode(status: Status, slot: &impl SlotMemory) -> Option<Packet> {
    let word = |place: usize| {
        let mut bytes = [0; 8];
        slot.read_payload(place * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let bytes = usize::from(status.length);
    match status.flags {
        QUESTION_FLAGS if bytes == size_of::<QuestionWords>() => {
            Question::decode(std::array::from_fn(word)).map(Packet::Question)
        }
        ANSWER_FLAGS if bytes == size_of::<AnswerWords>() => {
            Answer::decode(std::array::from_fn(word)).map(Packet::Answer)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(bytes: u64) -> Piece {
        Piece { target: Target::new(RemoteKey(u64::MAX), 9), length: bytes, start: 0, bytes }
    }

    #[test]
    fn questions_and_answers_are_what_they_were() {
        let place = Place::new(3).expect("there are four");
        let mut verbs = vec![
            (Verb::Check { access: Access::WRITE, width: 1 }, 1 << 40),
            (Verb::Check { access: Access::ATOMIC, width: 8 }, 8),
            (Verb::Write(place), PLACE_BYTES as u64),
            (Verb::Read(place), 0),
            (Verb::Immediate(7), 3),
            (Verb::Signal(SignalChange::Set(1)), 8),
            (Verb::Signal(SignalChange::Add(2)), 8),
        ];
        for operation in OPERATIONS {
            for width in [Width::Bits32, Width::Bits64] {
                let atomic = Atomic { compare: 6, ..Atomic::new(operation, width, 5) };
                verbs.push((Verb::Atomic(atomic), width.bytes()));
            }
        }
        for (verb, bytes) in verbs {
            let question = Question { number: u32::MAX, verb, piece: piece(bytes) };
            assert_eq!(Question::decode(question.encode()), Some(question));
        }
        for outcome in [
            Outcome::Done(u64::MAX),
            Outcome::InvalidKey,
            Outcome::Denied,
            Outcome::OutOfBounds(1),
            Outcome::Misaligned(8),
        ] {
            let answer = Answer { number: 3, outcome };
            assert_eq!(Answer::decode(answer.encode()), Some(answer));
        }
    }

    #[test]
    fn pieces_that_leave_their_range_or_their_place_are_no_questions() {
        let place = Place::new(0).expect("there are four");
        let question = |verb, piece| Question { number: 1, verb, piece }.encode();
        let long = PLACE_BYTES as u64 + 1;
        for (verb, piece) in [
            (Verb::Write(place), piece(long)),
            (Verb::Read(place), piece(long)),
            (Verb::Write(place), Piece { start: 5, bytes: 6, ..piece(10) }),
            (Verb::Write(place), Piece { start: u64::MAX, bytes: 2, ..piece(10) }),
            (Verb::Immediate(1), piece(9)),
            (Verb::Signal(SignalChange::Set(1)), piece(4)),
            (Verb::Atomic(Atomic::fetch_add(1)), Piece { start: 8, bytes: 8, ..piece(16) }),
        ] {
            assert_eq!(Question::decode(question(verb, piece)), None, "{verb:?} {piece:?}");
        }
        let mut words = question(Verb::Write(place), piece(1));
        words[0] |= 4 << 48;
        assert_eq!(Question::decode(words), None, "there is no such place");
    }

    proptest! {
        #[test]
        fn what_is_decoded_is_encoded_to_what_it_was(words in any::<[u64; 8]>(), name in 0..8_u64) {
            let mut words = words;
            words[0] = words[0] & 0x00ff_ff00_ffff_ffff | name << 32;
            if let Some(question) = Question::decode(words) {
                let again = Question::decode(question.encode());
                prop_assert_eq!(again, Some(question));
                let Piece { length, start, bytes, .. } = question.piece;
                prop_assert!(start.checked_add(bytes).is_some_and(|end| end <= length));
            }
        }
    }
}
