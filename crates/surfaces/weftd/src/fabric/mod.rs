//! The other hosts of the fabric: which are up, and messages to and from their daemons.
//!
//! A part of the daemon that talks to other daemons implements [`FabricUser`] and is given to
//! [`Fabric::start`].
//!
//! # Invariants
//! - Each [`FabricEvent::Up`] of a node is followed by one [`FabricEvent::Down`] before the next.
//! - Messages of a node come between its `Up` and its `Down`, in order, each once.

pub mod bridge;
mod driver;
mod etcd;
mod link;
mod names;
mod settings;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use weft_fabric::NodeId;
use weft_membership::{
    Admission, Expulsion, Identity, Machine, MachineConfig, NotExpelled, Numbering, Tls,
};
pub use weft_membership::{NodeAbout, NodeState, NodeStatus, NotSent};
use weft_options::Seed;

use self::driver::Driver;
use self::etcd::EtcdClient;
pub use self::settings::FabricConfig;
use self::state::State;
use crate::complaints::Complaints;

/// Most bytes of messages that the thread of the fabric has not taken yet. With more it stands
/// still, and the connection of the node that is sent to is given up.
const QUEUED_BYTES_MAX: usize = 16 << 20;

/// How long a connection to the own address may take.
const REACHED_WITHIN: Duration = Duration::from_millis(500);
/// How long the first daemon's lease lasts from one look at it to the next.
const FIRST_LEASE: Duration = Duration::from_secs(60);

/// Something that happened at the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FabricEvent {
    /// The own number was given. Told once, and only if no earlier start has kept one; it may come
    /// before [`Fabric::start`] returns. If [`Fabric::own`] still said [`Own::Joining`] then, the
    /// user takes the number over when no endpoint is open whose address has the former one,
    /// [`NodeId::LOCAL`].
    Numbered {
        /// The own number.
        node: NodeId,
    },
    /// A node can be sent messages.
    Up {
        /// Its number.
        node: NodeId,
        /// The random number of its daemon's start. If it is the same as before a `Down`, the
        /// daemon has lost nothing but messages that were under way.
        incarnation: u64,
        /// Facts about it.
        about: NodeAbout,
    },
    /// A node cannot be sent messages any more. Those that were under way may be lost.
    Down {
        /// Its number.
        node: NodeId,
        /// Why, for people.
        reason: String,
    },
    /// A message of the daemon of a node.
    Message {
        /// The node's number.
        node: NodeId,
        /// The message, of at most [`weft_membership::USER_BYTES_MAX`] bytes. A peer can send
        /// anything that it likes.
        bytes: Vec<u8>,
    },
}

/// A part of the daemon that talks to daemons of other hosts.
pub trait FabricUser: Send + Sync {
    /// Takes an event, on the thread of the fabric: it must not wait.
    fn handle(&self, event: FabricEvent);
}

/// The own number in the fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Own {
    /// It is known, and never changes while the daemon runs.
    Known(NodeId),
    /// It was never given, and the daemon goes on asking for it.
    Joining {
        /// The cause that it waits for, for people.
        reason: String,
    },
}

/// The state that the thread of the fabric and its users share.
struct Shared {
    machine: Mutex<Machine>,
    /// The own number became known, somebody refused, or the thread ended.
    changed: Condvar,
    waker: UnixStream,
    /// Bytes of messages that the thread has not taken. Raised under the lock of the machine.
    queued: AtomicUsize,
    is_over: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A waker that is full wakes, too.
        let _ = (&self.waker).write(&[1]);
    }
}

/// The other hosts of the fabric. Their connections end when this is dropped.
pub struct Fabric {
    shared: Arc<Shared>,
    started: Instant,
    name: String,
    thread: Option<JoinHandle<()>>,
    etcd: Option<Arc<EtcdClient>>,
    /// The term of the first daemon, which alone manages where there is no etcd.
    first: Option<u64>,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fabric({:?})", self.name)
    }
}

