//! The node's Ethernet devices: TAP on one side, a port of the fabric on the other.
//!
//! A device has one queue or several (000 section 3.3), each with a port of its own. A thread
//! serves its queues in one synchronous loop ([`turns`]), and a queue has one thread: several on
//! one flow would let packets overtake each other. Source: 003 section 5.4.6 (EXN).

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, eventfd};
use weft_ether::{Limits, MacAddress, Reach, Segment, pace};
use weft_fabric::NodeId;
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_netdev::rate::RateLimit;
use weft_netdev::steering::Steering;
use weft_netdev::tap::Tap;
use weft_socket::matchmaker::Tuple;
use weft_transport_shm::broker::{Connector, remote::RemoteBroker};

use self::device::Device;
use self::network::{Network, Site};
use self::queue::Queue;
use crate::status::DeviceStatus;

mod demand;
mod device;
mod network;
mod queue;
mod turns;

/// The name of the interface.
pub const INTERFACE: &str = "weft0";
/// Packets that may wait in a queue of the interface for this program.
const QUEUE_PACKETS: u32 = 10_000;

/// The largest MTU: a TAP device takes one byte more; it is that of IPoIB's connected mode.
pub const MTU_MAX: u32 = 65_520;
/// The smallest that IPv4 works with (RFC 791).
pub const MTU_MIN: u32 = 68;
/// The highest number of a node, and of a port: ports of one host are endpoints of one broker.
const NODE_MAX: u16 = 255;

/// How devices are served.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What may wait, and where.
    pub limits: Limits,
    /// Queues of each device.
    pub queues: u8,
    /// Which of them a packet goes to.
    pub steering: Steering,
    /// Threads at most.
    pub loops: usize,
    /// Floods of datagrams are held back before they are dropped.
    pub is_paced: bool,
    /// How long a loaded loop leaves its queues alone.
    pub coalesce: Duration,
    /// How long a device that is new learns who wants which group.
    pub learns: Duration,
}

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
    /// The nodes that its links lead to at first.
    pub reach: Reach,
}

impl FromStr for DeviceSpec {
    type Err = String;

    /// Reads `NODE[,mtu=N][,netns=NAME][,stays][,segment=SOCKET][,reach=NODE+NODE]`, as it is
    /// printed.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let node = parts.next().unwrap_or_default();
        let node = node.parse().ok().filter(|node| *node <= NODE_MAX);
        let node = node.ok_or_else(|| format!("a device begins with a node, 0 to {NODE_MAX}"))?;
        let mut spec = Self {
            node: NodeId(node),
            namespace: None,
            mtu: MTU_MAX,
            stays: false,
            segment: None,
            reach: Reach::ALL,
        };
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
                Some(("reach", nodes)) => spec.reach = nodes.parse()?,
                _ => {
                    let known = "mtu=N, netns=NAME, segment=/SOCKET, reach=NODE+NODE or stays";
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
        if self.reach != Reach::ALL {
            write!(f, ",reach={}", self.reach)?;
        }
        if self.stays { f.write_str(",stays") } else { Ok(()) }
    }
}

