//! The headers of an Ethernet frame, parsed and checked.

use thiserror::Error;

use crate::mac::MacAddress;

/// Bytes of a frame's header: two addresses and a type.
pub const HEADER_BYTES: usize = 14;
/// Bytes of one VLAN tag.
pub const TAG_BYTES: usize = 4;
/// VLAN tags that are parsed: one of the provider and one of the customer (QinQ).
const TAGS_MAX: usize = 2;
/// The longest frame: the longest super-packet of TCP or UDP behind a header with two tags.
pub const FRAME_BYTES_MAX: usize = 65_535 + HEADER_BYTES + TAGS_MAX * TAG_BYTES;

/// EtherTypes.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// A tag of a customer's VLAN (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// A tag of a provider's VLAN (IEEE 802.1ad).
    pub const PROVIDER_VLAN: u16 = 0x88a8;
}

/// Why a row of bytes is no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// It is shorter than a frame header.
    #[error("a frame of {bytes} bytes, shorter than the header of {HEADER_BYTES}")]
    Short {
        /// Bytes received.
        bytes: usize,
    },
    /// It is longer than any frame.
    #[error("a frame of {bytes} bytes, longer than the maximum of {FRAME_BYTES_MAX}")]
    Long {
        /// Bytes received.
        bytes: usize,
    },
    /// It ends within its VLAN tags.
    #[error("a frame that ends within a VLAN tag, after {bytes} bytes")]
    CutTag {
        /// Bytes received.
        bytes: usize,
    },
}

/// A frame without its check sequence, of a checked length. It borrows the bytes, so nobody else
/// may write to them meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    bytes: &'a [u8],
    outer: Option<u16>,
    ether_type: u16,
    payload: usize,
}

impl<'a> Frame<'a> {
    /// Parses the headers in `bytes`.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn new(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let length = bytes.len();
        if length < HEADER_BYTES {
            return Err(FrameError::Short { bytes: length });
        }
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::Long { bytes: length });
        }
        let mut frame = Self { bytes, outer: None, ether_type: 0, payload: HEADER_BYTES };
        frame.ether_type = frame.number(12);
        for _ in 0..TAGS_MAX {
            if !matches!(frame.ether_type, ether_type::VLAN | ether_type::PROVIDER_VLAN) {
                break;
            }
            if length < frame.payload + TAG_BYTES {
                return Err(FrameError::CutTag { bytes: length });
            }
            // The low twelve bits are the VLAN, the high four its priority.
            let vlan = frame.number(frame.payload) & 0xfff;
            frame.outer.get_or_insert(vlan);
            frame.ether_type = frame.number(frame.payload + 2);
            frame.payload += TAG_BYTES;
        }
        Ok(frame)
    }

    fn number(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn address(&self, at: usize) -> MacAddress {
        let mut octets = [0; 6];
        octets.copy_from_slice(&self.bytes[at..at + 6]);
        MacAddress(octets)
    }

    /// The destination address.
    #[must_use]
    pub fn destination(&self) -> MacAddress {
        self.address(0)
    }

    /// The source address, which the sender may have forged.
    #[must_use]
    pub fn source(&self) -> MacAddress {
        self.address(6)
    }

    /// The VLAN of the outermost tag; 0, as for a frame without a tag, is the untagged network.
    #[must_use]
    pub fn vlan(&self) -> u16 {
        self.outer.unwrap_or(0)
    }

    /// The EtherType behind the tags.
    #[must_use]
    pub const fn ether_type(&self) -> u16 {
        self.ether_type
    }

    /// The bytes behind the header and its tags, including padding.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.payload..]
    }

    /// True for TCP over IPv4, or over IPv6 without extension headers.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        const TCP: u8 = 6;
        let protocol_at = match self.ether_type {
            ether_type::IPV4 => 9,
            ether_type::IPV6 => 6,
            _ => return false,
        };
        self.payload().get(protocol_at) == Some(&TCP)
    }

    /// The header with its tags.
    #[must_use]
    pub fn header(&self) -> &'a [u8] {
        &self.bytes[..self.payload]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(types: &[u8]) -> Vec<u8> {
        let addresses = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9];
        [&addresses, types].concat()
    }

    #[test]
    fn a_plain_frame() {
        let bytes = frame(&[8, 0, 0x45]);
        let frame = Frame::new(&bytes).expect("the input is complete");
        assert_eq!(frame.destination(), MacAddress::BROADCAST);
        assert_eq!(frame.source(), MacAddress([2, 0, 0, 0, 0, 9]));
        assert_eq!((frame.vlan(), frame.ether_type()), (0, ether_type::IPV4));
        assert_eq!(frame.payload(), [0x45]);
    }

    #[test]
    fn vlan_tags_are_parsed() {
        let bytes = frame(&[0x81, 0, 0xe0, 5, 0x86, 0xdd, 0x60]);
        let tagged = Frame::new(&bytes).expect("the input is complete");
        assert_eq!((tagged.vlan(), tagged.ether_type()), (5, ether_type::IPV6), "no priority");
        assert_eq!(tagged.payload(), [0x60]);
        let bytes = frame(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 8, 0, 0x45]);
        let twice = Frame::new(&bytes).expect("the input is complete");
        assert_eq!((twice.vlan(), twice.ether_type()), (7, ether_type::IPV4));
        assert_eq!((twice.header().len(), twice.payload()), (22, &[0x45][..]));
        let cut = frame(&[0x81, 0, 0, 5]);
        assert_eq!(Frame::new(&cut).err(), Some(FrameError::CutTag { bytes: 16 }));
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(Frame::new(&[0; 13]).err(), Some(FrameError::Short { bytes: 13 }));
        assert!(Frame::new(&[0; HEADER_BYTES]).is_ok());
        assert!(Frame::new(&vec![0; FRAME_BYTES_MAX]).is_ok());
        let long = vec![0; FRAME_BYTES_MAX + 1];
        assert_eq!(Frame::new(&long).err(), Some(FrameError::Long { bytes: long.len() }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(frame) = Frame::new(&bytes) {
                prop_assert_eq!([frame.header(), frame.payload()].concat(), bytes.clone());
            }
        }
    }
}
