//! The ways service: measures which way to another host is faster, when a program wants to know.
//!
//! The rules are those of [`weft_socket::ways`]. The asked host starts two servers, this one the
//! clients ([`crate::measuring`]), and the figures go to both.
//!
//! # Invariants
//! - One measurement is under way in each role. Each wait of one has an end.
//! - Figures are taken from the host alone that is being served.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_socket::ways::{Figures, Measured, Ways};
use weft_wire::control::{Control, InvalidMessage, WAYS_KINDS, split};
use weft_wire::ways::Measuring;

use super::paths::SharedPaths;
use super::{Event, Manifest, NodeEvent, Outbox, Placement, Request, Service};

/// How long the other host may take until its servers listen.
const SERVED_WITHIN: Duration = Duration::from_secs(20);
/// How long a measurement may take.
const MEASURED_WITHIN: Duration = Duration::from_secs(60);
/// How often programs that run are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The known ways to other hosts, which the service of connections asks.
#[derive(Clone, Debug)]
pub struct SharedWays {
    ways: Arc<Mutex<Ways>>,
    started: Instant,
}

impl SharedWays {
    /// Nothing is known. `now` is the daemon's start.
    pub fn new(now: Instant) -> Self {
        Self { ways: Arc::default(), started: now }
    }

    /// The known ways, locked.
    pub fn lock(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time as the machine has it.
    pub fn at(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

/// Runs the programs of a measurement. No call waits.
pub trait Runner: Send {
    /// Starts the servers.
    ///
    /// # Errors
    /// Why they cannot be started.
    fn serve(&mut self) -> Result<(), String>;

    /// The ports of the servers, without weft and over the fabric, once they listen.
    fn ports(&mut self) -> Option<Result<[u16; 2], String>>;

    /// Ends the servers.
    fn end_servers(&mut self);

    /// Starts the clients, which go to these ports of a node.
    ///
    /// # Errors
    /// Why they cannot be started.
    fn measure(&mut self, node: NodeId, ports: [u16; 2]) -> Result<(), String>;

    /// The figures, once the clients have ended.
    fn figures(&mut self) -> Option<Result<Measured, String>>;

    /// Ends the clients.
    fn end_clients(&mut self);
}

/// The measurement of another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    /// It was asked to serve.
    Asked(NodeId, Instant),
    /// The clients run.
    Runs(NodeId, Instant),
}

/// A measurement by another host, which this one serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Served {
    node: NodeId,
    until: Instant,
    /// It was told the ports.
    is_told: bool,
}

/// The service.
pub struct WaysService {
    ways: SharedWays,
    paths: SharedPaths,
    runner: Box<dyn Runner>,
    stage: Stage,
    served: Option<Served>,
    look_at: Option<Instant>,
}

impl WaysService {
    /// A service that measures by these programs.
    pub fn new(ways: SharedWays, paths: SharedPaths, runner: Box<dyn Runner>) -> Self {
        Self { ways, paths, runner, stage: Stage::Idle, served: None, look_at: None }
    }

    fn say(node: NodeId, message: &Measuring, out: &mut Outbox) {
        out.send_to_node(node, message.emit());
    }

    /// Begins the next measurement that is due.
    fn begin(&mut self, now: Instant, out: &mut Outbox) {
        if self.stage != Stage::Idle {
            return;
        }
        let node = loop {
            let Some(node) = self.ways.lock().begin().map(NodeId) else { return };
            match self.paths.why_cut(node) {
                Some(reason) => self.take(node, Err(reason), now),
                None => break node,
            }
        };
        self.stage = Stage::Asked(node, now + SERVED_WITHIN);
        Self::say(node, &Measuring::Ask, out);
    }

    /// A measurement is over.
    fn over(
        &mut self,
        node: NodeId,
        told: Result<Measured, String>,
        now: Instant,
        out: &mut Outbox,
    ) {
        self.stage = Stage::Idle;
        self.runner.end_clients();
        let message = match &told {
            Ok(Measured { tcp, fabric }) => Measuring::Figures {
                round_trip_ns: [tcp.round_trip_ns, fabric.round_trip_ns],
                bytes_per_s: [tcp.bytes_per_s, fabric.bytes_per_s],
            },
            Err(reason) => Measuring::Failed { reason: reason.clone() },
        };
        Self::say(node, &message, out);
        self.take(node, told, now);
        self.begin(now, out);
    }

    /// Takes figures, own ones or those of another host.
    fn take(&self, node: NodeId, told: Result<Measured, String>, now: Instant) {
        match &told {
            Ok(measured) => tracing::info!(node = node.0, ?measured, "the ways to a host"),
            Err(reason) => tracing::info!(node = node.0, reason, "the ways were not measured"),
        }
        let at = self.ways.at(now);
        let way = self.ways.lock().told(node.0, told, at);
        tracing::info!(node = node.0, ?way, "the way to a host");
    }

    fn serve_no_more(&mut self) {
        self.served = None;
        self.runner.end_servers();
    }

