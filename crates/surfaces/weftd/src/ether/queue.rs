//! One queue of a device: it moves packets from its TAP to its port and back.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_ether::{Delivery, Limits, Port, Reach, STALLS_AFTER, Segment, Space};
use weft_fabric::{Armed, Endpoint, HostMemory, NodeId, Watchable};
use weft_netdev::tap::{Read, Tap, Write};
use weft_open::{FarEndpoint, NearEndpoint};

use super::device::Device;
use super::event_loop::now;
use crate::status::{DeviceStatus, PeerStatus, QueueStatus};

/// Packets that are read from one queue before the next queue is served.
const PACKETS_A_TURN: usize = 16;
/// Fabric events that one queue handles before the next is served (EXTOLL-THESIS#5.4.6.2).
const EVENTS_A_TURN: usize = 64;

/// Why a queue is gone, as reads and writes find it.
const REMOVED: &str = "its interface was removed";

/// Endpoints that a queue can be served by: the kernel copies packets into their regions, and
/// epoll(7) watches them.
pub trait HostEndpoint: HostMemory + Watchable {
    /// Writes a packet to `device` by `write`, or has the kernel copy it from where it is.
    ///
    /// # Errors
    /// Those of the kernel.
    fn pour(
        packet: &Delivery<'_, Self::Window>,
        device: BorrowedFd<'_>,
        write: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize>;
}

impl HostEndpoint for NearEndpoint {
    fn pour(
        packet: &Delivery<'_, Self::Window>,
        device: BorrowedFd<'_>,
        write: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        packet.pour(device, write)
    }
}

/// Its windows are no memory, so that each packet is in private memory already.
impl HostEndpoint for FarEndpoint {
    fn pour(
        packet: &Delivery<'_, Self::Window>,
        device: BorrowedFd<'_>,
        write: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        match packet {
            Delivery::Bytes(bytes) => write(device, bytes),
            Delivery::Ring { .. } => write(device, &packet.to_vec()),
        }
    }
}

/// A queue that is served. Its port is an endpoint `E`.
pub struct Queue<E: Endpoint> {
    device: Arc<Device>,
    number: u8,
    tap: Tap,
    port: Port<E>,
    written: Written,
    is_gone: bool,
}

/// Packets for the device that were not written.
#[derive(Default)]
struct Written {
    /// The interface was down or removed, or the ring that held the packet went with its sender.
    lost: u64,
    /// The kernel rejected the headers of the packet.
    refused: u64,
    /// A write found that the interface was removed.
    is_gone: bool,
}

/// How a queue sleeps.
pub enum Sleeps {
    /// The queue has work to do.
    Not,
    /// The endpoint rings when there is work. The TAP is not watched while too many packets wait.
    Until {
        /// Whether to watch the TAP, too.
        reads: bool,
        /// The longest sleep.
        within: Option<Duration>,
    },
}

impl<E: HostEndpoint> Queue<E> {
    /// Queue `number` of `device`. Its port is at `endpoint`.
    pub fn new(
        device: &Arc<Device>,
        number: u8,
        tap: Tap,
        segment: Segment,
        endpoint: E,
        limits: Limits,
    ) -> Self {
        let port = Port::new(endpoint, segment, device.switch().clone(), limits, now());
        let device = Arc::clone(device);
        Self { device, number, tap, port, written: Written::default(), is_gone: false }
    }

    /// Serves the queue once. Returns the number of events and packets handled.
    pub fn turn(&mut self, now: Duration) -> usize {
        // Events come first: they report packets that peers took, which makes room for the next.
        let Self { tap, port, written, .. } = self;
        let mut done =
            port.poll(EVENTS_A_TURN, now, &mut |packet| write::<E>(tap, written, &packet));
        if let Some(complaint) = port.complaint() {
            tracing::debug!(node = self.node().0, queue = self.number, complaint);
        }
        self.look_at_writes();
        let mut is_empty = false;
        for _ in 0..PACKETS_A_TURN {
            if self.is_gone || !self.port.may_depart(now) {
                break;
            }
            let port = &mut self.port;
            let read = |space: Space<'_, _>, tap: BorrowedFd<'_>| {
                space.fill(tap, |tap, bytes| Ok(rustix::io::read(tap, bytes)?))
            };
            match self.tap.read(|tap| port.depart_by(now, |space| read(space, tap))) {
                Ok(Read::Packet) => {}
                Ok(Read::Nothing) => {
                    is_empty = true;
                    break;
                }
                Ok(Read::Gone) => self.is_lost(REMOVED),
                Err(errno) => self.is_lost(&errno.to_string()),
            }
            done += 1;
        }
        self.device.was_read(self.number, self.port.counters(), is_empty, now);
        done
    }

