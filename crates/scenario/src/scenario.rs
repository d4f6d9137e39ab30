//! A scenario: its file, checked. Every error names the line.

use std::ops::Range;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;
use weft_network::time::{NANOSECOND, Time};
use weft_network::traffic::{Pattern, Traffic};
use weft_network::{Arbitration, LinkModel, Message, Processors, Settings};
use weft_routing::Algorithm;
use weft_topology::{Graph, Port, Shape, Vertex};

use crate::file::TrafficEntry;
use crate::file::{ArbitrationEntry, FaultEntry, FaultKind, File, NetworkEntry, RunEntry};

/// Offered loads of a scenario at most.
const LOADS_MAX: usize = 100;
/// Hosts at most at the level of endpoints, and bytes of a message there.
const ENDPOINTS_MAX: usize = 256;
const PUT_BYTES_MAX: u64 = 1 << 20;
/// Faults of a scenario at most, with those that come again.
const FAULTS_MAX: usize = 100_000;
/// Messages of a trace at most.
const TRACE_MAX: usize = 10_000_000;
/// The longest time in a scenario: an hour.
const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// The level at which the network is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Messages as packets, with buffers and credits.
    #[default]
    Messages,
    /// Messages as flows with fair rates.
    Flows,
    /// Messages as puts between endpoints of the fabric, over packets.
    Endpoints,
}

/// A scenario that can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The topology as the file names it.
    pub topology: String,
    /// How routes are computed.
    pub routing: Algorithm,
    /// The level at which it runs.
    pub level: Level,
    pub(crate) graph: Graph,
    pub(crate) settings: Settings,
    pub(crate) pattern: String,
    pub(crate) workload: Workload,
    pub(crate) timing: Timing,
    pub(crate) faults: Vec<(Time, Change)>,
}

/// The messages of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Workload {
    /// Hosts send at random times, a run for each load in percent of a link's bandwidth.
    Open { traffic: Traffic, bytes: u64, class: u8, loads: Vec<u32> },
    /// Each host sends so many messages, and the next ones when earlier ones have ended.
    Closed { traffic: Traffic, bytes: u64, class: u8, messages: u32, pace: ClosedPace },
    /// Messages at the times of a file.
    Trace(Vec<(Time, Message)>),
}

impl Workload {
    /// The bytes of the longest message, and the highest class.
    pub fn longest(&self) -> (u64, u8) {
        match self {
            Self::Open { bytes, class, .. } | Self::Closed { bytes, class, .. } => (*bytes, *class),
            Self::Trace(messages) => messages.iter().fold((0, 0), |most, (_, message)| {
                (most.0.max(message.bytes), most.1.max(message.class))
            }),
        }
    }
}

/// When a host of a closed workload sends its next message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClosedPace {
    /// When fewer than so many of its own are on their way.
    Window(u32),
    /// When the messages of all hosts have ended.
    Barrier,
}

/// The times of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub warmup: Time,
    pub measure: Time,
    pub deadline: Time,
    pub resend_after: Time,
    pub resends_max: u32,
    pub reroute_after: Time,
}

/// A change of the network at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    Cut((Vertex, Port)),
    Heal((Vertex, Port)),
    /// Other parameters of a link, in both directions.
    Model((Vertex, Port), LinkModel),
    Crash(Vertex),
    Restart(Vertex),
}

/// Why a file is no scenario.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {reason}")]
pub struct ScenarioError {
    /// The line, from 1.
    pub line: usize,
    /// The fault, and its cure.
    pub reason: String,
}

/// Makes errors for places of a text.
#[derive(Clone, Copy)]
struct Place<'a>(&'a str);

impl Place<'_> {
    fn error(self, span: Range<usize>, reason: impl ToString) -> ScenarioError {
        let before = self.0.as_bytes().get(..span.start).unwrap_or(self.0.as_bytes());
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        ScenarioError { line, reason: reason.to_string() }
    }
}

