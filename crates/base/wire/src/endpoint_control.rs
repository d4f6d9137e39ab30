//! The control messages about endpoints: kinds 32 to 79.
//!
//! Every body has a fixed layout: the fields of the struct in order, little-endian, without
//! padding. A body is valid exactly when its length is. The receiver checks the meaning of the
//! values (whether a VPID exists, whether a status is known). No value here is used as an index.
//!
//! | kind | message | descriptors that come with it |
//! |---|---|---|
//! | 32–47 | requests of a program | see each message |
//! | 48–55 | answers of the daemon, with the ticket of the request | see each message |
//! | 56–63 | unsolicited messages of the daemon | see each message |
//! | 64–79 | messages about ports of a network (`ports`) | none |

mod field;
mod ports;

use self::field::{Field, hidden, messages};
pub use self::ports::{
    AskAllMembers, Attach, Doubt, Meet, MembersOf, Met, NoPort, Opened, PORT_NAME_BYTES, Part,
    Parted, Port, PortName, PortWanted, Recall, Secret, Stands,
};
use crate::control::InvalidMessage;
use crate::form::Form;

/// The kinds of messages about endpoints.
pub const KINDS: std::ops::RangeInclusive<u16> = 32..=79;

/// Bits of the `flags` of [`Open`], [`Paired`] and of the answer to [`Connect`].
pub mod flags {
    /// The endpoint's process lacks the asymmetric fence: both ends must use full fences.
    pub const FULL_FENCES: u32 = 1;
    /// [`super::Open::partition`] is set; otherwise the partition is that of the user.
    pub const PARTITION: u32 = 2;
    /// The endpoint exists and announces itself to a restarted daemon.
    pub const AGAIN: u32 = 4;
    /// With `PARTITION`: the partition is offered as the service [`super::Open::name`].
    pub const OFFER: u32 = 8;
    /// The partition is that of the service [`super::Open::name`]. Not with `PARTITION`.
    pub const SERVICE: u32 = 16;
    /// The partition is that of [`super::Open::invitation`]. Not with `PARTITION` or `SERVICE`.
    pub const INVITATION: u32 = 32;
    /// The endpoint has no memory for peers and no descriptors: a port alone leads to it.
    pub const PORT: u32 = 64;
    /// The endpoint has memory for peers, and opens a port when one is wanted
    /// ([`super::PortWanted`]).
    pub const PORT_LATER: u32 = 128;
    /// With `SERVICE`: the service of the node [`super::Open::node`], and no other.
    pub const SERVICE_AT: u32 = 256;
}

/// Stands for no VPID, or for any.
pub const NO_VPID: u16 = 0xffff;
/// Bytes of the name of a service, with the zeros behind it.
pub const NAME_BYTES: usize = 48;

/// Values of [`Reply::status`].
pub mod status {
    /// The request was carried out.
    pub const DONE: u16 = 0;
    /// The VPID is taken.
    pub const IN_USE: u16 = 1;
    /// A table is full; `first` is its maximum.
    pub const EXHAUSTED: u16 = 2;
    /// The partition belongs to another user.
    pub const FORBIDDEN: u16 = 3;
    /// The partition has no such endpoint or key.
    pub const NOT_FOUND: u16 = 4;
    /// The request is not valid: a bug of the library that sent it.
    pub const INVALID: u16 = 5;
    /// The peer made the pair first; [`super::Paired`] was sent before this answer.
    pub const PAIRED: u16 = 6;
    /// The partition would be offered to others, but is the default one of its user.
    pub const DEFAULT_PARTITION: u16 = 7;
    /// Another endpoint offers a service of this name.
    pub const NAME_TAKEN: u16 = 8;
    /// The user may not offer a service of this name.
    pub const OFFER_FORBIDDEN: u16 = 9;
    /// Nobody offers a service of this name.
    pub const NOT_OFFERED: u16 = 10;
    /// The user may not use the service of this name.
    pub const SERVICE_FORBIDDEN: u16 = 11;
    /// The invitation is not good.
    pub const NOT_INVITED: u16 = 12;
    /// The node of the peer is not joined at present.
    pub const AWAY: u16 = 13;
    /// The peer did not open its port, or cannot.
    pub const NO_PORT: u16 = 14;
    /// The peer has no memory for others: it is met at its port.
    pub const PORT_ALONE: u16 = 15;
}

