//! Multicast groups: joining, leaving, and their members as the broker knows them.
//!
//! The members of a group are looked up when a message is sent to it: the broker names them, and
//! the endpoint connects to those that are no peers yet, one after the other. No step waits. The
//! message is refused meanwhile, and the endpoint tells when it is worth another try.
//!
//! # Invariants
//! - A look-up that began ends: its requests do.
//! - The broker sends word of a change once for each time that it was asked. A change makes the
//!   members old, and the next message has them looked up again, but not more than [`ASKS_MAX`]
//!   times: members that come and go all the time keep no message from going to the others.

use weft_broker::conversation::Conversation;
use weft_fabric::{
    ConnectError, EndpointAddress, Event, Group, GroupError, Issued, OperationError, SendError,
    Vpid,
};
use weft_wire::endpoint_control::AskMembers;

use crate::address_vector::PeerState;
use crate::attention;
use crate::endpoint::ShmEndpoint;
use crate::introductions::Asking;
use crate::requests::{Asked, Question};

/// Look-ups of a group for one message.
const ASKS_MAX: u8 = 4;
/// Looks at the broker's messages in one call. With a broker in this process they are enough for a
/// small group.
const LOOKS: usize = 16;

/// The groups, as an endpoint knows them.
#[derive(Debug)]
pub(crate) struct Groups {
    /// The groups to which a message was refused since the last event about them, one bit each.
    waiting: u64,
    states: Vec<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    members: Members,
    /// They have changed since they were looked up.
    is_old: bool,
    /// How often they were looked up since the last message.
    asks: u8,
}

#[derive(Debug, Default)]
enum Members {
    #[default]
    Unknown,
    /// The broker was asked for them.
    Asked {
        ticket: u32,
    },
    /// The members before the one at `at` are peers, and a connect to that one is under way.
    Joining {
        vpids: Vec<u16>,
        at: usize,
        ticket: u32,
    },
    Known(Vec<u16>),
    /// The next message is refused with this error.
    Failed(SendError),
}

impl Members {
    /// The ticket of the request that they wait for.
    const fn awaited(&self) -> Option<u32> {
        match self {
            Self::Asked { ticket } | Self::Joining { ticket, .. } => Some(*ticket),
            Self::Unknown | Self::Known(_) | Self::Failed(_) => None,
        }
    }
}

impl Groups {
    pub fn new() -> Self {
        let states = (0..Group::COUNT).map(|_| GroupState::default()).collect();
        Self { waiting: 0, states }
    }

    /// Whether a message was refused, and its sender has not been told of room.
    #[inline]
    pub fn wait(&self) -> bool {
        self.waiting != 0
    }

    /// The group with such members.
    fn find(&self, is: impl Fn(&Members) -> bool) -> Option<Group> {
        let place = self.states.iter().position(|state| is(&state.members))?;
        Group::new(u8::try_from(place).ok()?)
    }
}

impl ShmEndpoint {
    pub(crate) fn change_group(
        &mut self,
        group: Group,
        join: bool,
        context: u64,
    ) -> Result<Issued, GroupError> {
        let ask = |broker: &mut Conversation<Question>, question, now| {
            broker.change_group(group, join, question, now)
        };
        self.start(Asked::Group, Some(context), ask)?.issued(|error| match error {
            OperationError::Group(error) => Some(error),
            _ => None,
        })
    }

