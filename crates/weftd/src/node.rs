//! The state of the node: programs, their offers, and what each message leads to.
//!
//! No I/O: what programs showed comes in ([`crate::evidence`]), packets to send come out. So
//! whoever holds the node's lock never waits for a program. A user has a part of the programs,
//! connections and descriptors that the others leave.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use weft_channel::Credentials;
use weft_options::share;
use weft_socket::matchmaker::{Matchmaker, Offer, Offerer, Outcome, Pair, TableLimits, Tuple};
use weft_transport_shm::Doorbell;
use weft_transport_shm::lane::ShmLane;
use weft_wire::control::{Advice, Control, CopyAdvice, End, InvalidMessage};

use crate::endpoints::Endpoints;
use crate::evidence::{Evidence, OfferedEnd};
use crate::status::{ConnectionStatus, EndpointStatus, ListenerStatus, ProcessStatus, Status};
use crate::{Config, kernel};

/// Programs that may be connected at once.
const PROGRAMS_MAX: usize = 8192;
/// Of the daemon's, for each program: its channel and its process.
const PROGRAM_DESCRIPTORS: usize = 2;

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

#[derive(Clone, Copy, Debug)]
struct Shown {
    descriptor: u32,
    inode: u64,
}

/// An offer, and what is needed to ask the kernel whether its socket is there still.
#[derive(Debug)]
pub struct Suspect {
    offerer: Offerer<ProcessId>,
    pid: u32,
    shown: Option<Shown>,
}

/// The state as people see it, with the lanes that are still to be asked.
pub struct Census {
    status: Status,
    lanes: Vec<(ConnectionStatus, Arc<OwnedFd>)>,
}

/// The node.
pub struct Node {
    node: String,
    started: Instant,
    measured: Option<Advice>,
    programs: HashMap<ProcessId, Program>,
    /// How many programs each user has.
    users: HashMap<u32, usize>,
    matchmaker: Matchmaker<ProcessId, Arc<OwnedFd>>,
    shown: HashMap<Offerer<ProcessId>, Shown>,
    endpoints: Endpoints,
    /// It serves Ethernet devices.
    has_networks: bool,
    own_user: u32,
    user_share: u8,
    descriptors_max: usize,
}

impl Node {
    /// A node without programs, of a daemon that may have `descriptors_max` descriptors of theirs.
    pub fn new(config: &Config, descriptors_max: usize) -> Self {
        let (options, own_user) = (&config.options, rustix::process::geteuid().as_raw());
        let user_share = options.daemon_user_share();
        let limits = TableLimits {
            connections_max: options.daemon_connections_max(),
            user_share,
            user_unbounded: own_user,
            ..TableLimits::default()
        };
        let started = Instant::now();
        Self {
            node: config.node.clone(),
            started,
            measured: None,
            programs: HashMap::new(),
            users: HashMap::new(),
            matchmaker: Matchmaker::new(limits),
            shown: HashMap::new(),
            endpoints: Endpoints::new(options, started),
            has_networks: !config.devices.is_empty(),
            own_user,
            user_share,
            descriptors_max,
        }
    }

    /// From now on programs are told this.
    pub fn set_advice(&mut self, advice: Advice) {
        self.measured = Some(advice);
    }

    /// A program connected.
    ///
    /// # Errors
    /// Says why its user may have no more of them.
    pub fn connected(
        &mut self,
        process: ProcessId,
        credentials: Credentials,
    ) -> Result<(), String> {
        let (user, own) = (credentials.uid, self.programs_of(credentials.uid));
        let maximum = self.allowance(user, PROGRAMS_MAX, self.programs.len() - own);
        if own >= maximum {
            return Err(format!(
                "user {user} has {own} programs at this daemon, as many as one may \
                 (daemon.user_share)"
            ));
        }
        if !self.has_descriptors(user, PROGRAM_DESCRIPTORS) {
            return Err(self.out_of_descriptors(user));
        }
        let is_numbered_here = kernel::shares_process_numbers(credentials.pid);
        let program = Program { credentials, is_numbered_here, name: None };
        self.programs.insert(process, program);
        *self.users.entry(user).or_insert(0) += 1;
        Ok(())
    }

    /// The process that connected ended; one that it forked may go on with the connections of both,
    /// but endpoints are of the process that opened them.
    pub fn ended(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.endpoints.gone(process, out);
    }

