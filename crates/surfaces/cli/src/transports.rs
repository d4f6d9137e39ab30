//! The transports that this build carries, and openings of endpoints with the command's options.

use anyhow::Context;
use weft_fabric::Capabilities;
use weft_open::Opening;
use weft_options::Options;

/// The capabilities of each of them.
pub fn all(options: &Options) -> Vec<Capabilities> {
    let sim = weft_transport_sim::Settings::default().capabilities();
    vec![weft_open::shm_parameters(options).capabilities(), sim]
}

/// Endpoints of `weft perf` at the daemon of this node; between hosts over `provider` if one is
/// named.
pub fn opening(provider: Option<&str>, options: &Options) -> Opening {
    Opening::with("weft perf", options).provider(provider)
}

/// Endpoints of transfers at the daemon of this node.
pub fn of_transfers(name: &str, options: &Options) -> Opening {
    Opening::with(name, options).driven_by(weft_open::Driver::Owner)
}

/// As [`opening`]. The daemon is started if it is not there.
///
/// # Errors
/// This program's own file cannot be found.
pub fn starting(provider: Option<&str>, options: &Options) -> anyhow::Result<Opening> {
    let command = std::env::current_exe().context("this program's own file cannot be found")?;
    Ok(opening(provider, options).starting_daemon_by(&command))
}
