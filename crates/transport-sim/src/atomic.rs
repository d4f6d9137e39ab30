//! Atomics and locks at their target.
//!
//! Invariant: the world serves one request at a time, so each is atomic with respect to all others
//! and to the owner's own loads and stores.

use weft_fabric::{Atomic, Command, LockRequest, OperationError, RemoteKey, Side, Target};

use crate::progress::Request;
use crate::world::{Id, State};

impl State {
    /// Applies an atomic to a word. Returns its result.
    pub(crate) fn serve_atomic(
        &mut self,
        from: Id,
        to: Id,
        request: &Request,
        target: Target,
        atomic: Atomic,
    ) -> Result<u64, OperationError> {
        let width = atomic.width.bytes();
        let needed = (Command::Atomic, atomic.operation.access());
        let region = self.check(to, needed, target, width)?;
        let old = region.change(target.offset, width, |old| atomic.apply(old));
        if request.notify.responder() {
            let range = (target.key, target.offset, width);
            self.notify_target(Side::Responder, Command::Atomic, range, from, to, request);
        }
        Ok(atomic.result(old))
    }

    /// Applies a fetch-compare-and-add. Returns the former value, with bit 32 set if the addition
    /// was made.
    pub(crate) fn serve_lock(
        &mut self,
        from: Id,
        to: Id,
        request: &Request,
        lock: LockRequest,
    ) -> Result<u64, OperationError> {
        let maximum = self.capabilities.locks;
        if lock.number >= maximum {
            return Err(OperationError::InvalidLock { number: lock.number, maximum });
        }
        let value = self.endpoints[to].locks.entry(lock.number).or_insert(0);
        let old = *value;
        let new = lock.apply(old);
        *value = new.unwrap_or(old);
        if request.notify.responder() {
            let range = (RemoteKey(0), u64::from(lock.number), 0);
            self.notify_target(Side::Responder, Command::Lock, range, from, to, request);
        }
        let former = u64::from(u32::from_ne_bytes(old.to_ne_bytes()));
        Ok(former | u64::from(new.is_some()) << 32)
    }
}
