//! Large writes that readers take from the writer's memory, with signals, timeouts and kills.
//!
//! `WEFT_E2E_BLOCKS_SEEDS=from..to` runs other seeds.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::{Case, Node, Outcome, Skip, as_usual, program, suite};

const ROUNDS: &str = "12";
const LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    suite::main(vec![
        Case::new("plain_tcp", || blocks(false, "0")),
        Case::new("blocks_of_every_size", || blocks(true, "1")),
        Case::new("blocks_of_64_kib_and_more", || blocks(true, "65536")),
        Case::new("on_one_processor_by_itself", on_one_processor)
            .alone("what its daemon measures decides"),
        Case::new("two_processors_keep_to_the_lane", on_two_processors)
            .alone("what its daemon measures decides"),
    ])
}

/// Where only root may read other programs, readers refuse all blocks.
fn readable() -> Result<(), Skip> {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if is_root || matches!(scope.trim(), "" | "0") {
        return Ok(());
    }
    let reason = "kernel.yama.ptrace_scope lets no program read another; run this as root";
    Err(Skip(reason.to_owned()))
}

fn compiled(node: &Node) -> Result<std::path::PathBuf, Skip> {
    // The next program has its memory where the former one had it.
    program::compiled("blocks.c", &["-O1", "-no-pie", "-pthread"], node.directory())
}

fn blocks(under_weft: bool, least: &str) -> Outcome {
    readable()?;
    let node = Node::new();
    let binary = compiled(&node)?;
    let mut pulled = 0;
    for seed in seeds() {
        let mut command = node.program(under_weft, &binary);
        as_usual(&mut command);
        command.env("WEFT_SOCKET_BLOCK_BYTES", least).args([&seed.to_string(), ROUNDS]);
        let ended = node.start(command).wait(LIMIT).success();
        assert_eq!(ended.stdout, format!("{ROUNDS} connections\n"), "{}", ended.report());
        if under_weft {
            pulled += ended.statistics().pulled;
        }
    }
    assert!(!under_weft || pulled > 10_000_000, "only {pulled} bytes with one copy");
    Ok(())
}

/// Whether one copy is faster depends on the machine: only what the daemon measured counts.
fn on_one_processor() -> Outcome {
    readable()?;
    let node = Node::new();
    let binary = compiled(&node)?;
    node.program(true, "true").output().expect("the daemon starts");
    let status = node.await_status("calibrated", |status| status["block_bytes"].is_array());
    let [least, most] = [0, 1].map(|place| status["block_bytes"][place].as_u64().expect("bytes"));
    let ended = node.start(pinned(&node, &binary)).wait(LIMIT).success();
    let pulled = ended.statistics().pulled;
    println!("    measured: {least} to {most}; with one copy: {pulled} bytes");
    assert!(most > 0 || pulled == 0, "{}", ended.report());
    assert!(least > 256 << 10 || most < 1 << 20 || pulled > 0, "{}", ended.report());
    Ok(())
}

fn on_two_processors() -> Outcome {
    let node = Node::new();
    let mut command = node.program(true, compiled(&node)?);
    command.args(["1", ROUNDS]);
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.statistics().pulled, 0, "{}", ended.report());
    Ok(())
}

fn pinned(node: &Node, binary: &std::path::Path) -> Command {
    let mut command = node.program(true, "taskset");
    as_usual(&mut command);
    command.args(["-c", "0"]).arg(binary).args(["1", ROUNDS]);
    command
}

fn seeds() -> std::ops::Range<u64> {
    let wanted = std::env::var("WEFT_E2E_BLOCKS_SEEDS").unwrap_or_else(|_| "1..6".into());
    let (from, to) = wanted.split_once("..").expect("WEFT_E2E_BLOCKS_SEEDS=from..to");
    from.parse().expect("a number")..to.parse().expect("a number")
}
