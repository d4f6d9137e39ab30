//! The endpoint: which calls go which way.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Atomic, AtomicOperation, Audience, Capabilities, ConnectError, Endpoint,
    EndpointAddress, Event, GrantError, Group, GroupError, HostMemory, InviteError, Issued,
    LocalRange, MessageHeader, Notify, Operation, OperationError, PartitionId, Peer, Reach,
    Register, RegisterError, RemoteKey, Report, Request, SendError, Source, Target, Ticket, Value,
    Waited, Width, WindowError,
};
use weft_memory::Memory;
use weft_sync::AdaptiveWait;
use weft_transport_ofi::nic::Nic;
use weft_transport_ofi::{Cards, OfiEndpoint, OfiRegion};
use weft_transport_shm::{ShmEndpoint, ShmRegion};

use crate::calls::{Calls, Granted, Half, Kind, Over};
use crate::port::{Door, Files, State};
use crate::progress::Turns;
use crate::region::{self, LayeredRegion, Mark};
use crate::window::LayeredWindow;

/// The bit that handles of the port have.
pub(crate) const FAR: u32 = 1 << 31;

/// The way to a peer, and its handle there.
pub(crate) enum Way {
    Near(Peer),
    Far(Peer),
}

#[inline(always)]
pub(crate) fn way(peer: Peer) -> Way {
    if peer.0 & FAR == 0 { Way::Near(peer) } else { Way::Far(Peer(peer.0 & !FAR)) }
}

/// An endpoint over shared memory on its node, and over a port to other nodes.
pub struct LayeredEndpoint<C: Cards + 'static> {
    /// The port goes first: its last words leave before the endpoint is gone.
    pub(crate) door: Door<C>,
    pub(crate) near: ShmEndpoint,
    pub(crate) capabilities: Capabilities,
    pub(crate) files: Files,
    pub(crate) calls: Calls,
    /// The keys of the partition that are in force.
    pub(crate) grants: BTreeMap<RemoteKey, Granted>,
    pub(crate) mark: Mark,
    pub(crate) turns: Turns,
    pub(crate) adaptive_wait: AdaptiveWait,
}

impl<C: Cards> fmt::Debug for LayeredEndpoint<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredEndpoint").field("near", &self.near).finish_non_exhaustive()
    }
}

