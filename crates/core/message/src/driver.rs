//! The driver: the messages of one endpoint. All calls of the endpoint are here.

use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Endpoint, Event as FabricEvent, Issued, LocalRange, MessageHeader,
    Operation, OperationError, Peer, Region, Value, Waited,
};

use crate::error::{PlaceError, SendError, UnshareError};
use crate::event::{Event, Ticket};
use crate::machine::{Action, Census, Machine};
use crate::options::Options;
use crate::packet::{HEAD_BYTES_MAX, PAYLOAD_BYTES};
use crate::sending::length_of;
use crate::share::{CopyRegion, Share};

/// Contexts with this bit are those of messages. A program that starts operations of its own on the
/// endpoint uses contexts below it.
pub const OWN_CONTEXTS: u64 = 1 << 63;

/// Messages of any length over an endpoint.
#[derive(Debug)]
pub struct Messages<E: Endpoint> {
    endpoint: E,
    machine: Machine<E::Region>,
    header: MessageHeader,
    eager_bytes_max: usize,
}

impl<E: Endpoint> Messages<E> {
    /// Messages over `endpoint`, which has its peers from its own `connect`, and from messages
    /// that come.
    ///
    /// # Panics
    /// When an option is out of its range.
    #[must_use]
    pub fn new(endpoint: E, options: Options) -> Self {
        let header = MessageHeader::tag(options.tag);
        let eager_bytes_max = options.eager_bytes_max;
        Self { endpoint, machine: Machine::new(options), header, eager_bytes_max }
    }

    /// The endpoint, for everything else that it does.
    ///
    /// Its events come by [`Messages::poll`], and its `wait` and `arm` know nothing of events that
    /// wait here: use [`Messages::wait`] and [`Messages::arm`]. Messages of the own tag and
    /// contexts from [`OWN_CONTEXTS`] on are not the program's.
    pub fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// The things held at present, by number.
    #[must_use]
    pub fn census(&self) -> Census {
        self.machine.census()
    }

    /// Sends a message: a head of up to [`HEAD_BYTES_MAX`] bytes and a body of `parts`, which may
    /// be reused when the call returns.
    ///
    /// Up to [`Options::eager_bytes_max`] bytes go as packets, and [`Issued::Done`] says that all
    /// were accepted. Of a longer message the body is copied and announced. A
    /// message that is [`Issued::Pending`] ends by [`Event::Completion`].
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(
        &mut self,
        to: Peer,
        head: &[u8],
        parts: &[&[u8]],
        context: u64,
    ) -> Result<Issued, SendError> {
        let [body] = parts else { return self.send_other(to, head, parts, context, Ok(())) };
        if head.len() <= HEAD_BYTES_MAX && head.len() + body.len() <= PAYLOAD_BYTES {
            let slip = match self.machine.short(to, head.len()) {
                Ok(Some(slip)) => slip,
                Ok(None) => return self.send_other(to, head, parts, context, Ok(())),
                Err(error) => return self.send_other(to, head, parts, context, Err(error)),
            };
            let header = slip.header();
            // A part without bytes costs as much as one with some.
            let sent = if head.is_empty() {
                self.endpoint.send_short(to, self.header, &[&header, body])
            } else {
                self.endpoint.send_short(to, self.header, &[&header, head, body])
            };
            return match sent {
                Ok(()) => {
                    slip.sent();
                    Ok(Issued::Done(Value::Nothing))
                }
                Err(error) => {
                    let error = send_error(&error);
                    if error == SendError::WouldBlock {
                        slip.refused();
                    }
                    Err(error)
                }
            };
        }
        self.send_other(to, head, parts, context, Ok(()))
    }

    /// Sends a message whose bytes wait for others, or do not fit a packet, or whose peer is new.
    #[inline(never)]
    fn send_other(
        &mut self,
        to: Peer,
        head: &[u8],
        parts: &[&[u8]],
        context: u64,
        before: Result<(), SendError>,
    ) -> Result<Issued, SendError> {
        if !self.machine.knows(to) {
            self.greet(to)?;
            return self.send(to, head, parts, context);
        }
        before?;
        check_head(head)?;
        let length = length_of(parts);
        if head.len().saturating_add(length) <= self.eager_bytes_max {
            let id = self.machine.enqueue(to, head, parts, context)?;
            self.flush();
            return Ok(self.machine.issued(to, id));
        }
        let share = self.copy(to, parts, length as u64)?;
        self.announce(to, head, (share, 0, length as u64), context)
    }

