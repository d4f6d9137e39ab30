//! One-sided operations as values: what to do, where, and who is to be told.

use bitflags::bitflags;

use crate::error::OperationError;

bitflags! {
    /// What a key lets its holder do.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// Get, and load through a window.
        const READ = 1;
        /// Put, and store through a window.
        const WRITE = 2;
        /// Atomics; needs `READ` and `WRITE` too.
        const ATOMIC = 4;
    }
}

bitflags! {
    /// Who gets a notification of an operation (003 Table 3.1).
    ///
    /// A put may notify requester and completer; a get, an atomic and a lock any of the three.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Sides: u8 {
        /// The initiator, when the operation left it.
        const REQUESTER = 1;
        /// The target of a get, atomic or lock, when it answered.
        const RESPONDER = 2;
        /// Where the data arrived: the target of a put, the initiator of a get.
        const COMPLETER = 4;
    }
}

/// The notifications that an operation asks for, and what they carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notify {
    sides: Sides,
    /// A small number that receivers match on.
    pub class: u8,
    /// 64 bits that every notification of this operation carries.
    pub immediate: u64,
}

impl Notify {
    /// No notification.
    pub const NONE: Self = Self { sides: Sides::empty(), class: 0, immediate: 0 };
    /// Notify the initiator.
    pub const REQUESTER: Self = Self { sides: Sides::REQUESTER, class: 0, immediate: 0 };
    /// Notify the target of a get, atomic or lock.
    pub const RESPONDER: Self = Self { sides: Sides::RESPONDER, class: 0, immediate: 0 };
    /// Notify the side where the data arrives.
    pub const COMPLETER: Self = Self { sides: Sides::COMPLETER, class: 0, immediate: 0 };

    /// Both requests together; class and immediate of `self`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { sides: self.sides.union(other.sides), ..self }
    }

    /// The same, carrying `class`.
    #[must_use]
    pub const fn class(self, class: u8) -> Self {
        Self { class, ..self }
    }

    /// The same, carrying `immediate`.
    #[must_use]
    pub const fn immediate(self, immediate: u64) -> Self {
        Self { immediate, ..self }
    }

    /// Nobody is to be told.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.sides.is_empty()
    }

    /// The initiator is to be told.
    #[must_use]
    pub const fn requester(self) -> bool {
        self.sides.contains(Sides::REQUESTER)
    }

    /// The responding target is to be told.
    #[must_use]
    pub const fn responder(self) -> bool {
        self.sides.contains(Sides::RESPONDER)
    }

    /// The side where the data arrives is to be told.
    #[must_use]
    pub const fn completer(self) -> bool {
        self.sides.contains(Sides::COMPLETER)
    }

    /// Checks the combination against Table 3.1: a put has no responder.
    ///
    /// # Errors
    /// [`OperationError::InvalidNotification`] for a responder on anything that only writes.
    pub const fn check(self, command: Command) -> Result<(), OperationError> {
        let writes_only =
            matches!(command, Command::Put | Command::ImmediatePut | Command::NotificationPut);
        if writes_only && self.responder() {
            return Err(OperationError::InvalidNotification { command });
        }
        Ok(())
    }
}

/// Kinds of operation, as a notification names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Command {
    /// Write of any length.
    Put = 0,
    /// Read of any length.
    Get = 1,
    /// Write of 1 to 8 bytes that travel in the descriptor.
    ImmediatePut = 2,
    /// A value straight into the peer's notification queue.
    NotificationPut = 3,
    /// Atomic on a word of a region.
    Atomic = 4,
    /// Fetch-compare-and-add on a numbered lock.
    Lock = 5,
}

impl Command {
    /// The command with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Put,
            1 => Self::Get,
            2 => Self::ImmediatePut,
            3 => Self::NotificationPut,
            4 => Self::Atomic,
            5 => Self::Lock,
            _ => return None,
        })
    }
}

/// Names a granted region remotely; opaque, and dead from the moment it is revoked.
///
/// Extoll: a network logical address (003 section 3.2.5). The number is not a secret: the fabric
/// checks the partition of whoever uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RemoteKey(pub u64);

