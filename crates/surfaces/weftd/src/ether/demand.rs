//! Checks the system limits that the devices of one daemon need, before the devices are made.

use anyhow::bail;
use rustix::process::{Resource, getrlimit};

/// Open files of a queue, not counting those for other queues; and open files of the daemon.
const FILES_EACH: u64 = 13;
const FILES_DAEMON: u64 = 64;
/// Memory mappings for each other queue that a queue is connected to, and for all else.
const MAPPINGS_A_PEER: u64 = 3;
const MAPPINGS_DAEMON: u64 = 1000;

/// The limits of this process.
struct Supply {
    files: u64,
    mappings: u64,
}

impl Supply {
    /// The limits that the kernel sets for this process.
    fn of_process() -> Self {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        Self {
            files: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            mappings: mappings.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX),
        }
    }
}

/// Checks the limits. Every queue is connected to the queue of the same number of each other
/// device, which takes a descriptor and memory at both ends.
///
/// # Errors
/// Names the limit that is too low for this many devices, and how to raise it.
pub fn check(devices: usize, queues: u8) -> anyhow::Result<()> {
    fits(devices, queues, &Supply::of_process())
}

fn fits(devices: usize, queues: u8, supply: &Supply) -> anyhow::Result<()> {
    let (devices, queues) = (devices as u64, u64::from(queues));
    let meetings = queues * devices * devices.saturating_sub(1);
    let files = meetings + FILES_EACH * queues * devices + FILES_DAEMON;
    if files > supply.files {
        bail!(
            "{devices} devices that are connected to each other need {files} open files, and {} \
             are allowed: raise the limit (ulimit -n), or serve fewer devices",
            supply.files
        );
    }
    let mappings = MAPPINGS_A_PEER * meetings + MAPPINGS_DAEMON;
    if mappings > supply.mappings {
        bail!(
            "{devices} devices that are connected to each other need {mappings} memory mappings, \
             and {} are allowed: raise the limit (sysctl vm.max_map_count={}), or serve fewer \
             devices",
            supply.mappings,
            mappings.next_power_of_two()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_devices_are_refused_with_the_limit_that_they_need() {
        let supply = Supply { files: 20_000, mappings: 65_530 };
        assert!(fits(128, 1, &supply).is_ok());
        assert!(fits(256, 1, &Supply { files: 1 << 20, mappings: 1 << 20 }).is_ok());
        let said = |devices, queues, supply| {
            fits(devices, queues, supply).expect_err("too many devices").to_string()
        };
        assert!(said(200, 1, &supply).contains("ulimit -n"));
        assert!(said(100, 3, &supply).contains("need 33664 open files"));
        let supply = Supply { files: 1 << 20, ..supply };
        assert!(said(200, 1, &supply).contains("vm.max_map_count=131072"));
    }
}
