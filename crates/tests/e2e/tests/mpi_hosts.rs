//! Programs of MPI over weft between two hosts: network namespaces, joined by a key.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use weft_e2e::mpi::{
    END_WITHIN, LIMIT, ONE_SIDED, Pair, await_end, compiled, has_no_programs, is_right, processes,
};
use weft_e2e::{Outcome, Skip, cases, program, suite};

fn main() -> ExitCode {
    let mut cases = suite::in_turns(cases![
        messages_are_right_between_two_hosts,
        windows_are_right_between_two_hosts,
        windows_by_messages_are_right_between_two_hosts,
    ]);
    cases.extend(cases![
        windows_of_mpich_are_right_between_two_hosts,
        windows_of_long_messages_come_through,
        a_rank_that_ends_on_one_of_two_hosts_ends_the_job,
    ]);
    suite::main(cases)
}

fn messages_are_right_between_two_hosts() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "messages.c")?;
    for ranks in [2, 4] {
        is_right(&pair.node.start(pair.job(ranks, &[], &program)?).wait(2 * LIMIT));
    }
    Ok(())
}

/// Dynamic windows are left out: Open MPI 4.1.4 waits there for a lock that it holds itself (its
/// pull request 10473).
fn windows_are_right_between_two_hosts() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "windows.c")?;
    let words = [&ONE_SIDED[..], &["--mca", "btl_ofi_provider_include", "weft"]].concat();
    let words = [&words[..], &["-x", "WITHOUT_COMPARE_AND_SWAP", "-x", "SUMS_ALONE"]].concat();
    let mut command = pair.job(4, &words, &program)?;
    command.args(["fences", "posts", "locks"]);
    command.env("WITHOUT_COMPARE_AND_SWAP", "1").env("SUMS_ALONE", "1");
    is_right(&pair.node.start(command).wait(2 * LIMIT));
    Ok(())
}

/// The parts that `osc/rdma` of Open MPI 4.1.4 cannot: dynamic windows, MPI_MAX, MPI_BOR. Its
/// `osc/pt2pt` does them by messages, though no compare and swap. Its locks of four ranks hang over
/// `tcp;ofi_rxm`, too.
fn windows_by_messages_are_right_between_two_hosts() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "windows.c")?;
    let words = ["--mca", "osc", "pt2pt", "--mca", "btl", "self"];
    let words = [&words[..], &["-x", "WITHOUT_COMPARE_AND_SWAP"]].concat();
    let mut command = pair.job(2, &words, &program)?;
    command.args(["locks", "dynamic"]).env("WITHOUT_COMPARE_AND_SWAP", "1");
    is_right(&pair.node.start(command).wait(2 * LIMIT));
    Ok(())
}

/// Variables that the ranks of MPICH need on each host.
const VARIABLES: [&str; 4] =
    ["FI_PROVIDER", "FI_PROVIDER_PATH", "MPIR_CVAR_CH4_NETMOD", "MPIR_CVAR_NOLOCAL"];

/// MPICH does all of them by the provider's own reads, writes and atomics. Debian's has no OFI.
fn windows_of_mpich_are_right_between_two_hosts() -> Outcome {
    let directory = std::env::var_os("WEFT_MPICH").map(PathBuf::from).ok_or_else(|| {
        Skip("WEFT_MPICH names no MPICH with ch4:ofi, as `pip install mpich` has it".into())
    })?;
    let pair = Pair::joined()?;
    let program = pair.node.directory().join("windows-of-mpich");
    let mut compiler = Command::new(directory.join("bin/mpicc"));
    compiler.args(["-O1", "-o"]).arg(&program).arg(program::script("mpi/windows.c"));
    let output = compiler.output().expect("the compiler of MPICH starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for ranks in [2, 4] {
        let words = ["-launcher", "rsh", "-iface", "cable", "-hosts", "10.9.0.1,10.9.0.2"];
        let mut command = pair.at_first(&directory.join("bin/mpiexec"));
        command.args(words).arg("-launcher-exec").arg(pair.agent());
        // All others are those of the host: each has a daemon of its own.
        command.args(["-genvlist", &VARIABLES.join(","), "-n", &ranks.to_string()]).arg(&program);
        command.env("FI_PROVIDER", "weft").env("MPIR_CVAR_CH4_NETMOD", "ofi");
        command.env("MPIR_CVAR_NOLOCAL", "1");
        is_right(&pair.node.start(command).wait(2 * LIMIT));
    }
    Ok(())
}

/// Each window is 64 messages at once, of which the chunks hold a few.
fn windows_of_long_messages_come_through() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "streams.c")?;
    let mut command = pair.job(2, &[], &program)?;
    command.args(["2", "4000", "60000", "1048576"]);
    is_right(&pair.node.start(command).wait(2 * LIMIT));
    Ok(())
}

/// Kills the rank with this number. It was stopped and continued before that, which harms nothing.
fn end_one(program: &Path, victim: usize, signal: Signal) {
    let ranks = processes(program);
    assert_eq!(ranks.len(), 2);
    kill_process(ranks[victim], Signal::STOP).expect("it runs");
    std::thread::sleep(Duration::from_millis(500));
    kill_process(ranks[victim], Signal::CONT).expect("it is stopped");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(processes(program), ranks, "they go on");
    kill_process(ranks[victim], signal).expect("it runs");
}

fn a_rank_that_ends_on_one_of_two_hosts_ends_the_job() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "loop.c")?;
    for (victim, signal) in [(0, Signal::KILL), (1, Signal::ABORT)] {
        let mut job = pair.node.start(pair.job(2, &[], &program)?);
        job.await_output("begun");
        end_one(&program, victim, signal);
        let killed = Instant::now();
        let ended = job.wait(END_WITHIN);
        assert_ne!(ended.code(), 0, "{}", ended.report());
        await_end(&program, killed);
        for host in &pair.hosts {
            let _ = host.node.await_status("without the endpoints of the job", has_no_programs);
        }
    }
    Ok(())
}
