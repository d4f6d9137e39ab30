//! The endpoint that carries lanes to other hosts, over libfabric.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;

use weft_open::{Driver, FarEndpoint, Opening, Source};

use crate::deferral::Held;
use crate::{process, sys};

/// The endpoint of a process.
pub type Own = FarEndpoint;

/// Kept by the thread of an endpoint: its calls are none of the program's.
struct OwnThread(#[allow(dead_code, reason = "it is held")] Held);

impl Drop for OwnThread {
    fn drop(&mut self) {
        process::own_thread_ends();
    }
}

/// Opens an endpoint over libfabric, which uses the interface of the connection to which `fd`
/// leads.
pub fn open(path: &Path, fd: RawFd) -> Result<Own, String> {
    let local = rustix::net::getsockname(sys::borrow(fd)).map_err(|e| e.to_string())?;
    let local = SocketAddr::try_from(local).map_err(|e| e.to_string())?;
    let opening = Opening::with(&process::name(), &process::settings().options)
        .at(path)
        .source(Source::Address(local.ip().to_canonical()))
        // The thread that drives the carrier drives the endpoint.
        .driven_by(Driver::Owner)
        .without_signals()
        .whose_threads_hold(|| {
            process::has_own_thread();
            Box::new(OwnThread(Held::new()))
        });
    opening.open_far().map_err(|e| e.to_string())
}
