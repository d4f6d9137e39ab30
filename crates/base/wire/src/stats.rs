//! The counters that a program under weft shares with those who watch it: with `weft run --stats`,
//! and with the daemon.
//!
//! A block is [`BYTES`] bytes of shared memory, in native byte order:
//!
//! ```text
//! 0     magic, version, and how many connections stayed on TCP so far: words of 64 bits
//! 512   the counters: SHARDS arrays of words at fixed indices, 512 bytes apart
//! 4608  the connections that stayed on TCP last: records of RECORD_BYTES bytes
//! 8192  the turns of connections on the fabric: TURNS words, a histogram of `weft-metrics`
//! ```
//!
//! The maker creates the block with magic and version, and zeros elsewhere. Each thread adds to the
//! counters of one shard with relaxed atomics, so that threads on several processors do not take
//! the same line from each other. A reader copies the block once, adds the shards up, takes the
//! counters as numbers and trusts nothing else.
//!
//! Invariants: a counter only grows ([`PROCESSES`] counts all processes that ever mapped the
//! block). A connection is counted once for each end that is under the command. It counts as a
//! fabric connection when it switched, and as a TCP connection, with its reason, when it never did.
//! Failed connects are not counted.
//!
//! ```
//! use weft_wire::stats::{self, Stats, TcpReason};
//!
//! let mut block = vec![0_u8; stats::BYTES];
//! block[..16].copy_from_slice(&Stats::header());
//! let place = stats::place(1, TcpReason::PeerNotWeft.index());
//! block[place..place + 8].copy_from_slice(&3_u64.to_ne_bytes());
//! let stats = Stats::parse(&block)?;
//! assert_eq!(stats.reason(TcpReason::PeerNotWeft), 3);
//! # Ok::<(), weft_wire::stats::InvalidStats>(())
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// Size of the block in bytes: three pages.
pub const BYTES: usize = 12288;
/// The value of counter [`MAGIC_INDEX`]: `weftstat`.
pub const MAGIC: u64 = u64::from_be_bytes(*b"weftstat");
/// The value of counter [`VERSION_INDEX`].
pub const VERSION: u64 = 4;

/// Index of the magic.
pub const MAGIC_INDEX: usize = 0;
/// Index of the version.
pub const VERSION_INDEX: usize = 1;
/// Index of the number of records that were begun.
pub const RECORDS_INDEX: usize = 2;
/// Arrays of counters.
pub const SHARDS: usize = 8;
/// Bytes from one array to the next; the first is as far from the start.
const SHARD_BYTES: usize = 512;
/// Bytes of a record of a connection that stayed on TCP.
pub const RECORD_BYTES: usize = 64;
/// Words of 64 bits of a record.
pub const RECORD_WORDS: usize = RECORD_BYTES / 8;
/// Start of the records.
const RECORDS_START: usize = SHARD_BYTES * (SHARDS + 1);
/// Start of the turns, behind the records.
pub const TURNS_START: usize = 8192;
/// Words of the turns.
pub const TURNS: usize = 161;
/// Records that a block holds: those of the last connections.
pub const RECORDS: usize = (TURNS_START - RECORDS_START) / RECORD_BYTES;

/// Offset of a counter in an array, of which there are [`SHARDS`].
#[must_use]
pub const fn place(shard: usize, counter: usize) -> usize {
    SHARD_BYTES * (1 + shard % SHARDS) + counter * 8
}

/// Offset of the record of the connection with a number, as [`RECORDS_INDEX`] counts them.
#[must_use]
pub const fn record_place(number: u64) -> usize {
    // The remainder is below RECORDS.
    #[allow(clippy::cast_possible_truncation, reason = "the remainder is small")]
    let place = (number % RECORDS as u64) as usize;
    RECORDS_START + place * RECORD_BYTES
}

/// Index of the connections that moved to the fabric.
pub const CONNECTIONS_FABRIC: usize = 0;
/// Index of the connections that stayed on TCP.
pub const CONNECTIONS_TCP: usize = 1;
/// Index of the bytes sent over the fabric.
pub const BYTES_FABRIC_SENT: usize = 2;
/// Index of the bytes received over the fabric.
pub const BYTES_FABRIC_RECEIVED: usize = 3;
/// Index of the bytes sent over TCP.
pub const BYTES_TCP_SENT: usize = 4;
/// Index of the bytes received over TCP.
pub const BYTES_TCP_RECEIVED: usize = 5;
/// Index of the processes that mapped the block.
pub const PROCESSES: usize = 6;
/// Index of the first counter of a [`TcpReason`].
pub const REASONS: usize = 7;
/// Counters reserved for reasons; unused ones stay zero.
pub const REASON_PLACES: usize = 32;
/// Index of the first counter of [`Work`].
pub const WORKS: usize = REASONS + REASON_PLACES;
/// Number of counters in use, from index 0.
pub const COUNTERS: usize = WORKS + Work::ALL.len();

