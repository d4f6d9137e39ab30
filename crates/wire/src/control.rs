//! The control protocol between programs and the node daemon: framing, greeting, connections.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket, at most [`BYTES_MAX`] bytes, with
//! descriptors beside it:
//!
//! ```text
//! 0  magic "weft"   4  version (u16)   6  kind (u16)   8  body, little-endian
//! ```
//!
//! Kinds 1 to 31 are defined here, kinds 32 to 79 belong to endpoints, and kinds from 80 on are
//! free. Each service of the daemon owns the kinds of its requests ([`CONNECTION_KINDS`],
//! [`FABRIC_KINDS`], [`crate::endpoint_control::KINDS`]). No two services own the same kind, and no
//! service owns one of [`NODE_KINDS`]. Parsing an invalid message gives an [`InvalidMessage`] that
//! names the fault; it never panics.

use std::ops::RangeInclusive;

use thiserror::Error;

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"weft";
/// The protocol version that both sides must speak.
pub const VERSION: u16 = 10;
/// Longest message in bytes.
pub const BYTES_MAX: usize = 2048;
/// Bytes before the body.
pub const HEADER_BYTES: usize = 8;
/// Most descriptors that one message can carry.
pub const DESCRIPTORS_MAX: usize = 8;

/// Why a message could not be parsed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// The message does not begin with [`MAGIC`].
    #[error("not a weft control message")]
    Magic,
    /// The other side speaks another version.
    #[error(
        "control protocol version {theirs} where this side speaks {VERSION}; use a daemon and \
             a library of the same release (`weft down`, then run again)"
    )]
    Version {
        /// The version of the other side.
        theirs: u16,
    },
    /// The kind is unknown.
    #[error("unknown message kind {kind}")]
    Kind {
        /// The kind of the message.
        kind: u16,
    },
    /// The body is too short, too long, or holds an invalid value.
    #[error("message kind {kind} with an invalid body of {length} bytes")]
    Body {
        /// The kind of the message.
        kind: u16,
        /// Bytes of the body.
        length: usize,
    },
}

/// Which end of a TCP connection makes an offer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum End {
    /// The end that accepted the connection. It provides the memory of the lane, at once or after
    /// [`Control::Wanted`].
    Accepted = 0,
    /// The end that connected.
    Connected = 1,
}

/// How to copy bytes into memory that the peer reads next; the daemon measures it when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CopyAdvice {
    /// Plain stores.
    Plain = 0,
    /// Non-temporal stores.
    NonTemporal = 1,
}

/// Measurements and facts of the daemon that programs use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advice {
    /// How to copy bytes into a lane.
    pub copy: CopyAdvice,
    /// The daemon serves devices, or programs in other network namespaces: a connection to another
    /// address may also end on this host.
    pub networks: bool,
}

impl Advice {
    /// The advice before anything is measured, of a daemon without devices.
    pub const NONE: Self = Self { copy: CopyAdvice::NonTemporal, networks: false };
}

impl Default for Advice {
    fn default() -> Self {
        Self::NONE
    }
}

/// The process at the other end of a lane, if both processes may keep the lane for their next
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Partner {
    /// Its number, which is not 0.
    pub process: u32,
    /// Its user, if that is another one than the user of this end. The kernel must name this user
    /// as the owner of the other end of each later connection on the lane.
    pub user: Option<u32>,
}

impl Partner {
    /// The number that no user has (`(uid_t) -1`).
    const NO_USER: u32 = u32::MAX;

    /// A partner, or the lack of one, as one word: the process in the high half, the user in the
    /// low half.
    #[must_use]
    pub fn word(partner: Option<Self>) -> u64 {
        partner.map_or(0, |Self { process, user }| {
            u64::from(process) << 32 | u64::from(user.unwrap_or(Self::NO_USER))
        })
    }

    /// The partner that `word` encodes; `None` if its process is 0.
    #[must_use]
    pub fn of(word: u64) -> Option<Self> {
        let [process, user] =
            [word >> 32, word & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0));
        let user = (user != Self::NO_USER).then_some(user);
        (process != 0).then_some(Self { process, user })
    }
}

/// Whether an offer is also for an end on another host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OfferBetweenHosts {
    /// For one of this host alone.
    Never,
    /// Also there, if the daemon has measured that the fabric is faster.
    IfFaster,
    /// Also there.
    Always,
}

