//! The membership queries that a switch sends to its hosts (RFC 3376 section 4.1, RFC 3810 section
//! 5.1).
//!
//! They go to this node's device only: each switch queries its own hosts, and all switches get the
//! reports.

use crate::checksum::Sum;
use crate::frame::ether_type;
use crate::mac::MacAddress;
use crate::offload::Offload;

/// Hosts spread their answers over this many tenths of a second.
const ANSWER_WITHIN: u8 = 20;
/// Robustness variable: hosts repeat a report so often that this many minus one may be lost.
const ROBUSTNESS: u8 = 2;
/// The interval of queries in seconds.
const EVERY_S: u8 = 125;

/// The general queries for IPv4 and IPv6, each a packet with its offload header.
#[must_use]
pub fn all(source: MacAddress) -> [Vec<u8>; 2] {
    [packet(source, igmp()), packet(source, mld(source))]
}

fn packet(source: MacAddress, (group, ether_type, body): ([u8; 6], u16, Vec<u8>)) -> Vec<u8> {
    let header = [&[0; Offload::BYTES][..], &group, &source.0, &ether_type.to_be_bytes()].concat();
    let mut packet = [header, body].concat();
    // 60 bytes are the shortest Ethernet frame without its check sequence.
    packet.resize(packet.len().max(Offload::BYTES + 60), 0);
    packet
}

/// The query of IGMPv3. Its source is 0.0.0.0, since the switch is no router (RFC 4541 section
/// 2.1.1).
fn igmp() -> ([u8; 6], u16, Vec<u8>) {
    let mut query = [0x11, ANSWER_WITHIN, 0, 0, 0, 0, 0, 0, ROBUSTNESS, EVERY_S, 0, 0];
    let sum = Sum::default().add(&query).checksum();
    query[2..4].copy_from_slice(&sum);
    // 24 bytes of header with a router alert, 36 bytes in all.
    let mut header =
        [0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 224, 0, 0, 1, 0x94, 4, 0, 0];
    let sum = Sum::default().add(&header).checksum();
    header[10..12].copy_from_slice(&sum);
    ([1, 0, 0x5e, 0, 0, 1], ether_type::IPV4, [&header[..], &query].concat())
}

/// The query of MLDv2. Its source is the link-local address of `source` (RFC 4291 appendix A).
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
    // A router alert in an extension header of 8 bytes comes first.
    let header = [0x60, 0, 0, 0, 0, 36, 0, 1];
    let alert = [ICMP_V6, 0, 5, 2, 0, 0, 1, 0];
    let body = [&header[..], &from, &to, &alert, &query].concat();
    ([0x33, 0x33, 0, 0, 0, 1], ether_type::IPV6, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_fabric::NodeId;

    use crate::frame::Frame;
    use crate::snooping::{Report, Reports, heard};

    #[test]
    fn both_queries_are_parsed_as_queries() {
        let own = MacAddress::of_node(NodeId(0x102)).expect("16 bits");
        for packet in all(own) {
            let (offload, frame) = Offload::split(&packet).expect("the input is complete");
            assert_eq!(offload.check(frame.len()), Ok(()));
            let frame = Frame::new(frame).expect("the input is complete");
            assert_eq!(frame.source(), own);
            let query = Reports { reports: vec![Report::Query], for_routers: false };
            assert_eq!(heard(&frame), query, "{packet:x?}");
        }
    }

    #[test]
    fn the_ipv4_header_has_a_valid_checksum() {
        let (_, _, packet) = igmp();
        assert_eq!(Sum::default().add(&packet[..24]).checksum(), [0, 0]);
    }
}
