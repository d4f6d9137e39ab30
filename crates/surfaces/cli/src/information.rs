//! `weft info`: what this build is, what it and this machine can do, and which options were set.
//! All options are for `weft config`.

use std::process::ExitCode;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::PidfdFlags;
use serde_json::{Value, json};
use weft_fabric::Capabilities;
use weft_options::runtime_path::ControlSocket;
use weft_options::{Id, Options, Origin, TABLE, TransportChoice};
use weft_wire::versions;

use crate::arguments::StatusArguments;
use crate::config;
use crate::configuration::Configuration;
use crate::daemon;
use crate::output::{show, show_line};
use crate::providers;
use crate::release;
use crate::table::{Table, bytes};

/// `weft info`.
pub fn show(
    arguments: &StatusArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    let information = json!({
        "build": build(),
        "node": socket.node,
        "daemon": daemon_state(&socket),
        "machine": machine(),
        "memory_nodes": memory_nodes(),
        "transports": transports(&configuration.options),
        "libfabric": providers::json(&configuration.options),
        "endpoints": endpoints(&configuration.options),
        "mpi": mpi(&configuration.options).to_string(),
        "terms": terms(),
        "configuration_file": configuration.file,
        "configuration": config::json(&configuration.options),
    });
    if arguments.json {
        show_line!("{}", serde_json::to_string_pretty(&information)?);
    } else {
        show!("{}", text(&information, configuration));
    }
    Ok(ExitCode::SUCCESS)
}

fn build() -> Value {
    json!({
        "version": release::VERSION,
        "commit": release::COMMIT,
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "architecture": std::env::consts::ARCH,
        "system": std::env::consts::OS,
        "control_version": weft_wire::control::VERSION,
        "daemons_versions": [versions::DAEMONS_LOWEST, versions::DAEMONS_HIGHEST],
        "packets_version": versions::PACKETS,
        "lanes_version": versions::LANES,
        "stats_version": weft_wire::stats::VERSION,
    })
}

fn daemon_state(socket: &ControlSocket) -> Value {
    let answers = weftd::client::answers(&socket.path);
    let mut state = json!({ "socket": socket.path, "answers": answers });
    if !answers {
        state["hint"] = json!(daemon::absence(socket));
    }
    state
}

/// Cores, kernel, and what weft uses of it. Each feature is tried, not looked up.
fn machine() -> Value {
    let kernel = rustix::system::uname();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    json!({
        "kernel": kernel.release().to_string_lossy(),
        "cores": cores,
        "memfd_sealing": can_seal(),
        "pidfd": has_pidfd(),
        "futex": can_futex(),
        "io_uring": can_io_uring(),
        "membarrier": weft_sync::fence::register(),
        "unprivileged": rustix::process::geteuid().as_raw() != 0,
        "descriptors_max": descriptors_max(),
    })
}

fn has_pidfd() -> bool {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).is_ok()
}

fn can_seal() -> bool {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    rustix::fs::memfd_create("weft-info", flags)
        .and_then(|file| {
            rustix::fs::ftruncate(&file, 4096)?;
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)
        })
        .is_ok()
}

/// Whether the kernel has futexes: wakes the sleepers of a word that has none.
fn can_futex() -> bool {
    let word = std::sync::atomic::AtomicU32::new(0);
    rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::empty(), 1).is_ok()
}

/// Whether the kernel gives this process a ring with the operations that files need.
fn can_io_uring() -> bool {
    let options = weft_file_io::Options { depth: 1, way: weft_file_io::Way::Uring };
    weft_file_io::Engine::new(&options).is_ok()
}

/// The memory nodes of the machine, each with its processors.
fn memory_nodes() -> Value {
    let Ok(topology) = weft_numa::Topology::of_host() else { return Value::Null };
    let node = |node: &weft_numa::Node| {
        json!({
            "node": node.number(),
            "processors": node.processors().to_string(),
            "memory_bytes": node.memory_bytes(),
        })
    };
    json!(topology.nodes().iter().map(node).collect::<Vec<_>>())
}

fn memory_nodes_table(nodes: &Value) -> String {
    let mut table = Table::new(["node", "processors", "memory"]);
    for node in nodes.as_array().into_iter().flatten() {
        let memory = node["memory_bytes"].as_u64().filter(|memory| *memory > 0);
        let memory = memory.map_or_else(|| "unknown".to_owned(), bytes);
        table.line([plain(&node["node"]), plain(&node["processors"]), memory]);
    }
    table.section("memory nodes")
}

fn descriptors_max() -> Value {
    json!(rustix::process::getrlimit(rustix::process::Resource::Nofile).current)
}

/// The capabilities of each transport of this build.
fn transports(options: &Options) -> Value {
    let all: Vec<Value> = crate::transports::all(options).iter().map(capabilities).collect();
    json!(all)
}

fn capabilities(of: &Capabilities) -> Value {
    json!({
        "transport": of.transport,
        "message_bytes_max": of.message_bytes_max,
        "mtu_bytes": of.mtu_bytes,
        "descriptor_bytes_max": of.descriptor_bytes_max,
        "vpids": of.vpids,
        "groups": of.groups,
        "mailbox_depth": of.mailbox_depth,
        "operations_max": of.operations_max,
        "peers_max": of.peers_max,
        "keys_max": of.keys_max,
        "regions_max": of.regions_max,
        "classes": of.classes,
        "rails": of.rails,
        "progress": format!("{:?}", of.progress).to_lowercase(),
        "ordered": of.ordered,
        "completes_inline": of.completes_inline,
        "window_is_memory": of.window_is_memory,
        "descriptor": of.descriptor,
    })
}

