//! Partitions between users: real users, each in a process, at a daemon of root.
//!
//! The other processes run this test program again as other users, and do what they are told line
//! by line. Only root can start them: without it the tests say so and end.

#![allow(clippy::disallowed_methods, reason = "tests own their clocks and threads")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use weft_fabric::{
    Access, Audience, Blocking, Endpoint, EndpointOptions, LocalRange, Operation, OperationError,
    PATIENCE, Partition, PartitionId, Peer, Region, RemoteKey, ServiceName, Source, Target, Ticket,
    Transport,
};
use weft_memory::Segment;
use weft_transport_shm::broker::remote::RemoteBroker;
use weft_transport_shm::broker::{Client, Connector};
use weft_transport_shm::{Doorbell, Parameters, ShmEndpoint, ShmTransport};
use weft_wire::endpoint_control::{EndpointControl, Open, Reply, Resolve, flags, status};

const ROLE: &str = "PARTITION_TEST_ROLE";
const SOCKET: &str = "PARTITION_TEST_SOCKET";
/// Longer than any step of these tests; a hang fails.
const WATCHDOG: Duration = Duration::from_secs(30);

const OWNER: u32 = 61_001;
const GUEST: u32 = 61_002;
const STRANGER: u32 = 61_003;

/// Not a test: the role of the other processes.
#[test]
fn role() {
    let socket = PathBuf::from(std::env::var(SOCKET).unwrap_or_default());
    match std::env::var(ROLE).as_deref() {
        Ok("daemon") => {
            let rules = format!("{OWNER}:kv:{GUEST}");
            let (options, problems) =
                weft_options::Options::from_environment([("WEFT_DAEMON_SERVICES", rules)]);
            assert!(problems.is_empty(), "{problems:?}");
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
        Ok("actor") => Act { socket, endpoint: None, regions: Vec::new() }.play(),
        _ => {}
    }
}

/// The state of an actor.
struct Act {
    socket: PathBuf,
    endpoint: Option<ShmEndpoint>,
    regions: Vec<<ShmEndpoint as Endpoint>::Region>,
}

impl Act {
    /// Does what each line says, and answers with a line.
    fn play(mut self) {
        let mut line = String::new();
        while std::io::stdin().read_line(&mut line).is_ok_and(|length| length > 0) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let answer = match self.act(&words) {
                Ok(text) => format!("ok {text}"),
                Err(text) => format!("error {text}"),
            };
            // Behind what the test harness writes.
            println!("\nanswer {answer}");
            line.clear();
        }
    }

    fn act(&mut self, words: &[&str]) -> Result<String, String> {
        match *words {
            ["offer", name] => self.open(Partition::Offered(partition(), service(name))),
            ["numbered"] => self.open(Partition::Numbered(partition())),
            ["service", name] => self.open(Partition::Service(service(name))),
            ["ticket", hex] => self.open(Partition::Ticket(Ticket(bytes(hex)))),
            ["close"] => Ok(self.endpoint.take().map_or("nothing", |_| "closed").to_owned()),
            ["invite", milliseconds] => {
                let within = Duration::from_millis(milliseconds.parse().expect("a number"));
                let ticket = self.own().invite_within(within, PATIENCE);
                let Ticket(bytes) = ticket.map_err(|error| error.to_string())?;
                Ok(u128::from_be_bytes(bytes).to_string())
            }
            ["share"] => self.share(),
            ["connect"] => self.host().map(|peer| peer.0.to_string()),
            ["read", key] => self.read(RemoteKey(key.parse().expect("a key"))),
            ["write", key] => self.write(RemoteKey(key.parse().expect("a key"))),
            ["steal", name, key] => self.steal(name, key.parse().expect("a key")),
            _ => panic!("what is {words:?}?"),
        }
    }

    fn own(&mut self) -> &mut ShmEndpoint {
        let endpoint = self.endpoint.as_mut().expect("open");
        // Looks for messages of the broker.
        endpoint.wait(Some(Duration::from_millis(1)));
        endpoint.poll(64, &mut |_| {});
        endpoint
    }

    fn open(&mut self, partition: Partition) -> Result<String, String> {
        let broker = Arc::new(RemoteBroker::new(&self.socket, "partition-test"));
        let transport = ShmTransport::new(broker, Parameters::default());
        let options = EndpointOptions { partition, ..EndpointOptions::default() };
        let opened = transport.open(&options).map_err(|error| error.to_string())?;
        let host = opened.host().map_or("nobody".to_owned(), |host| host.to_string());
        self.endpoint = Some(opened);
        Ok(host)
    }

    /// Grants the right to read a new region with a secret, and to write to another one.
    fn share(&mut self) -> Result<String, String> {
        let mut keys = Vec::new();
        for access in [Access::READ, Access::READ | Access::WRITE] {
            let region = self.own().register(4096).expect("memory");
            region.write(0, b"secret").expect("inside");
            let range = LocalRange::whole(&region);
            let key = self.own().grant_within(range, Audience::Partition, access, PATIENCE);
            keys.push(key.map_err(|error| error.to_string())?.0.to_string());
            self.regions.push(region);
        }
        Ok(keys.join(" "))
    }

    fn host(&mut self) -> Result<Peer, String> {
        let endpoint = self.own();
        let host = endpoint.host().expect("a guest has a host");
        endpoint.connect_within(host, PATIENCE).map_err(|error| error.to_string())
    }

    fn read(&mut self, key: RemoteKey) -> Result<String, String> {
        let (host, endpoint) = (self.host()?, self.own());
        let refused = |error: OperationError| error.to_string();
        endpoint.resolve_within(host, key, PATIENCE).map_err(refused)?;
        let into = endpoint.register(6).expect("memory");
        let source = Target::new(key, 0);
        let _ = endpoint
            .get(host, source, LocalRange::whole(&into), Operation::new(1))
            .map_err(refused)?;
        let mut found = [0; 6];
        into.read(0, &mut found).expect("inside");
        Ok(String::from_utf8_lossy(&found).into_owned())
    }

    fn write(&mut self, key: RemoteKey) -> Result<String, String> {
        let (host, endpoint) = (self.host()?, self.own());
        let refused = |error: OperationError| error.to_string();
        endpoint.resolve_within(host, key, PATIENCE).map_err(refused)?;
        let target = Target::new(key, 0);
        let put = endpoint.put(host, Source::Bytes(b"public"), target, Operation::new(1));
        put.map(|_| "written".to_owned()).map_err(refused)
    }

    /// Speaks to the daemon by hand, and tries whatever can be done to the memory of a key.
    fn steal(&mut self, name: &str, key: u64) -> Result<String, String> {
        let file = hand_made_resolve(&self.socket, service(name), key)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let mut can = Vec::new();
        if std::fs::File::open(&path).is_ok() {
            can.push("read by path");
        }
        if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
            can.push("write by path");
        }
        if rustix::fs::fchmod(&file, 0o666.into()).is_ok() {
            can.push("change its mode");
        }
        let length = usize::try_from(Segment::sealed_length(file.as_fd()).expect("sealed"));
        let length = length.expect("small");
        if Segment::open(file.as_fd(), length, true).is_ok() {
            can.push("write");
        }
        let segment = Segment::open(file.as_fd(), length, false).expect("a key to read");
        let mut found = [0; 6];
        segment.read(0, &mut found);
        can.push(if &found == b"secret" { "read" } else { "read something else" });
        Ok(can.join(", "))
    }
}

