//! The nodes of a machine, read from a directory as `/sys/devices/system/node`.
//!
//! Source: Documentation/ABI/stable/sysfs-devices-node of the kernel.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bind::allowed_processors;
use crate::set::ProcessorSet;

/// The place where the kernel describes its nodes.
const DIRECTORY: &str = "/sys/devices/system/node";
/// The kernel's number for the distance of a node to itself.
const DISTANCE_TO_SELF: u32 = 10;

/// One memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    number: u32,
    processors: ProcessorSet,
    memory_bytes: u64,
    distances: Vec<u32>,
}

impl Node {
    /// The number that the kernel gave it.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Its processors. A node of memory alone has none.
    #[must_use]
    pub const fn processors(&self) -> &ProcessorSet {
        &self.processors
    }

    /// Its memory in bytes; 0 when the kernel does not say.
    #[must_use]
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// How far its processors are from the memory of each node, in the order of
    /// [`Topology::nodes`]. A node is 10 from itself. Empty when the kernel does not say.
    #[must_use]
    pub fn distances(&self) -> &[u32] {
        &self.distances
    }
}

/// The memory nodes of a machine, at least one, in order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
}

/// A description of nodes that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file is there and cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file does not have what the kernel writes there.
    #[error("{path} has {text:?} where {expected} is expected")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its first characters.
        text: String,
        /// The words that the kernel writes there.
        expected: &'static str,
    },
    /// The system does not say where this thread may run.
    #[error("cannot ask for the processors of this thread: {0}")]
    Affinity(io::Error),
}

impl Topology {
    /// The nodes of this machine.
    ///
    /// # Errors
    /// [`TopologyError`].
    pub fn of_host() -> Result<Self, TopologyError> {
        Self::read(Path::new(DIRECTORY))
    }

    /// The nodes that a directory describes, which looks as `/sys/devices/system/node`: a folder
    /// `nodeN` for each, with the files `cpulist`, `distance` and `meminfo`.
    ///
    /// # Errors
    /// [`TopologyError`]. A directory that is missing or names no node is no error: it has one node
    /// with all processors that this thread may use.
    pub fn read(directory: &Path) -> Result<Self, TopologyError> {
        let mut nodes = Vec::new();
        for number in numbers(directory)? {
            nodes.push(node(&directory.join(format!("node{number}")), number)?);
        }
        if nodes.is_empty() {
            let processors = allowed_processors().map_err(TopologyError::Affinity)?;
            let distances = vec![DISTANCE_TO_SELF];
            nodes.push(Node { number: 0, processors, memory_bytes: 0, distances });
        }
        Ok(Self { nodes })
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of a number.
    #[must_use]
    pub fn node(&self, number: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.number == number)
    }

    /// The number of the node that a processor belongs to.
    #[must_use]
    pub fn node_of_processor(&self, processor: u32) -> Option<u32> {
        self.nodes.iter().find(|node| node.processors.contains(processor)).map(Node::number)
    }

    /// The processors for work on the memory of a node: its own, or those of the nearest node that
    /// has some if it is a node of memory alone. `None` for a node that does not exist.
    #[must_use]
    pub fn processors_near(&self, number: u32) -> Option<&ProcessorSet> {
        let at = self.nodes.iter().position(|node| node.number == number)?;
        let far = u32::MAX;
        self.nodes
            .iter()
            .filter(|node| !node.processors.is_empty())
            .min_by_key(|node| match node.number == number {
                true => 0,
                false => node.distances.get(at).copied().unwrap_or(far),
            })
            .map(Node::processors)
    }
}

