//! Programs that a test starts: their output goes to files, every wait has a limit, and they are
//! killed at the end.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::statistics::Statistics;

/// How long a program may take for what it does at once on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(30);

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// The files that the output of a program goes to.
#[derive(Debug)]
pub struct Outputs {
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Outputs {
    /// New files in `directory`. They exist once the program has opened them.
    #[must_use]
    pub fn create(directory: &Path) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            stdout: directory.join(format!("{number}.out")),
            stderr: directory.join(format!("{number}.err")),
        }
    }

    /// The paths for standard output and standard error.
    #[must_use]
    pub fn paths(&self) -> [&Path; 2] {
        [&self.stdout, &self.stderr]
    }
}

/// A running program, which is a child of this process. Dropping it kills its process group.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    shown: String,
    outputs: Outputs,
    ended: Option<ExitStatus>,
}

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The command, for messages.
    pub shown: String,
    /// The exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error, with the table of `--stats`.
    pub stderr: String,
}

impl Running {
    /// Starts `command` with its output in files of `directory`.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[must_use]
    #[allow(clippy::zombie_processes, reason = "the value waits for the process by its number")]
    pub fn start(mut command: Command, directory: &Path) -> Self {
        let outputs = Outputs::create(directory);
        let shown = format!("{command:?}").replace('"', "");
        let [stdout, stderr] =
            outputs.paths().map(|path| File::create(path).expect("the test's directory"));
        command.stdout(stdout).stderr(stderr).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        Self::adopt(Pid::from_child(&child), shown, outputs)
    }

    /// The child `pid` of this process, which leads a process group and writes to `outputs`.
    #[must_use]
    pub fn adopt(pid: Pid, shown: String, outputs: Outputs) -> Self {
        Self { pid, shown, outputs, ended: None }
    }

    /// The process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        read(&self.outputs.stdout)
    }

    /// The standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        read(&self.outputs.stderr)
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            let ended = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG);
            let status = ended.ok().flatten().map(|(_, status)| status.as_raw());
            self.ended = status.map(ExitStatus::from_raw);
        }
        self.ended.is_some()
    }

    /// Sends a signal to the process, not to its group.
    pub fn signal(&self, signal: Signal) {
        // The process may have ended, which a later wait reports.
        let _ = rustix::process::kill_process(self.pid, signal);
    }

    /// Raises the priority of the process; without the permission for that, does nothing.
    pub fn goes_before_others(&self) {
        const NICE: i32 = -15;
        let _ = rustix::process::setpriority_process(Some(self.pid), NICE);
    }

    /// Waits for the end of the program.
    ///
    /// # Panics
    /// When it does not end within `limit`.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        while !self.has_ended() {
            assert!(
                start.elapsed() < limit,
                "{} did not end within {limit:?}\n{}\n{}",
                self.shown,
                tail(&self.stdout()),
                tail(&self.stderr())
            );
            thread::sleep(Duration::from_millis(2));
        }
        let status = self.ended.expect("it ended");
        let shown = self.shown.clone();
        Ended { shown, status, stdout: self.stdout(), stderr: self.stderr() }
    }

    /// Waits for the end of this program and of another one, which talk with each other.
    ///
    /// # Panics
    /// When one of them failed and the other goes on, with the output of the first; or when they do
    /// not end within `limit`.
    #[must_use]
    pub fn wait_with(mut self, mut other: Self, limit: Duration) -> (Ended, Ended) {
        const GOES_ON: Duration = Duration::from_secs(10);
        let start = Instant::now();
        while !(self.has_ended() && other.has_ended()) && start.elapsed() < limit {
            thread::sleep(Duration::from_millis(2));
        }
        // One that failed says more than one that waits for it.
        if !self.has_ended() && other.has_ended() {
            let ended = other.wait(GOES_ON).success();
            return (self.wait(GOES_ON), ended);
        }
        let ended = self.wait(GOES_ON);
        let ended = if other.has_ended() { ended } else { ended.success() };
        (ended, other.wait(GOES_ON))
    }

    /// Sends SIGTERM and waits for the end of the program.
    #[must_use]
    pub fn stop(self) -> Ended {
        self.signal(Signal::TERM);
        self.wait(PATIENCE)
    }

    /// Waits until the program has written `text` to standard output.
    ///
    /// # Panics
    /// When the program ends first, or takes longer than 30 s.
    pub fn await_output(&mut self, text: &str) {
        let start = Instant::now();
        while !self.stdout().contains(text) {
            assert!(
                !self.has_ended() && start.elapsed() < PATIENCE,
                "{} did not print {text:?}\n{}\n{}",
                self.shown,
                tail(&self.stdout()),
                tail(&self.stderr())
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until some socket listens at TCP `port` of this host. Does not connect.
    ///
    /// # Panics
    /// When the program ends first, or it takes longer than 30 s.
    pub fn await_port(&mut self, port: u16) {
        let start = Instant::now();
        while !listens(port) {
            assert!(
                !self.has_ended() && start.elapsed() < PATIENCE,
                "{} does not listen at {port}\n{}\n{}",
                self.shown,
                tail(&self.stdout()),
                tail(&self.stderr())
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}

impl Ended {
    /// Returns `self` when the program ended with status 0.
    ///
    /// # Panics
    /// When the program failed.
    #[must_use]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{}", self.report());
        self
    }

    /// The exit status as a shell reports it.
    #[must_use]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// The table of `--stats`.
    ///
    /// # Panics
    /// When there is no table.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        Statistics::parse(&self.stderr).unwrap_or_else(|| panic!("no table: {}", self.report()))
    }

    /// The command, its status and the end of its output, for messages.
    #[must_use]
    pub fn report(&self) -> String {
        let Self { shown, status, .. } = self;
        format!("{shown}: {status}\n{}\n{}", tail(&self.stdout), tail(&self.stderr))
    }
}

/// A free port that no other test gets. The port is outside the range from which the kernel
/// chooses. This process keeps it until it ends, by a name in the network namespace.
///
/// # Panics
/// When no port is free.
#[must_use]
pub fn free_port() -> u16 {
    /// Below the range from which the kernel chooses (`ip_local_port_range`).
    const PORTS: Range<u32> = 10_000..32_000;
    /// How far apart processes with neighbouring numbers begin to look.
    const APART: u32 = 16;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    let first = std::process::id() % count * APART;
    for _ in 0..count {
        let number = first + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + number % count).expect("it is below 32,000");
        let name = SocketAddr::from_abstract_name(format!("weft-e2e-port-{port}"));
        let Ok(claim) = UnixListener::bind_addr(&name.expect("a short name")) else { continue };
        if is_free(port) {
            // The kernel frees the name when the process ends.
            std::mem::forget(claim);
            return port;
        }
    }
    panic!("none of the ports {PORTS:?} is free; end the programs that use them");
}

/// Whether any program can listen at TCP `port` of 127.0.0.1. The standard library's listener would
/// not tell: it sets `SO_REUSEADDR`, which not all programs do, and so passes over connections of
/// an earlier case that the kernel keeps for a minute (`TIME_WAIT`).
fn is_free(port: u16) -> bool {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .and_then(|socket| rustix::net::bind(&socket, &address))
        .is_ok()
}

/// Whether some socket of this host listens at TCP `port`.
#[must_use]
pub fn listens(port: u16) -> bool {
    is_in_state(port, &["0A"])
}

/// Waits, at most ten seconds, until no accepted connection at TCP `port` is open. A server that is
/// then ended by a signal has counted its connections.
pub fn await_closed(port: u16) {
    let start = Instant::now();
    while is_in_state(port, &["01", "08"]) && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether some socket of this host at local TCP `port` is in one of these states of the kernel.
fn is_in_state(port: u16, states: &[&str]) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        read(Path::new(path)).lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|local| local.ends_with(&wanted))
                && fields.get(3).is_some_and(|state| states.contains(state))
        })
    })
}

