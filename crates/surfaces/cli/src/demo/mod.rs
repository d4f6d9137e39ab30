//! `weft demo`: programs that nobody changed, once over kernel TCP and once over weft.
//!
//! Every pair of programs that is installed runs for real, in a directory of its own, with a node
//! daemon of its own; both are gone afterwards. Figures come from the programs themselves, the
//! bytes over the fabric from weft's counters.

mod echo;
mod machine;
mod process;
mod scenarios;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use weft_wire::stats::{self, Stats, TcpReason};

use crate::arguments::DemoArguments;
use crate::output::show_line;
use crate::run::preload;
use crate::run::statistics::Block;
use crate::table::{Table, bytes};
use crate::terminal;
use machine::{Kind, Machine};
use scenarios::{Better, Measure, SCENARIOS, Scenario};

/// The packages that people install to see more.
const ADVICE: &str = "apt install python3 curl redis iperf3 sockperf";

/// A row below this has its reason told.
const NEAR_ONE: f64 = 1.5;

/// How the programs of a run are connected.
#[derive(Debug)]
pub enum Way {
    /// As always.
    Tcp,
    /// Under `weft run`.
    Weft {
        /// The counters of both programs.
        block: Block,
        /// The demonstration's own daemon.
        socket: PathBuf,
    },
}

/// Where and how a scenario runs.
#[derive(Debug)]
pub struct Stage {
    /// This program.
    pub weft: PathBuf,
    /// A directory for files.
    pub directory: PathBuf,
    /// How the programs are connected.
    pub way: Way,
}

impl Stage {
    /// A call of `program`, under weft where that is the way.
    pub fn command(&self, program: &str) -> Command {
        let mut command = match &self.way {
            Way::Tcp => Command::new(program),
            Way::Weft { block, socket } => {
                let mut command = Command::new(&self.weft);
                command.args(["run", "--", program]);
                command.env("WEFT_SOCKET", socket).env("WEFT_STATS", block.path());
                command
            }
        };
        command.current_dir(&self.directory);
        command
    }
}

/// The outcome of one scenario.
type Pair = (Vec<Measure>, Vec<Measure>, Stats);

