//! The two kinds of endpoints that carry lanes: of this host, in shared memory, and between hosts,
//! over libfabric. A process has one of them (`socket.between_hosts`, `socket.lane_kind`).

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use weft_broker::remote::RemoteBroker;
use weft_fabric::{Blocking, Carry, Endpoint, EndpointOptions, Transport, Watchable};
use weft_lane::{Carrier, EndpointLane, LaneNumber};
use weft_libfabric::Wanted;
use weft_memory::CopyMode;
use weft_options::CopyMethod;
use weft_transport_ofi::nic::PortNic;
use weft_transport_ofi::{OfiEndpoint, OfiTransport, Ports};
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

use super::without_signals;
use crate::deferral::Held;
use crate::{process, sys};

/// Slots of the ring of each peer, which all lanes to it share: each message and control word of a
/// lane that is not quiet takes one until the peer's driving thread has polled. 512 KiB.
const RING_SLOTS: u32 = 4096;

/// An endpoint that carries lanes.
pub trait Kind: Endpoint + Watchable + Blocking + Sized + Send + 'static {
    /// See [`weft_lane::Settings`].
    const ARMING_LASTS: bool;

    /// A lane over such an endpoint.
    fn far(lane: EndpointLane<Self>) -> FarKind;

    /// Calls `look` with each descriptor of the endpoint and of its lanes.
    fn each_descriptor(carrier: &Carrier<Self>, look: &mut dyn FnMut(BorrowedFd<'_>));
}

impl Kind for ShmEndpoint {
    const ARMING_LASTS: bool = false;

    fn far(lane: EndpointLane<Self>) -> FarKind {
        FarKind::Shm(lane)
    }

    fn each_descriptor(carrier: &Carrier<Self>, mut look: &mut dyn FnMut(BorrowedFd<'_>)) {
        carrier.look_at_endpoint(|endpoint, regions| {
            endpoint.each_descriptor(&mut look);
            regions.iter().for_each(|region| region.each_descriptor(&mut look));
        });
    }
}

impl Kind for OfiEndpoint<PortNic> {
    // A poll takes what has come. What comes later makes the provider's descriptor readable.
    const ARMING_LASTS: bool = true;

    fn far(lane: EndpointLane<Self>) -> FarKind {
        FarKind::Ofi(lane)
    }

    fn each_descriptor(carrier: &Carrier<Self>, look: &mut dyn FnMut(BorrowedFd<'_>)) {
        carrier.look_at_endpoint(|endpoint, _| endpoint.each_descriptor(look));
    }
}

/// A carrier of either kind.
#[derive(Clone)]
pub enum OfKind {
    Shm(Carrier<ShmEndpoint>),
    Ofi(Carrier<OfiEndpoint<PortNic>>),
}

/// A lane over an endpoint of either kind.
pub enum FarKind {
    /// Between two processes of this host.
    Shm(EndpointLane<ShmEndpoint>),
    /// To a process of another host.
    Ofi(EndpointLane<OfiEndpoint<PortNic>>),
}

/// Makes a call for the kind of a carrier.
macro_rules! each {
    ($carrier:expr, $each:ident => $call:expr) => {
        match $carrier {
            $crate::carrier::kinds::OfKind::Shm($each) => $call,
            $crate::carrier::kinds::OfKind::Ofi($each) => $call,
        }
    };
}

pub(super) use each;

impl FarKind {
    /// The number of the lane at its carrier.
    pub const fn number(&self) -> LaneNumber {
        match self {
            Self::Shm(lane) => lane.number(),
            Self::Ofi(lane) => lane.number(),
        }
    }

    /// Nothing more arrives on the lane, and the peer takes nothing.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Shm(lane) => lane.is_over(),
            Self::Ofi(lane) => lane.is_over(),
        }
    }
}

impl fmt::Debug for FarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(lane) => lane.fmt(f),
            Self::Ofi(lane) => lane.fmt(f),
        }
    }
}

/// Opens an endpoint in shared memory at the daemon's socket `path`.
pub fn open_on_host(path: &Path) -> Result<ShmEndpoint, String> {
    let broker = Arc::new(RemoteBroker::new(path, &process::name()));
    let options = &process::settings().options;
    let default = Parameters::default();
    let parameters = Parameters {
        ring_slots: RING_SLOTS,
        endpoints: u16::try_from(options.daemon_endpoints_max()).unwrap_or(default.endpoints),
        copy: match options.shm_copy() {
            CopyMethod::Auto => default.copy,
            CopyMethod::Plain => CopyMode::Plain,
            CopyMethod::NonTemporal => CopyMode::NonTemporal,
        },
        ..default
    };
    let transport = ShmTransport::new(broker, parameters);
    transport.open(&EndpointOptions::default()).map_err(|e| e.to_string())
}

/// Opens an endpoint over libfabric, which uses the interface of the connection to which `fd`
/// leads.
pub fn open_between_hosts(path: &Path, fd: RawFd) -> Result<OfiEndpoint<PortNic>, String> {
    /// Kept by the thread of an endpoint: its calls are none of the program's.
    struct OwnThread(#[allow(dead_code, reason = "it is held")] Held);

    impl Drop for OwnThread {
        fn drop(&mut self) {
            process::own_thread_ends();
        }
    }

    let broker = Arc::new(RemoteBroker::new(path, &process::name()));
    let local = rustix::net::getsockname(sys::borrow(fd)).map_err(|e| e.to_string())?;
    let local = SocketAddr::try_from(local).map_err(|e| e.to_string())?;
    let source = local.ip().to_canonical().to_string();
    let options = &process::settings().options;
    let provider = options.fabric_provider().map(str::to_owned);
    let wanted = Wanted { provider, source: Some(source), ports: options.fabric_ports() };
    // Threads of the transport's and of libfabric's.
    without_signals(|| {
        let ports = Ports::between_hosts(wanted).map_err(|e| e.to_string())?;
        let parameters = weft_transport_ofi::Parameters::default();
        // The thread that drives the carrier drives the endpoint.
        let transport = OfiTransport::new(ports, broker, parameters).driven_by_owner();
        let transport = transport.whose_threads_hold(|| {
            process::has_own_thread();
            Box::new(OwnThread(Held::new()))
        });
        transport.open(&EndpointOptions::default()).map_err(|e| e.to_string())
    })
}
