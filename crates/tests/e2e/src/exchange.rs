//! A server and a client that exchange bytes and compare them.

use std::process::Command;
use std::time::Duration;

use crate::{Ended, Node};

const LIMIT: Duration = Duration::from_secs(20);

/// Runs `programs/exchange.py` as a server and a client, and returns both. `server` and `client`
/// build the commands from the arguments of the script; those of the client contain the port.
///
/// # Panics
/// When the server or the client fails.
pub fn exchange(
    node: &Node,
    server: impl FnOnce(&[&str]) -> Command,
    client: impl FnOnce(&[&str]) -> Command,
) -> (Ended, Ended) {
    let mut server = node.start(server(&["server", "-"]));
    server.await_output("\n");
    let port = server.stdout().trim().to_owned();
    let client = node.start(client(&["client", &port])).wait(LIMIT);
    let server = server.wait(LIMIT);
    let both = format!("{}\n{}", server.report(), client.report());
    let good = |ended: &Ended| ended.status.success() && ended.stdout.contains("exchanged");
    assert!(good(&server) && good(&client), "{both}");
    for ended in [&server, &client] {
        assert!(!ended.stderr.contains("panicked"), "{both}");
    }
    (server, client)
}
