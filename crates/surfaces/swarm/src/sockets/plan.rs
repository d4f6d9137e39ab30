//! The plan of one run, made from a seed: sizes, moments and faults.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weft_lane::Layout;
use weft_socket::Limits;

use super::events::CUT_DOWN_AFTER_NS;

/// Ways in which a program ends early, without having read and written everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Close,
    Abort,
    Kill,
    /// The whole node dies, with its kernel. Only over a network.
    NodeDies,
}

/// Mistakes of a driver. They are planted to test that the simulation finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mistakes {
    /// Some wakeups are not sent.
    pub forget_wakeups: bool,
    /// The wakeup for room is sent before the bytes that go over TCP are counted.
    pub wakeup_before_switch: bool,
    /// A thread that gets a lane does not arm it.
    pub attach_without_arming: bool,
    /// An end leaves the lane without waking its peer.
    pub leave_silently: bool,
    /// Wakeups that were sent are not counted.
    pub wakeups_uncounted: bool,
    /// A socket is closed before wakeups on their way are taken.
    pub close_before_wakeups: bool,
    /// Bytes of a lane that is left are not sent over TCP.
    pub send_nothing_again: bool,
    /// A lane is forgotten before both directions have left it.
    pub forget_too_early: bool,
    /// Some rings of a lane wake nobody.
    pub forget_rings: bool,
    /// Bytes of a lane that is lost are not sent over TCP.
    pub rescue_nobody: bool,
    /// The record of an end that goes back to TCP is read as data.
    pub take_record_for_data: bool,
    /// The end that the kernel tells counts as that of all bytes.
    pub believe_kernel: bool,
    /// An end goes on without its lane although its peer ends.
    pub leave_lane_at_end: bool,
}

/// The network between the two programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) latency_ns: u64,
    pub(super) jitter_ns: u64,
    pub(super) bits_per_second: u64,
    /// Operations take effect in the order of their calls.
    pub(super) ordered: bool,
    /// The limits of an endpoint.
    pub(super) operations_max: usize,
    pub(super) notification_depth: usize,
    pub(super) tcp_latency_ns: u64,
    /// The step at which the link is cut, and for how long.
    pub(super) cut: Option<(u64, u64)>,
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
}

/// The plan of one run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub(super) seed: u64,
    pub(super) mailbox_depth: u64,
    pub(super) sink_bytes: u64,
    pub(super) tcp_bytes: usize,
    pub(super) tcp_jitter_ns: u64,
    pub(super) limits: Limits,
    /// Number of bytes that each host writes.
    pub(super) totals: [u64; 2],
    /// The host that does not write before it has read everything.
    pub(super) answers: Option<usize>,
    /// Hosts that read only now and then.
    pub(super) reads_slowly: [bool; 2],
    /// The step from which on each host can have the lane.
    pub(super) attach_at: [Option<u64>; 2],
    /// Each host's writer goes back to TCP once in this many calls.
    pub(super) leaves_every: [Option<u64>; 2],
    /// The step at which each host leaves the lane for good.
    pub(super) leaves_at: [Option<u64>; 2],
    /// Each host that left for good waits for its peer, reads nothing meanwhile, and goes on
    /// without the lane. Only over a network.
    pub(super) leaves_behind: [bool; 2],
    /// Each host gives the lane back once in this many calls, if nothing is on its way.
    pub(super) gives_back_every: [Option<u64>; 2],
    /// Step, host and way of an early end.
    pub(super) ending: Option<(u64, usize, Ending)>,
    pub(super) interleave_every: u64,
    /// The network, if the two programs run on two nodes.
    pub(super) network: Option<Network>,
    /// Mistakes of the drivers of both ends.
    pub mistakes: Mistakes,
}

impl Plan {
    /// The sizes of the lanes.
    pub(super) fn layout(&self) -> Layout {
        let slots = u32::try_from(self.mailbox_depth).expect("the plan has few slots");
        let sink_bytes = u32::try_from(self.sink_bytes).expect("the plan has small sinks");
        Layout { slots, sink_bytes }
    }

    /// The plan of a seed.
    #[must_use]
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
            mistakes: Mistakes::default(),
        };
        plan.gives_back_every =
            [0, 1].map(|_| random.random_bool(0.4).then(|| random.random_range(1..24)));
        if apart != Apart::OneHost {
            plan.network = Some(Network::new(random));
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
    /// The plan of a connection in a run of the swarm, which has the faults of the network: its
    /// kernels are fast, and it has few bytes, so that it ends soon after all was mended.
    pub(super) fn in_swarm(seed: u64, apart: Apart) -> Self {
        let mut plan = Self::new(seed, apart);
        plan.tcp_bytes = plan.tcp_bytes.max(2_000);
        plan.totals = plan.totals.map(|total| total % 20_000);
        if let Some(network) = &mut plan.network {
            network.tcp_latency_ns %= 20_000;
            network.cut = None;
        }
        plan
    }
}
