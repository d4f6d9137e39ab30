//! All that a seed decides before a run begins: the network, its limits, the workloads, the faults.
//!
//! Each run has some features and lacks others. So a run has few of them at a time, and a feature
//! is tested also without those that would hide its faults.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_fabric_manager::RuleSettings;
use weft_network::time::NANOSECOND;
use weft_routing::{Algorithm, Routes};
use weft_topology::{Graph, Shape};
use weft_transport_sim::{Link, NetworkSettings, Settings};

/// The networks, of 2 to 27 hosts.
const SHAPES: [&str; 18] = [
    "torus:2",
    "torus:5",
    "torus:3x3",
    "torus:4x4",
    "torus:3x3x3",
    "mesh:4",
    "mesh:3x3",
    "mesh:2x2x3",
    "hypercube:3",
    "hypercube:4",
    "full:2",
    "full:5",
    "fattree:2x3",
    "fattree:3x2",
    "dragonfly:1",
    "dragonfly:2,2,1",
    // Each two hosts have a link of their own, and no routers.
    "links:2",
    "links:5",
];
/// How a network without routers is named.
const LINKS: &str = "links:";

/// The algorithms; one that does not fit a network gives way to the usual one.
const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Auto,
    Algorithm::DimensionOrder,
    Algorithm::Adaptive,
    Algorithm::Valiant,
    Algorithm::UpDown,
];

/// Those that a manager computes for a network that it finds, and for one that it expects.
const FOUND_ALGORITHMS: [Algorithm; 2] = [Algorithm::Auto, Algorithm::UpDown];
const RULED_ALGORITHMS: [Algorithm; 3] =
    [Algorithm::Auto, Algorithm::DimensionOrder, Algorithm::UpDown];

/// Programs of a workload at most.
pub(crate) const PROGRAMS_MAX: usize = 8;
/// Programs at most that take their turns at one place, each after the death of the one before.
pub(crate) const LIVES_MAX: usize = 4;

/// The longest time until a lost packet is sent again, in ns.
pub(crate) const RESEND_AFTER_NS_MAX: u64 = 40_000;
/// The longest time of a call of membership or rights, in ns.
pub(crate) const CONTROL_NS_MAX: u64 = 20_000;
/// The longest time until packets take new routes, in ns.
pub(crate) const REROUTE_AFTER_NS_MAX: u64 = 40_000;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A link is cut and mended later.
    Cut,
    /// A link is cut and mended a few times in a row.
    Flap,
    /// All links of a host are cut and mended later.
    Isolate,
    /// A link becomes a hundred times slower, until it is mended.
    Slow,
    /// A link damages a part of its packets, until it is mended.
    Lossy,
    /// A router stops and starts again later.
    Router,
    /// A program dies, and another one takes its place later.
    Program,
    /// A program takes no events for a while, or only few.
    Sluggish,
    /// A program gets no memory for a while: it is refused regions, keys, room for messages and
    /// operations.
    Pressure,
    /// The manager that rules the network dies, and another one takes its place.
    Manager,
    /// The clock of a host is fast or slow for a while.
    Skew,
}

/// Every kind of fault.
const FAULTS: [Fault; 11] = [
    Fault::Cut,
    Fault::Flap,
    Fault::Isolate,
    Fault::Slow,
    Fault::Lossy,
    Fault::Router,
    Fault::Program,
    Fault::Sluggish,
    Fault::Pressure,
    Fault::Manager,
    Fault::Skew,
];

/// A kind of workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Short messages, puts, gets, atomics, notifications and groups.
    Endpoints,
    /// Messages of any length.
    Messages,
    /// Lanes, on which direct sockets stand.
    Lanes,
    /// Direct sockets over lanes.
    Sockets,
    /// Ethernet ports.
    Ethernet,
    /// Transfers of files over sessions.
    Transfers,
    /// Sessions, also with an endpoint that sends any frame.
    Sessions,
}

/// Those that are drawn together. The others are drawn apart ([`Plan::new`]).
const KINDS: [Kind; 5] =
    [Kind::Endpoints, Kind::Messages, Kind::Lanes, Kind::Sockets, Kind::Ethernet];

/// A run, as its seed decides it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The shape of the network.
    pub shape: &'static str,
    /// The settings of the world, with its network.
    pub settings: Settings,
    /// The manager, if there is one. Without it, routes follow a change of the network by
    /// themselves.
    pub ruled: Option<RuleSettings>,
    /// The workloads, at least one.
    pub kinds: Vec<Kind>,
    /// The faults that may come; none in some runs.
    pub faults: Vec<Fault>,
    /// Programs of each workload, on different hosts.
    pub programs: usize,
    /// Random steps before all is mended.
    pub steps: u32,
    /// A step lets up to this much time pass, in ns.
    pub step_ns: u64,
    /// One of so many steps begins a fault.
    pub fault_every: u32,
}

