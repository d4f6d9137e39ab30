//! Layer 1: routes through a graph of hosts and switches.
//!
//! - [`Route`]: one step of a packet. All algorithms and tables implement it.
#![forbid(unsafe_code)]

mod route;

pub use route::{Choice, Heading, Route};
