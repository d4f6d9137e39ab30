//! The state of a domain, which one lock guards: endpoints, queues, counters, vectors and memory.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::OwnedFd;

use parking_lot::{Mutex, MutexGuard};
use weft_fabric::{Armed, EndpointAddress, Watchable};
use weft_open::AnyEndpoint;
use weft_rdm::{Failure, Found, Kind, Outcome, PeerId, Rdm, Registration, Rights};
use weft_sync::contention;

use crate::memory::{Host, Pieces};
use crate::rest::Patience;
use weft_libfabric::abi::{ADDRESS_UNSPECIFIED, errno, flag};

/// The protocol on an endpoint.
pub type Datagrams = Rdm<AnyEndpoint, Host>;

/// The caller's name for an operation.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The context that the program gave.
    pub context: usize,
    /// The first byte of its memory.
    pub buffer: usize,
    /// A good end makes an entry.
    pub entry: bool,
    /// Flags of the entry beside those of its kind.
    pub flags: u64,
}

/// An entry of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub context: usize,
    pub flags: u64,
    pub length: usize,
    pub buffer: usize,
    pub data: u64,
    pub tag: u64,
    pub source: u64,
    pub surplus: usize,
    /// 0 for a good end.
    pub error: c_int,
    /// The failure, for `strerror`.
    pub failure: Option<Failure>,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub entries: VecDeque<Entry>,
    /// Bytes of an entry, as the program wants it.
    pub entry_bytes: usize,
    /// Endpoints that fill it.
    pub endpoints: Vec<usize>,
    /// Endpoints and other things that hold it.
    pub uses: usize,
    pub waits: Option<Waits>,
    /// The last read took all entries. Programs read until nothing is there before they go on with
    /// what they got: the next read says so without a look, which would cost as much as a message.
    pub was_emptied: bool,
}

/// The object on which a program sleeps.
#[derive(Debug)]
pub struct Waits {
    /// The set of all that wakes.
    pub set: OwnedFd,
    /// Wakes after a time, where an endpoint has no descriptor.
    pub timer: OwnedFd,
    /// Wakes sleepers of `fi_cq_signal`.
    pub signal: OwnedFd,
}

/// A counter.
#[derive(Debug, Default)]
pub struct Counter {
    pub value: u64,
    pub errors: u64,
    pub endpoints: Vec<usize>,
    /// It counts what peers do to registered memory, through any endpoint.
    pub is_of_memory: bool,
    pub uses: usize,
}

/// An address vector.
#[derive(Debug, Default)]
pub struct Av {
    pub names: Vec<Option<(EndpointAddress, u64)>>,
    pub uses: usize,
}

/// The events that a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    Send,
    Receive,
    Read,
    Write,
    RemoteRead,
    RemoteWrite,
}

impl Counted {
    pub const ALL: [(Self, u64); 6] = [
        (Self::Send, flag::SEND),
        (Self::Receive, flag::RECV),
        (Self::Read, flag::READ),
        (Self::Write, flag::WRITE),
        (Self::RemoteRead, flag::REMOTE_READ),
        (Self::RemoteWrite, flag::REMOTE_WRITE),
    ];
}

/// A queue that an endpoint is bound to.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub cq: usize,
    pub is_selective: bool,
}

/// An endpoint.
pub struct Ep {
    pub rdm: Datagrams,
    pub av: Option<usize>,
    pub transmit: Option<Bound>,
    pub receive: Option<Bound>,
    pub counters: [Option<usize>; 6],
    pub is_enabled: bool,
    pub transmit_flags: u64,
    pub receive_flags: u64,
    pub is_directed: bool,
    pub least_multi: usize,
    /// Messages that were claimed, by the context of the peek.
    pub claims: HashMap<usize, Found>,
    /// Peers by place in the vector.
    peers: Vec<Option<PeerId>>,
    /// Places in the vector by peer.
    addresses: Vec<u64>,
}

