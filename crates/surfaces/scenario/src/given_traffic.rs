//! The traffic of a scenario file, checked.

use std::ops::RangeInclusive;

use weft_network::Message;
use weft_network::time::{NANOSECOND, Time};
use weft_network::traffic::{Pattern, PatternError, Traffic};
use weft_topology::{Graph, Kind, Vertex};

use crate::file::TrafficEntry;
use crate::place::Flaw;
use crate::scenario::{ClosedPace, Group, Level, Operation, TIME_MAX_NS, Workload};

/// Offered loads of a scenario at most.
const LOADS_MAX: usize = 100;
/// Hosts of a group at most at the level of endpoints.
const ENDPOINTS_MAX: usize = 256;
/// The same where each two hosts have memory of their own.
const PAIRED_MAX: usize = 64;
/// Bytes of a message where nothing is told: the payload of a packet.
const MESSAGE_BYTES_DEFAULT: u64 = 496;
/// Messages of a trace at most.
const TRACE_MAX: usize = 10_000_000;

impl Operation {
    /// The bytes of a message. Some have the number that the run gives it in them.
    fn bytes(self) -> RangeInclusive<u64> {
        const MEBIBYTE: u64 = 1 << 20;
        match self {
            Self::Put | Self::Get => 0..=MEBIBYTE,
            Self::Message => 8..=120,
            Self::Atomic => 8..=8,
            Self::LongMessage => 8..=MEBIBYTE,
            Self::Lane => 1..=MEBIBYTE,
            Self::Frame => 46..=64_000,
        }
    }

    fn hosts_max(self) -> usize {
        if matches!(self, Self::Lane | Self::Frame) { PAIRED_MAX } else { ENDPOINTS_MAX }
    }
}

