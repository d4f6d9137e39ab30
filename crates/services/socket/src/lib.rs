//! Layer 3: direct sockets without I/O.
//!
//! - [`stream`]: one end of a TCP connection that can move to a lane and back: eager messages,
//!   puts, credits, shutdown and close. Its directions are [`send`] and [`receive`].
//! - [`route`]: the byte boundaries at which a direction moves.
//! - [`receiving`] and [`sending`]: a direction together with its lane and the kernel's connection
//!   ([`shadow`]): crossings, wakeups, waiting, and giving a lane back. [`common`] is the state
//!   that both directions use.
//! - `record`: how a direction goes back to TCP across a network, where the lane may be lost.
//! - [`phase`] and [`due`]: the phase of a connection, and the moment at which it asks for a lane.
//! - `state`: the states of a direction that exclude each other, and the way they are stored.
//! - [`history`]: the outlook for a connection from earlier ones at its address.
//! - [`over_tcp`]: counts what a connection did before it had a lane.
//! - [`token`]: the numbers by which the daemon knows a program's offers.
//! - [`mod@tuple`]: how an end of a connection is named, and the evidence that names its other end.
//! - [`matchmaker`]: finds the two ends of one connection, for the node daemon.
//! - [`hosts`]: which addresses are on which host, for connections between hosts.
//! - [`ways`]: which way to another host is faster, by measurement.
//! - [`guesses`]: bounds offers of ends whose other end does not come.
//! - [`tap`]: what the messages of a lane mean to those who look at it.
//! - [`fuzz`]: entry functions for fuzzing.
//!
//! Source: EXTOLL-THESIS#5.5 (EXT-DS, Table 5.3, BCopy). The crate may depend on `weft-fabric` and
//! `weft-options`. It opens no socket, starts no thread, reads no clock and maps no memory.
#![forbid(unsafe_code)]

pub mod common;
pub mod due;
pub mod fuzz;
pub mod guesses;
pub mod history;
pub mod hosts;
pub mod kept;
pub mod looks;
pub mod matchmaker;
mod medium;
pub mod over_tcp;
pub mod phase;
pub mod receive;
pub mod receiving;
mod record;
pub mod route;
pub mod send;
pub mod sending;
pub mod shadow;
pub mod stand_in;
mod state;
pub mod stream;
pub mod tap;
pub mod token;
pub mod tuple;
pub mod ways;

pub use common::{Common, Peer, StaleWakeups};
pub use phase::{Phase, SharedPhase};
pub use receive::ReceiveSide;
pub use receiving::{Drained, Empty, Followed, Receiving};
pub use route::{Leave, Origin};
pub use send::{Again, SendSide};
pub use sending::{Sending, prepare};
pub use shadow::{Shadow, Unread, WAKEUP};
pub use stand_in::OnLaneAlone;
pub use stream::{Limits, ReadError, Reading, Side, WriteError, Written, closed};
