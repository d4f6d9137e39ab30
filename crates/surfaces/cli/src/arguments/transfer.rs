//! The arguments of `weft cp` and `weft transfer`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub const CP_EXAMPLES: &str = "\
Examples:
  weft cp -a results /backup               into /backup, with all that belongs to it
  weft cp -a results node7:/scratch        to another host, by ssh
  weft cp node7:/scratch/run.h5 .          from another host
  weft cp -a weft://store/data/ here       from a server that `weft transfer serve` runs
  weft cp -a --delete --exclude '*.o' src node7:work
                                           what is not in src is removed from work/src
  weft cp -an results /backup              what it would do

A directory goes into a directory that is there; SOURCE/. copies what is in it. The same command
goes on where one that was stopped or cut off ended.

Exit status: 0 all good; 1 some files failed, each is named; 2 it could not start, or was stopped;
3 a source changed while it was read.";

pub const TRANSFER_EXAMPLES: &str = "\
Examples:
  weft transfer serve --listen 127.0.0.1:7710 --root /data
  weft fabric key > key; weft transfer serve --listen 0.0.0.0:7710 --root /data --key key
  weft cp -a --key key results weft://host/incoming";

pub const SERVE_EXAMPLES: &str = "\
Examples:
  weft transfer serve --listen 127.0.0.1:7710 --root /data
  weft transfer serve --listen 0.0.0.0:7710 --root /data --key fabric.key
  weft transfer serve --listen 0.0.0.0:7710 --root /data --key fabric.key --read-only
  weft transfer serve --listen 0.0.0.0:7710 --root /data --users users.toml

Who has the key reads and writes below the directory with the rights of the user that serves. No
link below it leads out of it. Off loopback it listens only with a key (`weft fabric key`), and
serves hosts of the fabric alone without one. Clients of the fabric need no key: they are programs
of the same user, or of those that the daemon lets use the service transfer.PORT.

The file of users is TOML, and only its owner may read it:

  [ann]
  key = \"weft-fabric-key-1 …\"    # as `weft fabric key` prints it
  root = \"ann\"                   # below --root; --root itself without it
  read-only = true               # without it she writes, too

The key that a client has says which user it is: `weft cp --key FILE`. Each client shows it over
TCP; bytes then go over the fabric where the daemons let both ends meet.";

pub const SIM_EXAMPLES: &str = "\
Examples:
  weft transfer sim                        40 Gbit/s over 95 ms, as in the paper of RFTP
  weft transfer sim --window 64M           what a window that is too small does
  weft transfer sim --gbit 100 --rtt-ms 20 --block-size 1M,8M --streams 1,8 --json

Both ends of the protocol run in virtual time. The same options give the same figures.";

/// How bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum TransportWord {
    /// Over the fabric where both ends are on it, else over TCP or a remote shell.
    #[default]
    Auto,
    /// Over the fabric, or not at all.
    Fabric,
    /// Over TCP, or the pipes of the remote shell.
    Tcp,
}

