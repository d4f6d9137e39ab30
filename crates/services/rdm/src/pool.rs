//! Chunks of the endpoint's memory that peers read, and who has them.

use crate::peers::PeerId;

/// The holder of each chunk. The chunk that was given back last is the next, since it is in the
/// cache.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The peer that reads a chunk.
    holders: Vec<Option<PeerId>>,
    free: Vec<u16>,
    bytes: usize,
}

impl Pool {
    pub(crate) fn new(chunks: u16, bytes: usize) -> Self {
        Self { holders: vec![None; usize::from(chunks)], free: (0..chunks).rev().collect(), bytes }
    }

    /// Bytes of all chunks.
    pub(crate) fn total(&self) -> u64 {
        (self.holders.len() * self.bytes) as u64
    }

    /// Chunks that peers have.
    pub(crate) fn taken(&self) -> usize {
        self.holders.len() - self.free.len()
    }

    /// Chunks that one peer may have.
    pub(crate) fn share(&self) -> usize {
        self.holders.len() / 2
    }

    /// The first byte of a chunk.
    pub(crate) fn offset(&self, chunk: u16) -> u64 {
        u64::from(chunk) * self.bytes as u64
    }

    pub(crate) fn take(&mut self, peer: PeerId) -> Option<u16> {
        let chunk = self.free.pop()?;
        self.holders[usize::from(chunk)] = Some(peer);
        Some(chunk)
    }

    /// Takes a chunk back from a peer. `None` if that peer does not have it.
    pub(crate) fn give_back(&mut self, peer: PeerId, chunk: u16) -> Option<()> {
        let holder = self.holders.get_mut(usize::from(chunk))?;
        holder.take_if(|has| *has == peer)?;
        self.free.push(chunk);
        Some(())
    }

    /// Takes all chunks of a peer back.
    pub(crate) fn reclaim(&mut self, peer: PeerId) {
        for chunk in 0..u16::try_from(self.holders.len()).unwrap_or(u16::MAX) {
            let _ = self.give_back(peer, chunk);
        }
    }
}
