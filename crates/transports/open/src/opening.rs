//! The wishes of a program for its endpoints, and how they are opened.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft_broker::Connector;
use weft_broker::remote::RemoteBroker;
use weft_fabric::{EndpointLimits, EndpointOptions, Partition, Transport, Vpid};
use weft_layers::{LayeredEndpoint, LayeredTransport, Work, on_a_thread};
use weft_libfabric::{Error, Library, Wanted};
use weft_memory::CopyMode;
use weft_options::{CopyMethod, Options};
use weft_sync::signals;
use weft_transport_ofi::nic::{PortNic, ThreadHolds};
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Ports};
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

use crate::daemon::Daemon;
use crate::error::OpeningError;
use crate::ports::HostPorts;

/// An endpoint that reaches peers of its host through memory, and those of others by libfabric.
pub type AnyEndpoint = LayeredEndpoint<HostPorts>;
/// The transport of [`AnyEndpoint`].
pub type AnyTransport = LayeredTransport<HostPorts>;
/// An endpoint that reaches its own host.
pub type NearEndpoint = ShmEndpoint;
/// The transport of [`NearEndpoint`].
pub type NearTransport = ShmTransport;
/// An endpoint that reaches all hosts by libfabric, its own as well.
pub type FarEndpoint = OfiEndpoint<PortNic>;
/// The transport of [`FarEndpoint`].
pub type FarTransport = OfiTransport<Ports>;

/// The part of a program that drives its endpoints between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Driver {
    /// A thread of the transport's answers peers while the program computes.
    #[default]
    Thread,
    /// The program polls each endpoint at least every few milliseconds, or sleeps on its
    /// descriptor.
    Owner,
    /// The same, and it polls most of the time: of two providers over TCP the one is taken that
    /// needs fewer system calls then.
    Polling,
    /// The program polls while it waits, and computes for long between that: the provider is that
    /// of [`Driver::Polling`], and a thread answers peers as for [`Driver::Thread`].
    Alternating,
}

/// The address whose interface an endpoint uses between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Source {
    /// That of the device in a node of a lab, else that of this host in its fabric, else any.
    #[default]
    Found,
    /// That of this host in the fabric that its daemon has joined; without a fabric there is no
    /// endpoint.
    Joined,
    /// This one.
    Address(IpAddr),
}

/// Where the broker is.
#[derive(Clone)]
enum Place {
    /// At the daemon that [`Daemon::find`] finds, of this node if one is named.
    Found(Option<String>),
    /// At the daemon with this socket.
    Socket(PathBuf),
    /// In this process.
    Own(Arc<dyn Connector>),
}

/// The step when no daemon answers.
#[derive(Clone)]
enum Absent {
    /// The opening fails.
    Fails,
    /// One is started by this command. Only [`Opening::starting_daemon_by`] names the function, so
    /// that a library that never starts one, such as the one for preloading, does not have it.
    Starts(PathBuf, fn(&Daemon, &Path, &Options) -> Result<(), OpeningError>),
}

