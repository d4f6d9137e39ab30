//! The node daemon as a program that opens endpoints sees it: where it is, whether it answers, and
//! which address its host has.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use weft_channel::Channel;
use weft_fabric::EndpointAddress;
use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weft_options::Options;
use weft_options::runtime_path::{self, ControlSocket, NODE_DEFAULT, Scope, Surroundings};
use weft_wire::control::Control;

use crate::error::OpeningError;

/// How long the daemon may take for its status, milliseconds.
const STATUS_MS: u32 = 5_000;

/// The node daemon of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Daemon {
    socket: ControlSocket,
}

impl Daemon {
    /// The daemon that listens at `socket`.
    #[must_use]
    pub fn at(socket: &Path) -> Self {
        let (node, path) = (NODE_DEFAULT.to_owned(), socket.to_path_buf());
        Self { socket: ControlSocket { node, path, scope: Scope::Explicit } }
    }

    /// The daemon that this program is to use: that of `node` if one is given, else that of the
    /// environment (`WEFT_SOCKET`, `WEFT_NODE`), of the option `daemon.socket`, of the system, of
    /// the user. It need not answer.
    ///
    /// # Errors
    /// [`OpeningError::Node`], [`OpeningError::TrustWithoutSocket`].
    pub fn find(options: &Options, node: Option<&str>) -> Result<Self, OpeningError> {
        control_socket(options, node).map(|socket| Self { socket })
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket.path
    }

    /// Whether it answers.
    #[must_use]
    pub fn answers(&self) -> bool {
        Channel::connect(self.socket()).is_ok()
    }

    /// Starts a daemon with these options by `command`, the `weft` command, and waits until it
    /// answers. One that answers already stays.
    ///
    /// # Errors
    /// [`OpeningError::NotStarted`].
    pub fn start(&self, command: &Path, options: &Options) -> Result<(), OpeningError> {
        let mut starting = Command::new(command);
        starting.args(["daemon", "--background"]).stdin(Stdio::null());
        for old in weft_options::old_variables() {
            starting.env_remove(old);
        }
        // The preload library and its statistics are for programs.
        starting.env_remove("LD_PRELOAD").env_remove("WEFT_STATS");
        starting.envs(options.to_environment()).env("WEFT_NODE", &self.socket.node);
        match self.socket.scope {
            Scope::Explicit => starting.env("WEFT_SOCKET", self.socket()),
            // The command comes to the same place, and makes its directory.
            Scope::System | Scope::User => starting.env_remove("WEFT_SOCKET"),
        };
        let ended = starting.output().map_err(|error| OpeningError::NotStarted {
            reason: format!(
                "{}: {error}; put the weft command on the PATH, or start `weft daemon` by hand",
                command.display()
            ),
        })?;
        if ended.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&ended.stderr);
        let reason = text.trim().trim_start_matches("weft: ").to_owned();
        Err(OpeningError::NotStarted { reason })
    }

    /// Its status, as far as openings need it.
    ///
    /// # Errors
    /// [`OpeningError::NoDaemon`].
    pub fn status(&self) -> Result<HostStatus, OpeningError> {
        self.ask_status()
            .map_err(|reason| OpeningError::NoDaemon { socket: self.socket.path.clone(), reason })
    }

    fn ask_status(&self) -> Result<HostStatus, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let channel = Channel::connect(self.socket()).map_err(|error| text(&error))?;
        channel.ask(&Control::Status.emit()).map_err(|error| text(&error))?;
        let packet = channel.receive_within(STATUS_MS).map_err(|error| text(&error))?;
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
}

/// The control socket of the daemon that this program is to use, as [`Daemon::find`]. Control
/// sockets of the user `daemon.trust_uid` are trusted from then on.
///
/// # Errors
/// As for [`Daemon::find`].
pub fn control_socket(
    options: &Options,
    node: Option<&str>,
) -> Result<ControlSocket, OpeningError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (of_node, socket) = (variable("WEFT_NODE"), variable("WEFT_SOCKET"));
    let runtime_directory = variable("XDG_RUNTIME_DIR");
    let surroundings = Surroundings {
        uid: rustix::process::geteuid().as_raw(),
        node_flag: node,
        node_variable: of_node.as_deref(),
        socket_variable: socket.as_deref(),
        runtime_directory: runtime_directory.as_deref(),
    };
    let answers = |path: &Path| Channel::connect(path).is_ok();
    let found = runtime_path::control_socket(&surroundings, options, answers)?;
    let trusted = options.daemon_trust_uid();
    if trusted != 0 && found.scope != Scope::Explicit {
        return Err(OpeningError::TrustWithoutSocket);
    }
    weft_channel::trust_user(trusted);
    Ok(found)
}

