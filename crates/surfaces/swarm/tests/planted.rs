//! Planted faults: an endpoint that breaks a promise of the fabric is found within 400 seeds.
//!
//! Each fault is planted once in a life of an endpoint or seldom, as real ones are. A run that is
//! found must pass without the fault.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Capabilities, ConnectError, Endpoint, EndpointAddress, Event,
    GrantError, Group, GroupError, InviteError, Issued, LocalRange, MessageHeader, Operation,
    OperationError, PartitionId, Peer, Reach, Register, RegisterError, RemoteKey, Request,
    SendError, Source, Ticket, Value, Waited, WindowError,
};
use weft_swarm::{Kind, Plan, Violation, run, run_over};
use weft_transport_sim::{SimEndpoint, SimRegion, SimWindow};

/// A promise that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// A report of room is swallowed.
    LostWakeup,
    /// A notification is swallowed, by which an end of a lane is rung.
    LostRing,
    /// A message is handed out twice.
    DoubleDelivery,
    /// Two messages that come together are handed out in the other order.
    Reordered,
    /// A region stays although its holders let it go.
    LeakedRegion,
    /// A key stays in force although its revocation ended.
    LeakedKey,
    /// An operation ends without a completion.
    LostCompletion,
    /// A put writes another byte than it was given.
    DamagedPut,
}

/// Events of this number and its multiples are the ones that the fault meets.
const ONE_OF: u32 = 3;

struct Faulty {
    inner: SimEndpoint,
    strikes: Strikes,
    leaked: Arc<Mutex<Vec<SimRegion>>>,
}

/// Decides when the fault happens.
struct Strikes {
    fault: Fault,
    events: u32,
}

/// A message, as it waits to be handed out behind a later one.
type Held = (Peer, EndpointAddress, MessageHeader, Vec<u8>);

impl Strikes {
    fn strike(&mut self) -> bool {
        self.events += 1;
        self.events.is_multiple_of(ONE_OF)
    }

    /// Hands out an event, as the fault has it.
    fn pass(&mut self, event: Event<'_>, held: &mut Option<Held>, sink: &mut dyn FnMut(Event<'_>)) {
        match (self.fault, event) {
            (Fault::LostWakeup, Event::Room { .. }) if self.strike() => {}
            (Fault::LostRing, Event::Notification(_)) if self.strike() => {}
            (Fault::LostCompletion, Event::Completion(_)) if self.strike() => {}
            (Fault::DoubleDelivery, Event::Message(message)) if self.strike() => {
                sink(Event::Message(message));
                sink(Event::Message(message));
            }
            (Fault::Reordered, Event::Message(message)) if message.group.is_none() => {
                let is_of = |held: &Held| held.0 == message.peer;
                if held.is_none() && self.strike() {
                    let payload = message.payload.to_vec();
                    *held = Some((message.peer, message.source, message.header, payload));
                    return;
                }
                let turn = held.as_ref().is_some_and(is_of);
                sink(Event::Message(message));
                if turn {
                    release(held, sink);
                }
            }
            (_, event) => sink(event),
        }
    }
}

