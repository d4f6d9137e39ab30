//! The thread that resolves the names of seeds: again and again, since a host may get another
//! address, and its name may be known later than the daemon starts.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use weft_options::{Seed, canonical};

use super::Shared;

/// The pause between two looks while an address is needed: that between two attempts to connect.
const AGAIN: Duration = Duration::from_secs(2);
/// Addresses of one name that are used.
const ADDRESSES_MAX: usize = 16;

/// Starts the thread, if a seed has a name. It ends some seconds after the fabric.
///
/// # Errors
/// There is no thread.
pub fn start(seeds: Vec<Seed>, shared: Arc<Shared>, started: Instant) -> anyhow::Result<()> {
    let names = seeds.into_iter().filter_map(|seed| match &seed {
        Seed::Name { host, port } => Some((seed.to_string(), host.clone(), *port)),
        Seed::Address(_) => None,
    });
    let names: Vec<(String, String, u16)> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let run = move || {
        while !shared.is_over.load(Ordering::Acquire) {
            let is_needed = shared.lock().needs_seeds();
            for (name, host, port) in names.iter().filter(|_| is_needed) {
                let found = resolve(host, *port);
                shared.lock().seed_is_at(name, found, started.elapsed());
            }
            shared.wake();
            std::thread::sleep(AGAIN);
        }
    };
    let thread = std::thread::Builder::new().name("weft-names".to_owned());
    thread.spawn(run).context("no thread for the names of seeds")?;
    Ok(())
}

fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let found: BTreeSet<SocketAddr> = found.map(canonical).take(ADDRESSES_MAX).collect();
    match found.is_empty() {
        true => Err("the name has no address".to_owned()),
        false => Ok(found.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_addresses_or_there_is_a_reason() {
        let found = resolve("localhost", 7700).expect("each machine has it");
        assert!(found.iter().all(|one| one.ip().is_loopback() && one.port() == 7700), "{found:?}");
        let reason = resolve("a-host.invalid", 7700).expect_err("no host has such a name");
        assert!(!reason.is_empty());
    }
}
