//! Events of the fabric as the program reads them.
//!
//! The bytes of a message are copied out of memory that peers share, once. They belong to the
//! endpoint until the program asks for further events.

use std::collections::VecDeque;

use weft_fabric::{DownReason, EndpointAddress, Peer, Region, Side, Value};
use weft_message::{Body, Event};

use crate::call::c_string;
use crate::status::Failure;
use crate::types::weft_down_reason::*;
use crate::types::weft_event_type::{self, *};
use crate::types::weft_status::WEFT_OK;
use crate::types::{weft_address, weft_event};

/// Bytes of a tag, with which a message begins.
pub const TAG_BYTES: usize = 8;
/// The mailbox tag of messages to a group. Those to one peer have the next lower one, which is that
/// of `weft-message`.
pub const GROUP_TAG: u8 = 78;
/// Events that wait while the program waits for one of them.
pub const EVENTS_MAX: usize = 4096;
/// Buffers of messages that are kept for further ones, and the longest.
const SPARE_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 4096;

/// An event that the program has not taken, with its bytes.
#[derive(Debug)]
pub struct Waiting {
    kind: weft_event_type,
    status: i32,
    context: u64,
    peer: u32,
    class: u8,
    side: u8,
    group: u8,
    address: weft_address,
    tag: u64,
    length: u64,
    value: u64,
    offset: u64,
    bytes: Vec<u8>,
    /// Why a completion is an error.
    failure: Option<Failure>,
}

impl Waiting {
    const fn new(kind: weft_event_type) -> Self {
        Self {
            kind,
            status: WEFT_OK as i32,
            context: 0,
            peer: 0,
            class: 0,
            side: 0,
            group: 0,
            address: weft_address { node: 0, number: 0 },
            tag: 0,
            length: 0,
            value: 0,
            offset: 0,
            bytes: Vec::new(),
            failure: None,
        }
    }

    fn of_peer(kind: weft_event_type, peer: Peer) -> Self {
        Self { peer: peer.0, ..Self::new(kind) }
    }

    fn completion(context: u64, result: Result<Value, Failure>) -> Self {
        let mut event = Self { context, ..Self::new(WEFT_EVENT_COMPLETION) };
        match result {
            Ok(Value::Word(word)) => event.value = word,
            Ok(Value::Peer(peer)) => event.peer = peer.0,
            Ok(_) => {}
            Err(failure) => {
                event.status = failure.status as i32;
                event.bytes = c_string(&failure.text).into_bytes_with_nul();
                event.length = event.bytes.len() as u64;
                event.failure = Some(failure);
            }
        }
        event
    }

    fn for_program(&self) -> weft_event {
        let data = if self.bytes.is_empty() { std::ptr::null() } else { self.bytes.as_ptr() };
        weft_event {
            r#type: self.kind as u32,
            status: self.status,
            context: self.context,
            peer: self.peer,
            notification_class: self.class,
            side: self.side,
            group: self.group,
            reserved: 0,
            address: self.address,
            tag: self.tag,
            data: data.cast(),
            length: self.length,
            value: self.value,
            offset: self.offset,
        }
    }

    /// The result of the completion with this context, if this is one.
    pub fn ended(&self, context: u64) -> Option<Result<u64, Failure>> {
        if self.kind != WEFT_EVENT_COMPLETION || self.context != context {
            return None;
        }
        Some(match &self.failure {
            None if self.value == 0 => Ok(u64::from(self.peer)),
            None => Ok(self.value),
            Some(failure) => Err(failure.clone()),
        })
    }

    /// Whether there is room for this peer.
    pub fn is_room(&self, peer: Peer) -> bool {
        self.kind == WEFT_EVENT_ROOM && self.peer == peer.0
    }

    /// Whether this peer is down.
    pub fn is_down(&self, peer: Peer) -> bool {
        self.kind == WEFT_EVENT_PEER_DOWN && self.peer == peer.0
    }
}

