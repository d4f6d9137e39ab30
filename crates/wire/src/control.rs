//! The control protocol between programs and the node daemon: framing, greeting, connections.
//!
//! One message is one packet of a `SOCK_SEQPACKET` socket, at most [`BYTES_MAX`] bytes, with
//! descriptors beside it:
//!
//! ```text
//! 0  magic "weft"   4  version (u16)   6  kind (u16)   8  body, little-endian
//! ```
//!
//! Kinds 1 to 31 are here, 32 to 63 belong to endpoints, and those from 64 on to nobody yet. Each
//! service of the daemon owns the kinds that it is asked with ([`CONNECTION_KINDS`],
//! [`DEVICE_KINDS`], [`crate::endpoint_control::KINDS`]); no two own the same, nor one of
//! [`NODE_KINDS`]. A message that does not parse is an [`InvalidMessage`] that says what was wrong;
//! nothing panics.

use std::ops::RangeInclusive;

use thiserror::Error;

/// What every message begins with.
pub const MAGIC: [u8; 4] = *b"weft";
/// The version both sides must speak.
pub const VERSION: u16 = 5;
/// Longest message, bytes.
pub const BYTES_MAX: usize = 2048;
/// Bytes before the body.
pub const HEADER_BYTES: usize = 8;
/// Most descriptors beside one message.
pub const DESCRIPTORS_MAX: usize = 8;

/// Why a message was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// It does not begin with the magic.
    #[error("not a weft control message")]
    Magic,
    /// The other side speaks another version.
    #[error(
        "control protocol version {theirs} where this side speaks {VERSION}; use a daemon and \
             a library of the same release (`weft down`, then run again)"
    )]
    Version {
        /// What it speaks.
        theirs: u16,
    },
    /// Nothing of that kind is known.
    #[error("unknown message kind {kind}")]
    Kind {
        /// The kind given.
        kind: u16,
    },
    /// The body is too short, too long, or holds an impossible value.
    #[error("message kind {kind} with an invalid body of {length} bytes")]
    Body {
        /// The kind given.
        kind: u16,
        /// Bytes of its body.
        length: usize,
    },
}

/// Which end of a TCP connection makes an offer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum End {
    /// It accepted the connection; it brings the memory, at once or when it is wanted.
    Accepted = 0,
    /// It connected.
    Connected = 1,
}

/// How bytes go into memory that the peer reads next, as the daemon measured it at its start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CopyAdvice {
    /// Plain stores.
    Plain = 0,
    /// Non-temporal stores.
    NonTemporal = 1,
}

/// What the daemon measured at its start, and what it serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advice {
    /// How to copy into a lane.
    pub copy: CopyAdvice,
    /// The daemon serves devices: a connection to another address may end on this host, too.
    pub networks: bool,
}

impl Advice {
    /// As long as nothing was measured, and nothing is served.
    pub const NONE: Self = Self { copy: CopyAdvice::NonTemporal, networks: false };
}

/// Messages of kinds 1 to 31. `token` numbers are the program's own and mean nothing to others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Control {
    /// First message of a program.
    Hello {
        /// Its process id as it sees itself, for display.
        pid: u32,
        /// Its command name, at most 64 bytes, for display.
        name: String,
    },
    /// The daemon's answer to [`Control::Hello`].
    Welcome {
        /// The daemon's process id.
        pid: u32,
        /// As measured, and what it serves.
        advice: Advice,
    },
    /// The daemon refuses the program, or one of its offers.
    Refused {
        /// The offer, or 0 for the program itself.
        token: u64,
        /// Why, and what to do.
        reason: String,
    },
    /// This program holds an end of the connection whose descriptor is beside the message, and
    /// will do its input and output through weft. An accepting end adds the memory of the lane, or
    /// waits for [`Control::Wanted`] and offers again.
    Offer {
        /// The program's number for it.
        token: u64,
        /// Which end.
        end: End,
        /// The descriptor's number in the program.
        descriptor: u32,
    },
    /// The other end is there; the lane's memory is beside the message.
    Matched {
        /// The offer.
        token: u64,
        /// The other end's process, when it is of the same user and both count processes as the
        /// daemon does; else 0.
        process: u32,
    },
    /// The other end is there, and waits for the lane that this one is to make.
    Wanted {
        /// The offer.
        token: u64,
        /// As in [`Control::Matched`].
        process: u32,
    },
    /// The other end has not come yet.
    Pending {
        /// The offer.
        token: u64,
        /// A program under weft listens at the address, so that it is worth a short wait.
        listening: bool,
    },
    /// The connection is closed, or stays on TCP.
    Withdraw {
        /// The offer.
        token: u64,
    },
    /// The socket beside the message listens, and its connections will be accepted through weft.
    /// Answered by [`Control::Pending`] when the daemon has closed its copy.
    Listening {
        /// The program's number for it.
        token: u64,
    },
    /// This program holds a descriptor of an end that was offered before, by a program that
    /// forked; it needs the lane's memory too. Answered like an offer.
    Join {
        /// The program's number for it.
        token: u64,
    },
    /// Asks for the state of the node.
    Status,
    /// The state as JSON, in a file beside the message.
    StatusReply,
    /// Says which nodes the device of one reaches. Answered by [`Control::Done`].
    Reach {
        /// The node.
        node: u16,
        /// A bit for each node, from the lowest of the first word on.
        reach: [u64; 4],
    },
    /// It was done.
    Done,
    /// Asks the daemon to end.
    Stop,
    /// The daemon ends.
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
    pub const REACH: u16 = 15;
    pub const DONE: u16 = 16;
}

