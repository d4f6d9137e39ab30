//! Users: ordinary ones with daemons of their own, and different ones over the system's daemon.
//!
//! Needs root and setpriv, to become others.
#![allow(clippy::disallowed_methods, reason = "tests own clocks, threads and sockets")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use weft_e2e::exchange::exchange;
use weft_e2e::{Node, Outcome, Skip, cases, program, suite};

const ONE: u32 = 65_534;
const OTHER: u32 = 54_321;

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

/// Weft, its library and the script where everybody can read them.
struct Shared {
    setpriv: PathBuf,
    python: PathBuf,
    node: Node,
}

impl Shared {
    fn new(node: Node) -> Result<Self, Skip> {
        if !rustix::process::geteuid().is_root() {
            return Err(Skip("only root can become another user".into()));
        }
        let (setpriv, python) = (program::find("setpriv")?, program::python()?);
        let weft = program::weft();
        let library = weft.with_file_name("libweft_preload.so");
        let script = program::script("exchange.py");
        for (file, name) in [(weft, "weft"), (&library, "libweft_preload.so"), (&script, "x.py")] {
            let copy = node.directory().join(name);
            std::fs::copy(file, &copy).expect("room on the disk");
            open_to_all(&copy);
        }
        let shared = Self { setpriv, python, node };
        let probe = shared.become_user(ONE).arg(&shared.python).args(["-c", "0"]).output();
        if !probe.is_ok_and(|output| output.status.success()) {
            return Err(Skip("another user cannot run python here".into()));
        }
        Ok(shared)
    }

    fn become_user(&self, user: u32) -> Command {
        let mut command = self.node.plain(&self.setpriv);
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.args(["--clear-groups", "--"]);
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.directory().join(name)
    }

    /// The script as `user` under weft, with the daemon at `socket`.
    fn script(&self, user: u32, socket: &Path, words: &[&str]) -> Command {
        let mut command = self.become_user(user);
        command.arg(self.file("weft")).args(["run", "--stats", "--"]);
        command.arg(&self.python).arg(self.file("x.py")).args(words);
        command.env("WEFT_DAEMON_SOCKET", socket).env("HOME", "/");
        command
    }

    /// A directory of the user's own.
    fn home(&self, user: u32) -> PathBuf {
        let home = self.file(&format!("home{user}"));
        std::fs::create_dir(&home).expect("the test's directory");
        chown(&home, Some(user), Some(user)).expect("root may");
        home
    }
}

fn open_to_all(path: &Path) {
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).expect("our own file");
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

/// As web servers and databases do: weft is started as root, the program becomes somebody else.
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

/// The socket belongs to somebody else, who keeps it shut.
fn another_users_daemon_costs_the_fabric_only() -> Outcome {
    let shared = Shared::new(Node::without_daemon())?;
    let socket = shared.home(ONE).join("n.sock");
    let mut daemon = shared.become_user(ONE);
    daemon.arg(shared.file("weft")).arg("daemon").env("WEFT_DAEMON_SOCKET", &socket);
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

/// The dynamic linker passes the library over: the program runs, on TCP.
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
