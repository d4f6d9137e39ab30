//! Layer 2: one endpoint over two transports.
//!
//! A [`LayeredEndpoint`] shares memory with peers of its own node, and reaches those of other nodes
//! by a port of libfabric. The program sees one endpoint at one address. The port is opened at the
//! first need (`port`), so that a program that stays on its node loads nothing.
//!
//! | file | what |
//! |---|---|
//! | `transport` | opening |
//! | `endpoint` | which calls go which way |
//! | `calls` | calls that the layer follows until they end |
//! | `port` | the port: opened when it is wanted, or refused |
//! | `rights` | keys that are good on both ways |
//! | `progress` | polling, waiting, sleeping |
//! | `region`, `window` | memory |
//!
//! May depend on the fabric's interface, both transports, `weft-memory` and `weft-sync`.
//!
//! Source: `docs/design/007-libfabric.md`.
//!
//! # Invariants
//! - A peer's handle says its way: the highest bit is set in those of the port.
//! - A key has one number on both ways, and is in force on both or on neither.
//! - As long as there is no port, work on the own node costs no look at one.
#![forbid(unsafe_code)]

mod calls;
mod endpoint;
mod port;
mod progress;
mod region;
mod rights;
mod transport;
mod window;

pub use endpoint::LayeredEndpoint;
pub use port::{Run, Work, on_a_thread};
pub use region::LayeredRegion;
pub use transport::LayeredTransport;
pub use window::LayeredWindow;
