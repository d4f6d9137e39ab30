//! Jobs of several processes under `weft oshrun`: their streams, their ends, and others' programs
//! and launchers.
//!
//! `pmi.py` speaks PMI by itself. MPICH's library and its `mpiexec.hydra` are used where they are
//! installed.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use weft_e2e::{Ended, Node, Outcome, Running, Skip, cases, program, setting, suite};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    suite::main(cases![
        lines_of_processes_are_whole_and_have_their_rank,
        standard_input_goes_to_rank_0,
        processes_exchange_values_over_both_versions,
        programs_of_one_job_differ_in_variables_and_number,
        output_goes_to_a_file_for_each_rank,
        a_process_that_fails_ends_the_job_and_is_named,
        a_job_has_the_status_of_what_failed_first,
        an_interrupt_is_passed_on_and_a_second_one_kills,
        a_job_that_takes_too_long_is_ended,
        a_killed_launcher_or_proxy_leaves_no_process,
        a_reader_that_goes_away_ends_the_job,
        mistakes_are_named,
        another_host_is_reached_by_a_program_like_ssh,
        programs_of_mpich_run,
        others_launchers_start_programs_of_weft,
        many_processes_have_the_limits_of_the_launcher,
        an_installed_weft_has_its_links,
    ])
}

/// `weft oshrun` with these words.
fn oshrun(node: &Node, words: &[&str]) -> Command {
    let mut command = node.weft(["oshrun"]);
    command.args(words).current_dir(node.directory());
    command
}

fn ended(node: &Node, words: &[&str]) -> Ended {
    let ended = node.start(oshrun(node, words)).wait(LIMIT);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.report());
    ended
}

/// A script of this crate, as a word.
fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name).display().to_string()
}

fn python() -> Result<String, Skip> {
    program::find("python3").map(|path| path.display().to_string())
}

fn lines_of_processes_are_whole_and_have_their_rank() -> Outcome {
    let node = Node::without_daemon();
    let count = "i=0; while [ $i -lt 300 ]; do echo line $i of $PMI_RANK; i=$((i+1)); done";
    let ended = ended(&node, &["-np", "4", "-l", "sh", "-c", count]).success();
    let lines: BTreeSet<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 1200);
    for rank in 0..4 {
        for number in [0, 150, 299] {
            let line = format!("[{rank}] line {number} of {rank}");
            assert!(lines.contains(line.as_str()), "{line}");
        }
    }
    Ok(())
}

fn standard_input_goes_to_rank_0() -> Outcome {
    let node = Node::without_daemon();
    let text: String = (0..50_000).map(|number| format!("{number}\n")).collect();
    let file = node.directory().join("input");
    std::fs::write(&file, &text).expect("written");
    let mut command = oshrun(&node, &["-np", "3", "cat"]);
    command.stdin(std::fs::File::open(&file).expect("there"));
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, text);
    Ok(())
}

fn processes_exchange_values_over_both_versions() -> Outcome {
    let (node, python, pmi) = (Node::without_daemon(), python()?, script("pmi.py"));
    let words = ["-np", "4", "-launcher", "fork", "-hosts", "a,b", "-ppn", "2"];
    let programs = [&python, &pmi, "1", ":", "-np", "2", &python, &pmi, "2"];
    let words: Vec<&str> = words.into_iter().chain(programs).collect();
    let ended = ended(&node, &words).success();
    for rank in 0..6 {
        let line = format!("rank {rank} of 6 (vector,(0,2,2),(0,1,2))");
        assert!(ended.stdout.contains(&line), "{line}: {}", ended.report());
    }
    Ok(())
}

fn programs_of_one_job_differ_in_variables_and_number() -> Outcome {
    let node = Node::without_daemon();
    let show = "echo $PMI_RANK/$PMI_SIZE $A $B $MPI_LOCALRANKID/$MPI_LOCALNRANKS";
    let words = [
        "-np", "1", "-genv", "A", "all", "-env", "B", "one", "sh", "-c", show, ":", "-np", "2",
        "-env", "B", "two", "sh", "-c", show,
    ];
    let ended = ended(&node, &words).success();
    let lines: BTreeSet<&str> = ended.stdout.lines().collect();
    let expected = ["0/3 all one 0/3", "1/3 all two 1/3", "2/3 all two 2/3"];
    assert_eq!(lines, BTreeSet::from(expected), "{}", ended.report());
    Ok(())
}

