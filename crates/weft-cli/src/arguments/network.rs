//! The arguments of the commands of `weft fabric` that are about a topology.

use std::path::PathBuf;

use clap::Args;

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
  FILE.graphml      nodes and undirected edges
  FILE              two nodes in each line";

const CHECK_EXAMPLES: &str = "\
Examples:
  weft fabric check --topology torus:32x32x64
  weft fabric check --topology torus:8x8x8 --routing adaptive --fail n0:0
  weft fabric check --topology found.toml --expect planned.toml --json

It ends with status 1 if a host does not reach another one, if packets could wait for each other in
a circle, or if links differ from the expected ones.";

const ROUTES_EXAMPLES: &str = "\
Examples:
  weft fabric routes --topology torus:8x8x8
  weft fabric routes --topology torus:8x8x8 n3
  weft fabric routes --topology fattree:4x3 s64 --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  weft fabric show --topology torus:4x4 --graphviz | neato -Tsvg > torus.svg
  weft fabric show --topology dragonfly:2 --json | jq .switches
  weft fabric show --topology mesh:4x4 --toml > mesh.toml";

const TRACE_EXAMPLES: &str = "\
Examples:
  weft fabric trace n0 n63 --topology torus:4x4x4
  weft fabric trace n0 n63 --topology torus:4x4x4 --routing valiant --via n21 --fail n0:0";

/// A topology and links of it that are cut.
#[derive(Debug, Args)]
pub struct TopologyArguments {
    /// The topology: a form with its sizes, or a file
    #[arg(long, value_name = "SPEC", long_help = TOPOLOGY_HELP)]
    pub topology: String,
    /// Cuts the link at a port, as n0:3, or all links of a host or switch, as n0; may be repeated
    #[arg(long, value_name = "LINK")]
    pub fail: Vec<String>,
}

/// A topology, and how routes are computed.
#[derive(Debug, Args)]
pub struct RoutingArguments {
    #[command(flatten)]
    pub network: TopologyArguments,
    /// The routing: auto, dor (dimension order), adaptive, valiant or updown
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub routing: weft_routing::Algorithm,
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
    pub node: Option<String>,
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
