//! The command line: exact forms that scripts rely on, each with examples in its help.

pub mod block;
#[cfg(test)]
mod documents;
mod flags;
pub mod kv;
pub mod kv_bench;
pub mod network;
mod oshmem;
#[cfg(feature = "simulator")]
pub mod simulator;
pub mod transfer;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::builder::RangedI64ValueParser;
use clap::{Args, Parser, Subcommand};
use weft_options::{Options, TransportChoice};

pub use flags::{HINT, Invocation, command, command_of_today};
pub use oshmem::{Launcher, OshrunArguments, WrapperArguments};

const EXAMPLES: &str = "\
Examples:
  weft run -- redis-server --port 7000     run a server over the fabric
  weft run --stats -- curl http://[::1]/   run a client, then say what went where
  weft status                              what the node daemon serves
  weft demo                                compare weft with kernel TCP on this machine";

const RUN_EXAMPLES: &str = "\
Examples:
  weft run -- python3 -m http.server 8000
  weft run --stats -- curl -o /dev/null http://127.0.0.1:8000/file
  WEFT_LOG=debug weft run -- ./program     say what cannot be preloaded, and why

Exit status: the program's own, or 128 + N when signal N ended it; 127 when the program is not
found, 126 when it cannot be executed, 125 when weft itself failed.";

const DAEMON_EXAMPLES: &str = "\
Examples:
  weft daemon                 serve in the foreground until SIGINT or SIGTERM
  weft daemon --background    serve in the background, return when it answers
  sudo weft daemon            serve all users of the machine at /run/weft/default.sock
  sudo weft daemon --node b --device 1,netns=blue,segment=/run/weft/segment.sock
                              serve an Ethernet device that meets those of other daemons there";

const TOP_EXAMPLES: &str = "\
Examples:
  weft top                                 the node, live; tab shows the next table, q ends it
  weft top --json --count 1 | jq .totals   one status, for scripts
  weft top --json --every 5000 >> log      a status every five seconds

Rates are of the last second. A terminal of 80 columns and 24 lines is enough.";

const DASH_EXAMPLES: &str = "\
Examples:
  weft dash                                serves the dashboard, and opens a browser
  weft dash --no-open --listen 127.0.0.1:8080
                                           serves it at a port of your choice
  sudo weft daemon --dash-listen 10.9.0.1:8080
                                           the daemon serves it, to those who have the token

The address that it prints has a token, without which nobody sees anything.";

const CAPTURE_EXAMPLES: &str = "\
Examples:
  weft capture -w all.pcapng               until control-c
  weft capture -w redis.pcapng --of :6379 --seconds 10
  weft capture -w frames.pcapng --of device:all arp or icmp
  weft capture -w half.pcapng 'src port 6379 and not host ::1'
  tshark -r redis.pcapng -z follow,tcp,ascii,0

The bytes are shown as segments of TCP, each direction with its sequence numbers. They are read
beside the connection, which is not slowed down: where bytes were overwritten before they were read,
the sequence numbers have a gap, and the end says how many. A user captures what is between programs
of their own, root captures all. For connections on TCP use tcpdump.";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  weft doctor                              what holds weft back here, and what to change
  weft doctor --json | jq '.checks[] | select(.state != \"good\")'

Exit status: 0 if nothing is wrong, 2 if something costs speed, 3 if something does not work,
1 when weft itself failed.";

const DEVICE: &str = "NODE[,mtu=N][,netns=NAME][,stays][,segment=SOCKET]";

const FABRIC_EXAMPLES: &str = "\
Examples:
  weft fabric key > fabric.key             makes a key, to be copied to all hosts
  weft daemon --fabric-key fabric.key --fabric-listen 10.9.0.1:7700
                                           the first daemon, which admits the others
  weft daemon --fabric-key fabric.key --fabric-listen 10.9.0.2:7700 --fabric-seeds 10.9.0.1:7700
                                           the daemon of the next host
  weft daemon --fabric-key fabric.key --fabric-listen 10.9.0.2:7700 \\
      --fabric-etcd http://10.9.0.9:2379   a daemon that joins by etcd, without a first one
  weft fabric nodes                        the hosts, and which of them are up";

