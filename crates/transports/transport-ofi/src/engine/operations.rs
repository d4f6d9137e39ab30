//! Operations at their initiator, from the call to the end.
//!
//! A put or a get moves its bytes by writes and reads of the NIC ([`super::bulk`]), once the keys
//! that it names are known. Everything else, and the signal of a put, is a request that the target
//! answers. A put of few bytes may be one packet ([`super::short`]).

use std::collections::VecDeque;

use weft_fabric::{
    Command, Completion, Notification, Operation as Asked, OperationError, Peer, Register,
    RemoteKey, Report, Side, Signal, Source, Target, Timed, Value,
};
use weft_libfabric::{Error, Registration};

use super::bounce::HeldMemory;
use super::bulk::{Flight, Piece};
use super::pair::{Fence, Held, Known, Out};
use super::wanted::{Into, Wanted};
use super::{Engine, Queued};
use crate::nic::Nic;
use crate::packet::{Answer, Request, Told};

/// The receiver of the news of the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The program, by a completion.
    Event,
    /// The window that waits.
    Window,
    /// A fence of all peers.
    Fence(u64),
    /// Fences and orders that wait for a flush.
    Flush,
    /// Operations and calls that wait for a key.
    Key(RemoteKey),
}

/// How far an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// It waits behind an order, or for its keys.
    Waiting,
    /// The NIC moves its bytes.
    Moving,
    /// The target has to do something.
    Asking,
    /// It has ended. The NIC may still use its memory.
    Over,
}

/// The action of an operation.
#[derive(Clone, Debug)]
pub(super) enum What {
    Put(Option<Signal>),
    Get,
    Ask(Request),
    Fence,
}

/// An operation that has not ended, or whose memory the NIC may still use.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) peer: u32,
    pub(super) what: What,
    pub(super) command: Option<Command>,
    /// The key, offset and length for notifications.
    range: (RemoteKey, u64, u64),
    asked: Asked,
    reply: Reply,
    pub(super) stage: Stage,
    /// The ranges of the peer, with their lengths, and where their bytes are here.
    pub(super) ranges: Vec<(Target, usize, (Registration, usize))>,
    /// The pieces that the NIC does not have yet.
    pub(super) pieces: VecDeque<Piece>,
    /// The pieces that the NIC has.
    pub(super) moving: Flight,
    /// The NIC has got a piece.
    pub(super) touched: bool,
    pub(super) error: Option<OperationError>,
    kept: Vec<HeldMemory>,
    /// Messages and notifications that had left before its request.
    sent_after: u64,
}

impl Operation {
    fn new(peer: u32, what: What, asked: Asked, reply: Reply) -> Self {
        Self {
            peer,
            what,
            command: None,
            range: (RemoteKey(0), 0, 0),
            asked,
            reply,
            stage: Stage::Waiting,
            ranges: Vec::new(),
            pieces: VecDeque::new(),
            moving: Flight::default(),
            touched: false,
            error: None,
            kept: Vec::new(),
            sent_after: 0,
        }
    }

    /// The request that waits to be sent.
    pub fn request(&self) -> Option<Request> {
        match (self.stage, &self.what) {
            (Stage::Asking, What::Ask(request)) => Some(*request),
            (Stage::Asking, What::Put(Some(signal))) => {
                Some(Request::Signal(signal.target, signal.change))
            }
            _ => None,
        }
    }

    /// Its request has left, behind so many messages and notifications.
    pub fn asked(&mut self, sent_after: u64) {
        self.sent_after = sent_after;
        self.touched = true;
    }

    /// Whether it writes bytes, no more, and the NIC has all of them.
    pub(super) fn has_left(&self) -> bool {
        let is_moving = self.stage == Stage::Moving && self.pieces.is_empty();
        is_moving && matches!(self.what, What::Put(None)) && self.error.is_none()
    }

    /// Its value for the program, where the peer answered with this word.
    const fn value(&self, word: u64) -> Value {
        match &self.what {
            What::Ask(Request::Atomic(_, atomic)) if atomic.fetches => Value::Word(word),
            _ => Value::Nothing,
        }
    }

