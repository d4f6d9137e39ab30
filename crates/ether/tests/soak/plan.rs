//! The plan of a run, as its seed decides.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_ether::Limits;
use weft_topology::Shape;
use weft_transport_sim::{Link, NetworkSettings, Settings};

/// The plan of one run.
#[derive(Debug)]
pub struct Plan {
    pub seed: u64,
    pub nodes: u32,
    pub steps: usize,
    /// The largest pause between two steps, in virtual nanoseconds.
    pub pause_ns: u64,
    pub settings: Settings,
    pub limits: Limits,
    pub faults: Faults,
}

/// The faults of a run.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Links are cut, some for so long that both ends give each other up.
    pub cuts: bool,
    /// Nodes die and come back.
    pub deaths: bool,
    /// Nodes look seldom, or not at all for a while.
    pub slow: bool,
}

impl Plan {
    /// The same with the nodes in a torus, whose links are cut and mended one at a time.
    pub fn in_torus(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let shape: Shape = "torus:3x2".parse().expect("a shape");
        let network = NetworkSettings::of(shape.graph(None).expect("it is small"));
        plan.settings.network = Some(network);
        plan
    }

    pub fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let latency_ns = random.random_range(1_000..=100_000_u64);
        let link = Link {
            latency_ns,
            jitter_ns: random.random_range(0..=latency_ns),
            bits_per_second: 1_000_000_000 * random.random_range(1..=100_u64),
        };
        let faults = Faults {
            cuts: random.random_bool(0.5),
            deaths: random.random_bool(0.5),
            slow: random.random_bool(0.5),
        };
        let cut_down_after_ns = Some(random.random_range(500_000..=5_000_000));
        let nodes = random.random_range(2..=5_u32);
        let (fetches, fetches_each) = (random.random_range(1..=8), random.random_range(1..=4));
        let few = usize::try_from(nodes).expect("a small number");
        let settings = Settings {
            link,
            // One ring for each other node, and one whose grant is late; buffers and those rings.
            keys_max: few,
            regions_max: fetches + 5 * few,
            cut_down_after_ns,
            detection_ns: random.random_range(0..=500_000),
            mailbox_depth: random.random_range(4..=256),
            notification_depth: random.random_range(1..=16),
            operations_max: random.random_range(1..=64),
            ordered: random.random_bool(0.5),
            control_ns: if random.random_bool(0.5) { 0 } else { random.random_range(1..=200_000) },
            trace_entries_max: 0,
            ..Settings::seeded(seed)
        };
        let limits = Limits {
            eager_bytes: random.random_range(60..=600),
            eager_group_bytes: random.random_range(60..=2_400),
            slots: random.random_range(1..=16),
            backlog: random.random_range(1..=16),
            backlog_stalled: 1_024,
            fetches,
            fetches_each,
        };
        Self {
            seed,
            nodes,
            steps: random.random_range(100..=400),
            pause_ns: random.random_range(1_000..=100_000),
            settings,
            limits,
            faults,
        }
    }
}
