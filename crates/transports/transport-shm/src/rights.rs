//! Grants and revocations of own memory, and the keys of peers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_broker::answers::{self, KeyFound};
use weft_broker::{ANSWER_WITHIN, BrokerError};
use weft_fabric::{
    Access, Audience, GrantError, Issued, LocalRange, OperationError, Peer, RemoteKey, Revoked,
    Value,
};
use weft_memory::Segment;
use weft_wire::endpoint_control::{Publish, Reply, Resolve, Retract, memory, status};

use crate::address_vector::PeerState;
use crate::endpoint::ShmEndpoint;
use crate::memory::{Granted, KeyParts, Mapped, ShmRegion, inside};
use crate::moves::Call;
use crate::registers::{KEYS_MAX, Stamp};
use crate::requests::{Asked, Question, Resolver, Waiting};
use crate::sys;
use crate::ways::InPlace;

/// Keys of one peer whose failed resolution is kept until an operation uses them.
const UNRESOLVED_MAX: usize = 64;
/// After how long a broker that could not be asked, or that was restarted and did not know the key,
/// is asked again.
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How long endpoints take to tell a restarted broker of their keys. The system puts some of them
/// off.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(2);
/// Stands for all peers in [`Publish::audience`].
const EVERYBODY: u16 = 0xffff;

