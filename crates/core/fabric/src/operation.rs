//! One-sided operations as values: the action, its target, and how it is to be done.

use bitflags::bitflags;

use crate::endpoint::{Peer, Revoked};
use crate::notify::Notify;

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
}

impl Command {
    /// The right that a key must grant; for atomics see [`crate::AtomicOperation::access`].
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Put | Self::ImmediatePut => Access::WRITE,
            Self::Get => Access::READ,
            Self::Atomic => Access::ATOMIC,
            Self::NotificationPut => Access::empty(),
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
            _ => return None,
        })
    }
}

/// Names a granted region to peers. Opaque, and invalid once it is revoked.
///
/// On Extoll it is a network logical address (EXTOLL-THESIS#3.2.5). The number is no secret: the
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

/// Tag and type of a mailbox message (EXTOLL-THESIS#3.2.2, figure 3.4).
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

/// How an operation is to be done, and what it is known by.
///
/// ```
/// use weft_fabric::{Notify, Operation};
/// let told = Operation::new(7).notify(Notify::COMPLETER.class(3));
/// let quiet = Operation::new(8).quiet().more();
/// # let _ = (told, quiet);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operation {
    /// A number of the caller's choice. The notifications and the completion carry it.
    pub context: u64,
    /// The notifications that it causes. A caller that only wants its source back asks for that of
    /// the requester.
    pub notify: Notify,
    /// Whether its good end is reported.
    pub report: Report,
    /// Another operation to the same peer follows at once: the transport may leave it to that one
    /// to ring the peer. If none follows that notifies the peer, the peer may be rung only when
    /// this endpoint polls, waits or arms.
    pub more: bool,
    /// It takes effect after all that this endpoint did to the peer before, as behind
    /// [`crate::Endpoint::order`]. Later operations need not wait for it, nor for those
    /// before it.
    pub ordered: bool,
}

/// Which ends of an operation cause a completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Report {
    /// Each end.
    #[default]
    Always,
    /// Errors alone. A later fence tells that the operation is over.
    Errors,
}

impl Operation {
    /// An operation that causes a completion and no notification.
    #[must_use]
    pub const fn new(context: u64) -> Self {
        let report = Report::Always;
        Self { context, notify: Notify::NONE, report, more: false, ordered: false }
    }

    /// The same with these notifications.
    #[must_use]
    pub const fn notify(self, notify: Notify) -> Self {
        Self { notify, ..self }
    }

    /// The same, but only an error is reported.
    #[must_use]
    pub const fn quiet(self) -> Self {
        Self { report: Report::Errors, ..self }
    }

    /// The same, with another operation to the same peer behind it.
    #[must_use]
    pub const fn more(self) -> Self {
        Self { more: true, ..self }
    }

    /// The same, behind all that came before.
    #[must_use]
    pub const fn ordered(self) -> Self {
        Self { ordered: true, ..self }
    }
}

/// A change of one aligned 64-bit word of the peer, made when the data of a put is there:
/// see [`crate::Endpoint::put_signal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// The word. Its key may be another one than that of the data.
    pub target: Target,
    /// How the word changes.
    pub change: SignalChange,
}

/// How a signal changes its word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalChange {
    /// `word = value`. Needs [`Access::WRITE`].
    Set(u64),
    /// `word += value`, wrapping. Needs [`Access::ATOMIC`].
    Add(u64),
}

impl SignalChange {
    /// The right that the key of the word must grant.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Self::Set(_) => Access::WRITE,
            Self::Add(_) => Access::ATOMIC,
        }
    }

    /// The word's new value if it was `old`.
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::Set(value) => value,
            Self::Add(value) => old.wrapping_add(value),
        }
    }
}

/// The value of a call that has completed well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// None: of a put, a get, a fence, and of an atomic that fetches nothing.
    Nothing,
    /// The former value of the word, of an atomic that fetches it.
    Word(u64),
    /// Of [`crate::Endpoint::connect`].
    Peer(Peer),
    /// Of [`crate::Endpoint::grant`].
    Key(RemoteKey),
    /// Of [`crate::Endpoint::revoke`].
    Revoked(Revoked),
}

impl Value {
    /// The word, of an atomic that fetches it.
    #[must_use]
    pub const fn word(self) -> Option<u64> {
        if let Self::Word(word) = self { Some(word) } else { None }
    }

    /// The peer, of a connect.
    #[must_use]
    pub const fn peer(self) -> Option<Peer> {
        if let Self::Peer(peer) = self { Some(peer) } else { None }
    }

    /// The key, of a grant.
    #[must_use]
    pub const fn key(self) -> Option<RemoteKey> {
        if let Self::Key(key) = self { Some(key) } else { None }
    }

    /// How a revocation ended.
    #[must_use]
    pub const fn revoked(self) -> Option<Revoked> {
        if let Self::Revoked(revoked) = self { Some(revoked) } else { None }
    }
}

/// The state of an operation when the call that started it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Issued {
    /// The operation has completed.
    Done(Value),
    /// The operation goes on. An [`crate::Event::Completion`] with the caller's context follows.
    Pending,
}
