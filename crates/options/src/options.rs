//! The values in force, and where each came from.

use std::fmt;
use std::time::Duration;

use crate::build::{Builder, Problem};
use crate::table::{Entry, Id, Kind, TABLE};

/// Where a value came from; the later ones beat the earlier ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The table.
    Default,
    /// A file.
    File {
        /// Its path.
        path: String,
    },
    /// The environment variable of the option.
    Environment,
    /// The flag of the option.
    Flag,
}

impl Origin {
    /// Higher beats lower.
    pub(crate) const fn rank(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Environment => 2,
            Self::Flag => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path } => write!(f, "file {path}"),
            Self::Environment => f.write_str("environment"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// Which queue of a device a packet goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueChoice {
    /// One for each flow.
    Flow,
    /// One for each processor that sends.
    Processor,
    /// One after the other.
    RoundRobin,
}

/// How long copies are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyMethod {
    /// By length.
    Auto,
    /// Ordinary stores.
    Plain,
    /// Stores that go past the cache.
    NonTemporal,
}

/// One value: a number, where booleans are 0 and 1 and choices their place; or a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub(crate) number: u64,
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// Every option's value. Cheap to build: one pass over the pairs, and no allocation for defaults
/// beyond the struct itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    pub(crate) settings: [Setting; TABLE.len()],
}

impl Default for Options {
    fn default() -> Self {
        Self { settings: std::array::from_fn(|place| default_of(&TABLE[place])) }
    }
}

fn default_of(entry: &Entry) -> Setting {
    let number = match entry.kind {
        Kind::Integer { default, .. } => default,
        Kind::Boolean { default } => u64::from(default),
        Kind::Choice { .. } | Kind::Path => 0,
    };
    Setting { number, text: String::new(), origin: Origin::Default }
}

