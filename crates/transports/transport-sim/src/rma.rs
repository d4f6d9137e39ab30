//! One-sided operations: from the call, over the departure of their pieces, to the target and back.
//!
//! Invariants: an operation longer than a descriptor is sent in pieces and completes once, with the
//! response to the last piece. The target checks the whole range for every piece, so an operation
//! outside its region writes nothing. A source in a region is read when its piece leaves.

use std::sync::Arc;

use weft_fabric::{
    Access, Atomic, Command, Issued, LocalRange, Notification, Operation, OperationError, Peer,
    Register, RemoteKey, Report, Side, Signal, Source, Target, Value,
};

use crate::completion::Queued;
use crate::memory::{self, SimRegion};
use crate::progress::{
    Arrival, Body, CreditOf, Flight, Occasion, Piece, PutRequest, Request, Response, What,
};
use crate::trace::Kind;
use crate::world::{Id, Sequence, WorldState, number_of};

/// A pending operation of an initiator.
#[derive(Debug)]
pub(crate) struct Pending {
    pub peer: u32,
    target: Id,
    call: Call,
    reply: Reply,
    /// The pieces that leave for it, one after the other.
    pieces: Vec<Piece>,
    /// All of a put, for its pieces.
    put: Option<Arc<PutRequest>>,
    /// Pieces that have left.
    departed: usize,
    /// The bytes received so far for a window.
    buffer: Vec<u8>,
}

impl Pending {
    /// The peer to which a piece of the operation has not left.
    pub fn waits_for_its_turn(&self) -> Option<Id> {
        (self.departed < self.pieces.len()).then_some(self.target)
    }
}

/// A call of a program.
#[derive(Debug)]
pub(crate) struct Call {
    pub what: Wanted,
    pub operation: Operation,
}

/// Where the result goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// To the program, as a completion.
    Event,
    /// To the window that waits for it.
    Window,
    /// To a fence of all peers.
    Fence(u64),
}

/// The operations.
#[derive(Debug)]
pub(crate) enum Wanted {
    Put { command: Command, ranges: Vec<WantedPut>, signal: Option<Signal> },
    Get(Vec<WantedGet>),
    Atomic { target: Target, atomic: Atomic },
    Fence,
}

/// A range to write.
#[derive(Debug)]
pub(crate) struct WantedPut {
    pub source: PutSource,
    pub target: Target,
    pub length: u64,
}

/// A range to read. Without a region the bytes go to a window.
#[derive(Debug)]
pub(crate) struct WantedGet {
    pub source: Target,
    pub into: Option<(SimRegion, u64)>,
    pub length: u64,
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
    pub fn new(request: weft_fabric::Request<'_, SimRegion>) -> Result<Self, OperationError> {
        Ok(match request {
            weft_fabric::Request::Put { ranges } => {
                let ranges = ranges.iter().map(|(source, to)| WantedPut::new(*source, *to));
                Self::Put { command: Command::Put, ranges: ranges.collect(), signal: None }
            }
            weft_fabric::Request::PutSignal { source, target, signal } => {
                let ranges = vec![WantedPut::new(source, target)];
                Self::Put { command: Command::Put, ranges, signal: Some(signal) }
            }
            weft_fabric::Request::PutImmediate { value, length, target } => {
                let length = weft_fabric::rules::check_immediate(length)?;
                let source = PutSource::Bytes(value.to_le_bytes()[..usize::from(length)].to_vec());
                let ranges = vec![WantedPut { source, target, length: length.into() }];
                Self::Put { command: Command::ImmediatePut, ranges, signal: None }
            }
            weft_fabric::Request::Get { ranges } => Self::Get(
                ranges.iter().map(|(source, into)| WantedGet::new(*source, *into)).collect(),
            ),
            weft_fabric::Request::Atomic { target, atomic } => Self::Atomic { target, atomic },
            weft_fabric::Request::Fence => Self::Fence,
        })
    }
}

impl WantedPut {
    pub fn new(source: Source<'_, SimRegion>, target: Target) -> Self {
        let length = source.length();
        let source = match source {
            Source::Bytes(bytes) => PutSource::Bytes(bytes.to_vec()),
            Source::Region(range) => PutSource::Region(range.region.clone(), range.offset),
        };
        Self { source, target, length }
    }
}

impl WantedGet {
    pub fn new(source: Target, into: LocalRange<'_, SimRegion>) -> Self {
        let LocalRange { region, offset, length } = into;
        Self { source, into: Some((region.clone(), offset)), length }
    }
}