/// Messages of kinds 1 to 31. A program chooses its `token` numbers; they mean nothing to other
/// programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// The first message of a program.
    Hello {
        /// The process number as the program sees it; for display.
        pid: u32,
        /// The command name, at most 64 bytes; for display.
        name: String,
    },
    /// The daemon's answer to [`Control::Hello`].
    Welcome {
        /// The process number of the daemon.
        pid: u32,
        /// The daemon's advice.
        advice: Advice,
    },
    /// The daemon refuses the program, or one of its offers.
    Refused {
        /// The token of the offer; 0 when the program itself is refused.
        token: u64,
        /// Why, and what to do.
        reason: String,
    },
    /// Offers an end of a connection, whose socket comes with the message: this program will do the
    /// input and output of the end through weft. An accepting end may add the memory of the lane;
    /// otherwise it waits for [`Control::Wanted`] and offers again.
    Offer {
        /// The program's number for the offer.
        token: u64,
        /// The end that is offered.
        end: End,
        /// The descriptor number of the socket in the program.
        descriptor: u32,
        /// Whether the other end may be on another host: the lane then goes over libfabric.
        between_hosts: OfferBetweenHosts,
    },
    /// The other end was offered too. The memory of the lane comes with the message.
    Matched {
        /// The token of the offer.
        token: u64,
        /// The process at the other end, if the lane may be kept.
        partner: Option<Partner>,
    },
    /// The other end was offered too, and waits for the lane that this end must make.
    Wanted {
        /// The token of the offer.
        token: u64,
        /// As in [`Control::Matched`].
        partner: Option<Partner>,
    },
    /// The other end was offered on another host, and waits for the address at which this end can
    /// be asked for a lane. It offers that in the place of the memory.
    WantedBetweenHosts {
        /// The token of the offer.
        token: u64,
    },
    /// The other end has not been offered yet.
    Pending {
        /// The token of the offer.
        token: u64,
        /// A program under weft listens at the address, so a short wait is worthwhile.
        listening: bool,
    },
    /// Withdraws an offer: the connection is closed or stays on TCP.
    Withdraw {
        /// The token of the offer.
        token: u64,
    },
    /// The socket that comes with the message listens, and this program will accept its connections
    /// through weft. The daemon answers with [`Control::Pending`] after it has closed its copy of
    /// the socket.
    Listening {
        /// The program's number for the socket.
        token: u64,
    },
    /// Asks for the memory of a lane. This program holds a descriptor of an end that was offered
    /// before, by a program that forked. The answer is as to an offer.
    Join {
        /// The program's number for the connection.
        token: u64,
    },
    /// Asks for the status of the node.
    Status,
    /// The status as JSON, in a file that comes with the message.
    StatusReply,
    /// Cuts the link at a port of a node of a lab, or mends it. The daemon answers with
    /// [`Control::Done`] when the nodes that are left a way reach each other by it.
    Link {
        /// The node.
        node: u32,
        /// The port.
        port: u16,
        /// Whether it is to be cut.
        is_cut: bool,
    },
    /// Asks for the network that the daemon's manager knows.
    Network,
    /// The network as JSON, in a file that comes with the message.
    NetworkReply,
    /// The request was carried out.
    Done,
    /// Expels a node from the fabric. The daemon answers with [`Control::Done`].
    Expel {
        /// The number of the node.
        node: u32,
    },
    /// Asks whether the fabric is faster than TCP to any other host. The daemon answers with
    /// [`Control::Ways`], and measures what is not known yet.
    AskWays,
    /// The answer, as far as it was measured.
    Ways {
        /// The fabric is faster to some host.
        any_over_fabric: bool,
    },
    /// Asks the daemon to end.
    Stop,
    /// The daemon is about to end.
    Stopping,
}

mod kind {
    pub const HELLO: u16 = 1;
    pub const WELCOME: u16 = 2;
    pub const REFUSED: u16 = 3;
    pub const OFFER: u16 = 4;
    pub const MATCHED: u16 = 5;
    pub const PENDING: u16 = 6;
    pub const WITHDRAW: u16 = 7;
    pub const LISTENING: u16 = 8;
    pub const STATUS: u16 = 9;
    pub const STATUS_REPLY: u16 = 10;
    pub const STOP: u16 = 11;
    pub const STOPPING: u16 = 12;
    pub const JOIN: u16 = 13;
    pub const WANTED: u16 = 14;
    pub const LINK: u16 = 15;
    pub const DONE: u16 = 16;
    pub const EXPEL: u16 = 17;
    pub const OFFER_BETWEEN_HOSTS: u16 = 18;
    pub const WANTED_BETWEEN_HOSTS: u16 = 19;
    pub const NETWORK: u16 = 20;
    pub const NETWORK_REPLY: u16 = 21;
    pub const OFFER_IF_FASTER: u16 = 22;
    pub const ASK_WAYS: u16 = 23;
    pub const WAYS: u16 = 24;
}

