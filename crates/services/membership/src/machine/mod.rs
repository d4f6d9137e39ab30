//! The state of a daemon among the daemons of its fabric.
//!
//! The driver tells it what happens to connections ([`Machine::proved`], [`Machine::message`],
//! [`Machine::closed`]) and lets it look at the clock ([`Machine::tick`]). It carries out the
//! [`Output`]s in their order.
//!
//! The first daemon gives numbers, and is the only one that changes the table of nodes; or a
//! directory keeps the table, and each daemon enters itself. All keep a copy, and pass a newer one
//! on. Each two nodes have one connection. The node with the
//! higher number dials; the other one dials, too, if nothing comes for a while.
//!
//! # Invariants
//! - A number and an identity that were once together in the table stay together, until the
//!   identity is expelled.
//! - The table is kept ([`Output::Save`]) before anybody is told a number in it.
//! - Of each node, [`Event::Up`] and [`Event::Down`] alternate, and messages come between them.
//! - At most one connection to a node is up.

mod dialing;
mod directory;
mod joining;
mod moved;
mod seeds;
mod standing;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use weft_fabric::NodeId;

use crate::identity::Identity;
use crate::key::Role;
use crate::message::{Hello, Message, NodeAbout, Refusal, USER_BYTES_MAX};
use crate::roster::{Numbering, Roster};
use crate::session::SessionFault;
use dialing::Target;
use directory::Directory;
pub use directory::DirectoryNews;
use standing::Participation;
pub use table::{Expulsion, NotExpelled};

/// How long a connection may take until both sides have accepted each other.
pub const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// How long a connection is asked for a sign of life when another one shows the same identity.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// How long the address that the table has for a node may take to answer, when the node shows
/// another one.
const ASKED_WITHIN: Duration = Duration::from_secs(2);
/// Signs of life in the time after which a silent node is down.
const SIGNS_OF_LIFE: u32 = 4;

/// The number of a connection.
pub type ConnectionId = u64;

/// How hosts are admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// This daemon is the first one, which admits.
    First,
    /// The first daemon admits, which is another one.
    ByFirst,
    /// Each daemon enters itself in the directory.
    ByDirectory,
}

/// The configuration of a daemon in a fabric.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The name of the fabric.
    pub fabric: String,
    /// The own identity.
    pub own: Identity,
    /// Facts about the own node.
    pub about: NodeAbout,
    /// A random number, another one at each start.
    pub incarnation: u64,
    /// How hosts are admitted. A table that was kept beats it, but for the directory.
    pub admission: Admission,
    /// Addresses at which daemons of the fabric may listen.
    pub seeds: Vec<SocketAddr>,
    /// Names of hosts with ports, for people, whose addresses are told later
    /// ([`Machine::seed_is_at`]).
    pub seed_names: Vec<String>,
    /// A node of which nothing is heard for so long is down.
    pub silence: Duration,
}

/// Why a connection ended, or could not be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// One of the two daemons refused.
    Refused(Refusal),
    /// All else, for people.
    Other(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<SessionFault> for Fault {
    fn from(fault: SessionFault) -> Self {
        match fault {
            SessionFault::Refused(refusal) => Self::Refused(refusal),
            other => Self::Other(other.to_string()),
        }
    }
}

/// Something that the users of the fabric are told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The own number was given, or was found in the kept table.
    Numbered(NodeId),
    /// A node can be sent messages.
    Up {
        /// Its number.
        node: NodeId,
        /// The random number of its daemon's start.
        incarnation: u64,
        /// Facts about it.
        about: NodeAbout,
    },
    /// A node cannot be sent messages any more.
    Down {
        /// Its number.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A message of a node.
    Message {
        /// Its number.
        node: NodeId,
        /// The message.
        bytes: Vec<u8>,
    },
}

/// Something that the driver does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Connects to an address, as this connection.
    Dial {
        /// The number of the connection.
        connection: ConnectionId,
        /// Where.
        address: SocketAddr,
    },
    /// Sends a message.
    Send {
        /// Over which connection.
        connection: ConnectionId,
        /// The message.
        message: Message,
    },
    /// Closes a connection behind all that was sent, and tells no more of it.
    Close {
        /// Which.
        connection: ConnectionId,
    },
    /// Keeps the table of nodes over a restart. If that fails, the machine is not to be used any
    /// more.
    Save(Roster),
    /// Puts a table into the directory, if the one in it still has this version. Then, or when it
    /// was refused, the directory is read.
    Propose {
        /// The table.
        table: Roster,
        /// The version of the one that it follows; 0 for none.
        version: u64,
    },
    /// Tells the administrator that the directory cannot be used, and why.
    DirectoryLost(String),
    /// Tells the administrator that the directory can be used again.
    DirectoryFound,
    /// Tells the users.
    Tell(Event),
    /// Tells the administrator that daemons do not work together, and why.
    Complain {
        /// The other daemon, for people.
        about: String,
        /// Why.
        fault: Fault,
    },
}