/// Opens an endpoint by hand and resolves a key of the endpoint that offers the service.
fn hand_made_resolve(socket: &Path, name: ServiceName, key: u64) -> Result<OwnedFd, String> {
    let broker = RemoteBroker::new(socket, "thief");
    let mut client = broker.client().map_err(|error| error.to_string())?;
    let (wakeup, _woken) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let (doorbell, file) = Doorbell::create(wakeup.into()).expect("memory");
    let registers = Segment::create_file("thief", 4096).expect("memory");
    let open = Open {
        ticket: 1,
        flags: flags::SERVICE,
        vpid: 0xffff,
        name: name.padded(),
        ..Open::default()
    };
    let files = [file.as_fd(), registers.as_fd(), doorbell.wakeup()];
    let (reply, _) = ask(client.as_mut(), open.into(), 1, &files)?;
    let [v0, v1, .., h0, h1] = reply.first.to_le_bytes();
    let (vpid, owner) = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([h0, h1]));
    let [g0, g1, g2, g3, s0, s1, ..] = key.to_le_bytes();
    let generation = u32::from_le_bytes([g0, g1, g2, g3]);
    let slot = u16::from_le_bytes([s0, s1]);
    let resolve = Resolve { ticket: 2, vpid, owner, slot, generation };
    let (_, mut files) = ask(client.as_mut(), resolve.into(), 2, &[])?;
    files.pop().ok_or_else(|| "no memory".to_owned())
}

