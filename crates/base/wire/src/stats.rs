//! The counters that `weft run --stats` shares with the programs it runs.
//!
//! The block is [`BYTES`] bytes of shared memory: an array of 64-bit counters in native byte order
//! at fixed indices. The command creates the block with magic and version, and zeros elsewhere.
//! Every process under the command maps the block and adds to the counters with relaxed atomics.
//! The command reads the block when the program has ended. A reader takes the counters as numbers
//! and trusts nothing else.
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
//! block[..8].copy_from_slice(&stats::MAGIC.to_ne_bytes());
//! block[8..16].copy_from_slice(&stats::VERSION.to_ne_bytes());
//! let place = TcpReason::PeerNotWeft.index() * 8;
//! block[place..place + 8].copy_from_slice(&3_u64.to_ne_bytes());
//! let stats = Stats::parse(&block)?;
//! assert_eq!(stats.reason(TcpReason::PeerNotWeft), 3);
//! # Ok::<(), weft_wire::stats::InvalidStats>(())
//! ```

use thiserror::Error;

/// Size of the block in bytes: one page.
pub const BYTES: usize = 4096;
/// The value of counter [`MAGIC_INDEX`]: `weftstat`.
pub const MAGIC: u64 = u64::from_be_bytes(*b"weftstat");
/// The value of counter [`VERSION_INDEX`].
pub const VERSION: u64 = 2;

/// Index of the magic.
pub const MAGIC_INDEX: usize = 0;
/// Index of the version.
pub const VERSION_INDEX: usize = 1;
/// Index of the connections that moved to the fabric.
pub const CONNECTIONS_FABRIC: usize = 2;
/// Index of the connections that stayed on TCP.
pub const CONNECTIONS_TCP: usize = 3;
/// Index of the bytes sent over the fabric.
pub const BYTES_FABRIC_SENT: usize = 4;
/// Index of the bytes received over the fabric.
pub const BYTES_FABRIC_RECEIVED: usize = 5;
/// Index of the bytes sent over TCP.
pub const BYTES_TCP_SENT: usize = 6;
/// Index of the bytes received over TCP.
pub const BYTES_TCP_RECEIVED: usize = 7;
/// Index of the processes that mapped the block.
pub const PROCESSES: usize = 8;
/// Index of the first counter of a [`TcpReason`].
pub const REASONS: usize = 9;
/// Counters reserved for reasons; unused ones stay zero.
pub const REASON_PLACES: usize = 32;
/// Number of counters in use, from index 0.
pub const COUNTERS: usize = REASONS + REASON_PLACES;

/// Why a connection stayed on TCP. The number is the offset of its counter from [`REASONS`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TcpReason {
    /// The other end does not run under weft.
    PeerNotWeft = 0,
    /// No node daemon answered.
    NoDaemon = 1,
    /// The node daemon went away before the two ends agreed.
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
            Self::PeerNotWeft => "the other end does not run under weft",
            Self::NoDaemon => "no node daemon answered",
            Self::DaemonLost => "the node daemon went away while the ends agreed",
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
                "the other end is under weft and did not ask to move: several processes or the C \
                 library's streams used it there, or it had no room"
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

/// The counters of a block, copied out of shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    counters: [u64; COUNTERS],
}

impl Stats {
    /// Parses a block.
    ///
    /// # Errors
    /// [`InvalidStats`] when the block is too short or has another magic or version.
    pub fn parse(block: &[u8]) -> Result<Self, InvalidStats> {
        let mut counters = [0; COUNTERS];
        let (words, _) = block.as_chunks::<8>();
        if words.len() < COUNTERS {
            return Err(InvalidStats::Truncated { length: block.len(), minimum: COUNTERS * 8 });
        }
        for (counter, word) in counters.iter_mut().zip(words) {
            *counter = u64::from_ne_bytes(*word);
        }
        if counters[MAGIC_INDEX] != MAGIC {
            return Err(InvalidStats::Magic { magic: counters[MAGIC_INDEX] });
        }
        if counters[VERSION_INDEX] != VERSION {
            return Err(InvalidStats::Version { version: counters[VERSION_INDEX] });
        }
        Ok(Self { counters })
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
    fn counters_are_at_their_indices() {
        let mut block = block();
        block[CONNECTIONS_TCP * 8..][..8].copy_from_slice(&7_u64.to_ne_bytes());
        block[(9 + 12) * 8..][..8].copy_from_slice(&2_u64.to_ne_bytes());
        let stats = Stats::parse(&block).expect("a fresh block");
        assert_eq!(stats.counter(CONNECTIONS_TCP), 7);
        assert_eq!(stats.reason(TcpReason::ShortLived), 2);
        assert_eq!(stats.counter(PROCESSES), 0);
        assert_eq!(stats.counter(usize::MAX), 0);
    }

    #[test]
    fn foreign_blocks_are_refused() {
        assert_eq!(
            Stats::parse(&[0; 16]),
            Err(InvalidStats::Truncated { length: 16, minimum: COUNTERS * 8 })
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
        const { assert!(COUNTERS * 8 <= BYTES) };
    }
}
