//! The control socket as the `weft` command uses it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use rustix::process::{Signal, geteuid, pidfd_send_signal};
use serde::de::DeserializeOwned;
use weft_channel::{Channel, ConnectError, Credentials, Packet};
use weft_wire::control::{Control, InvalidMessage};

use crate::service::fabric::EXPELLED_WITHIN;
use crate::{ConnectionStatus, NetworkStatus, Status};

const TIMEOUT_MS: u32 = 2000;
/// A change of a link is answered when its nodes have new tables.
const LINK_TIMEOUT_MS: u32 = 12_000;

/// The status of the daemon at `socket`.
///
/// # Errors
/// No daemon answers, or its answer is not a status.
pub fn status(socket: &Path) -> anyhow::Result<Status> {
    let (reply, packet) = ask(&connect(socket)?, socket, &Control::Status)?;
    let (Control::StatusReply, Some(file)) = (reply, packet.descriptors.into_iter().next()) else {
        bail!("the daemon at {} did not send its status", socket.display());
    };
    read(file)
}

/// The network that the daemon at `socket` rules.
///
/// # Errors
/// No daemon answers, or it rules none.
pub fn network(socket: &Path) -> anyhow::Result<NetworkStatus> {
    let (reply, packet) = ask_for(LINK_TIMEOUT_MS, &connect(socket)?, socket, &Control::Network)?;
    let (Control::NetworkReply, Some(file)) = (reply, packet.descriptors.into_iter().next()) else {
        bail!("the daemon at {} did not send its network", socket.display());
    };
    read(file)
}

/// The memory of the lane of a connection, for reading alone.
///
/// # Errors
/// No daemon answers, or there is no such connection of this user.
pub fn tap(socket: &Path, connection: &ConnectionStatus) -> anyhow::Result<OwnedFd> {
    let ConnectionStatus { server, client, client_pid, .. } = connection.clone();
    let tap = Control::Tap { server, client, client_pid };
    let (reply, packet) = ask(&connect(socket)?, socket, &tap)?;
    match (reply, packet.descriptors.into_iter().next()) {
        (Control::Tapped, Some(file)) => Ok(file),
        _ => bail!("the daemon at {} did not show the connection", socket.display()),
    }
}

/// Cuts the link at a port of a node of the lab at `socket`, or mends it.
///
/// # Errors
/// No daemon answers, there is no such link, or it is so already.
pub fn set_cut(socket: &Path, node: u32, port: u16, is_cut: bool) -> anyhow::Result<()> {
    let link = Control::Link { node, port, is_cut };
    match ask_for(LINK_TIMEOUT_MS, &connect(socket)?, socket, &link)? {
        (Control::Done, _) => Ok(()),
        _ => bail!("the daemon at {} cannot change a link", socket.display()),
    }
}

/// The value in a file that came with an answer.
fn read<T: DeserializeOwned>(file: OwnedFd) -> anyhow::Result<T> {
    // The file may be shared with other clients that ask at the same time, and so is its position.
    let file = std::fs::File::from(file);
    let mut text = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut text, 0)?;
    serde_json::from_slice(&text)
        .context("the daemon's answer cannot be parsed; it may be of another release")
}

/// Expels a node from the fabric, at the daemon at `socket`.
///
/// # Errors
/// No daemon answers, it is not the first one of the fabric, there is no such node, or etcd does
/// not take it in time.
pub fn expel(socket: &Path, node: u32) -> anyhow::Result<()> {
    let expelled_ms = u32::try_from(EXPELLED_WITHIN.as_millis()).unwrap_or(u32::MAX);
    let within_ms = expelled_ms.saturating_add(TIMEOUT_MS);
    match ask_for(within_ms, &connect(socket)?, socket, &Control::Expel { node })? {
        (Control::Done, _) => Ok(()),
        _ => bail!("the daemon at {} cannot expel a node", socket.display()),
    }
}

/// Whether the daemon at `socket` has measured that the fabric is faster than TCP to any other
/// host. It begins to measure what is not known.
///
/// # Errors
/// No daemon answers.
pub fn any_over_fabric(socket: &Path) -> anyhow::Result<bool> {
    match ask(&connect(socket)?, socket, &Control::AskWays)? {
        (Control::Ways { any_over_fabric }, _) => Ok(any_over_fabric),
        _ => bail!("the daemon at {} does not tell the ways to other hosts", socket.display()),
    }
}

