//! The errors of the fabric as numbers and texts.

use std::borrow::Cow;
use std::ffi::CStr;

use weft_fabric::{
    ConnectError, GrantError, GroupError, InviteError, OpenError, OperationError, RegionError,
    RegisterError,
};
use weft_message::{MessageError, SendError};
use weft_open::OpeningError;

use crate::types::weft_status::{self, *};

/// Why a call failed: the number for the program, and the text for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub status: weft_status,
    pub text: Cow<'static, str>,
}

impl Failure {
    pub fn new(status: weft_status, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// There is no room yet.
    pub const fn again() -> Self {
        let text = "no room yet, or the key is being looked up; wait with weft_wait_room or for \
                    WEFT_EVENT_ROOM, and try again";
        Self { status: WEFT_ERROR_AGAIN, text: Cow::Borrowed(text) }
    }

    /// A bad argument.
    pub fn argument(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(WEFT_ERROR_ARGUMENT, text)
    }
}

/// An error of the fabric that has a number here.
trait Numbered {
    fn status(&self) -> weft_status;
}

macro_rules! failures {
    ($($error:ty),*) => { $(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                match error.status() {
                    // The usual answer of a full queue costs no text.
                    WEFT_ERROR_AGAIN => Self::again(),
                    status => Self::new(status, error.to_string()),
                }
            }
        }
    )* };
}

failures!(
    OpeningError,
    OpenError,
    ConnectError,
    GrantError,
    GroupError,
    RegionError,
    RegisterError,
    OperationError,
    SendError,
    MessageError
);

