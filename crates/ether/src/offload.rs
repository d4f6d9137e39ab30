//! The header in front of each frame: what the kernel left to the device to do.
//!
//! A frame that comes from a TAP device may be a super-packet of 64 KB without checksums. It
//! crosses the fabric as it is, whatever the MTU, with this header; the kernel at the other end, or
//! the hardware of its gateway, does the rest if anybody needs it (000 section 3.8). The kernel
//! writes and reads it as `struct virtio_net_hdr_v1` of the virtio specification (1.1, section
//! 5.1.6).

use thiserror::Error;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::HEADER_BYTES;

/// The header, little endian.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Offload {
    flags: u8,
    kind: u8,
    header_bytes: U16,
    segment_bytes: U16,
    checksum_start: U16,
    checksum_offset: U16,
    buffers: U16,
}

/// A checksum is to be made: from `checksum_start` on, stored `checksum_offset` behind that.
const NEEDS_CHECKSUM: u8 = 1;
/// The checksum was found right.
const DATA_VALID: u8 = 2;

const KIND_NONE: u8 = 0;
/// TCP over IPv4, fragments of UDP, TCP over IPv6, datagrams of UDP.
const KINDS: [u8; 4] = [1, 3, 4, 5];
/// Added to the kinds of TCP: the connection knows of congestion marks.
const KIND_ECN: u8 = 0x80;

/// Why a header is not handed to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OffloadError {
    /// Flags that no device sets.
    #[error("flags {0:#04x} in the header of offloads")]
    Flags(u8),
    /// A kind of super-packet that does not exist.
    #[error("a super-packet of kind {0:#04x}")]
    Kind(u8),
    /// Segments of no bytes, or headers longer than the frame.
    #[error("a super-packet of {frame} bytes with segments of {segment} and headers of {headers}")]
    Segments {
        /// Bytes of the frame.
        frame: usize,
        /// Bytes of each segment.
        segment: u16,
        /// Bytes of the headers that each segment repeats.
        headers: u16,
    },
    /// The checksum lies outside the frame, or in its header.
    #[error("a checksum at {start} + {offset} in a frame of {frame} bytes")]
    Checksum {
        /// Bytes of the frame.
        frame: usize,
        /// Where what it is about begins.
        start: u16,
        /// Where it is stored, from there.
        offset: u16,
    },
}

impl Offload {
    /// Bytes in front of each frame.
    pub const BYTES: usize = size_of::<Self>();

    /// Splits what a device or a peer gave into header and frame; `None` when it is too short.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        Self::read_from_prefix(bytes).ok()
    }

    /// True for a packet that is to be cut into segments where it leaves the fabric.
    #[must_use]
    pub const fn is_super_packet(&self) -> bool {
        self.kind != KIND_NONE
    }

    /// Checks the header that came from another node with a frame of `frame` bytes: the kernel
    /// believes much of it.
    ///
    /// # Errors
    /// [`OffloadError`] names what is wrong.
    pub fn check(&self, frame: usize) -> Result<(), OffloadError> {
        if self.flags & !(NEEDS_CHECKSUM | DATA_VALID) != 0 {
            return Err(OffloadError::Flags(self.flags));
        }
        let kind = self.kind & !KIND_ECN;
        let ecn_of_tcp = self.kind & KIND_ECN == 0 || matches!(kind, 1 | 4);
        if self.kind != KIND_NONE && !(KINDS.contains(&kind) && ecn_of_tcp) {
            return Err(OffloadError::Kind(self.kind));
        }
        let (headers, segment) = (self.header_bytes.get(), self.segment_bytes.get());
        let whole = usize::from(headers) <= frame;
        if !whole || self.is_super_packet() && segment == 0 {
            return Err(OffloadError::Segments { frame, segment, headers });
        }
        let (start, offset) = (self.checksum_start.get(), self.checksum_offset.get());
        let from = usize::from(start);
        let inside = from >= HEADER_BYTES && from + usize::from(offset) + 2 <= frame;
        if self.flags & NEEDS_CHECKSUM != 0 && !inside {
            return Err(OffloadError::Checksum { frame, start, offset });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bytes: [u8; 12]) -> Offload {
        Offload::split(&bytes).expect("it is whole").0
    }

    #[test]
    fn it_is_the_kernels_header() {
        // TCP over IPv4: checksum from byte 34 on, at 16 behind; segments of 1448, headers of 66.
        let (offload, frame) =
            Offload::split(&[1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0, 9]).expect("it is whole");
        assert_eq!((Offload::BYTES, frame), (12, &[9][..]));
        assert!(offload.is_super_packet());
        assert_eq!(offload.check(65_000), Ok(()));
        assert!(Offload::split(&[0; 11]).is_none());
    }

    #[test]
    fn what_a_kernel_should_not_believe_is_refused() {
        assert_eq!(Offload::default().check(14), Ok(()));
        assert_eq!(
            header([4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).check(60),
            Err(OffloadError::Flags(4))
        );
        for kind in [2, 6, 0x80, 0x83, 0x85, 0xff] {
            let offload = header([0, kind, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(offload.check(60), Err(OffloadError::Kind(kind)));
        }
        let no_segments = header([0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let error = OffloadError::Segments { frame: 60, segment: 0, headers: 0 };
        assert_eq!(no_segments.check(60), Err(error));
        let long = header([0, 0x84, 61, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(long.check(61), Ok(()));
        assert!(long.check(60).is_err());
        let checksum = |start, offset| header([1, 0, 0, 0, 0, 0, start, 0, offset, 0, 0, 0]);
        assert_eq!(checksum(34, 24).check(60), Ok(()));
        assert_eq!(
            checksum(34, 25).check(60),
            Err(OffloadError::Checksum { frame: 60, start: 34, offset: 25 })
        );
        assert!(checksum(13, 0).check(60).is_err(), "in the header");
    }
}