    fn notifies_peer(&self) -> bool {
        let notify = self.asked.notify;
        match self.command {
            Some(Command::Put | Command::ImmediatePut) => notify.completer(),
            Some(_) => notify.responder(),
            None => false,
        }
    }

    /// Whether the NIC may be using the memory of this key.
    pub fn uses(&self, key: RemoteKey) -> bool {
        !self.moving.is_over() && self.ranges.iter().any(|(target, ..)| target.key == key)
    }

    pub const fn peer(&self) -> u32 {
        self.peer
    }
}

impl<N: Nic> Engine<N> {
    /// Starts an operation and returns its number.
    pub(crate) fn issue(
        &mut self,
        to: Peer,
        wanted: Wanted<'_>,
        asked: Asked,
        reply: Reply,
    ) -> Result<u64, OperationError> {
        self.try_issue(to, wanted, asked, reply).map_err(|error| self.count_refusal(error))
    }

    /// Counts a refused call.
    pub(crate) fn count_refusal(&mut self, error: OperationError) -> OperationError {
        let refused = error == OperationError::WouldBlock;
        self.count(if refused { Register::Refused } else { Register::Errors }, 1);
        error
    }

    fn try_issue(
        &mut self,
        to: Peer,
        wanted: Wanted<'_>,
        asked: Asked,
        reply: Reply,
    ) -> Result<u64, OperationError> {
        self.pair(to)?;
        let command = wanted.command();
        if let Some(command) = command {
            asked.notify.check(command)?;
        }
        wanted.check_local()?;
        if let Some(short) = self.short_of(to.0, &wanted, asked, reply) {
            return self.issue_short(to.0, short);
        }
        if reply == Reply::Event && self.places >= self.capabilities.operations_max {
            self.starved.insert(to.0);
            return Err(OperationError::WouldBlock);
        }
        let range = wanted.range();
        let mut operation = Operation::new(to.0, What::Fence, asked, reply);
        (operation.command, operation.range) = (command, range);
        let notifies = operation.notifies_peer();
        if notifies {
            self.take_notification_room(to.0)?;
        }
        if command == Some(Command::ImmediatePut) && asked.report == Report::Errors {
            // The target finds this one. With the key known, the next ones are short puts.
            self.learn(to.0, range.0);
        }
        if asked.ordered {
            // Later operations wait, too, where it is no short put.
            self.order(to)?;
        }
        if let Err(error) = self.find_memory(&mut operation, wanted) {
            self.give_back(std::mem::take(&mut operation.kept));
            if notifies && let Some(pair) = self.pair_mut(to.0) {
                pair.sending.notifications -= 1;
            }
            return Err(OperationError::Provider { reason: error.to_string() });
        }
        let number = self.next_number();
        if reply == Reply::Event {
            self.places += 1;
            match command {
                Some(Command::Put | Command::ImmediatePut) => {
                    self.count(Register::Puts, 1);
                    self.time(number, Timed::Put);
                }
                Some(Command::Get) => {
                    self.count(Register::Gets, 1);
                    self.time(number, Timed::Get);
                }
                Some(Command::Atomic) => self.count(Register::Atomics, 1),
                _ => {}
            }
        }
        let later = notifies.then(|| Out::Later(number, operation.told()));
        self.operations.insert(number, operation);
        let Some(pair) = self.pair_mut(to.0) else { return Err(OperationError::PeerDown) };
        if pair.order.held.is_empty() && pair.order.behind > pair.order.confirmed {
            let called = pair.order.behind;
            pair.order.held.push_back(Held::Order(Fence { operation: number, called }));
        }
        pair.order.open.insert(number);
        let waits = !pair.order.held.is_empty();
        if waits {
            pair.order.held.push_back(Held::Operation(number));
        }
        if let Some(later) = later {
            pair.post(later);
        }
        if !waits {
            self.start(number);
        }
        self.send(to.0);
        Ok(number)
    }

