//! Grants and revocations of own memory, and the keys of peers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use weft_fabric::{
    Access, Audience, GrantError, Issued, LocalRange, OperationError, Peer, RemoteKey, Revoked,
};
use weft_memory::Segment;
use weft_wire::endpoint_control::{Publish, Reply, Resolve, Retract, status};

use crate::address_vector::PeerState;
use crate::broker::BrokerError;
use crate::endpoint::ShmEndpoint;
use crate::memory::{Granted, KeyParts, Mapped, ShmRegion, inside};
use crate::registers::{KEYS_MAX, Stamp};
use crate::requests::{Asked, Resolver};

/// Keys of one peer whose failed resolution is kept until an operation uses them.
const UNRESOLVED_MAX: usize = 64;
/// Stands for all peers in [`Publish::audience`].
const EVERYBODY: u16 = 0xffff;

impl ShmEndpoint {
    pub(crate) fn do_grant(
        &mut self,
        range: LocalRange<'_, ShmRegion>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        if !range.region.belongs_to(&self.regions) {
            return Err(GrantError::ForeignRegion);
        }
        let whole = Access::READ | Access::WRITE;
        let atomic_alone = access.contains(Access::ATOMIC) && !access.contains(whole);
        if access.is_empty() || atomic_alone || Access::from_bits(access.bits()).is_none() {
            return Err(GrantError::InvalidAccess { access: access.bits() });
        }
        range.region.check(range.offset, range.length)?;
        let audience = match audience {
            Audience::Partition => None,
            Audience::Peer(peer) => {
                let peer = self.peers.live(peer).map_err(|_| GrantError::Peer)?;
                Some((peer.vpid(), peer.birth))
            }
        };
        let LocalRange { region, offset: start, length } = range;
        let granted = Granted { region: region.clone(), start, length, access, audience };
        let maximum = usize::from(KEYS_MAX);
        let exhausted = GrantError::Exhausted { maximum };
        let (slot, generation) = self.grants.ask(granted.clone()).ok_or(exhausted)?;
        let key = KeyParts { vpid: self.address.vpid.0, slot, generation }.key();
        let started = self.publication(slot, generation, &granted).and_then(|(publish, file)| {
            let asked = Asked::Grant { key };
            Ok(self.start(publish.ticket, publish, &[file.as_fd()], asked, Some(context))?)
        });
        if started.is_err() {
            self.grants.give_up(slot, generation);
        }
        started?.issued(|error| match error {
            OperationError::Grant(error) => Some(error),
            _ => None,
        })
    }

    /// The request that publishes a key, and the descriptor that goes with it.
    fn publication(
        &mut self,
        slot: u16,
        generation: u32,
        granted: &Granted,
    ) -> Result<(Publish, Arc<OwnedFd>), GrantError> {
        let Granted { region, start, length, access, audience } = granted;
        let whole = region.memory().file();
        let file = if access.contains(Access::WRITE) {
            whole
        } else {
            let file = Segment::reopen_read_only(whole.as_fd());
            let refused = |reason: String| GrantError::Broker { reason };
            Arc::new(file.map_err(|error| refused(error.to_string()))?)
        };
        let (audience, audience_birth) = audience.unwrap_or((EVERYBODY, 0));
        let publish = Publish {
            ticket: self.next_ticket(),
            vpid: self.address.vpid.0,
            slot,
            generation,
            access: access.bits(),
            start: *start,
            length: *length,
            audience,
            audience_birth,
        };
        Ok((publish, file))
    }

    /// The broker answered a grant.
    pub(crate) fn granted(&mut self, key: RemoteKey, reply: Reply, context: Option<u64>) {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        let error = match reply.status {
            status::DONE if context.is_some() => None,
            // The call was given up meanwhile.
            status::DONE => Some(GrantError::UnknownKey),
            status::EXHAUSTED => Some(GrantError::Exhausted {
                maximum: usize::try_from(reply.first).unwrap_or(usize::MAX),
            }),
            _ => Some(BrokerError::InvalidAnswer.into()),
        };
        let result = match error {
            None => {
                self.registers.set_stamp(slot, Stamp::of(generation));
                self.grants.fill(slot, generation);
                Ok(key.0)
            }
            Some(error) => {
                self.give_up_grant(key);
                Err(OperationError::Grant(error))
            }
        };
        self.requests.end(reply.ticket, context, result);
    }

    /// Frees the slot of a key that is not in force yet.
    pub(crate) fn free_grant(&mut self, key: RemoteKey) {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        self.grants.give_up(slot, generation);
    }

    /// Gives up a key that is not in force yet, though the broker may know of it.
    pub(crate) fn give_up_grant(&mut self, key: RemoteKey) {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        self.grants.give_up(slot, generation);
        let retract = self.retraction(slot, generation);
        let _ = self.send_request(retract.ticket, retract, &[], Asked::Notice, None);
    }

    fn retraction(&mut self, slot: u16, generation: u32) -> Retract {
        Retract { ticket: self.next_ticket(), vpid: self.address.vpid.0, slot, generation }
    }

    pub(crate) fn do_revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        let KeyParts { vpid, slot, generation } = KeyParts::of(key);
        if vpid != self.address.vpid.0 {
            return Err(GrantError::UnknownKey);
        }
        let emptied = self.grants.empty(slot, generation);
        let (next, Granted { region, access, .. }) = emptied.ok_or(GrantError::UnknownKey)?;
        // From here on initiators refuse the key, whether the broker answers or not.
        self.registers.set_stamp(slot, Stamp::of(next));
        weft_sync::fence::heavy();
        let writable = access.contains(Access::WRITE);
        let retract = self.retraction(slot, generation);
        let ticket = retract.ticket;
        let asked = Asked::Revoke { region: region.clone(), writable };
        if let Ok(started) = self.start(ticket, retract, &[], asked, Some(context)) {
            return started.issued(|error| match error {
                OperationError::Grant(error) => Some(error),
                _ => None,
            });
        }
        // A broker that cannot be reached may have passed the memory to a peer.
        self.withdrawn(ticket, &region, writable, 1, Revoked::Local, Some(context));
        match self.requests.take_ended(ticket) {
            Some(Err(OperationError::Grant(error))) => Err(error),
            Some(Ok(value)) => Ok(Issued::Done(value)),
            _ => Ok(Issued::Pending),
        }
    }

    /// A key is withdrawn: takes its memory out of reach of the peers that mapped it. `handed_out`
    /// is how often the broker passed the memory.
    ///
    /// The memory is moved only when no remaining key allows writing, so no peer with a valid key
    /// writes during the move, and when no other endpoint granted a key to it.
    pub(crate) fn withdrawn(
        &mut self,
        ticket: u32,
        region: &ShmRegion,
        writable: bool,
        handed_out: u64,
        revoked: Revoked,
        context: Option<u64>,
    ) {
        let value = revoked.value();
        let remaining: Vec<(u16, u32, Granted)> = self
            .grants
            .iter()
            .filter(|(.., granted)| granted.region.memory().is(region.memory()))
            .map(|(slot, generation, granted)| (slot, generation, granted.clone()))
            .collect();
        let others_write =
            remaining.iter().any(|(.., granted)| granted.access.contains(Access::WRITE));
        let others_read = !remaining.is_empty() && !writable;
        // Only the endpoint that granted a key can publish new memory for it.
        let of_others = region.memory().keys() > remaining.len();
        if handed_out == 0 || others_write || others_read || of_others {
            self.requests.end(ticket, context, Ok(value));
            return;
        }
        if let Err(error) = region.memory().move_away() {
            let reason = format!("the memory could not be moved out of reach: {error}");
            let error = OperationError::Grant(GrantError::Broker { reason });
            self.requests.end(ticket, context, Err(error));
            return;
        }
        // The call ends when the last of the remaining keys leads to the new memory.
        let mut waits = context;
        for (slot, generation, granted) in remaining.into_iter().rev() {
            let stamp = self.registers.stamp(slot).moved();
            let again = Asked::Again { slot, stamp, call: ticket, value };
            if self.publish_again(slot, generation, &granted, again, waits) {
                waits = None;
            }
        }
        self.requests.end(ticket, waits, Ok(value));
    }

    /// Asks the broker to replace the memory of a key. False if the broker cannot be reached.
    fn publish_again(
        &mut self,
        slot: u16,
        generation: u32,
        granted: &Granted,
        asked: Asked,
        context: Option<u64>,
    ) -> bool {
        let Ok((publish, file)) = self.publication(slot, generation, granted) else { return false };
        self.send_request(publish.ticket, publish, &[file.as_fd()], asked, context).is_ok()
    }

    /// The broker has the new memory of a key.
    pub(crate) fn published_again(&mut self, slot: u16, stamp: Stamp) {
        // The key may have been revoked meanwhile.
        let is_in_force = |(of, generation, _): (u16, u32, &Granted)| {
            of == slot && generation == stamp.generation()
        };
        if self.grants.iter().any(is_in_force) {
            self.registers.set_stamp(slot, stamp);
        }
    }

    /// Publishes all keys at a broker that was restarted.
    pub(crate) fn publish_all(&mut self) {
        let keys: Vec<(u16, u32, Granted)> = self
            .grants
            .iter()
            .map(|(slot, generation, granted)| (slot, generation, granted.clone()))
            .collect();
        for (slot, generation, granted) in keys {
            let stamp = self.registers.stamp(slot);
            let again = Asked::Again { slot, stamp, call: 0, value: 0 };
            self.publish_again(slot, generation, &granted, again, None);
        }
    }

    pub(crate) fn do_resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        if self.peers.live(of)?.split(key).is_some() {
            return Ok(Issued::Done(0));
        }
        let ticket = self.ask_for_memory(of, key, Resolver::Call, Some(context))?;
        match self.requests.take_ended(ticket) {
            Some(result) => result.map(Issued::Done),
            None => Ok(Issued::Pending),
        }
    }

    /// Maps the memory behind a peer's key for an operation, which is refused for lack of room if
    /// the broker does not answer at once.
    #[cold]
    pub(crate) fn resolve(&mut self, to: Peer, key: RemoteKey) -> Result<(), OperationError> {
        let refused = |peer: &mut PeerState| {
            let place = peer.unresolved.iter().position(|(of, _)| *of == key)?;
            Some(peer.unresolved.swap_remove(place).1)
        };
        if let Some(error) = refused(self.peers.live(to)?) {
            return Err(error);
        }
        if self.requests.refuses(key) {
            return Err(OperationError::WouldBlock);
        }
        self.ask_for_memory(to, key, Resolver::Operation, None)?;
        if self.requests.refuses(key) {
            return Err(OperationError::WouldBlock);
        }
        refused(self.peers.live(to)?).map_or(Ok(()), Err)
    }

    /// Asks the broker for the memory of a peer's key. Returns the ticket of the request.
    fn ask_for_memory(
        &mut self,
        of: Peer,
        key: RemoteKey,
        for_whom: Resolver,
        context: Option<u64>,
    ) -> Result<u32, OperationError> {
        let parts = KeyParts::of(key);
        let peer = self.peers.live(of)?;
        if parts.vpid != peer.vpid() || parts.slot >= KEYS_MAX {
            return Err(OperationError::InvalidKey);
        }
        // The stamp is read before the request. If the stamp changes meanwhile, the mapping does
        // not match it and the key is resolved again.
        let stamp = peer.registers.stamp(parts.slot);
        if stamp.generation() != parts.generation {
            return Err(OperationError::InvalidKey);
        }
        let ticket = self.next_ticket();
        let ask = Resolve {
            ticket,
            vpid: self.address.vpid.0,
            owner: parts.vpid,
            slot: parts.slot,
            generation: parts.generation,
        };
        self.handle_broker_messages();
        let asked = Asked::Resolve { peer: of, key, stamp, for_whom };
        self.send_request(ticket, ask, &[], asked, context)
            .map_err(|error| OperationError::Broker { reason: error.to_string() })?;
        self.handle_broker_messages();
        Ok(ticket)
    }

    /// A resolve has ended.
    pub(crate) fn resolved(
        &mut self,
        of: Peer,
        key: RemoteKey,
        result: Result<Mapped, OperationError>,
        for_whom: Resolver,
        (ticket, context): (u32, Option<u64>),
    ) {
        let mut end = Ok(0);
        match (result, self.peers.live(of)) {
            (_, Err(lost)) => end = Err(lost.into()),
            (Ok(mapped), Ok(peer)) => {
                let place = usize::from(KeyParts::of(key).slot);
                if peer.keys.len() <= place {
                    peer.keys.resize(place + 1, None);
                }
                peer.keys[place] = Some(mapped);
                peer.unresolved.retain(|(of, _)| *of != key);
            }
            (Err(error), Ok(peer)) => {
                // The next operation that uses the key gets the reason.
                if for_whom != Resolver::Call {
                    if peer.unresolved.len() >= UNRESOLVED_MAX {
                        peer.unresolved.remove(0);
                    }
                    peer.unresolved.push((key, error.clone()));
                }
                end = Err(error);
            }
        }
        if for_whom == Resolver::Refused && self.peers.live(of).is_ok() {
            self.requests.tell_room(of);
        }
        self.requests.end(ticket, context, end);
    }
}

