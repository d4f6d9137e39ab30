//! The views that users have of a node: metrics, `weft top`, the dashboard, `weft doctor`.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(110);
const ENDS: Duration = Duration::from_secs(120);

/// The cases of `observe.py`, with the third-party programs that each runs.
const CASES: [(&str, &[&str]); 7] = [
    ("numbers", &[]),
    ("live", &[]),
    ("hostile", &[]),
    ("prometheus", &["prometheus", "promtool"]),
    ("terminal", &["tmux"]),
    ("capture", &["tshark"]),
    ("dashboard", &["chromium"]),
];

/// Those of `observe_more.py`.
const MORE: [(&str, &[&str]); 9] = [
    ("times", &[]),
    ("works", &["qemu-io"]),
    ("jobs", &[]),
    ("messages", &["tshark"]),
    ("notifications", &["tshark"]),
    ("sums", &["iperf3", "redis-server", "redis-benchmark", "redis-cli"]),
    ("clients", &[]),
    ("playback", &["chromium"]),
    ("large", &["chromium"]),
];

/// Gives the case its own `/run`, in which a lab keeps its state and the names of its namespaces.
const PRIVATE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

fn main() -> ExitCode {
    let case = |(name, tools)| Case::new(name, move || run("observe.py", name, tools));
    let more = |(name, tools)| {
        let case = Case::new(name, move || run("observe_more.py", name, tools));
        if name == "large" { case.in_turn(0) } else { case }
    };
    let with_lab = [
        Case::new("lab", || in_a_lab("observe.py", "lab", &["ip", "chromium"])),
        Case::new("newcomer", || {
            let tools = ["ip", "chromium", "redis-server", "redis-benchmark", "redis-cli"];
            in_a_lab("observe_more.py", "newcomer", &tools)
        })
        .long("a lab, a store and a browser take both processors for ten seconds"),
        Case::new("frames", || in_a_lab("observe_more.py", "frames", &["ip", "tshark", "ping"])),
    ];
    let all = CASES.map(case).into_iter().chain(MORE.map(more)).chain(with_lab);
    suite::main(all.map(|case| case.within(ENDS)).collect())
}

/// A case with a lab in namespaces of its own.
fn in_a_lab(script: &str, case: &str, tools: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    for tool in tools {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", PRIVATE, "sh"]).arg(program::python()?);
    command.arg(program::script(script)).arg(program::weft()).arg(case);
    command.arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}

fn run(script: &str, case: &str, tools: &[&str]) -> Outcome {
    for tool in tools {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = node.plain(program::python()?);
    command.arg(program::script(script)).arg(program::weft()).arg(case);
    command.arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