    /// Finds the memory of an operation at this end. Bytes are captured.
    fn find_memory(&mut self, operation: &mut Operation, wanted: Wanted<'_>) -> Result<(), Error> {
        let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        match wanted {
            Wanted::Put(ranges, signal) => {
                for (source, target) in ranges {
                    let length = place(source.length());
                    let (kept, registration, start) = match source {
                        Source::Region(range) => {
                            let region = range.region.clone();
                            let registration = region.registration();
                            (HeldMemory::Region(region), registration, place(range.offset))
                        }
                        Source::Bytes(bytes) => {
                            let taken = self.bounce.take(&mut self.nic, length)?;
                            self.bounce.write(&taken.0, bytes);
                            taken
                        }
                    };
                    operation.kept.push(kept);
                    operation.ranges.push((target, length, (registration, start)));
                }
                operation.what = What::Put(signal);
            }
            Wanted::Get(ranges) => {
                for (source, into) in ranges {
                    let length = place(into.length());
                    let (kept, registration, start) = match into {
                        Into::Region(region, offset, _) => {
                            let registration = region.registration();
                            (HeldMemory::Region(region), registration, place(offset))
                        }
                        Into::Window(_) => self.bounce.take(&mut self.nic, length)?,
                    };
                    operation.kept.push(kept);
                    operation.ranges.push((source, length, (registration, start)));
                }
                operation.what = What::Get;
            }
            Wanted::Ask(_, request, _) => operation.what = What::Ask(request),
        }
        Ok(())
    }

    /// Starts a fence, and returns its number.
    pub(crate) fn fence(
        &mut self,
        to: Peer,
        context: u64,
    ) -> Result<weft_fabric::Issued, OperationError> {
        let idle = self.pair(to).map(super::pair::Pair::is_idle);
        if idle.map_err(|error| self.count_refusal(error))? {
            return Ok(weft_fabric::Issued::Done(Value::Nothing));
        }
        if self.places >= self.capabilities.operations_max {
            self.starved.insert(to.0);
            return Err(self.count_refusal(OperationError::WouldBlock));
        }
        self.places += 1;
        let number = self.begin_fence(to.0, context, Reply::Event);
        self.start_fence(to.0, number);
        self.send(to.0);
        Ok(weft_fabric::Issued::Pending)
    }

    /// Adds an operation that moves nothing.
    fn add(&mut self, peer: u32, what: What, context: u64, reply: Reply) -> u64 {
        let number = self.next_number();
        let mut operation = Operation::new(peer, what, Asked::new(context), reply);
        if matches!(operation.what, What::Ask(_)) {
            operation.stage = Stage::Asking;
        }
        self.operations.insert(number, operation);
        number
    }

    pub(super) fn begin_fence(&mut self, handle: u32, context: u64, reply: Reply) -> u64 {
        self.add(handle, What::Fence, context, reply)
    }

