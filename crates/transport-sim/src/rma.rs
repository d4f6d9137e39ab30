//! One-sided operations: from the call, over the departure of their pieces, to the target and back.
//!
//! Invariants: an operation longer than a descriptor is sent in pieces and completes once, with the
//! response to the last piece. The target checks the whole range for every piece, so an operation
//! outside its region writes nothing. A source in a region is read when its piece leaves.

use weft_fabric::{
    Access, Atomic, Command, LockRequest, Notification, Notify, OperationError, Peer, Register,
    RemoteKey, Side, Target,
};

use crate::completion::Queued;
use crate::memory::{SimRegion, bytes_of, index};
use crate::progress::{Body, CreditOf, Flight, Occasion, Request, Response, What};
use crate::trace::Kind;
use crate::world::{Id, State};

/// A pending operation of an initiator.
#[derive(Debug)]
pub(crate) struct Pending {
    pub peer: u32,
    target: Id,
    call: Call,
    reply: Reply,
    /// The bytes received so far for a window.
    buffer: Vec<u8>,
}

/// A call of a program.
#[derive(Debug)]
pub(crate) struct Call {
    pub what: Wanted,
    pub notify: Notify,
    pub context: u64,
}

/// Where the result goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// To the program, as a completion.
    Event,
    /// To the window that waits for it.
    Window,
}

/// The operations.
#[derive(Debug)]
pub(crate) enum Wanted {
    Put { command: Command, source: PutSource, target: Target, total: u64 },
    Get { source: Target, into: Option<(SimRegion, u64)>, length: u64 },
    Atomic { target: Target, atomic: Atomic },
    Lock(LockRequest),
    Fence,
    Register(Register),
}

/// The source of a put.
#[derive(Debug)]
pub(crate) enum PutSource {
    /// Bytes, copied at the call.
    Bytes(Vec<u8>),
    /// A region, read when a piece leaves, and the offset of the first byte.
    Region(SimRegion, u64),
}

impl Wanted {
    fn command(&self) -> Option<Command> {
        match self {
            Self::Put { command, .. } => Some(*command),
            Self::Get { .. } => Some(Command::Get),
            Self::Atomic { .. } => Some(Command::Atomic),
            Self::Lock(_) => Some(Command::Lock),
            Self::Fence | Self::Register(_) => None,
        }
    }

    /// The key, offset and length for notifications.
    fn range(&self) -> (RemoteKey, u64, u64) {
        match self {
            Self::Put { target, total, .. } => (target.key, target.offset, *total),
            Self::Get { source, length, .. } => (source.key, source.offset, *length),
            Self::Atomic { target, atomic } => (target.key, target.offset, atomic.width.bytes()),
            Self::Lock(request) => (RemoteKey(0), u64::from(request.number), 0),
            Self::Fence | Self::Register(_) => (RemoteKey(0), 0, 0),
        }
    }

