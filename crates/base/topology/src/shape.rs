//! Shapes of a network, as users write them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::generate;
use crate::graph::{Graph, GraphBuilder, GraphError, Kind, LinkClass};
use crate::lab::{Link, Topology};
use crate::layout::{DIMENSIONS_MAX, Dragonfly, FatTree, Grid, Layout};

/// Nodes of a lab at most, and those that a list of links may name.
const NODES_OF_LAB_MAX: u16 = 4_096;
/// Hosts of a shape at most: as many as there are numbers of 16 bits.
pub const HOSTS_MAX: u32 = 65_536;

/// Hosts of a full mesh that is told by its number at most. More would need a million ports.
const FULL_MAX: u32 = 1_024;

/// The regular form of a network, or a list of its links.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Every host has a link to every other one. Without a number it fits any number of hosts.
    Full(Option<u32>),
    /// A torus with so many hosts in each dimension. Numbers count in the first dimension fastest.
    Torus(Vec<u32>),
    /// A mesh: a torus without the links from the last host of a dimension to the first.
    Mesh(Vec<u32>),
    /// A hypercube with so many dimensions.
    Hypercube(u32),
    /// A k-ary n-tree.
    FatTree(FatTree),
    /// A dragonfly.
    Dragonfly(Dragonfly),
    /// A list of links.
    Links(Vec<Link>),
}

/// Why a shape is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ShapeError {
    /// The text is no shape.
    #[error(
        "{0:?} is no topology: full, full:8, torus:2x2x2, mesh:4x4, hypercube:4, fattree:4x3, \
         dragonfly:2, dragonfly:4,2,2, links:0-1,1-2 or the path of a file"
    )]
    Unknown(String),
    /// The torus, mesh or hypercube has an empty dimension, or too many dimensions or hosts.
    #[error(
        "a torus, mesh or hypercube has 1 to {DIMENSIONS_MAX} dimensions of 1 host or more, \
         {HOSTS_MAX} in all"
    )]
    Grid,
    /// The numbers of a full mesh are out of range.
    #[error("a full mesh has 1 to {FULL_MAX} hosts")]
    Full,
    /// The numbers of a fat tree are out of range.
    #[error(
        "fattree:KxN has switches with K links down, 2 or more, on N levels, 1 or more, and K to \
         the power of N hosts, {HOSTS_MAX} at most"
    )]
    FatTree,
    /// The numbers of a dragonfly are out of range.
    #[error(
        "dragonfly:A,P,H has groups of A switches with P hosts and H links to other groups each, \
         and dragonfly:A,P,H,G has G groups, 1 to A x H + 1; all numbers are 1 or more and there \
         are at most {HOSTS_MAX} hosts; dragonfly:H stands for 2H,H,H"
    )]
    Dragonfly,
    /// A line does not name two nodes.
    #[error("line {line} of the links is {text:?}, not two different nodes as in `n0 n1` or `0 1`")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// The shape has another number of nodes than wanted.
    #[error("{shape} has {nodes} nodes, not {wanted}")]
    Nodes {
        /// The shape.
        shape: String,
        /// The shape's nodes.
        nodes: u32,
        /// The nodes wanted.
        wanted: u32,
    },
    /// A lab cannot have the shape.
    #[error(
        "{0} is no topology of a lab, which has up to {NODES_OF_LAB_MAX} nodes, no switches and \
         at most one link between two nodes; take full, torus:2x2x2, mesh:4x4, hypercube:4 or \
         links:0-1,1-2"
    )]
    NoLab(String),
    /// The graph is too large.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

fn node(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.parse().ok().filter(|node| *node < NODES_OF_LAB_MAX)
}

