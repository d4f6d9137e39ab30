//! The regular forms of graphs: which vertex stands where, and which port leads where.

use crate::graph::{Port, Vertex};

/// The regular form of a graph, from which routing computes paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// None is known.
    Irregular,
    /// A torus, a mesh or a hypercube.
    Grid(Grid),
    /// Every host has a link to every other: port `p` of host `v` leads to host `p` if `p < v`,
    /// otherwise to host `p + 1`.
    Full,
    /// A k-ary n-tree.
    FatTree(FatTree),
    /// A dragonfly.
    Dragonfly(Dragonfly),
}

/// Dimensions of a grid at most: those of a hypercube of 65,536 hosts.
pub const DIMENSIONS_MAX: usize = 16;

/// A torus or mesh. Vertex numbers count in the first dimension fastest.
///
/// A dimension has no port if its size is 1, one if it is 2, and two otherwise: the first leads
/// towards higher coordinates, the second towards lower ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grid {
    sizes: Vec<u32>,
    wraps: bool,
    strides: Vec<u32>,
    ports: Vec<Port>,
}

impl Grid {
    /// A grid of `sizes` that are 1 or more each. With `wraps` it is a torus.
    #[must_use]
    pub fn new(sizes: Vec<u32>, wraps: bool) -> Self {
        let mut strides = vec![1_u32];
        let mut ports = vec![0];
        for size in &sizes {
            strides.push(strides.last().map_or(1, |stride| stride.saturating_mul(*size)));
            let more = match size {
                0 | 1 => 0,
                2 => 1,
                _ => 2,
            };
            ports.push(ports.last().map_or(more, |first| first + more));
        }
        Self { sizes, wraps, strides, ports }
    }

    /// The size of each dimension.
    #[must_use]
    pub fn sizes(&self) -> &[u32] {
        &self.sizes
    }

    /// True for a torus: the last vertex of a dimension has a link to the first.
    #[must_use]
    pub fn wraps(&self) -> bool {
        self.wraps
    }

    /// The number of vertices.
    #[must_use]
    pub fn vertices(&self) -> Vertex {
        self.strides.last().copied().unwrap_or(1)
    }

    /// The distance between the numbers of neighbours in `dimension`.
    #[must_use]
    pub fn stride(&self, dimension: usize) -> u32 {
        self.strides[dimension]
    }

    /// The number of ports of each vertex.
    #[must_use]
    pub fn ports(&self) -> Port {
        self.ports.last().copied().unwrap_or(0)
    }

    /// The coordinate of `vertex` in `dimension`.
    #[must_use]
    pub fn coordinate(&self, vertex: Vertex, dimension: usize) -> u32 {
        vertex / self.strides[dimension] % self.sizes[dimension]
    }

    /// The port that leads to the next coordinate of `dimension`, up or down.
    #[must_use]
    pub fn port(&self, dimension: usize, is_up: bool) -> Port {
        let is_second = !is_up && self.sizes[dimension] > 2;
        self.ports[dimension] + Port::from(is_second)
    }

    /// The dimension and direction of a port. The one port of a dimension of size 2 counts as up.
    #[must_use]
    pub fn direction(&self, port: Port) -> (usize, bool) {
        let dimension = self.ports.partition_point(|first| *first <= port) - 1;
        (dimension, self.ports[dimension] == port)
    }
}

/// A k-ary n-tree: `k^n` hosts under `n` levels of `k^(n-1)` switches with `2k` ports.
///
/// Hosts have the first numbers. The switch `w` of level `l` (0 is next to the hosts) is vertex
/// `k^n + l * k^(n-1) + w`. Its ports 0 to `k - 1` lead down, those from `k` up. A switch of the
/// highest level has no link at its ports up. Port `k + i` of switch `w` on level `l` leads to the
/// switch of the next level whose number is `w` with digit `l` (base `k`, the lowest is 0) set to
/// `i`, and arrives there at the port that is the old digit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FatTree {
    /// The links down of a switch, and those up.
    pub arity: u32,
    /// The levels of switches.
    pub levels: u32,
}

impl FatTree {
    /// The number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.arity.saturating_pow(self.levels)
    }

    /// The number of switches of a level.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.arity.saturating_pow(self.levels.saturating_sub(1))
    }

    /// The level of a switch and its number within it; `None` for a host.
    #[must_use]
    pub fn switch(&self, vertex: Vertex) -> Option<(u32, u32)> {
        let number = vertex.checked_sub(self.hosts())?;
        Some((number / self.width(), number % self.width()))
    }
}

/// A dragonfly: groups of switches that all have links to each other, and between any two groups
/// one link or more.
///
/// Hosts have the first numbers: those of switch `r` are `r * p` to `r * p + p - 1`. Switch `r` of
/// all is vertex `hosts + r`, and of group `r / a`. Its ports 0 to `p - 1` lead to hosts, the next
/// `a - 1` to the other switches of the group in ascending order, and the last `h` to other groups:
/// link `j` of a group, at its switch `j / h`, leads to the group that is `j % (groups - 1) + 1`
/// further on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dragonfly {
    /// Switches of a group, `a`.
    pub switches: u32,
    /// Hosts of a switch, `p`.
    pub hosts: u32,
    /// Links of a switch to other groups, `h`.
    pub globals: u32,
    /// The number of groups: at most `a * h + 1`.
    pub groups: u32,
}

impl Dragonfly {
    /// The number of hosts of the whole network.
    #[must_use]
    pub fn all_hosts(&self) -> u32 {
        self.groups.saturating_mul(self.switches).saturating_mul(self.hosts)
    }

    /// The switch of all to which a vertex belongs: that of a host, or the switch itself.
    #[must_use]
    pub fn switch(&self, vertex: Vertex) -> u32 {
        vertex.checked_sub(self.all_hosts()).unwrap_or(vertex / self.hosts)
    }

    /// The group of a vertex.
    #[must_use]
    pub fn group(&self, vertex: Vertex) -> u32 {
        self.switch(vertex) / self.switches
    }
}
