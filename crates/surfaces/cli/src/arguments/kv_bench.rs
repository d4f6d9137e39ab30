//! The arguments of `weft kv bench` and `weft kv admin check`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};

pub const BENCH_EXAMPLES: &str = "\
Examples:
  weft kv bench --data /tmp/bench --workload load-a,run-a,run-b,run-c,run-d --mix SD
  weft kv bench --data /tmp/bench --workload load-a --mix S --records 600000 --threads 2 --json
  weft kv bench --data /tmp/bench --replicas 2 --replication build-index --threads 32

Each operation is given to the operating system before it counts. The directory can be served
afterwards with `weft kv serve`. Those of backups are backup-1, backup-2 and so on below it. With
backups an operation counts when each of them gave it to the operating system, too.";

pub const CHECK_EXAMPLES: &str = "\
Examples:
  weft kv admin check --data /var/lib/weft-kv
  weft kv admin check --data /var/lib/weft-kv --json | jq .damage

Exit status: 0 if all that can be read back is as it was written, also after kill -9; else 1, with
the damage by name.";

fn at_least(least: u64) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(least..)
}

fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// Arguments of `weft kv bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// The directory of the store; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The phases in order: load-a, run-a, run-b, run-c, run-d
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "load-a,run-a,run-b,run-c,run-d"
    )]
    pub workload: Vec<String>,
    /// The sizes of the pairs: S, M, L, SD, MD or LD
    #[arg(long, value_name = "MIX", default_value = "SD")]
    pub mix: String,
    /// Records that load-a inserts, or that are there
    #[arg(long, default_value_t = 400_000, value_parser = at_least(1))]
    pub records: u64,
    /// Operations of each other phase
    #[arg(long, default_value_t = 200_000)]
    pub operations: u64,
    /// Threads that run operations
    #[arg(long, default_value_t = 2, value_parser = up_to(1024))]
    pub threads: usize,
    /// Bytes of level 0 [default: that of the engine]
    #[arg(long, value_name = "BYTES", value_parser = at_least(4096))]
    pub level0_bytes: Option<u64>,
    /// Bytes of blocks in memory [default: that of the engine]
    #[arg(long, value_name = "BYTES")]
    pub cache_bytes: Option<u64>,
    /// Copies of each pair: with more than one, a primary and its backups run in this process, the
    /// fabric between them, and the store has to be new
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=8))]
    pub replicas: u32,
    /// How backups get their index
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub replication: ReplicationMode,
    /// Prints one object as the last line
    #[arg(long)]
    pub json: bool,
}

/// How backups get their index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReplicationMode {
    /// The primary ships its tables; backups read and sort nothing
    #[default]
    SendIndex,
    /// Each backup builds its own from the log, as the baseline
    BuildIndex,
}

/// Arguments of `weft kv admin check`.
#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The directory of a store that is not served
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}
