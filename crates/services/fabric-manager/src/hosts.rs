//! A host of a fabric of hosts: its agent, and its manager while it has the lease.
//!
//! Hosts that joined are one full mesh over the network under them. The port of a host for another
//! one is that one's number, which the fabric gave it. So the numbers of the tables are those of
//! the hosts.
//!
//! # Invariants
//! - The manager gives orders while it has the lease, and not a moment longer.

use weft_routing::Algorithm;
use weft_topology::Port;

use crate::message::Packet;
use crate::{Agent, Manager, Output, Settings};

/// Milliseconds between two sweeps.
const SWEEP_MS: u64 = 10_000;
/// Milliseconds in which packets leave the network.
const SETTLE_MS: u64 = 200;
/// Ports of a host: one for each number that a host may have.
const PORTS: Port = 256;

/// A host.
#[derive(Clone, Debug)]
pub struct Hosts {
    own: Port,
    agent: Agent,
    manager: Manager,
    term: u64,
}

impl Hosts {
    /// The host with this number, none of whose links is up.
    #[must_use]
    pub fn new(own: Port) -> Self {
        let settings = Settings {
            algorithm: Algorithm::Auto,
            expected: None,
            sweep_ms: SWEEP_MS,
            settle_ms: SETTLE_MS,
        };
        let agent = Agent::new(u64::from(own), false, PORTS).numbered(own);
        Self { own, agent, manager: Manager::new(settings), term: 0 }
    }

    /// Its number.
    #[must_use]
    pub fn own(&self) -> Port {
        self.own
    }

    /// Its agent.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Its manager, and the term of its lease; `None` while it has none.
    #[must_use]
    pub fn manager(&self) -> Option<(&Manager, u64)> {
        (self.manager.standing() != crate::Standing::Idle).then_some((&self.manager, self.term))
    }

    /// The link to another host is up, or down. One whose number is no port is left out.
    pub fn link(&mut self, host: Port, is_up: bool) {
        if host != self.own {
            self.agent.link(host, is_up);
        }
    }

    /// It has the lease of `term` until the time `until`, or none. Both times are in milliseconds
    /// by the clock of [`Hosts::tick`].
    pub fn lead(&mut self, lease: Option<(u64, u64)>) {
        match lease {
            Some((term, until)) => {
                self.term = term;
                self.manager.lead(term, until);
            }
            None => self.manager.step_down(),
        }
    }

    /// The highest term that any host told, beside the own one.
    #[must_use]
    pub fn term_seen(&self) -> u64 {
        self.agent.term().max(self.manager.superseded())
    }

    /// A packet of the host `from` came. Gives packets for other hosts.
    pub fn receive(&mut self, from: Port, bytes: &[u8], now: u64) -> Vec<(Port, Vec<u8>)> {
        let outputs = self.agent.receive(from, bytes);
        let mut sent = Vec::new();
        self.put(outputs, now, &mut sent);
        sent
    }

    /// Time passes. Gives packets for other hosts.
    pub fn tick(&mut self, now: u64) -> Vec<(Port, Vec<u8>)> {
        let mut sent = Vec::new();
        let outputs = self.agent.tick(now);
        self.put(outputs, now, &mut sent);
        // A manager that begins a sweep gives its first packet in the next round.
        for _ in 0..2 {
            let packets = self.manager.tick(now);
            self.originate(packets, now, &mut sent);
        }
        sent
    }

    fn put(&mut self, outputs: Vec<Output>, now: u64, sent: &mut Vec<(Port, Vec<u8>)>) {
        for output in outputs {
            match output {
                Output::Send(port, bytes) => sent.push((port, bytes)),
                Output::Deliver(packet) => {
                    let packets = self.manager.receive(&packet, now);
                    self.originate(packets, now, sent);
                }
            }
        }
    }

