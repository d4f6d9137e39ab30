//! Services: the parts of the daemon that programs talk to, one module each.
//!
//! A service owns kinds of messages. The daemon receives a program's packets on the thread of the
//! program's user, examines the descriptors of each packet ([`crate::evidence`]), and passes the
//! packet to the service that owns its kind. Answers are sent in the order in which the service
//! gave them. A service gets events and returns packets. Threads, clocks, locks and sockets belong
//! to [`host`].
//!
//! # How to add one
//! Implement [`Service`] in a new module here, choose kinds that no service owns, and add a line to
//! [`all`]. The smallest example is the echo service of [`tests`].
//!
//! # Invariants
//! - No two services own the same kind.
//! - A service gets the packets of a program in the order in which they were sent, and then the
//!   news that the program is gone. It gets no events of programs that never asked it.
//! - A service with a thread delays no other service, however long it takes. A service that is
//!   handled in place never waits.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use weft_broker::{Bell, Site};
use weft_fabric::NodeId;
use weft_wire::control::{Control, InvalidMessage};

use self::connections::Connections;
use self::endpoints::Endpoints;
use self::ethernet::Ethernet;
use self::fabric::FabricService;
use self::paths::{PathsService, SharedPaths};
pub use self::paths::{Prober, Said};
pub use self::ways::Runner;
use self::ways::{SharedWays, WaysService};
use crate::Config;
use crate::ether::Devices;
use crate::evidence::Shown;
use crate::fabric::Fabric;
use crate::lab::{LabCuts, Ruler};
use crate::measuring;
use crate::networks::Origin;
use crate::status::Status;
use crate::trying::Trials;

mod connections;
mod endpoints;
mod ethernet;
pub mod fabric;
pub mod host;
mod paths;
mod queue;
#[cfg(test)]
mod tests;
mod ways;

/// The services that talk to other nodes, by name. The place of a service is the first byte of its
/// messages, so it must not change.
pub const BETWEEN_NODES: [&str; 5] = ["endpoints", "connections", "fabric", "ways", "paths"];

/// The services of a node with number `node`. `devices` are the Ethernet devices that it serves,
/// `fabric` the other hosts, `ruler` the links of its lab.
pub fn all(
    config: &Config,
    node: NodeId,
    devices: Option<&Arc<Devices>>,
    fabric: Option<&Arc<Fabric>>,
    ruler: Option<&Arc<Ruler>>,
) -> Vec<Box<dyn Service>> {
    let now = Instant::now();
    let ways = SharedWays::new(now);
    let (socket, options) = (config.socket.clone(), config.options.clone());
    let trials = Trials::new(socket.clone(), options.clone());
    let programs = measuring::Programs::new(socket, options, fabric.cloned());
    let paths = SharedPaths::default();
    let is_within = config.options.fabric_listen().is_some_and(|at| at.ip().is_loopback());
    vec![
        Box::new(Connections::new(&config.options, ways.clone(), paths.clone())),
        Box::new(Endpoints::new(&config.options, node, now)),
        Box::new(Ethernet::new(devices.cloned())),
        Box::new(FabricService::new(
            fabric.cloned(),
            ruler.cloned(),
            (ways.clone(), paths.clone()),
            now,
        )),
        Box::new(WaysService::new(ways, paths.clone(), Box::new(programs))),
        Box::new(PathsService::new(paths, Box::new(trials), is_within)),
    ]
}

/// A part of the daemon that programs talk to.
///
/// A service is a state machine: it gets events and says what to do. It has no thread, clock or
/// socket.
pub trait Service: Send {
    /// The description of the service; constant.
    fn manifest(&self) -> Manifest;

    /// Handles an event. Answers go to `out`.
    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox);

    /// Handles news of the other nodes of the fabric. Answers go to `out`.
    fn handle_node(&mut self, _event: NodeEvent, _now: Instant, _out: &mut Outbox) {}

    /// Called when the time of [`Service::poll_timeout`] has come.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut Outbox) {}

    /// When [`Service::handle_timeout`] is due. The time may change after an event and after a
    /// timeout. A service that is handled in place has no timer.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The service's part of the node's status. The returned function may take long: it runs on the
    /// thread of the user who asked.
    fn report(&self) -> Report {
        Box::new(|_| ())
    }

    /// Counters of the service besides the counts of its events: totals since the daemon started,
    /// and present sizes.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

/// Adds a service's part to the status.
pub type Report = Box<dyn FnOnce(&mut Status) + Send>;

/// The description of a service.
#[derive(Clone, Copy, Debug)]
pub struct Manifest {
    /// The name of the service, one word.
    pub name: &'static str,
    /// The kinds of messages that the service owns.
    pub kinds: &'static [RangeInclusive<u16>],
    /// Where the service is handled.
    pub placement: Placement,
    /// The options that the service reads, by their names in `weft.toml`.
    pub options: &'static [&'static str],
    /// The events that the service reports by [`Outbox::event`]: name and meaning. Each has a
    /// counter.
    pub events: &'static [(&'static str, &'static str)],
}

/// Where a service is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On its own thread, behind a bounded queue.
    Thread,
    /// On the thread of the user who sent the packet, under the lock of the service. For a service
    /// that answers at once and for whose answers programs wait.
    InPlace,
}

/// A counter of a service.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its meaning, one sentence.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

/// Identifies a program while its channel lives. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessId(pub u64);