fn output_goes_to_a_file_for_each_rank() -> Outcome {
    let node = Node::without_daemon();
    let words = ["-np", "2", "-outfile-pattern", "out.%r", "sh", "-c", "echo rank $PMI_RANK"];
    let ended = ended(&node, &words).success();
    assert_eq!(ended.stdout, "");
    for rank in 0..2 {
        let text = std::fs::read_to_string(node.directory().join(format!("out.{rank}")));
        assert_eq!(text.expect("there"), format!("rank {rank}\n"));
    }
    Ok(())
}

fn a_process_that_fails_ends_the_job_and_is_named() -> Outcome {
    let (node, python, pmi) = (Node::without_daemon(), python()?, script("pmi.py"));
    for (fault, code, message) in [
        ("dies", 139, "PE 1 on host localhost was killed by SIGSEGV"),
        ("leaves", 1, "PE 1 on host localhost exited without finalize while other PEs wait"),
        ("aborts", 7, "PE 1 on host localhost ended the job with 7: enough of it"),
        ("talks", 1, "PE 1 on host localhost sent what is no message of PMI"),
    ] {
        let ended = ended(&node, &["-np", "3", &python, &pmi, "1", fault]);
        assert_eq!(ended.code(), code, "{fault}: {}", ended.report());
        assert!(ended.stderr.contains(message), "{fault}: {}", ended.report());
    }
    Ok(())
}

fn a_job_has_the_status_of_what_failed_first() -> Outcome {
    let node = Node::without_daemon();
    let fail = "[ $PMI_RANK = 1 ] && exit 9; trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let ended = ended(&node, &["-np", "3", "sh", "-c", fail]);
    assert_eq!(ended.code(), 9, "{}", ended.report());
    let message = "PE 1 on host localhost exited with status 9; the other 2 PEs are ended";
    assert!(ended.stderr.contains(message), "{}", ended.report());
    Ok(())
}

