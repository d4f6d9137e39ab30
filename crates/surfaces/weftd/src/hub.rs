//! The state that the daemon's threads share: programs, services, and the route of each packet.
//!
//! # Invariants
//! - Each kind of message belongs to one service or to the hub (greeting, status, stop).
//! - The thread of one user never waits here for a program of another user.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::Context;
use rustix::fs::{MemfdFlags, SealFlags};
use weft_channel::{Channel, Credentials, Packet};
use weft_wire::control::{Advice, Control, CopyAdvice, InvalidMessage, NODE_KINDS, split};

use crate::Config;
use crate::ether::Devices;
use crate::evidence::examine;
use crate::kernel;
use crate::networks::{Networks, Origin};
use crate::programs::{Line, Programs, now_ms};
use crate::quota::{Pool, Quota};
use crate::reports::{Reports, WAIT_WITHIN};
use crate::service::host::{ANSWER_WITHIN, Host};
use crate::service::{Event, Outgoing, Request, Service};
use crate::status::{DaemonStatus, QuotaStatus, Status};
use crate::unread;
use crate::watching::Page;

/// Most services: each has a bit in [`Line`].
const SERVICES_MAX: usize = 64;

/// The next step of a user's thread after a packet.
pub enum Verdict {
    /// Take the next packet.
    Continue,
    /// Keep the packet, take no further packets from this program, and try again.
    Wait(Parked),
    /// Close the channel.
    Close,
    /// A permitted user asked the daemon to end.
    Stop,
}

/// A packet for which its service has no room yet.
pub struct Parked {
    service: usize,
    request: Request,
}

