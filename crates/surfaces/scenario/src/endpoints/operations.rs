//! Single operations of endpoints: puts, gets, atomics and short messages.
//!
//! A put or a short message has arrived when the target's program hears of it; a get or an atomic
//! when its completion is there.

use std::collections::BTreeMap;

use weft_fabric::{
    Access, Atomic, Audience, Blocking, Endpoint, EndpointAddress, Event, LocalRange,
    MessageHeader, Notify, OperationError, Peer, RemoteKey, SendError, Side, Source, Target,
};
use weft_network::Message;
use weft_topology::Vertex;
use weft_transport_sim::{SimEndpoint, SimRegion};

use super::{AT_ONCE, Contact, EVENTS, Ends, Program};
use crate::scenario::Operation;

/// Bytes of the word that all add to.
const WORD_BYTES: u64 = 8;

pub(super) struct Operations {
    endpoint: SimEndpoint,
    operation: Operation,
    key: RemoteKey,
    /// Others put into it and get from it. It lives as long as the key is in use.
    region: SimRegion,
    /// The vertices of peers that were called, for reports of their end.
    peers: BTreeMap<Peer, Vertex>,
    /// The bytes of every message.
    bytes: Vec<u8>,
}

impl Operations {
    /// # Errors
    /// Text, if there is no memory.
    pub fn new(
        mut endpoint: SimEndpoint,
        operation: Operation,
        longest: u64,
    ) -> Result<Self, String> {
        let length = longest.max(WORD_BYTES);
        let region = endpoint.register(length).map_err(|error| error.to_string())?;
        let whole = LocalRange::whole(&region);
        let key = endpoint.grant_within(whole, Audience::Partition, Access::all(), AT_ONCE);
        let key = key.map_err(|error| error.to_string())?;
        let bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        Ok(Self { endpoint, operation, key, region, peers: BTreeMap::new(), bytes })
    }
}

impl Program for Operations {
    fn address(&mut self) -> EndpointAddress {
        self.endpoint.address()
    }

    fn key(&self) -> Option<RemoteKey> {
        Some(self.key)
    }

    fn begin(&mut self, message: &Message, to: Contact, _: u64) -> Result<(), OperationError> {
        let peer = self.endpoint.connect_within(to.address, AT_ONCE);
        let peer = peer.map_err(|_| OperationError::PeerDown)?;
        self.peers.extend(message.to.host().map(|vertex| (peer, vertex)));
        let length = usize::try_from(message.bytes).unwrap_or(usize::MAX).min(self.bytes.len());
        let target = Target { key: to.key.ok_or(OperationError::PeerDown)?, offset: 0 };
        let operation = weft_fabric::Operation::new(message.tag);
        match self.operation {
            Operation::Put => {
                let notify = Notify::COMPLETER.immediate(message.tag);
                let source = Source::Bytes(&self.bytes[..length]);
                self.endpoint.put(peer, source, target, operation.notify(notify)).map(drop)
            }
            Operation::Get => {
                let into = LocalRange::new(&self.region, 0, message.bytes);
                self.endpoint.get(peer, target, into, operation).map(drop)
            }
            Operation::Atomic => {
                self.endpoint.atomic(peer, target, Atomic::fetch_add(1), operation).map(drop)
            }
            _ => {
                let word = message.tag.to_le_bytes();
                let rest = &self.bytes[..length.saturating_sub(word.len())];
                let sent = self.endpoint.send_short(peer, MessageHeader::tag(0), &[&word, rest]);
                sent.map_err(|error| match error {
                    SendError::WouldBlock => OperationError::WouldBlock,
                    _ => OperationError::PeerDown,
                })
            }
        }
    }

    fn poll(&mut self, _: u64) -> Ends {
        let ends_here = matches!(self.operation, Operation::Get | Operation::Atomic);
        let mut ends = Ends::default();
        let mut down = Vec::new();
        self.endpoint.poll(EVENTS, &mut |event| match event {
            Event::Notification(seen) if seen.side == Side::Completer => {
                ends.arrived.push(seen.immediate);
            }
            Event::Message(message) => {
                let word = message.payload.first_chunk();
                ends.arrived.extend(word.map(|word| u64::from_le_bytes(*word)));
            }
            Event::Completion(completion) => {
                // The end of an operation is room for the next.
                ends.has_room = true;
                match completion.result {
                    Ok(_) if ends_here => ends.arrived.push(completion.context),
                    Ok(_) => {}
                    Err(_) => ends.failed.push(completion.context),
                }
            }
            Event::Room { .. } => ends.has_room = true,
            Event::PeerDown { peer, .. } => {
                ends.has_room = true;
                down.push(peer);
            }
            _ => {}
        });
        let down = down.into_iter().filter_map(|peer| self.peers.remove(&peer));
        // All but short messages have a completion, which tells of their end.
        if self.operation == Operation::Message {
            ends.down = down.collect();
        } else {
            down.for_each(drop);
        }
        ends
    }
}