    /// A program is gone.
    pub fn gone(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.endpoints.gone(process, out);
        if let Some(program) = self.programs.remove(&process)
            && let Some(count) = self.users.get_mut(&program.credentials.uid)
        {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&program.credentials.uid);
            }
        }
        self.matchmaker.process_gone(process);
        self.shown.retain(|offerer, _| offerer.process != process);
    }

    /// Handles what a packet of `process` showed.
    ///
    /// # Errors
    /// [`InvalidMessage`] for what no program of ours sends: close its channel.
    pub fn handle(
        &mut self,
        process: ProcessId,
        evidence: Evidence,
        out: &mut Vec<Outgoing>,
    ) -> Result<Verdict, InvalidMessage> {
        let control = match evidence {
            Evidence::Endpoint(packet) => {
                let credentials = self.credentials(process);
                if !packet.descriptors.is_empty() && !self.has_descriptors(credentials.uid, 4) {
                    let reason = self.out_of_descriptors(credentials.uid);
                    reply(out, process, &Control::Refused { token: 0, reason });
                    return Ok(Verdict::Continue);
                }
                self.endpoints.handle(process, credentials, packet, out)?;
                return Ok(Verdict::Continue);
            }
            Evidence::Offer(offered) => {
                self.offer(process, offered, out);
                return Ok(Verdict::Continue);
            }
            Evidence::Join { token, tuple } => {
                self.join(process, token, tuple, out);
                return Ok(Verdict::Continue);
            }
            Evidence::Listening { token, at } => {
                if let Some((namespace, address)) = at {
                    let user = self.credentials(process).uid;
                    let offerer = Offerer { process, token };
                    self.matchmaker.listen(offerer, user, namespace, address);
                }
                reply(out, process, &Control::Pending { token, listening: true });
                return Ok(Verdict::Continue);
            }
            Evidence::Refused { token, reason } => {
                reply(out, process, &Control::Refused { token, reason });
                return Ok(Verdict::Continue);
            }
            Evidence::Control(control) => control,
        };
        Ok(match control {
            Control::Hello { name, .. } => {
                self.hello(process, name, out);
                Verdict::Continue
            }
            Control::Withdraw { token } => {
                let offerer = Offerer { process, token };
                self.matchmaker.withdraw(offerer);
                self.shown.remove(&offerer);
                Verdict::Continue
            }
            Control::Stop => self.stop(process, out),
            // Those with descriptors are evidence of their own; the status and the reach of
            // devices take time, and are answered outside.
            _ => Verdict::Close,
        })
    }

    fn hello(&mut self, process: ProcessId, name: String, out: &mut Vec<Outgoing>) {
        let Credentials { pid, uid } = self.credentials(process);
        tracing::debug!(pid, uid, name, "hello");
        if let Some(program) = self.programs.get_mut(&process) {
            program.name = Some(name);
        }
        let pid = std::process::id();
        let advice = Advice { networks: self.has_networks, ..self.measured.unwrap_or_default() };
        reply(out, process, &Control::Welcome { pid, advice });
    }

    /// Whether `user` may have so many descriptors more of the daemon's.
    fn has_descriptors(&self, user: u32, more: usize) -> bool {
        let (lanes, all_lanes) = self.matchmaker.lanes(user);
        let (files, all_files) = self.endpoints.descriptors(user);
        let channels = self.programs_of(user) * PROGRAM_DESCRIPTORS;
        let own = lanes + files + channels;
        let all = all_lanes + all_files + self.programs.len() * PROGRAM_DESCRIPTORS;
        own + more <= self.allowance(user, self.descriptors_max, all - own)
    }

    fn out_of_descriptors(&self, user: u32) -> String {
        format!(
            "user {user} has as many of the daemon's {} descriptors as one may (ulimit -n, \
             daemon.user_share)",
            self.descriptors_max
        )
    }

    fn programs_of(&self, user: u32) -> usize {
        self.users.get(&user).copied().unwrap_or(0)
    }

    /// How many of `maximum` a user may have beside what others have.
    fn allowance(&self, user: u32, maximum: usize, others: usize) -> usize {
        let share = if self.may_all(user) { share::ALL } else { self.user_share };
        share::allowance(maximum, others, share)
    }

    /// Root and the daemon's own user.
    fn may_all(&self, user: u32) -> bool {
        user == 0 || user == self.own_user
    }

    /// When [`Node::handle_timeout`] is due; changes after it was called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.endpoints.poll_timeout()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        self.endpoints.handle_timeout(now, out);
    }

    /// Who a program is.
    pub fn credentials(&self, process: ProcessId) -> Credentials {
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

    fn offer(&mut self, process: ProcessId, offered: OfferedEnd, out: &mut Vec<Outgoing>) {
        let OfferedEnd { token, end, tuple, descriptor, inode, lane } = offered;
        let (offerer, user) = (Offerer { process, token }, self.credentials(process).uid);
        let brings_lane = lane.is_some();
        if brings_lane && !self.has_descriptors(user, 1) {
            let reason = self.out_of_descriptors(user);
            return reply(out, process, &Control::Refused { token, reason });
        }
        let offer = match (end, lane) {
            (End::Connected, _) => Offer::Connected,
            (End::Accepted, None) => Offer::Expecting,
            (End::Accepted, Some(memory)) => Offer::Accepted(memory),
        };
        self.shown.insert(offerer, Shown { descriptor, inode });
        match self.matchmaker.offer(offerer, user, tuple, offer) {
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
                let reason = format!(
                    "user {user} has {maximum} connections, as many as one may \
                     (daemon.connections_max, daemon.user_share)"
                );
                reply(out, process, &Control::Refused { token, reason });
            }
        }
    }

    fn join(&self, process: ProcessId, token: u64, tuple: Tuple, out: &mut Vec<Outgoing>) {
        match self.matchmaker.memory_of(tuple) {
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

    /// An offer that one of `tuple` would match, for [`Suspect::is_leftover`].
    pub fn suspect(&self, tuple: Tuple) -> Option<Suspect> {
        let offerer = self.matchmaker.waiting_for(tuple)?;
        let shown = self.shown.get(&offerer).copied();
        Some(Suspect { offerer, pid: self.credentials(offerer.process).pid, shown })
    }

    /// Forgets an offer whose program has closed the socket without saying so.
    pub fn forget(&mut self, leftover: &Suspect) {
        let offerer = leftover.offerer;
        if self.shown.get(&offerer).map(|shown| shown.inode) == leftover.inode() {
            tracing::debug!(?offerer, "forgetting an offer whose socket is gone");
            self.matchmaker.withdraw(offerer);
            self.shown.remove(&offerer);
        }
    }

    /// Root and the daemon's own user may tell it what to do.
    pub fn may_command(&self, process: ProcessId) -> bool {
        self.may_all(self.credentials(process).uid)
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

    /// The state as people see it, but for what lanes and devices say.
    pub fn census(&self) -> Census {
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
        let pair = |pair: &Pair<ProcessId, Arc<OwnedFd>>| {
            let status = ConnectionStatus {
                server: pair.tuple.local.to_string(),
                client: pair.tuple.remote.to_string(),
                server_pid: pid_of(pair.accepted.process),
                client_pid: pid_of(pair.connected.process),
                bytes_from_server: 0,
                bytes_from_client: 0,
            };
            (status, Arc::clone(&pair.memory))
        };
        let lanes = self.matchmaker.pairs().map(pair).collect();
        let status = Status {
            node: self.node.clone(),
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
            connections: Vec::new(),
            endpoints: self.endpoint_status(),
            waiting: self.matchmaker.waiting(),
            devices: Vec::new(),
        };
        Census { status, lanes }
    }
}

impl Suspect {
    /// True when its program has no descriptor of the socket any more. Reads `/proc`.
    pub fn is_leftover(&self) -> bool {
        !self
            .shown
            .is_some_and(|shown| kernel::still_holds(self.pid, shown.descriptor, shown.inode))
    }

    fn inode(&self) -> Option<u64> {
        self.shown.map(|shown| shown.inode)
    }
}

impl Census {
    /// Adds what the lanes say, which each is a call of the kernel.
    pub fn counted(self) -> Status {
        let Self { mut status, lanes } = self;
        let count = |(mut connection, memory): (ConnectionStatus, Arc<OwnedFd>)| {
            // Direction 0 is what the accepting end sends: it made the lane.
            [connection.bytes_from_server, connection.bytes_from_client] =
                ShmLane::stream_bytes(memory.as_fd()).unwrap_or_default();
            connection
        };
        status.connections = lanes.into_iter().map(count).collect();
        status.connections.sort_by(|one, other| one.client.cmp(&other.client));
        status
    }
}

/// Puts a message without descriptors to what is to be sent.
pub fn reply(out: &mut Vec<Outgoing>, to: ProcessId, control: &Control) {
    out.push(Outgoing { to, bytes: control.emit(), descriptors: Vec::new(), bell: None });
}
