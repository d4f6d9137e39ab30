//! Connections between this host and others of the fabric.
//!
//! The daemon of the connecting end tells that of the accepting end of the offer. There it is an
//! offer as those of this host's programs, of a process that stands for the other host. When both
//! ends are there, the accepting program brings the address of its endpoint, and the daemons pass
//! that on.
//!
//! # Invariants
//! - An offer of another host is for a connection from an address of that host to one of this host
//!   ([`Hosts::is_of`]), so it replaces and matches none of this host's connections.
//! - Offers of another host have the places of a user of their own, whatever user they name.
//! - Each number in `sent` is one of an offer that waits. No pair of two hosts is kept.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::{pread, pwrite};
use weft_fabric::NodeId;
use weft_memory::Segment;
use weft_netdev::addresses::Addresses;
use weft_socket::hosts::Hosts;
use weft_socket::matchmaker::{Offer, Offerer, Outcome};
use weft_socket::tuple::{Route, Tuple};
use weft_socket::ways::Way;
use weft_wire::between_hosts::{ADDRESS_BYTES, BetweenHosts};
use weft_wire::control::Control;

use super::{Connections, LeasedFile};
use crate::networks::{self, Origin};
use crate::service::paths::SharedPaths;
use crate::service::ways::SharedWays;
use crate::service::{NodeEvent, Outbox, Outgoing, Peer, ProcessId};

/// Bytes of the memory in which a program gets the address of its peer.
const ADDRESS_MEMORY: usize = 4096;
/// Processes that stand for other hosts have numbers from here on, which programs never have.
const FOREIGN: u64 = 1 << 63;

/// The other hosts, and what they were asked.
pub(super) struct Others {
    hosts: Hosts,
    /// The addresses of this host. `None` until the first other host is there.
    addresses: Option<Addresses>,
    /// The cookie of the daemon's network namespace. `None` before Linux 5.14.
    network: Option<u64>,
    /// The offers that other hosts were told of, by the number that they were told.
    sent: HashMap<u64, (NodeId, Offerer<ProcessId>)>,
    numbers: HashMap<Offerer<ProcessId>, u64>,
    next: u64,
    /// Measurements of the ways to other hosts.
    ways: SharedWays,
    paths: SharedPaths,
}

/// The process that stands for another host.
const fn foreign(node: NodeId) -> ProcessId {
    ProcessId(FOREIGN | node.0 as u64)
}

/// The host that a process stands for.
fn node_of(process: ProcessId) -> Option<NodeId> {
    let node = u32::try_from(process.0 & !FOREIGN).ok();
    node.filter(|_| process.0 & FOREIGN != 0).map(NodeId)
}

/// The user for whom the offers of a host count. No program's user has such a number.
const fn counts_for(node: NodeId) -> u32 {
    u32::MAX - 1 - node.0
}

pub(super) const fn is_between_hosts(tuple: Tuple) -> bool {
    matches!(tuple.route, Route::Hosts { .. })
}

impl Others {
    /// Nothing is known of other hosts but their ways.
    pub(super) fn new(ways: SharedWays, paths: SharedPaths) -> Self {
        Self {
            hosts: Hosts::default(),
            addresses: None,
            network: None,
            sent: HashMap::new(),
            numbers: HashMap::new(),
            next: 0,
            ways,
            paths,
        }
    }

    /// Whether a connection leads to another host to which the fabric is not known to be faster.
    pub(super) fn is_faster_by_tcp(&self, tuple: Tuple, now: Instant) -> bool {
        let Route::Hosts { .. } = tuple.route else { return false };
        let node = self.hosts.host_of(tuple.local, tuple.remote);
        let at = self.ways.at(now);
        node.is_none_or(|node| self.ways.lock().way(node, at) == Way::Tcp)
    }

    /// Why a connection cannot move, if it leads to a host to which no data go.
    pub(super) fn why_cut(&self, tuple: Tuple) -> Option<String> {
        let Route::Hosts { .. } = tuple.route else { return None };
        let node = NodeId(self.hosts.host_of(tuple.local, tuple.remote)?);
        self.paths.why_cut(node).map(|_| {
            format!("no data go to node {node} over the fabric; `weft fabric nodes` says why")
        })
    }

