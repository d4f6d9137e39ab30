//! Memory that announced messages are in: regions of the program, and copies.
//!
//! Granting is expensive, so a key is kept for each region and peer. Only the peer that a copy was
//! made for ever gets a key to its memory, since a peer can read what it mapped until it is moved.
//!
//! Invariants: a region with uses is not removed. A copy's region is idle exactly when it has no
//! uses.

use std::collections::BTreeMap;

use weft_fabric::{Peer, RegionError, RemoteKey};

use crate::error::{SendError, UnshareError};
use crate::pool::region_bytes;

/// Names a region that a program shared for messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Share {
    index: u32,
    generation: u32,
}

/// The use of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    /// The program shared it.
    Program,
    /// It holds copies of messages to this peer.
    CopiesFor(Peer),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Asked,
    Granted(RemoteKey),
}

#[derive(Debug)]
struct Shared<R> {
    generation: u32,
    region: R,
    length: u64,
    purpose: Purpose,
    /// Messages out of it that have not ended.
    uses: u32,
    keys: BTreeMap<Peer, Key>,
}

/// A key that has to be revoked, and its region, which must live until that is over.
pub(crate) type Revocation<R> = (R, RemoteKey);

/// The regions.
#[derive(Debug)]
pub(crate) struct Shares<R> {
    slots: Vec<Option<Shared<R>>>,
    free: Vec<u32>,
    generations: u32,
    /// Regions for copies that are not in use.
    idle: Vec<(Peer, Share)>,
    copy_bytes: u64,
    copy_bytes_max: u64,
    copies: usize,
    copies_max: usize,
}

/// Memory for a copy: the answer to [`crate::Machine::copy_for`].
#[derive(Debug)]
pub enum CopyRegion<R> {
    /// This region may be written.
    Idle(Share, R),
    /// A region of so many bytes has to be registered and added.
    Register(u64),
    /// There is no memory until a message ends.
    Full,
}

