//! OpenSHMEM programs in C whose PEs are on two hosts: two network namespaces with a daemon each,
//! joined by a cable. The launcher is outside of both, and reaches them by a script in place of
//! ssh.
//!
//! `programs/shmem.c` has the rules that need more than one call; the program that calls every
//! function with every type is generated from the table of functions.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_e2e::process::{Running, descendants};
use weft_e2e::{
    Case, Ended, Host, Namespace, Node, Outcome, Skip, cases, host, program, setting, suite,
};
use weft_libfabric::Library;
use weft_shmem_api::programs::{self, Naming};

const LIMIT: Duration = Duration::from_secs(160);

/// The rules that one job goes through.
const RULES: [&str; 11] = [
    "statics",
    "few_races",
    "order",
    "sizes",
    "reductions",
    "long_collectives",
    "sets",
    "teams",
    "threads",
    "heap",
    "locks",
];

fn main() -> ExitCode {
    let mut cases = suite::in_turns(vec![
        Case::new("the_rules_hold_on_4_pes_of_2_hosts", the_rules),
        Case::new("collectives_are_right_on_hosts_of_4_pes_and_1", || {
            collectives("one:4,two:1", 5)
        }),
        Case::new("collectives_are_right_on_hosts_of_1_pe_and_2", || collectives("one:1,two:2", 6)),
    ]);
    cases.extend(cases![
        every_function_with_every_type_reaches_another_host,
        starts_and_ends_nest_across_hosts,
        a_pe_that_is_killed_ends_the_job_on_both_hosts,
        statuses_are_those_of_the_first_that_failed,
        mistakes_are_told_with_the_pe_of_another_host,
        a_host_without_a_daemon_is_told,
        a_host_that_is_cut_off_ends_the_job,
        pes_that_are_stopped_for_longer_than_a_silence_go_on,
    ]);
    suite::main(cases)
}

/// Two hosts, and the launcher's place.
struct Job {
    hosts: [Host; 2],
    node: Node,
    ssh: PathBuf,
}

