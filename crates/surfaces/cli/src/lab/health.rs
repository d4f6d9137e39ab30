//! Whether a node of a lab has what the lab made for it. Others may remove it: `ip netns del`, or
//! `ip link del` in the node.

use weft_netdev::interface::Interface;
use weft_netdev::namespace::Namespace;
use weftd::INTERFACE;

use super::name_of;
use super::state::{Made, State};

/// The parts of a node that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// All of it.
    Whole,
    /// The network namespace that was made is gone.
    NoNamespace,
    /// The namespace is there, and its device is gone.
    NoDevice,
}

impl Health {
    /// The lost part, for people and programs; `None` if no part is lost.
    pub const fn lost(self) -> Option<&'static str> {
        match self {
            Self::Whole => None,
            Self::NoNamespace => Some("namespace"),
            Self::NoDevice => Some("device"),
        }
    }

    /// Looks at one node.
    pub fn of(node: u16, made: Made) -> anyhow::Result<Self> {
        let namespace = Namespace::named(&name_of(node))?;
        if !made.is_of(&namespace) || namespace.is_name_alone() {
            return Ok(Self::NoNamespace);
        }
        let has_device = namespace.enter(|| {
            Interface::named(INTERFACE).and_then(|interface| interface.index()).is_ok()
        })?;
        Ok(if has_device { Self::Whole } else { Self::NoDevice })
    }

    /// Looks at all nodes, in their order.
    pub fn of_all(state: &State) -> anyhow::Result<Vec<Self>> {
        (0..).zip(&state.nodes).map(|(node, made)| Self::of(node, *made)).collect()
    }
}
