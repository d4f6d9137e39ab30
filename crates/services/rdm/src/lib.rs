//! Layer 3: reliable datagrams as MPI wants them, over any endpoint, without I/O.
//!
//! [`Rdm`] sends tagged and untagged messages of any length, writes, reads and changes registered
//! memory of peers, and reports each end as an [`Outcome`]. `weft-fi` gives it a face of C, that of
//! a provider of libfabric. It may depend on `weft-fabric` alone. It uses no clock, thread, socket
//! or file: memory of the program and copies by the kernel arrive as [`Surface`].
//!
//! Source: EXTOLL-THESIS#2.3.4.1 (eager, rendezvous, the unexpected queue) and EXTOLL-THESIS#3.3.2
//! (the matching layer of Extoll's MPI); fi_tagged(3), fi_msg(3), fi_rma(3) and fi_atomic(3).
//!
//! # How bytes go
//! | bytes | way | when the sender's memory is free |
//! |---|---|---|
//! | up to [`Options::inline_bytes_max`] | in mailbox messages | at once |
//! | to other nodes up to [`Options::far_inline_bytes_max`] | the same | at once |
//! | up to [`Options::chunk_bytes_max`] | in a chunk that the peer maps, or gets | at once |
//! | the same, where there is no chunk for the peer | the receiver fetches a copy | at once |
//! | more | the receiver fetches: by the kernel's copy, else by chunks | when the answer came |
//!
//! A receiver of another node finds the first bytes of a longer body in a chunk, if the sender has
//! one to spare, so that it need not ask for them. Bodies of [`Options::lent_bytes_min`] bytes and
//! more it reads from the program's memory, if there is a way to lend that ([`Rdm::lending`]).
//!
//! # Promises
//! - *Order*: messages of one peer match receives in the order of sending, whatever their lengths.
//!   Writes, reads and atomics of up to [`Options::inline_bytes_max`] bytes take effect in order.
//! - *Bounds*: a program has at most [`Options::operations_max`] operations under way; a peer that
//!   causes more than [`Options::replies_max`] packets that it does not take is ended. Messages
//!   that nobody waits for are limited by memory alone, as MPI demands: the receiver's, and the
//!   sender's for copies.
//! - *Ends*: each operation ends by one [`Outcome`], also if its peer dies.
//! - *Protection*: nothing that a peer sends is believed. Memory is reached by registrations that
//!   are looked up here, with their rights and bounds.
//!
//! # Where things are
//! | module | what |
//! |---|---|
//! | [`matching`] | posted receives and unexpected messages |
//! | `packet` | the formats |
//! | `machine` | [`Rdm`], its tables, and what a poll does |
//! | `sending`, `receiving` | messages and their bodies |
//! | `fetching`, `getting` | bodies that the receiver fetches, and bytes of other nodes |
//! | `remote` | reads, writes and atomics, on both sides |
//! | `peers` | the table of peers, and how two of them meet |
//! | `pool`, `slab` | chunks; numbers for what is under way |
//! | `memory`, `atomics`, `outcome`, `options` | what a surface sees |
//! | [`fuzz`] | a peer that sends anything |
#![forbid(unsafe_code)]

pub mod atomics;
mod fetching;
pub mod fuzz;
mod getting;
mod machine;
pub mod matching;
mod memory;
mod options;
mod outcome;
mod packet;
mod peers;
mod pool;
mod receiving;
mod remote;
mod sending;
mod slab;

pub use machine::{Lend, Rdm, StartError};
pub use memory::{Fault, Introduction, Memory, Span, Surface};
pub use options::Options;
pub use outcome::{Begun, Failure, Kind, Outcome, Refusal};
pub use peers::PeerId;
pub use receiving::{Found, Wanted};
pub use remote::{Registration, Remote, Rights};
pub use sending::{How, Label};