    /// Sends a message whose body is a range of a region that the program shared. It must not
    /// change until the message ends. Ranges of up to [`Options::eager_bytes_max`] bytes, with the
    /// head, go as packets.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_range(
        &mut self,
        to: Peer,
        head: &[u8],
        (share, offset, length): (Share, u64, u64),
        context: u64,
    ) -> Result<Issued, SendError> {
        check_head(head)?;
        if !self.machine.knows(to) {
            self.greet(to)?;
        }
        let eager = self.eager_bytes_max - head.len();
        match usize::try_from(length) {
            Ok(short) if short <= eager => {
                let mut bytes = vec![0; short];
                self.machine.check(share, offset, length)?.read(offset, &mut bytes)?;
                self.send(to, head, &[&bytes], context)
            }
            _ => self.announce(to, head, (share, offset, length), context),
        }
    }

    fn announce(
        &mut self,
        to: Peer,
        head: &[u8],
        range: (Share, u64, u64),
        context: u64,
    ) -> Result<Issued, SendError> {
        self.machine.announce(to, head, range, context)?;
        self.flush();
        Ok(Issued::Pending)
    }

    /// Copies a body into memory that the peer may read.
    fn copy(&mut self, to: Peer, parts: &[&[u8]], length: u64) -> Result<Share, SendError> {
        let answer = self.machine.copy_for(to, length);
        // Memory of others may have made place, and its keys are to be revoked first.
        self.flush();
        let (share, region) = match answer? {
            CopyRegion::Idle(share, region) => (share, region),
            CopyRegion::Register(bytes) => {
                let region = self.endpoint.register(bytes)?;
                (self.machine.add_copy(to, region.clone(), bytes), region)
            }
            CopyRegion::Full => return Err(SendError::WouldBlock),
        };
        let mut at = 0;
        for part in parts {
            region.write(at, part)?;
            at += part.len() as u64;
        }
        Ok(share)
    }

    /// Sends the first packet to a peer. The endpoint knows whether there is such a peer.
    fn greet(&mut self, to: Peer) -> Result<(), SendError> {
        let greeting = Machine::<E::Region>::greeting(self.machine.options());
        match self.endpoint.send_short(to, self.header, &[&greeting]) {
            Ok(()) => self.machine.greeted(to),
            Err(error) if send_error(&error) == SendError::WouldBlock => {
                self.machine.greet(to);
                self.machine.stalled(to);
            }
            Err(error) => return Err(send_error(&error)),
        }
        Ok(())
    }

    /// Shares a region of this endpoint, so that ranges of it are sent without a copy.
    ///
    /// A peer that was sent such a range can read the whole region, until it is not shared any
    /// more or the peer is down.
    pub fn share(&mut self, region: &E::Region) -> Share {
        self.machine.share(region.clone(), region.length())
    }

    /// Ends the sharing of a region and revokes its keys.
    ///
    /// # Errors
    /// [`UnshareError`].
    pub fn unshare(&mut self, share: Share) -> Result<(), UnshareError> {
        self.machine.unshare(share)?;
        self.flush();
        Ok(())
    }

    /// Cancels the first pending message to `to` with `context`. False if there is none.
    ///
    /// It ends with [`crate::MessageError::Cancelled`] if nothing of it was sent, or if it was
    /// announced and its receiver had not begun. Else it ends as it would have.
    pub fn cancel(&mut self, to: Peer, context: u64) -> bool {
        let found = self.machine.cancel(to, context);
        self.flush();
        found
    }

    /// Gives memory for an announced message: a range of `region` that begins at `offset`. Nobody
    /// else may use it until [`Event::Message`] or [`Event::Lost`] has the ticket.
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`], [`PlaceError::Range`].
    pub fn accept_into(
        &mut self,
        ticket: Ticket,
        region: &E::Region,
        offset: u64,
    ) -> Result<(), PlaceError> {
        self.machine.accept_into(ticket, (region.clone(), region.length(), offset))?;
        self.flush();
        Ok(())
    }

    /// Takes an announced message into memory of the messages.
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`], [`PlaceError::TooLong`].
    pub fn accept(&mut self, ticket: Ticket) -> Result<(), PlaceError> {
        self.machine.accept(ticket)?;
        self.flush();
        Ok(())
    }

    /// Does not take an announced message. It ends with [`crate::MessageError::Refused`].
    ///
    /// # Errors
    /// [`PlaceError::UnknownTicket`].
    pub fn refuse(&mut self, ticket: Ticket) -> Result<(), PlaceError> {
        self.machine.refuse(ticket)?;
        self.flush();
        Ok(())
    }

    /// Takes up to `budget` events of the endpoint, passes what follows from them to `sink`, and
    /// returns the number of events passed. Never blocks. Makes progress.
    #[inline]
    pub fn poll(&mut self, budget: usize, mut sink: impl FnMut(Event<'_, E::Region>)) -> usize {
        let mut passed = 0;
        let mut sink = |event: Event<'_, E::Region>| {
            passed += 1;
            sink(event);
        };
        let Self { endpoint, machine, header, .. } = self;
        endpoint.poll(budget, &mut |event| match event {
            FabricEvent::Message(message) if message.header.tag == header.tag => {
                let is_to_group = message.group.is_some();
                machine.packet(message.peer, is_to_group, message.payload, &mut sink);
            }
            other => other_event(machine, other, &mut sink),
        });
        while self.machine.is_busy() {
            self.flush();
            self.machine.hand_out(&mut sink);
        }
        passed
    }

    /// As [`Endpoint::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        if self.machine.has_events() { Waited::Ready } else { self.endpoint.wait(timeout) }
    }

    /// As [`Endpoint::arm`].
    pub fn arm(&mut self) -> Armed {
        if self.machine.has_events() { Armed::Busy } else { self.endpoint.arm() }
    }

    /// Does what the machine wants done, as far as the endpoint has room.
    fn flush(&mut self) {
        while let Some(action) = self.machine.next_action() {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action<E::Region>) {
        let Self { endpoint, machine, header, .. } = self;
        match action {
            Action::Transmit { peer, packet, piece } => {
                match endpoint.send_short(peer, *header, &[&packet]) {
                    Ok(()) => machine.transmitted(peer, piece),
                    // Of a peer that is down the endpoint reports that next.
                    Err(_) => machine.stalled(peer),
                }
            }
            Action::Allocate { ticket, bytes } => {
                machine.allocated(ticket, bytes, endpoint.register(bytes).ok());
            }
            Action::Get { operation, peer, target, region, offset, length } => {
                let into = LocalRange::new(&region, offset, length);
                let how = Operation::new(own_context(operation));
                match endpoint.get(peer, target, into, how) {
                    Ok(Issued::Done(value)) => machine.completed(operation, Ok(value)),
                    Ok(Issued::Pending) => {}
                    Err(OperationError::WouldBlock) => machine.blocked(operation),
                    Err(error) => machine.completed(operation, Err(error)),
                }
            }
            Action::Grant { operation, peer, region } => {
                let range = LocalRange::whole(&region);
                let (audience, context) = (Audience::Peer(peer), own_context(operation));
                match endpoint.grant(range, audience, Access::READ, context) {
                    Ok(Issued::Done(value)) => machine.completed(operation, Ok(value)),
                    Ok(Issued::Pending) => {}
                    Err(error) => machine.completed(operation, Err(error.into())),
                }
            }
            Action::Revoke { operation, key } => {
                match endpoint.revoke(key, own_context(operation)) {
                    Ok(Issued::Done(value)) => machine.completed(operation, Ok(value)),
                    Ok(Issued::Pending) => {}
                    // A key that cannot be revoked is none any more.
                    Err(error) => machine.completed(operation, Err(error.into())),
                }
            }
            // A peer that is down already needs nothing more.
            Action::Disconnect { peer } => drop(endpoint.disconnect(peer)),
        }
    }
}

