//! Generates the graphs of regular forms, with ports as [`crate::layout`] describes them.

use crate::graph::{Graph, GraphBuilder, GraphError, Kind, LinkClass, PORTS_MAX, Port};
use crate::layout::{Dragonfly, FatTree, Grid, Layout};

/// A number of ports, checked against the bound before anything is made for them.
fn ports(ports: u32) -> Result<Port, GraphError> {
    Port::try_from(ports).map_err(|_| GraphError::Ports)
}

/// A torus, mesh or hypercube.
pub(crate) fn grid(grid: Grid) -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, grid.vertices(), grid.ports())?;
    for vertex in 0..grid.vertices() {
        for (dimension, size) in grid.sizes().iter().enumerate() {
            let place = grid.coordinate(vertex, dimension);
            let is_last = place + 1 == *size;
            // The last of two is not joined to the first a second time.
            if *size < 2 || is_last && (*size == 2 || !grid.wraps()) {
                continue;
            }
            let stride = grid.stride(dimension);
            let next = if is_last { vertex - place * stride } else { vertex + stride };
            let (up, down) = (grid.port(dimension, true), grid.port(dimension, false));
            builder.link((vertex, up), (next, down), LinkClass::default())?;
        }
    }
    builder.build(Layout::Grid(grid))
}

/// All hosts joined to all others.
pub(crate) fn full(hosts: u32) -> Result<Graph, GraphError> {
    let all = u64::from(hosts) * u64::from(hosts.saturating_sub(1));
    if all > PORTS_MAX as u64 {
        return Err(GraphError::Ports);
    }
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, hosts, ports(hosts.saturating_sub(1))?)?;
    for b in 0..hosts {
        for a in 0..b {
            builder.link((a, ports(b - 1)?), (b, ports(a)?), LinkClass::default())?;
        }
    }
    builder.build(Layout::Full)
}

/// A k-ary n-tree.
pub(crate) fn fat_tree(tree: FatTree) -> Result<Graph, GraphError> {
    let FatTree { arity, levels } = tree;
    let (hosts, width) = (tree.hosts(), tree.width());
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, hosts, 1)?;
    let switches = width.checked_mul(levels).ok_or(GraphError::Vertices)?;
    builder.vertices(Kind::Switch, switches, ports(arity.saturating_mul(2))?)?;
    let class = LinkClass::default();
    for host in 0..hosts {
        builder.link((host, 0), (hosts + host / arity, ports(host % arity)?), class)?;
    }
    for level in 0..levels.saturating_sub(1) {
        let digit = arity.pow(level);
        for switch in 0..width {
            let old = switch / digit % arity;
            for new in 0..arity {
                let above = switch - old * digit + new * digit;
                let lower = (hosts + level * width + switch, ports(arity + new)?);
                let upper = (hosts + (level + 1) * width + above, ports(old)?);
                builder.link(lower, upper, class)?;
            }
        }
    }
    builder.build(Layout::FatTree(tree))
}

/// A dragonfly.
pub(crate) fn dragonfly(dragonfly: Dragonfly) -> Result<Graph, GraphError> {
    let Dragonfly { switches, hosts, globals, groups } = dragonfly;
    let all_hosts = dragonfly.all_hosts();
    let all_switches = switches.saturating_mul(groups);
    let mut builder = GraphBuilder::new();
    builder.vertices(Kind::Host, all_hosts, 1)?;
    let own = hosts.saturating_add(switches - 1).saturating_add(globals);
    builder.vertices(Kind::Switch, all_switches, ports(own)?)?;
    let class = LinkClass::default();
    for host in 0..all_hosts {
        builder.link((host, 0), (all_hosts + host / hosts, ports(host % hosts)?), class)?;
    }
    for group in 0..groups {
        let vertex = |switch: u32| all_hosts + group * switches + switch;
        for b in 0..switches {
            for a in 0..b {
                let end_a = (vertex(a), ports(hosts + b - 1)?);
                builder.link(end_a, (vertex(b), ports(hosts + a)?), class)?;
            }
        }
    }
    let others = groups - 1;
    let first = hosts + switches - 1;
    let end = |group: u32, link: u32| {
        let vertex = all_hosts + group * switches + link / globals;
        ports(first + link % globals).map(|port| (vertex, port))
    };
    // Links in whole rounds over the other groups: each pair of groups has as many as any other.
    let rounds = (switches * globals).checked_div(others).unwrap_or(0);
    for round in 0..rounds {
        for group in 0..groups {
            for other in group + 1..groups {
                let (there, back) = (other - group - 1, groups + group - other - 1);
                let (a, b) = (round * others + there, round * others + back);
                builder.link(end(group, a)?, end(other, b)?, class)?;
            }
        }
    }
    builder.build(Layout::Dragonfly(dragonfly))
}
