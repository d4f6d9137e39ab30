//! Layer 0: formats of the control protocol between programs and the node daemon, and of the
//! counters they share.
#![forbid(unsafe_code)]

pub mod control;
pub mod endpoint_control;
pub mod stats;
