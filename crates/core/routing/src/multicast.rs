//! Multicast groups: 64 of them, of which number 63 is broadcast (EXTOLL-THESIS#5.4.5.2).
//!
//! A packet to a group goes along the part of the spanning tree that joins the members: a vertex
//! sends it on at every port of the group but the one where it came. Only members send to a group.
//!
//! # Invariants
//! - The links of every group are links of one tree, so the channels of all groups together have
//!   no cycle of dependencies.

use std::collections::{BTreeMap, BTreeSet};

use weft_topology::{Graph, Port, Vertex};

use crate::tree::Tree;

/// Multicast groups at most.
pub const GROUPS_MAX: u8 = 64;
/// The group of all hosts.
pub const BROADCAST: u8 = 63;

/// The ports of each vertex in one group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Group {
    first: Vec<u32>,
    ports: Vec<Port>,
}

impl Group {
    fn at(&self, vertex: Vertex) -> &[Port] {
        let place = |vertex: usize| self.first.get(vertex).map_or(0, |first| *first as usize);
        self.ports.get(place(vertex as usize)..place(vertex as usize + 1)).unwrap_or(&[])
    }
}

/// The members of each group, and the ports where vertices send on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Multicast {
    tree: Tree,
    members: BTreeMap<u8, BTreeSet<Vertex>>,
    groups: BTreeMap<u8, Group>,
}

impl Multicast {
    /// Broadcast alone, over `tree`.
    pub(crate) fn new(graph: &Graph, tree: Tree) -> Self {
        let mut own = Self { tree, members: BTreeMap::new(), groups: BTreeMap::new() };
        let all = graph.hosts().collect();
        own.groups.insert(BROADCAST, own.group(graph, &all));
        own
    }

    /// Broadcast alone, with the ports that each vertex has loaded.
    pub(crate) fn loaded(tree: Tree, ports: impl Iterator<Item = Vec<Port>>) -> Self {
        let mut group = Group { first: vec![0], ports: Vec::new() };
        for mut own in ports {
            group.ports.append(&mut own);
            group.first.push(u32::try_from(group.ports.len()).unwrap_or(u32::MAX));
        }
        Self { tree, members: BTreeMap::new(), groups: BTreeMap::from([(BROADCAST, group)]) }
    }

    /// The tree along which packets go.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Sets the members of a group. False if it is no group whose members can be set: its number is
    /// 63 or above.
    pub fn set_members(&mut self, graph: &Graph, group: u8, members: BTreeSet<Vertex>) -> bool {
        if group >= BROADCAST {
            return false;
        }
        if members.is_empty() {
            self.groups.remove(&group);
            self.members.remove(&group);
        } else {
            self.groups.insert(group, self.group(graph, &members));
            self.members.insert(group, members);
        }
        true
    }

    /// The members of a group but broadcast.
    pub fn members(&self) -> impl Iterator<Item = (u8, &BTreeSet<Vertex>)> {
        self.members.iter().map(|(group, members)| (*group, members))
    }

    /// True when the packets of a group are for the host `vertex`.
    #[must_use]
    pub fn is_member(&self, group: u8, vertex: Vertex) -> bool {
        group == BROADCAST
            || self.members.get(&group).is_some_and(|members| members.contains(&vertex))
    }

    /// The ports at which a vertex sends on a packet of a group that came at the port `arrived`, or
    /// starts there.
    pub fn forward(
        &self,
        group: u8,
        at: Vertex,
        arrived: Option<Port>,
    ) -> impl Iterator<Item = Port> + '_ {
        let ports = self.groups.get(&group).map_or(&[][..], |group| group.at(at));
        ports.iter().copied().filter(move |port| Some(*port) != arrived)
    }

    pub(crate) fn bytes(&self) -> usize {
        let group = |group: &Group| group.first.len() * 4 + group.ports.len() * 2;
        self.groups.values().map(group).sum()
    }

    /// The links of the tree that lie between members.
    fn group(&self, graph: &Graph, members: &BTreeSet<Vertex>) -> Group {
        let vertices = graph.vertices() as usize;
        // The members below each vertex, and of its whole tree.
        let mut below = vec![0_u32; vertices];
        for member in members.iter().filter(|member| (**member as usize) < vertices) {
            below[*member as usize] += 1;
        }
        for vertex in self.tree.order().iter().rev() {
            if let Some(branch) = self.tree.branch(*vertex) {
                below[branch.parent as usize] += below[*vertex as usize];
            }
        }
        let mut all = below.clone();
        let mut ports = vec![Vec::new(); vertices];
        for vertex in self.tree.order() {
            let Some(branch) = self.tree.branch(*vertex) else { continue };
            let (own, parent) = (*vertex as usize, branch.parent as usize);
            all[own] = all[parent];
            if below[own] > 0 && below[own] < all[own] {
                ports[own].push(branch.port);
                ports[parent].push(branch.parent_port);
            }
        }
        let mut group = Group { first: vec![0], ports: Vec::new() };
        for mut own in ports {
            own.sort_unstable();
            group.ports.append(&mut own);
            // There are fewer ports than numbers.
            group.first.push(u32::try_from(group.ports.len()).unwrap_or(u32::MAX));
        }
        group
    }
}
