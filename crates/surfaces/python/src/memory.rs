//! Registered memory as an object with the buffer protocol, and keys to it.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use weft_fabric::{
    Access, Addressable, Audience, Endpoint, GrantError, Issued, LocalRange, OperationError,
    Region, Value,
};

use crate::buffers;
use crate::core::{AnyRegion, Entered, Shared};
use crate::errors::{self, Kind};
use crate::fork::Own;
use crate::operation::{accepted, begin};
use crate::peer::Peer;
use crate::time::Deadline;

/// Memory that peers may reach, by keys that its owner grants.
///
/// It has the buffer protocol: `memoryview(memory)`, `numpy.frombuffer(memory, ...)`. Peers may
/// write to it at any time, so that what is read may change between two looks.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Memory {
    shared: Arc<Shared>,
    /// None once it is closed.
    open: Own<Mutex<Option<Open>>>,
    length: u64,
}

/// Memory that is not closed.
struct Open {
    region: Arc<AnyRegion>,
    /// Views that are not released.
    views: usize,
    /// The keys that are in force.
    keys: Vec<weft_fabric::RemoteKey>,
}

impl Memory {
    pub(crate) fn new(shared: &Arc<Shared>, region: &Arc<AnyRegion>) -> Self {
        let length = region.length();
        let open = Open { region: Arc::clone(region), views: 0, keys: Vec::new() };
        Self { shared: Arc::clone(shared), open: Own::new(Mutex::new(Some(open))), length }
    }

    /// Uses the memory.
    ///
    /// # Errors
    /// `BufferError` if it is closed; `Forked`.
    fn with<T>(&self, take: impl FnOnce(&mut Open) -> T) -> PyResult<T> {
        let Some(open) = self.open.get() else {
            let text = "the memory is of the process before the fork; register memory of your own";
            return Err(Kind::Forked.says(text));
        };
        // Nobody holds it longer than for a few instructions, nor calls Python meanwhile.
        let taken = open.lock().as_mut().map(take);
        taken.ok_or_else(|| PyBufferError::new_err("the memory is closed"))
    }

    fn region(&self) -> PyResult<Arc<AnyRegion>> {
        self.with(|open| Arc::clone(&open.region))
    }
}

