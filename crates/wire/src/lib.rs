//! Layer 0: the formats of the control protocol between programs and the node daemon, and of the
//! counters that `weft run --stats` shares with its programs.
#![forbid(unsafe_code)]

pub mod control;
pub mod endpoint_control;
pub mod stats;
