//! The thread that rules the links of a lab.
//!
//! It drives the agents and managers of the lab's nodes ([`weft_fabric_manager::Lab`]), and tells
//! all that carry something between nodes which nodes reach each other: the Ethernet devices, and
//! the services of endpoints and of connections. It has a thread of its own, since routes of large
//! labs take long.
//!
//! # Invariants
//! - Each change of a link goes through [`Ruler::set_cut`].
//! - A command is answered when the change has been told to all, or after [`SETTLES_WITHIN`].

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use weft_broker::{Cuts, Site};
use weft_ether::Reach;
use weft_fabric::NodeId;
use weft_fabric_manager::message::Row;
use weft_fabric_manager::{Agent, Lab, Manager, Standing};
use weft_routing::multicast::BROADCAST;
use weft_routing::tables::Side;
use weft_topology::{Graph, Port, Vertex};

use crate::ether::Devices;
use crate::service::NodeEvent;
use crate::service::host::Host;
use crate::status::{NetworkManager, NetworkNode, NetworkStatus, NetworkTables, WiredStatus};

/// How long a change of a link may take until all nodes that are left a way have it.
const SETTLES_WITHIN: Duration = Duration::from_secs(2);
/// The pause between two looks at a lab that has not settled.
const SETTLING: Duration = Duration::from_millis(2);
/// The pause between two looks at a lab in which nothing happens.
const IDLE: Duration = Duration::from_secs(1);
/// How often cuts are told again while there are any: see [`weft_socket::route::RECALL`].
const AGAIN: Duration = Duration::from_millis(100);
/// How long a command waits for its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The nodes of a lab between which no way leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LabCuts {
    cuts: Cuts,
    /// The nodes, by the cookies of their network namespaces.
    sites: BTreeMap<u64, Site>,
}

impl LabCuts {
    /// The nodes that are cut off from each other.
    pub const fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Whether no way leads between these network namespaces.
    pub fn part(&self, here: u64, there: u64) -> bool {
        self.cuts.part(self.sites.get(&here).copied(), self.sites.get(&there).copied())
    }
}

enum Ask {
    SetCut(Vertex, Port, bool, Sender<Result<(), String>>),
    Describe(Sender<NetworkStatus>),
}

/// The links as they were set last.
type Wired = Arc<Mutex<Arc<WiredStatus>>>;

/// The way to the thread.
pub struct Ruler {
    asks: Mutex<Sender<Ask>>,
    wired: Wired,
}

/// All that is told which nodes reach each other.
pub struct Ruled {
    /// The devices of the nodes.
    pub devices: Option<Arc<Devices>>,
    /// The services that carry something between nodes.
    pub services: Vec<Arc<Host>>,
}

impl Ruler {
    /// A way to the thread, and the thread's end of it.
    pub fn new() -> (Arc<Self>, Work) {
        let (asks, asked) = channel();
        let wired = Wired::default();
        let ruler = Self { asks: Mutex::new(asks), wired: Arc::clone(&wired) };
        (Arc::new(ruler), Work { asked, wired })
    }