/// Waits until a key is granted or revoked.
fn changed(
    py: Python<'_>,
    entered: &mut Entered<'_>,
    (what, deadline): (&'static str, Deadline),
    start: impl Fn(&mut crate::core::Core, u64) -> Result<Issued, GrantError>,
) -> PyResult<Value> {
    let begun = accepted(py, entered, (what, None), deadline, |_, core| {
        begin(core, (what, None), None, |core, context| {
            start(core, context).map_err(OperationError::Grant)
        })
    })?;
    begun.wait(py, entered, deadline)
}

#[pymethods]
impl Memory {
    /// Grants peers access to `length` bytes from `offset` on, all of them by default, and returns
    /// the key, whose number the peers have to be told. Offset 0 of the key is that byte.
    ///
    /// `access` has the bits of `Access`. With `peer` the key is for this one alone, else for all
    /// endpoints of the partition, which are the programs of this user by default.
    #[pyo3(signature = (access=3, *, offset=0, length=None, peer=None, timeout=5.0))]
    fn grant(
        slf: &Bound<'_, Self>,
        access: u8,
        offset: u64,
        length: Option<u64>,
        peer: Option<&Bound<'_, Peer>>,
        timeout: Option<f64>,
    ) -> PyResult<RemoteKey> {
        let (py, own) = (slf.py(), slf.get());
        let deadline = Deadline::of(timeout)?;
        let Some(rights) = Access::from_bits(access) else {
            return Err(PyValueError::new_err(format!("no access has the bits {access:#b}")));
        };
        let audience = match peer.map(Bound::get) {
            None => Audience::Partition,
            Some(peer) if peer.0.is_of(&own.shared) => Audience::Peer(peer.0.peer),
            Some(_) => {
                let text = "the peer is one of another endpoint than that of the memory";
                return Err(PyValueError::new_err(text));
            }
        };
        let length = length.unwrap_or_else(|| own.length.saturating_sub(offset));
        let region = own.region()?;
        let mut entered = own.shared.enter()?;
        let value = changed(py, &mut entered, ("grant", deadline), |core, context| {
            let range = LocalRange::new(&*region, offset, length);
            core.endpoint.grant(range, audience, rights, context)
        })?;
        let key = value.key().ok_or_else(|| errors::unexpected(value))?;
        own.with(|open| open.keys.push(key))?;
        Ok(RemoteKey { memory: slf.clone().unbind(), key, access, length })
    }

    /// Loads the 64-bit word at `offset`, a multiple of 8, whole: one access that no write of a
    /// peer comes into.
    #[pyo3(signature = (offset=0))]
    fn load(&self, offset: u64) -> PyResult<u64> {
        self.region()?.load(offset).map_err(|error| errors::local(&error))
    }

    /// Stores a 64-bit word at `offset`, a multiple of 8, whole.
    #[pyo3(signature = (offset, value))]
    fn store(&self, offset: u64, value: u64) -> PyResult<()> {
        self.region()?.store(offset, value).map_err(|error| errors::local(&error))
    }

    /// Revokes all keys to it and gives it up. It must have no views any more.
    ///
    /// Raises `BufferError` if it has.
    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        if self.closed() {
            return Ok(());
        }
        let in_use = || {
            let text = "views of the memory exist (memoryview, ndarray); release them first";
            PyBufferError::new_err(text)
        };
        let (keys, views) = self.with(|open| (open.keys.clone(), open.views))?;
        if views > 0 {
            return Err(in_use());
        }
        if !keys.is_empty() && !self.shared.is_closed() {
            let mut entered = self.shared.enter()?;
            for key in keys {
                revoke(py, &mut entered, key, deadline)?;
                self.with(|open| open.keys.retain(|other| *other != key))?;
            }
        }
        // Another thread may have made a view meanwhile.
        let taken = self.open.get().and_then(|open| open.lock().take_if(|open| open.views == 0));
        if taken.is_none() && !self.closed() { Err(in_use()) } else { Ok(()) }
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.get().is_some_and(|open| open.lock().is_none())
    }

    /// The number of bytes.
    #[getter]
    const fn nbytes(&self) -> u64 {
        self.length
    }

    fn __len__(&self) -> PyResult<usize> {
        isize::try_from(self.length)
            .map(isize::cast_unsigned)
            .map_err(|_| PyOverflowError::new_err("more bytes than len() can say"))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, Some(5.0))
    }

    /// # Safety
    /// Called by Python, with a view to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = slf.get();
        let refused = |error: PyErr| {
            let py = slf.py();
            match error.is_instance_of::<PyBufferError>(py) {
                true => error,
                // What asks for a buffer knows this error alone.
                false => PyBufferError::new_err(error.value(py).to_string()),
            }
        };
        let (region, length) = own
            .with(|open| {
                open.views += 1;
                (Arc::clone(&open.region), open.region.length())
            })
            .map_err(refused)?;
        let base = region.base().as_ptr();
        let filled = match usize::try_from(length) {
            // SAFETY: `view` is Python's. The region stays mapped at its address, for reading and
            // writing, as long as `open` has it, and `close` takes it out when no view is left; the
            // view keeps this object.
            Ok(length) => unsafe {
                buffers::fill(view, slf.clone().into_any(), (base, length), flags)
            },
            Err(_) => Err(PyBufferError::new_err("more bytes than a buffer may have")),
        };
        if filled.is_err() {
            own.with(|open| open.views -= 1)?;
        }
        filled
    }

    /// # Safety
    /// Called by Python, with a view that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        // In a child the count is not used.
        let _ = self
            .open
            .get()
            .map(|open| open.lock().as_mut().map(|open| open.views = open.views.saturating_sub(1)));
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<weft.Memory of {}: {} bytes{state}>", self.shared.address, self.length)
    }
}

fn revoke(
    py: Python<'_>,
    entered: &mut Entered<'_>,
    key: weft_fabric::RemoteKey,
    deadline: Deadline,
) -> PyResult<()> {
    changed(py, entered, ("revoke", deadline), |core, context| core.endpoint.revoke(key, context))
        .map(drop)
}

/// Names a part of a `Memory` to peers. `int(key)` is its number, which peers use.
#[pyclass(frozen, module = "weft")]
pub(crate) struct RemoteKey {
    memory: Py<Memory>,
    key: weft_fabric::RemoteKey,
    /// The bits of `Access`.
    #[pyo3(get)]
    access: u8,
    /// The number of bytes.
    #[pyo3(get)]
    length: u64,
}

#[pymethods]
impl RemoteKey {
    /// Ends it. When the call is over, every put by the key that ended well is in the memory, and
    /// no byte by it appears later. What this program writes through views of the memory during the
    /// call may be lost.
    #[pyo3(signature = (timeout=5.0))]
    fn revoke(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = Deadline::of(timeout)?;
        let memory = self.memory.get();
        revoke(py, &mut memory.shared.enter()?, self.key, deadline)?;
        memory.with(|open| open.keys.retain(|other| *other != self.key))
    }

    /// The memory.
    #[getter]
    fn memory(&self, py: Python<'_>) -> Py<Memory> {
        self.memory.clone_ref(py)
    }

    fn __int__(&self) -> u64 {
        self.key.0
    }

    fn __index__(&self) -> u64 {
        self.key.0
    }

    fn __repr__(&self) -> String {
        format!("<weft.RemoteKey {}: {} bytes>", self.key.0, self.length)
    }
}
