//! A server from its configuration, and its management while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use weft_block::iscsi::Target;
use weft_block::nbd::Exports;
use weft_block::scsi::{BLOCK_BYTES, Identity, Unit, UnitOptions};
use weft_block::statistics::Summary;
use weft_block::store::Store;
use weft_numa::Topology;
use weft_open::Opening;

use crate::configuration::{Backing, Config, LunSpec, addresses, credentials, fabric_port};
use crate::fabric::Offered;
use crate::file::{FileOptions, FileStore};
use crate::keeper::FileKeeper;
use crate::listeners::{default_state, nbd_listeners, tls_config};
use crate::memory::MemoryStore;
use crate::reactor::Speaks;
use crate::remote::{RemoteStore, WhenOver};
use crate::server::{Running, Shared};
use crate::socket::Listener;

/// A daemon that does not answer is looked for again after this.
const OFFERED_AGAIN: Duration = Duration::from_secs(2);

/// A unit that is served.
struct Served {
    spec: LunSpec,
    store: Own,
}

enum Own {
    Memory(Arc<MemoryStore>),
    File(Arc<FileStore>),
    Remote(Arc<RemoteStore>),
}

impl Own {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::File(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::Remote(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }
}

impl Own {
    /// How its bytes are reached.
    fn driver(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::File(store) if store.file().is_some() => "io_uring",
            Self::File(_) => "pread",
            Self::Remote(_) => "fabric",
        }
    }
}

/// A server with its targets.
pub struct Service {
    shared: Arc<Shared>,
    state: PathBuf,
    served: Mutex<BTreeMap<(String, u64), Served>>,
    control: PathBuf,
    /// How endpoints of the fabric are opened.
    opening: Opening,
    /// Told when a session with another server ends.
    when_over: Mutex<Option<WhenOver>>,
    fabric: Mutex<Fabric>,
    fabric_news: Condvar,
}

/// The services of the fabric.
#[derive(Default)]
struct Fabric {
    offered: Vec<Offered>,
    is_over: bool,
}

impl std::fmt::Debug for Service {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Service({} units)", self.served.lock().len())
    }
}

/// A unit, for people and scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct UnitStatus {
    /// The name of the target.
    pub target: String,
    /// The number of the unit.
    pub lun: u64,
    /// The bytes behind it: mem, file:PATH or weft://HOST:PORT/IQN/N.
    pub store: String,
    /// How they are reached: memory, io_uring, pread or fabric.
    pub driver: String,
    /// Its size.
    pub bytes: u64,
    /// The node that it is served on.
    pub node: Option<u32>,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Sessions that use it.
    pub sessions: usize,
    /// Commands that run or wait for a thread.
    pub queue: u64,
    /// Its counters.
    pub reads: Summary,
    /// Its counters.
    pub writes: Summary,
    /// Its counters.
    pub others: Summary,
}

/// A reactor, for people and scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReactorStatus {
    /// The node of its processor.
    pub node: Option<u32>,
    /// Connections that it serves.
    pub connections: usize,
}

/// A server, for people and scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// All units.
    pub units: Vec<UnitStatus>,
    /// All reactors.
    pub reactors: Vec<ReactorStatus>,
    /// All endpoints of the fabric.
    pub endpoints: Vec<EndpointStatus>,
}

/// An endpoint that serves initiators over the fabric, for people and scripts.
#[derive(Debug, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// The name of the service.
    pub service: String,
    /// Its address.
    pub address: String,
    /// The node of its thread.
    pub node: Option<u32>,
    /// Initiators that it serves.
    pub sessions: usize,
}

/// Exports of a target: its units by their numbers, or by IQN/N.
#[derive(Debug)]
struct TargetExports(Arc<Target>);

impl Exports for TargetExports {
    fn find(&self, name: &str) -> Option<Arc<Unit>> {
        if name.is_empty() {
            return self.0.units().first().map(|(_, unit)| Arc::clone(unit));
        }
        let number = match name.rsplit_once('/') {
            Some((target, number)) if target == self.0.name() => number,
            Some(_) => return None,
            None => name,
        };
        self.0.unit(number.parse().ok()?)
    }

    fn names(&self) -> Vec<String> {
        self.0.units().iter().map(|(number, _)| number.to_string()).collect()
    }
}

