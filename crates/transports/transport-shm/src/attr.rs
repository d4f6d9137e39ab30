//! The capabilities of the transport and the parameters that a program chooses.

use weft_broker::VPIDS;
use weft_fabric::{Capabilities, EndpointLimits, Progress};
use weft_memory::CopyMode;

use crate::pair::SLOTS;
use crate::registers::KEYS_MAX;
pub use crate::wakeup::VPIDS_MAX;

/// Regions that an endpoint may have registered at a time, unless it asks for another limit.
pub const REGIONS_MAX: usize = 1024;
/// Notifications of an endpoint's own operations that may wait in its queue, unless it asks for
/// another limit.
pub const LOCAL_EVENTS_MAX: usize = 1024;
/// The largest limit of regions, and of notifications that wait, that an endpoint can ask for.
const ASKED_MAX: usize = 65_536;

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

/// The name of the only rail: the memory of the host.
const RAIL: &str = "memory";

impl Parameters {
    /// The copy mode for `length` bytes.
    #[inline]
    #[must_use]
    pub const fn copy_mode(&self, length: usize) -> CopyMode {
        if length < self.plain_bytes_max { CopyMode::Plain } else { self.copy }
    }

    /// The copy mode for `length` bytes, which memory can have.
    #[inline(always)]
    pub(crate) const fn mode_for(&self, length: u64) -> CopyMode {
        if length < self.plain_bytes_max as u64 { CopyMode::Plain } else { self.copy }
    }

    /// The capabilities of endpoints with these parameters.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            vpids: self.endpoints,
            mailbox_depth: self.ring_slots as usize,
            // Operations complete inside their call; only their notifications are queued.
            operations_max: LOCAL_EVENTS_MAX,
            peers_max: self.endpoints as usize,
            keys_max: KEYS_MAX as usize,
            regions_max: REGIONS_MAX,
            progress: Progress::Auto,
            ordered: true,
            completes_inline: true,
            window_is_memory: true,
            descriptor: true,
            ..Capabilities::extoll("shm").with_rails(&[RAIL])
        }
    }

    /// The capabilities of an endpoint that asks for these limits. The depth of mailboxes becomes a
    /// power of two, the next smaller one that a ring can have.
    #[must_use]
    pub fn limited(&self, limits: &EndpointLimits) -> Capabilities {
        let default = self.capabilities();
        let depths = [*SLOTS.start(), *SLOTS.end()].map(|slots| slots as usize);
        let most = Capabilities {
            mailbox_depth: depths[1],
            operations_max: ASKED_MAX,
            regions_max: ASKED_MAX,
            ..default.clone()
        };
        let mut limited = default.limited(limits, &most);
        limited.mailbox_depth = (1 << limited.mailbox_depth.ilog2()).max(depths[0]);
        limited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_what_was_asked_for_as_far_as_rings_allow() {
        let parameters = Parameters { endpoints: 300, ..Parameters::default() };
        let depth = |asked| {
            let limits = EndpointLimits { mailbox_depth: asked, ..EndpointLimits::default() };
            parameters.limited(&limits).mailbox_depth
        };
        let asked = [None, Some(0), Some(16), Some(100), Some(4096), Some(usize::MAX)];
        assert_eq!(asked.map(depth), [256, 16, 16, 64, 4096, 65_536]);
        let all = |asked| {
            let limits = EndpointLimits {
                operations: asked,
                peers: asked,
                keys: asked,
                regions: asked,
                ..EndpointLimits::default()
            };
            let got = parameters.limited(&limits);
            [got.operations_max, got.peers_max, got.keys_max, got.regions_max]
        };
        assert_eq!(all(None), [1024, 300, 1024, 1024]);
        assert_eq!(all(Some(7)), [7; 4]);
        assert_eq!(all(Some(0)), [1; 4]);
        assert_eq!(all(Some(usize::MAX)), [65_536, 300, 1024, 65_536]);
    }
}
