//! The paths service: tries whether data go to another host and back, when that comes and again
//! from time to time. A host is up when its data path is: its daemon may answer where a firewall,
//! another family of addresses or another provider stops all data.
//!
//! Each host tries the path to the other one by a program ([`crate::trying`]) and tells what came
//! of it, since a connection may be made in one direction and not in the other.
//!
//! # Invariants
//! - Each question and each try has an end.
//! - The program runs while something is tried, or may be by another host, and not longer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_wire::trials::Trial;

use super::{Counter, Event, Manifest, NodeEvent, Outbox, Placement, Service};

/// How long the other host may take until its endpoint is open, and a try until it is over.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// How long the other host may use the endpoint of this one.
const SERVED_FOR: Duration = Duration::from_secs(25);
/// How soon a path on which nothing came back is tried again. The time doubles with each failure.
const AGAIN_AFTER: Duration = Duration::from_secs(15);
/// The same at most; and how soon a host is asked again that had no endpoints.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(300);
/// How soon a path that is open is tried again: a firewall may have changed.
const STILL_OPEN_AFTER: Duration = Duration::from_secs(600);
/// How often the program that runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The path of data to another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Path {
    /// It is being tried for the first time.
    Tried,
    /// Data go there and back.
    Open,
    /// One of the two hosts has no endpoints for others, and why.
    Without(String),
    /// Data do not go there, or not back, and why.
    Cut(String),
}

/// The paths to the hosts that are up, for the services that need them.
#[derive(Clone, Debug, Default)]
pub struct SharedPaths(Arc<Mutex<BTreeMap<u32, Path>>>);

impl SharedPaths {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Path>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path to a host.
    pub fn of(&self, node: NodeId) -> Path {
        self.lock().get(&node.0).cloned().unwrap_or(Path::Tried)
    }

    /// Why no data go to a host, if that is known.
    pub fn why_cut(&self, node: NodeId) -> Option<String> {
        match self.of(node) {
            Path::Cut(reason) => Some(reason),
            Path::Tried | Path::Open | Path::Without(_) => None,
        }
    }
}

/// A statement of the program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// Its endpoint, at which others try this host.
    At {
        /// The provider.
        provider: String,
        /// The name of the endpoint.
        name: Vec<u8>,
    },
    /// A host was tried. The reason is empty if something came back.
    Tried(NodeId, String),
    /// A host could not be tried, as there is no port for an endpoint.
    Busy(NodeId, String),
    /// There are no endpoints for other hosts here, and why.
    Without(String),
    /// It ended.
    Ended,
}

/// Runs the program. No call waits.
pub trait Prober: Send {
    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot be started.
    fn begin(&mut self) -> Result<(), String>;

    /// Has it try the endpoint of this name, of a host.
    fn attempt(&mut self, node: NodeId, name: &[u8]);

    /// The next thing that it said.
    fn said(&mut self) -> Option<Said>;

    /// Ends it.
    fn end(&mut self);
}

/// The program.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Program {
    Off,
    Starts,
    At { provider: String, name: Vec<u8> },
}

/// The own try of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// It is begun then.
    Waits { due: Option<Instant> },
    /// The other host was asked for its endpoint.
    Asked { until: Instant },
    /// The endpoint is known, and the own program is not ready.
    Told { until: Instant, provider: String, name: Vec<u8> },
    /// The program tries it.
    Tries { until: Instant },
}

#[derive(Debug)]
struct Host {
    stage: Stage,
    /// The result of the own try and that of the other host's; `None` before.
    results: [Option<Result<(), String>>; 2],
    without: Option<String>,
    failures: u32,
    /// It asked for an endpoint, and was told none yet.
    wants: bool,
    /// It may try the endpoint of this host until then.
    served: Option<Instant>,
}

impl Host {
    fn new(now: Instant) -> Self {
        let stage = Stage::Waits { due: Some(now) };
        let (results, without) = ([None, None], None);
        Self { stage, results, without, failures: 0, wants: false, served: None }
    }

