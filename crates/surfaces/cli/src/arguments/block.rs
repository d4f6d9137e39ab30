//! The arguments of the commands of `weft block`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub const EXAMPLES: &str = "\
Examples:
  weft block serve --listen 127.0.0.1:3260 --target iqn.2026-11.com.example:disks \\
      --lun 0=file:/srv/disk
                                     serves a file as a SCSI disk by iSCSI
  weft block attach weft://store/iqn.2026-11.com.example:disks/0 --nbd unix:/run/disk.nbd
                                     a disk of another host, by NBD on this one
  weft block ls 127.0.0.1:3260       the targets of a server, and their LUNs
  weft block stat                    what the server of this host has done
  weft block add iqn.2026-11.com.example:disks 1=mem:1G
                                     adds a LUN while the server runs";

const SERVE_EXAMPLES: &str = "\
Examples:
  weft block serve --listen 127.0.0.1:3260 --target iqn.2026-11.com.example:disks \\
      --lun 0=mem:1G --lun 1=file:/srv/disk,direct
  weft block serve --listen 10.9.0.1:3260 --target iqn.2026-11.com.example:disks \\
      --lun 0=file:/dev/nvme0n1 --chap host:/etc/weft/host.secret
  weft block serve --nbd unix:/run/disk.nbd --target iqn.2026-11.com.example:disks \\
      --lun 0=file:/srv/disk
  weft block serve --listen 10.9.0.2:3260 --insecure --target iqn.2026-11.com.example:disks \\
      --lun 0=weft://store:3260/iqn.2026-11.com.example:disks/0
  weft block serve --listen weft:3260 --target iqn.2026-11.com.example:disks --lun 0=mem:1G
  weft block serve --config /etc/weft/block.toml

A server that listens at ADDR:PORT is offered over the fabric, too, when a node daemon runs: as the
service block.PORT, to the own user and to those whom the option daemon.services admits. weft:PORT
is the fabric alone. Targets with CHAP are for iSCSI alone.

LUNs: N=mem:SIZE[,node=K] is memory, of the NUMA node K; N=file:PATH[,direct] is a file or a block
device, past the page cache with direct, by io_uring where the kernel allows it (or aio=io_uring for
nothing else, aio=threads for pread and pwrite); N=weft://HOST[:PORT]/IQN/N is a LUN of a server on
another host of the fabric, or on this one (localhost). Behind each, ro makes it read-only,
removable makes its medium removable. The size of a file is a multiple of 512 bytes; truncate -s
10G makes one.

NBD exports are named by their numbers, or IQN/N; the empty name is the first LUN.

USER:FILE: the file has the secret of the user in its first line, and may have NAME:SECRET in its
second, which the target shows to initiators that ask for it. Nobody else may read the file.

It serves until SIGINT or SIGTERM, and then makes all that was written outlast a power failure.";

const ATTACH_EXAMPLES: &str = "\
Examples:
  weft block attach weft://store:3260/iqn.2026-11.com.example:disks/0 --nbd unix:/run/disk.nbd
  nbdcopy image 'nbd+unix:///?socket=/run/disk.nbd'

HOST is a host of the fabric by its name, number or address, or localhost. The server there listens
at PORT (3260 if none is said). When it ends, attach ends with an error: nobody could say then which
writes that were not flushed are there.";

const LS_EXAMPLES: &str = "\
Examples:
  weft block ls 127.0.0.1:3260
  weft block ls 10.9.0.1:3260 --chap host:/etc/weft/host.secret
  weft block ls 127.0.0.1:3260 --json | jq .[0].luns";

const STAT_EXAMPLES: &str = "\
Examples:
  weft block stat
  weft block stat --json | jq '.units[] | {lun, queue, p99: .reads.p99_us}'";

const CHANGE_EXAMPLES: &str = "\
Examples:
  weft block add iqn.2026-11.com.example:disks 2=mem:512M
  weft block resize iqn.2026-11.com.example:disks/2 1G
  weft block remove iqn.2026-11.com.example:disks/2";

