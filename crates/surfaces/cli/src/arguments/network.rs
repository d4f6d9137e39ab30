//! The arguments of the commands of `weft fabric` that are about a network: a topology, or the
//! running one of a daemon.

use std::path::PathBuf;

use clap::Args;

use super::NodeArguments;

const TOPOLOGY_HELP: &str = "\
Topologies:
  torus:8x8x8       k-ary n-torus; node numbers count in the first dimension fastest
  mesh:4x4          the same without the links from the last node to the first
  hypercube:6       with so many dimensions
  full:8            a link between any two nodes
  fattree:4x3       k-ary n-tree: switches with 4 links down on 3 levels
  dragonfly:4,2,2   groups of 4 switches with 2 hosts and 2 links to other groups each
  dragonfly:2       the same: balanced, with 2 links to other groups
  FILE.toml         hosts = [\"a\"], switches = [\"s\"], links = [{ ends = [\"a:0\", \"s\"] }]; a
                    link may have bandwidth_mbit, latency_ns and weight
  FILE.graphml      nodes, of which those of the kind `switch` are switches, and edges
  FILE              two nodes in each line";

const CHECK_EXAMPLES: &str = "\
Examples:
  weft fabric check
  weft fabric check --topology torus:32x32x64
  weft fabric check --topology torus:8x8x8 --routing adaptive --fail n0:0
  weft fabric check --topology found.toml --expect planned.toml --json

It ends with status 1 if a host does not reach another one, if packets could wait for each other in
a circle, or if links differ from the expected ones.";

const ROUTES_EXAMPLES: &str = "\
Examples:
  weft fabric routes n0 --node lab
  weft fabric routes --topology torus:8x8x8
  weft fabric routes --topology torus:8x8x8 n3
  weft fabric routes --topology fattree:4x3 s64 --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  weft fabric show
  weft fabric show --topology torus:4x4 --graphviz | neato -Tsvg > torus.svg
  weft fabric show --topology dragonfly:2 --json | jq .switches
  weft fabric show --topology mesh:4x4 --toml > mesh.toml";

const TRACE_EXAMPLES: &str = "\
Examples:
  weft fabric trace n0 n3
  weft fabric trace n0 n63 --topology torus:4x4x4
  weft fabric trace n0 n63 --topology torus:4x4x4 --routing valiant --via n21 --fail n0:0";

/// A network: a topology and links of it that are cut, or what a daemon rules.
#[derive(Debug, Args)]
pub struct TopologyArguments {
    /// The topology: a form with its sizes, or a file [default: the running network]
    #[arg(long, value_name = "SPEC", long_help = TOPOLOGY_HELP)]
    pub topology: Option<String>,
    /// Cuts a link of the topology, as n0:3 (by a port) or n0-n1, or all links of a host or switch,
    /// as n0; may be repeated
    #[arg(long, value_name = "LINK", requires = "topology")]
    pub fail: Vec<String>,
    #[command(flatten)]
    pub daemon: NodeArguments,
}

/// A topology, and how routes are computed.
#[derive(Debug, Args)]
pub struct RoutingArguments {
    #[command(flatten)]
    pub network: TopologyArguments,
    /// The routing of the topology: auto (the default), dor (dimension order), adaptive, valiant or
    /// updown
    #[arg(long, value_name = "HOW", requires = "topology")]
    pub routing: Option<weft_routing::Algorithm>,
}

/// Arguments of `weft fabric check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct CheckArguments {
    #[command(flatten)]
    pub routing: RoutingArguments,
    /// Lists links that are missing, extra or miswired against this file
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft fabric routes`.
#[derive(Debug, Args)]
#[command(after_help = ROUTES_EXAMPLES)]
pub struct RoutesArguments {
    /// The host or switch whose tables are shown [default: a summary of all]
    #[arg(value_name = "NODE")]
    pub at: Option<String>,
    #[command(flatten)]
    pub routing: RoutingArguments,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `weft fabric show`.
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArguments {
    #[command(flatten)]
    pub network: TopologyArguments,
    /// Prints the language of Graphviz
    #[arg(long, conflicts_with_all = ["json", "toml"])]
    pub graphviz: bool,
    /// Prints JSON
    #[arg(long, conflicts_with = "toml")]
    pub json: bool,
    /// Prints a file that --topology reads
    #[arg(long)]
    pub toml: bool,
}

/// Arguments of `weft fabric trace`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub struct TraceArguments {
    /// The host that sends
    #[arg(value_name = "A")]
    pub from: String,
    /// The host that receives
    #[arg(value_name = "B")]
    pub to: String,
    #[command(flatten)]
    pub routing: RoutingArguments,
    /// The host that valiant routing visits on the way
    #[arg(long, value_name = "NODE")]
    pub via: Option<String>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
}

const FAIL_EXAMPLES: &str = "\
Examples:
  weft fabric fail n0-n1
  weft fabric fail n0:2
  weft fabric heal n0-n1

The nodes between which no way is left do not reach each other: Ethernet, endpoints and direct
sockets wait, and go on when the link is mended.";

/// Arguments of `weft fabric fail` and `weft fabric heal`.
#[derive(Debug, Args)]
#[command(after_help = FAIL_EXAMPLES)]
pub struct LinkArguments {
    /// The link, by its two nodes as n0-n1, or by a port of one as n0:2
    #[arg(value_name = "LINK")]
    pub link: String,
    #[command(flatten)]
    pub daemon: NodeArguments,
}