/// Arguments of `weft cp`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct CpArguments {
    /// Sources, then the destination
    #[arg(
        required = true,
        num_args = 2..,
        value_name = "PLACE",
        help = "Sources, then the destination: PATH, [USER@]HOST:PATH or weft://HOST[:PORT]/PATH"
    )]
    pub places: Vec<OsString>,
    /// Copies directories and keeps all: modes, owners, times, attributes, ACLs, links, holes
    #[arg(short = 'a', long)]
    pub archive: bool,
    /// Copies directories with what is in them
    #[arg(short = 'r', short_alias = 'R', long)]
    pub recursive: bool,
    /// Writes nothing, and says what would be copied and removed
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Removes from copied directories what is not at the source
    #[arg(long)]
    pub delete: bool,
    /// Leaves out what matches: *.o, cache/, /build, a/**/z. May be given several times
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// Most bytes a second, with K, M or G [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = size)]
    pub bwlimit: Option<u64>,
    /// Connections that carry bytes to a server, or sessions over the fabric, 16 at most [default:
    /// 2, and 1 over the fabric]
    #[arg(long, value_name = "N", value_parser = few())]
    pub streams: Option<u16>,
    /// Addresses of this host that the sessions over the fabric take in turn, one session for each
    /// without --streams [default: that of its fabric]
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',')]
    pub rails: Vec<IpAddr>,
    /// Bytes of a block, with K or M
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = size)]
    pub block_size: u64,
    /// Most memory for blocks on their way, at each end, with K, M or G
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = size)]
    pub window: u64,
    /// Threads that read, and as many that write
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = few())]
    pub threads: u16,
    /// Reads and writes files past the page cache where the file system lets it
    #[arg(long)]
    pub direct: bool,
    /// Neither syncs files nor reads them back and compares
    #[arg(long)]
    pub no_verify: bool,
    /// Keeps no journal, and begins anew
    #[arg(long)]
    pub no_resume: bool,
    /// How bytes go
    #[arg(long, value_enum, default_value_t)]
    pub transport: TransportWord,
    /// The remote shell
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// weft at the far end
    #[arg(long, value_name = "PROGRAM", default_value = "weft")]
    pub weft_path: String,
    /// The file with the key of a server
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Prints the end, and what went wrong, as JSON
    #[arg(long)]
    pub json: bool,
    /// Prints how much went which way
    #[arg(long)]
    pub stats: bool,
}

/// The commands of `weft transfer`.
#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// Serves a directory to `weft cp`
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArguments),
    /// Simulates a transfer over a long way, for block sizes and numbers of streams
    #[command(after_help = SIM_EXAMPLES)]
    Sim(SimArguments),
    /// Answers `weft cp` over standard input and output, as the remote shell starts it
    #[command(hide = true, after_help = "Examples:\n  ssh HOST weft transfer answer")]
    Answer,
}

/// Arguments of `weft transfer sim`.
#[derive(Debug, Args)]
pub struct SimArguments {
    /// Bandwidth of the link in Gbit/s
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub gbit: u32,
    /// Time there and back in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 95)]
    pub rtt_ms: u32,
    /// Bytes of the file, with K, M or G
    #[arg(long, value_name = "BYTES", default_value = "256G", value_parser = size)]
    pub size: u64,
    /// Sizes of blocks
    #[arg(long, value_name = "BYTES,…", default_value = BLOCKS, value_delimiter = ',')]
    #[arg(value_parser = size)]
    pub block_size: Vec<u64>,
    /// Numbers of streams
    #[arg(long, value_name = "N,…", default_value = "1,2,4", value_delimiter = ',')]
    pub streams: Vec<u32>,
    /// Most bytes of blocks on their way
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = size)]
    pub window: u64,
    /// MB a second that one thread reads or writes
    #[arg(long, value_name = "MB", default_value_t = 3000)]
    pub disk_mb: u32,
    /// Threads that read, and that write
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub threads: u32,
    /// Microseconds of a processor for each block, at each end
    #[arg(long, value_name = "US", default_value_t = 20)]
    pub block_us: u32,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft transfer serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The address and port to listen at
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// The directory, which is never left
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
    /// Lets files be read and not written
    #[arg(long)]
    pub read_only: bool,
    /// The file with the keys that clients have to know
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The file of users, each with a key, a directory below --root and rights
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub users: Option<PathBuf>,
}

/// The sizes of blocks that are simulated.
const BLOCKS: &str = "64K,256K,1M,4M,16M";

/// A number of streams or threads.
fn few() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=64)
}

/// Reads bytes with a unit.
fn size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.find(|character: char| !character.is_ascii_digit()) {
        Some(end) => text.split_at(end),
        None => (text, ""),
    };
    let factor: u64 = match unit {
        "" => 1,
        "K" | "k" | "KiB" => 1 << 10,
        "M" | "m" | "MiB" => 1 << 20,
        "G" | "g" | "GiB" => 1 << 30,
        _ => return Err("a number of bytes with K, M or G".to_owned()),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "a number of bytes with K, M or G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units() {
        assert_eq!((size("1M"), size("4k"), size("7")), (Ok(1 << 20), Ok(4_096), Ok(7)));
        assert!(size("M").is_err() && size("1T").is_err() && size("99999999999G").is_err());
    }
}