/// Kinds that the daemon itself handles: greeting, status, stop.
pub const NODE_KINDS: &[RangeInclusive<u16>] =
    &[kind::HELLO..=kind::HELLO, kind::STATUS..=kind::STATUS, kind::STOP..=kind::STOP];
/// Kinds that the connections service owns.
pub const CONNECTION_KINDS: &[RangeInclusive<u16>] = &[
    kind::OFFER..=kind::OFFER,
    kind::WITHDRAW..=kind::LISTENING,
    kind::JOIN..=kind::JOIN,
    kind::OFFER_BETWEEN_HOSTS..=kind::OFFER_BETWEEN_HOSTS,
    kind::OFFER_IF_FASTER..=kind::OFFER_IF_FASTER,
];
/// Kinds that the fabric service owns.
pub const FABRIC_KINDS: &[RangeInclusive<u16>] =
    &[kind::LINK..=kind::LINK, kind::EXPEL..=kind::EXPEL, kind::NETWORK..=kind::NETWORK];
/// Kinds that the service owns that measures the ways to other hosts.
pub const WAYS_KINDS: &[RangeInclusive<u16>] = &[kind::ASK_WAYS..=kind::ASK_WAYS];

/// Longest name of a program, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest reason of a refusal, in bytes.
pub const REASON_BYTES_MAX: usize = 512;

