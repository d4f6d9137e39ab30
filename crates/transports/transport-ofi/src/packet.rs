//! The format: one packet is one message of a port, a head of 24 bytes and a body behind it.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | number of the pair at the receiver |
//! | 4–7 | the check that the receiver chose for the pair |
//! | 8 | kind |
//! | 9 | of a message: type in bits 0, 1 and group in 2 to 7; of a credit: 1 if it takes room; of a
//!        short put: its parts |
//! | 10 | of a message: its tag; of a short put: the class of its notification; else 0 |
//! | 11 | packets that the sender has taken from the receiver since it said so last |
//! | 12, 13 | messages that its program has taken since |
//! | 14, 15 | notifications that its program has taken since |
//! | 16–19 | number of the packet in the pair, the greeting apart: a gap tells of a lost one |
//! | 20–23 | messages, notifications and short puts of the receiver that the sender has handled |
//!
//! Integers are little-endian. The bodies are those of [`Body`], field after field. The version of
//! the format is [`weft_wire::versions::PACKETS`].

use weft_fabric::{
    Access, Atomic, AtomicOperation, Command, DownReason, Group, MessageHeader, OperationError,
    RemoteKey, Side, Signal, SignalChange, Target, Width,
};
use weft_libfabric::Spot;

/// Bytes of the head.
pub const HEAD_BYTES: usize = 24;
/// Bytes of the payload of a mailbox message at most: with the heads of libfabric and TCP it is one
/// packet of Ethernet. Those of EXTOLL-THESIS#3.2.2 have 120.
pub const MESSAGE_BYTES: usize = 1280;
/// Bytes of a short put at most.
pub const BODY_BYTES: usize = 120;
/// Bytes in front of those of a short put: its number, its target, its signal, its notification and
/// its length.
const SHORT_HEAD_BYTES: usize = 7 * 8 + 1;
/// Bytes of a packet at most.
pub const PACKET_BYTES: usize = HEAD_BYTES + MESSAGE_BYTES;

const _: () = assert!(SHORT_HEAD_BYTES + BODY_BYTES <= MESSAGE_BYTES, "each packet has room");

/// Credits that a pair's end returns to the other, in the head of each packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Packets that were handled.
    pub packets: u8,
    /// Messages that the program has taken.
    pub messages: u16,
    /// Notifications that the program has taken.
    pub notifications: u16,
}

/// Names a pair to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Label {
    /// The number of the pair at the receiver.
    pub number: u32,
    /// A number that the receiver chose, so that a stranger cannot guess it.
    pub check: u32,
}

/// A packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The pair. In a greeting it means nothing.
    pub label: Label,
    /// The credits that the sender returns.
    pub credits: Credits,
    /// The number of the packet, from 1 on. In a greeting it means nothing.
    pub sequence: u32,
    /// The low half of the number of messages, notifications and short puts of the receiver that
    /// the sender has handled. In a greeting it means nothing.
    pub handled: u32,
    /// The rest.
    pub body: Body<'a>,
}

/// The kinds of packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// The first packet of an end.
    Greeting(Greeting),
    /// A mailbox message.
    Message {
        /// Its tag and type.
        header: MessageHeader,
        /// The group that it was sent to.
        group: Option<Group>,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// A notification for the receiver's program.
    Told(Told),
    /// A put whose bytes are here. The receiver answers with its number if it refuses it.
    Short(Short<'a>),
    /// Nothing, in the place of a notification of an operation that failed.
    Never,
    /// A question to the receiver. It answers with the same number.
    Request(u64, Request),
    /// The answer to a request.
    Response(u64, Result<Answer, OperationError>),
    /// The key is void. The receiver answers when it has no operation on it under way.
    Void(RemoteKey),
    /// No operation on a void key is under way.
    Released(RemoteKey),
    /// Nothing but what the head says. Whether it takes a buffer that its sender was given.
    Credit(bool),
    /// The receiver shall show that it lives.
    Ping,
    /// The sender has given the pair up.
    Farewell(DownReason),
}

/// The first words of an end of a new pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The number that the directory gave both.
    pub secret: [u8; 16],
    /// How the receiver labels what it sends.
    pub label: Label,
    /// Packets that the receiver may send before some are returned.
    pub packets: u16,
    /// Messages of former pairs with the receiver that still wait.
    pub messages: u16,
    /// The same of notifications.
    pub notifications: u16,
}

