//! The state of the node: programs, their offers, and what each message leads to.
//!
//! No I/O but questions to the kernel about descriptors that programs show: packets come in with
//! the program they are from, packets to send come out.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use weft_channel::{Credentials, Packet};
use weft_ether::Reach;
use weft_fabric::NodeId;
use weft_socket::matchmaker::{Matchmaker, Offer, Offerer, Outcome, TableLimits, Tuple};
use weft_transport_shm::Doorbell;
use weft_transport_shm::lane::ShmLane;
use weft_wire::control::{Advice, Control, CopyAdvice, End};

use crate::endpoints::Endpoints;
use crate::ether::Devices;
use crate::status::{ConnectionStatus, EndpointStatus, ListenerStatus, ProcessStatus, Status};
use crate::{Config, kernel};

/// Names a program for as long as its channel lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProcessId(pub u64);

/// A packet to send.
pub struct Outgoing {
    /// To whom.
    pub to: ProcessId,
    /// What.
    pub bytes: Vec<u8>,
    /// What beside it.
    pub descriptors: Vec<Arc<OwnedFd>>,
    /// Rung after sending, so that an endpoint looks at its channel.
    pub bell: Option<Arc<Doorbell>>,
}

/// What the server is to do after a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// The program broke the protocol: close its channel after sending what is outgoing.
    Close,
    /// Somebody who may asked the daemon to end.
    Stop,
}

struct Program {
    credentials: Credentials,
    /// Its process number means the same to every program of which this is true.
    is_numbered_here: bool,
    name: Option<String>,
}

#[derive(Clone, Copy)]
struct Shown {
    descriptor: u32,
    inode: u64,
}

/// The node.
pub struct Node {
    config: Config,
    started: Instant,
    measured: Option<Advice>,
    programs: HashMap<ProcessId, Program>,
    matchmaker: Matchmaker<ProcessId, Arc<OwnedFd>>,
    shown: HashMap<Offerer<ProcessId>, Shown>,
    endpoints: Endpoints,
    devices: Option<Devices>,
}

impl Node {
    /// A node without programs.
    pub fn new(config: Config, devices: Option<Devices>) -> Self {
        let limits = TableLimits {
            connections_max: config.options.daemon_connections_max(),
            ..TableLimits::default()
        };
        let started = Instant::now();
        let endpoints = Endpoints::new(config.options.daemon_endpoints_max(), started);
        Self {
            config,
            started,
            measured: None,
            programs: HashMap::new(),
            matchmaker: Matchmaker::new(limits),
            shown: HashMap::new(),
            endpoints,
            devices,
        }
    }

    /// From now on programs are told this.
    pub fn set_advice(&mut self, advice: Advice) {
        self.measured = Some(advice);
    }

    /// A program connected.
    pub fn connected(&mut self, process: ProcessId, credentials: Credentials) {
        let is_numbered_here = kernel::shares_process_numbers(credentials.pid);
        let program = Program { credentials, is_numbered_here, name: None };
        self.programs.insert(process, program);
    }

    /// The process that connected ended; one that it forked may go on with the connections of both,
    /// but endpoints are of the process that opened them.
    pub fn ended(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.endpoints.gone(process, out);
    }

    /// A program is gone.
    pub fn gone(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.endpoints.gone(process, out);
        self.programs.remove(&process);
        self.matchmaker.process_gone(process);
        self.shown.retain(|offerer, _| offerer.process != process);
    }