impl<R: Clone> Shares<R> {
    /// No regions; at most so many bytes in so many regions for copies.
    pub fn new(copy_bytes_max: u64, copies_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            generations: 0,
            idle: Vec::new(),
            copy_bytes: 0,
            copy_bytes_max,
            copies: 0,
            copies_max,
        }
    }

    /// Adds a region of the program.
    pub fn share(&mut self, region: R, length: u64) -> Share {
        self.add(region, length, Purpose::Program)
    }

    /// Adds a region for copies, as [`CopyRegion::Register`] asked.
    pub fn add_copy(&mut self, peer: Peer, region: R, length: u64) -> Share {
        self.copy_bytes += length;
        self.copies += 1;
        let share = self.add(region, length, Purpose::CopiesFor(peer));
        self.idle.push((peer, share));
        share
    }

    fn add(&mut self, region: R, length: u64, purpose: Purpose) -> Share {
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        let keys = BTreeMap::new();
        let shared = Some(Shared { generation, region, length, purpose, uses: 0, keys });
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(None);
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 regions")
            }
        };
        self.slots[place(index)] = shared;
        Share { index, generation }
    }

    /// Memory for a copy of `length` bytes for `peer`. Idle regions of others make place for it;
    /// their keys are added to `revocations`.
    pub fn copy_for(
        &mut self,
        peer: Peer,
        length: u64,
        revocations: &mut Vec<Revocation<R>>,
    ) -> Result<CopyRegion<R>, SendError> {
        let maximum = self.copy_bytes_max;
        if length > maximum {
            return Err(SendError::TooLong { length, maximum });
        }
        let wanted = region_bytes(length, maximum);
        let fits = |(of, share): &(Peer, Share)| {
            *of == peer && self.get(*share).is_some_and(|shared| shared.length == wanted)
        };
        if let Some((_, share)) = self.idle.iter().rev().find(|idle| fits(idle)).copied() {
            let region = self.get(share).expect("it is idle").region.clone();
            return Ok(CopyRegion::Idle(share, region));
        }
        let idle: u64 = self
            .idle
            .iter()
            .filter_map(|(_, share)| self.get(*share))
            .fold(0, |sum, shared| sum + shared.length);
        let used = self.copies - self.idle.len();
        if self.copy_bytes - idle + wanted > maximum || used == self.copies_max {
            return Ok(CopyRegion::Full);
        }
        while self.copy_bytes + wanted > maximum || self.copies == self.copies_max {
            let (_, share) = self.idle[0];
            self.drop_copy(share, revocations);
        }
        Ok(CopyRegion::Register(wanted))
    }

    fn drop_copy(&mut self, share: Share, revocations: &mut Vec<Revocation<R>>) {
        self.idle.retain(|(_, other)| *other != share);
        if let Some(shared) = self.take(share) {
            self.copy_bytes -= shared.length;
            self.copies -= 1;
            revoke_all(shared, revocations);
        }
    }

    /// Removes a region of the program.
    pub fn unshare(
        &mut self,
        share: Share,
        revocations: &mut Vec<Revocation<R>>,
    ) -> Result<(), UnshareError> {
        let shared = self.get(share).filter(|shared| shared.purpose == Purpose::Program);
        let shared = shared.ok_or(UnshareError::UnknownShare)?;
        if shared.uses > 0 {
            return Err(UnshareError::InUse { messages: shared.uses });
        }
        if let Some(shared) = self.take(share) {
            revoke_all(shared, revocations);
        }
        Ok(())
    }

    /// Checks a range of a region.
    pub fn check(&self, share: Share, offset: u64, length: u64) -> Result<&R, SendError> {
        let shared = self.get(share).ok_or(SendError::UnknownShare)?;
        let region = shared.length;
        match offset.checked_add(length) {
            Some(end) if end <= region => Ok(&shared.region),
            _ => Err(RegionError::OutOfBounds { offset, length, region }.into()),
        }
    }

    /// A message to `peer` out of the region begins. Returns the region if a key must be granted.
    pub fn begin(&mut self, share: Share, peer: Peer) -> Option<R> {
        self.idle.retain(|(_, other)| *other != share);
        let shared = self.get_mut(share).expect("the caller checked the region");
        shared.uses += 1;
        if shared.keys.contains_key(&peer) {
            return None;
        }
        shared.keys.insert(peer, Key::Asked);
        Some(shared.region.clone())
    }

    /// A message out of the region ended. True if memory for copies became idle.
    pub fn end(&mut self, share: Share) -> bool {
        let shared = self.get_mut(share).expect("a region with uses is not removed");
        shared.uses -= 1;
        let (uses, purpose) = (shared.uses, shared.purpose);
        match purpose {
            Purpose::CopiesFor(peer) if uses == 0 => {
                self.idle.push((peer, share));
                true
            }
            _ => false,
        }
    }

    /// The key of the region for a peer, once it is granted.
    pub fn key(&self, share: Share, peer: Peer) -> Option<RemoteKey> {
        match self.get(share)?.keys.get(&peer)? {
            Key::Asked => None,
            Key::Granted(key) => Some(*key),
        }
    }

    /// Notes the key that was asked for. False if nobody waits for it any more.
    #[must_use]
    pub fn granted(&mut self, share: Share, peer: Peer, key: RemoteKey) -> bool {
        let waiting = self.get_mut(share).and_then(|shared| shared.keys.get_mut(&peer));
        match waiting {
            Some(place @ Key::Asked) => {
                *place = Key::Granted(key);
                true
            }
            _ => false,
        }
    }

    /// The key that was asked for was not granted.
    pub fn not_granted(&mut self, share: Share, peer: Peer) {
        if let Some(shared) = self.get_mut(share) {
            shared.keys.remove(&peer);
        }
    }

    /// Takes all keys from a peer and frees the memory of copies for it. Messages to it have ended.
    pub fn forget_peer(&mut self, peer: Peer, revocations: &mut Vec<Revocation<R>>) {
        let its = |(of, _): &&(Peer, Share)| *of == peer;
        let copies: Vec<Share> = self.idle.iter().filter(its).map(|(_, share)| *share).collect();
        for share in copies {
            self.drop_copy(share, revocations);
        }
        for shared in self.slots.iter_mut().flatten() {
            if let Some(Key::Granted(key)) = shared.keys.remove(&peer) {
                revocations.push((shared.region.clone(), key));
            }
        }
    }

    /// Regions, keys, and bytes of copies.
    pub fn census(&self) -> (usize, usize, u64) {
        let regions = self.slots.iter().flatten();
        let keys = regions.clone().map(|shared| shared.keys.len()).sum();
        (regions.count(), keys, self.copy_bytes)
    }

    fn get(&self, share: Share) -> Option<&Shared<R>> {
        let shared = self.slots.get(place(share.index))?.as_ref()?;
        (shared.generation == share.generation).then_some(shared)
    }

    fn get_mut(&mut self, share: Share) -> Option<&mut Shared<R>> {
        let shared = self.slots.get_mut(place(share.index))?.as_mut()?;
        (shared.generation == share.generation).then_some(shared)
    }

    fn take(&mut self, share: Share) -> Option<Shared<R>> {
        self.get(share)?;
        self.free.push(share.index);
        self.slots[place(share.index)].take()
    }
}

