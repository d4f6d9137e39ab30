//! Layer 0: hosts, switches and the links between them.
//!
//! - [`Graph`]: vertices with ports, and links between ports, some of which are cut.
//! - [`layout`]: the regular forms of graphs, from which routes are computed.
//! - [`shape`]: graphs by name, as `torus:8x8x8`, and how each is generated.
//! - [`mod@file`]: graphs in TOML. [`graphml`]: graphs in GraphML.
//! - [`export`]: graphs as text for Graphviz, JSON and TOML.
//! - [`difference`]: links that are missing, extra or miswired against another graph.
//! - [`Topology`]: the nodes and links of a lab.
#![forbid(unsafe_code)]

pub mod difference;
pub mod export;
pub mod file;
mod generate;
mod graph;
pub mod graphml;
mod lab;
pub mod layout;
pub mod shape;

pub use graph::{
    End, Graph, GraphBuilder, GraphError, Kind, LinkClass, PORTS_MAX, Port, VERTICES_MAX, Vertex,
};
pub use lab::{Link, NoLink, Topology};
pub use layout::Layout;
pub use shape::{Shape, ShapeError};
