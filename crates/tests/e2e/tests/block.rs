//! `weft block`: its server as initiators, clients and tools of others see it.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, program, suite};

const LIMIT: Duration = Duration::from_secs(280);
const ENDS: Duration = Duration::from_secs(300);

/// The cases of `block.py`, with the third-party programs that each runs.
const CASES: [(&str, &[&str]); 9] = [
    ("suite_first_third", &["iscsi-test-cu"]),
    ("qemu", &["qemu-img", "qemu-io"]),
    ("nbd_tools", &["nbdinfo", "nbdcopy", "fio"]),
    ("eight_sessions", &["qemu-io"]),
    ("chap", &["iscsi-inq"]),
    ("management", &["qemu-io"]),
    ("configured", &[]),
    ("strangers", &["qemu-io"]),
    ("tls", &["openssl", "nbdinfo", "nbdcopy"]),
];

fn main() -> ExitCode {
    let cases = CASES.map(|(case, tools)| Case::new(case, move || run(&[case], tools)));
    let deaths = Case::new("sudden_deaths", || run(&["sudden_deaths", "10"], &[]));
    let more = Case::new("sudden_deaths_200", || run(&["sudden_deaths", "200"], &[]));
    let whole = Case::new("suite_whole", || run(&["suite_whole"], &["iscsi-test-cu"]));
    let all = cases.into_iter().chain([
        deaths,
        more.long("200 servers start and are killed"),
        whole.long("a test of the suite waits a minute for the end of an erasure"),
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
