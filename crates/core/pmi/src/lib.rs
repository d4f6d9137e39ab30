//! Layer 1: the process management interface between a launcher and the processes of a job.
//!
//! A launcher gives each process a rank and a socket. Over it the processes put values under keys,
//! wait for each other at a barrier and get the values of others. [`message`] is the wire of PMI-1
//! (lines) and PMI-2 (frames), [`server`] the side of the launcher; both are without I/O. [`Job`]
//! is the side of a process: alone, or launched with a [`Client`], or by a launcher with PMIx
//! ([`pmix`]). May depend on the operating system only.
//!
//! # Invariants
//! - Bytes of the other side are checked and bounded before they are used, and never panic.
//! - Each call that waits has an end.
//! - Two modules write `unsafe`: `inherited` borrows the descriptor that the launcher named, and
//!   `pmix::library` calls the library of PMIx.

mod client;
mod connection;
mod environment;
mod error;
pub mod fuzz;
mod inherited;
mod job;
pub mod message;
pub mod pmix;
pub mod server;

pub use client::{Client, Version};
pub use environment::{Environment, LauncherAddress};
pub use error::{Error, Malformed};
pub use job::Job;