fn release(held: &mut Option<Held>, sink: &mut dyn FnMut(Event<'_>)) {
    if let Some((peer, source, header, payload)) = held.take() {
        let message = weft_fabric::Message { peer, source, header, group: None, payload: &payload };
        sink(Event::Message(message));
    }
}

/// Calls that go to the endpoint of the simulator as they are.
macro_rules! pass_on {
    ($(fn $name:ident(&mut self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&mut self $(, $arg: $type)*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}

impl Endpoint for Faulty {
    type Region = SimRegion;
    type Window = SimWindow;

    fn address(&self) -> EndpointAddress {
        self.inner.address()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn partition(&self) -> PartitionId {
        self.inner.partition()
    }

    fn host(&self) -> Option<EndpointAddress> {
        self.inner.host()
    }

    fn peer_address(&self, peer: Peer) -> Option<EndpointAddress> {
        self.inner.peer_address(peer)
    }

    fn register_value(&self, register: Register) -> u64 {
        self.inner.register_value(register)
    }

    fn register(&mut self, length: u64) -> Result<SimRegion, RegisterError> {
        let region = self.inner.register(length)?;
        // Some programs have few regions.
        if self.strikes.fault == Fault::LeakedRegion {
            self.leaked.lock().expect("one thread").push(region.clone());
        }
        Ok(region)
    }

    fn revoke(&mut self, key: RemoteKey, context: u64) -> Result<Issued, GrantError> {
        if self.strikes.fault == Fault::LeakedKey && self.strikes.strike() {
            return Ok(Issued::Done(Value::Nothing));
        }
        self.inner.revoke(key, context)
    }

    fn issue(
        &mut self,
        to: Peer,
        request: Request<'_, SimRegion>,
        operation: Operation,
    ) -> Result<Issued, OperationError> {
        if let Request::Put { ranges: [(Source::Bytes(bytes), target)] } = request
            && self.strikes.fault == Fault::DamagedPut
            && self.strikes.strike()
        {
            let mut bytes = bytes.to_vec();
            bytes[0] ^= 1;
            let ranges = &[(Source::Bytes(&bytes), *target)];
            return self.inner.issue(to, Request::Put { ranges }, operation);
        }
        self.inner.issue(to, request, operation)
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        let mut held = None;
        let Self { inner, strikes, .. } = self;
        let polled = inner.poll(budget, &mut |event| strikes.pass(event, &mut held, sink));
        release(&mut held, sink);
        polled
    }

    pass_on! {
        fn invite(&mut self, within: Duration, context: u64)
            -> Result<(Ticket, Issued), InviteError>;
        fn connect(&mut self, to: EndpointAddress, context: u64) -> Result<Issued, ConnectError>;
        fn disconnect(&mut self, peer: Peer) -> Result<(), OperationError>;
        fn reach(&mut self, peer: Peer) -> Result<Reach, OperationError>;
        fn send_short(&mut self, to: Peer, header: MessageHeader, parts: &[&[u8]])
            -> Result<(), SendError>;
        fn send_multicast(&mut self, group: Group, header: MessageHeader, parts: &[&[u8]])
            -> Result<usize, SendError>;
        fn join(&mut self, group: Group, context: u64) -> Result<Issued, GroupError>;
        fn leave(&mut self, group: Group, context: u64) -> Result<Issued, GroupError>;
        fn grant(
            &mut self,
            range: LocalRange<'_, SimRegion>,
            audience: Audience,
            access: Access,
            context: u64
        ) -> Result<Issued, GrantError>;
        fn resolve(&mut self, of: Peer, key: RemoteKey, context: u64)
            -> Result<Issued, OperationError>;
        fn put_notification(&mut self, to: Peer, class: u8, value: u64)
            -> Result<(), OperationError>;
        fn order(&mut self, to: Peer) -> Result<(), OperationError>;
        fn fence_all(&mut self, context: u64) -> Result<Issued, OperationError>;
        fn cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError>;
        fn window(&mut self, to: Peer, key: RemoteKey) -> Result<SimWindow, WindowError>;
        fn finish(&mut self, context: u64, timeout: Duration)
            -> Option<Result<Value, OperationError>>;
        fn wait(&mut self, timeout: Option<Duration>) -> Waited;
        fn arm(&mut self) -> Armed;
    }
}

/// The first seed of 100 that finds a fault, and how.
fn found(run_with: &impl Fn(&Plan) -> Result<(), Violation>, kind: Kind) -> Option<Violation> {
    (0..400).find_map(|seed| {
        let plan = Plan { kinds: vec![kind], ..Plan::new(seed) };
        let violation = run_with(&plan).err()?;
        assert!(run(&plan).is_ok(), "seed {seed} fails without a fault");
        Some(violation)
    })
}

/// Plants a fault in each of these kinds, and checks that its sign is seen.
fn are_found(fault: Fault, kinds: &[(Kind, &str)]) {
    let planted = |plan: &Plan| {
        let leaked = Arc::default();
        let wrap = |inner| {
            let strikes = Strikes { fault, events: 0 };
            Faulty { inner, strikes, leaked: Arc::clone(&leaked) }
        };
        run_over(plan, &wrap).map(drop)
    };
    check(&format!("{fault:?}"), planted, kinds);
}

fn check(name: &str, planted: impl Fn(&Plan) -> Result<(), Violation>, kinds: &[(Kind, &str)]) {
    let mut missed = Vec::new();
    for (kind, sign) in kinds {
        let Some(violation) = found(&planted, *kind) else {
            missed.push(format!("{name} is not found in {kind:?}"));
            continue;
        };
        let reason: String = violation.reason.chars().take(160).collect();
        println!("{name} in {kind:?}: seed {}, {reason}", violation.seed);
        if !violation.reason.contains(sign) {
            missed.push(format!("{name} in {kind:?} shows as {reason}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_lost_wakeup_is_found() {
    // A port asks again by itself: it needs no wakeup.
    are_found(
        Fault::LostWakeup,
        &[
            (Kind::Endpoints, "for ever"),
            (Kind::Messages, "for ever"),
            (Kind::Lanes, "sleeps"),
            (Kind::Sockets, "neither made nor refused"),
            (Kind::Transfers, "for ever"),
            (Kind::Sessions, "for ever"),
        ],
    );
    are_found(Fault::LostRing, &[(Kind::Lanes, "sleeps"), (Kind::Sockets, "sleep for ever")]);
}

#[test]
fn a_double_delivery_is_found() {
    are_found(
        Fault::DoubleDelivery,
        &[
            (Kind::Endpoints, "twice"),
            (Kind::Messages, "told that it sent"),
            (Kind::Lanes, "was accepted"),
            (Kind::Sockets, "was accepted"),
            (Kind::Ethernet, "node"),
            (Kind::Transfers, "never came to its end"),
            (Kind::Sessions, "disconnected"),
        ],
    );
}

#[test]
fn a_reordered_message_is_found() {
    // The bytes of a connection are no messages of an endpoint. Mistakes that reorder them are
    // planted in its drivers (`sockets.rs`).
    are_found(
        Fault::Reordered,
        &[
            (Kind::Endpoints, "out of order"),
            (Kind::Messages, ""),
            (Kind::Lanes, "lane"),
            (Kind::Ethernet, "node"),
            (Kind::Transfers, "never came to its end"),
            (Kind::Sessions, ""),
        ],
    );
}

#[test]
fn a_leaked_region_or_key_is_found() {
    are_found(
        Fault::LeakedRegion,
        &[
            (Kind::Endpoints, "region"),
            (Kind::Messages, "region"),
            (Kind::Lanes, "region"),
            (Kind::Sockets, "region"),
            (Kind::Ethernet, "region"),
            (Kind::Transfers, "region"),
            (Kind::Sessions, "region"),
        ],
    );
    are_found(
        Fault::LeakedKey,
        &[
            (Kind::Endpoints, "key"),
            (Kind::Messages, "keys"),
            (Kind::Transfers, "keys"),
            (Kind::Sessions, "keys"),
        ],
    );
}

#[test]
fn an_operation_without_an_end_is_found() {
    are_found(
        Fault::LostCompletion,
        &[
            (Kind::Endpoints, "ended"),
            (Kind::Ethernet, ""),
            (Kind::Transfers, "never came to its end"),
            (Kind::Sessions, ""),
        ],
    );
}

#[test]
fn damaged_bytes_are_found() {
    are_found(
        Fault::DamagedPut,
        &[
            (Kind::Endpoints, ""),
            (Kind::Transfers, "had other bytes"),
            (Kind::Sessions, "other bytes"),
        ],
    );
}

#[test]
fn a_stale_route_is_found() {
    let stale = |plan: &Plan| {
        let mut plan = plan.clone();
        if let Some(network) = &mut plan.settings.network {
            // Routes never heed a change.
            network.reroute_after_ns = 1 << 50;
        }
        run_over(&plan, &|endpoint| endpoint).map(drop)
    };
    let sign = "there was a way all the time";
    let mut kinds = [
        Kind::Endpoints,
        Kind::Messages,
        Kind::Lanes,
        Kind::Sockets,
        Kind::Transfers,
        Kind::Sessions,
    ]
    .map(|kind| (kind, sign))
    .to_vec();
    // Ports that never find each other show it at the latest.
    kinds.push((Kind::Ethernet, "node"));
    check("a stale route", stale, &kinds);
}

#[test]
fn a_manager_that_nobody_follows_is_found() {
    let alone = |plan: &Plan| {
        let mut plan = plan.clone();
        if let Some(rules) = &mut plan.ruled {
            rules.is_followed = false;
        }
        run_over(&plan, &|endpoint| endpoint).map(drop)
    };
    check("a manager that nobody follows", alone, &[(Kind::Endpoints, "does not lead")]);
}
