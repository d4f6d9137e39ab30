//! The settings of a simulated fabric: its seed, its links, its limits.
//!
//! The defaults are near those of the Tourmalet NIC (EXTOLL-THESIS#3): 100 Gbit/s, about a
//! microsecond from end to end. All times are virtual nanoseconds.

use weft_fabric::{Capabilities, EndpointLimits, Progress, TrafficClass};
use weft_options::ServicePolicy;

use crate::network::NetworkSettings;

/// The largest limit that an endpoint can ask for, unless the settings have a larger one.
const ASKED_MAX: usize = 1 << 20;

/// One direction of a link between two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// The time from sending the last bit to its arrival.
    pub latency_ns: u64,
    /// The largest random addition to the latency. It never reorders the traffic between two
    /// endpoints.
    pub jitter_ns: u64,
    /// The bandwidth, at least 1.
    pub bits_per_second: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self { latency_ns: 850, jitter_ns: 100, bits_per_second: 100_000_000_000 }
    }
}

/// The settings of a world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The seed of everything random.
    pub seed: u64,
    /// The default link. [`crate::SimWorld::set_link`] changes those between two nodes, and
    /// [`crate::SimWorld::set_rail_link`] a single one.
    pub link: Link,
    /// The network over which packets go, in place of private links. Then [`Settings::link`] is not
    /// used, and operations to one peer take effect in order, also without [`Settings::ordered`].
    pub network: Option<NetworkSettings>,
    /// The names of the rails. Two nodes have a link on each. Packets take the rail of their sender
    /// and need that of the receiver, too, so that the two ends of a pair reach each other
    /// or do not. Default `rail0` alone, minimum 1, no two alike.
    pub rails: Vec<String>,
    /// The time from the death of an endpoint to the report at its peers, if nothing is still on
    /// its way.
    pub detection_ns: u64,
    /// The time from a cut until both sides report each other down; `None` never reports it.
    pub cut_down_after_ns: Option<u64>,
    /// Bytes of a message at most; default 120, which is the minimum.
    pub message_bytes_max: usize,
    /// Messages of one sender that may wait in one mailbox; default 256, minimum 1.
    pub mailbox_depth: usize,
    /// Notifications of one sender that may wait at one endpoint; default 256, minimum 1.
    pub notification_depth: usize,
    /// Operations of one endpoint that may be pending, or completed but not polled.
    pub operations_max: usize,
    /// Endpoints that a node may have.
    pub endpoints_max: u16,
    /// Regions of an endpoint at most.
    pub regions_max: usize,
    /// Valid keys of an endpoint at most.
    pub keys_max: usize,
    /// Living peers of an endpoint at most.
    pub peers_max: usize,
    /// Invitations of one user that may wait.
    pub invitations_max: usize,
    /// The rules for services.
    pub services: ServicePolicy,
    /// Largest put or get in one piece in bytes.
    pub descriptor_bytes_max: u64,
    /// Operations to one peer take effect in the order of their calls. If false, only messages and
    /// notifications do, as on networks that spread packets over several paths.
    pub ordered: bool,
    /// The time that a connect, join, leave, grant or revoke takes; with 0 it ends inside its call.
    pub control_ns: u64,
    /// Trace entries that are kept. The digest covers all entries. One entry has about 64 bytes.
    pub trace_entries_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        let limits = Capabilities::extoll("sim");
        Self {
            seed: 0,
            link: Link::default(),
            network: None,
            rails: vec!["rail0".to_owned()],
            detection_ns: 10_000,
            cut_down_after_ns: Some(100_000_000),
            message_bytes_max: limits.message_bytes_max,
            mailbox_depth: limits.mailbox_depth,
            notification_depth: 256,
            operations_max: limits.operations_max,
            endpoints_max: limits.vpids,
            regions_max: limits.regions_max,
            keys_max: 4096,
            peers_max: 65_536,
            invitations_max: 1024,
            services: ServicePolicy::default(),
            descriptor_bytes_max: limits.descriptor_bytes_max,
            ordered: true,
            control_ns: 0,
            trace_entries_max: 4096,
        }
    }
}

impl Settings {
    /// The defaults with another seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The capabilities of a transport with these settings.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            vpids: self.endpoints_max,
            message_bytes_max: self.message_bytes_max,
            mailbox_depth: self.mailbox_depth,
            operations_max: self.operations_max,
            peers_max: self.peers_max,
            keys_max: self.keys_max,
            classes: 2,
            regions_max: self.regions_max,
            descriptor_bytes_max: self.descriptor_bytes_max,
            progress: Progress::Auto,
            ordered: self.ordered,
            completes_inline: false,
            window_is_memory: false,
            descriptor: false,
            rails: self.rails.clone(),
            rail: self.rails.first().cloned().unwrap_or_default(),
            ..Capabilities::extoll("sim")
        }
    }

    /// The capabilities of an endpoint of this class that asks for these limits.
    #[must_use]
    pub(crate) fn limited(&self, limits: &EndpointLimits, class: TrafficClass) -> Capabilities {
        let default = self.capabilities();
        let most = Capabilities {
            mailbox_depth: default.mailbox_depth.max(ASKED_MAX),
            operations_max: default.operations_max.max(ASKED_MAX),
            peers_max: default.peers_max.max(ASKED_MAX),
            keys_max: default.keys_max.max(ASKED_MAX),
            regions_max: default.regions_max.max(ASKED_MAX),
            ..default.clone()
        };
        Capabilities { class, ..default.limited(limits, &most) }
    }

    /// Checks that no limit is zero, and that each rail has a name of its own.
    ///
    /// # Panics
    /// When that is not so.
    pub(crate) fn assert_sound(&self) {
        assert!(self.mailbox_depth >= 1, "a mailbox holds at least one message");
        assert!(self.notification_depth >= 1, "at least one notification can wait");
        assert!(self.operations_max >= 1, "at least one operation can be pending");
        assert!(self.descriptor_bytes_max >= 1, "a descriptor moves at least one byte");
        assert!(self.link.bits_per_second >= 1, "a link moves at least one bit per second");
        assert!(!self.rails.is_empty(), "there is at least one rail");
        let names: std::collections::BTreeSet<_> = self.rails.iter().collect();
        assert_eq!(names.len(), self.rails.len(), "each rail has a name of its own");
    }
}
