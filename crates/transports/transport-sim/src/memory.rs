//! Registered memory, its keys, and the checks at the target.
//!
//! Invariants: a key number is never reused. A key is checked when a request arrives, not when it
//! is sent, so that revoking a key stops a put on its way. A region lives as long as its owner or a
//! key holds it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weft_fabric::{
    Access, Audience, Command, GrantError, LocalRange, OperationError, Region, RegionError,
    RegisterError, RemoteKey, Target,
};

use weft_fabric::rules::check_range;

use crate::world::{Id, WorldState};

/// A region of a simulated endpoint.
#[derive(Clone, Debug)]
pub struct SimRegion {
    inner: Arc<RegionInner>,
}

#[derive(Debug)]
pub(crate) struct RegionInner {
    owner: Id,
    /// The identity of its world.
    world: u64,
    bytes: Mutex<Vec<u8>>,
    length: u64,
}

/// A granted key.
#[derive(Debug)]
pub(crate) struct Key {
    owner: Id,
    region: SimRegion,
    /// Start and length of the range in the region, in bytes.
    start: u64,
    length: u64,
    access: Access,
    /// The only endpoint that may use the key; `None` for the partition.
    audience: Option<Id>,
}

/// The memory that an operation may use, from where on.
pub(crate) struct Translated {
    pub region: SimRegion,
    /// Where the operation's range starts in the region.
    pub start: u64,
}

impl RegionInner {
    pub const fn length(&self) -> u64 {
        self.length
    }
}

impl SimRegion {
    /// Checks that a range is inside the region.
    pub(crate) fn check(&self, offset: u64, length: u64) -> Result<(), RegionError> {
        check_range(offset, length, self.inner.length)
    }

    /// Copies bytes out of the region. The caller has checked the range.
    pub(crate) fn copy_out(&self, offset: u64, length: u64) -> Vec<u8> {
        let (start, length) = (index(offset), index(length));
        self.inner.bytes.lock()[start..start + length].to_vec()
    }

    /// Copies bytes into the region. The caller has checked the range.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let start = index(offset);
        self.inner.bytes.lock()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Changes a little-endian word of `width` bytes and returns its former value. The caller has
    /// checked the range.
    pub(crate) fn change(&self, offset: u64, width: u64, new: impl FnOnce(u64) -> u64) -> u64 {
        let (start, width) = (index(offset), index(width));
        let mut bytes = self.inner.bytes.lock();
        let word = &mut bytes[start..start + width];
        let mut buffer = [0; 8];
        buffer[..width].copy_from_slice(word);
        let old = u64::from_le_bytes(buffer);
        word.copy_from_slice(&new(old).to_le_bytes()[..width]);
        old
    }

    fn check_word(&self, offset: u64) -> Result<(), RegionError> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(RegionError::Misaligned { offset, alignment: 8 });
        }
        Ok(())
    }
}

impl Region for SimRegion {
    fn length(&self) -> u64 {
        self.inner.length
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), RegionError> {
        self.check(offset, bytes_of(target.len()))?;
        let start = index(offset);
        target.copy_from_slice(&self.inner.bytes.lock()[start..start + target.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, source: &[u8]) -> Result<(), RegionError> {
        self.check(offset, bytes_of(source.len()))?;
        self.copy_in(offset, source);
        Ok(())
    }

    fn load(&self, offset: u64) -> Result<u64, RegionError> {
        self.check_word(offset)?;
        Ok(self.change(offset, 8, |old| old))
    }

    fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        self.check_word(offset)?;
        self.change(offset, 8, |_| value);
        Ok(())
    }
}

impl WorldState {
    /// Registers a region of zeroed memory.
    pub(crate) fn register(&mut self, owner: Id, length: u64) -> Result<SimRegion, RegisterError> {
        if length == 0 {
            return Err(RegisterError::Empty);
        }
        let too_long = RegisterError::Os {
            call: "register",
            length: usize::try_from(length).unwrap_or(usize::MAX),
            errno: weft_fabric::errno::ENOMEM,
        };
        if length > REGION_BYTES_MAX {
            return Err(too_long);
        }
        let (world, has_memory) = (self.identity, self.endpoints[owner].has_memory);
        let maximum = self.endpoints[owner].capabilities.regions_max;
        let regions = &mut self.endpoints[owner].regions;
        regions.retain(|region: &Weak<RegionInner>| region.strong_count() > 0);
        if regions.len() >= maximum || !has_memory {
            return Err(RegisterError::Exhausted { maximum });
        }
        let bytes = Mutex::new(vec![0; index(length)]);
        let inner = Arc::new(RegionInner { owner, world, bytes, length });
        regions.push(Arc::downgrade(&inner));
        Ok(SimRegion { inner })
    }