    /// The other members of a group that are peers. Begins to look them up if they are not known.
    ///
    /// # Errors
    /// [`SendError::WouldBlock`] while they are looked up; the endpoint tells then that there is
    /// room. [`SendError::Exhausted`] and [`SendError::Broker`] when they could not be looked up.
    pub(crate) fn group_members(&mut self, group: Group) -> Result<Vec<u16>, SendError> {
        if self.doorbell.words().is_rung() {
            self.answer_wakeup();
        }
        let mut looks = 0;
        loop {
            let state = state_of(&mut self.groups, group);
            let awaited = match &state.members {
                Members::Known(known) if !state.is_old || state.asks >= ASKS_MAX => {
                    return Ok(known.clone());
                }
                Members::Failed(error) => {
                    let error = error.clone();
                    state.members = Members::Unknown;
                    return Err(error);
                }
                Members::Unknown | Members::Known(_) => self.look_up(group),
                Members::Asked { ticket } | Members::Joining { ticket, .. } => Some(*ticket),
            };
            self.handle_broker_messages();
            looks += 1;
            let awaits = state_of(&mut self.groups, group).members.awaited();
            if awaits.is_some() && (awaits == awaited || looks == LOOKS) {
                self.want_group_room(group);
                return Err(SendError::WouldBlock);
            }
        }
    }

    /// A message went to the members of a group.
    pub(crate) fn group_was_sent_to(&mut self, group: Group) {
        state_of(&mut self.groups, group).asks = 0;
    }

    /// Remembers that a message to a group was refused, so that an event tells when to try again.
    #[cold]
    pub(crate) fn want_group_room(&mut self, group: Group) {
        self.groups.waiting |= 1 << group.number();
    }

    /// Asks the broker for the members of a group. Returns the ticket of the request.
    fn look_up(&mut self, group: Group) -> Option<u32> {
        let (ticket, vpid) = (self.broker.next_ticket(), self.address.vpid.0);
        let ask = AskMembers { ticket, vpid, group: group.number() };
        let asked = Asked::Members { group };
        let sent = self.send_request(ticket, ask, &[], asked, None);
        let state = state_of(&mut self.groups, group);
        state.is_old = false;
        state.asks = state.asks.saturating_add(1);
        state.members = match sent {
            Ok(()) => Members::Asked { ticket },
            Err(error) => Members::Failed(SendError::Broker { reason: error.to_string() }),
        };
        state.members.awaited()
    }

    /// The broker named the other members of a group.
    pub(crate) fn members_named(&mut self, ticket: u32, members: &[EndpointAddress]) {
        let Some(group) = self.groups.find(|of| of.awaited() == Some(ticket)) else { return };
        let found = members.iter().map(|member| member.vpid.0).collect();
        self.join_peers(group, found, 0);
    }

    /// The broker did not name the members of a group.
    pub(crate) fn members_not_named(&mut self, group: Group, reason: String) {
        state_of(&mut self.groups, group).members = Members::Failed(SendError::Broker { reason });
    }

    /// The group that waits for the end of the connect with this ticket.
    fn group_joining(&self, ticket: u32) -> Option<Group> {
        self.groups.find(|of| matches!(of, Members::Joining { ticket: of, .. } if *of == ticket))
    }

    /// The broker did not answer a connect, perhaps one to a member of a group.
    pub(crate) fn member_unanswered(&mut self, ticket: u32, reason: &str) {
        if let Some(group) = self.group_joining(ticket) {
            self.members_not_named(group, reason.to_owned());
        }
    }

    /// The broker answered a connect, perhaps one to a member of a group.
    pub(crate) fn member_answered(&mut self, ticket: u32, is_peer: bool) {
        let Some(group) = self.group_joining(ticket) else { return };
        let state = state_of(&mut self.groups, group);
        let Members::Joining { mut vpids, at, .. } = std::mem::take(&mut state.members) else {
            return;
        };
        if is_peer {
            return self.join_peers(group, vpids, at + 1);
        }
        // The broker counts the pairs that this endpoint knows of by now.
        if let Err(ConnectError::Exhausted { maximum }) = self.check_peers() {
            state_of(&mut self.groups, group).members =
                Members::Failed(SendError::Exhausted { maximum });
            return;
        }
        // A member that has gone is left out, and one that may have no more peers now. The broker
        // sends word when either changes.
        vpids.remove(at);
        self.join_peers(group, vpids, at);
    }

