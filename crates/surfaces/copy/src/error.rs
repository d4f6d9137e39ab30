//! Why a transfer did not start or stopped.

use rustix::io::Errno;
use thiserror::Error;
use weft_transfer::{Code, InvalidBytes, InvalidPattern, Offence};

/// Why a transfer did not start, or stopped in its midst.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// A place cannot be used.
    #[error("{place}: {why}")]
    Place {
        /// The place.
        place: String,
        /// Why.
        why: String,
    },
    /// The far end refuses.
    #[error("the other end refuses: {0}")]
    Refused(String),
    /// The far end cannot be reached.
    #[error("{place} is not reached: {why}")]
    Unreachable {
        /// The place.
        place: String,
        /// Why.
        why: String,
    },
    /// The connection ended before the transfer did.
    #[error("the connection ended before all was copied ({0}); the same command goes on from here")]
    Lost(String),
    /// The user stopped it.
    #[error("stopped; the same command goes on from here")]
    Stopped,
    /// The far end broke the protocol.
    #[error(transparent)]
    Offence(#[from] Offence),
    /// The bytes that came are no message.
    #[error("a message of the other end is not valid: {0}")]
    Invalid(#[from] InvalidBytes),
    /// A pattern is none.
    #[error(transparent)]
    Pattern(#[from] InvalidPattern),
    /// The system refuses something that the transfer cannot do without.
    #[error("{what}: {why}")]
    System {
        /// The thing that the system refuses.
        what: &'static str,
        /// Why.
        why: String,
    },
}

impl CopyError {
    /// Whether some of the transfer may have been done.
    #[must_use]
    pub fn was_begun(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Stopped | Self::Offence(_) | Self::Invalid(_))
    }

    pub(crate) fn system(what: &'static str, why: &impl ToString) -> Self {
        Self::System { what, why: why.to_string() }
    }

    pub(crate) fn place(place: impl std::fmt::Display, why: impl ToString) -> Self {
        Self::Place { place: place.to_string(), why: why.to_string() }
    }
}

/// The kind of trouble that an error of the system is.
pub(crate) fn code_of(error: Errno, otherwise: Code) -> Code {
    match error {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Code::Permission,
        Errno::NOENT => Code::Vanished,
        Errno::NOSPC | Errno::DQUOT => Code::Full,
        Errno::LOOP | Errno::XDEV => Code::Refused,
        _ => otherwise,
    }
}