impl Scenario {
    /// Parses a scenario. `read` gives the text of another file that it names.
    ///
    /// # Errors
    /// [`ScenarioError`] with the line of the first fault.
    pub fn parse(
        text: &str,
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Self, ScenarioError> {
        let place = Place(text);
        let file: File = toml::from_str(text)
            .map_err(|error| place.error(error.span().unwrap_or(0..0), error.message().trim()))?;
        let graph = graph(file.topology.as_ref(), &read)
            .map_err(|reason| place.error(file.topology.span(), reason))?;
        let routing = file.routing.as_ref().map_or(Ok(Algorithm::Auto), |routing| {
            routing.as_ref().parse().map_err(|error| place.error(routing.span(), error))
        })?;
        let mut settings = Settings { seed: file.seed, ..Settings::default() };
        if let Some(network) = &file.network {
            network.as_ref().apply(&mut settings);
        }
        let span = file.network.as_ref().map_or(0..0, Spanned::span);
        settings.check().map_err(|error| place.error(span, error))?;
        let timing = file.run.timing().map_err(|reason| place.error(0..0, reason))?;
        let traffic = file.traffic.as_ref();
        let workload = traffic
            .workload(&graph, file.level, &read)
            .map_err(|reason| place.error(file.traffic.span(), reason))?;
        if traffic.class >= settings.classes {
            let reason = format!(
                "there is no class {}; `classes` of [network] says how many there are",
                traffic.class
            );
            return Err(place.error(file.traffic.span(), reason));
        }
        let is_large =
            graph.hosts().count() > ENDPOINTS_MAX || workload.longest().0 > PUT_BYTES_MAX;
        if file.level == Level::Endpoints && is_large {
            let reason = format!(
                "endpoints have {ENDPOINTS_MAX} hosts and messages of {PUT_BYTES_MAX} bytes at \
                 most; take level = \"messages\""
            );
            return Err(place.error(file.traffic.span(), reason));
        }
        let mut faults = Vec::new();
        for entry in &file.faults {
            let is_cut = entry.as_ref().kind == FaultKind::Cut;
            if file.level == Level::Endpoints && !is_cut {
                let reason = "endpoints have cuts of links alone; take level = \"messages\"";
                return Err(place.error(entry.span(), reason));
            }
            if file.level == Level::Flows {
                let reason = "flows have no faults; take level = \"messages\"";
                return Err(place.error(entry.span(), reason));
            }
            let changes = entry.as_ref().changes(&graph, &settings);
            faults.extend(changes.map_err(|reason| place.error(entry.span(), reason))?);
            if faults.len() > FAULTS_MAX {
                let reason = format!("more than {FAULTS_MAX} changes of the network; give fewer");
                return Err(place.error(entry.span(), reason));
            }
        }
        faults.sort_by_key(|(time, _)| *time);
        Ok(Self {
            topology: file.topology.as_ref().clone(),
            routing,
            level: file.level,
            graph,
            settings,
            pattern: traffic.pattern.as_ref().clone(),
            workload,
            timing,
            faults,
        })
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// Takes another seed than that of the file.
    pub fn set_seed(&mut self, seed: u64) {
        self.settings.seed = seed;
    }

    /// The runs of the scenario: the offered load of each, in percent of a link's bandwidth, if it
    /// has one.
    #[must_use]
    pub fn loads(&self) -> Vec<Option<u32>> {
        match &self.workload {
            Workload::Open { loads, .. } => loads.iter().copied().map(Some).collect(),
            _ => vec![None],
        }
    }
}

/// The graph of a generator or a file.
fn graph(topology: &str, read: impl Fn(&str) -> std::io::Result<String>) -> Result<Graph, String> {
    let text = |path| read(path).map_err(|error| format!("{path:?} cannot be read: {error}"));
    let described = if topology.ends_with(".toml") {
        weft_topology::file::parse(&text(topology)?)
    } else if topology.ends_with(".graphml") {
        weft_topology::graphml::parse(&text(topology)?)
    } else {
        let shape: Shape = topology.parse().map_err(|error| format!("{error}"))?;
        return shape.graph(None).map_err(|error| error.to_string());
    };
    described.map(|described| described.graph).map_err(|error| format!("{topology:?}, {error}"))
}

impl NetworkEntry {
    fn apply(&self, settings: &mut Settings) {
        fn set<T: Copy>(value: Option<T>, target: &mut T) {
            *target = value.unwrap_or(*target);
        }
        let time = |ns: Option<u64>| ns.map(|ns| ns.saturating_mul(NANOSECOND));
        let rate = |mbit: Option<u64>| mbit.map(|mbit| mbit.saturating_mul(1_000_000));
        set(self.mtu_bytes, &mut settings.mtu_bytes);
        set(self.header_bytes, &mut settings.header_bytes);
        set(self.classes, &mut settings.classes);
        set(rate(self.link_mbit), &mut settings.link.bits_per_second);
        set(time(self.link_latency_ns), &mut settings.link.latency);
        set(self.damaged_per_million, &mut settings.link.damaged_per_million);
        set(self.buffer_bytes, &mut settings.buffer_bytes);
        set(time(self.router_delay_ns), &mut settings.router_delay);
        for side in [&mut settings.host.injection, &mut settings.host.ejection] {
            set(rate(self.host_mbit), &mut side.bits_per_second);
            set(time(self.host_latency_ns), &mut side.latency);
        }
        set(time(self.host_message_ns), &mut settings.host.message_time);
        settings.processors = self.processors.map(|count| Processors {
            count,
            send_time: time(self.processor_send_ns).unwrap_or(0),
            receive_time: time(self.processor_receive_ns).unwrap_or(0),
        });
        set(time(self.patience_ns), &mut settings.patience);
        settings.arbitration = match self.arbitration {
            Some(ArbitrationEntry::Age) => Arbitration::Age,
            Some(ArbitrationEntry::RoundRobin) | None => Arbitration::RoundRobin,
        };
    }
}

impl RunEntry {
    fn timing(&self) -> Result<Timing, String> {
        let all = [
            ("warmup_ns", self.warmup_ns),
            ("measure_ns", self.measure_ns),
            ("deadline_ns", self.deadline_ns),
            ("resend_after_ns", self.resend_after_ns),
            ("reroute_after_ns", self.reroute_after_ns),
        ];
        if let Some((name, _)) = all.iter().find(|(_, ns)| *ns > TIME_MAX_NS) {
            return Err(format!("{name} of [run] is more than an hour; give less"));
        }
        if self.measure_ns == 0 || self.deadline_ns < self.warmup_ns + self.measure_ns {
            let reason = "measure_ns of [run] is 0, or deadline_ns is before the end of warmup_ns \
                          and measure_ns";
            return Err(reason.to_owned());
        }
        let time = |ns: u64| ns * NANOSECOND;
        Ok(Timing {
            warmup: time(self.warmup_ns),
            measure: time(self.measure_ns),
            deadline: time(self.deadline_ns),
            resend_after: time(self.resend_after_ns),
            resends_max: self.resends_max,
            reroute_after: time(self.reroute_after_ns),
        })
    }
}

impl TrafficEntry {
    fn workload(
        &self,
        graph: &Graph,
        level: Level,
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Workload, String> {
        if self.pattern.as_ref() == "trace" {
            let file = self.file.as_ref().ok_or("a trace needs its `file`")?.as_ref();
            let text = read(file).map_err(|error| format!("{file:?} cannot be read: {error}"))?;
            return trace(&text, graph).map(Workload::Trace).map_err(|e| format!("{file:?}, {e}"));
        }
        let pattern = self.pattern(graph)?;
        let traffic = Traffic::new(graph, pattern).map_err(|error| error.to_string())?;
        let (bytes, class) = (self.message_bytes, self.class);
        if bytes > 1 << 40 {
            return Err("message_bytes is more than a terabyte; give less".to_owned());
        }
        match (&self.loads, self.messages) {
            (Some(loads), None) => {
                if level == Level::Flows {
                    return Err("flows have no loads; give `messages` of each host".to_owned());
                }
                let is_sound = (1..=LOADS_MAX).contains(&loads.len())
                    && loads.iter().all(|load| (1..=1_000).contains(load));
                if !is_sound || bytes == 0 {
                    return Err(format!(
                        "`loads` has 1 to {LOADS_MAX} numbers from 1 to 1000, in percent of a \
                         link, and messages have 1 byte or more"
                    ));
                }
                Ok(Workload::Open { traffic, bytes, class, loads: loads.clone() })
            }
            (None, Some(messages)) => {
                let pace = match (self.window, self.barrier) {
                    (None, true) => ClosedPace::Barrier,
                    (window, false) if window != Some(0) => ClosedPace::Window(window.unwrap_or(1)),
                    _ => {
                        let reason = "`window` is 1 or more, and there is none with `barrier`";
                        return Err(reason.to_owned());
                    }
                };
                Ok(Workload::Closed { traffic, bytes, class, messages, pace })
            }
            _ => Err("give either `loads` or `messages`".to_owned()),
        }
    }

    fn pattern(&self, graph: &Graph) -> Result<Pattern, String> {
        let host = || -> Result<u32, String> {
            let name = self.host.as_ref().ok_or("this pattern needs its `host`")?.as_ref();
            let vertex = graph.find(name).ok_or_else(|| format!("there is no host {name:?}"))?;
            let place = graph.hosts().position(|host| host == vertex);
            place
                .and_then(|place| u32::try_from(place).ok())
                .ok_or_else(|| format!("{name:?} is no host"))
        };
        Ok(match self.pattern.as_ref().as_str() {
            "uniform" => Pattern::Uniform,
            "transpose" => Pattern::Transpose,
            "tornado" => Pattern::Tornado,
            "neighbour" => Pattern::Neighbour,
            "all-to-all" => Pattern::AllToAll,
            "incast" => Pattern::Incast { host: host()? },
            "hotspot" => {
                let percent = self.percent.ok_or("a hotspot needs its `percent`")?;
                Pattern::Hotspot { host: host()?, percent }
            }
            other => {
                return Err(format!(
                    "{other:?} is no pattern; there are uniform, transpose, tornado, neighbour, \
                     hotspot, incast, all-to-all and trace"
                ));
            }
        })
    }
}

/// The messages of a trace: in each line a time in nanoseconds, two hosts and a number of bytes,
/// and a class if it is not 0. A `#` begins a comment.
fn trace(text: &str, graph: &Graph) -> Result<Vec<(Time, Message)>, String> {
    let mut messages = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let entry = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = entry.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let parsed = parse_message(&words, graph);
        let (time, message) = parsed.ok_or_else(|| {
            format!(
                "line {number} is {line:?}, not a time in ns, two hosts, bytes and maybe a class, \
                 as `100 n0 n5 496`"
            )
        })?;
        let tag = u64::try_from(messages.len()).unwrap_or(u64::MAX);
        messages.push((time, Message { tag, ..message }));
        if messages.len() > TRACE_MAX {
            return Err(format!("it has more than {TRACE_MAX} messages; cut it"));
        }
    }
    messages.sort_by_key(|(time, _)| *time);
    Ok(messages)
}

fn parse_message(words: &[&str], graph: &Graph) -> Option<(Time, Message)> {
    let (words, class) = match words {
        [time, from, to, bytes] => ([time, from, to, bytes], 0),
        [time, from, to, bytes, class] => ([time, from, to, bytes], class.parse().ok()?),
        _ => return None,
    };
    let time: u64 = words[0].parse().ok().filter(|ns| *ns <= TIME_MAX_NS)?;
    let is_host = |vertex: &Vertex| graph.kind(*vertex) == Some(weft_topology::Kind::Host);
    let from = graph.find(words[1]).filter(is_host)?;
    let to = graph.find(words[2]).filter(is_host)?;
    let bytes = words[3].parse().ok().filter(|bytes| *bytes <= 1 << 40)?;
    Some((time * NANOSECOND, Message { from, to, bytes, class, tag: 0 }))
}

impl FaultEntry {
    /// The changes of the network that the fault is, with its end and its repetitions.
    fn changes(&self, graph: &Graph, settings: &Settings) -> Result<Vec<(Time, Change)>, String> {
        let (begin, end) = self.change(graph, settings)?;
        let times = match (self.every_ns, self.times) {
            (None, None) => 1,
            (Some(every), Some(times)) if self.for_ns.is_some_and(|long| long < every) => times,
            _ => {
                let reason = "a fault that comes again needs `every_ns`, `times`, and a shorter \
                              `for_ns`";
                return Err(reason.to_owned());
            }
        };
        if usize::try_from(times).is_ok_and(|times| times > FAULTS_MAX) {
            return Err(format!("`times` is more than {FAULTS_MAX}; give less"));
        }
        let mut changes = Vec::new();
        for time in 0..u64::from(times) {
            let at_ns = self.at_ns.saturating_add(time.saturating_mul(self.every_ns.unwrap_or(0)));
            let end_ns = self.for_ns.map(|long| at_ns.saturating_add(long));
            if end_ns.unwrap_or(at_ns) > TIME_MAX_NS {
                return Err("the fault lasts longer than an hour; give less".to_owned());
            }
            changes.push((at_ns * NANOSECOND, begin));
            changes.extend(end_ns.map(|at| (at * NANOSECOND, end)));
        }
        Ok(changes)
    }

    /// The change at the begin of the fault, and the one at its end.
    fn change(&self, graph: &Graph, settings: &Settings) -> Result<(Change, Change), String> {
        let vertex = |name: &str| {
            graph.find(name).ok_or_else(|| format!("there is no node {name:?} in the topology"))
        };
        if self.kind == FaultKind::Crash {
            let node = vertex(self.node.as_ref().ok_or("a crash needs its `node`")?)?;
            return Ok((Change::Crash(node), Change::Restart(node)));
        }
        let [a, b] =
            self.link.as_ref().ok_or("this fault needs its `link`, as [\"n0\", \"n1\"]")?;
        let (from, to) = (vertex(a)?, vertex(b)?);
        let port = (0..graph.ports(from))
            .find(|port| graph.wired(from, *port).is_some_and(|(far, _)| far == to))
            .ok_or_else(|| format!("there is no link between {a} and {b}"))?;
        let end = (from, port);
        let class = graph.class(from, port);
        let mut model = settings.link;
        if class.bandwidth != 0 {
            model.bits_per_second = class.bandwidth;
        }
        if class.latency != 0 {
            model.latency = class.latency * NANOSECOND;
        }
        let worse = match self.kind {
            FaultKind::Cut | FaultKind::Crash => return Ok((Change::Cut(end), Change::Heal(end))),
            FaultKind::Slow => {
                let mbit = self.mbit.ok_or("a slow link needs its `mbit`")?;
                LinkModel { bits_per_second: mbit.saturating_mul(1_000_000), ..model }
            }
            FaultKind::Lossy => {
                let damaged = self.damaged_per_million;
                let damaged = damaged.ok_or("a lossy link needs its `damaged_per_million`")?;
                LinkModel { damaged_per_million: damaged, ..model }
            }
        };
        worse.check().map_err(|error| error.to_string())?;
        Ok((Change::Model(end, worse), Change::Model(end, model)))
    }
}