fn revoke_all<R: Clone>(shared: Shared<R>, revocations: &mut Vec<Revocation<R>>) {
    for key in shared.keys.into_values() {
        // A key that is asked for is revoked when it comes, since nobody waits for it any more.
        if let Key::Granted(key) = key {
            revocations.push((shared.region.clone(), key));
        }
    }
}

fn place(index: u32) -> usize {
    usize::try_from(index).expect("32 bits fit an index")
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Peer = Peer(1);
    const B: Peer = Peer(2);

    fn copy(shares: &mut Shares<char>, peer: Peer, region: char) -> Share {
        let mut none = Vec::new();
        match shares.copy_for(peer, 4096, &mut none) {
            Ok(CopyRegion::Register(4096)) => shares.add_copy(peer, region, 4096),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_of_copies_serves_one_peer_until_it_is_dropped() {
        let mut shares = Shares::new(8192, 8);
        let first = copy(&mut shares, A, 'a');
        assert_eq!(shares.begin(first, A), Some('a'));
        assert!(shares.granted(first, A, RemoteKey(7)));
        assert!(shares.end(first));
        let mut revoked = Vec::new();
        // B does not get the idle region of A, and then neither fits beside a longer one.
        let second = copy(&mut shares, B, 'b');
        assert!(shares.begin(second, B).is_some());
        assert!(matches!(shares.copy_for(B, 8000, &mut revoked), Ok(CopyRegion::Full)));
        assert!(shares.end(second));
        assert!(matches!(shares.copy_for(B, 8000, &mut revoked), Ok(CopyRegion::Register(8192))));
        assert_eq!(revoked, [('a', RemoteKey(7))]);
        // The key of the second region was never granted. When it comes, nobody waits for it.
        assert!(!shares.granted(second, B, RemoteKey(8)));
        assert_eq!(shares.census(), (0, 0, 0));
    }

    #[test]
    fn a_region_is_shared_until_its_messages_end() {
        let mut shares = Shares::new(0, 1);
        let share = shares.share('r', 100);
        assert!(shares.check(share, 50, 50).is_ok());
        assert!(matches!(shares.check(share, 51, 50), Err(SendError::Range(_))));
        assert!(matches!(shares.check(share, u64::MAX, 2), Err(SendError::Range(_))));
        assert_eq!(shares.begin(share, A), Some('r'));
        assert_eq!(shares.begin(share, A), None);
        let mut revoked = Vec::new();
        let in_use = Err(UnshareError::InUse { messages: 2 });
        assert_eq!(shares.unshare(share, &mut revoked), in_use);
        assert!(shares.granted(share, A, RemoteKey(1)));
        assert!(!shares.end(share) && !shares.end(share));
        assert_eq!(shares.unshare(share, &mut revoked), Ok(()));
        assert_eq!(revoked, [('r', RemoteKey(1))]);
        assert_eq!(shares.unshare(share, &mut revoked), Err(UnshareError::UnknownShare));
        let other = shares.share('s', 100);
        assert_ne!(share, other);
        assert!(shares.check(share, 0, 1).is_err());
    }
}
