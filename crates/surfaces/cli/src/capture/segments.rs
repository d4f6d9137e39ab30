//! Bytes of a stream as packets of TCP over IP, which Wireshark follows.
//!
//! The packets have what a reader needs: addresses, ports, sequence numbers and flags. There are no
//! checksums of TCP, as in captures of interfaces that compute them.

use std::net::{IpAddr, SocketAddr};

/// Bytes of a packet's payload at most.
pub const PAYLOAD_MAX: usize = 60_000;
const TCP_BYTES: usize = 20;
/// The number of TCP in IP.
const TCP: u8 = 6;

/// The flags of a segment.
pub mod flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const PUSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// The two ends of a connection, and how far each has sent.
#[derive(Clone, Debug)]
pub struct Ends {
    addresses: [SocketAddr; 2],
    sequence: [u32; 2],
}

impl Ends {
    /// A connection whose ends have sent nothing.
    pub const fn new(addresses: [SocketAddr; 2]) -> Self {
        Self { addresses, sequence: [1, 1] }
    }

    /// The next sequence number of an end is that of byte `place` of what it sends.
    pub fn seek(&mut self, from: usize, place: u64) {
        let [a, b, c, d, ..] = place.wrapping_add(1).to_le_bytes();
        self.sequence[from] = u32::from_le_bytes([a, b, c, d]);
    }

    /// The packets by which a connection begins.
    pub fn beginning(&self) -> [Vec<u8>; 3] {
        // The connecting end is the second one.
        let syn = |from: usize, ack: u32, flags| self.packet(from, 0, ack, flags, &[]);
        [
            syn(1, 0, flags::SYN),
            syn(0, 1, flags::SYN | flags::ACK),
            self.packet(1, 1, 1, flags::ACK, &[]),
        ]
    }

    /// The packet of bytes that an end sends, [`PAYLOAD_MAX`] at most.
    pub fn bytes(&mut self, from: usize, payload: &[u8]) -> Vec<u8> {
        let [own, other] = [self.sequence[from], self.sequence[1 - from]];
        let length = u32::try_from(payload.len()).unwrap_or(0);
        self.sequence[from] = own.wrapping_add(length);
        self.packet(from, own, other, flags::PUSH | flags::ACK, payload)
    }

    /// The packets by which a connection ends.
    pub fn end(&self) -> [Vec<u8>; 2] {
        [0, 1].map(|from| {
            let [own, other] = [self.sequence[from], self.sequence[1 - from]];
            self.packet(from, own, other, flags::FIN | flags::ACK, &[])
        })
    }

    fn packet(&self, from: usize, own: u32, other: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [source, target] = [self.addresses[from], self.addresses[1 - from]];
        let length = u16::try_from(TCP_BYTES + payload.len()).unwrap_or(u16::MAX);
        let mut packet = match (source.ip().to_canonical(), target.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let mut head = vec![0x45, 0];
                head.extend((length + 20).to_be_bytes());
                head.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]);
                head.extend(source.octets());
                head.extend(target.octets());
                let sum = checksum(&head).to_be_bytes();
                head[10..12].copy_from_slice(&sum);
                head
            }
            (source, target) => {
                let six = |address: IpAddr| match address {
                    IpAddr::V4(four) => four.to_ipv6_mapped(),
                    IpAddr::V6(six) => six,
                };
                let mut head = vec![0x60, 0, 0, 0];
                head.extend(length.to_be_bytes());
                head.extend([TCP, 64]);
                head.extend(six(source).octets());
                head.extend(six(target).octets());
                head
            }
        };
        packet.extend(source.port().to_be_bytes());
        packet.extend(target.port().to_be_bytes());
        packet.extend(own.to_be_bytes());
        packet.extend(other.to_be_bytes());
        packet.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }
}

/// The checksum of a header of IPv4 (RFC 1071).
fn checksum(head: &[u8]) -> u16 {
    let (words, _) = head.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn segments_have_addresses_numbers_and_checksums() {
        let mut ends = Ends::new([at("10.0.0.1:80"), at("10.0.0.2:5000")]);
        let [syn, ..] = ends.beginning();
        assert_eq!(syn.len(), 40);
        assert_eq!(checksum(&syn[..20]), 0, "the sum over a right header");
        assert_eq!((&syn[12..16], &syn[20..22]), (&[10, 0, 0, 2][..], &5000_u16.to_be_bytes()[..]));
        assert_eq!(syn[33], flags::SYN);
        let long = vec![7; PAYLOAD_MAX];
        let packets = [ends.bytes(1, &long), ends.bytes(1, &long[..5])];
        let number = |packet: &[u8]| u32::from_be_bytes(packet[24..28].try_into().expect("4"));
        assert_eq!((number(&packets[0]), packets[0].len()), (1, 40 + PAYLOAD_MAX));
        assert_eq!(number(&packets[1]), 60_001);
        assert_eq!(ends.bytes(0, b"x")[28..32], 60_006_u32.to_be_bytes(), "acknowledged");
        ends.seek(1, 1 << 32);
        assert_eq!(number(&ends.bytes(1, b"y")), 1, "numbers wrap");
    }

    #[test]
    fn ends_of_two_families_are_those_of_ipv6() {
        let mut ends = Ends::new([at("[2001:db8::1]:80"), at("[::1]:5")]);
        let packet = ends.bytes(0, b"abc");
        assert_eq!((packet[0], packet.len(), packet[5]), (0x60, 40 + 20 + 3, 23));
    }
}
