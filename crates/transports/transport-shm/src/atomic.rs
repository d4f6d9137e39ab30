//! Atomics on words of peers' regions. They use the processor's atomics on mapped memory, so the
//! owner's threads may use theirs on the same words.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_fabric::{
    Atomic, AtomicOperation, Command, Issued, Notify, Operation, OperationError, Peer, Report,
    Target, Width,
};

use crate::door;
use crate::endpoint::ShmEndpoint;
use crate::rma::{Account, mapped_for};

#[inline(always)]
pub(crate) fn apply_64(word: &AtomicU64, atomic: &Atomic) -> u64 {
    let operand = atomic.operand;
    match atomic.operation {
        AtomicOperation::Read => word.load(Ordering::Acquire),
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
pub(crate) fn apply_32(word: &AtomicU32, atomic: &Atomic) -> u64 {
    let operand = low(atomic.operand);
    u64::from(match atomic.operation {
        AtomicOperation::Read => word.load(Ordering::Acquire),
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
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        // Announced before all checks: the store is on its way while they go on, and the
        // processor's atomic waits for it.
        let begun = self.registers.begin_atomic();
        if operation.notify.is_none()
            && atomic.width == Width::Bits64
            && let Some(recent) = self.recently.of(to, target.key)
            && recent.grants(atomic.operation.access())
            && let Some(word) = recent.span().word64(target.offset)
        {
            let look = recent.look();
            if look.serves(recent) {
                door::before();
                let old = apply_64(word, &atomic);
                door::behind();
                // Ended behind the look: a move that waits for this atomic goes on at its end.
                if !look.is_confirmed()
                    && let Err(error) = self.recently.confirm_slowly()
                {
                    return Err(self.note(error));
                }
                door::confirmed();
                begun.end();
                return Ok(Issued::Done(atomic.result(old)));
            }
        }
        // Nothing here overtakes anything, so an ordered operation is like all others.
        let Operation { context, notify, report, more, ordered: _ } = operation;
        self.any_atomic(to, target, atomic, (context, notify), (report, more))
    }

    /// Takes the operation in parts: an argument in memory would cost the fast path its stores.
    #[inline(never)]
    fn any_atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        (context, notify): (u64, Notify),
        (report, more): (Report, bool),
    ) -> Result<Issued, OperationError> {
        let operation = Operation { context, notify, report, more, ordered: false };
        let done = self.try_atomic(to, target, atomic, operation);
        if done.is_ok() {
            self.looked_up(to, target.key);
        }
        done.map_err(|error| self.note(error))
    }

    fn try_atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let command = Command::Atomic;
        let Target { key, offset } = target;
        let length = atomic.width.bytes();
        // Announced without a borrow of the registers: the key may have to be looked up.
        let registers = Arc::clone(&self.registers);
        let begun = registers.begin_atomic();
        let (mapped, _) = mapped_for!(self, to, command, operation.notify, key);
        let start = mapped.check_word((command, atomic.operation.access()), offset, length)?;
        door::before();
        let old = match atomic.width {
            Width::Bits32 => apply_32(mapped.segment.word32(start), &atomic),
            Width::Bits64 => apply_64(mapped.segment.word64(start), &atomic),
        };
        door::behind();
        mapped.confirm(mapped.word)?;
        door::confirmed();
        begun.end();
        self.tell(to, Account { command, operation, key, offset, length });
        Ok(Issued::Done(atomic.result(old)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_atomics_agree_with_the_definition_of_the_fabric() {
        use AtomicOperation::{And, CompareSwap, FetchAdd, Or, Read, Swap, Xor};
        for operation in [Read, FetchAdd, Swap, CompareSwap, And, Or, Xor] {
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