    fn path(&self) -> Path {
        if let Some(reason) = &self.without {
            return Path::Without(reason.clone());
        }
        match &self.results {
            [Some(Err(reason)), _] => {
                Path::Cut(format!("its daemon answers, and no data go there: {reason}"))
            }
            [_, Some(Err(reason))] => Path::Cut(format!(
                "its daemon answers, and no data come from there to this host: {reason}"
            )),
            [Some(Ok(())), Some(Ok(()))] => Path::Open,
            _ => Path::Tried,
        }
    }

    fn needs_program(&self, now: Instant) -> bool {
        self.wants
            || self.served.is_some_and(|until| until > now)
            || !matches!(self.stage, Stage::Waits { .. })
    }
}

/// The service.
pub struct PathsService {
    paths: SharedPaths,
    prober: Box<dyn Prober>,
    program: Program,
    hosts: BTreeMap<NodeId, Host>,
    /// The own daemon listens at the loopback interface, where nothing is in the way.
    is_within: bool,
    failed: u64,
    look_at: Option<Instant>,
}

impl PathsService {
    /// A service that tries paths by this program.
    pub fn new(paths: SharedPaths, prober: Box<dyn Prober>, is_within: bool) -> Self {
        let (program, hosts) = (Program::Off, BTreeMap::new());
        Self { paths, prober, program, hosts, is_within, failed: 0, look_at: None }
    }

    fn say(node: NodeId, message: &Trial, out: &mut Outbox) {
        out.send_to_node(node, message.emit());
    }

    fn up(&mut self, node: NodeId, now: Instant, out: &mut Outbox) {
        let mut host = Host::new(now);
        if self.is_within {
            (host.stage, host.results) = (Stage::Waits { due: None }, [Some(Ok(())), Some(Ok(()))]);
            Self::say(node, &Trial::Tried { reason: String::new() }, out);
        }
        self.hosts.insert(node, host);
        self.settle(node);
    }

    /// Writes down the path to a host, and says so if it changed.
    fn settle(&mut self, node: NodeId) {
        let Some(host) = self.hosts.get(&node) else { return };
        let path = host.path();
        let former = self.paths.lock().insert(node.0, path.clone());
        let node = node.0;
        match (&path, former) {
            (path, Some(former)) if *path == former => {}
            (Path::Cut(reason), _) => {
                self.failed += 1;
                tracing::warn!(node, "a host is not reached: {reason}");
            }
            (Path::Open, Some(Path::Cut(_))) => tracing::info!(node, "data go to a host again"),
            (Path::Without(reason), _) => {
                tracing::info!(node, "no endpoints between this host and another: {reason}");
            }
            (Path::Open | Path::Tried, _) => {}
        }
    }

    fn start_program(&mut self, out: &mut Outbox) {
        if self.program == Program::Off {
            self.program = Program::Starts;
            if let Err(reason) = self.prober.begin() {
                self.is_without(&reason, out);
            }
        }
    }

    /// This host has no endpoints for others.
    fn is_without(&mut self, reason: &str, out: &mut Outbox) {
        self.program = Program::Off;
        let told = Trial::Without { reason: reason.to_owned() };
        let here = format!("there are no endpoints for other hosts here: {reason}");
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        for node in nodes {
            let Some(host) = self.hosts.get_mut(&node) else { continue };
            if std::mem::take(&mut host.wants) {
                Self::say(node, &told, out);
            }
            if let Stage::Asked { until } | Stage::Told { until, .. } | Stage::Tries { until } =
                host.stage
            {
                host.stage = Stage::Waits { due: Some(until + AGAIN_AFTER_MAX) };
                host.without = Some(here.clone());
                self.settle(node);
            }
        }
    }