/// The credentials of a program, as the kernel reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The program's channel.
    pub process: ProcessId,
    /// The number of the program's process.
    pub pid: u32,
    /// The program's user.
    pub uid: u32,
    /// Whether `pid` is a number in the daemon's process namespace, so that all such programs agree
    /// on it.
    pub is_numbered_here: bool,
    /// Whether the program may command the daemon: its user is root or the daemon's own user, and
    /// it is in the daemon's own network namespace.
    pub may_command: bool,
    /// Where the program is.
    pub origin: Origin,
    /// The node of a lab in which it is.
    pub site: Option<Site>,
}

/// News of the other nodes of the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeEvent {
    /// It has joined, or is back.
    Up(NodeId),
    /// It is away.
    Down(NodeId),
    /// The own number became known. Until now it was [`NodeId::LOCAL`].
    Numbered(NodeId),
    /// It says something. Between its `Up` and its `Down` nothing is lost, and the order is kept.
    Message(NodeId, Vec<u8>),
    /// The nodes of the lab between which no way leads. Said at each change, and again from time to
    /// time while there are any.
    Cuts(Arc<LabCuts>),
}

/// The way to the other nodes of the fabric.
pub trait Links: Send + Sync {
    /// Sends a message to a node. Never blocks. A node for which too many messages wait is given up
    /// and reported `Down`.
    fn send(&self, node: NodeId, bytes: Vec<u8>);

    /// Ends the connection to a node, so that it is reported `Down` and `Up`, and says everything
    /// anew.
    fn give_up(&self, node: NodeId);
}

/// A packet from a program.
#[derive(Debug)]
pub struct Request {
    /// The program.
    pub from: Peer,
    /// The message, magic number included.
    pub bytes: Vec<u8>,
    /// The examined descriptors of the packet.
    pub shown: Vec<Shown>,
}

/// An event that a service gets.
#[derive(Debug)]
pub enum Event {
    /// A packet of a kind that the service owns.
    Packet(Request),
    /// The process that connected ended. A process that it forked may still use its channel.
    Ended(Peer),
    /// A program is gone.
    Gone(Peer),
    /// The answer to a question: whether the process still has the socket.
    Answer(Question, bool),
}

impl Event {
    /// The program that the event is about.
    pub const fn from(&self) -> Peer {
        match self {
            Self::Packet(request) => request.from,
            Self::Ended(peer) | Self::Gone(peer) => *peer,
            Self::Answer(question, _) => question.request.from,
        }
    }
}

/// Asks the kernel whether a process still has a socket, before `request` is handled.
#[derive(Debug)]
pub struct Question {
    /// The process and its socket.
    pub holder: Holder,
    /// The request, which comes back with the answer.
    pub request: Request,
}

/// A process that has a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The number of the process.
    pub pid: u32,
    /// The descriptor number under which the process had the socket.
    pub number: u32,
    /// The inode number of the socket.
    pub inode: u64,
}

/// A packet to send.
pub struct Outgoing {
    /// The program that receives the packet.
    pub to: ProcessId,
    /// The message.
    pub bytes: Vec<u8>,
    /// The descriptors to send with the message.
    pub descriptors: Vec<Arc<dyn AsFd + Send + Sync>>,
    /// A wakeup to send after sending, so that the endpoint reads its channel.
    pub wakeup: Option<Arc<dyn Bell>>,
}

impl Outgoing {
    /// A message without descriptors.
    pub fn plain(to: ProcessId, bytes: Vec<u8>) -> Self {
        Self { to, bytes, descriptors: Vec::new(), wakeup: None }
    }
}

/// The results of one call of a service.
#[derive(Default)]
pub struct Outbox {
    packets: Vec<Outgoing>,
    closed: Vec<(Peer, InvalidMessage)>,
    complaints: Vec<(Peer, String)>,
    happened: Vec<Happened>,
    question: Option<Question>,
    to_nodes: Vec<(NodeId, Vec<u8>)>,
    given_up: Vec<NodeId>,
}

impl Outbox {
    /// Has another node of the fabric say everything anew.
    pub fn give_up_node(&mut self, node: NodeId) {
        self.given_up.push(node);
    }

    /// Sends a message to another node of the fabric.
    pub fn send_to_node(&mut self, node: NodeId, bytes: Vec<u8>) {
        self.to_nodes.push((node, bytes));
    }

    /// Sends a packet.
    pub fn send(&mut self, outgoing: Outgoing) {
        self.packets.push(outgoing);
    }

    /// Sends a message without descriptors.
    pub fn reply(&mut self, to: ProcessId, control: &Control) {
        self.send(Outgoing::plain(to, control.emit()));
    }

    /// Closes the channel of a program that sent a message that is not valid.
    pub fn reject(&mut self, peer: Peer, error: InvalidMessage) {
        self.closed.push((peer, error));
    }

    /// Logs a mistake of a program, unless there are enough lines about its user.
    pub fn complain(&mut self, peer: Peer, why: String) {
        self.complaints.push((peer, why));
    }

    /// Asks the kernel. [`Event::Answer`] follows before any other packet of the same user.
    ///
    /// # Panics
    /// When the event already has a question.
    pub fn ask(&mut self, question: Question) {
        assert!(self.question.is_none(), "an event has one question");
        self.question = Some(question);
    }

    /// Reports one of [`Manifest::events`]. `detail` is evaluated only when the debug log is
    /// enabled.
    pub fn event(&mut self, name: &'static str, peer: Peer, detail: impl FnOnce() -> String) {
        let detail = tracing::enabled!(tracing::Level::DEBUG).then(detail);
        self.happened.push(Happened { name, peer, detail });
    }
}

/// An event to count and log.
struct Happened {
    name: &'static str,
    peer: Peer,
    detail: Option<String>,
}
