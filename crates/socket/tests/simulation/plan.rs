//! The plan of one run, made from a seed: sizes, moments and faults.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_socket::Limits;

use crate::network::CUT_DOWN_AFTER_NS;

/// Ways in which a program ends early, without having read and written everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Close,
    Abort,
    Kill,
    /// The whole node dies, with its kernel. Only over a network.
    NodeDies,
}

/// Mistakes of a driver. They are planted to test that the simulation finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    pub forget_wakeups: bool,
    pub wakeup_before_switch: bool,
    pub attach_without_arming: bool,
    pub leave_silently: bool,
    pub wakeups_uncounted: bool,
    pub close_before_wakeups: bool,
    pub send_nothing_again: bool,
    pub forget_too_early: bool,
    pub forget_rings: bool,
    pub rescue_nobody: bool,
    pub take_record_for_data: bool,
    pub believe_kernel: bool,
    pub leave_lane_at_end: bool,
}

/// The network between the two programs.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub latency_ns: u64,
    pub jitter_ns: u64,
    pub bits_per_second: u64,
    /// Operations take effect in the order of their calls.
    pub ordered: bool,
    /// The limits of an endpoint.
    pub operations_max: usize,
    pub notification_depth: usize,
    pub tcp_latency_ns: u64,
    /// The step at which the link is cut, and for how long.
    pub cut: Option<(u64, u64)>,
    /// The nodes lie in a torus, whose links are cut and mended one at a time.
    pub has_routes: bool,
}

impl Network {
    fn new(random: &mut ChaCha8Rng) -> Self {
        let cut = random.random_bool(0.2).then(|| {
            let longest = [50_000, 5 * CUT_DOWN_AFTER_NS][random.random_range(0..2)];
            (random.random_range(0..600), random.random_range(1..longest))
        });
        Self {
            latency_ns: random.random_range(1_000..100_000),
            jitter_ns: [0, 1_000, 30_000][random.random_range(0..3)],
            bits_per_second: [1_000_000_000, 100_000_000_000][random.random_range(0..2)],
            ordered: random.random_bool(0.5),
            operations_max: [4, 32, 1024][random.random_range(0..3)],
            notification_depth: [4, 32, 256][random.random_range(0..3)],
            tcp_latency_ns: random.random_range(1_000..200_000),
            cut,
            has_routes: false,
        }
    }
}

/// Where the two programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Apart {
    /// On one host, with lanes of shared memory.
    OneHost,
    /// On two nodes, with lanes over endpoints.
    TwoNodes,
    /// On two nodes of a torus.
    Torus,
}

/// The plan of one run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub mailbox_depth: u64,
    pub sink_bytes: u64,
    pub tcp_bytes: usize,
    pub tcp_jitter_ns: u64,
    pub limits: Limits,
    /// Number of bytes that each host writes.
    pub totals: [u64; 2],
    /// The host that does not write before it has read everything.
    pub answers: Option<usize>,
    /// Hosts that read only now and then.
    pub reads_slowly: [bool; 2],
    /// The step from which on each host can have the lane.
    pub attach_at: [Option<u64>; 2],
    /// Each host's writer goes back to TCP once in this many calls.
    pub leaves_every: [Option<u64>; 2],
    /// The step at which each host leaves the lane for good.
    pub leaves_at: [Option<u64>; 2],
    /// Each host that left for good waits for its peer, reads nothing meanwhile, and goes on
    /// without the lane. Only over a network.
    pub leaves_behind: [bool; 2],
    /// Each host gives the lane back once in this many calls, if nothing is on its way.
    pub gives_back_every: [Option<u64>; 2],
    /// Step, host and way of an early end.
    pub ending: Option<(u64, usize, Ending)>,
    pub interleave_every: u64,
    /// The network, if the two programs run on two nodes.
    pub network: Option<Network>,
    pub faults: Faults,
}

impl Plan {
    pub fn new(seed: u64, apart: Apart) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let random = &mut random;
        let totals = [0, 1].map(|_| match random.random_range(0..8) {
            0 => 0,
            1 => random.random_range(0..200_000),
            2..5 => random.random_range(0..20_000),
            _ => random.random_range(0..2_000),
        });
        let begin = if random.random_bool(0.5) { 0 } else { random.random_range(0..60) };
        let attach = match random.random_range(0..8) {
            0 => None,
            1..4 => Some(begin),
            _ => Some(begin + random.random_range(0..200)),
        };
        let ending = random.random_bool(0.5).then(|| {
            let how = [Ending::Close, Ending::Abort, Ending::Kill][random.random_range(0..3)];
            (random.random_range(0..600), random.random_range(0..2), how)
        });
        let leaves_every =
            [0, 1].map(|_| random.random_bool(0.4).then(|| random.random_range(2..24)));
        let leaves_at =
            [0, 1].map(|_| random.random_bool(0.1).then(|| random.random_range(0..400)));
        let mut plan = Self {
            leaves_every,
            leaves_at,
            leaves_behind: [false; 2],
            gives_back_every: [None; 2],
            seed,
            mailbox_depth: [16, 16, 32, 256][random.random_range(0..4)],
            sink_bytes: [4096, 4096, 16_384, 1 << 16][random.random_range(0..4)],
            tcp_bytes: random.random_range(1..8_000),
            tcp_jitter_ns: [1, 3, 1_000][random.random_range(0..3)],
            limits: Limits {
                eager_bytes: random.random_range(0..1_500),
                chunk_bytes: [random.random_range(64..512), 1024, 16_384]
                    [random.random_range(0..3)],
            },
            totals,
            answers: [None, None, Some(0), Some(1)][random.random_range(0..4)],
            reads_slowly: [random.random_bool(0.3), random.random_bool(0.3)],
            attach_at: [Some(begin), attach],
            ending,
            interleave_every: [4, 16, 64][random.random_range(0..3)],
            network: None,
            faults: Faults::default(),
        };
        plan.gives_back_every =
            [0, 1].map(|_| random.random_bool(0.4).then(|| random.random_range(1..24)));
        if apart != Apart::OneHost {
            let has_routes = apart == Apart::Torus;
            plan.network = Some(Network { has_routes, ..Network::new(random) });
            if let Some((_, _, ending @ Ending::Kill)) = &mut plan.ending
                && random.random_bool(0.5)
            {
                *ending = Ending::NodeDies;
            }
            for host in 0..2 {
                plan.leaves_behind[host] = random.random_bool(0.25);
                if plan.leaves_behind[host] {
                    plan.leaves_at[host].get_or_insert(random.random_range(0..400));
                }
            }
        }
        plan
    }
}
