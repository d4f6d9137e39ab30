//! A scenario: its file, checked. Every error names the line.

use serde::Deserialize;
use weft_fabric_manager::RuleSettings;
use weft_network::time::{NANOSECOND, Time};
use weft_network::traffic::Traffic;
use weft_network::{
    Arbitration, LinkModel, Message, MessageTime, Processors, Settings, SettingsError,
};
use weft_routing::Algorithm;
use weft_topology::{Graph, Port, Shape, Vertex};

use crate::file::{
    ArbitrationEntry, File, ManagerEntry, NetworkEntry, RunEntry, TrafficEntries, TrafficEntry,
};
use crate::place::{Flaw, ScenarioError, Section, SourceText};

/// Vertices at most of a network under a manager.
const RULED_MAX: u32 = 1_024;
/// Groups of hosts with traffic of their own at most.
const GROUPS_MAX: usize = 16;
/// Faults of a scenario at most, with those that come again.
pub(crate) const FAULTS_MAX: usize = 100_000;
/// The longest time in a scenario: an hour.
pub(crate) const TIME_MAX_NS: u64 = 3_600_000_000_000;

/// The level at which the network is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Messages as packets, with buffers and credits.
    #[default]
    Messages,
    /// Messages as flows with fair rates.
    Flows,
    /// Messages as operations between endpoints of the fabric, over packets.
    Endpoints,
}

/// How each message goes, at the level of endpoints: the protocol of a group of hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// A put, which ends when its bytes are told at the target.
    #[default]
    Put,
    /// A short message, which ends when the target's program has it.
    Message,
    /// A get of bytes of the destination, which ends when they are at the sender.
    Get,
    /// An addition at the destination, which ends when the former value is at the sender.
    Atomic,
    /// A message of any length, which ends when the target's program has it.
    LongMessage,
    /// Bytes over a lane, on which direct sockets stand. They end when the last one was taken.
    Lane,
    /// An Ethernet frame, which ends when the target's device gets it.
    Frame,
}

/// The manager that gives routes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManagerPlan {
    /// The virtual time in which a millisecond of the manager passes.
    pub tick: Time,
    pub rules: RuleSettings,
}

/// A scenario that can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The topology as the file names it.
    pub topology: String,
    /// Names of data of its file that mean nothing to the simulator.
    pub left_out: Vec<String>,
    /// How routes are computed.
    pub routing: Algorithm,
    /// The level at which it runs.
    pub level: Level,
    pub(crate) graph: Graph,
    pub(crate) settings: Settings,
    pub(crate) groups: Vec<Group>,
    pub(crate) manager: Option<ManagerPlan>,
    pub(crate) timing: Timing,
    pub(crate) faults: Vec<(Time, Change)>,
    pub(crate) is_recorded: bool,
}

/// Hosts with the same traffic.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its name, for reports.
    pub name: String,
    pub pattern: String,
    pub operation: Operation,
    pub workload: Workload,
    /// The hosts that send.
    pub senders: usize,
    /// The hosts that send or are sent to.
    pub members: Vec<Vertex>,
}

/// The bits of a message's tag that number it within its group.
const NUMBER_BITS: u32 = 48;

/// The tag of a message of a group.
pub(crate) fn tag_of(group: usize, number: u64) -> u64 {
    (u64::try_from(group).unwrap_or(0) << NUMBER_BITS) | number
}

/// The group of the message with this tag.
pub(crate) fn group_of(tag: u64) -> usize {
    usize::try_from(tag >> NUMBER_BITS).unwrap_or(usize::MAX)
}

