//! The runs of a scenario.
//!
//! A host keeps each message until it has arrived, and sends it again some time after it was lost,
//! as initiators of the fabric do. A fault is followed by new routes after a time, as a manager
//! finds them. So a message that was given to the network arrives once, or is given up and counted.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use thiserror::Error;
use weft_network::time::{NANOSECOND, SECOND, Time};
use weft_network::{Counts, Message, NetworkError, Outcome, SendError, SettingsError};
use weft_routing::RoutingError;

use crate::agenda::{Action, Agenda};
use crate::engine::{Engine, Sent};
use crate::feed::{Feed, offered};
use crate::report::{LatencyReport, LinkLoad, MessageCounts, Point};
use crate::scenario::{Scenario, Workload};

/// Outcomes between two reports of progress.
const PROGRESS_OUTCOMES: u64 = 4_096;

/// Longer latencies count as this: an hour.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// How far a scenario is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Runs that have ended.
    pub runs: usize,
    /// All runs.
    pub runs_all: usize,
    /// Messages that arrived in this run.
    pub delivered: u64,
    /// The virtual time of this run, in nanoseconds.
    pub now_ns: u64,
}

/// Why a scenario cannot be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// There are no routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// There is no network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A fault has parameters of no use.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No manager comes to rule.
    #[error("{0}")]
    Manager(String),
    /// An endpoint cannot be opened.
    #[error("an endpoint cannot be opened: {0}")]
    Endpoint(String),
    /// The network accepts no more messages.
    #[error("{0}; lower the load, or measure for a shorter time")]
    Send(#[from] SendError),
}

