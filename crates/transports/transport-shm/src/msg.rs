//! Messages: the mailbox of EXTOLL-THESIS#3.2.2, one ring for each ordered pair.
//!
//! Sending a message writes the payload and the status word, and reads the receiver's attention
//! word. Other shared memory is touched only when the receiver is not polling.

use weft_fabric::{Group, MessageHeader, Peer, Register, RemoteKey, SendCursor, SendError, Timed};
use weft_memory::CopyMode;

use crate::address_vector::PeerState;
use crate::attention;
use crate::completion::{message_flags, multicast_flags};
use crate::doorbell::Doorbell;
use crate::endpoint::ShmEndpoint;
use crate::pair::Pair;
use crate::ring::{PAYLOAD_BYTES, SlotMemory, Status};
use crate::rma::{Translated, mapped};
use crate::sys;

/// Of so many messages that do not take the shortest way one is timed.
const TIMED_EVERY: u32 = 13;

/// Checks a message and returns its length in bytes.
#[inline]
fn check(header: MessageHeader, parts: &[&[u8]]) -> Result<usize, SendError> {
    let length = parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()));
    if length > PAYLOAD_BYTES {
        return Err(SendError::TooLong { length, maximum: PAYLOAD_BYTES });
    }
    if header.kind >= MessageHeader::KINDS {
        return Err(SendError::InvalidKind { kind: header.kind });
    }
    Ok(length)
}

/// The part of a peer's state that is needed to send a slot.
#[derive(Debug)]
pub(crate) struct Outlet<'a> {
    pair: &'a Pair,
    cursor: &'a mut SendCursor,
    doorbell: &'a Doorbell,
    full_fences: bool,
}

impl Outlet<'_> {
    /// Puts a slot into the peer's ring, and rings if the peer is not polling. False when the ring
    /// is full.
    #[inline]
    pub(crate) fn emit(&mut self, own: u16, tag: u8, flags: u16, parts: &[&[u8]]) -> bool {
        if self.pair.outgoing().send(self.cursor, tag, flags, parts).is_err() {
            return false;
        }
        self.ring_if_asked(own);
        true
    }

    /// As [`Outlet::emit`], with whole words as payload. With `more`, the next one rings.
    #[inline]
    pub(crate) fn emit_words<const N: usize>(
        &mut self,
        own: u16,
        tag: u8,
        flags: u16,
        words: &[u64; N],
        more: bool,
    ) -> bool {
        if self.pair.outgoing().send_words(self.cursor, tag, flags, words).is_err() {
            return false;
        }
        if !more {
            self.ring_if_asked(own);
        }
        true
    }

    /// Rings if the peer is not polling.
    #[inline]
    pub(crate) fn ring_if_asked(&self, own: u16) {
        if attention::claim(self.pair.peer_data(), self.full_fences) {
            self.doorbell.ring(own);
        }
    }
}

/// How far a message was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// It is in the peer's ring, and the peer polls.
    Now,
    /// It is in the peer's ring, and the peer's wakeup is to be rung.
    Ring,
    /// Not at all: it is for [`ShmEndpoint::send_otherwise`].
    Otherwise,
}

impl PeerState {
    /// The outlet to this peer.
    #[inline]
    pub(crate) fn outlet(&mut self) -> Outlet<'_> {
        let Self { pair, send: cursor, doorbell, full_fences, .. } = self;
        Outlet { pair, cursor, doorbell, full_fences: *full_fences }
    }

    /// The mapped memory of a key and the outlet to this peer; `None` when the key is not resolved
    /// or not in force.
    #[inline]
    pub(crate) fn split(&mut self, key: RemoteKey) -> Option<(Translated<'_>, Outlet<'_>)> {
        let Self { keys, registers, pair, send: cursor, doorbell, full_fences, .. } = self;
        let mapped = mapped(keys, registers, key)?;
        Some((mapped, Outlet { pair, cursor, doorbell, full_fences: *full_fences }))
    }

    /// Whether the peer's ring has a free slot.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        self.pair.outgoing().free(&mut self.send, 1) > 0
    }
}

