//! Faults at the flow level: links that are cut or slow, nodes that crash, and new routes.
//!
//! # Invariant
//! A flow stands still exactly while a link of its path is down.

use weft_routing::Route;
use weft_topology::{Graph, Port, Vertex};

use super::{Active, Ending, FlowNetwork, capacity};
use crate::arena::index;
use crate::settings::{LinkModel, SettingsError};

impl FlowNetwork {
    /// Cuts the link at a port, in both directions. False if there is no such link.
    pub fn cut(&mut self, vertex: Vertex, port: Port) -> bool {
        let is_there = self.graph.set_cut(vertex, port, true);
        self.refresh(vertex, port);
        self.look_at_paths();
        is_there
    }

    /// Mends the link at a port. False if there is no such link.
    pub fn heal(&mut self, vertex: Vertex, port: Port) -> bool {
        let is_there = self.graph.set_cut(vertex, port, false);
        self.refresh(vertex, port);
        self.look_at_paths();
        is_there
    }

    /// Gives the link out of a port other parameters, in that direction. Damaged packets are not
    /// modelled at this level. False if there is no such port.
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
        let payload = f64::from(self.settings.mtu_bytes) / f64::from(self.settings.packet_bytes());
        self.capacities[index(link)] = capacity(&self.links, link) * payload;
        self.is_stale = true;
        Ok(true)
    }

    /// Stops a node: its links are down, and the flows from it and to it are lost. False if there
    /// is no such node, or it is down.
    pub fn crash(&mut self, vertex: Vertex) -> bool {
        if self.is_down.get(index(vertex)).copied() != Some(false) {
            return false;
        }
        self.is_down[index(vertex)] = true;
        self.refresh_all(vertex);
        self.lose_where(|active| active.flow.from == vertex || active.flow.to == vertex);
        true
    }

    /// Starts a node that crashed. False if it is not down.
    pub fn restart(&mut self, vertex: Vertex) -> bool {
        if self.is_down.get(index(vertex)).copied() != Some(true) {
            return false;
        }
        self.is_down[index(vertex)] = false;
        self.refresh_all(vertex);
        true
    }

    /// Whether a node is down.
    #[must_use]
    pub fn is_down(&self, vertex: Vertex) -> bool {
        self.is_down.get(index(vertex)).copied().unwrap_or(false)
    }

    /// The graph in which also the links of nodes that are down are cut.
    #[must_use]
    pub fn reachable(&self) -> Graph {
        let mut graph = self.graph.clone();
        let down = (0..).zip(&self.is_down).filter(|(_, is_down)| **is_down);
        down.for_each(|(vertex, _)| graph.set_isolated(vertex, true));
        graph
    }

    /// Has flows take another route from now on. Those that stand still go on over the new path;
    /// the ones that have none are lost. Others keep their path.
    pub fn set_route(&mut self, route: Box<dyn Route + Send>) {
        self.route = route;
        let still = self.flows.iter().filter(|(_, flow)| flow.stands_still);
        let still: Vec<u32> = still.map(|(number, _)| number).collect();
        for number in still {
            let path = self.path(self.flows.at(number).flow);
            let active = self.flows.at_mut(number);
            if let Ok((path, latency)) = path {
                (active.path, active.latency, active.stands_still) = (path, latency, false);
            }
        }
        self.lose_where(|active| active.stands_still);
    }

    fn lose_where(&mut self, is_lost: impl Fn(&Active) -> bool) {
        let lost = self.flows.iter().filter(|(_, flow)| is_lost(flow));
        let lost: Vec<u32> = lost.map(|(number, _)| number).collect();
        for number in lost {
            if let Some(active) = self.flows.remove(number) {
                self.put_end(&active, self.now, Ending::Lost);
            }
        }
        self.is_stale = true;
    }

    fn refresh_all(&mut self, vertex: Vertex) {
        (0..self.graph.ports(vertex)).for_each(|port| self.refresh(vertex, port));
        self.look_at_paths();
    }

    /// Decides anew whether the link at a port is up, in both directions.
    fn refresh(&mut self, vertex: Vertex, port: Port) {
        let Some((far, far_port)) = self.graph.wired(vertex, port) else { return };
        let is_up = !self.graph.is_cut(vertex, port)
            && !self.is_down[index(vertex)]
            && !self.is_down[index(far)];
        for link in [self.links.out_of(vertex, port), self.links.out_of(far, far_port)] {
            self.links.get_mut(link).is_up = is_up;
        }
    }

    /// Decides anew which flows stand still.
    fn look_at_paths(&mut self) {
        let links = &self.links;
        for flow in self.flows.iter_mut() {
            flow.stands_still = !flow.path.iter().all(|link| links.get(*link).is_up);
        }
        self.is_stale = true;
    }
}
