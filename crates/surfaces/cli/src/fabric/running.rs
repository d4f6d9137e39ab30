//! The network that a daemon rules, as the daemon tells it.

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use weft_options::runtime_path::ControlSocket;
use weft_routing::tables::Side;
use weft_routing::{Loaded, Routes};
use weft_topology::{Graph, GraphBuilder, Kind, Layout, LinkClass, Vertex};
use weftd::{NetworkManager, NetworkNode, NetworkStatus};

use crate::configuration::{Configuration, variable};
use crate::daemon::absence;
use crate::lab;
use crate::table::Table;

/// The network of the daemon of a node. Where none is named and the default one rules none, that of
/// the lab is asked.
///
/// # Errors
/// Nobody rules a network; says how one is started.
pub fn ask(
    node: Option<&str>,
    configuration: &Configuration,
) -> anyhow::Result<(ControlSocket, NetworkStatus)> {
    let socket = configuration.control_socket(node)?;
    let is_named = [variable("WEFT_NODE"), variable("WEFT_SOCKET")].iter().any(Option::is_some);
    let network = network(&socket);
    if node.is_some() || is_named || network.is_ok() {
        return Ok((socket, network?));
    }
    let of_lab = configuration.control_socket(Some(lab::NODE))?;
    match weftd::client::network(&of_lab.path) {
        Ok(network) => Ok((of_lab, network)),
        Err(_) => Err(network.expect_err("looked at above")),
    }
}

fn network(socket: &ControlSocket) -> anyhow::Result<NetworkStatus> {
    if !weftd::client::answers(&socket.path) {
        bail!(
            "{}; `weft lab up` starts a lab, whose network is then shown, and `--topology SPEC` \
             needs no running network",
            absence(socket)
        );
    }
    weftd::client::network(&socket.path)
}

/// The nodes and links of a network, with those cut that are.
///
/// # Errors
/// The daemon told a network that cannot be.
pub fn graph(network: &NetworkStatus) -> anyhow::Result<Graph> {
    let mut builder = GraphBuilder::new();
    for node in &network.nodes {
        builder.named(Kind::Host, &node.name)?;
    }
    let nodes = network.nodes.len();
    for (a, a_port, b, b_port, _) in &network.links {
        ensure!(
            [*a, *b].iter().all(|end| usize::try_from(*end).is_ok_and(|end| end < nodes)),
            "the daemon told a link of a node that is not there"
        );
        builder.link((*a, *a_port), (*b, *b_port), LinkClass::default())?;
    }
    let mut graph = builder.build(Layout::Irregular)?;
    for (a, port, _, _, is_cut) in &network.links {
        graph.set_cut(*a, *port, *is_cut);
    }
    Ok(graph)
}

/// A part of a network, and the routes by the tables of its nodes.
pub struct Part {
    /// Its nodes, in order.
    pub nodes: Vec<Vertex>,
    pub routes: Routes,
}

/// The routes of each part into which cut links divide a network, as its nodes have them loaded.
///
/// # Errors
/// A part has no tables, as before a manager ruled it.
pub fn parts(network: &NetworkStatus, graph: &Graph) -> anyhow::Result<Vec<Part>> {
    let part = |nodes: Vec<Vertex>| {
        let all = || nodes.iter().filter_map(|node| network.nodes.get(*node as usize));
        // The host that manages knows all tables, and another one its own.
        let one = all().find(|node| node.tables.side.is_some()).with_context(|| {
            let names: Vec<_> = all().take(3).map(|node| node.name.as_str()).collect();
            let why = why(&network.managers).unwrap_or_default();
            format!("there are no tables yet at {}{why}", names.join(", "))
        })?;
        let side = if one.tables.side == Some(0) { Side::A } else { Side::B };
        let routes = Routes::loaded(graph, side, one.tables.base_vcs, |vertex| {
            let node = network.nodes.get(vertex as usize).filter(|_| nodes.contains(&vertex))?;
            // Entries are by number.
            let has_number = node.number.map(Vertex::from) == Some(vertex);
            let (layers, broadcast) = (node.tables.layers.clone(), node.tables.broadcast.clone());
            has_number.then_some(Loaded { layers, broadcast })
        })?;
        Ok(Part { nodes, routes })
    };
    weft_routing::check::parts(graph).into_iter().map(part).collect()
}

/// The nodes and managers of a network, for people.
pub fn text(network: &NetworkStatus) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let mut text = String::new();
    if network.nodes.iter().any(|node| node.host.is_some()) {
        let mut table = Table::new(["number", "name", "address", "transport", "state"]);
        for node in &network.nodes {
            let Some(host) = &node.host else { continue };
            table.line([
                or_dash(node.number.map(|number| number.to_string())),
                node.name.clone(),
                host.address.clone(),
                or_dash(host.transport.clone()),
                host.state.clone(),
            ]);
        }
        text.push_str(&table.section("Hosts"));
    }
    for manager in &network.managers {
        let seat = network.nodes.get(manager.seat as usize).map(|node| node.name.as_str());
        let version = manager.version.map(|version| format!(" with version {version}"));
        text.push_str(&format!(
            "manager: at {}, term {}, {}{}{}\n",
            seat.unwrap_or("no known host"),
            manager.term,
            manager.standing,
            version.unwrap_or_default(),
            if manager.reason.is_empty() { String::new() } else { format!(": {}", manager.reason) },
        ));
    }
    text
}

/// The nodes of a network without their tables, for scripts.
pub fn nodes_json(network: &NetworkStatus) -> Value {
    let node = |node: &NetworkNode| {
        json!({
            "name": node.name,
            "number": node.number,
            "version": node.version,
            "host": node.host,
        })
    };
    network.nodes.iter().map(node).collect()
}

/// Why a manager has no routes.
fn why(managers: &[NetworkManager]) -> Option<String> {
    let stuck = managers.iter().find(|manager| !manager.reason.is_empty())?;
    Some(format!(": {}", stuck.reason))
}
