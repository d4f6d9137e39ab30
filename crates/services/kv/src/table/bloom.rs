//! A bloom filter in blocks of a cache line: ten bits a key let about one absent key in a hundred
//! pass, and each question reads one line of memory.

use xxhash_rust::xxh3::xxh3_64;

const LINE_BYTES: usize = 64;
const BITS_OF_KEY: usize = 10;
const PROBES: u32 = 6;

/// Tells which keys are not in a table.
pub struct Bloom {
    bytes: Vec<u8>,
}

/// The hash of a key that the filter is asked with.
#[must_use]
pub fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

impl Bloom {
    /// The filter of these hashes.
    #[must_use]
    pub fn of(hashes: &[u64]) -> Self {
        let lines = (hashes.len() * BITS_OF_KEY).div_ceil(LINE_BYTES * 8).max(1);
        let mut bytes = vec![0; lines * LINE_BYTES];
        for &hash in hashes {
            let line = line_of(hash, lines) * LINE_BYTES;
            for bit in bits_of(hash) {
                bytes[line + bit / 8] |= 1 << (bit % 8);
            }
        }
        Self { bytes }
    }

    /// A filter that was written; `None` if it is of no length that one has.
    #[must_use]
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty() && bytes.len().is_multiple_of(LINE_BYTES)).then_some(Self { bytes })
    }

    /// The form in a file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// False only if no key of this hash is in the table.
    #[must_use]
    pub fn may_contain(&self, hash: u64) -> bool {
        let line = line_of(hash, self.bytes.len() / LINE_BYTES) * LINE_BYTES;
        bits_of(hash).all(|bit| self.bytes[line + bit / 8] & (1 << (bit % 8)) != 0)
    }
}

/// The line by the upper half of the hash.
fn line_of(hash: u64, lines: usize) -> usize {
    let scaled = (u128::from(hash) * lines as u128) >> 64;
    usize::try_from(scaled).expect("below the number of lines")
}

/// The bits in the line by the lower half.
fn bits_of(hash: u64) -> impl Iterator<Item = usize> {
    let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..PROBES).map(move |probe| ((mixed >> (9 * probe)) & 511) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_missed_and_few_others_pass() {
        let hashes: Vec<u64> = (0..10_000u32).map(|key| hash(&key.to_le_bytes())).collect();
        let bloom = Bloom::parse(Bloom::of(&hashes).bytes().to_vec()).unwrap();
        assert!(hashes.iter().all(|&hash| bloom.may_contain(hash)));
        let others = (10_000..110_000u32).map(|key| hash(&key.to_le_bytes()));
        let passed = others.filter(|&hash| bloom.may_contain(hash)).count();
        assert!((1..2_500).contains(&passed), "{passed} of 100,000 passed");
    }
}
