//! Graphs in TOML files.
//!
//! ```toml
//! hosts = ["a", "b", "c"]
//! switches = ["s"]              # may be left out
//! links = [
//!   { ends = ["a", "s"] },      # the next port of each
//!   { ends = ["b:0", "s:4"] },  # port 0 of b, port 4 of s
//!   { ends = ["c", "s"], bandwidth_mbit = 100000, latency_ns = 40, weight = 2 },
//! ]
//! ```
//!
//! `bandwidth_mbit` is in 10^6 bits a second each way, `latency_ns` from end to end. `weight` is
//! the cost of a packet on the link, 1 if it is left out. Each is a whole number above 0 and
//! below 2^32. A link without a port gets the next port above all that its vertex has so far. A
//! name has 1 to 64 characters, and no `:`, space or quote.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZeroU32;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use crate::graph::{End, Graph, GraphBuilder, GraphError, Kind, LinkClass, Port, Vertex};
use crate::layout::Layout;

/// Characters of a name at most.
const NAME_MAX: usize = 64;

/// A graph, and whether its links are told with ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// The graph.
    pub graph: Graph,
    /// True when every link names the ports of both ends.
    pub has_ports: bool,
    /// Names of data that the file has and a network does not, so that they mean nothing.
    pub left_out: Vec<String>,
}

/// Why a file is no graph: the line, from 1, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {reason}")]
pub struct FileError {
    /// The line, from 1.
    pub line: usize,
    /// The fault, and its cure.
    pub reason: String,
}

impl FileError {
    pub(crate) fn new(line: usize, reason: impl ToString) -> Self {
        Self { line, reason: reason.to_string() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    hosts: Vec<Spanned<String>>,
    #[serde(default)]
    switches: Vec<Spanned<String>>,
    #[serde(default)]
    links: Vec<Spanned<LinkEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    ends: [String; 2],
    bandwidth_mbit: Option<NonZeroU32>,
    latency_ns: Option<NonZeroU32>,
    weight: Option<NonZeroU32>,
}

/// Collects the vertices and links of a file, and tells of faults by line.
#[derive(Default)]
pub(crate) struct Collector {
    builder: GraphBuilder,
    vertices: HashMap<String, Vertex>,
    /// The line of the link at each port.
    taken: HashMap<End, usize>,
    next: HashMap<Vertex, Port>,
    has_unported: bool,
}

impl Collector {
    pub(crate) fn vertex(&mut self, line: usize, kind: Kind, name: &str) -> Result<(), FileError> {
        let is_valid = (1..=NAME_MAX).contains(&name.chars().count())
            && !name.contains([':', '"', '\'', '\\', '<', '>', '&'])
            && !name.contains(|letter: char| letter.is_whitespace() || letter.is_control());
        if !is_valid {
            let reason = format!(
                "{name:?} is no name: it has 1 to {NAME_MAX} characters, and no `:`, space or quote"
            );
            return Err(FileError::new(line, reason));
        }
        let vertex = self.builder.named(kind, name).map_err(|error| FileError::new(line, error))?;
        match self.vertices.insert(name.to_owned(), vertex) {
            None => Ok(()),
            Some(_) => {
                let reason = format!("{name:?} is there twice; give one another name");
                Err(FileError::new(line, reason))
            }
        }
    }

    fn end(&mut self, line: usize, name: &str, port: Option<Port>) -> Result<End, FileError> {
        let vertex = *self.vertices.get(name).ok_or_else(|| {
            let reason = format!(
                "a link names {name:?}, which is neither a host nor a switch; add it, or correct \
                 the name"
            );
            FileError::new(line, reason)
        })?;
        let next = self.next.entry(vertex).or_insert(0);
        self.has_unported |= port.is_none();
        let port = port.unwrap_or(*next);
        // The builder refuses the highest port, so that the next one always has a number.
        *next = (*next).max(port.saturating_add(1));
        if let Some(before) = self.taken.insert((vertex, port), line) {
            let reason = format!(
                "port {port} of {name:?} has a link on line {before} already; give one of them \
                 another port"
            );
            return Err(FileError::new(line, reason));
        }
        Ok((vertex, port))
    }

    /// Adds a link between vertices that were added before.
    pub(crate) fn link(
        &mut self,
        line: usize,
        ends: [(&str, Option<Port>); 2],
        class: LinkClass,
    ) -> Result<(), FileError> {
        let a = self.end(line, ends[0].0, ends[0].1)?;
        let b = self.end(line, ends[1].0, ends[1].1)?;
        self.builder.link(a, b, class).map_err(|error| {
            let reason = match error {
                GraphError::Loop(_) => {
                    format!("{:?} has a link to itself; remove the link", ends[0].0)
                }
                other => other.to_string(),
            };
            FileError::new(line, reason)
        })
    }

    pub(crate) fn graph(self) -> Result<Described, FileError> {
        if self.vertices.is_empty() {
            return Err(FileError::new(1, "there is no host; name one"));
        }
        let has_ports = !self.has_unported;
        let built = self.builder.build(Layout::Irregular);
        let graph = built.map_err(|error| FileError::new(1, error))?;
        Ok(Described { graph, has_ports, left_out: Vec::new() })
    }
}

/// The number of the line in which a byte of `text` is, from 1.
fn line_of(text: &str, byte: usize) -> usize {
    let before = text.as_bytes().get(..byte).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The lines of a text. They are counted on from the place that was asked for before, so that many
/// places, one after the other, take no more than one pass.
pub(crate) struct Lines<'a> {
    text: &'a str,
    /// A place in bytes, and its line.
    before: Cell<(usize, usize)>,
}

impl<'a> Lines<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        Self { text, before: Cell::new((0, 1)) }
    }

