//! The ways into a partition of another user: the name of a service, and a ticket.

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use thiserror::Error;

/// The name under which a partition is offered to other users: 1 to 48 of the characters `a`–`z`,
/// `A`–`Z`, `0`–`9`, `.`, `_` and `-`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// The name, and zeros behind it.
    bytes: [u8; Self::BYTES_MAX],
}

/// The text is no name of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the name of a service has 1 to 48 of the characters a-z, A-Z, 0-9, `.`, `_` and `-`")]
pub struct InvalidName;

impl ServiceName {
    /// The longest name, bytes.
    pub const BYTES_MAX: usize = 48;

    /// The name with this text.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn new(text: &str) -> Result<Self, InvalidName> {
        if text.contains('\0') {
            return Err(InvalidName);
        }
        let mut bytes = [0; Self::BYTES_MAX];
        bytes.get_mut(..text.len()).ok_or(InvalidName)?.copy_from_slice(text.as_bytes());
        Self::of_padded(bytes)
    }

    /// The name in a field that zeros fill up.
    ///
    /// # Errors
    /// [`InvalidName`].
    pub fn of_padded(bytes: [u8; Self::BYTES_MAX]) -> Result<Self, InvalidName> {
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        let (name, rest) = bytes.split_at(length);
        let is_name = !name.is_empty() && name.iter().all(|byte| is_allowed(*byte));
        let is_padded = rest.iter().all(|byte| *byte == 0);
        if is_name && is_padded { Ok(Self { bytes }) } else { Err(InvalidName) }
    }

    /// The name, filled up with zeros.
    #[must_use]
    pub const fn padded(self) -> [u8; Self::BYTES_MAX] {
        self.bytes
    }

    /// The text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let text = std::str::from_utf8(&self.bytes).expect("the characters of a name are ASCII");
        text.trim_end_matches('\0')
    }
}

const fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Opens one endpoint in the partition of the endpoint that gave it: see
/// [`crate::Endpoint::invite`].
///
/// The 16 bytes are good for anybody who has them, so they are shown to nobody: not in a log, nor
/// by `Debug`.
#[derive(Clone, Copy)]
pub struct Ticket(pub [u8; 16]);

impl Ticket {
    /// The longest time for which a ticket can be valid.
    pub const WITHIN_MAX: Duration = Duration::from_secs(3600);
}

/// Compares without an early exit, so that the time tells nothing of the place of a difference.
impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        black_box(u128::from_le_bytes(self.0) ^ u128::from_le_bytes(other.0)) == 0
    }
}

impl Eq for Ticket {}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_of_few_characters() {
        let longest = "x".repeat(ServiceName::BYTES_MAX);
        for text in ["kv", "a", "Block-7._", longest.as_str()] {
            let name = ServiceName::new(text).expect("a name");
            assert_eq!((name.as_str(), name.to_string().as_str()), (text, text));
            assert_eq!(ServiceName::of_padded(name.padded()), Ok(name));
        }
        let long = "x".repeat(ServiceName::BYTES_MAX + 1);
        for text in ["", "a b", "a:b", "a*", "a,b", "a/b", "\0", "a\0", "é", long.as_str()] {
            assert_eq!(ServiceName::new(text), Err(InvalidName), "{text:?}");
        }
        let mut hidden = ServiceName::new("kv").expect("a name").padded();
        hidden[9] = b'x';
        assert_eq!(ServiceName::of_padded(hidden), Err(InvalidName));
    }

    #[test]
    fn a_ticket_is_equal_to_itself_alone_and_is_not_shown() {
        let ticket = Ticket(*b"sixteen bytes ok");
        assert_eq!(ticket, Ticket(*b"sixteen bytes ok"));
        for place in 0..16 {
            let mut other = ticket;
            other.0[place] ^= 0x80;
            assert_ne!(ticket, other, "byte {place}");
        }
        assert_eq!(format!("{ticket:?}"), "Ticket(..)");
    }
}
