//! The tables of `weft top`: what stands in their cells, and by what they are sorted.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use weftd::{
    ConnectionStatus, DeviceStatus, EndpointStatus, OnTcpStatus, ProcessStatus, Status, Users,
};

use super::Pair;
use crate::table::bytes;

/// A table to choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    Connections,
    OnTcp,
    Programs,
    Endpoints,
    Devices,
    Nodes,
    Links,
    Services,
    Jobs,
}

impl View {
    pub const ALL: [Self; 9] = [
        Self::Connections,
        Self::OnTcp,
        Self::Programs,
        Self::Endpoints,
        Self::Devices,
        Self::Nodes,
        Self::Links,
        Self::Services,
        Self::Jobs,
    ];

    /// Its name, which begins with its key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "1 fabric",
            Self::OnTcp => "2 tcp",
            Self::Programs => "3 programs",
            Self::Endpoints => "4 endpoints",
            Self::Devices => "5 devices",
            Self::Nodes => "6 nodes",
            Self::Links => "7 links",
            Self::Services => "8 daemon",
            Self::Jobs => "9 jobs",
        }
    }
}

/// A cell: its text, and the number by which it sorts, if it is one.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    pub text: String,
    pub number: Option<f64>,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    #[allow(clippy::cast_precision_loss, reason = "for sorting")]
    fn count(count: u64) -> Self {
        Self { text: count.to_string(), number: Some(count as f64) }
    }

    #[allow(clippy::cast_precision_loss, reason = "for sorting")]
    fn bytes(count: u64) -> Self {
        Self { text: bytes(count), number: Some(count as f64) }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is no less than 0"
    )]
    fn rate(rate: f64) -> Self {
        Self { text: format!("{}/s", bytes(rate as u64)), number: Some(rate) }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(own), Some(others)) => others.total_cmp(&own),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A line: its cells, and all there is to say of it.
#[derive(Clone, Debug)]
pub struct Line {
    pub cells: Vec<Cell>,
    pub detail: Vec<String>,
}

/// A table.
pub struct Sheet {
    pub columns: &'static [&'static str],
    /// The column by which it is sorted at first.
    pub first: usize,
    pub lines: Vec<Line>,
}

impl Sheet {
    /// The table of a view.
    pub fn of(view: View, pair: &Pair<'_>, users: &Users) -> Self {
        match view {
            View::Connections => connections(pair),
            View::OnTcp => on_tcp(pair.now),
            View::Programs => programs(pair, users),
            View::Endpoints => endpoints(pair),
            View::Devices => devices(pair),
            View::Nodes => nodes(pair.now),
            View::Links => links(pair.now),
            View::Services => services(pair.now),
            View::Jobs => jobs(pair),
        }
    }

    /// Leaves the lines that have `wanted` in a cell, sorted by a column.
    pub fn arrange(&mut self, wanted: &str, column: usize, reversed: bool) {
        let wanted = wanted.to_lowercase();
        let has =
            |line: &Line| line.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted));
        self.lines.retain(has);
        let column = column.min(self.columns.len() - 1);
        self.lines.sort_by(|one, other| one.cells[column].order(&other.cells[column]));
        if reversed {
            self.lines.reverse();
        }
    }
}

fn name(status: &Status, pid: u32) -> String {
    let mut known = status.processes.iter().chain(&status.ended);
    let known = known.find(|process| process.pid == pid);
    known.map_or_else(|| pid.to_string(), |process| format!("{} {pid}", process.name))
}

