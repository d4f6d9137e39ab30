//! Knows whether this process is a child of the one that opened an endpoint.
//!
//! A child of fork(2) has copies of the handles of its parent's endpoints, whose queues and
//! descriptors are the parent's still. If it used or ended them, it would disturb the parent.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};

/// The number of forks between the process that loaded this module and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has Python count forks in children, before it goes on there.
pub(crate) fn watch(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let count = PyCFunction::new_closure(py, None, None, |_, _| -> PyResult<()> {
        FORKS.fetch_add(1, Ordering::Relaxed);
        Ok(())
    })?;
    let hooks = PyDict::new(py);
    hooks.set_item("after_in_child", count)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&hooks)).map(drop)
}

/// A value that only the process that made it uses and ends.
pub(crate) struct Own<T> {
    value: Option<T>,
    forks: u32,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.forks == FORKS.load(Ordering::Relaxed))
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.get().is_none() {
            std::mem::forget(self.value.take());
        }
    }
}