/// Splits a message into its kind and body.
///
/// # Errors
/// [`InvalidMessage::Magic`] or [`InvalidMessage::Version`].
pub fn split(message: &[u8]) -> Result<(u16, &[u8]), InvalidMessage> {
    let (header, body) = message.split_at_checked(HEADER_BYTES).ok_or(InvalidMessage::Magic)?;
    if header[..4] != MAGIC {
        return Err(InvalidMessage::Magic);
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != VERSION {
        return Err(InvalidMessage::Version { theirs: version });
    }
    Ok((u16::from_le_bytes([header[6], header[7]]), body))
}

/// Builds a message of `kind` with `body`.
#[must_use]
pub fn join(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend_from_slice(&MAGIC);
    message.extend_from_slice(&VERSION.to_le_bytes());
    message.extend_from_slice(&kind.to_le_bytes());
    message.extend_from_slice(body);
    message
}

impl Control {
    /// Parses a message.
    ///
    /// # Errors
    /// [`InvalidMessage`].
    pub fn parse(message: &[u8]) -> Result<Self, InvalidMessage> {
        let (kind, body) = split(message)?;
        let invalid = InvalidMessage::Body { kind, length: body.len() };
        let mut reader = Reader { rest: body };
        let parsed = match kind {
            kind::HELLO => (|| {
                let pid = reader.u32()?;
                Some(Self::Hello { pid, name: reader.text(NAME_BYTES_MAX)? })
            })(),
            kind::WELCOME => (|| {
                let pid = reader.u32()?;
                let copy = match reader.u8()? {
                    0 => CopyAdvice::Plain,
                    1 => CopyAdvice::NonTemporal,
                    _ => return None,
                };
                let networks = reader.bool()?;
                Some(Self::Welcome { pid, advice: Advice { copy, networks } })
            })(),
            kind::REFUSED => (|| {
                let token = reader.u64()?;
                Some(Self::Refused { token, reason: reader.text(REASON_BYTES_MAX)? })
            })(),
            kind::OFFER => reader.offer(OfferBetweenHosts::Never),
            kind::OFFER_IF_FASTER => reader.offer(OfferBetweenHosts::IfFaster),
            kind::OFFER_BETWEEN_HOSTS => reader.offer(OfferBetweenHosts::Always),
            kind::MATCHED => reader
                .u64()
                .zip(reader.u64())
                .map(|(token, word)| Self::Matched { token, partner: Partner::of(word) }),
            kind::PENDING => (|| {
                let token = reader.u64()?;
                let listening = reader.bool()?;
                Some(Self::Pending { token, listening })
            })(),
            kind::WITHDRAW => reader.u64().map(|token| Self::Withdraw { token }),
            kind::LISTENING => reader.u64().map(|token| Self::Listening { token }),
            kind::JOIN => reader.u64().map(|token| Self::Join { token }),
            kind::WANTED => reader
                .u64()
                .zip(reader.u64())
                .map(|(token, word)| Self::Wanted { token, partner: Partner::of(word) }),
            kind::WANTED_BETWEEN_HOSTS => {
                reader.u64().map(|token| Self::WantedBetweenHosts { token })
            }
            kind::LINK => reader.link(),
            kind::NETWORK => Some(Self::Network),
            kind::NETWORK_REPLY => Some(Self::NetworkReply),
            kind::DONE => Some(Self::Done),
            kind::EXPEL => reader.u32().map(|node| Self::Expel { node }),
            kind::ASK_WAYS => Some(Self::AskWays),
            kind::WAYS => reader.bool().map(|any_over_fabric| Self::Ways { any_over_fabric }),
            kind::STATUS => Some(Self::Status),
            kind::STATUS_REPLY => Some(Self::StatusReply),
            kind::STOP => Some(Self::Stop),
            kind::STOPPING => Some(Self::Stopping),
            other => return Err(InvalidMessage::Kind { kind: other }),
        };
        match parsed {
            Some(control) if reader.rest.is_empty() => Ok(control),
            _ => Err(invalid),
        }
    }

    /// Encodes the message. Cuts names and reasons that are too long.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Hello { pid, name } => {
                body.extend_from_slice(&pid.to_le_bytes());
                put_text(&mut body, name, NAME_BYTES_MAX);
                kind::HELLO
            }
            Self::Welcome { pid, advice } => {
                body.extend_from_slice(&pid.to_le_bytes());
                body.push(advice.copy as u8);
                body.push(u8::from(advice.networks));
                kind::WELCOME
            }
            Self::Refused { token, reason } => {
                body.extend_from_slice(&token.to_le_bytes());
                put_text(&mut body, reason, REASON_BYTES_MAX);
                kind::REFUSED
            }
            Self::Offer { token, end, descriptor, between_hosts } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.push(*end as u8);
                body.extend_from_slice(&descriptor.to_le_bytes());
                match between_hosts {
                    OfferBetweenHosts::Never => kind::OFFER,
                    OfferBetweenHosts::IfFaster => kind::OFFER_IF_FASTER,
                    OfferBetweenHosts::Always => kind::OFFER_BETWEEN_HOSTS,
                }
            }
            Self::Matched { token, partner } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.extend_from_slice(&Partner::word(*partner).to_le_bytes());
                kind::MATCHED
            }
            Self::Pending { token, listening } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.push(u8::from(*listening));
                kind::PENDING
            }
            Self::Withdraw { token } => {
                body.extend_from_slice(&token.to_le_bytes());
                kind::WITHDRAW
            }
            Self::Listening { token } => {
                body.extend_from_slice(&token.to_le_bytes());
                kind::LISTENING
            }
            Self::Join { token } => {
                body.extend_from_slice(&token.to_le_bytes());
                kind::JOIN
            }
            Self::Wanted { token, partner } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.extend_from_slice(&Partner::word(*partner).to_le_bytes());
                kind::WANTED
            }
            Self::WantedBetweenHosts { token } => {
                body.extend_from_slice(&token.to_le_bytes());
                kind::WANTED_BETWEEN_HOSTS
            }
            Self::Link { node, port, is_cut } => {
                body.extend_from_slice(&node.to_le_bytes());
                body.extend_from_slice(&port.to_le_bytes());
                body.push(u8::from(*is_cut));
                kind::LINK
            }
            Self::Network => kind::NETWORK,
            Self::NetworkReply => kind::NETWORK_REPLY,
            Self::Done => kind::DONE,
            Self::Expel { node } => {
                body.extend_from_slice(&node.to_le_bytes());
                kind::EXPEL
            }
            Self::AskWays => kind::ASK_WAYS,
            Self::Ways { any_over_fabric } => {
                body.push(u8::from(*any_over_fabric));
                kind::WAYS
            }
            Self::Status => kind::STATUS,
            Self::StatusReply => kind::STATUS_REPLY,
            Self::Stop => kind::STOP,
            Self::Stopping => kind::STOPPING,
        };
        join(kind, &body)
    }
}

fn put_text(body: &mut Vec<u8>, text: &str, maximum: usize) {
    let mut end = text.len().min(maximum);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let length = u16::try_from(end).expect("the maxima fit 16 bits");
    body.extend_from_slice(&length.to_le_bytes());
    body.extend_from_slice(&text.as_bytes()[..end]);
}

