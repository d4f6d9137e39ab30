//! What the transport can do, and what a program may choose about it.

use weft_fabric::{Capabilities, Progress};
use weft_memory::CopyMode;

use crate::bell::VPIDS;
use crate::doorbell::LOCKS;

/// Regions an endpoint can have registered.
pub const REGIONS_MAX: usize = 1024;
/// Notifications of own operations that wait to be polled.
pub const LOCAL_EVENTS_MAX: usize = 1024;

/// Choices about an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Slots of a ring: messages of one peer that wait before it is refused. A power of two, 16
    /// to 65,536; 128 bytes each, in both directions of a pair that talks.
    pub ring_slots: u32,
    /// How long a wait spins before it yields, microseconds.
    pub spin_us: u32,
    /// How often a wait yields before it sleeps.
    pub yields: u32,
    /// How puts and gets of [`Parameters::plain_bytes_max`] bytes and more are copied.
    pub copy: CopyMode,
    /// Copies below this length are plain.
    pub plain_bytes_max: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            ring_slots: 256,
            spin_us: 2,
            yields: 100,
            copy: CopyMode::Plain,
            plain_bytes_max: 1 << 20,
        }
    }
}

impl Parameters {
    /// How to copy `length` bytes.
    #[inline]
    #[must_use]
    pub const fn copy_mode(&self, length: usize) -> CopyMode {
        if length < self.plain_bytes_max { CopyMode::Plain } else { self.copy }
    }

    /// What endpoints with these parameters can do.
    #[must_use]
    pub const fn capabilities(&self) -> Capabilities {
        Capabilities {
            vpids: VPIDS,
            mailbox_depth: self.ring_slots as usize,
            // Operations end inside their call; what is bounded is their notifications.
            operations_max: LOCAL_EVENTS_MAX,
            locks: LOCKS,
            regions_max: REGIONS_MAX,
            progress: Progress::Auto,
            completes_inline: true,
            window_is_memory: true,
            descriptor: true,
            ..Capabilities::extoll("shm")
        }
    }
}
