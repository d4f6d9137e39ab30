//! The table itself: one entry for each option, and the variables that are not options.

use std::fmt;

/// Names an option; its number is its place in [`TABLE`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Id {
    /// `shm.ring_slots`.
    ShmRingSlots,
    /// `shm.spin_us`.
    ShmSpinUs,
    /// `shm.yields`.
    ShmYields,
    /// `shm.copy`.
    ShmCopy,
    /// `socket.enable`.
    SocketEnable,
    /// `socket.eager_bytes`.
    SocketEagerBytes,
    /// `socket.sink_bytes`.
    SocketSinkBytes,
    /// `socket.chunk_bytes`.
    SocketChunkBytes,
    /// `socket.switch_calls`.
    SocketSwitchCalls,
    /// `socket.switch_bytes`.
    SocketSwitchBytes,
    /// `socket.switch_wait_us`.
    SocketSwitchWaitUs,
    /// `socket.lanes_max`.
    SocketLanesMax,
    /// `socket.rest_ms`.
    SocketRestMs,
    /// `socket.lanes_kept`.
    SocketLanesKept,
    /// `ether.eager_bytes`.
    EtherEagerBytes,
    /// `ether.eager_group_bytes`.
    EtherEagerGroupBytes,
    /// `ether.slots`.
    EtherSlots,
    /// `ether.backlog`.
    EtherBacklog,
    /// `ether.backlog_stalled`.
    EtherBacklogStalled,
    /// `ether.queues`.
    EtherQueues,
    /// `ether.steering`.
    EtherSteering,
    /// `ether.loops`.
    EtherLoops,
    /// `ether.coalesce`.
    EtherCoalesce,
    /// `ether.pace`.
    EtherPace,
    /// `ether.learn_ms`.
    EtherLearnMs,
    /// `daemon.answer_ms`.
    DaemonAnswerMs,
    /// `daemon.endpoints_max`.
    DaemonEndpointsMax,
    /// `daemon.connections_max`.
    DaemonConnectionsMax,
    /// `daemon.user_share`.
    DaemonUserShare,
    /// `daemon.socket`.
    DaemonSocket,
}

impl Id {
    /// The option's entry in the table.
    #[must_use]
    pub fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }
}

/// The part of weft that an option belongs to; manual and dump are grouped by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Category {
    /// The shared-memory transport.
    SharedMemory,
    /// Direct sockets, that is the preload library.
    Sockets,
    /// Ethernet devices.
    Ethernet,
    /// The node daemon.
    Daemon,
}

impl Category {
    /// Its heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared memory",
            Self::Sockets => "sockets",
            Self::Ethernet => "ethernet",
            Self::Daemon => "daemon",
        }
    }
}

/// The type of an option, with its default and its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A whole number.
    Integer {
        /// Used when nothing else is said.
        default: u64,
        /// Smallest value.
        minimum: u64,
        /// Largest value.
        maximum: u64,
        /// Only powers of two are valid.
        power_of_two: bool,
    },
    /// `true` or `false`; also 1 and 0, yes and no, on and off.
    Boolean {
        /// Used when nothing else is said.
        default: bool,
    },
    /// One of a few words; the first is the default.
    Choice {
        /// The words.
        choices: &'static [&'static str],
    },
    /// A path; empty by default.
    Path,
}

impl Kind {
    /// The default, as a person would write it.
    #[must_use]
    pub fn default_text(&self) -> String {
        match *self {
            Self::Integer { default, .. } => default.to_string(),
            Self::Boolean { default } => default.to_string(),
            Self::Choice { choices } => choices.first().copied().unwrap_or_default().to_owned(),
            Self::Path => String::new(),
        }
    }
}

/// The values that are allowed, in words.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer { minimum, maximum, power_of_two: true, .. } => {
                write!(f, "a power of two from {minimum} to {maximum}")
            }
            Self::Integer { minimum, maximum, .. } => {
                write!(f, "a whole number from {minimum} to {maximum}")
            }
            Self::Boolean { .. } => f.write_str("true or false"),
            Self::Choice { choices } => write!(f, "one of {}", choices.join(", ")),
            Self::Path => f.write_str("an absolute path of at most 107 bytes, or nothing"),
        }
    }
}

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place in the table.
    pub id: Id,
    /// Its name as in `weft.toml`: area, dot, name.
    pub name: &'static str,
    /// Type, default and range.
    pub kind: Kind,
    /// Unit of the value; empty where there is none.
    pub unit: &'static str,
    /// The part of weft it belongs to.
    pub category: Category,
    /// What it does, with the memory it can cost at worst.
    pub text: &'static str,
}