impl TrafficEntry {
    /// The `number`th group of hosts. `read` gives the text of a trace.
    pub fn group(
        &self,
        number: usize,
        graph: &Graph,
        level: Level,
        classes: u8,
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Group, Flaw> {
        let all = || graph.hosts().collect::<Vec<_>>();
        let named = |key, names: &Option<Vec<String>>| {
            names.as_ref().map_or_else(|| Ok(all()), |names| hosts(key, names, graph))
        };
        let (from, to) = (named("hosts", &self.hosts)?, named("to", &self.to)?);
        let senders = from.len();
        let mut members = [&from[..], &to[..]].concat();
        members.sort_unstable();
        members.dedup();
        let workload = self.workload(graph, level, (from, to), read)?;
        self.check(&members, level, &workload, classes)?;
        Ok(Group {
            name: self.name.clone().unwrap_or_else(|| format!("group {}", number + 1)),
            pattern: self.pattern.clone(),
            operation: self.operation.unwrap_or_default(),
            workload,
            senders,
            members,
        })
    }

    /// The messages of the hosts `from` to the hosts `to`.
    fn workload(
        &self,
        graph: &Graph,
        level: Level,
        (from, to): (Vec<Vertex>, Vec<Vertex>),
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Workload, Flaw> {
        self.check_keys()?;
        if self.pattern == "trace" {
            let file = self.file.as_ref().ok_or_else(|| Flaw::whole("a trace needs its `file`"))?;
            let read = read(file).map_err(|error| format!("{file:?} cannot be read: {error}"));
            let messages = read
                .and_then(|text| trace(&text, graph).map_err(|error| format!("{file:?}, {error}")));
            return messages.map(Workload::Trace).map_err(|reason| Flaw::of("file", reason));
        }
        let pattern = self.pattern(graph, &to)?;
        let is_of_all = self.hosts.is_none() && self.to.is_none();
        let traffic = if is_of_all {
            Traffic::new(graph, pattern)
        } else {
            Traffic::among(from, to, pattern)
        };
        let traffic = traffic.map_err(|error| {
            let key = match error {
                PatternError::Percent(_) => "percent",
                PatternError::Alone if !is_of_all => "hosts",
                _ => "pattern",
            };
            Flaw::of(key, error)
        })?;
        let bytes = self.message_bytes.unwrap_or(MESSAGE_BYTES_DEFAULT);
        let class = self.class.unwrap_or(0);
        if bytes > 1 << 40 {
            return Err(Flaw::of("message_bytes", "messages of more than a terabyte; give less"));
        }
        match (&self.loads, self.messages) {
            (Some(loads), None) => {
                if level == Level::Flows {
                    let reason = "flows have no loads; give `messages` of each host";
                    return Err(Flaw::of("loads", reason));
                }
                if bytes == 0 {
                    let reason = "messages at random times have 1 byte or more";
                    return Err(Flaw::of("message_bytes", reason));
                }
                let is_sound = (1..=LOADS_MAX).contains(&loads.len())
                    && loads.iter().all(|load| (1..=1_000).contains(load));
                if !is_sound {
                    let reason = format!(
                        "`loads` has 1 to {LOADS_MAX} numbers from 1 to 1000, in percent of a link"
                    );
                    return Err(Flaw::of("loads", reason));
                }
                Ok(Workload::Open { traffic, bytes, class, loads: loads.clone() })
            }
            (None, Some(messages)) => {
                let pace = match (self.window, self.barrier) {
                    (None, true) => ClosedPace::Barrier,
                    (window, false) if window != Some(0) => ClosedPace::Window(window.unwrap_or(1)),
                    _ => {
                        let reason = "`window` is 1 or more, and there is none with `barrier`";
                        return Err(Flaw::of("window", reason));
                    }
                };
                Ok(Workload::Closed { traffic, bytes, class, messages, pace })
            }
            _ => Err(Flaw::whole("give either `loads` or `messages`")),
        }
    }

    /// Refuses keys that the pattern or the pace has no use for.
    fn check_keys(&self) -> Result<(), Flaw> {
        let pattern = self.pattern.as_str();
        let of = format!("the pattern {pattern:?}");
        let of_trace = [
            ("hosts", self.hosts.is_some()),
            ("to", self.to.is_some()),
            ("message_bytes", self.message_bytes.is_some()),
            ("class", self.class.is_some()),
            ("loads", self.loads.is_some()),
            ("messages", self.messages.is_some()),
        ];
        if pattern == "trace" {
            Flaw::idle(of_trace, "the file says it for each message, and a trace")?;
        } else {
            Flaw::idle([("file", self.file.is_some())], &of)?;
        }
        if !matches!(pattern, "incast" | "hotspot") {
            Flaw::idle([("host", self.host.is_some())], &of)?;
        }
        if pattern != "hotspot" {
            Flaw::idle([("percent", self.percent.is_some())], &of)?;
        }
        if self.messages.is_none() {
            let paces = [("window", self.window.is_some()), ("barrier", self.barrier)];
            Flaw::idle(paces, "traffic without `messages`")?;
        }
        Ok(())
    }

    /// Checks what the level and the network allow.
    fn check(
        &self,
        members: &[Vertex],
        level: Level,
        workload: &Workload,
        classes: u8,
    ) -> Result<(), Flaw> {
        let (longest, highest) = workload.longest();
        if highest >= classes {
            let reason = format!(
                "there is no class {highest}; `classes` of [network] says how many there are"
            );
            return Err(Flaw::of(if self.pattern == "trace" { "file" } else { "class" }, reason));
        }
        if level != Level::Endpoints {
            let reason = "operations need level = \"endpoints\"";
            return self.operation.map_or(Ok(()), |_| Err(Flaw::of("operation", reason)));
        }
        let operation = self.operation.unwrap_or_default();
        let (most, hosts) = (operation.hosts_max(), members.len());
        if hosts > most {
            let reason = format!(
                "{hosts} hosts are more than the {most} that endpoints of a group may have; name \
                 fewer as `hosts` and `to`, or take level = \"messages\""
            );
            return Err(Flaw::whole(reason));
        }
        let bytes = operation.bytes();
        let shortest = workload.shortest();
        if bytes.contains(&longest) && bytes.contains(&shortest) {
            return Ok(());
        }
        let wrong = if bytes.contains(&longest) { shortest } else { longest };
        let reason = format!(
            "a message of {wrong} bytes; with this operation it has {} to {}",
            bytes.start(),
            bytes.end()
        );
        Err(Flaw::of(if self.pattern == "trace" { "file" } else { "message_bytes" }, reason))
    }

    /// The pattern of messages to the hosts `to`.
    fn pattern(&self, graph: &Graph, to: &[Vertex]) -> Result<Pattern, Flaw> {
        let host = || -> Result<u32, Flaw> {
            let name = self.host.as_ref();
            let name = name.ok_or_else(|| Flaw::whole("this pattern needs its `host`"))?;
            let vertex = host_of("host", name, graph)?;
            let place = to.iter().position(|host| *host == vertex);
            place
                .and_then(|place| u32::try_from(place).ok())
                .ok_or_else(|| Flaw::of("host", format!("{name:?} is not among the hosts of `to`")))
        };
        Ok(match self.pattern.as_str() {
            "uniform" => Pattern::Uniform,
            "transpose" => Pattern::Transpose,
            "tornado" => Pattern::Tornado,
            "neighbour" => Pattern::Neighbour,
            "all-to-all" => Pattern::AllToAll,
            "incast" => Pattern::Incast { host: host()? },
            "hotspot" => {
                let percent = self.percent;
                let percent =
                    percent.ok_or_else(|| Flaw::whole("a hotspot needs its `percent`"))?;
                Pattern::Hotspot { host: host()?, percent }
            }
            other => {
                let reason = format!(
                    "{other:?} is no pattern; there are uniform, transpose, tornado, neighbour, \
                     hotspot, incast, all-to-all and trace"
                );
                return Err(Flaw::of("pattern", reason));
            }
        })
    }
}

/// The host of this name, which is the value of a key.
fn host_of(key: &'static str, name: &str, graph: &Graph) -> Result<Vertex, Flaw> {
    let vertex = graph.find(name);
    let vertex = vertex.ok_or_else(|| Flaw::of(key, format!("there is no host {name:?}")))?;
    let is_host = graph.kind(vertex) == Some(Kind::Host);
    is_host.then_some(vertex).ok_or_else(|| Flaw::of(key, format!("{name:?} is no host")))
}

/// The hosts that are named, each once: `n3`, or `n3..n7` for all from one to another.
fn hosts(key: &'static str, names: &[String], graph: &Graph) -> Result<Vec<Vertex>, Flaw> {
    let mut hosts = Vec::new();
    for name in names {
        let ends = name.split_once("..").filter(|_| graph.find(name).is_none());
        let Some((first, last)) = ends else {
            hosts.push(host_of(key, name, graph)?);
            continue;
        };
        let (first, last) = (host_of(key, first, graph)?, host_of(key, last, graph)?);
        if first > last {
            return Err(Flaw::of(key, format!("{name:?}: the first host comes behind the last")));
        }
        hosts.extend(graph.hosts().filter(|host| (first..=last).contains(host)));
    }
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// The messages of a trace: in each line a time in nanoseconds, two hosts and a number of bytes,
/// and a class if it is not 0. A `#` begins a comment.
fn trace(text: &str, graph: &Graph) -> Result<Vec<(Time, Message)>, String> {
    let mut messages = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let entry = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = entry.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let parsed = parse_message(&words, graph);
        let (time, message) = parsed.ok_or_else(|| {
            format!(
                "line {number} is {line:?}, not a time in ns, two hosts, bytes and maybe a class, \
                 as `100 n0 n5 496`"
            )
        })?;
        let tag = u64::try_from(messages.len()).unwrap_or(u64::MAX);
        messages.push((time, Message { tag, ..message }));
        if messages.len() > TRACE_MAX {
            return Err(format!("it has more than {TRACE_MAX} messages; cut it"));
        }
    }
    messages.sort_by_key(|(time, _)| *time);
    Ok(messages)
}

fn parse_message(words: &[&str], graph: &Graph) -> Option<(Time, Message)> {
    let (words, class) = match words {
        [time, from, to, bytes] => ([time, from, to, bytes], 0),
        [time, from, to, bytes, class] => ([time, from, to, bytes], class.parse().ok()?),
        _ => return None,
    };
    let time: u64 = words[0].parse().ok().filter(|ns| *ns <= TIME_MAX_NS)?;
    let is_host = |vertex: &Vertex| graph.kind(*vertex) == Some(Kind::Host);
    let from = graph.find(words[1]).filter(is_host)?;
    let to = graph.find(words[2]).filter(is_host)?;
    let bytes = words[3].parse().ok().filter(|bytes| *bytes <= 1 << 40)?;
    Some((time * NANOSECOND, Message { from, to: to.into(), bytes, class, tag: 0 }))
}
