//! Faults: links that are cut or slow, nodes that crash, and new routes.
//!
//! A packet is on one link at a time: the last that its head took. So it is lost with that link,
//! and a link before it, which its tail may still cross, can be cut without harm to it.

use std::collections::BTreeSet;

use weft_routing::Route;
use weft_topology::{Port, Vertex};

use crate::arena::index;
use crate::links::LinkId;
use crate::network::{Network, NetworkError};
use crate::packet::{LostBecause, Packet, PacketStage};
use crate::settings::{LinkModel, SettingsError};

impl Network {
    /// Cuts the link at a port, in both directions. Packets on it are lost; those that wait for it
    /// take another of their ways, or are lost if they have none. False if there is no such link.
    pub fn cut(&mut self, vertex: Vertex, port: Port) -> bool {
        if !self.graph.set_cut(vertex, port, true) {
            return false;
        }
        self.refresh(vertex, port);
        let links = self.both_ways(vertex, port);
        let now = self.now;
        self.lose_where(LostBecause::Cut, |packet| {
            links.contains(&packet.link) && packet.tail_at > now
        });
        let ends = [Some(vertex), self.graph.wired(vertex, port).map(|(far, _)| far)];
        self.reroute_at(|at| ends.contains(&Some(at)));
        true
    }

    /// Mends the link at a port. False if there is no such link.
    pub fn heal(&mut self, vertex: Vertex, port: Port) -> bool {
        let is_there = self.graph.set_cut(vertex, port, false);
        self.refresh(vertex, port);
        is_there
    }

    /// Gives the link out of a port other parameters, in that direction. False if there is no such
    /// port.
    ///
    /// # Errors
    /// [`SettingsError`] if the parameters are of no use.
    pub fn set_link(
        &mut self,
        vertex: Vertex,
        port: Port,
        model: LinkModel,
    ) -> Result<bool, SettingsError> {
        model.check()?;
        let Some(link) = self.graph.channel(vertex, port) else { return Ok(false) };
        self.links.set_model(link, model)?;
        Ok(true)
    }

    /// Stops a node: the packets in its router and on its links are lost, and so are the messages
    /// that it has not sent. False if there is no such node, or it is down.
    pub fn crash(&mut self, vertex: Vertex) -> bool {
        if self.is_down.get(index(vertex)).copied() != Some(false) {
            return false;
        }
        self.is_down[index(vertex)] = true;
        let mut out: BTreeSet<LinkId> = BTreeSet::new();
        for port in 0..self.graph.ports(vertex) {
            self.refresh(vertex, port);
            out.insert(self.links.out_of(vertex, port));
        }
        let own = self.links.host(vertex);
        out.extend(own.map(|host| self.links.ejection(host)));
        if let Some(host) = own {
            self.forget_messages(host);
        }
        let now = self.now;
        self.lose_where(LostBecause::Crash, |packet| {
            let leaves = out.contains(&packet.link);
            if leaves { packet.tail_at > now } else { packet.at == vertex }
        });
        let graph = &self.graph;
        let near = (0..graph.ports(vertex)).filter_map(|port| graph.wired(vertex, port));
        let near: BTreeSet<Vertex> = near.map(|(far, _)| far).collect();
        self.reroute_at(|at| near.contains(&at));
        true
    }

    /// Starts a node that crashed. False if it is not down.
    pub fn restart(&mut self, vertex: Vertex) -> bool {
        if self.is_down.get(index(vertex)).copied() != Some(true) {
            return false;
        }
        self.is_down[index(vertex)] = false;
        for port in 0..self.graph.ports(vertex) {
            self.refresh(vertex, port);
        }
        true
    }

    /// Has packets take another route from now on. Those that wait keep their ways.
    ///
    /// # Errors
    /// [`NetworkError::Channels`] if it needs more virtual channels than there are.
    pub fn set_route(&mut self, route: Box<dyn Route + Send>) -> Result<(), NetworkError> {
        let (needed, there) = (route.vcs(), self.links.per_class());
        if needed > there {
            return Err(NetworkError::Channels { needed, there });
        }
        self.route = route;
        Ok(())
    }

    /// The links of a port, out and in.
    fn both_ways(&self, vertex: Vertex, port: Port) -> Vec<LinkId> {
        let far = self.graph.wired(vertex, port);
        let ends = [Some((vertex, port)), far].into_iter().flatten();
        ends.map(|(vertex, port)| self.links.out_of(vertex, port)).collect()
    }

    /// Decides anew whether the link at a port is up, in both directions.
    fn refresh(&mut self, vertex: Vertex, port: Port) {
        let Some((far, _)) = self.graph.wired(vertex, port) else { return };
        let is_up = !self.graph.is_cut(vertex, port)
            && !self.is_down[index(vertex)]
            && !self.is_down[index(far)];
        for link in self.both_ways(vertex, port) {
            self.links.get_mut(link).is_up = is_up;
        }
    }

    /// Loses the packets that `is_lost` names.
    fn lose_where(&mut self, because: LostBecause, is_lost: impl Fn(&Packet) -> bool) {
        let all = self.packets.iter();
        let lost = all.filter(|(_, packet)| is_lost(packet));
        let lost: Vec<u32> = lost.map(|(number, _)| number).collect();
        for number in lost {
            let packet = self.packets.at_mut(number);
            self.links.harm_mut(packet.link).lost += 1;
            match packet.standing {
                PacketStage::Waiting { .. } => self.lose_packet(number, because),
                PacketStage::Moving => {
                    packet.standing = PacketStage::Lost(because);
                    let carried = packet.carried;
                    self.lose_message(carried, because);
                }
                PacketStage::Lost(_) => {}
            }
        }
    }

    /// Has the packets that wait in some routers look for their ways again.
    fn reroute_at(&mut self, is_there: impl Fn(Vertex) -> bool) {
        let all = self.packets.iter();
        let waiting = all.filter_map(|(number, packet)| match packet.standing {
            PacketStage::Waiting { entry, .. } if is_there(packet.at) => Some((number, entry)),
            _ => None,
        });
        let waiting: Vec<(u32, u32)> = waiting.collect();
        for (_, entry) in &waiting {
            self.waiting.leave(&mut self.links, *entry);
        }
        for (number, _) in waiting {
            self.packets.at_mut(number).standing = PacketStage::Moving;
            self.ready(number);
        }
    }

    fn forget_messages(&mut self, host: u32) {
        for class in 0..self.settings.classes {
            while let Some(number) = self.hosts[index(host)].take_first(&self.messages, class) {
                self.lose_message(number, LostBecause::Crash);
                self.forget_unsent(number);
            }
        }
    }
}
