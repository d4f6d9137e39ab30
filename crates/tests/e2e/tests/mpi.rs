//! Programs of MPI and of libfabric over weft, by its provider: `libweft-fi.so`.
//!
//! The programs and libraries are Debian's, unchanged. `programs/mpi/messages.c` and `windows.c`
//! have what is checked.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weft_e2e::{Case, Ended, Host, Namespace, Node, Outcome, Skip, cases, host, program, suite};

const LIMIT: Duration = Duration::from_secs(60);
/// A job whose rank was killed has ended by then.
const END_WITHIN: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let mut cases = cases![
        libfabric_lists_the_provider_where_weft_says_that_it_is,
        a_ping_pong_goes_by_messages_and_by_tags,
        a_job_starts_a_daemon_if_there_is_none,
        a_killed_rank_ends_the_job_and_leaves_nothing,
        without_a_daemon_that_can_be_started_the_reason_is_told,
        threads_stopped_peers_and_forks_are_served,
        ranks_that_find_no_endpoint_say_so,
        a_program_that_unloads_libfabric_goes_on,
        the_log_of_libfabric_has_the_thresholds,
        a_killed_server_ends_a_client_that_waits_for_any_source,
        a_rank_that_ends_on_one_of_two_hosts_ends_the_job,
    ];
    let of_hosts =
        cases![messages_are_right_between_two_hosts, windows_are_right_between_two_hosts];
    cases.extend((0..).zip(of_hosts).map(|(turn, case)| case.in_turn(turn)));
    let fabtests = Case::new("the_fabtests_pass", fabtests);
    cases.push(fabtests.long("some 70 programs of libfabric's own run one after the other"));
    for ranks in [1, 2, 5] {
        let name = format!("messages_are_right_on_{ranks}_ranks");
        cases.push(Case::new(name, move || messages(ranks)));
    }
    for ranks in [2, 4] {
        let name = format!("windows_are_right_on_{ranks}_ranks");
        cases.push(Case::new(name, move || windows(ranks)));
    }
    suite::main(cases)
}

/// A program that finds the provider.
fn with_provider(node: &Node, program: impl AsRef<Path>) -> Command {
    let path = node.start(node.weft(["fi", "path"])).wait(LIMIT).success();
    let mut command = node.plain(program.as_ref());
    command.env("FI_PROVIDER_PATH", path.stdout.trim()).current_dir(node.directory());
    command
}

/// A job of Open MPI over the provider.
fn job(node: &Node, ranks: u32, program: &Path) -> Result<Command, Skip> {
    let mut command = with_provider(node, program::find("orterun")?);
    // It refuses to run as root, and more processes than processors, otherwise.
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    command.args(["--mca", "mtl_ofi_provider_include", "weft"]);
    command.arg("-np").arg(ranks.to_string()).arg(program);
    Ok(command)
}

/// Compiles a program of `programs/mpi`.
fn compiled(node: &Node, name: &str) -> Result<PathBuf, Skip> {
    let binary = node.directory().join(name.trim_end_matches(".c"));
    let mut compiler = Command::new(program::find("mpicc.openmpi")?);
    compiler.args(["-O1", "-Wall", "-o"]).arg(&binary);
    compiler.arg(program::script(&format!("mpi/{name}")));
    let output = compiler.output().expect("the compiler starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(binary) } else { Err(Skip(format!("mpicc.openmpi: {said}"))) }
}

fn is_right(ended: &Ended) {
    let right = ended.stdout.contains("all right");
    assert!(right && ended.code() == 0 && !ended.stderr.contains("panicked"), "{}", ended.report());
}

fn libfabric_lists_the_provider_where_weft_says_that_it_is() -> Outcome {
    let node = Node::without_daemon();
    let fi_info = program::find("fi_info")?;
    let mut shell = node.plain("sh");
    let script = r#"eval "$("$1" fi env)" && exec "$2" -p weft"#;
    shell.args(["-c", script, "sh"]).arg(program::weft()).arg(fi_info);
    let ended = node.start(shell).wait(LIMIT).success();
    for words in ["provider: weft", "fabric: weft", "type: FI_EP_RDM"] {
        assert!(ended.stdout.contains(words), "{}", ended.report());
    }
    Ok(())
}

fn a_ping_pong_goes_by_messages_and_by_tags() -> Outcome {
    let node = Node::new();
    let fi_pingpong = program::find("fi_pingpong")?;
    for mode in ["msg", "tagged"] {
        let port = weft_e2e::process::free_port().to_string();
        let end = |port_flag: &str| {
            let mut command = with_provider(&node, &fi_pingpong);
            command.args(["-p", "weft", "-e", "rdm", "-c", "-I", "100", "-m", mode]);
            command.args([port_flag, &port]);
            command
        };
        let mut server = node.start(end("-B"));
        server.await_port(port.parse().expect("a number"));
        let mut client = end("-P");
        client.arg("127.0.0.1");
        let client = node.start(client).wait(LIMIT).success();
        assert!(client.stdout.contains("1m"), "{}", client.report());
        let _ = server.wait(LIMIT).success();
    }
    Ok(())
}

fn messages(ranks: u32) -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "messages.c")?;
    is_right(&node.start(job(&node, ranks, &program)?).wait(LIMIT));
    Ok(())
}

