//! The status for people: a section for each kind of thing that there is, words for states, and
//! what to do where there is something to do.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weft_options::runtime_path::ControlSocket;
use weft_wire::stats::TcpReason;
use weftd::{
    ConnectionStatus, FabricStatus, OnTcpStatus, ProcessStatus, ServiceStatus, Status, Users,
};

use super::devices;
use crate::fabric::etcd_text;
use crate::table::{Table, bytes, counted};
use crate::terminal::paragraph;

/// Lines of a section at most; `--json` has them all.
const LINES_MAX: usize = 20;
/// Connections that stayed on TCP which are told one by one.
const LAST_ON_TCP_MAX: usize = 10;

/// The sources of the text.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The answer of the daemon.
    pub status: &'a Status,
    /// Its socket.
    pub socket: &'a ControlSocket,
    /// Names of users.
    pub users: &'a Users,
}

impl Report<'_> {
    /// The whole text.
    pub fn text(&self) -> String {
        let mut text = self.node();
        text.push_str(&self.programs());
        text.push_str(&self.connections());
        text.push_str(&self.on_tcp());
        text.push_str(&self.listeners());
        text.push_str(&self.endpoints());
        text.push_str(&self.jobs());
        text.push_str(&self.offers());
        text.push_str(&devices::text(&self.status.devices));
        text.push_str(&self.services());
        text.push_str(&self.counters());
        text.push_str(&self.advice());
        text
    }

    fn node(&self) -> String {
        let Status { version, pid, uptime_s, .. } = self.status;
        let mut table = Table::plain();
        let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
        let up = duration(*uptime_s);
        line("daemon", format!("release {version}, process {pid}, up {up}"));
        line("socket", self.socket.path.display().to_string());
        line(
            "serves",
            format!(
                "{}, {} on the fabric, {}",
                counted(self.status.processes.len(), "program"),
                counted(self.status.connections.len(), "connection"),
                counted(self.status.listeners.len(), "listening socket"),
            ),
        );
        if let Some(FabricStatus { name, nodes, etcd, .. }) = &self.status.fabric {
            let up = nodes.iter().filter(|node| ["self", "up"].contains(&node.state.as_str()));
            let (up, all) = (up.count(), nodes.len());
            line("fabric", format!("{name:?}: {up} of {all} nodes up; see `weft fabric nodes`"));
            if let Some(etcd) = etcd {
                line("etcd", etcd_text(etcd));
            }
        }
        if self.status.waiting > 0 {
            let count = counted(self.status.waiting, "connection");
            line("waiting", format!("{count} whose other end has not come yet"));
        }
        line("copies", copies(&self.status.copy));
        table.section(&format!("Node {}", self.status.node))
    }

    fn programs(&self) -> String {
        let mut table = Table::new(["program", "process", "user"]);
        let processes = &self.status.processes;
        for process in processes.iter().take(LINES_MAX) {
            let user = self.users.name(process.uid);
            table.line([process.name.clone(), process.pid.to_string(), user]);
        }
        section(&table, "Programs under weft", processes.len())
    }

    /// Those that carried most, and the sum of all.
    fn connections(&self) -> String {
        let mut connections: Vec<&ConnectionStatus> = self.status.connections.iter().collect();
        let carried =
            |one: &ConnectionStatus| one.bytes_from_client.saturating_add(one.bytes_from_server);
        connections.sort_by_key(|connection| Reverse(carried(connection)));
        let sum = |of: fn(&ConnectionStatus) -> u64| {
            bytes(connections.iter().map(|one| of(one)).fold(0, u64::saturating_add))
        };
        let totals = [sum(|one| one.bytes_from_client), sum(|one| one.bytes_from_server)];
        let mut table =
            Table::new(["client", "process", "server", "process", "to server", "to client"]);
        for connection in connections.iter().take(LINES_MAX) {
            table.line([
                connection.client.clone(),
                connection.client_pid.to_string(),
                connection.server.clone(),
                connection.server_pid.to_string(),
                bytes(connection.bytes_from_client),
                bytes(connection.bytes_from_server),
            ]);
        }
        if connections.len() > 1 {
            let [to_server, to_client] = totals;
            let nothing = String::new;
            table.line(["all".into(), nothing(), nothing(), nothing(), to_server, to_client]);
        }
        section(&table, "Connections on the fabric", connections.len())
    }

    /// Why connections stayed on TCP, and the last of them.
    fn on_tcp(&self) -> String {
        let mut counts = BTreeMap::<&str, u64>::new();
        for (reason, count) in self.status.totals.iter().flat_map(|total| &total.streams.reasons) {
            let sum = counts.entry(reason).or_default();
            *sum = sum.saturating_add(*count);
        }
        let all = counts.values().fold(0, |all: u64, count| all.saturating_add(*count));
        let mut table = Table::new(["ends", "because"]);
        for (reason, count) in counts {
            let known = TcpReason::ALL.iter().find(|known| known.name() == reason);
            let why = known.map_or(reason, |known| known.text());
            table.line([count.to_string(), why.to_owned()]);
        }
        let all = usize::try_from(all).unwrap_or(usize::MAX);
        let mut text =
            section(&table, "Ends of connections that stayed on TCP", all.min(LINES_MAX));
        let mut last: Vec<_> = self.last_on_tcp().collect();
        last.sort_by_key(|(_, one)| Reverse(one.at_ms));
        let mut table = Table::new(["program", "own address", "other address", "because"]);
        for (process, one) in last.iter().take(LAST_ON_TCP_MAX) {
            let unknown = || ("-".to_owned(), "-".to_owned());
            let (own, other) = one.addresses.clone().unwrap_or_else(unknown);
            table.line([
                format!("{} {}", process.name, process.pid),
                own,
                other,
                one.reason.clone(),
            ]);
        }
        text.push_str(&section(&table, "The last of those", last.len().min(LAST_ON_TCP_MAX)));
        text
    }

    fn last_on_tcp(&self) -> impl Iterator<Item = (&ProcessStatus, &OnTcpStatus)> {
        let programs = self.status.processes.iter().chain(&self.status.ended);
        programs.flat_map(|process| process.on_tcp.iter().map(move |one| (process, one)))
    }

    fn listeners(&self) -> String {
        let mut table = Table::new(["address", "program"]);
        let listeners = &self.status.listeners;
        for listener in listeners.iter().take(LINES_MAX) {
            table.line([listener.address.clone(), self.program(listener.pid)]);
        }
        section(&table, "Listening sockets under weft", listeners.len())
    }

    fn jobs(&self) -> String {
        let mut table = Table::new(["job", "proxy", "processes", "here", "ended", "failed"]);
        let mut count = 0;
        for process in &self.status.processes {
            let Some(job) = process.work.get("job") else { continue };
            let of = |name: &str| job.get(name).copied().unwrap_or(0).to_string();
            let name = process.name.strip_prefix("job ").unwrap_or(&process.name).to_owned();
            let (pid, size) = (process.pid.to_string(), of("processes"));
            table.line([name, pid, size, of("started"), of("ended"), of("failed")]);
            count += 1;
        }
        section(&table, "Jobs of weft oshrun", count)
    }

    fn endpoints(&self) -> String {
        let mut table = Table::new(["number", "program", "peers"]);
        let endpoints = &self.status.endpoints;
        for endpoint in endpoints.iter().take(LINES_MAX) {
            let peers = endpoint.peers.to_string();
            table.line([endpoint.vpid.to_string(), self.program(endpoint.pid), peers]);
        }
        section(&table, "Endpoints of the fabric", endpoints.len())
    }

    fn offers(&self) -> String {
        let mut table = Table::new(["service", "host", "endpoint", "user"]);
        let offers = &self.status.offers;
        for offer in offers.iter().take(LINES_MAX) {
            let (endpoint, user) = (offer.vpid.to_string(), self.users.name(offer.user));
            table.line([offer.name.clone(), self.host(offer.node), endpoint, user]);
        }
        section(&table, "Services that programs offer", offers.len())
    }

    /// A host of the fabric, by its name if that is known.
    fn host(&self, number: u32) -> String {
        let mut nodes = self.status.fabric.iter().flat_map(|fabric| &fabric.nodes);
        let known = nodes.find(|node| node.number == Some(number));
        let name = known.and_then(|node| node.name.clone());
        name.unwrap_or_else(|| format!("node {number}"))
    }

    fn services(&self) -> String {
        let mut table = Table::new(["service", "state", "requests that wait"]);
        for service in &self.status.services {
            let queued = service.queued.to_string();
            table.line([service.name.clone(), state(service), queued]);
        }
        if table.len() == 0 {
            return String::new();
        }
        format!("\n{}", table.section("Services of the daemon"))
    }

    fn counters(&self) -> String {
        let mut table = Table::new(["service", "count", "meaning"]);
        for service in &self.status.services {
            for counter in &service.counters {
                let meaning = counter.help.trim_end_matches('.').to_owned();
                table.line([service.name.clone(), counter.value.to_string(), meaning]);
            }
        }
        if table.len() == 0 {
            return String::new();
        }
        format!("\n{}", table.section("Counters of the services"))
    }

    /// The next step, where there is one.
    fn advice(&self) -> String {
        let services = &self.status.services;
        let mut advice = Vec::new();
        if self.status.processes.is_empty() {
            advice
                .push("No program runs under weft here; `weft run -- PROGRAM` starts one.".into());
        }
        if services.iter().any(|service| !service.answers) {
            advice.push(
                "A service that is busy left its part out of this status; ask again in a moment."
                    .into(),
            );
        }
        if services.iter().any(|service| service.panics > 0) {
            advice.push(format!(
                "A service that failed has met a bug of weft; please report it with the log {}.",
                self.socket.log().display()
            ));
        }
        advice.iter().map(|sentence| format!("\n{}", paragraph(sentence))).collect()
    }

    /// A process with the name of its program, where that is known.
    fn program(&self, pid: u32) -> String {
        match self.status.processes.iter().find(|process| process.pid == pid) {
            Some(process) => format!("{} {pid}", process.name),
            None => format!("process {pid}"),
        }
    }
}