/// Registered memory.
#[derive(Clone, Debug)]
pub struct Mr {
    pub registration: Registration<Pieces>,
    pub key: u64,
    /// The counter of writes and atomics of peers.
    pub writes: Option<usize>,
    /// The counter of reads of peers.
    pub reads: Option<usize>,
}

#[derive(Default)]
pub struct State {
    pub endpoints: Vec<Option<Ep>>,
    pub cqs: Vec<Option<Cq>>,
    pub counters: Vec<Option<Counter>>,
    pub avs: Vec<Option<Av>>,
    pub mrs: HashMap<u64, Mr>,
    pub keys: u64,
    pub patience: Patience,
}

/// A domain: its state, and what never changes.
pub struct Domain {
    state: Mutex<State>,
    pub has_virtual_addresses: bool,
    pub has_own_keys: bool,
}

impl Domain {
    pub fn new(has_virtual_addresses: bool, has_own_keys: bool) -> Self {
        Self { state: Mutex::new(State::default()), has_virtual_addresses, has_own_keys }
    }

    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Puts a thing into the first free place.
pub fn insert<T>(places: &mut Vec<Option<T>>, value: T) -> usize {
    match places.iter().position(Option::is_none) {
        Some(place) => {
            places[place] = Some(value);
            place
        }
        None => {
            places.push(Some(value));
            places.len() - 1
        }
    }
}

/// The time that an endpoint has at its end to send what it accepted.
const LEAVING: std::time::Duration = std::time::Duration::from_secs(1);

impl State {
    #[inline]
    pub fn ep(&mut self, number: usize) -> &mut Ep {
        self.endpoints[number].as_mut().expect("an object's state lives as long as the object")
    }

    #[inline]
    pub fn cq(&mut self, number: usize) -> &mut Cq {
        self.cqs[number].as_mut().expect("an object's state lives as long as the object")
    }

    pub fn counter(&mut self, number: usize) -> &mut Counter {
        self.counters[number].as_mut().expect("an object's state lives as long as the object")
    }

    pub fn av(&mut self, number: usize) -> &mut Av {
        self.avs[number].as_mut().expect("an object's state lives as long as the object")
    }

    /// The peer of an address in an endpoint's vector.
    #[inline]
    pub fn peer(&mut self, number: usize, address: u64) -> Option<PeerId> {
        let place = usize::try_from(address).ok()?;
        if let Some(Some(peer)) = self.ep(number).peers.get(place) {
            return Some(*peer);
        }
        self.find_peer(number, place, address)
    }

    #[inline(never)]
    fn find_peer(&mut self, number: usize, place: usize, address: u64) -> Option<PeerId> {
        let av = self.ep(number).av?;
        let (name, birth) = *self.av(av).names.get(place)?.as_ref()?;
        let ep = self.ep(number);
        let peer = ep.rdm.peer(name, birth);
        if ep.peers.len() <= place {
            ep.peers.resize(place + 1, None);
        }
        ep.peers[place] = Some(peer);
        let index = peer.0 as usize;
        if ep.addresses.len() <= index {
            ep.addresses.resize(index + 1, ADDRESS_UNSPECIFIED);
        }
        ep.addresses[index] = address;
        Some(peer)
    }

    /// The addresses of peers that a vector got, so that what they sent has a source.
    pub fn learn(&mut self, number: usize) {
        let Some(av) = self.ep(number).av else { return };
        for place in 0..self.av(av).names.len() {
            let _ = self.find_peer(number, place, place as u64);
        }
    }

    /// Forgets an address, which is used again later.
    pub fn forget(&mut self, av: usize, place: usize) {
        for ep in self.endpoints.iter_mut().flatten().filter(|ep| ep.av == Some(av)) {
            if let Some(peer) = ep.peers.get_mut(place).and_then(Option::take) {
                ep.addresses[peer.0 as usize] = ADDRESS_UNSPECIFIED;
            }
        }
    }