impl Wanted {
    fn command(&self) -> Option<Command> {
        match self {
            Self::Put { command, .. } => Some(*command),
            Self::Get(_) => Some(Command::Get),
            Self::Atomic { .. } => Some(Command::Atomic),
            Self::Fence => None,
        }
    }

    /// The number of bytes of all ranges.
    fn length(&self) -> u64 {
        let sum = |lengths: &mut dyn Iterator<Item = u64>| lengths.fold(0, u64::saturating_add);
        match self {
            Self::Put { ranges, .. } => sum(&mut ranges.iter().map(|range| range.length)),
            Self::Get(ranges) => sum(&mut ranges.iter().map(|range| range.length)),
            Self::Atomic { atomic, .. } => atomic.width.bytes(),
            Self::Fence => 0,
        }
    }

    /// The key, offset and length for notifications.
    fn range(&self) -> (RemoteKey, u64, u64) {
        let first = match self {
            Self::Put { ranges, .. } => ranges.first().map(|range| range.target),
            Self::Get(ranges) => ranges.first().map(|range| range.source),
            Self::Atomic { target, .. } => Some(*target),
            Self::Fence => None,
        };
        let Target { key, offset } = first.unwrap_or(Target::new(RemoteKey(0), 0));
        (key, offset, self.length())
    }

