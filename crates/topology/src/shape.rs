//! Shapes of a topology, as users write them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::{Link, Topology};

/// Dimensions of a torus at most: Extoll has three (003 section 3).
const DIMENSIONS_MAX: usize = 6;
/// Nodes of a shape at most. It bounds the memory that a mistyped number takes.
const NODES_MAX: u16 = 4_096;

/// The links of a topology.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Every node has a link to every other node.
    Full,
    /// A torus with so many nodes in each dimension. Node numbers count in the first dimension
    /// fastest.
    Torus(Vec<u16>),
    /// A list of links.
    Links(Vec<Link>),
}

/// Why a shape is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ShapeError {
    /// The text is no shape.
    #[error(
        "{0:?} is no topology: full, torus:2x2x2, links:0-1,1-2 or the path of a file with two \
             nodes in each line"
    )]
    Unknown(String),
    /// The torus has an empty dimension, or too many dimensions or nodes.
    #[error("a torus has 1 to {DIMENSIONS_MAX} dimensions of 1 node or more, {NODES_MAX} in all")]
    Torus,
    /// A line does not name two nodes.
    #[error("line {line} of the links is {text:?}, not two nodes as in `n0 n1` or `0 1`")]
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
        nodes: u16,
        /// The nodes wanted.
        wanted: u16,
    },
}

fn node(text: &str) -> Option<u16> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.parse().ok().filter(|node| *node < NODES_MAX)
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
                [a, b] if node(a).is_some() && node(b).is_some() => {
                    links.extend(node(a).zip(node(b)).map(|(a, b)| Link::between(a, b)));
                }
                _ => return Err(ShapeError::Line { line: number, text: line.to_owned() }),
            }
        }
        Ok(Self::Links(links))
    }

    /// The number of nodes, up to the highest that a list names. `None` for a full shape, which
    /// fits any.
    #[must_use]
    pub fn nodes(&self) -> Option<u16> {
        match self {
            Self::Full => None,
            Self::Torus(sizes) => Some(sizes.iter().product()),
            Self::Links(links) => links.iter().map(|Link(_, higher)| higher + 1).max(),
        }
    }

    /// Makes the topology with `nodes` nodes. Without `nodes` it has those of the shape; a full
    /// shape has two then.
    ///
    /// # Errors
    /// [`ShapeError::Nodes`] if the shape has another number of nodes. A list may have fewer: the
    /// remaining nodes have no links.
    pub fn topology(&self, nodes: Option<u16>) -> Result<Topology, ShapeError> {
        let wanted = nodes.or(self.nodes()).unwrap_or(2);
        let own = self.nodes().unwrap_or(wanted);
        let fits = if matches!(self, Self::Links(_)) { own <= wanted } else { own == wanted };
        if !fits {
            return Err(ShapeError::Nodes { shape: self.to_string(), nodes: own, wanted });
        }
        Ok(match self {
            Self::Full => {
                let links = (0..wanted).flat_map(|b| (0..b).map(move |a| Link(a, b)));
                Topology::new(wanted, links)
            }
            Self::Torus(sizes) => Topology::new(wanted, torus(sizes)),
            Self::Links(links) => Topology::new(wanted, links.iter().copied()),
        })
    }
}

/// The links of a torus: each node has a link to the next in each dimension, and the last to the
/// first.
fn torus(sizes: &[u16]) -> Vec<Link> {
    let nodes: u16 = sizes.iter().product();
    let mut links = Vec::new();
    let mut stride = 1;
    for size in sizes {
        for node in 0..nodes {
            let place = node / stride % size;
            let next = node - place * stride + (place + 1) % size * stride;
            links.push(Link::between(node, next));
        }
        stride *= size;
    }
    links
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Parses the text that `Display` writes. Does not read the file of a path.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let unknown = || ShapeError::Unknown(text.to_owned());
        match text.split_once(':') {
            None if text == "full" => Ok(Self::Full),
            Some(("torus", sizes)) => {
                let sizes: Vec<u16> = (sizes.split('x').map(str::parse))
                    .collect::<Result<_, _>>()
                    .map_err(|_| unknown())?;
                let product = sizes.iter().try_fold(1_u16, |all, size| all.checked_mul(*size));
                let fits = product.is_some_and(|nodes| (1..=NODES_MAX).contains(&nodes));
                let is_valid = fits && sizes.len() <= DIMENSIONS_MAX;
                if is_valid { Ok(Self::Torus(sizes)) } else { Err(ShapeError::Torus) }
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
        match self {
            Self::Full => f.write_str("full"),
            Self::Torus(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(u16::to_string).collect();
                write!(f, "torus:{}", sizes.join("x"))
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

    #[test]
    fn parsing_reverses_display() {
        for text in ["full", "torus:2x2x2", "torus:5", "links:0-1,1-2", "links:"] {
            assert_eq!(text.parse::<Shape>().map(|shape| shape.to_string()), Ok(text.into()));
        }
        for text in ["", "ring", "torus", "torus:", "torus:2x", "links:0", "links:0-9999", "a/b"] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::Unknown(text.into())), "{text:?}");
        }
        for text in ["torus:0", "torus:2x0", "torus:5000", "torus:300x300", "torus:1x1x1x1x1x1x1"] {
            assert_eq!(text.parse::<Shape>(), Err(ShapeError::Torus), "{text:?}");
        }
    }

    #[test]
    fn a_list_of_links_is_parsed() {
        let shape = Shape::from_lines("# three in a row\nn0 n1\n\n2 1 # the last\n");
        assert_eq!(shape, Ok(Shape::Links(vec![Link(0, 1), Link(1, 2)])));
        let wrong = Shape::from_lines("0 1\n0 1 2\n");
        assert_eq!(wrong, Err(ShapeError::Line { line: 2, text: "0 1 2".into() }));
    }

    #[test]
    fn a_torus_has_two_links_in_each_dimension_longer_than_two() {
        let links = |text: &str| {
            let shape = text.parse::<Shape>().expect("a shape");
            shape.topology(None).expect("the shape's own nodes").links().count()
        };
        assert_eq!(links("torus:2x2x2"), 12);
        assert_eq!(links("torus:3x3x3"), 81);
        assert_eq!(links("torus:1"), 0);
        assert_eq!(links("torus:4x2"), 12);
    }

    #[test]
    fn the_number_of_nodes_has_to_fit() {
        let shape: Shape = "torus:2x2".parse().expect("a shape");
        let error = shape.topology(Some(5)).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(error, Err("torus:2x2 has 4 nodes, not 5".into()));
        let row: Shape = "links:0-1".parse().expect("a shape");
        assert_eq!(row.topology(Some(3)).map(|topology| topology.nodes()), Ok(3));
        assert!(row.topology(Some(1)).is_err());
        assert_eq!(Shape::Full.topology(None).map(|topology| topology.nodes()), Ok(2));
    }

    proptest! {
        #[test]
        fn any_text_is_a_shape_or_an_error(text in "(torus:|links:|)[0-9nx,-]{0,12}") {
            if let Ok(shape) = text.parse::<Shape>()
                && let Ok(topology) = shape.topology(None)
            {
                let far = topology.hops(0);
                prop_assert_eq!(far.len(), usize::from(topology.nodes()));
                prop_assert_eq!(shape.to_string().parse(), Ok(shape));
            }
        }
    }
}
