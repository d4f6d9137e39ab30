//! The control socket as the `weft` command uses it.

use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use weft_channel::{Channel, ConnectError, Packet};
use weft_ether::Reach;
use weft_wire::control::Control;

use crate::Status;

const TIMEOUT_MS: u32 = 2000;

/// The status of the daemon at `socket`.
///
/// # Errors
/// No daemon answers, or its answer is not a status.
pub fn status(socket: &Path) -> anyhow::Result<Status> {
    let (reply, packet) = ask(socket, &Control::Status)?;
    let (Control::StatusReply, Some(file)) = (reply, packet.descriptors.into_iter().next()) else {
        bail!("the daemon at {} did not send its status", socket.display());
    };
    // The file is shared with other clients that ask at the same time, and so is its position.
    let file = std::fs::File::from(file);
    let mut text = vec![0; usize::try_from(file.metadata()?.len())?];
    file.read_exact_at(&mut text, 0)?;
    serde_json::from_slice(&text)
        .context("the daemon's status cannot be parsed; it may be of another release")
}

/// Limits the device of `node`, at the daemon at `socket`, to the nodes of `reach`.
///
/// # Errors
/// No daemon answers, or it does not serve such a device.
pub fn set_reach(socket: &Path, node: u16, reach: Reach) -> anyhow::Result<()> {
    match ask(socket, &Control::Reach { node, reach: reach.bits() })? {
        (Control::Done, _) => Ok(()),
        _ => bail!("the daemon at {} cannot change the reach of a device", socket.display()),
    }
}

/// Stops the daemon at `socket`. The programs that it served keep running.
///
/// # Errors
/// No daemon answers, or it refuses to stop.
pub fn stop(socket: &Path) -> anyhow::Result<()> {
    match ask(socket, &Control::Stop)? {
        (Control::Stopping, _) => Ok(()),
        _ => bail!("the daemon at {} refused to stop", socket.display()),
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

fn ask(socket: &Path, question: &Control) -> anyhow::Result<(Control, Packet)> {
    let channel = match Channel::connect(socket) {
        Ok(channel) => channel,
        Err(error) if error.is_distrust() => {
            return Err(error)
                .with_context(|| format!("the daemon at {} is not used", socket.display()));
        }
        Err(error) => {
            return Err(error).with_context(|| {
                format!("no daemon answers at {}; start one with `weft daemon`", socket.display())
            });
        }
    };
    channel.send(&question.emit(), &[])?;
    let packet = channel
        .receive_within(TIMEOUT_MS)
        .with_context(|| format!("the daemon at {} does not answer", socket.display()))?
        .context("the daemon closed the connection")?;
    let reply = Control::parse(&packet.bytes)?;
    if let Control::Refused { reason, .. } = reply {
        bail!("the daemon refused: {reason}");
    }
    Ok((reply, packet))
}