    /// Connects to the members of a group from the one at `at` on, one after the other: each makes
    /// memory, and more at once would hold up a poll.
    fn join_peers(&mut self, group: Group, mut vpids: Vec<u16>, mut at: usize) {
        let members = loop {
            let Some(vpid) = vpids.get(at).copied() else { break Members::Known(vpids) };
            if self.peers.by_vpid(vpid).is_some() {
                at += 1;
                continue;
            }
            match self.ask_to_connect(EndpointAddress::new(self.address.node, Vpid(vpid)), None) {
                Ok(Asking::There(_)) => at += 1,
                Ok(Asking::Sent(ticket)) => break Members::Joining { vpids, at, ticket },
                Err(ConnectError::Exhausted { maximum }) => {
                    break Members::Failed(SendError::Exhausted { maximum });
                }
                Err(ConnectError::NotFound(_)) => drop(vpids.remove(at)),
                Err(error) => {
                    break Members::Failed(SendError::Broker { reason: error.to_string() });
                }
            }
        };
        state_of(&mut self.groups, group).members = members;
    }

    /// The members of these groups, one bit each, have changed.
    pub(crate) fn groups_changed(&mut self, groups: u64) {
        for (number, state) in self.groups.states.iter_mut().enumerate() {
            state.is_old |= groups & 1 << number != 0;
        }
    }

    /// A peer is gone, which may still be a member of its groups.
    pub(crate) fn member_gone(&mut self, vpid: u16) {
        for state in &mut self.groups.states {
            state.is_old |= match &state.members {
                Members::Known(vpids) | Members::Joining { vpids, .. } => vpids.contains(&vpid),
                Members::Unknown | Members::Asked { .. } | Members::Failed(_) => false,
            };
        }
    }

    /// The groups to which a message was refused and is worth another try, one bit each.
    pub(crate) fn groups_with_room(&mut self) -> u64 {
        let mut with_room = 0;
        for (number, state) in (0..).zip(&self.groups.states) {
            let bit = 1_u64 << number;
            if self.groups.waiting & bit == 0 {
                continue;
            }
            let has_room = match &state.members {
                Members::Asked { .. } | Members::Joining { .. } => false,
                Members::Unknown | Members::Failed(_) => true,
                Members::Known(_) if state.is_old && state.asks < ASKS_MAX => true,
                Members::Known(vpids) => vpids
                    .iter()
                    .all(|vpid| self.peers.by_vpid(*vpid).is_none_or(PeerState::takes_more)),
            };
            with_room |= if has_room { bit } else { 0 };
        }
        with_room
    }

    /// Arms the rings whose lack of room keeps messages to groups back, before a sleep.
    pub(crate) fn arm_groups(&mut self) {
        let waiting = self.groups.waiting;
        self.for_each_member(waiting, |peer| {
            if !peer.has_room() {
                attention::arm(peer.pair.own_room());
            }
        });
    }

    /// Hands out which groups have room again.
    #[cold]
    pub(crate) fn poll_groups(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut with_room = self.groups_with_room();
        let mut events = 0;
        while events < budget && with_room != 0 {
            let number = with_room.trailing_zeros();
            with_room &= with_room - 1;
            self.groups.waiting &= !(1 << number);
            self.for_each_member(1 << number, |peer| attention::watch(peer.pair.own_room()));
            let Some(group) = u8::try_from(number).ok().and_then(Group::new) else { continue };
            events += 1;
            sink(Event::GroupRoom { group });
        }
        events
    }

    /// Does something with each member of these groups, one bit each.
    fn for_each_member(&mut self, groups: u64, mut act: impl FnMut(&mut PeerState)) {
        for (number, state) in (0..).zip(&self.groups.states) {
            let Members::Known(vpids) = &state.members else { continue };
            for vpid in vpids.iter().filter(|_| groups & 1_u64 << number != 0) {
                if let Some(peer) = self.peers.by_vpid(*vpid) {
                    act(peer);
                }
            }
        }
    }
}

fn state_of(groups: &mut Groups, group: Group) -> &mut GroupState {
    &mut groups.states[usize::from(group.number())]
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
