//! Keys that another transport of the program has granted, and that peers of this one may use, too.
//! The other transport has chosen their numbers.
//!
//! # Invariants
//! - The range of such a key is registered when the first peer asks where it is.
//! - A peer that asks while the other transport moves the memory waits, for [`MOVE_WITHIN`] at
//!   most.

use std::collections::BTreeSet;
use std::time::Duration;

use weft_fabric::{Access, OperationError, RemoteKey};
use weft_libfabric::{Error, Rights};
use weft_memory::Memory;

use super::Engine;
use super::rights::{Grant, Ground, Registered, Validity};
use crate::nic::Nic;
use crate::packet::{Answer, Range};

/// How long the move of a memory may take.
const MOVE_WITHIN: Duration = Duration::from_secs(1);

/// A peer's question for a key whose range could not be registered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    handle: u32,
    number: u64,
    key: RemoteKey,
    until: Duration,
}

impl<N: Nic> Engine<N> {
    /// Lets the peers of the partition use a key to `length` bytes of a memory from `start` on.
    pub(crate) fn offer(
        &mut self,
        key: RemoteKey,
        memory: &Memory,
        (start, length): (u64, u64),
        access: Access,
    ) {
        self.grants.insert(
            key,
            Grant {
                ground: Ground::Memory(memory.clone()),
                start,
                length,
                access,
                audience: None,
                registered: Registered::Later,
                holders: BTreeSet::new(),
                is_settled: true,
                state: Validity::Valid,
            },
        );
    }

    /// Whether a key is one of this endpoint, granted or offered, and in force.
    pub(crate) fn has_key(&self, key: RemoteKey) -> bool {
        self.grants.get(&key).is_some_and(|grant| grant.state == Validity::Valid)
    }

    /// Registers the range of a key, unless it is.
    fn register_range(&mut self, key: RemoteKey) -> Result<(), Error> {
        let Some(grant) = self.grants.get_mut(&key) else { return Ok(()) };
        if !matches!(grant.registered, Registered::Later) {
            return Ok(());
        }
        let rights = Rights {
            read: grant.access.contains(Access::READ),
            write: grant.access.contains(Access::WRITE),
        };
        // The range was checked to lie in memory.
        let place = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let (start, length) = (place(grant.start), place(grant.length));
        grant.registered = if length == 0 {
            Registered::Nothing
        } else {
            let (registration, spot) =
                self.nic.register((grant.ground.memory(), start, length), rights)?;
            Registered::At(registration, spot)
        };
        Ok(())
    }

    /// Answers a peer's question where the range of a key is, now or later.
    pub(super) fn answer_for_key(&mut self, handle: u32, number: u64, key: RemoteKey) {
        let until = self.now() + MOVE_WITHIN;
        self.answer_or_wait(Unanswered { handle, number, key, until });
    }

    fn answer_or_wait(&mut self, question: Unanswered) {
        let Unanswered { handle, number, key, until } = question;
        let result: Result<Range, OperationError> = match self.is_for(handle, key) {
            false => Err(OperationError::InvalidKey),
            true => match self.register_range(key) {
                Ok(()) => self.resolved(handle, key),
                Err(_) if self.now() < until => return self.unanswered.push(question),
                // The provider takes no more, or the memory has not stood still.
                Err(_) => Err(OperationError::InvalidKey),
            },
        };
        self.answer(handle, number, result.map(Answer::Range));
    }

    /// Tries again to answer questions for keys.
    pub(super) fn look_at_unanswered(&mut self) {
        for question in std::mem::take(&mut self.unanswered) {
            self.answer_or_wait(question);
        }
    }

    fn is_for(&self, handle: u32, key: RemoteKey) -> bool {
        self.grants.get(&key).is_some_and(|grant| grant.is_for(handle))
    }
}
