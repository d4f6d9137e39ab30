//! `weft sim`: runs a scenario of the network simulator, and writes its report.

mod swarm;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use weft_scenario::{Point, Progress, Report, Scenario};

use crate::arguments::simulator::{RunArguments, SimCommand};
use crate::output::show;
use crate::table::Table;
use crate::text_file::{self, TOPOLOGY_BYTES_MAX};

/// Bytes of a scenario at most.
const SCENARIO_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a trace at most: those of its ten million messages.
const TRACE_BYTES_MAX: u64 = 512 << 20;

/// `weft sim`.
pub fn sim(command: &SimCommand) -> anyhow::Result<ExitCode> {
    match command {
        SimCommand::Run(arguments) => run(arguments),
        SimCommand::Swarm(arguments) => swarm::swarm(arguments),
    }
}

fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let file = &arguments.file;
    let text = text_file::read(file, SCENARIO_BYTES_MAX)
        .with_context(|| format!("{} cannot be read; name a scenario", file.display()))?;
    // Files that a scenario names lie beside it.
    let directory = file.parent().unwrap_or(Path::new("."));
    let mut scenario = Scenario::parse(&text, |path| read(&directory.join(path)))
        .with_context(|| format!("{} is no scenario", file.display()))?;
    text_file::tell_left_out(Path::new(&scenario.topology), &scenario.left_out);
    if let Some(seed) = arguments.seed {
        scenario.set_seed(seed);
    }
    if arguments.record.is_some() {
        scenario.record();
    }
    let bar = bar();
    let report = Report::run(&scenario, &mut |progress| tell(&bar, progress));
    bar.finish_and_clear();
    let report = report.with_context(|| format!("{} cannot be run", file.display()))?;
    if let Some(html) = &arguments.html {
        write(html, &report.html())?;
    }
    if let Some(file) = &arguments.record {
        write(file, &recorded(&report))?;
    }
    match &arguments.json {
        Some(json) if json == Path::new("-") => show!("{}", report.json()),
        Some(json) => {
            write(json, &report.json())?;
            show!("{}", lines(&report));
        }
        None => show!("{}", lines(&report)),
    }
    Ok(ExitCode::SUCCESS)
}

/// The recordings of all runs, one after the other: a status a line, as `weft top --json` writes
/// them, with the links of the simulated network. A millisecond there is a nanosecond simulated.
fn recorded(report: &Report) -> String {
    let mut text = String::new();
    let mut began = 0_u64;
    for point in &report.points {
        let Some(recording) = &point.recording else { continue };
        let run = point.load_percent.map_or_else(String::new, |load| format!(", load {load} %"));
        let mut last = began;
        for frame in &recording.frames {
            let links = recording.links.iter().zip(&frame.is_cut);
            let links = links.map(|((from, port, to, far), cut)| (*from, *port, *to, *far, *cut));
            let wired =
                weftd::WiredStatus { nodes: recording.nodes.clone(), links: links.collect() };
            last = began + frame.at_ns;
            let status = weftd::Status {
                node: format!("simulated {}{run}", report.topology),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                at_ms: last,
                wired: Some(wired),
                ..weftd::Status::default()
            };
            let Ok(mut line) = serde_json::to_value(&status) else { continue };
            line["link_bytes"] = serde_json::json!(frame.bytes);
            line["stretch"] = 1_000_000.into();
            text.push_str(&line.to_string());
            text.push('\n');
        }
        // The counts of the next run begin anew.
        began = last + 1;
    }
    text
}

/// A file that a scenario names: a topology or a trace.
fn read(path: &Path) -> std::io::Result<String> {
    let is_topology =
        ["toml", "graphml", "xml"].iter().any(|end| path.extension() == Some(end.as_ref()));
    text_file::read(path, if is_topology { TOPOLOGY_BYTES_MAX } else { TRACE_BYTES_MAX })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

/// A bar on standard error; nothing is shown if that is no terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} run {pos} of {len}, {msg}");
    bar.set_style(style.expect("the template is valid"));
    bar
}

fn tell(bar: &ProgressBar, progress: Progress) {
    bar.set_length(u64::try_from(progress.runs_all).unwrap_or(u64::MAX));
    bar.set_position(u64::try_from(progress.runs).unwrap_or(u64::MAX));
    let Progress { delivered, now_ns, .. } = progress;
    bar.set_message(format!("{delivered} messages delivered, {} us simulated", now_ns / 1_000));
}

/// The report in lines, one for each run.
fn lines(report: &Report) -> String {
    let mut table = Table::new([
        "load %",
        "MB/s a host",
        "median ns",
        "mean ns",
        "99 % ns",
        "most ns",
        "delivered",
        "sent again",
        "given up",
        "unfinished",
    ]);
    for point in &report.points {
        table.line(cells(point));
    }
    let title = format!(
        "{} traffic on {}: {} hosts, {} links, routing {}, seed {}",
        report.pattern, report.topology, report.hosts, report.links, report.routing, report.seed
    );
    table.section(&title) + &group_lines(report)
}

/// Lines for the groups of hosts, if there are several: one for each group in each run.
fn group_lines(report: &Report) -> String {
    let mut table = Table::new([
        "group",
        "hosts",
        "load %",
        "MB/s a host",
        "median ns",
        "99 % ns",
        "delivered",
        "given up",
        "unfinished",
    ]);
    let groups = || report.points.iter().flat_map(|point| &point.groups);
    if groups().next().is_none() {
        return String::new();
    }
    for group in groups() {
        let (latency, messages) = (&group.latency, &group.messages);
        table.line([
            group.name.clone(),
            group.hosts.to_string(),
            group.load_percent.map_or("-".to_owned(), |load| load.to_string()),
            (group.delivered_bytes_per_second / 1_000_000).to_string(),
            latency.median_ns.to_string(),
            latency.p99_ns.to_string(),
            messages.delivered.to_string(),
            messages.given_up.to_string(),
            messages.unfinished.to_string(),
        ]);
    }
    table.section("groups")
}

fn cells(point: &Point) -> [String; 10] {
    let (latency, messages) = (&point.latency, &point.messages);
    [
        point.load_percent.map_or("-".to_owned(), |load| load.to_string()),
        (point.delivered_bytes_per_second / 1_000_000).to_string(),
        latency.median_ns.to_string(),
        latency.mean_ns.to_string(),
        latency.p99_ns.to_string(),
        latency.max_ns.to_string(),
        messages.delivered.to_string(),
        messages.resent.to_string(),
        messages.given_up.to_string(),
        messages.unfinished.to_string(),
    ]
}