/// Values of [`Publish::memory`].
pub mod memory {
    /// The memory comes as a descriptor.
    pub const FILE: u8 = 0;
    /// It is memory of the process that no file holds, and comes as an address.
    pub const IN_PLACE: u8 = 1;
}

/// The bit of [`Reply::second`] of a [`Resolve`], beside the access bits, that says that the memory
/// is in place.
pub const IN_PLACE: u8 = 0x80;

/// Values of [`PeerGone::reason`].
pub mod gone {
    /// The peer closed its endpoint, or its process ended.
    pub const ENDED: u8 = 0;
    /// The peer ended the pair.
    pub const DISCONNECTED: u8 = 1;
    /// No way led to the node of the peer for the configured time.
    pub const UNREACHABLE: u8 = 2;
}

hidden! {
    /// The 16 bytes of a ticket. `Debug` does not show them.
    Invitation
}

/// The most VPIDs that a node can have.
pub const VPIDS_MAX: u16 = 4096;
/// Words of a set of VPIDs: one bit for each that a node can have.
pub const VPID_WORDS: usize = VPIDS_MAX as usize / 64;
/// Slots for keys that an endpoint has.
pub const KEYS_MAX: u16 = 1024;

impl Field for [u64; VPID_WORDS] {
    const BYTES: usize = 8 * VPID_WORDS;
    const ZERO: Self = [0; VPID_WORDS];
}

