//! Memory for announced messages that the program gives no memory for.
//!
//! Registering memory is expensive on networks, so a region is used again. Invariant: `bytes` is
//! the sum of all regions that exist or are being registered, `regions` is their number, and
//! neither is above its maximum.

/// Bytes of the smallest region.
const REGION_BYTES_MIN: u64 = 4096;

/// The length of the region for `length` bytes, where regions have at most `maximum`.
pub(crate) fn region_bytes(length: u64, maximum: u64) -> u64 {
    length.checked_next_power_of_two().unwrap_or(u64::MAX).max(REGION_BYTES_MIN).min(maximum)
}

/// Regions for messages.
#[derive(Debug)]
pub(crate) struct Pool<R> {
    idle: Vec<(u64, R)>,
    bytes: u64,
    maximum: u64,
    regions: usize,
    regions_max: usize,
}

/// The answer to [`Pool::take`].
#[derive(Debug)]
pub(crate) enum Taken<R> {
    /// A region of so many bytes.
    Region(u64, R),
    /// A region of so many bytes has to be registered first.
    Register(u64),
    /// There is no memory until some comes back.
    Full,
}

impl<R> Pool<R> {
    /// A pool of at most `maximum` bytes in `regions_max` regions.
    pub fn new(maximum: u64, regions_max: usize) -> Self {
        Self { idle: Vec::new(), bytes: 0, maximum, regions: 0, regions_max }
    }

    /// The bytes of the longest message.
    pub fn maximum(&self) -> u64 {
        self.maximum
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the regions that no message uses.
    pub fn idle_bytes(&self) -> u64 {
        self.idle.iter().map(|(bytes, _)| bytes).sum()
    }

    /// A region for `length` bytes, which are at most the maximum.
    pub fn take(&mut self, length: u64) -> Taken<R> {
        assert!(length <= self.maximum, "a longer message is refused before");
        let wanted = region_bytes(length, self.maximum);
        if let Some(place) = self.idle.iter().rposition(|(bytes, _)| *bytes == wanted) {
            let (bytes, region) = self.idle.swap_remove(place);
            return Taken::Region(bytes, region);
        }
        let idle = self.idle_bytes();
        let used = self.regions - self.idle.len();
        if self.bytes - idle + wanted > self.maximum || used == self.regions_max {
            return Taken::Full;
        }
        while self.bytes + wanted > self.maximum || self.regions == self.regions_max {
            let (bytes, _) = self.idle.remove(0);
            self.forget(bytes);
        }
        self.bytes += wanted;
        self.regions += 1;
        Taken::Register(wanted)
    }

    /// Takes a region back.
    pub fn put(&mut self, bytes: u64, region: R) {
        self.idle.push((bytes, region));
        assert!(self.idle_bytes() <= self.bytes, "the region came from the pool");
    }

    /// A region of so many bytes was not registered.
    pub fn forget(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.regions -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded() {
        let mut pool = Pool::new(3 * 4096, 2);
        assert!(matches!(pool.take(1), Taken::Register(4096)));
        assert!(matches!(pool.take(5000), Taken::Register(8192)));
        assert!(matches!(pool.take(1), Taken::Full));
        pool.put(4096, 'a');
        assert!(matches!(pool.take(4096), Taken::Region(4096, 'a')));
        pool.put(4096, 'a');
        pool.put(8192, 'b');
        // The idle regions make place for another length.
        assert!(matches!(pool.take(12_000), Taken::Register(12_288)));
        assert_eq!((pool.bytes(), pool.idle_bytes()), (12_288, 0));
        pool.forget(12_288);
        // The number of regions is bounded, too.
        assert!(matches!(pool.take(1), Taken::Register(4096)));
        assert!(matches!(pool.take(1), Taken::Register(4096)));
        assert!(matches!(pool.take(1), Taken::Full));
        pool.put(4096, 'c');
        assert!(matches!(pool.take(8000), Taken::Register(8192)));
        pool.forget(8192);
        pool.forget(4096);
        assert_eq!(pool.bytes(), 0);
    }
}