const FABRIC_KEY_EXAMPLES: &str = "\
Examples:
  (umask 077; weft fabric key > fabric.key)
  (umask 077; weft fabric key >> fabric.key)   a second key, the first step of a rotation

A daemon shows the first key of its file and accepts all. To rotate keys: add the new one as the
second line on all hosts; make it the first on all hosts; remove the old one on all hosts. Start a
host's daemon again after each step.";

const FABRIC_EXPEL_EXAMPLES: &str = "\
Examples:
  weft fabric expel 3

At the host of the first daemon. The node's identity is not admitted again. A host that has read the
key can still join with another identity: rotate the key, too (`weft fabric key --help`).";

const LAB_EXAMPLES: &str = "\
Examples:
  weft lab up --nodes 3                    makes weft-n0, weft-n1 and weft-n2
  weft lab exec n1 -- iperf3 -s -D         runs a program in a node
  weft lab exec n0 -- iperf3 -c n1         nodes know each other by name
  weft lab status                          what the devices are doing
  weft lab down                            removes what was made";

const LAB_UP_EXAMPLES: &str = "\
Examples:
  weft lab up                              makes two nodes
  weft lab up --nodes 8 --mtu 1500         makes eight, with frames as on a wire
  weft lab up --topology torus:2x2x2       makes eight, each with a link to three others";

const LAB_LINK_EXAMPLES: &str = "\
Examples:
  weft lab link                            lists the links
  weft lab link n0 n1 down                 cuts one: frames take other ways, if there are any
  weft lab link n0 n1 up                   mends it

The links decide which nodes reach each other; a longer way costs nothing here. A node that
reaches no other has an interface without a link. Where no way is left between two nodes, endpoints
and connections on the fabric wait as the device does, and go on when a link is mended.";

const LAB_EXEC_EXAMPLES: &str = "\
Examples:
  weft lab exec n0 -- ping n1
  weft lab exec n1 -- python3 -m http.server 8000
  weft lab exec n0 -- sh                   a shell in the node

Exit status: the program's own, or 125 when weft itself failed.";

const PERF_EXAMPLES: &str = "\
Examples:
  weft perf latency --size 64            one-way latency of 64-byte messages
  weft perf put --size 1048576 --json    bandwidth and latency of puts, for scripts
  weft perf lane --over endpoint         what direct sockets run over, between endpoints
  weft perf rate --transport sim         the same logic in the simulator's virtual time";

const FI_EXAMPLES: &str = "\
Examples:
  eval \"$(weft fi env)\"                    programs that use libfabric find weft from now on
  fi_info -p weft                          what it offers
  mpirun --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include weft -np 4 ./program
                                           Open MPI 4 over weft
  FI_PROVIDER=weft MPIR_CVAR_CH4_NETMOD=ofi mpiexec -n 4 ./program
                                           MPICH over weft

A daemon is started if there is none.";

const CONFIG_EXAMPLES: &str = "\
Examples:
  weft config list                         what is in force, and where it came from
  weft config explain socket.idle_ms       what an option means
  weft config dump > weft.toml             a file to begin with

A flag beats the environment (WEFT_*), which beats the file (weft.toml), which beats the default.";

const LIST_EXAMPLES: &str = "\
Examples:
  weft config list
  weft config list --socket-idle-ms 500    what a flag would change
  weft config list --json | jq '.[] | select(.origin != \"default\")'";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  weft config explain socket.idle_ms
  weft config explain WEFT_SOCKET_IDLE_MS
  weft config explain --json socket.idle_ms | jq .maximum";