impl Form for [u64; VPID_WORDS] {
    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut words = [0; VPID_WORDS];
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

macro_rules! control {
    ($($name:ident,)*) => {
        /// A message of kinds 32 to 79.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant, reason = "messages live for one call")]
        pub enum EndpointControl {
            $(#[allow(missing_docs, reason = "the struct says it")] $name($name),)*
        }

        impl EndpointControl {
            /// Parses the body of a message of `kind`.
            ///
            /// # Errors
            /// [`InvalidMessage::Kind`] for an unknown kind, [`InvalidMessage::Body`] for a body
            /// whose length is not that of the kind.
            pub fn parse(kind: u16, body: &[u8]) -> Result<Self, InvalidMessage> {
                let invalid = InvalidMessage::Body { kind, length: body.len() };
                match kind {
                    $($name::KIND => $name::take(body).map(Self::$name).ok_or(invalid),)*
                    other => Err(InvalidMessage::Kind { kind: other }),
                }
            }

            /// The kind on the wire.
            #[must_use]
            pub const fn kind(&self) -> u16 {
                match self { $(Self::$name(_) => $name::KIND,)* }
            }

            /// Bytes of the body.
            #[must_use]
            pub const fn body_bytes(&self) -> usize {
                match self { $(Self::$name(_) => $name::BYTES,)* }
            }

            /// Encodes the body.
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

control! {
    Open,
    Close,
    Connect,
    Join,
    Leave,
    AskMembers,
    Publish,
    Retract,
    Resolve,
    Remember,
    Disconnect,
    Invite,
    Reply,
    Members,
    Paired,
    PeerGone,
    GroupsChanged,
    Held,
    Port,
    Meet,
    Part,
    AskAllMembers,
    Recall,
    Attach,
    NoPort,
    PortWanted,
    Opened,
    MembersOf,
    Met,
    Parted,
    Doubt,
    Stands,
}

messages! {
    /// Opens an endpoint. Descriptors: its doorbell segment, its register segment, its wakeup.
    /// Answer: `first` is the address (node in bits 16 to 47, VPID in bits 0 to 15), `second` the
    /// partition. Bits 48 to 63 of `first` are the VPID of the endpoint that offered the service or
    /// sent the invitation, or `0xffff`. With status `IN_USE`, `first` is the address that another
    /// endpoint has.
    Open = 32 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// See [`flags`].
        flags: u32,
        /// The partition, if `flags` has `PARTITION`.
        partition: u64,
        /// A random number of the endpoint. It differs from that of a later endpoint with the same
        /// VPID.
        birth: u64,
        /// The requested VPID, or `0xffff` for any.
        vpid: u16,
        /// Peers that the endpoint may have; 0 for as many as there are.
        peers_max: u16,
        /// Slots of the endpoint's rings, a power of two.
        slots: u32,
        /// The name of a service, if `flags` has `OFFER` or `SERVICE`, and zeros behind it.
        name: [u8; NAME_BYTES],
        /// The node of the service, if `flags` has `SERVICE_AT`.
        node: u32,
        /// The ticket, if `flags` has `INVITATION`.
        invitation: Invitation,
    }

    /// Closes an endpoint.
    Close = 33 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint.
        vpid: u16,
    }

    /// Makes a pair. Descriptor: the memory of the pair. Answer: `first` is the flags of the peer,
    /// with the slots of its rings in the high 32 bits, and `second` its birth; descriptors: the
    /// peer's doorbell segment, register segment and wakeup. Status `PAIRED` when the peer made the
    /// pair first: its [`Paired`] was sent before the answer. Status `EXHAUSTED` when one of the
    /// two has its maximum of peers, which is `first`.
    Connect = 34 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
    }

    /// Joins a multicast group. Status `NOT_FOUND` when the program has no such endpoint.
    Join = 35 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint.
        vpid: u16,
        /// The group, 0 to 62.
        group: u8,
    }

    /// Leaves a multicast group. Status `NOT_FOUND` when the program has no such endpoint.
    Leave = 36 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint.
        vpid: u16,
        /// The group, 0 to 62.
        group: u8,
    }

