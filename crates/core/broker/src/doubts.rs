//! Silent peers of which the host says that they are stopped.
//!
//! A process that a signal, a debugger or a freezer has stopped answers nobody, and is there all
//! the same. The broker of its host can tell, and is asked before a peer is given up for its
//! silence.
//!
//! # Invariant
//! A broker answers the other end of a meeting alone, and only if the process is stopped.

use weft_fabric::{EndpointAddress, NodeId, Vpid};
use weft_wire::endpoint_control::{Doubt, Stands};

use crate::NodeMessage;
use crate::ports::address;
use crate::state::{Asker, Outgoing, State};

/// Tells whether the process with this number is stopped.
pub type IsStopped = fn(u32) -> bool;

impl State {
    /// An endpoint hears nothing of a peer.
    pub(crate) fn doubt(&mut self, asker: Asker, ask: Doubt, out: &mut Vec<Outgoing>) {
        let Doubt { vpid, node, peer } = ask;
        let with = address(node, peer);
        let own = self.plugged(asker, vpid).and_then(|own| own.met.get(&with));
        let Some(secret) = own.map(|meeting| meeting.secret) else { return };
        if with.node != self.node {
            return self.tell_node(with.node, NodeMessage::Doubt { from: vpid, to: peer, secret });
        }
        if self.stands(peer, address(self.node.0, vpid), secret) {
            self.tell_stands(vpid, with, secret, out);
        }
    }

    /// An endpoint of another node hears nothing of one here.
    pub(crate) fn doubted(&mut self, node: NodeId, from: u16, to: u16, secret: [u8; 16]) {
        if self.stands(to, EndpointAddress::new(node, Vpid(from)), secret) {
            self.tell_node(node, NodeMessage::Stands { from: to, to: from, secret });
        }
    }

    /// Tells an endpoint that its peer is stopped.
    pub(crate) fn tell_stands(
        &self,
        vpid: u16,
        with: EndpointAddress,
        secret: [u8; 16],
        out: &mut Vec<Outgoing>,
    ) {
        if let Some(entry) = self.entry(vpid)
            && entry.met.get(&with).is_some_and(|meeting| meeting.secret == secret)
        {
            let (node, peer) = (with.node.0, with.vpid.0);
            out.extend(entry.news_of_ports(Stands { vpid, node, peer }));
        }
    }

    /// Whether an endpoint of this node is stopped that has met another one.
    fn stands(&self, vpid: u16, with: EndpointAddress, secret: [u8; 16]) -> bool {
        self.entry(vpid).is_some_and(|entry| {
            let met = entry.met.get(&with);
            met.is_some_and(|met| met.secret == secret) && (self.is_stopped)(entry.pid)
        })
    }
}