/// The events of an endpoint that its program has not taken.
#[derive(Debug, Default)]
pub struct Events {
    waiting: VecDeque<Waiting>,
    /// Bytes that the program reads at present.
    lent: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Events {
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn get(&self, index: usize) -> Option<&Waiting> {
        self.waiting.get(index)
    }

    pub fn remove(&mut self, index: usize) {
        self.waiting.remove(index);
    }

    /// The program reads none of the bytes any more that it was lent.
    pub fn give_back(&mut self) {
        for mut bytes in self.lent.drain(..) {
            if self.spare.len() < SPARE_MAX && bytes.capacity() <= SPARE_BYTES_MAX {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
    }

    /// The next event. Its bytes are lent to the program.
    pub fn hand_out(&mut self) -> Option<weft_event> {
        let event = self.waiting.pop_front()?;
        let for_program = event.for_program();
        if !event.bytes.is_empty() {
            self.lent.push(event.bytes);
        }
        Some(for_program)
    }

    /// Takes what the fabric told.
    #[inline]
    pub fn take<R: Region>(&mut self, event: Event<'_, R>) {
        let taken = match event {
            Event::Message(message) => {
                let bytes = self.body(&message.body);
                let mut tag = [0; TAG_BYTES];
                let known = message.head.len().min(TAG_BYTES);
                tag[..known].copy_from_slice(&message.head[..known]);
                let (tag, length) = (u64::from_le_bytes(tag), bytes.len() as u64);
                let event = Waiting::of_peer(WEFT_EVENT_MESSAGE, message.peer);
                Waiting { tag, length, bytes, ..event }
            }
            Event::Completion { context, result } => {
                let result = result.map(|()| Value::Nothing).map_err(Failure::from);
                Waiting::completion(context, result)
            }
            Event::Room { peer } => Waiting::of_peer(WEFT_EVENT_ROOM, peer),
            Event::Endpoint(event) => match self.of_endpoint(event) {
                Some(taken) => taken,
                None => return,
            },
            // No message is announced here: they are all taken. And a peer that misbehaved is told
            // as one that is down.
            Event::Announced { .. } | Event::Lost { .. } | Event::Misbehaved { .. } => return,
        };
        self.waiting.push_back(taken);
    }

    fn of_endpoint(&mut self, event: weft_fabric::Event<'_>) -> Option<Waiting> {
        use weft_fabric::Event;
        Some(match event {
            Event::Message(message) => {
                let (tag, body) = match message.payload.split_first_chunk::<TAG_BYTES>() {
                    Some((tag, body)) if message.header.tag == GROUP_TAG => {
                        (u64::from_le_bytes(*tag), body)
                    }
                    // One from a mailbox alone, by a program in Rust.
                    _ => (u64::from(message.header.tag), message.payload),
                };
                let bytes = self.copy(body);
                let event = Waiting::of_peer(WEFT_EVENT_MESSAGE, message.peer);
                let group = message.group.map_or(0, |group| group.number() + 1);
                let address = address(message.source);
                Waiting { tag, length: body.len() as u64, bytes, group, address, ..event }
            }
            Event::Notification(told) => Waiting {
                context: told.operation,
                class: told.class,
                side: match told.side {
                    Side::Requester => 0,
                    Side::Responder => 1,
                    Side::Completer => 2,
                },
                address: address(told.source),
                length: told.length,
                value: told.immediate,
                offset: told.offset,
                ..Waiting::of_peer(WEFT_EVENT_NOTIFICATION, told.peer)
            },
            Event::Completion(completion) => {
                let result = completion.result.map_err(Failure::from);
                Waiting::completion(completion.context, result)
            }
            Event::PeerDown { peer, address: at, reason } => Waiting {
                address: address(at),
                value: match reason {
                    DownReason::Ended => WEFT_DOWN_ENDED,
                    DownReason::Unreachable => WEFT_DOWN_UNREACHABLE,
                    DownReason::Misbehaved => WEFT_DOWN_MISBEHAVED,
                    DownReason::Disconnected => WEFT_DOWN_DISCONNECTED,
                } as u64,
                ..Waiting::of_peer(WEFT_EVENT_PEER_DOWN, peer)
            },
            Event::Room { peer } => Waiting::of_peer(WEFT_EVENT_ROOM, peer),
            Event::GroupRoom { group } => {
                let value = u64::from(group.number());
                Waiting { value, ..Waiting::new(WEFT_EVENT_GROUP_ROOM) }
            }
        })
    }

    fn body<R: Region>(&mut self, body: &Body<'_, R>) -> Vec<u8> {
        match body {
            Body::Bytes(bytes) => self.copy(bytes),
            Body::Range { region, offset, length, .. } => {
                let length = usize::try_from(*length).expect("the messages hold it in memory");
                let mut bytes = vec![0; length];
                region.read(*offset, &mut bytes).expect("the messages have looked at the range");
                bytes
            }
        }
    }

    fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(bytes);
        copy
    }
}

/// An address of the fabric for the program.
pub fn address(of: EndpointAddress) -> weft_address {
    weft_address { node: of.node.0, number: u32::from(of.vpid.0) }
}