impl Numbered for OpeningError {
    fn status(&self) -> weft_status {
        match self {
            Self::Option(_) | Self::Node(_) | Self::TrustWithoutSocket | Self::Name { .. } => {
                WEFT_ERROR_ARGUMENT
            }
            Self::NoDaemon { .. } | Self::NotStarted { .. } => WEFT_ERROR_NO_DAEMON,
            Self::NoFabric { .. } | Self::Libfabric(_) => WEFT_ERROR_NETWORK,
            Self::NoSuchHost { .. } | Self::NothingOffered { .. } | Self::NotReached { .. } => {
                WEFT_ERROR_NOT_FOUND
            }
            Self::Endpoint(error) => error.status(),
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for OpenError {
    fn status(&self) -> weft_status {
        match self {
            Self::AddressInUse(_) | Self::NameTaken { .. } => WEFT_ERROR_IN_USE,
            Self::Exhausted { .. } => WEFT_ERROR_LIMIT,
            Self::Forbidden { .. }
            | Self::OfferForbidden { .. }
            | Self::ServiceForbidden { .. }
            | Self::InvalidTicket => WEFT_ERROR_PERMISSION,
            Self::DefaultPartition | Self::UnknownRail { .. } => WEFT_ERROR_ARGUMENT,
            Self::NotOffered { .. } => WEFT_ERROR_NOT_FOUND,
            Self::NoBroker { .. } => WEFT_ERROR_NO_DAEMON,
            Self::Provider { .. } => WEFT_ERROR_NETWORK,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for ConnectError {
    fn status(&self) -> weft_status {
        match self {
            Self::NotExact(_) => WEFT_ERROR_ARGUMENT,
            Self::NotFound(_) => WEFT_ERROR_NOT_FOUND,
            Self::Exhausted { .. } => WEFT_ERROR_LIMIT,
            Self::Broker { .. } => WEFT_ERROR_NO_DAEMON,
            Self::NetworkAlone(_) | Self::Provider { .. } => WEFT_ERROR_NETWORK,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for GrantError {
    fn status(&self) -> weft_status {
        match self {
            Self::ForeignRegion | Self::InvalidAccess { .. } => WEFT_ERROR_ARGUMENT,
            Self::UnknownKey => WEFT_ERROR_KEY,
            Self::Exhausted { .. } => WEFT_ERROR_LIMIT,
            Self::Local(error) => error.status(),
            Self::Peer => WEFT_ERROR_NO_PEER,
            Self::StillWriting { .. } => WEFT_ERROR_STILL_WRITING,
            Self::Provider { .. } => WEFT_ERROR_NETWORK,
            Self::Broker { .. } => WEFT_ERROR_NO_DAEMON,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for GroupError {
    fn status(&self) -> weft_status {
        match self {
            Self::Broadcast => WEFT_ERROR_ARGUMENT,
            _ => WEFT_ERROR_NO_DAEMON,
        }
    }
}

impl Numbered for InviteError {
    fn status(&self) -> weft_status {
        match self {
            Self::Forbidden => WEFT_ERROR_PERMISSION,
            Self::DefaultPartition | Self::InvalidTime => WEFT_ERROR_ARGUMENT,
            Self::Exhausted { .. } => WEFT_ERROR_LIMIT,
            Self::Broker { .. } => WEFT_ERROR_NO_DAEMON,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for RegionError {
    fn status(&self) -> weft_status {
        match self {
            Self::Misaligned { .. } => WEFT_ERROR_ALIGNMENT,
            _ => WEFT_ERROR_RANGE,
        }
    }
}

impl Numbered for RegisterError {
    fn status(&self) -> weft_status {
        match self {
            Self::Empty => WEFT_ERROR_ARGUMENT,
            Self::Exhausted { .. } => WEFT_ERROR_LIMIT,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for OperationError {
    fn status(&self) -> weft_status {
        match self {
            Self::WouldBlock => WEFT_ERROR_AGAIN,
            Self::InvalidKey => WEFT_ERROR_KEY,
            Self::AccessDenied { .. } => WEFT_ERROR_ACCESS,
            Self::Interrupted => WEFT_ERROR_INTERRUPTED,
            Self::NotMapped | Self::KernelCopy { .. } => WEFT_ERROR_UNSUPPORTED,
            Self::OutOfBounds { .. } => WEFT_ERROR_RANGE,
            Self::Misaligned { .. } => WEFT_ERROR_ALIGNMENT,
            Self::InvalidLength { .. } | Self::InvalidNotification { .. } | Self::Empty => {
                WEFT_ERROR_ARGUMENT
            }
            Self::Local(error) => error.status(),
            Self::PeerDown => WEFT_ERROR_PEER_DOWN,
            Self::UnknownPeer => WEFT_ERROR_NO_PEER,
            Self::Cancelled => WEFT_ERROR_CANCELLED,
            Self::Connect(error) => error.status(),
            Self::Grant(error) => error.status(),
            Self::Group(error) => error.status(),
            Self::Invite(error) => error.status(),
            Self::Provider { .. } => WEFT_ERROR_NETWORK,
            Self::Broker { .. } => WEFT_ERROR_NO_DAEMON,
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

impl Numbered for SendError {
    fn status(&self) -> weft_status {
        match self {
            Self::WouldBlock => WEFT_ERROR_AGAIN,
            Self::TooLong { .. } | Self::HeadTooLong { .. } => WEFT_ERROR_TOO_LONG,
            Self::PeerDown => WEFT_ERROR_PEER_DOWN,
            Self::UnknownPeer => WEFT_ERROR_NO_PEER,
            Self::Range(error) => error.status(),
            Self::Register(error) => error.status(),
            _ => WEFT_ERROR_ARGUMENT,
        }
    }
}

impl Numbered for MessageError {
    fn status(&self) -> weft_status {
        match self {
            Self::Cancelled => WEFT_ERROR_CANCELLED,
            Self::Refused => WEFT_ERROR_TOO_LONG,
            Self::PeerDown => WEFT_ERROR_PEER_DOWN,
            Self::Grant(error) => error.status(),
            Self::Get(error) => error.status(),
            _ => WEFT_ERROR_SYSTEM,
        }
    }
}

/// The meaning of a number, and the cure.
pub fn text_of(number: i32) -> &'static CStr {
    for (status, text) in TEXTS {
        if *status as i32 == number {
            return text;
        }
    }
    c"not a status of this version of weft"
}

/// Each status with its text.
const TEXTS: &[(weft_status, &CStr)] = &[
    (WEFT_OK, c"done"),
    (WEFT_PENDING, c"under way: take the completion by weft_wait, weft_poll or weft_finish"),
    (WEFT_ERROR_ARGUMENT, c"an argument is not valid"),
    (WEFT_ERROR_HANDLE, c"the handle is closed, of another kind, or was never one"),
    (
        WEFT_ERROR_IN_CALL,
        c"another thread is in a call of this endpoint: use it from one at a time",
    ),
    (WEFT_ERROR_AGAIN, c"no room yet, or the key is being looked up: wait for room and try again"),
    (WEFT_ERROR_TIMEOUT, c"the time has passed"),
    (WEFT_ERROR_PEER_DOWN, c"the peer has ended or is out of reach: connect again"),
    (WEFT_ERROR_NO_PEER, c"not a peer of this endpoint: connect first"),
    (
        WEFT_ERROR_KEY,
        c"the key is not valid here: revoked, never granted, or not for this endpoint",
    ),
    (WEFT_ERROR_ACCESS, c"the key does not allow it: its owner has to grant more"),
    (WEFT_ERROR_RANGE, c"the range leaves the memory"),
    (WEFT_ERROR_ALIGNMENT, c"a word has to lie at a multiple of its size"),
    (WEFT_ERROR_TOO_LONG, c"longer than a message can be: use put or get"),
    (WEFT_ERROR_LIMIT, c"a maximum is reached: weft_limits says which there are"),
    (WEFT_ERROR_NOT_FOUND, c"nobody is there: `weft status` lists endpoints and services"),
    (WEFT_ERROR_PERMISSION, c"this user may not"),
    (WEFT_ERROR_IN_USE, c"the number or the name is taken"),
    (WEFT_ERROR_NO_DAEMON, c"no node daemon answers: start `weft daemon`"),
    (WEFT_ERROR_NETWORK, c"there is no way to other hosts: see `weft doctor`"),
    (WEFT_ERROR_SYSTEM, c"the system refused a resource"),
    (WEFT_ERROR_CANCELLED, c"cancelled: nothing of it was done"),
    (WEFT_ERROR_UNSUPPORTED, c"memory in place cannot do this: use memory of weft_memory_alloc"),
    (WEFT_ERROR_INTERRUPTED, c"the memory moved meanwhile, and a part may be done: try again"),
    (WEFT_ERROR_STILL_WRITING, c"a peer may still write: keep the bytes until weft_close"),
    (WEFT_ERROR_INTERNAL, c"a fault of weft: please report it with what it printed"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_text_of_its_own() {
        let lowest = TEXTS.iter().map(|(status, _)| *status as i32).min().expect("some");
        for number in lowest..=1 {
            let own: Vec<_> = TEXTS.iter().filter(|(it, _)| *it as i32 == number).collect();
            assert_eq!(own.len(), 1, "{number}");
        }
        assert_eq!(text_of(lowest - 1), text_of(99));
    }

    #[test]
    fn an_error_keeps_its_words() {
        let failure =
            Failure::from(OperationError::OutOfBounds { offset: 8, length: 4, region: 9 });
        assert_eq!(failure.status, WEFT_ERROR_RANGE);
        assert!(failure.text.contains("4 bytes at offset 8"), "{}", failure.text);
        let nested = OperationError::Grant(GrantError::UnknownKey);
        assert_eq!(Failure::from(nested).status, WEFT_ERROR_KEY);
    }
}