impl Entry {
    /// Its environment variable: `shm.ring_slots` is `WEFT_SHM_RING_SLOTS`.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("WEFT_{}", self.name.replace('.', "_").to_ascii_uppercase())
    }

    /// Its flag without the dashes: `shm.ring_slots` is `shm-ring-slots`.
    #[must_use]
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }

    /// True when `variable` is the environment variable of this option; allocates nothing.
    #[must_use]
    pub fn is_variable(&self, variable: &str) -> bool {
        variable.strip_prefix("WEFT_").is_some_and(|rest| {
            rest.len() == self.name.len()
                && rest.bytes().zip(self.name.bytes()).all(|(given, own)| {
                    given == if own == b'.' { b'_' } else { own.to_ascii_uppercase() }
                })
        })
    }
}

/// A variable of weft's that is no option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub text: &'static str,
}

/// The variables that begin with `WEFT_` and are no options.
pub const OTHER_VARIABLES: [Variable; 6] = [
    Variable {
        name: "WEFT_LOG",
        text: "What to log, as `warn`, `debug` or `weftd=debug,info`; default `warn`.",
    },
    Variable {
        name: "WEFT_CONFIG",
        text: "The configuration file; default `$XDG_CONFIG_HOME/weft/weft.toml`, then \
               `~/.config/weft/weft.toml`, then `/etc/weft/weft.toml`.",
    },
    Variable { name: "WEFT_NODE", text: "The node's name; default `default`. `--node` beats it." },
    Variable {
        name: "WEFT_SOCKET",
        text: "The control socket of the node daemon, set by `weft run` for its program.",
    },
    Variable {
        name: "WEFT_PRELOAD",
        text: "The preload library, when it is not beside the program or in `../lib/weft`.",
    },
    Variable {
        name: "WEFT_STATS",
        text: "Where the program's counters go, set by `weft run --stats` for its program.",
    },
];

const fn integer(default: u64, minimum: u64, maximum: u64) -> Kind {
    Kind::Integer { default, minimum, maximum, power_of_two: false }
}

const fn power_of_two(default: u64, minimum: u64, maximum: u64) -> Kind {
    Kind::Integer { default, minimum, maximum, power_of_two: true }
}

