//! Between the fabric and the service that talks to its other nodes.
//!
//! The fabric is there before the services: its first events wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_fabric::NodeId;

use super::{Fabric, FabricEvent, FabricUser, NotSent};
use crate::service::host::Host;
use crate::service::{Links, NodeEvent};

/// Passes the events of the fabric to a service.
#[derive(Default)]
pub struct Bridge {
    state: Mutex<State>,
}

enum State {
    /// The service is not there yet.
    Waiting(Vec<NodeEvent>),
    Open(Arc<Host>, Arc<Fabric>),
}

impl Default for State {
    fn default() -> Self {
        Self::Waiting(Vec::new())
    }
}

impl Bridge {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service gets what has waited, and everything from now on, and the way to the nodes.
    pub fn open(&self, service: &Arc<Host>, fabric: &Arc<Fabric>) {
        service.link(Arc::new(ToNodes(Arc::clone(fabric))));
        let mut state = self.lock();
        let open = State::Open(Arc::clone(service), Arc::clone(fabric));
        if let State::Waiting(events) = std::mem::replace(&mut *state, open) {
            events.into_iter().for_each(|event| pass(service, fabric, event));
        }
    }
}

fn pass(service: &Host, fabric: &Fabric, event: NodeEvent) {
    let from = match &event {
        NodeEvent::Message(node, _) => Some(*node),
        _ => None,
    };
    // A node whose messages find no room has to say everything again.
    if !service.node(event)
        && let Some(node) = from
    {
        fabric.give_up(node);
    }
}

impl FabricUser for Bridge {
    fn handle(&self, event: FabricEvent) {
        let event = match event {
            FabricEvent::Numbered { node } => NodeEvent::Numbered(node),
            FabricEvent::Up { node, .. } => NodeEvent::Up(node),
            FabricEvent::Down { node, .. } => NodeEvent::Down(node),
            FabricEvent::Message { node, bytes } => NodeEvent::Message(node, bytes),
        };
        let mut state = self.lock();
        match &mut *state {
            State::Waiting(events) => events.push(event),
            State::Open(service, fabric) => pass(service, fabric, event),
        }
    }
}

/// The way to the other nodes.
struct ToNodes(Arc<Fabric>);

impl Links for ToNodes {
    fn send(&self, node: NodeId, bytes: Vec<u8>) {
        match self.0.send(node, bytes) {
            // Its `Down` is on the way.
            Ok(()) | Err(NotSent::NotUp) => {}
            Err(error) => {
                tracing::error!(node = node.0, %error, "a message to a node is lost");
                self.0.give_up(node);
            }
        }
    }

    fn give_up(&self, node: NodeId) {
        self.0.give_up(node);
    }
}
