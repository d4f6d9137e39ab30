//! Endpoints of several processes at a real daemon. The other processes run the test program again,
//! with a role in their environment.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, Event, NodeId, PATIENCE, Peer, Transport,
    Vpid,
};
use weft_transport_shm::broker::remote::RemoteBroker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

const ROLE: &str = "WEFTD_TEST_ROLE";
const SOCKET: &str = "WEFTD_TEST_SOCKET";
const TARGET: &str = "WEFTD_TEST_TARGET";
/// Longer than any step of these tests; a hang fails.
pub const WATCHDOG: Duration = Duration::from_secs(60);

/// The role of this process and the socket of its daemon, if it is not the test itself.
pub fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, PathBuf::from(std::env::var(SOCKET).ok()?)))
}

/// The role of a daemon.
#[allow(dead_code, reason = "some tests set options")]
pub fn serve(socket: PathBuf) {
    serve_with(socket, &[]);
}

/// The role of a daemon with these options, by their variables.
pub fn serve_with(socket: PathBuf, options: &[(&str, &str)]) {
    let (options, _) = weft_options::Options::from_environment(options.iter().copied());
    let node = "test".to_owned();
    let config = weftd::Config {
        socket,
        node,
        options,
        foreground: false,
        devices: Vec::new(),
        links: None,
    };
    weftd::serve(config).expect("the socket is free");
}

/// Starts this test program again, which runs its test `role`.
pub fn spawn(role: &str, socket: &Path, target: Vpid) -> Child {
    Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(SOCKET, socket)
        .env(TARGET, target.0.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program runs")
}

/// Connects to the endpoint that is named in the environment.
#[allow(dead_code, reason = "not every test has other processes")]
pub fn target(endpoint: &mut ShmEndpoint) -> Peer {
    let vpid = std::env::var(TARGET).expect("given").parse().expect("a number");
    let address = EndpointAddress::new(NodeId::LOCAL, Vpid(vpid));
    endpoint.connect_within(address, PATIENCE).expect("there")
}

/// Opens an endpoint as soon as the daemon is there.
pub fn open_with(socket: &Path, parameters: Parameters) -> ShmEndpoint {
    let transport = ShmTransport::new(Arc::new(RemoteBroker::new(socket, "test")), parameters);
    let start = Instant::now();
    loop {
        match transport.open(&EndpointOptions::default()) {
            Ok(endpoint) => return endpoint,
            Err(error) => assert!(start.elapsed() < WATCHDOG, "no daemon: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon that ends with the test.
pub struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = spawn("daemon", &folder.path().join("node.sock"), Vpid(0));
        Self { child, folder }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("node.sock")
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }

    #[allow(dead_code, reason = "not every test restarts its daemon")]
    pub fn start_again(&mut self) {
        self.child = spawn("daemon", &self.socket(), Vpid(0));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls and waits until an event satisfies `done`. Returns how long it took.
#[allow(dead_code, reason = "not every test has endpoints of this kind")]
pub fn until(
    endpoint: &mut ShmEndpoint,
    what: &str,
    mut done: impl FnMut(&Event<'_>) -> bool,
) -> Duration {
    let start = Instant::now();
    let mut end = false;
    while !end {
        assert!(start.elapsed() < WATCHDOG, "waited in vain for {what}");
        endpoint.wait(Some(Duration::from_millis(100)));
        endpoint.poll(64, &mut |event| end |= done(&event));
    }
    start.elapsed()
}