    /// Checks a grant of `owner` and returns the key that it would make.
    pub(crate) fn granted(
        &self,
        owner: Id,
        range: LocalRange<'_, SimRegion>,
        audience: Audience,
        access: Access,
    ) -> Result<Key, GrantError> {
        let LocalRange { region, offset: start, length } = range;
        if region.inner.owner != owner || region.inner.world != self.identity {
            return Err(GrantError::ForeignRegion);
        }
        access.check_key()?;
        region.check(start, length)?;
        let audience = match audience {
            Audience::Partition => None,
            Audience::Peer(peer) => {
                Some(self.target_of(owner, peer).map_err(|_| GrantError::Peer)?)
            }
        };
        Ok(Key { owner, region: region.clone(), start, length, access, audience })
    }

    /// Puts a key in force.
    pub(crate) fn grant(&mut self, key: Key) -> Result<RemoteKey, GrantError> {
        let owner = &mut self.endpoints[key.owner];
        let maximum = owner.capabilities.keys_max;
        if owner.keys >= maximum || !owner.has_memory {
            return Err(GrantError::Exhausted { maximum });
        }
        owner.keys += 1;
        self.next_key += 1;
        self.keys.insert(self.next_key, key);
        Ok(RemoteKey(self.next_key))
    }

    /// Invalidates a key.
    pub(crate) fn revoke(&mut self, owner: Id, key: RemoteKey) -> Result<(), GrantError> {
        match self.keys.get(&key.0) {
            Some(found) if found.owner == owner => {
                self.keys.remove(&key.0);
                self.endpoints[owner].keys -= 1;
                Ok(())
            }
            _ => Err(GrantError::UnknownKey),
        }
    }

    /// Invalidates all keys of an endpoint.
    pub(crate) fn revoke_all(&mut self, owner: Id) {
        self.keys.retain(|_, key| key.owner != owner);
        self.endpoints[owner].keys = 0;
    }

    /// The memory behind a key of endpoint `at`, if the key grants `needed` on the range to the
    /// endpoint `from`.
    pub(crate) fn check(
        &self,
        (from, at): (Id, Id),
        needed: (Command, Access),
        target: Target,
        length: u64,
    ) -> Result<Translated, OperationError> {
        let key = self.key(from, at, target.key)?;
        key.access.check(needed, (target.offset, length), key.length)?;
        Ok(Translated { region: key.region.clone(), start: key.start + target.offset })
    }

    /// As [`WorldState::check`], for a word of `width` bytes, whose place must be a multiple of
    /// them.
    pub(crate) fn check_word(
        &self,
        ends: (Id, Id),
        needed: (Command, Access),
        target: Target,
        width: u64,
    ) -> Result<Translated, OperationError> {
        let translated = self.check(ends, needed, target, width)?;
        if !translated.start.is_multiple_of(width) {
            return Err(OperationError::Misaligned { offset: target.offset, alignment: width });
        }
        Ok(translated)
    }

    fn key(&self, from: Id, at: Id, key: RemoteKey) -> Result<&Key, OperationError> {
        let found = self.keys.get(&key.0).filter(|found| found.owner == at);
        let found = found.filter(|found| found.audience.is_none_or(|only| only == from));
        found.ok_or(OperationError::InvalidKey)
    }

    /// The length of the range of a key of endpoint `at`, as seen by the endpoint `from`.
    pub(crate) fn key_length(
        &self,
        from: Id,
        at: Id,
        key: RemoteKey,
    ) -> Result<u64, OperationError> {
        Ok(self.key(from, at, key)?.length)
    }

    /// Where the range of a key of endpoint `at` starts in its region.
    pub(crate) fn key_start(
        &self,
        from: Id,
        at: Id,
        key: RemoteKey,
    ) -> Result<u64, OperationError> {
        Ok(self.key(from, at, key)?.start)
    }
}

/// Bytes of one region at most. Bounds the memory of a test.
const REGION_BYTES_MAX: u64 = 1 << 32;

/// An offset as an index. The caller has checked it against memory that exists.
pub(crate) fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("the offset lies in memory that exists")
}

/// A length in memory as 64 bits.
pub(crate) fn bytes_of(length: usize) -> u64 {
    u64::try_from(length).expect("a length in memory fits 64 bits")
}