/// The messages of a group.
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
    /// The number of its loads, if it has some.
    fn runs(&self) -> Option<usize> {
        if let Self::Open { loads, .. } = self { Some(loads.len()) } else { None }
    }

    /// Its offered load in a run, in percent of a link's bandwidth, if it has one.
    pub fn load(&self, run: usize) -> Option<u32> {
        if let Self::Open { loads, .. } = self { loads.get(run).copied() } else { None }
    }

    /// The bytes of the shortest message.
    pub fn shortest(&self) -> u64 {
        match self {
            Self::Open { bytes, .. } | Self::Closed { bytes, .. } => *bytes,
            Self::Trace(messages) => {
                messages.iter().map(|(_, message)| message.bytes).min().unwrap_or(0)
            }
        }
    }

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
    /// The endpoint of a host gets no memory, or gets it again.
    Starve(Vertex),
    Relieve(Vertex),
    /// The manager that rules dies.
    CrashManager,
    /// The clock of a node goes so far in a thousand ns.
    Clock(Vertex, u64),
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
        let place = SourceText(text);
        let file: File = toml::from_str(text)
            .map_err(|error| place.error(error.span().unwrap_or(0..0), error.message().trim()))?;
        let top = |flaw: Flaw| place.flaw(Section::Top, &flaw);
        let (graph, left_out) =
            graph(&file.topology, &read).map_err(|reason| top(Flaw::of("topology", reason)))?;
        let routing = file.routing.as_ref().map_or(Ok(Algorithm::Auto), |routing| {
            routing.parse().map_err(|error| top(Flaw::of("routing", error)))
        })?;
        let mut settings = Settings { seed: file.seed, ..Settings::default() };
        if let Some(network) = &file.network {
            network.check().map_err(|flaw| place.flaw(Section::Named("network"), &flaw))?;
            network.apply(&mut settings);
        }
        settings.check().map_err(|error| {
            place.flaw(
                Section::Named("network"),
                &Flaw { key: key_of(&error), reason: error.to_string() },
            )
        })?;
        let timing = file.run.timing().map_err(|flaw| place.flaw(Section::Named("run"), &flaw))?;
        let manager =
            file.manager.as_ref().map(|manager| manager.plan(&graph, routing)).transpose();
        let manager = manager.map_err(|flaw| place.flaw(Section::Named("manager"), &flaw))?;
        let groups = groups(&file, &graph, settings.classes, &read)
            .map_err(|(section, flaw)| place.flaw(section, &flaw))?;
        let mut faults = Vec::new();
        for (number, entry) in file.faults.iter().enumerate() {
            let at = |flaw: Flaw| place.flaw(Section::Numbered("fault", number), &flaw);
            entry.check(file.level, manager.is_some()).map_err(at)?;
            faults.extend(entry.changes(&graph, &settings).map_err(at)?);
            if faults.len() > FAULTS_MAX {
                let reason = format!("more than {FAULTS_MAX} changes of the network; give fewer");
                return Err(at(Flaw::whole(reason)));
            }
        }
        faults.sort_by_key(|(time, _)| *time);
        Ok(Self {
            topology: file.topology.clone(),
            left_out,
            routing,
            level: file.level,
            graph,
            settings,
            groups,
            manager,
            timing,
            faults,
            is_recorded: false,
        })
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// Has the runs recorded ([`Point::recording`](crate::Point::recording)).
    pub fn record(&mut self) {
        self.is_recorded = true;
    }

    /// Takes another seed than that of the file.
    pub fn set_seed(&mut self, seed: u64) {
        self.settings.seed = seed;
    }

    /// The runs of the scenario: the offered load of each, in percent of a link's bandwidth, if it
    /// has one. Of groups with loads of their own, those of the first.
    #[must_use]
    pub fn loads(&self) -> Vec<Option<u32>> {
        let loads = self.groups.iter().find_map(|group| match &group.workload {
            Workload::Open { loads, .. } => Some(loads),
            _ => None,
        });
        loads.map_or(vec![None], |loads| loads.iter().copied().map(Some).collect())
    }
}

/// The groups of a file. An error is with the table in which it is.
fn groups(
    file: &File,
    graph: &Graph,
    classes: u8,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Vec<Group>, (Section, Flaw)> {
    let (entries, section): (&[TrafficEntry], fn(usize) -> Section) = match &file.traffic {
        TrafficEntries::One(entry) => (std::slice::from_ref(entry), |_| Section::Named("traffic")),
        TrafficEntries::Groups(entries) => (entries, |number| Section::Numbered("traffic", number)),
    };
    if !(1..=GROUPS_MAX).contains(&entries.len()) {
        let reason = format!("a scenario has 1 to {GROUPS_MAX} tables [[traffic]]");
        return Err((Section::Top, Flaw::of("traffic", reason)));
    }
    let mut groups: Vec<Group> = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let group = entry.group(number, graph, file.level, classes, &read);
        let group = group.map_err(|flaw| (section(number), flaw))?;
        if groups.iter().any(|other| other.name == group.name) {
            let reason = format!("there is a group {:?} before it; name it otherwise", group.name);
            return Err((section(number), Flaw::of("name", reason)));
        }
        let others = groups.iter().find_map(|group| group.workload.runs());
        let (own, others) = (group.workload.runs(), others);
        if let (Some(own), Some(others)) = (own, others)
            && own != others
        {
            let reason = format!(
                "this group has {own} loads, and one before it {others}: there is a run for each"
            );
            return Err((section(number), Flaw::of("loads", reason)));
        }
        groups.push(group);
    }
    Ok(groups)
}