/// Every option of weft.
pub const TABLE: [Entry; 30] = [
    Entry {
        id: Id::ShmRingSlots,
        name: "shm.ring_slots",
        kind: power_of_two(256, 16, 65_536),
        unit: "slots",
        category: Category::SharedMemory,
        text: "Messages of one sender that wait in a mailbox before the sender is refused. \
               Memory: 128 bytes a slot for each ordered pair that talks, that is 32 KiB by \
               default and 8 MiB at most.",
    },
    Entry {
        id: Id::ShmSpinUs,
        name: "shm.spin_us",
        kind: integer(2, 0, 1_000),
        unit: "us",
        category: Category::SharedMemory,
        text: "How long a waiting endpoint spins before it begins to yield. No memory.",
    },
    Entry {
        id: Id::ShmYields,
        name: "shm.yields",
        kind: integer(100, 0, 10_000),
        unit: "times",
        category: Category::SharedMemory,
        text: "How often a waiting endpoint yields its core before it sleeps. No memory.",
    },
    Entry {
        id: Id::ShmCopy,
        name: "shm.copy",
        kind: Kind::Choice { choices: &["auto", "plain", "nontemporal"] },
        unit: "",
        category: Category::SharedMemory,
        text: "How long copies are done: `plain` stores leave the data in the writer's cache, \
               `nontemporal` stores go past it. `auto`: the daemon measures both when it starts, \
               for sockets; puts and gets stay plain. No memory.",
    },
    Entry {
        id: Id::SocketEnable,
        name: "socket.enable",
        kind: Kind::Boolean { default: true },
        unit: "",
        category: Category::Sockets,
        text: "Whether TCP connections may move to the fabric; `false` keeps all on TCP. No \
               memory.",
    },
    Entry {
        id: Id::SocketEagerBytes,
        name: "socket.eager_bytes",
        kind: integer(480, 0, 4_096),
        unit: "bytes",
        category: Category::Sockets,
        text: "Writes up to this length travel as eager messages, longer ones are put into the \
               receiver's sink (003 section 5.4.6.2 found 120 to 480 best). No memory of its \
               own.",
    },
    Entry {
        id: Id::SocketSinkBytes,
        name: "socket.sink_bytes",
        kind: power_of_two(262_144, 16_384, 16_777_216),
        unit: "bytes",
        category: Category::Sockets,
        text: "Bytes that a connection holds in each direction between writer and reader. \
               Memory: this much for each direction once it was used, that is 512 KiB a \
               connection by default and 32 MiB at most.",
    },
    Entry {
        id: Id::SocketChunkBytes,
        name: "socket.chunk_bytes",
        kind: integer(16_384, 1_024, 1_048_576),
        unit: "bytes",
        category: Category::Sockets,
        text: "A long write is announced to the reader in pieces of this length, so that both \
               copy at the same time; more than the sink counts as the sink. No memory.",
    },
    Entry {
        id: Id::SocketSwitchCalls,
        name: "socket.switch_calls",
        kind: integer(4, 0, 1_000_000),
        unit: "calls",
        category: Category::Sockets,
        text: "Reads and writes of a connection that go over TCP before it moves to the fabric; 0 \
               moves it at the first. A lane costs as much as some ten exchanges over TCP, so \
               connections that end sooner are better off there. No memory; without it idle \
               connections would have a lane each.",
    },
    Entry {
        id: Id::SocketSwitchBytes,
        name: "socket.switch_bytes",
        kind: integer(32_768, 0, 1 << 40),
        unit: "bytes",
        category: Category::Sockets,
        text: "Bytes that a connection moved, or is about to write, after which it moves to the \
               fabric however few calls there were. No memory.",
    },
    Entry {
        id: Id::SocketSwitchWaitUs,
        name: "socket.switch_wait_us",
        kind: integer(1_000, 0, 10_000_000),
        unit: "us",
        category: Category::Sockets,
        text: "With `socket.switch_calls = 0`: how long the first call of a connection waits for \
               the other end to agree to the fabric; after that the bytes go over TCP and the \
               connection switches later. No memory.",
    },
    Entry {
        id: Id::SocketLanesMax,
        name: "socket.lanes_max",
        kind: integer(1_536, 1, 1_048_576),
        unit: "lanes",
        category: Category::Sockets,
        text: "Connections of a process that are on the fabric at a time; with as many, others \
               stay on TCP until some rest and give theirs back. Memory: about 16 KiB each when \
               idle, twice `socket.sink_bytes` once it was full.",
    },
    Entry {
        id: Id::SocketRestMs,
        name: "socket.rest_ms",
        kind: integer(250, 0, 86_400_000),
        unit: "ms",
        category: Category::Sockets,
        text: "How long a connection moves nothing before it may lose its place among \
               `socket.lanes_max` to one that is in use. No memory.",
    },
    Entry {
        id: Id::SocketLanesKept,
        name: "socket.lanes_kept",
        kind: integer(8, 0, 1_024),
        unit: "lanes",
        category: Category::Sockets,
        text: "Lanes that a process keeps when their connections end, for the next ones with the \
               same processes, which then move to the fabric without the daemon; so many of those \
               that it accepted, and of those that it began. 0: none. Memory: 16 KiB each, twice \
               `socket.sink_bytes` once it was full.",
    },
    Entry {
        id: Id::EtherEagerBytes,
        name: "ether.eager_bytes",
        kind: integer(480, 0, 65_562),
        unit: "bytes",
        category: Category::Ethernet,
        text: "Packets up to this length, with their 12 bytes of offloads, go to a node in \
               messages, longer ones wait in a ring until it takes them (003 section 5.4.6.2 \
               found 120 to 480 best). No memory of its own.",
    },
    Entry {
        id: Id::EtherEagerGroupBytes,
        name: "ether.eager_group_bytes",
        kind: integer(2_048, 0, 65_562),
        unit: "bytes",
        category: Category::Ethernet,
        text: "The same for packets to several nodes at once. No memory of its own.",
    },
    Entry {
        id: Id::EtherSlots,
        name: "ether.slots",
        kind: integer(32, 1, 4_096),
        unit: "packets",
        category: Category::Ethernet,
        text: "Long packets that wait for one node to take them. Memory: 68 KiB each for each \
               ordered pair of nodes that talks, that is 2 MiB by default and 272 MiB at most.",
    },
    Entry {
        id: Id::EtherBacklog,
        name: "ether.backlog",
        kind: integer(32, 1, 4_096),
        unit: "packets",
        category: Category::Ethernet,
        text: "Further packets that wait for one node before the device is read no further; a \
               stream of long ones stops it as soon as the ring is full. Memory: up to 64 KiB \
               each while they wait.",
    },
    Entry {
        id: Id::EtherBacklogStalled,
        name: "ether.backlog_stalled",
        kind: integer(1_024, 1, 65_536),
        unit: "packets",
        category: Category::Ethernet,
        text: "The same for a node that has taken none for 20 ms, so that others do not wait for \
               it. Memory: up to 64 KiB each while they wait, 64 MiB by default for each node.",
    },
    Entry {
        id: Id::EtherQueues,
        name: "ether.queues",
        kind: integer(1, 1, 16),
        unit: "queues",
        category: Category::Ethernet,
        text: "Queues of each Ethernet device, each with a port of its own, for the threads of \
               ether.loops to share; the same on all nodes of a network, which has room for 256 \
               on one host. Memory: that of ether.slots for each.",
    },
    Entry {
        id: Id::EtherSteering,
        name: "ether.steering",
        kind: Kind::Choice { choices: &["flow", "processor", "round-robin"] },
        unit: "",
        category: Category::Ethernet,
        text: "Which queue the kernel puts a packet into: by flow, which keeps each flow in order; \
               by the processor that sends; one after the other. The last two need CAP_BPF, and \
               let packets of a flow overtake each other (000 section 3.4). No memory.",
    },
    Entry {
        id: Id::EtherLoops,
        name: "ether.loops",
        kind: integer(0, 0, 64),
        unit: "threads",
        category: Category::Ethernet,
        text: "Threads that serve the Ethernet devices of a daemon; a queue of a device has one of \
               them, so that packets stay in order. 0: one for every two processors. No memory.",
    },
    Entry {
        id: Id::EtherCoalesce,
        name: "ether.coalesce",
        kind: integer(50, 0, 10_000),
        unit: "us",
        category: Category::Ethernet,
        text: "How long a loop leaves its devices alone after it has emptied them, counted from \
               when it began, above 20 MB/s; two fifths of that above 10 MB/s, and below nothing. \
               Frees processor time for latency (ixgbe in 003 section 5.4.6.2: 125). 0: never. No \
               memory.",
    },
    Entry {
        id: Id::EtherPace,
        name: "ether.pace",
        kind: Kind::Boolean { default: true },
        unit: "",
        category: Category::Ethernet,
        text: "Whether a queueing discipline holds floods of datagrams back, at a rate that \
               follows what the daemon reads: their senders wait, where the device would drop. \
               Memory: up to 64 MiB of packets that wait for a device, in the kernel.",
    },
    Entry {
        id: Id::EtherLearnMs,
        name: "ether.learn_ms",
        kind: integer(12_000, 0, 3_600_000),
        unit: "ms",
        category: Category::Ethernet,
        text: "How long a daemon that has begun sends what is for an IP multicast group to all \
               nodes, until it has heard who wants it: hosts answer within 10 s. With less, hosts \
               that had joined before it began may miss what comes before they answer. No memory.",
    },
    Entry {
        id: Id::DaemonAnswerMs,
        name: "daemon.answer_ms",
        kind: integer(100, 1, 60_000),
        unit: "ms",
        category: Category::Daemon,
        text: "How long a program waits for an answer of the daemon before its connections stay on \
               TCP; more where processors are so busy that the daemon comes late. No memory.",
    },
    Entry {
        id: Id::DaemonEndpointsMax,
        name: "daemon.endpoints_max",
        kind: integer(256, 1, 256),
        unit: "endpoints",
        category: Category::Daemon,
        text: "Endpoints a node may have; Extoll's limit is 256 (003 section 3.2.3). Memory: \
               about 1 KiB each in the daemon.",
    },
    Entry {
        id: Id::DaemonConnectionsMax,
        name: "daemon.connections_max",
        kind: integer(16_384, 1, 1_048_576),
        unit: "connections",
        category: Category::Daemon,
        text: "Direct-socket connections a node may have; further ones stay on TCP. Memory: \
               about 1 KiB each in the daemon; for those of the programs see \
               `socket.lanes_max`.",
    },
    Entry {
        id: Id::DaemonUserShare,
        name: "daemon.user_share",
        kind: integer(50, 1, 100),
        unit: "percent",
        category: Category::Daemon,
        text: "How much of the programs, connections, listeners, endpoints, keys and descriptors \
               that the others leave one user may have, so that nobody can take all; root and the \
               daemon's own user may. No memory.",
    },
    Entry {
        id: Id::DaemonSocket,
        name: "daemon.socket",
        kind: Kind::Path,
        unit: "",
        category: Category::Daemon,
        text: "The control socket. Empty: `/run/weft/NODE.sock` for root or when a system \
               daemon is there, else `$XDG_RUNTIME_DIR/weft/NODE.sock`, else \
               `/tmp/weft-UID/NODE.sock`. No memory.",
    },
];
