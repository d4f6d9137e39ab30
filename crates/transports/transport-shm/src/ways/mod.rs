//! The way to memory that peers have in place: it has no file, so that nobody can map it. The
//! kernel copies between the processes (`kernel`), where it lets this one.
//!
//! The fast paths know mapped memory alone. Where they find none, they end with
//! [`OperationError::NotMapped`], and the puts and gets of [`ShmEndpoint`] come here.
//!
//! # Invariants
//! - Puts and gets copy bytes. Nobody changes a word of such memory as a word but its owner.
//! - A put by the kernel is announced and looks at the stamp of its key before each piece and
//!   behind the last, as a copy of the initiator does.

mod kernel;
#[cfg(test)]
mod tests;

use weft_fabric::{
    Access, Command, Issued, LocalRange, Operation, OperationError, Peer, Reach, RemoteKey, Source,
    Target, Way,
};
use weft_sync::fence;

use crate::address_vector::PeerState;
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, ShmRegion};
use crate::registers::{Stamp, StampWord};

pub(crate) use kernel::{Owner, Sign};

/// Resolved keys of one peer to memory in place: no more than a peer can grant.
const KEYS_MAX: usize = crate::registers::KEYS_MAX as usize;

/// A peer's key to memory in place, after it was resolved.
#[derive(Clone, Copy, Debug)]
pub struct InPlace {
    /// The key.
    pub key: RemoteKey,
    /// The owner's stamp, as read before the key was resolved. Such memory never moves.
    pub stamp: Stamp,
    pub access: Access,
    /// Bytes of the key's range.
    pub length: u64,
    /// The address of the range in the owner's process; `None` if the broker did not tell it.
    pub address: Option<u64>,
}

impl InPlace {
    /// Whether the key is in force. An announcement that was made before is ordered before the
    /// look.
    fn serves(&self, word: &StampWord) -> bool {
        fence::light(true);
        word.stamp() == self.stamp
    }

    /// The offset in the range, when the key allows `command` there.
    fn check(&self, command: Command, offset: u64, length: u64) -> Result<u64, OperationError> {
        self.access.check((command, command.access()), (offset, length), self.length)?;
        Ok(offset)
    }
}

impl PeerState {
    /// A key in force to memory in place, if it was resolved.
    pub(crate) fn in_place(&self, key: RemoteKey) -> Option<InPlace> {
        let found = self.in_place.iter().find(|found| found.key == key)?;
        let word = self.registers.stamp_word(KeyParts::of(key).slot);
        found.serves(word).then_some(*found)
    }

    /// Adds a key that was resolved, in place of one that had its slot.
    pub(crate) fn add_in_place(&mut self, found: InPlace) {
        let slot = KeyParts::of(found.key).slot;
        self.in_place.retain(|other| KeyParts::of(other.key).slot != slot);
        debug_assert!(self.in_place.len() < KEYS_MAX, "one key for each slot");
        self.in_place.push(found);
    }
}

impl ShmEndpoint {
    pub(crate) fn do_reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        let in_place = if self.may_copy(peer)?.is_ok() { Way::Kernel } else { Way::Refused };
        let direct = Way::Direct;
        Ok(Reach { fresh: direct, descriptor: direct, adopted: direct, in_place })
    }

    /// Whether the kernel copies for an operation with these keys that ended with `error` on the
    /// fast path.
    ///
    /// # Errors
    /// `error` if memory in place is not what it is about, and if some of the memory is mapped;
    /// those of a resolve, and of the kernel.
    fn copies(
        &mut self,
        error: OperationError,
        to: Peer,
        keys: impl Iterator<Item = RemoteKey>,
    ) -> Result<(), OperationError> {
        // The announcement of the fast path is over.
        self.registers.give_up();
        if error != OperationError::NotMapped {
            return Err(error);
        }
        for key in keys {
            if self.peers.find(to)?.split(key).is_some() {
                return Err(error);
            }
            match self.resolve_mapped(to, key) {
                Err(OperationError::NotMapped) => {}
                resolved => return resolved.and(Err(error)),
            }
        }
        self.may_copy(to)?
    }

    /// A key whose memory the fast path does not find is resolved, if it is not yet.
    ///
    /// # Errors
    /// [`OperationError::NotMapped`] for memory in place, and those of a resolve.
    #[cold]
    pub(crate) fn resolve_mapped(
        &mut self,
        to: Peer,
        key: RemoteKey,
    ) -> Result<(), OperationError> {
        let is_in_place = |own: &mut Self| match own.peers.find(to) {
            Ok(peer) => peer.in_place(key).is_some(),
            Err(_) => false,
        };
        if !is_in_place(self) {
            self.resolve(to, key)?;
            if !is_in_place(self) {
                return Ok(());
            }
        }
        Err(OperationError::NotMapped)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn put_otherwise(
        &mut self,
        error: OperationError,
        to: Peer,
        ranges: &[(Source<'_, ShmRegion>, Target)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let keys = ranges.iter().map(|(_, target)| target.key);
        let done = self.copies(error, to, keys);
        let done = done.and_then(|()| self.put_by_kernel(to, ranges, operation));
        done.map_err(|error| self.note(error))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn get_otherwise(
        &mut self,
        error: OperationError,
        from: Peer,
        ranges: &[(Target, LocalRange<'_, ShmRegion>)],
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let keys = ranges.iter().map(|(source, _)| source.key);
        let done = self.copies(error, from, keys);
        let done = done.and_then(|()| self.get_by_kernel(from, ranges, operation));
        done.map_err(|error| self.note(error))
    }
}
