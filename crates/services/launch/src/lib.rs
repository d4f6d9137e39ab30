//! Layer 3: launching a job of processes on one or more hosts, without I/O.
//!
//! The launcher (`oshrun`) has one [`Launch`]. On each host a proxy starts the processes, and has
//! one [`Proxy`]. They exchange [`frame`]s over any stream: a socket on this host, ssh to another.
//! [`hosts`] places the processes. Drivers own processes, descriptors and clocks.
//!
//! # Invariants
//! - Every job ends: each wait of [`Launch`] and [`Proxy`] has a deadline, which the driver asks
//!   for, once the job is to end.
//! - What waits in a machine is bounded. Readers of output that are slow hold up the processes.
#![forbid(unsafe_code)]

pub mod frame;
pub mod hosts;
mod launch;
mod lines;
mod proxy;
mod signals;

pub use launch::{Action, Launch, Layout, Member};
pub use proxy::{Proxy, Work};
pub use signals::name as signal_name;