const DUMP_EXAMPLES: &str = "\
Examples:
  weft config dump > ~/.config/weft/weft.toml
  weft config dump --socket-idle-ms 500 > weft.toml
  WEFT_CONFIG=weft.toml weft config list   reads it back";

/// Unmodified TCP programs over an RDMA-like fabric.
#[derive(Debug, Parser)]
#[command(name = "weft", version = crate::release::shown(), about, after_help = EXAMPLES)]
#[command(disable_help_subcommand = true)]
pub struct Line {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a program with its TCP connections on the fabric wherever both ends are under weft
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArguments),
    /// Runs an OpenSHMEM or MPI program as a job of several processes (PEs), on one or more hosts
    #[command(after_help = oshmem::OSHRUN_EXAMPLES)]
    Oshrun(Box<OshrunArguments>),
    /// Compiles a C program with OpenSHMEM
    #[command(after_help = oshmem::OSHCC_EXAMPLES)]
    Oshcc(WrapperArguments),
    /// Compiles a C++ program with OpenSHMEM
    #[command(name = "oshc++", after_help = oshmem::OSHCC_EXAMPLES)]
    Oshcxx(WrapperArguments),
    /// Serves this node: brokers endpoints and connections
    #[command(after_help = DAEMON_EXAMPLES)]
    Daemon(DaemonArguments),
    /// Stops the node daemon; programs that run go on
    #[command(after_help = "Examples:\n  weft down\n  weft down --node lab")]
    Down(NodeArguments),
    /// Shows what the node daemon serves
    #[command(after_help = "Examples:\n  weft status\n  weft status --json | jq .connections")]
    Status(StatusArguments),
    /// Shows the node live: connections, why some stay on TCP, programs, endpoints, devices, links
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArguments),
    /// Opens the dashboard of the node in a browser
    #[command(after_help = DASH_EXAMPLES)]
    Dash(DashArguments),
    /// Writes what connections on the fabric carry to a file that Wireshark reads
    #[command(after_help = CAPTURE_EXAMPLES)]
    Capture(CaptureArguments),
    /// Says what holds weft back on this machine, what to change, and what that gains
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArguments),
    /// Shows the hosts of the fabric, expels one, or makes a key
    #[command(subcommand, after_help = FABRIC_EXAMPLES)]
    Fabric(FabricCommand),
    /// Serves memory, files and devices as disks by iSCSI and NBD, and manages such a server
    #[command(subcommand, after_help = block::EXAMPLES)]
    Block(block::BlockCommand),
    /// Makes a cluster of network namespaces on this machine, each with a device of the fabric
    #[command(subcommand, after_help = LAB_EXAMPLES)]
    Lab(LabCommand),
    /// Shows build, daemon, what machine and transports offer, and the options that were set
    #[command(after_help = "Examples:\n  weft info\n  weft info --json | jq .transports")]
    Info(StatusArguments),
    /// Copies files and trees between places, verified and resumable
    #[command(after_help = transfer::CP_EXAMPLES)]
    Cp(Box<transfer::CpArguments>),
    /// Serves a directory to `weft cp`
    #[command(subcommand, after_help = transfer::TRANSFER_EXAMPLES)]
    Transfer(transfer::TransferCommand),
    /// Measures a transport between two ends
    #[command(after_help = PERF_EXAMPLES)]
    Perf(PerfArguments),
    /// Simulates networks of many nodes in virtual time
    #[cfg(feature = "simulator")]
    #[command(subcommand, after_help = simulator::SIM_EXAMPLES)]
    Sim(simulator::SimCommand),
    /// Serves a key-value store that clients of Redis use, and manages it
    #[command(subcommand, after_help = kv::EXAMPLES)]
    Kv(kv::KvCommand),
    /// Compares weft with kernel TCP, with programs that nobody changed
    #[command(after_help = "Examples:\n  weft demo\n\nIt takes less than a minute.")]
    Demo(DemoArguments),
    /// Tells libfabric, and so MPI, where weft's provider is
    #[command(subcommand, after_help = FI_EXAMPLES)]
    Fi(FiCommand),
    /// Shows the options of the configuration, what each means, and a file that says them
    #[command(subcommand, after_help = CONFIG_EXAMPLES)]
    Config(ConfigCommand),
    /// Installs weft, its libraries, headers, manual pages and completions below a directory
    #[command(after_help = "Examples:\n  sudo weft install /usr/local\n  weft install ~/.local")]
    Install {
        /// The directory; it gets bin, lib, include and share
        #[arg(value_name = "PREFIX")]
        prefix: PathBuf,
        /// A directory that stands for `/`, for those who make packages
        #[arg(long, value_name = "DIR")]
        root: Option<PathBuf>,
    },
    /// Measures the way to another host, for the daemon
    #[command(subcommand, hide = true)]
    Measure(MeasureCommand),
    /// Writes the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// Where to write them; made if it is missing
        directory: PathBuf,
    },
    /// Prints the completions for a shell
    #[command(hide = true)]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `weft fi`.
