//! The arguments of the commands of `weft kv`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use weft_kv::cluster::REGIONS_MAX;

use super::kv_bench::{BENCH_EXAMPLES, BenchArguments, CHECK_EXAMPLES, CheckArguments};

pub const EXAMPLES: &str = "\
Examples:
  weft kv serve --data /var/lib/weft-kv    serves a store at 127.0.0.1:6379
  weft kv up --nodes 3 --data data         serves a cluster of three nodes on this host
  redis-cli SET a b                        any client of Redis works
  weft kv admin status --addr 127.0.0.1:6379 --json";

const SERVE_EXAMPLES: &str = "\
Examples:
  weft kv serve --data /var/lib/weft-kv
  weft kv serve --data data --port 7000 --durability durable
  weft kv serve --data data --bind 10.0.0.5 --password-file /etc/weft/kv-password
  weft kv serve --data data --coord etcd://10.0.0.1:2379 --cluster shop --replicas 3
  weft kv serve --data data --coord etcd://10.0.0.1:2379 --cluster wide --regions 3

With --coord the nodes that are started with one --cluster find each other and form it.

It serves in the foreground until SIGTERM, SIGINT or SHUTDOWN, and ends with status 0 then. What is
answered is not lost by kill -9 of the process; with `durable` not by a power cut either.";

const UP_EXAMPLES: &str = "\
Examples:
  weft kv up --nodes 3 --data data            nodes at ports 6379, 6380 and 6381
  redis-cli -c SET a b
  weft kv up --nodes 3 --data data --port 7000 --lease-ms 1000
  weft kv up --nodes 3 --regions 3 --data data    each node takes writes, for a third of the slots

It runs in the foreground until SIGTERM or SIGINT, and ends all nodes with status 0 then. A node
that is killed is started again, a second after its lease is over.";

const ADMIN_EXAMPLES: &str = "\
Examples:
  weft kv admin status --addr 127.0.0.1:6379
  weft kv admin status --addr 127.0.0.1:6379 --json | jq .regions";

const STATUS_EXAMPLES: &str = "\
Examples:
  weft kv admin status --addr 127.0.0.1:6379
  weft kv admin status --addr 10.0.0.5:6379 --password-file /etc/weft/kv-password --json";

const BACKUP_EXAMPLES: &str = "\
Examples:
  weft kv admin backup --addr 127.0.0.1:6379 --to /var/backups/kv-monday
  weft kv serve --data /var/backups/kv-monday --port 7000";

/// The commands of `weft kv`.
#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Serves a store to clients of Redis
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArguments),
    /// Serves a cluster of nodes on this host
    #[command(after_help = UP_EXAMPLES)]
    Up(UpArguments),
    /// Measures the engine by the workloads of YCSB
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArguments),
    /// Shows what a server does
    #[command(subcommand, after_help = ADMIN_EXAMPLES)]
    Admin(AdminCommand),
}

/// Arguments of `weft kv serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The directory of the store; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The TCP port that clients connect to
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub port: u16,
    /// The address to listen at; from outside of private networks clients need a password
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub bind: String,
    /// When a write is answered
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub durability: DurabilityMode,
    /// A file with the password that clients say in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Where the record of the cluster is: etcd://HOST:PORT,…, or dir:PATH on one host
    #[arg(long, value_name = "PLACE", requires = "cluster")]
    pub coord: Option<String>,
    /// The name of the cluster
    #[arg(long, value_name = "NAME", requires = "coord")]
    pub cluster: Option<String>,
    /// So many nodes form the cluster
    #[arg(long, value_name = "N", default_value_t = 3, requires = "coord",
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub replicas: u32,
    /// The slots are divided into so many regions, each with a primary of its own; the first node
    /// of a cluster decides, and takes 1 if it is not said
    #[arg(long, value_name = "N", requires = "coord",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(REGIONS_MAX)))]
    pub regions: Option<u32>,
    /// The lease of the primary in milliseconds; the first node of a cluster decides
    #[arg(long, value_name = "MS", default_value_t = LEASE_MS, requires = "coord",
        value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub lease_ms: u64,
    /// Ends with this process, which started it
    #[arg(long, value_name = "PID", hide = true)]
    pub parent: Option<i32>,
}

/// The lease of a cluster, unless something else is said.
const LEASE_MS: u64 = 2_000;

/// Arguments of `weft kv up`.
#[derive(Debug, Args)]
pub struct UpArguments {
    /// Nodes of the cluster
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=16))]
    pub nodes: u32,
    /// The directory of the stores; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The TCP port of the first node; the others have the next ones
    #[arg(long, value_name = "PORT", default_value_t = 6379)]
    pub port: u16,
    /// The address to listen at; from outside of private networks clients need a password
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub bind: String,
    /// When a write is answered
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub durability: DurabilityMode,
    /// A file with the password that clients say in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The slots are divided into so many regions, each with a primary of its own: with as many as
    /// there are nodes each of them takes writes; the first start decides, and takes 1 if it is not
    /// said
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(REGIONS_MAX)))]
    pub regions: Option<u32>,
    /// The lease of the primary in milliseconds; the first start decides
    #[arg(long, value_name = "MS", default_value_t = LEASE_MS,
        value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub lease_ms: u64,
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DurabilityMode {
    /// Given to the operating system here, and in the memory of all replicas in sync
    #[default]
    Replicated,
    /// And synced to the device here
    Durable,
    /// And synced to the devices of the replicas
    DurableAll,
}

/// The commands of `weft kv admin`.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Shows the state of a server
    #[command(after_help = STATUS_EXAMPLES)]
    Status(KvStatusArguments),
    /// Reads all of a store that is not served, and names what is damaged
    #[command(after_help = CHECK_EXAMPLES)]
    Check(CheckArguments),
    /// Writes a copy of a store that is served; the copy can be served, too
    #[command(after_help = BACKUP_EXAMPLES)]
    Backup(KvBackupArguments),
}

/// Arguments of `weft kv admin backup`.
#[derive(Debug, Args)]
pub struct KvBackupArguments {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub addr: String,
    /// The new directory of the copy, on the host of the server
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// A file with the password of the server in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

/// Arguments of `weft kv admin status`.
#[derive(Debug, Args)]
pub struct KvStatusArguments {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    pub addr: String,
    /// A file with the password of the server in its first line
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}
