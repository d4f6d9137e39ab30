//! Regions and keys: what an endpoint grants, and what it knows of the keys of its peers.
//!
//! A key is a registration with the provider, with the rights of the key. A peer asks the owner for
//! it at its first use, and remembers it until the owner says that it is void.
//!
//! # Invariants
//! - A key is void from its revocation on. The registration is closed when every peer that knows it
//!   has said that nothing by it is under way, or a second later.
//! - A key number is not used again: it is random.

use std::collections::BTreeSet;
use std::time::Duration;

use weft_fabric::{
    Access, Audience, Completion, GrantError, Issued, LocalRange, OperationError, Peer,
    RegisterError, RemoteKey, Revoked, Value,
};
use weft_libfabric::{Registration, Rights, Spot};
use weft_memory::{Memory, MemoryOptions};

use super::operations::Reply;
use super::pair::Known;
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::{Body, Range, Request};
use crate::region::OfiRegion;

/// How long a peer may take to end what is under way by a void key.
const RELEASE_WITHIN: Duration = Duration::from_secs(1);
/// Keys of one peer that are remembered.
const KEYS_KNOWN_MAX: usize = 4096;

/// A key that this endpoint has granted.
#[derive(Debug)]
pub(super) struct Grant {
    pub ground: Ground,
    pub start: u64,
    pub length: u64,
    pub access: Access,
    /// The only pair that may use it; `None` for the partition.
    pub audience: Option<u32>,
    pub registered: Registered,
    /// The pairs that were told where it is.
    pub holders: BTreeSet<u32>,
    /// Each former holder has said that nothing of its own is under way.
    pub is_settled: bool,
    pub state: Validity,
}

/// The memory of a key.
#[derive(Debug)]
pub(super) enum Ground {
    /// A region of this endpoint, which the key keeps.
    Region(OfiRegion),
    /// Memory that another transport granted.
    Memory(Memory),
}

impl Ground {
    pub fn memory(&self) -> &Memory {
        match self {
            Self::Region(region) => region.memory(),
            Self::Memory(memory) => memory,
        }
    }
}

/// Whether the range of a key is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Registered {
    /// Not yet: nobody has asked for it.
    Later,
    /// It has no bytes.
    Nothing,
    At(Registration, Spot),
}

/// Whether a key is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Validity {
    Valid,
    /// It was revoked by a call with this context, unless the program gave that up. Holders have
    /// until this time to end what is under way.
    Void(Option<u64>, Duration),
}

impl<N: Nic> Engine<N> {
    /// Registers a region of zeroed memory.
    pub(crate) fn register(&mut self, length: u64) -> Result<OfiRegion, RegisterError> {
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        self.check_regions()?;
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let memory = Memory::fresh(MemoryOptions::bytes(bytes));
        let memory = memory.map_err(|_| no_memory("memfd_create", bytes))?;
        self.add_region(memory, bytes)
    }

    /// Registers memory of the program.
    pub(crate) fn register_memory(&mut self, memory: &Memory) -> Result<OfiRegion, RegisterError> {
        self.check_regions()?;
        self.add_region(memory.clone(), memory.segment().length())
    }

    fn check_regions(&mut self) -> Result<(), RegisterError> {
        let maximum = self.capabilities.regions_max;
        self.regions.retain(|region| region.strong_count() > 0);
        if self.regions.len() >= maximum {
            return Err(RegisterError::Exhausted { maximum });
        }
        Ok(())
    }

    fn add_region(&mut self, memory: Memory, length: usize) -> Result<OfiRegion, RegisterError> {
        let registered = self.nic.register((&memory, 0, length), Rights::default());
        let (registration, _) = registered.map_err(|_| no_memory("fi_mr_reg", length))?;
        let region = OfiRegion::new((memory, length as u64), registration, &self.ended);
        self.regions.push(region.downgrade());
        Ok(region)
    }

