//! The faults of a scenario file, checked.

use weft_network::time::{NANOSECOND, Time};
use weft_network::{LinkModel, Settings};
use weft_topology::{Graph, Port, Vertex};

use crate::file::{FaultEntry, FaultKind};
use crate::place::Flaw;
use crate::scenario::{Change, FAULTS_MAX, Level, TIME_MAX_NS};

impl FaultEntry {
    /// Checks that the level and the manager have this kind of fault.
    pub fn check(&self, level: Level, is_ruled: bool) -> Result<(), Flaw> {
        let reason = match (self.kind, level) {
            (FaultKind::Lossy, Level::Flows) => {
                "flows have no packets that are damaged; take level = \"messages\""
            }
            (FaultKind::Pressure, Level::Messages | Level::Flows) => {
                "memory pressure is for level = \"endpoints\""
            }
            (FaultKind::Manager | FaultKind::Skew, _) if !is_ruled => {
                "this fault is one of a manager; give a table [manager]"
            }
            _ => return self.check_keys(),
        };
        Err(Flaw::of("kind", reason))
    }

    /// Refuses keys that this kind of fault has no use for.
    fn check_keys(&self) -> Result<(), Flaw> {
        let used: &[&str] = match self.kind {
            FaultKind::Cut => &["link", "for_ns"],
            FaultKind::Slow => &["link", "for_ns", "mbit"],
            FaultKind::Lossy => &["link", "for_ns", "damaged_per_million"],
            FaultKind::Crash | FaultKind::Pressure => &["node", "for_ns"],
            FaultKind::Skew => &["node", "for_ns", "rate_per_mille"],
            FaultKind::Manager => &[],
        };
        let given = [
            ("link", self.link.is_some()),
            ("node", self.node.is_some()),
            ("for_ns", self.for_ns.is_some()),
            ("mbit", self.mbit.is_some()),
            ("damaged_per_million", self.damaged_per_million.is_some()),
            ("rate_per_mille", self.rate_per_mille.is_some()),
        ];
        Flaw::idle(given.into_iter().filter(|(key, _)| !used.contains(key)), "this kind of fault")
    }

    /// The changes of the network that the fault is, with its end and its repetitions.
    pub fn changes(&self, graph: &Graph, settings: &Settings) -> Result<Vec<(Time, Change)>, Flaw> {
        let (begin, end) = self.change(graph, settings)?;
        let times = match (self.every_ns, self.times) {
            (None, None) => 1,
            // A dead manager does not come back; the next one may die in its turn.
            (Some(_), Some(times)) if self.kind == FaultKind::Manager => times,
            (Some(every), Some(times)) if self.for_ns.is_some_and(|long| long < every) => times,
            (Some(_), Some(_)) => {
                let reason = "a fault that comes again needs a `for_ns` shorter than `every_ns`";
                return Err(Flaw::of("every_ns", reason));
            }
            _ => {
                let reason = "a fault that comes again needs both `every_ns` and `times`";
                return Err(Flaw::whole(reason));
            }
        };
        if usize::try_from(times).is_ok_and(|times| times > FAULTS_MAX) {
            return Err(Flaw::of("times", format!("more than {FAULTS_MAX} times; give less")));
        }
        let mut changes = Vec::new();
        for time in 0..u64::from(times) {
            let at_ns = self.at_ns.saturating_add(time.saturating_mul(self.every_ns.unwrap_or(0)));
            let end_ns = self.for_ns.map(|long| at_ns.saturating_add(long));
            if end_ns.unwrap_or(at_ns) > TIME_MAX_NS {
                let reason = "the fault lasts longer than an hour; give less";
                return Err(Flaw::of(
                    if self.for_ns.is_some() { "for_ns" } else { "at_ns" },
                    reason,
                ));
            }
            changes.push((at_ns * NANOSECOND, begin));
            changes.extend(end_ns.zip(end).map(|(at, end)| (at * NANOSECOND, end)));
        }
        Ok(changes)
    }

    /// The change at the begin of the fault, and the one at its end, if it has one.
    fn change(&self, graph: &Graph, settings: &Settings) -> Result<(Change, Option<Change>), Flaw> {
        let node = || {
            let name = self.node.as_ref();
            let name = name.ok_or_else(|| Flaw::whole("this fault needs its `node`"))?;
            vertex(graph, name).map_err(|reason| Flaw::of("node", reason))
        };
        match self.kind {
            FaultKind::Crash => {
                let node = node()?;
                Ok((Change::Crash(node), Some(Change::Restart(node))))
            }
            FaultKind::Pressure => {
                let node = node()?;
                Ok((Change::Starve(node), Some(Change::Relieve(node))))
            }
            FaultKind::Manager => Ok((Change::CrashManager, None)),
            FaultKind::Skew => {
                let rate = self.rate_per_mille;
                let rate = rate.ok_or_else(|| Flaw::whole("a clock needs its `rate_per_mille`"))?;
                if !(1..=10_000).contains(&rate) {
                    return Err(Flaw::of("rate_per_mille", "give 1 to 10,000; 1,000 is right"));
                }
                let node = node()?;
                Ok((Change::Clock(node, rate), Some(Change::Clock(node, 1_000))))
            }
            FaultKind::Cut => {
                let end = self.end(graph)?;
                Ok((Change::Cut(end), Some(Change::Heal(end))))
            }
            FaultKind::Slow | FaultKind::Lossy => self.worse(graph, settings),
        }
    }

    /// The link of the fault.
    fn end(&self, graph: &Graph) -> Result<(Vertex, Port), Flaw> {
        let link = self.link.as_ref();
        let [a, b] =
            link.ok_or_else(|| Flaw::whole("this fault needs its `link`, as [\"n0\", \"n1\"]"))?;
        let named = |name| vertex(graph, name).map_err(|reason| Flaw::of("link", reason));
        let (from, to) = (named(a)?, named(b)?);
        let mut ports = 0..graph.ports(from);
        let port = ports.find(|port| graph.wired(from, *port).is_some_and(|(far, _)| far == to));
        let port =
            port.ok_or_else(|| Flaw::of("link", format!("there is no link between {a} and {b}")))?;
        Ok((from, port))
    }

    fn worse(&self, graph: &Graph, settings: &Settings) -> Result<(Change, Option<Change>), Flaw> {
        let end = self.end(graph)?;
        let class = graph.class(end.0, end.1);
        let mut model = settings.link;
        if class.bandwidth != 0 {
            model.bits_per_second = class.bandwidth;
        }
        if class.latency != 0 {
            model.latency = class.latency * NANOSECOND;
        }
        let (key, worse) = if self.kind == FaultKind::Slow {
            let mbit = self.mbit.ok_or_else(|| Flaw::whole("a slow link needs its `mbit`"))?;
            let bits_per_second = mbit.saturating_mul(1_000_000);
            ("mbit", LinkModel { bits_per_second, ..model })
        } else {
            let reason = "a lossy link needs its `damaged_per_million`";
            let damaged = self.damaged_per_million.ok_or_else(|| Flaw::whole(reason))?;
            ("damaged_per_million", LinkModel { damaged_per_million: damaged, ..model })
        };
        worse.check().map_err(|error| Flaw::of(key, error))?;
        Ok((Change::Model(end, worse), Some(Change::Model(end, model))))
    }
}

/// The node of this name.
fn vertex(graph: &Graph, name: &str) -> Result<Vertex, String> {
    graph.find(name).ok_or_else(|| format!("there is no node {name:?} in the topology"))
}
