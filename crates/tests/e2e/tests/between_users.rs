//! Attacks between users of one machine: users can only connect at the daemon of the system.
//!
//! Needs root and setpriv to change users. Each hostile manner of `programs/hostile.py` runs while
//! two programs of another user exchange data, which must go over the fabric.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::exchange::exchange;
use weft_e2e::users::{ONE, OTHER, Shared, as_user};
use weft_e2e::{Node, Outcome, Running, Skip, cases, program, suite};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut cases = suite::in_turns(cases![
        senseless_packets_do_not_fill_the_log,
        questions_for_the_status_hold_up_nobody,
        a_program_that_takes_no_answer_holds_up_nobody,
    ]);
    cases.extend(cases![
        a_trap_in_place_of_the_own_daemon_is_not_used,
        all_users_meet_at_the_daemon_of_the_system,
        users_with_daemons_of_their_own_are_told,
        postgresql_of_its_own_user_is_reached_over_the_fabric,
        files_that_never_answer_hold_up_nobody,
        connections_that_linger_hold_up_nobody,
        wakeups_hold_up_nobody,
        channels_that_are_refused_hold_up_nobody,
        programs_leave_room_for_others,
        offers_leave_room_for_others,
        endpoints_leave_room_for_others,
        a_spy_finds_nothing,
        arbitrary_packets_harm_nobody,
        a_daemon_without_descriptors_waits_for_some,
        lanes_are_kept_between_users,
        a_lane_that_another_process_claimed_is_not_used,
        an_invitation_to_the_connection_of_another_user_is_not_claimed,
        a_lane_that_a_child_by_clone_has_mapped_is_not_kept,
    ]);
    suite::main(cases)
}

fn succeeds(node: &Node, command: Command) {
    let _ended = node.start(command).wait(LIMIT).success();
}

/// A machine with its own `/run` and `/tmp`.
struct Machine {
    shared: Shared,
    holder: Running,
}

impl Machine {
    fn new() -> Result<Self, Skip> {
        let shared = Shared::new(Node::without_daemon())?;
        let (unshare, _) = (program::find("unshare")?, program::find("nsenter")?);
        let directory = shared.node.directory().display().to_string();
        let mounts = format!(
            "set -e; mount -t tmpfs tmpfs /run; mkdir /run/keep; \
             mount --bind {directory} /run/keep; \
             mount -t tmpfs tmpfs /tmp; chmod 1777 /tmp; mkdir -p {directory}; \
             mount --bind /run/keep {directory}; echo ready; exec sleep 1000"
        );
        let mut command = shared.node.plain(unshare);
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &mounts]);
        let mut holder = shared.node.start(command);
        holder.await_output("ready");
        Ok(Self { shared, holder })
    }

    /// A command of `user` in this machine, without any setting for a daemon.
    fn plain(&self, user: u32) -> Command {
        let mut command = self.shared.node.plain("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid())).arg("--");
        command.arg(&self.shared.setpriv).args(as_user(user)).arg("--");
        command.env_remove("WEFT_DAEMON_SOCKET").env_remove("XDG_RUNTIME_DIR").env("HOME", "/");
        command
    }

    fn weft(&self, user: u32, words: &[&str]) -> Command {
        let mut command = self.plain(user);
        command.arg(self.shared.file("weft")).args(words);
        command
    }

    fn script(&self, user: u32, words: &[&str]) -> Command {
        let mut command = self.weft(user, &["run", "--stats", "--"]);
        command.arg(&self.shared.python).arg(self.shared.file("x.py")).args(words);
        command
    }

    fn start_daemon(&self, mut command: Command) -> Running {
        command.arg("daemon").env("WEFT_SHM_COPY", "nontemporal");
        let mut daemon = self.shared.node.start(command);
        while !daemon.stderr().contains("ready at") {
            assert!(!daemon.has_ended(), "{}", daemon.stderr());
            std::thread::sleep(Duration::from_millis(2));
        }
        daemon
    }
}

