//! Layer 1: routes through a graph of hosts and switches.
//!
//! - [`Route`]: one step of a packet. Tables implement it, and so does [`Routes`].
//! - [`Routes`]: the tables of a network by an [`Algorithm`], for the links that are not cut.
//! - [`numbering`]: the numbers of hosts. [`tables`]: the form of the tables.
//! - [`multicast`]: groups over a spanning [`tree`].
//! - [`check`]: follows the tables from every host to every other one, and shows that no packets
//!   wait for each other in a circle. [`dependency`] has the graph that this is about.
//!
//! The time that computing and checking take is the caller's to measure.
#![forbid(unsafe_code)]

mod blocks;
pub mod check;
mod compute;
pub mod dependency;
mod grid;
mod indirect;
pub mod multicast;
pub mod numbering;
mod route;
pub mod tables;
pub mod tree;
mod updown;

pub use compute::{Algorithm, Loaded, NoAlgorithm, Routes, RoutingError};
pub use route::{Choice, Heading, Route};