/// A count of the work of a server or a tool of weft: a total since it began.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Work {
    /// Commands that clients of `weft kv` gave.
    KvCommands = 0,
    /// Commands that were answered with an error.
    KvErrors = 1,
    /// Keys that were read and found.
    KvHits = 2,
    /// Keys that were read and not found.
    KvMisses = 3,
    /// Bytes from clients.
    KvReceivedBytes = 4,
    /// Bytes to clients.
    KvSentBytes = 5,
    /// Clients that connected.
    KvConnections = 6,
    /// Files, directories and others that a copy has done.
    CopyEntries = 7,
    /// Bytes that it moved.
    CopyBytes = 8,
    /// Files that failed or changed meanwhile.
    CopyTroubles = 9,
    /// Reads of units of `weft block`.
    BlockReads = 10,
    /// Bytes that they read.
    BlockReadBytes = 11,
    /// Writes.
    BlockWrites = 12,
    /// Bytes that they wrote.
    BlockWrittenBytes = 13,
    /// Other operations on units.
    BlockOthers = 14,
    /// Operations that failed.
    BlockErrors = 15,
    /// Processes of a job of `weft oshrun`, on all hosts.
    JobProcesses = 16,
    /// Those that were started on this host.
    JobStarted = 17,
    /// Those of them that have ended.
    JobEnded = 18,
    /// Those of them that ended with an error or by a signal.
    JobFailed = 19,
    /// Processor time of those of this host, in milliseconds.
    JobProcessorMs = 20,
}

impl Work {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::KvCommands,
        Self::KvErrors,
        Self::KvHits,
        Self::KvMisses,
        Self::KvReceivedBytes,
        Self::KvSentBytes,
        Self::KvConnections,
        Self::CopyEntries,
        Self::CopyBytes,
        Self::CopyTroubles,
        Self::BlockReads,
        Self::BlockReadBytes,
        Self::BlockWrites,
        Self::BlockWrittenBytes,
        Self::BlockOthers,
        Self::BlockErrors,
        Self::JobProcesses,
        Self::JobStarted,
        Self::JobEnded,
        Self::JobFailed,
        Self::JobProcessorMs,
    ];

    /// The index of its counter.
    #[must_use]
    pub const fn index(self) -> usize {
        WORKS + self as usize
    }

    /// Its service and its name, as in output and metrics.
    #[must_use]
    pub const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::KvCommands => ("kv", "commands"),
            Self::KvErrors => ("kv", "errors"),
            Self::KvHits => ("kv", "hits"),
            Self::KvMisses => ("kv", "misses"),
            Self::KvReceivedBytes => ("kv", "received_bytes"),
            Self::KvSentBytes => ("kv", "sent_bytes"),
            Self::KvConnections => ("kv", "connections"),
            Self::CopyEntries => ("cp", "entries"),
            Self::CopyBytes => ("cp", "bytes"),
            Self::CopyTroubles => ("cp", "troubles"),
            Self::BlockReads => ("block", "reads"),
            Self::BlockReadBytes => ("block", "read_bytes"),
            Self::BlockWrites => ("block", "writes"),
            Self::BlockWrittenBytes => ("block", "written_bytes"),
            Self::BlockOthers => ("block", "others"),
            Self::BlockErrors => ("block", "errors"),
            Self::JobProcesses => ("job", "processes"),
            Self::JobStarted => ("job", "started"),
            Self::JobEnded => ("job", "ended"),
            Self::JobFailed => ("job", "failed"),
            Self::JobProcessorMs => ("job", "processor_ms"),
        }
    }
}

