//! Faults around a program: each gives a clear message or plain TCP, never a crash.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::Signal;
use weft_e2e::exchange::exchange;
use weft_e2e::{
    Case, Ended, Node, Outcome, Running, Skip, as_usual, cases, process, program, suite,
};

const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let mut cases = cases![
        an_unknown_option_is_reported,
        a_missing_program_is_reported,
        a_program_that_cannot_be_executed_is_reported,
        a_stale_socket_is_replaced,
        a_daemon_of_another_release_is_told_and_stopped,
        a_program_of_another_release_is_told_both_versions,
        a_daemon_that_cannot_be_asked_to_stop_is_told_with_its_process,
        a_program_that_closes_all_descriptors_uses_the_fabric,
        a_program_that_closes_all_descriptors_in_the_middle_goes_on,
        no_file_may_grow,
        descriptors_run_out_in_the_middle,
        a_static_program_keeps_working,
        a_static_program_inherits_a_connection_in_use,
        a_go_program_keeps_working,
        a_go_program_inherits_a_connection_in_use,
        an_unwritable_directory_of_the_daemon_costs_the_fabric_only,
        a_switched_off_fabric_is_tcp,
        unseen_use_is_reported_as_the_reason,
        a_mistake_in_a_variable_is_told_once,
    ];
    for manner in ["version", "silent", "noise", "closes"] {
        let name = format!("a_false_daemon_costs_the_fabric_only_{manner}");
        cases.push(Case::new(name, move || false_daemon(manner)));
    }
    for limit in [6, 8, 10, 12, 16, 24, 64] {
        let name = format!("few_descriptors_{limit}");
        cases.push(Case::new(name, move || few_descriptors(limit)));
    }
    for megabytes in [60, 100, 200, 400] {
        let name = format!("little_memory_{megabytes}_mb");
        cases.push(Case::new(name, move || little_memory(megabytes)));
    }
    suite::main(cases)
}

fn ended(node: &Node, arguments: &[&str]) -> Ended {
    let ended = node.start(node.weft(arguments)).wait(LIMIT);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.report());
    ended
}

fn a_mistake_in_a_variable_is_told_once() -> Outcome {
    const VALUE: (&str, &str) = ("WEFT_SOCKET_EAGER_BYTES", "many");
    const NAME: (&str, &str) = ("WEFT_SOCKET_EAGER_BYTE", "64");
    let node = Node::without_daemon();
    let program = program::find("true")?;
    let library = program::weft().with_file_name("libweft_preload.so");
    let preloaded = |level: &str| {
        let mut command = node.plain(&program);
        // As in a program that another one under weft started.
        let started = ("WEFT_HANDOVER", "");
        command.env("LD_PRELOAD", &library).envs([VALUE, NAME, started]).env("WEFT_LOG", level);
        node.start(command).wait(LIMIT).success().stderr
    };
    let told = preloaded("warn");
    for words in [
        "WEFT_SOCKET_EAGER_BYTES=\"many\" is not valid",
        "WEFT_SOCKET_EAGER_BYTE is not known; did you mean WEFT_SOCKET_EAGER_BYTES?",
    ] {
        assert_eq!(told.matches(words).count(), 1, "{told}");
    }
    assert_eq!(told.lines().count(), 2, "{told}");
    assert_eq!(preloaded("off"), "");

    let run = |variable: (&str, &str)| {
        let mut command = node.bare(&program);
        command.envs([variable, ("WEFT_SOCKET_ENABLE", "false")]);
        node.start(command).wait(LIMIT)
    };
    let refused = run(VALUE);
    assert_eq!(refused.code(), 125, "{}", refused.report());
    assert!(refused.stderr.contains("is not valid"), "{}", refused.report());
    let warned = run(NAME).success();
    assert_eq!(warned.stderr.matches("is not known").count(), 1, "{}", warned.report());
    Ok(())
}

fn an_unknown_option_is_reported() -> Outcome {
    let node = Node::without_daemon();
    for arguments in [&["run", "--statz", "--", "true"][..], &["runn", "true"], &["run"]] {
        let ended = ended(&node, arguments);
        assert_eq!(ended.code(), 2, "{}", ended.report());
        assert!(ended.stderr.contains("--help") && ended.stdout.is_empty(), "{}", ended.report());
    }
    let ended = ended(&node, &["run", "--statz", "--", "true"]);
    assert!(ended.stderr.contains("--stats"), "the nearest is named: {}", ended.report());
    Ok(())
}

fn a_missing_program_is_reported() -> Outcome {
    let node = Node::without_daemon();
    for arguments in [
        &["run", "--", "no-such-program-anywhere"][..],
        &["run", "--stats", "--", "no-such-program-anywhere"],
        &["run", "--", "/nonexistent/program"],
    ] {
        let ended = ended(&node, arguments);
        assert_eq!(ended.code(), 127, "{}", ended.report());
        assert!(ended.stderr.starts_with("weft: "), "{}", ended.report());
    }
    Ok(())
}

