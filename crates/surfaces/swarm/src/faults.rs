//! The faults of a run, their begin and their end.
//!
//! # Invariant
//! Every fault that begins ends: by itself, or when all is mended.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use weft_fabric::{EndpointAddress, NodeId};
use weft_network::LinkModel;
use weft_topology::{Port, Vertex};
use weft_transport_sim::Link;

use crate::plan::{Fault, one_of};
use crate::stage::{Stage, node};

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mend {
    Heal(Vertex, Port),
    CutAgain {
        vertex: Vertex,
        port: Port,
        times: u32,
    },
    Pace(Vertex, Port),
    Restart(Vertex),
    /// The clock of a host is right again.
    Clock(usize),
    /// A program takes events as usual.
    Resume(EndpointAddress),
    /// A program gets memory.
    Relieve(EndpointAddress),
}

impl<E> Stage<'_, E> {
    /// Begins a fault that has nothing to do with programs. False if it is one of a program.
    pub fn break_something(&mut self, fault: Fault, random: &mut ChaCha8Rng) -> bool {
        let links: Vec<_> = self.graph.links().map(|((vertex, port), ..)| (vertex, port)).collect();
        let (vertex, port) = one_of(random, &links);
        let end = self.world.now() + random.random_range(1_000..3_000_000);
        match fault {
            Fault::Cut => {
                self.cut(vertex, port);
                self.later(end, Mend::Heal(vertex, port));
            }
            Fault::Flap => {
                let times = random.random_range(2..6);
                self.later(self.world.now(), Mend::CutAgain { vertex, port, times });
            }
            Fault::Isolate => {
                let host = one_of(random, &self.hosts);
                for port in 0..self.graph.ports(host) {
                    self.cut(host, port);
                    self.later(end, Mend::Heal(host, port));
                }
            }
            Fault::Slow => {
                let (pace, link) = (self.usual.bits_per_second, self.settings.link);
                let slow = LinkModel { bits_per_second: pace / 100, ..self.usual };
                let link = Link { bits_per_second: link.bits_per_second / 100, ..link };
                self.set_pace((vertex, port), slow, link);
                self.later(end, Mend::Pace(vertex, port));
            }
            Fault::Lossy => {
                let damaged_per_million = random.random_range(1_000..500_000);
                let lossy = LinkModel { damaged_per_million, ..self.usual };
                // A private link sends damaged packets again, too, which takes longer.
                let link = Link { jitter_ns: 20_000, ..self.settings.link };
                self.set_pace((vertex, port), lossy, link);
                self.later(end, Mend::Pace(vertex, port));
            }
            Fault::Router => {
                let vertex = random.random_range(0..self.graph.vertices());
                if self.world.crash_router(vertex) {
                    self.stopped.push(vertex);
                    self.links_changed();
                    self.later(end, Mend::Restart(vertex));
                }
            }
            Fault::Manager => self.crash_manager(),
            Fault::Skew => {
                let host = random.random_range(0..self.hosts.len());
                let rate = one_of(random, &[500, 900, 999, 1_001, 1_100, 2_000]);
                self.set_clock_rate(host, rate);
                self.later(end, Mend::Clock(host));
            }
            Fault::Program | Fault::Sluggish | Fault::Pressure => return false,
        }
        self.faults += 1;
        true
    }

    /// Begins a fault of a program that goes on living.
    pub fn burden(&mut self, fault: Fault, address: EndpointAddress, random: &mut ChaCha8Rng) {
        let end = self.world.now() + random.random_range(1_000..1_000_000);
        self.faults += 1;
        if fault == Fault::Pressure {
            self.world.starve(address);
            return self.later(end, Mend::Relieve(address));
        }
        if random.random_bool(0.5) {
            self.world.pause(address);
        } else {
            self.world.slow_down(address, 10_000);
        }
        self.later(end, Mend::Resume(address));
    }

    fn later(&mut self, time: u64, mend: Mend) {
        self.count += 1;
        self.mends.insert((time, self.count), mend);
    }

    /// Ends the faults whose time has come.
    pub fn mend_due(&mut self) {
        while let Some(entry) = self.mends.first_entry() {
            if entry.key().0 > self.world.now() {
                return;
            }
            let mend = entry.remove();
            self.mend(mend);
        }
    }

    /// Ends all faults.
    pub fn mend_all(&mut self) {
        while let Some((_, mend)) = self.mends.pop_first() {
            let mend = match mend {
                Mend::CutAgain { vertex, port, .. } => Mend::Heal(vertex, port),
                other => other,
            };
            self.mend(mend);
        }
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Heal(vertex, port) => {
                self.graph.set_cut(vertex, port, false);
                if !self.world.heal_link(vertex, port)
                    && let Some([a, b]) = self.nodes_of(vertex, port)
                {
                    self.world.heal(a, b);
                }
                self.links_changed();
            }
            Mend::CutAgain { vertex, port, times } => {
                let now = self.world.now();
                if self.graph.is_cut(vertex, port) {
                    self.mend(Mend::Heal(vertex, port));
                    if times > 0 {
                        let times = times - 1;
                        self.later(now + 20_000, Mend::CutAgain { vertex, port, times });
                    }
                } else {
                    self.cut(vertex, port);
                    self.later(now + 10_000, Mend::CutAgain { vertex, port, times });
                }
            }
            Mend::Pace(vertex, port) => {
                self.set_pace((vertex, port), self.usual, self.settings.link);
            }
            Mend::Restart(vertex) => {
                self.stopped.retain(|stopped| *stopped != vertex);
                self.world.restart_router(vertex);
                self.links_changed();
            }
            Mend::Clock(host) => self.set_clock_rate(host, 1_000),
            Mend::Resume(address) => drop(self.world.resume(address)),
            Mend::Relieve(address) => drop(self.world.relieve(address)),
        }
    }

    fn cut(&mut self, vertex: Vertex, port: Port) {
        self.graph.set_cut(vertex, port, true);
        if !self.world.cut_link(vertex, port)
            && let Some([a, b]) = self.nodes_of(vertex, port)
        {
            self.world.cut(a, b);
        }
        self.links_changed();
    }

    fn set_pace(&self, (vertex, port): (Vertex, Port), model: LinkModel, link: Link) {
        let set = self.world.set_model(vertex, port, model);
        let is_set = set.expect("the parameters of links are in their ranges");
        if !is_set && let Some([a, b]) = self.nodes_of(vertex, port) {
            self.world.set_link(a, b, link);
            self.world.set_link(b, a, link);
        }
    }

    /// The nodes at the ends of a private link.
    fn nodes_of(&self, vertex: Vertex, port: Port) -> Option<[NodeId; 2]> {
        let (far, _) = self.graph.wired(vertex, port)?;
        let place = |vertex| self.hosts.iter().position(|host| *host == vertex);
        Some([node(place(vertex)?), node(place(far)?)])
    }
}
