//! The target's side of iSCSI without I/O (RFC 7143).
//!
//! | module | what it is |
//! |---|---|
//! | `pdu` | the head of a PDU, and the heads that a target sends |
//! | `text` | the keys of login and text requests |
//! | `login` | the login of a connection, with CHAP (`chap`) |
//! | `input`, `output` | bytes to PDUs with their digests, and back |
//! | `session`, `task` | full feature phase: commands, data, task management |
//! | `target` | targets, their units, and who may use them |
//! | `connection` | all of a connection |
//! | [`initiator`] | what an initiator needs of the formats |
//!
//! A session has one connection (MaxConnections=1) and error recovery level 0: what breaks ends
//! the connection, and the initiator logs in again. Several paths are several sessions.

mod chap;
mod connection;
pub mod initiator;
mod input;
mod login;
mod output;
pub mod pdu;
mod session;
mod target;
mod task;
mod text;

#[cfg(test)]
mod tests;

pub use chap::Credentials;
pub use connection::{Connection, Event, Start};
pub use login::Negotiated;
pub use session::Ticket;
pub use target::{InvalidTarget, SessionInfo, Target, Targets, is_name};

/// Bytes of data in one PDU that this end takes at most, after login.
pub const SEGMENT_BYTES_MAX: usize = 256 << 10;
/// Bytes of data in one PDU during login; RFC 7143 section 13.12.
pub const LOGIN_SEGMENT_BYTES_MAX: usize = 8192;
/// Bytes of keys that a login or a text request may have in all.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes that are asked for by one R2T at most.
pub const BURST_BYTES_MAX: usize = 1 << 20;
/// Bytes that come without being asked for, with a command, at most.
pub const FIRST_BURST_BYTES_MAX: usize = 256 << 10;
/// Commands of a session that are open at a time.
pub const WINDOW: u32 = 128;
/// Immediate commands of a session that are open beside those.
pub const IMMEDIATE_MAX: usize = 16;
/// Bytes of data that a connection holds before commands have to wait. One command more than that
/// may be held.
pub const HELD_BYTES_MAX: usize = 32 << 20;
