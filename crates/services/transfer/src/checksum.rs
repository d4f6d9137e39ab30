//! Checksums: a leaf for each piece of a file, and a tree over the leaves.
//!
//! The hash is XXH3 of 128 bits. It finds errors of memory, disks and lines. It is no defence
//! against somebody who makes bytes on purpose: that is the channel's (TLS, ssh).

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64, xxh3_128};

use crate::codec::{InvalidBytes, Reader, Writer};

/// Leaves or nodes below one node.
const FAN_OUT: usize = 64;

/// A piece of a file: a range and the hash of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Leaf {
    /// The place of its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u32,
    /// Their hash; 0 where nothing is verified.
    pub hash: u128,
}

impl Leaf {
    /// The first place behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    pub(crate) fn put(&self, into: &mut Writer) {
        into.u64(self.offset).u32(self.length).u128(self.hash);
    }

    pub(crate) fn take(from: &mut Reader<'_>) -> Result<Self, InvalidBytes> {
        Ok(Self { offset: from.u64()?, length: from.u32()?, hash: from.u128()? })
    }
}

/// The hash of the bytes of a leaf.
#[must_use]
pub fn hash(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

/// The same of bytes that come in parts.
#[derive(Clone, Default)]
pub struct Hasher(Xxh3Default);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher").finish_non_exhaustive()
    }
}

impl Hasher {
    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn end(&self) -> u128 {
        self.0.digest128()
    }
}

/// The checksum of a frame or a record.
pub(crate) fn short_hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The root of the tree over leaves, which are in the order of their places. The size of the file
/// is in it, too.
#[must_use]
pub fn root(size: u64, leaves: &[Leaf]) -> u128 {
    let mut level: Vec<u128> = leaves.chunks(FAN_OUT).map(node_of_leaves).collect();
    while level.len() > 1 {
        level = level.chunks(FAN_OUT).map(node).collect();
    }
    let mut top = Writer::default();
    top.u64(size).u64(leaves.len() as u64).u128(level.first().copied().unwrap_or(0));
    hash(&top.0)
}

fn node_of_leaves(leaves: &[Leaf]) -> u128 {
    let mut bytes = Writer::default();
    leaves.iter().for_each(|leaf| leaf.put(&mut bytes));
    hash(&bytes.0)
}

fn node(below: &[u128]) -> u128 {
    let mut bytes = Writer::default();
    for hash in below {
        bytes.u128(*hash);
    }
    hash(&bytes.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_differs_whatever_bit_of_a_leaf_does() {
        let leaf = |index: u64| Leaf { offset: index << 20, length: 1 << 20, hash: index.into() };
        let leaves: Vec<Leaf> = (0..5_000).map(leaf).collect();
        let whole = root(5_000 << 20, &leaves);
        for index in [0, 63, 64, 4_095, 4_096, 4_999] {
            for change in [
                |leaf: &mut Leaf| leaf.hash ^= 1 << 127,
                |leaf: &mut Leaf| leaf.offset ^= 1,
                |leaf: &mut Leaf| leaf.length ^= 1,
            ] {
                let mut other = leaves.clone();
                change(&mut other[index]);
                assert_ne!(root(5_000 << 20, &other), whole);
            }
        }
        assert_ne!(root(5_000 << 20, &leaves[..4_999]), whole);
        assert_ne!(root(0, &[]), root(1, &[]));
    }
}
