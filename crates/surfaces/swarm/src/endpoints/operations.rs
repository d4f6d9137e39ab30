//! Puts, gets and atomics, and what they leave in memory.
//!
//! # Invariant
//! A slot of memory has one put under way at a time, so that its content is known.

use std::collections::BTreeSet;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{
    Atomic, Endpoint, Issued, LocalRange, Notify, Operation, OperationError, Peer, Source, Target,
    Value,
};

use super::Endpoints;
use super::messages::pair_of;
use super::program::{
    OWN_BYTES, SLOT_BYTES, SLOTS, bytes_of, offset_of, own_number, size, word_of,
};
use crate::ledger::Life;
use crate::workload::pattern;

/// An operation that has not ended.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Put {
        slot: Slot,
        number: u64,
    },
    Get {
        at: usize,
        length: usize,
        owner: Life,
    },
    Add {
        to: Life,
    },
    /// With a key that may be void.
    Stray,
}

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// The bytes of this number; none of it was written for 0.
    Known { number: u64, length: usize },
    /// A put of these bytes is under way, or ended with an error.
    Unknown { number: u64, length: usize },
}

/// Additions of one program to the word of another.
#[derive(Default, Debug)]
pub(super) struct Sum {
    pub begun: u64,
    /// Those that ended well.
    pub well: u64,
    /// Former values that were answered.
    pub answers: BTreeSet<u64>,
}

/// A slot of memory: whose region, who writes, and which.
pub(super) type Slot = (Life, Life, usize);

impl<E: Endpoint> Endpoints<E> {
    /// Notes the answer to a call that began an operation.
    pub(super) fn begun(
        &mut self,
        (from, peer): (usize, Peer),
        answer: Result<Issued, OperationError>,
        pending: Pending,
    ) -> Result<(), String> {
        let program = &mut self.programs[from];
        let context = program.next;
        match answer {
            Ok(Issued::Pending) => {
                program.next += 1;
                program.pending.insert(context, (peer, pending));
            }
            Ok(Issued::Done(value)) => {
                program.next += 1;
                self.ended(from, peer, pending, Ok(value))?;
            }
            Err(OperationError::WouldBlock) => self.wait(from, peer),
            Err(OperationError::PeerDown) => {}
            Err(error) => return Err(format!("{:?}: {pending:?}: {error}", program.life)),
        }
        Ok(())
    }

    pub(super) fn put(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        let (own, owner) = (self.programs[from].life, self.programs[to].life);
        let place = random.random_range(0..SLOTS);
        let slot = (owner, own, place);
        let is_busy = self.programs[from].pending.values().any(
            |(_, pending)| matches!(pending, Pending::Put { slot: busy, .. } if *busy == slot),
        );
        if is_busy {
            return Ok(());
        }
        let number = self.numbers + 1;
        let length = random.random_range(1..=SLOT_BYTES);
        let bytes = pattern(number, length);
        let target = Target::new(self.programs[to].key, size(offset_of(own, place)));
        let tells = random.random_bool(0.5);
        let program = &mut self.programs[from];
        let operation = Operation::new(program.next);
        let notify =
            if tells { Notify::COMPLETER.class(5).immediate(number) } else { Notify::NONE };
        let answer =
            program.endpoint.put(peer, Source::Bytes(&bytes), target, operation.notify(notify));
        if answer.is_ok() {
            self.numbers = number;
            self.slots.insert(slot, Content::Unknown { number, length });
            if tells {
                self.owed.insert(number, (own, owner, pair_of(peer)));
            }
        }
        self.begun((from, peer), answer, Pending::Put { slot, number })
    }

    pub(super) fn get(
        &mut self,
        (from, to, peer): (usize, usize, Peer),
        random: &mut ChaCha8Rng,
    ) -> Result<(), String> {
        // The scratch has one get at a time.
        let is_busy = |(_, pending): &(Peer, Pending)| matches!(pending, Pending::Get { .. });
        if self.programs[from].pending.values().any(is_busy) {
            return Ok(());
        }
        let at = random.random_range(0..OWN_BYTES);
        let length = random.random_range(1..=OWN_BYTES - at);
        let (key, owner) = (self.programs[to].key, self.programs[to].life);
        let program = &mut self.programs[from];
        let into = LocalRange::new(&program.scratch, size(at), size(length));
        let operation = Operation::new(program.next);
        let answer = program.endpoint.get(peer, Target::new(key, size(at)), into, operation);
        self.begun((from, peer), answer, Pending::Get { at, length, owner })
    }

