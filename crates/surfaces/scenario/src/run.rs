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
use crate::recording::Recorder;
use crate::report::{GroupReport, LatencyReport, LinkLoad, MessageCounts, Point};
use crate::scenario::{Group, Scenario, Workload, group_of, tag_of};

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
        let mut run = Run::new(scenario, runs)?;
        run.go(&mut told)?;
        points.push(run.point(runs, load));
    }
    progress(Progress { runs: runs_all, runs_all, delivered: 0, now_ns: 0 });
    Ok(points)
}

struct Run<'a> {
    scenario: &'a Scenario,
    engine: Engine,
    /// The groups of hosts.
    groups: Vec<GroupRun<'a>>,
    agenda: Agenda,
    /// Messages that were lost: when they were first sent, and how often they were lost.
    lost: BTreeMap<u64, (Time, u32)>,
    /// The span in which messages are measured.
    from: Time,
    until: Time,
    /// The traffic of links when it begins and when it ends.
    notes: Vec<Vec<Counts>>,
    last_arrival: Time,
    recorder: Option<Recorder>,
}

/// A group of hosts in a run.
struct GroupRun<'a> {
    group: &'a Group,
    feed: Feed<'a>,
    tally: Tally,
}

/// The fates of messages.
struct Tally {
    /// Those that have not ended are *unfinished*.
    counts: MessageCounts,
    /// Bytes that arrived while it was measured.
    bytes: u64,
    latencies: Histogram<u64>,
    latency_sum: u128,
}