/// Reads values from the front of a body.
struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self, maximum: usize) -> Option<String> {
        let length = usize::from(u16::from_le_bytes(self.bytes()?));
        if length > maximum {
            return None;
        }
        let (text, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn link(&mut self) -> Option<Control> {
        let (node, port) = (self.u32()?, u16::from_le_bytes(self.bytes()?));
        Some(Control::Link { node, port, is_cut: self.bool()? })
    }

    fn offer(&mut self, between_hosts: OfferBetweenHosts) -> Option<Control> {
        let token = self.u64()?;
        let end = match self.u8()? {
            0 => End::Accepted,
            1 => End::Connected,
            _ => return None,
        };
        Some(Control::Offer { token, end, descriptor: self.u32()?, between_hosts })
    }
}

/// Entry for fuzzing: checks that any bytes that parse can be encoded, and that the result parses
/// to the same message.
///
/// # Panics
/// When the check fails.
pub fn fuzz_parse(bytes: &[u8]) {
    if let Ok(control) = Control::parse(bytes) {
        let message = control.emit();
        assert!(message.len() <= BYTES_MAX, "a message of {} bytes", message.len());
        assert_eq!(Control::parse(&message), Ok(control), "the encoded message parses to the same");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_partner() -> impl Strategy<Value = Option<Partner>> {
        let user = proptest::option::of(0..u32::MAX);
        proptest::option::of(
            (1..=u32::MAX, user).prop_map(|(process, user)| Partner { process, user }),
        )
    }

    fn any_control() -> impl Strategy<Value = Control> {
        prop_oneof![
            (any::<u32>(), "[a-z é]{0,20}").prop_map(|(pid, name)| Control::Hello { pid, name }),
            any::<u32>().prop_map(|node| Control::Expel { node }),
            any::<(u32, [bool; 2])>().prop_map(|(pid, [streaming, networks])| {
                let copy = if streaming { CopyAdvice::NonTemporal } else { CopyAdvice::Plain };
                Control::Welcome { pid, advice: Advice { copy, networks } }
            }),
            (any::<u64>(), ".{0,80}")
                .prop_map(|(token, reason)| Control::Refused { token, reason }),
            (any::<u64>(), any::<bool>(), any::<u32>(), 0..3_usize).prop_map(
                |(token, accepted, descriptor, which)| {
                    use OfferBetweenHosts::{Always, IfFaster, Never};
                    let between_hosts = [Never, IfFaster, Always][which];
                    let end = if accepted { End::Accepted } else { End::Connected };
                    Control::Offer { token, end, descriptor, between_hosts }
                }
            ),
            any::<u64>().prop_map(|token| Control::WantedBetweenHosts { token }),
            (any::<u64>(), any_partner())
                .prop_map(|(token, partner)| Control::Matched { token, partner }),
            any::<(u32, u16, bool)>().prop_map(|(node, port, is_cut)| Control::Link {
                node,
                port,
                is_cut
            }),
            Just(Control::Network),
            Just(Control::NetworkReply),
            Just(Control::Done),
            (any::<u64>(), any::<bool>())
                .prop_map(|(token, listening)| Control::Pending { token, listening }),
            any::<u64>().prop_map(|token| Control::Withdraw { token }),
            (any::<u64>(), any_partner())
                .prop_map(|(token, partner)| Control::Wanted { token, partner }),
            any::<u64>().prop_map(|token| Control::Listening { token }),
            any::<u64>().prop_map(|token| Control::Join { token }),
            Just(Control::Status),
            Just(Control::StatusReply),
            Just(Control::AskWays),
            any::<bool>().prop_map(|any_over_fabric| Control::Ways { any_over_fabric }),
            Just(Control::Stop),
            Just(Control::Stopping),
        ]
    }

    proptest! {
        #[test]
        fn an_encoded_message_parses_to_the_same(control in any_control()) {
            let message = control.emit();
            prop_assert!(message.len() <= BYTES_MAX);
            prop_assert_eq!(Control::parse(&message), Ok(control.clone()));
            let mut longer = message.clone();
            longer.push(0);
            prop_assert!(Control::parse(&longer).is_err());
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64),
                                                kind in 0u16..23) {
            let _ = Control::parse(&bytes);
            let _ = Control::parse(&join(kind, &bytes));
        }
    }

    #[test]
    fn the_error_names_the_version_of_the_other_side() {
        let mut message = Control::Status.emit();
        message[4] = 11;
        assert_eq!(Control::parse(&message), Err(InvalidMessage::Version { theirs: 11 }));
    }

    #[test]
    fn a_status_request_has_eight_bytes() {
        assert_eq!(Control::Status.emit(), b"weft\x0a\x00\x09\x00");
    }
}