/// A node cannot be sent a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSent {
    /// It is not up.
    #[error("the node is not up")]
    NotUp,
    /// The message is too long.
    #[error("the message is longer than {USER_BYTES_MAX} bytes")]
    TooLong,
}

/// The state of a node, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It is the own node.
    Own,
    /// It can be sent messages.
    Up,
    /// It cannot.
    Down(String),
    /// It is the own host, which has no number yet.
    Joining(String),
    /// One of the two daemons refuses.
    Refused(String),
}

/// A node, or the own host while it is none, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    /// Its number, if it has one.
    pub node: Option<NodeId>,
    /// Its name, if it is known.
    pub name: Option<String>,
    /// The address at which its daemon listens.
    pub address: SocketAddr,
    /// Its state.
    pub state: NodeState,
}

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// It was dialled.
    Dialing,
    /// The other side knows the key. Its hello has not come.
    Proved { identity: Identity },
    /// Its hello came, and it cannot be accepted or refused yet.
    Known { identity: Identity, hello: Hello },
    /// As `Known`; another connection shows the same identity since then, and is asked for a sign
    /// of life.
    Contending { identity: Identity, hello: Hello, since: Duration },
    /// As `Known`, of a node for which the table has another address: this connection asks there
    /// whether the node still is at that one.
    Moving { identity: Identity, hello: Hello, since: Duration, asks: ConnectionId },
    /// It was accepted, and has not accepted this daemon yet.
    Accepted { number: u32, identity: Identity, hello: Hello },
    /// Both have accepted each other.
    Up { number: u32, identity: Identity, incarnation: u64 },
}

/// A connection.
#[derive(Debug)]
struct Connection {
    role: Role,
    stage: Stage,
    began: Duration,
    heard: Duration,
    pinged: Duration,
    /// The other side has accepted this daemon.
    is_accepted: bool,
    /// The address that was dialled, or from which the connection came, for people.
    place: String,
}

impl Connection {
    const fn identity(&self) -> Option<&Identity> {
        match &self.stage {
            Stage::Dialing => None,
            Stage::Proved { identity }
            | Stage::Known { identity, .. }
            | Stage::Contending { identity, .. }
            | Stage::Moving { identity, .. }
            | Stage::Accepted { identity, .. }
            | Stage::Up { identity, .. } => Some(identity),
        }
    }

    /// The number and the start of a node that was accepted.
    const fn accepted(&self) -> Option<(u32, u64)> {
        match &self.stage {
            Stage::Accepted { number, hello, .. } => Some((*number, hello.incarnation)),
            Stage::Up { number, incarnation, .. } => Some((*number, *incarnation)),
            _ => None,
        }
    }

    const fn up(&self) -> Option<u32> {
        match &self.stage {
            Stage::Up { number, .. } => Some(*number),
            _ => None,
        }
    }
}

/// The state of a daemon in a fabric.
#[derive(Debug)]
pub struct Machine {
    config: MachineConfig,
    roster: Option<Roster>,
    /// The own number, when the table has it.
    number: Option<u32>,
    connections: BTreeMap<ConnectionId, Connection>,
    connection_next: ConnectionId,
    targets: Vec<Target>,
    /// The addresses of the seeds that have names, or why none is known.
    names: BTreeMap<String, Result<Vec<SocketAddr>, String>>,
    directory: Directory,
    standing: Participation,
    outputs: VecDeque<Output>,
    randomness: u64,
    now: Duration,
}

