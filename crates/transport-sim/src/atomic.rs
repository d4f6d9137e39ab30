//! Atomics and locks at their target.
//!
//! Invariant: the world serves one request at a time, so each is atomic with respect to all others
//! and to the owner's own loads and stores.

use weft_fabric::{Atomic, Command, LockRequest, OperationError, Target};

use crate::world::{Id, State};

impl State {
    /// Applies an atomic to a word. Returns its result.
    pub(crate) fn serve_atomic(
        &mut self,
        ends: (Id, Id),
        target: Target,
        atomic: Atomic,
    ) -> Result<u64, OperationError> {
        let width = atomic.width.bytes();
        let needed = (Command::Atomic, atomic.operation.access());
        let word = self.check_word(ends, needed, target, width)?;
        Ok(atomic.result(word.region.change(word.start, width, |old| atomic.apply(old))))
    }

    /// Applies a fetch-compare-and-add. Returns the former value, with bit 32 set if the addition
    /// was made.
    pub(crate) fn serve_lock(&mut self, at: Id, lock: LockRequest) -> Result<u64, OperationError> {
        let maximum = self.capabilities.locks;
        if lock.number >= maximum {
            return Err(OperationError::InvalidLock { number: lock.number, maximum });
        }
        let value = self.endpoints[at].locks.entry(lock.number).or_insert(0);
        let old = *value;
        let new = lock.apply(old);
        *value = new.unwrap_or(old);
        let former = u64::from(u32::from_ne_bytes(old.to_ne_bytes()));
        Ok(former | u64::from(new.is_some()) << 32)
    }
}
