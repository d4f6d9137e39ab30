//! Management of a running server: one line of JSON each way, over a socket of the own user.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::service::{Service, Status};

/// A caller that says nothing is not waited for longer.
const WITHIN: Duration = Duration::from_secs(10);
/// Bytes of a request at most.
const REQUEST_BYTES_MAX: u64 = 64 << 10;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The inventory and the counters of the server.
    Status,
    /// Adds a unit, as `--lun` has it.
    Add {
        /// The name of the target.
        target: String,
        /// The unit.
        lun: String,
    },
    /// Gives a unit another size.
    Resize {
        /// The name of the target.
        target: String,
        /// The number of the unit.
        lun: u64,
        /// Its new size.
        bytes: u64,
    },
    /// Takes a unit away.
    Remove {
        /// The name of the target.
        target: String,
        /// The number of the unit.
        lun: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done,
    Status(Status),
    Failed(String),
}

/// The socket of a server of this user.
#[must_use]
pub fn default_socket() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/run/weft/block.sock".into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("weft/block.sock"),
        None => format!("/tmp/weft-{}/block.sock", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Answers requests until the listener fails.
pub fn serve(listener: &UnixListener, service: &Arc<Service>) {
    if let Err(error) = listener.set_nonblocking(false) {
        tracing::error!("the control socket cannot be served: {error}");
        return;
    }
    for socket in listener.incoming() {
        let Ok(socket) = socket else { continue };
        if let Err(error) = answer(&socket, service) {
            tracing::debug!("a request at the control socket failed: {error:#}");
        }
    }
}

fn answer(socket: &UnixStream, service: &Service) -> anyhow::Result<()> {
    socket.set_read_timeout(Some(WITHIN))?;
    socket.set_write_timeout(Some(WITHIN))?;
    let mut line = String::new();
    BufReader::new(socket.take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let done = serde_json::from_str(&line).map_err(anyhow::Error::from).and_then(|request| {
        match request {
            Request::Status => return Ok(Answer::Status(service.status())),
            Request::Add { target, lun } => service.add(&target, &lun)?,
            Request::Resize { target, lun, bytes } => service.resize(&target, lun, bytes)?,
            Request::Remove { target, lun } => service.remove(&target, lun)?,
        }
        Ok(Answer::Done)
    });
    let answer = done.unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
    let mut bytes = serde_json::to_vec(&answer)?;
    bytes.push(b'\n');
    Ok((&*socket).write_all(&bytes)?)
}

/// Asks a running server. Of a status, returns it.
///
/// # Errors
/// No server listens at the socket, or it refused.
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<Option<Status>> {
    let mut socket = UnixStream::connect(path).with_context(|| {
        let shown = path.display();
        format!("no server answers at {shown}; start one with `weft block serve`")
    })?;
    socket.set_read_timeout(Some(6 * WITHIN))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    socket.write_all(&line)?;
    let mut text = String::new();
    BufReader::new(socket).read_line(&mut text)?;
    match serde_json::from_str(&text).context("the server gave no answer")? {
        Answer::Done => Ok(None),
        Answer::Status(status) => Ok(Some(status)),
        Answer::Failed(reason) => bail!(reason),
    }
}