impl Options {
    /// The defaults, changed by the `WEFT_*` variables among `pairs`. What is wrong with a
    /// variable is told, and its option keeps the default: for programs that must go on.
    pub fn from_environment<N, V>(pairs: impl IntoIterator<Item = (N, V)>) -> (Self, Vec<Problem>)
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut builder = Builder::new();
        builder.environment(pairs);
        builder.finish()
    }

    /// Where the value of an option came from.
    #[must_use]
    pub fn origin(&self, id: Id) -> &Origin {
        &self.setting(id).origin
    }

    /// The value of an option, as a person would write it.
    #[must_use]
    pub fn text(&self, id: Id) -> String {
        let setting = self.setting(id);
        match id.entry().kind {
            Kind::Integer { .. } => setting.number.to_string(),
            Kind::Boolean { .. } => (setting.number != 0).to_string(),
            Kind::Choice { choices } => {
                choices.get(self.place(id)).copied().unwrap_or_default().to_owned()
            }
            Kind::Path => setting.text.clone(),
        }
    }

    /// The values that are not defaults as pairs for the environment of a program, so that it
    /// sees what the caller's file and flags say.
    pub fn to_environment(&self) -> impl Iterator<Item = (String, String)> {
        TABLE
            .iter()
            .filter(|entry| *self.origin(entry.id) != Origin::Default)
            .map(|entry| (entry.variable(), self.text(entry.id)))
    }

    /// Messages that wait in a mailbox, for each sender.
    #[must_use]
    pub fn shm_ring_slots(&self) -> usize {
        self.place(Id::ShmRingSlots)
    }

    /// Microseconds that a waiting endpoint spins.
    #[must_use]
    pub fn shm_spin_us(&self) -> u64 {
        self.setting(Id::ShmSpinUs).number
    }

    /// How often a waiting endpoint yields.
    #[must_use]
    pub fn shm_yields(&self) -> u32 {
        self.count(Id::ShmYields)
    }

    /// How long copies are done.
    #[must_use]
    pub fn shm_copy(&self) -> CopyMethod {
        match self.setting(Id::ShmCopy).number {
            1 => CopyMethod::Plain,
            2 => CopyMethod::NonTemporal,
            _ => CopyMethod::Auto,
        }
    }

    /// Whether TCP connections may move to the fabric.
    #[must_use]
    pub fn socket_enable(&self) -> bool {
        self.setting(Id::SocketEnable).number != 0
    }

    /// Longest write that travels as eager messages.
    #[must_use]
    pub fn socket_eager_bytes(&self) -> usize {
        self.place(Id::SocketEagerBytes)
    }

    /// Bytes that a connection holds in each direction.
    #[must_use]
    pub fn socket_sink_bytes(&self) -> usize {
        self.place(Id::SocketSinkBytes)
    }

    /// Length of the pieces of a long write; never more than the sink.
    #[must_use]
    pub fn socket_chunk_bytes(&self) -> usize {
        self.place(Id::SocketChunkBytes).min(self.socket_sink_bytes())
    }

    /// Calls that go over TCP before a connection asks for the fabric.
    #[must_use]
    pub fn socket_switch_calls(&self) -> u64 {
        self.setting(Id::SocketSwitchCalls).number
    }

    /// Bytes after which it asks however few calls there were.
    #[must_use]
    pub fn socket_switch_bytes(&self) -> u64 {
        self.setting(Id::SocketSwitchBytes).number
    }

    /// Microseconds that a first call waits for the peer to agree, where it asks at the first.
    #[must_use]
    pub fn socket_switch_wait_us(&self) -> u64 {
        self.setting(Id::SocketSwitchWaitUs).number
    }

    /// Lanes that a process may have at a time.
    #[must_use]
    pub fn socket_lanes_max(&self) -> usize {
        self.place(Id::SocketLanesMax)
    }

    /// Milliseconds without traffic after which another connection may get the lane of one.
    #[must_use]
    pub fn socket_rest_ms(&self) -> u64 {
        self.setting(Id::SocketRestMs).number
    }

    /// Lanes that a process keeps for later connections, at either end.
    #[must_use]
    pub fn socket_lanes_kept(&self) -> usize {
        self.place(Id::SocketLanesKept)
    }

    /// Longest packet that goes to a node in messages.
    #[must_use]
    pub fn ether_eager_bytes(&self) -> usize {
        self.place(Id::EtherEagerBytes)
    }

    /// Longest packet that goes to several nodes in messages.
    #[must_use]
    pub fn ether_eager_group_bytes(&self) -> usize {
        self.place(Id::EtherEagerGroupBytes)
    }

    /// Long packets that wait for one node to take them.
    #[must_use]
    pub fn ether_slots(&self) -> u32 {
        self.count(Id::EtherSlots)
    }

    /// Packets that wait for one node before its device is read no further.
    #[must_use]
    pub fn ether_backlog(&self) -> usize {
        self.place(Id::EtherBacklog)
    }

    /// Packets that wait for one node that takes none.
    #[must_use]
    pub fn ether_backlog_stalled(&self) -> usize {
        self.place(Id::EtherBacklogStalled)
    }

    /// Queues of each Ethernet device.
    #[must_use]
    pub fn ether_queues(&self) -> usize {
        self.place(Id::EtherQueues)
    }

    /// Which of them a packet goes to.
    #[must_use]
    pub fn ether_steering(&self) -> QueueChoice {
        match self.setting(Id::EtherSteering).number {
            1 => QueueChoice::Processor,
            2 => QueueChoice::RoundRobin,
            _ => QueueChoice::Flow,
        }
    }

    /// How long a loaded loop leaves its Ethernet devices alone.
    #[must_use]
    pub fn ether_coalesce(&self) -> Duration {
        Duration::from_micros(self.setting(Id::EtherCoalesce).number)
    }

    /// Threads that serve the Ethernet devices; 0: as many as suit the machine.
    #[must_use]
    pub fn ether_loops(&self) -> usize {
        self.place(Id::EtherLoops)
    }

    /// Whether floods of datagrams are held back before a device drops them.
    #[must_use]
    pub fn ether_pace(&self) -> bool {
        self.setting(Id::EtherPace).number != 0
    }

    /// How long it is learned who wants which group.
    #[must_use]
    pub fn ether_learn_ms(&self) -> Duration {
        Duration::from_millis(self.setting(Id::EtherLearnMs).number)
    }

    /// How long a program waits for an answer of the daemon.
    #[must_use]
    pub fn daemon_answer_ms(&self) -> u64 {
        self.setting(Id::DaemonAnswerMs).number
    }

    /// Endpoints that a node may have.
    #[must_use]
    pub fn daemon_endpoints_max(&self) -> usize {
        self.place(Id::DaemonEndpointsMax)
    }

    /// Direct-socket connections that a node may have.
    #[must_use]
    pub fn daemon_connections_max(&self) -> usize {
        self.place(Id::DaemonConnectionsMax)
    }

    /// How many percent of what others leave one user may have.
    #[must_use]
    pub fn daemon_user_share(&self) -> u8 {
        u8::try_from(self.setting(Id::DaemonUserShare).number).unwrap_or(crate::share::ALL)
    }

    /// The control socket, or `None` when it is found by rule ([`crate::runtime_path`]).
    #[must_use]
    pub fn daemon_socket(&self) -> Option<&str> {
        let text = self.setting(Id::DaemonSocket).text.as_str();
        (!text.is_empty()).then_some(text)
    }

    fn setting(&self, id: Id) -> &Setting {
        &self.settings[id as usize]
    }

    /// The number as a length or place; the table's maxima fit in 32 bits.
    fn place(&self, id: Id) -> usize {
        usize::try_from(self.setting(id).number).unwrap_or(usize::MAX)
    }

    fn count(&self, id: Id) -> u32 {
        u32::try_from(self.setting(id).number).unwrap_or(u32::MAX)
    }
}
