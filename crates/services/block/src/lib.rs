//! Layer 3: block storage without I/O.
//!
//! | module | what it is |
//! |---|---|
//! | [`scsi`] | logical units: commands, reservations, sense data (SPC-4, SBC-3) |
//! | [`iscsi`] | the target's side of iSCSI: formats, login, a session (RFC 7143) |
//! | [`iser`] | SCSI over sessions of the fabric, whose data the target puts and gets |
//! | [`nbd`] | the server's side of NBD: handshake and transmission |
//! | [`store`] | what a driver implements: bytes that are read and written |
//! | [`statistics`] | counters of a unit |
//! | [`gate`] | the lock of a unit and of a store, which is held over time |
//! | [`fuzz`] | entry functions for the fuzzer, and what tests share |
//!
//! A driver owns sockets, files, threads and clocks: it moves bytes between a socket and a state
//! machine, and runs the [`scsi::Job`]s of the machine where waiting disturbs nobody. The crate
//! may depend on `weft-fabric` and `weft-session`. Source: NUMA-RDMA#back-end, RFC 7143, RFC 7145,
//! the NBD protocol document.
#![forbid(unsafe_code)]

pub mod fuzz;
pub mod gate;
pub mod iscsi;
pub mod iser;
pub mod nbd;
pub mod scsi;
pub mod statistics;
pub mod store;
