//! The daemon's loop: one thread, one epoll.
//!
//! A program that does not read its replies loses its channel rather than the daemon its time or
//! its memory; its connections go on without it.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::Context;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use weft_channel::{Channel, Listener};
use weft_fabric::NodeId;
use weft_netdev::steering::Steering;
use weft_options::{CopyMethod, QueueChoice};
use weft_socket::Limits;
use weft_transport_shm::broker::Connector;
use weft_transport_shm::broker::local::LocalBroker;
use weft_transport_shm::lane::LaneLayout;
use weft_wire::control::{Advice, CopyAdvice};

use crate::ether::{Devices, Service};
use crate::node::{Node, Outgoing, ProcessId, Verdict};
use crate::place::Place;
use crate::{Config, calibration};

const LISTENER: u64 = 0;
const SIGNAL: u64 = 1;
const FIRST_PROCESS: u64 = 2;
/// Beside the number of a program: its process ended.
const ENDED: u64 = 1 << 63;
/// Packets taken from one program before others get their turn.
const PACKETS_A_TURN: usize = 64;
/// Programs that may be connected at once.
const PROGRAMS_MAX: usize = 8192;

/// Serves the node until it is stopped by [`crate::client::stop`], SIGTERM or SIGINT.
///
/// # Errors
/// When the control socket cannot be served.
pub fn serve(config: Config) -> anyhow::Result<()> {
    raise_descriptor_limit();
    let (place, listener) = Place::take(&config.socket)?;
    let (signal, waker) = UnixStream::pair()?;
    for number in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
    }
    let devices = serve_devices(&config)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC).context("epoll_create")?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&epoll, &signal, EventData::new_u64(SIGNAL), EventFlags::IN)?;
    tracing::info!(socket = %config.socket.display(), node = config.node, "ready");
    if config.foreground {
        eprintln!("weft daemon: node {} ready at {}", config.node, config.socket.display());
    }
    let advice = calibrate(&config);
    let mut server = Server {
        node: Node::new(config, devices),
        listener,
        programs: HashMap::new(),
        next: FIRST_PROCESS,
        advice,
    };
    server.run(epoll.as_fd())?;
    drop(place);
    tracing::info!("stopped");
    Ok(())
}

/// Before the daemon answers, so that who waits for it finds the devices.
fn serve_devices(config: &Config) -> anyhow::Result<Option<Devices>> {
    if config.devices.is_empty() {
        return Ok(None);
    }
    let broker = LocalBroker::new(NodeId::LOCAL, weft_transport_shm::broker::Limits::default());
    let broker: Arc<dyn Connector> = Arc::new(broker);
    let options = &config.options;
    let limits = weft_ether::Limits {
        eager_bytes: options.ether_eager_bytes(),
        eager_group_bytes: options.ether_eager_group_bytes(),
        slots: options.ether_slots(),
        backlog: options.ether_backlog(),
        backlog_stalled: options.ether_backlog_stalled(),
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
    let how = Service { limits, queues, steering, loops, is_paced, coalesce };
    Devices::start(&config.devices, &broker, &how).map(Some)
}

/// Every waiting connection holds a descriptor.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!(?limit, "the limit of open files cannot be raised");
    }
}

/// Measures in the background; programs that come before are told to stream past the cache.
fn calibrate(config: &Config) -> Receiver<Advice> {
    let (sender, receiver) = channel();
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
    std::thread::spawn(move || {
        let copy = fixed.unwrap_or_else(|| calibration::measure(layout, limits));
        let (block_bytes_min, block_bytes_max) = calibration::blocks::measure(layout, limits, copy);
        let advice = Advice { copy, block_bytes_min, block_bytes_max, ..Advice::NONE };
        tracing::info!(?advice, "calibrated");
        // The daemon may have ended meanwhile.
        let _ = sender.send(advice);
    });
    receiver
}

/// A program that is connected.
struct Program {
    channel: Channel,
    /// Its process, until that has ended.
    process: Option<OwnedFd>,
}

struct Server {
    node: Node,
    listener: Listener,
    programs: HashMap<ProcessId, Program>,
    next: u64,
    advice: Receiver<Advice>,
}

