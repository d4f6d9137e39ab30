//! Runs of MPI over weft that take long: ranks that end at random moments, and programs of others,
//! whose results are compared with those over Open MPI's own shared memory.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use weft_e2e::mpi::{
    END_WITHIN, LIMIT, ONE_SIDED, Pair, await_end, compiled, has_no_programs, job, processes,
    with_provider,
};
use weft_e2e::{Case, Node, Outcome, Skip, program, suite};

/// The limit of a case with all seeds, or of one program over both ways.
const CASE: Duration = Duration::from_secs(1800);
/// The programs of `suites/mpi/run.py`.
const PROGRAMS: [&str; 6] = ["hpcc", "lammps", "scalapack", "hdf5", "ior", "mpi4py"];

fn main() -> ExitCode {
    let many = "some fifty jobs run one after the other";
    let mut cases = vec![
        Case::new("a_rank_that_ends_at_any_moment_ends_its_job", ends_on_one_host).long(many),
        Case::new("a_rank_that_ends_at_any_moment_ends_the_job_of_two_hosts", ends_on_two_hosts)
            .long(many),
        Case::new("the_fabtests_pass", fabtests)
            .long("some 70 programs of libfabric's own run one after the other"),
    ];
    for name in PROGRAMS {
        let case = Case::new(format!("{name}_has_the_results_of_shared_memory"), move || {
            has_equal_results(name)
        });
        cases.push(case.long("each program runs over both ways"));
    }
    suite::main(cases.into_iter().map(|case| case.within(CASE)).collect())
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// A number below `bound` for a seed (SplitMix64).
fn random(seed: u64, bound: u64) -> u64 {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ word >> 31) % bound
}

/// The descriptors of a daemon: memory of endpoints that are gone would be among them.
fn descriptors(daemon: u32) -> usize {
    std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("it runs").count()
}

/// Ends one rank of each of `WEFT_E2E_KILLS` jobs, 50 unless that is set, at the moment of a seed:
/// from when all have endpoints on. Open MPI 4.1.4 has two faults of its own, which it shows over
/// its shared memory as well: the launcher hangs if a rank ends while it connects to that ("PMIX
/// ERROR: UNREACHABLE"), and the code that prints the stack of a rank that crashes may wait for a
/// lock of that rank. So this begins later, and has nothing printed.
fn end_ranks(
    ranks: usize,
    program: &Path,
    nodes: &[(&Node, u32)],
    start: impl Fn() -> Result<weft_e2e::Running, Skip>,
) -> Outcome {
    let (mut ended_early, mut before) = (0, Vec::new());
    let kills = setting("WEFT_E2E_KILLS", 50);
    for kill in 0..kills {
        let seed = setting("WEFT_E2E_SEED", 1) * 1000 + 8 * kill;
        let job = start()?;
        for (node, _) in nodes {
            let _ = node.await_status("with the endpoints of the job", |status| {
                status["endpoints"].as_array().is_some_and(|all| all.len() * nodes.len() >= ranks)
            });
        }
        std::thread::sleep(Duration::from_millis(random(seed, 2000)));
        let living = processes(program);
        let signals = [Signal::KILL, Signal::SEGV, Signal::ABORT];
        let signal = signals[usize::try_from(random(seed + 1, 3)).expect("few")];
        let victim = usize::try_from(random(seed + 2, ranks as u64)).expect("few");
        // The job may be over, or the rank not begun.
        let is_killed = living.get(victim).is_some_and(|it| kill_process(*it, signal).is_ok());
        let killed = Instant::now();
        let ended = job.wait(if is_killed { END_WITHIN } else { LIMIT });
        let took = killed.elapsed().as_millis();
        await_end(program, killed);
        assert!(!ended.stderr.contains("panicked"), "seed {seed}: {}", ended.report());
        ended_early += u64::from(is_killed && ended.code() != 0);
        for (node, _) in nodes {
            let _ = node.await_status("without the endpoints of the job", has_no_programs);
        }
        println!("seed {seed}: {signal:?} to rank {victim}, over {took} ms later");
        let now: Vec<usize> = nodes.iter().map(|(_, daemon)| descriptors(*daemon)).collect();
        if kill == 0 {
            before = now;
        } else if kill + 1 == kills {
            let grew = now.iter().zip(&before).any(|(now, before)| *now > before + 2);
            assert!(!grew, "daemons keep descriptors: {before:?}, then {now:?}");
        }
    }
    assert!(2 * ended_early > kills, "{ended_early} of {kills} jobs ended by a signal");
    Ok(())
}

