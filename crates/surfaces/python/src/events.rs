//! What an endpoint tells its program: messages, notifications, and peers that are down.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weft_fabric::{Command, DownReason, EndpointAddress, Group, MessageHeader, Side};

use crate::core::{Shared, Waiting};
use crate::errors::reason_word;
use crate::peer::{Peer, PeerHandle};

/// A message of up to 120 bytes.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Message {
    peer: PeerHandle,
    source: EndpointAddress,
    header: MessageHeader,
    group: Option<Group>,
    /// Its bytes.
    #[pyo3(get)]
    payload: Py<PyBytes>,
}

#[pymethods]
impl Message {
    /// The sender, to which an answer can be sent at once.
    #[getter]
    fn peer(&self) -> Peer {
        Peer::of(self.peer.clone())
    }

    /// The address of the sender, `NODE:VPID`.
    #[getter]
    fn source(&self) -> String {
        self.source.to_string()
    }

    /// The tag, 0 to 255.
    #[getter]
    const fn tag(&self) -> u8 {
        self.header.tag
    }

    /// The type, 0 to 3.
    #[getter]
    const fn kind(&self) -> u8 {
        self.header.kind
    }

    /// The group that it was sent to; None if it was sent to this endpoint alone.
    #[getter]
    fn group(&self) -> Option<u8> {
        self.group.map(Group::number)
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.payload.bind(py).clone()
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.payload.as_bytes(py).len()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.bind(py).repr()?;
        Ok(format!("<weft.Message from {}, tag {}: {payload}>", self.source, self.header.tag))
    }
}

/// Tells of an operation of this endpoint or of a peer, on a side that its initiator asked for.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Notification {
    peer: PeerHandle,
    told: weft_fabric::Notification,
}

#[pymethods]
impl Notification {
    /// The endpoint at the other end of the operation.
    #[getter]
    fn peer(&self) -> Peer {
        Peer::of(self.peer.clone())
    }

    /// The address of that endpoint, `NODE:VPID`.
    #[getter]
    fn source(&self) -> String {
        self.told.source.to_string()
    }

    /// The kind of operation: `put`, `get`, `immediate put`, `notification` or `atomic`.
    #[getter]
    const fn command(&self) -> &'static str {
        match self.told.command {
            Command::Put => "put",
            Command::Get => "get",
            Command::ImmediatePut => "immediate put",
            Command::NotificationPut => "notification",
            Command::Atomic => "atomic",
        }
    }

    /// The side that is told: `requester`, `responder` or `completer`.
    #[getter]
    const fn side(&self) -> &'static str {
        match self.told.side {
            Side::Requester => "requester",
            Side::Responder => "responder",
            Side::Completer => "completer",
        }
    }

    /// The number of the key, 0 if there is no memory.
    #[getter]
    const fn key(&self) -> u64 {
        self.told.key.0
    }

    /// The offset in the memory of the key.
    #[getter]
    const fn offset(&self) -> u64 {
        self.told.offset
    }

    /// The number of bytes that were moved.
    #[getter]
    const fn length(&self) -> u64 {
        self.told.length
    }

    /// The small number that the initiator gave, 0 to 255.
    #[getter]
    const fn tag(&self) -> u8 {
        self.told.class
    }

    /// The 64-bit number that the initiator gave.
    #[getter]
    const fn value(&self) -> u64 {
        self.told.immediate
    }

    fn __repr__(&self) -> String {
        let weft_fabric::Notification { source, offset, length, class, immediate, .. } = self.told;
        format!(
            "<weft.Notification of {} of {source}: {length} bytes at {offset}, tag {class}, value \
             {immediate}>",
            self.command()
        )
    }
}

/// A peer is down. Nothing more comes of it.
#[pyclass(frozen, module = "weft")]
pub(crate) struct PeerDown {
    peer: PeerHandle,
    address: EndpointAddress,
    reason: DownReason,
}

#[pymethods]
impl PeerDown {
    /// The peer.
    #[getter]
    fn peer(&self) -> Peer {
        Peer::of(self.peer.clone())
    }

    /// Its address, which another endpoint may have by now.
    #[getter]
    fn address(&self) -> String {
        self.address.to_string()
    }

    /// Why: `ended`, `unreachable`, `misbehaved` or `disconnected`.
    #[getter]
    const fn reason(&self) -> &'static str {
        reason_word(self.reason)
    }

    fn __repr__(&self) -> String {
        format!("<weft.PeerDown: {}, {}>", self.address, self.reason())
    }
}

/// The event as a Python object.
pub(crate) fn object<'py>(
    py: Python<'py>,
    shared: &Arc<Shared>,
    event: Waiting,
) -> PyResult<Bound<'py, PyAny>> {
    let handle = |peer| PeerHandle::new(shared, peer);
    Ok(match event {
        Waiting::Message { peer, source, header, group, payload } => {
            let payload = PyBytes::new(py, &payload).unbind();
            let message = Message { peer: handle(peer), source, header, group, payload };
            Bound::new(py, message)?.into_any()
        }
        Waiting::Notification(told) => {
            Bound::new(py, Notification { peer: handle(told.peer), told })?.into_any()
        }
        Waiting::Down { peer, address, reason } => {
            Bound::new(py, PeerDown { peer: handle(peer), address, reason })?.into_any()
        }
    })
}
