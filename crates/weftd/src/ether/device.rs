//! One device: packets from its TAP to its port and back.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use weft_ether::pace;
use weft_ether::{
    Delivery, Limits, MacAddress, Pace, Place, Port, Reach, STALLS_AFTER, Segment, Space,
};
use weft_fabric::{Armed, Endpoint, EndpointOptions, NodeId, Transport, Vpid, Window};
use weft_netdev::rate::RateLimit;
use weft_netdev::tap::{Read, Tap};
use weft_transport_shm::broker::Connector;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

use super::DeviceSpec;
use crate::status::{DeviceStatus, PeerStatus};

/// Packets that are read from one device before others get their turn.
const PACKETS_A_TURN: usize = 16;
/// Events of the fabric that one device handles before others get their turn (003 section 5.4.6.2).
const EVENTS_A_TURN: usize = 64;
/// Slots of the mailbox of one peer.
const MAILBOX_SLOTS: u32 = 256;

/// A device that is served.
pub struct Device {
    node: NodeId,
    namespace: Option<String>,
    tap: Tap,
    port: Port<ShmEndpoint>,
    written: Written,
    pace: Pace,
    limit: Option<RateLimit>,
    /// The rate in force.
    rate: u32,
    is_gone: bool,
}

/// A change of the rate that is not worth a call: one of so many.
const RATE_STEP: u32 = 16;

/// What became of packets for the device.
#[derive(Default)]
struct Written {
    /// The interface was off.
    down: u64,
    /// The kernel did not believe their headers.
    refused: u64,
}

/// Where a device sleeps.
pub enum Sleeps {
    /// There is something to do already.
    Not,
    /// Its endpoint rings; the TAP need not be looked at while a queue is full.
    Until {
        /// Look at the TAP, too.
        reads: bool,
        /// At most so long.
        within: Option<Duration>,
    },
}

impl Device {
    /// The device `tap` of `spec`, whose packets a limit may hold back, and whose port meets others
    /// at `broker`.
    pub fn new(
        spec: &DeviceSpec,
        (tap, limit): (Tap, Option<RateLimit>),
        broker: Arc<dyn Connector>,
        limits: Limits,
    ) -> anyhow::Result<Self> {
        let parameters = Parameters { ring_slots: MAILBOX_SLOTS, ..Parameters::default() };
        let transport = ShmTransport::new(broker, parameters);
        let options = EndpointOptions { vpid: Vpid(spec.node.0), ..EndpointOptions::default() };
        let endpoint = transport
            .open(&options)
            .with_context(|| format!("the port of node {}", spec.node.0))?;
        Ok(Self {
            node: spec.node,
            namespace: spec.namespace.clone(),
            tap,
            port: Port::new(endpoint, Segment::Host, limits, now()),
            written: Written::default(),
            pace: Pace::new(now()),
            limit,
            rate: pace::RATE_MAX,
            is_gone: false,
        })
    }

    /// One turn; returns how much was done.
    pub fn turn(&mut self, now: Duration) -> usize {
        let mut done = 0;
        while done < PACKETS_A_TURN && !self.is_gone && self.port.may_depart(now) {
            let port = &mut self.port;
            let read = |space: Space<'_, _>, tap: BorrowedFd<'_>| {
                space.fill(tap, |tap, bytes| Ok(rustix::io::read(tap, bytes)?))
            };
            match self.tap.read(|tap| port.depart_by(now, |space| read(space, tap))) {
                Ok(Read::Packet) => {}
                Ok(Read::Nothing) => {
                    self.pace.is_empty();
                    break;
                }
                Ok(Read::Gone) => self.is_lost("its interface was removed"),
                Err(errno) => self.is_lost(&errno.to_string()),
            }
            done += 1;
        }
        if let Some(rate) = self.pace.due(now, self.port.counters()) {
            self.hold_to(rate);
        }
        let Self { tap, port, written, .. } = self;
        done += port.poll(EVENTS_A_TURN, now, &mut |packet| write(tap, written, &packet));
        if let Some(complaint) = port.complaint() {
            tracing::debug!(node = self.node.0, complaint);
        }
        done
    }