/// `weft demo`.
pub fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    if let Some(part) = arguments.echo {
        return echo::part(part, arguments.port.context("--echo needs --port")?);
    }
    let scenarios: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|scenario| scenario.needs.iter().all(|program| process::is_there(program)))
        .collect();
    let missing = SCENARIOS.len() - scenarios.len();
    let directory = tempfile::Builder::new()
        .prefix("weft-demo-")
        .tempdir()
        .context("no temporary directory can be made; set TMPDIR to a place with room")?;
    let weft = std::env::current_exe().context("this program's own file is unknown")?;
    preload::find()?;
    let socket = directory.path().join("demo.sock");

    let machine = Machine::look();
    let mut table = table();
    let mut notes = Vec::new();
    let (mut failed, mut carried_count) = (0, 0);
    for (place, scenario) in scenarios.iter().enumerate() {
        let progress = format!("[{}/{}] {}", place + 1, scenarios.len(), scenario.name);
        match compare(scenario, &weft, directory.path().to_owned(), socket.clone(), &progress) {
            Ok(pair) => {
                let (tcp, fabric, stats) = &pair;
                let over_fabric = stats.counter(stats::BYTES_FABRIC_SENT);
                let has_carried = lines(&mut table, scenario, [tcp, fabric], over_fabric);
                carried_count += usize::from(has_carried);
                notes.extend(note(&machine, scenario, &pair));
            }
            Err(error) => {
                failed += 1;
                eprintln!("  {} failed: {error:#}", scenario.name);
                table.line([scenario.name.to_owned(), "failed, see above".to_owned()]);
            }
        }
    }
    if weftd::client::answers(&socket)
        && let Err(error) = weftd::client::stop(&socket)
    {
        eprintln!("weft: warning: the demonstration's daemon does not stop: {error:#}");
    }
    show_line!("\n{}", table.render());
    show_line!("{machine}");
    for note in notes {
        show_line!("{}", terminal::paragraph(&note).trim_end());
    }
    if missing > 0 {
        show_line!("{missing} more with other programs: {ADVICE}");
    }
    if carried_count == 0 {
        show_line!(
            "no byte went over the fabric; `weft run --stats -- PROGRAM` says why, `weft info` \
             what this machine offers"
        );
    }
    Ok(if failed == 0 && carried_count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table() -> Table {
    Table::new(["program", "measured", "kernel tcp", "weft", "ratio", "on fabric"])
}

/// Runs a scenario both ways.
fn compare(
    scenario: &Scenario,
    weft: &std::path::Path,
    directory: PathBuf,
    socket: PathBuf,
    progress: &str,
) -> anyhow::Result<Pair> {
    eprintln!("{progress}: over kernel tcp");
    let mut stage = Stage { weft: weft.to_owned(), directory, way: Way::Tcp };
    let tcp = (scenario.run)(&stage).context("over kernel tcp")?;
    eprintln!("{progress}: over weft");
    stage.way = Way::Weft { block: Block::new()?, socket };
    let fabric = (scenario.run)(&stage).context("over weft")?;
    let Way::Weft { block, .. } = &stage.way else { unreachable!("it was set two lines above") };
    Ok((tcp, fabric, block.read()?))
}

/// How many times better the second figure is.
fn ratio(before: &Measure, after: &Measure) -> f64 {
    match before.better {
        Better::Higher => after.value / before.value,
        Better::Lower => before.value / after.value,
    }
}

/// Adds the lines of a scenario; true when bytes went over the fabric.
fn lines(
    table: &mut Table,
    scenario: &Scenario,
    [tcp, fabric]: [&[Measure]; 2],
    over_fabric: u64,
) -> bool {
    for (place, (before, after)) in tcp.iter().zip(fabric).enumerate() {
        table.line([
            scenario.name.to_owned(),
            before.what.to_owned(),
            format!("{} {}", shown(before.value), before.unit),
            format!("{} {}", shown(after.value), after.unit),
            format!("{:.1} x", ratio(before, after)),
            if place == 0 { bytes(over_fabric) } else { String::new() },
        ]);
    }
    over_fabric > 0
}

/// Why a scenario gained little, or did not use the fabric.
fn note(machine: &Machine, scenario: &Scenario, (tcp, fabric, stats): &Pair) -> Option<String> {
    let (before, after) = tcp
        .iter()
        .zip(fabric)
        .min_by(|one, other| ratio(one.0, one.1).total_cmp(&ratio(other.0, other.1)))?;
    let why = if stats.counter(stats::CONNECTIONS_FABRIC) == 0 {
        let main = TcpReason::ALL.into_iter().max_by_key(|reason| stats.reason(*reason))?;
        format!("stayed on TCP: {}", main.text())
    } else if ratio(before, after) < NEAR_ONE {
        let kind = if before.is_stream() { Kind::Stream } else { Kind::Turns };
        machine.limit(kind, after.gigabytes().unwrap_or(after.value))
    } else {
        return None;
    };
    Some(format!("{}: {why}", scenario.name))
}

fn shown(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of a machine on which each is as long as one has seen them.
    fn figures(scenario: &Scenario) -> Vec<(Measure, Measure)> {
        let (higher, lower) = (Better::Higher, Better::Lower);
        let figures = match scenario.name {
            "http.server, curl" => vec![("download", "MB/s", higher, [5210.0, 12345.0])],
            "redis" => vec![
                ("SET", "/s", higher, [123_456.0, 654_321.0]),
                ("GET", "/s", higher, [123_456.0, 1_654_321.0]),
            ],
            "iperf3" => vec![("one stream", "GB/s", higher, [5.21, 38.7])],
            "sockperf" => vec![("64 B one way", "us", lower, [102.0, 0.11])],
            _ => vec![("64 B round trip", "us", lower, [104.0, 0.31])],
        };
        let figure = |(what, unit, better, values): (_, _, _, [f64; 2])| {
            let [before, after] = values.map(|value| Measure { what, value, unit, better });
            (before, after)
        };
        figures.into_iter().map(figure).collect()
    }

    #[test]
    fn a_row_takes_one_line_of_80_columns() {
        let mut table = table();
        let mut count = 1;
        for scenario in &SCENARIOS {
            let (tcp, fabric): (Vec<_>, Vec<_>) = figures(scenario).into_iter().unzip();
            count += tcp.len();
            assert!(lines(&mut table, scenario, [&tcp, &fabric], 9_999_000_000));
        }
        let told = table.within(80);
        assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
        assert_eq!(told.lines().count(), count, "{told}");
    }
}