/// A table under its title, and how many lines of it are left out; nothing for no line.
fn section(table: &Table, title: &str, count: usize) -> String {
    if count == 0 {
        return String::new();
    }
    let mut text = format!("\n{}", table.section(&format!("{title}: {count}")));
    if count > LINES_MAX {
        let more = count - LINES_MAX;
        text.push_str(&format!("  ... and {more} more; `weft status --json` has all\n"));
    }
    text
}

fn state(service: &ServiceStatus) -> String {
    let state = if service.answers { "works" } else { "busy" };
    match service.panics {
        0 => state.to_owned(),
        1 => format!("{state}, failed once"),
        times => format!("{state}, failed {times} times"),
    }
}

/// How bytes are copied into memory that another processor reads next.
fn copies(word: &str) -> String {
    let how = match word {
        "plain" => "stay in the cache of the processor that writes",
        "nontemporal" => "go past the cache of the processor that writes",
        other => other,
    };
    format!("{how} (option shm.copy)")
}

/// The two largest units of a time.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        (_, _, _) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use weft_options::runtime_path::Scope;
    use weftd::{
        CounterStatus, EndpointStatus, ListenerStatus, OfferStatus, StreamCounts, TotalStatus,
    };

    use super::*;

    fn text(status: &Status) -> String {
        let path = PathBuf::from("/run/weft/default.sock");
        let socket = ControlSocket { node: "default".into(), path, scope: Scope::System };
        Report { status, socket: &socket, users: &Users::default() }.text()
    }

    fn connection(client: &str, from_client: u64) -> ConnectionStatus {
        ConnectionStatus {
            server: "[2001:db8:1234:5678:9abc:def0:1234:5678]:443".into(),
            client: client.into(),
            server_pid: 7,
            client_pid: 8,
            bytes_from_server: 1,
            bytes_from_client: from_client,
        }
    }

    fn service(answers: bool, panics: u64) -> ServiceStatus {
        let counter = CounterStatus {
            name: "offers".into(),
            unit: "offers".into(),
            help: "Ends of connections that were offered.".into(),
            value: 3,
        };
        let (name, options) = ("connections".into(), Vec::new());
        ServiceStatus {
            name,
            answers,
            queued: 0,
            panics,
            counters: vec![counter],
            options,
            times: Vec::new(),
            times_sum_ns: 0,
        }
    }

    fn status() -> Status {
        Status { node: "default".into(), copy: "nontemporal".into(), ..Status::default() }
    }

    #[test]
    fn an_idle_node_says_what_to_do_and_shows_no_empty_section() {
        let told = text(&Status { services: vec![service(true, 0)], ..status() });
        assert!(told.starts_with("Node default\n  daemon "), "{told}");
        assert!(told.contains("0 programs, 0 connections on the fabric"), "{told}");
        assert!(told.contains("past the cache"), "{told}");
        assert!(told.contains("`weft run -- PROGRAM` starts one"), "{told}");
        assert!(!told.contains("Connections on") && !told.contains("Endpoints"), "{told}");
        assert!(told.contains("3  Ends of connections that were offered\n"), "{told}");
        assert!(!told.contains("true") && !told.contains("false"), "{told}");
    }

    #[test]
    fn connections_are_summed_and_the_largest_come_first() {
        let connections = (0..30).map(|place| connection(&format!("c:{place}"), place * 1_000));
        let told = text(&Status { connections: connections.collect(), ..status() });
        assert!(told.contains("Connections on the fabric: 30\n"), "{told}");
        let of = |wanted: &str| told.find(wanted);
        assert!(of("c:29 ") < of("c:28 ") && of("c:28 ").is_some(), "{told}");
        assert_eq!(of("c:9 "), None, "only the largest are shown: {told}");
        let all = told.lines().find(|line| line.starts_with("  all ")).expect("a sum");
        assert!(all.contains("435 kB") && all.ends_with("30 B"), "{all}");
        assert!(told.contains("... and 10 more; `weft status --json` has all"), "{told}");
    }

    #[test]
    fn connections_on_tcp_are_told_with_their_reasons() {
        let streams =
            StreamCounts { reasons: [("peer_not_weft".into(), 3)].into(), ..Default::default() };
        let total =
            TotalStatus { name: "curl".into(), uid: Some(5), streams, ..TotalStatus::default() };
        let one = OnTcpStatus {
            reason: "peer_not_weft".into(),
            why: String::new(),
            at_ms: 1,
            addresses: Some(("10.0.0.1:5".into(), "10.0.0.2:80".into())),
        };
        let curl = ProcessStatus {
            name: "curl".into(),
            pid: 7,
            on_tcp: vec![one],
            ..ProcessStatus::default()
        };
        let told = text(&Status { totals: vec![total], ended: vec![curl], ..status() });
        assert!(told.contains("3  the other end does not run under weft"), "{told}");
        assert!(told.contains("curl 7   10.0.0.1:5   10.0.0.2:80    peer_not_weft"), "{told}");
    }

    #[test]
    fn long_addresses_keep_within_the_width() {
        let long = "[2001:db8:1234:5678:9abc:def0:1234:1]:65535";
        let told = text(&Status { connections: vec![connection(long, u64::MAX)], ..status() });
        let width = usize::from(crate::terminal::width());
        assert!(told.lines().all(|line| line.chars().count() <= width), "{told}");
    }

    #[test]
    fn listeners_and_endpoints_name_their_programs() {
        let told = text(&Status {
            processes: vec![ProcessStatus {
                pid: 7,
                uid: 5,
                name: "redis".into(),
                ..Default::default()
            }],
            listeners: vec![ListenerStatus { pid: 7, address: "0.0.0.0:7000".into() }],
            endpoints: vec![EndpointStatus {
                vpid: 3,
                pid: 9,
                peers: 2,
                ..EndpointStatus::default()
            }],
            offers: vec![OfferStatus { name: "files".into(), node: 8, vpid: 3, user: 5 }],
            waiting: 1,
            ..status()
        });
        assert!(told.contains("0.0.0.0:7000  redis 7\n"), "{told}");
        assert!(told.contains("     3  process 9      2\n"), "{told}");
        assert!(told.contains("files    node 8         3"), "{told}");
        assert!(told.contains("1 connection whose other end has not come yet"), "{told}");
        assert!(!told.contains("weft run"), "{told}");
    }

    #[test]
    fn a_service_that_is_busy_or_failed_is_told_with_what_to_do() {
        let told = text(&Status { services: vec![service(false, 2)], ..status() });
        assert!(told.contains("busy, failed 2 times"), "{told}");
        assert!(told.contains("ask again") && told.contains("report it"), "{told}");
        let told = text(&Status { services: vec![service(true, 0)], ..status() });
        assert!(told.contains("connections  works "), "{told}");
        assert!(!told.contains("ask again") && !told.contains("report it"), "{told}");
    }

    #[test]
    fn what_was_measured_is_told_in_words() {
        assert!(copies("plain").starts_with("stay in the cache"));
    }

    #[test]
    fn times_have_two_units() {
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(3_599), "59 min 59 s");
        assert_eq!(duration(7_260), "2 h 1 min");
        assert_eq!(duration(90_000), "1 d 1 h");
    }
}