#[derive(Debug, Subcommand)]
pub enum FiCommand {
    /// Prints the directory of libweft-fi.so
    #[command(after_help = "Examples:\n  FI_PROVIDER_PATH=$(weft fi path) fi_info -p weft")]
    Path,
    /// Prints a line for a shell that sets FI_PROVIDER_PATH
    #[command(after_help = "Examples:\n  eval \"$(weft fi env)\"")]
    Env,
}

/// Arguments of `weft measure`, which daemons start.
#[derive(Debug, Subcommand)]
pub enum MeasureCommand {
    /// Serves measurements, and prints its port
    Serve {
        /// The address to listen at
        address: IpAddr,
    },
    /// Measures over one connection
    Run {
        /// The server
        to: SocketAddr,
        /// How long to talk before, in milliseconds
        #[arg(long, default_value_t = 0)]
        warm_ms: u64,
    },
    /// Tries the paths of data to other hosts, which it reads
    Path,
    /// Measures TCP and the fabric in turns
    To {
        /// The server without weft
        plain: SocketAddr,
        /// The server over the fabric
        fabric: SocketAddr,
    },
}

/// Arguments of `weft run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// Prints at exit how much went over the fabric, how much over TCP, and why
    #[arg(long)]
    pub stats: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Which node.
#[derive(Debug, Args)]
pub struct NodeArguments {
    /// The node's name [default: WEFT_NODE, else `default`]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// Arguments of `weft daemon`.
#[derive(Debug, Args)]
pub struct DaemonArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// Serves in the background and returns once it answers
    #[arg(long)]
    pub background: bool,
    /// Serves the Ethernet device weft0 of node NODE of the fabric, 0 to 255: `5`, `5,mtu=9000`,
    /// `5,netns=NAME`; `stays` keeps it when the daemon ends; devices of several daemons meet at
    /// one more daemon for them alone, whose socket is their `segment`; `reach=0+1` leaves it links
    /// to these nodes alone. May be given several times
    #[arg(long, value_name = DEVICE, value_parser = device)]
    pub device: Vec<weftd::DeviceSpec>,
    /// Rules the links of the lab whose record is beside the socket
    #[arg(long, hide = true)]
    pub lab: bool,
    /// A step of going into the background
    #[arg(long, hide = true, value_enum)]
    pub step: Option<Step>,
}

/// Reads a device as `--device` names it.
fn device(text: &str) -> Result<weftd::DeviceSpec, String> {
    text.parse()
}

/// The steps between the command that wants a daemon and the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Step {
    /// Leaves session and descriptors behind, starts the daemon, ends.
    Detach,
    /// Is the daemon.
    Serve,
}

