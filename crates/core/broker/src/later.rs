//! Ports that are opened when they are wanted.
//!
//! An endpoint with memory may open a port later. The first endpoint that asks to meet it has the
//! broker tell it so. Others that ask meanwhile wait, too.
//!
//! # Invariants
//! - Each wait ends: when the port is there, when the endpoint ends or opens no port, or after
//!   [`PORT_WITHIN`].
//! - A port belongs to one client, and ends with it. The endpoint goes on without.

use std::os::fd::OwnedFd;
use std::time::Duration;

use weft_fabric::{EndpointAddress, Group, NodeId, PartitionId};
use weft_wire::endpoint_control::{Attach, PortWanted, status};

use crate::answers::PortKnown;
use crate::nodes::{Refusal, Waiting};
use crate::ports::{OpenPort, address, port_counts};
use crate::state::{Answer, Asker, Outgoing, State};
use crate::{NodeMessage, ProcessId};

/// How long an endpoint may take to open its port, and to load the library that has it.
pub(crate) const PORT_WITHIN: Duration = Duration::from_secs(4);
/// Endpoints that may wait for one port at a time.
const CALLERS_MAX: usize = 256;

/// How peers reach an endpoint without its memory.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "most endpoints between nodes have a port")]
pub(crate) enum PortState {
    /// In no way.
    Never,
    /// By a port, of which the client has not told yet.
    Untold,
    /// By a port that is opened when it is wanted. These wait for it.
    Later(Vec<Caller>),
    /// By this port. The client asks about ports, and hears of them.
    Open(OpenPort, ProcessId),
}

/// An endpoint that waits for the port of another one.
#[derive(Debug)]
pub(crate) struct Caller {
    who: Who,
    until: Duration,
}

/// Where a caller is.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "they are few, and do not wait for long")]
pub(crate) enum Who {
    Here(Waiting),
    /// On another node, which asked with this number for the endpoint `from`.
    Elsewhere {
        node: NodeId,
        number: u64,
        from: u16,
        port: OpenPort,
        secret: [u8; 16],
    },
}

impl Who {
    fn address(&self, own: NodeId) -> EndpointAddress {
        match self {
            Self::Here(waiting) => address(own.0, waiting.vpid),
            Self::Elsewhere { node, from, .. } => address(node.0, *from),
        }
    }
}

impl PortState {
    /// The port, if it is open.
    pub fn open(&self) -> Option<OpenPort> {
        match self {
            Self::Open(port, _) => Some(*port),
            Self::Never | Self::Untold | Self::Later(_) => None,
        }
    }

    /// Whether peers can meet the endpoint, now or a little later.
    pub fn leads_here(&self) -> bool {
        matches!(self, Self::Open(..) | Self::Later(_))
    }
}

