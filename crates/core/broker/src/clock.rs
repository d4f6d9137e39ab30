//! The clock for timeouts.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Monotonic time since an unspecified moment.
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
