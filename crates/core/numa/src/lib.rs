//! Layer 1: the memory nodes (NUMA) of a machine, and threads and pages that stay on one.
//!
//! [`Topology::read`] takes the directory in which the kernel describes its nodes, so a test gives
//! it a made-up one. A thread is bound to the processors of a node by [`bind_thread`]; memory comes
//! from a node by `weft_memory::MemoryOptions::on_node`. The policy is static: the caller chooses a
//! node for each thing that it places, once (NUMA-RDMA#numa-tuning: "explicit, static" placement;
//! scheduling by node for each operation was found too complicated there). May depend on the
//! operating system alone.
//!
//! Always true: a machine whose directory is missing, as one whose kernel knows no nodes, has one
//! node with all processors.
//!
//! ```
//! use weft_numa::Topology;
//!
//! let topology = Topology::of_host()?;
//! let near = topology.nodes()[0].processors();
//! assert!(!near.is_empty());
//! # Ok::<(), weft_numa::TopologyError>(())
//! ```
#![forbid(unsafe_code)]

mod bind;
mod residence;
mod set;
mod topology;

pub use bind::{allowed_processors, bind_thread};
pub use residence::{node_of_device, pages_by_node};
pub use set::{InvalidSet, ProcessorSet};
pub use topology::{Node, Topology, TopologyError};