/// A notification, as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The unit that wrote it.
    pub side: Side,
    /// The kind of operation.
    pub command: Command,
    /// The initiator's class.
    pub class: u8,
    /// The key, offset and length of the operation.
    pub range: (RemoteKey, u64, u64),
    /// The initiator's context.
    pub context: u64,
    /// The initiator's immediate value.
    pub immediate: u64,
}

/// A put that is one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short<'a> {
    /// The number of the operation.
    pub number: u64,
    /// [`Command::Put`], or [`Command::ImmediatePut`].
    pub is_immediate: bool,
    /// Where the bytes go.
    pub target: Target,
    /// The offset of a word behind the same key that changes after the bytes, and how.
    pub signal: Option<(u64, SignalChange)>,
    /// The class, the context and the immediate value of the notification behind it.
    pub notify: Option<(u8, u64, u64)>,
    /// At most [`BODY_BYTES`].
    pub bytes: &'a [u8],
}

impl Short<'_> {
    /// The kind of operation.
    #[must_use]
    pub const fn command(&self) -> Command {
        if self.is_immediate { Command::ImmediatePut } else { Command::Put }
    }

    /// The word that changes behind the bytes.
    #[must_use]
    pub fn signal(&self) -> Option<Signal> {
        self.signal.map(|(offset, change)| {
            let target = Target { key: self.target.key, offset };
            Signal { target, change }
        })
    }

    /// The notification behind it.
    #[must_use]
    pub fn told(&self) -> Option<Told> {
        self.notify.map(|(class, context, immediate)| Told {
            side: Side::Completer,
            command: self.command(),
            class,
            range: (self.target.key, self.target.offset, self.bytes.len() as u64),
            context,
            immediate,
        })
    }
}

/// An action that the target of an operation does by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Tells where the range of a key is.
    Resolve(RemoteKey),
    /// Changes a word.
    Atomic(Target, Atomic),
    /// Changes a word behind the data of a put.
    Signal(Target, SignalChange),
    /// Writes the low bytes of a value.
    Store {
        /// Where.
        target: Target,
        /// The bytes, little-endian.
        value: u64,
        /// How many, 1 to 8.
        length: u8,
        /// Whether they are one word, and must lie at a multiple of its size.
        is_word: bool,
    },
    /// Reads a word, at a multiple of its size.
    Load {
        /// Where.
        target: Target,
        /// Its bytes: 1, 2, 4 or 8.
        length: u8,
    },
    /// Answers: all packets before this one have been handled.
    Flush,
}

/// The answer to a request that was good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A value.
    Value(u64),
    /// Where the range of a key is.
    Range(Range),
}

/// The range of a key, as its owner tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The place for the provider.
    pub spot: Spot,
    /// How far behind a multiple of 8 its first byte lies in the owner's memory.
    pub skew: u8,
    /// Bytes.
    pub length: u64,
    /// The rights.
    pub access: Access,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// They end too early, or go on behind the end.
    #[error("a packet of kind {kind} has {length} bytes")]
    Length {
        /// The number of the kind; 0 if there is none.
        kind: u8,
        /// All bytes.
        length: usize,
    },
    /// There is no such kind.
    #[error("there are no packets of kind {kind}")]
    Kind {
        /// The number.
        kind: u8,
    },
    /// A field has a value that means nothing.
    #[error("{field} of a packet has the value {value}, which means nothing")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