/// The commands of `weft block`.
#[derive(Debug, Subcommand)]
pub enum BlockCommand {
    /// Serves memory, files and block devices as disks, by iSCSI and NBD
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<ServeArguments>),
    /// Serves a LUN of another host by NBD on this one; its bytes move over the fabric
    #[command(after_help = ATTACH_EXAMPLES)]
    Attach(AttachArguments),
    /// Shows the targets of an iSCSI server, and their LUNs
    #[command(after_help = LS_EXAMPLES)]
    Ls(LsArguments),
    /// Shows what each LUN of a running server has done: operations, bytes, latencies, queue
    #[command(after_help = STAT_EXAMPLES)]
    Stat(StatArguments),
    /// Adds a LUN to a target of a running server
    #[command(after_help = CHANGE_EXAMPLES)]
    Add(AddArguments),
    /// Gives a LUN of a running server another size
    #[command(after_help = CHANGE_EXAMPLES)]
    Resize(ResizeArguments),
    /// Takes a LUN away from a running server; its commands that run are finished
    #[command(after_help = CHANGE_EXAMPLES)]
    Remove(RemoveArguments),
}

/// Arguments of `weft block serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Reads all of it from a file in TOML
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["listen", "target", "lun", "chap", "nbd"])]
    pub config: Option<PathBuf>,
    /// Listens for iSCSI and over the fabric; weft:PORT is the fabric alone; may be repeated
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Vec<String>,
    /// The iSCSI name of the target
    #[arg(long, value_name = "IQN", required_unless_present = "config")]
    pub target: Option<String>,
    /// A LUN and its store; may be repeated
    #[arg(
        long,
        value_name = "N=STORE",
        required_unless_present = "config",
        help = "A LUN: N=mem:SIZE[,node=K], N=file:PATH[,direct] or N=weft://HOST[:PORT]/IQN/N; \
                may be repeated"
    )]
    pub lun: Vec<String>,
    /// Admits an initiator that knows the secret in a file; may be repeated
    #[arg(long, value_name = "USER:FILE")]
    pub chap: Vec<String>,
    /// Exports the LUNs by NBD at ADDR:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "PLACE")]
    pub nbd: Vec<String>,
    /// TLS for NBD over TCP: files of the certificate and of the key in PEM, with a comma between
    #[arg(long, value_name = "CERT,KEY")]
    pub nbd_tls: Option<String>,
    /// Keeps reservations in a directory [default: /var/lib/weft/block for root]
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
    /// Serves other hosts without a secret
    #[arg(long)]
    pub insecure: bool,
    #[command(flatten)]
    pub control: ControlArguments,
}

/// Arguments of `weft block attach`.
#[derive(Debug, Args)]
pub struct AttachArguments {
    /// The LUN
    #[arg(value_name = "weft://HOST[:PORT]/IQN/N")]
    pub lun: String,
    /// Exports it by NBD at ADDR:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "PLACE", required = true)]
    pub nbd: Vec<String>,
    /// For reading alone
    #[arg(long)]
    pub read_only: bool,
    /// Serves other hosts, which NBD asks for no secret
    #[arg(long)]
    pub insecure: bool,
}

/// The socket of a server for its management.
#[derive(Debug, Args)]
pub struct ControlArguments {
    /// The socket for management [default: /run/weft/block.sock for root]
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
}

/// Arguments of `weft block ls`.
#[derive(Debug, Args)]
pub struct LsArguments {
    /// The address of the server
    #[arg(value_name = "PORTAL")]
    pub portal: String,
    /// The user and a file with the secret
    #[arg(long, value_name = "USER:FILE")]
    pub chap: Option<String>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft block stat`.
#[derive(Debug, Args)]
pub struct StatArguments {
    #[command(flatten)]
    pub control: ControlArguments,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft block add`.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The iSCSI name of the target
    #[arg(value_name = "IQN")]
    pub target: String,
    /// The LUN, as `weft block serve --lun` has it
    #[arg(value_name = "N=STORE")]
    pub lun: String,
    #[command(flatten)]
    pub control: ControlArguments,
}

/// Arguments of `weft block resize`.
#[derive(Debug, Args)]
pub struct ResizeArguments {
    /// The LUN
    #[arg(value_name = "IQN/N")]
    pub lun: String,
    /// Its new size, such as 20G
    #[arg(value_name = "SIZE")]
    pub size: String,
    #[command(flatten)]
    pub control: ControlArguments,
}

/// Arguments of `weft block remove`.
#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// The LUN
    #[arg(value_name = "IQN/N")]
    pub lun: String,
    #[command(flatten)]
    pub control: ControlArguments,
}