impl Machine {
    /// The state at the start of a daemon, with the table that it kept.
    #[must_use]
    pub fn new(mut config: MachineConfig, kept: Option<Roster>, now: Duration) -> Self {
        let randomness = config.incarnation;
        if let Some(roster) = &kept {
            // The table says who gives numbers, whatever seeds there are now.
            let is_first = roster.first == config.own && roster.numbering == Numbering::First;
            config.admission = match config.admission {
                Admission::ByDirectory => Admission::ByDirectory,
                _ if is_first => Admission::First,
                _ => Admission::ByFirst,
            };
        }
        let asked = |name: &String| (name.clone(), Err("its address is asked for".to_owned()));
        let mut machine = Self {
            names: config.seed_names.iter().map(asked).collect(),
            roster: None,
            number: None,
            connections: BTreeMap::new(),
            connection_next: 0,
            targets: Vec::new(),
            directory: Directory::default(),
            standing: Participation::In,
            outputs: VecDeque::new(),
            randomness,
            now,
            config,
        };
        match kept {
            Some(roster) => {
                machine.use_roster(roster);
                machine.enter();
            }
            None if machine.config.admission == Admission::First => machine.found(),
            None => machine.set_targets(),
        }
        machine
    }

    /// The next thing to do.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The own number; `None` while it was never given.
    #[must_use]
    pub fn number(&self) -> Option<NodeId> {
        self.number.map(NodeId)
    }

    /// A number for a connection that came from `place`.
    pub fn inbound(&mut self, place: String, now: Duration) -> ConnectionId {
        self.now = now;
        // It is told of when the other side has proved that it knows the key.
        self.add(Role::Listener, place)
    }

    fn add(&mut self, role: Role, place: String) -> ConnectionId {
        let id = self.connection_next;
        self.connection_next += 1;
        let now = self.now;
        let connection = Connection {
            role,
            stage: Stage::Dialing,
            began: now,
            heard: now,
            pinged: now,
            is_accepted: false,
            place,
        };
        self.connections.insert(id, connection);
        id
    }

    /// The other side of a connection proved that it knows the key.
    pub fn proved(&mut self, id: ConnectionId, identity: Identity, now: Duration) {
        self.now = now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.stage = Stage::Proved { identity };
        connection.heard = now;
        if !self.may_greet(id, identity) {
            self.end(id, &Fault::Other("this daemon is out of the fabric for a while".to_owned()));
            return;
        }
        let hello = Hello {
            fabric: self.config.fabric.clone(),
            incarnation: self.config.incarnation,
            number: self.number,
            first: self.first(),
            about: self.config.about.clone(),
        };
        self.send(id, Message::Hello(hello));
        if let Some(roster) = self.roster.clone() {
            self.send(id, Message::Roster(roster));
        }
    }

    /// A message came over a connection whose other side proved that it knows the key.
    pub fn message(&mut self, id: ConnectionId, message: Message, now: Duration) {
        self.now = now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.heard = now;
        let up = connection.up();
        let is_proved = matches!(connection.stage, Stage::Proved { .. });
        match message {
            Message::Hello(hello) if is_proved => self.greeted(id, hello),
            Message::Refused(refusal) => self.refused(id, refusal),
            // A daemon says who it is before anything else.
            _ if is_proved => self.refuse(id, Refusal::Protocol),
            Message::Roster(roster) => self.offered(id, roster),
            Message::Accepted { number } if Some(number) == self.number => {
                connection.is_accepted = true;
                self.is_up(id);
            }
            Message::Ping => self.send(id, Message::Pong),
            Message::Pong => {}
            Message::User(bytes) => match up {
                Some(node) => self.tell(Event::Message { node: NodeId(node), bytes }),
                None => self.refuse(id, Refusal::Protocol),
            },
            Message::Hello(_) | Message::Accepted { .. } => self.refuse(id, Refusal::Protocol),
        }
        self.settle();
    }

    /// A connection ended, or could not be made.
    pub fn closed(&mut self, id: ConnectionId, fault: &Fault, now: Duration) {
        self.now = now;
        self.ended(id, fault);
        self.settle();
    }

    /// Sends a message of a user to a node.
    ///
    /// # Errors
    /// The node is not up, or the message is too long.
    pub fn send_user(&mut self, node: NodeId, bytes: Vec<u8>) -> Result<(), NotSent> {
        if bytes.len() > USER_BYTES_MAX {
            return Err(NotSent::TooLong);
        }
        let mut all = self.connections.iter();
        let found = all.find(|(_, connection)| connection.up() == Some(node.0));
        let id = found.map(|(id, _)| *id).ok_or(NotSent::NotUp)?;
        self.send(id, Message::User(bytes));
        Ok(())
    }