fn windows(ranks: u32) -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "windows.c")?;
    let mut command = job(&node, ranks, &program)?;
    // One-sided operations go to the provider, too, and not to memory of Open MPI's own.
    command.env("OMPI_MCA_btl", "self,ofi").env("OMPI_MCA_osc", "rdma");
    command.env("OMPI_MCA_btl_ofi_provider_include", "weft");
    command.env("WITHOUT_COMPARE_AND_SWAP", "1");
    is_right(&node.start(command).wait(LIMIT));
    Ok(())
}

fn a_job_starts_a_daemon_if_there_is_none() -> Outcome {
    let node = Node::without_daemon();
    let program = compiled(&node, "loop.c")?;
    let mut job = node.start(job(&node, 2, &program)?);
    job.await_output("begun");
    let status = node.status();
    let text = status.to_string();
    assert!(text.matches("fi loop").count() >= 2, "the endpoints of the ranks are listed: {text}");
    job.signal(Signal::TERM);
    let _ = job.wait(END_WITHIN);
    let _ = node.start(node.weft(["down"])).wait(LIMIT).success();
    Ok(())
}

/// The processes that run a program.
fn processes(program: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries
        .filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|it| it == program))
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_string_lossy().parse().ok()?))
        .collect()
}

fn a_killed_rank_ends_the_job_and_leaves_nothing() -> Outcome {
    for signal in [Signal::KILL, Signal::SEGV] {
        let node = Node::new();
        let program = compiled(&node, "loop.c")?;
        let mut job = node.start(job(&node, 3, &program)?);
        job.await_output("begun");
        let ranks = processes(&program);
        assert_eq!(ranks.len(), 3);
        kill_process(ranks[1], signal).expect("it runs");
        let killed = Instant::now();
        let ended = job.wait(END_WITHIN);
        assert_ne!(ended.code(), 0, "{}", ended.report());
        while !processes(&program).is_empty() {
            assert!(killed.elapsed() < END_WITHIN, "ranks are left");
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = node.await_status("without the endpoints of the job", has_no_programs);
    }
    Ok(())
}

/// True for the status of a node without endpoints and processes.
fn has_no_programs(status: &serde_json::Value) -> bool {
    let is_none = |what: &str| status[what].as_array().is_some_and(Vec::is_empty);
    is_none("endpoints") && is_none("processes")
}

fn without_a_daemon_that_can_be_started_the_reason_is_told() -> Outcome {
    let node = Node::without_daemon();
    let fi_pingpong = program::find("fi_pingpong")?;
    let mut command = with_provider(&node, fi_pingpong);
    command.args(["-p", "weft", "-e", "rdm", "127.0.0.1"]);
    command.env("WEFT_DAEMON_SOCKET", "/proc/nowhere/n.sock");
    let ended = node.start(command).wait(LIMIT);
    assert_ne!(ended.code(), 0, "{}", ended.report());
    Ok(())
}

fn threads_stopped_peers_and_forks_are_served() -> Outcome {
    let node = Node::new();
    let program = compiled(&node, "edges.c")?;
    for part in ["threads", "stopped", "forks"] {
        let mut command = job(&node, 2, &program)?;
        command.arg(part);
        is_right(&node.start(command).wait(LIMIT));
    }
    Ok(())
}

fn ranks_that_find_no_endpoint_say_so() -> Outcome {
    let node = Node::without_daemon();
    let program = compiled(&node, "edges.c")?;
    let mut command = job(&node, 3, &program)?;
    command.arg("threads").env("WEFT_DAEMON_ENDPOINTS_MAX", "2");
    let ended = node.start(command).wait(LIMIT);
    let is_told = ended.stderr.contains("all 2 endpoints of this node are in use");
    assert!(is_told && ended.code() != 0, "{}", ended.report());
    let _ = node.start(node.weft(["down"])).wait(LIMIT).success();
    Ok(())
}

/// Compiles the program that loads and unloads libfabric.
fn reload(node: &Node) -> Result<PathBuf, Skip> {
    let binary = node.directory().join("reload");
    let mut compiler = Command::new(program::find("gcc")?);
    compiler.args(["-O1", "-Wall", "-o"]).arg(&binary).arg(program::script("mpi/reload.c"));
    let output = compiler.output().expect("the compiler starts");
    let missing = || Skip("the headers of libfabric are missing: install libfabric-dev".into());
    output.status.success().then_some(binary).ok_or_else(missing)
}

/// libfabric unloads its providers, whose threads and functions at exit must not be gone with them.
fn a_program_that_unloads_libfabric_goes_on() -> Outcome {
    let node = Node::new();
    is_right(&node.start(with_provider(&node, &reload(&node)?)).wait(LIMIT));
    Ok(())
}

fn the_log_of_libfabric_has_the_thresholds() -> Outcome {
    let node = Node::new();
    let said = "messages of up to 256 bytes go in the mailbox";
    let mut command = with_provider(&node, &reload(&node)?);
    command.env("FI_LOG_LEVEL", "info").env("WEFT_MPI_INLINE_BYTES", "256");
    let ended = node.start(command).wait(LIMIT).success();
    assert!(ended.stderr.contains(said), "{}", ended.report());
    let told = node.start(node.weft(["info", "--mpi-inline-bytes", "256"])).wait(LIMIT).success();
    assert!(told.stdout.contains(said), "{}", told.report());
    Ok(())
}

/// `fi_pingpong` receives from any source, and would wait for a newcomer without the option.
fn a_killed_server_ends_a_client_that_waits_for_any_source() -> Outcome {
    let node = Node::new();
    let fi_pingpong = program::find("fi_pingpong")?;
    let port = weft_e2e::process::free_port();
    let end = |flag: &str| {
        let mut command = with_provider(&node, &fi_pingpong);
        command.args(["-p", "weft", "-e", "rdm", "-m", "tagged", "-I", "100000000", "-S", "64"]);
        command.args([flag, &port.to_string()]).env("WEFT_MPI_ENDS_RECEIVES", "true");
        command
    };
    let mut server = node.start(end("-B"));
    server.await_port(port);
    let mut client = end("-P");
    client.arg("127.0.0.1");
    let client = node.start(client);
    let _ = node.await_status("with both endpoints", |status| {
        status["endpoints"].as_array().is_some_and(|all| all.len() == 2)
    });
    // They exchange addresses before their first message.
    std::thread::sleep(Duration::from_secs(1));
    server.signal(Signal::KILL);
    let _ = server.wait(LIMIT);
    let ended = client.wait(Duration::from_secs(6));
    assert_ne!(ended.code(), 0, "{}", ended.report());
    Ok(())
}

/// Two network namespaces with a daemon each. Open MPI starts its part on the other host by a
/// script in place of ssh, and tells hosts apart by their names.
struct Pair {
    node: Node,
    hosts: [Host; 2],
    agent: PathBuf,
}

impl Pair {
    fn joined() -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("network namespaces need root".to_owned()));
        }
        weft_libfabric::Library::load().map_err(|error| Skip(error.to_string()))?;
        let node = Node::without_daemon();
        let key = host::key(&node, "key");
        let [first, second] = [Namespace::new(), Namespace::new()];
        first.cable_to(&second);
        let mut hosts = [
            Host::inside(first, "10.9.0.1:7700", "one", &key, &[]),
            Host::inside(second, "10.9.0.2:7700", "two", &key, &["10.9.0.1:7700"]),
        ];
        hosts.iter_mut().for_each(Host::start);
        hosts[0].await_state("two", "up");
        hosts[1].await_state("one", "up");
        let agent = write_agent(&node, &hosts);
        Ok(Self { node, hosts, agent })
    }

    /// A job with half of its ranks on each host. `words` are further options of the launcher.
    fn job(&self, ranks: u32, words: &[&str], program: &Path) -> Result<Command, Skip> {
        let path = self.node.start(self.node.weft(["fi", "path"])).wait(LIMIT).success();
        let mut command = self.node.plain(&self.agent);
        command.arg("10.9.0.1").arg(program::find("orterun")?);
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
        command.args(["--mca", "mtl_ofi_provider_include", "weft"]).args(words);
        command.args(["--mca", "oob_tcp_if_include", "10.9.0.0/24", "--mca", "plm_rsh_agent"]);
        command.arg(&self.agent).args(["-x", "FI_PROVIDER_PATH"]);
        let each = ranks / 2;
        command.args(["--host", &format!("one:{each},10.9.0.2:{each}"), "-np"]);
        command.arg(ranks.to_string()).arg(program);
        command.env("FI_PROVIDER_PATH", path.stdout.trim());
        Ok(command)
    }
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
    let words = ["--mca", "btl", "self,ofi", "--mca", "osc", "rdma"];
    let words = [&words[..], &["--mca", "btl_ofi_provider_include", "weft"]].concat();
    let words = [&words[..], &["-x", "WITHOUT_COMPARE_AND_SWAP", "-x", "SUMS_ALONE"]].concat();
    let mut command = pair.job(4, &words, &program)?;
    command.args(["fences", "posts", "locks"]);
    command.env("WITHOUT_COMPARE_AND_SWAP", "1").env("SUMS_ALONE", "1");
    is_right(&pair.node.start(command).wait(2 * LIMIT));
    Ok(())
}

