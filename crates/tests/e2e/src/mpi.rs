//! Jobs of Debian's Open MPI over weft's provider of libfabric, on one host and on two.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;

use crate::host::{self, Host};
use crate::namespace::Namespace;
use crate::node::Node;
use crate::process::Ended;
use crate::program;
use crate::suite::Skip;

/// The end of a wait, which a busy machine does not reach.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A job whose rank ended has ended by then.
pub const END_WITHIN: Duration = Duration::from_secs(15);
/// Open MPI's words for one-sided operations by the provider, and not by memory of its own.
pub const ONE_SIDED: [&str; 6] = ["--mca", "btl", "self,ofi", "--mca", "osc", "rdma"];

/// A program that finds the provider.
pub fn with_provider(node: &Node, program: impl AsRef<Path>) -> Command {
    let path = node.start(node.weft(["fi", "path"])).wait(LIMIT).success();
    let mut command = node.plain(program.as_ref());
    command.env("FI_PROVIDER_PATH", path.stdout.trim()).current_dir(node.directory());
    command
}

/// A job of Open MPI over the provider.
///
/// # Errors
/// Open MPI is not installed.
pub fn job(node: &Node, ranks: u32, program: &Path) -> Result<Command, Skip> {
    let mut command = with_provider(node, program::find("orterun")?);
    add_words(&mut command);
    command.arg("-np").arg(ranks.to_string()).arg(program);
    Ok(command)
}

fn add_words(command: &mut Command) {
    // It refuses to run as root, and more processes than processors, otherwise.
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
    command.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    command.args(["--mca", "mtl_ofi_provider_include", "weft"]);
}

/// Compiles a program of `programs/mpi`.
///
/// # Errors
/// There is no compiler of Open MPI, or it fails.
///
/// # Panics
/// When the compiler cannot be started.
pub fn compiled(node: &Node, name: &str) -> Result<PathBuf, Skip> {
    let binary = node.directory().join(name.trim_end_matches(".c"));
    let mut compiler = Command::new(program::find("mpicc.openmpi")?);
    compiler.args(["-O1", "-Wall", "-o"]).arg(&binary);
    compiler.arg(program::script(&format!("mpi/{name}")));
    let output = compiler.output().expect("the compiler starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(binary) } else { Err(Skip(format!("mpicc.openmpi: {said}"))) }
}

/// Checks that a program found all right.
///
/// # Panics
/// When it did not.
pub fn is_right(ended: &Ended) {
    let right = ended.stdout.contains("all right");
    assert!(right && ended.code() == 0 && !ended.stderr.contains("panicked"), "{}", ended.report());
}

/// The processes that run a program.
///
/// # Panics
/// Without the file system of processes.
#[must_use]
pub fn processes(program: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries
        .filter(|entry| std::fs::read_link(entry.path().join("exe")).is_ok_and(|it| it == program))
        .filter_map(|entry| Pid::from_raw(entry.file_name().to_string_lossy().parse().ok()?))
        .collect()
}

/// Waits until no process runs a program any more.
///
/// # Panics
/// When some still do [`END_WITHIN`] after `since`.
pub fn await_end(program: &Path, since: Instant) {
    while !processes(program).is_empty() {
        assert!(since.elapsed() < END_WITHIN, "ranks are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True for the status of a node without endpoints and processes.
#[must_use]
pub fn has_no_programs(status: &Value) -> bool {
    let is_none = |what: &str| status[what].as_array().is_some_and(Vec::is_empty);
    is_none("endpoints") && is_none("processes")
}

/// Two network namespaces with a daemon each. Open MPI starts its part on the other host by a
/// script in place of ssh, and tells hosts apart by their names.
pub struct Pair {
    /// The directory of programs, on both hosts.
    pub node: Node,
    /// The hosts.
    pub hosts: [Host; 2],
    agent: PathBuf,
}

impl Pair {
    /// Two hosts that have joined.
    ///
    /// # Errors
    /// This is not root, or Open MPI is not installed.
    pub fn joined() -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("network namespaces need root".to_owned()));
        }
        // libfabric is installed with it.
        program::find("orterun")?;
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
    ///
    /// # Errors
    /// Open MPI is not installed.
    pub fn job(&self, ranks: u32, words: &[&str], program: &Path) -> Result<Command, Skip> {
        let mut command = self.at_first(&program::find("orterun")?);
        add_words(&mut command);
        command.args(words);
        command.args(["--mca", "oob_tcp_if_include", "10.9.0.0/24", "--mca", "plm_rsh_agent"]);
        command.arg(&self.agent).args(["-x", "FI_PROVIDER_PATH"]);
        let each = ranks / 2;
        command.args(["--host", &format!("one:{each},10.9.0.2:{each}"), "-np"]);
        command.arg(ranks.to_string()).arg(program);
        Ok(command)
    }

    /// A program on the first host, which finds the provider.
    #[must_use]
    pub fn at_first(&self, program: &Path) -> Command {
        let path = self.node.start(self.node.weft(["fi", "path"])).wait(LIMIT).success();
        let mut command = self.node.plain(&self.agent);
        command.arg("10.9.0.1").arg(program).env("FI_PROVIDER_PATH", path.stdout.trim());
        command
    }

    /// The script in place of ssh.
    #[must_use]
    pub fn agent(&self) -> &Path {
        &self.agent
    }
}

/// A script that runs words of a shell on the host with an address, as ssh does.
fn write_agent(node: &Node, hosts: &[Host; 2]) -> PathBuf {
    // Launchers give ssh options before the host.
    let mut text = String::from("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n");
    text.push_str("host=$1; shift\ncase $host in\n");
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
