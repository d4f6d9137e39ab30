//! Messages of any length.

use std::collections::BTreeMap;

use weft_fabric::{
    Blocking, Endpoint, EndpointAddress, Event as FabricEvent, OperationError, Peer, RegisterError,
};
use weft_message::{Event, Messages, Options, SendError};
use weft_network::Message;
use weft_topology::Vertex;
use weft_transport_sim::SimEndpoint;

use super::{AT_ONCE, Contact, EVENTS, Ends, Program};

/// Bytes of the head, which is the number of the message.
const HEAD_BYTES: usize = 8;

pub(super) struct Letters {
    messages: Messages<SimEndpoint>,
    /// The vertices of peers that were called.
    peers: BTreeMap<Peer, Vertex>,
    /// The body of every message.
    body: Vec<u8>,
}

impl Letters {
    pub fn new(endpoint: SimEndpoint, longest: u64) -> Self {
        let body = vec![0; usize::try_from(longest).unwrap_or(usize::MAX)];
        let messages = Messages::new(endpoint, Options::default());
        Self { messages, peers: BTreeMap::new(), body }
    }
}

impl Program for Letters {
    fn address(&mut self) -> EndpointAddress {
        self.messages.endpoint().address()
    }

    fn begin(&mut self, message: &Message, to: Contact, _: u64) -> Result<(), OperationError> {
        let peer = self.messages.endpoint().connect_within(to.address, AT_ONCE);
        let peer = peer.map_err(|_| OperationError::PeerDown)?;
        self.peers.extend(message.to.host().map(|vertex| (peer, vertex)));
        let length = usize::try_from(message.bytes).unwrap_or(usize::MAX);
        let body = &self.body[..length.saturating_sub(HEAD_BYTES)];
        let sent = self.messages.send(peer, &message.tag.to_le_bytes(), &[body], message.tag);
        sent.map(drop).map_err(|error| match error {
            // Without memory for a copy it is begun again when there may be some.
            SendError::WouldBlock | SendError::Register(RegisterError::Exhausted { .. }) => {
                OperationError::WouldBlock
            }
            _ => OperationError::PeerDown,
        })
    }

    fn poll(&mut self, _: u64) -> Ends {
        let mut ends = Ends::default();
        let mut down = Vec::new();
        self.messages.poll(EVENTS, |event| match event {
            Event::Message(message) => {
                let word = message.head.first_chunk();
                ends.arrived.extend(word.map(|word| u64::from_le_bytes(*word)));
            }
            Event::Completion { context, result } => {
                ends.has_room = true;
                ends.failed.extend(result.is_err().then_some(context));
            }
            Event::Endpoint(FabricEvent::PeerDown { peer, .. }) => {
                ends.has_room = true;
                down.push(peer);
            }
            Event::Room { .. } => ends.has_room = true,
            _ => {}
        });
        ends.down = down.into_iter().filter_map(|peer| self.peers.remove(&peer)).collect();
        ends
    }
}
