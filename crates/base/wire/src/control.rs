//! The control protocol between programs and the node daemon: framing, greeting, connections.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket, at most [`BYTES_MAX`] bytes, with
//! descriptors beside it:
//!
//! ```text
//! byte 0        4         6      8                           up to 2048
//!      ┌────────┬─────────┬──────┬──────────────────────────────┐
//!      │ "weft" │ version │ kind │ body, little-endian          │
//!      └────────┴─────────┴──────┴──────────────────────────────┘
//! ```
//!
//! Kinds 1 to 31 are defined here, kinds 32 to 79 belong to endpoints, and kinds from 80 on are
//! free. Each service of the daemon owns the kinds of its requests ([`CONNECTION_KINDS`],
//! [`FABRIC_KINDS`], [`crate::endpoint_control::KINDS`]). No two services own the same kind, and no
//! service owns one of [`NODE_KINDS`]. Parsing an invalid message gives an [`InvalidMessage`] that
//! names the fault; it never panics.

use std::ops::RangeInclusive;

use thiserror::Error;

use crate::byte_form;
use crate::form::Form;

/// The first bytes of every message.
pub const MAGIC: [u8; 4] = *b"weft";
/// The protocol version that both sides must speak.
pub const VERSION: u16 = 11;
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
#[repr(u8)]
pub enum OfferBetweenHosts {
    /// For one of this host alone.
    Never = 0,
    /// Also there, if the daemon has measured that the fabric is faster.
    IfFaster = 1,
    /// Also there.
    Always = 2,
}

/// How unread bytes get into the kernel's connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PutWay {
    /// By the socket at the other end, as its process would send them.
    AsPeer = 0,
    /// The same, and the direction ends behind them.
    AsPeerWithEnd = 1,
    /// The process at the other end has closed. They replace all that is unread.
    InPlaceOfUnread = 2,
}

/// The fate of unread bytes that the daemon was to put into the kernel's connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PutFate {
    /// Nothing changed.
    Nothing = 0,
    /// All lie there.
    All = 1,
    /// The kernel took a part of them, so the connection was reset.
    Reset = 2,
}

crate::forms! {
/// Messages of kinds 1 to 31. A program chooses its `token` numbers; they mean nothing to other
/// programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control: u16 {
    /// The first message of a program.
    Hello = 1 {
        /// The process number as the program sees it; for display.
        pid: u32,
        /// The command name, at most 64 bytes; for display.
        name: String [NAME_BYTES_MAX],
    },
    /// The daemon's answer to [`Control::Hello`].
    Welcome = 2 {
        /// The process number of the daemon.
        pid: u32,
        /// The daemon's advice.
        advice: Advice,
    },
    /// The daemon refuses the program, or one of its offers.
    Refused = 3 {
        /// The token of the offer; 0 when the program itself is refused.
        token: u64,
        /// Why, and what to do.
        reason: String [REASON_BYTES_MAX],
    },
    /// Offers an end of a connection, whose socket comes with the message: this program will do the
    /// input and output of the end through weft. An accepting end may add the memory of the lane;
    /// otherwise it waits for [`Control::Wanted`] and offers again.
    Offer = 4 {
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
    Matched = 5 {
        /// The token of the offer.
        token: u64,
        /// The process at the other end, if the lane may be kept.
        partner: Option<Partner>,
    },
    /// The other end was offered too, and waits for the lane that this end must make.
    Wanted = 14 {
        /// The token of the offer.
        token: u64,
        /// As in [`Control::Matched`].
        partner: Option<Partner>,
    },
    /// The other end was offered on another host, and waits for the address at which this end can
    /// be asked for a lane. It offers that in the place of the memory.
    WantedBetweenHosts = 19 {
        /// The token of the offer.
        token: u64,
    },
    /// The other end has not been offered yet.
    Pending = 6 {
        /// The token of the offer.
        token: u64,
        /// A program under weft listens at the address, so a short wait is worthwhile.
        listening: bool,
    },
    /// Withdraws an offer: the connection is closed or stays on TCP.
    Withdraw = 7 {
        /// The token of the offer.
        token: u64,
    },
    /// The socket that comes with the message listens, and this program will accept its connections
    /// through weft. The daemon answers with [`Control::Pending`] after it has closed its copy of
    /// the socket.
    Listening = 8 {
        /// The program's number for the socket.
        token: u64,
    },
    /// Asks for the memory of a lane. This program holds a descriptor of an end that was offered
    /// before, by a program that forked. The answer is as to an offer.
    Join = 13 {
        /// The program's number for the connection.
        token: u64,
    },
    /// Asks for the status of the node.
    Status = 9,
    /// The status as JSON, in a file that comes with the message.
    StatusReply = 10,
    /// Cuts the link at a port of a node of a lab, or mends it. The daemon answers with
    /// [`Control::Done`] when the nodes that are left a way reach each other by it.
    Link = 15 {
        /// The node.
        node: u32,
        /// The port.
        port: u16,
        /// Whether it is to be cut.
        is_cut: bool,
    },
    /// Asks for the network that the daemon's manager knows.
    Network = 20,
    /// The network as JSON, in a file that comes with the message.
    NetworkReply = 21,
    /// The request was carried out.
    Done = 16,
    /// Expels a node from the fabric. The daemon answers with [`Control::Done`].
    Expel = 17 {
        /// The number of the node.
        node: u32,
    },
    /// Asks whether the fabric is faster than TCP to any other host. The daemon answers with
    /// [`Control::Ways`], and measures what is not known yet.
    AskWays = 23,
    /// The answer, as far as it was measured.
    Ways = 24 {
        /// The fabric is faster to some host.
        any_over_fabric: bool,
    },
    /// Asks to look at a connection on the fabric, named by its addresses as the status has them.
    /// The daemon answers with [`Control::Tapped`], for connections of the asker's own user, and to
    /// root for all.
    Tap = 25 {
        /// The address of the accepting end.
        server: String [ADDRESS_BYTES_MAX],
        /// The address of the connecting end.
        client: String [ADDRESS_BYTES_MAX],
        /// The process that opened it.
        client_pid: u32,
    },
    /// The memory of its lane comes with the message, for reading alone.
    Tapped = 26,
    /// Asks the daemon to put the bytes of a memory into the kernel's connection of a socket, where
    /// only a lane has them. The socket and the sealed memory come with the message. The daemon
    /// seals the memory against writing before it begins. A program that waits no more seals it
    /// against further seals, and looks whether the daemon has begun. The daemon answers with
    /// [`Control::WasPut`].
    PutUnread = 27 {
        /// The program's number for the connection.
        token: u64,
        /// The way by which they get there.
        way: PutWay,
    },
    /// The answer to [`Control::PutUnread`].
    WasPut = 28 {
        /// The token of the question.
        token: u64,
        /// The fate of the bytes.
        fate: PutFate,
    },
    /// Asks the daemon to end.
    Stop = 11,
    /// The daemon is about to end.
    Stopping = 12,
}
}

