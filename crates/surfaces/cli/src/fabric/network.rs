//! `weft fabric check`, `routes`, `show` and `trace`: the routes of a topology, without a fabric,
//! or those of the network that a daemon rules.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use weft_routing::check::{Report, check_from};
use weft_routing::multicast::BROADCAST;
use weft_routing::tables::{Entry, Side, Stage, Tables};
use weft_routing::{Algorithm, Heading, Route, Routes};
use weft_topology::difference::{Difference, differences};
use weft_topology::file::{self, Described};
use weft_topology::{End, Graph, Kind, Shape, Vertex, export, graphml};

use super::link;
use super::running::{self, Part};
use crate::arguments::network::{
    CheckArguments, RoutesArguments, RoutingArguments, ShowArguments, TopologyArguments,
    TraceArguments,
};
use crate::configuration::Configuration;
use crate::output::{show, show_line};
use crate::table::Table;
use crate::text_file::{self, TOPOLOGY_BYTES_MAX};

/// The graph that `spec` names: a form with its sizes, or a file.
fn graph_of(spec: &str) -> anyhow::Result<Described> {
    let named = spec.parse::<Shape>();
    let path = Path::new(spec);
    let is_meant =
        ["toml", "graphml", "xml"].iter().any(|end| path.extension() == Some(end.as_ref()));
    if named.is_err() && (is_meant || path.is_file()) {
        return read(path);
    }
    Ok(Described { graph: named?.graph(None)?, has_ports: true, left_out: Vec::new() })
}

/// Reads a topology file; its name says in which format it is.
fn read(path: &Path) -> anyhow::Result<Described> {
    let named = || path.display().to_string();
    let text = text_file::read(path, TOPOLOGY_BYTES_MAX).with_context(named)?;
    let described = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => file::parse(&text).with_context(named)?,
        Some("graphml" | "xml") => graphml::parse(&text).with_context(named)?,
        _ => {
            let graph = Shape::from_lines(&text).and_then(|shape| shape.graph(None));
            let graph = graph.with_context(named)?;
            Described { graph, has_ports: false, left_out: Vec::new() }
        }
    };
    text_file::tell_left_out(path, &described.left_out);
    Ok(described)
}

/// The host or switch with this name.
///
/// # Errors
/// There is none.
pub fn vertex(graph: &Graph, name: &str) -> anyhow::Result<Vertex> {
    graph.find(name).with_context(|| {
        format!(
            "there is no host or switch {name:?}; they are {} to {}",
            graph.name(0),
            graph.name(graph.vertices().saturating_sub(1))
        )
    })
}

fn host(graph: &Graph, name: &str) -> anyhow::Result<Vertex> {
    let found = vertex(graph, name)?;
    ensure!(graph.kind(found) == Some(Kind::Host), "{name} is a switch; name a host");
    Ok(found)
}

/// The topology with its failed links cut.
fn topology(spec: &str, fail: &[String]) -> anyhow::Result<Described> {
    let mut described = graph_of(spec)?;
    let graph = &mut described.graph;
    for link in fail {
        match graph.find(link) {
            Some(failed) => graph.set_isolated(failed, true),
            None => {
                let (node, port) = link::find(graph, link)?;
                graph.set_cut(node, port, true);
            }
        }
    }
    Ok(described)
}

/// A network, and its routes.
struct Subject {
    described: Described,
    /// The routes of each part into which cut links divide the network, or those of all of it.
    parts: Vec<Part>,
    /// Seconds that it took to compute them; `None` if they are those of a running network.
    seconds: Option<f64>,
}

impl Subject {
    fn of(
        arguments: &RoutingArguments,
        configuration: impl Fn() -> anyhow::Result<Configuration>,
    ) -> anyhow::Result<Self> {
        let TopologyArguments { topology: spec, fail, daemon } = &arguments.network;
        let Some(spec) = spec else {
            let (_, network) = running::ask(daemon.node.as_deref(), &configuration()?)?;
            let graph = running::graph(&network)?;
            let parts = running::parts(&network, &graph)?;
            let described = Described { graph, has_ports: true, left_out: Vec::new() };
            return Ok(Self { described, parts, seconds: None });
        };
        let described = topology(spec, fail)?;
        let algorithm = arguments.routing.unwrap_or(Algorithm::Auto);
        let (routes, seconds) = routes_of(&described.graph, algorithm)?;
        let nodes = (0..described.graph.vertices()).collect();
        Ok(Self { described, parts: vec![Part { nodes, routes }], seconds: Some(seconds) })
    }