    /// Asks for the members of a group. Answer: [`Members`].
    AskMembers = 37 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// The group, 0 to 63.
        group: u8,
    }

    /// Publishes a key, or replaces the memory of a published key. Descriptor: the memory, opened
    /// with the access that the key grants; none for memory in place.
    Publish = 38 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the owner.
        vpid: u16,
        /// The slot of the key.
        slot: u16,
        /// The generation of the key.
        generation: u32,
        /// The access bits of the key.
        access: u8,
        /// See [`memory`].
        memory: u8,
        /// Where the range of the key starts in the memory, in bytes; for memory in place its
        /// address in the owner's process.
        start: u64,
        /// Bytes of the range.
        length: u64,
        /// The VPID of the only peer that may resolve the key, or `0xffff` for all.
        audience: u16,
        /// The birth of that peer.
        audience_birth: u64,
    }

    /// Withdraws a key. Answer: `first` is how often the key was resolved.
    Retract = 39 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the owner.
        vpid: u16,
        /// The slot of the key.
        slot: u16,
        /// The generation of the key.
        generation: u32,
    }

    /// Asks for the memory of a key. Answer: `first` is the length of its range in bytes; `second`
    /// has its access bits in the low 7 bits, and above the 8th the start of the range; descriptor:
    /// the memory. With the bit [`IN_PLACE`] there is no descriptor, and the start is an address in
    /// the owner's process, or 0 for other users than the owner's.
    Resolve = 40 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// The VPID of the owner.
        owner: u16,
        /// The slot of the key.
        slot: u16,
        /// The generation of the key.
        generation: u32,
    }

    /// Announces an existing pair, after an [`Open`] with [`flags::AGAIN`]. There is no answer,
    /// except [`PeerGone`] if the peer does not come back.
    Remember = 41 {
        /// The VPID of the endpoint.
        vpid: u16,
        /// The VPID of the peer.
        peer: u16,
        /// The birth of the peer.
        birth: u64,
    }

    /// Ends a pair. The peer gets [`PeerGone`]. Status `NOT_FOUND` when the two are no pair.
    Disconnect = 42 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint that asks.
        vpid: u16,
        /// The VPID of the peer.
        peer: u16,
    }

    /// Makes an invitation into the endpoint's partition. Status `FORBIDDEN` when the partition is
    /// of another user, `DEFAULT_PARTITION`, or `EXHAUSTED`.
    Invite = 43 {
        /// Identifies the request in its answer.
        ticket: u32,
        /// The VPID of the endpoint that invites.
        vpid: u16,
        /// How long the invitation is good, milliseconds.
        within_ms: u32,
        /// 16 random bytes.
        invitation: Invitation,
    }

    /// The answer to a request.
    Reply = 48 {
        /// The ticket of the request.
        ticket: u32,
        /// See [`status`].
        status: u16,
        /// Defined by the request.
        first: u64,
        /// Defined by the request.
        second: u64,
    }

    /// The answer to [`AskMembers`].
    Members = 49 {
        /// The ticket of the request.
        ticket: u32,
        /// One bit for each VPID in the group.
        vpids: [u64; VPID_WORDS],
    }

    /// A peer made a pair with an endpoint of this program. Descriptors: the memory of the pair,
    /// and the peer's doorbell segment, register segment and wakeup.
    Paired = 56 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// Flags of the peer.
        flags: u32,
        /// Birth of the peer.
        birth: u64,
    }

    /// A peer of an endpoint of this program is gone.
    PeerGone = 57 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// Why; see [`gone`].
        reason: u8,
    }

    /// The members of groups changed: earlier [`Members`] answers are out of date.
    GroupsChanged = 58 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// One bit for each group that changed.
        groups: u64,
    }

    /// No way leads to the node of a peer, or one leads there again. The endpoint begins nothing
    /// with a peer that is held, and takes nothing from it.
    Held = 59 {
        /// The VPID of the program's endpoint.
        vpid: u16,
        /// Node of the peer.
        node: u32,
        /// VPID of the peer.
        peer: u16,
        /// 0 if a way leads there.
        is_held: u8,
    }

}

/// Entry for fuzzing: checks that a message that parses is encoded to the same bytes.
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
    fn a_connect_has_twelve_bytes_in_the_order_of_its_fields() {
        let connect = Connect { ticket: 1, vpid: 2, node: 0x0304, peer: 5 };
        let body = EndpointControl::from(connect).emit();
        assert_eq!(body, [1, 0, 0, 0, 2, 0, 4, 3, 0, 0, 5, 0]);
        assert_eq!(EndpointControl::parse(34, &body), Ok(connect.into()));
    }

    #[test]
    fn bodies_of_a_wrong_length_and_unknown_kinds_are_refused() {
        let body = EndpointControl::from(PeerGone::default()).emit();
        for length in [0, body.len() - 1] {
            assert_eq!(
                EndpointControl::parse(57, &body[..length]),
                Err(InvalidMessage::Body { kind: 57, length })
            );
        }
        assert_eq!(EndpointControl::parse(31, &[]), Err(InvalidMessage::Kind { kind: 31 }));
        assert_eq!(EndpointControl::parse(75, &[]), Err(InvalidMessage::Kind { kind: 75 }));
    }

    proptest! {
        #[test]
        fn a_parsed_body_is_encoded_to_the_same_bytes(
            kind in KINDS,
            bytes in prop::collection::vec(any::<u8>(), 600),
        ) {
            for length in 0..bytes.len() {
                let mut message = kind.to_le_bytes().to_vec();
                message.extend_from_slice(&bytes[..length]);
                fuzz_parse(&message);
            }
        }
    }
}