impl Fabric {
    /// Listens, and begins to connect to the other hosts. If the own number is not known yet, waits
    /// up to `within` for it. `user` is told what happens, also while this waits.
    ///
    /// # Errors
    /// The state cannot be used, or the address cannot be listened at.
    pub fn start(
        config: FabricConfig,
        user: Arc<dyn FabricUser>,
        within: Duration,
    ) -> anyhow::Result<Self> {
        let state = State::open(&config.state)?;
        let own = state.identity()?;
        let kept = state.roster()?;
        if let Some(kept) = &kept {
            ensure!(
                config.admission != Admission::First || kept.first == own.identity(),
                "the state in {} is of a fabric with another first daemon; set fabric.seeds to \
                 addresses of its hosts, or fabric.etcd as they have it, or remove that directory \
                 to found a new fabric",
                state.directory().display()
            );
            if kept.numbering == Numbering::Directory && config.etcd.is_none() {
                tracing::warn!(
                    "the hosts of this fabric are admitted by etcd, and fabric.etcd is not set: \
                     this daemon admits nobody"
                );
            }
        }
        let listener = TcpListener::bind(config.listen)
            .with_context(|| format!("cannot listen at {} (fabric.listen)", config.listen))?;
        reach_itself(&listener, config.listen)?;
        listener.set_nonblocking(true)?;
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let started = Instant::now();
        let incarnation = random()?;
        let etcd = config.etcd.clone().map(|etcd| etcd.client(&config.fabric, incarnation));
        let etcd = etcd.transpose()?.map(Arc::new);
        let machine = MachineConfig {
            fabric: config.fabric.clone(),
            own: own.identity(),
            about: NodeAbout {
                name: config.name,
                address: config.listen,
                release: env!("CARGO_PKG_VERSION").to_owned(),
                facts: config.facts,
            },
            incarnation,
            admission: config.admission,
            seeds: config.seeds.iter().filter_map(address_of).collect(),
            seed_names: config
                .seeds
                .iter()
                .filter(|one| address_of(one).is_none())
                .map(ToString::to_string)
                .collect(),
            silence: config.silence,
        };
        let is_first = config.admission == Admission::First && etcd.is_none();
        let mut machine = Machine::new(machine, kept, Duration::ZERO);
        machine.tick(Duration::ZERO);
        let is_known = machine.number().is_some();
        let shared = Arc::new(Shared {
            machine: Mutex::new(machine),
            changed: Condvar::new(),
            waker,
            queued: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let driver = Driver {
            shared: Arc::clone(&shared),
            user,
            listener,
            waker: woken,
            tls: Tls::new(&own).context("TLS cannot be set up")?,
            own: own.identity(),
            keys: config.keys,
            state,
            started,
            links: BTreeMap::new(),
            complaints: Complaints::default(),
            is_late: !is_known,
            etcd: etcd.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("weft-fabric".to_owned())
            .spawn(move || driver.run())
            .context("no thread for the fabric")?;
        names::start(config.seeds, Arc::clone(&shared), started)?;
        if let Some(etcd) = &etcd {
            etcd::start(Arc::clone(etcd), Arc::clone(&shared), started)?;
        }
        let thread = Some(thread);
        let first = is_first.then(time_of_start);
        let fabric = Self { shared, started, name: config.fabric, thread, etcd, first };
        fabric.await_number(within);
        Ok(fabric)
    }

    fn await_number(&self, within: Duration) {
        let deadline = Instant::now() + within;
        let mut machine = self.shared.lock();
        while machine.number().is_none() && !self.shared.is_over.load(Ordering::Acquire) {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut nodes = machine.nodes().into_iter();
            // A refusal does not end by waiting.
            let is_refused =
                nodes.any(|one| one.node.is_none() && matches!(one.state, NodeState::Refused(_)));
            if left.is_zero() || is_refused {
                return;
            }
            let waited = self.shared.changed.wait_timeout(machine, left);
            machine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The name of the fabric.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The own number. A daemon asks once, at its start, and hears of a later one by
    /// [`FabricEvent::Numbered`].
    #[must_use]
    pub fn own(&self) -> Own {
        let machine = self.shared.lock();
        match machine.number() {
            Some(node) => Own::Known(node),
            None => {
                let mut own = machine.nodes().into_iter().filter(|node| node.node.is_none());
                let reason = own.find_map(|node| match node.state {
                    NodeState::Joining(reason) | NodeState::Refused(reason) => Some(reason),
                    _ => None,
                });
                Own::Joining { reason: reason.unwrap_or_default() }
            }
        }
    }

    /// Sends a message to the daemon of a node. It arrives behind those sent before, unless the
    /// node goes down.
    ///
    /// # Errors
    /// The node is not up, or the message is longer than [`weft_membership::USER_BYTES_MAX`].
    pub fn send(&self, node: NodeId, bytes: Vec<u8>) -> Result<(), NotSent> {
        let length = bytes.len();
        let mut machine = self.shared.lock();
        if self.shared.is_over.load(Ordering::Acquire) {
            return Err(NotSent::NotUp);
        }
        if self.shared.queued.load(Ordering::Relaxed) > QUEUED_BYTES_MAX {
            machine.give_up(node, self.started.elapsed());
        }
        machine.send_user(node, bytes)?;
        self.shared.queued.fetch_add(length, Ordering::Relaxed);
        drop(machine);
        self.shared.wake();
        Ok(())
    }

    /// Ends the connection to a node, which then says everything anew.
    pub fn give_up(&self, node: NodeId) {
        self.shared.lock().give_up(node, self.started.elapsed());
        self.shared.wake();
    }

    /// The lease by which this daemon manages the fabric: its term, and how long it lasts at least.
    /// With etcd it is that of etcd's key, without it the first daemon has it.
    #[must_use]
    pub fn lead(&self) -> Option<(u64, Duration)> {
        if let Some(term) = self.first {
            return Some((term, FIRST_LEASE));
        }
        let lead = self.etcd.as_ref()?.lead()?;
        let left = lead.until.saturating_sub(self.started.elapsed());
        (!left.is_zero()).then_some((lead.term, left))
    }

    /// Whether this is the first daemon, which alone manages where there is no etcd.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.first.is_some()
    }

    /// All nodes, and the own host while it has no number.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.shared.lock().nodes()
    }

    /// The seeds at which no node of the fabric was found, with the reason of the last try.
    #[must_use]
    pub fn seeds_without_node(&self) -> Vec<(String, String)> {
        self.shared.lock().seeds_without_node()
    }

    /// Why etcd cannot be used at present, for people: an error while nobody is admitted; `None`
    /// if hosts do not join by etcd.
    #[must_use]
    pub fn etcd(&self) -> Option<Result<(), String>> {
        self.etcd.as_ref()?;
        let machine = self.shared.lock();
        Some(machine.directory_fault().map_or(Ok(()), |fault| Err(fault.to_owned())))
    }

    /// Expels a node. With etcd that takes a while ([`Fabric::has_expelled`]).
    ///
    /// # Errors
    /// This daemon cannot do that, or there is no such node.
    pub fn expel(&self, node: NodeId) -> Result<Expulsion, NotExpelled> {
        let expelled = self.shared.lock().expel(node, self.started.elapsed());
        self.shared.wake();
        expelled
    }

    /// Whether a node with this identity is none of the fabric any more.
    #[must_use]
    pub fn has_expelled(&self, identity: &Identity) -> bool {
        self.shared.lock().has_expelled(identity)
    }

    /// Asks etcd for an expulsion no more, which it may have taken all the same.
    pub fn give_up_expulsion(&self, identity: &Identity) {
        self.shared.lock().give_up_expulsion(identity);
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(etcd) = &self.etcd {
            // Its thread ends by itself: it may wait for an answer for some seconds.
            etcd.wake();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told when it happened.
            let _ = thread.join();
        }
    }
}

/// Refuses an address that the kernel listens at and nobody can connect to: that of all hosts of a
/// network.
fn reach_itself(listener: &TcpListener, listen: SocketAddr) -> anyhow::Result<()> {
    match TcpStream::connect_timeout(&listen, REACHED_WITHIN) {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::HostUnreachable
            ) =>
        {
            bail!(
                "nobody can connect to fabric.listen = {listen} ({error}), not even this host: it \
                 may be the address of all hosts of a network; set it to that of this host which \
                 the others reach (`ip address` lists them), and see that no firewall stops it"
            )
        }
        Err(_) => Ok(()),
        Ok(_) => {
            // One that connected at the same moment tries again.
            let _ = listener.accept();
            Ok(())
        }
    }
}

const fn address_of(seed: &Seed) -> Option<SocketAddr> {
    match seed {
        Seed::Address(address) => Some(*address),
        Seed::Name { .. } => None,
    }
}

/// Hundredths of a second since the epoch: the term of a first daemon, which is higher after a new
/// start, and below the terms of etcd. Where the clock was set back, nodes say so, and the daemon
/// goes on with a higher one.
fn time_of_start() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(1, |since| since.as_secs() * 100 + u64::from(since.subsec_millis() / 10))
}

/// A random number, which tells this start of the daemon from others.
fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the system gives no random bytes")?;
    Ok(u64::from_le_bytes(bytes))
}
