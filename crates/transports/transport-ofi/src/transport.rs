//! The transport: it opens endpoints at a directory, each with a NIC of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use weft_broker::Connector;
use weft_broker::calls::{self, Opened};
use weft_broker::conversation::{Conversation, Opening};
use weft_fabric::{
    Capabilities, EndpointAddress, EndpointLimits, EndpointOptions, OpenError, PartitionId,
    Progress, Transport,
};
use weft_libfabric::{Error, Library, Offer, Wanted};
use weft_memory::SegmentError;
use weft_sync::AdaptiveWait;

use crate::endpoint::OfiEndpoint;
use crate::engine::Engine;
use crate::meeting;
use crate::nic::ThreadHolds;
use crate::nic::{Nic, PortNic};
use crate::packet::MESSAGE_BYTES;
use crate::registers::Registers;
use crate::shared::{Serving, Shared, counter, ring};
use crate::station::{Asked, Station};

/// Makes the NICs of a transport.
pub trait Cards: Send + Sync {
    /// The NICs.
    type Nic: Nic + 'static;

    /// A new NIC.
    ///
    /// # Errors
    /// [`Error`].
    fn open(&self) -> Result<Self::Nic, Error>;
}

/// Ports of one provider.
#[derive(Clone, Debug)]
pub struct Ports {
    /// The provider, the address whose interface it uses, and where it listens.
    pub wanted: Wanted,
}

impl Ports {
    /// Ports of the provider that is wanted, or of the first that serves more than one host.
    ///
    /// # Errors
    /// There is no libfabric, or no such provider.
    pub fn between_hosts(wanted: Wanted) -> Result<Self, Error> {
        if wanted.provider.is_some() {
            return Ok(Self { wanted });
        }
        let offers = Library::load()?.offers(&wanted)?;
        let first = offers.iter().map(Offer::provider).find(|name| name != "shm");
        let provider = first.ok_or_else(|| Error::NoOffer("provider between hosts".to_owned()))?;
        Ok(Self { wanted: Wanted { provider: Some(provider), ..wanted } })
    }

    /// The same for an owner that polls ([`OfiTransport::driven_by_owner`]). Of the two providers
    /// over TCP it takes `net`, if it is there: a message takes two system calls there, and five
    /// over `tcp;ofi_rxm`.
    ///
    /// # Errors
    /// As [`Ports::between_hosts`].
    pub fn for_polling(wanted: Wanted) -> Result<Self, Error> {
        let is_named = wanted.provider.is_some();
        let ports = Self::between_hosts(wanted)?;
        if is_named || ports.wanted.provider.as_deref() != Some("tcp;ofi_rxm") {
            return Ok(ports);
        }
        let offers = Library::load()?.offers(&Wanted { provider: None, ..ports.wanted.clone() })?;
        let provider = offers.iter().map(Offer::provider).find(|name| name == "net");
        Ok(Self { wanted: Wanted { provider: provider.or(ports.wanted.provider), ..ports.wanted } })
    }
}

impl Cards for Ports {
    type Nic = PortNic;

    fn open(&self) -> Result<PortNic, Error> {
        PortNic::open(&self.wanted)
    }
}

/// An endpoint that another transport has opened, and that gets a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// Its address.
    pub address: EndpointAddress,
    /// Its partition.
    pub partition: PartitionId,
    /// The random number that it told the broker.
    pub birth: u64,
    /// Its limits.
    pub limits: EndpointLimits,
}

/// How endpoints wait, and how long they wait for a silent peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// A peer of which nothing is heard for so long is reported down, unless the broker says how
    /// long that is.
    pub silence: Duration,
    /// Looks of a wait before it yields.
    pub spins: u32,
    /// Yields of a wait before it sleeps.
    pub yields: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { silence: Duration::from_secs(5), spins: 200, yields: 50 }
    }
}

/// The transport over libfabric, or over other NICs.
pub struct OfiTransport<C> {
    cards: C,
    broker: Arc<dyn Connector>,
    parameters: Parameters,
    capabilities: Capabilities,
    thread_holds: ThreadHolds,
    serving: Serving,
}

impl<C> std::fmt::Debug for OfiTransport<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfiTransport").field("parameters", &self.parameters).finish_non_exhaustive()
    }
}

/// A limit that an endpoint may ask for at most.
const ASKED_MAX: usize = 65_536;

impl<C: Cards> OfiTransport<C> {
    /// A transport whose endpoints `broker` introduces.
    #[must_use]
    pub fn new(cards: C, broker: Arc<dyn Connector>, parameters: Parameters) -> Self {
        let capabilities = Capabilities {
            message_bytes_max: MESSAGE_BYTES,
            keys_max: 4096,
            progress: Progress::Auto,
            descriptor: true,
            ..Capabilities::extoll("ofi")
        };
        let capabilities = capabilities.with_rails(&["rail0"]);
        let thread_holds: ThreadHolds = || Box::new(());
        let serving = Serving::Thread;
        Self { cards, broker, parameters, capabilities, thread_holds, serving }
    }