fn ends_on_one_host() -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "ends.c")?;
    end_ranks(3, &program, &[(&node, node.daemon_pid())], || {
        let mut command = job(&node, 3, &program)?;
        command.env("OMPI_MCA_btl", "self,ofi").env("OMPI_MCA_osc", "rdma");
        command.env("OMPI_MCA_btl_ofi_provider_include", "weft").env("OMPI_MCA_opal_signal", "");
        Ok(node.start(command))
    })
}

fn ends_on_two_hosts() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "ends.c")?;
    let words = [&ONE_SIDED[..], &["--mca", "btl_ofi_provider_include", "weft"]].concat();
    let words = [&words[..], &["-x", "OMPI_MCA_opal_signal"]].concat();
    let [one, other] =
        pair.hosts.each_ref().map(|host| (&host.node, host.daemon.as_ref().map(|it| it.pid())));
    let nodes = [one, other].map(|(node, daemon)| (node, daemon.expect("it runs")));
    end_ranks(4, &program, &nodes, || {
        let mut command = pair.job(4, &words, &program)?;
        command.env("OMPI_MCA_opal_signal", "");
        Ok(pair.node.start(command))
    })
}

/// Runs a program of others over weft and over shared memory, and compares what it prints. The
/// variable `WEFT_MPI_PROGRAMS` has further words for the script, which say where those are that
/// Debian does not have: `--ior PROGRAM --mpi4py DIR --python PROGRAM`.
fn has_equal_results(name: &str) -> Outcome {
    let node = Node::new();
    program::find("orterun")?;
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../suites/mpi/run.py");
    let mut command: Command = node.plain(program::python()?);
    command.arg(suite).arg("--weft").arg(program::weft()).args(["--only", name]);
    let further = std::env::var("WEFT_MPI_PROGRAMS").unwrap_or_default();
    command.args(further.split_whitespace());
    let ended = node.start(command).wait(CASE);
    if let Some(line) = ended.stdout.lines().find(|line| line.contains("not installed")) {
        return Err(Skip(line.to_owned()));
    }
    assert_eq!(ended.code(), 0, "{}", ended.report());
    println!("{}", ended.stdout.trim_end());
    Ok(())
}

/// The tests of libfabric's own repository. A developer has built them at the version installed;
/// the variable names the directory that `make install` wrote to.
fn fabtests() -> Outcome {
    let directory = std::env::var_os("WEFT_FABTESTS")
        .ok_or_else(|| Skip("WEFT_FABTESTS names no directory of installed fabtests".into()))?;
    let programs = Path::new(&directory).join("bin");
    let node = Node::new();
    for kind in ["unit", "functional", "standard", "multinode"] {
        // The runner kills by name, so it gets a namespace of processes.
        let mut command = with_provider(&node, program::find("unshare")?);
        command.args(["--pid", "--fork", "--mount-proc"]).arg(programs.join("runfabtests.sh"));
        command.arg("-p").arg(&programs).args(["-t", kind, "-T", "600", "-b", "-f"]);
        command.arg(program::script("mpi/fabtests.exclude")).args(["-vvv", "weft"]);
        let ended = node.start(command).wait(Duration::from_secs(3600));
        let total = |name: &str| {
            let line =
                ended.stdout.lines().find(|line| line.starts_with(&format!("# Total {name}")));
            line.and_then(|line| line.split_whitespace().last()?.parse::<u32>().ok())
        };
        let is_passed = total("Fail") == Some(0) && total("Pass").is_some_and(|count| count > 1);
        assert!(is_passed, "{kind}: {}", ended.report());
    }
    Ok(())
}