impl<C: Cards + 'static> LayeredEndpoint<C> {
    /// Whether the port is open, or is being opened.
    #[must_use]
    pub fn has_port(&self) -> bool {
        matches!(self.door.state, State::Opening(_) | State::Open(_))
    }

    /// Why there is no port, if one was wanted and none could be opened.
    #[must_use]
    pub fn refusal_of_port(&self) -> Option<&str> {
        match &self.door.state {
            State::Refused(reason) => Some(reason),
            State::Closed | State::Opening(_) | State::Open(_) => None,
        }
    }

    /// How long a peer of another node may be silent before it is reported down; `None` without a
    /// port.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        match &self.door.state {
            State::Open(far) => Some(far.silence()),
            State::Closed | State::Opening(_) | State::Refused(_) => None,
        }
    }

    /// The end of a call, if it has ended at once.
    pub(crate) fn result_of(&mut self, number: u64) -> Result<Issued, OperationError> {
        let over = self.calls.take_over(number).and_then(|over| self.go_on(over));
        let Some(over) = over else { return Ok(Issued::Pending) };
        self.end_of(over).1.map(Issued::Done)
    }

    /// Has a connect to an endpoint that shares no memory go on by the port; `None` while it does.
    pub(crate) fn go_on(&mut self, over: Over) -> Option<Over> {
        let Kind::Connect(to) = over.kind else { return Some(over) };
        let error = OperationError::Connect(ConnectError::NetworkAlone(to));
        if over.result != Err(error) {
            return Some(over);
        }
        let result = match self.connect_far(to, over.context) {
            Ok(Issued::Pending) => return None,
            Ok(Issued::Done(value)) => Ok(value),
            Err(error) => Err(error),
        };
        Some(Over { result, ..over })
    }

    /// Follows a call of the endpoint in shared memory.
    fn follow(
        &mut self,
        context: u64,
        call: impl FnOnce(&mut ShmEndpoint, u64) -> Result<Issued, OperationError>,
    ) -> Result<Issued, OperationError> {
        let number = self.calls.begin(context, Kind::Plain);
        let issued = call(&mut self.near, number);
        self.calls.issued(number, Half::Near, issued);
        self.result_of(number)
    }

    /// The port, which a handle of its needs.
    #[inline]
    fn far(&mut self) -> Result<&mut OfiEndpoint<C::Nic>, OperationError> {
        self.door.open().ok_or(OperationError::UnknownPeer)
    }

    fn do_connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, OperationError> {
        self.count_peers();
        if !to.is_exact() || to.node == self.near.address().node {
            let number = self.calls.begin(context, Kind::Connect(to));
            let issued = self.near.connect(to, number).map_err(OperationError::Connect);
            self.calls.issued(number, Half::Near, issued);
            return self.result_of(number);
        }
        self.connect_far(to, context)
    }

    /// Connects by the port.
    fn connect_far(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, OperationError> {
        if self.calls.is_full() {
            let reason = "too many calls wait for their end; poll first".to_owned();
            return Err(OperationError::Connect(ConnectError::Broker { reason }));
        }
        let number = self.calls.begin(context, Kind::Meet);
        self.want_port();
        match &self.door.state {
            State::Open(_) => self.meet(number, to),
            State::Opening(_) => {
                self.meet_later(number, to);
                return Ok(Issued::Pending);
            }
            State::Refused(reason) => {
                let error = ConnectError::Provider { reason: reason.clone() };
                self.calls.issued(number, Half::Far, Err(OperationError::Connect(error)));
            }
            State::Closed => {
                let reason = "the port could not be opened; try again".to_owned();
                let error = ConnectError::Provider { reason };
                self.calls.issued(number, Half::Far, Err(OperationError::Connect(error)));
            }
        }
        self.result_of(number)
    }

    fn multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        self.attend();
        self.count_peers();
        self.capabilities.check_message(header, parts)?;
        let Self { door, near, .. } = self;
        if let Some(far) = door.open() {
            return far.send_multicast_after(group, header, parts, || {
                near.send_multicast(group, header, parts)
            });
        }
        if self.waits_for_port() {
            // The broker says with the members whether only a port reaches some.
            self.near.look_up_members(group)?;
            if self.near.port_is_wanted() {
                self.want_port();
            }
            if !matches!(self.door.state, State::Refused(_) | State::Closed) {
                // It may be told at once.
                self.calls.refused_in(group);
                self.tell_group_later(group);
                return Err(SendError::WouldBlock);
            }
        }
        self.near.send_multicast(group, header, parts)
    }

    /// Has each way know how many peers the other one has: the maximum is that of both.
    pub(crate) fn count_peers(&mut self) {
        if let Some(far) = self.door.open() {
            let elsewhere = far.count_peers_elsewhere(self.near.peers_here());
            self.near.count_peers_elsewhere(elsewhere);
        }
    }

    // Apart from the calls that lead here, whose code in the caller is that of the memory alone.
    #[inline(never)]
    fn send_far(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        match self.door.open() {
            Some(far) => far.send_short(to, header, parts),
            None => Err(SendError::UnknownPeer),
        }
    }

    #[inline(never)]
    fn put_far(
        &mut self,
        to: Peer,
        source: Source<'_, LayeredRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        let far = self.far()?;
        let source = far_source(source, far)?;
        far.put(to, source, target, operation)
    }

    /// Takes the operation in parts: an argument in memory would keep a caller with a constant
    /// operation from compiling to one instruction where the peer is near.
    #[inline(never)]
    fn atomic_far(
        &mut self,
        to: Peer,
        target: Target,
        (kind, width): (AtomicOperation, Width),
        (operand, compare): (u64, u64),
        (context, notify): (u64, Notify),
        (report, [more, ordered, fetches]): (Report, [bool; 3]),
    ) -> Result<Issued, OperationError> {
        let atomic = Atomic { operation: kind, width, operand, compare, fetches };
        let operation = Operation { context, notify, report, more, ordered };
        self.far()?.atomic(to, target, atomic, operation)
    }

    /// Whether a port may be opened yet, or is being opened.
    fn waits_for_port(&self) -> bool {
        matches!(self.door.state, State::Closed | State::Opening(_))
    }
}

impl<C: Cards + 'static> HostMemory for LayeredEndpoint<C> {
    type Memory = Memory;

    fn register_memory(&mut self, memory: &Memory) -> Result<LayeredRegion, RegisterError> {
        Ok(LayeredRegion::new(self.near.register_memory(memory)?, &self.mark))
    }
}

