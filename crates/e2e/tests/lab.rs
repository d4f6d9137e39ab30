//! `weft lab`: nodes whose programs, which know nothing of weft, talk over its devices.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

const LIMIT: Duration = Duration::from_secs(120);
const STATE: &str = "/run/weft/lab.json";

fn main() -> ExitCode {
    let cases = [
        "every_size",
        "streams",
        "direct",
        "datagrams",
        "broadcasts",
        "groups",
        "forgeries",
        "daemon_dies",
        "again",
    ];
    suite::main(cases.map(|case| Case::new(case.to_owned(), move || run(case))).into())
}

fn run(case: &str) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    if Path::new(STATE).exists() {
        return Err(Skip("a lab is up, which is not to be disturbed".to_owned()));
    }
    let node = Node::without_daemon();
    let mut command = Command::new(program::python()?);
    command.arg(program::script("lab.py")).arg(program::weft()).arg(case);
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "all of it\n", "{}", ended.report());
    Ok(())
}
