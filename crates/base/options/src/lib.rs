//! Layer 0: every option of weft in one table, and the values in force.
//!
//! [`TABLE`] names each option once: type, unit, default, range, category, text, old names. The
//! environment variables (`WEFT_<AREA>_<NAME>`), the file `weft.toml`, the command line's flags,
//! the manual page, `weft config` and the accessors of [`Options`] are all made from it.
//!
//! This crate opens no file and reads no environment: texts and pairs arrive as arguments. It may
//! depend on nothing of weft's.
//!
//! Always true: an [`Options`] holds a value inside its range for every entry of the
//! table, and an [`Origin`] for each. Flags beat the environment, the environment beats the file,
//! the file beats the default, in whatever order they were given to the [`Builder`].
//!
//! ```
//! use weft_options::{Builder, Id, Origin};
//!
//! let mut builder = Builder::new();
//! builder.environment([("WEFT_SOCKET_EAGER_BYTES", "120"), ("HOME", "/root")]);
//! builder.file("weft.toml", "[shm]\nring_slots = 1024\n[socket]\neager_bytes = 64\n");
//! let (options, problems) = builder.finish();
//! assert!(problems.is_empty());
//! assert_eq!(options.socket_eager_bytes(), 120);
//! assert_eq!(options.shm_ring_slots(), 1024);
//! assert_eq!(options.origin(Id::SocketEagerBytes), &Origin::Environment);
//! ```
#![forbid(unsafe_code)]

mod build;
mod entry;
mod name;
mod nearest;
mod options;
mod people;
pub mod runtime_path;
mod seed;
mod services;
pub mod share;
mod table;
mod value;

pub use build::{Builder, Problem};
pub use entry::{
    Category, Effect, Entry, Kind, OTHER_VARIABLES, Variable, flag, old_variables, variable,
};
pub use name::{Found, Spelling, find, find_any, suggest};
pub use nearest::nearest;
pub use options::{Options, Origin};
pub use people::People;
pub use seed::{InvalidSeed, Seed, canonical};
pub use services::ServicePolicy;
pub use table::{Id, TABLE};
pub use value::{BetweenHosts, CopyMethod, QueueChoice, TransportChoice};

#[cfg(test)]
mod tests;
