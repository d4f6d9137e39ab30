//! The clocks of the operating system.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_redis::Clock;

/// The clocks of the operating system.
pub(crate) struct System(Instant);

impl System {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for System {
    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}