/// Why a connection stayed on TCP. The number is the offset of its counter from [`REASONS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpReason {
    /// The other end does not run under weft, or did not ask.
    PeerNotWeft = 0,
    /// No node daemon answered.
    NoDaemon = 1,
    /// The node daemon went away, or did not answer, before the two ends agreed.
    DaemonLost = 2,
    /// The node daemon refused the connection.
    DaemonRefused = 3,
    /// The other end is on another host.
    NotLocal = 4,
    /// An option switched the fabric off.
    Disabled = 5,
    /// A limit among the options was reached.
    LimitReached = 6,
    /// There was no memory for the lane.
    OutOfMemory = 7,
    /// There were no file descriptors left.
    OutOfDescriptors = 8,
    /// The program used the descriptor in a way that only the kernel supports.
    RawUse = 9,
    /// The connection was handed to another program by exec.
    Exec = 10,
    /// The descriptor was passed to another process.
    PassedFd = 11,
    /// The connection was closed before it could switch.
    ShortLived = 12,
    /// Any other reason.
    Other = 13,
    /// The control socket may belong to another user.
    DaemonNotTrusted = 14,
    /// The other end belongs to another user, whom this user's daemon does not serve.
    OtherUser = 15,
    /// Several processes used the connection, or the library did not see all of its use.
    Unseen = 16,
    /// The other end is under weft and did not ask for the fabric.
    PeerUnseen = 17,
}

impl TcpReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 18] = [
        Self::PeerNotWeft,
        Self::NoDaemon,
        Self::DaemonLost,
        Self::DaemonRefused,
        Self::NotLocal,
        Self::Disabled,
        Self::LimitReached,
        Self::OutOfMemory,
        Self::OutOfDescriptors,
        Self::RawUse,
        Self::Exec,
        Self::PassedFd,
        Self::ShortLived,
        Self::Other,
        Self::DaemonNotTrusted,
        Self::OtherUser,
        Self::Unseen,
        Self::PeerUnseen,
    ];

    /// The index of the reason's counter in the block.
    #[must_use]
    pub const fn index(self) -> usize {
        REASONS + self as usize
    }

    /// The name of the reason in JSON and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PeerNotWeft => "peer_not_weft",
            Self::NoDaemon => "no_daemon",
            Self::DaemonLost => "daemon_lost",
            Self::DaemonRefused => "daemon_refused",
            Self::NotLocal => "not_local",
            Self::Disabled => "disabled",
            Self::LimitReached => "limit_reached",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfDescriptors => "out_of_descriptors",
            Self::RawUse => "raw_use",
            Self::Exec => "exec",
            Self::PassedFd => "passed_fd",
            Self::ShortLived => "short_lived",
            Self::Other => "other",
            Self::DaemonNotTrusted => "daemon_not_trusted",
            Self::OtherUser => "other_user",
            Self::Unseen => "unseen",
            Self::PeerUnseen => "peer_unseen",
        }
    }

    /// The reason as a text for people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::PeerNotWeft => {
                "the other end does not run under weft, or weft does not see how it waits"
            }
            Self::NoDaemon => "no node daemon answered",
            Self::DaemonLost => "the node daemon was late or went away while the ends agreed",
            Self::DaemonRefused => "the node daemon refused",
            Self::NotLocal => "the other end is on another host",
            Self::Disabled => "switched off (socket.enable)",
            Self::LimitReached => "a limit was reached (socket.lanes_max, daemon.connections_max)",
            Self::OutOfMemory => "no memory for the connection's sinks",
            Self::OutOfDescriptors => "no file descriptors left (ulimit -n)",
            Self::RawUse => "used in a way that only the kernel serves (fdopen, splice, ...)",
            Self::Exec => "handed to another program by exec",
            Self::PassedFd => "passed to another process",
            Self::ShortLived => "too short to move",
            Self::Other => "other",
            Self::DaemonNotTrusted => "the node daemon may be another user's",
            Self::OtherUser => {
                "the other end belongs to another user, and each has a daemon of their own; \
                 `sudo weft daemon` serves all users"
            }
            Self::Unseen => {
                "several processes used it, or streams of the C library or waits by system calls \
                 of the program's own, which weft does not see"
            }
            Self::PeerUnseen => {
                "the other end is under weft and did not ask to move: several processes, the C \
                 library's streams or system calls of its own used it there, or it had no room"
            }
        }
    }
}

/// Why a block could not be parsed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidStats {
    /// The block is shorter than its counters.
    #[error("a stats block of {length} bytes is shorter than its {minimum} bytes of counters")]
    Truncated {
        /// Bytes of the block.
        length: usize,
        /// Bytes of the counters.
        minimum: usize,
    },
    /// The block does not begin with [`MAGIC`].
    #[error("not a stats block: it begins with {magic:#018x}")]
    Magic {
        /// The first counter of the block.
        magic: u64,
    },
    /// The layout has another version.
    #[error("stats block of version {version}, but this program reads version {VERSION}")]
    Version {
        /// The version of the block.
        version: u64,
    },
}

