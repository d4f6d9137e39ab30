//! The limits of a port.

/// Limits of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Packets up to this length, with their 12 bytes of offload header, go in messages, longer
    /// ones through the ring (EXTOLL-THESIS#5.4.6.2: 120 to 480).
    pub eager_bytes: usize,
    /// The same for packets to several nodes at once.
    pub eager_group_bytes: usize,
    /// Slots of the ring for one peer (ANGARA-ETH#2.1).
    pub slots: u32,
    /// Packets that may wait for one peer before the device is no longer read.
    pub backlog: usize,
    /// The same for a peer that has taken none for [`STALLS_AFTER`](super::STALLS_AFTER).
    pub backlog_stalled: usize,
    /// Long packets of all peers that may be on their way at once, or wait for those before them,
    /// where they are fetched. A peer with none may always have one. Memory: 68 KiB each.
    pub fetches: usize,
    /// The same for one peer.
    pub fetches_each: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            eager_bytes: 480,
            eager_group_bytes: 2_048,
            slots: 32,
            backlog: 32,
            backlog_stalled: 1_024,
            fetches: 64,
            fetches_each: 16,
        }
    }
}
