//! The packets that a capture keeps: a part of the language of `pcap-filter(7)`.
//!
//! ```text
//! expression = term { ("and" | "or") term }       left to right, as pcap has it
//! term       = "not" term | "(" expression ")" | protocol [end] | end
//! protocol   = "ip" | "ip6" | "arp" | "tcp" | "udp" | "icmp" | "icmp6"
//! end        = ["src" | "dst"] ("host" ADDRESS | "net" ADDRESS/BITS | "port" NUMBER)
//! ```

use std::net::IpAddr;

use anyhow::{Context, bail, ensure};
use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice, ip_number};
use pcap_file::DataLink;

/// Parentheses and negations inside each other, at most.
const DEPTH_MAX: usize = 32;

/// The conditions under which a packet is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Filter {
    Protocol(Protocol),
    /// An address, or the beginning of one, of so many bits.
    Net(Side, IpAddr, u32),
    Port(Side, u16),
    Not(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
}

/// The ends of a packet of which one must match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Source,
    Target,
    Either,
}

/// The protocols that have a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Ip,
    Ip6,
    Arp,
    Tcp,
    Udp,
    Icmp,
    Icmp6,
}

impl Filter {
    /// Reads an expression, whose words may be in one argument or in several.
    pub fn read(words: &[String]) -> anyhow::Result<Option<Self>> {
        let text = words.join(" ").replace('(', " ( ").replace(')', " ) ");
        let mut words = Words { left: text.split_whitespace().collect(), place: 0 };
        if words.left.is_empty() {
            return Ok(None);
        }
        let filter = expression(&mut words, 0)?;
        match words.next() {
            None => Ok(Some(filter)),
            Some(")") => bail!("a `)` of the filter has no `(`"),
            Some(word) => bail!("and or or must stand before {word:?}"),
        }
    }

    /// Whether a packet of this link type is kept.
    pub fn keeps(&self, link: DataLink, packet: &[u8]) -> bool {
        let sliced = match link {
            DataLink::ETHERNET => LaxSlicedPacket::from_ethernet(packet).ok(),
            _ => LaxSlicedPacket::from_ip(packet).ok(),
        };
        sliced.is_some_and(|sliced| self.holds(&Fields::of(&sliced)))
    }

    fn holds(&self, fields: &Fields) -> bool {
        match self {
            Self::Protocol(protocol) => fields.protocols.contains(&Some(*protocol)),
            Self::Net(side, net, bits) => side.any(fields.addresses, |one| is_in(one, *net, *bits)),
            Self::Port(side, port) => side.any(fields.ports, |one| one == *port),
            Self::Not(one) => !one.holds(fields),
            Self::And(one, other) => one.holds(fields) && other.holds(fields),
            Self::Or(one, other) => one.holds(fields) || other.holds(fields),
        }
    }
}

impl Side {
    fn any<T: Copy>(self, ends: Option<[T; 2]>, is: impl Fn(T) -> bool) -> bool {
        ends.is_some_and(|[source, target]| match self {
            Self::Source => is(source),
            Self::Target => is(target),
            Self::Either => is(source) || is(target),
        })
    }
}

/// The parts of a packet that filters name.
struct Fields {
    /// Of the network, and of what it carries.
    protocols: [Option<Protocol>; 2],
    addresses: Option<[IpAddr; 2]>,
    ports: Option<[u16; 2]>,
}

