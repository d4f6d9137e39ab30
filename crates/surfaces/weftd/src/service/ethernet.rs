//! The Ethernet service: the status of the devices of the node. Nobody sends it anything.
//!
//! The service does not touch packets of the devices: loops with their own threads serve those
//! ([`crate::ether`]). The loops may be slow to answer, so this service has a thread.

use std::sync::Arc;
use std::time::Instant;

use super::{Event, Manifest, Outbox, Placement, Report, Service};
use crate::ether::Devices;

/// The service.
pub struct Ethernet {
    devices: Option<Arc<Devices>>,
}

impl Ethernet {
    /// The service of a node that serves `devices`.
    pub const fn new(devices: Option<Arc<Devices>>) -> Self {
        Self { devices }
    }
}

impl Service for Ethernet {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "ethernet",
            kinds: &[],
            // Without devices the answer is immediate.
            placement: match self.devices {
                Some(_) => Placement::Thread,
                None => Placement::InPlace,
            },
            options: &[
                "ether.eager_bytes",
                "ether.eager_group_bytes",
                "ether.slots",
                "ether.backlog",
                "ether.backlog_stalled",
                "ether.loops",
                "ether.steering",
                "ether.queues",
                "ether.pace",
                "ether.coalesce",
                "ether.learn_ms",
            ],
            events: &[],
        }
    }

    fn handle_event(&mut self, _event: Event, _now: Instant, _out: &mut Outbox) {}

    fn report(&self) -> Report {
        let devices = self.devices.clone();
        Box::new(move |status| {
            status.devices = devices.map(|devices| devices.status()).unwrap_or_default();
        })
    }
}
