//! Layer 3: direct sockets without I/O.
//!
//! - [`stream`]: one end of a TCP connection that can move to a lane and back to nothing: eager
//!   messages, puts, credits, the switch from TCP at a byte boundary, shutdown and close.
//! - [`matchmaker`]: which two ends are the same connection, for the node daemon.
//! - [`fuzz`]: entry functions for fuzzing.
//!
//! Source: 003 section 5.5 (EXT-DS, Table 5.3, BCopy). May depend on `weft-fabric` alone; knows no
//! socket, thread, clock or memory.
#![forbid(unsafe_code)]

pub mod fuzz;
pub mod matchmaker;
pub mod stream;

pub use stream::{
    Limits, ReadError, Reading, ReceiveSide, SendSide, Side, WriteError, Written, closed,
};