/// The commands of `weft fabric`.
#[derive(Debug, Subcommand)]
pub enum FabricCommand {
    /// Prints a new fabric key
    #[command(after_help = FABRIC_KEY_EXAMPLES)]
    Key,
    /// Shows the hosts of the fabric: number, name, address, transport, state
    #[command(
        after_help = "Examples:\n  weft fabric nodes\n  weft fabric nodes --json | jq .nodes"
    )]
    Nodes(StatusArguments),
    /// Expels a host: its identity is not admitted again
    #[command(after_help = FABRIC_EXPEL_EXAMPLES)]
    Expel(ExpelArguments),
    /// Checks the routes of a network: all hosts reach each other, and no packets can deadlock
    Check(network::CheckArguments),
    /// Shows the routing tables of a network
    Routes(network::RoutesArguments),
    /// Shows a network: as a table, or for other programs
    Show(network::ShowArguments),
    /// Shows the way of a packet from one host to another
    Trace(network::TraceArguments),
    /// Cuts a link of the running lab
    Fail(network::LinkArguments),
    /// Mends a link of the running lab
    Heal(network::LinkArguments),
}

/// Arguments of `weft fabric expel`.
#[derive(Debug, Args)]
pub struct ExpelArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// The number of the host's node, as `weft fabric nodes` shows it
    #[arg(value_name = "NUMBER")]
    pub number: u32,
}

/// The commands of `weft lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Makes the nodes, or mends what a crash left of them
    #[command(after_help = LAB_UP_EXAMPLES)]
    Up(LabUpArguments),
    /// Runs a program in a node
    #[command(after_help = LAB_EXEC_EXAMPLES)]
    Exec(LabExecArguments),
    /// Lists the links between nodes, cuts one, or mends it
    #[command(after_help = LAB_LINK_EXAMPLES)]
    Link(LabLinkArguments),
    /// Shows the nodes, what their devices are doing, and which links are cut
    #[command(
        after_help = "Examples:\n  weft lab status\n  weft lab status --json | jq .[0].peers"
    )]
    Status {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Removes the nodes; programs in them lose their network
    #[command(after_help = "Examples:\n  weft lab down")]
    Down,
}

/// Arguments of `weft lab up`.
#[derive(Debug, Args)]
pub struct LabUpArguments {
    /// How many nodes [default: as many as the topology has, else 2]
    #[arg(long, value_name = "N", value_parser = nodes())]
    pub nodes: Option<u16>,
    /// The links between them: `full`, `torus:2x2x2`, `links:0-1,1-2`, or a file with the two nodes
    /// of a link in each line
    #[arg(long, value_name = "SHAPE", default_value = "full")]
    pub topology: String,
    /// Bytes of IP in a frame of the devices
    #[arg(long, value_name = "M", default_value_t = weftd::MTU_MAX, value_parser = mtu())]
    pub mtu: u32,
}

fn nodes() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(crate::lab::NODES_MAX))
}

fn mtu() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(i64::from(weftd::MTU_MIN)..=i64::from(weftd::MTU_MAX))
}

/// Arguments of `weft lab link`.
#[derive(Debug, Args)]
pub struct LabLinkArguments {
    /// One end: `n3`, `3` or `weft-n3`
    #[arg(value_name = "A", requires = "b")]
    pub a: Option<String>,
    /// The other end
    #[arg(value_name = "B", requires = "state")]
    pub b: Option<String>,
    /// The state that it is to have
    #[arg(value_name = "STATE")]
    pub state: Option<LinkState>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// The states of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum LinkState {
    /// Nothing goes over it
    Down,
    /// It is there
    Up,
}

/// Arguments of `weft lab exec`.
#[derive(Debug, Args)]
pub struct LabExecArguments {
    /// The node: `n3`, `3` or `weft-n3`
    #[arg(value_name = "NODE")]
    pub node: String,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Arguments of `weft status` and `weft info`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// Prints one status a line as JSON
    #[arg(long)]
    pub json: bool,
    /// The time from one status to the next, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = interval())]
    pub every: u64,
    /// Ends after so many, with --json
    #[arg(long, value_name = "N", requires = "json")]
    pub count: Option<u64>,
}

