//! The node's Ethernet devices: TAP on one side, a port of the fabric on the other.
//!
//! A thread serves its devices in one synchronous loop ([`turns`]), and a device has one thread:
//! several on one flow would let packets overtake each other. Source: 003 section 5.4.6 (EXN).

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, eventfd};
use weft_ether::{Limits, MacAddress, Reach, pace};
use weft_fabric::NodeId;
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_netdev::rate::RateLimit;
use weft_netdev::tap::Tap;
use weft_transport_shm::broker::{Connector, remote::RemoteBroker};

use self::device::Device;
use self::network::{Network, Site};
use crate::status::DeviceStatus;

mod device;
mod network;
mod turns;

/// The name of the interface.
pub const INTERFACE: &str = "weft0";
/// Packets that may wait in the interface for this program.
const QUEUE_PACKETS: u32 = 10_000;

/// The largest MTU: a TAP device takes one byte more; it is that of IPoIB's connected mode.
pub const MTU_MAX: u32 = 65_520;
/// The smallest that IPv4 works with (RFC 791).
pub const MTU_MIN: u32 = 68;
/// The highest number of a node: ports of one host are endpoints of one broker.
const NODE_MAX: u16 = 255;

/// A device that is to be served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// The node that it belongs to.
    pub node: NodeId,
    /// The network namespace that it is in; that of the daemon without one.
    pub namespace: Option<String>,
    /// Bytes of IP in a frame.
    pub mtu: u32,
    /// It stays when the daemon ends, so that connections survive its restart.
    pub stays: bool,
    /// The control socket of the daemon at which it meets the devices of other daemons; without
    /// one it meets those of its own alone.
    pub segment: Option<PathBuf>,
}

impl FromStr for DeviceSpec {
    type Err = String;

    /// Reads `NODE[,mtu=N][,netns=NAME][,stays][,segment=SOCKET]`, as it is printed.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let node = parts.next().unwrap_or_default();
        let node = node.parse().ok().filter(|node| *node <= NODE_MAX);
        let node = node.ok_or_else(|| format!("a device begins with a node, 0 to {NODE_MAX}"))?;
        let mut spec =
            Self { node: NodeId(node), namespace: None, mtu: MTU_MAX, stays: false, segment: None };
        for part in parts {
            match part.split_once('=') {
                None if part == "stays" => spec.stays = true,
                Some(("netns", name)) => spec.namespace = Some(name.to_owned()),
                Some(("mtu", mtu)) => {
                    let mtu = mtu.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
                    spec.mtu = mtu.ok_or_else(|| format!("an MTU is {MTU_MIN} to {MTU_MAX}"))?;
                }
                Some(("segment", socket)) if socket.starts_with('/') => {
                    spec.segment = Some(socket.into());
                }
                _ => {
                    let known = "mtu=N, netns=NAME, segment=/SOCKET or stays";
                    return Err(format!("{part:?} is not {known}"));
                }
            }
        }
        Ok(spec)
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},mtu={}", self.node.0, self.mtu)?;
        if let Some(name) = &self.namespace {
            write!(f, ",netns={name}")?;
        }
        if let Some(socket) = &self.segment {
            write!(f, ",segment={}", socket.display())?;
        }
        if self.stays { f.write_str(",stays") } else { Ok(()) }
    }
}

impl DeviceSpec {
    /// Makes the device, or attaches to the one that was left, and turns it on.
    fn open(&self, is_paced: bool) -> anyhow::Result<(Tap, Option<RateLimit>, Site)> {
        let open = || -> anyhow::Result<_> {
            let tap = Tap::open(INTERFACE)?;
            let interface = Interface::named(INTERFACE)?;
            interface.set_mac(MacAddress::of_node(self.node).0)?;
            interface.set_mtu(self.mtu)?;
            interface.set_queue(QUEUE_PACKETS)?;
            tap.set_persistent(self.stays)?;
            interface.set_up(true)?;
            tap.set_carrier(true)?;
            let limit = self.limit(&interface, is_paced);
            let site = Site::of(&interface)?;
            Ok((tap, limit, site))
        };
        let node = self.node.0;
        match &self.namespace {
            Some(name) => {
                let namespace = Namespace::named(name)?;
                if !namespace.exists() {
                    bail!("there is no network namespace {name} for node {node}");
                }
                namespace.enter(open)?
            }
            None => open(),
        }
        .with_context(|| format!("the device {INTERFACE} of node {node}"))
    }

    /// A kernel without the queueing discipline has a device that drops what is too much.
    fn limit(&self, interface: &Interface, is_paced: bool) -> Option<RateLimit> {
        let limit = RateLimit::of(interface).and_then(|limit| {
            if is_paced {
                limit.put(pace::RATE_MAX)?;
            } else {
                // One that was left there is not to hold anything back; there may be none.
                let _ = limit.set(pace::RATE_MAX);
            }
            Ok(limit)
        });
        let node = self.node.0;
        let told = |error: &_| tracing::info!(node, "{error}: floods may be dropped in the device");
        limit.inspect_err(told).ok().filter(|_| is_paced)
    }
}

