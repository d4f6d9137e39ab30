//! Reports and queries of IP multicast groups, read from frames as RFC 4541 advises: IGMP (RFC
//! 1112, 2236, 3376), MLD (RFC 2710, 3810) and PIM (RFC 7761).
//!
//! A group is identified by its Ethernet address, since a data frame shows no more: 32 groups of
//! IPv4 share one address. Source filters are ignored: a host that wants a group from some sources
//! gets it from all. A packet that is cut off, has an unknown version or a wrong checksum is
//! ignored.

use crate::checksum::Sum;
use crate::frame::{Frame, ether_type};
use crate::mac::MacAddress;

/// One statement about a group or a router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// A host behind the sender's node wants the group.
    Join(MacAddress),
    /// A host behind the sender's node no longer wants the group. Other hosts there may.
    Leave(MacAddress),
    /// A router there sends queries. Which router it is decides only which of several goes on
    /// sending queries.
    Query,
    /// A router is there.
    Router,
}

/// The statements of one frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reports {
    /// The statements, in order.
    pub reports: Vec<Report>,
    /// The frame is a report, which only routers may get: a host that hears the report of another
    /// host suppresses its own (RFC 4541 section 2.1.1).
    pub for_routers: bool,
}

const IGMP: u8 = 2;
const ICMP_V6: u8 = 58;
const PIM: u8 = 103;
const HOP_BY_HOP: u8 = 0;
const PIM_VERSION_AND_HELLO: u8 = 0x20;

/// Records of one report that are read: as many as a frame of 9,000 bytes holds.
const RECORDS_MAX: u16 = 1_124;

/// Reads the statements about groups in `frame`. Almost every frame has none.
#[must_use]
pub fn heard(frame: &Frame<'_>) -> Reports {
    if !frame.destination().is_group() {
        return Reports::default();
    }
    match frame.ether_type() {
        ether_type::IPV4 => of_v4(frame.payload()),
        ether_type::IPV6 => of_v6(frame.payload()),
        _ => None,
    }
    .unwrap_or_default()
}

fn of_v4(packet: &[u8]) -> Option<Reports> {
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let is_v4 = packet[0] >> 4 == 4 && header_bytes >= 20;
    let length = usize::from(number(packet, 2)?);
    // Bytes behind the packet's length are padding. Fragments are ignored.
    let body = packet.get(header_bytes..length)?;
    if !is_v4 || number(packet, 6)? & 0x3fff != 0 {
        return None;
    }
    match packet[9] {
        IGMP => igmp(body),
        PIM => pim(body),
        _ => None,
    }
}

fn of_v6(packet: &[u8]) -> Option<Reports> {
    let is_v6 = *packet.first()? >> 4 == 6;
    let length = 40 + usize::from(number(packet, 4)?);
    let packet = packet.get(..length)?;
    if !is_v6 {
        return None;
    }
    let (mut next, mut body) = (packet[6], packet.get(40..)?);
    // Reports and queries have a router alert in front (RFC 3810 section 5).
    if next == HOP_BY_HOP {
        next = *body.first()?;
        let option_bytes = (usize::from(*body.get(1)?) + 1) * 8;
        body = body.get(option_bytes..)?;
    }
    match next {
        ICMP_V6 => {
            let pseudo = Sum::default().add(packet.get(8..40)?).number(body.len(), next);
            mld(body, pseudo)
        }
        PIM => pim(body),
        _ => None,
    }
}

fn pim(body: &[u8]) -> Option<Reports> {
    (*body.first()? == PIM_VERSION_AND_HELLO)
        .then(|| Reports { reports: vec![Report::Router], for_routers: false })
}

fn igmp(body: &[u8]) -> Option<Reports> {
    if body.len() < 8 || !Sum::default().add(body).is_right() {
        return None;
    }
    let group = v4_group(body.get(4..8)?);
    Some(match body[0] {
        0x11 => query(),
        0x12 | 0x16 => report(group.map(Report::Join)),
        0x17 => report(group.map(Report::Leave)),
        0x22 => records(body, 4, v4_group)?,
        _ => return None,
    })
}

fn mld(body: &[u8], pseudo: Sum) -> Option<Reports> {
    if body.len() < 8 || !pseudo.add(body).is_right() {
        return None;
    }
    let group = |body: &[u8]| v6_group(body.get(8..24)?);
    Some(match body[0] {
        130 => query(),
        131 => report(group(body).map(Report::Join)),
        132 => report(group(body).map(Report::Leave)),
        143 => records(body, 16, v6_group)?,
        _ => return None,
    })
}

