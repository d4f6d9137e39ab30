//! The options: the tag, the limits, and where announced messages go.

use crate::packet::PAYLOAD_BYTES;

/// Credits that each side has for the other before it heard of it.
pub(crate) const CREDITS_AT_FIRST: u16 = 32;
/// Packets of one message at most. Half the credits at first, so that an unused half never keeps a
/// message from going.
pub(crate) const PARTS_MAX: u16 = CREDITS_AT_FIRST / 2;
/// Bytes of a message that goes in packets at most.
pub(crate) const EAGER_BYTES_MAX: usize = PARTS_MAX as usize * PAYLOAD_BYTES;

/// Where announced messages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Into memory of the messages, up to [`Options::receive_bytes_max`] at a time.
    #[default]
    Allocate,
    /// The program decides on each: [`crate::Event::Announced`].
    Ask,
}

/// The options of [`crate::Messages`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The tag of the mailbox messages that the packets are. Both ends use the same. Default 77.
    pub tag: u8,
    /// Packets of one peer that may be on their way or wait for an earlier message: the credits
    /// that the peer has. Default 256, minimum 32. A packet that waits takes up to 160 bytes.
    pub window: u16,
    /// Messages of up to this many bytes, head and body, go as packets, longer ones by rendezvous.
    /// 112 to 1,792; default 448, four packets, which is where a round trip over shm
    /// costs less than a rendezvous.
    pub eager_bytes_max: usize,
    /// Packets to one peer that may wait for its mailbox or for a grant. Default 64, minimum 16.
    pub queue_packets_max: u32,
    /// Announced messages to one peer that have not ended. Default 256.
    pub outstanding_max: u32,
    /// Bytes of memory for copies of bodies that are announced, for all peers. Default 64 MiB.
    pub bounce_bytes_max: u64,
    /// Bytes of memory for announced messages of all peers that the program gives no memory for.
    /// A longer message is refused. Default 64 MiB.
    pub receive_bytes_max: u64,
    /// Regions for copies, and regions for announced messages, at most. Default 128.
    pub regions_max: usize,
    /// Where announced messages go.
    pub placement: Placement,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tag: 77,
            window: 256,
            eager_bytes_max: 448,
            queue_packets_max: 64,
            outstanding_max: 256,
            bounce_bytes_max: 64 << 20,
            receive_bytes_max: 64 << 20,
            regions_max: 128,
            placement: Placement::Allocate,
        }
    }
}

impl Options {
    /// Checks the limits.
    ///
    /// # Panics
    /// When one is out of its range.
    pub(crate) fn assert_sound(&self) {
        assert!(self.window >= CREDITS_AT_FIRST, "a window has at least 32 packets");
        let eager = PAYLOAD_BYTES..=EAGER_BYTES_MAX;
        assert!(eager.contains(&self.eager_bytes_max), "packets carry 112 to 1,792 bytes");
        assert!(self.queue_packets_max >= u32::from(PARTS_MAX), "a queue has at least 16 packets");
        assert!(self.outstanding_max >= 1, "at least one message can be announced");
        assert!(self.regions_max >= 1, "at least one region can be registered");
    }
}

/// Packets that a message of `length` bytes takes.
#[inline]
pub(crate) fn packets(length: usize) -> u16 {
    assert!(length <= EAGER_BYTES_MAX, "the caller announces longer messages");
    u16::try_from(length.div_ceil(PAYLOAD_BYTES).max(1)).expect("at most PARTS_MAX")
}