impl Shape {
    /// Parses a list of links: two nodes in each line, `n0 n1` or `0 1`. A `#` begins a comment.
    ///
    /// # Errors
    /// [`ShapeError::Line`].
    pub fn from_lines(text: &str) -> Result<Self, ShapeError> {
        let mut links = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let entry = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = entry.split_whitespace().collect();
            match words.as_slice() {
                [] => {}
                [a, b] if node(a) != node(b) && node(a).is_some() && node(b).is_some() => {
                    links.extend(node(a).zip(node(b)).map(|(a, b)| Link::between(a, b)));
                }
                _ => return Err(ShapeError::Line { line: number, text: line.to_owned() }),
            }
        }
        Ok(Self::Links(links))
    }

    /// The number of hosts, up to the highest that a list names. `None` for a full mesh without a
    /// number.
    #[must_use]
    pub fn nodes(&self) -> Option<u32> {
        match self {
            Self::Full(hosts) => *hosts,
            Self::Torus(sizes) | Self::Mesh(sizes) => Some(sizes.iter().product()),
            Self::Hypercube(dimensions) => Some(1 << dimensions),
            Self::FatTree(tree) => Some(tree.hosts()),
            Self::Dragonfly(dragonfly) => Some(dragonfly.all_hosts()),
            Self::Links(links) => links.iter().map(|Link(_, higher)| u32::from(*higher) + 1).max(),
        }
    }

    /// Generates the graph with `hosts` hosts. Without `hosts` it has those of the shape; a full
    /// mesh without a number has two then.
    ///
    /// # Errors
    /// [`ShapeError::Nodes`] if the shape has another number of hosts. A list may have fewer: the
    /// remaining ones have no links. [`ShapeError::Graph`] if the graph is too large.
    pub fn graph(&self, hosts: Option<u32>) -> Result<Graph, ShapeError> {
        let wanted = hosts.or(self.nodes()).unwrap_or(2);
        let own = self.nodes().unwrap_or(wanted);
        let fits = if matches!(self, Self::Links(_)) { own <= wanted } else { own == wanted };
        if !fits {
            return Err(ShapeError::Nodes { shape: self.to_string(), nodes: own, wanted });
        }
        let graph = match self {
            Self::Full(_) => generate::full(wanted),
            Self::Torus(sizes) => generate::grid(Grid::new(sizes.clone(), true)),
            Self::Mesh(sizes) => generate::grid(Grid::new(sizes.clone(), false)),
            Self::Hypercube(dimensions) => {
                generate::grid(Grid::new(vec![2; *dimensions as usize], false))
            }
            Self::FatTree(tree) => generate::fat_tree(*tree),
            Self::Dragonfly(dragonfly) => generate::dragonfly(*dragonfly),
            Self::Links(links) => list(wanted, links),
        };
        Ok(graph?)
    }

    /// The nodes and links of a lab. The number of nodes is as for [`Shape::graph`].
    ///
    /// # Errors
    /// Those of [`Shape::graph`], and [`ShapeError::NoLab`].
    pub fn topology(&self, nodes: Option<u16>) -> Result<Topology, ShapeError> {
        let wanted = nodes.map(u32::from).or(self.nodes()).unwrap_or(2);
        let no_lab = || ShapeError::NoLab(self.to_string());
        if wanted > u32::from(NODES_OF_LAB_MAX) {
            return Err(no_lab());
        }
        Topology::of(self.graph(nodes.map(u32::from))?).ok_or_else(no_lab)
    }
}

/// The graph of a list of links, each as often as the list has it.
fn list(hosts: u32, links: &[Link]) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, hosts, 0)?;
    for Link(a, b) in links {
        builder.join((*a).into(), (*b).into(), LinkClass::default())?;
    }
    builder.build(Layout::Irregular)
}

/// Numbers of which none is zero, and whose product is a number of hosts.
fn sizes(text: &str) -> Result<Option<Vec<u32>>, std::num::ParseIntError> {
    let sizes: Vec<u32> = text.split('x').map(str::parse).collect::<Result<_, _>>()?;
    let hosts = sizes.iter().try_fold(1_u32, |all, size| all.checked_mul(*size));
    let fits = hosts.is_some_and(|hosts| (1..=HOSTS_MAX).contains(&hosts));
    Ok((fits && sizes.len() <= DIMENSIONS_MAX).then_some(sizes))
}

fn fat_tree(arity: u32, levels: u32) -> Result<Shape, ShapeError> {
    let hosts = arity.checked_pow(levels).filter(|hosts| *hosts <= HOSTS_MAX);
    let is_valid = hosts.is_some() && arity >= 2 && levels >= 1;
    let tree = FatTree { arity, levels };
    is_valid.then_some(Shape::FatTree(tree)).ok_or(ShapeError::FatTree)
}

