//! Ordinary users with their own daemons, and different users at the daemon of the system.
//!
//! Needs root and setpriv to change users.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::time::Duration;

use weft_e2e::exchange::exchange;
use weft_e2e::users::{ONE, OTHER, Shared};
use weft_e2e::{Node, Outcome, cases, suite};

fn main() -> ExitCode {
    suite::main(cases![
        an_ordinary_user_has_a_daemon_of_their_own,
        two_users_talk_over_the_daemon_of_the_system,
        root_and_a_user_talk_over_the_daemon_of_the_system,
        a_program_that_gives_up_its_rights_goes_on,
        another_users_daemon_costs_the_fabric_only,
        a_setuid_program_keeps_working,
    ])
}

fn an_ordinary_user_has_a_daemon_of_their_own() -> Outcome {
    let shared = Shared::new(Node::without_daemon())?;
    let socket = shared.home(ONE).join("n.sock");
    let side = |words: &[&str]| shared.script(ONE, &socket, words);
    let (server, client) = exchange(&shared.node, side, side);
    server.statistics().assert_all_fabric(1, 300_000, 300_000);
    client.statistics().assert_all_fabric(1, 300_000, 300_000);
    let mode = std::fs::metadata(&socket).expect("a daemon was started").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the socket is the user's alone");
    Ok(())
}

fn two_users_talk_over_the_daemon_of_the_system() -> Outcome {
    let shared = Shared::new(Node::new())?;
    let socket = shared.node.socket();
    let (server, client) = exchange(
        &shared.node,
        |words| shared.script(ONE, &socket, words),
        |words| shared.script(OTHER, &socket, words),
    );
    server.statistics().assert_all_fabric(1, 300_000, 300_000);
    client.statistics().assert_all_fabric(1, 300_000, 300_000);
    Ok(())
}

fn root_and_a_user_talk_over_the_daemon_of_the_system() -> Outcome {
    let shared = Shared::new(Node::new())?;
    let socket = shared.node.socket();
    let (server, client) = exchange(
        &shared.node,
        |words| shared.script(0, &socket, words),
        |words| shared.script(ONE, &socket, words),
    );
    server.statistics().assert_all_fabric(1, 300_000, 300_000);
    client.statistics().assert_all_fabric(1, 300_000, 300_000);
    Ok(())
}

/// As web servers and databases do: weft is started as root, and the program then changes its user.
fn a_program_that_gives_up_its_rights_goes_on() -> Outcome {
    let shared = Shared::new(Node::new())?;
    let socket = shared.node.socket();
    let server = |words: &[&str]| {
        let mut command = shared.node.plain(shared.file("weft"));
        command.args(["run", "--stats", "--"]).arg(&shared.setpriv);
        command.args([format!("--reuid={ONE}"), format!("--regid={ONE}")]);
        command.args(["--clear-groups", "--"]).arg(&shared.python).arg(shared.file("x.py"));
        command.args(words);
        command
    };
    let (_, client) = exchange(&shared.node, server, |words| shared.script(OTHER, &socket, words));
    client.statistics().assert_all_fabric(1, 300_000, 300_000);
    Ok(())
}

/// The socket belongs to another user and is accessible only to that user.
fn another_users_daemon_costs_the_fabric_only() -> Outcome {
    let shared = Shared::new(Node::without_daemon())?;
    let socket = shared.home(ONE).join("n.sock");
    let mut daemon = shared.become_user(ONE);
    daemon
        .arg(shared.file("weft"))
        .arg("daemon")
        .env("WEFT_SHM_COPY", "nontemporal")
        .env("WEFT_DAEMON_SOCKET", &socket);
    daemon.env("HOME", "/");
    let mut daemon = shared.node.start(daemon);
    let start = std::time::Instant::now();
    while !daemon.stderr().contains("ready at") {
        assert!(!daemon.has_ended() && start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    let (server, client) = exchange(
        &shared.node,
        |words| shared.script(ONE, &socket, words),
        |words| shared.script(OTHER, &socket, words),
    );
    assert_eq!(server.statistics().fabric.connections, 0, "{}", server.report());
    client.statistics().assert_all_tcp(1);
    Ok(())
}

/// The dynamic linker ignores the library, so the program runs on TCP.
fn a_setuid_program_keeps_working() -> Outcome {
    let shared = Shared::new(Node::new())?;
    let copy = shared.file("python-setuid");
    std::fs::copy(&shared.python, &copy).expect("room on the disk");
    let mode = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&copy, mode).expect("our own file");
    let socket = shared.node.socket();
    let client = |words: &[&str]| {
        let mut command = shared.become_user(ONE);
        command.arg(shared.file("weft")).args(["run", "--stats", "--"]).arg(&copy);
        command.arg(shared.file("x.py")).args(words);
        command.env("WEFT_DAEMON_SOCKET", &socket).env("HOME", "/");
        command
    };
    let (server, client) =
        exchange(&shared.node, |words| shared.script(OTHER, &socket, words), client);
    server.statistics().assert_all_tcp(1);
    assert_eq!(client.statistics().fabric.connections, 0, "{}", client.report());
    assert!(client.stderr.contains("setuid"), "{}", client.report());
    Ok(())
}