    /// Tells all hosts of the addresses of this one if they changed.
    fn look(&mut self, out: &mut Outbox) {
        let Some(addresses) = &mut self.addresses else { return };
        if self.hosts.set_own(addresses.now()) {
            for node in self.hosts.nodes() {
                self.introduce(NodeId(node), out);
            }
        }
    }

    fn introduce(&self, node: NodeId, out: &mut Outbox) {
        let addresses = self.hosts.own().to_vec();
        out.send_to_node(node, BetweenHosts::Addresses { addresses }.emit());
    }

    fn up(&mut self, node: NodeId, out: &mut Outbox) {
        if self.addresses.is_none() {
            let opened = Addresses::of_all();
            self.addresses = opened.inspect_err(|error| tracing::warn!(%error, "addresses")).ok();
            self.network = networks::own();
        }
        self.look(out);
        self.hosts.up(node.0);
        self.introduce(node, out);
    }

    /// The tuple with its way to another host, if the connection leads to one.
    pub(super) fn route(&self, from: Peer, tuple: Tuple) -> Tuple {
        let Route::Namespaces { here, there } = tuple.route else { return tuple };
        let is_home = from.origin == Origin::Home && Some(here) == self.network && here == there;
        match self.hosts.host_of(tuple.local, tuple.remote) {
            Some(_) if is_home => Tuple { route: Route::Hosts { user: from.uid }, ..tuple },
            _ => tuple,
        }
    }

    /// Tells the other host of a connecting end.
    fn offer(&mut self, offerer: Offerer<ProcessId>, tuple: Tuple, out: &mut Outbox) {
        let Route::Hosts { user } = tuple.route else { return };
        let Some(node) = self.hosts.host_of(tuple.local, tuple.remote).map(NodeId) else { return };
        let (number, local, remote) = (self.next, tuple.local, tuple.remote);
        self.next += 1;
        self.sent.insert(number, (node, offerer));
        self.numbers.insert(offerer, number);
        out.send_to_node(node, BetweenHosts::Offer { number, user, local, remote }.emit());
    }

    /// An offer of this host is over. The other host is told, if it was told of the offer.
    pub(super) fn withdraw(&mut self, offerer: Offerer<ProcessId>, out: &mut Outbox) {
        let Some(number) = self.numbers.remove(&offerer) else { return };
        if let Some((node, _)) = self.sent.remove(&number) {
            out.send_to_node(node, BetweenHosts::Withdraw { number }.emit());
        }
    }

    /// A program is gone.
    pub(super) fn gone(&mut self, process: ProcessId, out: &mut Outbox) {
        let of = |offerer: &&Offerer<ProcessId>| offerer.process == process;
        let offerers: Vec<_> = self.numbers.keys().filter(of).copied().collect();
        offerers.into_iter().for_each(|offerer| self.withdraw(offerer, out));
    }

    /// The offer of which a host was told under a number; it is over with this.
    fn answered(&mut self, node: NodeId, number: u64) -> Option<Offerer<ProcessId>> {
        let (_, offerer) = *self.sent.get(&number).filter(|(asked, _)| *asked == node)?;
        self.sent.remove(&number);
        self.numbers.remove(&offerer);
        Some(offerer)
    }

    /// A host is away. Returns the offers of which it was told.
    fn down(&mut self, node: NodeId) -> Vec<Offerer<ProcessId>> {
        self.hosts.down(node.0);
        let over = self.sent.extract_if(|_, (asked, _)| *asked == node);
        let over: Vec<_> = over.map(|(_, (_, offerer))| offerer).collect();
        for offerer in &over {
            self.numbers.remove(offerer);
        }
        over
    }
}

impl Connections {
    /// A program's packet is about a connection that may lead to another host.
    pub(super) fn look_at_hosts(&mut self, out: &mut Outbox) {
        self.others.look(out);
    }

    /// A connecting end of this host waits for the accepting end on another one.
    pub(super) fn tell_host(
        &mut self,
        offerer: Offerer<ProcessId>,
        tuple: Tuple,
        out: &mut Outbox,
    ) {
        self.others.offer(offerer, tuple, out);
    }

