//! Questions that have not ended.
//!
//! Invariant: a question with a higher ticket ends no earlier than one with a lower ticket, until
//! tickets begin anew.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use weft_fabric::{EndpointAddress, Group, NodeId, Vpid};
use weft_wire::endpoint_control::{EndpointControl, VPID_WORDS};

use super::Answer;
use crate::calls;

/// The form of the answer to a question.
#[derive(Debug)]
pub(super) enum Form {
    /// A reply.
    Reply,
    /// That to joining or leaving a group.
    Group(Group, bool),
    /// That to an invitation.
    Invited,
    /// A meeting.
    Meeting,
    /// Members, some of which are here.
    Members(Vec<EndpointAddress>),
    /// None: it was not asked.
    PutOff,
}

impl Form {
    pub fn of(request: &EndpointControl) -> Self {
        let group = |number, join| Group::new(number).map(|group| Self::Group(group, join));
        match request {
            EndpointControl::Join(ask) => group(ask.group, true).unwrap_or(Self::Reply),
            EndpointControl::Leave(ask) => group(ask.group, false).unwrap_or(Self::Reply),
            EndpointControl::Invite(_) => Self::Invited,
            EndpointControl::Meet(_) => Self::Meeting,
            EndpointControl::AskMembers(_) | EndpointControl::AskAllMembers(_) => {
                Self::Members(Vec::new())
            }
            _ => Self::Reply,
        }
    }
}

#[derive(Debug)]
struct Open<Q> {
    question: Q,
    form: Form,
    until: Duration,
}

/// The questions, by ticket.
#[derive(Debug)]
pub(super) struct Questions<Q>(BTreeMap<u32, Open<Q>>);

impl<Q> Questions<Q> {
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn all(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.0.values().map(|open| &open.question)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Q> {
        self.0.values_mut().map(|open| &mut open.question)
    }

    pub fn add(&mut self, ticket: u32, question: Q, form: Form, until: Duration) {
        self.0.insert(ticket, Open { question, form, until });
    }

    pub fn next_late(&self) -> Option<Duration> {
        Some(self.0.first_key_value()?.1.until)
    }

    /// Takes a question that has waited too long at `now`.
    pub fn take_late(&mut self, now: Duration) -> Option<(u32, Q)> {
        let first = self.0.first_entry().filter(|first| first.get().until <= now)?;
        let (ticket, open) = first.remove_entry();
        Some((ticket, open.question))
    }

    /// Takes the oldest question that was asked.
    pub fn take_asked(&mut self) -> Option<(u32, Q)> {
        let mut asked = self.0.extract_if(.., |_, open| !matches!(open.form, Form::PutOff));
        asked.next().map(|(ticket, open)| (ticket, open.question))
    }

    /// Takes the questions that were put off and that `is_time` chooses.
    pub fn take_put_off(&mut self, mut is_time: impl FnMut(&Q) -> bool) -> Vec<(u32, Q, Duration)> {
        let chosen = |_: &u32, open: &mut Open<Q>| {
            matches!(open.form, Form::PutOff) && is_time(&open.question)
        };
        let taken = self.0.extract_if(.., chosen);
        taken.map(|(ticket, open)| (ticket, open.question, open.until)).collect()
    }

    /// Whether the question with this ticket asks for a meeting.
    pub fn awaits_meeting(&self, ticket: u32) -> bool {
        self.0.get(&ticket).is_some_and(|open| matches!(open.form, Form::Meeting))
    }

    /// Takes the question with this ticket and its answer. `None` if nobody asked, the message is
    /// no answer to it, or more is to come.
    pub fn answer(
        &mut self,
        ticket: u32,
        message: EndpointControl,
        files: Vec<OwnedFd>,
        own: EndpointAddress,
    ) -> Option<(Q, Answer)> {
        let open = self.0.get_mut(&ticket)?;
        let answer = match (message, &mut open.form) {
            (_, Form::PutOff) => return None,
            (EndpointControl::Reply(reply), Form::Group(group, join)) => {
                Answer::Group(calls::group_changed(&reply), *group, *join)
            }
            (EndpointControl::Reply(reply), Form::Invited) => {
                Answer::Invited(calls::invited(reply))
            }
            (EndpointControl::Reply(reply), _) => Answer::Reply(reply, files),
            (EndpointControl::Met(met), Form::Meeting) => Answer::Met(Box::new(met)),
            (EndpointControl::Members(named), Form::Members(members)) => {
                gather(members, own.node, &named.vpids, own);
                Answer::Members(std::mem::take(members))
            }
            (EndpointControl::MembersOf(part), Form::Members(members)) => {
                gather(members, NodeId(part.node), &part.vpids, own);
                if part.further > 0 {
                    return None;
                }
                Answer::Members(std::mem::take(members))
            }
            _ => return None,
        };
        self.0.remove(&ticket).map(|open| (open.question, answer))
    }

    #[cfg(any(test, feature = "test-doors"))]
    pub fn age(&mut self, time: Duration) {
        for open in self.0.values_mut() {
            open.until = open.until.saturating_sub(time);
        }
    }
}

/// Adds the members of a node but for the endpoint itself. `vpids` has a bit for each.
fn gather(
    members: &mut Vec<EndpointAddress>,
    node: NodeId,
    vpids: &[u64; VPID_WORDS],
    own: EndpointAddress,
) {
    for (word, bits) in (0_u16..).zip(vpids) {
        let of_word = (0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| word * 64 + bit);
        let all = of_word.map(|vpid| EndpointAddress::new(node, Vpid(vpid)));
        members.extend(all.filter(|member| *member != own));
    }
}