/// One user makes the directory in which the daemon of another user would be.
fn a_trap_in_place_of_the_own_daemon_is_not_used() -> Outcome {
    let machine = Machine::new()?;
    let trap = format!("/tmp/weft-{OTHER}");
    let made = machine.plain(ONE).args(["mkdir", "-m", "755", &trap]).status();
    assert!(made.is_ok_and(|status| status.success()));
    let mut daemon = machine.weft(ONE, &[]);
    daemon.env("WEFT_DAEMON_SOCKET", format!("{trap}/default.sock"));
    let trapper = machine.start_daemon(daemon);
    let script = |words: &[&str]| machine.script(OTHER, words);
    let (server, client) = exchange(&machine.shared.node, script, script);
    for ended in [&server, &client] {
        ended.statistics().assert_all_tcp(1);
        assert!(ended.stderr.contains("is not used"), "{}", ended.report());
        assert!(ended.stderr.contains(&trap), "{}", ended.report());
    }
    // The library itself checks the daemon, independently of the command.
    let library = machine.shared.file("libweft_preload.so");
    let bare = |words: &[&str]| {
        let mut command = machine.plain(OTHER);
        command.arg(&machine.shared.python).arg(machine.shared.file("x.py")).args(words);
        command.env("LD_PRELOAD", &library).env("WEFT_SOCKET", format!("{trap}/default.sock"));
        command
    };
    let (_, client) = exchange(&machine.shared.node, bare, bare);
    assert!(client.stderr.contains("is not used"), "{}", client.report());
    for words in [["status"], ["down"]] {
        let ended = machine.shared.node.start(machine.weft(OTHER, &words)).wait(LIMIT);
        assert!(!ended.status.success(), "{}", ended.report());
        assert!(ended.stderr.contains("is not used"), "{}", ended.report());
    }
    let mut status = machine.weft(ONE, &["status", "--json"]);
    status.env("WEFT_DAEMON_SOCKET", format!("{trap}/default.sock"));
    let seen = machine.shared.node.start(status).wait(LIMIT).success().stdout;
    assert!(seen.contains("\"processes\": []"), "the trap caught somebody: {seen}");
    drop(trapper);
    Ok(())
}

fn all_users_meet_at_the_daemon_of_the_system() -> Outcome {
    let machine = Machine::new()?;
    let _daemon = machine.start_daemon(machine.weft(0, &[]));
    for (server, client) in [(ONE, OTHER), (OTHER, 0), (0, ONE)] {
        let (server, client) = exchange(
            &machine.shared.node,
            |words| machine.script(server, words),
            |words| machine.script(client, words),
        );
        server.statistics().assert_all_fabric(1, 300_000, 300_000);
        client.statistics().assert_all_fabric(1, 300_000, 300_000);
    }
    Ok(())
}

fn users_with_daemons_of_their_own_are_told() -> Outcome {
    let machine = Machine::new()?;
    let (server, client) = exchange(
        &machine.shared.node,
        |words| machine.script(ONE, words),
        |words| machine.script(OTHER, words),
    );
    for ended in [&server, &client] {
        ended.statistics().assert_all_tcp(1);
    }
    assert!(client.stderr.contains("sudo weft daemon"), "{}", client.report());
    for user in [ONE, OTHER] {
        succeeds(&machine.shared.node, machine.weft(user, &["down"]));
    }
    Ok(())
}