    /// The accepting end of this host must bring its address.
    pub(super) fn want_address(&self, accepted: Offerer<ProcessId>, out: &mut Outbox) {
        let wanted = Control::WantedBetweenHosts { token: accepted.token };
        out.reply(accepted.process, &wanted);
    }

    /// The accepting end of this host brought its address for the end of another host.
    pub(super) fn pass_address(
        &mut self,
        connected: Offerer<ProcessId>,
        accepted: Offerer<ProcessId>,
        memory: &LeasedFile,
        out: &mut Outbox,
    ) {
        for end in [connected, accepted] {
            self.matchmaker.withdraw(end);
            self.sockets.remove(&end);
        }
        let mut address = [0; ADDRESS_BYTES];
        let read = pread(memory.as_fd(), &mut address, 0);
        let (Some(node), Ok(ADDRESS_BYTES)) = (node_of(connected.process), read) else { return };
        out.send_to_node(node, BetweenHosts::Lane { number: connected.token, address }.emit());
        if let Some(peer) = self.peers.get(&accepted.process) {
            out.event("between_hosts", *peer, || format!("an end of {node:?} gets the address"));
        }
    }

    /// Handles news of another host.
    pub(super) fn news_of_host(&mut self, event: NodeEvent, out: &mut Outbox) {
        match event {
            NodeEvent::Numbered(_) | NodeEvent::Cuts(_) => {}
            NodeEvent::Up(node) => self.others.up(node, out),
            NodeEvent::Down(node) => {
                self.matchmaker.process_gone(foreign(node));
                for offerer in self.others.down(node) {
                    self.matchmaker.withdraw(offerer);
                    self.sockets.remove(&offerer);
                }
            }
            NodeEvent::Message(node, bytes) => match BetweenHosts::parse(&bytes) {
                Some(message) => self.host_says(node, message, out),
                None => tracing::warn!(node = node.0, "a message about connections is none"),
            },
        }
    }

    fn host_says(&mut self, node: NodeId, message: BetweenHosts, out: &mut Outbox) {
        let by = |number| Offerer { process: foreign(node), token: number };
        match message {
            BetweenHosts::Addresses { addresses } => {
                self.others.hosts.claim(node.0, &addresses);
            }
            BetweenHosts::Withdraw { number } => self.matchmaker.withdraw(by(number)),
            BetweenHosts::Lane { number, address } => {
                if let Some(offerer) = self.others.answered(node, number) {
                    self.take_address(offerer, &address, out);
                }
            }
            BetweenHosts::Offer { number, user, local, remote } => {
                if !self.others.hosts.is_of(node.0, local, remote) {
                    return tracing::debug!(node = node.0, %local, %remote, "not that host's");
                }
                // The namespace is replaced by the route.
                let tuple = Tuple { route: Route::Hosts { user }, ..Tuple::new(0, local, remote) };
                let offered =
                    self.matchmaker.offer(by(number), counts_for(node), tuple, Offer::Connected);
                match offered {
                    Outcome::Wanted { accepted, .. } => self.want_address(accepted, out),
                    Outcome::Matched { connected, accepted, memory } => {
                        self.pass_address(connected, accepted, &memory, out);
                    }
                    Outcome::Waiting { .. } => {}
                    Outcome::Full { maximum } => {
                        tracing::debug!(node = node.0, maximum, "offers of a host wait");
                    }
                }
            }
        }
    }

    /// The connecting end of this host gets the address of the accepting end.
    fn take_address(
        &mut self,
        offerer: Offerer<ProcessId>,
        address: &[u8; ADDRESS_BYTES],
        out: &mut Outbox,
    ) {
        self.matchmaker.withdraw(offerer);
        self.sockets.remove(&offerer);
        let written = Segment::create_file("weft-address", ADDRESS_MEMORY).ok();
        let written = written.filter(|file| pwrite(file, address, 0) == Ok(ADDRESS_BYTES));
        // Without it the connection stays on TCP.
        let Some(memory) = written else { return };
        let bytes = Control::Matched { token: offerer.token, partner: None }.emit();
        let descriptors = vec![Arc::new(memory) as _];
        out.send(Outgoing { to: offerer.process, bytes, descriptors, wakeup: None });
        if let Some(peer) = self.peers.get(&offerer.process) {
            out.event("between_hosts", *peer, || "the address of the other end".to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