/// Kinds for the daemon itself: greeting, status, end.
pub const NODE_KINDS: &[RangeInclusive<u16>] =
    &[kind::HELLO..=kind::HELLO, kind::STATUS..=kind::STATUS, kind::STOP..=kind::STOP];
/// Kinds for the connections service.
pub const CONNECTION_KINDS: &[RangeInclusive<u16>] =
    &[kind::OFFER..=kind::OFFER, kind::WITHDRAW..=kind::LISTENING, kind::JOIN..=kind::JOIN];
/// Kinds for the Ethernet service.
pub const DEVICE_KINDS: &[RangeInclusive<u16>] = &[kind::REACH..=kind::REACH];

/// Longest name a program may give.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest reason of a refusal.
pub const REASON_BYTES_MAX: usize = 512;

/// Splits a message into its kind and body.
///
/// # Errors
/// [`InvalidMessage::Magic`], [`InvalidMessage::Version`].
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

/// A message of `kind` with `body`.
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
    /// Reads a message.
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
            kind::OFFER => reader.offer(),
            kind::MATCHED => reader
                .u64()
                .zip(reader.u32())
                .map(|(token, process)| Self::Matched { token, process }),
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
                .zip(reader.u32())
                .map(|(token, process)| Self::Wanted { token, process }),
            kind::REACH => reader.reach(),
            kind::DONE => Some(Self::Done),
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

    /// Writes the message. Names and reasons that are too long are cut.
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
            Self::Offer { token, end, descriptor } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.push(*end as u8);
                body.extend_from_slice(&descriptor.to_le_bytes());
                kind::OFFER
            }
            Self::Matched { token, process } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.extend_from_slice(&process.to_le_bytes());
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
            Self::Wanted { token, process } => {
                body.extend_from_slice(&token.to_le_bytes());
                body.extend_from_slice(&process.to_le_bytes());
                kind::WANTED
            }
            Self::Reach { node, reach } => {
                body.extend_from_slice(&node.to_le_bytes());
                reach.iter().for_each(|word| body.extend_from_slice(&word.to_le_bytes()));
                kind::REACH
            }
            Self::Done => kind::DONE,
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

/// Takes values off the front of a body.
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

    fn reach(&mut self) -> Option<Control> {
        let node = u16::from_le_bytes(self.bytes()?);
        let mut reach = [0; 4];
        for word in &mut reach {
            *word = self.u64()?;
        }
        Some(Control::Reach { node, reach })
    }

    fn offer(&mut self) -> Option<Control> {
        let token = self.u64()?;
        let end = match self.u8()? {
            0 => End::Accepted,
            1 => End::Connected,
            _ => return None,
        };
        Some(Control::Offer { token, end, descriptor: self.u32()? })
    }
}

/// Entry for fuzzing: any bytes either parse, and what is emitted for them parses to the same, or
/// are refused.
///
/// # Panics
/// When they do not.
pub fn fuzz_parse(bytes: &[u8]) {
    if let Ok(control) = Control::parse(bytes) {
        let message = control.emit();
        assert!(message.len() <= BYTES_MAX, "a message of {} bytes", message.len());
        assert_eq!(Control::parse(&message), Ok(control), "what was written is read again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_control() -> impl Strategy<Value = Control> {
        prop_oneof![
            (any::<u32>(), "[a-z é]{0,20}").prop_map(|(pid, name)| Control::Hello { pid, name }),
            any::<(u32, [bool; 2])>().prop_map(|(pid, [streaming, networks])| {
                let copy = if streaming { CopyAdvice::NonTemporal } else { CopyAdvice::Plain };
                Control::Welcome { pid, advice: Advice { copy, networks } }
            }),
            (any::<u64>(), ".{0,80}")
                .prop_map(|(token, reason)| Control::Refused { token, reason }),
            (any::<u64>(), any::<bool>(), any::<u32>()).prop_map(
                |(token, accepted, descriptor)| {
                    let end = if accepted { End::Accepted } else { End::Connected };
                    Control::Offer { token, end, descriptor }
                }
            ),
            any::<(u64, u32)>().prop_map(|(token, process)| Control::Matched { token, process }),
            any::<(u16, [u64; 4])>().prop_map(|(node, reach)| Control::Reach { node, reach }),
            Just(Control::Done),
            (any::<u64>(), any::<bool>())
                .prop_map(|(token, listening)| Control::Pending { token, listening }),
            any::<u64>().prop_map(|token| Control::Withdraw { token }),
            any::<(u64, u32)>().prop_map(|(token, process)| Control::Wanted { token, process }),
            any::<u64>().prop_map(|token| Control::Listening { token }),
            any::<u64>().prop_map(|token| Control::Join { token }),
            Just(Control::Status),
            Just(Control::StatusReply),
            Just(Control::Stop),
            Just(Control::Stopping),
        ]
    }

    proptest! {
        #[test]
        fn what_is_emitted_parses_to_the_same(control in any_control()) {
            let message = control.emit();
            prop_assert!(message.len() <= BYTES_MAX);
            prop_assert_eq!(Control::parse(&message), Ok(control.clone()));
            let mut longer = message.clone();
            longer.push(0);
            prop_assert!(Control::parse(&longer).is_err());
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64),
                                                kind in 0u16..20) {
            let _ = Control::parse(&bytes);
            let _ = Control::parse(&join(kind, &bytes));
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut message = Control::Status.emit();
        message[4] = 9;
        assert_eq!(Control::parse(&message), Err(InvalidMessage::Version { theirs: 9 }));
    }

    #[test]
    fn a_status_request_is_these_eight_bytes() {
        assert_eq!(Control::Status.emit(), b"weft\x05\x00\x09\x00");
    }
}
