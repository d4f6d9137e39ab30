//! The endpoint: the calls of the fabric over the state machine, behind its lock.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Capabilities, ConnectError, Endpoint, EndpointAddress, Event,
    GrantError, Group, GroupError, HostMemory, InviteError, Issued, LocalRange, MessageHeader,
    Operation, OperationError, PartitionId, Peer, Reach, Register, RegisterError, RemoteKey,
    Request, SendError, Ticket, Value, Waited, Watchable, Way, WindowError,
};
use weft_memory::Memory;
use weft_sync::{AdaptiveWait, Step};

use crate::engine::{Reply, Wanted};
use crate::nic::Nic;
use crate::region::OfiRegion;
use crate::shared::Shared;
use crate::window::OfiWindow;

/// Events that are taken under one lock.
const TAKEN_AT_ONCE: usize = 32;

/// An endpoint over a port. Dropping it closes it: what it has accepted still leaves.
#[derive(Debug)]
pub struct OfiEndpoint<N: Nic + 'static> {
    pub(crate) shared: Arc<Shared<N>>,
    pub(crate) address: EndpointAddress,
    pub(crate) partition: PartitionId,
    pub(crate) host: Option<EndpointAddress>,
    pub(crate) capabilities: Capabilities,
    pub(crate) adaptive_wait: AdaptiveWait,
    pub(crate) events: Vec<crate::engine::Queued>,
    /// Reports of the NIC that polls have handled.
    pub(crate) taken: u64,
}

impl<N: Nic> OfiEndpoint<N> {
    /// Tells, as long as the endpoint lives, whether something that it has accepted waits to leave,
    /// or whether a peer has not greeted yet.
    #[cfg(feature = "test-doors")]
    pub fn is_busy(&self) -> impl Fn() -> bool + Send + use<N> {
        let shared = Arc::downgrade(&self.shared);
        move || shared.upgrade().is_some_and(|shared| shared.lock().engine.is_busy())
    }

    /// Has each poll look up to so many times at the NIC while that has nothing to report. A
    /// program that waits hears so earlier: another look costs less than another poll.
    pub fn look_often(&mut self, looks: u32) {
        self.shared.lock().engine.look_often(looks);
    }

    /// Reports of the NIC that were handled up to the last poll. More of them than before say that
    /// peers are at work here, also where that makes no event.
    #[must_use]
    pub const fn reports(&self) -> u64 {
        self.taken
    }

    /// Sends a peer a report without meaning, if it has room: a peer whose memory the provider
    /// serves without a report may fall asleep beside that otherwise, and each access wakes it.
    pub fn knock(&mut self, peer: Peer) {
        self.shared.lock().engine.knock(peer);
    }

    /// How long a peer may be silent before it is reported down.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.shared.lock().engine.silence()
    }

    /// Calls `look` with each descriptor of the endpoint. The provider may have further ones, which
    /// it does not tell.
    pub fn each_descriptor(&self, look: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.shared.each_descriptor(look);
    }
}

impl<N: Nic> Drop for OfiEndpoint<N> {
    fn drop(&mut self) {
        self.shared.stop();
        let mut station = self.shared.lock();
        station.close();
        if station.engine.is_drained() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        station.engine.nic_mut().linger(
            self.shared.thread_holds,
            Box::new(move || {
                let mut station = shared.lock();
                station.progress();
                station.engine.is_drained()
            }),
        );
    }
}

