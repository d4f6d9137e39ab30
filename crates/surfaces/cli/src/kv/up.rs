//! `weft kv up`: a cluster of nodes on this host, each a process of its own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::kv::UpArguments;

/// The name of the cluster.
const CLUSTER: &str = "up";
/// A node that is killed is started again so long after its lease.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the nodes are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Nodes that do not end by SIGTERM in this time are killed.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// A node.
enum Slot {
    Running(Child),
    /// It was killed, and is started again at this time.
    Waiting(Instant),
    /// It was shut down.
    Ended,
}

pub fn up(arguments: &UpArguments) -> anyhow::Result<ExitCode> {
    let last = u32::from(arguments.port) + arguments.nodes - 1;
    ensure!(u16::try_from(last).is_ok(), "there is no port {last}: take a lower --port");
    let data = &arguments.data;
    std::fs::create_dir_all(data)
        .with_context(|| format!("the directory {} cannot be made", data.display()))?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD])?;
    let mut slots = Vec::new();
    for number in 0..arguments.nodes {
        slots.push(Slot::Running(start(arguments, number)?));
    }
    let pause = Duration::from_millis(arguments.lease_ms) + PAUSE;
    loop {
        if signals.pending().any(|signal| signal != SIGCHLD) {
            return Ok(end(slots));
        }
        for (number, slot) in (0..).zip(&mut slots) {
            match slot {
                Slot::Running(child) => {
                    let Some(status) = child.try_wait()? else { continue };
                    if status.success() {
                        *slot = Slot::Ended;
                    } else if status.signal().is_some() {
                        eprintln!("weft: node {number} was killed; it is started again");
                        *slot = Slot::Waiting(Instant::now() + pause);
                    } else {
                        // It has said why.
                        end(slots);
                        return Ok(ExitCode::FAILURE);
                    }
                }
                Slot::Waiting(at) if *at <= Instant::now() => {
                    *slot = Slot::Running(start(arguments, number)?);
                }
                Slot::Waiting(_) | Slot::Ended => {}
            }
        }
        if slots.iter().all(|slot| matches!(slot, Slot::Ended)) {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
    }
}

fn start(arguments: &UpArguments, number: u32) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("this program's own file cannot be found")?;
    let mode = arguments.durability.to_possible_value().context("a mode has a name")?;
    let place = std::path::absolute(arguments.data.join("cluster"))?;
    let mut command = Command::new(program);
    command
        .args(["kv", "serve", "--cluster", CLUSTER, "--bind", &arguments.bind])
        .args(["--durability", mode.get_name()])
        .args(["--port", &(u32::from(arguments.port) + number).to_string()])
        .args(["--replicas", &arguments.nodes.to_string()])
        .args(["--lease-ms", &arguments.lease_ms.to_string()])
        .args(["--parent", &std::process::id().to_string()])
        .arg("--coord")
        .arg(format!("dir:{}", place.display()))
        .arg("--data")
        .arg(arguments.data.join(format!("node-{number}")));
    if let Some(regions) = arguments.regions {
        command.args(["--regions", &regions.to_string()]);
    }
    if let Some(file) = &arguments.password_file {
        command.arg("--password-file").arg(file);
    }
    command.spawn().context("a node cannot be started")
}

/// Ends all nodes. Status 0 if each did so by itself.
fn end(slots: Vec<Slot>) -> ExitCode {
    let mut children: Vec<Child> = slots
        .into_iter()
        .filter_map(|slot| match slot {
            Slot::Running(child) => Some(child),
            Slot::Waiting(_) | Slot::Ended => None,
        })
        .collect();
    for child in &children {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // One that has ended meanwhile is not waited for yet: the number is still its own.
        pid.map(|pid| kill_process(pid, Signal::TERM));
    }
    let until = Instant::now() + ENDED_WITHIN;
    let mut code = ExitCode::SUCCESS;
    for child in &mut children {
        loop {
            match child.try_wait() {
                // One that still starts ends by the signal itself.
                Ok(Some(status)) if status.success() || status.signal() == Some(SIGTERM) => break,
                Ok(None) if Instant::now() < until => std::thread::sleep(LOOK / 5),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    code = ExitCode::FAILURE;
                    break;
                }
            }
        }
    }
    code
}