/// The part of a daemon's status that says where its host is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct HostStatus {
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default)]
    fabric: Option<Fabric>,
    #[serde(default)]
    offers: Vec<Offer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct Offer {
    name: String,
    node: u32,
    vpid: u16,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct Device {
    interface: String,
    namespace: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct Fabric {
    number: Option<u32>,
    #[serde(default)]
    nodes: Vec<FabricNode>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
struct FabricNode {
    number: Option<u32>,
    #[serde(default)]
    name: Option<String>,
    state: String,
    address: String,
    #[serde(default)]
    reason: String,
}

impl HostStatus {
    /// The number of the daemon's node in its fabric, if it has one.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.fabric.as_ref()?.number
    }

    /// The address of this host in the fabric that its daemon has joined; `None` if it joined none.
    #[must_use]
    pub fn joined_address(&self) -> Option<IpAddr> {
        let own = self.fabric.as_ref()?.nodes.iter().find(|node| node.state == "self")?;
        let address: SocketAddr = own.address.parse().ok()?;
        Some(address.ip())
    }

    /// The address at which other nodes find this program: that of the device in a node of a lab,
    /// elsewhere that of the interface that leads to the daemons of the fabric. `None` without
    /// either.
    #[must_use]
    pub fn data_address(&self) -> Option<IpAddr> {
        self.device_address().or_else(|| self.joined_address())
    }

    /// The number of the node with this name, or at this address.
    #[must_use]
    pub fn node_named(&self, host: &str) -> Option<u32> {
        let nodes = &self.fabric.as_ref()?.nodes;
        let is_at = |node: &&FabricNode| {
            let address: Option<SocketAddr> = node.address.parse().ok();
            address.is_some_and(|address| address.ip().to_string() == host)
        };
        let named = nodes.iter().find(|node| node.name.as_deref() == Some(host));
        named.or_else(|| nodes.iter().find(is_at))?.number
    }

    /// The name of the service that the endpoint at this address offers.
    #[must_use]
    pub fn offered_at(&self, address: EndpointAddress) -> Option<&str> {
        let is_it = |offer: &&Offer| (offer.node, offer.vpid) == (address.node.0, address.vpid.0);
        self.offers.iter().find(is_it).map(|offer| offer.name.as_str())
    }

    /// The state of another node and the reason for it, if the daemon knows one.
    #[must_use]
    pub fn why_not_up(&self, node: u32) -> Option<(&str, &str)> {
        let mut nodes = self.fabric.as_ref()?.nodes.iter();
        let known = nodes.find(|known| known.number == Some(node) && !known.reason.is_empty())?;
        Some((&known.state, &known.reason))
    }

    /// The address of the device in this network namespace, if the daemon serves one here.
    fn device_address(&self) -> Option<IpAddr> {
        let is_here = |name: &String| Namespace::named(name).is_ok_and(|it| it.is_own());
        let mut devices = self.devices.iter();
        let here = devices.find(|device| device.namespace.as_ref().is_some_and(is_here))?;
        Interface::named(&here.interface).ok()?.address().ok()?.map(IpAddr::V4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> HostStatus {
        serde_json::from_str(text).expect("a status")
    }

    #[test]
    fn the_own_address_is_that_of_the_own_node() {
        let joined = status(
            r#"{"node": "default", "fabric": {"name": "f", "number": 3, "nodes": [
                {"number": 2, "name": null, "state": "down", "reason": "silent",
                 "address": "10.0.0.2:7700"},
                {"number": 3, "state": "self", "address": "10.0.0.1:7700"}
            ]}}"#,
        );
        assert_eq!(joined.joined_address(), Some([10, 0, 0, 1].into()));
        assert_eq!(joined.data_address(), Some([10, 0, 0, 1].into()));
        assert_eq!(joined.number(), Some(3));
        assert_eq!(joined.why_not_up(2), Some(("down", "silent")));
        assert_eq!(joined.why_not_up(3), None);
        for alone in [r#"{"fabric": null}"#, "{}"] {
            let alone = status(alone);
            assert_eq!((alone.joined_address(), alone.number()), (None, None));
        }
    }

    #[test]
    fn a_command_that_is_not_there_is_named() {
        let nowhere = Daemon::at(Path::new("/nowhere/n.sock"));
        assert!(!nowhere.answers());
        let error = nowhere.start(Path::new("/nowhere/weft"), &Options::default());
        let text = error.expect_err("no command").to_string();
        assert!(text.contains("/nowhere/weft") && text.contains("PATH"), "{text}");
        let text = nowhere.status().expect_err("no daemon").to_string();
        assert!(text.contains("/nowhere/n.sock") && text.contains("weft daemon"), "{text}");
    }
}
