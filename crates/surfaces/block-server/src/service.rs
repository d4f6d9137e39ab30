//! A server from its configuration, and its management while it runs.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use weft_block::iscsi::Target;
use weft_block::nbd::Exports;
use weft_block::scsi::{BLOCK_BYTES, Identity, Unit, UnitOptions};
use weft_block::statistics::Summary;
use weft_block::store::Store;
use weft_numa::Topology;

use crate::configuration::{Backing, Config, LunSpec, NbdPlace, TlsFiles, addresses, credentials};
use crate::file::{FileOptions, FileStore};
use crate::keeper::FileKeeper;
use crate::memory::MemoryStore;
use crate::reactor::Speaks;
use crate::server::{Running, Shared};
use crate::socket::Listener;

/// The counters of a unit, beside its properties.
struct Served {
    spec: LunSpec,
    store: Own,
}

enum Own {
    Memory(Arc<MemoryStore>),
    File(Arc<FileStore>),
}

impl Own {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::clone(store) as Arc<dyn Store>,
            Self::File(store) => Arc::clone(store) as Arc<dyn Store>,
        }
    }
}

/// A server with its targets.
pub struct Service {
    shared: Arc<Shared>,
    state: PathBuf,
    served: Mutex<BTreeMap<(String, u64), Served>>,
    control: PathBuf,
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
    /// The bytes behind it: mem or file:PATH.
    pub store: String,
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
    /// Opens all that a configuration names, and serves it.
    ///
    /// # Errors
    /// The configuration is not allowed, or something of it cannot be opened.
    pub fn start(config: &Config, control: PathBuf) -> anyhow::Result<(Arc<Self>, Running)> {
        config.check()?;
        let shared = Shared::new(Topology::of_host()?);
        let state = config.state.clone().unwrap_or_else(default_state);
        let service = Arc::new(Self { shared, state, served: Mutex::default(), control });
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
        for place in &config.listen {
            for address in addresses(place)? {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("cannot listen at {address}"))?;
                listener.set_nonblocking(true)?;
                listeners.push((Listener::Tcp(listener), Speaks::Iscsi));
            }
        }
        let reactors = config.reactors.unwrap_or(usize::MAX);
        let running = Running::start(&service.shared, listeners, reactors)?;
        Ok((service, running))
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
        let (own, node) = open(&spec)?;
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
                (Own::File(store), Backing::File { path, is_direct }) => {
                    let is_read_only = served.spec.is_read_only;
                    let options = FileOptions { is_direct: *is_direct, is_read_only };
                    Own::File(Arc::new(store.resized(path, bytes, options)?))
                }
                (Own::Memory(store), Backing::Memory { node, .. }) => {
                    Own::Memory(Arc::new(store.resized(bytes, *node)?))
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
                store: match &served.spec.backing {
                    Backing::Memory { .. } => "mem".to_owned(),
                    Backing::File { path, .. } => format!("file:{}", path.display()),
                },
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
        Status { units: units.collect(), reactors: reactors.collect() }
    }

    /// Makes all that was written outlast a failure of power.
    pub fn flush(&self) {
        for ((target, lun), served) in self.served.lock().iter() {
            if let Err(error) = served.store.store().flush() {
                tracing::error!("{target} LUN {lun} could not be flushed: {error}");
            }
        }
    }

    fn target(&self, name: &str) -> anyhow::Result<Arc<Target>> {
        self.shared.targets.get(name).with_context(|| format!("there is no target {name}"))
    }
}

fn open(spec: &LunSpec) -> anyhow::Result<(Own, Option<u32>)> {
    match &spec.backing {
        Backing::Memory { bytes, node } => {
            let store = MemoryStore::new(*bytes, *node)
                .with_context(|| format!("LUN {}: no memory", spec.number))?;
            Ok((Own::Memory(Arc::new(store)), *node))
        }
        Backing::File { path, is_direct } => {
            let options = FileOptions { is_direct: *is_direct, is_read_only: spec.is_read_only };
            let store = FileStore::open(path, options)
                .with_context(|| format!("LUN {}: {}", spec.number, path.display()))?;
            Ok((Own::File(Arc::new(store)), node_of_file(path)))
        }
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

/// The default place for reservations.
fn default_state() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/weft/block".into();
    }
    let home = std::env::var_os("HOME").map_or_else(|| "/tmp".into(), PathBuf::from);
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    base.unwrap_or_else(|| home.join(".local/state")).join("weft/block")
}

fn nbd_listeners(place: &NbdPlace) -> anyhow::Result<Vec<(Listener, bool)>> {
    match place {
        NbdPlace::Unix(path) => {
            let listener = unix_listener(path)?;
            Ok(vec![(Listener::Unix(listener), false)])
        }
        NbdPlace::Tcp(place) => addresses(place)?
            .into_iter()
            .map(|address| {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("cannot listen at {address}"))?;
                listener.set_nonblocking(true)?;
                Ok((Listener::Tcp(listener), true))
            })
            .collect(),
    }
}

/// Listens at a path for the own user alone, in place of a socket that nobody serves any more.
///
/// # Errors
/// Somebody listens there, or the path is something else.
pub fn unix_listener(path: &Path) -> anyhow::Result<UnixListener> {
    let shown = path.display();
    if let Ok(about) = fs::symlink_metadata(path) {
        ensure!(about.file_type().is_socket(), "{shown} is there and is no socket");
        ensure!(UnixStream::connect(path).is_err(), "another process listens at {shown}");
        fs::remove_file(path).with_context(|| format!("cannot remove {shown}"))?;
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at {shown}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn tls_config(files: &TlsFiles) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let shown = files.certificate.display();
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("{shown} has no certificates in PEM"))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .with_context(|| format!("{} has no private key in PEM", files.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| format!("{shown} and its key do not belong together"))?;
    Ok(Arc::new(config))
}