    /// Looks at the clock: dials, asks for signs of life, gives up. To be called when the time of
    /// [`Machine::wakes_at`] comes.
    pub fn tick(&mut self, now: Duration) {
        self.allow_for_pause(now);
        self.now = now;
        self.stand();
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.look_at(id);
        }
        self.settle();
        self.dial();
    }

    /// When [`Machine::tick`] is to be called at the latest.
    #[must_use]
    pub fn wakes_at(&self) -> Duration {
        let connections = self.connections_wake_at().into_iter();
        let dials = self.next_dial().into_iter();
        let soonest = connections.chain(self.standing.ends_at()).chain(dials).min();
        soonest.unwrap_or(Duration::MAX)
    }

    /// When a connection is to be looked at.
    fn connections_wake_at(&self) -> Option<Duration> {
        let silence = self.config.silence;
        let connections = self.connections.values().map(|connection| match connection.stage {
            Stage::Up { .. } => {
                (connection.pinged + silence / SIGNS_OF_LIFE).min(connection.heard + silence)
            }
            Stage::Contending { since, .. } => since + PROBE_WITHIN,
            Stage::Moving { since, .. } => since + ASKED_WITHIN,
            _ => connection.began + HANDSHAKE_WITHIN,
        });
        connections.min()
    }

    /// A daemon that looks long after it wanted to was stopped, or did not get its turn. What it
    /// did not hear meanwhile counts against nobody.
    fn allow_for_pause(&mut self, now: Duration) {
        let Some(wanted) = self.connections_wake_at() else { return };
        let late = now.saturating_sub(wanted);
        if late < self.config.silence / SIGNS_OF_LIFE {
            return;
        }
        let move_on = |time: &mut Duration| *time = (*time + late).min(now);
        for connection in self.connections.values_mut() {
            move_on(&mut connection.began);
            move_on(&mut connection.heard);
            if let Stage::Contending { since, .. } | Stage::Moving { since, .. } =
                &mut connection.stage
            {
                move_on(since);
            }
        }
    }

    fn look_at(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (now, silence) = (self.now, self.config.silence);
        if matches!(connection.stage, Stage::Up { .. }) {
            if connection.heard + silence <= now {
                let reason = format!("nothing was heard of it for {} ms", silence.as_millis());
                self.end(id, &Fault::Other(reason));
            } else if connection.pinged + silence / SIGNS_OF_LIFE <= now {
                connection.pinged = now;
                self.send(id, Message::Ping);
            }
        } else if connection.began + HANDSHAKE_WITHIN <= now {
            let reason = match connection.stage {
                Stage::Dialing => "it does not answer",
                _ => "it does not go on with the handshake",
            };
            let seconds = HANDSHAKE_WITHIN.as_secs();
            self.end(id, &Fault::Other(format!("{reason} within {seconds} s")));
        }
    }

    /// Ends a connection for a reason of this side.
    fn end(&mut self, id: ConnectionId, fault: &Fault) {
        self.outputs.push_back(Output::Close { connection: id });
        self.ended(id, fault);
    }

    /// Takes a connection that has ended out of the state.
    fn ended(&mut self, id: ConnectionId, fault: &Fault) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(number) = connection.up() {
            self.tell(Event::Down { node: NodeId(number), reason: fault.to_string() });
        }
        self.schedule(id, &connection, fault);
        self.has_looked(id, fault);
    }

    fn send(&mut self, connection: ConnectionId, message: Message) {
        self.outputs.push_back(Output::Send { connection, message });
    }

    fn tell(&mut self, event: Event) {
        self.outputs.push_back(Output::Tell(event));
    }

    /// The identity of the first daemon, as far as it is known.
    fn first(&self) -> Option<Identity> {
        self.roster.as_ref().map(|roster| roster.first)
    }

    /// A random number below `bound`, which is not 0.
    fn random(&mut self, bound: u64) -> u64 {
        // splitmix64: no secret hangs on it.
        self.randomness = self.randomness.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.randomness;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}