/// A connection that stayed on TCP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OnTcp {
    /// Which of the program's connections on TCP it is, from 0.
    pub number: u64,
    /// Why.
    pub reason: TcpReason,
    /// When this was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// The addresses of this end and of the other one, if the connection was there still.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
}

impl OnTcp {
    /// The record as words. The first and the last are the number, plus one: they differ while it
    /// is being written.
    #[must_use]
    pub fn words(&self) -> [u64; RECORD_WORDS] {
        let number = self.number.wrapping_add(1);
        let halves = |address: SocketAddr| {
            let bits = match address.ip() {
                IpAddr::V4(four) => four.to_ipv6_mapped().to_bits(),
                IpAddr::V6(six) => six.to_bits(),
            };
            #[allow(clippy::cast_possible_truncation, reason = "a half each")]
            [(bits >> 64) as u64, bits as u64]
        };
        let mut words = [number, self.reason as u64, self.at_ms, 0, 0, 0, 0, number];
        if let Some((local, remote)) = self.addresses {
            let ports = u64::from(local.port()) << 16 | u64::from(remote.port()) << 32;
            words[1] |= ports | 1 << 8;
            words[3..5].copy_from_slice(&halves(local));
            words[5..7].copy_from_slice(&halves(remote));
        }
        words
    }

    /// The record of these words; `None` if there is none, or it was being written.
    fn of(words: &[u64; RECORD_WORDS]) -> Option<Self> {
        let [number, about, at_ms, .., again] = *words;
        let [reason, has_addresses, l0, l1, r0, r1, ..] = about.to_le_bytes();
        let reason = *TcpReason::ALL.get(usize::from(reason))?;
        let address = |place: usize, port: [u8; 2]| {
            let bits = u128::from(words[place]) << 64 | u128::from(words[place + 1]);
            let ip = IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical();
            SocketAddr::new(ip, u16::from_le_bytes(port))
        };
        let both = || (address(3, [l0, l1]), address(5, [r0, r1]));
        (number != 0 && number == again).then(|| Self {
            number: number - 1,
            reason,
            at_ms,
            addresses: (has_addresses == 1).then(both),
        })
    }
}

/// The counters of a block, copied out of shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    counters: [u64; COUNTERS],
    on_tcp: Vec<OnTcp>,
    turns: [u64; TURNS],
}

impl Default for Stats {
    fn default() -> Self {
        Self { counters: [0; COUNTERS], on_tcp: Vec::new(), turns: [0; TURNS] }
    }
}

impl Stats {
    /// Parses a block.
    ///
    /// # Errors
    /// [`InvalidStats`] when the block is too short or has another magic or version.
    pub fn parse(block: &[u8]) -> Result<Self, InvalidStats> {
        let (words, _) = block.as_chunks::<8>();
        if block.len() < BYTES {
            return Err(InvalidStats::Truncated { length: block.len(), minimum: BYTES });
        }
        let word = |place: usize| u64::from_ne_bytes(words[place / 8]);
        let (magic, version) = (word(MAGIC_INDEX * 8), word(VERSION_INDEX * 8));
        if magic != MAGIC {
            return Err(InvalidStats::Magic { magic });
        }
        if version != VERSION {
            return Err(InvalidStats::Version { version });
        }
        let of_shards = |counter| (0..SHARDS).map(move |shard| word(place(shard, counter)));
        // A word that a hostile program writes may be anything.
        let sum = |counter| of_shards(counter).fold(0, u64::saturating_add);
        let record = |number| {
            let start = record_place(number);
            OnTcp::of(&std::array::from_fn(|at| word(start + at * 8)))
        };
        let mut on_tcp: Vec<_> = (0..RECORDS as u64).filter_map(record).collect();
        on_tcp.sort_by_key(|record| record.number);
        let turns = std::array::from_fn(|at| word(TURNS_START + at * 8));
        Ok(Self { counters: std::array::from_fn(sum), on_tcp, turns })
    }

    /// The connections that stayed on TCP last, the oldest first.
    #[must_use]
    pub fn on_tcp(&self) -> &[OnTcp] {
        &self.on_tcp
    }