    fn host_says(&mut self, node: NodeId, message: Measuring, now: Instant, out: &mut Outbox) {
        let is_served = self.served.is_some_and(|served| served.node == node);
        match message {
            Measuring::Ask => {
                let begun = match self.served {
                    Some(other) if other.node != node => {
                        Err("it serves the measurement of another host".to_owned())
                    }
                    _ => self.runner.serve(),
                };
                match begun {
                    Ok(()) => {
                        let until = now + SERVED_WITHIN + MEASURED_WITHIN;
                        self.served = Some(Served { node, until, is_told: false });
                    }
                    Err(reason) => Self::say(node, &Measuring::Failed { reason }, out),
                }
            }
            Measuring::Serves { plain, fabric } => {
                if !matches!(self.stage, Stage::Asked(asked, _) if asked == node) {
                    return;
                }
                match self.runner.measure(node, [plain, fabric]) {
                    Ok(()) => self.stage = Stage::Runs(node, now + MEASURED_WITHIN),
                    Err(reason) => self.over(node, Err(reason), now, out),
                }
            }
            Measuring::Figures { round_trip_ns, bytes_per_s } if is_served => {
                self.serve_no_more();
                let [tcp, fabric] = [0, 1].map(|way| Figures {
                    round_trip_ns: round_trip_ns[way],
                    bytes_per_s: bytes_per_s[way],
                });
                self.take(node, Ok(Measured { tcp, fabric }), now);
            }
            Measuring::Failed { reason } => {
                if is_served {
                    self.serve_no_more();
                }
                if matches!(self.stage, Stage::Asked(asked, _) if asked == node) {
                    self.stage = Stage::Idle;
                    self.take(node, Err(format!("the other host says: {reason}")), now);
                    self.begin(now, out);
                }
            }
            Measuring::Figures { .. } => {
                tracing::debug!(node = node.0, "figures of a host that is not served");
            }
        }
    }

    fn look(&mut self, now: Instant, out: &mut Outbox) {
        if let Some(served) = self.served {
            let ports = if served.is_told { None } else { self.runner.ports() };
            match ports {
                Some(Ok([plain, fabric])) => {
                    self.served = Some(Served { is_told: true, ..served });
                    Self::say(served.node, &Measuring::Serves { plain, fabric }, out);
                }
                Some(Err(reason)) => {
                    Self::say(served.node, &Measuring::Failed { reason }, out);
                    self.serve_no_more();
                }
                None if served.until <= now => self.serve_no_more(),
                None => {}
            }
        }
        match self.stage {
            Stage::Runs(node, until) => match self.runner.figures() {
                Some(told) => self.over(node, told, now, out),
                None if until <= now => {
                    let reason = "it took more than a minute".to_owned();
                    self.over(node, Err(reason), now, out);
                }
                None => {}
            },
            Stage::Asked(node, until) if until <= now => {
                self.over(node, Err("the other host does not answer".to_owned()), now, out);
            }
            Stage::Asked(..) | Stage::Idle => {}
        }
    }

    fn set_timer(&mut self, now: Instant) {
        let is_busy = self.stage != Stage::Idle || self.served.is_some();
        self.look_at = is_busy.then(|| now + LOOK_EVERY);
    }

    fn handle(
        &mut self,
        request: &Request,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), InvalidMessage> {
        let Control::AskWays = Control::parse(&request.bytes)? else {
            let (kind, _) = split(&request.bytes)?;
            return Err(InvalidMessage::Kind { kind });
        };
        let at = self.ways.at(now);
        let any_over_fabric = {
            let mut ways = self.ways.lock();
            ways.want(at);
            ways.any_over_fabric(at)
        };
        out.reply(request.from.process, &Control::Ways { any_over_fabric });
        self.begin(now, out);
        Ok(())
    }
}

impl Service for WaysService {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "ways",
            kinds: WAYS_KINDS,
            placement: Placement::Thread,
            options: &["fabric.provider", "fabric.ports", "fabric.listen"],
            events: &[],
        }
    }

    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox) {
        if let Event::Packet(request) = event
            && let Err(error) = self.handle(&request, now, out)
        {
            out.reject(request.from, error);
        }
        self.set_timer(now);
    }

    fn handle_node(&mut self, event: NodeEvent, now: Instant, out: &mut Outbox) {
        match event {
            NodeEvent::Numbered(_) | NodeEvent::Cuts(_) => {}
            NodeEvent::Up(node) => {
                self.ways.lock().up(node.0);
                self.begin(now, out);
            }
            NodeEvent::Down(node) => {
                self.ways.lock().down(node.0);
                if self.served.is_some_and(|served| served.node == node) {
                    self.serve_no_more();
                }
                if let Stage::Asked(other, _) | Stage::Runs(other, _) = self.stage
                    && other == node
                {
                    self.runner.end_clients();
                    self.stage = Stage::Idle;
                    self.begin(now, out);
                }
            }
            NodeEvent::Message(node, bytes) => match Measuring::parse(&bytes) {
                Some(message) => self.host_says(node, message, now, out),
                None => tracing::warn!(node = node.0, "a message about measurements is none"),
            },
        }
        self.set_timer(now);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox) {
        self.look(now, out);
        self.set_timer(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.look_at
    }
}

#[cfg(test)]
mod tests;
