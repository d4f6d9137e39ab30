//! The main thread of the daemon: it creates all parts, accepts programs and ends the daemon.
//!
//! The thread of their user serves accepted programs ([`crate::intake`]).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use weft_broker::Connector;
use weft_channel::{Credentials, Listener};
use weft_fabric::NodeId;
use weft_netdev::steering::Steering;
use weft_options::{CopyMethod, QueueChoice};
use weft_socket::Limits;
use weft_transport_shm::lane::LaneLayout;
use weft_transport_shm::local_broker;
use weft_wire::control::{Advice, CopyAdvice};

use crate::ether::{DeviceSpec, Devices, Settings};
use crate::fabric::bridge::Bridge;
use crate::fabric::{Fabric, FabricConfig, Own};
use crate::hub::Hub;
use crate::intake::Intakes;
use crate::lab::{Ruled, Ruler};
use crate::place::Place;
use crate::{Config, calibration, service, supervisor};

const LISTENER: u64 = 0;
const SIGNAL: u64 = 1;
/// Programs accepted before signals are checked.
const ACCEPTS_A_TURN: usize = 64;
/// How long the daemon accepts no programs after it ran out of descriptors. A program waits 0.1 s
/// for the daemon's greeting; a longer pause would make the program take the daemon for dead.
const GATE_SHUT: Duration = Duration::from_millis(20);
/// How long the start of the daemon waits for a number in the fabric that it never had.
const ADMISSION_WITHIN: Duration = Duration::from_secs(1);
/// How often a device that waits for the number of its host looks for it.
const NUMBER_AGAIN: Duration = Duration::from_millis(200);
/// Descriptors that are reserved for the daemon itself.
const DESCRIPTORS_OWN: usize = 256;

/// Serves the node until it is stopped by [`crate::client::stop`], SIGTERM or SIGINT.
///
/// # Errors
/// The control socket, a service or a device cannot be set up.
pub fn serve(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let (place, listener) = Place::take(&config.socket)?;
    let (signal, waker) = UnixStream::pair()?;
    for number in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
    }
    let devices = serve_devices(&config)?.map(Arc::new);
    let bridge = Arc::new(Bridge::default());
    let fabric = join(&config, &bridge)?.map(Arc::new);
    let node = match fabric.as_ref().map(|fabric| fabric.own()) {
        Some(Own::Known(node)) => node,
        Some(Own::Joining { .. }) | None => NodeId::LOCAL,
    };
    let (ruler, work) = config.links.as_ref().map(|_| Ruler::new()).unzip();
    let services = service::all(&config, node, devices.as_ref(), fabric.as_ref(), ruler.as_ref());
    let hub = Arc::new(Hub::new(&config, services, devices.clone(), descriptors_left())?);
    if let Some(fabric) = &fabric {
        let services = service::BETWEEN_NODES.iter().map(|name| hub.service(name).cloned());
        bridge.open(services.collect::<anyhow::Result<_>>()?, fabric);
    }
    if let (Some(work), Some(links)) = (work, config.links.clone()) {
        let services = ["endpoints", "connections"].map(|name| hub.service(name).cloned());
        let services = services.into_iter().collect::<anyhow::Result<_>>()?;
        work.begin(links, Ruled { devices: devices.clone(), services })?;
    }
    if let (Some(devices), Some(fabric)) = (devices, fabric)
        && let Some(device) = config.options.fabric_device()
    {
        serve_fabric_device(&config, device, devices, fabric)?;
    }
    crate::observing::serve(&config, &hub)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create")?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&epoll, &signal, EventData::new_u64(SIGNAL), EventFlags::IN)?;
    tracing::info!(socket = %config.socket.display(), node = config.node, "ready");
    if config.foreground {
        eprintln!("weft daemon: node {} ready at {}", config.node, config.socket.display());
        supervisor::tell_ready();
    }
    calibrate(&config, &hub);
    let intakes = Intakes::new(Arc::clone(&hub), waker);
    run(epoll.as_fd(), &mut Gate { listener, opens_at: None }, &hub, &intakes)?;
    drop(place);
    tracing::info!("stopped");
    Ok(())
}