/// The wishes of a program for its endpoints.
///
/// Without further words an endpoint is open to all hosts, in the partition of its user, with the
/// limits of the options, at a daemon that has to be there.
///
/// ```
/// use std::sync::Arc;
/// use weft_broker::Limits;
/// use weft_fabric::{Blocking, Endpoint, NodeId, PATIENCE};
/// use weft_open::Opening;
/// use weft_options::Options;
/// # use weft_transport_shm::local_broker;
///
/// // A broker of the own process, as in a test; else the node daemon is found.
/// let broker = Arc::new(local_broker(NodeId::LOCAL, Limits::default()));
/// let opening = Opening::with("an example", &Options::default()).by(broker).peers(8);
/// let (mut one, mut two) = (opening.open()?, opening.open()?);
/// let to = one.connect_within(two.address(), PATIENCE)?;
/// one.send_short(to, weft_fabric::MessageHeader::tag(1), &[b"hello"])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Opening {
    name: String,
    options: Options,
    place: Place,
    absent: Absent,
    endpoint: EndpointOptions,
    memory: Parameters,
    provider: Option<String>,
    source: Source,
    driver: Driver,
    has_signals: bool,
    thread_holds: Option<ThreadHolds>,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Opening {
    /// Endpoints of a program that `weft status` lists under `name`, with the options of the
    /// environment.
    ///
    /// # Errors
    /// [`OpeningError::Option`].
    pub fn named(name: &str) -> Result<Self, OpeningError> {
        let pairs: Vec<(String, String)> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let (options, problems) = Options::from_environment(pairs.iter().map(|(n, v)| (n, v)));
        match problems.iter().find(|problem| !problem.is_warning()) {
            Some(problem) => Err(OpeningError::Option(problem.to_string())),
            None => Ok(Self::with(name, &options)),
        }
    }

    /// The options of weft that this was made with.
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The same with these options.
    pub fn with(name: &str, options: &Options) -> Self {
        Self {
            name: name.to_owned(),
            options: options.clone(),
            place: Place::Found(None),
            absent: Absent::Fails,
            endpoint: EndpointOptions::default(),
            memory: shm_parameters(options),
            provider: options.fabric_provider().map(str::to_owned),
            source: Source::default(),
            driver: Driver::default(),
            has_signals: true,
            thread_holds: None,
        }
    }

    /// At the daemon of this node.
    pub fn of_node(self, node: &str) -> Self {
        Self { place: Place::Found(Some(node.to_owned())), ..self }
    }

    /// At the daemon with this socket.
    pub fn at(self, socket: &Path) -> Self {
        Self { place: Place::Socket(socket.to_path_buf()), ..self }
    }

    /// At this broker, without a daemon.
    pub fn by(self, broker: Arc<dyn Connector>) -> Self {
        Self { place: Place::Own(broker), ..self }
    }

    /// If no daemon answers, one is started by the `weft` command on the PATH.
    pub fn starting_daemon(self) -> Self {
        self.starting_daemon_by(Path::new("weft"))
    }

    /// If no daemon answers, one is started by this `weft` command.
    pub fn starting_daemon_by(self, command: &Path) -> Self {
        Self { absent: Absent::Starts(command.to_path_buf(), Daemon::start), ..self }
    }

    /// With these options of the endpoint, in place of all that was said about it.
    pub fn endpoint(self, endpoint: EndpointOptions) -> Self {
        Self { endpoint, ..self }
    }

    /// With this number on its node.
    pub fn vpid(mut self, vpid: Vpid) -> Self {
        self.endpoint.vpid = vpid;
        self
    }

    /// In this partition.
    pub fn partition(mut self, partition: Partition) -> Self {
        self.endpoint.partition = partition;
        self
    }

    /// With so many peers at most.
    pub fn peers(mut self, peers: usize) -> Self {
        self.endpoint.limits = EndpointLimits { peers: Some(peers), ..self.endpoint.limits };
        self
    }

    /// With rings of so many slots from each peer of the host: a power of two, 16 to 65,536.
    pub fn ring_slots(mut self, slots: u32) -> Self {
        self.memory.ring_slots = slots;
        self
    }

    /// Between hosts over this provider of libfabric, if one is given.
    pub fn provider(mut self, provider: Option<&str>) -> Self {
        self.provider = provider.map(str::to_owned).or(self.provider);
        self
    }

    /// Between hosts at this address.
    pub fn source(self, source: Source) -> Self {
        Self { source, ..self }
    }

    /// Driven by this part of the program between hosts.
    pub fn driven_by(self, driver: Driver) -> Self {
        Self { driver, ..self }
    }

    /// Threads that are started when an endpoint is opened, by a transport or a library, get no
    /// signal of the process: for a library in a program that has handlers of its own.
    pub fn without_signals(self) -> Self {
        Self { has_signals: false, ..self }
    }

    /// Threads of endpoints between hosts call `thread_holds` first, and keep the value until they
    /// end: for a program that has to know its threads.
    pub fn whose_threads_hold(self, thread_holds: ThreadHolds) -> Self {
        Self { thread_holds: Some(thread_holds), ..self }
    }

    /// Opens an endpoint to all hosts. Libfabric is loaded when the first peer of another host is
    /// wanted.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn open(&self) -> Result<AnyEndpoint, OpeningError> {
        self.quietly(|| Ok(self.any()?.open(&self.endpoint)?))
    }

    /// Opens an endpoint to this host.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn open_near(&self) -> Result<NearEndpoint, OpeningError> {
        self.quietly(|| Ok(self.near()?.open(&self.endpoint)?))
    }

    /// Opens an endpoint that uses libfabric to all hosts.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn open_far(&self) -> Result<FarEndpoint, OpeningError> {
        self.quietly(|| Ok(self.far()?.open(&self.endpoint)?))
    }

    /// The options of the endpoint, for a program that opens by a transport: those that were said,
    /// and the partition of a service.
    #[must_use]
    pub const fn endpoint_options(&self) -> &EndpointOptions {
        &self.endpoint
    }

    /// The transport of [`Opening::open`]. Endpoints of it are opened with
    /// [`Opening::endpoint_options`].
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn any(&self) -> Result<AnyTransport, OpeningError> {
        let (broker, daemon) = self.broker()?;
        let far = self.with_threads(OfiTransport::new(
            self.ports(daemon)?,
            Arc::clone(&broker),
            Default::default(),
        ));
        let run = if self.has_signals { on_a_thread } else { on_a_quiet_thread };
        Ok(LayeredTransport::new(ShmTransport::new(broker, self.memory), far, run))
    }

    /// The transport of [`Opening::open_near`].
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn near(&self) -> Result<NearTransport, OpeningError> {
        Ok(ShmTransport::new(self.broker()?.0, self.memory))
    }

    /// The transport of [`Opening::open_far`]. Loads libfabric.
    ///
    /// # Errors
    /// [`OpeningError`].
    pub fn far(&self) -> Result<FarTransport, OpeningError> {
        let (broker, daemon) = self.broker()?;
        let ports = self.ports(daemon)?.found()?;
        Ok(self.with_threads(OfiTransport::new(ports, broker, Default::default())))
    }

    /// Makes sure that [`Opening::open`] can reach other hosts: an endpoint opens without, and says
    /// so when one is wanted. Returns the provider of libfabric, which it loads.
    ///
    /// # Errors
    /// [`OpeningError::Libfabric`].
    pub fn check_far(&self) -> Result<String, OpeningError> {
        let (_, daemon) = self.broker()?;
        let wanted = self.ports(daemon)?.found()?.wanted;
        let provider = wanted.provider.clone().unwrap_or_default();
        match Library::load()?.offers(&wanted)?.is_empty() {
            true => Err(Error::NoOffer(format!("provider {provider}")).into()),
            false => Ok(provider),
        }
    }

    /// Has libfabric loaded on a thread of its own, if the daemon has joined other hosts, so that
    /// the first connect to one of them waits less: some of the libraries that it pulls in measure
    /// the clock of the processor for a tenth of a second each. Whatever keeps it from that is told
    /// by that connect.
    pub fn load_ahead(&self) {
        if self.has_own_broker() {
            return;
        }
        let own = self.clone();
        let load = move || {
            let status = own.daemon().and_then(|daemon| daemon.status());
            if status.is_ok_and(|status| status.joined_address().is_some()) {
                let _ = own.check_far();
            }
        };
        let run = if self.has_signals { on_a_thread } else { on_a_quiet_thread };
        run(Box::new(load));
    }

    /// The address at which other hosts find this program, if its daemon knows one.
    #[must_use]
    pub fn data_address(&self) -> Option<IpAddr> {
        match self.source {
            Source::Address(address) => Some(address),
            _ if self.has_own_broker() => None,
            _ => self.daemon().ok()?.status().ok()?.data_address(),
        }
    }

    pub(crate) const fn has_own_broker(&self) -> bool {
        matches!(self.place, Place::Own(_))
    }

    /// The daemon that is used. It need not answer.
    ///
    /// # Errors
    /// As for [`Daemon::find`].
    ///
    /// # Panics
    /// When [`Opening::by`] said that there is none.
    pub fn daemon(&self) -> Result<Daemon, OpeningError> {
        match &self.place {
            Place::Found(node) => Daemon::find(&self.options, node.as_deref()),
            Place::Socket(path) => Ok(Daemon::at(path)),
            Place::Own(_) => panic!("an opening with a broker of its own has no daemon"),
        }
    }

    /// The broker, and its daemon if it has one. Starts the daemon if that is wanted.
    fn broker(&self) -> Result<(Arc<dyn Connector>, Option<Daemon>), OpeningError> {
        if let Place::Own(broker) = &self.place {
            return Ok((Arc::clone(broker), None));
        }
        let daemon = self.daemon()?;
        if let Absent::Starts(command, start) = &self.absent
            && !daemon.answers()
        {
            start(&daemon, command, &self.options)?;
        }
        let broker = RemoteBroker::new(daemon.socket(), &self.name);
        Ok((Arc::new(broker), Some(daemon)))
    }

    fn ports(&self, daemon: Option<Daemon>) -> Result<HostPorts, OpeningError> {
        let source = match (self.source, &daemon) {
            (Source::Address(address), _) => Some(address),
            (Source::Joined, Some(daemon)) => {
                let socket = || daemon.socket().to_path_buf();
                let address = daemon.status()?.joined_address();
                Some(address.ok_or_else(|| OpeningError::NoFabric { socket: socket() })?)
            }
            (Source::Found, _) | (Source::Joined, None) => None,
        };
        let wanted = Wanted {
            provider: self.provider.clone(),
            source: source.map(|address| address.to_string()),
            ports: self.options.fabric_ports(),
        };
        Ok(HostPorts { daemon, wanted, driver: self.driver })
    }

    fn with_threads<C: weft_transport_ofi::Cards>(
        &self,
        transport: OfiTransport<C>,
    ) -> OfiTransport<C> {
        let transport = match self.driver {
            Driver::Thread | Driver::Alternating => transport,
            Driver::Owner | Driver::Polling => transport.driven_by_owner(),
        };
        match self.thread_holds {
            Some(holds) => transport.whose_threads_hold(holds),
            None => transport,
        }
    }

    fn quietly<T>(&self, open: impl FnOnce() -> T) -> T {
        if self.has_signals { open() } else { signals::without(open) }
    }
}