    /// Asks a peer for something that no program asked for.
    pub(super) fn ask(&mut self, handle: u32, request: Request, reply: Reply) {
        let number = self.add(handle, What::Ask(request), 0, reply);
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.asks.push_back(number);
            self.give_turn(handle);
        }
    }

    /// Starts an operation that nothing holds, as far as its keys are known.
    pub(super) fn start(&mut self, number: u64) {
        let Some(operation) = self.operations.get(&number) else { return };
        if operation.stage != Stage::Waiting {
            return;
        }
        let handle = operation.peer;
        if matches!(operation.what, What::Ask(_)) {
            return self.begin_asking(number);
        }
        let signal = match operation.what {
            What::Put(signal) => signal,
            _ => None,
        };
        let keys = operation.ranges.iter().map(|(target, ..)| target.key);
        let keys: Vec<_> = keys.chain(signal.map(|signal| signal.target.key)).collect();
        for key in keys {
            if !self.is_known(handle, key, number) {
                return;
            }
        }
        match self.plan(number) {
            Ok(pieces) => self.begin_moving(number, pieces),
            Err(error) => self.end(number, Err(error)),
        }
    }

    pub(super) fn begin_asking(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        operation.stage = Stage::Asking;
        let handle = operation.peer;
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.asks.push_back(number);
            self.give_turn(handle);
        }
    }

    /// The target has answered.
    pub(super) fn answered(
        &mut self,
        handle: u32,
        number: u64,
        result: Result<Answer, OperationError>,
    ) {
        let result = match result {
            Err(error) if self.refuse_short(handle, number, &error) => return,
            result => result,
        };
        let asked = self.operations.get(&number);
        let asked = asked.filter(|operation| operation.peer == handle && operation.touched);
        let Some(asked) = asked.filter(|operation| operation.stage == Stage::Asking) else {
            return self.expel(handle, weft_fabric::DownReason::Misbehaved);
        };
        let (sent_after, reply) = (asked.sent_after, asked.reply);
        if let Some(pair) = self.pair_mut(handle) {
            pair.sending.asked -= 1;
            self.give_turn(handle);
        }
        self.confirm(handle, sent_after);
        match (reply, result) {
            (Reply::Key(key), result) => {
                self.operations.remove(&number);
                let range = match result {
                    Ok(Answer::Range(range)) => Ok(range),
                    Ok(Answer::Value(_)) => Err(OperationError::InvalidKey),
                    Err(error) => Err(error),
                };
                self.key_is_known(handle, key, range);
            }
            (_, Ok(Answer::Value(value))) => self.end(number, Ok(value)),
            (_, Ok(Answer::Range(_))) => self.end(number, Err(OperationError::InvalidKey)),
            (_, Err(error)) => self.end(number, Err(error)),
        }
    }

    /// Ends an operation.
    pub(super) fn end(&mut self, number: u64, result: Result<u64, OperationError>) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.stage == Stage::Over {
            return;
        }
        operation.stage = Stage::Over;
        operation.pieces.clear();
        let (handle, reply, asked) = (operation.peer, operation.reply, operation.asked);
        let (command, length) = (operation.command, operation.range.2);
        let notifies = operation.notifies_peer();
        let is_good = result.is_ok();
        let value = result.clone().map(|word| operation.value(word));
        let own = if is_good { self.own_notifications(number) } else { Vec::new() };
        let bytes = match (reply, self.operations.get(&number)) {
            (Reply::Window, Some(operation)) => {
                let length = operation.ranges.first().map_or(0, |(_, length, _)| *length);
                operation.kept.first().map(|kept| self.bounce.read(kept, length))
            }
            _ => None,
        };
        if self.operations.get(&number).is_some_and(|operation| operation.moving.is_over()) {
            self.remove(number);
        }
        if let Some(pair) = self.pair_mut(handle) {
            pair.order.open.remove(&number);
            pair.order.flushing &= reply != Reply::Flush;
            if notifies {
                pair.settle(number, is_good);
                if !is_good {
                    pair.sending.notifications = pair.sending.notifications.saturating_sub(1);
                    self.tell_room(handle);
                }
            }
            self.give_turn(handle);
        }
        self.release_keys(handle);
        self.timed(number, is_good);
        if !is_good {
            self.count(Register::Errors, 1);
        } else if reply == Reply::Event {
            match command {
                Some(Command::Put | Command::ImmediatePut) => {
                    self.count(Register::PutBytes, length);
                }
                Some(Command::Get) => self.count(Register::GetBytes, length),
                _ => {}
            }
        }
        match reply {
            Reply::Event if asked.report == Report::Errors && is_good => {
                // The last notification holds the place until the program takes it.
                let last = own.len();
                for (place, notification) in (1..).zip(own) {
                    self.events.push_back(Queued::Own(notification, place == last));
                }
                if last == 0 {
                    self.free_place();
                }
            }
            Reply::Event => {
                for notification in own {
                    self.events.push_back(Queued::Own(notification, false));
                }
                let completion = Completion { context: asked.context, result: value };
                self.events.push_back(Queued::Completion(completion));
            }
            Reply::Window => {
                let result = result.map(|value| (value, bytes.unwrap_or_default()));
                self.window_results.insert(number, result);
            }
            Reply::Fence(all) => self.fence_passed(all),
            Reply::Flush | Reply::Key(_) => {}
        }
    }

    /// The notifications for the initiator of an operation that ended well.
    fn own_notifications(&self, number: u64) -> Vec<Notification> {
        let Some(operation) = self.operations.get(&number) else { return Vec::new() };
        let Some(command) = operation.command else { return Vec::new() };
        let notify = operation.asked.notify;
        let is_put = matches!(command, Command::Put | Command::ImmediatePut);
        let sides = [
            (Side::Requester, notify.requester()),
            (Side::Completer, notify.completer() && !is_put),
        ];
        let source = self.peer_address(Peer(operation.peer)).unwrap_or(self.address);
        let (key, offset, length) = operation.range;
        let wanted = sides.into_iter().filter(|(_, wanted)| *wanted);
        wanted
            .map(|(side, _)| Notification {
                side,
                command,
                peer: Peer(operation.peer),
                source,
                operation: operation.asked.context,
                key,
                offset,
                length,
                class: notify.class,
                immediate: notify.immediate,
            })
            .collect()
    }

    /// Ends all operations on a peer that is down.
    pub(super) fn end_operations(&mut self, handle: u32) {
        let on_it = |(number, operation): (&u64, &Operation)| {
            (operation.peer == handle && operation.stage != Stage::Over).then_some(*number)
        };
        let numbers: Vec<u64> = self.operations.iter().filter_map(on_it).collect();
        for number in numbers {
            self.end(number, Err(OperationError::PeerDown));
        }
        self.end_short_puts(handle);
        let Some(pair) = self.pair_mut(handle) else { return };
        let mut calls = Vec::new();
        for (_, known) in std::mem::take(&mut pair.keys) {
            if let Known::Asked { calls: waiting, .. } = known {
                calls.extend(waiting);
            }
        }
        for context in calls {
            let completion = Completion { context, result: Err(OperationError::PeerDown) };
            self.events.push_back(Queued::Ended(completion));
        }
    }

    /// Gives up the operation of `context`, if nothing of it has left.
    pub(crate) fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError> {
        self.check_peer(to)?;
        let is_it = |operation: &Operation| {
            operation.peer == to.0
                && operation.asked.context == context
                && operation.reply == Reply::Event
                && !operation.touched
                && operation.stage != Stage::Over
                && operation.command.is_some()
        };
        let found = self.operations.iter().find(|(_, operation)| is_it(operation));
        if let Some(number) = found.map(|(number, _)| *number) {
            self.end(number, Err(OperationError::Cancelled));
            self.send(to.0);
        }
        Ok(())
    }

    /// The result of an access through a window.
    pub(crate) fn take_window_result(
        &mut self,
        number: u64,
    ) -> Option<Result<(u64, Vec<u8>), OperationError>> {
        self.window_results.remove(&number)
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(operation) = self.operations.remove(&number) {
            self.give_back(operation.kept);
        }
    }

    fn give_back(&mut self, kept: Vec<HeldMemory>) {
        for kept in kept {
            self.bounce.give_back(&mut self.nic, kept);
        }
    }

    /// Whether the NIC may be using memory of a peer by this key.
    pub(super) fn is_in_use(&self, handle: u32, key: RemoteKey) -> bool {
        self.operations.values().any(|operation| operation.peer() == handle && operation.uses(key))
    }
}

impl Operation {
    /// The notification for the peer.
    fn told(&self) -> Told {
        let command = self.command.unwrap_or(Command::Put);
        let is_put = matches!(command, Command::Put | Command::ImmediatePut);
        Told {
            side: if is_put { Side::Completer } else { Side::Responder },
            command,
            class: self.asked.notify.class,
            range: self.range,
            context: self.asked.context,
            immediate: self.asked.notify.immediate,
        }
    }
}
