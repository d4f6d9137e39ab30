//! Layer 4: direct sockets for unmodified TCP programs, as a library that is preloaded.
//!
//! The model is the shadow socket of 003 section 5.5: a TCP connection is made by the kernel as
//! ever and keeps its descriptor, its addresses and its life; if both ends run under weft, its
//! bytes move to a lane of the shared-memory transport. Everything else passes through.
//!
//! | module | what it is |
//! |---|---|
//! | `hooks` | the C functions that programs call |
//! | `table` | what each descriptor number stands for |
//! | `arena` | connections, in memory that forked processes share |
//! | `connection`, `ending` | how a connection begins, moves to a lane, ends |
//! | `route`, `wakeups` | directions that move between TCP and the lane; who is woken, and how |
//! | `transfer` | reading and writing, blocking or not |
//! | `standing` | what a connection is ready for, how it ended, who waits for it |
//! | `poll`, `epoll` | readiness of connections among ordinary descriptors |
//! | `handover` | what survives exec |
//! | `stdio`, `characters` | the standard streams of a program over a connection |
//! | `sandbox` | processes whose system calls are filtered |
//! | `signals`, `cancel` | handlers and cancellations that end a call |
//! | `deferral` | handlers wait until a lock is free |
//! | `reserve` | lanes that are kept for the next connection |
//! | `history` | what earlier connections at an address did |
//! | `control` | the channel to the node daemon |
//! | `other_end` | which user holds the other end, for `--stats` |
//!
//! # Rules
//! - Nothing here may panic on what a program or a peer does, block without end, or leave errno
//!   changed on success where C promises otherwise.
//! - Own system calls are made raw, never through a symbol that is hooked.
#![allow(clippy::disallowed_methods, reason = "layer 4 owns sockets and clocks")]
#![allow(private_interfaces, reason = "a cdylib has no Rust interface")]

mod arena;
mod cancel;
mod characters;
mod connection;
mod control;
mod decision;
mod deferral;
mod direction;
mod ending;
mod epoll;
mod guard;
mod handover;
mod history;
mod hooks;
mod lanes;
mod log;
mod other_end;
mod poll;
mod process;
mod readiness;
mod real;
mod reserve;
mod route;
mod sandbox;
mod settling;
mod shadow;
mod signals;
mod stats;
mod stdio;
mod sys;
mod table;
mod transfer;
mod wakeups;
