//! The questions that a switch asks hosts: which groups do you want (RFC 3376 section 4.1, RFC 3810
//! section 5.1)?
//!
//! They go to the own device alone: each switch asks its own hosts, and all hear the answers.

use weft_fabric::NodeId;

use crate::checksum::Sum;
use crate::frame::ether_type;
use crate::mac::MacAddress;
use crate::offload::Offload;

/// Answers come within this many tenths of a second, spread over it.
const ANSWER_WITHIN: u8 = 20;
/// Robustness: how often what is said once may be lost.
const ROBUSTNESS: u8 = 2;
/// The querier asks every 125 s.
const EVERY_S: u8 = 125;

/// The general questions, as packets with their header of offloads.
#[must_use]
pub fn all(own: NodeId) -> [Vec<u8>; 2] {
    let source = MacAddress::of_node(own);
    [packet(source, igmp()), packet(source, mld(source))]
}

fn packet(source: MacAddress, (group, ether_type, body): ([u8; 6], u16, Vec<u8>)) -> Vec<u8> {
    let header = [&[0; Offload::BYTES][..], &group, &source.0, &ether_type.to_be_bytes()].concat();
    let mut packet = [header, body].concat();
    // The shortest frame of Ethernet, without its check sequence.
    packet.resize(packet.len().max(Offload::BYTES + 60), 0);
    packet
}

/// From 0.0.0.0, as a switch asks that is no router (RFC 4541 section 2.1.1).
fn igmp() -> ([u8; 6], u16, Vec<u8>) {
    let mut query = [0x11, ANSWER_WITHIN, 0, 0, 0, 0, 0, 0, ROBUSTNESS, EVERY_S, 0, 0];
    let sum = Sum::default().add(&query).checksum();
    query[2..4].copy_from_slice(&sum);
    // 24 bytes of header with a router alert, 36 in all.
    let mut header =
        [0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0];
    let sum = Sum::default().add(&header).checksum();
    header[10..12].copy_from_slice(&sum);
    ([1, 0, 0x5e, 0, 0, 1], ether_type::IPV4, [&header[..], &query].concat())
}

/// From the address of the own link that follows from `source` (RFC 4291 appendix A).
fn mld(source: MacAddress) -> ([u8; 6], u16, Vec<u8>) {
    const ICMP_V6: u8 = 58;
    let within = (u16::from(ANSWER_WITHIN) * 100).to_be_bytes();
    let [a, b, c, d, e, g] = source.0;
    let from = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, g];
    let to = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let mut query = [0; 28];
    query[0] = 130;
    query[4..6].copy_from_slice(&within);
    query[24..26].copy_from_slice(&[ROBUSTNESS, EVERY_S]);
    let sum = Sum::default().add(&from).add(&to).number(query.len(), ICMP_V6).add(&query);
    query[2..4].copy_from_slice(&sum.checksum());
    // A router alert in an extension of 8 bytes in front.
    let header = [0x60, 0, 0, 0, 0, 36, 0, 1];
    let alert = [ICMP_V6, 0, 5, 2, 0, 0, 1, 0];
    let body = [&header[..], &from, &to, &alert, &query].concat();
    ([0x33, 0x33, 0, 0, 0, 1], ether_type::IPV6, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::membership::{Heard, Said, heard};

    #[test]
    fn they_are_understood_as_questions() {
        for packet in all(NodeId(0x102)) {
            let (offload, frame) = Offload::split(&packet).expect("it is whole");
            assert_eq!(offload.check(frame.len()), Ok(()));
            let frame = Frame::new(frame).expect("it is whole");
            assert_eq!(frame.source(), MacAddress::of_node(NodeId(0x102)));
            let query = Heard { said: vec![Said::Query], for_routers: false };
            assert_eq!(heard(&frame), query, "{packet:x?}");
        }
    }

    #[test]
    fn the_header_of_ipv4_has_a_right_checksum() {
        let (_, _, packet) = igmp();
        assert_eq!(Sum::default().add(&packet[..24]).checksum(), [0, 0]);
    }
}