fn connections(pair: &Pair<'_>) -> Sheet {
    let line = |one: &ConnectionStatus| {
        let same = |status: &Status| {
            let is_it = |other: &&ConnectionStatus| {
                (&other.client, &other.server, other.client_pid)
                    == (&one.client, &one.server, one.client_pid)
            };
            let found = status.connections.iter().find(is_it);
            found.map(|one| one.bytes_from_client.saturating_add(one.bytes_from_server))
        };
        let (client, server) = (name(pair.now, one.client_pid), name(pair.now, one.server_pid));
        Line {
            cells: vec![
                Cell::text(&one.client),
                Cell::text(&client),
                Cell::text(&one.server),
                Cell::text(&server),
                Cell::rate(pair.rate(same)),
                Cell::bytes(one.bytes_from_client.saturating_add(one.bytes_from_server)),
            ],
            detail: vec![
                format!("client {} of {client}: sent {}", one.client, bytes(one.bytes_from_client)),
                format!("server {} of {server}: sent {}", one.server, bytes(one.bytes_from_server)),
                "medium: shared memory of this host".to_owned(),
            ],
        }
    };
    Sheet {
        columns: &["client", "program", "server", "program", "rate", "bytes"],
        first: 4,
        lines: pair.now.connections.iter().map(line).collect(),
    }
}

fn on_tcp(status: &Status) -> Sheet {
    let programs = status.processes.iter().chain(&status.ended);
    let all = programs.flat_map(|program| program.on_tcp.iter().map(move |one| (program, one)));
    let line = |(program, one): (&ProcessStatus, &OnTcpStatus)| {
        let (own, other) = one.addresses.clone().unwrap_or_else(|| ("-".into(), "-".into()));
        let ago = status.at_ms.saturating_sub(one.at_ms) / 1000;
        Line {
            detail: vec![
                format!("{} {}: {own} to {other}", program.name, program.pid),
                format!("It stayed on TCP {ago} s ago, because {}.", one.why),
            ],
            cells: vec![
                Cell::text(format!("{} {}", program.name, program.pid)),
                Cell::text(own),
                Cell::text(other),
                Cell { text: format!("{ago} s"), number: Some(-seconds(ago)) },
                Cell::text(&one.why),
            ],
        }
    };
    Sheet {
        columns: &["program", "own address", "other address", "ago", "because"],
        first: 3,
        lines: all.map(line).collect(),
    }
}

#[allow(clippy::cast_precision_loss, reason = "for sorting")]
fn seconds(count: u64) -> f64 {
    count as f64
}

fn programs(pair: &Pair<'_>, users: &Users) -> Sheet {
    let line = |total: &weftd::TotalStatus| {
        let streams = &total.streams;
        let same = |status: &Status| {
            let mut totals = status.totals.iter();
            let found = totals.find(|one| (&one.name, one.uid) == (&total.name, total.uid));
            found.map(|total| total.streams.fabric_sent.saturating_add(total.streams.tcp_sent))
        };
        let user = total.uid.map_or_else(|| "all".to_owned(), |uid| users.name(uid));
        let mut detail = vec![
            format!("{} of {user}: {} running", total.name, total.programs),
            format!(
                "fabric: {} ends, sent {}, received {}",
                streams.fabric,
                bytes(streams.fabric_sent),
                bytes(streams.fabric_received)
            ),
            format!(
                "tcp: {} ends, sent {}, received {}",
                streams.tcp,
                bytes(streams.tcp_sent),
                bytes(streams.tcp_received)
            ),
        ];
        let reasons = streams.reasons.iter();
        detail.extend(reasons.map(|(reason, count)| format!("on tcp: {count} {reason}")));
        detail.extend(registers(&total.registers));
        Line {
            detail,
            cells: vec![
                Cell::text(&total.name),
                Cell::text(user),
                Cell::count(total.programs),
                Cell::count(total.endpoints),
                Cell::count(streams.fabric),
                Cell::count(streams.tcp),
                Cell::rate(pair.rate(same)),
                Cell::bytes(streams.fabric_sent.saturating_add(streams.tcp_sent)),
            ],
        }
    };
    Sheet {
        columns: &["program", "user", "runs", "endp", "fabric", "tcp", "rate", "sent"],
        first: 6,
        lines: pair.now.totals.iter().map(line).collect(),
    }
}