impl Fields {
    fn of(packet: &LaxSlicedPacket<'_>) -> Self {
        let (network, addresses, carried) = match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => {
                let head = ip.header();
                let ends = [head.source_addr().into(), head.destination_addr().into()];
                (Some(Protocol::Ip), Some(ends), Some(ip.payload().ip_number))
            }
            Some(LaxNetSlice::Ipv6(ip)) => {
                let head = ip.header();
                let ends = [head.source_addr().into(), head.destination_addr().into()];
                (Some(Protocol::Ip6), Some(ends), Some(ip.payload().ip_number))
            }
            Some(LaxNetSlice::Arp(_)) => (Some(Protocol::Arp), None, None),
            None => (None, None, None),
        };
        let carried = carried.and_then(|number| match number {
            ip_number::TCP => Some(Protocol::Tcp),
            ip_number::UDP => Some(Protocol::Udp),
            ip_number::ICMP => Some(Protocol::Icmp),
            ip_number::IPV6_ICMP => Some(Protocol::Icmp6),
            _ => None,
        });
        let ports = match &packet.transport {
            Some(TransportSlice::Tcp(tcp)) => Some([tcp.source_port(), tcp.destination_port()]),
            Some(TransportSlice::Udp(udp)) => Some([udp.source_port(), udp.destination_port()]),
            _ => None,
        };
        Self { protocols: [network, carried], addresses, ports }
    }
}