impl State {
    /// Another connection of an endpoint's user says its port.
    pub(crate) fn attach(
        &mut self,
        asker: Asker,
        ask: Attach,
        files: Vec<OwnedFd>,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Answer {
        let Attach { vpid, birth, depth, name, .. } = ask;
        let told = self.address(vpid);
        let Some(entry) = self.entry_mut(vpid) else {
            return Answer::refused(status::NOT_FOUND);
        };
        let (Some(_), Some(counts)) = (name.bytes(), port_counts(files)) else {
            return Answer::refused(status::INVALID);
        };
        let is_it = entry.uid == asker.uid && entry.birth == birth;
        let callers = match &mut entry.port {
            PortState::Later(callers) if is_it => std::mem::take(callers),
            _ => return Answer::refused(status::IN_USE),
        };
        entry.port = PortState::Open(OpenPort { depth, name }, asker.process);
        entry.port_counts = counts;
        for caller in callers {
            self.call(vpid, caller.who, now, out);
        }
        Answer::done(PortKnown { address: told, silence_ms: self.silence_ms }.words())
    }

    /// Has a caller ask again, now that the port is there or will not be.
    fn call(&mut self, vpid: u16, who: Who, now: Duration, out: &mut Vec<Outgoing>) {
        match who {
            Who::Here(waiting) => self.meet_here(waiting, now, out),
            Who::Elsewhere { node, number, from, port, secret } => {
                if let Some(outcome) = self.asked_by_node((node, from), port, vpid, secret, out) {
                    self.tell_met_node(node, number, outcome);
                }
            }
        }
    }

    /// Has a caller wait if the endpoint `vpid` of its partition opens its port later. False if it
    /// does not have to wait.
    ///
    /// # Errors
    /// [`Refusal::NoPort`] if too many wait.
    pub(crate) fn wait_for_port(
        &mut self,
        vpid: u16,
        who: Who,
        partition: Option<PartitionId>,
        now: Duration,
        out: &mut Vec<Outgoing>,
    ) -> Result<bool, Refusal> {
        let own = self.node;
        let Some(entry) =
            self.entry_mut(vpid).filter(|entry| partition.is_some() && entry.inside() == partition)
        else {
            return Ok(false);
        };
        let wanted = PortWanted { vpid };
        let PortState::Later(callers) = &mut entry.port else { return Ok(false) };
        let is_first = callers.is_empty();
        // One that asks again, behind a break, waits once.
        callers.retain(|caller| caller.who.address(own) != who.address(own));
        if callers.len() >= CALLERS_MAX {
            return Err(Refusal::NoPort);
        }
        callers.push(Caller { who, until: now + PORT_WITHIN });
        if is_first {
            out.push(entry.news(wanted));
        }
        Ok(true)
    }

    /// Tells an endpoint that asks for the members of a group, some of which only a port reaches.
    pub(crate) fn want_port_for_members(&self, vpid: u16, group: u8, out: &mut Vec<Outgoing>) {
        let Some(entry) = self.entry(vpid) else { return };
        let (PortState::Later(_), Some(partition)) = (&entry.port, entry.inside()) else { return };
        let far = self.members_by_port(partition, group, vpid);
        if far.iter().any(|(_, vpids)| vpids.count() > 0) {
            out.push(entry.news(PortWanted { vpid }));
        }
    }

    /// An endpoint opens no port.
    pub(crate) fn no_port(&mut self, asker: Asker, vpid: u16, out: &mut Vec<Outgoing>) {
        let Some(entry) = self.own(asker, vpid) else { return };
        let PortState::Later(callers) = &mut entry.port else { return };
        let callers = std::mem::take(callers);
        entry.port = PortState::Never;
        for Caller { who, .. } in callers {
            self.refuse_caller(who, Refusal::NoPort, out);
        }
        self.announce_end(vpid);
        self.groups_of_ports_changed(vpid, out);
    }

    /// The client of a port is gone: the endpoint goes on with its memory.
    pub(crate) fn unplug(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        for vpid in self.vpids() {
            let Some(entry) = self.entry_mut(vpid) else { continue };
            let is_its = matches!(entry.port, PortState::Open(_, client) if client == process);
            if !is_its || entry.process == process {
                continue;
            }
            entry.port = PortState::Later(Vec::new());
            let met = std::mem::take(&mut entry.met);
            for (with, meeting) in &met {
                if with.node != self.node {
                    let secret = meeting.secret;
                    let message = NodeMessage::Part { from: vpid, to: with.vpid.0, secret };
                    self.tell_node(with.node, message);
                }
            }
            self.end_meetings_of(vpid, met.into_keys(), out);
            self.groups_of_ports_changed(vpid, out);
        }
    }

    /// Senders that reach an endpoint by its port look up the members of its groups again.
    fn groups_of_ports_changed(&mut self, vpid: u16, out: &mut Vec<Outgoing>) {
        let Some(entry) = self.entry(vpid) else { return };
        let groups = entry.groups | 1 << Group::BROADCAST.number();
        if let Some(partition) = entry.inside() {
            self.tell_groups(partition, vpid, groups, out);
        }
    }

    /// An endpoint has ended, for whose port these waited.
    pub(crate) fn nobody_opens(&mut self, port: PortState, out: &mut Vec<Outgoing>) {
        if let PortState::Later(callers) = port {
            for Caller { who, .. } in callers {
                self.refuse_caller(who, Refusal::NotFound, out);
            }
        }
    }

    /// The questions of a node that is away are void.
    pub(crate) fn forget_callers(&mut self, from: NodeId) {
        for entry in self.entries.iter_mut().flatten() {
            if let PortState::Later(callers) = &mut entry.port {
                callers.retain(
                    |caller| !matches!(caller.who, Who::Elsewhere { node, .. } if node == from),
                );
            }
        }
    }

    fn refuse_caller(&mut self, who: Who, why: Refusal, out: &mut Vec<Outgoing>) {
        match who {
            Who::Here(waiting) => self.refuse_waiting(waiting, why.answer(), out),
            Who::Elsewhere { node, number, .. } => self.tell_met_node(node, number, Err(why)),
        }
    }

    /// Ends the waits that have lasted too long at `now`, by the clock of [`State::handle`].
    pub fn handle_timeout(&mut self, now: Duration, out: &mut Vec<Outgoing>) {
        self.end_held(now, out);
        let mut late = Vec::new();
        for entry in self.entries.iter_mut().flatten() {
            if let PortState::Later(callers) = &mut entry.port {
                late.extend(callers.extract_if(.., |caller| caller.until <= now));
            }
        }
        for Caller { who, .. } in late {
            self.refuse_caller(who, Refusal::NoPort, out);
        }
    }

    /// When [`State::handle_timeout`] has something to do, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let callers = self.entries.iter().flatten().filter_map(|entry| match &entry.port {
            PortState::Later(callers) => callers.first(),
            _ => None,
        });
        let of_callers = callers.map(|caller| caller.until).min();
        of_callers.into_iter().chain(self.next_end_of_held()).min()
    }
}
