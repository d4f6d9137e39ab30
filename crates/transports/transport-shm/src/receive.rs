//! Receiving from one peer: slots of its ring become events.

use weft_fabric::{Event, LaneClosed, Message, Register};

use crate::address_vector::PeerState;
use crate::attention;
use crate::completion::{Content, classify, decode_notification};
use crate::registers::Registers;
use crate::ring::{FIRST_LINE_PAYLOAD, PAYLOAD_BYTES, SlotMemory, Status};

/// The result of receiving from a peer.
pub(crate) struct Received {
    /// How many events were handed out.
    pub events: usize,
    /// It ended at a slot that is not valid.
    pub is_breach: bool,
}

/// The status of the first slot of a peer's ring, if the slot is filled.
///
/// # Errors
/// [`LaneClosed`] when the length in the slot is not valid.
#[inline]
pub(crate) fn head(peer: &PeerState) -> Result<Option<Status>, LaneClosed> {
    peer.pair.incoming().peek(&peer.receive)
}

/// Whether a peer's ring holds a slot to receive, valid or not.
#[inline]
pub(crate) fn is_filled(peer: &PeerState) -> bool {
    !matches!(head(peer), Ok(None))
}

/// Hands out up to `budget` events of a peer, and stops at a slot that is not valid. `status` is
/// the result of [`head`].
#[inline]
pub(crate) fn receive(
    peer: &mut PeerState,
    mut status: Status,
    own: u16,
    budget: usize,
    registers: &Registers,
    sink: &mut dyn FnMut(Event<'_>),
) -> Received {
    let PeerState { handle, pair, receive, address, .. } = peer;
    let (ring, sender, source) = (pair.incoming(), *handle, *address);
    let returned = receive.messages_returned;
    let (mut events, mut notifications, mut bytes) = (0, 0, 0);
    let mut payload = [0; PAYLOAD_BYTES];
    let is_breach = loop {
        let slot = ring.slot(receive.messages);
        let length = usize::from(status.length);
        match classify(status) {
            Some(Content::Notification) => {
                let Some(told) = decode_notification(status, &slot, (sender, source)) else {
                    break true;
                };
                notifications += 1;
                ring.advance(receive, false);
                sink(Event::Notification(told));
            }
            Some(Content::Message(header, group)) => {
                bytes += length;
                // Copies of a fixed size need no call, and a short message needs one cache line
                // only.
                if length <= FIRST_LINE_PAYLOAD {
                    slot.read_payload(0, &mut payload[..FIRST_LINE_PAYLOAD]);
                } else {
                    slot.read_payload(0, &mut payload);
                }
                ring.advance(receive, false);
                let (peer, payload) = (sender, &payload[..length]);
                sink(Event::Message(Message { peer, source, header, group, payload }));
            }
            None => break true,
        }
        events += 1;
        if events >= budget {
            break false;
        }
        status = match ring.peek(receive) {
            Ok(Some(status)) => status,
            Ok(None) => break false,
            Err(_) => break true,
        };
    };
    if events > notifications {
        registers.count(Register::MessagesReceived, (events - notifications) as u64);
        registers.count(Register::MessageBytesReceived, bytes as u64);
    }
    if notifications != 0 {
        registers.count(Register::NotificationsReceived, notifications as u64);
    }
    if receive.messages_returned != returned && attention::claim(pair.peer_room(), peer.full_fences)
    {
        peer.doorbell.ring(own);
    }
    Received { events, is_breach }
}