fn a_program_that_cannot_be_executed_is_reported() -> Outcome {
    let node = Node::without_daemon();
    for path in ["/etc/passwd", "/"] {
        let ended = ended(&node, &["run", "--", path]);
        assert_eq!(ended.code(), 126, "{}", ended.report());
        assert!(ended.stderr.contains(path), "{}", ended.report());
    }
    Ok(())
}

/// The script under `weft run --stats`.
fn python(node: &Node, arguments: &[&str], options: &[&str]) -> Command {
    let mut command = node.program(true, program::python().expect("looked for before"));
    command.arg(program::script("exchange.py")).args(arguments).args(options);
    command
}

/// Runs both ends under weft with these options; the bytes must go over the fabric.
fn over_fabric(node: &Node, options: &[&str]) {
    let (server, client) =
        exchange(node, |words| python(node, words, options), |words| python(node, words, options));
    for ended in [server, client] {
        ended.statistics().assert_all_fabric(1, 300_000, 300_000);
    }
}

fn a_stale_socket_is_replaced() -> Outcome {
    program::python()?;
    let node = Node::without_daemon();
    drop(std::os::unix::net::UnixListener::bind(node.socket()).expect("a socket"));
    over_fabric(&node, &[]);
    Ok(())
}

fn a_program_that_closes_all_descriptors_uses_the_fabric() -> Outcome {
    program::python()?;
    over_fabric(&Node::new(), &["--close-all"]);
    Ok(())
}

fn a_program_that_closes_all_descriptors_in_the_middle_goes_on() -> Outcome {
    program::python()?;
    over_fabric(&Node::new(), &["--close-after"]);
    Ok(())
}

fn a_switched_off_fabric_is_tcp() -> Outcome {
    program::python()?;
    let node = Node::without_daemon();
    let command = |words: &[&str]| {
        let mut command = node.weft(["run", "--socket-enable", "off", "--stats", "--"]);
        command.arg(program::python().expect("there")).arg(program::script("exchange.py"));
        command.args(words);
        command
    };
    let (server, client) = exchange(&node, command, command);
    for ended in [&server, &client] {
        ended.statistics().assert_all_tcp(1);
        assert!(ended.stderr.contains("switched off"), "{}", ended.report());
    }
    assert!(!node.socket().exists(), "no daemon was needed");
    Ok(())
}

fn fake_daemon(node: &Node, manner: &str) -> Result<Running, Skip> {
    let mut daemon = node.plain(program::python()?);
    daemon.arg(program::script("fake_daemon.py")).arg(node.socket()).arg(manner);
    let mut daemon = node.start(daemon);
    daemon.await_output("ready");
    Ok(daemon)
}

fn a_daemon_of_another_release_is_told_and_stopped() -> Outcome {
    let node = Node::without_daemon();
    let daemon = fake_daemon(&node, "version")?;
    let background = ended(&node, &["daemon", "--background"]);
    assert_ne!(background.code(), 0, "{}", background.report());
    assert!(background.stdout.is_empty(), "no socket is named: {}", background.report());
    for part in ["another release", "version 77", "`weft down`", &daemon.pid().to_string()] {
        assert!(background.stderr.contains(part), "{part}: {}", background.report());
    }
    let down = ended(&node, &["down"]);
    assert_eq!(down.code(), 0, "{}", down.report());
    let stopped = daemon.wait(LIMIT);
    assert_eq!(stopped.status.signal(), Some(Signal::TERM.as_raw()), "{}", stopped.report());
    let background = ended(&node, &["daemon", "--background"]);
    assert_eq!(background.code(), 0, "{}", background.report());
    assert_eq!(ended(&node, &["down"]).code(), 0);
    Ok(())
}

fn a_program_of_another_release_is_told_both_versions() -> Outcome {
    let node = Node::new();
    let mut other = node.plain(program::python()?);
    other.arg(program::script("other_release.py")).arg(node.socket());
    let other = node.start(other).wait(LIMIT).success();
    let (own, words) = other.stdout.split_once(' ').expect("a version and words");
    assert_ne!(own, "77");
    let both = format!("version 77 where this side speaks {own};");
    assert!(words.contains(&both), "{}", other.report());
    assert!(node.daemon_log().contains(&both), "{}", node.daemon_log());
    // The daemon serves programs of its own release as before.
    over_fabric(&node, &[]);
    Ok(())
}

