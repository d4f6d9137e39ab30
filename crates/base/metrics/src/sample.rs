//! A value of a metric at one instant.

use crate::Snapshot;
use crate::table::Metric;

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// A number of seconds, or any other that has a fraction.
    Real(f64),
    /// A histogram.
    Histogram(Snapshot),
}

impl Value {
    /// The value as one number; of a histogram, how many values it has.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people and plots")]
    pub fn number(&self) -> f64 {
        match self {
            Self::Whole(value) => *value as f64,
            Self::Real(value) => *value,
            Self::Histogram(seen) => seen.count() as f64,
        }
    }
}

/// A value of a metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// The metric.
    pub metric: &'static Metric,
    /// The values of its labels, in the order of [`Metric::labels`].
    pub labels: Vec<String>,
    /// The value.
    pub value: Value,
}

impl Sample {
    /// A sample.
    ///
    /// # Panics
    /// When the labels are not as many as the metric has.
    pub fn new<const N: usize>(metric: &'static Metric, labels: [&str; N], value: Value) -> Self {
        assert_eq!(N, metric.labels.len(), "the labels of {}", metric.name);
        Self { metric, labels: labels.map(str::to_owned).to_vec(), value }
    }
}
