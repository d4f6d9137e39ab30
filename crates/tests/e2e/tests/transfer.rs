//! `weft cp`: trees, resumption, faults, and destinations that are not left.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(80);

/// The cases of `transfer.py`, with the third-party programs that each runs.
const CASES: [(&str, &[&str]); 21] = [
    ("here", &["rsync", "diff"]),
    ("by_shell", &["rsync", "diff"]),
    ("by_server", &["rsync", "diff"]),
    ("by_users", &["rsync", "diff"]),
    ("fabric", &["rsync", "diff", "cmp"]),
    ("third", &["cmp", "pgrep"]),
    ("third_on_fabric", &["cmp", "pgrep"]),
    ("third_for_long", &["cmp"]),
    ("killed", &["rsync", "diff", "pgrep"]),
    ("killed_often", &["rsync", "diff", "pgrep"]),
    ("cut", &["rsync", "diff", "cmp"]),
    ("cut_often", &["rsync", "diff", "cmp"]),
    ("damaged", &[]),
    ("full", &["mount"]),
    ("troubles", &[]),
    ("removing", &["find"]),
    ("races", &[]),
    ("sparse", &[]),
    ("real", &["rsync", "diff"]),
    ("by_ssh", &["rsync", "diff", "git", "ssh", "ssh-keygen", "sshd"]),
    ("many", &["rsync", "diff"]),
];

fn main() -> ExitCode {
    let cases = CASES.map(|(name, tools)| {
        let case = Case::new(name, move || run(name, tools));
        match name {
            "killed_often" => case.within(Duration::from_secs(900)).long("it kills 200 times"),
            "cut_often" => case.within(Duration::from_secs(900)).long("200 runs"),
            "by_ssh" => case.within(Duration::from_secs(900)).long("the source of Linux is 1.3 GB"),
            "third_for_long" => {
                case.within(Duration::from_secs(300)).long("an end may be silent for a minute")
            }
            "real" => case.long("the modules of Python are some 100 MB"),
            "many" => case.long("100,000 files take a minute to make and to judge"),
            _ => case,
        }
    });
    suite::main(cases.to_vec())
}

fn run(case: &str, tools: &[&str]) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("owners and devices need root".to_owned()));
    }
    for tool in tools.iter().chain(&["unshare"]) {
        program::find(tool)?;
    }
    // The daemon of a node lets in who is in its network.
    let (node, network) = match case {
        "fabric" | "third_on_fabric" => (Node::new(), None),
        _ => (Node::without_daemon(), Some("--net")),
    };
    // The case mounts things, and its server has ports of its own.
    let mut command = node.plain(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private"]).args(network).arg("--");
    command.args([
        "sh",
        "-c",
        "ip link set lo up && mount -t tmpfs tmpfs /mnt && exec \"$@\"",
        "sh",
    ]);
    command.env("PLACE", "/mnt");
    command.arg(program::python()?).arg(program::script("transfer.py"));
    command.arg(program::weft()).arg(case);
    let limit = match case {
        "killed_often" | "cut_often" | "by_ssh" | "third_for_long" => LIMIT * 10,
        _ => LIMIT,
    };
    let ended = node.start(command).wait(limit).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
