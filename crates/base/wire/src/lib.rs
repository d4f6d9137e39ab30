//! Layer 0: the formats of the control protocol between programs and the node daemon, of what
//! daemons tell each other about connections, and of the counters that `weft run --stats` shares
//! with its programs.
#![forbid(unsafe_code)]

pub mod between_hosts;
pub mod control;
pub mod endpoint_control;
pub mod form;
pub mod stats;
pub mod trials;
pub mod versions;
pub mod ways;
