//! End-to-end tests of weft: programs of others, unchanged, under `weft run`.
//!
//! This library is what the tests in `tests/` share. Each test has a node daemon of its own in a
//! directory of its own ([`Node`]), its own ports, an end to every wait, and leaves no process
//! behind, whatever happens ([`suite`]). A test that cannot run because a program is missing says
//! so and counts as ignored, never as passed.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `WEFT_BIN` | the `weft` to test, with `libweft_preload.so` beside it | built by cargo |
//! | `WEFT_E2E_STRESS_MB` | size of each byte-exact stress, both directions together, MB | 200 |
//! | `WEFT_E2E_KILLS` | kills in each test of sudden death | 20 |
//! | `WEFT_E2E_AWAY` | seconds that a peer sleeps, computes or is stopped at least | 0.1 to 1.2 |
//! | `WEFT_E2E_SEED` | seed of sizes, delays and moments | 1 |
//! | `WEFT_E2E_THIRD` | 0 to 2: the third of `semantics` that runs with one side under weft | all |
//! | `WEFT_E2E_LONG` | when set, cases that take long run too | not set |
//!
//! The full run that the promises in `SPECIFICATION.md` speak of, about half an hour:
//!
//! ```console
//! $ WEFT_E2E_STRESS_MB=10000 WEFT_E2E_KILLS=200 cargo test --release -p weft-e2e
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

pub mod exchange;
pub mod node;
pub mod process;
pub mod program;
pub mod statistics;
pub mod suite;
pub mod users;

pub use node::{Node, Under, as_usual, three_ways};
pub use process::{Ended, Running};
pub use statistics::Statistics;
pub use suite::{Case, Outcome, Skip};

/// A whole number from the environment, or `default`.
///
/// # Panics
/// When the variable is set to something else.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}, which is not a whole number"))
    })
}