    /// The links, without asking the thread.
    pub fn wired(&self) -> Arc<WiredStatus> {
        Arc::clone(&self.wired.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Cuts the link at a port of a node, or mends it.
    ///
    /// # Errors
    /// There is no such link, or it is so already.
    pub fn set_cut(&self, node: Vertex, port: Port, is_cut: bool) -> Result<(), String> {
        self.ask(|sender| Ask::SetCut(node, port, is_cut, sender))?
    }

    /// The network, with the tables of its nodes.
    ///
    /// # Errors
    /// The thread is too busy.
    pub fn describe(&self) -> Result<NetworkStatus, String> {
        self.ask(Ask::Describe)
    }

    fn ask<T>(&self, ask: impl FnOnce(Sender<T>) -> Ask) -> Result<T, String> {
        let (sender, answer) = channel();
        // The thread may have ended; then nothing answers.
        let _ = self.asks.lock().unwrap_or_else(PoisonError::into_inner).send(ask(sender));
        answer.recv_timeout(ANSWER_WITHIN).map_err(|_| {
            format!(
                "the manager of the lab did not answer within {} s; `weft fabric show` tells \
                 whether the change was made",
                ANSWER_WITHIN.as_secs()
            )
        })
    }
}

/// The thread's end.
pub struct Work {
    asked: Receiver<Ask>,
    wired: Wired,
}

impl Work {
    /// Rules over `graph` from now on, on a thread of its own. When this returns, all know which
    /// nodes reach each other.
    ///
    /// # Errors
    /// There is no thread.
    pub fn begin(self, graph: Graph, ruled: Ruled) -> anyhow::Result<()> {
        let sites = ruled.devices.as_ref().map(|devices| devices.sites()).unwrap_or_default();
        let mut driver = Driver {
            lab: Lab::new(graph),
            ruled,
            sites,
            told: None,
            reaches: BTreeMap::new(),
            began: Instant::now(),
            wired: self.wired,
        };
        driver.settle();
        let thread = std::thread::Builder::new().name("weft-lab".to_owned());
        thread.spawn(move || driver.run(&self.asked)).context("no thread for the lab")?;
        Ok(())
    }
}

struct Driver {
    lab: Lab,
    ruled: Ruled,
    sites: BTreeMap<u64, Site>,
    /// The cuts that all were told.
    told: Option<Arc<LabCuts>>,
    /// The reach that each device was told.
    reaches: BTreeMap<Vertex, Reach>,
    began: Instant,
    wired: Wired,
}

impl Driver {
    /// Runs until nobody can ask any more, which is the end of the daemon.
    fn run(mut self, asked: &Receiver<Ask>) {
        loop {
            let has_cuts = self.told.as_ref().is_some_and(|told| told.cuts.any());
            let pause = match (self.lab.is_settled(), has_cuts) {
                (false, _) => SETTLING,
                (true, true) => AGAIN,
                (true, false) => IDLE,
            };
            match asked.recv_timeout(pause) {
                Ok(Ask::SetCut(node, port, is_cut, sender)) => {
                    // The asker may have gone.
                    let _ = sender.send(self.set_cut(node, port, is_cut));
                }
                Ok(Ask::Describe(sender)) => drop(sender.send(describe(&self.lab))),
                Err(RecvTimeoutError::Timeout) => {
                    self.tick();
                    self.tell_again();
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn set_cut(&mut self, node: Vertex, port: Port, is_cut: bool) -> Result<(), String> {
        let graph = self.lab.graph();
        let Some((far, far_port)) = graph.wired(node, port) else {
            return Err(format!(
                "there is no link at port {port} of {}; `weft fabric show` lists the links",
                graph.name(node)
            ));
        };
        let link = format!("{}:{port} to {}:{far_port}", graph.name(node), graph.name(far));
        if graph.is_cut(node, port) == is_cut {
            return Err(match is_cut {
                true => format!("the link {link} is cut already; `weft fabric heal` mends it"),
                false => format!("the link {link} is not cut; `weft fabric fail` cuts it"),
            });
        }
        tracing::info!(link, is_cut, "a link of the lab");
        self.lab.set_cut(node, port, is_cut);
        self.settle();
        Ok(())
    }

    /// Waits until the nodes that are left a way reach each other.
    fn settle(&mut self) {
        let wired = Arc::new(wired(self.lab.graph()));
        *self.wired.lock().unwrap_or_else(PoisonError::into_inner) = wired;
        let until = Instant::now() + SETTLES_WITHIN;
        self.tick();
        while !self.lab.is_settled() && Instant::now() < until {
            std::thread::sleep(SETTLING);
            self.tick();
        }
        if let Some(reason) = self.lab.stuck() {
            tracing::warn!(reason, "the manager of the lab has no routes");
        }
    }

    /// Lets the lab go on, and tells all what has changed.
    fn tick(&mut self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.lab.tick(now);
        let site = |node: Vertex| Site(u16::try_from(node).unwrap_or(u16::MAX));
        let cuts = self.lab.cuts().iter().map(|(one, other)| (site(*one), site(*other)));
        let cuts = LabCuts { cuts: cuts.collect(), sites: self.sites.clone() };
        if self.told.as_deref() == Some(&cuts) {
            return;
        }
        self.told = Some(Arc::new(cuts));
        self.tell_services();
        self.tell_devices();
    }

    fn tell_again(&self) {
        if self.told.as_ref().is_some_and(|told| told.cuts.any()) {
            self.tell_services();
        }
    }

    fn tell_services(&self) {
        if let Some(told) = &self.told {
            for service in &self.ruled.services {
                // There is always room for news of this kind.
                let _ = service.node(NodeEvent::Cuts(Arc::clone(told)));
            }
        }
    }

    fn tell_devices(&mut self) {
        let Some(devices) = &self.ruled.devices else { return };
        let nodes = self.lab.graph().vertices();
        for node in 0..nodes {
            let reaches =
                |other: &Vertex| !self.lab.cuts().contains(&(node.min(*other), node.max(*other)));
            let reach: Reach = (0..nodes).filter(reaches).map(NodeId).collect();
            if self.reaches.get(&node) == Some(&reach) {
                continue;
            }
            match devices.set_reach(NodeId(node), reach) {
                Ok(()) => drop(self.reaches.insert(node, reach)),
                Err(reason) => tracing::warn!(node, reason, "a device is not told of a link"),
            }
        }
    }
}

/// The links of a graph.
fn wired(graph: &Graph) -> WiredStatus {
    WiredStatus {
        nodes: (0..graph.vertices()).map(|vertex| graph.name(vertex)).collect(),
        links: graph.links().map(|(a, b, is_cut)| (a.0, a.1, b.0, b.1, is_cut)).collect(),
    }
}

fn describe(lab: &Lab) -> NetworkStatus {
    let graph = lab.graph();
    let node = |vertex: Vertex| {
        let agent = lab.agent(vertex);
        NetworkNode {
            name: graph.name(vertex),
            ports: graph.ports(vertex),
            number: agent.and_then(Agent::number),
            version: agent.and_then(Agent::version),
            tables: agent.map(tables).unwrap_or_default(),
            host: None,
        }
    };
    let manager = |(seat, manager): (Vertex, &Manager)| manager_status(seat, lab.term(), manager);
    NetworkStatus {
        nodes: (0..graph.vertices()).map(node).collect(),
        links: graph.links().map(|(a, b, is_cut)| (a.0, a.1, b.0, b.1, is_cut)).collect(),
        managers: lab.managers().map(manager).collect(),
    }
}

/// A manager, as the status has it.
pub fn manager_status(seat: Vertex, term: u64, manager: &Manager) -> NetworkManager {
    let (standing, version, reason) = match manager.standing() {
        Standing::Idle => ("idle", None, String::new()),
        Standing::Sweeping => ("sweeping", None, String::new()),
        Standing::Changing => ("changing", None, String::new()),
        Standing::Ruling { version } => ("ruling", Some(version), String::new()),
        Standing::Stuck { reason } => ("stuck", None, reason),
    };
    NetworkManager { seat, term, standing: standing.to_owned(), version, reason }
}

/// The tables of an agent, as the status has them.
pub fn tables(agent: &Agent) -> NetworkTables {
    let layer = |plane, global, local| {
        let entries = |row| agent.entries(plane, row).to_vec();
        (entries(global), entries(local))
    };
    let plane = |side| layer(Some(side), Row::PlaneGlobal, Row::PlaneLocal);
    NetworkTables {
        side: agent.side().map(|side| u8::from(side == Side::B)),
        base_vcs: agent.base_vcs(),
        layers: [layer(None, Row::BaseGlobal, Row::BaseLocal), plane(Side::A), plane(Side::B)],
        broadcast: agent.entries(agent.side(), Row::Group(BROADCAST)).to_vec(),
    }
}