/// The random numbers of a run. Those of the plan and those of its steps are different.
pub(crate) fn random(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// One of `all`.
pub(crate) fn one_of<T: Copy>(random: &mut ChaCha8Rng, all: &[T]) -> T {
    all[random.random_range(0..all.len())]
}

/// Each of `all` with even chances, and at least one.
fn some_of<T: Copy>(random: &mut ChaCha8Rng, all: &[T]) -> Vec<T> {
    let mut some: Vec<T> = all.iter().copied().filter(|_| random.random_bool(0.5)).collect();
    if some.is_empty() {
        some.push(one_of(random, all));
    }
    some
}

impl Plan {
    /// The plan of a seed.
    ///
    /// # Panics
    /// When a network of the list cannot be made, which no seed changes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = &mut random(seed, 0);
        let shape = one_of(random, &SHAPES);
        let graph = graph(shape);
        let hosts = graph.hosts().count();
        let is_network = !shape.starts_with(LINKS);
        let ruled = (is_network && random.random_bool(0.4)).then(|| RuleSettings {
            is_expected: random.random_bool(0.5),
            loss_per_mille: one_of(random, &[0, 0, 20, 100]),
            is_followed: true,
        });
        // A manager's tables have no room for the choices of adaptive routes and of Valiant's. One
        // that finds a network does not know that it is a torus.
        let algorithms = match ruled {
            None => &ALGORITHMS[..],
            Some(RuleSettings { is_expected: true, .. }) => &RULED_ALGORITHMS[..],
            Some(_) => &FOUND_ALGORITHMS[..],
        };
        let wanted = one_of(random, algorithms);
        let routing = match Routes::compute(&graph, wanted) {
            Ok(_) => wanted,
            Err(_) => Algorithm::Auto,
        };
        let mut network = NetworkSettings { routing, ..NetworkSettings::of(graph) };
        network.resend_after_ns = random.random_range(2_000..RESEND_AFTER_NS_MAX);
        network.reroute_after_ns = random.random_range(1_000..REROUTE_AFTER_NS_MAX);
        network.network.buffer_bytes = random.random_range(512..16_384);
        network.network.link.latency = random.random_range(0..500) * NANOSECOND;
        let latency_ns = random.random_range(100..20_000);
        let link = Link {
            latency_ns,
            jitter_ns: random.random_range(0..=latency_ns),
            bits_per_second: 1_000_000_000 * random.random_range(1..=100_u64),
        };
        let settings = Settings {
            network: is_network.then_some(network),
            link,
            cut_down_after_ns: Some(random.random_range(500_000..2_000_000)),
            detection_ns: random.random_range(0..50_000),
            mailbox_depth: random.random_range(1..64),
            notification_depth: random.random_range(1..64),
            operations_max: random.random_range(1..64),
            control_ns: one_of(random, &[0, 0, 500, CONTROL_NS_MAX]),
            ordered: random.random_bool(0.5),
            trace_entries_max: 64,
            ..Settings::seeded(seed)
        };
        let has_faults = random.random_bool(0.85);
        let mut kinds = some_of(random, &KINDS);
        // By a stream of their own: a seed that failed before there were transfers still gives the
        // network and the limits that it gave.
        if self::random(seed, 4).random_bool(0.4) {
            kinds.push(Kind::Transfers);
        }
        if self::random(seed, 5).random_bool(0.4) {
            kinds.push(Kind::Sessions);
        }
        Self {
            seed,
            shape,
            settings,
            ruled,
            kinds,
            faults: if has_faults { some_of(random, &FAULTS) } else { Vec::new() },
            programs: random.random_range(2..=PROGRAMS_MAX).min(hosts),
            steps: random.random_range(200..1_200),
            step_ns: one_of(random, &[300, 1_000, 3_000]),
            fault_every: one_of(random, &[20, 50, 200]),
        }
    }

    /// The graph of the network, with all links.
    #[must_use]
    pub fn graph(&self) -> Graph {
        graph(self.shape)
    }
}

fn graph(shape: &str) -> Graph {
    let shape = shape.strip_prefix(LINKS).map_or(shape.to_owned(), |hosts| format!("full:{hosts}"));
    let shape: Shape = shape.parse().expect("the shapes of the list are spelled well");
    shape.graph(None).expect("they are small")
}
