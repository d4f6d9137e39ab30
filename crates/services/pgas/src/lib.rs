//! Layer 3: a partitioned global address space, as OpenSHMEM has it, over memory that PEs share.
//!
//! A PE (processing element) is a process of a job. The memory of all PEs of a host is mapped in
//! each of them, so an operation is a copy or an atomic of the processor: no queue, lock or system
//! call. PEs of other hosts are reached by messages (`far`).
//! The functions here have the specification's parameters behind the name of the C function, for
//! messages; the surface crate exports them, and knows how memory comes to be shared ([`space`])
//! and how a job ends ([`fault`]).
//!
//! | module | what it is |
//! |---|---|
//! | `space`, `control` | where the memory of each PE lies; the words by which PEs wait |
//! | `far` | PEs of other hosts |
//! | `elsewhere` | operations in a job across hosts, and wrong numbers of PEs |
//! | `rma`, `amo`, `order` | copies; atomics; fence and quiet |
//! | `wait`, `waiting` | waiting for a word; how a PE waits |
//! | `team`, `context`, `via` | numbers of PEs |
//! | `collective`, `active_set`, `number` | collectives; the deprecated ones; what they combine |
//! | `heap`, `memory` | what is in use of the heap; allocation |
//! | `lock` | locks |
//! | `fault` | mistakes of a program |
//!
//! # Invariants
//! - An address and a number of a PE that a program passes are checked before they are used. The
//!   check is one comparison each where it passes.
//! - Memory of the program is accessed by raw pointers alone: C does what it likes with it. All
//!   `unsafe` code of the on-node path is in this crate.
//! - A wait for another PE ends when that PE's library has ended. The launcher ends the waits for a
//!   PE that died.

pub mod active_set;
pub mod amo;
pub mod collective;
pub mod context;
pub mod control;
mod elsewhere;
pub mod far;
pub mod fault;
pub mod heap;
pub mod lock;
pub mod memory;
pub mod number;
pub mod order;
pub mod rma;
pub mod space;
pub mod team;
pub mod via;
pub mod wait;
pub mod waiting;
