//! The limits and links of a run.

use rand::{Rng, RngExt};
use weft_message::{Options, Placement};
use weft_transport_sim::{Link, Settings};

/// Settings of the world: small limits, so that they are reached.
pub fn settings(seed: u64, random: &mut impl Rng) -> Settings {
    let latency_ns = [200, 1_000, 20_000][random.random_range(0..3)];
    Settings {
        link: Link { latency_ns, jitter_ns: latency_ns / 2, ..Link::default() },
        cut_down_after_ns: random.random_bool(0.7).then_some(40_000),
        mailbox_depth: [4, 40, 256][random.random_range(0..3)],
        operations_max: [2, 64][random.random_range(0..2)],
        descriptor_bytes_max: 3_000,
        // A leak of a key or a region would soon exhaust these.
        regions_max: 64,
        keys_max: 64,
        ..Settings::seeded(seed)
    }
}

/// Options of all nodes.
pub fn options(random: &mut impl Rng) -> Options {
    Options {
        window: [32, 50, 256][random.random_range(0..3)],
        eager_bytes_max: [112, 480, 1792][random.random_range(0..3)],
        queue_packets_max: [16, 64][random.random_range(0..2)],
        outstanding_max: [1, 256][random.random_range(0..2)],
        bounce_bytes_max: [20_000, 1 << 20][random.random_range(0..2)],
        receive_bytes_max: [20_000, 1 << 20][random.random_range(0..2)],
        regions_max: [1, 20][random.random_range(0..2)],
        placement: [Placement::Allocate, Placement::Ask][random.random_range(0..2)],
        ..Options::default()
    }
}

/// A length of a body.
pub fn length(random: &mut impl Rng) -> usize {
    match random.random_range(0..10) {
        0..4 => random.random_range(0..=112),
        4..7 => random.random_range(0..=1792),
        7..9 => random.random_range(1..=6_000),
        _ => random.random_range(1..=22_000),
    }
}