impl Job {
    fn new() -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("network namespaces need root".to_owned()));
        }
        for tool in ["ip", "nsenter", "gcc"] {
            program::find(tool)?;
        }
        Library::load().map_err(|error| Skip(error.to_string()))?;
        let node = Node::without_daemon();
        let key = host::key(&node, "key");
        let networks = [Namespace::new(), Namespace::new()];
        networks[0].cable_to(&networks[1]);
        let [first, second] = networks;
        let mut one = Host::inside(first, "10.9.0.1:7700", "one", &key, &[]);
        let mut two = Host::inside(second, "10.9.0.2:7700", "two", &key, &["10.9.0.1:7700"]);
        one.start();
        two.start();
        one.await_state("two", "up");
        two.await_state("one", "up");
        let hosts = [one, two];
        let ssh = write_ssh(&node, &hosts);
        Ok(Self { hosts, node, ssh })
    }

    /// Compiles a source file.
    fn compile(&self, source: &Path, options: &[&str]) -> PathBuf {
        let binary = self.node.directory().join("program");
        let mut command = self.node.weft(["oshcc", "-pthread", "-Wno-unused-value"]);
        command.args(options).arg("-o").arg(&binary).arg(source);
        assert_eq!(self.node.start(command).wait(LIMIT).success().stderr, "");
        binary
    }

    fn rules(&self) -> PathBuf {
        self.compile(&program::script("shmem.c"), &["-std=gnu11"])
    }

    /// The launcher with PEs on both hosts.
    fn oshrun(&self, pes: usize, program: &Path, arguments: &[&str]) -> Command {
        self.oshrun_on("one:2,two:2", pes, program, arguments)
    }

    fn oshrun_on(&self, hosts: &str, pes: usize, program: &Path, words: &[&str]) -> Command {
        let (pes, arguments) = (pes.to_string(), words);
        let words = ["oshrun", "-np", &pes, "-hosts", hosts, "-launcher-exec"];
        let mut command = self.node.weft(words);
        command.arg(&self.ssh).arg(program).args(arguments);
        command
    }

    /// Waits until each host has two PEs.
    fn await_endpoints(&self, running: &mut Running) {
        let until = Instant::now() + LIMIT;
        let has_endpoints = |host: &Host| {
            let status = host.node.status();
            status["endpoints"].as_array().map(Vec::len) == Some(2)
        };
        while !self.hosts.iter().all(has_endpoints) {
            assert!(!running.has_ended() && Instant::now() < until, "{}", running.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ended(&self, command: Command) -> Ended {
        let ended = self.node.start(command).wait(LIMIT);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.report());
        ended
    }
}

/// A script that starts a command on a host, as ssh does.
fn write_ssh(node: &Node, hosts: &[Host; 2]) -> PathBuf {
    let mut text = String::from("#!/bin/sh\nhost=$1; shift\ncase $host in\n");
    for host in hosts {
        let pid = host.daemon.as_ref().expect("it runs").pid();
        let socket = host.node.socket();
        text.push_str(&format!("{}) pid={pid} socket={} ;;\n", host.name, socket.display()));
    }
    text.push_str("esac\nexport WEFT_FABRIC_HOST=$host WEFT_DAEMON_SOCKET=$socket\n");
    text.push_str("exec nsenter -t $pid -n sh -c \"$*\"\n");
    let path = node.directory().join("ssh");
    std::fs::write(&path, text).expect("our own directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("our own file");
    path
}

fn every_function_with_every_type_reaches_another_host() -> Outcome {
    let job = Job::new()?;
    let source = job.node.directory().join("every.c");
    std::fs::write(&source, programs::text(Naming::Typed)).expect("our own directory");
    let program = job.compile(&source, &["-std=c99"]);
    let ended = job.ended(job.oshrun(3, &program, &[])).success();
    assert!(ended.stdout.contains("checks on each of 3 PEs"), "{}", ended.report());
    Ok(())
}

fn the_rules() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    let ended = job.ended(job.oshrun(4, &program, &RULES)).success();
    for rule in RULES {
        let said = format!("{rule} is right on 4 PEs");
        assert!(ended.stdout.contains(&said), "{said}: {}", ended.report());
    }
    Ok(())
}

fn collectives(hosts: &str, pes: usize) -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    let rules = ["reductions", "long_collectives", "sets"];
    let ended = job.ended(job.oshrun_on(hosts, pes, &program, &rules)).success();
    for rule in rules {
        let said = format!("{rule} is right on {pes} PEs");
        assert!(ended.stdout.contains(&said), "{said}: {}", ended.report());
    }
    Ok(())
}

fn starts_and_ends_nest_across_hosts() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    for (mode, said) in [("again", "again is right on 4 PEs"), ("exit", "communicated at exit")] {
        let ended = job.ended(job.oshrun(4, &program, &[mode])).success();
        assert!(ended.stdout.contains(said), "{}", ended.report());
    }
    Ok(())
}

/// The moments are those of the seed; a tenth of `WEFT_E2E_KILLS` says how many.
fn a_pe_that_is_killed_ends_the_job_on_both_hosts() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    for kill in 0..setting("WEFT_E2E_KILLS", 20).div_ceil(10) {
        let seed = setting("WEFT_E2E_SEED", 1) + kill;
        let us = (seed.wrapping_mul(6_364_136_223_846_793_005) >> 33) % 150_000;
        let ended = job.ended(job.oshrun(4, &program, &["dies", &us.to_string()]));
        assert_eq!(ended.code(), 137, "{us} us: {}", ended.report());
        let named = format!("PE {} on host {}", us % 4, ["one", "two"][usize::from(us % 4 > 1)]);
        assert!(ended.stderr.contains(&named), "{us} us: {}", ended.report());
        let pes = pes_of(&program, "dies");
        assert!(pes.is_empty(), "{us} us: {pes:?} are left of {:?}", descendants());
    }
    Ok(())
}

fn statuses_are_those_of_the_first_that_failed() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    for (mode, code) in [("status", 7), ("fail", 5)] {
        let ended = job.ended(job.oshrun(4, &program, &[mode]));
        assert_eq!(ended.code(), code, "{mode}: {}", ended.report());
        assert!(ended.stderr.contains("PE 3 on host two"), "{mode}: {}", ended.report());
    }
    Ok(())
}

