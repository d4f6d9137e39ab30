//! Everything that an endpoint can hear of its broker.

use std::os::fd::OwnedFd;
use std::{fmt, time::Duration};

use weft_fabric::{DownReason, EndpointAddress, Group, GroupError, InviteError, NodeId, Vpid};
use weft_wire::endpoint_control::{EndpointControl, Met, Paired, Reply, gone};

use crate::{ANSWER_WITHIN, BrokerError};

/// Something that an endpoint hears.
#[derive(Debug)]
pub enum Heard<Q> {
    /// The answer to a question.
    Answer {
        /// The ticket of the question.
        ticket: u32,
        /// The question.
        question: Q,
        /// The answer.
        answer: Answer,
    },
    /// A question has no answer, and will have none.
    Unanswered {
        /// The ticket of the question.
        ticket: u32,
        /// The question.
        question: Q,
        /// The reason.
        why: Unanswered,
    },
    /// News that the endpoint did not ask for.
    Told(Told),
    /// The connection leads to a broker that was restarted, which is told of the endpoint now.
    Restarted,
    /// A broker that was restarted knows the endpoint, its groups and its port. The endpoint names
    /// its pairs, says [`super::Conversation::named_all`], and looks its groups up again.
    KnownAgain,
    /// A broker that was restarted has another endpoint at the address, or does not let this one
    /// in. All pairs have ended.
    Replaced,
}

/// The answer to a question.
#[derive(Debug)]
pub enum Answer {
    /// A reply with its descriptors, to a question that has no answer of its own below, or the
    /// refusal of one that has.
    Reply(Reply, Vec<OwnedFd>),
    /// To [`super::Conversation::change_group`]: the group, and whether it was to be joined.
    Group(Result<(), GroupError>, Group, bool),
    /// To [`super::Conversation::invite`].
    Invited(Result<(), InviteError>),
    /// There is a meeting.
    Met(Box<Met>),
    /// The other members of a group.
    Members(Vec<EndpointAddress>),
}

/// The reason why a question has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// The broker's connection ended.
    Gone,
    /// It has waited too long; the broker may still do what it was asked for.
    Late,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WITHIN: Duration = ANSWER_WITHIN;
        match self {
            Self::Gone => f.write_str("the node daemon is gone"),
            Self::Late => write!(f, "no answer within {WITHIN:?}"),
        }
    }
}

impl From<Unanswered> for BrokerError {
    fn from(why: Unanswered) -> Self {
        Self::Unreachable { reason: why.to_string() }
    }
}

/// News that an endpoint did not ask for.
#[derive(Debug)]
pub enum Told {
    /// A peer made a pair and sent its memory.
    Paired(Paired, Vec<OwnedFd>),
    /// A peer asked for a meeting.
    Met(Box<Met>),
    /// A peer is gone.
    Gone {
        /// Its address.
        peer: EndpointAddress,
        /// The reason.
        reason: DownReason,
    },
    /// A meeting with this secret has ended.
    Parted {
        /// The address of the peer.
        peer: EndpointAddress,
        /// The secret.
        secret: [u8; 16],
    },
    /// No way leads to a peer for now, or one leads there again.
    Held {
        /// Its address.
        peer: EndpointAddress,
        /// Whether there is none.
        is_held: bool,
    },
    /// The process of a silent peer is stopped.
    Stands {
        /// The address of the peer.
        peer: EndpointAddress,
    },
    /// The members of these groups have changed, one bit each.
    Groups(u64),
    /// A port is wanted.
    PortWanted,
}

impl Told {
    /// The news in a message for the endpoint with this VPID.
    pub(super) fn of(message: EndpointControl, files: Vec<OwnedFd>, own: u16) -> Option<Self> {
        let at = |node, peer| EndpointAddress::new(NodeId(node), Vpid(peer));
        let (vpid, told) = match message {
            EndpointControl::Paired(paired) => (paired.vpid, Self::Paired(paired, files)),
            EndpointControl::Met(met) => (met.vpid, Self::Met(Box::new(met))),
            EndpointControl::PeerGone(lost) => {
                let reason = match lost.reason {
                    gone::DISCONNECTED => DownReason::Disconnected,
                    gone::UNREACHABLE => DownReason::Unreachable,
                    _ => DownReason::Ended,
                };
                (lost.vpid, Self::Gone { peer: at(lost.node, lost.peer), reason })
            }
            EndpointControl::Parted(parted) => {
                let (peer, secret) = (at(parted.node, parted.peer), parted.secret.0);
                (parted.vpid, Self::Parted { peer, secret })
            }
            EndpointControl::Held(held) => {
                let (peer, is_held) = (at(held.node, held.peer), held.is_held != 0);
                (held.vpid, Self::Held { peer, is_held })
            }
            EndpointControl::Stands(stands) => {
                (stands.vpid, Self::Stands { peer: at(stands.node, stands.peer) })
            }
            EndpointControl::GroupsChanged(changed) => (changed.vpid, Self::Groups(changed.groups)),
            EndpointControl::PortWanted(wanted) => (wanted.vpid, Self::PortWanted),
            _ => return None,
        };
        (vpid == own).then_some(told)
    }
}
