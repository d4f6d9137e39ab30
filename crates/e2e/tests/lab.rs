//! `weft lab`: nodes whose programs, which know nothing of weft, talk over its devices.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(120);
const ENDS: Duration = Duration::from_secs(130);
const STATE: &str = "/run/weft/lab.json";

/// What the cases of `lab_tools.py` run beside Python, from Debian's packages of similar names.
const TOOLS: [&str; 12] = [
    "arping", "bridge", "dnsmasq", "ethtool", "iperf3", "ndisc6", "nft", "nstat", "ping", "rdisc6",
    "tcpdump", "udhcpc",
];

fn main() -> ExitCode {
    let own = [
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
        "again",
        "missing",
    ];
    let with_tools = [
        "pings",
        "neighbours",
        "dhcp_and_slaac",
        "captures",
        "mtus",
        "carrier",
        "statistics",
        "queues",
        "bridged",
        "gateway",
        "floods",
        "storms",
        "returns",
    ];
    let own =
        own.map(|case| Case::new(case.to_owned(), move || run("lab.py", case, &[])).within(ENDS));
    let with_tools = with_tools.map(|case| {
        Case::new(case.to_owned(), move || run("lab_tools.py", case, &TOOLS)).within(ENDS)
    });
    suite::main(own.into_iter().chain(with_tools).collect())
}

fn run(script: &str, case: &str, tools: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    if Path::new(STATE).exists() {
        return Err(Skip("a lab is up, which is not to be disturbed".to_owned()));
    }
    for tool in tools {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::python()?);
    command.arg(program::script(script)).arg(program::weft()).arg(case);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