    /// The line of a byte, from 1.
    pub(crate) fn at(&self, byte: usize) -> usize {
        let (start, line) =
            Some(self.before.get()).filter(|before| before.0 <= byte).unwrap_or((0, 1));
        let line = line + line_of(self.text.get(start..).unwrap_or_default(), byte - start) - 1;
        self.before.set((byte, line));
        line
    }
}

fn told(number: Option<NonZeroU32>) -> u32 {
    number.map_or(0, NonZeroU32::get)
}

/// Splits `name:port`.
fn name_and_port(end: &str) -> Option<(&str, Option<Port>)> {
    match end.split_once(':') {
        None => Some((end, None)),
        Some((name, port)) => Some((name, Some(port.parse().ok()?))),
    }
}

/// Reads a graph.
///
/// # Errors
/// [`FileError`] names the line of the first fault.
pub fn parse(text: &str) -> Result<Described, FileError> {
    let file: File = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        FileError::new(line_of(text, start), error.message())
    })?;
    let lines = Lines::of(text);
    let mut collector = Collector::default();
    for (kind, names) in [(Kind::Host, &file.hosts), (Kind::Switch, &file.switches)] {
        for name in names {
            collector.vertex(lines.at(name.span().start), kind, name.get_ref())?;
        }
    }
    for entry in &file.links {
        let (line, link) = (lines.at(entry.span().start), entry.get_ref());
        let wrong = |end: &str| {
            let reason = format!("{end:?} is no end of a link: write NAME or NAME:PORT, as in a:3");
            FileError::new(line, reason)
        };
        let [a, b] = &link.ends;
        let ends =
            [name_and_port(a).ok_or_else(|| wrong(a))?, name_and_port(b).ok_or_else(|| wrong(b))?];
        let class = LinkClass {
            bandwidth: u64::from(told(link.bandwidth_mbit)) * 1_000_000,
            latency: told(link.latency_ns).into(),
            weight: told(link.weight),
        };
        collector.link(line, ends, class)?;
    }
    collector.graph()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_switches_and_links_are_read() {
        let text = "hosts = [\"a\", \"b\"]\nswitches = [\"s\"]\nlinks = [\n{ ends = [\"a\", \
                    \"s:2\"], bandwidth_mbit = 100, latency_ns = 7, weight = 3 },\n{ ends = \
                    [\"s\", \"b\"] }]\n";
        let Described { graph, has_ports, .. } = parse(text).expect("a graph");
        assert!(!has_ports);
        assert_eq!((graph.far(0, 0), graph.far(1, 0)), (Some((2, 2)), Some((2, 3))));
        let class = LinkClass { bandwidth: 100_000_000, latency: 7, weight: 3 };
        assert_eq!((graph.class(2, 2), graph.class(1, 0)), (class, LinkClass::default()));
        assert_eq!((graph.find("b"), graph.find("s"), graph.find("n0")), (Some(1), Some(2), None));
        assert_eq!(graph.kind(2), Some(Kind::Switch));
    }

    #[test]
    fn errors_name_the_line() {
        let line_and_word = [
            ("hosts = [\"a\",\n\"a\"]", 2, "twice"),
            ("hosts = [\"a b\"]", 1, "no name"),
            ("hosts = []", 1, "no host"),
            ("hosts = [\"a\"]\nlink = 3", 2, "unknown field"),
            ("hosts = [\"a\"]\n\nlinks = [\n{ ends = [\"a\"] }]", 4, "length"),
            ("hosts = [\"a\", \"b\"]\nlinks = [{ ends = [\"a\", \"c\"] }]", 2, "\"c\""),
            ("hosts = [\"a\", \"b\"]\nlinks = [{ ends = [\"a\", \"b:x\"] }]", 2, "no end"),
            ("hosts = [\"a\", \"b\"]\nlinks = [{ ends = [\"a\", \"b:65535\"] }]", 2, "65535"),
            ("hosts = [\"a\", \"b\"]\nlinks = [\n\n{ ends = [\"a\", \"a\"] }]", 4, "itself"),
            (
                "hosts = [\"a\", \"b\"]\nlinks = [\n{ ends = [\"a:1\", \"b\"] },\n{ ends = \
                 [\"a:1\", \"b\"] }]",
                4,
                "on line 3",
            ),
            ("hosts = [\"a\"]\nx = [", 2, ""),
        ];
        for (text, line, word) in line_and_word {
            let error = parse(text).expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.reason.contains(word), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_graph_or_an_error_with_a_line_of_it(
            names in proptest::collection::vec("[a-c:]{0,2}", 0..5),
            ends in proptest::collection::vec(("[a-d]", "(:[0-9x]{1,5})?", "[a-d]"), 0..6),
            noise in "(\\PC{0,8})|(\n){0,3}",
        ) {
            let hosts: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
            let links: Vec<_> = ends.iter()
                .map(|(a, port, b)| format!("{{ ends = [\"{a}{port}\", \"{b}\"] }},\n"))
                .collect();
            let (hosts, links) = (hosts.join(","), links.concat());
            let text = format!("hosts = [{hosts}]\nlinks = [{links}]\n{noise}");
            if let Err(error) = parse(&text) {
                let lines = text.lines().count() + 1;
                proptest::prop_assert!((1..=lines).contains(&error.line), "{error}: {text}");
            }
        }
    }
}