    /// Closes the registrations of regions that nobody holds.
    pub(super) fn close_regions(&mut self) {
        let ended = std::mem::take(&mut *self.ended.lock());
        for registration in ended {
            // Peers had no rights by it.
            self.nic.deregister(registration, true);
        }
    }

    /// Grants access to a range of a region.
    pub(crate) fn grant(
        &mut self,
        range: LocalRange<'_, OfiRegion>,
        audience: Audience,
        access: Access,
    ) -> Result<RemoteKey, GrantError> {
        let LocalRange { region, offset: start, length } = range;
        if !region.is_of(&self.ended) {
            return Err(GrantError::ForeignRegion);
        }
        access.check_key()?;
        let offset = region.check(start, length)?;
        let audience = match audience {
            Audience::Partition => None,
            Audience::Peer(peer) => {
                self.pair(peer).map_err(|_| GrantError::Peer)?;
                Some(peer.0)
            }
        };
        let maximum = self.capabilities.keys_max;
        if self.grants.values().filter(|grant| grant.state == Validity::Valid).count() >= maximum {
            return Err(GrantError::Exhausted { maximum });
        }
        // It is checked to lie in memory.
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        let rights =
            Rights { read: access.contains(Access::READ), write: access.contains(Access::WRITE) };
        let registered = if bytes == 0 {
            Registered::Nothing
        } else {
            let registered = self.nic.register((region.memory(), offset, bytes), rights);
            let provider =
                |error: weft_libfabric::Error| GrantError::Provider { reason: error.to_string() };
            let (registration, spot) = registered.map_err(provider)?;
            Registered::At(registration, spot)
        };
        let mut key = RemoteKey(self.nic.random());
        while self.grants.contains_key(&key) || key.0 == 0 {
            key = RemoteKey(self.nic.random());
        }
        let grant = Grant {
            ground: Ground::Region(region.clone()),
            start,
            length,
            access,
            audience,
            registered,
            holders: BTreeSet::new(),
            is_settled: true,
            state: Validity::Valid,
        };
        self.grants.insert(key, grant);
        Ok(key)
    }

    /// Where the range of an own key is, for a peer.
    pub(super) fn resolved(
        &mut self,
        handle: u32,
        key: RemoteKey,
    ) -> Result<Range, OperationError> {
        let grant = self.grants.get_mut(&key).filter(|grant| grant.is_for(handle));
        let grant = grant.ok_or(OperationError::InvalidKey)?;
        grant.holders.insert(handle);
        let spot = match grant.registered {
            Registered::At(_, spot) => spot,
            Registered::Nothing | Registered::Later => Spot::default(),
        };
        // Memory in place may begin anywhere.
        let base = grant.ground.memory().segment().base().addr().get() as u64;
        let skew = u8::try_from(base.wrapping_add(grant.start) % 8).unwrap_or(0);
        Ok(Range { spot, skew, length: grant.length, access: grant.access })
    }

    /// Whether a key of a peer is known. If not, the operation waits for it.
    pub(super) fn is_known(&mut self, handle: u32, key: RemoteKey, number: u64) -> bool {
        let Some(pair) = self.pair_mut(handle) else { return false };
        match pair.keys.get_mut(&key) {
            Some(Known::Valid(_)) => true,
            Some(Known::Asked { operations, .. }) => {
                operations.push(number);
                false
            }
            None => {
                self.ask_for_key(
                    handle,
                    key,
                    Known::Asked { operations: vec![number], calls: Vec::new() },
                );
                false
            }
        }
    }

    /// Asks for a key of a peer, if nobody has, for operations that will come.
    pub(super) fn learn(&mut self, handle: u32, key: RemoteKey) {
        if self.pair(Peer(handle)).is_ok_and(|pair| !pair.keys.contains_key(&key)) {
            let (operations, calls) = Default::default();
            self.ask_for_key(handle, key, Known::Asked { operations, calls });
        }
    }

