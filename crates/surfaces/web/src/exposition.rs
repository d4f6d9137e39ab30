//! Samples as text of OpenMetrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as Named};
use weft_metrics::{Kind, METRICS, Metric, Sample, Unit, Value};

type Labels = Vec<(&'static str, String)>;

/// The samples, family by family in the order of the table, with `# EOF` at the end.
#[must_use]
pub fn exposition(samples: Vec<Sample>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(samples)));
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = text::encode(&mut out, &registry);
    out
}

#[derive(Debug)]
struct Families(Vec<Sample>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in METRICS {
            let mut samples = self.0.iter().filter(|sample| sample.metric == *metric).peekable();
            if samples.peek().is_none() {
                continue;
            }
            let unit = match metric.unit {
                Unit::None => None,
                Unit::Bytes => Some(Named::Bytes),
                Unit::Seconds => Some(Named::Seconds),
            };
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Unknown => MetricType::Unknown,
            };
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
            for sample in samples {
                let labels = labels(metric, sample);
                if labels.is_empty() {
                    one(&mut family, sample)?;
                } else {
                    one(&mut family.encode_family(&labels)?, sample)?;
                }
            }
        }
        Ok(())
    }
}

fn labels(metric: &Metric, sample: &Sample) -> Labels {
    metric.labels.iter().copied().zip(sample.labels.iter().cloned()).collect()
}

fn one(encoder: &mut MetricEncoder<'_>, sample: &Sample) -> fmt::Result {
    match (&sample.value, sample.metric.kind) {
        (Value::Whole(value), Kind::Counter) => {
            encoder.encode_counter::<Labels, _, u64>(value, None)
        }
        (Value::Real(value), Kind::Counter) => {
            encoder.encode_counter::<Labels, _, u64>(value, None)
        }
        // A gauge is written as one number without a suffix, and so is an unknown.
        (Value::Whole(value), _) => encoder.encode_gauge(value),
        (Value::Real(value), _) => encoder.encode_gauge(value),
        (Value::Histogram(seen), _) => {
            encoder.encode_histogram::<Labels>(seen.sum_s(), seen.count(), &seen.coarse(), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_metrics::{BUILD, DAEMON_CPU, Histogram, PROGRAM_BYTES, SERVICE_TIME, UPTIME};

    #[test]
    fn each_kind_has_the_form_that_prometheus_reads() {
        let times = Histogram::default();
        times.record(Duration::from_micros(3));
        let hostile = ["a\"b\\c", "root", "fabric", "sent"];
        let text = exposition(vec![
            Sample::new(&BUILD, ["default", "0.1.0"], Value::Whole(1)),
            Sample::new(&UPTIME, [], Value::Real(1.5)),
            Sample::new(&DAEMON_CPU, [], Value::Real(0.25)),
            Sample::new(&PROGRAM_BYTES, hostile, Value::Whole(u64::MAX)),
            Sample::new(&SERVICE_TIME, ["endpoints"], Value::Histogram(times.snapshot())),
        ]);
        for line in [
            "weft_build_info{node=\"default\",version=\"0.1.0\"} 1",
            "# UNIT weft_uptime_seconds seconds",
            "weft_uptime_seconds 1.5",
            "# TYPE weft_daemon_cpu_seconds counter",
            "weft_daemon_cpu_seconds_total 0.25",
            "weft_program_stream_bytes_total{program=\"a\\\"b\\\\c\",user=\"root\",\
             medium=\"fabric\",direction=\"sent\"} 18446744073709551615",
            "weft_service_time_seconds_count{service=\"endpoints\"} 1",
            "weft_service_time_seconds_bucket{le=\"+Inf\",service=\"endpoints\"} 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 5, "families without samples are left out");
    }
}