/// What the loop is asked.
enum Question {
    Status(Sender<Vec<DeviceStatus>>),
    Reach(NodeId, Reach, Sender<bool>),
    Stop,
}

/// The devices that a daemon serves.
pub struct Devices {
    network: Network,
    loops: Vec<Loop>,
}

impl Devices {
    /// Makes the devices and serves them by up to `loops` threads, with ports that meet at
    /// `broker`, or at the daemon of their segment; where `is_paced`, floods of datagrams are held
    /// back before they are dropped.
    ///
    /// # Errors
    /// Names the device that cannot be made, and why.
    pub fn start(
        specs: &[DeviceSpec],
        broker: &Arc<dyn Connector>,
        limits: Limits,
        loops: usize,
        is_paced: bool,
    ) -> anyhow::Result<Self> {
        let (mut devices, mut sites) = (Vec::new(), Vec::new());
        devices.resize_with(loops.clamp(1, specs.len().max(1)), Vec::new);
        let shares = devices.len();
        for (number, spec) in specs.iter().enumerate() {
            let (tap, limit, site) = spec.open(is_paced)?;
            let meets: Arc<dyn Connector> = match &spec.segment {
                Some(socket) => Arc::new(RemoteBroker::new(socket, "weft-ether")),
                None => Arc::clone(broker),
            };
            let device = Device::new(spec, (tap, limit), meets, limits)?;
            devices[number % shares].push(device);
            sites.push(site);
        }
        let loops = devices.into_iter().map(Loop::start).collect::<anyhow::Result<_>>()?;
        Ok(Self { network: Network::new(sites), loops })
    }

    /// The network that they make.
    pub const fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    /// What the devices are doing, by node.
    pub fn status(&self) -> Vec<DeviceStatus> {
        let mut all: Vec<_> = self.ask(Question::Status).into_iter().flatten().collect();
        all.sort_by_key(|device| device.node);
        all
    }

    /// From now on the device of `node` reaches the nodes in `reach` alone; `false` when there is
    /// no such device.
    pub fn set_reach(&self, node: NodeId, reach: Reach) -> bool {
        self.ask(|sender| Question::Reach(node, reach, sender)).contains(&true)
    }

    /// What all loops answer; one that does not in time is left out.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Question) -> Vec<T> {
        let ask = |one: &Loop| {
            let (sender, receiver) = channel();
            one.ask(question(sender));
            receiver
        };
        let asked: Vec<Receiver<T>> = self.loops.iter().map(ask).collect();
        asked.iter().filter_map(|answer| answer.recv_timeout(turns::ANSWER_WITHIN).ok()).collect()
    }
}

/// A thread that serves devices.
struct Loop {
    questions: Sender<Question>,
    woken: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Loop {
    fn start(devices: Vec<Device>) -> anyhow::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags).context("eventfd")?);
        let (questions, asked) = channel();
        let mut turns = turns::Turns::new(devices, Arc::clone(&woken))?;
        let thread = std::thread::Builder::new()
            .name("weft-ether".to_owned())
            .spawn(move || turns.run(|turns| answer(turns, &asked)))
            .context("a thread for the devices")?;
        Ok(Self { questions, woken, thread: Some(thread) })
    }

    fn ask(&self, question: Question) {
        // A loop that is over neither answers nor goes on.
        if self.questions.send(question).is_ok() {
            let _ = rustix::io::write(self.woken.as_fd(), &1_u64.to_ne_bytes());
        }
    }
}

/// Answers what was asked; `false` to stop.
fn answer(turns: &mut turns::Turns, asked: &Receiver<Question>) -> bool {
    for question in asked.try_iter() {
        match question {
            // Whoever asked may have gone.
            Question::Status(sender) => drop(sender.send(turns.status())),
            Question::Reach(node, reach, sender) => {
                let _ = sender.send(turns.set_reach(node, reach));
            }
            Question::Stop => return false,
        }
    }
    true
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.ask(Question::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_as_it_is_printed() {
        for text in ["5,mtu=65520", "0,mtu=1500,netns=n,stays", "1,mtu=68,segment=/a/b.sock"] {
            assert_eq!(text.parse::<DeviceSpec>().map(|spec| spec.to_string()), Ok(text.into()));
        }
        assert_eq!("5".parse::<DeviceSpec>().map(|spec| spec.mtu), Ok(MTU_MAX));
        for text in ["", "256", "x", "5,mtu=67", "5,mtu=65521", "5,", "5,netns", "5,segment=a"] {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text:?}");
        }
    }
}
