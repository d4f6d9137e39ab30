//! The part of the control protocol that belongs to endpoints: kinds 32 to 63.
//!
//! Every body is a fixed layout: the fields of the struct in their order, little-endian, without
//! padding, so a message is valid exactly when its length is. What the numbers mean (whether a
//! VPID exists, a status is known) is for the receiver to check; no value here is an index.
//!
//! | kind | message | descriptors beside it |
//! |---|---|---|
//! | 32–47 | requests of a program | as each says |
//! | 48–55 | the daemon's answers, with the ticket of the request | as each says |
//! | 56–63 | what the daemon tells unasked | as each says |

use crate::control::InvalidMessage;

/// Kinds of this part of the protocol.
pub const KINDS: std::ops::RangeInclusive<u16> = 32..=63;

/// Bits of the `flags` of [`Open`], [`Paired`] and of the answer to [`Connect`].
pub mod flags {
    /// The endpoint's process lacks the asymmetric fence: both ends must use full ones.
    pub const FULL_FENCES: u32 = 1;
    /// [`super::Open::partition`] is meant; else the partition is that of the user.
    pub const PARTITION: u32 = 2;
    /// The endpoint exists and announces itself to a daemon that was started anew.
    pub const AGAIN: u32 = 4;
}

/// Values of [`Reply::status`].
pub mod status {
    /// Done.
    pub const DONE: u16 = 0;
    /// The VPID is taken.
    pub const IN_USE: u16 = 1;
    /// A table is full; `first` is its maximum.
    pub const EXHAUSTED: u16 = 2;
    /// The partition is another user's.
    pub const FORBIDDEN: u16 = 3;
    /// No such endpoint or key in the partition.
    pub const NOT_FOUND: u16 = 4;
    /// The request makes no sense; a bug of the library that sent it.
    pub const INVALID: u16 = 5;
    /// The pair was made by the other side before; [`super::Paired`] was sent earlier.
    pub const PAIRED: u16 = 6;
}

/// A value of fixed size inside a body.
trait Field: Sized {
    const BYTES: usize;
    fn take(bytes: &mut &[u8]) -> Option<Self>;
    fn put(&self, body: &mut Vec<u8>);
}

