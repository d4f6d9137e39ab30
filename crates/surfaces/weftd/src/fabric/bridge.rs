//! Between the fabric and the services that talk to its other nodes.
//!
//! The fabric is there before the services: its first events wait. The first byte of a message is
//! the place of its service among these.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_fabric::NodeId;

use super::{Fabric, FabricEvent, FabricUser, NotSent};
use crate::service::host::Host;
use crate::service::{Links, NodeEvent};

/// Passes the events of the fabric to the services.
#[derive(Default)]
pub struct Bridge {
    state: Mutex<State>,
}

enum State {
    /// The services are not there yet.
    Waiting(Vec<NodeEvent>),
    Open(Vec<Arc<Host>>, Arc<Fabric>),
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

    /// The services get what has waited, and everything from now on, and the way to the nodes.
    pub fn open(&self, services: Vec<Arc<Host>>, fabric: &Arc<Fabric>) {
        for (place, service) in (0..).zip(&services) {
            service.link(Arc::new(ToNodes { fabric: Arc::clone(fabric), place }));
        }
        let mut state = self.lock();
        if let State::Waiting(events) = &mut *state {
            std::mem::take(events).into_iter().for_each(|event| pass(&services, fabric, event));
        }
        *state = State::Open(services, Arc::clone(fabric));
    }
}

fn pass(services: &[Arc<Host>], fabric: &Fabric, event: NodeEvent) {
    let NodeEvent::Message(node, mut bytes) = event else {
        for service in services {
            // There is always room for news of this kind.
            let _ = service.node(event.clone());
        }
        return;
    };
    let service = bytes.first().and_then(|place| services.get(usize::from(*place)));
    let Some(service) = service else {
        return tracing::warn!(node = node.0, "a message for no service of this release");
    };
    bytes.remove(0);
    // A node whose messages find no room has to say everything again.
    if !service.node(NodeEvent::Message(node, bytes)) {
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
            State::Open(services, fabric) => pass(services, fabric, event),
        }
    }
}

/// The way of a service to the other nodes.
struct ToNodes {
    fabric: Arc<Fabric>,
    place: u8,
}

impl Links for ToNodes {
    fn send(&self, node: NodeId, mut bytes: Vec<u8>) {
        bytes.insert(0, self.place);
        match self.fabric.send(node, bytes) {
            // Its `Down` is on the way.
            Ok(()) | Err(NotSent::NotUp) => {}
            Err(error) => {
                tracing::error!(node = node.0, %error, "a message to a node is lost");
                self.fabric.give_up(node);
            }
        }
    }

    fn give_up(&self, node: NodeId) {
        self.fabric.give_up(node);
    }
}