fn registers(values: &BTreeMap<String, u64>) -> Vec<String> {
    let texts: Vec<_> = values.iter().map(|(name, value)| format!("{name} {value}")).collect();
    texts.chunks(3).map(|some| some.join(", ")).collect()
}

fn endpoints(pair: &Pair<'_>) -> Sheet {
    let line = |one: &EndpointStatus| {
        let count = |name: &str| one.registers.get(name).copied().unwrap_or(0);
        let carried = |one: &EndpointStatus| {
            let names = ["put_bytes", "get_bytes", "message_bytes_sent"];
            names
                .iter()
                .filter_map(|name| one.registers.get(*name))
                .fold(0, |all: u64, one| all.saturating_add(*one))
        };
        let same = |status: &Status| {
            let mut all = status.endpoints.iter();
            all.find(|other| (other.vpid, other.pid) == (one.vpid, one.pid)).map(carried)
        };
        let mut detail = vec![format!("endpoint {} of {}", one.vpid, name(pair.now, one.pid))];
        detail.extend(registers(&one.registers));
        Line {
            detail,
            cells: vec![
                Cell::count(one.vpid.into()),
                Cell::text(name(pair.now, one.pid)),
                Cell::count(one.peers as u64),
                Cell::count(count("messages_sent")),
                Cell::count(count("puts")),
                Cell::count(count("gets")),
                Cell::count(count("refused")),
                Cell::rate(pair.rate(same)),
            ],
        }
    };
    Sheet {
        columns: &["number", "program", "peers", "messages", "puts", "gets", "refused", "rate"],
        first: 7,
        lines: pair.now.endpoints.iter().map(line).collect(),
    }
}

fn devices(pair: &Pair<'_>) -> Sheet {
    let line = |one: &DeviceStatus| {
        let same = |of: fn(&DeviceStatus) -> u64| {
            move |status: &Status| {
                status.devices.iter().find(|other| other.node == one.node).map(of)
            }
        };
        let nowhere = one.unreachable + one.refused + one.unwanted + one.lost;
        Line {
            detail: vec![
                format!("{} of node {}, address {}", one.interface, one.node, one.mac),
                format!("sent {} packets, {}", one.sent, bytes(one.sent_bytes)),
                format!("received {} packets, {}", one.received, bytes(one.received_bytes)),
                format!(
                    "nowhere: {} unreachable, {} refused, {} unwanted, {} lost, {} filtered",
                    one.unreachable, one.refused, one.unwanted, one.lost, one.filtered
                ),
            ],
            cells: vec![
                Cell::count(one.node.into()),
                Cell::text(one.namespace.as_deref().unwrap_or("-")),
                Cell::text(&one.interface),
                Cell::count(one.peers.len() as u64),
                Cell::rate(pair.rate(same(|device| device.sent_bytes))),
                Cell::rate(pair.rate(same(|device| device.received_bytes))),
                Cell::count(nowhere),
            ],
        }
    };
    Sheet {
        columns: &["node", "namespace", "interface", "peers", "sends", "receives", "nowhere"],
        first: 4,
        lines: pair.now.devices.iter().map(line).collect(),
    }
}

fn nodes(status: &Status) -> Sheet {
    let nodes = status.fabric.iter().flat_map(|fabric| &fabric.nodes);
    let line = |node: &weftd::FabricNodeStatus| {
        let name = node.name.as_deref().unwrap_or("?");
        let way = node.way.as_ref().map_or_else(|| "-".to_owned(), |way| way.text());
        Line {
            detail: vec![
                format!("{name} at {}: {} {}", node.address, node.state, node.reason),
                format!("programs go by {way}"),
            ],
            cells: vec![
                Cell::text(node.number.map_or_else(|| "-".into(), |number| number.to_string())),
                Cell::text(name),
                Cell::text(&node.address),
                Cell::text(&node.state),
                Cell::text(node.transport.as_deref().unwrap_or("-")),
                Cell::text(way),
            ],
        }
    };
    Sheet {
        columns: &["node", "name", "address", "state", "transport", "way"],
        first: 0,
        lines: nodes.map(line).collect(),
    }
}