fn mistakes_are_told_with_the_pe_of_another_host() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    for (mistake, words) in [
        ("collective", &["PE 1 calls shmem_barrier_all", "shmem_long_broadcast(1, 0, "]),
        ("set length", &["shmem_long_sum_to_all(1, 0)", "shmem_long_sum_to_all(2, 0)"]),
        ("left", &["PE 0: shmem_barrier_all: PE 1 has ended", "have all PEs call it"]),
    ] {
        // PE 1 is on the other host.
        let mut command = job.node.weft(["oshrun", "-np", "2", "-hosts", "one,two"]);
        command.arg("-launcher-exec").arg(&job.ssh).arg(&program).args(["mistake", mistake]);
        command.env("SHMEM_DEBUG", "1");
        let ended = job.ended(command);
        assert_eq!(ended.code(), 1, "{}", ended.report());
        for word in words {
            assert!(ended.stderr.contains(word), "{word}: {}", ended.report());
        }
    }
    Ok(())
}

fn a_host_without_a_daemon_is_told() -> Outcome {
    let mut job = Job::new()?;
    let program = job.rules();
    job.hosts[1].kill();
    // Its namespace has no process any more that stands for it: the other one's is as good.
    let text = std::fs::read_to_string(&job.ssh).expect("written");
    let pid = job.hosts[0].daemon.as_ref().expect("it runs").pid();
    let text = text.replace("exec nsenter -t $pid", &format!("exec nsenter -t {pid}"));
    std::fs::write(&job.ssh, text).expect("our own file");
    let ended = job.ended(job.oshrun(4, &program, &["heap"]));
    assert_eq!(ended.code(), 1, "{}", ended.report());
    for word in ["are on different hosts", "no daemon answers at", "start `weft daemon`"] {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.report());
    }
    Ok(())
}

/// First all of them, as by Ctrl-Z or a batch system, then one, as by a debugger.
fn pes_that_are_stopped_for_longer_than_a_silence_go_on() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    let end = job.node.directory().join("end");
    let mut running = job.node.start(job.oshrun(4, &program, &["rounds", &end.to_string_lossy()]));
    job.await_endpoints(&mut running);
    let pes = pes_of(&program, "rounds");
    assert_eq!(pes.len(), 4, "{:?}", descendants());
    for stopped in [&pes[..], &pes[3..]] {
        signal(stopped, Signal::STOP);
        // That of the daemons is 3 s.
        std::thread::sleep(Duration::from_secs(4));
        assert!(!running.has_ended(), "{}", running.stderr());
        signal(stopped, Signal::CONT);
        std::thread::sleep(Duration::from_millis(300));
    }
    std::fs::write(&end, "").expect("our own directory");
    let ended = running.wait(LIMIT).success();
    assert_eq!(ended.stdout, "rounds are right on 4 PEs\n", "{}", ended.report());
    Ok(())
}

/// The processes that run a program with this mode.
fn pes_of(program: &Path, mode: &str) -> Vec<u32> {
    let own = format!("{} {mode}", program.display());
    let is_pe = |(_, line): &(u32, String)| line.starts_with(&own);
    descendants().into_iter().filter(is_pe).map(|(pid, _)| pid).collect()
}

fn signal(processes: &[u32], signal: Signal) {
    for pid in processes {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a PE");
    }
}

/// Data between the hosts are lost, while the launcher reaches both.
fn a_host_that_is_cut_off_ends_the_job() -> Outcome {
    let job = Job::new()?;
    let program = job.rules();
    let mut running = job.node.start(job.oshrun(4, &program, &["dies", "100000000"]));
    job.await_endpoints(&mut running);
    job.hosts[0].network.as_ref().expect("its own").ip("link set cable down");
    let ended = running.wait(LIMIT);
    assert_eq!(ended.code(), 1, "{}", ended.report());
    assert!(ended.stderr.contains("is not reached any more"), "{}", ended.report());
    Ok(())
}
