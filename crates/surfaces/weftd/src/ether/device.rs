//! One device: the state that its queues share.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_ether::pace;
use weft_ether::{Counters, Location, MacAddress, Pace, SharedSwitch, Switch};
use weft_fabric::NodeId;
use weft_netdev::rate::RateLimit;

use super::event_loop::now;
use super::{DeviceSpec, Settings};
use crate::status::DeviceStatus;

/// A change of the rate by less than one part in this many is not passed to the kernel.
const RATE_STEP: u32 = 16;

/// A device that the daemon serves.
pub struct Device {
    node: NodeId,
    namespace: Option<String>,
    interface: String,
    switch: SharedSwitch,
    pacing: Mutex<Pacing>,
}

/// The rate at which packets arrive from the device.
struct Pacing {
    pace: Pace,
    limit: Option<RateLimit>,
    /// The rate in force, in packets per second.
    rate: u32,
}

impl Device {
    /// The device of `spec` with the interface `interface`. `limit` can delay its packets.
    pub fn new(
        spec: &DeviceSpec,
        interface: &str,
        how: &Settings,
        limit: Option<RateLimit>,
    ) -> Self {
        let now = now();
        let pace = Pace::new(usize::from(how.queues), now);
        let switch = Switch::new(spec.node, now).learning(how.learns, now);
        Self {
            node: spec.node,
            namespace: spec.namespace.clone(),
            interface: interface.to_owned(),
            switch: SharedSwitch::new(switch),
            pacing: Mutex::new(Pacing { pace, limit, rate: pace::RATE_MAX }),
        }
    }

    /// The node of the device.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// The switch that the queues of the device share.
    pub const fn switch(&self) -> &SharedSwitch {
        &self.switch
    }

    fn pacing(&self) -> MutexGuard<'_, Pacing> {
        // A panic cannot leave an invalid rate behind.
        self.pacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports a read of a queue: the queue's counters, and whether the queue was found empty.
    pub fn was_read(&self, queue: u8, counters: &Counters, is_empty: bool, now: Duration) {
        let mut pacing = self.pacing();
        pacing.pace.read(queue, counters, is_empty);
        if let Some(rate) = pacing.pace.due(now) {
            pacing.hold_to(rate, self.node);
        }
    }

    /// Reports that the loop of a queue sleeps because the queue is empty.
    pub fn rests(&self, queue: u8) {
        self.pacing().pace.rests(queue);
    }

    /// The status of the device, without the counters of its queues.
    pub fn status(&self, now: Duration) -> DeviceStatus {
        let place = |place| match place {
            Location::Here => self.node.0,
            Location::Node(node) => node.0,
        };
        let switch = self.switch.lock();
        let addresses = switch.forwarding().list(now).into_iter();
        let groups = switch.groups().list(now).into_iter();
        DeviceStatus {
            node: self.node.0,
            namespace: self.namespace.clone(),
            interface: self.interface.clone(),
            mac: MacAddress::of_node(self.node).map(|mac| mac.to_string()).unwrap_or_default(),
            addresses: addresses
                .map(|(mac, vlan, at, age)| (mac.to_string(), vlan, place(at), age.as_secs()))
                .collect(),
            groups: groups
                .map(|(mac, vlan, at)| (mac.to_string(), vlan, at.into_iter().map(place).collect()))
                .collect(),
            ..DeviceStatus::default()
        }
    }
}

impl Pacing {
    /// Limits the rate of packets to `rate` from now on.
    fn hold_to(&mut self, rate: u32, node: NodeId) {
        let Some(limit) = &self.limit else { return };
        if rate.abs_diff(self.rate) <= self.rate / RATE_STEP {
            return;
        }
        match limit.set(rate) {
            Ok(()) => self.rate = rate,
            // The next change of the rate tries again.
            Err(error) => {
                tracing::debug!(node = node.0, "{error}: packets may be dropped in the device");
            }
        }
    }
}
