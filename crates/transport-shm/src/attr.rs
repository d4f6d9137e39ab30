//! The capabilities of the transport and the parameters that a program chooses.

use weft_fabric::{Capabilities, Progress};
use weft_memory::CopyMode;

use crate::doorbell::LOCKS;
use crate::wakeup::VPIDS;
pub use crate::wakeup::VPIDS_MAX;

/// Regions that an endpoint may have registered at a time.
pub const REGIONS_MAX: usize = 1024;
/// Notifications of an endpoint's own operations that may wait in its queue.
pub const LOCAL_EVENTS_MAX: usize = 1024;

/// Parameters of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Slots of a ring: how many messages to one peer may wait before a send is refused. A power of
    /// two, 16 to 65,536. A slot takes 128 bytes; a pair has one ring in each direction.
    pub ring_slots: u32,
    /// Endpoints that the node may have, as its daemon was told: up to [`VPIDS_MAX`].
    pub endpoints: u16,
    /// How long a wait spins before it yields, in microseconds.
    pub spin_us: u32,
    /// How many times a wait yields before it sleeps.
    pub yields: u32,
    /// How puts and gets of at least [`Parameters::plain_bytes_max`] bytes are copied.
    pub copy: CopyMode,
    /// Puts and gets below this length in bytes are plain copies.
    pub plain_bytes_max: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            ring_slots: 256,
            endpoints: VPIDS,
            spin_us: 2,
            yields: 100,
            copy: CopyMode::Plain,
            plain_bytes_max: 1 << 20,
        }
    }
}

impl Parameters {
    /// The copy mode for `length` bytes.
    #[inline]
    #[must_use]
    pub const fn copy_mode(&self, length: usize) -> CopyMode {
        if length < self.plain_bytes_max { CopyMode::Plain } else { self.copy }
    }

    /// The capabilities of endpoints with these parameters.
    #[must_use]
    pub const fn capabilities(&self) -> Capabilities {
        Capabilities {
            vpids: self.endpoints,
            mailbox_depth: self.ring_slots as usize,
            // Operations complete inside their call; only their notifications are queued.
            operations_max: LOCAL_EVENTS_MAX,
            locks: LOCKS,
            regions_max: REGIONS_MAX,
            progress: Progress::Auto,
            ordered: true,
            completes_inline: true,
            window_is_memory: true,
            descriptor: true,
            ..Capabilities::extoll("shm")
        }
    }
}
