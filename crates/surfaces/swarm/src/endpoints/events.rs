//! The events of a program, and the reports that its peers are down.

use weft_fabric::{Completion, DownReason, Endpoint, Event, Group, Notification, Peer, Side};

use super::Endpoints;
use super::messages::{pair_of, parts};
use crate::ledger::Stream;
use crate::stage::Stage;

/// An event, as the program keeps it until the call is over.
pub(super) enum Seen {
    Message { group: Option<Group>, payload: Vec<u8> },
    Notification(Notification),
    Completion(Completion),
    Down { peer: Peer, reason: DownReason },
    Room(Peer),
    GroupRoom(Group),
}

impl Seen {
    /// Copies what an event has.
    pub fn of(event: Event<'_>) -> Self {
        match event {
            Event::Message(message) => {
                Self::Message { group: message.group, payload: message.payload.to_vec() }
            }
            Event::Notification(notification) => Self::Notification(notification),
            Event::Completion(completion) => Self::Completion(completion),
            Event::PeerDown { peer, reason, .. } => Self::Down { peer, reason },
            Event::Room { peer } => Self::Room(peer),
            Event::GroupRoom { group } => Self::GroupRoom(group),
        }
    }
}

impl<E: Endpoint> Endpoints<E> {
    pub(super) fn see(
        &mut self,
        stage: &mut Stage<'_, E>,
        at: usize,
        seen: Seen,
    ) -> Result<(), String> {
        let own = self.programs[at].life;
        match seen {
            Seen::Message { group: None, payload } => self.message(own, &payload),
            Seen::Message { group: Some(_), payload } => self.group_message(own, &payload),
            Seen::Notification(told) if told.side == Side::Completer && told.class == 9 => {
                let (from, pair, number) = parts(told.immediate);
                self.ledger.arrive(Stream { from, to: own, pair }, number)
            }
            Seen::Notification(told) => self.put_arrived(own, told.immediate),
            Seen::Completion(Completion { context, result }) => {
                let Some((peer, pending)) = self.programs[at].pending.remove(&context) else {
                    return Err(format!("{own:?}: operation {context} ended and was not pending"));
                };
                self.ended(at, peer, pending, result)
            }
            Seen::Down { peer, reason } => self.down(stage, at, peer, reason),
            Seen::Room(peer) => {
                if let Some(link) = self.programs[at].links.get_mut(&peer) {
                    link.waits = false;
                }
                Ok(())
            }
            Seen::GroupRoom(group) => {
                self.programs[at].waits_for_group.remove(&group);
                Ok(())
            }
        }
    }

    fn down(
        &mut self,
        stage: &mut Stage<'_, E>,
        at: usize,
        peer: Peer,
        reason: DownReason,
    ) -> Result<(), String> {
        let program = &mut self.programs[at];
        let own = program.life;
        if let Some((context, _)) = program.pending.iter().find(|(_, (of, _))| *of == peer) {
            return Err(format!(
                "{own:?}: {peer:?} was told as down, and operation {context} on it had not ended"
            ));
        }
        self.disturbed_ns = Some(stage.world.now());
        self.ended_pairs.insert((own, pair_of(peer)));
        // A peer that came by itself, and that this program never called.
        let Some(link) = program.links.get_mut(&peer) else { return Ok(()) };
        if link.is_down {
            return Err(format!("{own:?}: {peer:?} was told as down twice"));
        }
        link.is_down = true;
        link.waits = false;
        let to = link.to;
        self.ledger.end(Stream { from: own, to, pair: pair_of(peer) });
        match reason {
            DownReason::Unreachable => {
                let hosts = [at, usize::from(to.0)].map(|place| self.programs[place].host);
                stage.check_unreachable(hosts[0], hosts[1])
            }
            DownReason::Misbehaved => Err(format!("{own:?}: {to:?} was told as misbehaving")),
            DownReason::Ended if !self.dead.contains(&to) => {
                Err(format!("{own:?}: {to:?} was told as ended, and lives"))
            }
            DownReason::Ended | DownReason::Disconnected => Ok(()),
        }
    }
}
