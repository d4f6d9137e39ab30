//! Layer 3: the manager of a fabric, after EMP (EXTOLL-THESIS#3.3.3), without I/O.
//!
//! - [`Manager`]: sweeps the fabric from its own node outward, gives numbers and tables, and does
//!   so again when links or nodes fail or come back.
//! - [`Agent`]: the part of each node that obeys, and that passes orders on by ports, so that nodes
//!   without a number are reached.
//! - [`Rule`]: a network under managers, as a simulator drives it.
//! - [`message`]: the packets between them.
//! - [`model`]: a fabric of them in virtual time, for simulators and tests.
//! - [`Lab`]: the agents and managers of nodes that are in one process.
//! - [`Hosts`]: the agent and the manager of a host of a fabric of hosts.
//!
//! Drivers own links and clocks. They give packets and the time in milliseconds, and take packets.
//!
//! # Invariants
//! - One manager rules. Each order carries the term of its manager's lease, and an agent refuses an
//!   order of a lower term than it has seen. A manager gives no orders after its lease.
//! - Tables change as [`weft_routing::tables`] asks: every node has the new plane before the first
//!   one uses it, and a plane is filled again only after its packets have had time to leave it.
//!
//! Orders are not signed. A driver carries them between nodes that have proved that they know the
//! key of the fabric (`weft-membership`), and not between others.
#![forbid(unsafe_code)]

mod agent;
mod hosts;
mod lab;
mod manager;
pub mod message;
pub mod model;
mod network;
mod orders;
mod rule;

pub use agent::{Agent, Output};
pub use hosts::Hosts;
pub use lab::{Lab, NodePair};
pub use manager::{Manager, Settings, Standing};
pub use network::Expected;
pub use rule::{Rule, RuleSettings};
