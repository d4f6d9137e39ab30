//! Why a command is not carried out, with the texts of Redis 7.0.

use std::borrow::Cow;

use weft_kv::store::StoreError;

/// Why a command is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer, with its code.
    Text(Cow<'static, str>),
    /// The store said no.
    Store(StoreError),
}

/// The end of a command that wrote its reply.
pub(crate) type Done = Result<(), Fault>;

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<&'static str> for Fault {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

/// The value is of another type.
pub(crate) const WRONG_TYPE: Fault =
    text("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const SYNTAX: Fault = text("ERR syntax error");
pub(crate) const NOT_INTEGER: Fault = text("ERR value is not an integer or out of range");
pub(crate) const NOT_FLOAT: Fault = text("ERR value is not a valid float");
pub(crate) const OVERFLOW: Fault = text("ERR increment or decrement would overflow");
pub(crate) const TOO_LONG: Fault =
    text("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(crate) const NO_KEY: Fault = text("ERR no such key");
pub(crate) const NAME_TOO_LONG: Fault =
    text("ERR keys, fields and members have at most 4000 bytes");

const fn text(text: &'static str) -> Fault {
    Fault::Text(Cow::Borrowed(text))
}

/// The answer of the store as a client is told it. The codes MISCONF and CLUSTERDOWN promise that
/// the command was not carried out.
pub(crate) fn of_store(error: &StoreError) -> String {
    match error {
        StoreError::Full(_) | StoreError::ReadOnly(_) => format!("MISCONF {error}"),
        StoreError::NotServed(_) => format!("CLUSTERDOWN {error}"),
        StoreError::Damaged(_) | StoreError::Unknown(_) => format!("ERR {error}"),
    }
}