impl<N: Nic> Endpoint for OfiEndpoint<N> {
    type Region = OfiRegion;
    type Window = OfiWindow<N>;

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
        self.shared.lock().invite(within, context)
    }

    fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError> {
        self.shared.lock().connect(to, context)
    }

    fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError> {
        let mut station = self.shared.lock();
        let parted = station.engine.disconnect(peer);
        station.progress();
        parted.map(drop)
    }

    fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        self.shared.lock().engine.check_peer(peer)?;
        // The provider reads and writes all memory by its address.
        let way = Way::Direct;
        Ok(Reach { fresh: way, descriptor: way, adopted: way, in_place: way })
    }

    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        self.shared.lock().engine.peer_address(peer)
    }

    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        self.shared.lock().engine.send_short(to, header, parts)
    }

    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        self.shared.lock().send_multicast(group, (header, parts), || Ok(0))
    }

    fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.shared.lock().change_group(group, true, context)
    }

    fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        self.shared.lock().change_group(group, false, context)
    }

    fn register(&mut self, length: u64) -> Result<OfiRegion, RegisterError> {
        self.shared.lock().engine.register(length)
    }

    fn grant(
        &mut self,
        range: LocalRange<'_, OfiRegion>,
        audience: Audience,
        access: Access,
        _context: u64,
    ) -> Result<Issued, GrantError> {
        let key = self.shared.lock().engine.grant(range, audience, access)?;
        Ok(Issued::Done(Value::Key(key)))
    }

    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        self.shared.lock().engine.revoke(key, context)
    }

    fn resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        self.shared.lock().engine.resolve(of, key, context)
    }

    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, OfiRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let engine = &mut self.shared.lock().engine;
        if let Request::Fence = request {
            return engine.fence(to, operation.context);
        }
        let wanted = Wanted::new(request).map_err(|error| engine.count_refusal(error))?;
        engine.issue(to, wanted, operation, Reply::Event)?;
        Ok(Issued::Pending)
    }

    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError> {
        self.shared.lock().engine.put_notification(to, class, value)
    }

    fn order(&mut self, to: Peer) -> Result<(), OperationError> {
        self.shared.lock().engine.order(to)
    }

    fn fence_all(&mut self, context: u64) -> Result<Issued, OperationError> {
        self.shared.lock().engine.fence_all(context)
    }

    fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError> {
        self.shared.lock().engine.cancel(to, context)
    }

    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<OfiWindow<N>, WindowError> {
        OfiWindow::open(&self.shared, to, key)
    }

    fn register_value(&self, register: Register) -> u64 {
        self.shared.lock().engine.register_value(register)
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut handed = 0;
        let mut station = self.shared.progress();
        self.taken = station.engine.taken();
        while handed < budget {
            let most = TAKEN_AT_ONCE.min(budget - handed);
            self.events.extend((0..most).map_while(|_| station.engine.take()));
            drop(station);
            if self.events.is_empty() {
                break;
            }
            handed += self.events.len();
            let all = self.events.len() == most;
            for queued in self.events.drain(..) {
                sink(queued.as_event());
            }
            if !all {
                break;
            }
            station = self.shared.lock();
        }
        handed
    }

    fn finish(&mut self, context: u64, timeout: Duration) -> Option<Result<Value, OperationError>> {
        let end = self.shared.now().saturating_add(timeout);
        loop {
            let mut station = self.shared.progress();
            if let Some(completion) = station.engine.take_ended(context) {
                return Some(completion.result);
            }
            if !station.awaits(context) {
                return None;
            }
            drop(station);
            let now = self.shared.now();
            if now >= end {
                self.shared.lock().give_up(context);
                return None;
            }
            self.shared.sleep(end - now);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        let end = timeout.map(|timeout| self.shared.now().saturating_add(timeout));
        self.adaptive_wait.restart();
        loop {
            if self.shared.progress().engine.has_events() {
                self.adaptive_wait.hit();
                return Waited::Ready;
            }
            let now = self.shared.now();
            if end.is_some_and(|end| now >= end) {
                return Waited::TimedOut;
            }
            match self.adaptive_wait.step() {
                Step::Spin => std::hint::spin_loop(),
                Step::Yield => self.adaptive_wait.give_way(),
                Step::Sleep => {
                    self.shared.lock().engine.count(Register::Sleeps, 1);
                    self.shared.sleep(end.map_or(Duration::MAX, |end| end - now));
                }
            }
        }
    }

    fn arm(&mut self) -> Armed {
        self.shared.arm()
    }
}

impl<N: Nic> HostMemory for OfiEndpoint<N> {
    type Memory = Memory;

    fn register_memory(&mut self, memory: &Memory) -> Result<OfiRegion, RegisterError> {
        self.shared.lock().engine.register_memory(memory)
    }
}

impl<N: Nic> Watchable for OfiEndpoint<N> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.descriptor()
    }
}
