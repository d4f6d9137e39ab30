//! The package for Python: its own tests, with the interpreter of the system and the module that
//! cargo built. They need pytest; a case whose further modules are not there is skipped.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::suite::LONG;
use weft_e2e::{Case, Node, Outcome, Skip, program, python, suite};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(200);
/// Examples of each property, and those of a long run.
const EXAMPLES: &str = "15";
const MANY: &str = "500";
/// Gives a case the network and the `/run` of a fresh machine.
const MACHINE: &str = "mount -t tmpfs tmpfs /run && ip link set lo up && exec \"$@\"";

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("memory", || tests(&["memory"], &[])),
        Case::new("messages_and_metrics", || tests(&["messages", "daemon"], &[])),
        Case::new("processes", || tests(&["processes"], &[])),
        Case::new("asyncio", || tests(&["aio"], &[])),
        Case::new("numpy", || tests(&["numpy"], &["numpy"])),
        Case::new("pages", || tests(&["pages"], &["numpy"])),
        Case::new("any_calls", || tests(&["hostile"], &["hypothesis"])).within(10 * LIMIT),
        Case::new("types", types).long("the checker takes some 20 s"),
        Case::new("lab", lab),
    ])
}

/// Runs the tests of some files, which may need further modules.
fn tests(files: &[&str], needs: &[&str]) -> Outcome {
    for module in ["pytest"].iter().chain(needs) {
        python::has(module)?;
    }
    let node = Node::new();
    passed(&node, pytest(&node, files)?)
}

/// The command that runs the tests of some files.
fn pytest(node: &Node, files: &[&str]) -> Result<Command, Skip> {
    python::package(node.directory());
    let mut command = node.plain(program::python()?);
    // Without options of a user, or caches among the sources.
    command.args(["-m", "pytest", "-rsP", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]);
    command.arg("--rootdir").arg(node.directory());
    let tests = python::sources().join("tests");
    command.args(files.iter().map(|name| tests.join(format!("test_{name}.py"))));
    let examples = if std::env::var_os(LONG).is_some() { MANY } else { EXAMPLES };
    command.env("TEST_PYTHON_EXAMPLES", examples).env("PYTHONPATH", node.directory());
    command.env("WEFT_BIN", program::weft()).current_dir(node.directory());
    Ok(command)
}

/// None of them is skipped: the case would be.
fn passed(node: &Node, command: Command) -> Outcome {
    let limit = if std::env::var_os(LONG).is_some() { 10 * LIMIT } else { LIMIT };
    let ended = node.start(command).wait(limit).success();
    let result = ended.stdout.lines().last().unwrap_or_default();
    assert!(result.contains("passed") && !result.contains("skipped"), "{}", ended.report());
    for line in ended.stdout.lines().filter(|line| line.contains("was told after")) {
        println!("{line}");
    }
    Ok(())
}

/// Old releases of mypy have no type for objects with the buffer protocol.
fn types() -> Outcome {
    let printed = "import mypy.version as own; print(own.__version__)";
    python::has("mypy")?;
    let mut asked = Command::new(program::python()?);
    let output = asked.args(["-c", printed]).output().expect("it was found");
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(1), Some(4)) {
        return Err(Skip(format!("mypy {version} has no type for buffers, 1.4 has")));
    }
    tests(&["typed"], &["numpy"])
}

fn lab() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("network namespaces need root".to_owned()));
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        return Err(Skip("there is no /dev/net/tun".to_owned()));
    }
    for tool in ["ip", "ping"] {
        program::find(tool)?;
    }
    python::has("pytest")?;
    let node = Node::without_daemon();
    let inner = pytest(&node, &["lab"])?;
    let mut command = node.plain(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--net", "--"]);
    command.args(["sh", "-c", MACHINE, "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        value.map(|value| command.env(name, value));
    }
    command.env("TEST_PYTHON_LAB", "1").current_dir(node.directory());
    passed(&node, command)
}