    /// Checks the local range.
    fn check_local(&self) -> Result<(), OperationError> {
        match self {
            Self::Put { source: PutSource::Region(region, offset), total, .. } => {
                region.check(*offset, *total)?;
            }
            Self::Get { into: Some((region, offset)), length, .. } => {
                region.check(*offset, *length)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn pieces(&self, descriptor: u64) -> u64 {
        if let Self::Put { total, .. } = self { total.div_ceil(descriptor).max(1) } else { 1 }
    }
}

impl Pending {
    /// True when a successful operation notifies the target.
    fn notifies_peer(&self) -> bool {
        notifies_peer(&self.call)
    }
}

fn notifies_peer(call: &Call) -> bool {
    match call.what {
        Wanted::Put { .. } => call.notify.completer(),
        _ => call.what.command().is_some() && call.notify.responder(),
    }
}

impl State {
    /// Starts an operation and returns its number.
    pub(crate) fn issue(
        &mut self,
        id: Id,
        peer: Peer,
        call: Call,
        reply: Reply,
    ) -> Result<u64, OperationError> {
        self.try_issue(id, peer, call, reply).map_err(|error| self.count_refusal(id, error))
    }

    /// Counts a refused call.
    pub(crate) fn count_refusal(&mut self, id: Id, error: OperationError) -> OperationError {
        let refused = error == OperationError::WouldBlock;
        let register = if refused { Register::Refused } else { Register::Errors };
        self.endpoints[id].count(register, 1);
        error
    }

    fn try_issue(
        &mut self,
        id: Id,
        peer: Peer,
        call: Call,
        reply: Reply,
    ) -> Result<u64, OperationError> {
        let target = self.target_of(id, peer)?;
        if let Some(command) = call.what.command() {
            call.notify.check(command)?;
        }
        call.what.check_local()?;
        let endpoint = &mut self.endpoints[id];
        if reply == Reply::Event && endpoint.slots >= self.settings.operations_max {
            endpoint.starved.insert(peer.0);
            return Err(OperationError::WouldBlock);
        }
        if notifies_peer(&call) {
            self.take_notification_credit(id, peer.0)?;
        }
        let endpoint = &mut self.endpoints[id];
        if reply == Reply::Event {
            endpoint.slots += 1;
            match call.what.command() {
                Some(Command::Put | Command::ImmediatePut) => endpoint.count(Register::Puts, 1),
                Some(Command::Get) => endpoint.count(Register::Gets, 1),
                Some(Command::Atomic | Command::Lock) => endpoint.count(Register::Atomics, 1),
                _ => {}
            }
        }
        self.next_operation += 1;
        let operation = self.next_operation;
        let descriptor = self.settings.descriptor_bytes_max;
        for index in 0..call.what.pieces(descriptor) {
            let bytes = match &call.what {
                Wanted::Put { total, .. } => descriptor.min(total - index * descriptor),
                _ => 0,
            };
            let (departure, arrival) = self.transmit(id, target, bytes);
            let occasion = Occasion::Depart { from: id, operation, index, arrival };
            self.schedule(departure, occasion);
        }
        let pending = Pending { peer: peer.0, target, call, reply, buffer: Vec::new() };
        self.endpoints[id].pending.insert(operation, pending);
        Ok(operation)
    }

    /// The endpoint behind a handle, if neither end is down.
    pub(crate) fn target_of(&self, id: Id, peer: Peer) -> Result<Id, OperationError> {
        let endpoint = &self.endpoints[id];
        let state = endpoint.peer(peer).ok_or(OperationError::UnknownPeer)?;
        if state.down || !endpoint.alive {
            return Err(OperationError::PeerDown);
        }
        Ok(state.target)
    }

    fn take_notification_credit(&mut self, id: Id, peer: u32) -> Result<(), OperationError> {
        let maximum = self.settings.notification_depth;
        let state = self.endpoints[id].peer_mut(peer);
        if state.notifications_out >= maximum {
            state.refused = true;
            return Err(OperationError::WouldBlock);
        }
        state.notifications_out += 1;
        Ok(())
    }

    /// Sends a notification put.
    pub(crate) fn put_notification(
        &mut self,
        id: Id,
        peer: Peer,
        class: u8,
        value: u64,
    ) -> Result<(), OperationError> {
        let to = self.target_of(id, peer).and_then(|to| {
            self.take_notification_credit(id, peer.0)?;
            Ok(to)
        });
        let to = match to {
            Ok(to) => to,
            Err(error) => return Err(self.count_refusal(id, error)),
        };
        self.endpoints[id].count(Register::NotificationsSent, 1);
        let epoch = self.epoch(id, to);
        let body = Body::Notification { peer: peer.0, class, value };
        self.send_now(Flight { from: id, to, epoch, body }, 8);
        Ok(())
    }

    /// Adds the notification of a notification put at its target.
    pub(crate) fn deliver_notification_put(
        &mut self,
        from: Id,
        to: Id,
        peer: u32,
        class: u8,
        value: u64,
    ) {
        let Some(handle) = self.endpoints[to].handle_of(from) else { return };
        let notification = Notification {
            side: Side::Completer,
            command: Command::NotificationPut,
            peer: handle,
            source: self.endpoints[from].address,
            operation: 0,
            key: RemoteKey(0),
            offset: 0,
            length: 0,
            class,
            immediate: value,
        };
        self.notify(to, notification, Some((from, peer)));
    }

    /// Sends a piece of an operation.
    pub(crate) fn depart(&mut self, from: Id, operation: u64, piece: u64, arrival: u64) {
        let descriptor = self.settings.descriptor_bytes_max;
        let endpoint = &self.endpoints[from];
        // The initiator died, or reported the peer down: the piece is not sent.
        let Some(pending) = endpoint.pending.get(&operation) else { return };
        let to = pending.target;
        let last = piece + 1 == pending.call.what.pieces(descriptor);
        let what = match &pending.call.what {
            Wanted::Put { command, source, target, total } => {
                let at = piece * descriptor;
                let length = descriptor.min(total - at);
                let bytes = match source {
                    PutSource::Bytes(bytes) => bytes[index(at)..index(at) + index(length)].to_vec(),
                    PutSource::Region(region, offset) => region.copy_out(offset + at, length),
                };
                What::Put { command: *command, target: *target, total: *total, at, bytes, last }
            }
            Wanted::Get { source, length, .. } => What::Get { source: *source, length: *length },
            Wanted::Atomic { target, atomic } => What::Atomic { target: *target, atomic: *atomic },
            Wanted::Lock(request) => What::Lock(*request),
            Wanted::Fence => What::Fence,
            Wanted::Register(register) => What::Register(*register),
        };
        let Call { context, notify, .. } = pending.call;
        let request = Request { operation, peer: pending.peer, context, notify, what };
        let own = self.notification_of(Side::Requester, from, operation);
        let (source, target) = (self.endpoints[from].address, self.endpoints[to].address);
        self.record(Kind::Depart, source, target, operation << 16 | piece & 0xffff, &[]);
        if let Some(notification) = own.filter(|_| last && notify.requester()) {
            self.notify(from, notification, None);
        }
        let epoch = self.epoch(from, to);
        let flight = Flight { from, to, epoch, body: Body::Request(request) };
        self.schedule(arrival, Occasion::Arrive(flight));
    }

    /// The notification for the initiator of a pending operation.
    fn notification_of(&self, side: Side, id: Id, operation: u64) -> Option<Notification> {
        let pending = self.endpoints[id].pending.get(&operation)?;
        let Call { what, notify, context } = &pending.call;
        let (key, offset, length) = what.range();
        Some(Notification {
            side,
            command: what.command()?,
            peer: Peer(pending.peer),
            source: self.endpoints[pending.target].address,
            operation: *context,
            key,
            offset,
            length,
            class: notify.class,
            immediate: notify.immediate,
        })
    }

    /// Serves an operation, or a piece of one, at its target.
    pub(crate) fn serve(&mut self, from: Id, to: Id, request: Request) {
        match &request.what {
            What::Put { .. } => self.serve_put(from, to, &request),
            What::Get { source, length } => {
                let (source, length) = (*source, *length);
                self.serve_get(from, to, &request, source, length);
            }
            What::Atomic { target, atomic } => {
                let result = self.serve_atomic(from, to, &request, *target, *atomic);
                self.respond(from, to, request.operation, result);
            }
            What::Lock(lock) => {
                let result = self.serve_lock(from, to, &request, *lock);
                self.respond(from, to, request.operation, result);
            }
            What::Fence => self.respond(from, to, request.operation, Ok(0)),
            What::Register(register) => {
                let value = self.endpoints[to].registers[register.index()];
                self.respond(from, to, request.operation, Ok(value));
            }
        }
    }

    fn serve_put(&mut self, from: Id, to: Id, request: &Request) {
        let What::Put { command, target, total, at, bytes, last } = &request.what else {
            unreachable!("serve() saw a put")
        };
        let region = self.check(to, (*command, command.access()), *target, *total);
        if let Ok(region) = &region {
            region.copy_in(target.offset + at, bytes);
        }
        if !last {
            return;
        }
        if region.is_ok() && request.notify.completer() {
            let range = (target.key, target.offset, *total);
            self.notify_target(Side::Completer, *command, range, from, to, request);
        }
        self.respond(from, to, request.operation, region.map(|_| 0));
    }

    fn serve_get(&mut self, from: Id, to: Id, request: &Request, source: Target, length: u64) {
        let region = match self.check(to, (Command::Get, Access::READ), source, length) {
            Ok(region) => region,
            Err(error) => return self.respond(from, to, request.operation, Err(error)),
        };
        if request.notify.responder() {
            let range = (source.key, source.offset, length);
            self.notify_target(Side::Responder, Command::Get, range, from, to, request);
        }
        let descriptor = self.settings.descriptor_bytes_max;
        let pieces = length.div_ceil(descriptor).max(1);
        for piece in 0..pieces {
            let at = piece * descriptor;
            let bytes = region.copy_out(source.offset + at, descriptor.min(length - at));
            let last = piece + 1 == pieces;
            let payload = bytes_of(bytes.len());
            let operation = request.operation;
            let body = Body::Response(Response { operation, result: Ok(0), at, bytes, last });
            let epoch = self.epoch(from, to);
            self.send_now(Flight { from: to, to: from, epoch, body }, payload);
        }
    }

    /// Adds a notification of a request to the queue of its target.
    pub(crate) fn notify_target(
        &mut self,
        side: Side,
        command: Command,
        (key, offset, length): (RemoteKey, u64, u64),
        from: Id,
        to: Id,
        request: &Request,
    ) {
        let Some(peer) = self.endpoints[to].handle_of(from) else { return };
        let notification = Notification {
            side,
            command,
            peer,
            source: self.endpoints[from].address,
            operation: request.context,
            key,
            offset,
            length,
            class: request.notify.class,
            immediate: request.notify.immediate,
        };
        self.notify(to, notification, Some((from, request.peer)));
    }

    fn respond(&mut self, from: Id, to: Id, operation: u64, result: Result<u64, OperationError>) {
        let response = Response { operation, result, at: 0, bytes: Vec::new(), last: true };
        let epoch = self.epoch(from, to);
        self.send_now(Flight { from: to, to: from, epoch, body: Body::Response(response) }, 8);
    }

    /// Handles a response, or a piece of one, at the initiator.
    pub(crate) fn handle_response(&mut self, id: Id, response: Response) {
        let Response { operation, result, at, bytes, last } = response;
        // The operation may have completed already, by the death of the peer.
        let Some(pending) = self.endpoints[id].pending.get_mut(&operation) else { return };
        if let Wanted::Get { into, .. } = &pending.call.what {
            match into {
                Some((region, offset)) => region.copy_in(offset + at, &bytes),
                None => pending.buffer.extend_from_slice(&bytes),
            }
        }
        if last {
            self.complete(id, operation, result);
        }
    }

    /// Completes an operation.
    pub(crate) fn complete(&mut self, id: Id, operation: u64, result: Result<u64, OperationError>) {
        let own = self.notification_of(Side::Completer, id, operation);
        let Some(pending) = self.endpoints[id].pending.remove(&operation) else { return };
        let own_completer =
            pending.call.notify.completer() && !matches!(pending.call.what, Wanted::Put { .. });
        if let Some(notification) = own.filter(|_| own_completer && result.is_ok()) {
            self.notify(id, notification, None);
        }
        self.count_end(id, &pending, result.is_ok());
        let Pending { call, reply, buffer, .. } = pending;
        let endpoint = &mut self.endpoints[id];
        match reply {
            Reply::Event => {
                let completion = weft_fabric::Completion { context: call.context, result };
                endpoint.events.push_back(Queued::Completion(completion));
            }
            Reply::Window => {
                endpoint.window_results.insert(operation, result.map(|_| buffer));
            }
        }
    }

    /// Counts the result of an operation. Returns the credit if its notification was not sent.
    fn count_end(&mut self, id: Id, pending: &Pending, good: bool) {
        if pending.notifies_peer() {
            if good {
                self.endpoints[id].count(Register::NotificationsSent, 1);
            } else {
                self.credit(id, pending.peer, CreditOf::Notifications);
            }
        }
        let endpoint = &mut self.endpoints[id];
        if !good {
            endpoint.count(Register::Errors, 1);
        } else if pending.reply == Reply::Event {
            match &pending.call.what {
                Wanted::Put { total, .. } => endpoint.count(Register::PutBytes, *total),
                Wanted::Get { length, .. } => endpoint.count(Register::GetBytes, *length),
                _ => {}
            }
        }
    }
}