/// The rank is stopped and continued before that, which harms nothing.
fn a_rank_that_ends_on_one_of_two_hosts_ends_the_job() -> Outcome {
    let pair = Pair::joined()?;
    let program = compiled(&pair.node, "loop.c")?;
    for (victim, signal) in [(0, Signal::KILL), (1, Signal::ABORT)] {
        let mut job = pair.node.start(pair.job(2, &[], &program)?);
        job.await_output("begun");
        let ranks = processes(&program);
        assert_eq!(ranks.len(), 2);
        kill_process(ranks[victim], Signal::STOP).expect("it runs");
        std::thread::sleep(Duration::from_millis(500));
        kill_process(ranks[victim], Signal::CONT).expect("it is stopped");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(processes(&program), ranks, "they go on");
        kill_process(ranks[victim], signal).expect("it runs");
        let killed = Instant::now();
        let ended = job.wait(END_WITHIN);
        assert_ne!(ended.code(), 0, "{}", ended.report());
        while !processes(&program).is_empty() {
            assert!(killed.elapsed() < END_WITHIN, "ranks are left");
            std::thread::sleep(Duration::from_millis(20));
        }
        for host in &pair.hosts {
            let _ = host.node.await_status("without the endpoints of the job", has_no_programs);
        }
    }
    Ok(())
}

/// A script that runs words of a shell on the host with an address, as ssh does.
fn write_agent(node: &Node, hosts: &[Host; 2]) -> PathBuf {
    let mut text = String::from("#!/bin/sh\nhost=$1; shift\ncase $host in\n");
    for (number, host) in (1..).zip(hosts) {
        let pid = host.daemon.as_ref().expect("it runs").pid();
        let (name, socket) = (host.name, host.node.socket());
        let socket = socket.display();
        text.push_str(&format!("10.9.0.{number}) pid={pid} name={name} socket={socket} ;;\n"));
    }
    text.push_str("esac\nexport WEFT_DAEMON_SOCKET=$socket\n");
    text.push_str("exec nsenter -t $pid -n unshare --uts sh -c \"hostname $name; $*\"\n");
    let path = node.directory().join("agent");
    std::fs::write(&path, text).expect("our own directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("our own file");
    path
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
