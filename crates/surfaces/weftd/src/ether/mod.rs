//! The Ethernet devices of the node: each joins a TAP interface to a port of the fabric.
//!
//! A device has one or more queues (RED-SEA-D2.3#3.3), each with its own port. Each thread serves
//! its queues in one synchronous loop ([`event_loop`]). A queue has one thread, because packets of
//! one flow could overtake each other on two. Source: EXTOLL-THESIS#5.4.6 (EXN).

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use weft_broker::{Connector, Site};
use weft_ether::{Limits, MacAddress, Reach, Seat, Segment, pace};
use weft_fabric::NodeId;
use weft_netdev::NetdevError;
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_netdev::rate::RateLimit;
use weft_netdev::steering::Steering;
use weft_netdev::tap::Tap;
use weft_options::Options;
use weft_socket::tuple::Tuple;

use self::device::Device;
use self::event_loop::EventLoop;
use self::network::{Network, Place};
use self::queue::{HostEndpoint, Queue};
use crate::status::DeviceStatus;

mod demand;
mod device;
mod event_loop;
mod network;
mod ports;
mod queue;

/// The name of the interface.
pub const INTERFACE: &str = "weft0";
/// Packets that may wait for the daemon in a queue of the interface.
const QUEUE_PACKETS: u32 = 10_000;

/// How long a device that another program has open is tried again. A daemon that died a moment ago
/// is rid of its lock and its socket before the kernel takes its devices back.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(2);
const TRY_EVERY: Duration = Duration::from_millis(5);

/// The largest MTU: that of IPoIB's connected mode. A TAP device allows one byte more.
pub const MTU_MAX: u32 = 65_520;
/// The smallest MTU with which IPv4 works (RFC 791).
pub const MTU_MIN: u32 = 68;
/// The highest node number, and the highest port number: the ports of a host are endpoints of one
/// broker.
const NODE_MAX: u32 = 255;

/// How all devices of the daemon are served.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Sizes of messages and of backlogs.
    pub limits: Limits,
    /// Queues of each device.
    pub queues: u8,
    /// How a packet is assigned to a queue.
    pub steering: Steering,
    /// Largest number of threads.
    pub loops: usize,
    /// Whether floods of datagrams are delayed before packets are dropped.
    pub is_paced: bool,
    /// How long a loop under load may leave its queues alone.
    pub coalesce: Duration,
    /// How long a new device learns which node wants which multicast group.
    pub learns: Duration,
}

/// A device to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// The node of the device.
    pub node: NodeId,
    /// The network namespace of the device; `None` is that of the daemon.
    pub namespace: Option<String>,
    /// The MTU: bytes of IP in a frame.
    pub mtu: u32,
    /// Whether the interface stays when the daemon ends, so that connections survive a restart.
    pub stays: bool,
    /// The control socket of the daemon whose broker connects this device to the devices of other
    /// daemons. `None` connects it only to the devices of its own daemon.
    pub segment: Option<PathBuf>,
    /// The nodes that the device can reach at first.
    pub reach: Reach,
}

impl FromStr for DeviceSpec {
    type Err = String;

