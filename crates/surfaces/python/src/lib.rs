//! Layer 4: the extension module `weft._weft`, on which the Python package `weft` stands.
//!
//! A program in Python opens an `Endpoint`, sends and receives messages, and reaches memory of
//! its peers. The classes here are those that Python programs use; `weft/_weft.pyi` has their
//! types, and `weft/` beside this crate what is written in Python: exceptions, asyncio, labs.
//!
//! # What always holds
//! - *One thread at a time uses an endpoint.* A second one gets `InUse` and never waits;
//!   its `close` ends a wait of the first.
//! - *Waits give up the interpreter's lock*, have an end, and a signal (Ctrl-C) ends them. So do
//!   copies of more than a few KiB, which signals do not end.
//! - *Memory lives as long as anybody has a view of it.* It is closed by nobody before.
//! - *After a fork* the child's calls raise `Forked`, and it ends nothing of its parent's.
//! - *Nothing grows without limit*: what waits for the program is in an inbox of fixed room.
//!
//! `unsafe` is in `buffers` alone: the two sides of the buffer protocol.
//!
//! May depend on the fabric and `weft-open`. Starts no thread.

mod buffers;
mod core;
mod endpoint;
mod errors;
mod events;
mod fork;
mod memory;
mod operation;
mod peer;
mod time;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
mod _weft {
    #[pymodule_export]
    use crate::endpoint::Endpoint;
    #[pymodule_export]
    use crate::events::{Message, Notification, PeerDown};
    #[pymodule_export]
    use crate::memory::{Memory, RemoteKey};
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::peer::Peer;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
        crate::fork::watch(module)
    }
}
