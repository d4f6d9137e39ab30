//! The network of the hosts that joined: drives the agent and the manager of this one.
//!
//! The hosts are one full mesh over the network under them. Who manages is said by the lease of the
//! fabric ([`Fabric::lead`]): etcd's, or that of the first daemon. While its holder is away, routes
//! stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::NodeId;
use weft_fabric_manager::Hosts;
use weft_routing::Routes;
use weft_routing::multicast::BROADCAST;
use weft_routing::tables::{Entry, Layer, Side};
use weft_topology::{Graph, Port};

use super::Outbox;
use crate::fabric::Fabric;
use crate::lab::{manager_status, tables};
use crate::status::{FabricNodeStatus, NetworkManager, NetworkNode, NetworkStatus, NetworkTables};

/// The pause between two looks at the lease and at what is due.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The part of this host.
pub struct HostsDriver {
    hosts: Hosts,
    fabric: Arc<Fabric>,
    began: Instant,
    due: Instant,
}

impl HostsDriver {
    /// The host with this number. `None` for a number that is no port.
    pub fn new(fabric: Arc<Fabric>, node: NodeId, now: Instant) -> Option<Self> {
        let own = Port::try_from(node.0).ok()?;
        Some(Self { hosts: Hosts::new(own), fabric, began: now, due: now })
    }

    /// Another host is up, or down.
    pub fn link(&mut self, node: NodeId, is_up: bool) {
        if let Ok(port) = Port::try_from(node.0) {
            self.hosts.link(port, is_up);
        }
    }

    /// A packet of another host came.
    pub fn receive(&mut self, node: NodeId, bytes: &[u8], now: Instant, out: &mut Outbox) {
        let Ok(port) = Port::try_from(node.0) else { return };
        let now = self.milliseconds(now);
        send(self.hosts.receive(port, bytes, now), out);
    }

    /// Looks at the lease, and does what is due.
    pub fn tick(&mut self, now: Instant, out: &mut Outbox) {
        self.due = now + LOOK_EVERY;
        let now = self.milliseconds(now);
        let lease = self.fabric.lead().map(|(term, lasts)| {
            let until = now + u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX / 2);
            // The first daemon alone manages, so that it may take any term. One of before its
            // clock was set back may be higher. A holder of etcd's lease is fenced off instead.
            let seen = self.hosts.term_seen();
            let is_stale = self.fabric.is_first() && term < seen;
            (if is_stale { seen + 1 } else { term }, until)
        });
        self.hosts.lead(lease);
        send(self.hosts.tick(now), out);
    }

    /// When [`HostsDriver::tick`] is due.
    pub fn due(&self) -> Instant {
        self.due
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.began);
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// The network, as far as this host knows it: the host that manages knows all tables, and
    /// another one its own. `known` are the hosts of the fabric.
    pub fn describe(&self, known: Vec<FabricNodeStatus>) -> NetworkStatus {
        let routes = self.hosts.manager().and_then(|(manager, _)| manager.routes());
        let mut by_number = BTreeMap::new();
        for host in known {
            if let Some(number) = host.number.and_then(|number| Port::try_from(number).ok()) {
                by_number.insert(number, host);
            }
        }
        let count = by_number.keys().next_back().map_or(0, |last| last + 1);
        let agent = self.hosts.agent();
        let (mut names, mut nodes) = (BTreeSet::new(), Vec::new());
        for number in 0..count {
            let host = by_number.remove(&number);
            let name = host.as_ref().and_then(|host| host.name.clone());
            let name = name.filter(|name| names.insert(name.clone()));
            let is_own = number == self.hosts.own();
            let managed = routes.filter(|(_, graph)| u32::from(number) < graph.vertices());
            nodes.push(NetworkNode {
                name: name.unwrap_or_else(|| format!("number-{number}")),
                ports: count,
                number: Some(number),
                version: if is_own { agent.version() } else { None },
                tables: match managed {
                    Some(known) => tables_of(known, number),
                    None if is_own => tables(agent),
                    None => NetworkTables::default(),
                },
                host,
            });
        }
        let links = (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
        let links = links.map(|(a, b)| {
            let is_cut = match routes {
                Some((_, graph)) => graph.far(a.into(), b).is_none(),
                None if a == self.hosts.own() => !agent.has_link(b),
                None if b == self.hosts.own() => !agent.has_link(a),
                // Its ends tell the host that manages.
                None => false,
            };
            (a.into(), b, b.into(), a, is_cut)
        });
        NetworkStatus { links: links.collect(), nodes, managers: vec![self.manager()] }
    }

    fn manager(&self) -> NetworkManager {
        if let Some((manager, term)) = self.hosts.manager() {
            return manager_status(self.hosts.own().into(), term, manager);
        }
        let agent = self.hosts.agent();
        // Orders may come by other hosts. The last port has the number of the one that manages.
        let seat = agent.way_to_manager().and_then(|way| way.last().copied());
        let is_there = seat.is_some_and(|seat| agent.has_link(seat));
        NetworkManager {
            seat: seat.map_or(u32::MAX, u32::from),
            term: agent.term(),
            standing: if is_there { "elsewhere" } else { "away" }.to_owned(),
            version: None,
            reason: String::new(),
        }
    }
}

fn send(packets: Vec<(Port, Vec<u8>)>, out: &mut Outbox) {
    for (port, bytes) in packets {
        out.send_to_node(NodeId(port.into()), bytes);
    }
}

/// The tables that the manager of this host has loaded at another one.
fn tables_of((routes, _): (&Routes, &Graph), number: Port) -> NetworkTables {
    let tables = routes.tables();
    let bits = |row: &[Entry]| row.iter().map(|entry| entry.bits()).collect::<Vec<_>>();
    let rows = |layer: Option<&Layer<Entry>>| {
        layer
            .map(|layer| (bits(layer.global(number.into())), bits(layer.local(number.into()))))
            .unwrap_or_default()
    };
    NetworkTables {
        side: Some(u8::from(tables.side() == Side::B)),
        base_vcs: tables.vc_of(Side::A),
        layers: [rows(tables.base()), rows(tables.plane(Side::A)), rows(tables.plane(Side::B))],
        broadcast: tables.multicast().forward(BROADCAST, number.into(), None).collect(),
    }
}
