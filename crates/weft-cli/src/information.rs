//! `weft info` and `weft config dump`: what this build is, can do, and is told to do.

use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::PidfdFlags;
use serde_json::{Value, json};
use weft_fabric::Capabilities;
use weft_options::{Entry, Options, TABLE};

use crate::arguments::{DumpArguments, StatusArguments};
use crate::configuration::Configuration;
use crate::daemon;
use crate::table::Table;

/// `weft info`.
pub fn show(
    arguments: &StatusArguments,
    configuration: &Configuration,
) -> anyhow::Result<ExitCode> {
    let socket = configuration.control_socket(arguments.node.node.as_deref())?;
    let information = json!({
        "build": build(),
        "node": socket.node,
        "daemon": daemon_state(&socket.path),
        "machine": machine(),
        "transports": transports(&configuration.options),
        "configuration_file": configuration.file,
        "configuration": options(&configuration.options),
    });
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&information)?);
    } else {
        print!("{}", text(&information, configuration));
    }
    Ok(ExitCode::SUCCESS)
}

/// `weft config dump`.
pub fn dump(arguments: &DumpArguments, configuration: &Configuration) -> anyhow::Result<ExitCode> {
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&options(&configuration.options))?);
    } else if arguments.toml {
        print!("{}", as_file(&configuration.options));
    } else {
        print!("{}", as_table(&configuration.options));
    }
    Ok(ExitCode::SUCCESS)
}

fn build() -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "profile": if cfg!(debug_assertions) { "debug" } else { "release" },
        "architecture": std::env::consts::ARCH,
        "system": std::env::consts::OS,
        "stats_version": weft_wire::stats::VERSION,
    })
}

fn daemon_state(socket: &Path) -> Value {
    let answers = weftd::client::answers(socket);
    let mut state = json!({ "socket": socket, "answers": answers });
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

/// Wakes nobody, which works wherever futexes do.
fn can_futex() -> bool {
    let word = std::sync::atomic::AtomicU32::new(0);
    rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::empty(), 1).is_ok()
}

fn descriptors_max() -> Value {
    json!(rustix::process::getrlimit(rustix::process::Resource::Nofile).current)
}

/// What each transport of this build can do.
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
        "intervals": of.intervals,
        "mailbox_depth": of.mailbox_depth,
        "operations_max": of.operations_max,
        "locks": of.locks,
        "regions_max": of.regions_max,
        "progress": format!("{:?}", of.progress).to_lowercase(),
        "completes_inline": of.completes_inline,
        "window_is_memory": of.window_is_memory,
        "descriptor": of.descriptor,
    })
}

fn options(options: &Options) -> Value {
    let list: Vec<Value> = TABLE
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name,
                "value": options.text(entry.id),
                "default": entry.kind.default_text(),
                "unit": entry.unit,
                "category": entry.category.title(),
                "origin": options.origin(entry.id).to_string(),
            })
        })
        .collect();
    json!(list)
}

fn as_table(options: &Options) -> String {
    let mut table = Table::new(["option", "value", "unit", "default", "from"]);
    for entry in TABLE {
        table.line([
            entry.name.to_owned(),
            options.text(entry.id),
            entry.unit.to_owned(),
            entry.kind.default_text(),
            options.origin(entry.id).to_string(),
        ]);
    }
    table.render()
}

/// A `weft.toml` that says what is in force, each option under its text.
fn as_file(options: &Options) -> String {
    use weft_options::Kind;
    let mut text = String::from("# weft.toml\n");
    let mut area_before = "";
    for entry in TABLE {
        let (area, name) = entry.name.split_once('.').unwrap_or(("", entry.name));
        if area != area_before {
            text.push_str(&format!("\n[{area}]\n"));
            area_before = area;
        }
        for line in wrap(&describe(entry), 98) {
            text.push_str(&format!("# {line}\n"));
        }
        let value = options.text(entry.id);
        let value = match entry.kind {
            Kind::Integer { .. } | Kind::Boolean { .. } => value,
            Kind::Choice { .. } | Kind::Path => format!("{value:?}"),
        };
        text.push_str(&format!("{name} = {value}\n"));
    }
    text
}

fn describe(entry: &Entry) -> String {
    let unit = if entry.unit.is_empty() { String::new() } else { format!(" ({})", entry.unit) };
    format!("{} Allowed: {}{unit}.", entry.text, entry.kind)
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// All of it for people.
fn text(information: &Value, configuration: &Configuration) -> String {
    let mut text = String::new();
    for part in ["build", "daemon", "machine"] {
        text.push_str(&format!("{part}\n"));
        if let Some(fields) = information[part].as_object() {
            let width = fields.keys().map(String::len).max().unwrap_or(0);
            for (name, value) in fields {
                text.push_str(&format!("  {name:<width$}  {}\n", plain(value)));
            }
        }
    }
    text.push_str("\ntransports\n");
    text.push_str(&transports_table(&information["transports"]));
    let file =
        configuration.file.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    text.push_str(&format!("\nconfiguration (file: {file})\n"));
    text.push_str(&as_table(&configuration.options));
    text
}

/// One column for each transport.
fn transports_table(transports: &Value) -> String {
    let list = transports.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(first) = list.first().and_then(Value::as_object) else {
        return "none in this build\n".to_owned();
    };
    let mut table = Table::new(
        std::iter::once("transport".to_owned())
            .chain(list.iter().map(|transport| plain(&transport["transport"]))),
    );
    for name in first.keys().filter(|name| *name != "transport") {
        let cells = list.iter().map(|transport| plain(&transport[name]));
        table.line(std::iter::once(name.clone()).chain(cells));
    }
    table.render()
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
    fn a_dumped_file_reads_back_as_what_was_in_force() {
        let mut builder = weft_options::Builder::new();
        builder.flag("shm.copy", "plain").flag("daemon.socket", "/a/b.sock");
        builder.flag("socket.sink_bytes", "65536");
        let (options, _) = builder.finish();
        let mut reader = weft_options::Builder::new();
        reader.file("dump", &as_file(&options));
        let (again, problems) = reader.finish();
        assert_eq!(problems, []);
        for entry in TABLE {
            assert_eq!(again.text(entry.id), options.text(entry.id), "{}", entry.name);
        }
        assert!(as_file(&options).lines().all(|line| line.chars().count() <= 100));
    }

    #[test]
    fn this_machine_can_do_what_weft_needs() {
        let machine = machine();
        for feature in ["memfd_sealing", "pidfd", "futex"] {
            assert_eq!(machine[feature], json!(true), "{feature}: {machine}");
        }
    }
}