    /// Checks the local ranges, and that there is one.
    fn check_local(&self) -> Result<(), OperationError> {
        match self {
            Self::Put { ranges, .. } => {
                for WantedPut { source, length, .. } in ranges {
                    if let PutSource::Region(region, offset) = source {
                        region.check(*offset, *length)?;
                    }
                }
                if ranges.is_empty() { Err(OperationError::Empty) } else { Ok(()) }
            }
            Self::Get(ranges) => {
                for WantedGet { into, length, .. } in ranges {
                    if let Some((region, offset)) = into {
                        region.check(*offset, *length)?;
                    }
                }
                if ranges.is_empty() { Err(OperationError::Empty) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// The pieces that leave the initiator: of a put one for each descriptor, else one.
    fn pieces(&self, descriptor: u64) -> Vec<Piece> {
        match self {
            Self::Put { ranges, .. } => pieces(ranges.iter().map(|range| range.length), descriptor),
            _ => vec![Piece { range: 0, at: 0, length: 0 }],
        }
    }
}

/// The pieces of ranges with these lengths. An empty range is one piece.
fn pieces(lengths: impl Iterator<Item = u64>, descriptor: u64) -> Vec<Piece> {
    let cut = |(range, length): (usize, u64)| {
        (0..length.div_ceil(descriptor).max(1)).map(move |number| {
            let at = number * descriptor;
            Piece { range, at, length: descriptor.min(length - at) }
        })
    };
    lengths.enumerate().flat_map(cut).collect()
}

impl Pending {
    /// True when a successful operation notifies the target.
    fn notifies_peer(&self) -> bool {
        notifies_peer(&self.call)
    }

    /// True for the operation of a program with this context on a peer, if nothing of it has left.
    fn is_untouched(&self, peer: Peer, context: u64) -> bool {
        let is_it = self.peer == peer.0 && self.call.operation.context == context;
        is_it && self.reply == Reply::Event && self.departed == 0
    }
}

fn notifies_peer(call: &Call) -> bool {
    match call.what {
        Wanted::Put { .. } => call.operation.notify.completer(),
        _ => call.what.command().is_some() && call.operation.notify.responder(),
    }
}

impl WorldState {
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
            call.operation.notify.check(command)?;
        }
        call.what.check_local()?;
        let endpoint = &mut self.endpoints[id];
        if reply == Reply::Event && !endpoint.has_slot() {
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
                Some(Command::Atomic) => endpoint.count(Register::Atomics, 1),
                _ => {}
            }
        }
        self.next_operation += 1;
        let operation = self.next_operation;
        let pieces = call.what.pieces(self.settings.descriptor_bytes_max);
        self.let_depart((id, target), operation, &call, &pieces);
        let put = match &call.what {
            Wanted::Put { command, ranges, signal } => Some(Arc::new(PutRequest {
                command: *command,
                ranges: ranges.iter().map(|range| (range.target, range.length)).collect(),
                signal: *signal,
            })),
            _ => None,
        };
        let (peer, departed, buffer) = (peer.0, 0, Vec::new());
        let pending = Pending { peer, target, call, reply, pieces, put, departed, buffer };
        self.endpoints[id].pending.insert(operation, pending);
        Ok(operation)
    }

    /// Schedules the pieces of an operation.
    fn let_depart(&mut self, (from, to): (Id, Id), operation: u64, call: &Call, pieces: &[Piece]) {
        let sequence = match &call.what {
            Wanted::Fence => Sequence::Last,
            _ if call.operation.ordered => Sequence::Ordered,
            // A notification is told behind those of earlier operations.
            _ if notifies_peer(call) => Sequence::Mailbox,
            _ => Sequence::Operation,
        };
        let class = self.endpoints[from].capabilities.class;
        let mut latest = 0;
        for (index, piece) in (0..).zip(pieces) {
            if let Some(place) = self.next_place((from, to)) {
                let arrival = Arrival::Carried { place, class: number_of(class) };
                let now = self.now;
                self.schedule(now, Occasion::Depart { from, operation, index, arrival });
                continue;
            }
            let (departure, arrival) = self.transmit((from, to), class, piece.length, sequence);
            // The target answers the last piece, when all others are there.
            latest = arrival.max(latest);
            let arrival = Arrival::At(self.reserve(latest));
            let occasion = Occasion::Depart { from, operation, index, arrival };
            self.schedule(departure, occasion);
        }
    }

    /// Ends an operation of which nothing has left.
    pub(crate) fn cancel(
        &mut self,
        id: Id,
        peer: Peer,
        context: u64,
    ) -> Result<(), OperationError> {
        self.target_of(id, peer)?;
        let pending = &self.endpoints[id].pending;
        let found = pending.iter().find(|(_, pending)| pending.is_untouched(peer, context));
        if let Some(operation) = found.map(|(operation, _)| *operation) {
            self.complete(id, operation, Err(OperationError::Cancelled));
        }
        Ok(())
    }

    /// Starts a fence of all peers.
    pub(crate) fn fence_all(&mut self, id: Id, context: u64) -> Result<Issued, OperationError> {
        let endpoint = &mut self.endpoints[id];
        let peers: Vec<u32> = endpoint.handles.values().copied().collect();
        if peers.is_empty() {
            return Ok(Issued::Done(Value::Nothing));
        }
        if !endpoint.has_slot() {
            endpoint.starved.extend(peers);
            return Err(self.count_refusal(id, OperationError::WouldBlock));
        }
        endpoint.slots += 1;
        self.next_operation += 1;
        let fence = self.next_operation;
        self.endpoints[id].fences.insert(fence, (context, peers.len()));
        for peer in peers {
            let call = Call { what: Wanted::Fence, operation: Operation::new(context) };
            self.issue(id, Peer(peer), call, Reply::Fence(fence))?;
        }
        Ok(Issued::Pending)
    }

    /// A peer has answered a fence of all peers, or is down.
    fn fence_passed(&mut self, id: Id, fence: u64) {
        let endpoint = &mut self.endpoints[id];
        let Some((context, left)) = endpoint.fences.get_mut(&fence) else { return };
        *left -= 1;
        if *left == 0 {
            let completion =
                weft_fabric::Completion { context: *context, result: Ok(Value::Nothing) };
            endpoint.fences.remove(&fence);
            endpoint.events.push_back(Queued::Completion(completion));
        }
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
        let target = self.endpoints[id].peer_mut(peer).target;
        let former = self.endpoints[target].former(id).notifications;
        let state = self.endpoints[id].peer_mut(peer);
        if state.notifications_out + former >= maximum {
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

    /// Adds the notification of a notification put of `from` at `to`, with their handles.
    pub(crate) fn deliver_notification_put(
        &mut self,
        (from, peer): (Id, u32),
        (to, handle): (Id, Peer),
        class: u8,
        value: u64,
    ) {
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
    pub(crate) fn depart(&mut self, from: Id, operation: u64, index: u64, arrival: Arrival) {
        let endpoint = &mut self.endpoints[from];
        // The initiator died, reported the peer down or cancelled the operation: nothing is sent.
        let Some(pending) = endpoint.pending.get_mut(&operation) else {
            if let Arrival::Carried { place, .. } = arrival {
                self.hand_on(place, None);
            }
            return;
        };
        pending.departed += 1;
        let to = pending.target;
        let number = memory::index(index);
        let last = number + 1 == pending.pieces.len();
        let bytes_sent = pending.pieces[number].length;
        let what = match &pending.call.what {
            Wanted::Put { ranges, .. } => {
                let piece = pending.pieces[number];
                let Piece { range, at, length } = piece;
                let bytes = match &ranges[range].source {
                    PutSource::Bytes(bytes) => {
                        let at = memory::index(at);
                        bytes[at..at + memory::index(length)].to_vec()
                    }
                    PutSource::Region(region, offset) => region.copy_out(offset + at, length),
                };
                let put = pending.put.clone().expect("a put has its request");
                What::Put { put, piece, bytes, last }
            }
            Wanted::Get(ranges) => {
                let ranges = ranges.iter().map(|range| (range.source, range.length)).collect();
                What::Get { ranges }
            }
            Wanted::Atomic { target, atomic } => What::Atomic { target: *target, atomic: *atomic },
            Wanted::Fence => What::Fence,
        };
        let (peer, asked) = (pending.peer, pending.call.operation);
        let request = Request { number: operation, peer, operation: asked, what };
        let own = self.notification_of(Side::Requester, from, operation);
        let (source, target) = (self.endpoints[from].address, self.endpoints[to].address);
        self.record(Kind::Depart, source, target, operation << 16 | index & 0xffff, &[]);
        if let Some(notification) = own.filter(|_| last && asked.notify.requester()) {
            self.notify(from, notification, None);
        }
        let epoch = self.epoch(from, to);
        let flight = Flight { from, to, epoch, body: Body::Request(request) };
        match arrival {
            Arrival::At(moment) => self.schedule_at(moment, Occasion::Arrive(flight)),
            Arrival::Carried { place, class } => self.carry(flight, place, class, bytes_sent),
        }
    }

    /// The notification for the initiator of a pending operation.
    fn notification_of(&self, side: Side, id: Id, operation: u64) -> Option<Notification> {
        let pending = self.endpoints[id].pending.get(&operation)?;
        let Call { what, operation: Operation { notify, context, .. } } = &pending.call;
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

    /// Serves an operation, or a piece of one, at its target, whose handle for the initiator is
    /// `handle`.
    pub(crate) fn serve(&mut self, from: Id, to: Id, handle: Peer, request: &Request) {
        let notify = request.operation.notify;
        let result = match &request.what {
            What::Put { put, piece, bytes, last } => {
                let result = self.serve_put((from, to), put, *piece, bytes, *last);
                if !last {
                    return;
                }
                if result.is_ok() && notify.completer() {
                    let (Target { key, offset }, _) = put.ranges[0];
                    let length = put.ranges.iter().fold(0, |sum: u64, (_, length)| sum + length);
                    let range = (key, offset, length);
                    self.notify_target(
                        Side::Completer,
                        put.command,
                        range,
                        from,
                        (to, handle),
                        request,
                    );
                }
                result
            }
            What::Get { ranges } => return self.serve_get(from, (to, handle), request, ranges),
            What::Atomic { target, atomic } => {
                let result = self.serve_atomic((from, to), *target, *atomic);
                if result.is_ok() && notify.responder() {
                    let range = (target.key, target.offset, atomic.width.bytes());
                    let ends = (to, handle);
                    self.notify_target(
                        Side::Responder,
                        Command::Atomic,
                        range,
                        from,
                        ends,
                        request,
                    );
                }
                result
            }
            What::Fence => Ok(Value::Nothing),
        };
        self.respond(from, to, request.number, result);
    }

    /// Writes a piece of a put, and with the last one makes its signal.
    fn serve_put(
        &mut self,
        ends: (Id, Id),
        put: &PutRequest,
        piece: Piece,
        bytes: &[u8],
        last: bool,
    ) -> Result<Value, OperationError> {
        let needed = (put.command, put.command.access());
        // Every piece checks everything, so that a put that is refused writes nothing.
        for (target, length) in &put.ranges {
            self.check(ends, needed, *target, *length)?;
        }
        let signal = put.signal.map(|signal| {
            let needed = (put.command, signal.change.access());
            self.check_word(ends, needed, signal.target, 8).map(|word| (word, signal.change))
        });
        let signal = signal.transpose()?;
        let (target, length) = put.ranges[piece.range];
        let memory = self.check(ends, needed, target, length)?;
        memory.region.copy_in(memory.start + piece.at, bytes);
        if let Some((word, change)) = signal.filter(|_| last) {
            word.region.change(word.start, 8, |old| change.apply(old));
        }
        Ok(Value::Nothing)
    }

    fn serve_get(
        &mut self,
        from: Id,
        (to, handle): (Id, Peer),
        request: &Request,
        ranges: &[(Target, u64)],
    ) {
        let number = request.number;
        let mut memory = Vec::with_capacity(ranges.len());
        for (source, length) in ranges {
            match self.check((from, to), (Command::Get, Access::READ), *source, *length) {
                Ok(found) => memory.push(found),
                Err(error) => return self.respond(from, to, number, Err(error)),
            }
        }
        if request.operation.notify.responder() {
            let (Target { key, offset }, _) = ranges[0];
            let length = ranges.iter().fold(0, |sum: u64, (_, length)| sum + length);
            let range = (key, offset, length);
            let ends = (to, handle);
            self.notify_target(Side::Responder, Command::Get, range, from, ends, request);
        }
        let lengths = ranges.iter().map(|(_, length)| *length);
        let pieces = pieces(lengths, self.settings.descriptor_bytes_max);
        for (place, Piece { range, at, length }) in pieces.iter().copied().enumerate() {
            let found = &memory[range];
            let bytes = found.region.copy_out(found.start + at, length);
            let last = place + 1 == pieces.len();
            let body = Body::Response(Response {
                number,
                result: Ok(Value::Nothing),
                range,
                at,
                bytes,
                last,
            });
            let epoch = self.epoch(from, to);
            self.send_now(Flight { from: to, to: from, epoch, body }, length);
        }
    }

    /// Adds a notification of a request to the queue of its target.
    fn notify_target(
        &mut self,
        side: Side,
        command: Command,
        (key, offset, length): (RemoteKey, u64, u64),
        from: Id,
        (to, peer): (Id, Peer),
        request: &Request,
    ) {
        let Operation { notify, context, .. } = request.operation;
        let notification = Notification {
            side,
            command,
            peer,
            source: self.endpoints[from].address,
            operation: context,
            key,
            offset,
            length,
            class: notify.class,
            immediate: notify.immediate,
        };
        self.notify(to, notification, Some((from, request.peer)));
    }

    fn respond(&mut self, from: Id, to: Id, number: u64, result: Result<Value, OperationError>) {
        let response = Response { number, result, range: 0, at: 0, bytes: Vec::new(), last: true };
        let epoch = self.epoch(from, to);
        self.send_now(Flight { from: to, to: from, epoch, body: Body::Response(response) }, 8);
    }

    /// Handles a response, or a piece of one, at the initiator.
    pub(crate) fn handle_response(&mut self, id: Id, response: Response) {
        let Response { number, result, range, at, bytes, last } = response;
        // The operation may have completed already, by the death of the peer.
        let Some(pending) = self.endpoints[id].pending.get_mut(&number) else { return };
        if let Wanted::Get(ranges) = &pending.call.what {
            match &ranges[range].into {
                Some((region, offset)) => region.copy_in(offset + at, &bytes),
                None => pending.buffer.extend_from_slice(&bytes),
            }
        }
        if last {
            self.complete(id, number, result);
        }
    }

    /// Completes an operation.
    pub(crate) fn complete(
        &mut self,
        id: Id,
        operation: u64,
        result: Result<Value, OperationError>,
    ) {
        let own = self.notification_of(Side::Completer, id, operation);
        let Some(pending) = self.endpoints[id].pending.remove(&operation) else { return };
        let asked = pending.call.operation;
        let own_completer =
            asked.notify.completer() && !matches!(pending.call.what, Wanted::Put { .. });
        if let Some(notification) = own.filter(|_| own_completer && result.is_ok()) {
            self.notify(id, notification, None);
        }
        self.count_end(id, &pending, result.is_ok());
        let Pending { reply, buffer, .. } = pending;
        let endpoint = &mut self.endpoints[id];
        match reply {
            Reply::Event if asked.report == Report::Errors && result.is_ok() => {
                self.free_slot(id);
            }
            Reply::Event => {
                let completion = weft_fabric::Completion { context: asked.context, result };
                endpoint.events.push_back(Queued::Completion(completion));
            }
            Reply::Window => {
                endpoint.window_results.insert(operation, result.map(|_| buffer));
            }
            Reply::Fence(fence) => self.fence_passed(id, fence),
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
            let length = pending.call.what.length();
            match &pending.call.what {
                Wanted::Put { .. } => endpoint.count(Register::PutBytes, length),
                Wanted::Get(_) => endpoint.count(Register::GetBytes, length),
                _ => {}
            }
        }
    }
}
