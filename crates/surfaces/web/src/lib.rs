//! Layer 4: serves the state of a node by HTTP: metrics to Prometheus, the dashboard to browsers.
//!
//! A [`Source`] collects snapshots; [`Server`] hands them out on a thread of its own with an async
//! runtime. Both the daemon and `weft dash` use it. May depend on the table of metrics, and on
//! crates for HTTP.
//!
//! Always true: nothing that a client sends changes anything. Clients, their headers and the time
//! that they may take are bounded, and however many there are, at most one collection runs, and at
//! most four begin in a second. No file comes from elsewhere. A request that names another host
//! than this one is refused, so that pages of others cannot read what a browser of this host may.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a surface owns its clock, threads and sockets")]

mod exposition;
mod files;
mod impatient;
mod reply;
mod server;
mod source;

pub use exposition::exposition;
pub use server::{Server, Site};
pub use source::{Snapshot, Source};
