//! The header in front of each frame: the work that the kernel left to the device.
//!
//! A frame from a TAP device may be a super-packet of 64 KB without checksums. It crosses the
//! fabric unchanged, whatever the MTU, together with this header. The receiving kernel, or the
//! hardware of its gateway, segments it and makes the checksums if that is needed
//! (RED-SEA-D2.3#3.8). The layout is the kernel's `struct virtio_net_hdr_v1` (virtio specification
//! 1.1, section 5.1.6).

use thiserror::Error;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::HEADER_BYTES;

/// The offload header, little endian.
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

/// A checksum is missing. It covers the bytes from `checksum_start` on, and its field is
/// `checksum_offset` behind that.
const NEEDS_CHECKSUM: u8 = 1;
/// The checksum was verified.
const DATA_VALID: u8 = 2;

const KIND_NONE: u8 = 0;
/// In this order: TCP over IPv4, UDP to be fragmented, TCP over IPv6, UDP to be segmented.
const KINDS: [u8; 4] = [1, 3, 4, 5];
/// A flag on the TCP kinds: the connection uses ECN.
const KIND_ECN: u8 = 0x80;

/// Why an offload header must not reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum OffloadError {
    /// Unknown flags.
    #[error("unknown flags {0:#04x} in the offload header")]
    Flags(u8),
    /// An unknown kind of super-packet.
    #[error("a super-packet of the unknown kind {0:#04x}")]
    Kind(u8),
    /// The segments have no bytes, or the headers are longer than the frame.
    #[error(
        "a super-packet of {frame} bytes with segments of {segment}, headers of {headers} bytes"
    )]
    Segments {
        /// Bytes of the frame.
        frame: usize,
        /// Bytes of each segment.
        segment: u16,
        /// Bytes of the headers that each segment repeats.
        headers: u16,
    },
    /// The checksum field lies outside the frame, or in the frame's header.
    #[error("a checksum at {start} + {offset}, outside the payload of a frame of {frame} bytes")]
    Checksum {
        /// Bytes of the frame.
        frame: usize,
        /// Offset in the frame of the first byte that the checksum covers.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

impl Offload {
    /// Bytes of the offload header.
    pub const BYTES: usize = size_of::<Self>();

    /// Splits a packet into offload header and frame. `None` if it is shorter than the header.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        Self::read_from_prefix(bytes).ok()
    }

    /// True for a packet that has to be segmented where it leaves the fabric.
    #[must_use]
    pub const fn is_super_packet(&self) -> bool {
        self.kind != KIND_NONE
    }

    /// Checks an offload header from another node for a frame of `frame` bytes. The kernel trusts
    /// most of its fields.
    ///
    /// # Errors
    /// [`OffloadError`] names the invalid field.
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
        Offload::split(&bytes).expect("the input is complete").0
    }

    #[test]
    fn the_layout_is_the_kernels() {
        // TCP over IPv4: checksum from byte 34 on, its field 16 behind; segments of 1448 bytes,
        // headers of 66.
        let (offload, frame) = Offload::split(&[1, 1, 66, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0, 9])
            .expect("the input is complete");
        assert_eq!((Offload::BYTES, frame), (12, &[9][..]));
        assert!(offload.is_super_packet());
        assert_eq!(offload.check(65_000), Ok(()));
        assert!(Offload::split(&[0; 11]).is_none());
    }

    #[test]
    fn headers_that_the_kernel_must_not_trust_are_refused() {
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