/// A place in a peer's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The region.
    pub key: RemoteKey,
    /// Bytes from its start.
    pub offset: u64,
}

impl Target {
    /// Byte `offset` of the region that `key` names.
    #[must_use]
    pub const fn new(key: RemoteKey, offset: u64) -> Self {
        Self { key, offset }
    }
}

/// Tag and type of a mailbox message (003 Fig. 3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MessageHeader {
    /// 8-bit user tag.
    pub tag: u8,
    /// 2-bit message type (MTT), 0 to 3.
    pub kind: u8,
}

impl MessageHeader {
    /// Types there are: 2 bits.
    pub const KINDS: u8 = 4;

    /// A header with `tag`, type 0.
    #[must_use]
    pub const fn tag(tag: u8) -> Self {
        Self { tag, kind: 0 }
    }
}

/// Width of an atomic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 32 bits; the upper half of operands and results is zero.
    Bits32,
    /// 64 bits.
    Bits64,
}

impl Width {
    /// Bytes of the word, which is also the alignment that its offset needs.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }
}

/// What an atomic does; all return the former value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOperation {
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

/// One atomic on a word of a remote region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Atomic {
    /// What to do.
    pub operation: AtomicOperation,
    /// 32 or 64 bits.
    pub width: Width,
    /// The operand.
    pub operand: u64,
    /// Used by [`AtomicOperation::CompareSwap`] alone.
    pub compare: u64,
}

impl Atomic {
    /// 64-bit fetch-and-add.
    #[must_use]
    pub const fn fetch_add(operand: u64) -> Self {
        Self { operation: AtomicOperation::FetchAdd, width: Width::Bits64, operand, compare: 0 }
    }

    /// 64-bit compare-and-swap.
    #[must_use]
    pub const fn compare_swap(compare: u64, operand: u64) -> Self {
        Self { operation: AtomicOperation::CompareSwap, width: Width::Bits64, operand, compare }
    }

    /// Any operation on a word of `width`.
    #[must_use]
    pub const fn new(operation: AtomicOperation, width: Width, operand: u64) -> Self {
        Self { operation, width, operand, compare: 0 }
    }

    /// The value the word takes when it held `old`: the meaning of the operation, in one place.
    #[must_use]
    pub const fn apply(&self, old: u64) -> u64 {
        let mask = match self.width {
            Width::Bits32 => 0xffff_ffff,
            Width::Bits64 => u64::MAX,
        };
        let new = match self.operation {
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

/// Fetch-compare-and-add on a numbered lock (Extoll's `LOCK` command): when the lock's value is at
/// most `compare`, `add` is added to it; the former value comes back either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Which lock of the target, below [`crate::Capabilities::locks`].
    pub number: u32,
    /// Compared with the lock's value, signed.
    pub compare: i32,
    /// Added when the comparison holds, wrapping.
    pub add: i32,
}

impl LockRequest {
    /// The new value when the lock held `old`, or `None` when the comparison fails.
    #[must_use]
    pub const fn apply(&self, old: i32) -> Option<i32> {
        if old <= self.compare { Some(old.wrapping_add(self.add)) } else { None }
    }
}

/// How far an operation is when the call that started it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Issued {
    /// It is over. The value is what a fetching operation returned (0 for others); a lock returns
    /// its former value in the low 32 bits and bit 32 set when the addition was done.
    Done(u64),
    /// It goes on; an [`crate::Event::Completion`] with the caller's context will end it.
    Pending,
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

    #[test]
    fn a_lock_adds_up_to_its_bound() {
        let take = LockRequest { number: 0, compare: 0, add: 1 };
        assert_eq!(take.apply(0), Some(1));
        assert_eq!(take.apply(1), None);
    }

    #[test]
    fn table_3_1_refuses_a_responder_for_puts() {
        let both = Notify::REQUESTER.and(Notify::RESPONDER);
        assert!(both.check(Command::Get).is_ok());
        assert_eq!(
            both.check(Command::Put),
            Err(OperationError::InvalidNotification { command: Command::Put })
        );
    }
}
