//! Layer 4: scenarios of the network simulator.
//!
//! - [`Scenario`]: a file in TOML: a graph, its routing, traffic, faults and measures.
//! - [`Report`]: the runs of a scenario, as JSON, as a page with plots, and as lines of text.
//!
//! The crate reads no files and has no clock. The same scenario gives the same report, to the byte,
//! on any machine: it has no time of day in it, and its numbers are integers.
#![forbid(unsafe_code)]

mod agenda;
mod endpoints;
mod engine;
mod feed;
mod file;
mod given_faults;
mod given_traffic;
mod page;
mod place;
mod plot;
mod recording;
mod report;
mod run;
mod scenario;

pub use place::ScenarioError;
pub use recording::{FRAMES_MAX, Frame, Recording};
pub use report::{GroupReport, LatencyReport, LinkLoad, MessageCounts, Point, Report};
pub use run::{Progress, RunError};
pub use scenario::{Level, Scenario};