/// From a tenth of a second to a minute.
fn interval() -> RangedI64ValueParser<u64> {
    RangedI64ValueParser::new().range(100..=60_000)
}

/// Arguments of `weft dash`.
#[derive(Debug, Args)]
pub struct DashArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// The address to serve it at, on loopback; port 0 for any
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Shows a recording in place of a node: lines of `weft top --json`, or what `weft sim run
    /// --record` wrote
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    pub play: Option<PathBuf>,
    /// Prints the address and opens no browser
    #[arg(long)]
    pub no_open: bool,
}

/// Arguments of `weft capture`.
#[derive(Debug, Args)]
pub struct CaptureArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// The file to write, as pcapng; only its owner can read it
    #[arg(short = 'w', value_name = "FILE")]
    pub write: PathBuf,
    /// Connections alone that have this in an address, as `:6379`, or as the number of a process;
    /// `device:NODE` or `device:all` for frames of Ethernet devices; `endpoint:NUMBER` for messages
    #[arg(long, value_name = "ADDRESS|PROCESS|device:NODE|endpoint:NUMBER")]
    pub of: Option<String>,
    /// Ends after so many seconds
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Ends after so many bytes of the file
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    pub bytes: u64,
    /// Prints at the end as JSON what was captured
    #[arg(long)]
    pub json: bool,
    /// The packets to keep, in words of pcap-filter(7): host, net, port, src, dst, ip, ip6, arp,
    /// tcp, udp, icmp, icmp6, and, or, not, parentheses [default: all]
    pub filter: Vec<String>,
}

/// Arguments of `weft doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    #[command(flatten)]
    pub node: NodeArguments,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Leaves the measurements out
    #[arg(long)]
    pub quick: bool,
}

/// Arguments of `weft perf`.
#[derive(Clone, Debug, Args)]
pub struct PerfArguments {
    /// The measurement
    #[arg(value_enum)]
    pub test: PerfTest,
    /// Over which transport [default: shm; to another node: that of fabric.transport]
    #[arg(long, value_enum)]
    pub transport: Option<TransportName>,
    /// Measures to `weft perf serve` on this node of the fabric
    #[arg(long, value_name = "NODE")]
    pub to: Option<u32>,
    /// The provider of libfabric, as `weft info` names it [default: the first that serves hosts]
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Bytes of a message or operation [default: 8]
    #[arg(long, value_name = "N")]
    pub size: Option<u64>,
    /// The way that the lane goes [default: memory]
    #[arg(long, value_enum)]
    pub over: Option<LaneKind>,
    /// The memory that is put to and got from and to
    #[arg(long, value_enum, default_value_t = MemoryKind::Fresh)]
    pub memory: MemoryKind,
    /// How peers reach memory that exists already
    #[arg(long, value_enum, default_value_t = MemoryWay::Adopt)]
    pub way: MemoryWay,
    /// Prints one line of JSON
    #[arg(long)]
    pub json: bool,
    /// How often the measurement is repeated; the median counts
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Messages or operations of one run [default: as many as fill 0.2 s]
    #[arg(long, value_name = "N")]
    pub iterations: Option<u64>,
    /// Leaves it to the system on which cores the ends run
    #[arg(long)]
    pub unpinned: bool,
    /// Is the other end, for the initiator at this address
    #[arg(long, hide = true, value_name = "NODE:VPID|PID")]
    pub respond: Option<String>,
}

impl PerfArguments {
    /// The transport that is measured.
    pub fn transport(&self) -> TransportName {
        self.transport.unwrap_or(TransportName::Shm)
    }

    /// The same arguments, with the transport that is meant if none is named.
    pub fn over_the_usual(&self, options: &Options) -> Self {
        let is_between_nodes = self.to.is_some() || self.test == PerfTest::Serve;
        let usual = match options.fabric_transport() {
            _ if !is_between_nodes => TransportName::Shm,
            TransportChoice::Auto => TransportName::Auto,
            TransportChoice::Shm => TransportName::Shm,
            TransportChoice::Ofi => TransportName::Ofi,
        };
        Self { transport: self.transport.or(Some(usual)), ..self.clone() }
    }

