//! `weft lab link`: links between nodes, which may be cut.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use weft_fabric::NodeId;
use weft_options::runtime_path::ControlSocket;
use weft_topology::{End, Graph, Link, Shape, Topology};
use weftd::Reach;

use super::state::State;
use crate::arguments::{LabLinkArguments, LinkState};
use crate::output::{show, show_line};
use crate::table::Table;

/// The shape that `text` names: one by name, or that of a file.
pub fn shape(text: &str) -> anyhow::Result<Shape> {
    let named = text.parse::<Shape>();
    if named.is_err() && Path::new(text).is_file() {
        let lines = std::fs::read_to_string(text).with_context(|| format!("reading {text}"))?;
        return Shape::from_lines(&lines).with_context(|| text.to_owned());
    }
    Ok(named?)
}

/// `weft lab link`.
pub fn link(arguments: &LabLinkArguments, socket: &ControlSocket) -> anyhow::Result<()> {
    let state = State::load(socket)?.context("no lab is up; run `weft lab up`")?;
    let mut topology = state.topology()?;
    let (Some(a), Some(b), Some(wanted)) = (&arguments.a, &arguments.b, arguments.state) else {
        return list(&topology, arguments.json);
    };
    let link = Link::between(state.node(a)?, state.node(b)?);
    topology.set(link, wanted == LinkState::Down)?;
    super::ensure_daemon(&state, socket)?;
    change(&state, &topology, socket, || tell(&topology, socket))
}

/// Writes down which links are cut, and then has the daemon told: one that starts again gets the
/// links from the record. A change that fails is not in the record.
fn change(
    state: &State,
    topology: &Topology,
    socket: &ControlSocket,
    tell: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let cut = topology.cut().map(|Link(a, b)| (a, b)).collect();
    State { cut, ..state.clone() }.store(socket)?;
    tell().inspect_err(|_| {
        // The error that is told is the first one.
        let _ = state.store(socket);
    })
}

/// Cuts the link at a port of a lab's node, or mends it, as `weft fabric` names it.
///
/// # Errors
/// There is no lab at the socket, or the link is so already.
pub fn set(socket: &ControlSocket, graph: &Graph, end: End, is_cut: bool) -> anyhow::Result<()> {
    let _guard = State::guard(socket)?;
    let state = State::load(socket)?
        .context("its daemon has no lab, whose links alone can be cut; `weft lab up` starts one")?;
    let mut topology = state.topology()?;
    let (far, _) = graph.wired(end.0, end.1).context("a link of the network")?;
    let [a, b] = [end.0, far].map(|node| u16::try_from(node).unwrap_or(u16::MAX));
    topology.set(Link::between(a, b), is_cut)?;
    change(&state, &topology, socket, || weftd::client::set_cut(&socket.path, end.0, end.1, is_cut))
}

/// Tells the daemon of each link that is not as the record has it.
pub fn tell(topology: &Topology, socket: &ControlSocket) -> anyhow::Result<()> {
    let wanted: BTreeMap<Link, bool> = topology.links().collect();
    for (a, port, b, _, is_cut) in weftd::client::network(&socket.path)?.links {
        let [one, other] = [a, b].map(|node| u16::try_from(node).unwrap_or(u16::MAX));
        if let Some(wanted) = wanted.get(&Link::between(one, other)).filter(|cut| **cut != is_cut) {
            weftd::client::set_cut(&socket.path, a, port, *wanted)?;
        }
    }
    Ok(())
}

/// The nodes to which some way leads from `node`.
pub fn reach(topology: &Topology, node: u16) -> Reach {
    let hops = topology.hops(node);
    (0..).map(NodeId).zip(hops).filter(|(_, hops)| hops.is_some()).map(|(node, _)| node).collect()
}

fn list(topology: &Topology, json: bool) -> anyhow::Result<()> {
    let words = |is_cut| if is_cut { "down" } else { "up" };
    if json {
        let shown =
            |(Link(a, b), is_cut)| serde_json::json!({ "a": a, "b": b, "state": words(is_cut) });
        let links: Vec<_> = topology.links().map(shown).collect();
        show_line!("{}", serde_json::to_string_pretty(&links)?);
        return Ok(());
    }
    let mut table = Table::new(["link", "to", "state", "hops"]);
    for (Link(a, b), is_cut) in topology.links() {
        let far = topology.hops(a).get(usize::from(b)).copied().flatten();
        let far = far.map_or_else(|| "none".to_owned(), |hops| hops.to_string());
        table.line([format!("n{a}"), format!("n{b}"), words(is_cut).to_owned(), far]);
    }
    show!("{}", table.render());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_to_which_a_way_leads_are_reached() {
        let shape = Shape::Links(vec![Link::between(0, 65), Link::between(65, 64)]);
        let topology = shape.topology(Some(70)).expect("the nodes are there");
        assert_eq!(reach(&topology, 0).to_string(), "0+64+65");
        assert_eq!(reach(&topology, 1).to_string(), "1");
    }
}
