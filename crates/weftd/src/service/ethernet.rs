//! The Ethernet service: commands to the devices of the node, and their status.
//!
//! The service does not touch packets of the devices: loops with their own threads serve those
//! ([`crate::ether`]). The loops may be slow to answer, so this service has a thread.

use std::sync::Arc;
use std::time::Instant;

use weft_ether::Reach;
use weft_fabric::NodeId;
use weft_wire::control::{Control, DEVICE_KINDS, InvalidMessage, split};

use super::{Event, Manifest, Outbox, Placement, Report, Request, Service};
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

    fn handle(&self, request: &Request, out: &mut Outbox) -> Result<(), InvalidMessage> {
        let Control::Reach { node, reach } = Control::parse(&request.bytes)? else {
            let (kind, _) = split(&request.bytes)?;
            return Err(InvalidMessage::Kind { kind });
        };
        let done = match &self.devices {
            _ if !request.from.may_command => {
                Err("only root and the daemon's own user may cut links".to_owned())
            }
            None => Err("the daemon serves no devices".to_owned()),
            Some(devices) => devices.set_reach(NodeId(node), Reach::of_bits(reach)),
        };
        let answer = match done {
            Ok(()) => {
                out.event("reach", request.from, || format!("node {node} reaches other nodes"));
                Control::Done
            }
            Err(reason) => Control::Refused { token: 0, reason },
        };
        out.reply(request.from.process, &answer);
        Ok(())
    }
}

impl Service for Ethernet {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: "ethernet",
            kinds: DEVICE_KINDS,
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
            events: &[("reach", "The nodes that a device can reach were changed.")],
        }
    }

    fn handle_event(&mut self, event: Event, _now: Instant, out: &mut Outbox) {
        if let Event::Packet(request) = event
            && let Err(error) = self.handle(&request, out)
        {
            out.reject(request.from, error);
        }
    }

    fn report(&self) -> Report {
        let devices = self.devices.clone();
        Box::new(move |status| {
            status.devices = devices.map(|devices| devices.status()).unwrap_or_default();
        })
    }
}