/// Kinds that the daemon itself handles: greeting, status, stop, unread bytes.
pub const NODE_KINDS: &[RangeInclusive<u16>] = &[1..=1, 9..=9, 11..=11, 27..=27];
/// Kinds that the connections service owns: offer, withdraw, listening, join, tap.
pub const CONNECTION_KINDS: &[RangeInclusive<u16>] = &[4..=4, 7..=8, 13..=13, 25..=25];
/// Kinds that the fabric service owns: link, expel, network.
pub const FABRIC_KINDS: &[RangeInclusive<u16>] = &[15..=15, 17..=17, 20..=20];
/// Kinds that the service owns that measures the ways to other hosts.
pub const WAYS_KINDS: &[RangeInclusive<u16>] = &[23..=23];

/// Longest address of a connection, in bytes: one of IPv6 with its port and a scope.
pub const ADDRESS_BYTES_MAX: usize = 80;
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
        if !Self::KINDS.contains(&kind) {
            return Err(InvalidMessage::Kind { kind });
        }
        Self::of_kind(kind, body).ok_or(InvalidMessage::Body { kind, length: body.len() })
    }

    /// Encodes the message. Cuts names and reasons that are too long.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut message = join(self.kind(), &[]);
        self.put_fields(&mut message);
        message
    }
}

byte_form!(End: Accepted, Connected);
byte_form!(CopyAdvice: Plain, NonTemporal);
byte_form!(OfferBetweenHosts: Never, IfFaster, Always);
byte_form!(PutWay: AsPeer, AsPeerWithEnd, InPlaceOfUnread);
byte_form!(PutFate: Nothing, All, Reset);

impl Form for Advice {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self { copy: Form::take(bytes)?, networks: Form::take(bytes)? })
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        self.copy.put(bytes);
        self.networks.put(bytes);
    }
}

impl Form for Option<Partner> {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        u64::take(bytes).map(Partner::of)
    }

    fn put(&self, bytes: &mut Vec<u8>) {
        Partner::word(*self).put(bytes);
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
            ("[0-9.:]{0,40}", "[0-9.:]{0,40}", any::<u32>()).prop_map(
                |(server, client, client_pid)| Control::Tap { server, client, client_pid }
            ),
            Just(Control::Tapped),
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
            (any::<u64>(), 0..3_usize).prop_map(|(token, which)| {
                use PutWay::{AsPeer, AsPeerWithEnd, InPlaceOfUnread};
                Control::PutUnread { token, way: [AsPeer, AsPeerWithEnd, InPlaceOfUnread][which] }
            }),
            (any::<u64>(), 0..3_usize).prop_map(|(token, which)| {
                let fate = [PutFate::Nothing, PutFate::All, PutFate::Reset][which];
                Control::WasPut { token, fate }
            }),
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
        message[4] = 12;
        assert_eq!(Control::parse(&message), Err(InvalidMessage::Version { theirs: 12 }));
    }

    #[test]
    fn a_status_request_has_eight_bytes() {
        assert_eq!(Control::Status.emit(), b"weft\x0b\x00\x09\x00");
    }
}