    /// Makes progress on an endpoint, and takes what ended.
    #[inline]
    pub fn progress(&mut self, number: usize) -> bool {
        let ep = self.endpoints[number].as_mut().expect("an endpoint is bound as long as it lives");
        let events = ep.rdm.poll();
        let (any, is_far) = (ep.rdm.outcomes() > 0, ep.rdm.heard_far());
        if any {
            self.settle(number);
        }
        let found = any || events > 0;
        self.patience.looked(found, is_far);
        found
    }

    /// Takes what ended on an endpoint to its queues and counters.
    pub fn settle(&mut self, number: usize) {
        let Self { endpoints, cqs, counters, mrs, .. } = self;
        let Some(ep) = endpoints[number].as_mut() else { return };
        let Ep { rdm, counters: own, addresses, transmit, receive, .. } = ep;
        let (transmit, receive) = (*transmit, *receive);
        rdm.take_outcomes(|outcome| {
            let (counted, bound) = match outcome.kind {
                Kind::Send => (Some(Counted::Send), transmit),
                Kind::Receive => (Some(Counted::Receive), receive),
                Kind::Peek => (None, receive),
                Kind::Write => (Some(Counted::Write), transmit),
                Kind::Read => (Some(Counted::Read), transmit),
                Kind::Atomic => {
                    let reads = outcome.token.is_some_and(|token| token.flags & flag::READ != 0);
                    (Some(if reads { Counted::Read } else { Counted::Write }), transmit)
                }
                Kind::WrittenBy | Kind::ChangedBy => (Some(Counted::RemoteWrite), receive),
                Kind::ReadBy => (Some(Counted::RemoteRead), receive),
            };
            if let Some(counted) = counted
                && let Some(counter) = own[counted as usize]
                && let Some(counter) = counters[counter].as_mut()
            {
                if outcome.failure.is_some() {
                    counter.errors += 1;
                } else {
                    counter.value += 1;
                }
            }
            let of_memory = match outcome.kind {
                Kind::WrittenBy | Kind::ChangedBy => mrs.get(&outcome.key).and_then(|mr| mr.writes),
                Kind::ReadBy => mrs.get(&outcome.key).and_then(|mr| mr.reads),
                _ => None,
            };
            if let Some(counter) = of_memory.and_then(|counter| counters[counter].as_mut()) {
                counter.value += 1;
            }
            let is_wanted = outcome.failure.is_some()
                || outcome.token.map_or(outcome.data.is_some(), |token| token.entry);
            if is_wanted && let Some(cq) = bound.and_then(|bound| cqs[bound.cq].as_mut()) {
                cq.entries.push_back(entry(addresses, outcome));
            }
        });
    }

    /// Makes progress on all endpoints of a queue.
    #[inline]
    pub fn progress_cq(&mut self, number: usize) {
        for index in 0..self.cq(number).endpoints.len() {
            let endpoint = self.cq(number).endpoints[index];
            self.progress(endpoint);
        }
    }

    /// Prepares to sleep on the endpoints of a queue.
    pub fn arm(&mut self, endpoints: &[usize]) -> Armed {
        let mut armed = Armed::Sleep;
        for endpoint in endpoints {
            match self.ep(*endpoint).rdm.arm() {
                Armed::Sleep => {}
                Armed::Busy => return Armed::Busy,
                Armed::PollWithin(time) => {
                    armed = match armed {
                        Armed::PollWithin(other) => Armed::PollWithin(time.min(other)),
                        _ => Armed::PollWithin(time),
                    };
                }
            }
        }
        armed
    }
}

impl Ep {
    pub fn new(rdm: Datagrams) -> Self {
        Self {
            rdm,
            av: None,
            transmit: None,
            receive: None,
            counters: [None; 6],
            is_enabled: false,
            transmit_flags: 0,
            receive_flags: 0,
            is_directed: false,
            least_multi: 64,
            claims: HashMap::new(),
            peers: Vec::new(),
            addresses: Vec::new(),
        }
    }

