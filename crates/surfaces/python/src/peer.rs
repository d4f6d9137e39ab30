//! Peers: messages to them, and their memory.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weft_fabric::{
    Atomic, AtomicOperation, Endpoint, Issued, MessageHeader, Notify, OperationError, Region,
    RemoteKey, Request, SendError, Source, Target, Width,
};

use crate::buffers::{Bytes, BytesMut};
use crate::core::{Core, Entered, Part, STAGE, Shared};
use crate::errors;
use crate::operation::{Begun, Operation, accepted, begin, failed};
use crate::time::Deadline;

/// Bytes whose copy is short enough for the interpreter to wait for it.
const SHORT: usize = 16 << 10;

/// A handle of an endpoint for a peer.
#[derive(Clone)]
pub(crate) struct PeerHandle {
    shared: Arc<Shared>,
    pub(crate) peer: weft_fabric::Peer,
}

impl PeerHandle {
    pub(crate) fn new(shared: &Arc<Shared>, peer: weft_fabric::Peer) -> Self {
        Self { shared: Arc::clone(shared), peer }
    }

    /// Whether it is a handle of this endpoint.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl PartialEq for PeerHandle {
    fn eq(&self, other: &Self) -> bool {
        self.is_of(&other.shared) && self.peer == other.peer
    }
}

impl fmt::Debug for PeerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.peer.0, self.shared.address)
    }
}

/// Another endpoint that this one is connected to, for one life of it.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Peer(pub(crate) PeerHandle);

impl Peer {
    pub(crate) const fn of(handle: PeerHandle) -> Self {
        Self(handle)
    }
}

/// How a put is to be done.
#[derive(Clone, Copy)]
struct How {
    notify: Notify,
    ordered: bool,
}

impl How {
    fn new(notify: Option<u8>, value: u64, ordered: bool) -> Self {
        let told = |class| Notify::COMPLETER.class(class).immediate(value);
        Self { notify: notify.map_or(Notify::NONE, told), ordered }
    }

    fn operation(self, context: u64) -> weft_fabric::Operation {
        let operation = weft_fabric::Operation::new(context).notify(self.notify);
        if self.ordered { operation.ordered() } else { operation }
    }
}

/// The place of bytes in a peer's memory.
const fn target(key: u64, offset: u64) -> Target {
    Target::new(RemoteKey(key), offset)
}

/// Calls with the interpreter's lock for short copies, and without it for others.
fn copying<T: Send>(py: Python<'_>, bytes: usize, copy: impl FnOnce() -> T + Send) -> T {
    if bytes <= SHORT { copy() } else { py.detach(copy) }
}

