//! Servers that end when they are no longer needed, and clients that cannot hang.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

/// How long a server may take until it listens.
const LISTEN_WITHIN: Duration = Duration::from_secs(5);
/// How long a client may take.
const CLIENT_WITHIN: Duration = Duration::from_secs(20);
/// How long a server may take to end.
const END_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A server and its descendants; ended when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` and waits until something listens on `port`.
    pub fn start(mut command: Command, port: u16) -> anyhow::Result<Self> {
        let name = format!("{command:?}");
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let mut server = Self { child };
        let deadline = Instant::now() + LISTEN_WITHIN;
        while !is_listening(port) {
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended with {status} before it listened");
            }
            ensure!(Instant::now() < deadline, "{name} does not listen on port {port}");
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Runs a client to its end and returns what it printed.
pub fn client(mut command: Command) -> anyhow::Result<String> {
    let name = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("{name} cannot be started"))?;
    let output = reader(child.stdout.take());
    let errors = reader(child.stderr.take());
    let deadline = Instant::now() + CLIENT_WITHIN;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            end(&mut child);
            bail!("{name} did not end within {} s", CLIENT_WITHIN.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let (output, errors) = (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
    ensure!(status.success(), "{name} ended with {status}: {}", last_line(&errors));
    Ok(output)
}

/// Reads a pipe beside the child, which would otherwise wait for room in it.
fn reader(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // The output before an error is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing")
}

/// Ends a child and its process group: asks first, then kills.
fn end(child: &mut Child) {
    let group = Pid::from_child(child);
    for signal in [Signal::TERM, Signal::KILL] {
        // Fails only when nobody of the group is left.
        let _ = rustix::process::kill_process_group(group, signal);
        let deadline = Instant::now() + END_WITHIN;
        while Instant::now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A port that was free a moment ago.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// True when some socket listens on the port. Asks the kernel, and does not connect.
fn is_listening(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        std::fs::read_to_string(table).is_ok_and(|text| {
            text.lines().skip(1).any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default();
                local.ends_with(&wanted) && fields.nth(1) == Some(LISTENING)
            })
        })
    })
}

/// True when a program of this name is in PATH.
pub fn is_there(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_and_a_free_port_is_not() {
        let is_free_afterwards = || {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("bound").port();
            assert!(is_listening(port));
            drop(listener);
            !is_listening(port)
        };
        // Another program may get the port at once, but not each time.
        assert!((0..5).any(|_| is_free_afterwards()));
    }

    #[test]
    fn a_client_that_fails_says_why() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo out; echo no luck >&2; exit 3"]);
        let error = client(command).expect_err("it failed").to_string();
        assert!(error.contains("no luck"), "{error}");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo fine"]);
        assert_eq!(client(command).expect("it works"), "fine\n");
    }

    #[test]
    fn a_server_that_ends_early_is_told() {
        let error = Server::start(Command::new("/bin/true"), 1).expect_err("it ended").to_string();
        assert!(error.contains("before it listened"), "{error}");
    }
}