fn ask(
    client: &mut dyn Client,
    request: EndpointControl,
    ticket: u32,
    files: &[std::os::fd::BorrowedFd<'_>],
) -> Result<(Reply, Vec<OwnedFd>), String> {
    let received = client.call(request, ticket, files).map_err(|error| error.to_string())?;
    match received.message {
        EndpointControl::Reply(reply) if reply.status == status::DONE => {
            Ok((reply, received.files))
        }
        other => Err(format!("{other:?}")),
    }
}

fn partition() -> PartitionId {
    PartitionId::of_user_named(rustix::process::getuid().as_raw(), 7)
}

fn service(name: &str) -> ServiceName {
    ServiceName::new(name).expect("a name")
}

/// The bytes of a ticket that was written as a number.
fn bytes(number: &str) -> [u8; 16] {
    number.parse::<u128>().expect("a ticket").to_be_bytes()
}

/// A process of another user.
struct Actor {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Actor {
    fn tell(&mut self, line: &str) -> Result<String, String> {
        writeln!(self.say, "{line}").expect("it lives");
        let mut answer = String::new();
        while self.hear.read_line(&mut answer).expect("it lives") > 0 {
            if let Some(answer) = answer.trim_end().strip_prefix("answer ") {
                let (verdict, text) = answer.split_once(' ').unwrap_or((answer, ""));
                let text = text.to_owned();
                return if verdict == "ok" { Ok(text) } else { Err(text) };
            }
            answer.clear();
        }
        panic!("it ended at {line}");
    }

    /// Tells it until it is done.
    fn tell_until_done(&mut self, line: &str) -> String {
        let start = Instant::now();
        loop {
            match self.tell(line) {
                Ok(text) => return text,
                Err(error) => assert!(start.elapsed() < WATCHDOG, "{line}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon of root, and a copy of this program that everybody may run.
struct Stage {
    daemon: Child,
    folder: tempfile::TempDir,
}

impl Stage {
    /// `None` without the right to start processes of other users.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root, to start processes of other users");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let open = || std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open()).expect("ours");
        let program = folder.path().join("program");
        // Not by this process: a process that another thread starts meanwhile would hold the file
        // open for writing, and then nobody could run it.
        let copied = Command::new("cp")
            .arg(std::env::current_exe().expect("a test has a program"))
            .arg(&program)
            .status();
        assert!(copied.is_ok_and(|status| status.success()), "room on the disk");
        std::fs::set_permissions(&program, open()).expect("ours");
        let daemon = Self::spawn(folder.path(), "daemon", 0);
        Some(Self { daemon, folder })
    }

    fn spawn(folder: &Path, role: &str, user: u32) -> Child {
        Command::new(folder.join("program"))
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env_clear()
            .env(ROLE, role)
            .env(SOCKET, folder.join("node.sock"))
            .uid(user)
            .gid(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs")
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("node.sock")
    }

    fn actor(&self, user: u32) -> Actor {
        let start = Instant::now();
        while !weftd::client::answers(&self.socket()) {
            assert!(start.elapsed() < WATCHDOG, "there is no daemon");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut child = Self::spawn(self.folder.path(), "actor", user);
        let say = child.stdin.take().expect("piped");
        let hear = BufReader::new(child.stdout.take().expect("piped"));
        Actor { child, say, hear }
    }

    /// Ends the daemon and starts another one.
    fn restart(&mut self) {
        self.daemon.kill().expect("ours");
        self.daemon.wait().expect("ours");
        self.daemon = Self::spawn(self.folder.path(), "daemon", 0);
    }

    /// A counter of the service for endpoints.
    fn counter(&self, name: &str) -> u64 {
        let status = weftd::client::status(&self.socket()).expect("a status");
        let services = status.services.iter();
        let mut counters = services.filter(|s| s.name == "endpoints").flat_map(|s| &s.counters);
        counters.find(|counter| counter.name == name).expect("the counter is there").value
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn a_service_reaches_the_users_that_the_rules_name() {
    let Some(stage) = Stage::new() else { return };
    let (mut owner, mut guest) = (stage.actor(OWNER), stage.actor(GUEST));
    let mut stranger = stage.actor(STRANGER);
    assert!(guest.tell("service kv").is_err_and(|why| why.contains("nobody offers")));
    let squatter = guest.tell("offer kv");
    assert!(squatter.is_err_and(|why| why.contains("may not offer")));
    assert_eq!(owner.tell("offer kv"), Ok("nobody".to_owned()));
    assert!(owner.tell("offer kv").is_err_and(|why| why.contains("is there already")));
    let refused = stranger.tell("service kv");
    assert!(refused.is_err_and(|why| why.contains("may not use")));
    let host = guest.tell("service kv").expect("the rules name the user");
    assert!(host.starts_with("0:"), "{host}");
    let keys = owner.tell("share").expect("keys");
    let (readable, writable) = keys.split_once(' ').expect("two keys");
    assert_eq!(guest.tell(&format!("read {readable}")), Ok("secret".to_owned()));
    let refused = guest.tell(&format!("write {readable}"));
    assert!(refused.is_err_and(|why| why.contains("does not allow")));
    assert_eq!(guest.tell(&format!("write {writable}")), Ok("written".to_owned()));
    assert_eq!(guest.tell(&format!("read {writable}")), Ok("public".to_owned()));
}

/// The memory of a key to read is a file of another user, for which the guest has a descriptor to
/// read alone.
#[test]
fn the_memory_of_a_key_to_read_cannot_be_written_by_any_way() {
    let Some(stage) = Stage::new() else { return };
    let (mut owner, mut guest) = (stage.actor(OWNER), stage.actor(GUEST));
    owner.tell("offer kv").expect("the user's name");
    let keys = owner.tell("share").expect("keys");
    let (readable, _) = keys.split_once(' ').expect("two keys");
    assert_eq!(guest.tell(&format!("steal kv {readable}")), Ok("read".to_owned()));
}

#[test]
fn one_of_two_users_that_race_gets_in_by_a_ticket() {
    let Some(stage) = Stage::new() else { return };
    let mut owner = stage.actor(OWNER);
    owner.tell("numbered").expect("the user's own partition");
    let mut guests = [stage.actor(GUEST), stage.actor(STRANGER)];
    for round in 0..30 {
        let ticket = owner.tell("invite 60000").expect("a ticket");
        let (line, barrier) = (format!("ticket {ticket}"), Barrier::new(2));
        let answers = std::thread::scope(|scope| {
            let racers = guests.each_mut().map(|guest| {
                scope.spawn(|| {
                    barrier.wait();
                    guest.tell(&line)
                })
            });
            racers.map(|racer| racer.join().expect("it answers"))
        });
        let winners = answers.iter().filter(|answer| answer.is_ok()).count();
        assert_eq!(winners, 1, "round {round}: {answers:?}");
        let (winner, loser) = if answers[0].is_ok() { (0, 1) } else { (1, 0) };
        let why = answers[loser].as_ref().expect_err("the other one won");
        assert!(why.contains("ticket is not good"), "{why}");
        guests[winner].tell("connect").expect("it is in the partition");
        guests[winner].tell("close").expect("open");
    }
    assert_eq!((stage.counter("tickets_refused"), stage.counter("invitations")), (30, 0));
}

#[test]
fn a_ticket_is_void_when_the_process_that_gave_it_is_killed_or_it_is_late() {
    let Some(stage) = Stage::new() else { return };
    let (mut owner, mut guest) = (stage.actor(OWNER), stage.actor(GUEST));
    owner.tell("numbered").expect("the user's own partition");
    let late = owner.tell("invite 1").expect("a ticket");
    std::thread::sleep(Duration::from_millis(20));
    let refused = guest.tell(&format!("ticket {late}"));
    assert!(refused.is_err_and(|why| why.contains("ticket is not good")));
    let ticket = owner.tell("invite 60000").expect("a ticket");
    assert_eq!(stage.counter("invitations"), 1);
    drop(owner);
    let start = Instant::now();
    while stage.counter("invitations") > 0 {
        assert!(start.elapsed() < WATCHDOG, "the ticket outlives its giver");
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = guest.tell(&format!("ticket {ticket}"));
    assert!(refused.is_err_and(|why| why.contains("ticket is not good")));
}

/// The guest comes back after the owner vouched for it, and has what it had.
#[test]
fn a_guest_outlives_the_daemon() {
    let Some(mut stage) = Stage::new() else { return };
    let (mut owner, mut guest) = (stage.actor(OWNER), stage.actor(GUEST));
    owner.tell("offer kv").expect("the user's name");
    guest.tell("service kv").expect("the rules name the user");
    let keys = owner.tell("share").expect("keys");
    let (first, second) = keys.split_once(' ').expect("two keys");
    assert_eq!(guest.tell(&format!("read {first}")), Ok("secret".to_owned()));
    stage.restart();
    // A new user comes in by the name only when the owner has offered it again.
    let mut other = stage.actor(GUEST);
    let start = Instant::now();
    loop {
        // Both find the new daemon when they look.
        let _ = owner.tell("share");
        let _ = guest.tell("connect");
        if other.tell("service kv").is_ok() && guest.tell(&format!("read {second}")).is_ok() {
            break;
        }
        assert!(start.elapsed() < WATCHDOG, "the guest does not come back");
    }
    assert_eq!(guest.tell(&format!("write {second}")), Ok("written".to_owned()));
    assert_eq!(other.tell_until_done(&format!("read {second}")), "public".to_owned());
}
