//! `weft lab`: nodes whose programs run without weft and communicate over its devices.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};
use weft_libfabric::Library;

const LIMIT: Duration = Duration::from_secs(240);
const ENDS: Duration = Duration::from_secs(250);
/// Gives the case its own `/run`, in which a lab keeps its state and the names of its namespaces.
const PRIVATE: &str = "mount -t tmpfs tmpfs /run && exec \"$@\"";

/// The cases of `lab.py`.
const OWN: [&str; 16] = [
    "every_size",
    "interrupted",
    "many",
    "streams",
    "direct",
    "datagrams",
    "broadcasts",
    "groups",
    "memberships",
    "forgeries",
    "daemon_dies",
    "daemons",
    "links",
    "cut_off",
    "again",
    "missing",
];

/// The cases of `lab_tools.py`, with the third-party programs that each runs.
const WITH_TOOLS: [(&str, &[&str]); 16] = [
    ("pings", &[]),
    ("neighbours", &["arping", "ndisc6"]),
    ("dhcp_and_slaac", &["dnsmasq", "udhcpc", "rdisc6"]),
    ("captures", &["tcpdump"]),
    ("mtus", &[]),
    ("carrier", &["ethtool"]),
    ("statistics", &["nft"]),
    ("queues", &["iperf3", "taskset"]),
    ("bridged", &["arping", "bridge"]),
    ("gateway", &["ethtool", "iperf3", "nft", "nstat", "sysctl"]),
    ("floods", &["iperf3", "nft"]),
    ("paced", &["iperf3", "nft"]),
    ("storms", &["iperf3"]),
    ("returns", &[]),
    ("lost", &[]),
    ("small", &[]),
];

fn main() -> ExitCode {
    let own = OWN.map(|case| Case::new(case, move || run("lab.py", case, &[])));
    let with_tools = WITH_TOOLS.map(|(name, tools)| {
        let case = Case::new(name, move || run("lab_tools.py", name, tools));
        match name {
            "floods" | "storms" => case.alone("what floods a device takes all processors"),
            "paced" => case.alone(DROPS).long(DROPS),
            _ => case,
        }
    });
    let over_ports = Case::new("cut_off_over_libfabric", || {
        Library::load().map_err(|error| Skip(error.to_string()))?;
        run("lab.py", "cut_off_over_libfabric", &[])
    });
    let all = own.into_iter().chain(with_tools).chain([over_ports]);
    suite::main(all.map(|case| case.within(ENDS)).collect())
}

const DROPS: &str =
    "a loop that has no processor for 0.1 s drops packets as one that is stopped does";

fn run(script: &str, case: &str, tools: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    for tool in ["ip", "ping"].iter().chain(tools) {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    // The case also gets its own network namespace: other cases and labs of users may run beside
    // it.
    let mut command = Command::new(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", PRIVATE, "sh"]).arg(program::python()?);
    command.arg(program::script(script)).arg(program::weft()).arg(case);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