    /// The node that it belongs to.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Links were cut, or mended: only the nodes in `reach` are there, and without any the
    /// interface has no link.
    pub fn set_reach(&mut self, reach: Reach) {
        self.port.set_reach(reach, now());
        if let Err(error) = self.tap.set_carrier(reach.is_more_than(self.node)) {
            tracing::warn!(node = self.node.0, "{error}");
        }
    }

    /// Packets come at most at `rate` from now on.
    fn hold_to(&mut self, rate: u32) {
        let Some(limit) = &self.limit else { return };
        if rate.abs_diff(self.rate) <= self.rate / RATE_STEP {
            return;
        }
        match limit.set(rate) {
            Ok(()) => self.rate = rate,
            // The next change is another try.
            Err(error) => {
                tracing::debug!(
                    node = self.node.0,
                    "{error}: packets may be dropped in the device"
                );
            }
        }
    }

    /// The interface is no more, with its network namespace, say.
    fn is_lost(&mut self, why: &str) {
        let (node, name) = (self.node.0, self.tap.name());
        tracing::warn!(node, "the device {name} is lost: {why}; start the daemon again");
        self.is_gone = true;
    }

    /// Nothing comes from it any more.
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Does what is due by the clock.
    pub fn tick(&mut self, now: Duration) {
        let Self { tap, port, written, .. } = self;
        port.tick(now, &mut |packet| write(tap, written, &packet));
    }

    /// Prepares to sleep.
    pub fn prepare(&mut self) -> Sleeps {
        let within = match self.port.endpoint().arm() {
            Armed::Busy => return Sleeps::Not,
            Armed::Sleep => None,
            Armed::PollWithin(within) => Some(within),
        };
        let reads = self.port.may_depart(now());
        // After that the device waits no longer for a peer that takes nothing.
        let within =
            if reads { within } else { Some(within.unwrap_or(STALLS_AFTER).min(STALLS_AFTER)) };
        Sleeps::Until { reads, within }
    }

    /// The TAP.
    pub fn tap(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    /// What to sleep on for the fabric.
    pub fn line(&mut self) -> Option<BorrowedFd<'_>> {
        self.port.endpoint().descriptor()
    }

    /// What it is doing.
    pub fn status(&self, now: Duration) -> DeviceStatus {
        let counters = self.port.counters();
        let switch = self.port.switch();
        let place = |place| match place {
            Place::Here => self.node.0,
            Place::Node(node) => node.0,
        };
        DeviceStatus {
            node: self.node.0,
            namespace: self.namespace.clone(),
            interface: self.tap.name().to_owned(),
            mac: MacAddress::of_node(self.node).to_string(),
            sent: counters.packets_from_device,
            sent_bytes: counters.bytes_from_device,
            received: counters.packets_to_device,
            received_bytes: counters.bytes_to_device,
            multicast: counters.multicast,
            filtered: counters.filtered,
            unreachable: counters.unreachable,
            refused: counters.refused_here + counters.refused_from_fabric + self.written.refused,
            unwanted: counters.unwanted,
            lost: counters.lost + self.written.down,
            peers: (self.port.peers())
                .map(|(node, waiting, active)| PeerStatus { node: node.0, waiting, active })
                .collect(),
            addresses: (switch.forwarding().list(now).into_iter())
                .map(|(mac, vlan, at, age)| (mac.to_string(), vlan, place(at), age.as_secs()))
                .collect(),
            groups: (switch.groups().list(now).into_iter())
                .map(|(mac, vlan, at)| (mac.to_string(), vlan, at.into_iter().map(place).collect()))
                .collect(),
        }
    }
}

fn write<W: Window>(tap: &Tap, written: &mut Written, packet: &Delivery<'_, W>) {
    let write = |tap: BorrowedFd<'_>, bytes: &[u8]| Ok(rustix::io::write(tap, bytes)?);
    match tap.write(|tap| packet.pour(tap, write)) {
        Ok(true) => {}
        Ok(false) => written.down += 1,
        Err(_) => written.refused += 1,
    }
}

/// Time since the machine started: the clock of ports.
pub fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}
