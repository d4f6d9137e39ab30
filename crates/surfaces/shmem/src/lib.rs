//! Layer 4: OpenSHMEM as a library for C programs.
//!
//! The functions are in `weft-pgas`. Here they are exported under their C names, the memory of a
//! job comes together, and a process starts and ends its part in it. A job on one host needs no
//! daemon: its launcher tells the PEs of each other, and the kernel lets a user's own processes
//! open each other's memory.
//!
//! | module | what it is |
//! |---|---|
//! | `exports`, `long_double` | the C functions and objects |
//! | `setup` | start, end and queries |
//! | `job` | the state of this process; the launcher |
//! | `card` | what PEs tell each other at the start |
//! | `far` | PEs of other hosts: the endpoint, and the thread that serves it |
//! | `mapping` | the segments of all PEs in one range of addresses |
//! | `statics`, `fork` | the program's variables in shared memory; its children |
//! | `writers` | threads that write to the variables meanwhile |
//! | `settings` | the variables `SHMEM_…` |
//! | `edges` | what runs when the library is loaded, and at exit |
//! | `fuzz` | the fuzz target: a card of another PE |
//!
//! # Invariants
//! - Nothing here panics on what a program or a peer does: a fault is a message and an exit code.
//! - A wait has an end: the launcher's calls have limits, and waits for PEs end when one has ended.
#![allow(clippy::disallowed_methods, reason = "layer 4 owns clocks and threads")]
#![allow(private_interfaces, reason = "a cdylib has no Rust interface")]

mod card;
mod edges;
mod exports;
mod far;
mod fork;
pub mod fuzz;
mod job;
mod long_double;
mod mapping;
mod settings;
mod setup;
mod statics;
mod writers;
