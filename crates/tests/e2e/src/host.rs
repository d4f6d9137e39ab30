//! A host of a fabric. Each has its own directory, control socket and port, and so stands for a
//! machine.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::namespace::Namespace;
use crate::node::Node;
use crate::process::{Running, free_port};

/// A busy machine does not reach it.
const LIMIT: Duration = Duration::from_secs(30);

/// One host: a node with options for its daemon.
pub struct Host {
    /// Its directory and control socket.
    pub node: Node,
    /// The name of the node.
    pub name: &'static str,
    /// The address at which its daemon listens.
    pub address: String,
    /// The arguments of its daemon.
    pub arguments: Vec<String>,
    /// The network that its daemon is in, if it is another than that of the test.
    pub network: Option<Namespace>,
    /// Its daemon, while it runs.
    pub daemon: Option<Running>,
}

impl Host {
    /// A host that joins by the hosts at `seeds`; the first one without. It listens on loopback.
    #[must_use]
    pub fn new(name: &'static str, key: &Path, seeds: &[&str]) -> Self {
        Self::at(&format!("127.0.0.1:{}", free_port()), name, key, seeds)
    }

    /// The same with a network of its own, where it listens at `address`.
    #[must_use]
    pub fn inside(
        network: Namespace,
        address: &str,
        name: &'static str,
        key: &Path,
        seeds: &[&str],
    ) -> Self {
        let mut host = Self { network: Some(network), ..Self::at(address, name, key, seeds) };
        // The test itself stays outside.
        host.arguments.push("--daemon-allow=0".to_owned());
        host
    }

    fn at(address: &str, name: &'static str, key: &Path, seeds: &[&str]) -> Self {
        let mut arguments = vec![
            "--node".to_owned(),
            name.to_owned(),
            format!("--fabric-key={}", key.display()),
            format!("--fabric-listen={address}"),
            "--fabric-silence-ms=3000".to_owned(),
        ];
        if !seeds.is_empty() {
            arguments.push(format!("--fabric-seeds={}", seeds.join(",")));
        }
        let (node, address) = (Node::without_daemon(), address.to_owned());
        Self { node, name, address, arguments, network: None, daemon: None }
    }

    /// Starts its daemon, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not become ready.
    pub fn start(&mut self) {
        let start = || self.node.start(self.command());
        let mut daemon = self.network.as_ref().map_or_else(start, |network| network.inside(start));
        let start = Instant::now();
        while !daemon.stderr().contains("ready at") {
            assert!(!daemon.has_ended() && start.elapsed() < LIMIT, "{}", daemon.stderr());
            thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
    }

    /// The command of its daemon.
    pub fn command(&self) -> Command {
        let mut command = self.node.daemon_command();
        command.args(&self.arguments);
        command
    }

    /// Ends the daemon with SIGKILL.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        let daemon = self.daemon.take().expect("its daemon runs");
        daemon.signal(Signal::KILL);
        let _ = daemon.wait(LIMIT);
    }

    /// The standard error of its daemon so far.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn log(&self) -> String {
        self.daemon.as_ref().expect("its daemon runs").stderr()
    }

    /// `weft fabric nodes --json`.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn fabric(&self) -> Value {
        let command = self.node.weft(["fabric", "nodes", "--json"]);
        let ended = self.node.start(command).wait(LIMIT).success();
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    /// `weft fabric show --json`.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn network(&self) -> Value {
        let command = self.node.weft(["fabric", "show", "--json"]);
        let ended = self.node.start(command).wait(LIMIT).success();
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    /// Waits until the manager is as `is` wants it at this host. Returns it: its seat, its term and
    /// its standing.
    ///
    /// # Panics
    /// When it does not become so.
    pub fn await_manager(&self, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let manager = self.network()["managers"][0].clone();
            if is(&manager) {
                return manager;
            }
            assert!(start.elapsed() < LIMIT, "{} has the manager {manager}", self.name);
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The steps of a packet from one host to another, as this one knows them.
    ///
    /// # Panics
    /// When there is no way.
    #[must_use]
    pub fn trace(&self, from: &str, to: &str) -> Vec<Value> {
        let command = self.node.weft(["fabric", "trace", from, to, "--json"]);
        let ended = self.node.start(command).wait(LIMIT).success();
        serde_json::from_str(&ended.stdout).expect("JSON")
    }

    /// The state of the node with this name, its number, and the reason, as this host sees them.
    ///
    /// # Panics
    /// When the daemon does not answer.
    #[must_use]
    pub fn state_of(&self, name: &str) -> Option<(String, Option<u64>, String)> {
        let fabric = self.fabric();
        let nodes = fabric["nodes"].as_array().expect("a list");
        let node = nodes.iter().find(|node| node["name"] == name)?;
        let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
        Some((text("state"), node["number"].as_u64(), text("reason")))
    }

    /// Waits until the node with this name has this state. Returns its number and the reason.
    ///
    /// # Panics
    /// When it does not.
    pub fn await_state(&self, name: &str, state: &str) -> (Option<u64>, String) {
        let start = Instant::now();
        loop {
            if let Some((found, number, reason)) = self.state_of(name)
                && found == state
            {
                return (number, reason);
            }
            let late = start.elapsed() > LIMIT;
            assert!(!late, "{name} is not {state} at {}: {:#}", self.name, self.fabric());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A key file that `weft fabric key` made.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn key(host: &Node, name: &str) -> PathBuf {
    let made = host.start(host.weft(["fabric", "key"])).wait(LIMIT).success();
    let path = host.directory().join(name);
    std::fs::write(&path, &made.stdout).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("our own");
    path
}