    /// The own try of a path is over.
    fn tried(&mut self, node: NodeId, result: Result<(), String>, now: Instant, out: &mut Outbox) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        let after = match result {
            Ok(()) => {
                host.failures = 0;
                STILL_OPEN_AFTER
            }
            Err(_) => {
                host.failures += 1;
                (AGAIN_AFTER * (1 << host.failures.min(8)) / 2).min(AGAIN_AFTER_MAX)
            }
        };
        host.stage = Stage::Waits { due: Some(now + after) };
        let reason = result.clone().err().unwrap_or_default();
        (host.results[0], host.without) = (Some(result), None);
        Self::say(node, &Trial::Tried { reason }, out);
        self.settle(node);
    }

    fn host_says(&mut self, node: NodeId, message: Trial, now: Instant, out: &mut Outbox) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        match message {
            Trial::Ask => {
                host.wants = true;
                self.start_program(out);
            }
            Trial::At { provider, name } => {
                if let Stage::Asked { until } = host.stage {
                    host.stage = Stage::Told { until, provider, name };
                }
            }
            Trial::Without { reason } => {
                if matches!(host.stage, Stage::Asked { .. }) {
                    host.stage = Stage::Waits { due: Some(now + AGAIN_AFTER_MAX) };
                }
                host.without =
                    Some(format!("there are no endpoints for other hosts there: {reason}"));
            }
            Trial::Tried { reason } => {
                (host.served, host.without) = (None, None);
                host.results[1] = Some(if reason.is_empty() { Ok(()) } else { Err(reason) });
            }
        }
        self.settle(node);
        self.go_on(now, out);
    }

    fn program_says(&mut self, said: Said, now: Instant, out: &mut Outbox) {
        match said {
            Said::At { provider, name } => self.program = Program::At { provider, name },
            Said::Tried(node, reason) => {
                let result = if reason.is_empty() { Ok(()) } else { Err(reason) };
                let is_tried = |host: &Host| matches!(host.stage, Stage::Tries { .. });
                if self.hosts.get(&node).is_some_and(is_tried) {
                    self.tried(node, result, now, out);
                }
            }
            Said::Busy(node, reason) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.stage = Stage::Waits { due: Some(now + AGAIN_AFTER_MAX) };
                    host.without =
                        Some(format!("there is no endpoint for a try of the path here: {reason}"));
                    Self::say(node, &Trial::Without { reason }, out);
                    self.settle(node);
                }
            }
            Said::Without(reason) => self.is_without(&reason, out),
            Said::Ended if self.program == Program::Starts => {
                let reason = "the program that opens one ended";
                self.is_without(reason, out);
            }
            Said::Ended => {
                self.program = Program::Off;
                self.fail_all(|stage| matches!(stage, Stage::Tries { .. }), now, out);
            }
        }
    }

    /// The program failed amid the tries that are in such a stage.
    fn fail_all(&mut self, is: impl Fn(&Stage) -> bool, now: Instant, out: &mut Outbox) {
        let failed = self.hosts.iter().filter(|(_, host)| is(&host.stage));
        for node in failed.map(|(node, _)| *node).collect::<Vec<_>>() {
            let reason = "the program that tries it ended, or hangs, in its provider";
            self.tried(node, Err(reason.to_owned()), now, out);
        }
    }

    /// Does what can be done now.
    fn go_on(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(said) = self.prober.said() {
            self.program_says(said, now, out);
        }
        for node in self.hosts.keys().copied().collect::<Vec<_>>() {
            self.look_at(node, now, out);
        }
        let lacks = |host: &Host| host.wants || matches!(host.stage, Stage::Told { .. });
        if self.program == Program::Off && self.hosts.values().any(lacks) {
            self.start_program(out);
        }
        if self.program != Program::Off && !self.hosts.values().any(|host| host.needs_program(now))
        {
            self.prober.end();
            self.program = Program::Off;
        }
    }

    fn look_at(&mut self, node: NodeId, now: Instant, out: &mut Outbox) {
        let Some(host) = self.hosts.get_mut(&node) else { return };
        if let (true, Program::At { provider, name }) = (host.wants, &self.program) {
            (host.wants, host.served) = (false, Some(now + SERVED_FOR));
            let (provider, name) = (provider.clone(), name.clone());
            Self::say(node, &Trial::At { provider, name }, out);
        }
        match (&host.stage, &self.program) {
            (Stage::Waits { due: Some(due) }, _) if *due <= now => {
                host.stage = Stage::Asked { until: now + ANSWERED_WITHIN };
                Self::say(node, &Trial::Ask, out);
                self.start_program(out);
            }
            (Stage::Told { provider, name, .. }, Program::At { provider: own, .. }) => {
                if provider == own {
                    let name = name.clone();
                    host.stage = Stage::Tries { until: now + ANSWERED_WITHIN };
                    self.prober.attempt(node, &name);
                } else {
                    let reason = format!(
                        "the provider there is {provider} and {own} here; set fabric.provider to \
                         the same on all hosts"
                    );
                    self.tried(node, Err(reason), now, out);
                }
            }
            (Stage::Asked { until }, _) if *until <= now => {
                let seconds = ANSWERED_WITHIN.as_secs();
                let reason = format!("its daemon opened no endpoint within {seconds} s");
                self.tried(node, Err(reason), now, out);
            }
            (Stage::Told { until, .. } | Stage::Tries { until }, _) if *until <= now => {
                self.prober.end();
                self.program = Program::Off;
                let is = |stage: &Stage| matches!(stage, Stage::Told { .. } | Stage::Tries { .. });
                self.fail_all(is, now, out);
            }
            _ => {}
        }
    }

    fn set_timer(&mut self, now: Instant) {
        let waits = |host: &Host| match host.stage {
            Stage::Waits { due } => due,
            Stage::Asked { until } => Some(until),
            Stage::Told { .. } | Stage::Tries { .. } => Some(now + LOOK_EVERY),
        };
        let program = (self.program != Program::Off).then(|| now + LOOK_EVERY);
        self.look_at = self.hosts.values().filter_map(waits).chain(program).min();
    }
}

