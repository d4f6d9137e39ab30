//! The parts that the store's formats share: numbers of variable length, checksums with a seed.
//!
//! Everything that is read back has a CRC-32C whose start value is made of the region, the epoch
//! and the number of the file. So bytes of an earlier use, or of another file, never pass.

use crate::store::StoreError;

/// A part of the key space that is replicated and compacted as one.
pub type Region = u32;

/// Counts the primaries of a region. Each writes files of its own epoch.
pub type Epoch = u32;

/// The start value of the checksums of a file.
#[must_use]
pub fn seed(region: Region, epoch: Epoch, number: u64) -> u32 {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&region.to_le_bytes());
    bytes[4..8].copy_from_slice(&epoch.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    crc32c::crc32c(&bytes)
}

/// The checksum of bytes.
#[must_use]
pub fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Appends a number, seven bits a byte, the lowest first.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

/// Takes a number off the front; `None` if the bytes end before it or it exceeds 64 bits.
#[must_use]
pub fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(u64::from(first));
    }
    let mut number = 0u64;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        let shift = 7 * u32::try_from(index).ok()?;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            *bytes = &bytes[index + 1..];
            return Some(number);
        }
    }
    None
}

/// Takes `count` bytes off the front.
#[must_use]
pub fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

/// Takes a number that is a length in memory.
#[must_use]
pub fn take_length(bytes: &mut &[u8]) -> Option<usize> {
    usize::try_from(take_number(bytes)?).ok()
}

/// Four bytes at a place, as a number.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Eight bytes at a place, as a number.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// An error that names the damaged place.
#[must_use]
pub fn damaged(name: &str, what: &str) -> StoreError {
    StoreError::Damaged(format!("{name}: {what}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_checksum_is_castagnoli() {
        assert_eq!(checksum(0, b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn numbers_come_back(number: u64, behind: Vec<u8>) {
            let mut out = Vec::new();
            put_number(&mut out, number);
            out.extend_from_slice(&behind);
            let mut rest = out.as_slice();
            prop_assert_eq!(take_number(&mut rest), Some(number));
            prop_assert_eq!(rest, behind.as_slice());
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let mut rest = bytes.as_slice();
            while let Some(_number) = take_number(&mut rest) {}
        }
    }
}
