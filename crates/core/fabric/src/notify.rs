//! The notifications that an operation requests (EXTOLL-THESIS#3.2.1.1, Table 3.1).

use bitflags::bitflags;

use crate::error::OperationError;
use crate::operation::Command;

bitflags! {
    /// The sides that get a notification of an operation (EXTOLL-THESIS#3.2.1.1, Table 3.1).
    ///
    /// A put may notify requester and completer; a get and an atomic may notify all three.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Sides: u8 {
        /// The initiator, when the operation has left it.
        const REQUESTER = 1;
        /// The target of a get or atomic, when it has responded.
        const RESPONDER = 2;
        /// The side where the data arrives: the target of a put, the initiator of a get.
        const COMPLETER = 4;
    }
}

/// The notifications that an operation requests, and their contents.
///
/// ```
/// use weft_fabric::{Command, Notify};
///
/// // The target of a put is told that the data is there, and gets 42; the initiator is told that
/// // its memory is free again.
/// let both = Notify::COMPLETER.and(Notify::REQUESTER).class(7).immediate(42);
/// assert!(both.check(Command::Put).is_ok());
/// assert!(Notify::RESPONDER.check(Command::Put).is_err(), "nobody answers a put");
/// ```
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
    /// Notify the target of a get or atomic.
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

#[cfg(test)]
mod tests {
    use super::*;

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