impl Server {
    fn run(&mut self, epoll: BorrowedFd<'_>) -> anyhow::Result<()> {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        loop {
            let timeout = self.node.poll_timeout().map(|at| {
                let left = at.saturating_duration_since(Instant::now());
                let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
                Timespec { tv_sec, tv_nsec: i64::from(left.subsec_nanos()) }
            });
            let ready = match epoll::wait(epoll, &mut space, timeout.as_ref()) {
                Ok((ready, _)) => ready,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno).context("epoll_wait"),
            };
            if timeout.is_some() {
                let mut out = Vec::new();
                self.node.handle_timeout(Instant::now(), &mut out);
                self.send(out);
            }
            if let Ok(advice) = self.advice.try_recv() {
                self.node.set_advice(advice);
            }
            for event in ready {
                match event.data.u64() {
                    LISTENER => self.accept(epoll),
                    SIGNAL => return Ok(()),
                    number if number & ENDED != 0 => {
                        self.process_ended(ProcessId(number & !ENDED));
                    }
                    number => {
                        if self.serve_process(ProcessId(number)) == Verdict::Stop {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    fn accept(&mut self, epoll: BorrowedFd<'_>) {
        loop {
            let channel = match self.listener.accept() {
                Ok(channel) => channel,
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "a program could not be accepted");
                    return;
                }
            };
            let Ok(credentials) = channel.peer() else { continue };
            if self.programs.len() >= PROGRAMS_MAX {
                tracing::warn!(?credentials, maximum = PROGRAMS_MAX, "too many programs");
                continue;
            }
            let process = ProcessId(self.next);
            let data = EventData::new_u64(self.next);
            if let Err(errno) = epoll::add(epoll, &channel, data, EventFlags::IN) {
                tracing::warn!(%errno, "a program could not be watched");
                continue;
            }
            // One that is gone already has closed its channel, or will have.
            let ended = channel.peer_process().ok().filter(|ended| {
                let data = EventData::new_u64(self.next | ENDED);
                epoll::add(epoll, ended, data, EventFlags::IN).is_ok()
            });
            self.next += 1;
            self.node.connected(process, credentials);
            self.programs.insert(process, Program { channel, process: ended });
        }
    }

    fn process_ended(&mut self, process: ProcessId) {
        if let Some(program) = self.programs.get_mut(&process) {
            // Closing it takes it out of the epoll set.
            program.process = None;
            let mut out = Vec::new();
            self.node.ended(process, &mut out);
            self.send(out);
        }
    }

    fn serve_process(&mut self, process: ProcessId) -> Verdict {
        for _ in 0..PACKETS_A_TURN {
            let Some(program) = self.programs.get(&process) else { return Verdict::Continue };
            let packet = match program.channel.receive() {
                Ok(Some(packet)) => packet,
                Err(Errno::AGAIN) => return Verdict::Continue,
                Ok(None) | Err(_) => {
                    self.close(process);
                    return Verdict::Continue;
                }
            };
            let mut out = Vec::new();
            let verdict = self.node.handle(process, packet, &mut out);
            self.send(out);
            match verdict {
                Verdict::Continue => {}
                Verdict::Close => self.close(process),
                Verdict::Stop => return Verdict::Stop,
            }
        }
        Verdict::Continue
    }

    fn send(&mut self, out: Vec<Outgoing>) {
        for Outgoing { to, bytes, descriptors, bell } in out {
            let Some(program) = self.programs.get(&to) else { continue };
            let beside: Vec<_> = descriptors.iter().map(|descriptor| descriptor.as_fd()).collect();
            if let Err(errno) = program.channel.send(&bytes, &beside) {
                tracing::warn!(?to, %errno, "closing a program that does not take its replies");
                self.close(to);
            }
            if let Some(bell) = bell {
                bell.ring_broker();
            }
        }
    }

    fn close(&mut self, process: ProcessId) {
        // Closing the channel takes it out of the epoll set.
        self.programs.remove(&process);
        let mut out = Vec::new();
        self.node.gone(process, &mut out);
        self.send(out);
    }
}
