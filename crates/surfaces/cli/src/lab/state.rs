//! The record of all that a lab has made, in a file beside the socket of its daemon.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use weft_netdev::namespace::Namespace;
use weft_options::runtime_path::ControlSocket;
use weft_topology::{Link, Shape, Topology};

use super::{address_of, address6_of};

/// The knowledge about one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Made {
    /// Nothing was made.
    Nothing,
    /// It was about to be made: what is there under its name is this lab's.
    Begun,
    /// The network namespace with this inode.
    Namespace(u64),
}

impl Made {
    /// True when `namespace` is the one that was made.
    pub fn is_of(self, namespace: &Namespace) -> bool {
        match self {
            Self::Nothing => false,
            Self::Begun => namespace.exists(),
            Self::Namespace(inode) => namespace.inode() == Some(inode) || namespace.is_name_alone(),
        }
    }
}

/// A lab.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Bytes of IP in a frame.
    pub mtu: u32,
    /// Its nodes.
    pub nodes: Vec<Made>,
    /// The links between them, as [`Shape`] prints them.
    pub shape: String,
    /// Those that are cut.
    pub cut: Vec<(u16, u16)>,
}

impl State {
    /// A lab of which nothing was made yet.
    pub fn new(nodes: u16, mtu: u32, shape: &Shape) -> Self {
        let nodes = vec![Made::Nothing; usize::from(nodes)];
        Self { mtu, nodes, shape: shape.to_string(), cut: Vec::new() }
    }

    /// True when `other` has as many nodes, the same links and the same MTU.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.nodes.len(), self.mtu, &self.shape) == (other.nodes.len(), other.mtu, &other.shape)
    }

    /// The command that makes what the lab has lost.
    pub fn command(&self) -> String {
        format!(
            "`weft lab up --nodes {} --mtu {} --topology {}`",
            self.nodes.len(),
            self.mtu,
            self.shape
        )
    }

    /// Whether nodes have addresses of IPv6: the kernel has it, and gives it to devices with an MTU
    /// of 1,280 and more (RFC 8200 section 5).
    pub fn has_ipv6(&self) -> bool {
        self.mtu >= 1_280 && Path::new("/proc/net/if_inet6").exists()
    }

    /// The node that `text` names: `n3`, `3` or `weft-n3`.
    pub fn node(&self, text: &str) -> anyhow::Result<u16> {
        let digits = text.trim_start_matches("weft-").trim_start_matches('n');
        let node = digits.parse().ok().filter(|node| usize::from(*node) < self.nodes.len());
        node.with_context(|| {
            let last = self.nodes.len() - 1;
            format!("there is no node {text:?} in the lab, which has n0 to n{last}")
        })
    }

    /// Nodes and links, as they are now.
    pub fn topology(&self) -> anyhow::Result<Topology> {
        let nodes = u16::try_from(self.nodes.len()).ok();
        let mut topology = self.shape.parse::<Shape>()?.topology(nodes)?;
        for (a, b) in &self.cut {
            topology.set(Link(*a, *b), true)?;
        }
        Ok(topology)
    }

    fn file(socket: &ControlSocket) -> PathBuf {
        socket.path.with_extension("json")
    }

    /// Locks the lab for a command that changes it; other commands wait. `None` where there was
    /// never a lab.
    pub fn guard(socket: &ControlSocket) -> anyhow::Result<Option<fs::File>> {
        let file = socket.path.with_extension("guard");
        let failed = || format!("{} cannot be locked", file.display());
        match fs::File::create(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => {
                let opened = opened.with_context(failed)?;
                opened.lock().with_context(failed)?;
                Ok(Some(opened))
            }
        }
    }

    /// The names of the nodes, for programs in them.
    pub fn hosts(socket: &ControlSocket) -> PathBuf {
        socket.path.with_extension("hosts")
    }

    /// The lab that is up, if there is one.
    pub fn load(socket: &ControlSocket) -> anyhow::Result<Option<Self>> {
        let file = Self::file(socket);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("{} cannot be read", file.display()));
            }
        };
        let state = serde_json::from_slice(&text).with_context(|| {
            format!(
                "{} is damaged; remove it, and the namespaces that `ip netns` lists as weft-n0, \
                 weft-n1 and so on",
                file.display()
            )
        })?;
        Ok(Some(state))
    }

    /// Writes it down, whole or not at all.
    pub fn store(&self, socket: &ControlSocket) -> anyhow::Result<()> {
        write(&Self::file(socket), &serde_json::to_vec_pretty(self)?)
    }

    /// Writes the names of the nodes.
    pub fn store_hosts(&self, socket: &ControlSocket) -> anyhow::Result<()> {
        let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
        for (node, _) in (0..).zip(&self.nodes) {
            text.push_str(&format!("{} n{node}\n", address_of(node)));
            if self.has_ipv6() {
                text.push_str(&format!("{} n{node}\n", address6_of(node)));
            }
        }
        write(&Self::hosts(socket), text.as_bytes())
    }

    /// Forgets the lab.
    pub fn remove(socket: &ControlSocket) -> anyhow::Result<()> {
        let file = Self::file(socket);
        // A command that died between the two steps of `write` left the unfinished file.
        for file in [Self::hosts(socket), unfinished(&file), file] {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let context = format!("{} cannot be removed", file.display());
                    return Err(error).context(context);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The name of a file until it is written whole.
fn unfinished(file: &Path) -> PathBuf {
    file.with_extension("new")
}

fn write(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let new = unfinished(file);
    fs::write(&new, bytes)
        .and_then(|()| fs::rename(&new, file))
        .with_context(|| format!("{} cannot be written", file.display()))
}
