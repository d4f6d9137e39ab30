//! Atomics and locks at their target.
//!
//! Invariant: the world serves one request at a time, so each is atomic with respect to all others
//! and to the owner's own loads and stores.

use weft_fabric::{Atomic, Command, OperationError, Target, Value};

use crate::world::{Id, WorldState};

impl WorldState {
    /// Applies an atomic to a word. Returns its result.
    pub(crate) fn serve_atomic(
        &mut self,
        ends: (Id, Id),
        target: Target,
        atomic: Atomic,
    ) -> Result<Value, OperationError> {
        let width = atomic.width.bytes();
        let needed = (Command::Atomic, atomic.operation.access());
        let word = self.check_word(ends, needed, target, width)?;
        Ok(atomic.result(word.region.change(word.start, width, |old| atomic.apply(old))))
    }
}
