//! Memory and processor time of the process, as the kernel says.

use std::time::Duration;

/// Memory in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    pages.unwrap_or(0) * page
}

/// Processor time: in its own code, and in the kernel.
pub(crate) fn processor_time() -> (Duration, Duration) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may contain spaces and brackets; the numbers follow the last bracket.
    let rest = text.rsplit(')').next().unwrap_or_default();
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let ticks = rustix::param::clock_ticks_per_second();
    let mut next = || {
        let count: u64 = fields.next().and_then(|it| it.parse().ok()).unwrap_or(0);
        Duration::from_millis(count * 1000 / ticks.max(1))
    };
    (next(), next())
}