fn a_daemon_that_cannot_be_asked_to_stop_is_told_with_its_process() -> Outcome {
    for manner in ["noise", "closes"] {
        let node = Node::without_daemon();
        let daemon = fake_daemon(&node, manner)?;
        let down = ended(&node, &["down"]);
        assert_ne!(down.code(), 0, "{}", down.report());
        let kill = format!("`kill {}`", daemon.pid());
        assert!(down.stderr.contains(&kill), "{manner}: {}", down.report());
    }
    Ok(())
}

/// A process that is not a daemon of this release answers at the daemon's socket.
fn false_daemon(manner: &str) -> Outcome {
    let node = Node::without_daemon();
    let _daemon = fake_daemon(&node, manner)?;
    let (server, client) =
        exchange(&node, |words| python(&node, words, &[]), |words| python(&node, words, &[]));
    for ended in [&server, &client] {
        ended.statistics().assert_all_tcp(1);
        if manner == "version" {
            let both = "version 77 where this side speaks ";
            assert!(ended.stderr.contains(both), "{}", ended.report());
            assert!(ended.stderr.contains("weft down"), "what to do: {}", ended.report());
        }
    }
    Ok(())
}

/// The script in a shell that sets a limit first.
fn limited(node: &Node, limit: &str, weft: bool, words: &[&str], options: &[&str]) -> Command {
    let mut command = node.plain("/bin/sh");
    let script = program::script("exchange.py");
    let interpreter = program::python().expect("looked for before");
    let inner = format!("ulimit {limit} && exec \"$@\"");
    if weft {
        // The limit applies only to the program, not to the command or a daemon that it starts.
        command = node.weft(["run", "--stats", "--", "/bin/sh", "-c"]);
    } else {
        command.arg("-c");
    }
    command.arg(inner).arg("sh").arg(interpreter).arg(script).args(words).args(options);
    command
}