    /// The lane of `weft perf lane`.
    pub fn lane_kind(&self) -> LaneKind {
        self.over.unwrap_or(LaneKind::Memory)
    }
}

/// Arguments of `weft demo`.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// Is one end of an echo pair
    #[arg(long, hide = true, value_enum)]
    pub echo: Option<EchoPart>,
    /// Port of the echo pair
    #[arg(long, hide = true)]
    pub port: Option<u16>,
}

/// The ends of the echo pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum EchoPart {
    /// Answers.
    Server,
    /// Asks.
    Client,
}

/// The measurements of `weft perf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum PerfTest {
    /// One-way latency of messages
    Latency,
    /// Messages a second on one pair
    Rate,
    /// Bandwidth of puts, and latency of puts with completer notification and with a signal
    Put,
    /// Bandwidth of gets, and the time of one
    Get,
    /// Fetch-adds a second, and the time of one
    Atomic,
    /// Messages of any length a second, and the one-way latency of one
    Message,
    /// Messages a second over a lane, as of direct sockets, and the one-way latency of one
    Lane,
    /// No measurement: is the other end for `--to`, until it is ended
    Serve,
    /// The bounds of the machine: two threads and two cache lines
    #[value(hide = true)]
    Cacheline,
}

impl PerfTest {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Put => "put",
            Self::Get => "get",
            Self::Atomic => "atomic",
            Self::Message => "message",
            Self::Lane => "lane",
            Self::Serve => "serve",
            Self::Cacheline => "cacheline",
        }
    }
}

/// Kinds of lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum LaneKind {
    /// Memory that both ends map
    Memory,
    /// An endpoint of each end, as between hosts
    Endpoint,
}

impl LaneKind {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Endpoint => "endpoint",
        }
    }
}

/// Kinds of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum MemoryKind {
    /// Made for it by the transport
    Fresh,
    /// A memfd that was made before
    File,
    /// Memory of the process that was there before
    Existing,
}

impl MemoryKind {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::File => "file",
            Self::Existing => "existing",
        }
    }
}

/// Ways to memory that exists already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum MemoryWay {
    /// Its pages are replaced by shared ones with the same bytes
    Adopt,
    /// It stays as it is, and the kernel copies
    Kernel,
}

impl MemoryWay {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adopt => "adopt",
            Self::Kernel => "kernel",
        }
    }
}

/// The transports that can be named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum TransportName {
    /// Shared memory, two processes on this host
    Shm,
    /// The simulator, in virtual time
    Sim,
    /// libfabric, two threads of one process
    Ofi,
    /// One endpoint over shared memory on its node and libfabric between nodes
    Auto,
}

impl TransportName {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Sim => "sim",
            Self::Ofi => "ofi",
            Self::Auto => "auto",
        }
    }
}

/// Commands of `weft config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Lists all options: what is in force, where it came from, and the default
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArguments),
    /// Explains one option: meaning, unit, default, bounds, and how it is set
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArguments),
    /// Prints a configuration file that says what is in force
    #[command(after_help = DUMP_EXAMPLES)]
    Dump(DumpArguments),
}

/// Arguments of `weft config list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft config explain`.
#[derive(Debug, Args)]
pub struct ExplainArguments {
    /// The option: `socket.idle_ms`, or its variable, or its flag without the dashes
    #[arg(value_name = "OPTION")]
    pub option: String,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft config dump`. Its flags are of the time before `list`.
#[derive(Debug, Args)]
pub struct DumpArguments {
    /// Prints what `weft config list --json` does
    #[arg(long, hide = true, conflicts_with = "toml")]
    pub json: bool,
    /// Prints the file, as without it
    #[arg(long, hide = true)]
    pub toml: bool,
}
