//! Operations that go on while the program does something else.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyType;
use weft_fabric::{Endpoint, Issued, OperationError, Peer, Value};

use crate::core::{AnyRegion, Core, End, Entered, Shared};
use crate::errors;
use crate::peer::PeerHandle;
use crate::time::Deadline;

/// A put, get, atomic, fence or connect that was started. It ends by itself; `wait` waits for it.
///
/// An operation that nobody refers to goes on.
#[pyclass(frozen, module = "weft")]
pub(crate) struct Operation {
    shared: Arc<Shared>,
    begun: Begun,
}

/// An operation that was accepted.
pub(crate) struct Begun {
    what: &'static str,
    /// The peer; none for one that has to be found yet, and for all peers.
    peer: Option<Peer>,
    context: u64,
    end: Arc<End>,
}

/// Starts an operation, and follows it if it goes on.
///
/// # Errors
/// That of the operation, of which nothing was done.
pub(crate) fn begin(
    core: &mut Core,
    (what, peer): (&'static str, Option<Peer>),
    region: Option<Arc<AnyRegion>>,
    start: impl FnOnce(&mut Core, u64) -> Result<Issued, OperationError>,
) -> Result<Begun, OperationError> {
    let context = core.next_context();
    let end = Arc::new(End::new());
    match start(core, context)? {
        Issued::Done(value) => {
            // It is empty yet.
            let _ = end.set(Ok(value));
        }
        Issued::Pending => core.follow(context, &end, region),
    }
    Ok(Begun { what, peer, context, end })
}

impl Begun {
    /// Its value or exception, if it has ended.
    pub(crate) fn outcome(&self, core: &Core) -> PyResult<Option<Value>> {
        match self.end.get() {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(*value)),
            Some(Err(error)) => Err(failed(core, self.peer, error)),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// That of the operation; `TimedOut`, and it goes on.
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        entered: &mut Entered<'_>,
        deadline: Deadline,
    ) -> PyResult<Value> {
        entered
            .wait_for(py, deadline, |core| self.outcome(core))?
            .ok_or_else(|| errors::timed_out(self.what))
    }

    /// For the program.
    pub(crate) fn handed_out(self, shared: &Arc<Shared>) -> Operation {
        Operation { shared: Arc::clone(shared), begun: self }
    }
}

/// The exception for an operation that failed.
pub(crate) fn failed(core: &Core, peer: Option<Peer>, error: &OperationError) -> PyErr {
    errors::operation(error).unwrap_or_else(|| match peer {
        Some(peer) => core.died(peer),
        None => errors::peer_died(None, None),
    })
}

/// Tries until an operation is accepted: a full queue, and a key that is looked up, take time.
pub(crate) fn accepted<T>(
    py: Python<'_>,
    entered: &mut Entered<'_>,
    (what, peer): (&'static str, Option<Peer>),
    deadline: Deadline,
    mut attempt: impl FnMut(Python<'_>, &mut Core) -> Result<T, OperationError>,
) -> PyResult<T> {
    let mut tried = None;
    let accepted = entered.wait_for(py, deadline, |core| {
        if tried == Some(core.tries) {
            return Ok(None);
        }
        tried = Some(core.tries);
        match attempt(py, core) {
            Ok(value) => Ok(Some(value)),
            Err(OperationError::WouldBlock) => Ok(None),
            Err(error) => Err(failed(core, peer, &error)),
        }
    })?;
    accepted.ok_or_else(|| errors::timed_out(what))
}

#[pymethods]
impl Operation {
    /// For annotations: `Operation[None]`, `Operation[Peer]`.
    #[classmethod]
    #[pyo3(signature = (item, /))]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> Bound<'py, PyType> {
        let _ = item;
        class.clone()
    }

    /// Whether it has ended, well or with an error. Takes what came of the endpoint into the inbox.
    #[getter]
    fn done(&self) -> PyResult<bool> {
        if self.begun.end.get().is_none() {
            self.shared.enter()?.core().poll()?;
        }
        Ok(self.begun.end.get().is_some())
    }

    /// Waits for its end, and returns its value: the former word of an atomic, the `Peer` of a
    /// connect, else None.
    ///
    /// Raises the error of the operation; `TimedOut`, and the operation goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let deadline = Deadline::of(timeout)?;
        let value = self.begun.wait(py, &mut self.shared.enter()?, deadline)?;
        match value {
            Value::Nothing => Ok(py.None().into_bound(py)),
            Value::Word(word) => Ok(word.into_pyobject(py)?.into_any()),
            Value::Peer(peer) => {
                let peer = PeerHandle::new(&self.shared, peer);
                Ok(Bound::new(py, crate::peer::Peer::of(peer))?.into_any())
            }
            other => Err(errors::unexpected(other)),
        }
    }

    /// Asks to give it up. If nothing of it has left, it ends with `Cancelled`; else it ends as it
    /// would have.
    fn cancel(&self) -> PyResult<()> {
        let mut entered = self.shared.enter()?;
        let core = entered.core();
        match self.begun.peer.filter(|_| self.begun.end.get().is_none()) {
            None => Ok(()),
            Some(peer) => match core.endpoint.cancel(peer, self.begun.context) {
                // It has ended with that, or is about to.
                Ok(()) | Err(OperationError::PeerDown) => Ok(()),
                Err(error) => Err(failed(core, Some(peer), &error)),
            },
        }
    }

    fn __repr__(&self) -> String {
        let state = match self.begun.end.get() {
            None => "goes on",
            Some(Ok(_)) => "done",
            Some(Err(_)) => "failed",
        };
        format!("<weft.Operation: {}, {state}>", self.begun.what)
    }
}
