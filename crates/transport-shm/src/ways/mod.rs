//! The ways to memory that peers have in place: it has no file, so that nobody can map it.
//!
//! | file | what |
//! |---|---|
//! | `kernel` | the kernel copies between the processes |
//! | `jobs` | operations that the owner carries out: what is to be asked, and what was answered |
//! | `packet` | the questions and answers, as they are in the rings |
//! | `initiate` | the initiator's side: accepts operations, sends questions, ends operations |
//! | `serve` | the owner's side: carries out what it is asked for, when it polls |
//!
//! The fast paths know mapped memory alone. Where they find none, they end with
//! [`OperationError::NotMapped`], or with [`OperationError::WouldBlock`] while the peer is held,
//! and the calls of [`ShmEndpoint`] come here.
//!
//! # Invariants
//! - Puts and gets go by the kernel where it lets this process, else by the owner. All else goes by
//!   the owner: words of such memory are changed as words by it alone. A put writes bytes.
//! - While operations that a peer carries out are under way, the peer is *held*
//!   ([`PeerState::hold`]): nothing else is done to it, so that nothing overtakes them.
//! - A put by the kernel is announced and looks at the stamp of its key before each piece and
//!   behind the last, as a copy of the initiator does.

mod initiate;
mod jobs;
mod kernel;
mod packet;
mod serve;
#[cfg(test)]
mod tests;

use weft_fabric::{
    Access, Atomic, Command, Issued, LocalRange, Operation, OperationError, Peer, Reach, RemoteKey,
    Signal, Source, Target, Way,
};
use weft_sync::fence;

use crate::address_vector::PeerState;
use crate::attr::WayInPlace;
use crate::endpoint::ShmEndpoint;
use crate::memory::{KeyParts, ShmRegion, inside};
use crate::registers::{Stamp, StampWord};
use initiate::Wanted;

pub(crate) use initiate::Initiated;
pub(crate) use jobs::Jobs;
pub(crate) use kernel::{Owner, Sign};
pub(crate) use packet::is_packet;

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
        if !self.access.contains(command.access()) {
            return Err(OperationError::AccessDenied { command });
        }
        let region = self.length;
        let fits = inside(offset, length, region).is_some();
        if fits { Ok(offset) } else { Err(OperationError::OutOfBounds { offset, length, region }) }
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

/// The way of one operation to memory in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Kernel,
    Target,
}

/// The kind of change that an operation makes to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changes {
    /// It copies bytes.
    Bytes,
    /// It changes a word.
    Word,
}

impl ShmEndpoint {
    pub(crate) fn do_reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        self.peers.find(peer)?;
        let parameter = self.parameters.in_place;
        let in_place = match parameter {
            WayInPlace::Target => Way::Target,
            _ if self.may_copy(peer)?.is_ok() => Way::Kernel,
            WayInPlace::Best => Way::Target,
            WayInPlace::Kernel => Way::Refused,
        };
        let direct = Way::Direct;
        Ok(Reach { fresh: direct, descriptor: direct, adopted: direct, in_place })
    }

    /// The way of an operation with these keys that ended with `error` on the fast path. It is that
    /// error if memory in place is not what it is about.
    fn way_of(
        &mut self,
        error: OperationError,
        to: Peer,
        keys: &[RemoteKey],
        changes: Changes,
    ) -> Result<Taken, OperationError> {
        // The announcement of the fast path is over.
        self.registers.give_up();
        if !matches!(error, OperationError::NotMapped | OperationError::WouldBlock) {
            return Err(error);
        }
        let (mut in_place, mut mapped) = (false, false);
        for key in keys {
            if !self.knows(to, *key)? {
                self.resolve(to, *key)?;
            }
            let is_in_place = self.peers.find(to)?.in_place(*key).is_some();
            in_place |= is_in_place;
            mapped |= !is_in_place;
        }
        // A held peer carries out what is done to its other memory, too, if it is one operation.
        if !in_place {
            return Err(error);
        }
        if changes == Changes::Word || mapped {
            return Ok(Taken::Target);
        }
        match self.parameters.in_place {
            WayInPlace::Target => Ok(Taken::Target),
            WayInPlace::Kernel => self.may_copy(to)?.map(|()| Taken::Kernel),
            WayInPlace::Best => {
                let told = keys.iter().all(|key| {
                    let peer = self.peers.find(to).ok();
                    let found = peer.and_then(|peer| peer.in_place(*key));
                    found.is_some_and(|found| found.address.is_some())
                });
                let kernel = told && self.may_copy(to)?.is_ok();
                Ok(if kernel { Taken::Kernel } else { Taken::Target })
            }
        }
    }

    /// Whether the memory of a peer's key is known, mapped or not.
    fn knows(&mut self, to: Peer, key: RemoteKey) -> Result<bool, OperationError> {
        let peer = self.peers.find(to)?;
        Ok(peer.in_place(key).is_some() || peer.split(key).is_some())
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

    /// Sends any packet, as a hostile peer could.
    #[cfg(any(test, feature = "test-doors"))]
    pub fn send_packet(&mut self, to: Peer, words: [u64; 8], is_answer: bool) {
        let own = self.address.vpid.0;
        let Ok(peer) = self.peers.find(to) else { return };
        let mut outlet = peer.outlet();
        if is_answer {
            let words = [words[0], words[1]];
            outlet.emit_words(own, 0, packet::ANSWER_FLAGS, &words, false);
        } else {
            outlet.emit_words(own, 0, packet::QUESTION_FLAGS, &words, false);
        }
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
        let keys: Vec<RemoteKey> = ranges.iter().map(|(_, target)| target.key).collect();
        let done = self.way_of(error, to, &keys, Changes::Bytes).and_then(|way| match way {
            Taken::Kernel => self.put_by_kernel(to, ranges, operation),
            Taken::Target => self.submit(to, operation, Wanted::Put { ranges, signal: None }),
        });
        done.map_err(|error| self.note(error))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn signal_otherwise(
        &mut self,
        error: OperationError,
        to: Peer,
        data: (Source<'_, ShmRegion>, Target),
        signal: Signal,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let keys = [data.1.key, signal.target.key];
        let done = self.way_of(error, to, &keys, Changes::Word).and_then(|_| {
            let wanted = Wanted::Put { ranges: &[data], signal: Some(signal) };
            self.submit(to, operation, wanted)
        });
        done.map_err(|error| self.note(error))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn immediate_otherwise(
        &mut self,
        error: OperationError,
        to: Peer,
        (value, length): (u64, u8),
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let way = self.way_of(error, to, &[target.key], Changes::Word);
        let wanted = Wanted::Immediate { value, length, target };
        let done = way.and_then(|_| self.submit(to, operation, wanted));
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
        let keys: Vec<RemoteKey> = ranges.iter().map(|(source, _)| source.key).collect();
        let done = self.way_of(error, from, &keys, Changes::Bytes).and_then(|way| match way {
            Taken::Kernel => self.get_by_kernel(from, ranges, operation),
            Taken::Target => self.submit(from, operation, Wanted::Get { ranges }),
        });
        done.map_err(|error| self.note(error))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn atomic_otherwise(
        &mut self,
        error: OperationError,
        to: Peer,
        target: Target,
        atomic: Atomic,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let way = self.way_of(error, to, &[target.key], Changes::Word);
        way.and_then(|_| self.submit(to, operation, Wanted::Atomic { atomic, target }))
    }
}
