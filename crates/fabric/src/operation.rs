//! One-sided operations as values: the action, its target, and its notifications.

use bitflags::bitflags;

use crate::error::OperationError;

bitflags! {
    /// The rights of a remote key.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// Get, and load through a window.
        const READ = 1;
        /// Put, and store through a window.
        const WRITE = 2;
        /// Atomics; needs `READ` and `WRITE` as well.
        const ATOMIC = 4;
    }
}

bitflags! {
    /// The sides that get a notification of an operation (003 Table 3.1).
    ///
    /// A put may notify requester and completer; a get, an atomic and a lock may notify all three.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Sides: u8 {
        /// The initiator, when the operation has left it.
        const REQUESTER = 1;
        /// The target of a get, atomic or lock, when it has responded.
        const RESPONDER = 2;
        /// The side where the data arrives: the target of a put, the initiator of a get.
        const COMPLETER = 4;
    }
}

/// The notifications that an operation requests, and their contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notify {
    sides: Sides,
    /// A small number for receivers to match on.
    pub class: u8,
    /// 64 bits that every notification of the operation carries.
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

    /// The sides of both, with the class and immediate of `self`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { sides: self.sides.union(other.sides), ..self }
    }

    /// The same with this class.
    #[must_use]
    pub const fn class(self, class: u8) -> Self {
        Self { class, ..self }
    }

    /// The same with this immediate.
    #[must_use]
    pub const fn immediate(self, immediate: u64) -> Self {
        Self { immediate, ..self }
    }

    /// True if no side is notified.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.sides.is_empty()
    }

    /// True if the initiator is notified.
    #[must_use]
    pub const fn requester(self) -> bool {
        self.sides.contains(Sides::REQUESTER)
    }

    /// True if the responding target is notified.
    #[must_use]
    pub const fn responder(self) -> bool {
        self.sides.contains(Sides::RESPONDER)
    }

    /// True if the side where the data arrives is notified.
    #[must_use]
    pub const fn completer(self) -> bool {
        self.sides.contains(Sides::COMPLETER)
    }

    /// Checks the sides against Table 3.1: a put has no responder.
    ///
    /// # Errors
    /// [`OperationError::InvalidNotification`] for a responder of an operation that only writes.
    pub const fn check(self, command: Command) -> Result<(), OperationError> {
        let writes_only =
            matches!(command, Command::Put | Command::ImmediatePut | Command::NotificationPut);
        if writes_only && self.responder() {
            return Err(OperationError::InvalidNotification { command });
        }
        Ok(())
    }
}

/// Kinds of operations, as in notifications.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Command {
    /// Write of any length.
    Put = 0,
    /// Read of any length.
    Get = 1,
    /// Write of 1 to 8 bytes, which travel in the descriptor.
    ImmediatePut = 2,
    /// A notification without any data.
    NotificationPut = 3,
    /// Atomic operation on a word of a region.
    Atomic = 4,
    /// Fetch-compare-and-add on a numbered lock.
    Lock = 5,
}

impl Command {
    /// The right that a key must grant; for atomics see [`AtomicOperation::access`].
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Put | Self::ImmediatePut => Access::WRITE,
            Self::Get => Access::READ,
            Self::Atomic => Access::ATOMIC,
            Self::NotificationPut | Self::Lock => Access::empty(),
        }
    }

    /// The command with this number, or `None`.
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

/// Names a granted region to peers. Opaque, and invalid once it is revoked.
///
/// On Extoll it is a network logical address (003 section 3.2.5). The number is no secret: the
/// fabric checks the partition of the endpoint that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RemoteKey(pub u64);

/// A location in a peer's region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The region's key.
    pub key: RemoteKey,
    /// Offset of the first byte.
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
    /// The number of message types, which have 2 bits.
    pub const KINDS: u8 = 4;

    /// A header with `tag`, type 0.
    #[must_use]
    pub const fn tag(tag: u8) -> Self {
        Self { tag, kind: 0 }
    }
}

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

    /// The result where the word's former value was `old`.
    #[must_use]
    pub const fn result(&self, old: u64) -> u64 {
        if self.fetches { old } else { 0 }
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

/// Fetch-compare-and-add on a numbered lock (Extoll's `LOCK` command). If the lock's value is at
/// most `compare`, `add` is added to it. The former value is returned either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// The number of the lock, below [`crate::Capabilities::locks`].
    pub number: u32,
    /// Compared with the lock's value, signed.
    pub compare: i32,
    /// Added if the comparison holds, wrapping.
    pub add: i32,
}

impl LockRequest {
    /// The lock's new value if it was `old`, or `None` if the comparison fails.
    #[must_use]
    pub const fn apply(&self, old: i32) -> Option<i32> {
        if old <= self.compare { Some(old.wrapping_add(self.add)) } else { None }
    }
}

/// The state of an operation when the call that started it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Issued {
    /// The operation has completed. The value is what a fetching operation returned, or 0. For a
    /// lock the low 32 bits are its former value, and bit 32 is set if the addition was made.
    Done(u64),
    /// The operation goes on. An [`crate::Event::Completion`] with the caller's context follows.
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