/// The shared state.
pub struct Hub {
    node: String,
    started: Instant,
    advice: Mutex<Advice>,
    programs: Arc<Programs>,
    services: Vec<Arc<Host>>,
    /// The number of the service that owns each kind of message.
    routes: HashMap<u16, usize>,
    networks: Arc<Networks>,
    /// The last status.
    reports: Reports,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// The state of a new daemon with `services`, which may hold `descriptors_max` descriptors for
    /// programs.
    ///
    /// # Errors
    /// A service cannot be started.
    pub fn new(
        config: &Config,
        services: Vec<Box<dyn Service>>,
        devices: Option<Arc<Devices>>,
        descriptors_max: usize,
    ) -> anyhow::Result<Self> {
        let quota = Quota {
            user_share: config.options.daemon_user_share(),
            own_user: rustix::process::geteuid().as_raw(),
        };
        let networks = Arc::new(Networks::new(&config.options, devices));
        let programs = Programs::new(quota, descriptors_max, Arc::clone(&networks));
        let start = |service| Host::start(service, Arc::clone(&programs), quota);
        let services = services.into_iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            node: config.node.clone(),
            started: Instant::now(),
            advice: Mutex::new(Advice::NONE),
            routes: routes(&services),
            services,
            programs,
            networks,
            reports: Reports::new(WAIT_WITHIN),
        })
    }

    /// The service of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn service(&self, name: &str) -> anyhow::Result<&Arc<Host>> {
        let service = self.services.iter().find(|service| service.manifest().name == name);
        service.with_context(|| format!("no service {name}"))
    }

    /// The connected programs.
    pub const fn programs(&self) -> &Arc<Programs> {
        &self.programs
    }

    /// Sets the advice that programs get from now on.
    pub fn set_advice(&self, advice: Advice) {
        *lock(&self.advice) = advice;
    }

    /// Handles a packet that arrived on `line`. Runs on the thread of the program's user.
    pub fn handle(&self, line: &Line, packet: Packet) -> Verdict {
        let kind = match split(&packet.bytes) {
            _ if line.is_closed() => return Verdict::Close,
            Ok((kind, _)) => kind,
            Err(error) => return self.reject(line, &error),
        };
        let Packet { bytes, descriptors, .. } = packet;
        let Some(&service) = self.routes.get(&kind) else {
            return match Control::parse(&bytes) {
                Ok(Control::Hello { name, .. }) => self.welcome(line, name, descriptors),
                Ok(Control::PutUnread { token, way }) => {
                    let fate = unread::put(line.peer().uid, way, &descriptors);
                    self.reply(line, &Control::WasPut { token, fate });
                    Verdict::Continue
                }
                Ok(control) => self.handle_own(line, kind, control),
                Err(error) => self.reject(line, &error),
            };
        };
        let from = line.peer();
        let locate = |socket: BorrowedFd<'_>, tuple| self.networks.locate(socket, tuple);
        let shown = examine(descriptors, from.uid, self.programs.descriptors(), locate);
        line.asks(service);
        let request = Request { from, bytes, shown };
        match self.pass(Parked { service, request }) {
            Ok(()) => Verdict::Continue,
            Err(parked) => Verdict::Wait(parked),
        }
    }

    /// Passes a packet to its service.
    ///
    /// # Errors
    /// Returns the packet when the service has no room yet.
    pub fn pass(&self, parked: Parked) -> Result<(), Parked> {
        let Parked { service, request } = parked;
        let handled = self.services[service].handle(request);
        handled.map_err(|request| Parked { service, request })
    }

    fn handle_own(&self, line: &Line, kind: u16, control: Control) -> Verdict {
        match control {
            Control::Status => self.tell_status(line),
            Control::Stop if line.peer().may_command => {
                self.reply(line, &Control::Stopping);
                return Verdict::Stop;
            }
            Control::Stop => {
                let reason = "only root and the daemon's own user may stop it".to_owned();
                self.reply(line, &Control::Refused { token: 0, reason });
            }
            // All other kinds go from the daemon to programs.
            _ => return self.reject(line, &InvalidMessage::Kind { kind }),
        }
        Verdict::Continue
    }

    fn reject(&self, line: &Line, error: &InvalidMessage) -> Verdict {
        self.programs.reject(line.peer(), error);
        Verdict::Close
    }

    fn reply(&self, line: &Line, control: &Control) {
        self.send(Outgoing::plain(line.peer().process, control.emit()));
    }

    fn send(&self, outgoing: Outgoing) {
        for (peer, errno) in self.programs.send(&[outgoing]) {
            let what = "closing a program that does not take its replies";
            self.programs.complain(peer, what, &errno.to_string());
        }
    }

    fn welcome(&self, line: &Line, name: String, descriptors: Vec<OwnedFd>) -> Verdict {
        let peer = line.peer();
        tracing::debug!(pid = peer.pid, uid = peer.uid, name, "hello");
        let shown = examine(descriptors, peer.uid, self.programs.descriptors(), |_, tuple| tuple);
        self.programs.greet(peer.process, name, Page::among(shown));
        self.reply(line, &self.greeting());
        Verdict::Continue
    }

    fn greeting(&self) -> Control {
        let advice = Advice { networks: self.networks.reach_further(), ..*lock(&self.advice) };
        Control::Welcome { pid: std::process::id(), advice }
    }

    /// Adds a program that connected; `None` when it is refused. With the first one of another
    /// network namespace, all programs learn that their connections may lead to it.
    pub fn admit(&self, channel: Channel, credentials: Credentials) -> Option<Arc<Line>> {
        let line = self.programs.admit(channel, credentials)?;
        if line.peer().origin == Origin::Away && self.networks.joined() {
            tracing::info!("connections between network namespaces are followed from now on");
            for process in self.programs.greeted() {
                self.send(Outgoing::plain(process, self.greeting().emit()));
            }
        }
        Some(line)
    }

    /// Reports that the process at the other end of the line ended.
    pub fn ended(&self, line: &Line) {
        self.tell(line, || Event::Ended(line.peer()));
    }

    /// Removes a program that is gone; its line may be closed after this.
    pub fn gone(&self, line: &Line) {
        self.programs.forget(line.peer().process);
        self.tell(line, || Event::Gone(line.peer()));
    }

    /// Passes an event to the services that the program asked.
    fn tell(&self, line: &Line, event: impl Fn() -> Event) {
        for (number, service) in self.services.iter().enumerate() {
            if line.has_asked(number) {
                service.end(event(), line.place());
            }
        }
    }

    fn tell_status(&self, line: &Line) {
        let to = line.peer().process;
        match self.status(line.peer().may_command) {
            Ok(file) => {
                let bytes = Control::StatusReply.emit();
                self.send(Outgoing { to, bytes, descriptors: vec![file], wakeup: None });
            }
            Err(reason) => self.reply(line, &Control::Refused { token: 0, reason }),
        }
    }

    /// The status as JSON, in a file that its readers cannot change.
    fn status(&self, is_trusted: bool) -> Result<Arc<OwnedFd>, String> {
        let collect = || written(&serde_json::to_vec(&self.collected()).unwrap_or_default());
        self.reports.get(is_trusted, collect)
    }

    /// The status, collected from the hub and all services.
    pub fn collected(&self) -> Status {
        let began = Instant::now();
        let mut status = Status {
            node: self.node.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: self.started.elapsed().as_secs(),
            copy: match lock(&self.advice).copy {
                CopyAdvice::Plain => "plain",
                CopyAdvice::NonTemporal => "nontemporal",
            }
            .to_owned(),
            at_ms: now_ms(),
            daemon: self.daemon(),
            ..Status::default()
        };
        // All are asked before one is waited for: several that are busy together take no longer
        // than one.
        let asked: Vec<_> = self.services.iter().map(|service| service.ask_status()).collect();
        let until = Instant::now() + ANSWER_WITHIN;
        for (service, asked) in self.services.iter().zip(asked) {
            let (report, how) = service.status(asked, until);
            status.services.push(how);
            if let Some(report) = report {
                report(&mut status);
            }
        }
        self.programs.report(&mut status);
        status.collected_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        status
    }

    fn daemon(&self) -> DaemonStatus {
        let quota = |name: &str, pool: &Pool| QuotaStatus {
            name: name.to_owned(),
            used: pool.taken() as u64,
            maximum: pool.maximum() as u64,
        };
        let quotas = vec![
            quota("programs", self.programs.places()),
            quota("descriptors", self.programs.descriptors()),
        ];
        DaemonStatus { quotas, ..kernel::own_process() }
    }
}

/// The number of the service that owns each kind of message.
///
/// # Panics
/// When two services own the same kind: one of them would never be asked.
fn routes(services: &[Arc<Host>]) -> HashMap<u16, usize> {
    assert!(services.len() <= SERVICES_MAX, "a line has a bit for each service");
    let mut routes = HashMap::new();
    for (number, service) in services.iter().enumerate() {
        for kind in service.manifest().kinds.iter().cloned().flatten() {
            let is_free = !NODE_KINDS.iter().any(|own| own.contains(&kind));
            let is_free = routes.insert(kind, number).is_none() && is_free;
            assert!(
                is_free,
                "{} uses kind {kind}, which another owner has",
                service.manifest().name
            );
        }
    }
    routes
}

/// A sealed memfd that holds `text`.
pub fn written(text: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("weft-status", flags)?;
    let mut done = 0;
    while done < text.len() {
        done += rustix::io::pwrite(&file, &text[done..], done as u64)?;
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}