/// The graph of a generator or a file, and the names of data of the file that are left out.
fn graph(
    topology: &str,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<(Graph, Vec<String>), String> {
    let text = |path| read(path).map_err(|error| format!("{path:?} cannot be read: {error}"));
    let described = if topology.ends_with(".toml") {
        weft_topology::file::parse(&text(topology)?)
    } else if topology.ends_with(".graphml") || topology.ends_with(".xml") {
        weft_topology::graphml::parse(&text(topology)?)
    } else {
        let shape: Shape = topology.parse().map_err(|error| format!("{error}"))?;
        let graph = shape.graph(None).map_err(|error| error.to_string())?;
        return Ok((graph, Vec::new()));
    };
    let described = described.map_err(|error| format!("{topology:?}, {error}"))?;
    Ok((described.graph, described.left_out))
}

impl NetworkEntry {
    fn check(&self) -> Result<(), Flaw> {
        let times = [
            ("processor_send_ns", self.processor_send_ns),
            ("processor_receive_ns", self.processor_receive_ns),
            ("processor_send_across_ns", self.processor_send_across_ns),
            ("processor_receive_across_ns", self.processor_receive_across_ns),
        ];
        let given = times.into_iter().map(|(key, time)| (key, time.is_some()));
        let is_idle = self.processors.is_none();
        Flaw::idle(given.filter(|_| is_idle), "a network without `processors`")
    }

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
        settings.processors = self.processors.map(|count| {
            let mut within = MessageTime::default();
            set(time(self.processor_send_ns), &mut within.send);
            set(time(self.processor_receive_ns), &mut within.receive);
            let mut across = within;
            set(time(self.processor_send_across_ns), &mut across.send);
            set(time(self.processor_receive_across_ns), &mut across.receive);
            Processors { count, within, across }
        });
        set(time(self.patience_ns), &mut settings.patience);
        settings.arbitration = match self.arbitration {
            Some(ArbitrationEntry::Age) => Arbitration::Age,
            Some(ArbitrationEntry::RoundRobin) | None => Arbitration::RoundRobin,
        };
    }
}

impl RunEntry {
    fn timing(&self) -> Result<Timing, Flaw> {
        let all = [
            ("warmup_ns", self.warmup_ns),
            ("measure_ns", self.measure_ns),
            ("deadline_ns", self.deadline_ns),
            ("resend_after_ns", self.resend_after_ns),
            ("reroute_after_ns", self.reroute_after_ns),
        ];
        if let Some((name, _)) = all.iter().find(|(_, ns)| *ns > TIME_MAX_NS) {
            return Err(Flaw::of(name, format!("{name} is more than an hour; give less")));
        }
        if self.measure_ns == 0 {
            return Err(Flaw::of("measure_ns", "nothing is measured; give a nanosecond or more"));
        }
        if self.deadline_ns < self.warmup_ns + self.measure_ns {
            let reason = "deadline_ns is before the end of warmup_ns and measure_ns; give more";
            return Err(Flaw::of("deadline_ns", reason));
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

/// The key of [network] whose value is at fault, where one alone is.
fn key_of(error: &SettingsError) -> Option<&'static str> {
    match error {
        SettingsError::Packet { .. } => Some("mtu_bytes"),
        SettingsError::Classes(_) => Some("classes"),
        SettingsError::Buffer { .. } => Some("buffer_bytes"),
        SettingsError::Damage(_) => Some("damaged_per_million"),
        SettingsError::Patience(_) => Some("patience_ns"),
        SettingsError::Processors => Some("processors"),
        // Links and hosts have both.
        SettingsError::Slow(_) | SettingsError::Late(_) => None,
        SettingsError::Models | SettingsError::Messages => None,
    }
}

impl ManagerEntry {
    fn plan(&self, graph: &Graph, routing: Algorithm) -> Result<ManagerPlan, Flaw> {
        if !(100..=TIME_MAX_NS).contains(&self.tick_ns) {
            let reason = "a millisecond of the manager takes 100 ns of the run or more";
            return Err(Flaw::of("tick_ns", reason));
        }
        if self.lost_per_mille > 500 {
            let reason = "more than half of the manager's packets are lost; give 500 or less";
            return Err(Flaw::of("lost_per_mille", reason));
        }
        if graph.vertices() > RULED_MAX {
            let reason = format!("a manager of a scenario rules {RULED_MAX} nodes at most");
            return Err(Flaw::whole(reason));
        }
        if matches!(routing, Algorithm::Adaptive | Algorithm::Valiant) {
            let reason = "a manager gives tables for auto, dor and updown; choose one as `routing`";
            return Err(Flaw::whole(reason));
        }
        if !self.expected && routing == Algorithm::DimensionOrder {
            let reason = "a manager that does not expect a torus does not know that it is one; \
                          choose `routing` auto or updown";
            return Err(Flaw::of("expected", reason));
        }
        let rules = RuleSettings {
            is_expected: self.expected,
            loss_per_mille: self.lost_per_mille,
            is_followed: self.followed,
        };
        Ok(ManagerPlan { tick: self.tick_ns * NANOSECOND, rules })
    }
}
