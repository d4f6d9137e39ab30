//! What devices that meet in one daemon need of the system, before they are made.

use anyhow::bail;
use rustix::process::{Resource, getrlimit};

/// Files of a queue beside those it has for others, and of the daemon.
const FILES_EACH: u64 = 13;
const FILES_DAEMON: u64 = 64;
/// Mappings for each other queue that one meets, and for what else there is.
const MAPPINGS_A_PEER: u64 = 3;
const MAPPINGS_DAEMON: u64 = 1000;

/// What there is.
struct Supply {
    files: u64,
    mappings: u64,
}

impl Supply {
    /// What the kernel allows this process.
    fn of_process() -> Self {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        Self {
            files: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
            mappings: mappings.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX),
        }
    }
}

/// Every queue meets that of the same number of each other device, which takes a descriptor and
/// memory on either side.
///
/// # Errors
/// Says which limit is too low for so many, and what to do.
pub fn check(devices: usize, queues: u8) -> anyhow::Result<()> {
    fits(devices, queues, &Supply::of_process())
}

fn fits(devices: usize, queues: u8, supply: &Supply) -> anyhow::Result<()> {
    let (devices, queues) = (devices as u64, u64::from(queues));
    let meetings = queues * devices * devices.saturating_sub(1);
    let files = meetings + FILES_EACH * queues * devices + FILES_DAEMON;
    if files > supply.files {
        bail!(
            "{devices} devices that meet each other need {files} open files, and {} are allowed: \
             raise the limit (ulimit -n), or serve fewer",
            supply.files
        );
    }
    let mappings = MAPPINGS_A_PEER * meetings + MAPPINGS_DAEMON;
    if mappings > supply.mappings {
        bail!(
            "{devices} devices that meet each other need {mappings} mappings of memory, and {} are \
             allowed: raise the limit (sysctl vm.max_map_count={}), or serve fewer",
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
    fn what_is_too_much_is_refused_with_the_limit_that_it_needs() {
        let supply = Supply { files: 20_000, mappings: 65_530 };
        assert!(fits(128, 1, &supply).is_ok());
        assert!(fits(256, 1, &Supply { files: 1 << 20, mappings: 1 << 20 }).is_ok());
        let said = |devices, queues, supply| {
            fits(devices, queues, supply).expect_err("it is too much").to_string()
        };
        assert!(said(200, 1, &supply).contains("ulimit -n"));
        assert!(said(100, 3, &supply).contains("need 33664 open files"));
        let supply = Supply { files: 1 << 20, ..supply };
        assert!(said(200, 1, &supply).contains("vm.max_map_count=131072"));
    }
}
