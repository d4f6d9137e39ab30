//! The report of a scenario: its numbers, as JSON and as lines of text.

use hdrhistogram::Histogram;
use serde::Serialize;
use weft_topology::Graph;

use crate::page;
use crate::recording::Recording;
use crate::run::{self, Progress, RunError};
use crate::scenario::Scenario;

/// Links that a report lists at most, the busiest first.
const LINKS_MAX: usize = 200;

/// The runs of a scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The topology as the scenario names it.
    pub topology: String,
    /// The number of hosts.
    pub hosts: usize,
    /// The number of links, each counted once.
    pub links: usize,
    /// How routes were computed.
    pub routing: String,
    /// The pattern of the traffic, or the names of its groups.
    pub pattern: String,
    /// The seed.
    pub seed: u64,
    /// The bytes of payload that a link moves in a second.
    pub link_bytes_per_second: u64,
    /// The runs, one for each offered load.
    pub points: Vec<Point>,
    /// The graph, for drawings.
    #[serde(skip)]
    pub(crate) graph: Graph,
}

/// A run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Point {
    /// The offered load in percent of a link; `None` where hosts wait for earlier messages.
    pub load_percent: Option<u32>,
    /// The bytes of payload that a host offers in a second, on the average.
    pub offered_bytes_per_second: Option<u64>,
    /// The bytes of payload that a host gets in a second while it is measured, on the average.
    pub delivered_bytes_per_second: u64,
    /// The end of the run, in nanoseconds of virtual time.
    pub ended_ns: u64,
    /// The ends of messages.
    pub messages: MessageCounts,
    /// The latencies of messages that were first sent while it was measured.
    pub latency: LatencyReport,
    /// Their distribution: up to so many nanoseconds, so many messages.
    pub distribution: Vec<(u64, u64)>,
    /// The groups of hosts, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// The busiest links.
    pub busiest: Vec<LinkLoad>,
    /// Every link, for drawings.
    #[serde(skip)]
    pub(crate) loads: Vec<LinkLoad>,
    /// The links while it went on, if the scenario is recorded.
    #[serde(skip)]
    pub recording: Option<Recording>,
}

/// The messages of a group of hosts in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GroupReport {
    /// The name of the group.
    pub name: String,
    /// The pattern of its traffic.
    pub pattern: String,
    /// The hosts that send.
    pub hosts: usize,
    /// Its offered load in percent of a link; `None` where hosts wait for earlier messages.
    pub load_percent: Option<u32>,
    /// The bytes of payload that arrive of each of its hosts in a second, on the average.
    pub delivered_bytes_per_second: u64,
    /// The ends of its messages.
    pub messages: MessageCounts,
    /// Their latencies.
    pub latency: LatencyReport,
    /// The distribution of their latencies.
    pub distribution: Vec<(u64, u64)>,
}

/// The ends of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MessageCounts {
    /// Messages that were given to the network for the first time.
    pub sent: u64,
    /// Messages that arrived.
    pub delivered: u64,
    /// Times that a message was lost and sent again.
    pub resent: u64,
    /// Messages that were given up: they were lost too often, or their host is down.
    pub given_up: u64,
    /// Messages that had not ended at the end of the run.
    pub unfinished: u64,
}

impl MessageCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.resent += other.resent;
        self.given_up += other.given_up;
        self.unfinished += other.unfinished;
    }
}

/// Latencies in nanoseconds, from the first time that a message was sent to its arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LatencyReport {
    /// Messages that were measured.
    pub messages: u64,
    /// The least.
    pub min_ns: u64,
    /// The mean, rounded down.
    pub mean_ns: u64,
    /// Half of the messages took no longer.
    pub median_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// 999 of 1,000 took no longer.
    pub p999_ns: u64,
    /// The most.
    pub max_ns: u64,
}

/// The load of a link in one direction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LinkLoad {
    /// The node at its start.
    pub from: String,
    /// The node at its end.
    pub to: String,
    /// The bytes that it moved while it was measured, with headers.
    pub bytes: u64,
    /// The part of that time in which it moved bytes, of a thousand.
    pub busy_per_mille: u64,
    /// Packets that it sent again, because they arrived damaged.
    pub resent: u64,
    /// Packets that were on it when it was cut.
    pub lost: u64,
    /// The vertices of its ends.
    #[serde(skip)]
    pub(crate) ends: (u32, u32),
    /// Its port at the start.
    #[serde(skip)]
    pub(crate) port: u16,
}

impl Report {
    /// Runs a scenario, and tells `progress` how far it is.
    ///
    /// # Errors
    /// [`RunError`] if a run is not possible.
    pub fn run(scenario: &Scenario, progress: &mut dyn FnMut(Progress)) -> Result<Self, RunError> {
        let graph = scenario.graph.clone();
        let settings = &scenario.settings;
        let points = run::all(scenario, progress)?;
        Ok(Self {
            topology: scenario.topology.clone(),
            hosts: graph.hosts().count(),
            links: graph.links().count(),
            routing: scenario.routing.to_string(),
            pattern: match &scenario.groups[..] {
                [group] => group.pattern.clone(),
                groups => {
                    let names: Vec<&str> = groups.iter().map(|group| &group.name[..]).collect();
                    names.join(", ")
                }
            },
            seed: settings.seed,
            link_bytes_per_second: crate::feed::offered(scenario, 100),
            points,
            graph,
        })
    }

    /// The report as JSON, indented, with an end of line.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("it has texts for keys and integers for numbers") + "\n"
    }

    /// The report as a page with plots, which loads nothing.
    #[must_use]
    pub fn html(&self) -> String {
        page::html(self)
    }
}

impl LatencyReport {
    pub(crate) fn of(latencies: &Histogram<u64>, sum: u128) -> Self {
        if latencies.is_empty() {
            return Self::default();
        }
        let messages = latencies.len();
        Self {
            messages,
            min_ns: latencies.min(),
            mean_ns: u64::try_from(sum / u128::from(messages)).unwrap_or(u64::MAX),
            median_ns: latencies.value_at_quantile(0.5),
            p99_ns: latencies.value_at_quantile(0.99),
            p999_ns: latencies.value_at_quantile(0.999),
            max_ns: latencies.max(),
        }
    }
}

impl Point {
    /// Sets the loads of all links, and lists the busiest.
    pub(crate) fn set_loads(&mut self, loads: Vec<LinkLoad>) {
        let mut busiest = loads.clone();
        busiest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.ends.cmp(&b.ends)));
        busiest.truncate(LINKS_MAX);
        self.busiest = busiest;
        self.loads = loads;
    }
}