    /// Sends what waits for peers, and lets them take what is kept for them, for a while: a message
    /// may be accepted and not have left.
    #[expect(clippy::disallowed_methods, reason = "a surface has the clock")]
    pub fn leave(&mut self) {
        let start = std::time::Instant::now();
        while (self.rdm.is_busy() || self.rdm.kept() > 0) && start.elapsed() < LEAVING {
            if self.rdm.poll() == 0 {
                contention::yield_core();
            }
            self.rdm.take_outcomes(|_| ());
        }
    }

    /// The descriptor that wakes a sleeper.
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.rdm.endpoint().descriptor()
    }
}

impl Entry {
    /// The good end of a send.
    #[inline]
    pub fn of_send(token: Token, tag: Option<u64>, length: usize) -> Self {
        let kind = if tag.is_some() { flag::TAGGED } else { flag::MSG };
        Self {
            context: token.context,
            flags: flag::SEND | kind,
            length,
            buffer: token.buffer,
            data: 0,
            tag: tag.unwrap_or(0),
            source: ADDRESS_UNSPECIFIED,
            surplus: 0,
            error: 0,
            failure: None,
        }
    }
}

#[inline]
fn entry(addresses: &[u64], outcome: &Outcome<Token>) -> Entry {
    let kind = if outcome.is_tagged { flag::TAGGED } else { flag::MSG };
    let mut flags = match outcome.kind {
        Kind::Send => flag::SEND | kind,
        Kind::Receive | Kind::Peek => flag::RECV | kind,
        Kind::Write => flag::RMA | flag::WRITE,
        Kind::Read => flag::RMA | flag::READ,
        Kind::Atomic => flag::ATOMIC,
        Kind::WrittenBy => flag::RMA | flag::REMOTE_WRITE,
        Kind::ChangedBy => flag::ATOMIC | flag::REMOTE_WRITE,
        Kind::ReadBy => flag::RMA | flag::REMOTE_READ,
    };
    let is_arrival = matches!(outcome.kind, Kind::Receive | Kind::Peek | Kind::WrittenBy);
    if is_arrival && outcome.data.is_some() {
        flags |= flag::REMOTE_CQ_DATA;
    }
    let token = outcome.token;
    let token_flags = token.map_or(0, |token| token.flags);
    if token_flags & flag::MULTI_RECV != 0 && outcome.last {
        flags |= flag::MULTI_RECV;
    }
    flags |= token_flags & !flag::MULTI_RECV;
    let source = outcome.peer.and_then(|peer| addresses.get(peer.0 as usize).copied());
    Entry {
        context: token.map_or(0, |token| token.context),
        flags,
        length: outcome.length,
        buffer: token.map_or(0, |token| token.buffer + outcome.at),
        data: outcome.data.unwrap_or(0),
        tag: outcome.tag,
        source: source.unwrap_or(ADDRESS_UNSPECIFIED),
        surplus: outcome.surplus,
        error: outcome.failure.map_or(0, number),
        failure: outcome.failure,
    }
}

/// The number of libfabric for a failure.
pub const fn number(failure: Failure) -> c_int {
    match failure {
        Failure::PeerDown => errno::ECONNRESET,
        Failure::Truncated => errno::ETRUNC,
        Failure::Cancelled => errno::ECANCELED,
        Failure::NoMessage => errno::ENOMSG,
        Failure::UnknownKey => errno::ENOKEY,
        Failure::OutOfBounds => errno::EINVAL,
        Failure::Denied => errno::EACCES,
        Failure::Fault => errno::EFAULT,
        Failure::Unsupported => errno::EOPNOTSUPP,
    }
}

/// Rights by the flags of a registration.
pub const fn rights(access: u64) -> Rights {
    let remote = flag::REMOTE_READ | flag::REMOTE_WRITE;
    let local = flag::SEND | flag::RECV | flag::READ | flag::WRITE;
    // Without a word all is allowed.
    let all = access & (remote | local) == 0;
    Rights {
        read: all || access & flag::REMOTE_READ != 0,
        write: all || access & flag::REMOTE_WRITE != 0,
    }
}