    pub(super) fn add(&mut self, (from, to, peer): (usize, usize, Peer)) -> Result<(), String> {
        let (own, owner) = (self.programs[from].life, self.programs[to].life);
        let target = Target::new(self.programs[to].key, size(word_of(own)));
        let program = &mut self.programs[from];
        let operation = Operation::new(program.next);
        let answer = program.endpoint.atomic(peer, target, Atomic::fetch_add(1), operation);
        if answer.is_ok() {
            self.sums.entry((own, owner)).or_default().begun += 1;
        }
        self.begun((from, peer), answer, Pending::Add { to: owner })
    }

    pub(super) fn ended(
        &mut self,
        from: usize,
        peer: Peer,
        pending: Pending,
        result: Result<Value, OperationError>,
    ) -> Result<(), String> {
        let own = self.programs[from].life;
        self.done += 1;
        match (pending, result) {
            (Pending::Stray, _) => {}
            (Pending::Put { slot, number }, Ok(_)) => {
                let Some(Content::Unknown { length, .. }) = self.slots.get(&slot).copied() else {
                    return Err(format!("{own:?}: the put into {slot:?} ended twice"));
                };
                self.slots.insert(slot, Content::Known { number, length });
                self.check_slot(slot)?;
            }
            (Pending::Get { at, length, owner }, Ok(_)) => {
                let there = bytes_of(&self.programs[from].scratch, at, length)?;
                let wanted = pattern(own_number(owner), OWN_BYTES);
                if there != wanted[at..at + length] {
                    return Err(format!("{own:?}: a get from {owner:?} brought other bytes"));
                }
            }
            (Pending::Add { .. }, Ok(value)) if value.word().is_none() => {
                return Err(format!("{own:?}: an addition over {peer:?} ended with {value:?}"));
            }
            (Pending::Add { to }, Ok(value)) => {
                let former = value.word().unwrap_or_default();
                let sum = self.sums.entry((own, to)).or_default();
                sum.well += 1;
                if former >= sum.begun || !sum.answers.insert(former) {
                    return Err(format!(
                        "{own:?}: an addition at {to:?} answered {former} of {} begun, or twice",
                        sum.begun
                    ));
                }
            }
            (Pending::Put { number, .. }, Err(OperationError::PeerDown)) => {
                self.owed.remove(&number);
            }
            (_, Err(OperationError::PeerDown)) => {}
            (pending, Err(error)) => {
                return Err(format!("{own:?}: {pending:?} over {peer:?} failed: {error}"));
            }
        }
        Ok(())
    }

    /// Checks the bytes of a slot, if they are known and their owner lives.
    pub(super) fn check_slot(&self, slot: Slot) -> Result<(), String> {
        let (owner, writer, place) = slot;
        let Some(Content::Known { number, length }) = self.slots.get(&slot) else { return Ok(()) };
        let Some(program) = self.program(owner) else { return Ok(()) };
        let there = bytes_of(&program.region, offset_of(writer, place), *length)?;
        if there != pattern(*number, *length) {
            return Err(format!(
                "the put {number} into {slot:?} ended well and its bytes are not \
                                there"
            ));
        }
        Ok(())
    }

    pub(super) fn put_arrived(&mut self, own: Life, number: u64) -> Result<(), String> {
        if !self.told.insert(number) {
            return Err(format!("{own:?}: put {number} was told twice"));
        }
        let of_number = |content: &Content| {
            let (Content::Known { number: of, length } | Content::Unknown { number: of, length }) =
                *content;
            (of == number).then_some(length)
        };
        let found = self.slots.iter().find_map(|(slot, content)| {
            of_number(content).filter(|_| slot.0 == own).map(|length| (*slot, length))
        });
        // Another put may be under way in the slot by now.
        let Some(((_, writer, place), length)) = found else { return Ok(()) };
        let program = &self.programs[usize::from(own.0)];
        let there = bytes_of(&program.region, offset_of(writer, place), length)?;
        if there != pattern(number, length) {
            return Err(format!("{own:?}: put {number} was told before its bytes were there"));
        }
        Ok(())
    }
}