mod kind {
    pub const GREETING: u8 = 1;
    pub const MESSAGE: u8 = 2;
    pub const MULTICAST: u8 = 3;
    pub const TOLD: u8 = 4;
    pub const REQUEST: u8 = 5;
    pub const RESPONSE: u8 = 6;
    pub const FAILURE: u8 = 7;
    pub const VOID: u8 = 8;
    pub const RELEASED: u8 = 9;
    pub const CREDIT: u8 = 10;
    pub const PING: u8 = 11;
    pub const FAREWELL: u8 = 12;
    pub const SHORT: u8 = 13;
    pub const NEVER: u8 = 14;
}

/// The parts of a short put, by bits.
mod part {
    pub const SIGNAL: u8 = 1;
    /// The signal adds.
    pub const ADDS: u8 = 2;
    pub const NOTIFY: u8 = 4;
    pub const IMMEDIATE: u8 = 8;
    pub const ALL: u8 = 15;
}

/// The bytes of a packet that is being written, behind those of others.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Bytes<'_> {
    fn put(&mut self, more: &[u8]) {
        self.0.extend_from_slice(more);
    }

    fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    fn payload(&mut self, bytes: &[u8], most: usize) {
        assert!(bytes.len() <= most, "{} bytes are not short", bytes.len());
        self.put(bytes);
    }

    fn word(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn target(&mut self, target: Target) {
        self.word(target.key.0);
        self.word(target.offset);
    }
}

/// Takes the fields of a body off its front.
struct Fields<'a> {
    kind: u8,
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let length = Malformed::Length { kind: self.kind, length: self.whole };
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(length)?;
        self.rest = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.take().map(|[byte]| byte)
    }

    fn half(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn word(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    fn key(&mut self) -> Result<RemoteKey, Malformed> {
        self.word().map(RemoteKey)
    }

    fn target(&mut self) -> Result<Target, Malformed> {
        Ok(Target { key: self.key()?, offset: self.word()? })
    }

    fn flag(&mut self, field: &'static str) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(meaningless(field, value)),
        }
    }

    fn command(&mut self) -> Result<Command, Malformed> {
        let number = self.byte()?;
        Command::from_number(number).ok_or(meaningless("the command", number))
    }

    /// All bytes that are left, of which there are at most so many.
    fn payload(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        if self.rest.len() > most {
            return Err(Malformed::Length { kind: self.kind, length: self.whole });
        }
        Ok(std::mem::take(&mut self.rest))
    }

    fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Malformed::Length { kind: self.kind, length: self.whole })
    }
}

fn meaningless(field: &'static str, value: u8) -> Malformed {
    Malformed::Field { field, value: value.into() }
}

