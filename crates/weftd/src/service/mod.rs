//! Services: the parts of the daemon that programs talk to, each a module of its own.
//!
//! A service owns kinds of messages. The daemon receives a program's packets on the thread of its
//! user, asks the kernel what the descriptors beside them are ([`crate::evidence`]), and hands each
//! packet to the service of its kind. Answers leave in the order in which the service gave them. A
//! service gets events and gives packets: threads, clocks, locks and sockets belong to [`host`].
//!
//! # How to add one
//! Implement [`Service`] in a module here, with kinds that nobody owns, and add a line to [`all`].
//! The echo of [`tests`] is the smallest.
//!
//! # Invariants
//! - No two services own the same kind.
//! - A service gets the packets of a program in the order in which they were sent, then that the
//!   program is gone. It hears nothing of programs that never asked it.
//! - A service with a thread holds up no other, however long it takes. One that is handled in place
//!   never waits for anything.

use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use weft_transport_shm::Doorbell;
use weft_wire::control::{Control, InvalidMessage};

use self::connections::Connections;
use self::endpoints::Endpoints;
use self::ethernet::Ethernet;
use crate::Config;
use crate::ether::Devices;
use crate::evidence::Shown;
use crate::status::Status;

mod connections;
mod endpoints;
mod ethernet;
pub mod host;
mod queue;
#[cfg(test)]
mod tests;

/// The services of a node that serves `devices`.
pub fn all(config: &Config, devices: Option<&Arc<Devices>>) -> Vec<Box<dyn Service>> {
    vec![
        Box::new(Connections::new(&config.options)),
        Box::new(Endpoints::new(&config.options, Instant::now())),
        Box::new(Ethernet::new(devices.cloned())),
    ]
}

/// A part of the daemon that programs talk to.
///
/// It is told what happens and says what is to be done; it has no thread, clock or socket.
pub trait Service: Send {
    /// Its description. Always the same.
    fn manifest(&self) -> Manifest;

    /// Something happened. Answers go to `out`.
    fn handle_event(&mut self, event: Event, now: Instant, out: &mut Outbox);

    /// The time that [`Service::poll_timeout`] named has come.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut Outbox) {}

    /// When [`Service::handle_timeout`] is due. May change after an event and after a timeout.
    /// One that is handled in place has no timer.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Its part of the node's status. The function that comes back may take long: it runs on the
    /// thread of the user who asked.
    fn report(&self) -> Report {
        Box::new(|_| ())
    }

    /// Its numbers beside the counts of events: totals since the daemon started, and present sizes.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

/// Adds a part of the status.
pub type Report = Box<dyn FnOnce(&mut Status) + Send>;

/// The description of a service.
#[derive(Clone, Copy, Debug)]
pub struct Manifest {
    /// Its name, a word.
    pub name: &'static str,
    /// The kinds of messages that it is asked with.
    pub kinds: &'static [RangeInclusive<u16>],
    /// Where it is handled.
    pub placement: Placement,
    /// The options that it reads, by their names in `weft.toml`.
    pub options: &'static [&'static str],
    /// The events that it tells by [`Outbox::event`]: name and meaning. Each is counted.
    pub events: &'static [(&'static str, &'static str)],
}

/// Where a service is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On a thread of its own, behind a bounded queue.
    Thread,
    /// On the thread of the user whose packet it is, under the service's own lock. For a service
    /// that answers at once, and of which programs wait for each answer.
    InPlace,
}

/// A number that a service tells.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its meaning, a sentence.
    pub help: &'static str,
    /// How much.
    pub value: u64,
}

/// Names a program for as long as its channel lives, and is never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessId(pub u64);

/// A program, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its channel.
    pub process: ProcessId,
    /// The number of its process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its process number means the same to every program of which this is true.
    pub is_numbered_here: bool,
    /// Root and the daemon's own user may tell it what to do.
    pub may_command: bool,
}

/// A packet of a program.
#[derive(Debug)]
pub struct Request {
    /// The program.
    pub from: Peer,
    /// The message, from its magic on.
    pub bytes: Vec<u8>,
    /// The descriptors beside it.
    pub shown: Vec<Shown>,
}

/// A thing that a service is told.
#[derive(Debug)]
pub enum Event {
    /// A packet of one of its kinds.
    Packet(Request),
    /// The process that connected ended; one that it forked may go on with its channel.
    Ended(Peer),
    /// A program is gone.
    Gone(Peer),
    /// Whether the process has the socket still.
    Answer(Question, bool),
}

impl Event {
    /// The program that it comes from.
    pub const fn from(&self) -> Peer {
        match self {
            Self::Packet(request) => request.from,
            Self::Ended(peer) | Self::Gone(peer) => *peer,
            Self::Answer(question, _) => question.request.from,
        }
    }
}

/// Asks the kernel whether a process has a socket still, before `request` is handled.
#[derive(Debug)]
pub struct Question {
    /// The socket.
    pub holder: Holder,
    /// Comes back with the answer.
    pub request: Request,
}

/// A process that has a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// The number that the socket had in it.
    pub number: u32,
    /// The socket.
    pub inode: u64,
}

/// A packet to send.
pub struct Outgoing {
    /// Its receiver.
    pub to: ProcessId,
    /// The message.
    pub bytes: Vec<u8>,
    /// The descriptors beside it.
    pub descriptors: Vec<Arc<dyn AsFd + Send + Sync>>,
    /// Rung after sending, so that an endpoint looks at its channel.
    pub bell: Option<Arc<Doorbell>>,
}

impl Outgoing {
    /// A message without descriptors.
    pub fn plain(to: ProcessId, bytes: Vec<u8>) -> Self {
        Self { to, bytes, descriptors: Vec::new(), bell: None }
    }
}

/// The things that a service wants done.
#[derive(Default)]
pub struct Outbox {
    packets: Vec<Outgoing>,
    closed: Vec<(Peer, InvalidMessage)>,
    complaints: Vec<(Peer, String)>,
    happened: Vec<Happened>,
    question: Option<Question>,
}

impl Outbox {
    /// Sends a packet.
    pub fn send(&mut self, outgoing: Outgoing) {
        self.packets.push(outgoing);
    }

    /// Sends a message without descriptors.
    pub fn reply(&mut self, to: ProcessId, control: &Control) {
        self.send(Outgoing::plain(to, control.emit()));
    }

    /// Closes the channel of a program that sent what no program of ours sends.
    pub fn reject(&mut self, peer: Peer, error: InvalidMessage) {
        self.closed.push((peer, error));
    }

    /// Says in the log what a program did wrong, unless enough was said about its user.
    pub fn complain(&mut self, peer: Peer, why: String) {
        self.complaints.push((peer, why));
    }

    /// Has the kernel asked; [`Event::Answer`] follows before any other packet of the user's.
    ///
    /// # Panics
    /// When an event has a question already.
    pub fn ask(&mut self, question: Question) {
        assert!(self.question.is_none(), "an event has one question");
        self.question = Some(question);
    }

    /// Tells that something of [`Manifest::events`] happened to a program; `detail` is made for the
    /// log of a developer alone.
    pub fn event(&mut self, name: &'static str, peer: Peer, detail: impl FnOnce() -> String) {
        let detail = tracing::enabled!(tracing::Level::DEBUG).then(detail);
        self.happened.push(Happened { name, peer, detail });
    }
}

/// Something that happened, for counters and the log.
struct Happened {
    name: &'static str,
    peer: Peer,
    detail: Option<String>,
}