/// How endpoints of programs reach their peers.
fn endpoints(options: &Options) -> Value {
    let (own_host, other_hosts) = match options.fabric_transport() {
        TransportChoice::Auto => ("shm", json!("ofi")),
        TransportChoice::Shm => ("shm", Value::Null),
        TransportChoice::Ofi => ("ofi", json!("ofi")),
    };
    json!({
        "transport": options.text(Id::FabricTransport),
        "own_host": own_host,
        "other_hosts": other_hosts,
    })
}

/// The ways of messages of MPI by their length.
fn mpi(options: &Options) -> weft_rdm::Options {
    weft_rdm::Options {
        inline_bytes_max: options.mpi_inline_bytes(),
        chunk_bytes_max: options.mpi_eager_bytes(),
        ..weft_rdm::Options::default()
    }
}

/// The same for people.
fn endpoints_line(endpoints: &Value) -> String {
    let own = plain(&endpoints["own_host"]);
    let others = match endpoints["other_hosts"].as_str() {
        Some(name) => format!("reach those of other hosts by {name}"),
        None => "do not reach other hosts".to_owned(),
    };
    let option = plain(&endpoints["transport"]);
    format!(
        "\nEndpoints of programs reach peers of their host by {own} and {others} \
         (fabric.transport = {option}).\n"
    )
}

/// The words of weft beside those of Extoll's NIC and libfabric.
fn terms() -> Value {
    let plain = |text: &str| text.replace('`', "");
    let term = |term: weft_fabric::terms::Term| {
        json!({
            "weft": term.weft,
            "extoll": plain(term.extoll),
            "libfabric": plain(term.libfabric),
        })
    };
    json!(weft_fabric::terms::all().into_iter().map(term).collect::<Vec<_>>())
}

fn terms_table(terms: &Value) -> String {
    let mut table = Table::new(["weft", "Extoll", "libfabric"].map(str::to_owned));
    for term in terms.as_array().into_iter().flatten() {
        table.line(["weft", "extoll", "libfabric"].map(|name| plain(&term[name])));
    }
    table.section("terms")
}

/// All of it for people.
fn text(information: &Value, configuration: &Configuration) -> String {
    let mut text = String::new();
    for part in ["build", "daemon", "machine"] {
        let mut table = Table::plain();
        for (name, value) in information[part].as_object().into_iter().flatten() {
            table.line([words(name), plain(value)]);
        }
        text.push_str(&table.section(part));
    }
    text.push_str(&memory_nodes_table(&information["memory_nodes"]));
    text.push_str(&transports_table(&information["transports"]));
    text.push_str(&providers::text(&information["libfabric"]));
    text.push_str(&endpoints_line(&information["endpoints"]));
    text.push_str(&format!(
        "\nMPI over weft: {} (mpi.inline_bytes, mpi.eager_bytes).\n",
        plain(&information["mpi"])
    ));
    text.push_str(&terms_table(&information["terms"]));
    text.push_str(&format!("\n{}", config::file_line(configuration)));
    text.push_str(&changed(&configuration.options));
    text.push_str("`weft config list` lists all options.\n");
    text
}

/// The options whose values are not the defaults.
fn changed(options: &Options) -> String {
    let mut table = Table::new(config::HEADINGS);
    for entry in TABLE.iter().filter(|entry| *options.origin(entry.id) != Origin::Default) {
        table.line(config::line(entry, options));
    }
    if table.len() == 0 {
        return "All options have their defaults.\n".to_owned();
    }
    table.section("options that were set")
}

/// One column for each transport.
fn transports_table(transports: &Value) -> String {
    let list = transports.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = list.first().and_then(Value::as_object) else {
        return "transports: none in this build\n".to_owned();
    };
    let mut table = Table::new(
        std::iter::once(String::new())
            .chain(list.iter().map(|transport| plain(&transport["transport"]))),
    );
    for name in first.keys().filter(|name| *name != "transport") {
        let cells = list.iter().map(|transport| plain(&transport[name]));
        table.line(std::iter::once(words(name)).chain(cells));
    }
    table.section("transports")
}

/// The name of a field as people write it.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_were_set_are_shown() {
        let mut builder = weft_options::Builder::new();
        assert!(changed(&builder.clone().finish().0).contains("have their defaults"));
        builder.flag("shm.copy", "plain").environment([("WEFT_SHM_YIELDS", "100")]);
        let text = changed(&builder.finish().0);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("shm.copy") && text.contains("flag"), "{text}");
        assert!(text.contains("shm.yields") && text.contains("environment"), "{text}");
    }

    #[test]
    fn the_way_of_endpoints_is_that_of_the_option() {
        let line = |choice: &str| {
            let mut builder = weft_options::Builder::new();
            builder.flag("fabric.transport", choice);
            endpoints_line(&endpoints(&builder.finish().0))
        };
        assert!(line("auto").contains("host by shm and reach those of other hosts by ofi"));
        assert!(line("shm").contains("host by shm and do not reach other hosts"));
        assert!(line("ofi").contains("host by ofi and reach those of other hosts by ofi"));
    }

    #[test]
    fn this_machine_can_do_what_weft_needs() {
        let machine = machine();
        for feature in ["memfd_sealing", "pidfd", "futex"] {
            assert_eq!(machine[feature], json!(true), "{feature}: {machine}");
        }
        let nodes = memory_nodes();
        assert!(nodes[0]["processors"].as_str().is_some_and(|set| !set.is_empty()), "{nodes}");
        assert!(memory_nodes_table(&nodes).lines().count() >= 3, "{nodes}");
    }
}
