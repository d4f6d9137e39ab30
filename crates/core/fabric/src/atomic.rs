//! Atomic operations on words of a region, as values.

use crate::operation::{Access, Value};

/// The width of an atomic's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 32 bits; the upper half of operands and results is zero.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl Width {
    /// Bytes of the word. Its offset must be a multiple of them.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

/// The kind of an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOperation {
    /// Nothing is written: the word is read whole. Needs [`Access::READ`] alone.
    Read,
    /// `word += operand`, wrapping.
    FetchAdd,
    /// `word = operand`.
    Swap,
    /// `if word == compare { word = operand }`.
    CompareSwap,
    /// `word &= operand`.
    And,
    /// `word |= operand`.
    Or,
    /// `word ^= operand`.
    Xor,
}

impl AtomicOperation {
    /// The right that a key must grant.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Read => Access::READ,
            _ => Access::ATOMIC,
        }
    }
}

/// An atomic operation on a word of a remote region.
///
/// ```
/// use weft_fabric::{Atomic, AtomicOperation, Value, Width};
///
/// let add = Atomic::fetch_add(5);
/// assert_eq!((add.apply(2), add.result(2)), (7, Value::Word(2)));
/// let set = Atomic::write(Width::Bits32, 9);
/// assert_eq!((set.apply(2), set.result(2)), (9, Value::Nothing));
/// let clear = Atomic::new(AtomicOperation::And, Width::Bits64, !1);
/// assert_eq!(clear.apply(7), 6);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomic {
    /// The kind of operation.
    pub operation: AtomicOperation,
    /// 32 or 64 bits.
    pub width: Width,
    /// The operand.
    pub operand: u64,
    /// The value that [`AtomicOperation::CompareSwap`] compares with. Other kinds ignore it.
    pub compare: u64,
    /// Whether the result is the word's former value. Else it is 0, and a network carries nothing
    /// back but the completion. A swap that fetches nothing is an atomic write.
    pub fetches: bool,
}

impl Atomic {
    /// 64-bit fetch-and-add.
    #[must_use]
    pub const fn fetch_add(operand: u64) -> Self {
        Self::new(AtomicOperation::FetchAdd, Width::Bits64, operand)
    }

    /// 64-bit compare-and-swap.
    #[must_use]
    pub const fn compare_swap(compare: u64, operand: u64) -> Self {
        Self { compare, ..Self::new(AtomicOperation::CompareSwap, Width::Bits64, operand) }
    }

    /// Reads a word of `width`.
    #[must_use]
    pub const fn read(width: Width) -> Self {
        Self::new(AtomicOperation::Read, width, 0)
    }

    /// Writes a word of `width`.
    #[must_use]
    pub const fn write(width: Width, value: u64) -> Self {
        Self::new(AtomicOperation::Swap, width, value).without_result()
    }

    /// An operation of any kind on a word of `width`, which fetches its former value.
    #[must_use]
    pub const fn new(operation: AtomicOperation, width: Width, operand: u64) -> Self {
        Self { operation, width, operand, compare: 0, fetches: true }
    }

    /// The same, but the result is 0.
    #[must_use]
    pub const fn without_result(self) -> Self {
        Self { fetches: false, ..self }
    }

    /// The value of the operation where the word's former value was `old`.
    #[must_use]
    pub const fn result(&self, old: u64) -> Value {
        if self.fetches { Value::Word(old) } else { Value::Nothing }
    }

    /// The word's new value if it was `old`. This defines the operations for all transports.
    #[must_use]
    pub const fn apply(&self, old: u64) -> u64 {
        let mask = match self.width {
            Width::Bits32 => 0xffff_ffff,
            Width::Bits64 => u64::MAX,
        };
        let new = match self.operation {
            AtomicOperation::Read => old,
            AtomicOperation::FetchAdd => old.wrapping_add(self.operand),
            AtomicOperation::Swap => self.operand,
            AtomicOperation::CompareSwap => {
                if old == self.compare & mask {
                    self.operand
                } else {
                    old
                }
            }
            AtomicOperation::And => old & self.operand,
            AtomicOperation::Or => old | self.operand,
            AtomicOperation::Xor => old ^ self.operand,
        };
        new & mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_of_32_bits_stay_in_32_bits() {
        let add = Atomic::new(AtomicOperation::FetchAdd, Width::Bits32, 2);
        assert_eq!(add.apply(0xffff_ffff), 1);
        let xor = Atomic::new(AtomicOperation::Xor, Width::Bits32, u64::MAX);
        assert_eq!(xor.apply(0xffff_0000), 0x0000_ffff);
    }

    #[test]
    fn compare_swap_writes_only_on_equality() {
        let swap = Atomic::compare_swap(5, 9);
        assert_eq!((swap.apply(5), swap.apply(6)), (9, 6));
    }
}
