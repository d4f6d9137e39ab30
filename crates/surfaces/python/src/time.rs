//! Timeouts as Python programs give them: seconds, or None.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use weft_open::now;

/// The longest part of a wait between two looks at signals. One that comes while the thread sleeps
/// ends the sleep; this is for one that comes just before, or to another thread.
const PART: Duration = Duration::from_millis(250);

/// The moment at which a wait is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Duration>);

impl Deadline {
    /// The end of a wait of so many seconds that begins now; `None` has no end.
    pub(crate) fn of(timeout: Option<f64>) -> PyResult<Self> {
        Ok(Self(checked(timeout)?.map(|time| now().saturating_add(time))))
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|until| until <= now())
    }

    /// The time until the next look at signals.
    pub(crate) fn part(self) -> Duration {
        self.0.map_or(PART, |until| until.saturating_sub(now()).min(PART))
    }
}

fn checked(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        None => Ok(None),
        Some(seconds) if seconds.is_nan() || seconds < 0.0 => {
            let text = format!("a timeout is None or 0 s or more, not {seconds}");
            Err(PyValueError::new_err(text))
        }
        // More than a Duration holds is without end.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).ok()),
    }
}