impl Packet<'_> {
    /// Writes the packet behind the bytes that are there.
    ///
    /// # Panics
    /// When the payload of a message or of a short put is longer than it may be.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let mut out = Bytes(out);
        let Self { label, credits, sequence, handled, body } = self;
        out.put(&label.number.to_le_bytes());
        out.put(&label.check.to_le_bytes());
        let (kind, more, tag) = match body {
            Body::Greeting(_) => (kind::GREETING, 0, 0),
            Body::Message { header, group: None, .. } => (kind::MESSAGE, header.kind, header.tag),
            Body::Message { header, group: Some(group), .. } => {
                (kind::MULTICAST, header.kind | group.number() << 2, header.tag)
            }
            Body::Told(_) => (kind::TOLD, 0, 0),
            Body::Request(..) => (kind::REQUEST, 0, 0),
            Body::Response(_, Ok(_)) => (kind::RESPONSE, 0, 0),
            Body::Response(_, Err(_)) => (kind::FAILURE, 0, 0),
            Body::Void(_) => (kind::VOID, 0, 0),
            Body::Released(_) => (kind::RELEASED, 0, 0),
            Body::Credit(counted) => (kind::CREDIT, u8::from(*counted), 0),
            Body::Ping => (kind::PING, 0, 0),
            Body::Farewell(_) => (kind::FAREWELL, 0, 0),
            Body::Short(short) => (kind::SHORT, parts_of(short), short.notify.map_or(0, |n| n.0)),
            Body::Never => (kind::NEVER, 0, 0),
        };
        out.put(&[kind, more, tag, credits.packets]);
        out.put(&credits.messages.to_le_bytes());
        out.put(&credits.notifications.to_le_bytes());
        out.put(&sequence.to_le_bytes());
        out.put(&handled.to_le_bytes());
        match body {
            Body::Greeting(Greeting { secret, label, packets, messages, notifications }) => {
                out.put(secret);
                out.put(&label.number.to_le_bytes());
                out.put(&label.check.to_le_bytes());
                for half in [packets, messages, notifications] {
                    out.put(&half.to_le_bytes());
                }
            }
            Body::Message { payload, .. } => out.payload(payload, MESSAGE_BYTES),
            Body::Short(short) => emit_short(&mut out, short),
            Body::Told(told) => {
                let Told { side, command, class, range: (key, offset, length), .. } = *told;
                out.put(&[side as u8, command as u8, class]);
                for word in [key.0, offset, length, told.context, told.immediate] {
                    out.word(word);
                }
            }
            Body::Request(number, request) => {
                out.word(*number);
                emit_request(&mut out, request);
            }
            Body::Response(number, Ok(answer)) => {
                out.word(*number);
                match answer {
                    Answer::Value(value) => {
                        out.byte(0);
                        out.word(*value);
                    }
                    Answer::Range(Range { spot, skew, length, access }) => {
                        out.byte(1);
                        for word in [spot.address, spot.key, *length] {
                            out.word(word);
                        }
                        out.put(&[*skew, access.bits()]);
                    }
                }
            }
            Body::Response(number, Err(error)) => {
                out.word(*number);
                emit_error(&mut out, error);
            }
            Body::Void(key) | Body::Released(key) => out.word(key.0),
            Body::Credit(_) | Body::Ping | Body::Never => {}
            Body::Farewell(reason) => out.byte(number_of(*reason)),
        }
    }
}

impl<'a> Packet<'a> {
    /// The packet of these bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let whole = bytes.len();
        let mut head = Fields { kind: 0, whole, rest: bytes };
        if whole > PACKET_BYTES {
            return Err(Malformed::Length { kind: 0, length: whole });
        }
        let label = Label { number: head.number()?, check: head.number()? };
        let [kind, more, tag, packets] = head.take()?;
        let credits = Credits { packets, messages: head.half()?, notifications: head.half()? };
        let (sequence, handled) = (head.number()?, head.number()?);
        let mut fields = Fields { kind, whole, rest: head.rest };
        let body = match kind {
            kind::MESSAGE | kind::MULTICAST => {
                let header = MessageHeader { tag, kind: more & 3 };
                let group = if kind == kind::MULTICAST { Group::new(more >> 2) } else { None };
                Body::Message { header, group, payload: fields.payload(MESSAGE_BYTES)? }
            }
            kind::GREETING => Body::Greeting(Greeting {
                secret: fields.take()?,
                label: Label { number: fields.number()?, check: fields.number()? },
                packets: fields.half()?,
                messages: fields.half()?,
                notifications: fields.half()?,
            }),
            kind::TOLD => Body::Told(Told {
                side: side_of(fields.byte()?)?,
                command: fields.command()?,
                class: fields.byte()?,
                range: (fields.key()?, fields.word()?, fields.word()?),
                context: fields.word()?,
                immediate: fields.word()?,
            }),
            kind::REQUEST => Body::Request(fields.word()?, parse_request(&mut fields)?),
            kind::RESPONSE => {
                let number = fields.word()?;
                let answer = match fields.byte()? {
                    0 => Answer::Value(fields.word()?),
                    1 => Answer::Range(Range {
                        spot: Spot { address: fields.word()?, key: fields.word()? },
                        length: fields.word()?,
                        skew: fields.byte()?,
                        access: access_of(fields.byte()?)?,
                    }),
                    value => return Err(meaningless("the answer", value)),
                };
                Body::Response(number, Ok(answer))
            }
            kind::FAILURE => Body::Response(fields.word()?, Err(parse_error(&mut fields)?)),
            kind::VOID => Body::Void(fields.key()?),
            kind::RELEASED => Body::Released(fields.key()?),
            kind::CREDIT => Body::Credit(more == 1),
            kind::PING => Body::Ping,
            kind::FAREWELL => Body::Farewell(reason_of(fields.byte()?)?),
            kind::SHORT => Body::Short(parse_short(&mut fields, more, tag)?),
            kind::NEVER => Body::Never,
            kind => return Err(Malformed::Kind { kind }),
        };
        fields.end()?;
        Ok(Self { label, credits, sequence, handled, body })
    }
}