impl ShmEndpoint {
    //= EXTOLL-THESIS#3.2.2
    //# VELO sends small messages, gathered, straight into the mailbox of the target.
    ///
    /// JUSTIFICATION: the slot was last in the receiver's cache, so the message waits in the
    /// processor's queue of stores until its cache line has come back, and all later stores wait
    /// behind it. The fewer stores a message takes, and the fewer lines they go to, the more
    /// messages wait for their lines at the same time. Stores of registers before a call, and of a
    /// list of parts, count like any other. With 33 stores a message the rate was 27 M/s between
    /// threads of a core and 7 M/s between distant cores, with 26 it was 51 and 14, and with these
    /// 5, in 3 lines, it is 78 and 20 (docs/design/003-shared-memory.md). So whatever needs a call
    /// is left to [`Self::send_otherwise`], and this is inlined.
    #[inline(always)]
    pub(crate) fn do_send(&mut self, to: Peer, header: MessageHeader, parts: &[&[u8]]) -> Sent {
        if header.kind >= MessageHeader::KINDS {
            return Sent::Otherwise;
        }
        let Ok(peer) = self.peers.live(to) else {
            return Sent::Otherwise;
        };
        let PeerState { pair, send: cursor, full_fences, .. } = peer;
        let ring = pair.outgoing();
        let Some(slot) = ring.known_vacant(cursor) else {
            return Sent::Otherwise;
        };
        let mut length = 0;
        for part in parts {
            if part.len() > CopyMode::INLINE_BYTES_MAX || part.len() > PAYLOAD_BYTES - length {
                return Sent::Otherwise;
            }
            slot.write_payload(length, part);
            length += part.len();
        }
        let Ok(bytes) = u8::try_from(length) else {
            return Sent::Otherwise;
        };
        let flags = message_flags(header);
        ring.publish(cursor, &slot, Status { length: bytes, tag: header.tag, flags });
        let is_asked = attention::claim(pair.peer_data(), *full_fences);
        self.registers.count(Register::MessagesSent, 1);
        self.registers.count(Register::MessageBytesSent, length as u64);
        if is_asked { Sent::Ring } else { Sent::Now }
    }

    /// Rings the peer's wakeup for a message that was sent.
    #[cold]
    pub(crate) fn ring_after_send(&mut self, to: Peer) -> Result<(), SendError> {
        let own = self.address.vpid.0;
        self.peers.live(to)?.doorbell.ring(own);
        Ok(())
    }

    /// As [`Self::do_send`], for every message, and with the reason if it cannot be sent.
    #[inline(never)]
    pub(crate) fn send_otherwise(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        let sampling = &mut self.sampling.messages;
        *sampling = sampling.wrapping_sub(1);
        if *sampling != 0 {
            return self.send_any(to, header, parts).map_err(|error| self.note_send(error));
        }
        *sampling = TIMED_EVERY;
        let begun = sys::now();
        self.send_any(to, header, parts).map_err(|error| self.note_send(error))?;
        self.registers.took(Timed::Message, sys::now().saturating_sub(begun));
        Ok(())
    }

    fn send_any(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        let own = self.address.vpid.0;
        let length = check(header, parts)?;
        let peer = self.peers.live(to)?;
        if !peer.outlet().emit(own, header.tag, message_flags(header), parts) {
            self.want_room(to);
            return Err(SendError::WouldBlock);
        }
        self.registers.count(Register::MessagesSent, 1);
        self.registers.count(Register::MessageBytesSent, length as u64);
        Ok(())
    }

    pub(crate) fn do_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        let length = check(header, parts)?;
        // Without the broker no member can join; the known members get the message.
        let members = self.group_members(group)?;
        let is_full = |vpid: &u16| self.peers.by_vpid(*vpid).is_some_and(|peer| !peer.takes_more());
        if members.iter().any(is_full) {
            self.want_group_room(group);
            return Err(SendError::WouldBlock);
        }
        let own = self.address.vpid.0;
        let mut sent = 0;
        for vpid in members {
            if let Some(peer) = self.peers.by_vpid(vpid)
                && peer.outlet().emit(own, header.tag, multicast_flags(header, group), parts)
            {
                sent += 1;
            }
        }
        self.group_was_sent_to(group);
        self.registers.count(Register::MessagesSent, sent as u64);
        self.registers.count(Register::MessageBytesSent, (sent * length) as u64);
        Ok(sent)
    }

    /// Remembers a peer that was not rung for, because another operation was to follow.
    #[inline]
    pub(crate) fn note_batch(&mut self, to: Peer) {
        if !self.batches.contains(&to) {
            self.batches.push(to);
        }
    }

    /// Rings for the batches that no operation has ended.
    #[cold]
    pub(crate) fn ring_for_batches(&mut self) {
        let own = self.address.vpid.0;
        for to in std::mem::take(&mut self.batches) {
            if let Ok(peer) = self.peers.find(to) {
                peer.outlet().ring_if_asked(own);
            }
        }
    }

    /// Remembers that a peer's ring was full, so that an event reports when it has room.
    #[cold]
    pub(crate) fn want_room(&mut self, to: Peer) {
        if let Ok(peer) = self.peers.live(to)
            && !peer.wants_room
        {
            peer.wants_room = true;
            let vpid = peer.vpid();
            self.waits_for_room.push(vpid);
        }
    }
}
