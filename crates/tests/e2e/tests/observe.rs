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

/// Gives the case its own `/run`, in which a lab keeps its state and the names of its namespaces.
const PRIVATE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

fn main() -> ExitCode {
    let case = |(name, tools)| Case::new(name, move || run(name, tools));
    let all = CASES.map(case).into_iter().chain([Case::new("lab", lab)]);
    suite::main(all.map(|case| case.within(ENDS)).collect())
}

/// A lab of its own namespaces, as `weft dash` shows it.
fn lab() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    for tool in ["ip", "chromium"] {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", PRIVATE, "sh"]).arg(program::python()?);
    command.arg(program::script("observe.py")).arg(program::weft()).arg("lab");
    command.arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}

fn run(case: &str, tools: &[&str]) -> Outcome {
    for tool in tools {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = node.plain(program::python()?);
    command.arg(program::script("observe.py")).arg(program::weft()).arg(case);
    command.arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
