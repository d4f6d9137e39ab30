//! The outcome of a measurement: for scripts as JSON, for people as a line or two.

use serde_json::{Value, json};

use super::initiator::{Plan, Sample};
use crate::arguments::{LaneKind, PerfTest, TransportName};

/// Figures of one test.
#[derive(Clone, Debug)]
pub struct Report {
    test: PerfTest,
    transport: TransportName,
    /// The kind of lane that was measured, if it was one.
    over: Option<LaneKind>,
    plan: Plan,
    placement: String,
    samples: Vec<Sample>,
}

impl Report {
    /// The figures of `samples`, of which there is at least one.
    pub fn new(
        test: PerfTest,
        transport: TransportName,
        plan: Plan,
        placement: &str,
        samples: Vec<Sample>,
    ) -> Self {
        assert!(!samples.is_empty(), "a report is about at least one run");
        let placement = placement.to_owned();
        Self { test, transport, over: None, plan, placement, samples }
    }

    /// The same figures, of a lane of this kind.
    pub const fn of_lane(mut self, over: LaneKind) -> Self {
        self.over = Some(over);
        self
    }

    /// The unit of the main figure.
    const fn unit(&self) -> &'static str {
        match self.test {
            PerfTest::Latency | PerfTest::Cacheline | PerfTest::Serve => "us",
            PerfTest::Rate | PerfTest::Message | PerfTest::Lane => "messages/s",
            PerfTest::Put | PerfTest::Get => "GB/s",
            PerfTest::Atomic => "operations/s",
        }
    }

    /// The main figure of a test whose one operation took `nanoseconds`.
    fn figure(&self, nanoseconds: f64) -> f64 {
        match self.test {
            PerfTest::Latency | PerfTest::Cacheline | PerfTest::Serve => nanoseconds / 1_000.0,
            PerfTest::Rate | PerfTest::Message | PerfTest::Lane | PerfTest::Atomic => {
                1e9 / nanoseconds
            }
            PerfTest::Put | PerfTest::Get => self.plan.size as f64 / nanoseconds,
        }
    }

    fn values(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| rounded(self.figure(sample.mean_ns))).collect()
    }

    /// The worst per cent: a time that 99 % stay below, or a rate that 99 % reach.
    fn p99(&self) -> f64 {
        self.figure(median(self.samples.iter().map(|sample| sample.p99_ns)))
    }

    /// A latency that the samples may have: median and p99, microseconds.
    fn latency(&self, of: impl Fn(&Sample) -> Option<(f64, f64)>) -> Option<(f64, f64)> {
        let singles: Vec<(f64, f64)> = self.samples.iter().filter_map(of).collect();
        if singles.is_empty() {
            return None;
        }
        let mean = median(singles.iter().map(|single| single.0)) / 1_000.0;
        let worst = median(singles.iter().map(|single| single.1)) / 1_000.0;
        Some((mean, worst))
    }

    /// For scripts.
    pub fn json(&self) -> Value {
        let mut json = json!({
            "test": self.test.name(),
            "transport": self.transport.name(),
            "size": self.plan.size,
            "unit": self.unit(),
            "median": rounded(median(self.values())),
            "p99": rounded(self.p99()),
            "runs": self.samples.len(),
            "values": self.values(),
            "iterations": self.plan.iterations,
            "placement": self.placement,
        });
        if let Some(over) = self.over {
            json["over"] = json!(over.name());
        }
        let latencies = [
            ("latency", self.latency(|sample| sample.single)),
            ("signal_latency", self.latency(|sample| sample.signalled)),
        ];
        for (name, latency) in latencies {
            if let Some((median, p99)) = latency {
                json[name] =
                    json!({ "unit": "us", "median": rounded(median), "p99": rounded(p99) });
            }
        }
        json
    }

    /// For people.
    pub fn text(&self) -> String {
        let over = match self.over {
            None => self.transport.name().to_owned(),
            Some(LaneKind::Memory) => "memory".to_owned(),
            Some(LaneKind::Endpoint) => format!("endpoints of {}", self.transport.name()),
        };
        let mut text = format!(
            "{} over {over}, {} bytes: {} {} (median of {} runs), p99 {}\n",
            self.test.name(),
            self.plan.size,
            shown(median(self.values())),
            self.unit(),
            self.samples.len(),
            shown(self.p99())
        );
        let single = match self.test {
            PerfTest::Put => "one way, with completer notification",
            _ => "one at a time",
        };
        let latencies = [
            (single, self.latency(|sample| sample.single)),
            ("one way, with a signal", self.latency(|sample| sample.signalled)),
        ];
        for (what, latency) in latencies {
            if let Some((median, p99)) = latency {
                text.push_str(&format!("  {what}: {} us, p99 {}\n", shown(median), shown(p99)));
            }
        }
        text.push_str(&format!(
            "  {} iterations a run; {}\n",
            self.plan.iterations, self.placement
        ));
        text
    }
}

/// The middle value, or the mean of the two middle ones.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Six digits behind the point are more than any clock gives.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn shown(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(test: PerfTest, size: u64) -> Report {
        let sample = |mean_ns, p99_ns| Sample {
            mean_ns,
            p99_ns,
            single: Some((2_000.0, 3_000.0)),
            signalled: Some((500.0, 700.0)),
        };
        let samples = vec![sample(100.0, 200.0), sample(400.0, 900.0), sample(200.0, 400.0)];
        Report::new(test, TransportName::Sim, Plan { size, iterations: 9 }, "here", samples)
    }

    #[test]
    fn figures_have_the_unit_of_their_test() {
        let json = report(PerfTest::Latency, 8).json();
        assert_eq!((&json["unit"], &json["median"]), (&json!("us"), &json!(0.2)));
        assert_eq!(json["p99"], json!(0.4));
        let json = report(PerfTest::Put, 1_000).json();
        assert_eq!((&json["unit"], &json["median"]), (&json!("GB/s"), &json!(5.0)));
        assert_eq!(json["latency"], json!({"unit": "us", "median": 2.0, "p99": 3.0}));
        assert_eq!(json["signal_latency"], json!({"unit": "us", "median": 0.5, "p99": 0.7}));
        let json = report(PerfTest::Rate, 8).json();
        assert_eq!((&json["median"], &json["p99"]), (&json!(5e6), &json!(2.5e6)));
        assert_eq!((&json["runs"], &json["size"]), (&json!(3), &json!(8)));
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median([7.0]), 7.0);
    }
}