impl PeerHandle {
    /// Starts an operation, as soon as there is room for it.
    fn begin(
        &self,
        py: Python<'_>,
        entered: &mut Entered<'_>,
        (what, deadline): (&'static str, Deadline),
        start: impl Fn(&mut Core, u64) -> Result<Issued, OperationError>,
    ) -> PyResult<Begun> {
        let peer = Some(self.peer);
        accepted(py, entered, (what, peer), deadline, |_, core| {
            begin(core, (what, peer), None, &start)
        })
    }

    fn put(
        &self,
        py: Python<'_>,
        entered: &mut Entered<'_>,
        data: &Bound<'_, PyAny>,
        (at, how, deadline): (Target, How, Deadline),
    ) -> PyResult<Begun> {
        let bytes = Bytes::of(data)?;
        let part = entered.core().region_of(bytes.place());
        let (to, what) = (self.peer, ("put", Some(self.peer)));
        let length = bytes.place().1;
        accepted(py, entered, what, deadline, |py, core| {
            let region = part.as_ref().map(|part| Arc::clone(&part.region));
            begin(core, what, region, |core, context| {
                let operation = how.operation(context);
                let source = match &part {
                    Some(part) => Source::Region(part.range()),
                    None => Source::Bytes(bytes.as_slice()),
                };
                copying(py, length, || core.endpoint.put(to, source, at, operation))
            })
        })
    }

    fn get(
        &self,
        py: Python<'_>,
        entered: &mut Entered<'_>,
        part: &Part,
        (at, how, deadline): (Target, How, Deadline),
    ) -> PyResult<Begun> {
        let (from, what) = (self.peer, ("get", Some(self.peer)));
        accepted(py, entered, what, deadline, |py, core| {
            begin(core, what, Some(Arc::clone(&part.region)), |core, context| {
                let operation = how.operation(context);
                let length = usize::try_from(part.length).unwrap_or(usize::MAX);
                copying(py, length, || core.endpoint.get(from, at, part.range(), operation))
            })
        })
    }

    /// Gets into memory that is not registered, by way of memory that is.
    fn get_into(
        &self,
        py: Python<'_>,
        entered: &mut Entered<'_>,
        into: &mut [u8],
        (key, offset, deadline): (u64, u64, Deadline),
    ) -> PyResult<()> {
        let region = entered.core().take_stage()?;
        let how = How::new(None, 0, false);
        let mut at = offset;
        // Also for no byte: the key is checked.
        let mut rest = into;
        loop {
            let length = rest.len().min(usize::try_from(STAGE).unwrap_or(usize::MAX));
            let part = Part { region: Arc::clone(&region), offset: 0, length: length as u64 };
            let begun = self.get(py, entered, &part, (target(key, at), how, deadline))?;
            begun.wait(py, entered, deadline)?;
            let (first, behind) = rest.split_at_mut(length);
            copying(py, length, || region.read(0, first)).map_err(|error| errors::local(&error))?;
            if behind.is_empty() {
                entered.core().stage = Some(region);
                return Ok(());
            }
            rest = behind;
            at = at.saturating_add(length as u64);
        }
    }

    fn atomic(
        &self,
        py: Python<'_>,
        (key, offset): (u64, u64),
        atomic: Atomic,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.shared.enter()?;
        let to = self.peer;
        let begun = self.begin(py, &mut entered, ("atomic", deadline), |core, context| {
            let operation = weft_fabric::Operation::new(context);
            core.endpoint.atomic(to, target(key, offset), atomic, operation)
        })?;
        let value = begun.wait(py, &mut entered, deadline)?;
        value.word().ok_or_else(|| errors::unexpected(value))
    }
}

fn width(bits: u8) -> PyResult<Width> {
    match bits {
        32 => Ok(Width::Bits32),
        64 => Ok(Width::Bits64),
        other => Err(PyValueError::new_err(format!("a word has 32 or 64 bits, not {other}"))),
    }
}

/// Where the bytes of a get go.
enum Into<'py> {
    Buffer(Bound<'py, PyAny>),
    Fresh(usize),
}

impl<'py> Into<'py> {
    fn of(into: Option<Bound<'py, PyAny>>, length: Option<usize>) -> PyResult<Self> {
        match (into, length) {
            (Some(into), None) => Ok(Self::Buffer(into)),
            (None, Some(length)) if isize::try_from(length).is_ok() => Ok(Self::Fresh(length)),
            (None, Some(_)) => Err(PyOverflowError::new_err("more bytes than an object has")),
            _ => Err(PyTypeError::new_err("a get has either `into` or `length`")),
        }
    }
}

#[pymethods]
impl Peer {
    /// The address, `NODE:VPID`.
    #[getter]
    fn address(&self) -> PyResult<String> {
        let mut entered = self.0.shared.enter()?;
        let address = entered.core().endpoint.peer_address(self.0.peer);
        Ok(address.map_or_else(|| "?".to_owned(), |address| address.to_string()))
    }

    /// Why the peer is down, as far as it is known and remembered: `ended`, `unreachable`,
    /// `misbehaved` or `disconnected`; else None.
    #[getter]
    fn down(&self) -> PyResult<Option<&'static str>> {
        let mut entered = self.0.shared.enter()?;
        Ok(entered.core().reason_of(self.0.peer).map(errors::reason_word))
    }

