//! Layer 0: the table of metrics, samples of them, and histograms of durations.
//!
//! [`METRICS`] has an entry for each metric: its name, type, unit, labels and meaning. The
//! exporter, the page `docs/metrics.md` and the views take all five from it, so that they cannot
//! differ. A [`Sample`] is a value of a metric at one instant. May depend on nothing.
//!
//! Always true: names begin with `weft_` and follow OpenMetrics; a sample has a value for each
//! label of its metric; a histogram has [`BUCKETS`] buckets, whatever was recorded.
//!
//! ```
//! use weft_metrics::{Sample, UPTIME, Value};
//!
//! let sample = Sample::new(&UPTIME, [], Value::Real(1.5));
//! assert_eq!(sample.metric.full_name(), "weft_uptime_seconds");
//! ```
#![forbid(unsafe_code)]

mod histogram;
mod page;
mod sample;
mod table;

pub use histogram::{BUCKETS, Histogram, Snapshot, WORDS};
pub use page::page;
pub use sample::{Sample, Value};
pub use table::*;