fn on_a_quiet_thread(work: Work) {
    signals::without(|| on_a_thread(work));
}

/// The settings of the option table for endpoints over shared memory.
#[must_use]
pub fn shm_parameters(options: &Options) -> Parameters {
    let default = Parameters::default();
    let limited = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    Parameters {
        ring_slots: u32::try_from(options.shm_ring_slots()).unwrap_or(default.ring_slots),
        endpoints: u16::try_from(options.daemon_endpoints_max()).unwrap_or(default.endpoints),
        spin_us: limited(options.shm_spin_us()),
        yields: options.shm_yields(),
        copy: match options.shm_copy() {
            CopyMethod::Auto => default.copy,
            CopyMethod::Plain => CopyMode::Plain,
            CopyMethod::NonTemporal => CopyMode::NonTemporal,
        },
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_transport_have_the_same_defaults() {
        assert_eq!(shm_parameters(&Options::default()), Parameters::default());
    }

    #[test]
    fn a_socket_without_a_daemon_is_named() {
        let opening = Opening::with("a test", &Options::default()).at(Path::new("/nowhere/n.sock"));
        for error in [opening.open().err(), opening.open_near().err()] {
            let text = error.expect("no daemon").to_string();
            assert!(text.contains("/nowhere/n.sock") && text.contains("weft daemon"), "{text}");
        }
        let joined = opening.source(Source::Joined).open_far().expect_err("no daemon");
        assert!(matches!(joined, OpeningError::NoDaemon { .. }), "{joined:?}");
    }
}
