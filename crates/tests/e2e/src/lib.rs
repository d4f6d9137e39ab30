//! End-to-end tests of weft: unchanged third-party programs under `weft run`.
//!
//! This library is shared by the tests in `tests/`. Each test has its own node daemon in its own
//! directory ([`Node`]), its own ports and a limit for every wait, and leaves no process behind
//! ([`suite`]). A test that cannot run because a program is missing reports that and counts as
//! ignored, never as passed.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `WEFT_BIN` | the `weft` to test; `libweft_preload.so` is beside it | built by cargo |
//! | `WEFT_E2E_STRESS_MB` | MB that each byte-exact stress moves, both directions together | 200 |
//! | `WEFT_E2E_KILLS` | kills in each test of sudden death | 20 |
//! | `WEFT_E2E_AWAY` | least seconds for which a peer sleeps, computes or is stopped | 0.1 to 1.2 |
//! | `WEFT_E2E_SEED` | seed of sizes, delays and moments | 1 |
//! | `WEFT_E2E_THIRD` | 0 to 2: the third of the ways in which cases run ([`third`]) | all |
//! | `WEFT_E2E_PROVIDERS` | providers of `ofi` and `libfabric`, with commas | those in software |
//! | `WEFT_E2E_SOURCE` | the address of their interface | 127.0.0.1 |
//! | `WEFT_E2E_LONG` | when set, the long cases run too | not set |
//!
//! The full run behind the promises of `SPECIFICATION.md` takes about half an hour:
//!
//! ```console
//! $ WEFT_E2E_STRESS_MB=10000 WEFT_E2E_KILLS=200 cargo test --release -p weft-e2e
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::time::Duration;

pub mod c_program;
pub mod etcd;
pub mod exchange;
pub mod fork_server;
pub mod host;
pub mod kv;
pub mod linear;
pub mod mpi;
pub mod namespace;
pub mod node;
pub mod process;
pub mod program;
pub mod python;
pub mod redis;
pub mod statistics;
pub mod suite;
pub mod third;
pub mod users;

pub use etcd::Etcd;
pub use fork_server::ForkServer;
pub use host::Host;
pub use namespace::Namespace;
pub use node::{Node, Under, as_usual, three_ways};
pub use process::{Ended, Running};
pub use statistics::Statistics;
pub use suite::{Case, Outcome, Skip};
pub use third::{Share, is_one_sided, share_of};

/// The providers of libfabric to test: those of the environment, or else `usual`.
#[must_use]
pub fn providers(usual: &[&str]) -> Vec<String> {
    let asked = std::env::var("WEFT_E2E_PROVIDERS").ok();
    match asked {
        Some(asked) => asked.split(',').map(str::to_owned).collect(),
        None => usual.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// The limit of a case over one of them. Where they are named, the processor may be emulated.
#[must_use]
pub fn provider_limit() -> Duration {
    let is_named = std::env::var_os("WEFT_E2E_PROVIDERS").is_some();
    Duration::from_secs(if is_named { 600 } else { 240 })
}

/// The address of their interface.
#[must_use]
pub fn source() -> String {
    std::env::var("WEFT_E2E_SOURCE").unwrap_or_else(|_| "127.0.0.1".to_owned())
}

/// The whole number in an environment variable, or `default`.
///
/// # Panics
/// When the variable is set and is not a whole number.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}, which is not a whole number"))
    })
}
