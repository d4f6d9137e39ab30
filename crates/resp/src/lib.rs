//! Layer 0: the Redis protocol, RESP2 and RESP3, without I/O.
//!
//! [`Parser`] takes the bytes of a client and gives requests. [`Reply`] writes replies. [`Value`]
//! reads replies, for clients and tests. The formats are those of the Redis serialization protocol
//! specification; limits and texts of errors are those of Redis 7.0.
//!
//! # Invariants
//! - Any bytes lead to requests or to one [`ProtocolError`], never to a panic.
//! - A parser holds at most [`Limits::request`] bytes of one request; what is behind it is the
//!   driver's to bound.
#![forbid(unsafe_code)]

mod double;
pub mod fuzz;
mod reply;
mod request;
mod value;
mod words;

pub use double::shortest_of_17 as double;
pub use reply::{Protocol, Reply};
pub use request::{Limits, Parser, ProtocolError, Request};
pub use value::{Malformed, Value};
pub use words::split as split_words;