/// The numbers of the folders `nodeN`, in order.
fn numbers(directory: &Path) -> Result<Vec<u32>, TopologyError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(TopologyError::Unreadable { path: directory.into(), source }),
    };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn node(directory: &Path, number: u32) -> Result<Node, TopologyError> {
    let list = directory.join("cpulist");
    let text = text_of(&list)?.unwrap_or_default();
    let processors = text.parse().map_err(|_| invalid(&list, &text, "a list of processors"))?;
    let distance = directory.join("distance");
    let text = text_of(&distance)?.unwrap_or_default();
    let distances = text
        .split_whitespace()
        .map(|word| word.parse().map_err(|_| invalid(&distance, &text, "distances")))
        .collect::<Result<_, _>>()?;
    let meminfo = text_of(&directory.join("meminfo"))?.unwrap_or_default();
    Ok(Node { number, processors, memory_bytes: memory_bytes(&meminfo), distances })
}

/// The total of a `meminfo`: `Node 0 MemTotal:  24684096 kB`.
fn memory_bytes(meminfo: &str) -> u64 {
    let kib = meminfo.lines().find_map(|line| {
        let (_, rest) = line.split_once("MemTotal:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The text of a file, or `None` when it is missing.
fn text_of(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TopologyError::Unreadable { path: path.into(), source }),
    }
}

fn invalid(path: &Path, text: &str, expected: &'static str) -> TopologyError {
    TopologyError::Invalid { path: path.into(), text: text.chars().take(64).collect(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as that of the kernel, with (number, processors, distances, KiB) for each node.
    fn machine(nodes: &[(u32, &str, &str, u64)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (number, processors, distances, kib) in nodes {
            let node = directory.path().join(format!("node{number}"));
            fs::create_dir(&node).expect("fresh");
            fs::write(node.join("cpulist"), format!("{processors}\n")).expect("fresh");
            fs::write(node.join("distance"), format!("{distances}\n")).expect("fresh");
            let memory =
                format!("Node {number} MemTotal:   {kib} kB\nNode {number} MemFree: 1 kB\n");
            fs::write(node.join("meminfo"), memory).expect("fresh");
        }
        fs::write(directory.path().join("possible"), "0-1\n").expect("fresh");
        directory
    }

    #[test]
    fn two_nodes_are_read_with_their_processors_memory_and_distances() {
        let directory = machine(&[(1, "4-7,12", "21 10", 2048), (0, "0-3", "10 21", 1024)]);
        let topology = Topology::read(directory.path()).expect("valid");
        let numbers: Vec<u32> = topology.nodes().iter().map(Node::number).collect();
        assert_eq!(numbers, [0, 1]);
        let one = topology.node(1).expect("there");
        assert_eq!(one.processors().to_string(), "4-7,12");
        assert_eq!((one.memory_bytes(), one.distances()), (2 << 20, &[21, 10][..]));
        assert_eq!(topology.node_of_processor(12), Some(1));
        assert_eq!(topology.node_of_processor(99), None);
    }

    #[test]
    fn memory_without_processors_is_served_by_the_nearest_node() {
        let directory = machine(&[
            (0, "0-1", "10 21 30", 1),
            (1, "2-3", "21 10 15", 1),
            (2, "", "30 15 10", 1),
        ]);
        let topology = Topology::read(directory.path()).expect("valid");
        let near = |number| topology.processors_near(number).map(ToString::to_string);
        assert_eq!(near(0).as_deref(), Some("0-1"));
        assert_eq!(near(2).as_deref(), Some("2-3"));
        assert_eq!(near(3), None);
    }

    #[test]
    fn a_machine_without_nodes_has_one_with_all_processors() {
        let topology = Topology::read(Path::new("/nonexistent/node")).expect("no error");
        assert_eq!(topology.nodes().len(), 1);
        assert_eq!(*topology.nodes()[0].processors(), allowed_processors().expect("a thread"));
    }

    #[test]
    fn a_wrong_file_is_named() {
        let directory = machine(&[(0, "zero", "10", 1)]);
        let error = Topology::read(directory.path()).expect_err("no list");
        assert!(error.to_string().contains("node0/cpulist has \"zero"), "{error}");
    }

    #[test]
    fn the_nodes_of_this_machine_have_the_processors_of_this_thread() {
        let topology = Topology::of_host().expect("readable");
        for processor in allowed_processors().expect("a thread").iter() {
            assert!(topology.node_of_processor(processor).is_some(), "processor {processor}");
        }
    }
}
