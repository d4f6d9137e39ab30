//! A Python interpreter that has loaded a script, and forks for each program that a test starts.
//!
//! An interpreter takes some 30 ms of processor time to start and to load a file of cases; a fork
//! takes 1 ms (docs/measurements/verify.md). Only programs without weft come from here. A program
//! under weft is started afresh each time: processes that were forked from one program share its
//! counters and the memory of its connections, which programs of different users never do.
//!
//! Invariants: a forked program is a child of the test's process, in a process group of its own,
//! as one that was started. Its descriptors are those of a program that was started.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::json;

use crate::process::Outputs;
use crate::{Node, Running, Skip, program};

/// How long the server may take to load its script and to fork.
const LIMIT: Duration = Duration::from_secs(20);

/// The interpreter. Dropping it ends it, but not the programs that it forked.
#[derive(Debug)]
pub struct ForkServer {
    script: &'static str,
    server: Running,
    requests: BufReader<UnixStream>,
}

impl ForkServer {
    /// Starts an interpreter that runs `script` with the arguments `serve` and `case`.
    ///
    /// # Errors
    /// [`Skip`] when there is no Python.
    ///
    /// # Panics
    /// When the interpreter cannot be started.
    pub fn start(node: &Node, script: &'static str, case: &str) -> Result<Self, Skip> {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_read_timeout(Some(LIMIT)).expect("the limit is not zero");
        let mut command = node.plain(program::python()?);
        command.arg(program::script(script)).args(["serve", case]);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        Ok(Self { script, server: node.start(command), requests: BufReader::new(ours) })
    }

    /// Forks a program that runs the script with `arguments`.
    ///
    /// # Panics
    /// When the server is dead, or does not answer in time.
    #[must_use]
    pub fn fork(&mut self, node: &Node, arguments: &[&str]) -> Running {
        let outputs = Outputs::create(node.directory());
        let [stdout, stderr] = outputs.paths();
        let request = json!({ "arguments": arguments, "stdout": stdout, "stderr": stderr });
        let mut answer = String::new();
        let asked = writeln!(self.requests.get_mut(), "{request}")
            .and_then(|()| self.requests.read_line(&mut answer));
        let pid = answer.trim().parse().ok().and_then(Pid::from_raw);
        let report = || format!("{asked:?} {answer:?}\n{}", self.server.stderr());
        let pid = pid.unwrap_or_else(|| panic!("{} does not fork: {}", self.script, report()));
        Running::adopt(pid, format!("{} {} (forked)", self.script, arguments.join(" ")), outputs)
    }
}