/// The request that publishes a key, and its memory.
pub(crate) struct Publication {
    pub publish: Publish,
    /// The memory, as it was after `moves` moves; `None` for memory in place.
    pub file: Option<Arc<OwnedFd>>,
    pub moves: u32,
}

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
        access.check_key()?;
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
        let maximum = self.capabilities.keys_max;
        let exhausted = GrantError::Exhausted { maximum };
        if self.grants.count() >= maximum {
            return Err(exhausted);
        }
        let (slot, generation) = self.grants.ask(granted.clone()).ok_or(exhausted)?;
        let key = KeyParts { vpid: self.address.vpid.0, slot, generation }.key();
        let started = self.publication(slot, generation, &granted).and_then(|publication| {
            let Publication { publish, file, moves } = publication;
            let asked = Asked::Grant { key, moves };
            let files = descriptors(&file);
            Ok(self.start_request(publish.ticket, publish, &files, asked, Some(context))?)
        });
        if started.is_err() {
            self.grants.give_up(slot, generation);
        }
        started?.issued(|error| match error {
            OperationError::Grant(error) => Some(error),
            _ => None,
        })
    }

    /// The request that publishes a key, and what goes with it.
    pub(crate) fn publication(
        &mut self,
        slot: u16,
        generation: u32,
        granted: &Granted,
    ) -> Result<Publication, GrantError> {
        let Granted { region, start, length, access, audience } = granted;
        let (whole, moves) = region.memory().file_and_moves();
        let (file, memory, start) = match whole {
            None => (None, memory::IN_PLACE, region.address_of(*start)),
            Some(whole) if access.contains(Access::WRITE) => (Some(whole), memory::FILE, *start),
            Some(whole) => {
                let file = Segment::reopen_read_only(whole.as_fd());
                let refused = |reason: String| GrantError::Broker { reason };
                let file = file.map_err(|error| refused(error.to_string()))?;
                (Some(Arc::new(file)), memory::FILE, *start)
            }
        };
        let (audience, audience_birth) = audience.unwrap_or((EVERYBODY, 0));
        let publish = Publish {
            ticket: self.broker.next_ticket(),
            vpid: self.address.vpid.0,
            slot,
            generation,
            access: access.bits(),
            memory,
            start,
            length: *length,
            audience,
            audience_birth,
        };
        Ok(Publication { publish, file, moves })
    }

    /// The broker answered a grant, to which it has the memory as it was after `moves` moves.
    pub(crate) fn granted(
        &mut self,
        key: RemoteKey,
        moves: u32,
        reply: Reply,
        context: Option<u64>,
    ) {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        let error = match reply.status {
            status::DONE if context.is_some() => None,
            // The call was given up meanwhile.
            status::DONE => Some(GrantError::UnknownKey),
            status::EXHAUSTED => Some(GrantError::Exhausted { maximum: answers::maximum(&reply) }),
            _ => Some(BrokerError::InvalidAnswer.into()),
        };
        let result = match error {
            None => {
                self.grants.fill(slot, generation);
                self.put_in_force(slot, generation, moves);
                Ok(Value::Key(key))
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
        let Some(lost) = self.grants.give_up(slot, generation) else { return };
        // A peer may have guessed the key and got the memory.
        let retract = self.retraction(slot, generation);
        let _ = self.send_request(retract.ticket, retract, &[], Asked::Revoke { lost }, None);
    }

    fn retraction(&mut self, slot: u16, generation: u32) -> Retract {
        Retract { ticket: self.broker.next_ticket(), vpid: self.address.vpid.0, slot, generation }
    }

    pub(crate) fn do_revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        let KeyParts { vpid, slot, generation } = KeyParts::of(key);
        if vpid != self.address.vpid.0 {
            return Err(GrantError::UnknownKey);
        }
        let emptied = self.grants.empty(slot, generation);
        let (_, lost) = emptied.ok_or(GrantError::UnknownKey)?;
        // From here on initiators refuse the key, whether the broker answers or not.
        lost.region.sharing().void(&self.granter, slot);
        weft_sync::fence::heavy();
        let retract = self.retraction(slot, generation);
        let ticket = retract.ticket;
        let asked = Asked::Revoke { lost: lost.clone() };
        if let Ok(started) = self.start_request(ticket, retract, &[], asked, Some(context)) {
            return started.issued(|error| match error {
                OperationError::Grant(error) => Some(error),
                _ => None,
            });
        }
        // A broker that cannot be reached may have passed the memory to a peer.
        let call = Call { ticket, context: Some(context), revoked: Revoked::Local };
        self.withdrawn(&lost, 1, call);
        match self.requests.take_ended(ticket) {
            Some(Err(OperationError::Grant(error))) => Err(error),
            Some(Ok(value)) => Ok(Issued::Done(value)),
            _ => Ok(Issued::Pending),
        }
    }

    pub(crate) fn do_resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        let peer = self.peers.find(of)?;
        if peer.split(key).is_some() || peer.in_place(key).is_some() {
            return Ok(Issued::Done(Value::Nothing));
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
        if let Some(error) = refused(self.peers.find(to)?) {
            return Err(error);
        }
        if self.refuses(key) {
            return Err(OperationError::WouldBlock);
        }
        self.ask_for_memory(to, key, Resolver::Operation, None)?;
        if self.refuses(key) {
            return Err(OperationError::WouldBlock);
        }
        refused(self.peers.find(to)?).map_or(Ok(()), Err)
    }

    /// Asks the broker for the memory of a peer's key. Returns the ticket of the request.
    fn ask_for_memory(
        &mut self,
        of: Peer,
        key: RemoteKey,
        for_whom: Resolver,
        context: Option<u64>,
    ) -> Result<u32, OperationError> {
        self.handle_broker_messages();
        let ticket = self.broker.next_ticket();
        let until = sys::now().saturating_add(ANSWER_WITHIN);
        self.ask_as(ticket, Waiting { peer: of, key, for_whom, context, until })?;
        self.handle_broker_messages();
        Ok(ticket)
    }

    /// Asks the broker for the memory of a peer's key, or first waits for the end of a move, or for
    /// the broker.
    fn ask_as(&mut self, ticket: u32, resolve: Waiting) -> Result<(), OperationError> {
        let Waiting { peer: of, key, for_whom, context, until } = resolve;
        let KeyParts { vpid: owner, slot, generation } = KeyParts::of(key);
        let peer = self.peers.find(of)?;
        if owner != peer.vpid() || slot >= KEYS_MAX {
            return Err(OperationError::InvalidKey);
        }
        // The stamp is read before the request. If the stamp changes meanwhile, the mapping does
        // not match it and the key is resolved again.
        let stamp = peer.registers.stamp(slot);
        if stamp.generation() != generation {
            return Err(OperationError::InvalidKey);
        }
        let asked = if stamp.is_moving() {
            let not_before = Duration::ZERO;
            let asked = Asked::Settle { peer: of, key, for_whom, not_before };
            self.check_requests()
                .map(|()| self.broker.put_off(ticket, Question { asked, context }, until))
        } else {
            let vpid = self.address.vpid.0;
            let ask = Resolve { ticket, vpid, owner, slot, generation };
            let asked = Asked::Resolve { peer: of, key, stamp, for_whom, until };
            let sent = self.send_until(ticket, ask, &[], Question { asked, context }, until);
            if sent.is_err() && self.check_requests().is_ok() {
                // There is no broker just now, or it is new and does not know this endpoint yet.
                self.resolve_later(ticket, resolve);
                return Ok(());
            }
            sent
        };
        asked.map_err(|error| OperationError::Broker { reason: error.to_string() })
    }

    /// Whether the owner of a peer's key has it in force, but may not have told a broker yet that
    /// was restarted a moment ago.
    pub(crate) fn may_be_told_of(&mut self, of: Peer, key: RemoteKey) -> bool {
        let KeyParts { slot, generation, .. } = KeyParts::of(key);
        let is_in_force = |peer: &mut PeerState| {
            slot < KEYS_MAX && peer.registers.stamp(slot).generation() == generation
        };
        let is_new = |restarted| sys::now().saturating_sub(restarted) < ANNOUNCED_WITHIN;
        self.restarted.is_some_and(is_new) && self.peers.find(of).is_ok_and(is_in_force)
    }

    /// Asks for the memory of a peer's key again, after a while. There is room for the request.
    pub(crate) fn resolve_later(&mut self, ticket: u32, resolve: Waiting) {
        let Waiting { peer, key, for_whom, context, until } = resolve;
        let not_before = sys::now().saturating_add(ASK_AGAIN_AFTER);
        let asked = Asked::Settle { peer, key, for_whom, not_before };
        self.broker.put_off(ticket, Question { asked, context }, until);
    }

    /// Asks for the memory of the peers' keys that are no longer being moved, and for that of which
    /// a restarted broker did not know.
    pub(crate) fn ask_where_settled(&mut self) {
        if self.broker.is_lost() {
            return;
        }
        let (peers, now) = (&mut self.peers, sys::now());
        let settled = self.broker.take_put_off(|question| match question.asked {
            Asked::Settle { peer, key, not_before, .. } if not_before <= now => {
                let slot = KeyParts::of(key).slot;
                peers.find(peer).map_or(true, |peer| !peer.registers.stamp(slot).is_moving())
            }
            _ => false,
        });
        for (ticket, Question { asked, context }, until) in settled {
            let Asked::Settle { peer, key, for_whom, .. } = asked else { continue };
            let resolve = Waiting { peer, key, for_whom, context, until };
            if let Err(error) = self.ask_as(ticket, resolve) {
                self.resolved(peer, key, Err(error), for_whom, (ticket, context));
            }
        }
    }

    /// A resolve has ended.
    pub(crate) fn resolved(
        &mut self,
        of: Peer,
        key: RemoteKey,
        result: Result<Resolved, OperationError>,
        for_whom: Resolver,
        (ticket, context): (u32, Option<u64>),
    ) {
        let mut end = Ok(Value::Nothing);
        match (result, self.peers.find(of)) {
            (_, Err(lost)) => end = Err(lost.into()),
            (Ok(Resolved::InPlace(found)), Ok(peer)) => {
                peer.add_in_place(found);
                peer.unresolved.retain(|(of, _)| *of != key);
            }
            (Ok(Resolved::Mapped(mut mapped)), Ok(peer)) => {
                if peer.full_fences {
                    mapped.looked_for = Stamp::NEVER;
                }
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
        if for_whom == Resolver::Refused && self.peers.find(of).is_ok() {
            self.requests.tell_room(of);
        }
        self.requests.end(ticket, context, end);
    }
}

/// The descriptors that go with a request.
pub(crate) fn descriptors(file: &Option<Arc<OwnedFd>>) -> Vec<BorrowedFd<'_>> {
    file.iter().map(|file| file.as_fd()).collect()
}

/// The memory behind a peer's key.
pub(crate) enum Resolved {
    Mapped(Mapped),
    InPlace(InPlace),
}

/// The memory that the broker passed for a key.
pub(crate) fn resolved_memory(
    key: RemoteKey,
    stamp: Stamp,
    reply: Reply,
    files: Vec<OwnedFd>,
) -> Result<Resolved, OperationError> {
    if reply.status == status::NOT_FOUND {
        return Err(OperationError::InvalidKey);
    }
    let broker = |reason: String| OperationError::Broker { reason };
    let invalid = || broker(BrokerError::InvalidAnswer.to_string());
    if reply.status != status::DONE {
        return Err(invalid());
    }
    let KeyFound { length, access, memory } = KeyFound::of(&reply).ok_or_else(invalid)?;
    let start = match memory {
        answers::Memory::File(start) => start,
        answers::Memory::InPlace(_) if !files.is_empty() => return Err(invalid()),
        answers::Memory::InPlace(address) => {
            return Ok(Resolved::InPlace(InPlace { key, stamp, access, length, address }));
        }
    };
    let [file] = <[OwnedFd; 1]>::try_from(files).map_err(|_| invalid())?;
    let refused = |error: weft_memory::SegmentError| broker(error.to_string());
    let bytes = Segment::sealed_length(file.as_fd()).map_err(refused)?;
    let start = inside(start, length, bytes).ok_or_else(invalid)?;
    let bytes = usize::try_from(bytes).map_err(|_| invalid())?;
    let writable = access.contains(Access::WRITE);
    let segment = Arc::new(Segment::open(file.as_fd(), bytes, writable).map_err(refused)?);
    let looked_for = stamp;
    Ok(Resolved::Mapped(Mapped { key, stamp, looked_for, access, start, length, segment }))
}