impl DeviceSpec {
    /// Makes the device, or attaches to the one that was left, and turns it on.
    fn open(&self, how: &Settings) -> anyhow::Result<(Vec<Tap>, Option<RateLimit>, Site)> {
        let open = || -> anyhow::Result<_> {
            let taps = Tap::open(INTERFACE, how.queues)?;
            let tap = taps.first().context("a device has a queue")?;
            if how.queues > 1 {
                tap.steer(how.steering)?;
            }
            let interface = Interface::named(INTERFACE)?;
            interface.set_mac(MacAddress::of_node(self.node).0)?;
            interface.set_mtu(self.mtu)?;
            interface.set_queue(QUEUE_PACKETS)?;
            tap.set_persistent(self.stays)?;
            // Before it is up: else the kernel makes room for 256 queues.
            let limit = self.limit(&interface, how.is_paced);
            interface.set_up(true)?;
            tap.set_carrier(true)?;
            let site = Site::of(&interface)?;
            Ok((taps, limit, site))
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
    Status(Sender<Vec<(NodeId, DeviceStatus)>>),
    Reach(NodeId, Reach, Sender<bool>),
    Stop,
}

/// The devices that a daemon serves.
pub struct Devices {
    network: Mutex<Network>,
    devices: Vec<Arc<Device>>,
    loops: Vec<Loop>,
}

impl Devices {
    /// Makes the devices and serves them, with ports that meet at `broker`, or at the daemon of
    /// their segment.
    ///
    /// # Errors
    /// Names the device that cannot be made, and why.
    pub fn start(
        specs: &[DeviceSpec],
        broker: &Arc<dyn Connector>,
        how: &Settings,
    ) -> anyhow::Result<Self> {
        demand::check(specs.iter().filter(|spec| spec.segment.is_none()).count(), how.queues)?;
        let segment = Segment::Host { queues: how.queues };
        let queues = usize::from(how.queues);
        let (mut shares, mut sites, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        shares.resize_with(how.loops.clamp(1, (specs.len() * queues).max(1)), Vec::new);
        let loops = shares.len();
        for (number, spec) in specs.iter().enumerate() {
            let places = (NODE_MAX + 1) / u16::from(how.queues);
            if spec.node.0 >= places {
                bail!(
                    "with {} queues for each device a network has nodes 0 to {}, and not {}: set \
                     ether.queues lower",
                    how.queues,
                    places - 1,
                    spec.node.0
                );
            }
            let (taps, limit, site) = spec.open(how)?;
            let meets: Arc<dyn Connector> = match &spec.segment {
                Some(socket) => Arc::new(RemoteBroker::new(socket, "weft-ether")),
                None => Arc::clone(broker),
            };
            let device = Arc::new(Device::new(spec, INTERFACE, how, limit));
            for (queue, tap) in (0..).zip(taps) {
                let meets = Arc::clone(&meets);
                let mut served = Queue::new(&device, queue, tap, segment, meets, how.limits)?;
                // Before the first packet: what was cut stays cut.
                served.set_reach(spec.reach);
                // Those of a number have one loop, and so have those who talk to each other.
                shares[(number * queues + usize::from(queue)) % loops].push(served);
            }
            // Each takes the descriptors of those it meets now, so that few are on their way.
            let now = turns::now();
            for queue in shares.iter_mut().flatten() {
                queue.turn(now);
            }
            sites.push(site);
            devices.push(device);
        }
        let loops = shares.into_iter().map(|share| Loop::start(share, how.coalesce));
        let loops = loops.collect::<anyhow::Result<_>>()?;
        devices.sort_by_key(|device| device.node());
        Ok(Self { network: Mutex::new(Network::new(sites)), devices, loops })
    }

    /// A connection with the namespace of its other end, where that is at a device.
    pub fn locate(&self, tuple: Tuple) -> Tuple {
        // Whoever panicked in there changed nothing half.
        self.network.lock().unwrap_or_else(PoisonError::into_inner).locate(tuple)
    }

    /// What the devices are doing, by node.
    pub fn status(&self) -> Vec<DeviceStatus> {
        let queues: Vec<_> = self.ask(Question::Status).into_iter().flatten().collect();
        let of = |device: &Arc<Device>| {
            let mut status = device.status(turns::now());
            queues.iter().filter(|(node, _)| *node == device.node()).for_each(|(_, queue)| {
                status.add(queue);
            });
            status
        };
        self.devices.iter().map(of).collect()
    }

    /// From now on the device of `node` reaches the nodes in `reach` alone.
    ///
    /// # Errors
    /// Says that there is no such device, or that it is so busy that nobody knows yet.
    pub fn set_reach(&self, node: NodeId, reach: Reach) -> Result<(), String> {
        let answers = self.ask(|sender| Question::Reach(node, reach, sender));
        if answers.contains(&true) && answers.len() == self.loops.len() {
            Ok(())
        } else if answers.len() == self.loops.len() {
            Err(format!("it serves no device of node {}", node.0))
        } else {
            Err(format!(
                "the devices are so busy that they did not answer within {} ms; the change waits \
                 for them, repeat it to see whether it was made",
                turns::ANSWER_WITHIN.as_millis()
            ))
        }
    }

    /// What all loops answer; one that does not in time is left out, and does what it was asked
    /// when it goes on.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Question) -> Vec<T> {
        let ask = |one: &Loop| {
            let (sender, receiver) = channel();
            one.ask(question(sender));
            receiver
        };
        let asked: Vec<Receiver<T>> = self.loops.iter().map(ask).collect();
        let until = Instant::now() + turns::ANSWER_WITHIN;
        let answer = |answer: &Receiver<T>| {
            answer.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
        };
        let answers: Vec<T> = asked.iter().filter_map(answer).collect();
        if answers.len() < asked.len() {
            tracing::warn!("a loop of the devices is so busy that it did not answer");
        }
        answers
    }
}

/// A thread that serves queues.
struct Loop {
    questions: Sender<Question>,
    woken: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Loop {
    fn start(queues: Vec<Queue>, coalesce: Duration) -> anyhow::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags).context("eventfd")?);
        let (questions, asked) = channel();
        let mut turns = turns::Turns::new(queues, Arc::clone(&woken), coalesce)?;
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
        for text in [
            "5,mtu=65520",
            "0,mtu=1500,netns=n,stays",
            "1,mtu=68,segment=/a/b.sock",
            "1,mtu=68,reach=0+1,stays",
        ] {
            assert_eq!(text.parse::<DeviceSpec>().map(|spec| spec.to_string()), Ok(text.into()));
        }
        assert_eq!("5".parse::<DeviceSpec>().map(|spec| spec.mtu), Ok(MTU_MAX));
        for text in
            ["", "256", "x", "5,mtu=67", "5,mtu=65521", "5,", "5,netns", "5,segment=a", "5,reach=x"]
        {
            assert!(text.parse::<DeviceSpec>().is_err(), "{text:?}");
        }
    }
}
