//! The internet checksum.

/// A running sum of the internet checksum (RFC 1071).
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes`. Only the last call may have an odd number of bytes.
    pub(crate) fn add(mut self, bytes: &[u8]) -> Self {
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            self.0 += u64::from(u16::from_be_bytes([pair[0], low]));
        }
        self
    }

    /// Adds the length and the protocol, which follow the addresses in the pseudo-header of IPv6
    /// (RFC 8200 section 8.1).
    pub(crate) fn number(mut self, length: usize, protocol: u8) -> Self {
        self.0 += length as u64 + u64::from(protocol);
        self
    }

    /// Whether the data is intact: the sum of data that includes its checksum is all ones.
    pub(crate) fn is_right(self) -> bool {
        self.folded() == u16::MAX
    }

    /// The checksum to store, if its field was zero while the data was added.
    pub(crate) fn checksum(self) -> [u8; 2] {
        (!self.folded()).to_be_bytes()
    }

    fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > u64::from(u16::MAX) {
            sum = (sum & u64::from(u16::MAX)) + (sum >> 16);
        }
        u16::try_from(sum).unwrap_or(u16::MAX)
    }
}