    /// Adds the counters of another block.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.counters.iter_mut().zip(&other.counters) {
            *sum = sum.saturating_add(*more);
        }
        for (sum, more) in self.turns.iter_mut().zip(&other.turns) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// The turns: the words of a histogram.
    #[must_use]
    pub const fn turns(&self) -> &[u64; TURNS] {
        &self.turns
    }

    /// The first bytes of a fresh block; all other bytes are zero.
    #[must_use]
    pub fn header() -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[8..].copy_from_slice(&VERSION.to_ne_bytes());
        bytes
    }

    /// The counter at an index of this module; 0 for an index that is not in use.
    #[must_use]
    pub fn counter(&self, index: usize) -> u64 {
        self.counters.get(index).copied().unwrap_or(0)
    }

    /// The number of connections that stayed on TCP for `reason`.
    #[must_use]
    pub fn reason(&self, reason: TcpReason) -> u64 {
        self.counter(reason.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut block = vec![0; BYTES];
        block[..16].copy_from_slice(&Stats::header());
        block
    }

    #[test]
    fn counters_of_all_shards_are_added_up() {
        let mut block = block();
        let mut set = |shard, counter, value: u64| {
            block[place(shard, counter)..][..8].copy_from_slice(&value.to_ne_bytes());
        };
        set(0, CONNECTIONS_TCP, 7);
        set(SHARDS - 1, CONNECTIONS_TCP, 2);
        set(3, TcpReason::ShortLived.index(), 2);
        block[TURNS_START + 8..][..8].copy_from_slice(&4_u64.to_ne_bytes());
        let mut set = |shard, counter, value: u64| {
            block[place(shard, counter)..][..8].copy_from_slice(&value.to_ne_bytes());
        };
        set(0, BYTES_TCP_SENT, u64::MAX);
        set(1, BYTES_TCP_SENT, 9);
        let mut stats = Stats::parse(&block).expect("a fresh block");
        assert_eq!(stats.counter(CONNECTIONS_TCP), 9);
        assert_eq!(stats.reason(TcpReason::ShortLived), 2);
        assert_eq!(stats.counter(PROCESSES), 0);
        assert_eq!(stats.counter(usize::MAX), 0);
        assert_eq!(stats.counter(BYTES_TCP_SENT), u64::MAX, "it does not wrap");
        stats.add(&stats.clone());
        assert_eq!((stats.counter(CONNECTIONS_TCP), stats.turns()[1]), (18, 8));
    }

    #[test]
    fn records_come_back_in_order_and_half_written_ones_do_not() {
        let mut block = block();
        let addresses = Some((
            SocketAddr::from(([10, 9, 0, 1], 65535)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, 80)),
        ));
        let record = |number| OnTcp { number, reason: TcpReason::Exec, at_ms: 5, addresses };
        let last = RECORDS as u64 + 1;
        let mut write = |number, words: [u64; RECORD_WORDS]| {
            let bytes = words.map(u64::to_ne_bytes);
            block[record_place(number)..][..RECORD_BYTES].copy_from_slice(bytes.as_flattened());
        };
        for number in 0..=last {
            write(number, record(number).words());
        }
        let mut torn = record(7).words();
        torn[7] = 0;
        write(7, torn);
        write(8, [9, u64::MAX, 0, 0, 0, 0, 0, 9]);
        let without = OnTcp { addresses: None, ..record(9) };
        write(9, without.words());
        let stats = Stats::parse(&block).expect("a block");
        let told = stats.on_tcp();
        assert_eq!(told.len(), RECORDS - 2);
        assert_eq!((told[0], told.last()), (record(2), Some(&record(last))));
        assert!(told.contains(&without) && told.iter().all(|record| record.number != 8));
    }

    #[test]
    fn foreign_blocks_are_refused() {
        assert_eq!(
            Stats::parse(&[0; 16]),
            Err(InvalidStats::Truncated { length: 16, minimum: BYTES })
        );
        assert_eq!(Stats::parse(&[0; BYTES]), Err(InvalidStats::Magic { magic: 0 }));
        let mut newer = block();
        newer[8..16].copy_from_slice(&(VERSION + 1).to_ne_bytes());
        assert_eq!(Stats::parse(&newer), Err(InvalidStats::Version { version: VERSION + 1 }));
    }

    #[test]
    fn counters_of_reasons_are_in_order_and_inside_the_block() {
        for (place, reason) in TcpReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), REASONS + place, "{}", reason.name());
            assert!(reason.index() < COUNTERS && !reason.text().is_empty());
        }
        for (place, work) in Work::ALL.iter().enumerate() {
            assert_eq!(work.index(), WORKS + place, "{:?}", work.names());
        }
        const { assert!(COUNTERS * 8 <= SHARD_BYTES && RECORDS_START < TURNS_START) };
    }
}
