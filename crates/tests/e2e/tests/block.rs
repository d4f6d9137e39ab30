//! `weft block`: its server as initiators, clients and tools of others see it.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};
use weft_libfabric::Library;

const LIMIT: Duration = Duration::from_secs(280);
const ENDS: Duration = Duration::from_secs(300);

/// The cases of `block.py`, with the third-party programs that each runs.
const CASES: [(&str, &[&str]); 11] = [
    ("suite_first_sixth", &["iscsi-test-cu"]),
    ("qemu", &["qemu-img", "qemu-io"]),
    ("nbd_tools", &["nbdinfo", "nbdcopy", "fio"]),
    ("direct", &["fio", "iscsi-test-cu"]),
    ("eight_sessions", &["qemu-io"]),
    ("chap", &["iscsi-inq"]),
    ("management", &["qemu-io"]),
    ("full", &["qemu-io"]),
    ("configured", &[]),
    ("strangers", &["qemu-io"]),
    ("tls", &["openssl", "nbdinfo", "nbdcopy"]),
];

fn main() -> ExitCode {
    let cases = CASES.map(|(case, tools)| Case::new(case, move || run(&[case], tools)));
    let deaths = Case::new("sudden_deaths", || run(&["sudden_deaths", "6"], &[]));
    let more = Case::new("sudden_deaths_200", || run(&["sudden_deaths", "200"], &[]));
    let whole = Case::new("suite_whole", || run(&["suite_whole"], &["iscsi-test-cu"]));
    let file = Case::new("suite_whole_file", || run(&["suite_whole", "1"], &["iscsi-test-cu"]));
    let fabric = Case::new("over_the_fabric", between_hosts);
    let all = cases.into_iter().chain([
        deaths,
        fabric,
        more.long("200 servers start and are killed"),
        whole.long("a test of the suite waits a minute for the end of an erasure"),
        file.long("the same"),
    ]);
    suite::main(all.map(|case| case.within(ENDS)).collect())
}

fn run(words: &[&str], tools: &[&str]) -> Outcome {
    for tool in tools {
        program::find(tool)?;
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::python()?);
    command.arg(program::script("block.py")).arg(program::weft()).args(words);
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}

/// Two hosts of the kernel's namespaces, with a `/run` of their own, as those of `hosts`.
fn between_hosts() -> Outcome {
    const MACHINE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    for tool in ["ip", "nbdcopy", "qemu-io", "fio"] {
        program::find(tool)?;
    }
    Library::load().map_err(|error| Skip(error.to_string()))?;
    let node = Node::without_daemon();
    let mut command = node.plain(program::find("unshare")?);
    command.env_remove("WEFT_DAEMON_SOCKET");
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", MACHINE, "sh"]).arg(program::python()?);
    command.arg(program::script("host_block.py")).arg(program::weft());
    command.arg("over_the_fabric").arg(node.directory());
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("all of it\n"), "{}", ended.report());
    Ok(())
}
