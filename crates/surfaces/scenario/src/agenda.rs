//! The things that a run has to do at times: changes of the network, new routes, messages again.

use std::collections::BTreeMap;

use weft_network::Message;
use weft_network::time::Time;

use crate::scenario::Change;

/// Something to do at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Change(Change),
    Reroute,
    Resend(Message),
    /// The traffic of links is noted: what was before does not count, or what comes after.
    Note,
    /// The links are recorded.
    Frame,
}

/// Actions by time, and those of one time in the order in which they were put in.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    actions: BTreeMap<(Time, u64), Action>,
    sequence: u64,
}

impl Agenda {
    pub fn put(&mut self, time: Time, action: Action) {
        self.sequence += 1;
        self.actions.insert((time, self.sequence), action);
    }

    pub fn next_time(&self) -> Option<Time> {
        self.actions.first_key_value().map(|((time, _), _)| *time)
    }

    /// Takes the next action out if it is due.
    pub fn take(&mut self, now: Time) -> Option<Action> {
        self.next_time().filter(|time| *time <= now)?;
        self.actions.pop_first().map(|(_, action)| action)
    }
}
