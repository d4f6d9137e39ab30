//! `weft fabric`: a new key, the hosts of the fabric, the end of one, and networks with their
//! routes.

mod link;
mod network;
mod running;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use weftd::{EtcdStatus, FabricSeedStatus, FabricStatus, Status};

use crate::arguments::{ExpelArguments, FabricCommand, StatusArguments};
use crate::configuration::Configuration;
use crate::daemon::absence;
use crate::output::{show, show_line};
use crate::table::Table;

/// `weft fabric`.
pub fn fabric(
    command: &FabricCommand,
    configuration: impl Fn() -> anyhow::Result<Configuration>,
) -> anyhow::Result<ExitCode> {
    match command {
        FabricCommand::Key => show_line!("{}", weft_membership::new_key_line()?),
        FabricCommand::Nodes(arguments) => nodes(arguments, &configuration()?)?,
        FabricCommand::Expel(arguments) => expel(arguments, &configuration()?)?,
        FabricCommand::Check(arguments) => return network::check(arguments, configuration),
        FabricCommand::Routes(arguments) => return network::routes(arguments, configuration),
        FabricCommand::Show(arguments) => return network::show(arguments, configuration),
        FabricCommand::Trace(arguments) => return network::trace(arguments, configuration),
        FabricCommand::Fail(arguments) => link::set(arguments, true, &configuration()?)?,
        FabricCommand::Heal(arguments) => link::set(arguments, false, &configuration()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn nodes(arguments: &StatusArguments, configuration: &Configuration) -> anyhow::Result<()> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    if !weftd::client::answers(&socket.path) {
        bail!("{}", absence(&socket));
    }
    let fabric = fabric_of(weftd::client::status(&socket.path)?, &socket.path)?;
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&serde_json::to_value(&fabric)?)?);
    } else {
        show!("{}", text(&fabric));
    }
    Ok(())
}

/// The fabric of the daemon at `socket`, as its status tells it.
fn fabric_of(status: Status, socket: &Path) -> anyhow::Result<FabricStatus> {
    let (serves_alone, socket) = (status.serves_alone(), socket.display());
    match status.fabric {
        Some(fabric) => Ok(fabric),
        None if serves_alone => bail!(
            "the node daemon at {socket} serves this host alone; start it with --fabric-listen and \
             --fabric-key (`weft fabric --help`)"
        ),
        None => bail!("the node daemon at {socket} is too busy to tell its fabric; ask again"),
    }
}

fn text(fabric: &FabricStatus) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let mut table =
        Table::new(["number", "name", "address", "transport", "state", "way", "reason"]);
    for node in &fabric.nodes {
        table.line([
            or_dash(&node.number.map(|number| number.to_string())),
            or_dash(&node.name),
            node.address.clone(),
            or_dash(&node.transport),
            node.state.clone(),
            node.way.as_ref().map_or_else(|| "-".to_owned(), |way| way.way.clone()),
            node.reason.clone(),
        ]);
    }
    let mut text =
        table.section(&format!("Nodes of the fabric {:?}: {}", fabric.name, fabric.nodes.len()));
    for node in &fabric.nodes {
        if let (Some(number), Some(way)) = (node.number, &node.way) {
            text += &format!("way to {number}: {}\n", way.text());
        }
    }
    // A host that waits for one names it with its own reason.
    let own = fabric.nodes.iter().find(|node| node.number.is_none());
    let is_told = |address: &str| own.is_some_and(|own| own.reason.contains(address));
    for FabricSeedStatus { address, reason } in &fabric.seeds {
        if is_told(address) {
            continue;
        }
        text += &format!("seed {address}: no node of this fabric ({reason})\n");
    }
    if let Some(etcd) = &fabric.etcd {
        text += &format!("etcd: {}\n", etcd_text(etcd));
    }
    text
}

/// The state of etcd for people, with what it means.
pub fn etcd_text(etcd: &EtcdStatus) -> String {
    match (etcd.state.as_str(), etcd.reason.as_str()) {
        (state, "") => state.to_owned(),
        (state, reason) => format!("{state}; nobody new joins, and what runs goes on ({reason})"),
    }
}

fn expel(arguments: &ExpelArguments, configuration: &Configuration) -> anyhow::Result<()> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    weftd::client::expel(&socket.path, arguments.number)?;
    eprintln!(
        "weft: node {} was expelled; if its host may know the key, rotate that, too (`weft fabric \
         key --help`)",
        arguments.number
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftd::FabricNodeStatus;

    #[test]
    fn what_is_not_known_is_a_dash_and_a_reason_is_told() {
        let node = FabricNodeStatus {
            number: None,
            name: None,
            address: "10.9.0.1:7700".to_owned(),
            transport: None,
            state: "refused".to_owned(),
            reason: "the key".to_owned(),
            way: None,
        };
        let (name, nodes) = ("f".to_owned(), vec![node]);
        let seeds = Vec::new();
        let mut fabric = FabricStatus { name, number: None, nodes, seeds, etcd: None };
        let told = text(&fabric);
        let line = told.lines().last().expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["-", "-", "10.9.0.1:7700", "-", "refused", "-", "the", "key"], "{told}");
        let (state, reason) = ("away".to_owned(), "no leader".to_owned());
        fabric.etcd = Some(EtcdStatus { state, reason });
        let told = text(&fabric);
        assert!(told.contains("etcd: away; nobody new joins") && told.contains("no leader"));
    }

    #[test]
    fn a_seed_that_is_no_node_stands_apart() {
        let (name, nodes) = ("f".to_owned(), Vec::new());
        let (address, reason) = ("10.9.0.9:7700".to_owned(), "no answer".to_owned());
        let seeds = vec![FabricSeedStatus { address, reason }];
        let told = text(&FabricStatus { name, number: None, nodes, seeds, etcd: None });
        assert!(told.contains("Nodes of the fabric \"f\": 0\n"), "{told}");
        let line = "seed 10.9.0.9:7700: no node of this fabric (no answer)\n";
        assert!(told.ends_with(line), "{told}");
    }

    #[test]
    fn a_busy_daemon_is_not_taken_for_one_without_a_fabric() {
        let told = |answers| {
            let service = weftd::ServiceStatus {
                name: "fabric".to_owned(),
                answers,
                queued: 0,
                panics: 0,
                counters: Vec::new(),
                options: Vec::new(),
                times: Vec::new(),
                times_sum_ns: 0,
            };
            let status = Status { services: vec![service], ..Status::default() };
            fabric_of(status, Path::new("n.sock")).expect_err("there is none").to_string()
        };
        assert!(told(true).contains("serves this host alone"), "{}", told(true));
        assert!(told(false).contains("ask again"), "{}", told(false));
    }
}