/// Stops the daemon at `socket`. The programs that it served keep running. A daemon of another
/// release does not understand the request and gets SIGTERM, if its user or root asks.
///
/// # Errors
/// No daemon answers, or it refuses to stop. If nobody else can stop it, the message says how.
pub fn stop(socket: &Path) -> anyhow::Result<()> {
    let channel = connect(socket)?;
    let error = match ask(&channel, socket, &Control::Stop) {
        Ok((Control::Stopping, _)) => return Ok(()),
        Ok(_) => bail!("the daemon at {} refused to stop", socket.display()),
        Err(error) => error,
    };
    if other_version(&error).is_some() {
        return end_other_release(&channel, socket);
    }
    if error.is::<Refusal>() {
        return Err(error);
    }
    let pid = channel.peer()?.pid;
    let at = socket.display();
    Err(error.context(format!("the daemon at {at} cannot be asked to stop; `kill {pid}` ends it")))
}

/// A descriptor that becomes readable when the process of the daemon at `socket` has ended. `None`
/// if no daemon answers, or its process is gone.
#[must_use]
pub fn process(socket: &Path) -> Option<OwnedFd> {
    connect(socket).ok()?.peer_process().ok()
}

/// Ends a daemon that does not understand the request to stop.
fn end_other_release(channel: &Channel, socket: &Path) -> anyhow::Result<()> {
    let Credentials { pid, uid } = channel.peer()?;
    let what = format!("the daemon at {} is of another release", socket.display());
    ensure!(
        may_end(geteuid().as_raw(), uid),
        "{what} and belongs to user {uid}, who can stop it by `kill {pid}`"
    );
    // By a descriptor of the process, so that no other process with its number is hit.
    let ended = channel.peer_process().and_then(|process| pidfd_send_signal(process, Signal::TERM));
    ended.with_context(|| format!("{what} and cannot be ended by SIGTERM; try `kill {pid}`"))
}

/// Whether user `own` may end a daemon of user `listener`.
const fn may_end(own: u32, listener: u32) -> bool {
    own == 0 || own == listener
}

/// A daemon that speaks another version of the control protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherRelease {
    /// Its version of the control protocol.
    pub version: u16,
    /// The number of its process.
    pub pid: u32,
}

/// The daemon at `socket`, if it is of another release. `None` if it is of this release, or if no
/// daemon answers.
#[must_use]
pub fn other_release(socket: &Path) -> Option<OtherRelease> {
    let channel = connect(socket).ok()?;
    let pid = channel.peer().ok()?.pid;
    let hello = Control::Hello { pid: std::process::id(), name: "weft".to_owned() };
    let error = ask(&channel, socket, &hello).err()?;
    other_version(&error).map(|version| OtherRelease { version, pid })
}

/// The version of a daemon whose answer was not understood for this reason.
fn other_version(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref() {
        Some(InvalidMessage::Version { theirs }) => Some(*theirs),
        _ => None,
    }
}

/// Whether a daemon answers at `socket`.
#[must_use]
pub fn answers(socket: &Path) -> bool {
    look(socket).is_ok()
}

/// Checks that a daemon of this user or of root answers at `socket`.
///
/// # Errors
/// Why there is no usable daemon.
pub fn look(socket: &Path) -> Result<(), ConnectError> {
    Channel::connect(socket).map(drop)
}

fn connect(socket: &Path) -> anyhow::Result<Channel> {
    Channel::connect(socket).map_err(|error| {
        let what = match error.is_distrust() {
            true => format!("the daemon at {} is not used", socket.display()),
            false => {
                format!("no daemon answers at {}; start one with `weft daemon`", socket.display())
            }
        };
        anyhow::Error::new(error).context(what)
    })
}

/// The daemon understood a request and refused it.
#[derive(Debug)]
struct Refusal(String);

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the daemon refused: {}", self.0)
    }
}

impl std::error::Error for Refusal {}

fn ask(channel: &Channel, socket: &Path, question: &Control) -> anyhow::Result<(Control, Packet)> {
    ask_for(TIMEOUT_MS, channel, socket, question)
}

/// Asks, and waits up to `within_ms` for the answer.
fn ask_for(
    within_ms: u32,
    channel: &Channel,
    socket: &Path,
    question: &Control,
) -> anyhow::Result<(Control, Packet)> {
    channel.ask(&question.emit())?;
    let packet = channel
        .receive_within(within_ms)
        .with_context(|| format!("the daemon at {} does not answer", socket.display()))?
        .context("the daemon closed the connection")?;
    let reply = Control::parse(&packet.bytes)?;
    if let Control::Refused { reason, .. } = reply {
        return Err(Refusal(reason).into());
    }
    Ok((reply, packet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_ended_for_its_own_user_and_for_root_alone() {
        assert!(may_end(0, 0) && may_end(0, 1000) && may_end(1000, 1000));
        assert!(!may_end(1000, 0) && !may_end(1000, 1001));
    }
}