    /// The node of the device.
    pub fn node(&self) -> NodeId {
        self.device.node()
    }

    /// Sets which nodes can be reached. Without any the interface has no carrier.
    pub fn set_reach(&mut self, reach: Reach) {
        self.port.set_reach(reach, now());
        if let Err(error) = self.tap.set_carrier(reach.is_more_than(self.node())) {
            tracing::warn!(node = self.node().0, "{error}");
        }
    }

    /// Marks the queue as gone if a write found that its interface was removed. While the TAP is
    /// not read, nothing else would notice.
    fn look_at_writes(&mut self) {
        if self.written.is_gone && !self.is_gone {
            self.is_lost(REMOVED);
        }
    }

    /// Marks the queue as gone, for example because its network namespace was removed.
    fn is_lost(&mut self, why: &str) {
        let (node, queue, name) = (self.node().0, self.number, self.tap.name());
        tracing::warn!(node, queue, "the device {name} is lost: {why}; start the daemon again");
        self.is_gone = true;
    }

    /// Whether the interface stays when the daemon ends.
    pub fn set_persistent(&self, stays: bool) -> anyhow::Result<()> {
        Ok(self.tap.set_persistent(stays)?)
    }

    /// Whether the interface is gone, so that no more packets come from it.
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Does the work that is due by the clock.
    pub fn tick(&mut self, now: Duration) {
        let Self { tap, port, written, .. } = self;
        port.tick(now, &mut |packet| write::<E>(tap, written, &packet));
        self.look_at_writes();
    }

    /// Prepares to sleep.
    pub fn prepare(&mut self) -> Sleeps {
        let within = match self.port.endpoint().arm() {
            Armed::Busy => return Sleeps::Not,
            Armed::Sleep => None,
            Armed::PollWithin(within) => Some(within),
        };
        let reads = self.port.may_depart(now());
        // While the TAP is not read, the sleep ends after [`STALLS_AFTER`]: the queue then no
        // longer waits for a peer that takes nothing.
        if reads {
            self.device.rests(self.number);
        }
        let within =
            if reads { within } else { Some(within.unwrap_or(STALLS_AFTER).min(STALLS_AFTER)) };
        Sleeps::Until { reads, within }
    }

    /// The descriptor of the TAP.
    pub fn tap(&self) -> BorrowedFd<'_> {
        self.tap.as_fd()
    }

    /// The descriptor to sleep on for fabric events.
    pub fn line(&mut self) -> BorrowedFd<'_> {
        self.port.endpoint().descriptor()
    }

    /// Bytes read from the device, and bytes written to it.
    pub const fn bytes(&self) -> (u64, u64) {
        let counters = self.port.counters();
        (counters.bytes_from_device, counters.bytes_to_device)
    }

    /// The status of the queue, without the state that belongs to the device.
    pub fn status(&self) -> DeviceStatus {
        let counters = self.port.counters();
        let (sent, received) = (counters.packets_from_device, counters.packets_to_device);
        DeviceStatus {
            sent,
            sent_bytes: counters.bytes_from_device,
            received,
            received_bytes: counters.bytes_to_device,
            multicast: counters.multicast,
            filtered: counters.filtered,
            unreachable: counters.unreachable,
            refused: counters.refused_here + counters.refused_from_fabric + self.written.refused,
            unwanted: counters.unwanted,
            lost: counters.lost + self.written.lost,
            peers: (self.port.peers())
                .map(|(node, waiting, active)| PeerStatus { node: node.0, waiting, active })
                .collect(),
            queues: vec![QueueStatus { queue: self.number, sent, received }],
            ..DeviceStatus::default()
        }
    }
}

fn write<E: HostEndpoint>(tap: &Tap, written: &mut Written, packet: &Delivery<'_, E::Window>) {
    let write = |tap: BorrowedFd<'_>, bytes: &[u8]| Ok(rustix::io::write(tap, bytes)?);
    match tap.write(|tap| E::pour(packet, tap, write)) {
        Ok(Write::Packet) => {}
        Ok(Write::Down) => written.lost += 1,
        Ok(Write::Gone) => {
            written.lost += 1;
            written.is_gone = true;
        }
        Err(_) => written.refused += 1,
    }
}
