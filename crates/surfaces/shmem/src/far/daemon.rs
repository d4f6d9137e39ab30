//! The node daemon, as far as a PE asks it: where it is, and which address its host has in the
//! fabric.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weft_channel::Channel;
use weft_options::Options;
use weft_options::runtime_path::{self, Surroundings};
use weft_wire::control::Control;

const TIMEOUT_MS: u32 = 5_000;

/// The control socket of the daemon of this host.
///
/// # Errors
/// The variables name a node that cannot be.
pub fn socket(options: &Options) -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var(name).ok();
    let (node, socket) = (variable("WEFT_NODE"), variable("WEFT_SOCKET"));
    let runtime_directory = variable("XDG_RUNTIME_DIR");
    let surroundings = Surroundings {
        uid: rustix::process::geteuid().as_raw(),
        node_flag: None,
        node_variable: node.as_deref(),
        socket_variable: socket.as_deref(),
        runtime_directory: runtime_directory.as_deref(),
    };
    let answers = |path: &Path| Channel::connect(path).is_ok();
    let found = runtime_path::control_socket(&surroundings, options, answers);
    found.map(|found| found.path).map_err(|error| error.to_string())
}

/// The address of this host in the fabric that its daemon has joined.
///
/// # Errors
/// No daemon answers, or it has joined none.
pub fn address(socket: &Path) -> Result<IpAddr, String> {
    let status = status(socket).map_err(|reason| {
        format!(
            "no daemon answers at {}: {reason}; start `weft daemon` with a fabric's key on each \
             host of the job",
            socket.display()
        )
    })?;
    own_address(&status).ok_or_else(|| {
        format!(
            "the daemon at {} has joined no fabric; start it with --fabric-key and --fabric-listen",
            socket.display()
        )
    })
}

fn status(socket: &Path) -> Result<Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let channel = Channel::connect(socket).map_err(|error| text(&error))?;
    channel.ask(&Control::Status.emit()).map_err(|error| text(&error))?;
    let packet = channel.receive_within(TIMEOUT_MS).map_err(|error| text(&error))?;
    let packet = packet.ok_or("it closed the connection")?;
    match Control::parse(&packet.bytes).map_err(|error| text(&error))? {
        Control::StatusReply => {}
        Control::Refused { reason, .. } => return Err(reason),
        _ => return Err("its answer is no status".to_owned()),
    }
    let file = packet.descriptors.into_iter().next().ok_or("it sent no status")?;
    let file = File::from(file);
    // Its position is shared with others that ask.
    let length = file.metadata().map_err(|error| text(&error))?.len();
    let mut bytes = vec![0; usize::try_from(length).map_err(|error| text(&error))?];
    file.read_exact_at(&mut bytes, 0).map_err(|error| text(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| text(&error))
}

fn own_address(status: &Value) -> Option<IpAddr> {
    let nodes = status.get("fabric")?.get("nodes")?.as_array()?;
    let own = nodes.iter().find(|node| node.get("state").is_some_and(|state| state == "self"))?;
    let address: SocketAddr = own.get("address")?.as_str()?.parse().ok()?;
    Some(address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_address_is_that_of_the_own_node() {
        let status = serde_json::json!({"fabric": {"nodes": [
            {"state": "up", "address": "10.0.0.2:7700"},
            {"state": "self", "address": "10.0.0.1:7700"},
        ]}});
        assert_eq!(own_address(&status), Some([10, 0, 0, 1].into()));
        assert_eq!(own_address(&serde_json::json!({"fabric": null})), None);
        assert_eq!(
            own_address(&serde_json::json!({"fabric": {"nodes": [{"state": "self"}]}})),
            None
        );
    }
}
