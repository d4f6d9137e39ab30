//! The rig: endpoints under test, their events so far, and bounded waits.
//!
//! Invariants: events are kept for each endpoint in the order in which it passed them on. Nothing
//! here reads a clock. A wait without any event for [`TURNS_IDLE_MAX`] turns panics and names the
//! missing condition.

use std::collections::BTreeSet;
use std::time::Duration;

use weft_fabric::{
    Access, Audience, Completion, ConnectError, DownReason, Endpoint, EndpointAddress,
    EndpointOptions, Event, GrantError, Group, GroupError, InviteError, Issued, LocalRange,
    MessageHeader, Notification, OperationError, Peer, Region, RemoteKey, Revoked, SendError,
    Ticket, Value,
};

use crate::Bench;

/// A wait fails after this many turns without an event.
const TURNS_IDLE_MAX: usize = 20_000;
/// The fabric counts as quiet after this many turns without an event.
const TURNS_QUIET: usize = 16;
/// Events that one endpoint may pass on in one turn.
const BUDGET: usize = 64;

/// A received message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mail {
    /// The sender's handle.
    pub peer: Peer,
    /// The sender.
    pub source: EndpointAddress,
    /// Its tag and type.
    pub header: MessageHeader,
    /// The group to which it was sent; `None` for unicast.
    pub group: Option<Group>,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// A received event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// [`Event::Message`].
    Message(Mail),
    /// [`Event::Notification`].
    Notification(Notification),
    /// [`Event::Completion`].
    Completion(Completion),
    /// [`Event::PeerDown`].
    PeerDown(EndpointAddress),
    /// [`Event::Room`].
    Room(Peer),
    /// [`Event::GroupRoom`].
    GroupRoom(Group),
}

impl From<Event<'_>> for Seen {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Message(message) => Self::Message(Mail {
                peer: message.peer,
                source: message.source,
                header: message.header,
                group: message.group,
                payload: message.payload.to_vec(),
            }),
            Event::Notification(notification) => Self::Notification(notification),
            Event::Completion(completion) => Self::Completion(completion),
            Event::PeerDown { address, .. } => Self::PeerDown(address),
            Event::Room { peer } => Self::Room(peer),
            Event::GroupRoom { group } => Self::GroupRoom(group),
        }
    }
}

/// The report of a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Down {
    /// The handle of the peer.
    pub peer: Peer,
    /// Its address.
    pub address: EndpointAddress,
    /// Why it is down.
    pub reason: DownReason,
}

struct Station<E> {
    endpoint: E,
    seen: Vec<Seen>,
    /// The reports of deaths so far.
    downs: Vec<Down>,
    /// Contexts of operations that have completed. A completion with one of these is an error.
    done: BTreeSet<u64>,
}

/// A fabric with endpoints, numbered in the order of their opening.
pub struct Rig<B: Bench> {
    /// The bench, for calls that the rig does not wrap.
    pub bench: B,
    stations: Vec<Option<Station<B::Endpoint>>>,
    context: u64,
}

