//! The clock of sessions and waits.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started. It does not go back.
#[must_use]
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
