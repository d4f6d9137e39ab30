//! Keys as bytes that a program sends to peers.
//!
//! ```text
//!  0     4         6       7  8      12       16       24        32
//!  ├─────┼─────────┼───────┼──┼──────┼────────┼────────┼─────────┤
//!  │WEFT │ version │access │ 0│ node │ number │ length │   key   │
//!  └─────┴─────────┴───────┴──┴──────┴────────┴────────┴─────────┘
//! ```
//! All numbers are little-endian. The fabric checks the key itself, whoever made the bytes; what
//! stands beside it makes mistakes known before they are sent.

use weft_fabric::rules::is_inside;
use weft_fabric::{Access, EndpointAddress, NodeId, OperationError, RemoteKey, Target, Vpid};

use crate::status::Failure;
use crate::types::weft_key;
use crate::types::weft_status::{WEFT_ERROR_KEY, WEFT_ERROR_RANGE};

const MAGIC: [u8; 4] = *b"WEFT";
const VERSION: u16 = 1;

/// The content of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    pub owner: EndpointAddress,
    pub access: Access,
    pub length: u64,
    pub key: RemoteKey,
}

impl Key {
    pub fn emit(&self) -> weft_key {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.access.bits();
        bytes[8..12].copy_from_slice(&self.owner.node.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.owner.vpid.0).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..].copy_from_slice(&self.key.0.to_le_bytes());
        weft_key { bytes }
    }

    #[inline]
    pub fn parse(key: &weft_key) -> Result<Self, Failure> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&key.bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let bad = |what| Failure::new(WEFT_ERROR_KEY, format!("the bytes are no key: {what}"));
        let head = word(0);
        if head & 0xffff_ffff != u64::from(u32::from_le_bytes(MAGIC)) {
            return Err(bad("they begin otherwise"));
        }
        if (head >> 32) & 0xffff != u64::from(VERSION) {
            return Err(bad("they are of another version of weft"));
        }
        let access = u8::try_from(head >> 48).ok().and_then(Access::of_key);
        let access = access.ok_or_else(|| bad("a key has no such rights"))?;
        let owner = word(8);
        let node = u32::try_from(owner & 0xffff_ffff).map_err(|_| bad("its owner"))?;
        let vpid = u16::try_from(owner >> 32).map_err(|_| bad("its owner has no address"))?;
        let owner = EndpointAddress::new(NodeId(node), Vpid(vpid));
        Ok(Self { owner, access, length: word(16), key: RemoteKey(word(24)) })
    }

    /// The place of `length` bytes from `offset` on.
    #[inline]
    pub fn target(&self, offset: u64, length: u64) -> Result<Target, Failure> {
        if !is_inside(offset, length, self.length) {
            let region = self.length;
            let error = OperationError::OutOfBounds { offset, length, region };
            return Err(Failure::new(WEFT_ERROR_RANGE, error.to_string()));
        }
        Ok(Target::new(self.key, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        let owner = EndpointAddress::new(NodeId(7), Vpid(9));
        Key { owner, access: Access::READ, length: 4096, key: RemoteKey(0x0102_0304_0506_0708) }
    }

    #[test]
    fn a_key_has_these_bytes() {
        let emitted = key().emit();
        let bytes = *b"WEFT\x01\0\x01\0\x07\0\0\0\x09\0\0\0\
            \0\x10\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01";
        assert_eq!(emitted.bytes, bytes);
        assert_eq!(Key::parse(&emitted), Ok(key()));
    }

    #[test]
    fn bytes_that_are_no_key_are_refused() {
        for place in 0..8 {
            let mut other = key().emit();
            other.bytes[place] ^= 0x80;
            let parsed = Key::parse(&other).map_err(|failure| failure.status);
            assert_eq!(parsed, Err(WEFT_ERROR_KEY), "byte {place}");
        }
        assert!(Key::parse(&weft_key { bytes: [0; 32] }).is_err());
    }

    #[test]
    fn a_range_outside_is_found_before_it_is_sent() {
        assert_eq!(key().target(4090, 6), Ok(Target::new(key().key, 4090)));
        for (offset, length) in [(4090, 7), (u64::MAX, 1), (1, u64::MAX), (4097, 0)] {
            let status = key().target(offset, length).map_err(|failure| failure.status);
            assert_eq!(status, Err(WEFT_ERROR_RANGE), "{offset} {length}");
        }
    }
}