fn dragonfly(numbers: &[u32]) -> Result<Shape, ShapeError> {
    let (switches, hosts, globals, groups) = match *numbers {
        [globals] => (globals.saturating_mul(2), globals, globals, None),
        [switches, hosts, globals] => (switches, hosts, globals, None),
        [switches, hosts, globals, groups] => (switches, hosts, globals, Some(groups)),
        _ => return Err(ShapeError::Dragonfly),
    };
    let most = switches.saturating_mul(globals).saturating_add(1);
    let groups = groups.unwrap_or(most);
    let all = [switches, hosts, groups].iter().try_fold(1_u32, |all, more| all.checked_mul(*more));
    let is_valid =
        all.is_some_and(|all| (1..=HOSTS_MAX).contains(&all)) && globals >= 1 && groups <= most;
    let shape = Shape::Dragonfly(Dragonfly { switches, hosts, globals, groups });
    is_valid.then_some(shape).ok_or(ShapeError::Dragonfly)
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Parses the text that `Display` writes, and `dragonfly:H`. Does not read the file of a path.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let unknown = || ShapeError::Unknown(text.to_owned());
        let grid = |text: &str, shape: fn(Vec<u32>) -> Self| {
            let sizes = sizes(text).map_err(|_| unknown())?;
            sizes.map(shape).ok_or(ShapeError::Grid)
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        match text.split_once(':') {
            None if text == "full" => Ok(Self::Full(None)),
            Some(("full", hosts)) => {
                let hosts = number(hosts)?;
                let fits = (1..=FULL_MAX).contains(&hosts);
                fits.then_some(Self::Full(Some(hosts))).ok_or(ShapeError::Full)
            }
            Some(("torus", text)) => grid(text, Self::Torus),
            Some(("mesh", text)) => grid(text, Self::Mesh),
            Some(("hypercube", dimensions)) => {
                let dimensions = number(dimensions)?;
                let fits = (1..=16).contains(&dimensions);
                fits.then_some(Self::Hypercube(dimensions)).ok_or(ShapeError::Grid)
            }
            Some(("fattree", numbers)) => {
                let (arity, levels) = numbers.split_once('x').ok_or_else(unknown)?;
                fat_tree(number(arity)?, number(levels)?)
            }
            Some(("dragonfly", numbers)) => {
                let numbers = numbers.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
                dragonfly(&numbers)
            }
            Some(("links", links)) => {
                let pairs = links.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
                    let (a, b) = pair.split_once('-')?;
                    Some(Link::between(node(a)?, node(b)?))
                });
                pairs.collect::<Option<_>>().map(Self::Links).ok_or_else(unknown)
            }
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |sizes: &[u32]| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join("x");
        match self {
            Self::Full(None) => f.write_str("full"),
            Self::Full(Some(hosts)) => write!(f, "full:{hosts}"),
            Self::Torus(sizes) => write!(f, "torus:{}", joined(sizes)),
            Self::Mesh(sizes) => write!(f, "mesh:{}", joined(sizes)),
            Self::Hypercube(dimensions) => write!(f, "hypercube:{dimensions}"),
            Self::FatTree(FatTree { arity, levels }) => write!(f, "fattree:{arity}x{levels}"),
            Self::Dragonfly(Dragonfly { switches, hosts, globals, groups }) => {
                write!(f, "dragonfly:{switches},{hosts},{globals},{groups}")
            }
            Self::Links(links) => {
                let links: Vec<String> =
                    links.iter().map(|Link(a, b)| format!("{a}-{b}")).collect();
                write!(f, "links:{}", links.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn graph(text: &str) -> Graph {
        text.parse::<Shape>().expect("a shape").graph(None).expect("a graph")
    }

    #[test]
    fn parsing_reverses_display() {
        for text in [
            "full",
            "full:7",
            "torus:2x2x2",
            "torus:5",
            "mesh:4x3",
            "hypercube:3",
            "fattree:4x3",
            "dragonfly:4,2,2,9",
            "links:0-1,1-2",
            "links:",
        ] {
            assert_eq!(text.parse::<Shape>().map(|shape| shape.to_string()), Ok(text.into()));
        }
        for text in [
            "",
            "ring",
            "torus",
            "torus:",
            "torus:2x",
            "links:0",
            "links:0-9999",
            "a/b",
            "full:x",
            "fattree:4",
            "dragonfly:",
            "mesh:-1",
        ] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::Unknown(text.into())), "{text:?}");
        }
        for text in ["torus:0", "torus:2x0", "torus:70000", "mesh:300x300", "hypercube:17"] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::Grid), "{text:?}");
        }
        for text in ["fattree:1x3", "fattree:4x0", "fattree:300x3"] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::FatTree), "{text:?}");
        }
        for text in ["dragonfly:0", "dragonfly:4,2", "dragonfly:4,2,2,10", "dragonfly:90000"] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::Dragonfly), "{text:?}");
        }
        assert_eq!("full:3000".parse::<Shape>(), Err(ShapeError::Full));
        let balanced = "dragonfly:2".parse::<Shape>().map(|shape| shape.to_string());
        assert_eq!(balanced, Ok("dragonfly:4,2,2,9".into()));
    }

    #[test]
    fn a_list_of_links_is_parsed() {
        let shape = Shape::from_lines("# three in a row\nn0 n1\n\n2 1 # the last\n");
        assert_eq!(shape, Ok(Shape::Links(vec![Link(0, 1), Link(1, 2)])));
        let wrong = Shape::from_lines("0 1\n0 1 2\n");
        assert_eq!(wrong, Err(ShapeError::Line { line: 2, text: "0 1 2".into() }));
        let looped = Shape::from_lines("0 1\nn2 2\n");
        assert_eq!(looped, Err(ShapeError::Line { line: 2, text: "n2 2".into() }));
    }

    #[test]
    fn a_torus_has_two_links_in_each_dimension_longer_than_two() {
        let links = |text: &str| graph(text).links().count();
        assert_eq!(links("torus:2x2x2"), 12);
        assert_eq!(links("torus:3x3x3"), 81);
        assert_eq!(links("torus:1"), 0);
        assert_eq!(links("torus:4x2"), 12);
        assert_eq!(links("mesh:4x2"), 10);
        assert_eq!(links("hypercube:4"), 32);
        assert_eq!(links("full:5"), 10);
    }

    #[test]
    fn every_shape_is_connected_and_has_the_diameter_of_its_kind() {
        let diameter = |text: &str| {
            let graph = graph(text);
            let farthest = |host| graph.hops(host).into_iter().map(|far| far.expect("a way")).max();
            graph.hosts().filter_map(farthest).max()
        };
        assert_eq!(diameter("torus:5x4"), Some(4));
        assert_eq!(diameter("mesh:5x4"), Some(7));
        assert_eq!(diameter("hypercube:5"), Some(5));
        assert_eq!(diameter("full:9"), Some(1));
        assert_eq!(diameter("fattree:3x3"), Some(6));
        // Host, switch, gateway, gateway, switch, host.
        assert_eq!(diameter("dragonfly:2"), Some(5));
        assert_eq!(diameter("dragonfly:4,2,2,4"), Some(5));
    }

    #[test]
    fn every_pair_of_groups_of_a_dragonfly_has_as_many_links() {
        let graph = graph("dragonfly:4,1,2,5");
        let Layout::Dragonfly(dragonfly) = graph.layout() else { panic!("a dragonfly") };
        let mut links = std::collections::BTreeMap::new();
        for (a, b, _) in graph.links() {
            let groups = (dragonfly.group(a.0), dragonfly.group(b.0));
            if groups.0 != groups.1 {
                *links.entry((groups.0.min(groups.1), groups.0.max(groups.1))).or_insert(0) += 1;
            }
        }
        assert_eq!(links.len(), 10);
        assert!(links.values().all(|count| *count == 2), "{links:?}");
    }

    #[test]
    fn the_largest_torus_is_compact() {
        let graph = graph("torus:32x32x64");
        assert_eq!((graph.vertices(), graph.channels()), (65_536, 393_216));
        assert_eq!(graph.hops(0).into_iter().flatten().max(), Some(64));
    }

    #[test]
    fn the_number_of_nodes_has_to_fit() {
        let shape: Shape = "torus:2x2".parse().expect("a shape");
        let error = shape.topology(Some(5)).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(error, Err("torus:2x2 has 4 nodes, not 5".into()));
        let row: Shape = "links:0-1".parse().expect("a shape");
        assert_eq!(row.topology(Some(3)).map(|topology| topology.nodes()), Ok(3));
        assert!(row.topology(Some(1)).is_err());
        assert_eq!(Shape::Full(None).topology(None).map(|topology| topology.nodes()), Ok(2));
    }

    #[test]
    fn a_lab_has_no_switches_and_few_nodes() {
        for text in ["fattree:2x2", "dragonfly:1", "torus:5000", "mesh:65x64"] {
            let shape: Shape = text.parse().expect("a shape");
            assert_eq!(shape.topology(None), Err(ShapeError::NoLab(shape.to_string())), "{text}");
        }
        let twice: Shape = "links:0-1,0-1".parse().expect("a shape");
        assert_eq!(twice.topology(None), Err(ShapeError::NoLab(twice.to_string())));
        assert_eq!(twice.graph(None).map(|graph| graph.links().count()), Ok(2));
        let looped: Shape = "links:0-1,1-1".parse().expect("a shape");
        assert_eq!(looped.topology(None), Err(ShapeError::Graph(GraphError::Loop(1))));
    }

    proptest! {
        #[test]
        fn any_text_is_a_shape_or_an_error(
            text in "(torus:|links:|mesh:|fattree:|dragonfly:|full:|hypercube:)[0-9nx,-]{0,8}"
        ) {
            if let Ok(shape) = text.parse::<Shape>() {
                prop_assert_eq!(shape.to_string().parse(), Ok(shape.clone()));
                if shape.nodes().is_none_or(|nodes| nodes <= 512)
                    && let Ok(topology) = shape.topology(None)
                {
                    let far = topology.hops(0);
                    prop_assert_eq!(far.len(), usize::from(topology.nodes()));
                }
            }
        }
    }
}