    /// Handles a packet of `process`.
    pub fn handle(
        &mut self,
        process: ProcessId,
        packet: Packet,
        out: &mut Vec<Outgoing>,
    ) -> Verdict {
        let parsed = if Endpoints::concerns(&packet) {
            let credentials = self.credentials(process);
            match self.endpoints.handle(process, credentials, packet, out) {
                Ok(()) => return Verdict::Continue,
                Err(error) => Err(error),
            }
        } else {
            Control::parse(&packet.bytes).map(|control| (control, packet))
        };
        let (control, packet) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let Credentials { pid, uid } = self.credentials(process);
                tracing::warn!(pid, uid, %error, "closing a program that sent an invalid message");
                reply(out, process, &Control::Refused { token: 0, reason: error.to_string() });
                return Verdict::Close;
            }
        };
        match control {
            Control::Hello { name, .. } => {
                let Credentials { pid, uid } = self.credentials(process);
                tracing::debug!(pid, uid, name, "hello");
                if let Some(program) = self.programs.get_mut(&process) {
                    program.name = Some(name);
                }
                let pid = std::process::id();
                let networks = self.devices.is_some();
                let advice = Advice { networks, ..self.measured.unwrap_or_default() };
                reply(out, process, &Control::Welcome { pid, advice });
                Verdict::Continue
            }
            Control::Offer { token, end, descriptor } => {
                let offerer = Offerer { process, token };
                self.offer(offerer, end, descriptor, packet.descriptors, out);
                Verdict::Continue
            }
            Control::Withdraw { token } => {
                let offerer = Offerer { process, token };
                self.matchmaker.withdraw(offerer);
                self.shown.remove(&offerer);
                Verdict::Continue
            }
            Control::Join { token } => {
                self.join(process, token, packet.descriptors.first(), out);
                Verdict::Continue
            }
            Control::Listening { token } => {
                self.listening(Offerer { process, token }, packet.descriptors.first());
                drop(packet.descriptors);
                reply(out, process, &Control::Pending { token, listening: true });
                Verdict::Continue
            }
            Control::Status => {
                self.status_reply(process, out);
                Verdict::Continue
            }
            Control::Reach { node, reach } => {
                self.reach(process, NodeId(node), Reach::of_bits(reach), out);
                Verdict::Continue
            }
            Control::Stop => self.stop(process, out),
            Control::Done
            | Control::Welcome { .. }
            | Control::Refused { .. }
            | Control::Matched { .. }
            | Control::Wanted { .. }
            | Control::Pending { .. }
            | Control::StatusReply
            | Control::Stopping => Verdict::Close,
        }
    }

    /// When [`Node::handle_timeout`] is due; changes after it was called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.endpoints.poll_timeout()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        self.endpoints.handle_timeout(now, out);
    }

    fn credentials(&self, process: ProcessId) -> Credentials {
        let unknown = Credentials { pid: 0, uid: u32::MAX };
        self.programs.get(&process).map_or(unknown, |program| program.credentials)
    }

    /// The number of `writer`'s process when `reader` may read its memory; else 0.
    fn readable(&self, reader: ProcessId, writer: ProcessId) -> u32 {
        let (Some(reader), Some(writer)) = (self.programs.get(&reader), self.programs.get(&writer))
        else {
            return 0;
        };
        let may = reader.credentials.uid == writer.credentials.uid
            && reader.is_numbered_here
            && writer.is_numbered_here;
        if may { writer.credentials.pid } else { 0 }
    }

    fn offer(
        &mut self,
        offerer: Offerer<ProcessId>,
        end: End,
        descriptor: u32,
        mut descriptors: Vec<OwnedFd>,
        out: &mut Vec<Outgoing>,
    ) {
        let token = offerer.token;
        let refuse = |reason: String, out: &mut Vec<Outgoing>| {
            tracing::warn!(?offerer, reason, "offer refused");
            reply(out, offerer.process, &Control::Refused { token, reason });
        };
        let offer = match (end, descriptors.len()) {
            (End::Connected, 1) => Offer::Connected,
            (End::Accepted, 1) => Offer::Expecting,
            (End::Accepted, 2) => match descriptors.pop() {
                Some(memory) => Offer::Accepted(Arc::new(memory)),
                None => return,
            },
            (_, given) => {
                let due = if end == End::Accepted { "1 or 2" } else { "1" };
                return refuse(format!("{given} descriptors where {due} were due"), out);
            }
        };
        let Some(socket) = descriptors.pop() else { return };
        let tuple = match self.tuple_of(socket.as_fd()) {
            Ok(tuple) => tuple,
            Err(reason) => return refuse(reason, out),
        };
        let Some(inode) = kernel::inode_of(&socket) else { return };
        // From here on the daemon must not hold the socket: it would keep the connection open.
        drop(socket);
        self.drop_leftover(tuple);
        self.shown.insert(offerer, Shown { descriptor, inode });
        let brings_lane = matches!(offer, Offer::Accepted(_));
        match self.matchmaker.offer(offerer, tuple, offer) {
            Outcome::Matched { connected, accepted, memory } => {
                tracing::debug!(?connected, ?accepted, ?tuple, "matched");
                self.shown.remove(&connected);
                self.shown.remove(&accepted);
                let process = self.readable(connected.process, accepted.process);
                out.push(Outgoing {
                    to: connected.process,
                    bytes: Control::Matched { token: connected.token, process }.emit(),
                    descriptors: vec![memory],
                    bell: None,
                });
            }
            Outcome::Wanted { connected, accepted } => {
                let process = self.readable(accepted.process, connected.process);
                let wanted = Control::Wanted { token: accepted.token, process };
                reply(out, accepted.process, &wanted);
                if end == End::Connected {
                    reply(out, offerer.process, &Control::Pending { token, listening: true });
                }
            }
            // A lane that is offered has its answer in the lane.
            Outcome::Waiting { listening } => {
                if !brings_lane {
                    reply(out, offerer.process, &Control::Pending { token, listening });
                }
            }
            Outcome::Full { maximum } => {
                self.shown.remove(&offerer);
                refuse(format!("all {maximum} connections are in use"), out);
            }
        }
    }

    /// The connection of `socket`, which may go over a network of this daemon.
    fn tuple_of(&mut self, socket: BorrowedFd<'_>) -> Result<Tuple, String> {
        let tuple = kernel::tuple_of(socket)?;
        Ok(match &mut self.devices {
            Some(devices) => devices.network().locate(tuple),
            None => tuple,
        })
    }

    fn join(
        &mut self,
        process: ProcessId,
        token: u64,
        socket: Option<&OwnedFd>,
        out: &mut Vec<Outgoing>,
    ) {
        let memory = socket
            .and_then(|socket| self.tuple_of(socket.as_fd()).ok())
            .and_then(|tuple| self.matchmaker.memory_of(tuple));
        match memory {
            Some(memory) => out.push(Outgoing {
                to: process,
                bytes: Control::Matched { token, process: 0 }.emit(),
                descriptors: vec![memory],
                bell: None,
            }),
            None => {
                let reason = "no lane is known for this connection".to_owned();
                reply(out, process, &Control::Refused { token, reason });
            }
        }
    }

    /// Forgets the offer that `tuple` would match if the program that made it has closed the
    /// socket without saying so.
    fn drop_leftover(&mut self, tuple: Tuple) {
        let Some(waiting) = self.matchmaker.waiting_for(tuple) else { return };
        let pid = self.credentials(waiting.process).pid;
        let held = self
            .shown
            .get(&waiting)
            .is_some_and(|shown| kernel::still_holds(pid, shown.descriptor, shown.inode));
        if !held {
            tracing::debug!(?waiting, "forgetting an offer whose socket is gone");
            self.matchmaker.withdraw(waiting);
            self.shown.remove(&waiting);
        }
    }

    fn listening(&mut self, offerer: Offerer<ProcessId>, socket: Option<&OwnedFd>) {
        let Some(socket) = socket else { return };
        match kernel::listener_of(socket.as_fd()) {
            Ok((namespace, address)) => self.matchmaker.listen(offerer, namespace, address),
            Err(reason) => tracing::debug!(?offerer, reason, "not a listener"),
        }
    }

    /// Root and the daemon's own user may tell it what to do.
    fn may_command(&self, process: ProcessId) -> bool {
        let asking = self.credentials(process).uid;
        asking == 0 || asking == rustix::process::geteuid().as_raw()
    }

    fn reach(&mut self, process: ProcessId, node: NodeId, reach: Reach, out: &mut Vec<Outgoing>) {
        let done = match &self.devices {
            _ if !self.may_command(process) => {
                Err("only root and the daemon's own user may cut links".to_owned())
            }
            None => Err("it serves no devices".to_owned()),
            Some(devices) => devices.set_reach(node, reach),
        };
        match done {
            Ok(()) => reply(out, process, &Control::Done),
            Err(reason) => reply(out, process, &Control::Refused { token: 0, reason }),
        }
    }

    fn stop(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) -> Verdict {
        if !self.may_command(process) {
            let reason = "only root and the daemon's own user may stop it".to_owned();
            reply(out, process, &Control::Refused { token: 0, reason });
            return Verdict::Continue;
        }
        reply(out, process, &Control::Stopping);
        Verdict::Stop
    }

    fn status_reply(&self, process: ProcessId, out: &mut Vec<Outgoing>) {
        let text = serde_json::to_vec(&self.status()).unwrap_or_default();
        let file = rustix::fs::memfd_create("weft-status", rustix::fs::MemfdFlags::CLOEXEC)
            .and_then(|file| {
                let mut written = 0;
                while written < text.len() {
                    written += rustix::io::pwrite(&file, &text[written..], written as u64)?;
                }
                Ok(file)
            });
        match file {
            Ok(file) => out.push(Outgoing {
                to: process,
                bytes: Control::StatusReply.emit(),
                descriptors: vec![Arc::new(file)],
                bell: None,
            }),
            Err(errno) => {
                let reason = format!("no memory for the status: {errno}");
                reply(out, process, &Control::Refused { token: 0, reason });
            }
        }
    }

    fn endpoint_status(&self) -> Vec<EndpointStatus> {
        let of = |(process, program): (&ProcessId, &Program)| {
            let pid = program.credentials.pid;
            let open = self.endpoints.of(*process);
            open.map(move |(vpid, peers)| EndpointStatus { vpid, pid, peers }).collect::<Vec<_>>()
        };
        let mut endpoints: Vec<_> = self.programs.iter().flat_map(of).collect();
        endpoints.sort_by_key(|endpoint| endpoint.vpid);
        endpoints
    }

    /// The state as people see it.
    pub fn status(&self) -> Status {
        let pid_of = |process: ProcessId| self.credentials(process).pid;
        let mut processes: Vec<_> = (self.programs.values())
            .filter_map(|program| {
                let Credentials { pid, uid } = program.credentials;
                program.name.clone().map(|name| ProcessStatus { pid, uid, name })
            })
            .collect();
        processes.sort_by_key(|process| process.pid);
        let mut listeners: Vec<_> = self
            .matchmaker
            .listeners()
            .map(|(process, at)| ListenerStatus { pid: pid_of(process), address: at.to_string() })
            .collect();
        listeners.sort_by(|one, other| one.address.cmp(&other.address));
        let connections = self.matchmaker.pairs().map(|pair| {
            // Direction 0 is what the accepting end sends: it made the lane.
            let [from_server, from_client] =
                ShmLane::stream_bytes(pair.memory.as_fd()).unwrap_or_default();
            ConnectionStatus {
                server: pair.tuple.local.to_string(),
                client: pair.tuple.remote.to_string(),
                server_pid: pid_of(pair.accepted.process),
                client_pid: pid_of(pair.connected.process),
                bytes_from_server: from_server,
                bytes_from_client: from_client,
            }
        });
        let mut connections: Vec<_> = connections.collect();
        connections.sort_by(|one, other| one.client.cmp(&other.client));
        Status {
            node: self.config.node.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            copy: match self.measured.unwrap_or_default().copy {
                CopyAdvice::Plain => "plain",
                CopyAdvice::NonTemporal => "nontemporal",
            }
            .to_owned(),
            block_bytes: self
                .measured
                .map(|advice| [advice.block_bytes_min, advice.block_bytes_max]),
            processes,
            listeners,
            connections,
            endpoints: self.endpoint_status(),
            waiting: self.matchmaker.waiting(),
            devices: self.devices.as_ref().map(Devices::status).unwrap_or_default(),
        }
    }
}

fn reply(out: &mut Vec<Outgoing>, to: ProcessId, control: &Control) {
    out.push(Outgoing { to, bytes: control.emit(), descriptors: Vec::new(), bell: None });
}
