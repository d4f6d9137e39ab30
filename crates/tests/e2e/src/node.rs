//! A node for one test: a directory, a daemon, and commands with or without weft.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::process::Running;
use crate::program;
use crate::suite::{Case, Outcome};

/// How long a test waits for a daemon. A busy machine does not reach it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which side of a connection runs under weft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Under {
    /// Both sides: the bytes go over the fabric.
    Both,
    /// Only the client: the bytes stay on TCP.
    Client,
    /// Only the server: the bytes stay on TCP.
    Server,
}

impl Under {
    /// All three combinations.
    pub const ALL: [Self; 3] = [Self::Both, Self::Client, Self::Server];

    /// Whether the server runs under weft.
    #[must_use]
    pub const fn server(self) -> bool {
        matches!(self, Self::Both | Self::Server)
    }

    /// Whether the client runs under weft.
    #[must_use]
    pub const fn client(self) -> bool {
        matches!(self, Self::Both | Self::Client)
    }
}

/// A node with its own directory, and a daemon unless it was killed or never started.
#[derive(Debug)]
pub struct Node {
    daemon: Option<Running>,
    // Declared after the daemon, so that the directory is removed after the daemon is gone.
    directory: TempDir,
}

impl Node {
    /// A node with a running daemon.
    #[must_use]
    pub fn new() -> Self {
        let mut node = Self::without_daemon();
        node.start_daemon();
        node
    }

    /// A node without a daemon; `weft run` starts one.
    ///
    /// # Panics
    /// When its directory cannot be made.
    #[must_use]
    pub fn without_daemon() -> Self {
        let directory = TempDir::with_prefix("weft-e2e-").expect("a directory");
        // Other users of the daemon must be able to enter the directory.
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), mode).expect("our own directory");
        Self { daemon: None, directory }
    }

    /// Starts the daemon and waits until it is ready. The time at which the daemon answers decides
    /// how many bytes go over TCP first. Where it is allowed, the daemon therefore runs at a higher
    /// priority than other cases.
    ///
    /// # Panics
    /// When the daemon does not become ready.
    pub fn start_daemon(&mut self) {
        let mut daemon = self.start(self.daemon_command());
        daemon.goes_before_others();
        let start = Instant::now();
        while !daemon.stderr().contains("ready at") {
            assert!(
                !daemon.has_ended() && start.elapsed() < PATIENCE,
                "the daemon does not answer: {}",
                daemon.stderr()
            );
            thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
    }

    /// Kills the daemon.
    ///
    /// # Panics
    /// When no daemon was started by [`Node::start_daemon`].
    pub fn kill_daemon(&mut self) {
        drop(self.daemon.take().expect("a daemon runs"));
    }

    /// Sends the daemon a signal.
    ///
    /// # Panics
    /// When no daemon was started by [`Node::start_daemon`].
    pub fn signal_daemon(&self, signal: Signal) {
        self.daemon.as_ref().expect("a daemon runs").signal(signal);
    }

    /// The standard error of the daemon so far.
    ///
    /// # Panics
    /// When no daemon was started by [`Node::start_daemon`].
    #[must_use]
    pub fn daemon_log(&self) -> String {
        self.daemon.as_ref().expect("a daemon runs").stderr()
    }

    /// The process number of the daemon.
    ///
    /// # Panics
    /// When no daemon was started by [`Node::start_daemon`].
    #[must_use]
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon runs").pid()
    }

    /// The directory of the test.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The control socket of the daemon.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.directory().join("n.sock")
    }

    /// A `weft` command for this node, without any other configuration.
    pub fn weft<T: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = T>) -> Command {
        let mut command = self.plain(program::weft());
        command.args(arguments);
        command
    }

    /// The command of a daemon. It measures no copies: that keeps both processors busy for some
    /// 50 ms, in each of hundreds of cases. Daemons that `weft run` starts do measure.
    #[must_use]
    pub fn daemon_command(&self) -> Command {
        let mut command = self.weft(["daemon"]);
        command.env("WEFT_SHM_COPY", "nontemporal");
        command
    }

    /// A program without weft.
    pub fn plain(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("WEFT_") && text != "WEFT_LOG" {
                command.env_remove(&name);
            }
        }
        command
            .env_remove("LD_PRELOAD")
            .env("XDG_CONFIG_HOME", self.directory())
            .env("WEFT_DAEMON_SOCKET", self.socket())
            // By a name of which weft does not warn.
            .env("E2E_AWAY", std::env::var_os("WEFT_E2E_AWAY").unwrap_or_else(|| "0".into()))
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env(SWITCH_CALLS, "0")
            .env(SWITCH_WAIT, "5000000")
            // Long enough for a daemon on a busy machine.
            .env("WEFT_DAEMON_ANSWER_MS", "2000")
            .stdin(Stdio::null());
        if std::env::var_os("WEFT_E2E_AS_USUAL").is_some() {
            as_usual(&mut command);
        }
        command
    }

    /// A program under `weft run --stats`, or without weft.
    pub fn program(&self, weft: bool, program: impl AsRef<OsStr>) -> Command {
        if weft {
            let mut command = self.weft(["run", "--stats", "--"]);
            command.arg(program);
            command
        } else {
            self.plain(program)
        }
    }

    /// A program under `weft run` without `--stats`: the process becomes the program itself.
    pub fn bare(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.weft(["run", "--"]);
        command.arg(program);
        command
    }

    /// Starts a command of this node.
    #[must_use]
    pub fn start(&self, command: Command) -> Running {
        Running::start(command, self.directory())
    }

    /// The output of `weft status --json`.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn status(&self) -> Value {
        let ended = self.start(self.weft(["status", "--json"])).wait(PATIENCE);
        serde_json::from_str(&ended.clone().success().stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", ended.report()))
    }

    /// Waits until `weft status` satisfies `wanted`.
    ///
    /// # Panics
    /// When it does not within 30 s.
    pub fn await_status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "not {what}: {status:#}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes a program move to the fabric when it does for users. In tests it otherwise moves at its
/// first call, and waits for the daemon on a busy machine, since the fabric is what is tested.
/// `WEFT_E2E_AS_USUAL` applies this to every test; tests that require all bytes on the fabric then
/// fail.
pub fn as_usual(command: &mut Command) {
    command.env_remove(SWITCH_CALLS).env_remove(SWITCH_WAIT);
}

/// Three cases: on plain TCP, under weft as users have it, and on the fabric from the first call
/// on. `run` gets whether it is under weft and a function to apply to the commands that it starts.
pub fn three_ways(run: fn(bool, fn(&mut Command)) -> Outcome) -> Vec<Case> {
    vec![
        Case::new("plain_tcp", move || run(false, |_| {})),
        Case::new("as_users_have_it", move || run(true, as_usual)),
        Case::new("on_the_fabric_from_the_first_call", move || run(true, |_| {})),
    ]
}

const SWITCH_CALLS: &str = "WEFT_SOCKET_SWITCH_CALLS";
const SWITCH_WAIT: &str = "WEFT_SOCKET_SWITCH_WAIT_US";
