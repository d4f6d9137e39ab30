//! Layer 1: a network of routers and links in virtual time.
//!
//! - [`Network`]: the message level. Messages become packets, which go from router to router by
//!   virtual cut-through, with credits for the room in finite buffers.
//! - [`flow`]: the flow level, for bulk data at scale.
//! - [`Settings`]: its parameters; by default those of Extoll.
//! - [`traffic`]: the patterns that networks are compared by, and messages at random times.
//!
//! A network does no input or output and has no clock: its driver gives it messages and faults, and
//! runs it up to a time. It depends on `weft-topology` for graphs and on `weft-routing` for the
//! ways of packets.
//!
//! Sources: EXTOLL-THESIS#2.2.1, EXTOLL-THESIS#3.1 and EXTOLL-THESIS#3.2; Dally and Towles,
//! *Principles and Practices of Interconnection Networks*.
#![forbid(unsafe_code)]

mod arena;
mod fault;
pub mod flow;
mod host;
mod links;
mod network;
mod packet;
mod processors;
mod queue;
mod router;
mod settings;
#[cfg(test)]
mod tests;
pub mod time;
pub mod traffic;
mod waiting;

pub use links::Counts;
pub use network::{Network, NetworkError, SendError};
pub use packet::{Destination, LostBecause, Message, Outcome};
pub use settings::{
    Arbitration, CLASSES_MAX, HostModel, LinkModel, MessageTime, PACKET_BYTES_MAX, Processors,
    Settings, SettingsError,
};
