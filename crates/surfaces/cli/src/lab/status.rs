//! `weft lab status`: the nodes, their devices, and which of their links are cut.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::Value;
use weft_options::runtime_path::ControlSocket;
use weftd::DeviceStatus;

use super::address_of;
use super::health::Health;
use super::state::State;
use crate::output::{show, show_line};
use crate::table::Table;

/// `weft lab status`. It fails if a node has lost what the lab made for it.
pub fn status(json: bool, socket: &ControlSocket) -> anyhow::Result<ExitCode> {
    let state = State::load(socket)?.context("no lab is up; run `weft lab up`")?;
    super::ensure_daemon(&state, socket)?;
    let devices = weftd::client::status(&socket.path)?.devices;
    let healths = Health::of_all(&state)?;
    if json {
        let shown: Result<Vec<_>, _> =
            devices.iter().map(|one| value(one, &healths, &state.cut)).collect();
        show_line!("{}", serde_json::to_string_pretty(&shown?)?);
    } else {
        show!("{}", table(&devices, &healths, &state.cut).render());
    }
    let lost = (0..).zip(&healths).filter_map(|(node, health)| Some((node, health.lost()?)));
    let lost: Vec<_> =
        lost.map(|(node, what): (u16, _)| format!("the {what} of n{node}")).collect();
    if lost.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("weft: {} is gone; {} makes it again", lost.join(" and "), state.command());
    Ok(ExitCode::FAILURE)
}

/// The part that the node of a device has lost.
fn lost(device: &DeviceStatus, healths: &[Health]) -> Option<&'static str> {
    let place = usize::try_from(device.node).ok()?;
    healths.get(place).and_then(|health| health.lost())
}

/// The nodes at the other ends of the links of `node` that are in `cut`.
fn cut_off(node: u32, cut: &[(u16, u16)]) -> Vec<u16> {
    let other = |&(a, b): &(u16, u16)| match node {
        node if node == u32::from(a) => Some(b),
        node if node == u32::from(b) => Some(a),
        _ => None,
    };
    let mut others: Vec<_> = cut.iter().filter_map(other).collect();
    others.sort_unstable();
    others
}

/// A device as the daemon reports it, with `gone`: what its node has lost, and with `cut_links`:
/// the nodes to which its link is cut.
fn value(
    device: &DeviceStatus,
    healths: &[Health],
    cut: &[(u16, u16)],
) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(device)?;
    value["gone"] = lost(device, healths).into();
    value["cut_links"] = cut_off(device.node, cut).into();
    Ok(value)
}

fn table(devices: &[DeviceStatus], healths: &[Health], cut: &[(u16, u16)]) -> Table {
    let names = ["node", "address", "mac", "peers", "sent", "received", "lost", "refused", "cut"];
    let mut table = Table::new(names);
    let address = |node| address_of(node).to_string();
    for device in devices {
        let others = cut_off(device.node, cut);
        let others: Vec<_> = others.iter().map(|other| format!("n{other}")).collect();
        table.line([
            format!("n{}", device.node),
            u16::try_from(device.node).map_or_else(|_| "none".to_owned(), address),
            device.mac.clone(),
            if lost(device, healths).is_some() {
                "gone".to_owned()
            } else if device.queues.is_empty() {
                "busy".to_owned()
            } else {
                device.peers.len().to_string()
            },
            device.sent.to_string(),
            device.received.to_string(),
            device.lost.to_string(),
            device.refused.to_string(),
            if others.is_empty() { "none".to_owned() } else { others.join(" ") },
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_shows_its_links_that_are_cut() {
        let devices: Vec<_> =
            (0..3).map(|node| DeviceStatus { node, ..DeviceStatus::default() }).collect();
        let cut = [(0, 2), (0, 1)];
        let healths = [Health::Whole, Health::NoNamespace, Health::NoDevice];
        let told = table(&devices, &healths, &cut).render();
        assert_eq!(told.matches(" gone ").count(), 2, "{told}");
        let ends: Vec<_> = told.lines().skip(1).map(|line| line.trim_end()).collect();
        assert!(ends[0].ends_with(" n1 n2"), "{told}");
        assert!(ends[1].ends_with(" n0") && ends[2].ends_with(" n0"), "{told}");
        let told = table(&devices, &healths, &[]).render();
        assert!(told.lines().skip(1).all(|line| line.trim_end().ends_with(" none")), "{told}");
        let shown = value(&devices[0], &healths, &cut).expect("JSON");
        assert_eq!((&shown["cut_links"], &shown["node"]), (&serde_json::json!([1, 2]), &0.into()));
        assert_eq!(
            (&shown["gone"], value(&devices[1], &healths, &cut).expect("JSON")["gone"].as_str()),
            (&Value::Null, Some("namespace"))
        );
    }
}