/// The context of an operation of the machine.
fn own_context(operation: u32) -> u64 {
    OWN_CONTEXTS | u64::from(operation)
}

/// Handles an event that is no packet.
#[inline(never)]
fn other_event<R: Clone>(
    machine: &mut Machine<R>,
    event: FabricEvent<'_>,
    sink: &mut impl FnMut(Event<'_, R>),
) {
    match &event {
        FabricEvent::Completion(completion) if completion.context >= OWN_CONTEXTS => {
            let operation = u32::try_from(completion.context ^ OWN_CONTEXTS);
            let operation = operation.expect("the machine has fewer than 2^32 operations");
            return machine.completed(operation, completion.result.clone());
        }
        FabricEvent::PeerDown { peer, .. } => machine.down(*peer, sink),
        FabricEvent::Room { peer } => machine.room(*peer),
        _ => {}
    }
    sink(Event::Endpoint(event));
}

fn check_head(head: &[u8]) -> Result<(), SendError> {
    let (length, maximum) = (head.len(), HEAD_BYTES_MAX);
    if length > maximum {
        return Err(SendError::HeadTooLong { length, maximum });
    }
    Ok(())
}

fn send_error(error: &weft_fabric::SendError) -> SendError {
    match error {
        weft_fabric::SendError::WouldBlock => SendError::WouldBlock,
        weft_fabric::SendError::UnknownPeer => SendError::UnknownPeer,
        _ => SendError::PeerDown,
    }
}