/// All descendants of this process with their command lines, including those whose parents are
/// gone.
#[must_use]
pub fn descendants() -> Vec<(u32, String)> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let stat = read(Path::new(&format!("/proc/{pid}/stat")));
        // The name in brackets may contain any character; the fields after it do not.
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        if let Some(parent) = rest.split_whitespace().nth(1).and_then(|word| word.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![std::process::id()];
    while let Some(parent) = queue.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            let line = read(Path::new(&format!("/proc/{pid}/cmdline"))).replace('\0', " ");
            found.push((pid, line));
            queue.push(pid);
        }
    }
    found
}

/// Kills and reaps all descendants of this process.
pub fn kill_descendants() {
    for _ in 0..200 {
        while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for (pid, _) in left {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    eprintln!("processes that cannot be ended: {:?}", descendants());
}

/// The processor time of this process and of those of its descendants that have ended and were
/// waited for, in steps of a hundredth of a second.
#[must_use]
pub fn processor_time() -> Duration {
    let stat = read(Path::new("/proc/self/stat"));
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // proc_pid_stat(5), fields 14 to 17: utime, stime, cutime, cstime.
    let ticks: u64 = fields.skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// The content of a file as text; empty when the file cannot be read.
fn read(path: &Path) -> String {
    let bytes: io::Result<Vec<u8>> = std::fs::read(path);
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

/// The last lines of `text`.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Read;

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: HashSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        // Another process, which begins elsewhere, does not get them either.
        let name = |port| SocketAddr::from_abstract_name(format!("weft-e2e-port-{port}"));
        for port in ports {
            let claim = UnixListener::bind_addr(&name(port).expect("a short name"));
            assert!(claim.is_err(), "the claim of {port} is gone");
        }
    }

    #[test]
    fn the_port_of_a_connection_that_the_kernel_still_keeps_is_not_free() {
        let port = free_port();
        let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        drop(listener.accept().expect("a client has connected"));
        drop(listener);
        assert_eq!(client.read(&mut [0]).expect("the server has closed"), 0);
        drop(client);
        assert!(!is_free(port));
    }

    #[test]
    fn processor_time_is_counted() {
        let start = processor_time();
        let mut number = 0_u64;
        while processor_time() < start + Duration::from_millis(20) {
            number = std::hint::black_box(number) + 1;
        }
        assert!(number > 0);
    }

    #[test]
    fn a_listening_port_is_seen_and_a_free_one_is_not() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        assert!(listens(socket.local_addr().expect("bound").port()));
        assert!(!listens(1));
    }
}
