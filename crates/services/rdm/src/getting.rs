//! Bytes of other nodes: got part by part into the landing, and copied from there to the program.
//!
//! They come from chunks of the sender, or from memory of its program that it lent. The program's
//! memory here is never the target of a get: a peer that is reported down may still be sending.

use weft_fabric::{Endpoint, Region, RemoteKey};

use crate::fetching::Fetch;
use crate::machine::Core;
use crate::memory::{Memory, Surface};
use crate::outcome::Failure;
use crate::packet::First;
use crate::peers::PeerId;

/// Bodies that are got from where peers lent them, at most. Others are asked for.
const LOANS_MAX: usize = 4096;

/// Bytes of another node that are got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Get {
    pub(crate) peer: PeerId,
    into: Into,
    pub(crate) origin: Origin,
    pub(crate) length: usize,
}

/// The place of bytes at a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A chunk, which it gets back then.
    Chunk(u16),
    /// Memory of its program, by this key from this byte on.
    Lent(RemoteKey, usize),
}

/// A body that a peer lent, and the bytes that are still to be got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    pub(crate) peer: PeerId,
    fetch: u64,
    key: RemoteKey,
    at: usize,
    end: usize,
}

/// The place for bytes that are got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Into {
    /// This offset of a body that is fetched.
    Fetch(u64, usize),
    /// A message that waits for a receive.
    Arrival(u64),
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    /// Gets a chunk of another node for a message that waits.
    pub(crate) fn get_arrival(&mut self, from: PeerId, first: First, number: u64) -> Option<()> {
        self.get_chunk(from, first, Into::Arrival(number))
    }

    /// Gets a chunk of another node. `None` if there is no such chunk, or too many are wanted.
    pub(crate) fn get_chunk(&mut self, from: PeerId, first: First, into: Into) -> Option<()> {
        let (chunk, length) = (first.chunk, first.length as usize);
        let has_chunk = chunk < self.peers.at(from).hello?.chunks;
        let fits = length > 0 && length <= self.options.chunk_bytes;
        // As many as the peer has chunks.
        if !has_chunk || !fits || self.gets.len() >= usize::from(u16::MAX) {
            return None;
        }
        self.gets.push_back(Get { peer: from, into, origin: Origin::Chunk(chunk), length });
        Some(())
    }

    /// A receive takes a message whose chunk is being got.
    pub(crate) fn redirect(&mut self, arrival: u64, fetch: Fetch<S>) {
        let number = self.fetches.insert(fetch);
        let mut gets = self.gets.iter_mut().chain(self.landing.iter_mut().flatten());
        match gets.find(|get| get.into == Into::Arrival(arrival)) {
            Some(get) => get.into = Into::Fetch(number, 0),
            None => self.fail_fetch(number, Failure::PeerDown),
        }
    }

    /// Gets a range of a body that is fetched from where the peer lent it. False if there are too
    /// many such bodies.
    pub(crate) fn take_loan(
        &mut self,
        (peer, fetch): (PeerId, u64),
        key: RemoteKey,
        (at, end): (usize, usize),
    ) -> bool {
        let has_room = self.loans.len() < LOANS_MAX;
        if has_room {
            self.loans.push_back(Loan { peer, fetch, key, at, end });
        }
        has_room
    }

    /// A place of the landing for bytes that are got. Some are kept for chunks, behind which other
    /// messages may wait.
    pub(crate) fn place_for(&self, is_chunk: bool) -> Option<usize> {
        let all = self.landing.len();
        let room = if is_chunk { all } else { all - all / 4 };
        self.landing[..room].iter().position(Option::is_none)
    }

    /// The next bytes to be got from another node.
    pub(crate) fn next_get(&mut self) -> Option<Get> {
        if let Some(get) = self.gets.front() {
            return Some(*get);
        }
        // A fetch may have failed meanwhile.
        while self.loans.front().is_some_and(|loan| self.fetches.get(loan.fetch).is_none()) {
            self.loans.pop_front();
        }
        let Loan { peer, fetch, key, at, end } = *self.loans.front()?;
        let (into, origin) = (Into::Fetch(fetch, at), Origin::Lent(key, at));
        Some(Get { peer, into, origin, length: (end - at).min(self.options.chunk_bytes) })
    }

    /// The get that [`Core::next_get`] told is under way, or has failed.
    pub(crate) fn drop_get(&mut self) {
        if self.gets.pop_front().is_some() {
            return;
        }
        let Some(loan) = self.loans.front_mut() else { return };
        loan.at = loan.end.min(loan.at + self.options.chunk_bytes);
        if loan.at == loan.end {
            self.loans.pop_front();
        }
    }

    /// A get has ended, whose bytes are in a place of the landing.
    pub(crate) fn got(&mut self, slot: usize, is_good: bool) {
        let Some(get) = self.landing.get_mut(slot).and_then(Option::take) else { return };
        if !is_good {
            // Its keys are in force as long as the peer lives.
            return self.fail_get(&get, Failure::PeerDown);
        }
        let Some(region) = &self.landing_region else { return };
        let mut place = slot as u64 * self.options.chunk_bytes as u64;
        let mut read = Ok(());
        match get.into {
            Into::Fetch(number, offset) => {
                let mut length = 0;
                let filled = self.fetches.get(number).map(|fetch| {
                    // A receive may have less room.
                    length = get.length.min(fetch.memory.length() - offset);
                    fetch.memory.fill(offset, length, &mut |piece| {
                        read = read.clone().and(region.read(place, piece));
                        place += piece.len() as u64;
                    })
                });
                self.give_back(&get);
                match filled {
                    Some(Ok(())) if read.is_ok() => self.part_arrived(number, length),
                    _ => self.fail_fetch(number, Failure::Fault),
                }
            }
            Into::Arrival(number) => {
                let mut bytes = vec![0; get.length];
                let read = region.read(place, &mut bytes);
                self.give_back(&get);
                self.arrived(number, read.is_ok().then_some(bytes));
            }
        }
    }

    /// The bytes of a get were read: a chunk is the peer's again.
    fn give_back(&mut self, get: &Get) {
        if let Origin::Chunk(chunk) = get.origin {
            self.release(get.peer, chunk);
        }
    }

    pub(crate) fn fail_get(&mut self, get: &Get, failure: Failure) {
        match get.into {
            Into::Fetch(number, _) => self.fail_fetch(number, failure),
            Into::Arrival(number) => self.arrived(number, None),
        }
    }
}