    fn ask_for_key(&mut self, handle: u32, key: RemoteKey, waiting: Known) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if pair.keys.len() >= KEYS_KNOWN_MAX {
            // It is asked for again when it is used.
            let is_valid = |known: &Known| matches!(known, Known::Valid(_));
            let some = pair.keys.iter().find(|(_, known)| is_valid(known)).map(|(key, _)| *key);
            some.map(|key| pair.keys.remove(&key));
        }
        pair.keys.insert(key, waiting);
        self.ask(handle, Request::Resolve(key), Reply::Key(key));
    }

    /// Prepares the use of a peer's key.
    pub(crate) fn resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        self.check_peer(of)?;
        let Some(pair) = self.pair_mut(of.0) else { return Err(OperationError::PeerDown) };
        match pair.keys.get_mut(&key) {
            Some(Known::Valid(_)) => return Ok(Issued::Done(Value::Nothing)),
            Some(Known::Asked { calls, .. }) => calls.push(context),
            None => {
                let waiting = Known::Asked { operations: Vec::new(), calls: vec![context] };
                self.ask_for_key(of.0, key, waiting);
            }
        }
        self.controls_open += 1;
        self.send(of.0);
        Ok(Issued::Pending)
    }

    /// The length and the skew of a peer's key that is known.
    pub(crate) fn known(&self, of: Peer, key: RemoteKey) -> Result<Range, OperationError> {
        match self.pair(of)?.keys.get(&key) {
            Some(Known::Valid(range)) => Ok(*range),
            _ => Err(OperationError::InvalidKey),
        }
    }

    /// The owner has told where a key is, or that it has none.
    pub(super) fn key_is_known(
        &mut self,
        handle: u32,
        key: RemoteKey,
        range: Result<Range, OperationError>,
    ) {
        let Some(pair) = self.pair_mut(handle) else { return };
        let Some(Known::Asked { operations, calls }) = pair.keys.remove(&key) else { return };
        if let Ok(range) = range {
            pair.keys.insert(key, Known::Valid(range));
        }
        for number in operations {
            match &range {
                Ok(_) => self.start(number),
                Err(error) => self.end(number, Err(error.clone())),
            }
        }
        for context in calls {
            let result = range.clone().map(|_| Value::Nothing);
            self.events.push_back(Queued::Ended(Completion { context, result }));
        }
    }

    /// The owner says that a key is void.
    pub(super) fn key_is_void(&mut self, handle: u32, key: RemoteKey) {
        let Some(pair) = self.pair_mut(handle) else { return };
        if matches!(pair.keys.get(&key), Some(Known::Valid(_))) {
            pair.keys.remove(&key);
        }
        pair.voids.insert(key);
        // Pieces that the NIC does not have yet fail when they are handed to it.
        self.release_keys(handle);
    }

    /// Tells the owner of void keys that nothing by them is under way any more.
    pub(super) fn release_keys(&mut self, handle: u32) {
        let Some(pair) = self.pair_mut(handle).filter(|pair| !pair.voids.is_empty()) else {
            return;
        };
        for key in pair.voids.iter().copied().collect::<Vec<_>>() {
            if self.is_in_use(handle, key) {
                continue;
            }
            let Some(pair) = self.pair_mut(handle) else { return };
            pair.voids.remove(&key);
            pair.sending.rights.push_back(Body::Released(key));
            self.give_turn(handle);
        }
    }

    /// Revokes a key.
    pub(crate) fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        let until = self.now() + RELEASE_WITHIN;
        let grant = self.grants.get_mut(&key).filter(|grant| grant.state == Validity::Valid);
        let grant = grant.ok_or(GrantError::UnknownKey)?;
        grant.state = Validity::Void(Some(context), until);
        let holders: Vec<u32> = grant.holders.iter().copied().collect();
        if holders.is_empty() {
            self.end_grant(key);
            return Ok(Issued::Done(Value::Revoked(Revoked::Published)));
        }
        self.controls_open += 1;
        for handle in holders {
            if let Some(pair) = self.pair_mut(handle) {
                pair.sending.rights.push_back(Body::Void(key));
            }
            self.send(handle);
        }
        Ok(Issued::Pending)
    }

    /// A peer has nothing under way by a void key.
    pub(super) fn key_is_released(&mut self, handle: u32, key: RemoteKey) {
        let grant = self.grants.get_mut(&key);
        let Some(grant) = grant.filter(|grant| grant.state != Validity::Valid) else { return };
        if grant.holders.remove(&handle) && grant.holders.is_empty() {
            self.end_revocation(key, Ok(Value::Revoked(Revoked::Published)));
        }
    }

    /// A peer is down: it holds no keys any more. If it has not left in order, what it has begun
    /// may still come.
    pub(super) fn holder_is_down(&mut self, handle: u32, has_left: bool) {
        let mut over = Vec::new();
        for (key, grant) in &mut self.grants {
            let held = grant.holders.remove(&handle);
            grant.is_settled &= !held || has_left;
            if held && grant.state != Validity::Valid && grant.holders.is_empty() {
                over.push(*key);
            }
        }
        for key in over {
            self.end_revocation(key, Ok(Value::Revoked(Revoked::Published)));
        }
    }

    /// Ends revocations whose holders took too long.
    pub(super) fn look_at_revocations(&mut self, now: Duration) {
        let late = |grant: &Grant| matches!(grant.state, Validity::Void(_, until) if now >= until);
        let late: Vec<_> = (self.grants.iter().filter(|(_, grant)| late(grant)))
            .map(|(key, grant)| (*key, grant.holders.first().copied()))
            .collect();
        for (key, holder) in late {
            let peer = holder.and_then(|handle| self.peer_address(Peer(handle)));
            let peer = peer.unwrap_or(self.address);
            let error = OperationError::Grant(GrantError::StillWriting { peer });
            self.end_revocation(key, Err(error));
        }
    }

    fn end_revocation(&mut self, key: RemoteKey, result: Result<Value, OperationError>) {
        let Some(Validity::Void(context, _)) = self.grants.get(&key).map(|grant| grant.state)
        else {
            return;
        };
        self.end_grant(key);
        if let Some(context) = context {
            self.events.push_back(Queued::Ended(Completion { context, result }));
        }
    }

    /// The program does not wait for the call with this context any more.
    pub(crate) fn give_up(&mut self, context: u64) {
        for grant in self.grants.values_mut() {
            if let Validity::Void(of, _) = &mut grant.state
                && *of == Some(context)
            {
                *of = None;
                self.controls_open -= 1;
                return;
            }
        }
        for slot in &mut self.pairs {
            let super::Slot::Used(pair) = slot else { continue };
            for known in pair.keys.values_mut() {
                if let Known::Asked { calls, .. } = known
                    && let Some(place) = calls.iter().position(|of| *of == context)
                {
                    calls.remove(place);
                    self.controls_open -= 1;
                    return;
                }
            }
        }
    }

    /// Whether a call with this context has not ended.
    pub(crate) fn awaits(&self, context: u64) -> bool {
        let revokes =
            |grant: &Grant| matches!(grant.state, Validity::Void(of, _) if of == Some(context));
        let resolves =
            |known: &Known| matches!(known, Known::Asked { calls, .. } if calls.contains(&context));
        self.grants.values().any(revokes)
            || self.pairs.iter().any(|slot| match slot {
                super::Slot::Used(pair) => pair.keys.values().any(resolves),
                super::Slot::Ended(_) => false,
            })
    }

    fn end_grant(&mut self, key: RemoteKey) {
        let Some(grant) = self.grants.remove(&key) else { return };
        if let Registered::At(registration, _) = grant.registered {
            let is_settled = grant.is_settled && grant.holders.is_empty();
            self.nic.deregister(registration, is_settled);
        }
    }
}

impl Grant {
    /// Whether the pair with this handle may use the key.
    pub fn is_for(&self, handle: u32) -> bool {
        self.state == Validity::Valid && self.audience.is_none_or(|only| only == handle)
    }
}

fn no_memory(call: &'static str, length: usize) -> RegisterError {
    RegisterError::Os { call, length, errno: weft_fabric::errno::ENOMEM }
}