/// Runs a scenario with each of its loads.
pub(crate) fn all(
    scenario: &Scenario,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Point>, RunError> {
    let loads = scenario.loads();
    let runs_all = loads.len();
    let mut points = Vec::new();
    for (runs, load) in loads.into_iter().enumerate() {
        let mut told = |delivered, now: Time| {
            progress(Progress { runs, runs_all, delivered, now_ns: now / NANOSECOND });
        };
        told(0, 0);
        let mut run = Run::new(scenario, load)?;
        run.go(&mut told)?;
        points.push(run.point(load));
    }
    progress(Progress { runs: runs_all, runs_all, delivered: 0, now_ns: 0 });
    Ok(points)
}

struct Run<'a> {
    scenario: &'a Scenario,
    engine: Engine,
    feed: Feed<'a>,
    agenda: Agenda,
    /// Messages that were lost: when they were first sent, and how often they were lost.
    lost: BTreeMap<u64, (Time, u32)>,
    /// Messages that have not ended.
    open: u64,
    counts: MessageCounts,
    /// The span in which messages are measured.
    from: Time,
    until: Time,
    /// The traffic of links when it begins and when it ends.
    notes: Vec<Vec<Counts>>,
    /// Bytes that arrived in it.
    bytes: u64,
    last_arrival: Time,
    latencies: Histogram<u64>,
    latency_sum: u128,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, load: Option<u32>) -> Result<Self, RunError> {
        let timing = &scenario.timing;
        let (from, until) = match scenario.workload {
            Workload::Open { .. } => (timing.warmup, timing.warmup + timing.measure),
            Workload::Closed { .. } | Workload::Trace(_) => (0, Time::MAX),
        };
        let mut agenda = Agenda::default();
        if matches!(scenario.workload, Workload::Open { .. }) {
            agenda.put(from, Action::Note);
            agenda.put(until, Action::Note);
        }
        for (time, change) in &scenario.faults {
            agenda.put(*time, Action::Change(*change));
        }
        Ok(Self {
            scenario,
            engine: Engine::new(scenario)?,
            feed: Feed::new(scenario, load),
            agenda,
            lost: BTreeMap::new(),
            open: 0,
            counts: MessageCounts::default(),
            from,
            until,
            notes: Vec::new(),
            bytes: 0,
            last_arrival: 0,
            latencies: Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3)
                .expect("the bounds and three digits are allowed"),
            latency_sum: 0,
        })
    }

    fn go(&mut self, told: &mut dyn FnMut(u64, Time)) -> Result<(), RunError> {
        loop {
            let now = self.engine.now();
            let next_message = self.feed.next_time(now);
            if (self.open == 0 && next_message.is_none()) || now >= self.scenario.timing.deadline {
                return Ok(());
            }
            let next = [next_message, self.agenda.next_time(), self.engine.next_tick()];
            let next = next.into_iter().flatten().min();
            let until = next.map_or(self.scenario.timing.deadline, |next| {
                next.min(self.scenario.timing.deadline)
            });
            match self.engine.run(until) {
                Some(outcome) => {
                    self.end(outcome);
                    if self.counts.delivered.is_multiple_of(PROGRESS_OUTCOMES) {
                        told(self.counts.delivered, self.engine.now());
                    }
                }
                None => self.act()?,
            }
        }
    }

    /// Does what is due.
    fn act(&mut self) -> Result<(), RunError> {
        let now = self.engine.now();
        while self.engine.next_tick().is_some_and(|time| time <= now) {
            self.engine.tick()?;
        }
        while let Some(action) = self.agenda.take(now) {
            match action {
                Action::Change(change) => {
                    if self.engine.change(change)? {
                        let after = self.scenario.timing.reroute_after;
                        self.agenda.put(now + after, Action::Reroute);
                    }
                }
                Action::Reroute => self.engine.reroute()?,
                Action::Note => self.notes.push(self.engine.counts(&self.scenario.graph)),
                Action::Resend(message) => {
                    self.counts.resent += 1;
                    self.send(message)?;
                }
            }
        }
        while let Some(message) = self.feed.take(now) {
            self.counts.sent += 1;
            self.open += 1;
            self.send(message)?;
        }
        Ok(())
    }

    fn send(&mut self, message: Message) -> Result<(), RunError> {
        if self.engine.send(message)? == Sent::Refused {
            self.give_up(&message);
        }
        Ok(())
    }

    fn give_up(&mut self, message: &Message) {
        self.counts.given_up += 1;
        self.close(message);
    }

    fn close(&mut self, message: &Message) {
        self.open -= 1;
        self.lost.remove(&message.tag);
        self.feed.ended(message.from);
    }

    fn end(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered { message, sent_at, at, .. } => {
                let first = self.lost.get(&message.tag).map_or(sent_at, |(first, _)| *first);
                self.counts.delivered += 1;
                self.last_arrival = self.last_arrival.max(at);
                if (self.from..self.until).contains(&at) {
                    self.bytes += message.bytes;
                }
                if (self.from..self.until).contains(&first) {
                    let latency = (at - first) / NANOSECOND;
                    self.latencies.saturating_record(latency);
                    self.latency_sum += u128::from(latency);
                }
                self.close(&message);
            }
            Outcome::Lost { message, sent_at, at, .. } => {
                let timing = &self.scenario.timing;
                let (_, times) = self.lost.entry(message.tag).or_insert((sent_at, 0));
                *times += 1;
                if *times > timing.resends_max || !self.engine.can_send_again() {
                    self.give_up(&message);
                } else {
                    // The host waits for its acknowledgement since it sent.
                    let time = at.max(sent_at + timing.resend_after);
                    self.agenda.put(time, Action::Resend(message));
                }
            }
        }
    }

    fn point(self, load: Option<u32>) -> Point {
        let hosts = u128::try_from(self.scenario.graph.hosts().count()).unwrap_or(1);
        let span = match self.scenario.workload {
            Workload::Open { .. } => self.scenario.timing.measure,
            Workload::Closed { .. } | Workload::Trace(_) => self.last_arrival.max(1),
        };
        let rate = u128::from(self.bytes) * u128::from(SECOND) / (u128::from(span) * hosts);
        let mut point = Point {
            load_percent: load,
            offered_bytes_per_second: load.map(|load| offered(self.scenario, load)),
            delivered_bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            ended_ns: self.engine.now() / NANOSECOND,
            messages: MessageCounts { unfinished: self.open, ..self.counts },
            latency: LatencyReport::of(&self.latencies, self.latency_sum),
            distribution: distribution(&self.latencies),
            ..Point::default()
        };
        point.set_loads(self.loads(span));
        point
    }

    /// The load of every link in the span that was measured, if the engine counts it.
    fn loads(&self, span: Time) -> Vec<LinkLoad> {
        let (scenario, graph) = (self.scenario, &self.scenario.graph);
        let last = self.engine.counts(graph);
        let before = self.notes.first();
        let after = self.notes.get(1).unwrap_or(&last);
        let ports = (0..graph.vertices())
            .flat_map(|vertex| (0..graph.ports(vertex)).map(move |port| (vertex, port)));
        let mut loads = Vec::new();
        for (place, ((from, port), counts)) in ports.zip(after).enumerate() {
            let Some((to, _)) = graph.wired(from, port) else { continue };
            let not_counted = before.map_or(Counts::default(), |before| before[place]);
            let bytes = counts.bytes - not_counted.bytes;
            let stated = Some(graph.class(from, port).bandwidth).filter(|bits| *bits != 0);
            let bits = stated.unwrap_or(scenario.settings.link.bits_per_second);
            let could = u128::from(bits) * u128::from(span) / u128::from(8 * SECOND);
            let busy = u128::from(bytes) * 1_000 / could.max(1);
            loads.push(LinkLoad {
                from: graph.name(from),
                to: graph.name(to),
                bytes,
                busy_per_mille: u64::try_from(busy).unwrap_or(u64::MAX),
                resent: counts.resent - not_counted.resent,
                lost: counts.lost - not_counted.lost,
                ends: (from, to),
                port,
            });
        }
        loads
    }
}

/// A histogram with four steps for each doubling.
fn distribution(latencies: &Histogram<u64>) -> Vec<(u64, u64)> {
    let mut steps: BTreeMap<u64, u64> = BTreeMap::new();
    for value in latencies.iter_recorded() {
        let latency = value.value_iterated_to().max(4);
        let unit = 1 << (latency.ilog2() - 2);
        *steps.entry(latency.next_multiple_of(unit)).or_default() +=
            value.count_since_last_iteration();
    }
    steps.into_iter().collect()
}