fn links(status: &Status) -> Sheet {
    let wired = status.wired.iter();
    let lines = wired.flat_map(|wired| {
        wired.links.iter().map(|(from, port, to, far_port, is_cut)| {
            let name = |place: &u32| {
                let place = usize::try_from(*place).unwrap_or(usize::MAX);
                wired.nodes.get(place).cloned().unwrap_or_default()
            };
            let state = if *is_cut { "cut" } else { "up" };
            Line {
                detail: vec![format!(
                    "{} port {port} to {} port {far_port}: {state}",
                    name(from),
                    name(to)
                )],
                cells: vec![
                    Cell::text(name(from)),
                    Cell::count((*port).into()),
                    Cell::text(name(to)),
                    Cell::count((*far_port).into()),
                    Cell::text(state),
                ],
            }
        })
    });
    Sheet { columns: &["from", "port", "to", "port", "state"], first: 4, lines: lines.collect() }
}

/// Jobs of `weft oshrun`, as their proxy on this host counts them.
fn jobs(pair: &Pair<'_>) -> Sheet {
    let processes = pair.now.processes.iter().chain(&pair.now.ended);
    let line = |process: &ProcessStatus| {
        let counts = process.work.get("job")?;
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        let same = |status: &Status| {
            let found = status.processes.iter().find(|one| one.pid == process.pid)?;
            found.work.get("job")?.get("processor_ms").copied()
        };
        let running = count("started").saturating_sub(count("ended"));
        let name = process.name.strip_prefix("job ").unwrap_or(&process.name);
        // Milliseconds of processors in a second are tenths of a per cent.
        let load = pair.rate(same) / 10.0;
        let state = if process.ended_ms.is_some() { "over" } else { "runs" };
        Some(Line {
            detail: vec![
                format!("{name}: a job of {} processes in all", count("processes")),
                format!(
                    "on this host {} were started, {} ended, {} of them with an error",
                    count("started"),
                    count("ended"),
                    count("failed")
                ),
                "Loads and stores of PEs in each other's memory are not counted.".to_owned(),
            ],
            cells: vec![
                Cell::text(name),
                Cell::count(process.pid.into()),
                Cell::text(state),
                Cell::count(count("processes")),
                Cell::count(running),
                Cell::count(count("ended")),
                Cell::count(count("failed")),
                Cell { text: format!("{load:.0} %"), number: Some(load) },
                Cell::count(count("processor_ms") / 1000),
            ],
        })
    };
    Sheet {
        columns: &["job", "proxy", "state", "of", "run", "ended", "failed", "load", "cpu s"],
        first: 7,
        lines: processes.filter_map(line).collect(),
    }
}

fn services(status: &Status) -> Sheet {
    let line = |one: &weftd::ServiceStatus| {
        let times = weft_metrics::Snapshot::of(one.times.clone(), one.times_sum_ns);
        let quantile = |share| {
            let micros = times.quantile(share).map_or(0, |time| time.as_micros());
            let micros = u64::try_from(micros).unwrap_or(u64::MAX);
            Cell { text: format!("{micros} us"), number: Some(seconds(micros)) }
        };
        let counters = one.counters.iter();
        Line {
            detail: counters.map(|counter| format!("{} {}", counter.value, counter.help)).collect(),
            cells: vec![
                Cell::text(&one.name),
                Cell::text(if one.answers { "works" } else { "busy" }),
                Cell::count(one.queued as u64),
                Cell::count(times.count()),
                quantile(0.5),
                quantile(0.99),
                Cell::count(one.panics),
            ],
        }
    };
    Sheet {
        columns: &["service", "state", "waiting", "requests", "median", "99 %", "panics"],
        first: 3,
        lines: status.services.iter().map(line).collect(),
    }
}
