//! Two hosts made of the kernel's namespaces, joined by a cable: endpoints, direct sockets and the
//! Ethernet device across them, and what becomes of them when anything dies.
//! `hosts.py`, `host_paths.py`, `host_services.py` and `host_transfer.py` of `programs` have the
//! cases.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::c_program::{Installed, Linked, example};
use weft_e2e::{Case, Node, Outcome, Skip, program, python, suite};
use weft_libfabric::Library;

const LIMIT: Duration = Duration::from_secs(240);
/// A hundred rounds of `deaths` take as long.
const LONG_LIMIT: Duration = Duration::from_secs(1500);
/// Gives the case its own `/run`, where the names of namespaces are.
const MACHINE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

fn main() -> ExitCode {
    let rounds = if std::env::var_os(suite::LONG).is_some() { "100" } else { "4" };
    let cases = vec![
        Case::new("endpoints", || run("endpoints", &[], "")),
        Case::new("layers", || run("layers", &[], ""))
            .alone("it measures, and two ends that take turns want both processors"),
        Case::new("counted", || run("counted", &["curl"], "")),
        Case::new("users", || run("users", &["setpriv"], "")),
        Case::new("device", || run("device", &["ping", "iperf3"], "")),
        Case::new("sockets", || run("sockets", &["curl"], "")),
        Case::new("socket_programs", || run("socket_programs", &[], "")),
        Case::new("socket_descriptors", || run("socket_descriptors", &[], "")),
        Case::new("socket_ends", || run("socket_ends", &[], "")).in_turn(0),
        Case::new("socket_exiting", socket_exiting),
        Case::new("socket_children", || run("socket_children", &["gcc"], "")).in_turn(2),
        Case::new("socket_redis", || {
            run("socket_redis", &["redis-server", "redis-cli", "redis-benchmark"], "")
        })
        .alone("a connection of a tenth of a second has to move"),
        Case::new("socket_iperf", || run("socket_iperf", &["iperf3"], "")),
        Case::new("socket_postgres", || run("socket_postgres", &["pgbench", "setpriv"], ""))
            .long("a database is made and filled"),
        Case::new("socket_outage", || run("socket_outage", &["curl", "redis-server"], ""))
            .in_turn(2),
        Case::new("socket_dead_host", || run("socket_dead_host", &[], "")),
        Case::new("socket_auto", || run("socket_auto", &[], "")),
        Case::new("without_libfabric", || run("without_libfabric", &[], "")),
        Case::new("paths_firewall", || run_of("host_paths.py", "firewall")),
        Case::new("paths_silent_firewall", || run_of("host_paths.py", "silent_firewall"))
            .long("each try waits 10 s for what is dropped"),
        Case::new("paths_families", || run_of("host_paths.py", "families")),
        Case::new("copies", || run_of("host_paths.py", "copies")),
        Case::new("names", || run_of("host_paths.py", "names")),
        Case::new("services", || {
            let ping = program::example("ping")?;
            run_script("host_services.py", "services", &["setpriv"], &ping.to_string_lossy())
        }),
        Case::new("c_programs", c_programs),
        Case::new("python", python_programs),
        Case::new("transfer", || run_script("host_transfer.py", "transfer", &["diff"], "")),
        Case::new("deaths", move || run("deaths", &[], rounds)).in_turn(1),
    ];
    let limit = LONG_LIMIT + Duration::from_secs(10);
    suite::main(cases.into_iter().map(|case| case.within(limit)).collect())
}

fn run(case: &str, tools: &[&str], argument: &str) -> Outcome {
    run_script("hosts.py", case, tools, argument)
}

fn run_of(script: &str, case: &str) -> Outcome {
    run_script(script, case, &[], "")
}

/// Programs that end while their threads use connections between hosts.
fn socket_exiting() -> Outcome {
    run("socket_exiting", &["gcc"], "")
}

/// Examples in C on both hosts.
fn c_programs() -> Outcome {
    let node = Node::without_daemon();
    let installed = Installed::links(&node);
    let mut programs = None;
    for name in ["ping_pong.c", "memory.c"] {
        programs = Some(installed.compiled(&example(name), Linked::Shared)?);
    }
    let folder = programs.as_deref().and_then(Path::parent).expect("they are in a folder");
    run_script("host_c.py", "c_programs", &["gcc"], &folder.to_string_lossy())
}

/// The package for Python on both hosts.
fn python_programs() -> Outcome {
    let node = Node::without_daemon();
    python::package(node.directory());
    run_script("host_python.py", "python", &[], &node.directory().to_string_lossy())
}

fn run_script(script: &str, case: &str, tools: &[&str], argument: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if case == "device" && !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    for tool in ["ip"].iter().chain(tools) {
        program::find(tool)?;
    }
    Library::load().map_err(|error| Skip(error.to_string()))?;
    let node = Node::without_daemon();
    let mut command = node.plain(program::find("unshare")?);
    command.env_remove("WEFT_DAEMON_SOCKET");
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", MACHINE, "sh"]).arg(program::python()?);
    command.arg(program::script(script)).arg(program::weft()).arg(case);
    command.arg(node.directory()).arg(argument);
    let limit = if argument == "100" { LONG_LIMIT } else { LIMIT };
    let ended = node.start(command).wait(limit).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
