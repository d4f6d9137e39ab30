//! Errors of the fabric as the exceptions of `weft/_errors.py`.
//!
//! Each kind of error that a program treats in its own way is a class; the text is that of the
//! fabric, which says whose fault it is and how to proceed.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple};
use weft_fabric::{
    ConnectError, DownReason, EndpointAddress, GrantError, GroupError, OpenError, OperationError,
    RegionError, RegisterError, SendError,
};
use weft_open::OpeningError;

/// A class of `weft/_errors.py`, with its name there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Error,
    OpenError,
    NoDaemon,
    ConnectError,
    NotFound,
    InvalidKey,
    AccessDenied,
    OutOfBounds,
    Misaligned,
    TooLong,
    Exhausted,
    Cancelled,
    WouldBlock,
    TimedOut,
    InboxFull,
    InUse,
    Closed,
    Forked,
}

impl Kind {
    /// The exception with this text.
    pub(crate) fn says(self, text: impl ToString) -> PyErr {
        Python::attach(|py| raised(py, &format!("{self:?}"), (text.to_string(),)))
    }
}

fn raised<'py, A>(py: Python<'py>, class: &str, arguments: A) -> PyErr
where
    A: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
{
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let made = || -> PyResult<PyErr> {
        let import = || py.import("weft._errors").map(Bound::unbind);
        let class = MODULE.get_or_try_init(py, import)?.bind(py).getattr(class)?;
        Ok(PyErr::from_value(class.call1(arguments.into_pyobject(py)?)?))
    };
    // Only where the package lacks a file.
    made().unwrap_or_else(|error| error)
}

/// The exception for a peer that is down.
pub(crate) fn peer_died(address: Option<EndpointAddress>, reason: Option<DownReason>) -> PyErr {
    let address = address.map(|address| address.to_string());
    let word = reason.map_or("unknown", reason_word);
    let shown = address.as_deref().unwrap_or("?");
    let text = match reason {
        Some(DownReason::Ended) => format!("peer {shown} has ended"),
        Some(DownReason::Unreachable) => format!("peer {shown} does not answer any more"),
        Some(DownReason::Misbehaved) => format!("peer {shown} broke the protocol"),
        Some(DownReason::Disconnected) => format!("peer {shown} is disconnected"),
        None => format!("peer {shown} is down"),
    };
    Python::attach(|py| raised(py, "PeerDied", (text, address, word)))
}

/// The word that Python programs see.
pub(crate) const fn reason_word(reason: DownReason) -> &'static str {
    match reason {
        DownReason::Ended => "ended",
        DownReason::Unreachable => "unreachable",
        DownReason::Misbehaved => "misbehaved",
        DownReason::Disconnected => "disconnected",
    }
}

/// The exception for a timeout.
pub(crate) fn timed_out(call: &str) -> PyErr {
    Kind::TimedOut.says(format!("{call}: not within the timeout"))
}

/// The exception for an endpoint that was not opened.
pub(crate) fn opening(error: &OpeningError) -> PyErr {
    let kind = match error {
        OpeningError::NoDaemon { .. }
        | OpeningError::NotStarted { .. }
        | OpeningError::Endpoint(OpenError::NoBroker { .. }) => Kind::NoDaemon,
        OpeningError::Endpoint(OpenError::Exhausted { .. }) => Kind::Exhausted,
        OpeningError::Endpoint(OpenError::NotOffered { .. })
        | OpeningError::NoSuchHost { .. }
        | OpeningError::NothingOffered { .. } => Kind::NotFound,
        OpeningError::Endpoint(
            OpenError::Forbidden { .. }
            | OpenError::OfferForbidden { .. }
            | OpenError::ServiceForbidden { .. },
        ) => Kind::AccessDenied,
        _ => Kind::OpenError,
    };
    kind.says(error)
}

/// The exception for a failed connect.
pub(crate) fn connect(error: &ConnectError) -> PyErr {
    let kind = match error {
        ConnectError::NotFound(_) | ConnectError::NotExact(_) => Kind::NotFound,
        ConnectError::Exhausted { .. } => Kind::Exhausted,
        _ => Kind::ConnectError,
    };
    kind.says(error)
}

/// The exception for memory that was not registered.
pub(crate) fn register(error: &RegisterError) -> PyErr {
    let kind = match error {
        RegisterError::Exhausted { .. } | RegisterError::Os { .. } => Kind::Exhausted,
        _ => Kind::Error,
    };
    kind.says(error)
}

/// The exception for a key that was not granted or revoked.
pub(crate) fn grant(error: &GrantError) -> PyErr {
    let kind = match error {
        GrantError::Exhausted { .. } => Kind::Exhausted,
        GrantError::UnknownKey => Kind::InvalidKey,
        GrantError::Local(error) => return local(error),
        _ => Kind::Error,
    };
    kind.says(error)
}

/// The exception for a group that was not joined or left.
pub(crate) fn group(error: &GroupError) -> PyErr {
    Kind::Error.says(error)
}

/// The exception for an access to local memory.
pub(crate) fn local(error: &RegionError) -> PyErr {
    let kind = match error {
        RegionError::Misaligned { .. } => Kind::Misaligned,
        _ => Kind::OutOfBounds,
    };
    kind.says(error)
}

/// The exception for a message that was not sent; `None` for a peer that is down.
pub(crate) fn send(error: &SendError) -> Option<PyErr> {
    let kind = match error {
        SendError::PeerDown => return None,
        SendError::WouldBlock => Kind::WouldBlock,
        SendError::TooLong { .. } => Kind::TooLong,
        SendError::Exhausted { .. } => Kind::Exhausted,
        _ => Kind::Error,
    };
    Some(kind.says(error))
}

/// The exception for an operation that failed; `None` for a peer that is down.
pub(crate) fn operation(error: &OperationError) -> Option<PyErr> {
    let kind = match error {
        OperationError::PeerDown => return None,
        OperationError::WouldBlock => Kind::WouldBlock,
        OperationError::InvalidKey => Kind::InvalidKey,
        OperationError::AccessDenied { .. } => Kind::AccessDenied,
        OperationError::OutOfBounds { .. } => Kind::OutOfBounds,
        OperationError::Misaligned { .. } => Kind::Misaligned,
        OperationError::Cancelled => Kind::Cancelled,
        OperationError::Local(error) => return Some(local(error)),
        OperationError::Connect(error) => return Some(connect(error)),
        OperationError::Grant(error) => return Some(grant(error)),
        OperationError::Group(error) => return Some(group(error)),
        _ => Kind::Error,
    };
    Some(kind.says(error))
}

/// What cannot be, of a transport that keeps its promises.
pub(crate) fn unexpected(value: impl std::fmt::Debug) -> PyErr {
    PyRuntimeError::new_err(format!("the transport answered with {value:?}"))
}
