//! The machine's side that sends: credits, queues, announcements, their answers.

use weft_fabric::{Issued, Peer, Target, Value};

use crate::error::{MessageError, Offence, SendError, UnshareError};
use crate::event::Notice;
use crate::link::{Announced, Content, Live, Queued};
use crate::machine::{Action, Machine, Piece};
use crate::options::packets;
use crate::packet::{Announcement, HEADER_BYTES, Head, Header, Kind, PAYLOAD_BYTES, Packet};
use crate::share::{CopyRegion, Share};

/// A message that goes in one packet now. It counts only when the endpoint took the packet.
pub struct Slip<'a, R> {
    live: &'a mut Live<R>,
    header: Header,
}

impl<R> Slip<'_, R> {
    /// The header of the packet. Head and body come behind it.
    #[inline]
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        self.header.emit()
    }

    /// The endpoint took the packet.
    #[inline]
    pub fn sent(self) {
        let sender = &mut self.live.sender;
        sender.credits -= 1;
        sender.number = sender.number.wrapping_add(1);
        self.live.returned(self.header.credits);
    }

    /// The mailbox of the peer is full: the program is told when there is room.
    pub fn refused(self) {
        self.live.sender.wants = self.live.sender.wants.max(1);
    }
}

impl<R> std::fmt::Debug for Slip<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slip").field(&self.header).finish()
    }
}

