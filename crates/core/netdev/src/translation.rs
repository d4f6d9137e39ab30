//! The addresses of a connection behind network address translation (NAT), asked of the kernel's
//! connection tracking (ctnetlink, `linux/netfilter/nfnetlink_conntrack.h`).
//!
//! The question is about the network namespace of the calling thread, in which the packets of
//! containers are forwarded and translated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLA_F_NESTED, NLA_TYPE_MASK, NLM_F_REQUEST, NlaBuffer, NlasIterator};
use netlink_sys::{Socket, SocketAddr as NetlinkAddress, protocols::NETLINK_NETFILTER};
use rustix::io::Errno;

use crate::netlink::errno_of;

/// `NFNL_SUBSYS_CTNETLINK`, with `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_GET` in the low half.
const ENTRY: u16 = 1 << 8;
const GET: u16 = 1 << 8 | 1;
const ERROR: u16 = 2;
/// Attributes of an entry.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
/// Attributes of the addresses of one direction, and of their parts.
const IP: u16 = 1;
const PROTOCOL: u16 = 2;
const V4: [u16; 2] = [1, 2];
const V6: [u16; 2] = [3, 4];
const NUMBER: u16 = 1;
const PORTS: [u16; 2] = [2, 3];
const TCP: u8 = 6;
const HEADER_BYTES: usize = 16;
/// `struct nfgenmsg`.
const FAMILY_BYTES: usize = 4;

/// Source and target of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Direction {
    /// The address from which its packets come.
    pub source: SocketAddr,
    /// The address to which they go.
    pub target: SocketAddr,
}

/// The direction opposite to `sent` of the same TCP connection, as the program at the other end
/// sends it: with the addresses of that program. `None` when the connection is not tracked here.
///
/// # Errors
/// `PERM` without CAP_NET_ADMIN, others as for netlink(7).
pub fn opposite(sent: Direction) -> Result<Option<Direction>, Errno> {
    let socket = Socket::new(NETLINK_NETFILTER).map_err(errno_of)?;
    socket.connect(&NetlinkAddress::new(0, 0)).map_err(errno_of)?;
    socket.send(&question(sent), 0).map_err(errno_of)?;
    let mut answer = Vec::with_capacity(4096);
    // The kernel answered within the call of `send`.
    socket.recv(&mut answer, libc::MSG_DONTWAIT).map_err(errno_of)?;
    match tracked(&answer) {
        Ok([original, reply]) if original == sent => Ok(Some(reply)),
        Ok([original, reply]) if reply == sent => Ok(Some(original)),
        Ok(_) | Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &parts.concat())
}

fn question(sent: Direction) -> Vec<u8> {
    let ends = [sent.source, sent.target];
    let is_v4 = sent.source.is_ipv4();
    let kinds = if is_v4 { V4 } else { V6 };
    let ip = |(kind, end): (u16, SocketAddr)| match end.ip() {
        IpAddr::V4(ip) => attribute(kind, &ip.octets()),
        IpAddr::V6(ip) => attribute(kind, &ip.octets()),
    };
    let port = |(kind, end): (u16, SocketAddr)| attribute(kind, &end.port().to_be_bytes());
    let mut protocol = vec![attribute(NUMBER, &[TCP])];
    protocol.extend(PORTS.into_iter().zip(ends).map(port));
    let ips: Vec<_> = kinds.into_iter().zip(ends).map(ip).collect();
    let body = nested(ORIGINAL, &[nested(IP, &ips), nested(PROTOCOL, &protocol)]);
    let length = u32::try_from(HEADER_BYTES + FAMILY_BYTES + body.len()).unwrap_or(u32::MAX);
    let family = if is_v4 { libc::AF_INET } else { libc::AF_INET6 };
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(GET.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([u8::try_from(family).unwrap_or(0), 0, 0, 0]);
    message.extend(body);
    message
}

/// The original and the reply direction of the entry in an answer.
fn tracked(answer: &[u8]) -> Result<[Direction; 2], Errno> {
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let body = answer.get(HEADER_BYTES..).ok_or(Errno::BADMSG)?;
    match kind {
        Some(ENTRY) => {}
        Some(ERROR) => {
            let code = body.get(..4).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
            return Err(Errno::from_raw_os_error(code.ok_or(Errno::BADMSG)?.saturating_neg()));
        }
        _ => return Err(Errno::BADMSG),
    }
    let entry = body.get(FAMILY_BYTES..).ok_or(Errno::BADMSG)?;
    let of = |kind| part(entry, kind).and_then(|bytes| direction(&bytes)).ok_or(Errno::BADMSG);
    Ok([of(ORIGINAL)?, of(REPLY)?])
}

fn direction(bytes: &[u8]) -> Option<Direction> {
    let (ips, protocol) = (part(bytes, IP)?, part(bytes, PROTOCOL)?);
    let ip = |side: usize| match part(&ips, V4[side]) {
        Some(ip) => Some(IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?))),
        None => {
            Some(IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(part(&ips, V6[side])?).ok()?)))
        }
    };
    let port =
        |side: usize| Some(u16::from_be_bytes(part(&protocol, PORTS[side])?.try_into().ok()?));
    let end = |side| Some(SocketAddr::new(ip(side)?, port(side)?));
    (part(&protocol, NUMBER)? == [TCP])
        .then(|| Some(Direction { source: end(0)?, target: end(1)? }))?
}

/// The value of an attribute among `attributes`.
fn part(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let is_it = |found: &NlaBuffer<&[u8]>| found.kind() & NLA_TYPE_MASK == kind;
    NlasIterator::new(attributes)
        .map_while(Result::ok)
        .find(is_it)
        .map(|found| found.value().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    /// An entry as the kernel answers: the question's body twice, the second one as the reply.
    fn entry(original: Direction, reply: Direction) -> Vec<u8> {
        let mut answer = question(original);
        answer[4..6].copy_from_slice(&ENTRY.to_ne_bytes());
        let mut second = question(reply).split_off(HEADER_BYTES + FAMILY_BYTES);
        second[2..4].copy_from_slice(&(REPLY | NLA_F_NESTED).to_ne_bytes());
        answer.extend(second);
        answer
    }

    #[test]
    fn both_directions_of_an_entry_are_read() {
        for [one, two, three] in [
            ["10.1.0.2:5000", "192.0.2.1:80", "10.2.0.2:8080"],
            ["[fd00::2]:5000", "[fd00::1]:80", "[fd01::2]:8080"],
        ] {
            let original = Direction { source: at(one), target: at(two) };
            let reply = Direction { source: at(three), target: at(one) };
            assert_eq!(tracked(&entry(original, reply)), Ok([original, reply]));
        }
    }

    #[test]
    fn an_answer_that_is_cut_or_changed_is_refused_and_nothing_panics() {
        let end = Direction { source: at("10.1.0.2:5000"), target: at("10.1.0.3:80") };
        let whole = entry(end, end);
        for length in 0..whole.len() {
            assert!(tracked(&whole[..length]).is_err(), "{length}");
        }
        for place in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[place] = byte;
                let _ = tracked(&changed);
            }
        }
    }

    #[test]
    fn a_connection_that_is_not_tracked_has_no_entry() {
        let sent = Direction { source: at("192.0.2.9:9"), target: at("192.0.2.8:8") };
        match opposite(sent) {
            Ok(found) => assert_eq!(found, None),
            Err(errno) => eprintln!("skipped: no connection tracking here ({errno})"),
        }
    }
}