impl Service for PathsService {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "paths",
            kinds: &[],
            placement: Placement::Thread,
            options: &["fabric.provider", "fabric.ports", "fabric.listen"],
            events: &[],
        }
    }

    fn handle_event(&mut self, _: Event, _: Instant, _: &mut Outbox) {}

    fn handle_node(&mut self, event: NodeEvent, now: Instant, out: &mut Outbox) {
        match event {
            NodeEvent::Numbered(_) | NodeEvent::Cuts(_) => {}
            NodeEvent::Up(node) => self.up(node, now, out),
            NodeEvent::Down(node) => {
                self.hosts.remove(&node);
                self.paths.lock().remove(&node.0);
            }
            NodeEvent::Message(node, bytes) => match Trial::parse(&bytes) {
                Some(message) => self.host_says(node, message, now, out),
                None => tracing::warn!(node = node.0, "a message about paths is none"),
            },
        }
        self.go_on(now, out);
        self.set_timer(now);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        self.go_on(now, out);
        self.set_timer(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }

    fn counters(&self) -> Vec<Counter> {
        let count = |is: fn(&Path) -> bool| {
            let paths = self.paths.lock();
            u64::try_from(paths.values().filter(|path| is(path)).count()).unwrap_or(u64::MAX)
        };
        let counter = |name, unit, help, value| Counter { name, unit, help, value };
        vec![
            counter(
                "paths_open",
                "hosts",
                "Other hosts to which data go, and from which they come.",
                count(|path| *path == Path::Open),
            ),
            counter(
                "paths_cut",
                "hosts",
                "Other hosts whose daemons answer, and to or from which no data go: `weft fabric \
                 nodes` says why.",
                count(|path| matches!(path, Path::Cut(_))),
            ),
            counter("paths_failed", "times", "How often a path was found cut.", self.failed),
        ]
    }
}

#[cfg(test)]
mod tests;
