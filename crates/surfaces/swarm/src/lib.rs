//! Layer 4: swarm testing of the fabric.
//!
//! A seed decides a [`Plan`]: a network, its limits, workloads and faults. [`run`] lets random
//! programs use the fabric while links are cut and mended, routers stop, and programs die. Then all
//! is mended, and everything has to settle. The promises of the fabric are checked on the way and
//! at the end:
//!
//! - what was accepted arrived once, or its end was told with an error, or the peer as down;
//! - messages and notifications of a pair are in order, and their bytes are right;
//! - bytes of a put are there when it is told, and nothing appears by a key after its revocation;
//! - whoever was refused for lack of room is told of room;
//! - a transfer of files that was cut goes on, and under a name is a whole file;
//! - a request of a session has one answer or one error, a session ends at both ends or at none,
//!   and blocks come back;
//! - hosts are told that they do not reach each other only when there was no way;
//! - no key, region, operation, packet or membership is left.
//!
//! # Invariant
//! The same seed gives the same run. No clock of the machine is read.
#![forbid(unsafe_code)]

mod clocks;
mod endpoints;
mod ethernet;
mod faults;
mod lanes;
mod ledger;
mod messages;
mod plan;
mod run;
mod sessions;
pub mod sockets;
mod stage;
mod transfers;
mod ways;
mod workload;

pub use plan::{Fault, Kind, Plan};
pub use run::{Summary, Violation, run, run_over};
pub use weft_fabric_manager::RuleSettings;