    /// The same. The thread of each endpoint calls `thread_holds` first, and keeps the value until
    /// it ends: for a program that has to know its threads.
    #[must_use]
    pub fn whose_threads_hold(self, thread_holds: ThreadHolds) -> Self {
        Self { thread_holds, ..self }
    }

    /// The same, and its endpoints have no thread that answers peers while the program computes:
    /// its owner polls each of them, at least every few milliseconds, or sleeps on its descriptor.
    #[must_use]
    pub fn driven_by_owner(self) -> Self {
        Self { serving: Serving::Owner, ..self }
    }

    fn limited(&self, limits: &EndpointLimits) -> Capabilities {
        let most = Capabilities {
            mailbox_depth: ASKED_MAX,
            operations_max: ASKED_MAX,
            peers_max: ASKED_MAX,
            keys_max: ASKED_MAX,
            regions_max: ASKED_MAX,
            ..self.capabilities.clone()
        };
        self.capabilities.limited(limits, &most)
    }
}

fn registers() -> Result<(Registers, OwnedFd), OpenError> {
    Registers::create().map_err(|error| match error {
        SegmentError::Os { call, errno, .. } => OpenError::Os { call, errno },
        other => OpenError::Provider { reason: other.to_string() },
    })
}

impl<C: Cards> Transport for OfiTransport<C> {
    type Endpoint = OfiEndpoint<C::Nic>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn open(&self, options: &EndpointOptions) -> Result<Self::Endpoint, OpenError> {
        let capabilities = self.limited(&options.limits).on_rail(options.rail.as_deref())?;
        let mut nic = self.card()?;
        let client = self.broker.client().map_err(calls::no_broker)?;
        let opening = Opening {
            vpid: options.vpid,
            partition: options.partition,
            birth: nic.random(),
            flags: 0,
            slots: 0,
            peers_max: capabilities.peers_max,
        };
        let port = meeting::offer(nic.name(), capabilities.mailbox_depth)?;
        let (registers, counts) = registers()?;
        let broker = Conversation::open_with_port(client, opening, port, counts.as_fd())?;
        self.begin(nic, (registers, counts), broker, capabilities)
    }
}

impl<C: Cards> OfiTransport<C> {
    /// Opens the port of an endpoint that another transport has opened. The two have one address,
    /// and the other one hears of groups, keys and tickets.
    ///
    /// # Errors
    /// [`OpenError`] when there is no port, or the broker does not know the endpoint.
    pub fn attach(&self, to: &Attachment) -> Result<OfiEndpoint<C::Nic>, OpenError> {
        let capabilities = self.limited(&to.limits);
        let nic = self.card()?;
        let client = self.broker.client().map_err(calls::no_broker)?;
        let opened = Opened { address: to.address, partition: to.partition, host: None };
        let port = meeting::offer(nic.name(), capabilities.mailbox_depth)?;
        let (registers, counts) = registers()?;
        let broker = Conversation::attach(client, opened, to.birth, port, counts.as_fd())?;
        self.begin(nic, (registers, counts), broker, capabilities)
    }

    fn card(&self) -> Result<C::Nic, OpenError> {
        self.cards.open().map_err(|error| OpenError::Provider { reason: error.to_string() })
    }

    /// The endpoint that the broker knows.
    fn begin(
        &self,
        nic: C::Nic,
        (registers, counts): (Registers, OwnedFd),
        mut broker: Conversation<Asked>,
        capabilities: Capabilities,
    ) -> Result<OfiEndpoint<C::Nic>, OpenError> {
        let os = |call| move |errno: Errno| OpenError::Os { call, errno: errno.raw_os_error() };
        let capabilities = Capabilities { descriptor: nic.descriptor().is_some(), ..capabilities };
        let opened = broker.opened();
        let counters = [counter().map_err(os("eventfd"))?, counter().map_err(os("eventfd"))?];
        let copy = |file: &OwnedFd| {
            file.try_clone().map_err(|error| OpenError::Os {
                call: "dup",
                errno: error.raw_os_error().unwrap_or(0),
            })
        };
        let wakers = [copy(&counters[0])?, copy(&counters[1])?];
        // Set at first: news may have come already.
        let news = Arc::new(AtomicBool::new(true));
        let told = Arc::clone(&news);
        broker.wake_by(Box::new(move || {
            told.store(true, Ordering::Relaxed);
            wakers.iter().for_each(ring);
        }));
        let Parameters { silence, spins, yields } = self.parameters;
        let silence = broker.silence().unwrap_or(silence);
        let engine = Engine::new(nic, registers, opened.address, capabilities.clone(), silence);
        let station = Station::new(engine, broker, counts, news);
        let shared = Shared::new(station, counters, self.thread_holds, self.serving);
        let shared = shared.map_err(os("epoll_create"))?;
        Ok(OfiEndpoint {
            shared,
            address: opened.address,
            partition: opened.partition,
            host: opened.host,
            capabilities,
            adaptive_wait: AdaptiveWait::new(spins, yields),
            events: Vec::new(),
            taken: 0,
        })
    }
}
