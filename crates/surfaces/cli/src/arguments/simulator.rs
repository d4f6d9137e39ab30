//! The arguments of the commands of `weft sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

const SWARM_EXAMPLES: &str = "\
Examples:
  weft sim swarm --seeds 1000
  weft sim swarm --seed 17            # one run again, with its trace if it fails
  weft sim swarm --seeds 50 --json | jq .violations

A seed that breaks a promise is told with the command that runs it again; the exit status is 1.";

/// The examples below the help of `weft sim`.
pub const SIM_EXAMPLES: &str = "\
Examples:
  weft sim run torus.toml                       prints a line for each offered load
  weft sim run torus.toml --html report.html    writes a page with plots, too
  weft sim run torus.toml --json - | jq .points

The file names a topology, its routing, traffic and faults: see docs/simulator.md. The same file and
seed give the same output, to the byte, on any machine.";

/// The commands of `weft sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Runs a scenario
    #[command(after_help = SIM_EXAMPLES)]
    Run(RunArguments),
    /// Lets random programs use random networks with random faults, and checks every promise
    #[command(after_help = SWARM_EXAMPLES)]
    Swarm(SwarmArguments),
}

/// Arguments of `weft sim run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The scenario, in TOML
    pub file: PathBuf,
    /// Writes the report as JSON to a file; `-` is standard output, in place of the lines
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Writes the report as a page with plots, which loads nothing
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Writes the traffic of the links over time, for `weft dash --play FILE`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Takes another seed than that of the file
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Arguments of `weft sim swarm`.
#[derive(Debug, Args)]
pub struct SwarmArguments {
    /// Runs that many seeds
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "seed")]
    pub seeds: u64,
    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "seed")]
    pub from: u64,
    /// Runs this seed alone, and tells what it did
    #[arg(long, value_name = "ONE")]
    pub seed: Option<u64>,
    /// Writes the results as JSON to standard output
    #[arg(long)]
    pub json: bool,
}
