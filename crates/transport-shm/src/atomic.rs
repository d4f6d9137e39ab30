//! Atomics on words of peers' regions, and the fetch-compare-and-add lock. Both use the processor's
//! atomics on mapped memory, so the owner's threads may use theirs on the same words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_fabric::{
    Atomic, AtomicOperation, Command, Issued, LockRequest, Notify, OperationError, Peer, Register,
    RemoteKey, Target, Width,
};

use crate::doorbell::LOCKS;
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, Mapped};
use crate::registers::Registers;
use crate::rma::{Account, mapped_for};

#[inline(always)]
fn apply_64(word: &AtomicU64, atomic: &Atomic) -> u64 {
    let operand = atomic.operand;
    match atomic.operation {
        AtomicOperation::FetchAdd => word.fetch_add(operand, Ordering::AcqRel),
        AtomicOperation::Swap => word.swap(operand, Ordering::AcqRel),
        AtomicOperation::CompareSwap => word
            .compare_exchange(atomic.compare, operand, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found),
        AtomicOperation::And => word.fetch_and(operand, Ordering::AcqRel),
        AtomicOperation::Or => word.fetch_or(operand, Ordering::AcqRel),
        AtomicOperation::Xor => word.fetch_xor(operand, Ordering::AcqRel),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "a 32-bit atomic uses the low half")]
const fn low(value: u64) -> u32 {
    value as u32
}

#[inline]
fn apply_32(word: &AtomicU32, atomic: &Atomic) -> u64 {
    let operand = low(atomic.operand);
    u64::from(match atomic.operation {
        AtomicOperation::FetchAdd => word.fetch_add(operand, Ordering::AcqRel),
        AtomicOperation::Swap => word.swap(operand, Ordering::AcqRel),
        AtomicOperation::CompareSwap => word
            .compare_exchange(low(atomic.compare), operand, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found),
        AtomicOperation::And => word.fetch_and(operand, Ordering::AcqRel),
        AtomicOperation::Or => word.fetch_or(operand, Ordering::AcqRel),
        AtomicOperation::Xor => word.fetch_xor(operand, Ordering::AcqRel),
    })
}

/// The translation that the last atomic used. Successive atomics usually go to one region. The
/// NIC's ATU likewise caches its last translations (003 section 3.2.5).
#[derive(Debug)]
pub(crate) struct Recent {
    to: Peer,
    key: RemoteKey,
    slot: u16,
    registers: Arc<Registers>,
    mapped: Mapped,
}

impl Recent {
    /// Whether this is the translation of `key` of peer `to` and the key is still in force. The
    /// peer is alive: the endpoint drops this cache when any peer is gone.
    #[inline]
    fn serves(&self, to: Peer, key: RemoteKey) -> bool {
        self.to == to && self.key == key && self.registers.stamp(self.slot) == self.mapped.stamp
    }
}

impl ShmEndpoint {
    /// The fast path is an atomic of 64 bits without a notification. It is a separate function that
    /// needs few registers and no stack, because the processor's atomic waits for every earlier
    /// store.
    #[inline(always)]
    pub(crate) fn do_atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        if notify.is_none()
            && atomic.width == Width::Bits64
            && let Some(word) = self.word_at_hand(to, target)
        {
            let old = apply_64(word, &atomic);
            self.registers.count(Register::Atomics, 1);
            return Ok(Issued::Done(old));
        }
        self.any_atomic(to, target, atomic, notify, context)
    }

    /// The 64-bit word behind a resolved key, if an atomic may use the word.
    #[inline]
    fn word_at_hand(&mut self, to: Peer, target: Target) -> Option<&AtomicU64> {
        let known = self.recent.as_ref().is_some_and(|recent| recent.serves(to, target.key));
        if !known {
            self.remember(to, target.key)?;
        }
        let mapped = &self.recent.as_ref()?.mapped;
        let start = mapped.check(Command::Atomic, target.offset, 8).ok()?;
        target.offset.is_multiple_of(8).then(|| mapped.segment.word64(start))
    }

    #[cold]
    fn remember(&mut self, to: Peer, key: RemoteKey) -> Option<()> {
        let peer = self.peers.live(to).ok()?;
        let mapped = peer.split(key)?.0.clone();
        let (slot, registers) = (KeyParts::of(key).slot, Arc::clone(&peer.registers));
        self.recent = Some(Recent { to, key, slot, registers, mapped });
        Some(())
    }

    #[inline(never)]
    fn any_atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        self.try_atomic(to, target, atomic, notify, context).map_err(|error| self.note(error))
    }

    fn try_atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let command = Command::Atomic;
        let Target { key, offset } = target;
        let length = atomic.width.bytes();
        let (mapped, _) = mapped_for!(self, to, command, notify, key);
        let start = mapped.check(command, offset, length)?;
        if !offset.is_multiple_of(length) {
            return Err(OperationError::Misaligned { offset, alignment: length });
        }
        let old = match atomic.width {
            Width::Bits32 => apply_32(mapped.segment.word32(start), &atomic),
            Width::Bits64 => apply_64(mapped.segment.word64(start), &atomic),
        };
        self.registers.count(Register::Atomics, 1);
        self.tell(to, Account { command, notify, context, key, offset, length });
        Ok(Issued::Done(old))
    }

    pub(crate) fn do_lock(
        &mut self,
        to: Peer,
        request: LockRequest,
        notify: Notify,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let command = Command::Lock;
        let number = request.number;
        if number >= LOCKS {
            self.peers.live(to)?;
            return Err(OperationError::InvalidLock { number, maximum: LOCKS });
        }
        self.prepare(to, command, notify)?;
        let (old, added) = self.peers.live(to)?.doorbell.lock(request);
        self.registers.count(Register::Atomics, 1);
        let (key, offset) = (RemoteKey(0), u64::from(number));
        self.tell(to, Account { command, notify, context, key, offset, length: 0 });
        Ok(Issued::Done(u64::from(old) | u64::from(added) << 32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_atomics_agree_with_the_definition_of_the_fabric() {
        use AtomicOperation::{And, CompareSwap, FetchAdd, Or, Swap, Xor};
        for operation in [FetchAdd, Swap, CompareSwap, And, Or, Xor] {
            for old in [0, 5, u64::from(u32::MAX), u64::MAX] {
                for operand in [1, 0xf0f0_f0f0_f0f0_f0f0] {
                    let mut atomic = Atomic::new(operation, Width::Bits64, operand);
                    atomic.compare = 5;
                    let word = AtomicU64::new(old);
                    assert_eq!(apply_64(&word, &atomic), old);
                    assert_eq!(word.into_inner(), atomic.apply(old));
                    atomic.width = Width::Bits32;
                    let word = AtomicU32::new(low(old));
                    assert_eq!(apply_32(&word, &atomic), u64::from(low(old)));
                    assert_eq!(u64::from(word.into_inner()), atomic.apply(u64::from(low(old))));
                }
            }
        }
    }
}