macro_rules! integer_field {
    ($($type:ty),*) => {$(
        impl Field for $type {
            const BYTES: usize = size_of::<$type>();

            fn take(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*head))
            }

            fn put(&self, body: &mut Vec<u8>) {
                body.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

integer_field!(u8, u16, u32, u64);

impl Field for [u64; 4] {
    const BYTES: usize = 32;

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut words = [0; 4];
        for word in &mut words {
            *word = u64::take(bytes)?;
        }
        Some(words)
    }

    fn put(&self, body: &mut Vec<u8>) {
        for word in self {
            word.put(body);
        }
    }
}

macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:literal {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl $name {
                /// Its kind on the wire.
                pub const KIND: u16 = $kind;
                /// Bytes of its body.
                pub const BYTES: usize = 0 $(+ <$type as Field>::BYTES)*;

                fn take(mut body: &[u8]) -> Option<Self> {
                    let parsed = Self { $($field: Field::take(&mut body)?,)* };
                    body.is_empty().then_some(parsed)
                }

                fn put(&self, body: &mut Vec<u8>) {
                    $(self.$field.put(body);)*
                }
            }

            impl From<$name> for EndpointControl {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*

        /// A message of kinds 32 to 63.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum EndpointControl {
            $(#[allow(missing_docs, reason = "the struct says it")] $name($name),)*
        }

        impl EndpointControl {
            /// Reads the body of a message of `kind`.
            ///
            /// # Errors
            /// [`InvalidMessage::Kind`] for an unknown kind, [`InvalidMessage::Body`] for a body
            /// of another length than the kind has.
            pub fn parse(kind: u16, body: &[u8]) -> Result<Self, InvalidMessage> {
                let invalid = InvalidMessage::Body { kind, length: body.len() };
                match kind {
                    $($name::KIND => $name::take(body).map(Self::$name).ok_or(invalid),)*
                    other => Err(InvalidMessage::Kind { kind: other }),
                }
            }

            /// Its kind on the wire.
            #[must_use]
            pub const fn kind(&self) -> u16 {
                match self { $(Self::$name(_) => $name::KIND,)* }
            }

            /// Bytes of its body.
            #[must_use]
            pub const fn body_bytes(&self) -> usize {
                match self { $(Self::$name(_) => $name::BYTES,)* }
            }

            /// Writes its body.
            #[must_use]
            pub fn emit(&self) -> Vec<u8> {
                let mut body = Vec::with_capacity(self.body_bytes());
                match self { $(Self::$name(message) => message.put(&mut body),)* }
                assert_eq!(body.len(), self.body_bytes(), "a fixed layout has one length");
                body
            }
        }
    };
}

messages! {
    /// Opens an endpoint. Beside it: its doorbell, its registers, its bell. Answer: `first` is
    /// the address (node in bits 16 to 31, VPID below), `second` the partition.
    Open = 32 {
        /// Names the request in its answer.
        ticket: u32,
        /// See [`flags`].
        flags: u32,
        /// The partition, if the flag says so.
        partition: u64,
        /// A number that the endpoint drew: tells it from a later one with the same VPID.
        birth: u64,
        /// The VPID wanted, `0xffff` for any.
        vpid: u16,
    }

    /// Closes an endpoint.
    Close = 33 {
        /// Names the request in its answer.
        ticket: u32,
        /// The endpoint.
        vpid: u16,
    }

    /// Makes a pair. Beside it: the memory of the pair. Answer: `first` is the flags of the
    /// peer, `second` its birth; beside it the peer's doorbell, registers and bell. Status
    /// `PAIRED` when the peer was first: its [`Paired`] was sent before.
    Connect = 34 {
        /// Names the request in its answer.
        ticket: u32,
        /// The asking endpoint.
        vpid: u16,
        /// Node of the endpoint wanted.
        node: u16,
        /// VPID of the endpoint wanted.
        peer: u16,
    }

    /// Joins a multicast group.
    Join = 35 {
        /// Names the request in its answer.
        ticket: u32,
        /// The endpoint.
        vpid: u16,
        /// The group, 0 to 62.
        group: u8,
    }

    /// Leaves a multicast group.
    Leave = 36 {
        /// Names the request in its answer.
        ticket: u32,
        /// The endpoint.
        vpid: u16,
        /// The group, 0 to 62.
        group: u8,
    }

    /// Asks who is in a group. Answer: [`Members`].
    AskMembers = 37 {
        /// Names the request in its answer.
        ticket: u32,
        /// The asking endpoint.
        vpid: u16,
        /// The group, 0 to 63.
        group: u8,
    }

    /// Publishes a key, or new memory of a key that is published. Beside it: the memory, opened
    /// with the rights that the key gives.
    Publish = 38 {
        /// Names the request in its answer.
        ticket: u32,
        /// The owner.
        vpid: u16,
        /// The key's slot.
        slot: u16,
        /// The key's generation.
        generation: u32,
        /// Bits of the access.
        access: u8,
        /// Bytes of the region.
        length: u64,
    }

    /// Takes a key back. Answer: `first` is how often it was handed out.
    Retract = 39 {
        /// Names the request in its answer.
        ticket: u32,
        /// The owner.
        vpid: u16,
        /// The key's slot.
        slot: u16,
        /// The key's generation.
        generation: u32,
    }

    /// Asks for the memory behind a key. Answer: `first` is its length, `second` its access;
    /// beside it the memory.
    Resolve = 40 {
        /// Names the request in its answer.
        ticket: u32,
        /// The asking endpoint.
        vpid: u16,
        /// The owner.
        owner: u16,
        /// The key's slot.
        slot: u16,
        /// The key's generation.
        generation: u32,
    }

    /// After an [`Open`] with [`flags::AGAIN`]: a pair that exists. Never answered but by
    /// [`PeerGone`], at once or later.
    Remember = 41 {
        /// The announcing endpoint.
        vpid: u16,
        /// Its peer.
        peer: u16,
        /// The peer's birth.
        birth: u64,
    }

    /// The answer to a request.
    Reply = 48 {
        /// The request.
        ticket: u32,
        /// See [`status`].
        status: u16,
        /// As the request says.
        first: u64,
        /// As the request says.
        second: u64,
    }

    /// The answer to [`AskMembers`].
    Members = 49 {
        /// The request.
        ticket: u32,
        /// One bit for each VPID.
        vpids: [u64; 4],
    }

    /// A peer made a pair. Beside it: the memory of the pair, and the peer's doorbell, registers
    /// and bell.
    Paired = 56 {
        /// The endpoint told.
        vpid: u16,
        /// Node of the peer.
        node: u16,
        /// VPID of the peer.
        peer: u16,
        /// Flags of the peer.
        flags: u32,
        /// Birth of the peer.
        birth: u64,
    }

    /// A peer is gone.
    PeerGone = 57 {
        /// The endpoint told.
        vpid: u16,
        /// Node of the peer.
        node: u16,
        /// VPID of the peer.
        peer: u16,
    }

    /// The members of groups changed: what [`Members`] said is old.
    GroupsChanged = 58 {
        /// The endpoint told.
        vpid: u16,
        /// One bit for each group.
        groups: u64,
    }
}

/// Entry for fuzzing: any bytes either parse and come back the same, or are refused.
pub fn fuzz_parse(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first_chunk().map(|(k, b)| (u16::from_le_bytes(*k), b))
    else {
        return;
    };
    if let Ok(message) = EndpointControl::parse(kind, body) {
        assert_eq!(message.kind(), kind);
        assert_eq!(message.emit(), body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_connect_is_ten_bytes_in_the_order_of_its_fields() {
        let connect = Connect { ticket: 1, vpid: 2, node: 0x0304, peer: 5 };
        let body = EndpointControl::from(connect).emit();
        assert_eq!(body, [1, 0, 0, 0, 2, 0, 4, 3, 5, 0]);
        assert_eq!(EndpointControl::parse(34, &body), Ok(connect.into()));
    }

    #[test]
    fn bodies_of_another_length_and_unknown_kinds_are_refused() {
        let body = EndpointControl::from(PeerGone::default()).emit();
        for length in [0, body.len() - 1] {
            assert_eq!(
                EndpointControl::parse(57, &body[..length]),
                Err(InvalidMessage::Body { kind: 57, length })
            );
        }
        assert_eq!(EndpointControl::parse(31, &[]), Err(InvalidMessage::Kind { kind: 31 }));
        assert_eq!(EndpointControl::parse(63, &[]), Err(InvalidMessage::Kind { kind: 63 }));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            kind in KINDS,
            bytes in prop::collection::vec(any::<u8>(), 64),
        ) {
            for length in 0..bytes.len() {
                let mut message = kind.to_le_bytes().to_vec();
                message.extend_from_slice(&bytes[..length]);
                fuzz_parse(&message);
            }
        }
    }
}