impl<B: Bench> Rig<B> {
    /// A new fabric with `count` endpoints of the default partition. The first endpoint is on one
    /// node, the others are on other nodes if the transport has more.
    ///
    /// # Panics
    /// When the transport refuses to open an endpoint.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let mut rig = Self::with_services("");
        let options = EndpointOptions::default();
        for number in 0..count {
            let opened =
                if number == 0 { rig.bench.open(&options) } else { rig.bench.open_apart(&options) };
            rig.add(opened.expect("a fresh fabric has room for endpoints"));
        }
        rig
    }

    /// A new fabric under these rules for services, without endpoints.
    #[must_use]
    pub fn with_services(rules: &str) -> Self {
        Self { bench: B::with_services(rules), stations: Vec::new(), context: 0x1000 }
    }

    /// Adds an endpoint and returns its number.
    pub fn add(&mut self, endpoint: B::Endpoint) -> usize {
        let (seen, downs, done) = (Vec::new(), Vec::new(), BTreeSet::new());
        self.stations.push(Some(Station { endpoint, seen, downs, done }));
        self.stations.len() - 1
    }

    /// Removes an endpoint.
    pub fn remove(&mut self, number: usize) -> B::Endpoint {
        self.stations[number].take().expect("the endpoint is in the rig").endpoint
    }

    /// Kills an endpoint; see [`Bench::kill`].
    pub fn kill(&mut self, number: usize) -> bool {
        let endpoint = self.remove(number);
        self.bench.kill(endpoint)
    }

    /// The endpoint with this number.
    pub fn endpoint(&mut self, number: usize) -> &mut B::Endpoint {
        &mut self.station(number).endpoint
    }

    /// The address of an endpoint.
    pub fn address(&mut self, number: usize) -> EndpointAddress {
        self.endpoint(number).address()
    }

    /// Connects one endpoint to another.
    ///
    /// # Panics
    /// When the transport refuses.
    pub fn connect(&mut self, from: usize, to: usize) -> Peer {
        let address = self.address(to);
        self.try_connect(from, address).expect("the endpoint is open")
    }

    /// Connects an endpoint to an address.
    ///
    /// # Errors
    /// [`ConnectError`] of the call or of the completion.
    pub fn try_connect(&mut self, from: usize, to: EndpointAddress) -> Result<Peer, ConnectError> {
        let context = self.context();
        let issued = self.endpoint(from).connect(to, context)?;
        match self.finish(from, context, Ok(issued)) {
            Ok(Value::Peer(peer)) => Ok(peer),
            Ok(value) => panic!("a connect ended with {value:?}"),
            Err(OperationError::Connect(error)) => Err(error),
            Err(other) => panic!("a connect ended with {other:?}"),
        }
    }

    /// Grants `access` to all of a region to the partition.
    ///
    /// # Errors
    /// [`GrantError`] of the call or of the completion.
    pub fn grant(
        &mut self,
        number: usize,
        region: &RegionOf<B>,
        access: Access,
    ) -> Result<RemoteKey, GrantError> {
        self.grant_range(number, LocalRange::whole(region), Audience::Partition, access)
    }

    /// Grants `access` to a range of a region.
    ///
    /// # Errors
    /// As [`Rig::grant`].
    pub fn grant_range(
        &mut self,
        number: usize,
        range: LocalRange<'_, RegionOf<B>>,
        audience: Audience,
        access: Access,
    ) -> Result<RemoteKey, GrantError> {
        let context = self.context();
        let issued = self.endpoint(number).grant(range, audience, access, context)?;
        let value = right_of(self.finish(number, context, Ok(issued)))?;
        Ok(value.key().expect("the value of a grant is a key"))
    }

    /// Revokes a key.
    ///
    /// # Errors
    /// As [`Rig::grant`].
    pub fn revoke(&mut self, number: usize, key: RemoteKey) -> Result<Revoked, GrantError> {
        let context = self.context();
        let issued = self.endpoint(number).revoke(key, context)?;
        let value = right_of(self.finish(number, context, Ok(issued)))?;
        Ok(value.revoked().expect("the value of a revocation says how it ended"))
    }

    /// Opens a window. `None` if the bench has none, and says so.
    ///
    /// # Panics
    /// When the transport refuses for another reason, or does not refuse.
    pub fn window(
        &mut self,
        number: usize,
        peer: Peer,
        key: RemoteKey,
    ) -> Option<<B::Endpoint as Endpoint>::Window> {
        let opened = self.endpoint(number).window(peer, key);
        if self.bench.has_windows() {
            return Some(opened.expect("the key is valid"));
        }
        assert_eq!(opened.err(), Some(OperationError::NotMapped));
        None
    }

    /// Makes a ticket.
    ///
    /// # Errors
    /// [`InviteError`] of the call or of the completion.
    pub fn invite(&mut self, number: usize, within: Duration) -> Result<Ticket, InviteError> {
        let context = self.context();
        let (ticket, issued) = self.endpoint(number).invite(within, context)?;
        match self.finish(number, context, Ok(issued)) {
            Ok(_) => Ok(ticket),
            Err(OperationError::Invite(error)) => Err(error),
            Err(other) => panic!("an invitation ended with {other:?}"),
        }
    }

    /// Joins a group.
    ///
    /// # Errors
    /// [`GroupError`] of the call or of the completion.
    pub fn join(&mut self, number: usize, group: Group) -> Result<(), GroupError> {
        let context = self.context();
        let issued = self.endpoint(number).join(group, context)?;
        self.group_changed(number, context, issued)
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// As [`Rig::join`].
    pub fn leave(&mut self, number: usize, group: Group) -> Result<(), GroupError> {
        let context = self.context();
        let issued = self.endpoint(number).leave(group, context)?;
        self.group_changed(number, context, issued)
    }

    fn group_changed(
        &mut self,
        number: usize,
        context: u64,
        issued: Issued,
    ) -> Result<(), GroupError> {
        match self.finish(number, context, Ok(issued)) {
            Ok(_) => Ok(()),
            Err(OperationError::Group(error)) => Err(error),
            Err(other) => panic!("a change of a group ended with {other:?}"),
        }
    }

    /// Registers memory of an endpoint and grants `access` to all of it.
    ///
    /// # Panics
    /// When the transport refuses.
    pub fn share(
        &mut self,
        number: usize,
        length: u64,
        access: Access,
    ) -> (RegionOf<B>, RemoteKey) {
        let region = self.endpoint(number).register(length).expect("memory is available");
        let key = self.grant(number, &region, access).expect("the grant is valid");
        (region, key)
    }

    /// Registers memory of an endpoint and writes `bytes` to it.
    ///
    /// # Panics
    /// When the transport refuses.
    pub fn local(&mut self, number: usize, bytes: &[u8]) -> <B::Endpoint as Endpoint>::Region {
        let length = u64::try_from(bytes.len()).expect("a length fits 64 bits");
        let region = self.endpoint(number).register(length.max(1)).expect("memory is available");
        region.write(0, bytes).expect("inside the region");
        region
    }

    /// A context that was not used before.
    pub fn context(&mut self) -> u64 {
        self.context += 1;
        self.context
    }

    /// Polls every endpoint once. If there was no event, lets the fabric make progress. Returns the
    /// number of events, and whether the fabric moved.
    pub fn turn(&mut self) -> (usize, bool) {
        let mut events = 0;
        for station in self.stations.iter_mut().flatten() {
            let Station { endpoint, seen, downs, done } = station;
            events += endpoint.poll(BUDGET, &mut |event| {
                if let Event::Completion(completion) = &event {
                    let context = completion.context;
                    assert!(!done.contains(&context), "operation {context:#x} completed twice");
                }
                if let Event::PeerDown { peer, address, reason } = event {
                    downs.push(Down { peer, address, reason });
                }
                seen.push(Seen::from(event));
            });
        }
        let moved = events == 0 && self.bench.progress();
        (events, moved)
    }

    /// Turns the rig until `ready`.
    ///
    /// # Panics
    /// When nothing happens any more before `ready`. The panic message contains `what`.
    pub fn until(&mut self, what: &str, mut ready: impl FnMut(&mut Self) -> bool) {
        let mut idle = 0;
        while !ready(self) {
            let (events, _) = self.turn();
            idle = if events == 0 { idle + 1 } else { 0 };
            assert!(idle < TURNS_IDLE_MAX, "nothing happens any more while waiting for {what}");
        }
    }

    /// Turns the rig until nothing happens any more.
    pub fn settle(&mut self) {
        let mut quiet = 0;
        let mut turns = 0;
        while quiet < TURNS_QUIET {
            let (events, moved) = self.turn();
            quiet = if events == 0 && !moved { quiet + 1 } else { 0 };
            // Some transports always claim to have moved. They count as quiet after many turns
            // without an event.
            turns = if events == 0 { turns + 1 } else { 0 };
            if turns == TURNS_IDLE_MAX {
                return;
            }
        }
    }

    /// Starts an operation and returns its result. Repeats the call while it is refused for lack of
    /// room. `start` gets the endpoint and a new context.
    ///
    /// # Errors
    /// The error of the call or of the completion.
    ///
    /// # Panics
    /// When the operation never completes.
    pub fn run(
        &mut self,
        number: usize,
        mut start: impl FnMut(&mut B::Endpoint, u64) -> Result<Issued, OperationError>,
    ) -> Result<Value, OperationError> {
        let context = self.context();
        let mut issued = Err(OperationError::WouldBlock);
        self.until("room for an operation", |rig| {
            issued = start(rig.endpoint(number), context);
            issued != Err(OperationError::WouldBlock)
        });
        self.finish(number, context, issued)
    }

    /// The result of the operation that was started with `context`.
    ///
    /// # Errors
    /// The error of the call or of the completion.
    ///
    /// # Panics
    /// When the operation never completes, or completes twice.
    pub fn finish(
        &mut self,
        number: usize,
        context: u64,
        issued: Result<Issued, OperationError>,
    ) -> Result<Value, OperationError> {
        match issued {
            Ok(Issued::Done(value)) => {
                self.station(number).done.insert(context);
                Ok(value)
            }
            Ok(Issued::Pending) => {
                let mut result = None;
                self.until("the completion of an operation", |rig| {
                    result = rig.take_completion(number, context);
                    result.is_some()
                });
                self.station(number).done.insert(context);
                result.expect("until() returned")
            }
            Err(error) => Err(error),
        }
    }

    /// Takes the completion of an operation and returns its result.
    pub fn take_completion(
        &mut self,
        number: usize,
        context: u64,
    ) -> Option<Result<Value, OperationError>> {
        let seen = &mut self.station(number).seen;
        let index = seen.iter().position(
            |seen| matches!(seen, Seen::Completion(completion) if completion.context == context),
        )?;
        match seen.remove(index) {
            Seen::Completion(completion) => Some(completion.result),
            _ => unreachable!("the event is a completion"),
        }
    }

    /// Sends a message. Repeats the call while the mailbox is full.
    ///
    /// # Panics
    /// When the message is refused for another reason, or there is never room.
    pub fn send(&mut self, from: usize, to: Peer, header: MessageHeader, parts: &[&[u8]]) {
        self.until("room in a mailbox", |rig| {
            match rig.endpoint(from).send_short(to, header, parts) {
                Ok(()) => true,
                Err(SendError::WouldBlock) => false,
                Err(other) => panic!("the message was refused: {other}"),
            }
        });
    }

    /// Sends a message to a group and returns the number of receivers. Repeats the call while the
    /// members are looked up or a mailbox is full.
    ///
    /// # Errors
    /// [`SendError`] but for [`SendError::WouldBlock`].
    ///
    /// # Panics
    /// When there is never room.
    pub fn multicast(
        &mut self,
        from: usize,
        group: Group,
        header: MessageHeader,
        parts: &[&[u8]],
    ) -> Result<usize, SendError> {
        let mut sent = Err(SendError::WouldBlock);
        self.until("room in a group", |rig| {
            sent = rig.endpoint(from).send_multicast(group, header, parts);
            sent != Err(SendError::WouldBlock)
        });
        let told = |seen: &Seen| *seen != Seen::GroupRoom(group);
        self.station(from).seen.retain(told);
        sent
    }

    /// The events of an endpoint that the case has not taken.
    pub fn seen(&mut self, number: usize) -> &[Seen] {
        &self.station(number).seen
    }

    /// Takes all events of an endpoint.
    pub fn take(&mut self, number: usize) -> Vec<Seen> {
        std::mem::take(&mut self.station(number).seen)
    }

    /// The reports of deaths that an endpoint got.
    pub fn downs(&mut self, number: usize) -> &[Down] {
        &self.station(number).downs
    }

    /// Takes the messages of an endpoint.
    pub fn take_messages(&mut self, number: usize) -> Vec<Mail> {
        let (messages, rest) = self
            .take(number)
            .into_iter()
            .partition::<Vec<_>, _>(|seen| matches!(seen, Seen::Message(_)));
        self.station(number).seen = rest;
        let open = |seen| if let Seen::Message(mail) = seen { Some(mail) } else { None };
        messages.into_iter().filter_map(open).collect()
    }

    /// Takes the notifications of an endpoint.
    pub fn take_notifications(&mut self, number: usize) -> Vec<Notification> {
        let (notifications, rest) = self
            .take(number)
            .into_iter()
            .partition::<Vec<_>, _>(|seen| matches!(seen, Seen::Notification(_)));
        self.station(number).seen = rest;
        let open = |seen| {
            if let Seen::Notification(notification) = seen { Some(notification) } else { None }
        };
        notifications.into_iter().filter_map(open).collect()
    }

    /// Waits for `count` messages and takes them.
    pub fn messages(&mut self, number: usize, count: usize) -> Vec<Mail> {
        let mut messages = Vec::new();
        self.until("messages", |rig| {
            messages.extend(rig.take_messages(number));
            messages.len() >= count
        });
        messages
    }

    /// Waits for `count` notifications and takes them.
    pub fn notifications(&mut self, number: usize, count: usize) -> Vec<Notification> {
        let mut notifications = Vec::new();
        self.until("notifications", |rig| {
            notifications.extend(rig.take_notifications(number));
            notifications.len() >= count
        });
        notifications
    }

    fn station(&mut self, number: usize) -> &mut Station<B::Endpoint> {
        self.stations[number].as_mut().expect("the endpoint is in the rig")
    }
}

/// The regions of a bench's endpoints.
pub type RegionOf<B> = <<B as Bench>::Endpoint as Endpoint>::Region;

fn right_of(result: Result<Value, OperationError>) -> Result<Value, GrantError> {
    result.map_err(|error| match error {
        OperationError::Grant(error) => error,
        other => panic!("a change of rights ended with {other:?}"),
    })
}

/// Bytes that look random and depend only on the seed.
#[must_use]
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.extend_from_slice(&(mixed ^ (mixed >> 27)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