#[inline]
fn near_source(source: Source<'_, LayeredRegion>) -> Source<'_, ShmRegion> {
    match source {
        Source::Bytes(bytes) => Source::Bytes(bytes),
        Source::Region(range) => Source::Region(region::near(range)),
    }
}

fn far_source<'a, N: Nic>(
    source: Source<'a, LayeredRegion>,
    far: &mut OfiEndpoint<N>,
) -> Result<Source<'a, OfiRegion>, OperationError> {
    match source {
        Source::Bytes(bytes) => Ok(Source::Bytes(bytes)),
        Source::Region(range) => Ok(Source::Region(far_range(range, far)?)),
    }
}

fn far_range<'a, N: Nic>(
    range: LocalRange<'a, LayeredRegion>,
    far: &mut OfiEndpoint<N>,
) -> Result<LocalRange<'a, OfiRegion>, OperationError> {
    let provider = |error: RegisterError| OperationError::Provider { reason: error.to_string() };
    region::far(range, far).map_err(provider)
}

impl<C: Cards + 'static> Endpoint for LayeredEndpoint<C> {
    type Region = LayeredRegion;
    type Window = LayeredWindow<C::Nic>;

    fn address(&self) -> EndpointAddress {
        self.near.address()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn partition(&self) -> PartitionId {
        self.near.partition()
    }

    fn host(&self) -> Option<EndpointAddress> {
        self.near.host()
    }

    fn invite(&mut self, within: Duration, context: u64) -> Result<(Ticket, Issued), InviteError> {
        let number = self.calls.begin(context, Kind::Plain);
        match self.near.invite(within, number) {
            Ok((ticket, issued)) => {
                self.calls.issued(number, Half::Near, Ok(issued));
                match self.result_of(number) {
                    Ok(issued) => Ok((ticket, issued)),
                    Err(OperationError::Invite(error)) => Err(error),
                    Err(other) => Err(InviteError::Broker { reason: other.to_string() }),
                }
            }
            Err(error) => {
                self.calls.forget(number);
                Err(error)
            }
        }
    }

    fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError> {
        self.do_connect(to, context).map_err(|error| match error {
            OperationError::Connect(error) => error,
            other => ConnectError::Broker { reason: other.to_string() },
        })
    }

    fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError> {
        match way(peer) {
            Way::Near(peer) => self.near.disconnect(peer),
            Way::Far(peer) => self.far()?.disconnect(peer),
        }
    }

    fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError> {
        match way(peer) {
            Way::Near(peer) => self.near.reach(peer),
            Way::Far(peer) => self.far()?.reach(peer),
        }
    }

    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        match (way(peer), &self.door.state) {
            (Way::Near(peer), _) => self.near.peer_address(peer),
            (Way::Far(peer), State::Open(far)) => far.peer_address(peer),
            (Way::Far(_), _) => None,
        }
    }

    fn message_bytes_to(&self, peer: Peer) -> usize {
        match (way(peer), &self.door.state) {
            // A port carries more than this endpoint promises for all peers.
            (Way::Far(_), State::Open(far)) => far.capabilities().message_bytes_max,
            _ => self.capabilities.message_bytes_max,
        }
    }

    #[inline(always)]
    fn send_short(
        &mut self,
        to: Peer,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<(), SendError> {
        match way(to) {
            Way::Near(to) => self.near.send_short(to, header, parts),
            Way::Far(to) => self.send_far(to, header, parts),
        }
    }

    fn send_multicast(
        &mut self,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        let sent = self.multicast(group, header, parts);
        match sent {
            Ok(_) => self.calls.sent_to(group),
            Err(SendError::WouldBlock) => self.calls.refused_in(group),
            Err(_) => {}
        }
        sent
    }

    fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        let joined = self.follow(context, |near, number| {
            near.join(group, number).map_err(OperationError::Group)
        });
        joined.map_err(of_group)
    }

    fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError> {
        let left = self.follow(context, |near, number| {
            near.leave(group, number).map_err(OperationError::Group)
        });
        left.map_err(of_group)
    }

    fn register(&mut self, length: u64) -> Result<LayeredRegion, RegisterError> {
        Ok(LayeredRegion::new(self.near.register(length)?, &self.mark))
    }

    fn grant(
        &mut self,
        range: LocalRange<'_, LayeredRegion>,
        audience: Audience,
        access: Access,
        context: u64,
    ) -> Result<Issued, GrantError> {
        self.do_grant(range, audience, access, context)
    }

    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        self.do_revoke(key, context)
    }

    fn resolve(
        &mut self,
        of: Peer,
        key: RemoteKey,
        context: u64,
    ) -> Result<Issued, OperationError> {
        match way(of) {
            Way::Near(of) => self.follow(context, |near, number| near.resolve(of, key, number)),
            Way::Far(of) => {
                let number = self.calls.begin(context, Kind::Plain);
                let issued = self.far().and_then(|far| far.resolve(of, key, number));
                self.calls.issued(number, Half::Far, issued);
                self.result_of(number)
            }
        }
    }

    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, LayeredRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        match way(to) {
            Way::Near(to) => {
                let range = |range, _: &mut ShmEndpoint| Ok(region::near(range));
                let issue = |near: &mut ShmEndpoint, request: Request<'_, ShmRegion>| {
                    near.issue(to, request, operation)
                };
                request.issue_at(&mut self.near, range, issue)
            }
            Way::Far(to) => request
                .issue_at(self.far()?, far_range, |far, request| far.issue(to, request, operation)),
        }
    }

    #[inline(always)]
    fn put(
        &mut self,
        to: Peer,
        source: Source<'_, LayeredRegion>,
        target: Target,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        match way(to) {
            Way::Near(to) => self.near.put(to, near_source(source), target, operation),
            Way::Far(to) => self.put_far(to, source, target, operation),
        }
    }

    fn put_notification(&mut self, to: Peer, class: u8, value: u64) -> Result<(), OperationError> {
        match way(to) {
            Way::Near(to) => self.near.put_notification(to, class, value),
            Way::Far(to) => self.far()?.put_notification(to, class, value),
        }
    }

    fn get(
        &mut self,
        from: Peer,
        source: Target,
        into: LocalRange<'_, LayeredRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        match way(from) {
            Way::Near(from) => self.near.get(from, source, region::near(into), operation),
            Way::Far(from) => {
                let far = self.far()?;
                let into = far_range(into, far)?;
                far.get(from, source, into, operation)
            }
        }
    }

    #[inline(always)]
    fn atomic(
        &mut self,
        to: Peer,
        target: Target,
        atomic: Atomic,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        match way(to) {
            Way::Near(to) => self.near.atomic(to, target, atomic, operation),
            Way::Far(to) => {
                let Operation { context, notify, report, more, ordered } = operation;
                let Atomic { operation: kind, width, operand, compare, fetches } = atomic;
                let (values, told) = ((operand, compare), (report, [more, ordered, fetches]));
                self.atomic_far(to, target, (kind, width), values, (context, notify), told)
            }
        }
    }

    fn order(&mut self, to: Peer) -> Result<(), OperationError> {
        match way(to) {
            Way::Near(to) => self.near.order(to),
            Way::Far(to) => self.far()?.order(to),
        }
    }

    fn fence_all(&mut self, context: u64) -> Result<Issued, OperationError> {
        let Some(far) = self.door.open() else { return self.near.fence_all(context) };
        let number = self.calls.begin(context, Kind::Plain);
        for (half, issued) in
            [(Half::Far, far.fence_all(number)), (Half::Near, self.near.fence_all(number))]
        {
            // One that is refused is tried again, and what the other half says is not needed.
            let refused = issued.as_ref().err().cloned();
            self.calls.issued(number, half, issued);
            if let Some(error) = refused {
                self.calls.abandon(number);
                let _ = self.calls.take_over(number);
                return Err(error);
            }
        }
        self.result_of(number)
    }

    fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError> {
        match way(to) {
            Way::Near(to) => self.near.cancel(to, context),
            Way::Far(to) => self.far()?.cancel(to, context),
        }
    }

    fn window(&mut self, to: Peer, key: RemoteKey) -> Result<Self::Window, WindowError> {
        match way(to) {
            Way::Near(to) => self.near.window(to, key).map(LayeredWindow::Near),
            Way::Far(to) => self.far()?.window(to, key).map(LayeredWindow::Far),
        }
    }

    fn register_value(&self, register: Register) -> u64 {
        let far = match &self.door.state {
            State::Open(far) => far.register_value(register),
            State::Closed | State::Opening(_) | State::Refused(_) => 0,
        };
        self.near.register_value(register).wrapping_add(far)
    }

    #[inline(always)]
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        if self.is_near_alone() {
            self.near.poll(budget, sink)
        } else {
            self.poll_both(budget, sink)
        }
    }

    fn finish(&mut self, context: u64, timeout: Duration) -> Option<Result<Value, OperationError>> {
        self.do_finish(context, timeout)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        self.do_wait(timeout)
    }

    fn arm(&mut self) -> Armed {
        self.do_arm()
    }
}

fn of_group(error: OperationError) -> GroupError {
    match error {
        OperationError::Group(error) => error,
        other => GroupError::Broker { reason: other.to_string() },
    }
}