    /// Parses `NODE[,mtu=N][,netns=NAME][,stays][,segment=SOCKET][,reach=NODE+NODE]`, the format
    /// that `Display` prints.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let node = parts.next().unwrap_or_default();
        let node = node.parse().ok().filter(|node| *node <= NODE_MAX);
        let node =
            node.ok_or_else(|| format!("a device begins with a node number, 0 to {NODE_MAX}"))?;
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
                    spec.mtu = mtu.ok_or_else(|| format!("mtu must be {MTU_MIN} to {MTU_MAX}"))?;
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

/// Opens the queues of the interface in this thread's network namespace.
fn open_taps(queues: u8) -> Result<Vec<Tap>, NetdevError> {
    let until = Instant::now() + TAKEN_BACK_WITHIN;
    loop {
        match Tap::open(INTERFACE, queues) {
            Err(NetdevError::Os { errno: Errno::BUSY, .. }) if Instant::now() < until => {
                std::thread::sleep(TRY_EVERY);
            }
            opened => return opened,
        }
    }
}

impl DeviceSpec {
    /// Creates the device, or attaches to an existing one, and brings it up.
    fn open(&self, how: &Settings) -> anyhow::Result<(Vec<Tap>, Option<RateLimit>, Place)> {
        let open = || -> anyhow::Result<_> {
            let taps = open_taps(how.queues)?;
            let tap = taps.first().context("a device has a queue")?;
            if how.queues > 1 {
                tap.steer(how.steering)?;
            }
            let interface = Interface::named(INTERFACE)?;
            let mac = MacAddress::of_node(self.node).context("the node number has 16 bits")?;
            interface.set_mac(mac.0)?;
            interface.set_mtu(self.mtu)?;
            interface.set_queue(QUEUE_PACKETS)?;
            // The limit must be set before the interface is up: else the kernel makes room for 256
            // queues.
            let limit = self.limit(&interface, how.is_paced);
            interface.set_up(true)?;
            tap.set_carrier(true)?;
            let site = self.namespace.as_ref().and_then(|_| u16::try_from(self.node.0).ok());
            let place = Place::of(&interface, site.map(Site))?;
            Ok((taps, limit, place))
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

    /// Sets up the rate limit. Without the queueing discipline in the kernel, the device drops
    /// packets that do not fit.
    fn limit(&self, interface: &Interface, is_paced: bool) -> Option<RateLimit> {
        let limit = RateLimit::of(interface).and_then(|limit| {
            if is_paced {
                limit.put(pace::RATE_MAX)?;
            } else {
                // A limit from an earlier daemon must not delay packets; there may be none.
                let _ = limit.set(pace::RATE_MAX);
            }
            Ok(limit)
        });
        let node = self.node.0;
        let told = |error: &_| tracing::info!(node, "{error}: floods may be dropped in the device");
        limit.inspect_err(told).ok().filter(|_| is_paced)
    }
}

/// A request to a loop.
enum Question {
    Status(Sender<Vec<(NodeId, DeviceStatus)>>),
    Reach(NodeId, Reach, Sender<bool>),
    Stop,
}

/// The devices that a daemon serves.
pub struct Devices {
    how: Settings,
    network: Mutex<Network>,
    devices: Mutex<Vec<Arc<Device>>>,
    loops: Mutex<Vec<Loop>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic inside one of these locks leaves no half-made change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    /// Creates the devices and serves them. Their ports meet at `broker`, or at the broker of the
    /// daemon that `segment` names.
    ///
    /// # Errors
    /// Names the device that cannot be made, and the cause.
    pub fn start(
        specs: &[DeviceSpec],
        broker: &Arc<dyn Connector>,
        how: &Settings,
    ) -> anyhow::Result<Self> {
        demand::check(specs.iter().filter(|spec| spec.segment.is_none()).count(), how.queues)?;
        let segment = Segment::Host { queues: how.queues };
        for spec in specs {
            let places = (NODE_MAX + 1) / u32::from(how.queues);
            if spec.node.0 >= places {
                bail!(
                    "with {} queues for each device the node numbers are 0 to {}, and {} is not \
                     possible: set ether.queues lower",
                    how.queues,
                    places - 1,
                    spec.node.0
                );
            }
        }
        let devices = Self {
            how: *how,
            network: Mutex::default(),
            devices: Mutex::default(),
            loops: Mutex::default(),
        };
        devices.serve(specs, segment, |spec, seat| {
            let meets = ports::meeting(spec.segment.as_deref(), broker);
            ports::open(&meets, segment, seat)
        })?;
        Ok(devices)
    }

    /// Serves the device of this host in a fabric of hosts, with endpoints of the daemon with this
    /// socket. Its ports meet those of other hosts.
    ///
    /// # Errors
    /// As for [`Devices::start`].
    pub fn join_fabric(
        &self,
        spec: &DeviceSpec,
        socket: &Path,
        options: &Options,
    ) -> anyhow::Result<()> {
        let segment = ports::fabric_segment(self.how.queues);
        let transport = ports::between_hosts(socket, options)?;
        let open = |_: &DeviceSpec, seat| ports::open_on_fabric(&transport, segment, seat);
        self.serve(std::slice::from_ref(spec), segment, open)
    }

    /// Creates devices, each with an endpoint for each queue.
    fn serve<E: HostEndpoint + 'static>(
        &self,
        specs: &[DeviceSpec],
        segment: Segment,
        open: impl Fn(&DeviceSpec, Seat) -> anyhow::Result<E>,
    ) -> anyhow::Result<()> {
        let how = &self.how;
        let queues = usize::from(how.queues);
        let (mut shares, mut places, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        shares.resize_with(how.loops.clamp(1, (specs.len() * queues).max(1)), Vec::new);
        let loops = shares.len();
        for (number, spec) in specs.iter().enumerate() {
            let (taps, limit, place) = spec.open(how)?;
            let device = Arc::new(Device::new(spec, INTERFACE, how, limit));
            for (queue, tap) in (0..).zip(taps) {
                let endpoint = open(spec, Seat { node: spec.node, queue })?;
                let mut served = Queue::new(&device, queue, tap, segment, endpoint, how.limits);
                // Set before the first packet, so that cut links stay cut.
                served.set_reach(spec.reach);
                // Queues of the same number talk to each other, so they share a loop.
                shares[(number * queues + usize::from(queue)) % loops].push(served);
            }
            // Each queue accepts the descriptors of its peers now, so that few are in transit.
            let now = event_loop::now();
            for queue in shares.iter_mut().flatten() {
                queue.turn(now);
            }
            places.push(place);
            devices.push(device);
        }
        // Now that nothing else can fail, so that devices of a daemon that could not start go.
        for queue in shares.iter().flatten() {
            let spec = specs.iter().find(|spec| spec.node == queue.node());
            queue.set_persistent(spec.is_some_and(|spec| spec.stays))?;
        }
        let loops = shares.into_iter().map(|share| Loop::start(share, how.coalesce));
        let loops = loops.collect::<anyhow::Result<Vec<_>>>()?;
        lock(&self.network).add(places);
        let mut all = lock(&self.devices);
        all.extend(devices);
        all.sort_by_key(|device| device.node());
        lock(&self.loops).extend(loops);
        Ok(())
    }

    /// The connection `tuple` with the namespace of its other end, if that end is at a device.
    pub fn locate(&self, tuple: Tuple) -> Tuple {
        lock(&self.network).locate(tuple)
    }

    /// The node whose device is in the network namespace with this cookie.
    pub fn site_at(&self, namespace: u64) -> Option<Site> {
        lock(&self.network).site_at(namespace)
    }

    /// The cookies of the network namespaces of a lab's nodes.
    pub fn sites(&self) -> BTreeMap<u64, Site> {
        lock(&self.network).sites().collect()
    }

    /// The status of all devices, ordered by node.
    pub fn status(&self) -> Vec<DeviceStatus> {
        let queues: Vec<_> = self.ask(Question::Status).into_iter().flatten().collect();
        let of = |device: &Arc<Device>| {
            let mut status = device.status(event_loop::now());
            queues.iter().filter(|(node, _)| *node == device.node()).for_each(|(_, queue)| {
                status.add(queue);
            });
            status
        };
        lock(&self.devices).iter().map(of).collect()
    }

    /// Limits the device of `node` to the nodes in `reach`, from now on.
    ///
    /// # Errors
    /// There is no such device, or the loops did not answer in time.
    pub fn set_reach(&self, node: NodeId, reach: Reach) -> Result<(), String> {
        let answers = self.ask(|sender| Question::Reach(node, reach, sender));
        let loops = lock(&self.loops).len();
        if answers.contains(&true) && answers.len() == loops {
            Ok(())
        } else if answers.len() == loops {
            Err(format!("the daemon serves no device of node {}", node.0))
        } else {
            Err(format!(
                "the device loops did not answer within {} ms; the change is still pending, repeat \
                 it to see whether it was made",
                event_loop::ANSWER_WITHIN.as_millis()
            ))
        }
    }

    /// The answers of all loops. A loop that does not answer in time is left out; it still does
    /// what it was asked.
    fn ask<T>(&self, question: impl Fn(Sender<T>) -> Question) -> Vec<T> {
        let ask = |one: &Loop| {
            let (sender, receiver) = channel();
            one.ask(question(sender));
            receiver
        };
        let asked: Vec<Receiver<T>> = lock(&self.loops).iter().map(ask).collect();
        let until = Instant::now() + event_loop::ANSWER_WITHIN;
        let answer = |answer: &Receiver<T>| {
            answer.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
        };
        let answers: Vec<T> = asked.iter().filter_map(answer).collect();
        if answers.len() < asked.len() {
            tracing::warn!("a device loop did not answer in time");
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
    fn start<E: HostEndpoint + 'static>(
        queues: Vec<Queue<E>>,
        coalesce: Duration,
    ) -> anyhow::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let woken = Arc::new(eventfd(0, flags).context("eventfd")?);
        let (questions, asked) = channel();
        let mut event_loop = EventLoop::new(queues, Arc::clone(&woken), coalesce)?;
        let thread = std::thread::Builder::new()
            .name("weft-ether".to_owned())
            .spawn(move || event_loop.run(|event_loop| answer(event_loop, &asked)))
            .context("a thread for the devices")?;
        Ok(Self { questions, woken, thread: Some(thread) })
    }

    fn ask(&self, question: Question) {
        // The loop may have ended; then nothing answers.
        if self.questions.send(question).is_ok() {
            let _ = rustix::io::write(self.woken.as_fd(), &1_u64.to_ne_bytes());
        }
    }
}

/// Answers the requests; `false` to stop the loop.
fn answer<E: HostEndpoint>(event_loop: &mut EventLoop<E>, asked: &Receiver<Question>) -> bool {
    for question in asked.try_iter() {
        match question {
            // The asker may have gone.
            Question::Status(sender) => drop(sender.send(event_loop.status())),
            Question::Reach(node, reach, sender) => {
                let _ = sender.send(event_loop.set_reach(node, reach));
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
            // A panic was logged when it happened.
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
