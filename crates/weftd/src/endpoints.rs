//! The node's endpoints: control messages of kinds 32 to 63 go through here into the broker.
//!
//! The rules are those of [`broker::State`]; this file gives it the programs as the daemon counts
//! them and packs what comes out. A program's end is told to the peers of its endpoints at once.

use std::time::{Duration, Instant};

use weft_channel::{Credentials, Packet};
use weft_fabric::NodeId;
use weft_options::{Options, share};
use weft_transport_shm::broker::{self, Limits, State};
use weft_wire::control::{InvalidMessage, join, split};
use weft_wire::endpoint_control::{EndpointControl, flags};

use crate::node::{Outgoing, ProcessId};

/// How long endpoints of before a restart have to announce themselves.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(1);
/// How long after the start new endpoints wait, so that they do not take the VPIDs of those that
/// come back.
const HOLD_FOR: Duration = Duration::from_millis(250);
/// Packets held at most, and how many percent of what others leave one user may have.
const HELD_MAX: usize = 1024;
const HELD_SHARE: u8 = 50;

/// The endpoints of the node.
pub struct Endpoints {
    state: State,
    /// When those that were announced by their peers alone are given up; once.
    settles_at: Option<Instant>,
    /// Until when new endpoints wait, and their packets.
    holds_until: Option<Instant>,
    held: Vec<(ProcessId, Credentials, Packet)>,
}

impl Endpoints {
    /// No endpoints yet.
    pub fn new(options: &Options, now: Instant) -> Self {
        let limits = Limits {
            endpoints_max: u16::try_from(options.daemon_endpoints_max()).unwrap_or(u16::MAX),
            user_share: options.daemon_user_share(),
            user_unbounded: rustix::process::geteuid().as_raw(),
            ..Limits::default()
        };
        let [first, ..] = std::process::id().to_le_bytes();
        let state = State::new(NodeId::LOCAL, limits).starting_at(u16::from(first));
        let settles_at = Some(now + ANNOUNCE_WITHIN);
        Self { state, settles_at, holds_until: Some(now + HOLD_FOR), held: Vec::new() }
    }

    /// Descriptors that are kept for a user, and for all.
    pub fn descriptors(&self, user: u32) -> (usize, usize) {
        self.state.descriptors(user)
    }

    /// Handles a packet of `process`.
    ///
    /// # Errors
    /// [`InvalidMessage`] for what no program of ours sends.
    pub fn handle(
        &mut self,
        process: ProcessId,
        credentials: Credentials,
        packet: Packet,
        out: &mut Vec<Outgoing>,
    ) -> Result<(), InvalidMessage> {
        let (kind, body) = split(&packet.bytes)?;
        if self.holds_until.is_some()
            && self.may_hold(credentials.uid)
            && let Ok(EndpointControl::Open(open)) = EndpointControl::parse(kind, body)
            && open.flags & flags::AGAIN == 0
        {
            self.held.push((process, credentials, packet));
            return Ok(());
        }
        let credentials = broker::Credentials { pid: credentials.pid, uid: credentials.uid };
        let mut told = Vec::new();
        let id = broker::ProcessId(process.0);
        self.state.handle(id, credentials, kind, body, packet.descriptors, &mut told)?;
        out.extend(told.into_iter().map(pack));
        Ok(())
    }

    /// Whether one more packet of `user` may wait.
    fn may_hold(&self, user: u32) -> bool {
        let own = self.held.iter().filter(|(_, credentials, _)| credentials.uid == user).count();
        own < share::allowance(HELD_MAX, self.held.len() - own, HELD_SHARE)
    }

    /// A program is gone.
    pub fn gone(&mut self, process: ProcessId, out: &mut Vec<Outgoing>) {
        self.held.retain(|(other, ..)| *other != process);
        let mut told = Vec::new();
        self.state.process_gone(broker::ProcessId(process.0), &mut told);
        out.extend(told.into_iter().map(pack));
    }

    /// When [`Endpoints::handle_timeout`] is due; changes after it was called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.holds_until.or(self.settles_at)
    }

    /// Gives up endpoints that did not announce themselves after a restart.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Outgoing>) {
        if self.holds_until.is_some_and(|at| at <= now) {
            self.holds_until = None;
            for (process, credentials, packet) in std::mem::take(&mut self.held) {
                // It parsed when it came.
                let _ = self.handle(process, credentials, packet, out);
            }
        }
        if self.settles_at.is_some_and(|at| at <= now) {
            self.settles_at = None;
            let mut told = Vec::new();
            self.state.settle(&mut told);
            out.extend(told.into_iter().map(pack));
        }
    }

    /// The VPIDs that a program has open, and how many peers each has.
    pub fn of(&self, process: ProcessId) -> impl Iterator<Item = (u16, usize)> {
        self.state.endpoints_of(broker::ProcessId(process.0))
    }
}

fn pack(told: broker::Outgoing) -> Outgoing {
    Outgoing {
        to: ProcessId(told.to.0),
        bytes: join(told.message.kind(), &told.message.emit()),
        descriptors: told.files,
        bell: told.bell,
    }
}
