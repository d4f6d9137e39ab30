//! Layer 4: direct sockets for unmodified TCP programs, as a library that is preloaded.
//!
//! The model is the shadow socket of EXTOLL-THESIS#5.5.1: a TCP connection is made by the kernel as
//! ever and keeps its descriptor, its addresses and its life; if both ends run under weft, its
//! bytes move to a lane of the shared-memory transport. Everything else passes through.
//!
//! A module imports those below it only (`xtask/tests/modules.rs`). The rules of lanes, wakeups and
//! phases are in `weft-socket`: these modules own the descriptors, the locks and the clock.
//!
//! | module | what it is |
//! |---|---|
//! | `hooks` | the C functions that programs call; the process's start, forks and end |
//! | `handover`, `stdio`, `sandbox` | what survives exec; standard streams; filtered processes |
//! | `poll`, `transfer` | waiting for several connections; reading and writing, blocking or not |
//! | `counts` | bytes of lanes in the kernel's counts |
//! | `connection`, `ending`, `renewal` | which descriptors lead to a connection; how it ends |
//! | `decision`, `reserve` | when a connection gets a lane; lanes kept for the next one |
//! | `route` | directions that go back to TCP |
//! | `direction` | the two directions of a connection, each behind its lock |
//! | `lanes` | how many lanes there are, and idle connections that give theirs back |
//! | `rescue` | bytes of a lost lane that the kernel did not take at once |
//! | `epoll` | sets of connections and ordinary descriptors |
//! | `wakeups`, `settling`, `readiness` | arming, sleeping, and what a connection is ready for |
//! | `control`, `other_end` | the channel to the node daemon; the user at the other end |
//! | `shadow`, `waits` | the kernel's connection, and a thread's waits on it |
//! | `calls` | the calls that threads make just now, which connections outlive |
//! | `arena`, `table`, `history` | connections, descriptor numbers, earlier connections |
//! | `lane`, `carrier`, `bells` | lanes of either kind; the endpoint and its thread; its sleepers |
//! | `own`, `provider_files` | descriptors of these and of libfabric, which stay open |
//! | `signals`, `cancel`, `deferral` | handlers and cancellations that end or wait for a call |
//! | `process`, `stats`, `log`, `guard`, `characters`, `sys`, `real` | the ground |
//! | `own_calls` | system calls of the standard library and of the crates below |
//!
//! # Rules
//! - Nothing here may panic on what a program or a peer does, block without end, or leave errno
//!   changed on success where C promises otherwise.
//! - Own system calls are made raw, never through a symbol that this or another library hooks.
#![allow(clippy::disallowed_methods, reason = "layer 4 owns sockets and clocks")]
#![allow(private_interfaces, reason = "a cdylib has no Rust interface")]

mod arena;
mod asking;
mod backlog;
mod bells;
mod calls;
mod cancel;
mod carrier;
mod characters;
mod connection;
mod control;
mod counts;
mod decision;
mod deferral;
mod direction;
mod ending;
mod epoll;
mod guard;
mod handover;
mod history;
mod hooks;
mod lane;
mod lanes;
mod log;
mod other_end;
mod own;
mod own_calls;
mod poll;
mod process;
mod provider_files;
mod readiness;
mod real;
mod renewal;
mod rescue;
mod reserve;
mod route;
mod sandbox;
mod settling;
mod shadow;
mod signals;
mod stand_in;
mod stats;
mod staying;
mod stdio;
mod sys;
mod table;
mod transfer;
mod unproven;
mod unseen;
mod waits;
mod wakeups;