    /// Sends a message of up to 120 bytes. Waits while the mailbox of the peer is full.
    ///
    /// Raises `TooLong`, `PeerDied`, `TimedOut`.
    #[pyo3(signature = (data, *, tag=0, kind=0, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        tag: u8,
        kind: u8,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let bytes = Bytes::of(data)?;
        let header = MessageHeader { tag, kind };
        let peer = self.0.peer;
        let mut entered = self.0.shared.enter()?;
        let sent =
            |core: &mut Core| match core.endpoint.send_short(peer, header, &[bytes.as_slice()]) {
                Ok(()) => Ok(Some(())),
                Err(SendError::WouldBlock) => Ok(None),
                Err(error) => Err(errors::send(&error).unwrap_or_else(|| core.died(peer))),
            };
        // Without a look at the clock, as long as there is room.
        if sent(entered.core())?.is_some() {
            return Ok(());
        }
        let deadline = Deadline::of(timeout)?;
        let mut tried = Some(entered.core().tries);
        let sent = entered.wait_for(py, deadline, |core| {
            if tried == Some(core.tries) {
                return Ok(None);
            }
            tried = Some(core.tries);
            sent(core)
        })?;
        sent.ok_or_else(|| errors::timed_out("send"))
    }

    /// Sends a message of up to 120 bytes, if the mailbox of the peer has room. Returns whether it
    /// had.
    ///
    /// Raises `TooLong`, `PeerDied`.
    #[pyo3(signature = (data, *, tag=0, kind=0))]
    fn send_nowait(&self, data: &Bound<'_, PyAny>, tag: u8, kind: u8) -> PyResult<bool> {
        let bytes = Bytes::of(data)?;
        let mut entered = self.0.shared.enter()?;
        let (core, peer) = (entered.core(), self.0.peer);
        match core.endpoint.send_short(peer, MessageHeader { tag, kind }, &[bytes.as_slice()]) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(errors::send(&error).unwrap_or_else(|| core.died(peer))),
        }
    }

    /// Writes the bytes of `data` to the peer's memory, from byte `offset` of `key` on, and waits
    /// until they are visible there.
    ///
    /// `data` is any object with the buffer protocol whose bytes lie in one piece. `notify` is a
    /// number of 0 to 255 with which the peer is told (`Endpoint.notification`), beside `value`.
    /// `ordered` has the put come behind all that this endpoint did to the peer before.
    ///
    /// Raises `InvalidKey`, `AccessDenied`, `OutOfBounds`, `PeerDied`, `TimedOut`.
    #[pyo3(signature = (data, key, offset=0, *, notify=None, value=0, ordered=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn put(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        key: u64,
        offset: u64,
        notify: Option<u8>,
        value: u64,
        ordered: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (how, deadline) = (How::new(notify, value, ordered), Deadline::of(timeout)?);
        let mut entered = self.0.shared.enter()?;
        let begun = self.0.put(py, &mut entered, data, (target(key, offset), how, deadline))?;
        begun.wait(py, &mut entered, deadline).map(drop)
    }

    /// As `put`, but does not wait for its end, only until there is room for it. Memory of a
    /// `Memory` must not change until then; other bytes may.
    #[pyo3(signature = (data, key, offset=0, *, notify=None, value=0, ordered=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn start_put(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        key: u64,
        offset: u64,
        notify: Option<u8>,
        value: u64,
        ordered: bool,
        timeout: Option<f64>,
    ) -> PyResult<Operation> {
        let (how, deadline) = (How::new(notify, value, ordered), Deadline::of(timeout)?);
        let mut entered = self.0.shared.enter()?;
        let begun = self.0.put(py, &mut entered, data, (target(key, offset), how, deadline))?;
        Ok(begun.handed_out(&self.0.shared))
    }

    /// Reads the peer's memory, from byte `offset` of `key` on: all bytes of `into`, or `length`
    /// bytes, which are returned.
    ///
    /// `into` is any object with the buffer protocol that may be written and lies in one piece. If
    /// it is in a `Memory` of this endpoint, the bytes are not copied twice.
    ///
    /// Raises `InvalidKey`, `AccessDenied`, `OutOfBounds`, `PeerDied`, `TimedOut`.
    #[pyo3(signature = (key, offset=0, *, into=None, length=None, timeout=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: u64,
        offset: u64,
        into: Option<Bound<'py, PyAny>>,
        length: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.0.shared.enter()?;
        match Into::of(into, length)? {
            Into::Buffer(into) => {
                let mut into = BytesMut::of(&into)?;
                if let Some(part) = entered.core().region_of(into.place()) {
                    let how = How::new(None, 0, false);
                    let what = (target(key, offset), how, deadline);
                    let begun = self.0.get(py, &mut entered, &part, what)?;
                    begun.wait(py, &mut entered, deadline)?;
                } else {
                    let bytes = into.as_mut_slice();
                    self.0.get_into(py, &mut entered, bytes, (key, offset, deadline))?;
                }
                Ok(None)
            }
            Into::Fresh(length) => {
                let fill = |bytes: &mut [u8]| {
                    self.0.get_into(py, &mut entered, bytes, (key, offset, deadline))
                };
                PyBytes::new_with(py, length, fill).map(Some)
            }
        }
    }

    /// As `get` into a `Memory` of this endpoint, but does not wait for its end, only until there
    /// is room for it.
    ///
    /// Raises `BufferError` if `into` is not in registered memory.
    #[pyo3(signature = (key, offset=0, *, into, timeout=None))]
    fn start_get(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        into: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Operation> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.0.shared.enter()?;
        let into = BytesMut::of(into)?;
        let Some(part) = entered.core().region_of(into.place()) else {
            let text = "a get that goes on needs a Memory of this endpoint, or a part of one";
            return Err(PyBufferError::new_err(text));
        };
        let how = How::new(None, 0, false);
        let begun = self.0.get(py, &mut entered, &part, (target(key, offset), how, deadline))?;
        Ok(begun.handed_out(&self.0.shared))
    }

    /// Reads the word at `offset` whole.
    #[pyo3(signature = (key, offset=0, *, bits=64, timeout=None))]
    fn fetch(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        bits: u8,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.0.atomic(py, (key, offset), Atomic::read(width(bits)?), timeout)
    }

    /// Adds to the word at `offset`, and returns what it was before.
    #[pyo3(signature = (key, offset=0, value=1, *, bits=64, timeout=None))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        value: u64,
        bits: u8,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let atomic = Atomic::new(AtomicOperation::FetchAdd, width(bits)?, value);
        self.0.atomic(py, (key, offset), atomic, timeout)
    }

    /// Replaces the word at `offset`, and returns what it was before.
    #[pyo3(signature = (key, offset, value, *, bits=64, timeout=None))]
    fn swap(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        value: u64,
        bits: u8,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let atomic = Atomic::new(AtomicOperation::Swap, width(bits)?, value);
        self.0.atomic(py, (key, offset), atomic, timeout)
    }

    /// Replaces the word at `offset` by `value` if it is `expected`, and returns what it was
    /// before.
    #[pyo3(signature = (key, offset, expected, value, *, bits=64, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of Python")]
    fn compare_swap(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        expected: u64,
        value: u64,
        bits: u8,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let swap = Atomic::new(AtomicOperation::CompareSwap, width(bits)?, value);
        self.0.atomic(py, (key, offset), Atomic { compare: expected, ..swap }, timeout)
    }

    /// Has the peer told (`Endpoint.notification`), without any memory.
    #[pyo3(signature = (tag, value=0, *, timeout=None))]
    fn notify(&self, py: Python<'_>, tag: u8, value: u64, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.0.shared.enter()?;
        let to = self.0.peer;
        accepted(py, &mut entered, ("notify", Some(to)), deadline, |_, core| {
            core.endpoint.put_notification(to, tag, value)
        })
    }

    /// Waits until all that this endpoint did to the peer before is visible there or has failed.
    #[pyo3(signature = (timeout=None))]
    fn fence(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        let mut entered = self.0.shared.enter()?;
        let to = self.0.peer;
        let begun = self.0.begin(py, &mut entered, ("fence", deadline), |core, context| {
            core.endpoint.issue(to, Request::Fence, weft_fabric::Operation::new(context))
        })?;
        begun.wait(py, &mut entered, deadline).map(drop)
    }

    /// Has all that comes later take effect behind all that came before, at this peer. Waits for
    /// nothing.
    fn order(&self) -> PyResult<()> {
        let mut entered = self.0.shared.enter()?;
        let (core, peer) = (entered.core(), self.0.peer);
        core.endpoint.order(peer).map_err(|error| failed(core, Some(peer), &error))
    }

    /// Gives the peer up: what is pending on it fails, and both ends are told.
    fn disconnect(&self) -> PyResult<()> {
        let mut entered = self.0.shared.enter()?;
        let (core, peer) = (entered.core(), self.0.peer);
        core.endpoint.disconnect(peer).map_err(|error| failed(core, Some(peer), &error))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (Arc::as_ptr(&self.0.shared).addr(), self.0.peer).hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        // In use, closed, or of the parent: an object is shown nevertheless.
        let address = self.address().unwrap_or_else(|_| format!("handle {}", self.0.peer.0));
        format!("<weft.Peer {address} of {}>", self.0.shared.address)
    }
}
