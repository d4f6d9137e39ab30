//! Containers made of the kernel's namespaces: their programs find each other through bridges and
//! address translation, and nobody else. `programs/containers.py` has the cases.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(60);
/// Gives the case its own `/run`, where the daemon's socket and the names of namespaces are.
const MACHINE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

/// The cases, with the third-party programs that each runs.
const CASES: [(&str, &[&str]); 8] = [
    ("bridged", &["curl"]),
    ("redis", &["redis-server", "redis-benchmark"]),
    ("unrelated", &["curl"]),
    ("strangers", &["curl"]),
    ("forged", &[]),
    ("translated", &["curl", "nft"]),
    ("closed", &["curl"]),
    ("rootless", &["redis-server", "redis-benchmark", "setpriv"]),
];

fn main() -> ExitCode {
    let mut cases = vec![Case::new("the_page_has_the_script", the_page_has_the_script)];
    cases.extend(CASES.map(|(name, tools)| Case::new(name, move || run(name, tools))));
    suite::main(cases)
}

/// The documentation shows the script that the cases run.
fn the_page_has_the_script() -> Outcome {
    let read = |file: &Path| std::fs::read_to_string(file).expect("a file of this repository");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/containers.md");
    assert!(
        read(&page).contains(&read(&program::script("container.sh"))),
        "docs/containers.md has another container.sh than crates/tests/e2e/programs"
    );
    Ok(())
}

fn run(case: &str, tools: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    for tool in ["ip", "nsenter"].iter().chain(tools) {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", MACHINE, "sh"]).arg(program::python()?);
    command.arg(program::script("containers.py")).arg(program::weft()).arg(case);
    command.arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    if let Some(why) = ended.stdout.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        return Err(Skip(why.to_owned()));
    }
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