fn parts_of(short: &Short<'_>) -> u8 {
    let change = match short.signal {
        None => 0,
        Some((_, SignalChange::Set(_))) => part::SIGNAL,
        Some((_, SignalChange::Add(_))) => part::SIGNAL | part::ADDS,
    };
    let notify = if short.notify.is_some() { part::NOTIFY } else { 0 };
    change | notify | if short.is_immediate { part::IMMEDIATE } else { 0 }
}

fn emit_short(out: &mut Bytes<'_>, short: &Short<'_>) {
    out.word(short.number);
    out.target(short.target);
    if let Some((offset, SignalChange::Set(value) | SignalChange::Add(value))) = short.signal {
        out.word(offset);
        out.word(value);
    }
    if let Some((_, context, immediate)) = short.notify {
        out.word(context);
        out.word(immediate);
    }
    // Whoever cuts the packet changes no memory.
    out.byte(u8::try_from(short.bytes.len()).expect("few bytes"));
    out.payload(short.bytes, BODY_BYTES);
}

fn parse_short<'a>(fields: &mut Fields<'a>, parts: u8, class: u8) -> Result<Short<'a>, Malformed> {
    let has = |part: u8| parts & part != 0;
    if parts & !part::ALL != 0 || has(part::ADDS) && !has(part::SIGNAL) {
        return Err(meaningless("the parts", parts));
    }
    if class != 0 && !has(part::NOTIFY) {
        return Err(meaningless("the class", class));
    }
    let (number, target) = (fields.word()?, fields.target()?);
    let signal = if has(part::SIGNAL) {
        let (offset, value) = (fields.word()?, fields.word()?);
        let adds = has(part::ADDS);
        let change = if adds { SignalChange::Add(value) } else { SignalChange::Set(value) };
        Some((offset, change))
    } else {
        None
    };
    let notify =
        if has(part::NOTIFY) { Some((class, fields.word()?, fields.word()?)) } else { None };
    let length = fields.byte()?;
    let bytes = fields.payload(BODY_BYTES)?;
    if bytes.len() != usize::from(length) {
        return Err(Malformed::Length { kind: fields.kind, length: fields.whole });
    }
    let is_immediate = has(part::IMMEDIATE);
    Ok(Short { number, is_immediate, target, signal, notify, bytes })
}

fn emit_request(out: &mut Bytes<'_>, request: &Request) {
    match *request {
        Request::Resolve(key) => {
            out.byte(0);
            out.word(key.0);
        }
        Request::Atomic(target, atomic) => {
            out.byte(1);
            out.target(target);
            let width = u8::from(atomic.width == Width::Bits64);
            out.put(&[atomic.operation as u8, width, u8::from(atomic.fetches)]);
            out.word(atomic.operand);
            out.word(atomic.compare);
        }
        Request::Signal(target, change) => {
            out.byte(2);
            out.target(target);
            let (number, value) = match change {
                SignalChange::Set(value) => (0, value),
                SignalChange::Add(value) => (1, value),
            };
            out.byte(number);
            out.word(value);
        }
        Request::Store { target, value, length, is_word } => {
            out.byte(3);
            out.target(target);
            out.word(value);
            out.put(&[length, u8::from(is_word)]);
        }
        Request::Load { target, length } => {
            out.byte(4);
            out.target(target);
            out.byte(length);
        }
        Request::Flush => out.byte(7),
    }
}