impl<R: Clone> Machine<R> {
    /// Begins a message with a head of `head` bytes, which fits one packet. `None` if it has to
    /// wait behind others: see [`Machine::enqueue`].
    ///
    /// # Errors
    /// [`SendError::WouldBlock`], [`SendError::PeerDown`].
    #[inline]
    pub fn short(&mut self, peer: Peer, head: usize) -> Result<Option<Slip<'_, R>>, SendError> {
        let Some(live) = self.links.live(peer) else {
            return Err(SendError::PeerDown);
        };
        let sender = &mut live.sender;
        if !sender.outbox.is_empty() {
            return Ok(None);
        }
        if sender.credits == 0 {
            sender.wants = sender.wants.max(1);
            return Err(SendError::WouldBlock);
        }
        let number = sender.number;
        let head = head.to_le_bytes()[0];
        let header = Header { head, ..live.header(Kind::Whole, number) };
        Ok(Some(Slip { live, header }))
    }

    /// Accepts a message that goes in packets. Its bytes are copied.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`], [`SendError::PeerDown`].
    pub fn enqueue(
        &mut self,
        peer: Peer,
        head: &[u8],
        parts: &[&[u8]],
        context: u64,
    ) -> Result<u64, SendError> {
        let mut bytes = Vec::with_capacity(head.len() + length_of(parts));
        bytes.extend_from_slice(head);
        for part in parts {
            bytes.extend_from_slice(part);
        }
        let head = Head::new(head).length();
        let packets = packets(bytes.len());
        self.push(peer, Content::Bytes { head, bytes, sent: 0, packets }, context)
    }

    /// Accepts a message whose body is a range of a shared region.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`], [`SendError::PeerDown`], [`SendError::UnknownShare`],
    /// [`SendError::Range`].
    pub fn announce(
        &mut self,
        peer: Peer,
        head: &[u8],
        (share, offset, length): (Share, u64, u64),
        context: u64,
    ) -> Result<u64, SendError> {
        self.shares.check(share, offset, length)?;
        let content = Content::Range { share, offset, length, head: Head::new(head) };
        let id = self.push(peer, content, context)?;
        if let Some(region) = self.shares.begin(share, peer) {
            self.grant(share, peer, region);
        }
        Ok(id)
    }

    fn push(&mut self, peer: Peer, what: Content, context: u64) -> Result<u64, SendError> {
        let (queue_max, outstanding_max) =
            (self.options.queue_packets_max, self.options.outstanding_max);
        self.ids += 1;
        let id = self.ids;
        let Some(live) = self.links.live(peer) else {
            return Err(SendError::PeerDown);
        };
        let sender = &mut live.sender;
        let needed = u32::from(what.packets());
        let is_announced = matches!(what, Content::Range { .. });
        let has_room = sender.packets + needed <= queue_max
            && !(is_announced && sender.outstanding >= outstanding_max);
        if sender.credits < needed || !has_room {
            sender.wants = sender.wants.max(what.packets());
            return Err(SendError::WouldBlock);
        }
        sender.credits -= needed;
        sender.packets += needed;
        sender.outstanding += u32::from(is_announced);
        sender.outbox.push_back(Queued { id, context, is_pending: false, what });
        self.make_ready(peer);
        Ok(id)
    }

    /// How the message that was accepted last stands, after the driver did what was to be done.
    pub fn issued(&mut self, peer: Peer, id: u64) -> Issued {
        let Some(live) = self.live(peer) else { return Issued::Pending };
        match live.sender.outbox.back_mut().filter(|queued| queued.id == id) {
            Some(queued) => {
                queued.is_pending = true;
                Issued::Pending
            }
            None => Issued::Done(Value::Nothing),
        }
    }

    /// Memory for a copy of a body. The message is announced next.
    ///
    /// # Errors
    /// [`SendError::TooLong`], [`SendError::WouldBlock`], [`SendError::PeerDown`].
    pub fn copy_for(&mut self, peer: Peer, length: u64) -> Result<CopyRegion<R>, SendError> {
        if self.live(peer).is_none() {
            return Err(SendError::PeerDown);
        }
        let mut revocations = Vec::new();
        let answer = self.shares.copy_for(peer, length, &mut revocations);
        self.revoke(revocations);
        if matches!(answer, Ok(CopyRegion::Full)) {
            if !self.without_copy.contains(&peer) {
                self.without_copy.push(peer);
            }
            return Err(SendError::WouldBlock);
        }
        answer
    }

    /// Adds the region that [`Machine::copy_for`] asked for.
    pub fn add_copy(&mut self, peer: Peer, region: R, length: u64) -> Share {
        self.shares.add_copy(peer, region, length)
    }

    /// The shared region of a range.
    ///
    /// # Errors
    /// [`SendError::UnknownShare`], [`SendError::Range`].
    pub fn check(&self, share: Share, offset: u64, length: u64) -> Result<&R, SendError> {
        self.shares.check(share, offset, length)
    }

    /// Shares a region of `length` bytes.
    pub fn share(&mut self, region: R, length: u64) -> Share {
        self.shares.share(region, length)
    }

    /// Ends the sharing of a region and revokes its keys.
    ///
    /// # Errors
    /// [`UnshareError`].
    pub fn unshare(&mut self, share: Share) -> Result<(), UnshareError> {
        let mut revocations = Vec::new();
        let result = self.shares.unshare(share, &mut revocations);
        self.revoke(revocations);
        result
    }

    /// Cancels the first message to `peer` with `context` that has not ended. False if there is
    /// none.
    pub fn cancel(&mut self, peer: Peer, context: u64) -> bool {
        let Some(live) = self.live(peer) else { return false };
        let sender = &mut live.sender;
        let untouched = |queued: &Queued| !matches!(queued.what, Content::Bytes { sent: 1.., .. });
        let announced = sender.announced.iter_mut().find(|announced| announced.context == context);
        if let Some(announced) = announced {
            if !announced.is_cancelled {
                announced.is_cancelled = true;
                let number = announced.number;
                sender.answers.push_back((Kind::Cancel, number));
                self.make_ready(peer);
            }
            return true;
        }
        let found = sender.outbox.iter().position(|queued| queued.context == context);
        let Some(place) = found else { return false };
        if !untouched(&sender.outbox[place]) {
            // It ends as it would have, with its last part.
            return true;
        }
        let queued = sender.outbox.remove(place).expect("it was found");
        let packets = u32::from(queued.what.packets());
        sender.credits += packets;
        sender.packets -= packets;
        sender.outstanding -= u32::from(matches!(queued.what, Content::Range { .. }));
        self.fail(queued, MessageError::Cancelled);
        self.make_ready(peer);
        self.tell_room(peer);
        true
    }

    /// A queued message ends with an error.
    pub(crate) fn fail(&mut self, queued: Queued, error: MessageError) {
        let Queued { context, what, .. } = queued;
        self.notices.push_back(Notice::Completion { context, result: Err(error) });
        if let Content::Range { share, .. } = what {
            self.end_use(share);
        }
    }

    /// A message out of a region has ended.
    pub(crate) fn end_use(&mut self, share: Share) {
        if self.shares.end(share) {
            for peer in std::mem::take(&mut self.without_copy) {
                self.notices.push_back(Notice::Room { peer });
            }
        }
    }

    /// Tells the program that there is room, if it was refused and there is.
    pub(crate) fn tell_room(&mut self, peer: Peer) {
        let (queue_max, outstanding_max) =
            (self.options.queue_packets_max, self.options.outstanding_max);
        let Some(live) = self.links.live(peer) else { return };
        let sender = &mut live.sender;
        let wanted = u32::from(sender.wants);
        if wanted > 0
            && !live.stalled
            && sender.credits >= wanted
            && sender.packets + wanted <= queue_max
            && sender.outstanding < outstanding_max
        {
            sender.wants = 0;
            self.notices.push_back(Notice::Room { peer });
        }
    }

    /// The next packet to a peer.
    pub(crate) fn next_packet(&mut self, peer: Peer) -> Option<Action<R>> {
        let Self { links, shares, .. } = self;
        let live = links.live(peer)?;
        let number = live.sender.number;
        let (packet, kind, bytes) = if let Some((kind, number)) = live.sender.answers.front() {
            (Packet::new(live.header(*kind, *number), &[]), *kind, 0)
        } else {
            match live.sender.outbox.front().map(|queued| &queued.what) {
                Some(Content::Bytes { head, bytes, sent, packets: 1 }) => {
                    assert_eq!(*sent, 0, "a message of one packet leaves at once");
                    let header = Header { head: *head, ..live.header(Kind::Whole, number) };
                    (Packet::new(header, bytes), Kind::Whole, bytes.len())
                }
                Some(Content::Bytes { head, bytes, sent, .. }) => {
                    let length = u16::try_from(bytes.len()).expect("packets carry less");
                    let part = &bytes[*sent..bytes.len().min(*sent + PAYLOAD_BYTES)];
                    let header = Header { head: *head, length, ..live.header(Kind::Part, number) };
                    (Packet::new(header, part), Kind::Part, part.len())
                }
                Some(Content::Range { share, offset, length, head })
                    if shares.key(*share, peer).is_some() =>
                {
                    let key = shares.key(*share, peer).expect("the guard saw it");
                    let target = Target::new(key, *offset);
                    let announcement = Announcement { target, length: *length, head: *head };
                    let header = live.header(Kind::Announcement, number);
                    let header = Header { head: head.length(), ..header };
                    (Packet::announcing(header, &announcement), Kind::Announcement, 0)
                }
                // Nothing is to be sent, or its key is being granted.
                _ if live.owes_much() => {
                    (Packet::new(live.header(Kind::Credit, 0), &[]), Kind::Credit, 0)
                }
                _ => return None,
            }
        };
        let piece = Piece { kind, credits: live.credits_to_return(), bytes };
        Some(Action::Transmit { peer, packet, piece })
    }

    /// The endpoint took the packet of the last [`Action::Transmit`].
    pub fn transmitted(&mut self, peer: Peer, piece: Piece) {
        let Some(live) = self.links.live(peer) else { return };
        live.returned(piece.credits);
        let sender = &mut live.sender;
        match piece.kind {
            Kind::Credit => return,
            Kind::Whole | Kind::Part => {
                sender.packets -= 1;
                let Some(Queued { what: Content::Bytes { bytes, sent, .. }, .. }) =
                    sender.outbox.front_mut()
                else {
                    unreachable!("the packet was of the first message")
                };
                *sent += piece.bytes;
                if *sent < bytes.len() {
                    return;
                }
                let queued = sender.outbox.pop_front().expect("it was the first");
                sender.number = sender.number.wrapping_add(1);
                if queued.is_pending {
                    let context = queued.context;
                    self.notices.push_back(Notice::Completion { context, result: Ok(()) });
                }
            }
            Kind::Announcement => {
                let queued = sender.outbox.pop_front().expect("it was the first");
                sender.packets -= 1;
                let Content::Range { share, .. } = queued.what else {
                    unreachable!("the packet announced a range")
                };
                let (number, context) = (sender.number, queued.context);
                sender.number = number.wrapping_add(1);
                sender.announced.push_back(Announced {
                    number,
                    context,
                    share,
                    is_cancelled: false,
                });
            }
            _ => {
                sender.answers.pop_front();
                return;
            }
        }
        self.tell_room(peer);
    }

    /// An answer of the peer to an announced message.
    pub(crate) fn answered(&mut self, peer: Peer, kind: Kind, number: u16) -> Result<(), Offence> {
        let Some(live) = self.live(peer) else { return Ok(()) };
        let sender = &mut live.sender;
        let place = sender.announced.iter().position(|announced| announced.number == number);
        let place = place.ok_or(Offence::NotAsked { number })?;
        if kind == Kind::Cancelled && !sender.announced[place].is_cancelled {
            return Err(Offence::NotAsked { number });
        }
        let announced = sender.announced.remove(place).expect("it was found");
        sender.outstanding -= 1;
        // A cancellation that was not sent yet has nothing to cancel any more.
        sender.answers.retain(|answer| *answer != (Kind::Cancel, number));
        let result = match kind {
            Kind::Done => Ok(()),
            Kind::Refused => Err(MessageError::Refused),
            _ => Err(MessageError::Cancelled),
        };
        let context = announced.context;
        self.notices.push_back(Notice::Completion { context, result });
        self.end_use(announced.share);
        self.tell_room(peer);
        Ok(())
    }

    /// A key for a region was not granted: the messages out of it fail.
    pub(crate) fn grant_failed(&mut self, (share, peer): (Share, Peer), error: &MessageError) {
        self.shares.not_granted(share, peer);
        self.fail_all(share, peer, error);
        self.make_ready(peer);
        self.tell_room(peer);
    }

    /// All messages to `peer` out of a region fail.
    fn fail_all(&mut self, share: Share, peer: Peer, error: &MessageError) {
        let Some(live) = self.live(peer) else { return };
        let of_share = |queued: &Queued| match &queued.what {
            Content::Range { share: other, .. } => *other == share,
            Content::Bytes { .. } => false,
        };
        let sender = &mut live.sender;
        let (failed, kept): (Vec<Queued>, Vec<Queued>) =
            std::mem::take(&mut sender.outbox).into_iter().partition(of_share);
        sender.outbox = kept.into();
        let number = u32::try_from(failed.len()).expect("the queue is bounded");
        sender.credits += number;
        sender.packets -= number;
        sender.outstanding -= number;
        for queued in failed {
            self.fail(queued, error.clone());
        }
    }
}

/// Bytes of all parts.
pub(crate) fn length_of(parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len()))
}