/// PostgreSQL refuses to run as root, so its clients run as other users.
fn postgresql_of_its_own_user_is_reached_over_the_fabric() -> Outcome {
    let machine = Machine::new()?;
    let pgbench = program::find("pgbench")?;
    let binaries = std::fs::read_dir("/usr/lib/postgresql")
        .ok()
        .and_then(|mut versions| versions.next()?.ok())
        .map(|version| version.path().join("bin"))
        .ok_or_else(|| Skip("postgresql is not installed".into()))?;
    let _daemon = machine.start_daemon(machine.weft(0, &[]));
    let data = machine.shared.home(ONE).join("data");
    let mut initdb = machine.plain(ONE);
    initdb.arg(binaries.join("initdb")).args(["-A", "trust", "-U", "weft", "--no-sync", "-D"]);
    initdb.arg(&data);
    succeeds(&machine.shared.node, initdb);
    let port = weft_e2e::process::free_port().to_string();
    let mut server = machine.weft(ONE, &["run", "--"]);
    server.arg(binaries.join("postgres")).arg("-D").arg(&data);
    server.args(["-p", &port, "-c", "unix_socket_directories=", "-c", "fsync=off"]);
    let mut server = machine.shared.node.start(server);
    server.await_port(port.parse().expect("a number"));
    let bench = |words: &[&str]| {
        let mut command = machine.weft(OTHER, &["run", "--stats", "--"]);
        command.arg(&pgbench).args(["-h", "127.0.0.1", "-U", "weft", "-p", &port]);
        command.args(words).arg("postgres");
        machine.shared.node.start(command).wait(LIMIT).success()
    };
    bench(&["-i", "-q"]);
    let ended = bench(&["-S", "-c", "2", "-t", "200"]);
    assert!(ended.statistics().fabric.connections >= 2, "{}", ended.report());
    server.signal(rustix::process::Signal::INT);
    Ok(())
}

/// A daemon of root, and an ordinary user who attacks it.
struct Attacked {
    shared: Shared,
    hostile: Running,
    result: String,
}

impl Attacked {
    fn new(manner: &str) -> Result<Self, Skip> {
        let shared = Shared::new(Node::new())?;
        let mut command = shared.become_user(ONE);
        command.arg(&shared.python).arg(shared.file("hostile.py"));
        command.arg(manner).arg(shared.node.socket());
        Ok(Self::started(shared, command))
    }

    fn started(shared: Shared, command: Command) -> Self {
        let mut hostile = shared.node.start(command);
        hostile.await_output("\n");
        let result = hostile.stdout().trim().trim_start_matches("result: ").to_owned();
        Self { shared, hostile, result }
    }

    /// Two programs of `user` connect over the fabric and exchange the right bytes.
    fn others_go_on(&self, user: u32) {
        let socket = self.shared.node.socket();
        let script = |words: &[&str]| self.shared.script(user, &socket, words);
        let (server, client) = exchange(&self.shared.node, script, script);
        server.statistics().assert_all_fabric(1, 300_000, 300_000);
        client.statistics().assert_all_fabric(1, 300_000, 300_000);
    }

    /// The number of successes that the attacker printed.
    fn count(&self) -> u64 {
        let number = self.result.split(' ').next().and_then(|word| word.parse().ok());
        number.unwrap_or_else(|| panic!("no number in {:?}", self.result))
    }

    /// Kills the attacker; its user is then served again.
    fn ends(self) {
        let Self { shared, hostile, result } = self;
        drop(hostile);
        let hostile = shared.node.start(shared.node.plain("true"));
        Self { shared, hostile, result }.others_go_on(ONE);
    }
}

fn files_that_never_answer_hold_up_nobody() -> Outcome {
    if !std::path::Path::new("/dev/fuse").exists() {
        return Err(Skip("there is no /dev/fuse".into()));
    }
    let shared = Shared::new(Node::new())?;
    // The mount ends with the namespace of the process.
    let mut command = shared.node.plain(program::find("unshare")?);
    command.args(["--mount", "--propagation", "private", "--"]);
    command.arg(&shared.python).arg(shared.file("hostile.py")).arg("fuse");
    command.arg(shared.node.socket()).arg(ONE.to_string());
    let attacked = Attacked::started(shared, command);
    if !attacked.result.starts_with("handed over") {
        return Err(Skip(format!("FUSE cannot be used here: {}", attacked.result)));
    }
    for _ in 0..3 {
        attacked.others_go_on(OTHER);
    }
    let _answered = attacked.shared.node.status();
    attacked.ends();
    Ok(())
}

