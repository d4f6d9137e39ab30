//! The calls of a port's endpoint that end later, each with what its end changes.
//!
//! Invariants: a call has a number of its own, and is here until its completion comes. There is one
//! grant and one resolve for a peer at most, one fetch for each buffer, and one change for each
//! group.

use std::collections::BTreeMap;

use weft_fabric::{
    Access, Audience, Endpoint, Group, Issued, LocalRange, NodeId, Operation, OperationError, Peer,
    Region, RemoteKey, Target, Value,
};

use crate::ring::{PacketSpan, SLOT_BYTES};

/// A node, and the life of its port that a call is for.
pub(crate) type For = (NodeId, Peer);

/// A call that has not ended.
#[derive(Debug)]
pub(crate) enum Call<R> {
    /// Grants the memory of a ring.
    Grant(For, R),
    /// Prepares to read a peer's ring.
    Resolve(For),
    /// Fetches a packet into a buffer.
    Fetch(For, R),
    /// Joins or leaves a group.
    Group(Group),
    /// Revokes the key of a ring whose peer is gone.
    Revoke,
}

/// How a fetch began.
#[derive(Debug)]
pub(crate) enum Fetch<R> {
    /// It is under way, with this number.
    Began(u64),
    /// It was done at once.
    Done(R),
    /// There is no room for it now.
    Full(R),
    /// It failed.
    Failed(R, OperationError),
}

/// The calls of one port.
#[derive(Debug)]
pub(crate) struct Calls<R> {
    next: u64,
    pending: BTreeMap<u64, Call<R>>,
}

impl<R> Default for Calls<R> {
    fn default() -> Self {
        Self { next: 0, pending: BTreeMap::new() }
    }
}

impl<R: Region> Calls<R> {
    /// Takes the call that has ended.
    pub fn end(&mut self, number: u64) -> Option<Call<R>> {
        self.pending.remove(&number)
    }

    /// Calls that have not ended.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Makes the memory of a ring for a peer. `None` if the grant goes on.
    pub fn grant_ring<E: Endpoint<Region = R>>(
        &mut self,
        endpoint: &mut E,
        of: For,
        slots: u32,
    ) -> Option<Result<(R, RemoteKey), ()>> {
        let Ok(region) = endpoint.register(u64::from(slots) * u64::from(SLOT_BYTES)) else {
            return Some(Err(()));
        };
        let (number, whole) = (self.number(), region.clone());
        let range = LocalRange::whole(&whole);
        match endpoint.grant(range, Audience::Peer(of.1), Access::READ, number) {
            Ok(Issued::Done(Value::Key(key))) => Some(Ok((region, key))),
            Ok(Issued::Pending) => {
                self.pending.insert(number, Call::Grant(of, region));
                None
            }
            Ok(Issued::Done(_)) | Err(_) => Some(Err(())),
        }
    }

    /// Prepares the use of a peer's key. `None` if that goes on.
    pub fn resolve<E: Endpoint<Region = R>>(
        &mut self,
        endpoint: &mut E,
        of: For,
        key: RemoteKey,
    ) -> Option<Result<(), OperationError>> {
        let number = self.number();
        match endpoint.resolve(of.1, key, number) {
            Ok(Issued::Done(_)) => Some(Ok(())),
            Ok(Issued::Pending) => {
                self.pending.insert(number, Call::Resolve(of));
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Fetches the packet at `place` of the memory that `key` names into `buffer`.
    pub fn fetch<E: Endpoint<Region = R>>(
        &mut self,
        endpoint: &mut E,
        of: For,
        key: RemoteKey,
        place: PacketSpan,
        buffer: R,
    ) -> Fetch<R> {
        let number = self.number();
        let into = LocalRange::new(&buffer, 0, place.length as u64);
        let source = Target::new(key, place.offset);
        match endpoint.get(of.1, source, into, Operation::new(number)) {
            Ok(Issued::Done(_)) => Fetch::Done(buffer),
            Ok(Issued::Pending) => {
                self.pending.insert(number, Call::Fetch(of, buffer));
                Fetch::Began(number)
            }
            Err(OperationError::WouldBlock) => Fetch::Full(buffer),
            Err(error) => Fetch::Failed(buffer, error),
        }
    }

    /// Joins or leaves a group. True if that was done at once; false if it goes on or failed.
    pub fn change_group<E: Endpoint<Region = R>>(
        &mut self,
        endpoint: &mut E,
        group: Group,
        join: bool,
    ) -> bool {
        let is_under_way = |call: &Call<R>| matches!(call, Call::Group(other) if *other == group);
        if self.pending.values().any(is_under_way) {
            return false;
        }
        let number = self.number();
        let changed =
            if join { endpoint.join(group, number) } else { endpoint.leave(group, number) };
        if changed == Ok(Issued::Pending) {
            self.pending.insert(number, Call::Group(group));
        }
        matches!(changed, Ok(Issued::Done(_)))
    }

    /// Revokes the key of a ring. Fails only if the key is gone already.
    pub fn revoke<E: Endpoint<Region = R>>(&mut self, endpoint: &mut E, key: RemoteKey) {
        let number = self.number();
        if endpoint.revoke(key, number) == Ok(Issued::Pending) {
            self.pending.insert(number, Call::Revoke);
        }
    }
}