fn parse_request(fields: &mut Fields<'_>) -> Result<Request, Malformed> {
    Ok(match fields.byte()? {
        0 => Request::Resolve(fields.key()?),
        1 => {
            let target = fields.target()?;
            let operation = atomic_of(fields.byte()?)?;
            let is_wide = fields.flag("the width")?;
            let width = if is_wide { Width::Bits64 } else { Width::Bits32 };
            let fetches = fields.flag("the fetching")?;
            let (operand, compare) = (fields.word()?, fields.word()?);
            Request::Atomic(target, Atomic { operation, width, operand, compare, fetches })
        }
        2 => {
            let target = fields.target()?;
            let number = fields.byte()?;
            let value = fields.word()?;
            let change = match number {
                0 => SignalChange::Set(value),
                1 => SignalChange::Add(value),
                value => return Err(meaningless("the change", value)),
            };
            Request::Signal(target, change)
        }
        3 => Request::Store {
            target: fields.target()?,
            value: fields.word()?,
            length: fields.byte()?,
            is_word: fields.flag("the word")?,
        },
        4 => Request::Load { target: fields.target()?, length: fields.byte()? },
        7 => Request::Flush,
        // 5 and 6 were of operations that are no more.
        value => return Err(meaningless("the request", value)),
    })
}

/// The errors that a target answers with. Whatever else went wrong there, its key serves nobody.
fn emit_error(out: &mut Bytes<'_>, error: &OperationError) {
    let (number, command, words) = match *error {
        OperationError::AccessDenied { command } => (1, command as u8, [0; 3]),
        OperationError::OutOfBounds { offset, length, region } => (2, 0, [offset, length, region]),
        OperationError::Misaligned { offset, alignment } => (3, 0, [offset, alignment, 0]),
        OperationError::InvalidLength { length } => (5, 0, [length, 0, 0]),
        _ => (0, 0, [0; 3]),
    };
    out.put(&[number, command]);
    for word in words {
        out.word(word);
    }
}

fn parse_error(fields: &mut Fields<'_>) -> Result<OperationError, Malformed> {
    let number = fields.byte()?;
    let command = fields.command()?;
    let [one, two, three] = [fields.word()?, fields.word()?, fields.word()?];
    Ok(match number {
        0 => OperationError::InvalidKey,
        1 => OperationError::AccessDenied { command },
        2 => OperationError::OutOfBounds { offset: one, length: two, region: three },
        3 => OperationError::Misaligned { offset: one, alignment: two },
        5 => OperationError::InvalidLength { length: one },
        // 4 was one of an operation that is no more.
        value => return Err(meaningless("the error", value)),
    })
}

fn side_of(number: u8) -> Result<Side, Malformed> {
    Ok(match number {
        0 => Side::Requester,
        1 => Side::Responder,
        2 => Side::Completer,
        value => return Err(meaningless("the side", value)),
    })
}

fn access_of(bits: u8) -> Result<Access, Malformed> {
    Access::from_bits(bits).ok_or(meaningless("the access", bits))
}

fn atomic_of(number: u8) -> Result<AtomicOperation, Malformed> {
    use AtomicOperation::{And, CompareSwap, FetchAdd, Or, Read, Swap, Xor};
    let all = [Read, FetchAdd, Swap, CompareSwap, And, Or, Xor];
    all.into_iter()
        .find(|operation| *operation as u8 == number)
        .ok_or(meaningless("the atomic", number))
}

const REASONS: [DownReason; 4] =
    [DownReason::Ended, DownReason::Unreachable, DownReason::Misbehaved, DownReason::Disconnected];

fn number_of(reason: DownReason) -> u8 {
    let place = REASONS.iter().position(|known| *known == reason);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(0)
}

fn reason_of(number: u8) -> Result<DownReason, Malformed> {
    REASONS.get(usize::from(number)).copied().ok_or(meaningless("the reason", number))
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