fn is_in(address: IpAddr, net: IpAddr, bits: u32) -> bool {
    match (address, net) {
        (IpAddr::V4(address), IpAddr::V4(net)) => {
            let differ = u32::from(address) ^ u32::from(net);
            differ.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(net)) => {
            let differ = u128::from(address) ^ u128::from(net);
            differ.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// The words of a filter that are not read yet.
struct Words<'a> {
    left: Vec<&'a str>,
    place: usize,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.left.get(self.place).copied();
        self.place += 1;
        word
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.left.get(self.place).is_some_and(|next| *next == word);
        self.place += usize::from(is_next);
        is_next
    }

    fn begins_end(&self) -> bool {
        let words = ["src", "dst", "host", "net", "port"];
        self.left.get(self.place).is_some_and(|next| words.contains(next))
    }
}

fn expression(words: &mut Words<'_>, depth: usize) -> anyhow::Result<Filter> {
    let mut filter = term(words, depth)?;
    loop {
        let combine = match () {
            () if words.take("and") => Filter::And,
            () if words.take("or") => Filter::Or,
            () => return Ok(filter),
        };
        filter = combine(Box::new(filter), Box::new(term(words, depth)?));
    }
}

fn term(words: &mut Words<'_>, depth: usize) -> anyhow::Result<Filter> {
    ensure!(depth < DEPTH_MAX, "the filter has more than {DEPTH_MAX} terms inside each other");
    if words.begins_end() {
        return end(words);
    }
    let word = words.next().context("the filter ends where a term should follow")?;
    let protocol = match word {
        "not" => return Ok(Filter::Not(Box::new(term(words, depth + 1)?))),
        "(" => {
            let inside = expression(words, depth + 1)?;
            ensure!(words.take(")"), "a `(` of the filter has no `)`");
            return Ok(inside);
        }
        "ip" => Protocol::Ip,
        "ip6" => Protocol::Ip6,
        "arp" => Protocol::Arp,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "icmp" => Protocol::Icmp,
        "icmp6" => Protocol::Icmp6,
        other => bail!(
            "{other:?} is no word of a filter; there are host, net, port, src, dst, ip, ip6, arp, \
             tcp, udp, icmp, icmp6, and, or, not, and parentheses"
        ),
    };
    let protocol = Filter::Protocol(protocol);
    match words.begins_end() {
        true => Ok(Filter::And(Box::new(protocol), Box::new(end(words)?))),
        false => Ok(protocol),
    }
}

fn end(words: &mut Words<'_>) -> anyhow::Result<Filter> {
    let side = match () {
        () if words.take("src") => Side::Source,
        () if words.take("dst") => Side::Target,
        () => Side::Either,
    };
    let kind = words.next().unwrap_or_default();
    let value = words.next().with_context(|| format!("the filter ends behind {kind:?}"))?;
    let address = |text: &str| -> anyhow::Result<IpAddr> {
        text.parse().with_context(|| format!("{text:?} is no address of IP"))
    };
    match kind {
        "host" => {
            let address = address(value)?;
            Ok(Filter::Net(side, address, if address.is_ipv4() { 32 } else { 128 }))
        }
        "net" => {
            let (net, bits) = value.split_once('/').context("a net is ADDRESS/BITS")?;
            let (net, most) = match address(net)? {
                four @ IpAddr::V4(_) => (four, 32),
                six @ IpAddr::V6(_) => (six, 128),
            };
            let bits = bits.parse().ok().filter(|bits| *bits <= most);
            let bits = bits.with_context(|| format!("{value:?} has 0 to {most} bits"))?;
            Ok(Filter::Net(side, net, bits))
        }
        "port" => {
            let port = value.parse().with_context(|| format!("{value:?} is no port"))?;
            Ok(Filter::Port(side, port))
        }
        other => bail!("host, net or port follows src and dst, not {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn read(text: &str) -> anyhow::Result<Option<Filter>> {
        Filter::read(&[text.to_owned()])
    }

    /// A segment of TCP from 10.0.0.1 port 80 to 10.0.0.2 port 5000, and a datagram in a frame from
    /// ::1 port 53 to ::2 port 9.
    fn packets() -> [(DataLink, Vec<u8>); 2] {
        let mut segment = Vec::new();
        let tcp = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).tcp(80, 5000, 1, 99);
        tcp.write(&mut segment, b"payload").expect("a packet");
        let mut frame = Vec::new();
        let six = |last| std::net::Ipv6Addr::from(last).octets();
        let udp = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6(six(1), six(2), 64).udp(53, 9);
        udp.write(&mut frame, b"payload").expect("a frame");
        [(DataLink::RAW, segment), (DataLink::ETHERNET, frame)]
    }

    #[test]
    fn a_filter_keeps_the_packets_that_it_names() {
        for (text, kept) in [
            ("tcp", [true, false]),
            ("ip6", [false, true]),
            ("arp or icmp", [false, false]),
            ("port 80", [true, false]),
            ("src port 80", [true, false]),
            ("dst port 80", [false, false]),
            ("udp dst port 9", [false, true]),
            ("tcp port 9", [false, false]),
            ("host 10.0.0.2", [true, false]),
            ("src host ::1 and not tcp", [false, true]),
            ("net 10.0.0.0/8 or port 53", [true, true]),
            ("net ::/0", [false, true]),
            ("net 0.0.0.0/0", [true, false]),
            ("not (host 10.0.0.2 and port 80)", [false, true]),
            ("tcp or udp and port 53", [false, true]),
            ("tcp or (udp and port 54)", [true, false]),
        ] {
            let filter = read(text).expect(text).expect("a filter");
            let found = packets().map(|(link, packet)| filter.keeps(link, &packet));
            assert_eq!(found, kept, "{text}");
        }
        assert_eq!(read("  ").expect("nothing"), None);
    }

    #[test]
    fn a_wrong_filter_is_told_by_its_word() {
        for (text, part) in [
            ("prot 80", "\"prot\" is no word"),
            ("port http", "\"http\" is no port"),
            ("port 65536", "\"65536\" is no port"),
            ("host", "ends behind \"host\""),
            ("host 10.0.0", "is no address"),
            ("net 10.0.0.0/33", "0 to 32 bits"),
            ("net ::1", "ADDRESS/BITS"),
            ("src tcp 1", "not \"tcp\""),
            ("tcp and", "a term should follow"),
            ("(tcp", "has no `)`"),
            ("tcp)", "has no `(`"),
            ("tcp udp", "and or or"),
        ] {
            let told = format!("{:#}", read(text).expect_err(text));
            assert!(told.contains(part), "{text}: {told}");
        }
        let deep = "not ".repeat(100_000) + "tcp";
        assert!(read(&deep).is_err(), "no stack is used up");
    }

    #[test]
    fn no_packet_is_too_strange() {
        let filter = read("not tcp and (src port 1 or net ::/3)").expect("one").expect("one");
        let mut frames = packets().map(|(_, packet)| packet).to_vec();
        frames.push(vec![0xff; 200]);
        for frame in frames {
            for length in 0..frame.len() {
                for link in [DataLink::RAW, DataLink::ETHERNET] {
                    filter.keeps(link, &frame[..length]);
                }
            }
        }
    }
}