fn connections_that_linger_hold_up_nobody() -> Outcome {
    let attacked = Attacked::new("linger")?;
    assert_eq!(attacked.result, "handed over");
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

fn channels_that_are_refused_hold_up_nobody() -> Outcome {
    let attacked = Attacked::new("refused")?;
    assert_eq!(attacked.result, "refused");
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

fn wakeups_hold_up_nobody() -> Outcome {
    let attacked = Attacked::new("wakeups")?;
    assert_eq!(attacked.result, "handed over");
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

fn senseless_packets_do_not_fill_the_log() -> Outcome {
    let attacked = Attacked::new("noise")?;
    attacked.others_go_on(OTHER);
    let log = attacked.shared.node.daemon_log();
    assert!(log.lines().count() < 40, "{} lines: {log}", log.lines().count());
    assert!(log.contains("invalid message"), "the log has no line about the packets: {log}");
    attacked.ends();
    Ok(())
}

fn programs_leave_room_for_others() -> Outcome {
    let attacked = Attacked::new("programs")?;
    assert!((1..=4096).contains(&attacked.count()), "{}", attacked.result);
    attacked.others_go_on(OTHER);
    attacked.others_go_on(0);
    attacked.ends();
    Ok(())
}

fn offers_leave_room_for_others() -> Outcome {
    let attacked = Attacked::new("offers")?;
    assert!((1..=8192).contains(&attacked.count()), "{}", attacked.result);
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

fn endpoints_leave_room_for_others() -> Outcome {
    let attacked = Attacked::new("endpoints")?;
    assert_eq!(attacked.count(), 128, "half of the endpoints");
    let mut perf = attacked.shared.become_user(OTHER);
    // Both ends poll, so each turn costs a slice of the processor beside programs that compute.
    perf.arg(attacked.shared.file("weft")).args(["perf", "latency", "--iterations", "1"]);
    perf.env("WEFT_DAEMON_SOCKET", attacked.shared.node.socket()).env("HOME", "/");
    succeeds(&attacked.shared.node, perf);
    Ok(())
}

fn questions_for_the_status_hold_up_nobody() -> Outcome {
    let attacked = Attacked::new("statuses")?;
    attacked.others_go_on(OTHER);
    let _answered = attacked.shared.node.status();
    attacked.ends();
    Ok(())
}

fn a_program_that_takes_no_answer_holds_up_nobody() -> Outcome {
    let attacked = Attacked::new("deaf")?;
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

/// Each number is the status or kind of an answer, in the notation of `hostile.py`.
fn a_spy_finds_nothing() -> Outcome {
    let shared = Shared::new(Node::new())?;
    let socket = shared.node.socket();
    // Endpoints of another user, as targets for the spy.
    let mut command = shared.become_user(OTHER);
    command.arg(&shared.python).arg(shared.file("hostile.py")).arg("endpoints").arg(&socket);
    let mut victim = shared.node.start(command);
    victim.await_output("endpoints");
    let mut command = shared.become_user(ONE);
    command.arg(&shared.python).arg(shared.file("hostile.py")).arg("spy").arg(&socket);
    let attacked = Attacked::started(shared, command);
    assert_eq!(
        attacked.result,
        "connect:4 invitation:12 join:3 members:1 offer:3 partition:3 publish:5 resolve:4 \
         service:10",
        "not found, not invited, refused, only its own endpoint, forbidden, forbidden, invalid, \
         not found, not offered"
    );
    // The file system must give no access either.
    let home = attacked.shared.home(OTHER);
    let private = home.join("n.sock");
    let mut daemon = attacked.shared.become_user(OTHER);
    daemon.arg(attacked.shared.file("weft")).args(["daemon", "--background"]);
    daemon.env("WEFT_DAEMON_SOCKET", &private).env("HOME", "/");
    succeeds(&attacked.shared.node, daemon);
    let pid = victim.pid();
    for path in [
        private.display().to_string(),
        private.with_extension("log").display().to_string(),
        format!("{}.lock", private.display()),
        format!("/proc/{pid}/fd"),
        format!("/proc/{pid}/mem"),
        format!("/proc/{}/fd", attacked.shared.node.daemon_pid()),
    ] {
        let mut look = attacked.shared.become_user(ONE);
        look.arg(&attacked.shared.python).args(["-c", LOOK, &path]);
        let ended = attacked.shared.node.start(look).wait(LIMIT).success();
        assert_eq!(ended.stdout.trim(), "PermissionError", "{path}: {}", ended.report());
    }
    let mut down = attacked.shared.become_user(OTHER);
    down.arg(attacked.shared.file("weft")).arg("down").env("WEFT_DAEMON_SOCKET", &private);
    succeeds(&attacked.shared.node, down);
    Ok(())
}

const LOOK: &str = "
import os, socket, stat, sys
path = sys.argv[1]
try:
    mode = os.stat(path).st_mode
    if stat.S_ISSOCK(mode):
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(path)
    elif stat.S_ISDIR(mode):
        os.listdir(path)
    else:
        open(path, 'rb').read(1)
    print('reached')
except OSError as error:
    print(type(error).__name__)
";

fn arbitrary_packets_harm_nobody() -> Outcome {
    let attacked = Attacked::new("random")?;
    assert!(attacked.result.starts_with("many"), "{}", attacked.result);
    attacked.others_go_on(OTHER);
    let log = attacked.shared.node.daemon_log();
    assert!(!log.contains("panicked"), "{log}");
    attacked.ends();
    Ok(())
}

fn a_daemon_without_descriptors_waits_for_some() -> Outcome {
    let prlimit = program::find("prlimit")?;
    let shared = Shared::new(Node::new())?;
    let pid = shared.node.daemon_pid().to_string();
    let limit = |files: &str| {
        let mut command = Command::new(&prlimit);
        command.args(["--pid", &pid, &format!("--nofile={files}:20000")]);
        assert!(command.status().is_ok_and(|status| status.success()), "prlimit {files}");
    };
    limit("8");
    let mut command = shared.become_user(ONE);
    command.arg(&shared.python).arg("-c").arg(
        "import socket, sys, time\n\
         kept = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]\n\
         [one.connect(sys.argv[1]) for one in kept]\n\
         time.sleep(1)\n\
         print('result: waiting', flush=True)\n\
         time.sleep(1000)",
    );
    command.arg(shared.node.socket());
    let attacked = Attacked::started(shared, command);
    let log = attacked.shared.node.daemon_log();
    assert!(log.contains("programs wait to be accepted"), "{log}");
    assert!(log.lines().count() < 20, "{} lines: {log}", log.lines().count());
    limit("20000");
    // The daemon answers after it has accepted the programs that waited.
    let _answered = attacked.shared.node.status();
    attacked.others_go_on(OTHER);
    attacked.ends();
    Ok(())
}

/// A node whose users run `imposter.py` under weft.
struct Imposters {
    shared: Shared,
    port: String,
}

impl Imposters {
    fn new() -> Result<Self, Skip> {
        let shared = Shared::new(Node::new())?;
        Ok(Self { shared, port: weft_e2e::process::free_port().to_string() })
    }

    fn gate(&self, name: &str) -> String {
        self.shared.file(name).display().to_string()
    }

    /// Opens a gate; `text` is for the program that waits at it.
    fn open(&self, gate: &str, text: &str) {
        std::fs::write(format!("{gate}.new"), text).expect("our own directory");
        std::fs::rename(format!("{gate}.new"), gate).expect("our own directory");
    }

    fn start(&self, user: u32, role: &str, words: &[&str], until: &str) -> Running {
        let socket = self.shared.node.socket();
        let mut command = self.shared.become_user(user);
        command.arg(self.shared.file("weft")).args(["run", "--stats", "--"]);
        command.arg(&self.shared.python).arg(self.shared.file("imposter.py"));
        command.arg(role).arg(&self.port).args(words);
        command.env("WEFT_DAEMON_SOCKET", socket).env("HOME", "/");
        weft_e2e::as_usual(&mut command);
        let mut started = self.shared.node.start(command);
        started.await_output(until);
        started
    }
}

fn lanes_are_kept_between_users() -> Outcome {
    let node = Imposters::new()?;
    let _server = node.start(ONE, "serve", &["honest"], "ready");
    let asked = node.start(OTHER, "ask", &["honest", "300"], "asked").wait(LIMIT).success();
    // The daemon is asked for a few of the connections alone.
    let fabric = asked.statistics().fabric.connections;
    assert!(fabric > 100, "{fabric} of 300");
    Ok(())
}

/// The lanes that a client kept are with a process that no longer listens at the address. It claims
/// an invitation to a connection that a server of another user accepted.
fn a_lane_that_another_process_claimed_is_not_used() -> Outcome {
    for (first, of_client) in [(ONE, 0), (0, 0)] {
        let node = Imposters::new()?;
        let [end, gate] = ["end", "gate"].map(|name| node.gate(name));
        let mut imposter = node.start(first, "serve", &["first", &end], "ready");
        let mut client = node.start(of_client, "ask", &["first", "0", &gate], "asked");
        node.open(&end, "");
        imposter.await_output("claims");
        let _server = node.start(OTHER, "serve", &["second"], "ready");
        node.open(&format!("{gate}.go"), "");
        node.open(&gate, "second");
        imposter.await_output("claimed");
        client.await_output("all is right");
    }
    Ok(())
}

/// A client writes an invitation that names the connection of another client. That of another user
/// goes on as if nothing were, also where the first client and the server are of one user: its
/// connection may have the fingerprint of one between them. Two programs of one user are not
/// defended against each other: there the invitation is claimed, which shows that it was a good
/// one.
fn an_invitation_to_the_connection_of_another_user_is_not_claimed() -> Outcome {
    for (inviting, victim, result) in
        [(ONE, OTHER, "ignored"), (0, OTHER, "ignored"), (ONE, ONE, "claimed")]
    {
        let node = Imposters::new()?;
        let [gate, port] = ["gate", "port"].map(|name| node.gate(name));
        let _server = node.start(0, "serve", &["honest"], "ready");
        let mut imposter = node.start(inviting, "invite", &[&port], "asked");
        // One request: after several, the client could have a lane of its own with the server.
        let mut client = node.start(victim, "ask", &["honest", "1", &gate], "asked");
        node.open(&gate, "");
        client.await_output(".");
        let printed = client.stdout();
        let from = printed.split("from ").nth(1).and_then(|rest| rest.split('.').next());
        node.open(&port, from.expect("it printed its port"));
        imposter.await_output("invited");
        node.open(&format!("{gate}.go"), "");
        if victim == OTHER {
            client.await_output("all is right");
        } else {
            // The server's answer goes to the imposter.
            let _ended = client.wait(LIMIT);
        }
        node.open(&format!("{port}.done"), "");
        imposter.await_output(result);
    }
    Ok(())
}

/// The child's own connections stay on TCP, since it has its parent's places and line to the
/// daemon.
fn a_lane_that_a_child_by_clone_has_mapped_is_not_kept() -> Outcome {
    let node = Imposters::new()?;
    let _server = node.start(ONE, "serve", &["honest"], "ready");
    let ended = node.start(OTHER, "clone", &[], "").wait(LIMIT).success();
    assert_eq!(ended.stdout, "given up\n", "{}", ended.report());
    Ok(())
}
