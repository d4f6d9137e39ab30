//! Connects one endpoint to many on this host, and prints how long its loop stood still at most: in
//! real time, which the other processes of the machine lengthen, and in processor time.
//!
//! ```text
//! cargo run --release -p weftd --example many_peers [PEERS]
//! ```
//!
//! A daemon and the peers are processes of their own: this program again, with a role.

#![allow(clippy::disallowed_methods, reason = "a program that measures owns its clock")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, EndpointOptions, Event, Issued, MessageHeader, NodeId,
    PATIENCE, Transport, Vpid,
};
use weft_transport_shm::broker::remote::RemoteBroker;
use weft_transport_shm::{Parameters, ShmEndpoint, ShmTransport};

const ROLE: &str = "MANY_PEERS_ROLE";
const SOCKET: &str = "MANY_PEERS_SOCKET";
/// Requests that wait for the daemon at a time.
const WINDOW: usize = 32;

fn main() {
    let peers: usize = std::env::args().nth(1).map_or(1000, |text| text.parse().expect("a number"));
    // Each endpoint has some descriptors.
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the maximum");
    let socket = std::env::var_os(SOCKET).map(PathBuf::from);
    match (std::env::var(ROLE).as_deref(), socket) {
        (Ok("daemon"), Some(socket)) => serve(socket),
        (Ok("peers"), Some(socket)) => be_peers(&socket, peers),
        _ => connect(peers),
    }
}

fn serve(socket: PathBuf) {
    let wanted = [("WEFT_DAEMON_ENDPOINTS_MAX", "4096"), ("WEFT_DAEMON_USER_SHARE", "100")];
    let (options, _) = weft_options::Options::from_environment(wanted);
    let node = "many-peers".to_owned();
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

fn open(socket: &std::path::Path, vpid: Vpid) -> ShmEndpoint {
    let broker = Arc::new(RemoteBroker::new(socket, "many peers"));
    let parameters = Parameters { ring_slots: 16, endpoints: 4096, ..Parameters::default() };
    let options = EndpointOptions { vpid, ..EndpointOptions::default() };
    let start = Instant::now();
    loop {
        match ShmTransport::new(broker.clone(), parameters).open(&options) {
            Ok(endpoint) => return endpoint,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens the peers and looks after them until it is killed.
fn be_peers(socket: &std::path::Path, count: usize) {
    let numbers = 1..=u16::try_from(count).expect("a node has fewer than 65,536");
    let mut all: Vec<ShmEndpoint> = numbers.map(|vpid| open(socket, Vpid(vpid))).collect();
    let mut first = open(socket, Vpid(u16::try_from(count + 1).expect("as above")));
    let to = first.connect_within(EndpointAddress::new(NodeId::LOCAL, Vpid(0)), PATIENCE);
    first.send_short(to.expect("it is there"), MessageHeader::tag(1), &[]).expect("room");
    loop {
        for endpoint in &mut all {
            endpoint.poll(4, &mut |_| {});
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process that ends with this one, however that ends.
struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, socket: &std::path::Path, peers: usize) -> Beside {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .arg(peers.to_string())
        .env(ROLE, role)
        .env(SOCKET, socket)
        .stdin(Stdio::null())
        .spawn();
    Beside(child.expect("a process"))
}

/// A moment in real time and in the processor time of this thread.
struct Moment(Instant, Duration);

impl Moment {
    fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let seconds = u64::try_from(time.tv_sec).expect("it began at 0");
        let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
        Self(Instant::now(), Duration::new(seconds, nanoseconds))
    }

    fn elapsed(&self) -> (Duration, Duration) {
        let Self(real, processor) = Self::now();
        (real - self.0, processor.saturating_sub(self.1))
    }
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    format!("median {:?}, 99 % {:?}, longest {:?}", at(500), at(990), at(1000))
}

fn connect(peers: usize) {
    let directory = std::env::temp_dir().join(format!("many-peers-{}", std::process::id()));
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&directory).expect("a directory");
    let socket = directory.join("control");
    let daemon = start("daemon", &socket, peers);
    let mut endpoint = open(&socket, Vpid(0));
    let others = start("peers", &socket, peers);
    let mut ready = false;
    while !ready {
        endpoint.wait(Some(Duration::from_millis(100)));
        endpoint.poll(1, &mut |event| ready |= matches!(event, Event::Message(_)));
    }
    let (mut started, mut ended, mut failed) = (0, 0, 0);
    let (mut calls, mut polls) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while ended < peers {
        if started < peers && started - ended < WINDOW {
            let vpid = Vpid(u16::try_from(started + 1).expect("few"));
            let before = Moment::now();
            let issued = endpoint.connect(EndpointAddress::new(NodeId::LOCAL, vpid), 0);
            calls.push(before.elapsed());
            started += 1;
            match issued {
                Ok(Issued::Pending) => {}
                Ok(Issued::Done(_)) => ended += 1,
                Err(error) => panic!("{error}"),
            }
        }
        let before = Moment::now();
        endpoint.poll(64, &mut |event| {
            if let Event::Completion(completion) = event {
                ended += 1;
                failed += usize::from(completion.result.is_err());
            }
        });
        polls.push(before.elapsed());
    }
    let all = begin.elapsed();
    println!("{peers} peers in {all:?}, {failed} failed");
    for (name, times) in [("a connect", calls), ("a poll", polls)] {
        let (real, processor): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        println!("{name}, real time:      {}", spread(real));
        println!("{name}, processor time: {}", spread(processor));
    }
    drop((others, daemon));
    std::fs::remove_dir_all(directory).expect("a directory of ours");
}