/// Runs the exchange with a limit on one or both sides. Every limit that works without weft must
/// work with weft.
fn with_limit(limit: &str, options: &[&str]) -> Outcome {
    program::python()?;
    let node = Node::new();
    let probe = |words: &[&str]| limited(&node, limit, false, words, options);
    let mut server = node.start(probe(&["server", "-"]));
    let mut works = false;
    for _ in 0..2000 {
        works = server.stdout().contains('\n');
        if works || server.has_ended() {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if !works {
        return Err(Skip(format!("python itself does not work with ulimit {limit}")));
    }
    drop(server);
    let with = |words: &[&str]| limited(&node, limit, true, words, options);
    let without = |words: &[&str]| python(&node, words, &[]);
    for (server, client) in [
        exchange(&node, with, with),
        exchange(&node, with, without),
        exchange(&node, without, with),
    ] {
        for ended in [server, client] {
            // The connection may be on either path, but is counted at most once.
            let statistics = ended.statistics();
            let all = statistics.fabric.connections + statistics.tcp.connections;
            assert!(all <= 1, "{}", ended.report());
        }
    }
    Ok(())
}

fn few_descriptors(limit: u32) -> Outcome {
    with_limit(&format!("-n {limit}"), &[])
}

fn descriptors_run_out_in_the_middle() -> Outcome {
    with_limit("-n 40", &["--greedy"])
}

fn little_memory(megabytes: u32) -> Outcome {
    with_limit(&format!("-v {}", megabytes * 1000), &[])
}

/// No file may grow, including memory files. The signal for that must not reach the program, which
/// wrote no file.
fn no_file_may_grow() -> Outcome {
    let nc = program::find("nc")?;
    let node = Node::new();
    let port = process::free_port();
    let mut server = node.weft(["run", "--", "/bin/sh", "-c"]);
    server.arg("ulimit -f 0 && exec \"$@\" >/dev/null").arg("sh").arg(&nc);
    server.args(["-d", "-l", "127.0.0.1", &port.to_string()]);
    let mut server = node.start(server);
    server.await_port(port);
    let mut client = node.program(true, &nc);
    let input = node.directory().join("input");
    std::fs::write(&input, vec![7; 3_000_000]).expect("room on the disk");
    client.args(["-N", "127.0.0.1", &port.to_string()]);
    client.stdin(std::fs::File::open(input).expect("just written"));
    let client = node.start(client).wait(LIMIT).success();
    let server = server.wait(LIMIT).success();
    assert!(client.statistics().tcp.sent + client.statistics().fabric.sent >= 3_000_000);
    assert_eq!(server.code(), 0, "{}", server.report());
    Ok(())
}

/// Compiles the static client.
fn static_client(node: &Node) -> Result<PathBuf, Skip> {
    program::compiled("static_client.c", &["-static", "-O1"], node.directory())
}

fn foreign(node: &Node, binary: &std::path::Path) {
    let client = |words: &[&str]| {
        let mut command = node.program(true, binary);
        command.args(&words[1..]);
        command
    };
    let (server, client) = exchange(node, |words| python(node, words, &[]), client);
    server.statistics().assert_all_tcp(1);
    assert_eq!(client.statistics().fabric.connections, 0, "{}", client.report());
}

fn a_static_program_keeps_working() -> Outcome {
    program::python()?;
    let node = Node::new();
    let binary = static_client(&node)?;
    foreign(&node, &binary);
    let ended = node.start({
        let mut command = node.program(true, &binary);
        command.arg("1");
        command
    });
    let ended = ended.wait(LIMIT);
    assert_eq!(ended.code(), 3, "its own status: {}", ended.report());
    assert!(ended.stderr.contains("statically linked"), "{}", ended.report());
    Ok(())
}

fn a_static_program_inherits_a_connection_in_use() -> Outcome {
    program::python()?;
    let node = Node::new();
    let binary = static_client(&node)?;
    inherits(&node, &binary);
    Ok(())
}

/// A program that the library cannot see becomes the client of a connection in use.
fn inherits(node: &Node, binary: &std::path::Path) {
    let client = |words: &[&str]| {
        let mut command = python(node, words, &["--exec"]);
        command.env("EXCHANGE_PROGRAM", binary);
        command
    };
    let (server, _) = exchange(node, |words| python(node, words, &["--twice"]), client);
    let statistics = server.statistics();
    // The first exchange went over the lane, the second over TCP again.
    assert!(statistics.fabric.received >= 200_000, "{}", server.report());
    assert!(statistics.tcp.received >= 300_000, "{}", server.report());
}

fn a_go_program_keeps_working() -> Outcome {
    program::python()?;
    let node = Node::new();
    foreign(&node, &go_client(&node)?);
    Ok(())
}

fn a_go_program_inherits_a_connection_in_use() -> Outcome {
    program::python()?;
    let node = Node::new();
    inherits(&node, &go_client(&node)?);
    Ok(())
}

/// Compiles the Go client, linked dynamically where Go supports it. The first time for a user, Go
/// compiles its library, too: two cases that start together take turns, so that one of them finds
/// it compiled.
fn go_client(node: &Node) -> Result<PathBuf, Skip> {
    let go = program::find("go")?;
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let turn = File::create(directory.join("go-cache.lock")).expect("cargo's directory");
    turn.lock().expect("others end");
    let binary = node.directory().join("go_client");
    let mut command = Command::new(go);
    command
        .args(["build", "-o"])
        .arg(&binary)
        .arg(program::script("go_client.go"))
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local");
    let output = command.output().expect("go starts");
    if !output.status.success() {
        return Err(Skip(format!("go: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(binary)
}

/// The daemon cannot be started: there is a warning, and plain TCP.
fn an_unwritable_directory_of_the_daemon_costs_the_fabric_only() -> Outcome {
    program::python()?;
    let node = Node::without_daemon();
    let open = node.directory().join("open");
    std::fs::create_dir(&open).expect("the test's directory");
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&open, mode).expect("our own directory");
    let command = |words: &[&str]| {
        let mut command = python(&node, words, &[]);
        command.env("WEFT_DAEMON_SOCKET", open.join("n.sock"));
        command
    };
    let (_, client) = exchange(&node, command, command);
    client.statistics().assert_all_tcp(1);
    assert!(client.stderr.contains("can be written by others"), "{}", client.report());
    assert!(client.stderr.contains("plain tcp"), "{}", client.report());
    Ok(())
}

/// Reads a connection through the C library's own stream.
const STREAM_SERVER: &str = "
import ctypes, os, socket
listener = socket.create_server(('127.0.0.1', 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
os.dup2(connection.fileno(), 0)
connection.close()
library, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(65536)
stdin = ctypes.c_void_p.in_dll(library, 'stdin')
while library.fread(buffer, 1, 65536, stdin):
    pass
os.close(0)
";

const STREAM_CLIENT: &str = "
import socket, sys
connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
connection.sendall(bytes(20_000_000))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b''
";

fn unseen_use_is_reported_as_the_reason() -> Outcome {
    let (node, python) = (Node::new(), program::python()?);
    let side = |words: &[&str]| {
        let mut command = node.program(true, &python);
        command.arg("-c").args(words);
        as_usual(&mut command);
        node.start(command)
    };
    let mut server = side(&[STREAM_SERVER]);
    server.await_output("\n");
    let client = side(&[STREAM_CLIENT, server.stdout().trim()]).wait(LIMIT).success();
    for (ended, reason) in [
        (client, "the other end is under weft and did not ask to move"),
        (server.wait(LIMIT).success(), "streams of the C library"),
    ] {
        let statistics = ended.statistics();
        statistics.assert_all_tcp(1);
        assert!(statistics.reasons.iter().any(|(_, why)| why.contains(reason)), "{statistics:?}");
    }
    Ok(())
}
