//! The traffic of a scenario file, checked.

use weft_network::Message;
use weft_network::time::{NANOSECOND, Time};
use weft_network::traffic::{Pattern, PatternError, Traffic};
use weft_topology::{Graph, Vertex};

use crate::file::TrafficEntry;
use crate::place::Flaw;
use crate::scenario::{ClosedPace, Level, Operation, TIME_MAX_NS, Workload};

/// Offered loads of a scenario at most.
const LOADS_MAX: usize = 100;
/// Hosts at most at the level of endpoints, and bytes of a put or a get there.
const ENDPOINTS_MAX: usize = 256;
const PUT_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a short message, with the number that the run gives it; bytes of an atomic.
const SHORT_BYTES: std::ops::RangeInclusive<u64> = 8..=120;
const ATOMIC_BYTES: u64 = 8;
/// Messages of a trace at most.
const TRACE_MAX: usize = 10_000_000;

impl TrafficEntry {
    /// The messages. `read` gives the text of a trace.
    pub fn workload(
        &self,
        graph: &Graph,
        level: Level,
        read: impl Fn(&str) -> std::io::Result<String>,
    ) -> Result<Workload, Flaw> {
        if self.pattern == "trace" {
            let file = self.file.as_ref().ok_or_else(|| Flaw::whole("a trace needs its `file`"))?;
            let read = read(file).map_err(|error| format!("{file:?} cannot be read: {error}"));
            let messages = read
                .and_then(|text| trace(&text, graph).map_err(|error| format!("{file:?}, {error}")));
            return messages.map(Workload::Trace).map_err(|reason| Flaw::of("file", reason));
        }
        let pattern = self.pattern(graph)?;
        let traffic = Traffic::new(graph, pattern).map_err(|error| {
            Flaw::of(
                if matches!(error, PatternError::Percent(_)) { "percent" } else { "pattern" },
                error,
            )
        })?;
        let (bytes, class) = (self.message_bytes, self.class);
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

    /// Checks what the level and the network allow.
    pub fn check(
        &self,
        graph: &Graph,
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
            return if self.operation == Operation::Put {
                Ok(())
            } else {
                Err(Flaw::of("operation", "operations need level = \"endpoints\""))
            };
        }
        if graph.hosts().count() > ENDPOINTS_MAX {
            let reason =
                format!("endpoints have {ENDPOINTS_MAX} hosts at most; take level = \"messages\"");
            return Err(Flaw::whole(reason));
        }
        let is_sound = match self.operation {
            Operation::Put | Operation::Get => longest <= PUT_BYTES_MAX,
            Operation::Message => SHORT_BYTES.contains(&longest),
            Operation::Atomic => longest == ATOMIC_BYTES,
        };
        if is_sound {
            return Ok(());
        }
        let reason = format!(
            "endpoints put and get {PUT_BYTES_MAX} bytes at most, short messages have {} to {}, \
             and atomics {ATOMIC_BYTES}",
            SHORT_BYTES.start(),
            SHORT_BYTES.end()
        );
        Err(Flaw::of("message_bytes", reason))
    }

    fn pattern(&self, graph: &Graph) -> Result<Pattern, Flaw> {
        let host = || -> Result<u32, Flaw> {
            let name = self.host.as_ref();
            let name = name.ok_or_else(|| Flaw::whole("this pattern needs its `host`"))?;
            let vertex = graph.find(name);
            let vertex =
                vertex.ok_or_else(|| Flaw::of("host", format!("there is no host {name:?}")))?;
            let place = graph.hosts().position(|host| host == vertex);
            place
                .and_then(|place| u32::try_from(place).ok())
                .ok_or_else(|| Flaw::of("host", format!("{name:?} is no host")))
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
    let is_host = |vertex: &Vertex| graph.kind(*vertex) == Some(weft_topology::Kind::Host);
    let from = graph.find(words[1]).filter(is_host)?;
    let to = graph.find(words[2]).filter(is_host)?;
    let bytes = words[3].parse().ok().filter(|bytes| *bytes <= 1 << 40)?;
    Some((time * NANOSECOND, Message { from, to: to.into(), bytes, class, tag: 0 }))
}