fn query() -> Reports {
    Reports { reports: vec![Report::Query], for_routers: false }
}

fn report(report: Option<Report>) -> Reports {
    Reports { reports: report.into_iter().collect(), for_routers: true }
}

/// Reads the records of a report of IGMPv3 or MLDv2, whose addresses have `width` bytes. A record
/// that is cut off ends the list.
fn records(body: &[u8], width: usize, group: fn(&[u8]) -> Option<MacAddress>) -> Option<Reports> {
    let count = number(body, 6)?.min(RECORDS_MAX);
    let mut heard = report(None);
    let mut rest = &body[8..];
    for _ in 0..count {
        let Some(head) = rest.get(..4 + width) else { break };
        let sources = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let auxiliary = usize::from(head[1]) * 4;
        let Some(next) = rest.get(4 + width + sources * width + auxiliary..) else { break };
        rest = next;
        let Some(address) = group(&head[4..]) else { continue };
        // 1 and 2: the group's filter includes or excludes the sources. 3 and 4: it changes to
        // that. 5 and 6: it adds or blocks sources. An include filter without sources is a leave.
        match (head[0], sources) {
            (1 | 3, 0) => heard.reports.push(Report::Leave(address)),
            (1..=5, _) => heard.reports.push(Report::Join(address)),
            _ => {}
        }
    }
    Some(heard)
}

/// The Ethernet address of a group of IPv4 (RFC 1112 section 6.4).
fn v4_group(address: &[u8]) -> Option<MacAddress> {
    let [a, b, c, d] = address.try_into().ok()?;
    (224..240).contains(&a).then_some(MacAddress([1, 0, 0x5e, b & 0x7f, c, d]))
}