/// Two processes that ignore what can be ignored, once they are ready.
fn stubborn(node: &Node) -> Running {
    let ignore = "trap '' INT TERM; echo ready $$ $PPID; while :; do sleep 0.05; done";
    let mut running = node.start(oshrun(node, &["-np", "2", "sh", "-c", ignore]));
    let until = Instant::now() + LIMIT;
    while running.stdout().lines().filter(|line| line.starts_with("ready")).count() < 2 {
        assert!(!running.has_ended() && Instant::now() < until, "{}", running.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

/// The numbers in what [`stubborn`] printed: the processes and their proxy.
fn numbers(running: &Running) -> Vec<i32> {
    let stdout = running.stdout();
    let words = stdout.split_whitespace().filter_map(|word| word.parse().ok());
    words.collect()
}

fn an_interrupt_is_passed_on_and_a_second_one_kills() -> Outcome {
    let node = Node::without_daemon();
    let mut running = stubborn(&node);
    running.signal(Signal::INT);
    let until = Instant::now() + LIMIT;
    while !running.stderr().contains("another one kills") {
        assert!(!running.has_ended() && Instant::now() < until, "{}", running.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    running.signal(Signal::INT);
    assert_eq!(running.wait(LIMIT).code(), 130);
    Ok(())
}

fn a_job_that_takes_too_long_is_ended() -> Outcome {
    let node = Node::without_daemon();
    let ended = ended(&node, &["-np", "2", "-timeout", "0.2", "sleep", "1000"]);
    assert_eq!(ended.code(), 124);
    assert!(ended.stderr.contains("did not end within 0.2 s"), "{}", ended.report());
    Ok(())
}

fn await_gone(numbers: &[i32]) {
    let is_there =
        |number: &&i32| Pid::from_raw(**number).is_some_and(|pid| test_kill_process(pid).is_ok());
    let until = Instant::now() + LIMIT;
    while let Some(number) = numbers.iter().find(is_there) {
        assert!(Instant::now() < until, "process {number} is left");
        // An orphan is reaped by this process, which adopts it.
        let orphan = Pid::from_raw(*number);
        let _ = rustix::process::waitpid(orphan, rustix::process::WaitOptions::NOHANG);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn a_killed_launcher_or_proxy_leaves_no_process() -> Outcome {
    let node = Node::without_daemon();
    for turn in 0..setting("WEFT_E2E_KILLS", 4).min(20) {
        let running = stubborn(&node);
        let numbers = numbers(&running);
        assert_eq!(numbers.len(), 4);
        if turn % 2 == 0 {
            running.signal(Signal::KILL);
            assert_eq!(running.wait(LIMIT).code(), 137);
        } else {
            let proxy = Pid::from_raw(numbers[1]).expect("a process");
            kill_process(proxy, Signal::KILL).expect("it runs");
            let ended = running.wait(LIMIT);
            assert_eq!(ended.code(), 125, "{}", ended.report());
            assert!(ended.stderr.contains("host localhost is lost"), "{}", ended.report());
        }
        await_gone(&numbers);
    }
    Ok(())
}

fn a_reader_that_goes_away_ends_the_job() -> Outcome {
    let node = Node::without_daemon();
    let weft = program::weft().display();
    let line = format!("{weft} oshrun -np 2 yes | head -n 2; exit ${{PIPESTATUS[0]}}");
    let mut command = node.plain(program::find("bash")?);
    command.args(["-c", &line]);
    let ended = node.start(command).wait(LIMIT);
    assert_eq!((ended.code(), ended.stdout.as_str()), (141, "y\ny\n"), "{}", ended.report());
    Ok(())
}

fn mistakes_are_named() -> Outcome {
    let node = Node::without_daemon();
    for (words, code, message) in [
        (&["-np", "0", "true"][..], 2, "0 is not in 1..=65536"),
        (&["-np", "2", "nosuchprogram"], 127, "PE 0 on host localhost cannot be started"),
        (&["-np", "2", "/etc/passwd"], 126, "may not be executed"),
        (&["-np", "2", "-wdir", "/nowhere", "true"], 126, "directory /nowhere is not there"),
        (&["-np", "2", "-hosts", "a b", "true"], 125, "\"a b\" is no host"),
        (&["-np", "2", "-f", "/nowhere", "true"], 125, "the host file /nowhere cannot be used"),
        (&["-np", "2", "-bind-to", "moon", "true"], 125, "-bind-to \"moon\" is not known"),
        (&["-np", "2", "-hosts", "n1", "-launcher-exec", "/nowhere", "true"], 125, "n1"),
        (
            &["-np", "2", "-hosts", "n1", "-launcher-exec", "false", "true"],
            125,
            "lost: its proxy ended",
        ),
        (
            &["-np", "2", "-hosts", "n1", "-launcher-exec", "echo", "true"],
            125,
            "lost: it sent a message",
        ),
        (&["-np", "2"], 2, "PROGRAM"),
        (&["-np", "2", "true", ":"], 2, "PROGRAM"),
    ] {
        let ended = ended(&node, words);
        assert_eq!(ended.code(), code, "{}", ended.report());
        assert!(ended.stderr.contains(message), "{message}: {}", ended.report());
    }
    let file = node.directory().join("script");
    std::fs::write(&file, "#!/no/such/python\n").expect("our own directory");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).expect("our own file");
    let ended = ended(&node, &["-np", "1", &file.to_string_lossy()]);
    assert_eq!(ended.code(), 126, "{}", ended.report());
    assert!(ended.stderr.contains("its interpreter /no/such/python"), "{}", ended.report());
    for limit in [6, 8, 12] {
        let weft = program::weft().display();
        let mut command = node.plain("/bin/sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec {weft} oshrun -np 3 true")]);
        let ended = node.start(command).wait(LIMIT);
        assert!(ended.stderr.contains("(ulimit -n)"), "{limit}: {}", ended.report());
    }
    Ok(())
}

fn another_host_is_reached_by_a_program_like_ssh() -> Outcome {
    let (node, python, pmi) = (Node::without_daemon(), python()?, script("pmi.py"));
    let ssh = node.directory().join("ssh");
    let text = "#!/bin/sh\nhost=$1; shift\nHOST_SEEN=$host exec sh -c \"$*\"\n";
    std::fs::write(&ssh, text).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&ssh, mode).expect("our own file");
    let ssh = ssh.display().to_string();
    let words = ["-np", "4", "-hosts", "n1:2,n2:2", "-launcher-exec", &ssh, &python, &pmi, "1"];
    let ended = ended(&node, &words).success();
    assert_eq!(ended.stdout.matches("of 4 (vector,(0,2,2))").count(), 4, "{}", ended.report());
    Ok(())
}

fn programs_of_mpich_run() -> Outcome {
    let (node, python, mpi) = (Node::without_daemon(), python()?, script("mpi.py"));
    let load = ["-c", "import ctypes; ctypes.CDLL('libmpich.so.12')"];
    let there = Command::new(&python).args(load).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        return Err(Skip("MPICH's library is not installed".to_owned()));
    }
    let ended = ended(&node, &["-np", "3", &python, &mpi]).success();
    for rank in 0..3 {
        let line = format!("rank {rank} of 3: 3\n");
        assert!(ended.stdout.contains(&line), "{}", ended.report());
    }
    Ok(())
}

/// Programs with weft's OpenSHMEM run under MPICH's launcher as under weft's.
fn others_launchers_start_programs_of_weft() -> Outcome {
    let node = Node::without_daemon();
    let hydra = program::find("mpiexec.hydra")?;
    program::find("cc")?;
    let ring = node.directory().join("ring");
    let mut compile = node.weft(["oshcc", "-O1", "-o"]);
    compile.arg(&ring).arg(script("ring.c"));
    assert_eq!(node.start(compile).wait(LIMIT).success().stdout, "");
    let mut theirs = node.plain(hydra);
    theirs.args(["-n", "3"]).arg(&ring);
    let mut ours = oshrun(&node, &["-n", "3"]);
    ours.arg(&ring);
    for command in [theirs, ours, node.plain(&ring)] {
        let is_alone = command.get_program() == ring.as_os_str();
        let ended = node.start(command).wait(LIMIT).success();
        let size = if is_alone { 1 } else { 3 };
        for rank in 0..size {
            let line = format!("PE {rank} of {size} got {}\n", (rank + size - 1) % size);
            assert!(ended.stdout.contains(&line), "{line}: {}", ended.report());
        }
    }
    Ok(())
}

/// More processes than a proxy has descriptors for by its own limit.
fn many_processes_have_the_limits_of_the_launcher() -> Outcome {
    let node = Node::without_daemon();
    let weft = program::weft().display();
    let line = format!("ulimit -S -n 64; exec {weft} oshrun -np 24 sh -c 'ulimit -S -n'");
    let mut command = node.plain(program::find("bash")?);
    command.args(["-c", &line]);
    let ended = node.start(command).wait(LIMIT).success();
    assert_eq!(ended.stdout, "64\n".repeat(24), "{}", ended.report());
    Ok(())
}

fn an_installed_weft_has_its_links() -> Outcome {
    let node = Node::without_daemon();
    program::find("cc")?;
    let prefix = node.directory().join("a prefix");
    let mut install = node.weft(["install"]);
    install.arg(&prefix);
    let ended = node.start(install).wait(LIMIT).success();
    assert!(ended.stdout.ends_with("a prefix/bin/weft\n"), "{}", ended.report());
    let ring = node.directory().join("ring");
    let mut compile = node.plain(prefix.join("bin/oshcc"));
    compile.arg("-o").arg(&ring).arg(script("ring.c"));
    assert_eq!(node.start(compile).wait(LIMIT).success().stdout, "");
    let mut run = node.plain(prefix.join("bin/oshrun"));
    run.args(["-np", "2"]).arg(&ring);
    let ended = node.start(run).wait(LIMIT).success();
    assert!(ended.stdout.contains("PE 1 of 2 got 0\n"), "{}", ended.report());
    // The flags are read by a shell.
    let mut shown = node.plain(prefix.join("bin/oshcc"));
    shown.args(["-show", "-o"]).arg(&ring).arg(script("ring.c"));
    let mut lines = vec![node.start(shown).wait(LIMIT).success().stdout];
    if program::find("pkg-config").is_ok() {
        let packages = prefix.join("lib/pkgconfig");
        let (ring, source) = (ring.display(), script("ring.c"));
        lines.push(format!(
            "eval cc -o {ring} {source} \
             $(PKG_CONFIG_PATH='{}' pkg-config --cflags --libs weft-shmem)",
            packages.display()
        ));
    }
    for line in lines {
        std::fs::remove_file(&ring).expect("it was linked");
        let mut shell = node.plain("/bin/sh");
        shell.args(["-c", &line]);
        let _ = node.start(shell).wait(LIMIT).success();
        let mut run = node.plain(prefix.join("bin/oshrun"));
        run.args(["-np", "2"]).arg(&ring);
        let ended = node.start(run).wait(LIMIT).success();
        assert!(ended.stdout.contains("PE 1 of 2 got 0\n"), "{line}: {}", ended.report());
    }
    for file in
        ["lib/pkgconfig/weft-shmem.pc", "include/mpp/shmem.h", "share/man/man1/weft-oshrun.1"]
    {
        assert!(prefix.join(file).is_file(), "{file}");
    }
    Ok(())
}