/// Joins the fabric, if there is one. The number of this host is known then, unless it was never
/// given and the first daemon is away: endpoints' addresses have it, so it must not change later.
fn join(config: &Config, user: &Arc<Bridge>) -> anyhow::Result<Option<Fabric>> {
    let Some(fabric) = FabricConfig::read(config)? else { return Ok(None) };
    let fabric = Fabric::start(fabric, Arc::clone(user) as _, ADMISSION_WITHIN)?;
    match fabric.own() {
        Own::Known(node) => tracing::info!(node = node.0, fabric = fabric.name(), "joined"),
        Own::Joining { reason } => {
            tracing::warn!("not admitted to the fabric yet: {reason}");
            if config.foreground {
                eprintln!(
                    "weft daemon: not admitted to the fabric {:?} yet ({reason}); serving this \
                     host alone, and asking on",
                    fabric.name()
                );
            }
        }
    }
    Ok(Some(fabric))
}

/// The devices are made before the daemon answers, so that a program that waited for the daemon
/// finds them.
fn serve_devices(config: &Config) -> anyhow::Result<Option<Devices>> {
    let has_fabric_device = config.options.fabric_device().is_some();
    if config.devices.is_empty() && !has_fabric_device {
        return Ok(None);
    }
    let broker = local_broker(NodeId::LOCAL, weft_broker::Limits::default());
    let broker: Arc<dyn Connector> = Arc::new(broker);
    let options = &config.options;
    let limits = weft_ether::Limits {
        eager_bytes: options.ether_eager_bytes(),
        eager_group_bytes: options.ether_eager_group_bytes(),
        slots: options.ether_slots(),
        backlog: options.ether_backlog(),
        backlog_stalled: options.ether_backlog_stalled(),
        // Nothing is fetched on one host.
        ..weft_ether::Limits::default()
    };
    let loops = match options.ether_loops() {
        0 => std::thread::available_parallelism().map_or(1, |processors| processors.get() / 2),
        loops => loops,
    };
    let steering = match options.ether_steering() {
        QueueChoice::Flow => Steering::Flow,
        QueueChoice::Processor => Steering::Processor,
        QueueChoice::RoundRobin => Steering::RoundRobin,
    };
    let queues = u8::try_from(options.ether_queues()).context("ether.queues")?;
    let (is_paced, coalesce) = (options.ether_pace(), options.ether_coalesce());
    let learns = options.ether_learn_ms();
    let how = Settings { limits, queues, steering, loops, is_paced, coalesce, learns };
    Devices::start(&config.devices, &broker, &how).map(Some)
}

/// Serves the Ethernet device of this host in the fabric. Its endpoint is one of the daemon's own
/// broker, which answers when the daemon does, so a thread of its own waits for that, and for the
/// number of this host.
fn serve_fabric_device(
    config: &Config,
    device: &str,
    devices: Arc<Devices>,
    fabric: Arc<Fabric>,
) -> anyhow::Result<()> {
    let parts = if device == "on" { "" } else { device };
    let spec_of = move |node: NodeId, parts: &str| -> anyhow::Result<DeviceSpec> {
        let spec = if parts.is_empty() { node.to_string() } else { format!("{node},{parts}") };
        spec.parse().map_err(|error| anyhow!("fabric.device: {error}"))
    };
    // A mistake is told at the start.
    let spec = spec_of(NodeId::LOCAL, parts)?;
    ensure!(spec.segment.is_none(), "fabric.device: segment is for devices of one host");
    let options = config.options.clone();
    let (parts, foreground) = (parts.to_owned(), config.foreground);
    let socket = config.socket.clone();
    let serve = move || -> anyhow::Result<()> {
        let node = loop {
            match fabric.own() {
                Own::Known(node) => break node,
                Own::Joining { .. } => std::thread::sleep(NUMBER_AGAIN),
            }
        };
        devices.join_fabric(&spec_of(node, &parts)?, &socket, &options)
    };
    let serve = move || {
        if let Err(error) = serve() {
            tracing::error!("no Ethernet device in the fabric: {error:#}");
            if foreground {
                eprintln!("weft daemon: no Ethernet device in the fabric: {error:#}");
            }
        }
    };
    let thread = std::thread::Builder::new().name("weft-fabric-device".to_owned());
    thread.spawn(serve).context("a thread for the device of the fabric")?;
    Ok(())
}