    /// The routes at a host or switch.
    fn routes_at(&self, at: Vertex) -> anyhow::Result<&Routes> {
        let part = self.parts.iter().find(|part| part.nodes.binary_search(&at).is_ok());
        Ok(&part.context("it is in no part of the network")?.routes)
    }
}

/// The routes of a network, and the seconds that they took.
fn routes_of(graph: &Graph, algorithm: Algorithm) -> anyhow::Result<(Routes, f64)> {
    let start = Instant::now();
    let routes = if graph.links().any(|(_, _, is_cut)| is_cut) {
        // As after a failure: numbers and unhurt routes are those of the whole network.
        let mut whole = graph.clone();
        let links: Vec<End> = whole.links().map(|(end, _, _)| end).collect();
        for (vertex, port) in links {
            whole.set_cut(vertex, port, false);
        }
        let mut routes = Routes::compute(&whole, algorithm)?.recompute(graph)?;
        routes.tables_mut().settle();
        routes
    } else {
        Routes::compute(graph, algorithm)?
    };
    Ok((routes, start.elapsed().as_secs_f64()))
}

/// The most memory that this process had at a time, in bytes.
fn memory_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

/// `weft fabric check`.
pub fn check(
    arguments: &CheckArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    let subject = Subject::of(&arguments.routing, configuration)?;
    let Described { graph, has_ports, .. } = &subject.described;
    let found = match &arguments.expect {
        None => Vec::new(),
        Some(path) => {
            let expected = read(path)?;
            differences(&expected.graph, graph, *has_ports && expected.has_ports)
        }
    };
    let mut is_well = found.is_empty();
    let mut values = Vec::new();
    for Part { nodes, routes } in &subject.parts {
        let start = Instant::now();
        let report = check_from(graph, routes, |host| nodes.binary_search(&host).is_ok());
        // Each part of a running network has tables of its own.
        let part = (subject.parts.len() > 1).then_some(nodes.as_slice());
        let seconds = (subject.seconds, start.elapsed().as_secs_f64());
        is_well &= report.is_sound();
        if arguments.json {
            values.push(check_json(graph, routes, part, &report, &found, seconds));
        } else {
            show!("{}", check_text(graph, routes, part, &report, &found, seconds));
        }
    }
    match values.as_slice() {
        [] => {}
        [one] => show_line!("{}", serde_json::to_string_pretty(one)?),
        // A network in parts, whose tables differ.
        several => show_line!("{}", serde_json::to_string_pretty(several)?),
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_json(
    graph: &Graph,
    routes: &Routes,
    part: Option<&[Vertex]>,
    report: &Report,
    found: &[Difference],
    (computed, checked): (Option<f64>, f64),
) -> serde_json::Value {
    let pairs: Vec<_> = (report.examples.iter())
        .map(|(from, to)| json!({ "from": graph.name(*from), "to": graph.name(*to) }))
        .collect();
    let parts: Vec<_> = report.parts.iter().map(Vec::len).collect();
    let part = part.map(|nodes| nodes.iter().map(|node| graph.name(*node)).collect::<Vec<_>>());
    json!({
        "part": part,
        "sound": report.is_sound(),
        "routing": routes.algorithm().to_string(),
        "hosts": report.hosts,
        "switches": u64::from(graph.vertices()) - report.hosts,
        "links": graph.links().count(),
        "cut": graph.links().filter(|(_, _, is_cut)| *is_cut).count(),
        "segments": routes.tables().numbering().segments(),
        "virtual_channels": report.vcs,
        "routed_pairs": report.routed,
        "unrouted_pairs": report.unrouted,
        "unrouted_examples": pairs,
        "parts": parts,
        "hops": report.hops,
        "hops_max": report.hops_max,
        "dependencies": report.dependencies,
        "extended_dependencies": report.is_extended,
        "cycle": report.cycle.as_ref().map(|cycle| {
            cycle.iter().map(|channel| json!({
                "from": graph.name(channel.from),
                "port": channel.port,
                "to": graph.name(channel.to),
                "vc": channel.vc,
            })).collect::<Vec<_>>()
        }),
        "broadcast": report.broadcast,
        "differences": found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "table_bytes": routes.tables().bytes(),
        "compute_seconds": computed,
        "check_seconds": checked,
        "memory_peak_bytes": memory_peak(),
    })
}

/// A ratio with two digits after the point, of numbers that are small enough to be exact.
fn mean(sum: u64, count: u64) -> String {
    let hundredths = (u128::from(sum) * 100).checked_div(count.into()).unwrap_or(0);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn check_text(
    graph: &Graph,
    routes: &Routes,
    part: Option<&[Vertex]>,
    report: &Report,
    found: &[Difference],
    (computed, checked): (Option<f64>, f64),
) -> String {
    let tables = routes.tables();
    let cut = graph.links().filter(|(_, _, is_cut)| *is_cut).count();
    let mut table = Table::plain();
    let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
    let switches = u64::from(graph.vertices()) - report.hosts;
    if let Some(part) = part {
        let names: Vec<_> = part.iter().take(4).map(|node| graph.name(*node)).collect();
        let more = part.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        line("part", format!("the tables of {}{more}", names.join(", ")));
    }
    line("network", format!("{} hosts, {switches} switches", report.hosts));
    line("links", format!("{}, of which {cut} are cut", graph.links().count()));
    let numbering = tables.numbering();
    let segments = format!("{} of {} places", numbering.segments(), numbering.width());
    line("segments", segments);
    line("routing", format!("{}, {} virtual channels", routes.algorithm(), report.vcs));
    line("routes", format!("{} pairs of hosts, {} without one", report.routed, report.unrouted));
    let hops = mean(report.hops, report.routed);
    line("hops", format!("{hops} on average, {} at most", report.hops_max));
    let extended = if report.is_extended { ", and those over adaptive channels" } else { "" };
    line("dependencies", format!("{} between channels{extended}", report.dependencies));
    let circle = if report.cycle.is_some() { "possible, see below" } else { "none" };
    line("deadlock", circle.to_owned());
    line("broadcast", format!("group {BROADCAST} reaches {} hosts", report.broadcast));
    line("tables", format!("{:.1} MB", tables.bytes() as f64 / 1e6));
    let computed = computed.map(|seconds| format!("{seconds:.2} s to compute, "));
    line("time", format!("{}{checked:.2} s to check", computed.unwrap_or_default()));
    if let Some(peak) = memory_peak() {
        line("memory", format!("{:.0} MB at most", peak as f64 / 1e6));
    }
    let mut text = table.render();
    if report.parts.len() > 1 {
        let sizes: Vec<_> =
            report.parts.iter().take(10).map(|part| part.len().to_string()).collect();
        text.push_str(&format!(
            "partition: {} parts, of {} hosts; mend a link between them\n",
            report.parts.len(),
            sizes.join(", ")
        ));
    }
    for (from, to) in &report.examples {
        text.push_str(&format!("no route: {} to {}\n", graph.name(*from), graph.name(*to)));
    }
    for channel in report.cycle.iter().flatten() {
        let (from, to) = (graph.name(channel.from), graph.name(channel.to));
        text.push_str(&format!(
            "circle: {from}:{} to {to}, channel {}\n",
            channel.port, channel.vc
        ));
    }
    for difference in found {
        text.push_str(&format!("{difference}\n"));
    }
    text
}

/// `weft fabric routes`.
pub fn routes(
    arguments: &RoutesArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    let subject = Subject::of(&arguments.routing, configuration)?;
    let graph = &subject.described.graph;
    if let Some(name) = &arguments.at {
        let at = vertex(graph, name)?;
        let tables = subject.routes_at(at)?.tables();
        if arguments.json {
            let value = tables_json(graph, tables, at);
            show_line!("{}", serde_json::to_string_pretty(&value)?);
        } else {
            show!("{}", tables_text(graph, tables, at));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let routes = &subject.parts.first().context("the network has no hosts")?.routes;
    let (tables, seconds) = (routes.tables(), subject.seconds);
    match arguments.json {
        true => {
            let value = json!({
                "routing": routes.algorithm().to_string(),
                "segments": tables.numbering().segments(),
                "places": tables.numbering().width(),
                "virtual_channels": routes.vcs(),
                "table_bytes": tables.bytes(),
                "compute_seconds": seconds,
                "memory_peak_bytes": memory_peak(),
            });
            show_line!("{}", serde_json::to_string_pretty(&value)?);
        }
        false => {
            let (segments, places) = (tables.numbering().segments(), tables.numbering().width());
            let mut table = Table::plain();
            let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
            line("segments", format!("{segments} of {places} places"));
            line("routing", format!("{}, {} virtual channels", routes.algorithm(), routes.vcs()));
            line("tables", format!("{:.1} MB", tables.bytes() as f64 / 1e6));
            if let Some(seconds) = seconds {
                line("time", format!("{seconds:.2} s"));
            }
            if let Some(peak) = memory_peak() {
                line("memory", format!("{:.0} MB at most", peak as f64 / 1e6));
            }
            show!("{}name a host or switch to see its tables\n", table.render());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The layers that a network has, by name.
fn stages(tables: &Tables) -> Vec<(&'static str, Stage)> {
    let all = [
        ("base", Stage::Base),
        ("plane A", Stage::Plane(Side::A)),
        ("plane B", Stage::Plane(Side::B)),
    ];
    all.into_iter().filter(|(_, stage)| tables.layer(*stage).is_some()).collect()
}

/// Ranges of targets with the same entry: table, first, last, entry.
fn ranges(tables: &Tables, stage: Stage, at: Vertex) -> Vec<(&'static str, usize, usize, Entry)> {
    let Some(layer) = tables.layer(stage) else { return Vec::new() };
    let mut ranges: Vec<(&'static str, usize, usize, Entry)> = Vec::new();
    for (name, row) in [("global", layer.global(at)), ("local", layer.local(at))] {
        for (place, entry) in row.iter().enumerate() {
            match ranges.last_mut() {
                Some((table, _, last, same))
                    if *table == name && same == entry && *last + 1 == place =>
                {
                    *last = place;
                }
                _ => ranges.push((name, place, place, *entry)),
            }
        }
    }
    ranges.retain(|(_, _, _, entry)| entry.choice().is_some());
    ranges
}

fn tables_json(graph: &Graph, tables: &Tables, at: Vertex) -> serde_json::Value {
    let mut layers = Vec::new();
    for (name, stage) in stages(tables) {
        let entries: Vec<_> = (ranges(tables, stage, at).into_iter())
            .filter_map(|(table, first, last, entry)| {
                let choice = entry.choice()?;
                Some(json!({
                    "table": table, "first": first, "last": last,
                    "port": choice.port, "vc": choice.vc,
                }))
            })
            .collect();
        layers.push(json!({ "layer": name, "entries": entries }));
    }
    let broadcast: Vec<_> = tables.multicast().forward(BROADCAST, at, None).collect();
    json!({
        "node": graph.name(at),
        "number": tables.numbering().number(at),
        "layers": layers,
        "broadcast_ports": broadcast,
    })
}

fn tables_text(graph: &Graph, tables: &Tables, at: Vertex) -> String {
    let mut table = Table::new(["layer", "table", "entries", "port", "vc", "leads to"]);
    for (name, stage) in stages(tables) {
        for (kind, first, last, entry) in ranges(tables, stage, at) {
            let Some(choice) = entry.choice() else { continue };
            let entries =
                if first == last { first.to_string() } else { format!("{first} to {last}") };
            let next = graph.far(at, choice.port).map(|(next, _)| graph.name(next));
            table.line([
                name.to_owned(),
                kind.to_owned(),
                entries,
                choice.port.to_string(),
                choice.vc.to_string(),
                next.unwrap_or_else(|| "a cut link".to_owned()),
            ]);
        }
    }
    let number = tables.numbering().number(at);
    let number = number.map_or_else(
        || "a switch".to_owned(),
        |number| format!("number {number}: segment {}, place {}", number / 1_024, number % 1_024),
    );
    let ports: Vec<_> =
        tables.multicast().forward(BROADCAST, at, None).map(|port| port.to_string()).collect();
    format!(
        "{}{}",
        table.section(&format!("{}, {number}", graph.name(at))),
        format_args!("broadcast goes on at ports {}\n", ports.join(", "))
    )
}

/// `weft fabric show`.
pub fn show(
    arguments: &ShowArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    let TopologyArguments { topology: spec, fail, daemon } = &arguments.network;
    let (graph, network) = match spec {
        Some(spec) => (topology(spec, fail)?.graph, None),
        None => {
            let (_, network) = running::ask(daemon.node.as_deref(), &configuration()?)?;
            (running::graph(&network)?, Some(network))
        }
    };
    if arguments.graphviz {
        show!("{}", export::graphviz(&graph));
    } else if arguments.json {
        let mut value = export::json(&graph);
        if let Some(network) = &network {
            value["managers"] = serde_json::to_value(&network.managers)?;
            value["nodes"] = running::nodes_json(network);
        }
        show_line!("{}", serde_json::to_string_pretty(&value)?);
    } else if arguments.toml {
        show!("{}", export::toml(&graph));
    } else {
        let mut table = Table::new(["node", "kind", "port", "leads to", "state"]);
        for vertex in 0..graph.vertices() {
            for port in 0..graph.ports(vertex) {
                let Some((far, far_port)) = graph.wired(vertex, port) else { continue };
                table.line([
                    graph.name(vertex),
                    match graph.kind(vertex) {
                        Some(Kind::Switch) => "switch".to_owned(),
                        _ => "host".to_owned(),
                    },
                    port.to_string(),
                    format!("{}:{far_port}", graph.name(far)),
                    if graph.is_cut(vertex, port) { "cut" } else { "up" }.to_owned(),
                ]);
            }
        }
        show!("{}", table.render());
        if let Some(network) = &network {
            show!("{}", running::text(network));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `weft fabric trace`.
pub fn trace(
    arguments: &TraceArguments,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    let subject = Subject::of(&arguments.routing, configuration)?;
    let graph = &subject.described.graph;
    let (from, to) = (host(graph, &arguments.from)?, host(graph, &arguments.to)?);
    let via = arguments.via.as_ref().map(|name| host(graph, name)).transpose()?;
    let routes = subject.routes_at(from)?;
    let heading = Heading { from, to, via };
    let (mut at, mut arrived, mut choices) = (from, None, Vec::new());
    let mut steps = Vec::new();
    while at != to {
        routes.next(at, arrived, &heading, &mut choices);
        let Some(first) = choices.first().copied() else {
            bail!(
                "no route leads on from {} to {}; `weft fabric check` shows the parts of the \
                 network",
                graph.name(at),
                graph.name(to)
            );
        };
        let next = graph.far(at, first.port);
        let (next, port) = next.context("a route leads over a link that is cut")?;
        ensure!(steps.len() <= graph.vertices() as usize * 4, "the route comes back to itself");
        steps.push((at, first, choices.len() - 1, next));
        (at, arrived) = (next, Some((port, first.vc)));
    }
    if arguments.json {
        let steps: Vec<_> = (steps.iter())
            .map(|(at, choice, others, next)| {
                json!({
                    "from": graph.name(*at), "port": choice.port, "vc": choice.vc,
                    "to": graph.name(*next), "other_choices": others,
                })
            })
            .collect();
        show_line!("{}", serde_json::to_string_pretty(&steps)?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["hop", "from", "port", "vc", "to", "other choices"]);
    for (number, (at, choice, others, next)) in (1..).zip(&steps) {
        table.line([
            format!("{number}"),
            graph.name(*at),
            choice.port.to_string(),
            choice.vc.to_string(),
            graph.name(*next),
            others.to_string(),
        ]);
    }
    show!("{}", table.render());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use weft_routing::tables::Target;

    use super::*;

    fn described(spec: &str, fail: &[&str]) -> anyhow::Result<Described> {
        let fail: Vec<_> = fail.iter().map(|link| (*link).to_owned()).collect();
        topology(spec, &fail)
    }

    #[test]
    fn links_and_nodes_fail_by_name() {
        let cut = |fail: &[&str]| {
            let graph = described("torus:4x4", fail).expect("a network").graph;
            graph.links().filter(|(_, _, is_cut)| *is_cut).count()
        };
        assert_eq!((cut(&[]), cut(&["n0-n1"]), cut(&["n0", "n1:0"])), (0, 1, 5));
        for wrong in ["n16", "n0:4", "n0:x", "x:0"] {
            assert!(described("torus:4x4", &[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_read_by_their_kind() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let graph = described("mesh:3x2", &[]).expect("a network").graph;
        fs::write(path("a.toml"), export::toml(&graph)).expect("a file");
        fs::write(path("a.txt"), "n0 n1\n1 2\n").expect("a file");
        fs::write(path("bad.toml"), "hosts = [\"a\",\n \"a\"]\n").expect("a file");
        let read = |name: &str| graph_of(&path(name).display().to_string());
        assert_eq!(read("a.toml").expect("a graph").graph.links().count(), 7);
        assert_eq!(read("a.txt").expect("a graph").graph.links().count(), 2);
        let error = format!("{:#}", read("bad.toml").expect_err("a name is there twice"));
        assert!(error.contains("bad.toml: line 2"), "{error}");
    }

    #[test]
    fn tables_are_told_in_ranges() {
        let graph = described("torus:8", &[]).expect("a network").graph;
        let (routes, _) = routes_of(&graph, Algorithm::Auto).expect("routes");
        let told = tables_json(&graph, routes.tables(), 0);
        let entries = told["layers"][0]["entries"].as_array().expect("entries");
        // Up to the opposite host, which is as far either way, then down, round the end.
        assert_eq!(
            entries[0],
            json!({ "table": "local", "first": 1, "last": 4, "port": 0, "vc": 1 })
        );
        assert_eq!(
            entries[1],
            json!({ "table": "local", "first": 5, "last": 7, "port": 1, "vc": 0 })
        );
        assert_eq!(mean(7, 2), "3.50");
        assert_eq!(routes.tables().target(0, 4), Some(Target::Place(4)));
    }
}
