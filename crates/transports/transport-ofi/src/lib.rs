//! Layer 2: the transport over libfabric.
//!
//! An endpoint is a state machine without input and output (`engine`), which drives a network card
//! ([`nic`]): a port of one of libfabric's providers, or a seeded network in memory (`seeded`,
//! for tests). The broker (`weft-broker`) introduces endpoints to each other. The same rules hold
//! over every NIC: they are in the state machine alone.
//!
//! May depend on the fabric's interface, `weft-broker`, `weft-libfabric`, `weft-memory` and layer
//! 0.
//!
//! Source: `docs/design/007-libfabric.md`; fi_endpoint(3), fi_rma(3), fi_cq(3).
//!
//! # Invariants
//! - A word is changed as a word by its owner alone.
//! - Nothing that a peer sends is used before it is checked.
#![forbid(unsafe_code)]

mod beside;
mod endpoint;
mod engine;
mod meeting;
pub mod nic;
mod packet;
mod region;
mod registers;
#[cfg(any(test, feature = "test-doors"))]
pub mod seeded;
mod shared;
mod station;
mod transport;
mod watch;
mod window;

pub use endpoint::OfiEndpoint;
pub use region::OfiRegion;
pub use transport::{Attachment, Cards, OfiTransport, Parameters, Ports};
pub use window::OfiWindow;