/// Raises the soft limit to the hard limit: every waiting connection holds a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(?limit, "the limit of open files cannot be raised");
    }
}

/// How many descriptors the daemon may hold for programs.
fn descriptors_left() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(open + DESCRIPTORS_OWN).max(1)
}

/// Measures in the background. Until then programs are advised to use non-temporal stores.
fn calibrate(config: &Config, hub: &Arc<Hub>) {
    let fixed = match config.options.shm_copy() {
        CopyMethod::Plain => Some(CopyAdvice::Plain),
        CopyMethod::NonTemporal => Some(CopyAdvice::NonTemporal),
        CopyMethod::Auto => None,
    };
    let options = &config.options;
    let layout = LaneLayout {
        slots: u32::try_from(options.shm_ring_slots()).unwrap_or(256),
        sink_bytes: u32::try_from(options.socket_sink_bytes()).unwrap_or(1 << 18),
    };
    let limits = Limits {
        eager_bytes: options.socket_eager_bytes(),
        chunk_bytes: options.socket_chunk_bytes(),
    };
    let hub = Arc::clone(hub);
    std::thread::spawn(move || {
        let copy = fixed.unwrap_or_else(|| calibration::measure(layout, limits));
        let advice = Advice { copy, ..Advice::NONE };
        tracing::info!(?advice, "calibrated");
        hub.set_advice(advice);
    });
}

/// The listening socket, and the time to listen again after the daemon ran out of descriptors.
struct Gate {
    listener: Listener,
    opens_at: Option<Instant>,
}

impl Gate {
    /// Accepts waiting programs. When no descriptors are left, the gate stays shut for a while: an
    /// immediate retry would fail the same way.
    fn accept(&mut self, epoll: BorrowedFd<'_>, hub: &Hub, intakes: &Arc<Intakes>) {
        for _ in 0..ACCEPTS_A_TURN {
            let channel = match self.listener.accept() {
                Ok(channel) => channel,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => {
                    let own = Credentials { pid: std::process::id(), uid: u32::MAX - 1 };
                    hub.programs().complain_of(
                        own,
                        "programs wait to be accepted",
                        &errno.to_string(),
                    );
                    let _ = epoll::delete(epoll, &self.listener);
                    self.opens_at = Some(Instant::now() + GATE_SHUT);
                    return;
                }
            };
            // A program that has gone already has no credentials.
            if let Ok(credentials) = channel.peer() {
                intakes.admit(channel, credentials);
            }
        }
    }

    fn open_again(&mut self, epoll: BorrowedFd<'_>) {
        if self.opens_at.is_some_and(|at| at <= Instant::now()) {
            let data = EventData::new_u64(LISTENER);
            self.opens_at = match epoll::add(epoll, &self.listener, data, EventFlags::IN) {
                Ok(()) => None,
                Err(_) => Some(Instant::now() + GATE_SHUT),
            };
        }
    }
}

fn run(
    epoll: BorrowedFd<'_>,
    gate: &mut Gate,
    hub: &Hub,
    intakes: &Arc<Intakes>,
) -> anyhow::Result<()> {
    let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 4];
    loop {
        let timeout = gate.opens_at.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let ready = match epoll::wait(epoll, &mut space, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno).context("epoll_wait"),
        };
        gate.open_again(epoll);
        for event in ready {
            match event.data.u64() {
                LISTENER => gate.accept(epoll, hub, intakes),
                _ => return Ok(()),
            }
        }
    }
}
