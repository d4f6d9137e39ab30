//! The endpoint: every call of the fabric, under the lock of the world.
//!
//! Invariants: only [`Endpoint::wait`] and accesses through windows let time pass. Events are
//! passed to the sink without the lock, so that the sink may use other endpoints.

use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Capabilities, ConnectError, Endpoint, EndpointAddress, Event,
    GrantError, Group, GroupError, InviteError, Issued, LocalRange, MessageHeader, Operation,
    OperationError, PartitionId, Peer, Reach, Register, RegisterError, RemoteKey, Request,
    SendError, Ticket, Value, Waited, Way, WindowError,
};

use crate::memory::SimRegion;
use crate::opening::Opened;
use crate::rma::{Call, Reply, Wanted};
use crate::window::SimWindow;
use crate::world::{Id, SimWorld, WorldState};

/// A simulated endpoint. Dropping it closes it.
#[derive(Debug)]
pub struct SimEndpoint {
    world: SimWorld,
    id: Id,
    address: EndpointAddress,
    partition: PartitionId,
    host: Option<EndpointAddress>,
    capabilities: Capabilities,
}

impl SimEndpoint {
    pub(crate) fn new(world: SimWorld, opened: Opened, capabilities: Capabilities) -> Self {
        let Opened { id, address, partition, host } = opened;
        Self { world, id, address, partition, host, capabilities }
    }

    /// True when the program may take the next event. Handles everything due now first.
    fn ready(&self, state: &mut WorldState) -> bool {
        state.run_due();
        let now = state.now;
        state.endpoints[self.id].ready(now)
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.world.lock().end(self.id, 0);
    }
}

impl Endpoint for SimEndpoint {
    type Region = SimRegion;
    type Window = SimWindow;

    fn address(&self) -> EndpointAddress {
        self.address
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn partition(&self) -> PartitionId {
        self.partition
    }

    fn host(&self) -> Option<EndpointAddress> {
        self.host
    }

    fn invite(&mut self, within: Duration, context: u64) -> Result<(Ticket, Issued), InviteError> {
        self.world.lock().start_invite(self.id, within, context)
    }

    fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError> {
        self.world.lock().start_connect(self.id, to, context)
    }

    fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError> {
        self.world.lock().disconnect(self.id, peer)
    }

    fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        let mut state = self.world.lock();
        let target = state.target_of(self.id, peer);
        target.map_err(|error| state.count_refusal(self.id, error))?;
        let none = Way::Refused;
        Ok(Reach { fresh: Way::Direct, descriptor: none, adopted: none, in_place: none })
    }

    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        let state = self.world.lock();
        let target = state.endpoints[self.id].peer(peer)?.target;
        Some(state.endpoints[target].address)
    }

    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        self.world.lock().send_short(self.id, to, header, parts)
    }

    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        self.world.lock().send_multicast(self.id, group, header, parts)
    }

    fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.world.lock().start_group(self.id, group, true, context)
    }

    fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.world.lock().start_group(self.id, group, false, context)
    }

    fn register(&mut self, length: u64) -> Result<SimRegion, RegisterError> {
        self.world.lock().register(self.id, length)
    }

    fn grant(
        &mut self,
        range: LocalRange<'_, SimRegion>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        let mut state = self.world.lock();
        let key = state.granted(self.id, range, audience, access)?;
        state.start_grant(self.id, key, context)
    }

    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        self.world.lock().start_revoke(self.id, key, context)
    }

    fn resolve(
        &mut self,
        of: Peer,
        _key: RemoteKey,
        _context: u64,
    ) -> Result<Issued, OperationError> {
        // A key needs no preparation: its target checks it.
        let mut state = self.world.lock();
        let target = state.target_of(self.id, of);
        target
            .map(|_| Issued::Done(Value::Nothing))
            .map_err(|error| state.count_refusal(self.id, error))
    }

    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, SimRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let mut state = self.world.lock();
        let what = Wanted::new(request).map_err(|error| state.count_refusal(self.id, error))?;
        state.issue(self.id, to, Call { what, operation }, Reply::Event)?;
        Ok(Issued::Pending)
    }

    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError> {
        self.world.lock().put_notification(self.id, to, class, value)
    }

    fn order(&mut self, to: Peer) -> Result<(), OperationError> {
        let mut state = self.world.lock();
        let target = state.target_of(self.id, to);
        let target = target.map_err(|error| state.count_refusal(self.id, error))?;
        state.put_in_order((self.id, target));
        Ok(())
    }

    fn fence_all(&mut self, context: u64) -> Result<Issued, OperationError> {
        self.world.lock().fence_all(self.id, context)
    }

    fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError> {
        let mut state = self.world.lock();
        let cancelled = state.cancel(self.id, to, context);
        cancelled.map_err(|error| state.count_refusal(self.id, error))
    }

    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<SimWindow, WindowError> {
        SimWindow::open(&self.world, self.id, to, key)
    }

    fn register_value(&self, register: Register) -> u64 {
        self.world.lock().endpoints[self.id].registers[register.index()]
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.world.lock().run_due();
        for handed in 0..budget {
            let taken = self.world.lock().take(self.id);
            let Some(queued) = taken else { return handed };
            sink(queued.as_event());
        }
        budget
    }

    fn finish(&mut self, context: u64, timeout: Duration) -> Option<Result<Value, OperationError>> {
        let mut state = self.world.lock();
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let end = state.now.saturating_add(timeout);
        loop {
            if let Some(result) = state.take_ended(self.id, context) {
                return Some(result);
            }
            if !state.awaits(self.id, context) {
                return None;
            }
            if !state.step_until(end) {
                state.now = end;
                state.give_up(self.id, context);
                return None;
            }
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        let mut state = self.world.lock();
        let adaptive_wait =
            timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let end =
            adaptive_wait.map_or(u64::MAX, |adaptive_wait| state.now.saturating_add(adaptive_wait));
        let mut slept = false;
        while !self.ready(&mut state) {
            if !slept {
                slept = true;
                state.endpoints[self.id].count(Register::Sleeps, 1);
            }
            state.wake_later(self.id);
            if !state.step_until(end) {
                // Without a timeout this is a deadlock: no event can come.
                if adaptive_wait.is_some() {
                    state.now = end;
                }
                return Waited::TimedOut;
            }
        }
        Waited::Ready
    }

    fn arm(&mut self) -> Armed {
        let mut state = self.world.lock();
        if self.ready(&mut state) {
            return Armed::Busy;
        }
        let next = state.next_time().map_or(POLL_AGAIN_NS, |time| time - state.now);
        Armed::PollWithin(Duration::from_nanos(next))
    }
}

/// The time after which [`Endpoint::arm`] asks for a poll when nothing is on its way.
const POLL_AGAIN_NS: u64 = 1_000_000;