    fn originate(&mut self, packets: Vec<Packet>, now: u64, sent: &mut Vec<(Port, Vec<u8>)>) {
        for packet in packets {
            let outputs = self.agent.originate(packet);
            self.put(outputs, now, sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::Standing;

    struct World {
        hosts: Vec<Hosts>,
        /// Links that are down, the lower number first.
        down: Vec<(Port, Port)>,
        now: u64,
    }

    impl World {
        fn new(count: Port) -> Self {
            let mut hosts: Vec<_> = (0..count).map(Hosts::new).collect();
            for one in 0..count {
                (0..count).for_each(|other| hosts[usize::from(one)].link(other, true));
            }
            Self { hosts, down: Vec::new(), now: 0 }
        }

        fn set_down(&mut self, one: Port, other: Port) {
            self.down.push((one.min(other), one.max(other)));
            self.hosts[usize::from(one)].link(other, false);
            self.hosts[usize::from(other)].link(one, false);
        }

        fn run(&mut self, milliseconds: u64) {
            for _ in 0..milliseconds {
                self.now += 1;
                let mut wire = VecDeque::new();
                for (from, host) in (0..).zip(&mut self.hosts) {
                    wire.extend(
                        host.tick(self.now).into_iter().map(|(to, bytes)| (from, to, bytes)),
                    );
                }
                while let Some((from, to, bytes)) = wire.pop_front() {
                    let is_down = self.down.contains(&(from.min(to), from.max(to)));
                    let Some(host) = self.hosts.get_mut(usize::from(to)).filter(|_| !is_down)
                    else {
                        continue;
                    };
                    let sent = host.receive(from, &bytes, self.now);
                    wire.extend(sent.into_iter().map(|(next, bytes)| (to, next, bytes)));
                }
            }
        }

        fn standing(&self, host: usize) -> Option<Standing> {
            Some(self.hosts[host].manager()?.0.standing())
        }
    }

    #[test]
    fn numbers_are_those_of_the_fabric_and_one_hop_leads_anywhere() {
        let mut world = World::new(4);
        // Number 2 was given, and its host is away.
        for other in [0, 1, 3] {
            world.set_down(2, other);
        }
        world.hosts[0].lead(Some((7, 1_000_000)));
        world.run(50);
        assert!(
            matches!(world.standing(0), Some(Standing::Ruling { .. })),
            "{:?}",
            world.standing(0)
        );
        for from in [0, 1, 3] {
            assert_eq!(world.hosts[from].agent().number().map(usize::from), Some(from));
            for to in [0, 1, 3] {
                let way = world.hosts[from].agent().next(None, to).map(|choice| choice.port);
                assert_eq!(way, (usize::from(to) != from).then_some(to), "{from} to {to}");
            }
        }
    }

    #[test]
    fn another_host_takes_over_and_the_one_before_is_refused() {
        let mut world = World::new(3);
        world.hosts[0].lead(Some((5, 300)));
        world.run(250);
        assert!(matches!(world.standing(0), Some(Standing::Ruling { .. })));
        // The first one does not hear that its lease is over, and its time passes by.
        world.run(100);
        assert_eq!(world.standing(0), None, "no order follows a lease");
        world.hosts[2].lead(Some((6, 1_000_000)));
        world.run(500);
        assert!(matches!(world.standing(2), Some(Standing::Ruling { .. })));
        assert!(world.hosts.iter().all(|host| host.agent().term() == 6));
        // A lease of an earlier term that is claimed nevertheless is fenced off.
        world.hosts[0].lead(Some((5, 1_000_000)));
        world.run(500);
        assert_eq!((world.standing(0), world.hosts[0].term_seen()), (None, 6));
        assert!(world.hosts.iter().all(|host| host.agent().term() == 6));
    }

    #[test]
    fn routes_stay_while_nobody_rules() {
        let mut world = World::new(3);
        world.hosts[1].lead(Some((1, 1_000_000)));
        world.run(50);
        let version = world.hosts[0].agent().version();
        assert!(version.is_some());
        world.hosts[1].lead(None);
        world.set_down(1, 0);
        world.set_down(1, 2);
        world.run(2_000);
        assert_eq!(world.hosts[0].agent().version(), version);
        assert_eq!(world.hosts[0].agent().next(None, 2).map(|choice| choice.port), Some(2));
    }
}