impl Tally {
    fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3);
        Self {
            counts: MessageCounts::default(),
            bytes: 0,
            latencies: latencies.expect("the bounds and three digits are allowed"),
            latency_sum: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.bytes += other.bytes;
        self.latencies.add(&other.latencies).expect("both have the same bounds");
        self.latency_sum += other.latency_sum;
    }

    /// The bytes that each of `hosts` got or sent in a second, on the average, if they all came in
    /// `span`.
    fn rate(&self, span: Time, hosts: usize) -> u64 {
        let hosts = u128::try_from(hosts).unwrap_or(u128::MAX).max(1);
        let rate = u128::from(self.bytes) * u128::from(SECOND) / (u128::from(span) * hosts);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, run: usize) -> Result<Self, RunError> {
        let timing = &scenario.timing;
        let mut agenda = Agenda::default();
        let (from, until) = if has_loads(scenario) {
            (timing.warmup, timing.warmup + timing.measure)
        } else {
            (0, Time::MAX)
        };
        if has_loads(scenario) {
            agenda.put(from, Action::Note);
            agenda.put(until, Action::Note);
        }
        for (time, change) in &scenario.faults {
            agenda.put(*time, Action::Change(*change));
        }
        let recorder = scenario.is_recorded.then(|| Recorder::new(&scenario.graph));
        if recorder.is_some() {
            agenda.put(0, Action::Frame);
        }
        let groups = scenario.groups.iter().enumerate().map(|(number, group)| GroupRun {
            group,
            feed: Feed::new(scenario, number, run),
            tally: Tally::new(),
        });
        Ok(Self {
            scenario,
            engine: Engine::new(scenario)?,
            groups: groups.collect(),
            agenda,
            lost: BTreeMap::new(),
            from,
            until,
            notes: Vec::new(),
            last_arrival: 0,
            recorder,
        })
    }

    /// When the next message is due, if any is before others have ended.
    fn next_message(&mut self, now: Time) -> Option<Time> {
        self.groups.iter_mut().filter_map(|group| group.feed.next_time(now)).min()
    }

    /// Takes a message that is due.
    fn take_message(&mut self, now: Time) -> Option<Message> {
        let mut groups = self.groups.iter_mut().enumerate();
        groups.find_map(|(number, group)| {
            let message = group.feed.take(now)?;
            group.tally.counts.sent += 1;
            group.tally.counts.unfinished += 1;
            Some(Message { tag: tag_of(number, message.tag), ..message })
        })
    }

    fn tally(&mut self, message: &Message) -> &mut Tally {
        &mut self.groups[group_of(message.tag)].tally
    }

    fn go(&mut self, told: &mut dyn FnMut(u64, Time)) -> Result<(), RunError> {
        let mut delivered: u64 = 0;
        loop {
            let now = self.engine.now();
            let next_message = self.next_message(now);
            let mut groups = self.groups.iter();
            let is_open = groups.any(|group| group.tally.counts.unfinished > 0);
            let is_over = !is_open && next_message.is_none();
            if is_over || now >= self.scenario.timing.deadline {
                return Ok(());
            }
            let next = [next_message, self.agenda.next_time(), self.engine.next_tick()];
            let next = next.into_iter().flatten().min();
            let until = next.map_or(self.scenario.timing.deadline, |next| {
                next.min(self.scenario.timing.deadline)
            });
            match self.engine.run(until) {
                Some(outcome) => {
                    delivered += u64::from(matches!(outcome, Outcome::Delivered { .. }));
                    self.end(outcome);
                    if delivered.is_multiple_of(PROGRESS_OUTCOMES) {
                        told(delivered, self.engine.now());
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
                Action::Frame => self.record(now),
                Action::Resend(message) => {
                    self.tally(&message).counts.resent += 1;
                    self.send(message)?;
                }
            }
        }
        while let Some(message) = self.take_message(now) {
            self.send(message)?;
        }
        Ok(())
    }

    fn record(&mut self, now: Time) {
        let graph = &self.scenario.graph;
        if let Some(recorder) = &mut self.recorder {
            let counts = self.engine.counts(graph);
            let next = recorder.add(now, graph, &self.engine.reachable(), &counts);
            self.agenda.put(next, Action::Frame);
        }
    }

    fn send(&mut self, message: Message) -> Result<(), RunError> {
        if self.engine.send(message)? == Sent::Refused {
            self.give_up(&message);
        }
        Ok(())
    }

    fn give_up(&mut self, message: &Message) {
        self.tally(message).counts.given_up += 1;
        self.close(message);
    }

    fn close(&mut self, message: &Message) {
        self.lost.remove(&message.tag);
        let group = &mut self.groups[group_of(message.tag)];
        group.tally.counts.unfinished -= 1;
        group.feed.ended(message.from);
    }

    fn end(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Delivered { message, sent_at, at, .. } => {
                let first = self.lost.get(&message.tag).map_or(sent_at, |(first, _)| *first);
                self.last_arrival = self.last_arrival.max(at);
                let measured = self.from..self.until;
                let tally = self.tally(&message);
                tally.counts.delivered += 1;
                if measured.contains(&at) {
                    tally.bytes += message.bytes;
                }
                if measured.contains(&first) {
                    let latency = (at - first) / NANOSECOND;
                    tally.latencies.saturating_record(latency);
                    tally.latency_sum += u128::from(latency);
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

    fn point(mut self, run: usize, load: Option<u32>) -> Point {
        let hosts = self.scenario.graph.hosts().count();
        let span = if has_loads(self.scenario) {
            self.scenario.timing.measure
        } else {
            self.last_arrival.max(1)
        };
        let mut all = Tally::new();
        self.groups.iter().for_each(|group| all.add(&group.tally));
        let mut point = Point {
            load_percent: load,
            offered_bytes_per_second: load.map(|_| self.offered(run)),
            delivered_bytes_per_second: all.rate(span, hosts),
            ended_ns: self.engine.now() / NANOSECOND,
            messages: all.counts,
            latency: LatencyReport::of(&all.latencies, all.latency_sum),
            distribution: distribution(&all.latencies),
            ..Point::default()
        };
        if self.groups.len() > 1 {
            point.groups = self.groups.iter().map(|group| group.report(run, span)).collect();
        }
        point.set_loads(self.loads(span));
        point.recording = self.recorder.take().map(Recorder::end);
        point
    }

    /// The bytes that a host offers in a second, on the average over all.
    fn offered(&self, run: usize) -> u64 {
        let hosts = self.scenario.graph.hosts().count().max(1);
        let of_group = |group: &GroupRun<'_>| {
            let load = group.group.workload.load(run)?;
            let hosts = u128::try_from(group.group.senders).ok()?;
            Some(u128::from(offered(self.scenario, load)) * hosts)
        };
        let all: u128 = self.groups.iter().filter_map(of_group).sum();
        u64::try_from(all / u128::try_from(hosts).unwrap_or(1)).unwrap_or(u64::MAX)
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

impl GroupRun<'_> {
    fn report(&self, run: usize, span: Time) -> GroupReport {
        let Group { name, pattern, workload, senders, .. } = self.group;
        let tally = &self.tally;
        GroupReport {
            name: name.clone(),
            pattern: pattern.clone(),
            hosts: *senders,
            load_percent: workload.load(run),
            delivered_bytes_per_second: tally.rate(span, *senders),
            messages: tally.counts,
            latency: LatencyReport::of(&tally.latencies, tally.latency_sum),
            distribution: distribution(&tally.latencies),
        }
    }
}

/// Whether some hosts send at random times, so that a part of the run is measured.
fn has_loads(scenario: &Scenario) -> bool {
    scenario.groups.iter().any(|group| matches!(group.workload, Workload::Open { .. }))
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