/// The memory that the broker passed for a key.
pub(crate) fn mapped(
    key: RemoteKey,
    stamp: Stamp,
    reply: Reply,
    files: Vec<OwnedFd>,
) -> Result<Mapped, OperationError> {
    if reply.status == status::NOT_FOUND {
        return Err(OperationError::InvalidKey);
    }
    let broker = |reason: String| OperationError::Broker { reason };
    let invalid = || broker(BrokerError::InvalidAnswer.to_string());
    let file = <[OwnedFd; 1]>::try_from(files).ok().filter(|_| reply.status == status::DONE);
    let [file] = file.ok_or_else(invalid)?;
    let (length, start) = (reply.first, reply.second >> 8);
    let access = Access::from_bits(reply.second.to_le_bytes()[0]).ok_or_else(invalid)?;
    if access.contains(Access::ATOMIC) && !access.contains(Access::READ | Access::WRITE) {
        return Err(invalid());
    }
    let refused = |error: weft_memory::SegmentError| broker(error.to_string());
    let bytes = Segment::sealed_length(file.as_fd()).map_err(refused)?;
    let start = inside(start, length, bytes).ok_or_else(invalid)?;
    let bytes = usize::try_from(bytes).map_err(|_| invalid())?;
    let writable = access.contains(Access::WRITE);
    let segment = Arc::new(Segment::open(file.as_fd(), bytes, writable).map_err(refused)?);
    Ok(Mapped { key, stamp, access, start, length, segment })
}