/// The Ethernet address of a group of IPv6 (RFC 2464 section 7).
fn v6_group(address: &[u8]) -> Option<MacAddress> {
    let [first, .., a, b, c, d] = *<&[u8; 16]>::try_from(address).ok()?;
    (first == 0xff).then_some(MacAddress([0x33, 0x33, a, b, c, d]))
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V4: MacAddress = MacAddress([1, 0, 0x5e, 1, 2, 3]);
    const V6: MacAddress = MacAddress([0x33, 0x33, 1, 2, 3, 4]);
    const V4_GROUP: [u8; 4] = [239, 0x81, 2, 3];
    const V6_GROUP: [u8; 16] = [0xff, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];

    /// Sets the checksum at `at` of `body`. `sum` is the sum of the pseudo-header.
    fn checked(mut body: Vec<u8>, at: usize, sum: Sum) -> Vec<u8> {
        let right = (0..=u16::MAX).find(|checksum| {
            body[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
            sum.add(&body).is_right()
        });
        assert!(right.is_some());
        body
    }

    fn frame(ether_type: u16, packet: &[u8]) -> Vec<u8> {
        let group = [1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 9];
        [&group[..], &ether_type.to_be_bytes(), packet].concat()
    }

    /// A packet of IPv4 with a router alert, padded as on a wire.
    fn v4(protocol: u8, body: &[u8]) -> Vec<u8> {
        let length = u8::try_from(24 + body.len()).expect("a short packet");
        let header = [0x46, 0, 0, length, 0, 0, 0, 0, 1, protocol, 0, 0, 10, 0, 0, 9];
        let addresses = [224, 0, 0, 22, 148, 4, 0, 0];
        frame(ether_type::IPV4, &[&header[..], &addresses, body, &[0xee; 9]].concat())
    }

    fn igmp_frame(body: Vec<u8>) -> Vec<u8> {
        v4(IGMP, &checked(body, 2, Sum::default()))
    }

    /// A packet of IPv6 with a router alert in front.
    fn mld_frame(body: Vec<u8>) -> Vec<u8> {
        let length = u8::try_from(8 + body.len()).expect("a short packet");
        let addresses = [7; 32];
        let pseudo = Sum::default().add(&addresses).number(body.len(), ICMP_V6);
        let body = checked(body, 2, pseudo);
        let header = [0x60, 0, 0, 0, 0, length, HOP_BY_HOP, 1];
        let alert = [ICMP_V6, 0, 5, 2, 0, 0, 1, 0];
        let packet = [&header[..], &addresses, &alert, &body, &[0xee; 3]].concat();
        frame(ether_type::IPV6, &packet)
    }

    fn of(bytes: &[u8]) -> Reports {
        heard(&Frame::new(bytes).expect("the input is complete"))
    }

    fn says(reports: &[Report], for_routers: bool) -> Reports {
        Reports { reports: reports.to_vec(), for_routers }
    }

    #[test]
    fn reports_of_all_versions_are_read() {
        let igmp = |kind: u8| igmp_frame([&[kind, 0, 0, 0][..], &V4_GROUP].concat());
        assert_eq!(of(&igmp(0x12)), says(&[Report::Join(V4)], true), "32 groups share an address");
        assert_eq!(of(&igmp(0x16)), says(&[Report::Join(V4)], true));
        assert_eq!(of(&igmp(0x17)), says(&[Report::Leave(V4)], true));
        assert_eq!(of(&igmp(0x11)), says(&[Report::Query], false));
        assert_eq!(of(&igmp(0x99)), Reports::default());
        let mld = |kind: u8| mld_frame([&[kind, 0, 0, 0, 0, 0, 0, 0][..], &V6_GROUP].concat());
        assert_eq!(of(&mld(131)), says(&[Report::Join(V6)], true));
        assert_eq!(of(&mld(132)), says(&[Report::Leave(V6)], true));
        assert_eq!(of(&mld(130)), says(&[Report::Query], false));
        assert_eq!(of(&mld(135)), Reports::default(), "neighbour discovery");
        assert_eq!(of(&v4(PIM, &[0x20, 0, 0, 0])), says(&[Report::Router], false));
    }

    #[test]
    fn records_become_joins_and_leaves() {
        let record = |kind: u8, sources: u8| {
            let sources_of = vec![9; usize::from(sources) * 4];
            [&[kind, 0, 0, sources][..], &V4_GROUP, &sources_of].concat()
        };
        for (kind, sources, said) in [
            (1, 0, Some(Report::Leave(V4))),
            (1, 2, Some(Report::Join(V4))),
            (2, 0, Some(Report::Join(V4))),
            (3, 0, Some(Report::Leave(V4))),
            (4, 0, Some(Report::Join(V4))),
            (5, 1, Some(Report::Join(V4))),
            (6, 1, None),
            (7, 0, None),
        ] {
            let body = [&[0x22, 0, 0, 0, 0, 0, 0, 1][..], &record(kind, sources)].concat();
            let reports: Vec<Report> = said.into_iter().collect();
            assert_eq!(of(&igmp_frame(body)), says(&reports, true), "record {kind}");
        }
        let records = [record(4, 1), record(3, 0)].concat();
        let body = [&[0x22, 0, 0, 0, 0, 0, 0, 3][..], &records].concat();
        let both = [Report::Join(V4), Report::Leave(V4)];
        assert_eq!(of(&igmp_frame(body)), says(&both, true), "the third is cut off");
        let body = [&[143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0][..], &V6_GROUP].concat();
        assert_eq!(of(&mld_frame(body)), says(&[Report::Join(V6)], true));
    }

    #[test]
    fn malformed_reports_are_ignored() {
        let body = [&[0x16, 0, 0, 0][..], &V4_GROUP].concat();
        let good = igmp_frame(body);
        assert_ne!(of(&good), Reports::default());
        // The version, header length, packet length, fragment flags, fragment offset, and group.
        for (at, value) in [(14, 0x56), (14, 0x4f), (17, 200), (20, 0x20), (21, 1), (40, 9)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(of(&bad), Reports::default(), "byte {at}");
        }
        for length in HEADER..good.len() - 9 {
            assert_eq!(of(&good[..length]), Reports::default());
        }
        let mut to_one = good;
        to_one[0] = 2;
        assert_eq!(of(&to_one), Reports::default(), "not to a group");
    }

    const HEADER: usize = crate::frame::HEADER_BYTES;

    proptest! {
        #[test]
        fn any_packet_is_parsed(v6: bool, packet in prop::collection::vec(any::<u8>(), 0..120)) {
            let number = if v6 { ether_type::IPV6 } else { ether_type::IPV4 };
            let _ = of(&frame(number, &packet));
        }

        #[test]
        fn any_report_is_parsed(count: u16, rest in prop::collection::vec(any::<u8>(), 0..60)) {
            let head = [0x22, 0, 0, 0, 0, 0];
            let body = [&head[..], &count.to_be_bytes(), &rest].concat();
            prop_assert!(of(&igmp_frame(body)).for_routers);
        }
    }
}