impl Service {
    /// Opens all that a configuration names, and serves it. `opening` opens endpoints of the
    /// fabric; `when_over` is called when the session with a LUN of another server ends.
    ///
    /// # Errors
    /// The configuration is not allowed, or something of it cannot be opened.
    pub fn start(
        config: &Config,
        control: PathBuf,
        opening: &Opening,
        when_over: Option<WhenOver>,
    ) -> anyhow::Result<(Arc<Self>, Running)> {
        config.check()?;
        let shared = Shared::new(Topology::of_host()?);
        let state = config.state.clone().unwrap_or_else(default_state);
        let service = Arc::new(Self {
            shared,
            state,
            served: Mutex::default(),
            control,
            opening: opening.clone(),
            when_over: Mutex::new(when_over),
            fabric: Mutex::default(),
            fabric_news: Condvar::new(),
        });
        let mut listeners = Vec::new();
        for target in &config.targets {
            let known = target.chap.iter().map(|chap| credentials(chap));
            let known = known.collect::<anyhow::Result<_>>()?;
            let made = Arc::new(Target::new(&target.name, known)?);
            service.shared.targets.add(Arc::clone(&made))?;
            for lun in &target.luns {
                service.add(&target.name, lun)?;
            }
            let tls = config.nbd_tls.as_ref().map(tls_config).transpose()?;
            for place in &target.nbd {
                let exports = Arc::new(TargetExports(Arc::clone(&made)));
                for (listener, is_tcp) in nbd_listeners(&place.parse()?)? {
                    let tls = tls.clone().filter(|_| is_tcp);
                    let exports = Arc::clone(&exports) as Arc<dyn Exports>;
                    listeners.push((listener, Speaks::Nbd { exports, tls }));
                }
            }
        }
        let reactors = config.reactors.unwrap_or(usize::MAX);
        let (mut wanted, mut implied) = (BTreeSet::new(), BTreeSet::new());
        for place in &config.listen {
            if let Some(port) = fabric_port(place)? {
                wanted.insert(port);
                continue;
            }
            for address in addresses(place)? {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("cannot listen at {address}"))?;
                listener.set_nonblocking(true)?;
                implied.insert(listener.local_addr()?.port());
                listeners.push((Listener::Tcp(listener), Speaks::Iscsi));
            }
        }
        let running = Running::start(&service.shared, listeners, reactors)?;
        for port in &wanted {
            let offered = Offered::start(&service.shared, opening, *port, reactors)?;
            service.fabric.lock().offered.push(offered);
        }
        for port in implied.difference(&wanted) {
            service.offer_when_it_can(*port, reactors)?;
        }
        Ok((service, running))
    }

    /// Offers the targets over the fabric now, or as soon as a daemon of the node is there: those
    /// who serve by TCP may have none.
    fn offer_when_it_can(self: &Arc<Self>, port: u16, reactors: usize) -> anyhow::Result<()> {
        let offer = move |own: &Self| Offered::start(&own.shared, &own.opening, port, reactors);
        match offer(self) {
            Ok(offered) => {
                self.fabric.lock().offered.push(offered);
                return Ok(());
            }
            Err(error) => tracing::info!("not offered over the fabric yet: {error}"),
        }
        let own = Arc::clone(self);
        thread::Builder::new().name("weft-block-offer".to_owned()).spawn(move || {
            loop {
                let mut fabric = own.fabric.lock();
                own.fabric_news.wait_for(&mut fabric, OFFERED_AGAIN);
                if fabric.is_over {
                    return;
                }
                drop(fabric);
                let Ok(offered) = offer(&own) else { continue };
                tracing::info!("offered over the fabric as {}", offered.name);
                let mut fabric = own.fabric.lock();
                if fabric.is_over {
                    drop(fabric);
                    offered.stop();
                } else {
                    fabric.offered.push(offered);
                }
                return;
            }
        })?;
        Ok(())
    }

    /// The names of the services that are offered over the fabric now.
    #[must_use]
    pub fn offers(&self) -> Vec<String> {
        self.fabric.lock().offered.iter().map(|offered| offered.name.clone()).collect()
    }

    /// Ends what is served over the fabric.
    pub fn leave_fabric(&self) {
        let offered = {
            let mut fabric = self.fabric.lock();
            fabric.is_over = true;
            std::mem::take(&mut fabric.offered)
        };
        self.fabric_news.notify_all();
        offered.into_iter().for_each(Offered::stop);
    }

    /// The socket for management.
    #[must_use]
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// The state that all threads of the server share.
    #[must_use]
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Adds a unit to a target.
    ///
    /// # Errors
    /// The words are no unit, its store cannot be opened, or the number is taken.
    pub fn add(&self, target: &str, lun: &str) -> anyhow::Result<()> {
        let spec: LunSpec = lun.parse()?;
        let made = self.target(target)?;
        ensure!(made.unit(spec.number).is_none(), "target {target} has a LUN {}", spec.number);
        let (own, node) = self.open(&spec)?;
        let identity = Identity::new(target, spec.number);
        let (keeper, kept) = FileKeeper::open(&self.state, identity.serial())
            .with_context(|| format!("cannot keep reservations in {}", self.state.display()))?;
        let options =
            UnitOptions { is_removable: spec.is_removable, is_read_only: spec.is_read_only };
        let unit =
            Unit::new(identity, options, own.store(), Some(Arc::new(keeper)), kept.as_deref())
                .with_context(|| {
                    format!("the reservations in {} are damaged", self.state.display())
                })?;
        let unit = Arc::new(unit);
        self.shared.place_unit(&unit, node);
        made.add(spec.number, unit)?;
        self.served.lock().insert((target.to_owned(), spec.number), Served { spec, store: own });
        Ok(())
    }

    /// Takes a unit away. Its commands that run are finished.
    ///
    /// # Errors
    /// There is no such unit.
    pub fn remove(&self, target: &str, number: u64) -> anyhow::Result<()> {
        let made = self.target(target)?;
        let unit = made.remove(number);
        let unit = unit.with_context(|| format!("target {target} has no LUN {number}"))?;
        self.served.lock().remove(&(target.to_owned(), number));
        self.shared.forget_unit(&unit);
        unit.store().flush().context("the last flush of its store failed")
    }

    /// Gives a unit another size. A file gets it; of a device its present size is taken.
    ///
    /// # Errors
    /// There is no such unit, or its store cannot have that size.
    pub fn resize(&self, target: &str, number: u64, bytes: u64) -> anyhow::Result<()> {
        ensure!(
            bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES.into()),
            "a size is a multiple of {BLOCK_BYTES} bytes"
        );
        let unit = self.target(target)?.unit(number);
        let unit = unit.with_context(|| format!("target {target} has no LUN {number}"))?;
        let mut served = self.served.lock();
        let served = served.get_mut(&(target.to_owned(), number));
        let served = served.with_context(|| format!("target {target} has no LUN {number}"))?;
        // Commands wait, so that no write goes to a store that is left.
        unit.while_quiet(|| {
            let new = match (&served.store, &served.spec.backing) {
                (Own::File(store), Backing::File { path, direct }) => {
                    let is_read_only = served.spec.is_read_only;
                    let options = FileOptions { direct: *direct, is_read_only };
                    Own::File(Arc::new(store.resized(path, bytes, options)?))
                }
                (Own::Memory(store), Backing::Memory { node, .. }) => {
                    Own::Memory(Arc::new(store.resized(bytes, *node)?))
                }
                (Own::Remote(_), _) => {
                    bail!("LUN {number} has the size that its own server gives it")
                }
                _ => bail!("the store of LUN {number} is of another kind than it was"),
            };
            unit.resize(new.store());
            served.store = new;
            Ok(())
        })
    }

    /// The inventory and the counters of the server.
    #[must_use]
    pub fn status(&self) -> Status {
        let served = self.served.lock();
        let units = served.iter().filter_map(|((target, lun), served)| {
            let unit = self.shared.targets.get(target)?.unit(*lun)?;
            let statistics = unit.statistics();
            Some(UnitStatus {
                target: target.clone(),
                lun: *lun,
                store: served.spec.backing.to_string(),
                driver: served.store.driver().to_owned(),
                bytes: unit.blocks() * u64::from(BLOCK_BYTES),
                node: self.shared.node_of(&unit),
                read_only: unit.is_read_only(),
                sessions: unit.links(),
                queue: statistics.queue(),
                reads: statistics.reads.summary(),
                writes: statistics.writes.summary(),
                others: statistics.others.summary(),
            })
        });
        let loads = self.shared.loads().into_iter();
        let reactors = loads.map(|(node, connections)| ReactorStatus { node, connections });
        let fabric = self.fabric.lock();
        let endpoints = fabric.offered.iter().flat_map(|offered| {
            offered.seats().into_iter().map(|seat| EndpointStatus {
                service: offered.name.clone(),
                address: seat.address.to_string(),
                node: seat.node,
                sessions: seat.sessions,
            })
        });
        let endpoints = endpoints.collect();
        Status { units: units.collect(), reactors: reactors.collect(), endpoints }
    }

    /// Makes all that was written outlast a failure of power.
    pub fn flush(&self) {
        for ((target, lun), served) in self.served.lock().iter() {
            if let Err(error) = served.store.store().flush() {
                tracing::error!("{target} LUN {lun} could not be flushed: {error}");
            }
        }
    }

    /// The store of a unit, and the node that it is near.
    fn open(&self, spec: &LunSpec) -> anyhow::Result<(Own, Option<u32>)> {
        match &spec.backing {
            Backing::Memory { bytes, node } => {
                let store = MemoryStore::new(*bytes, *node)
                    .with_context(|| format!("LUN {}: no memory", spec.number))?;
                Ok((Own::Memory(Arc::new(store)), *node))
            }
            Backing::File { path, direct } => {
                let options = FileOptions { direct: *direct, is_read_only: spec.is_read_only };
                let store = FileStore::open(path, options)
                    .with_context(|| format!("LUN {}: {}", spec.number, path.display()))?;
                Ok((Own::File(Arc::new(store)), node_of_file(path)))
            }
            Backing::Remote(at) => {
                let when_over = self.when_over.lock().take().unwrap_or_else(|| Box::new(|_| {}));
                let store = RemoteStore::open(&self.opening, at, when_over)?;
                Ok((Own::Remote(Arc::new(store)), None))
            }
        }
    }

    fn target(&self, name: &str) -> anyhow::Result<Arc<Target>> {
        self.shared.targets.get(name).with_context(|| format!("there is no target {name}"))
    }
}

/// The node that the device of a file is near.
fn node_of_file(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let about = path.metadata().ok()?;
    let device = if about.file_type().is_block_device() { about.rdev() } else { about.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    weft_numa::node_of_device(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
}
