//! The machine: its tables, and what a poll does.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use weft_fabric::{
    Access, Armed, Audience, Blocking, Endpoint, EndpointAddress, Event, GrantError, Issued,
    LocalRange, Message, MessageHeader, Operation as FabricOperation, OperationError, PATIENCE,
    Peer as Handle, Region, RegisterError, RemoteKey, SendError, Target, Value, Waited,
};

use crate::fetching::Fetch;
use crate::getting::{Get, Loan, Origin};
use crate::matching::{Posted, Unexpected};
use crate::memory::{Introduction, Memory, Surface};
use crate::options::Options;
use crate::outcome::{Failure, Kind, Outcome, Refusal};
use crate::packet::{Code, PACKET_BYTES, Packet, Reader, VERSION};
use crate::peers::{Hello, PeerId, Peers, State};
use crate::pool::Pool;
use crate::receiving::{Arrival, Multi, Receive};
use crate::remote::Registration;
use crate::sending::Operation;
use crate::slab::Slab;

/// Contexts of the endpoint's calls: this, and the number of a peer.
const CONNECT: u64 = 1 << 40;
/// And the number of the place that a get copies to.
const GET: u64 = 2 << 40;
/// Of the keys to memory that is lent.
pub(crate) const LEND: u64 = 3 << 40;
const NUMBER: u64 = (1 << 40) - 1;
/// Packets that may wait until a peer is connected, beside those of one message.
const EARLY_PACKETS_MAX: usize = 1024;

/// The way to a peer; none while it is being connected.
pub(crate) type Door = Option<Handle>;

/// The state of the machine; the endpoint is beside it, since a poll needs both.
pub(crate) struct Core<E: Endpoint, S: Surface> {
    pub(crate) surface: S,
    pub(crate) options: Options,
    birth: u64,
    pub(crate) own: EndpointAddress,
    pub(crate) peers: Peers<S, E::Window>,
    /// Receives, and messages that nobody waits for: without a tag, and tagged.
    pub(crate) posted: [Posted<Receive<S>>; 2],
    pub(crate) unexpected: [Unexpected<u64>; 2],
    pub(crate) arrivals: Slab<Arrival>,
    pub(crate) multis: Slab<Multi>,
    pub(crate) operations: Slab<Operation<S>>,
    /// Those of them that are over for their callers.
    pub(crate) copies_kept: usize,
    pub(crate) fetches: Slab<Fetch<S>>,
    /// Fetches that the kernel copies.
    pub(crate) copies: VecDeque<u64>,
    /// Chunks that are to be got from other nodes. They go before what was lent, as messages behind
    /// them may wait.
    pub(crate) gets: VecDeque<Get>,
    /// Bodies that other nodes lent.
    pub(crate) loans: VecDeque<Loan>,
    /// Memory of the program that is lent.
    pub(crate) lent: HashMap<RemoteKey, E::Region>,
    /// There is a way to lend it.
    pub(crate) lends: bool,
    /// Long reads of peers that wait for an answer: by the peer, its number and the own number.
    pub(crate) to_lend: Vec<(PeerId, u64, u64)>,
    /// Keys to memory whose operations are over.
    to_revoke: Vec<RemoteKey>,
    /// Gets that are under way, by their place in the landing.
    pub(crate) landing: Vec<Option<Get>>,
    pub(crate) landing_region: Option<E::Region>,
    /// Peers that are to be sent parts of bodies.
    pub(crate) pushing: VecDeque<PeerId>,
    /// Those that wait for a chunk.
    pub(crate) starved: VecDeque<PeerId>,
    pub(crate) pool: Pool,
    pub(crate) pool_region: E::Region,
    pool_key: RemoteKey,
    pub(crate) registrations: HashMap<u64, Registration<S::Memory>>,
    listed: VecDeque<PeerId>,
    to_map: Vec<PeerId>,
    /// Peers whose chunks can be mapped when the broker has answered, which is told as room.
    unmapped: Vec<PeerId>,
    to_disconnect: Vec<Handle>,
    pub(crate) done: Vec<Outcome<S::Token>>,
    /// Reads and writes of peers are reported, also without a word of data.
    pub(crate) reports_remote: bool,
    /// The last packet came from another node.
    heard_far: bool,
}

/// Reliable datagrams over an endpoint.
pub struct Rdm<E: Endpoint, S: Surface> {
    pub(crate) endpoint: E,
    pub(crate) core: Core<E, S>,
    pub(crate) lend: Option<Lend<E, S>>,
}

/// Makes a region of memory of the program where that is, for a peer to read; `None` if it cannot.
pub type Lend<E, S> = fn(&mut E, &<S as Surface>::Memory) -> Option<<E as Endpoint>::Region>;

/// Why there are no datagrams over an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StartError {
    /// The chunks could not be registered.
    #[error("memory for chunks: {0}")]
    Register(#[from] RegisterError),
    /// Peers could not be allowed to read them.
    #[error("access to chunks: {0}")]
    Grant(#[from] GrantError),
}

impl<E: Endpoint, S: Surface> Rdm<E, S> {
    /// Datagrams over `endpoint`. `birth` is a random number, by which peers know this life of the
    /// endpoint from others at the same address.
    ///
    /// # Errors
    /// [`StartError`].
    ///
    /// # Panics
    /// When an option is out of its range.
    pub fn new(
        mut endpoint: E,
        surface: S,
        options: Options,
        birth: u64,
    ) -> Result<Self, StartError> {
        options.assert_sound();
        let pool = Pool::new(options.chunks, options.chunk_bytes);
        let pool_region = endpoint.register(pool.total())?;
        let whole = LocalRange::whole(&pool_region);
        let pool_key = endpoint.grant_within(whole, Audience::Partition, Access::READ, PATIENCE)?;
        let own = endpoint.address();
        let core = Core {
            surface,
            landing: (0..options.chunks).map(|_| None).collect(),
            options,
            birth,
            own,
            peers: Peers::new(own.node),
            posted: [Posted::new(), Posted::new()],
            unexpected: [Unexpected::new(), Unexpected::new()],
            arrivals: Slab::new(),
            multis: Slab::new(),
            operations: Slab::new(),
            copies_kept: 0,
            fetches: Slab::new(),
            copies: VecDeque::new(),
            gets: VecDeque::new(),
            loans: VecDeque::new(),
            lent: HashMap::new(),
            lends: false,
            to_lend: Vec::new(),
            to_revoke: Vec::new(),
            landing_region: None,
            pushing: VecDeque::new(),
            starved: VecDeque::new(),
            pool,
            pool_region,
            pool_key,
            registrations: HashMap::new(),
            listed: VecDeque::new(),
            to_map: Vec::new(),
            unmapped: Vec::new(),
            to_disconnect: Vec::new(),
            done: Vec::new(),
            reports_remote: false,
            heard_far: false,
        };
        Ok(Self { endpoint, core, lend: None })
    }

    /// The same, with a way to lend memory of the program to peers of other nodes, so that long
    /// bodies are not copied here. The program leaves it as it is until the operation ends.
    #[must_use]
    pub fn lending(mut self, lend: Lend<E, S>) -> Self {
        self.core.lends = true;
        Self { lend: Some(lend), ..self }
    }

    /// The address and the birth, by which peers name this endpoint.
    #[must_use]
    pub fn name(&self) -> (EndpointAddress, u64) {
        (self.core.own, self.core.birth)
    }

    /// The endpoint, for its descriptor and its registers.
    pub fn endpoint(&self) -> &E {
        &self.endpoint
    }

    /// The peer of a name. Nothing is asked or sent.
    pub fn peer(&mut self, address: EndpointAddress, birth: u64) -> PeerId {
        self.core.peers.named(address, birth)
    }

    /// The name of a peer.
    #[must_use]
    pub fn name_of(&self, peer: PeerId) -> Option<(EndpointAddress, u64)> {
        let address = self.core.peers.get(peer)?.address;
        Some((address, self.core.peers.birth(peer)))
    }

    /// Whether reads and writes of peers are reported, also without a word of data.
    pub fn report_remote(&mut self, whether: bool) {
        self.core.reports_remote = whether;
    }

    /// Takes all ends of operations, in order.
    #[inline]
    pub fn take_outcomes(&mut self, take: impl FnMut(&Outcome<S::Token>)) {
        self.core.done.iter().for_each(take);
        self.core.done.clear();
    }

    /// Ends that wait to be taken.
    #[must_use]
    pub fn outcomes(&self) -> usize {
        self.core.done.len()
    }

    /// Makes progress. Returns the number of events of the endpoint. Never blocks.
    #[inline]
    pub fn poll(&mut self) -> usize {
        let Self { endpoint, core, .. } = self;
        let events = endpoint.poll(core.options.budget, &mut |event| core.event(event));
        if core.is_busy() {
            self.work();
        }
        events
    }

    /// True if the last packet came from another node: the next may take longer than one of this
    /// node, and so may a look for it.
    #[must_use]
    pub fn heard_far(&self) -> bool {
        self.core.heard_far
    }

    /// Bodies here that peers have not taken yet, of operations that are over for their callers.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.core.copies_kept + self.core.pool.taken()
    }

    /// True if another poll has something to do, without an event.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.core.is_busy()
    }

    /// Waits at most `timeout` for events of the endpoint.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Waited {
        if !self.core.done.is_empty() || self.core.is_working() {
            return Waited::Ready;
        }
        self.endpoint.wait(timeout)
    }

    /// Prepares to sleep on the endpoint's descriptor.
    pub fn arm(&mut self) -> Armed {
        if !self.core.done.is_empty() || self.core.is_working() {
            return Armed::Busy;
        }
        self.endpoint.arm()
    }

    #[inline(never)]
    fn work(&mut self) {
        for handle in std::mem::take(&mut self.core.to_disconnect) {
            // It may be down already.
            let _ = self.endpoint.disconnect(handle);
            if let Some(peer) = self.core.peers.of_handle(handle) {
                self.core.peers.forget_handle(handle);
                self.core.down(peer);
            }
        }
        for peer in std::mem::take(&mut self.core.to_map) {
            self.map(peer);
        }
        for key in std::mem::take(&mut self.core.to_revoke) {
            // Nobody waits for its end: the peer has all that it wanted.
            let _ = self.endpoint.revoke(key, LEND);
            self.core.lent.remove(&key);
        }
        self.lend_reads();
        self.core.copy_by_kernel();
        self.start_gets();
        self.push_parts();
        for _ in 0..self.core.listed.len() {
            let Some(peer) = self.core.listed.pop_front() else { break };
            self.core.peers.at(peer).is_listed = false;
            if !self.flush(peer) {
                self.core.list(peer);
            }
        }
    }

    /// Maps the chunks of a peer, and tells it.
    fn map(&mut self, peer: PeerId) {
        let it = self.core.peers.at(peer);
        let (State::Live(handle), Some(hello)) = (it.state, it.hello) else { return };
        match self.endpoint.window(handle, hello.key) {
            Ok(window) => {
                it.window = Some(window);
                self.core.queue(peer, Packet::new(Code::Mapped));
            }
            Err(OperationError::WouldBlock) => self.core.unmapped.push(peer),
            // Without a window the peer is asked for each part.
            Err(_) => {}
        }
    }

    fn start_gets(&mut self) {
        let Self { endpoint, core, .. } = self;
        while let Some(get) = core.next_get() {
            let is_chunk = matches!(get.origin, Origin::Chunk(_));
            let Some(slot) = core.place_for(is_chunk) else { return };
            let it = core.peers.at(get.peer);
            let (State::Live(handle), Some(hello)) = (it.state, it.hello) else {
                core.drop_get();
                continue;
            };
            if core.landing_region.is_none() {
                match endpoint.register(core.pool.total()) {
                    Ok(region) => core.landing_region = Some(region),
                    Err(_) => {
                        core.drop_get();
                        core.fail_get(&get, Failure::Fault);
                        continue;
                    }
                }
            }
            let Some(region) = &core.landing_region else { return };
            let source = match get.origin {
                Origin::Chunk(chunk) => {
                    Target::new(hello.key, u64::from(chunk) * hello.chunk_bytes as u64)
                }
                Origin::Lent(key, at) => Target::new(key, at as u64),
            };
            let offset = slot as u64 * core.options.chunk_bytes as u64;
            let into = LocalRange::new(region, offset, get.length as u64);
            let operation = FabricOperation::new(GET | slot as u64);
            match endpoint.get(handle, source, into, operation) {
                Ok(issued) => {
                    core.drop_get();
                    core.landing[slot] = Some(get);
                    if matches!(issued, Issued::Done(_)) {
                        core.got(slot, true);
                    }
                }
                Err(OperationError::WouldBlock) => return,
                Err(_) => {
                    core.drop_get();
                    core.fail_get(&get, Failure::PeerDown);
                }
            }
        }
    }

    /// Sends the packets that wait for a peer. False if some still do.
    pub(crate) fn flush(&mut self, peer: PeerId) -> bool {
        let Self { endpoint, core, .. } = self;
        let it = core.peers.at(peer);
        let State::Live(handle) = it.state else {
            return it.state != State::Connecting || it.outbox.is_empty();
        };
        it.packet_bytes = endpoint.message_bytes_to(handle).max(PACKET_BYTES);
        while let Some(packet) = it.outbox.front() {
            match send(endpoint, handle, packet) {
                Err(SendError::WouldBlock) => return false,
                // The end of the peer is told by an event.
                Ok(()) | Err(_) => it.outbox.pop_front(),
            };
        }
        true
    }

    /// The way to a peer: its handle, or none while it is being connected. Connects to it if need
    /// be.
    #[inline]
    pub(crate) fn ready(&mut self, to: PeerId) -> Result<Door, Refusal> {
        let it = self.core.peers.at(to);
        match it.state {
            State::Live(handle) if it.outbox.is_empty() => Ok(Some(handle)),
            _ => self.make_ready(to),
        }
    }

    #[inline(never)]
    pub(crate) fn make_ready(&mut self, to: PeerId) -> Result<Door, Refusal> {
        let it = self.core.peers.at(to);
        match it.state {
            State::Down => Err(Refusal::PeerDown),
            // Programs do not expect that the first message to a peer has to be tried again.
            State::Connecting if it.outbox.len() < EARLY_PACKETS_MAX => Ok(None),
            State::Connecting => Err(Refusal::Busy),
            State::Live(handle) => {
                if self.flush(to) {
                    Ok(Some(handle))
                } else {
                    Err(Refusal::Busy)
                }
            }
            State::Idle => {
                let address = self.core.peers.at(to).address;
                self.core.peers.at(to).state = State::Connecting;
                match self.endpoint.connect(address, CONNECT | u64::from(to.0)) {
                    Ok(Issued::Done(Value::Peer(handle))) => self.core.connected(to, handle),
                    Ok(Issued::Pending) => return Ok(None),
                    Ok(Issued::Done(_)) | Err(_) => self.core.down(to),
                }
                self.make_ready(to)
            }
        }
    }

    /// Sends a packet at once, or not at all. While the peer is being connected, it waits.
    #[inline]
    pub(crate) fn emit(&mut self, door: Door, to: PeerId, packet: &Packet) -> Result<(), Refusal> {
        let Some(handle) = door else {
            self.core.queue(to, packet.clone());
            return Ok(());
        };
        send(&mut self.endpoint, handle, packet).map_err(|error| match error {
            SendError::WouldBlock => Refusal::Busy,
            _ => Refusal::PeerDown,
        })
    }
}

#[inline]
fn send<E: Endpoint>(endpoint: &mut E, to: Handle, packet: &Packet) -> Result<(), SendError> {
    let header = MessageHeader::tag(packet.code as u8);
    if packet.behind().is_empty() {
        endpoint.send_short(to, header, &[packet.bytes()])
    } else {
        endpoint.send_short(to, header, &[packet.bytes(), packet.behind()])
    }
}

impl<E: Endpoint, S: Surface> Core<E, S> {
    #[inline]
    fn is_busy(&self) -> bool {
        !self.listed.is_empty() || self.is_working()
    }

    /// True if there is work that waits for no event.
    #[inline]
    fn is_working(&self) -> bool {
        let chunks_wait = !self.gets.is_empty() && self.place_for(true).is_some();
        let loans_wait = !self.loans.is_empty() && self.place_for(false).is_some();
        !(self.to_disconnect.is_empty()
            && self.to_map.is_empty()
            && self.to_revoke.is_empty()
            && self.to_lend.is_empty()
            && self.copies.is_empty()
            && !chunks_wait
            && !loans_wait
            && self.pushing.is_empty())
    }

    #[inline]
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Message(message) => {
                if self.message(&message).is_none() {
                    self.offend(message.peer);
                }
            }
            Event::Completion(end) => self.completion(end.context, end.result),
            Event::PeerDown { peer, .. } => {
                if let Some(id) = self.peers.of_handle(peer) {
                    self.peers.forget_handle(peer);
                    self.down(id);
                }
            }
            Event::Room { peer } => {
                let id = self.peers.of_handle(peer);
                if let Some(place) = self.unmapped.iter().position(|it| Some(*it) == id) {
                    self.to_map.push(self.unmapped.swap_remove(place));
                }
            }
            Event::Notification(_) | Event::GroupRoom { .. } => {}
        }
    }

    /// Ends a peer that broke the protocol.
    pub(crate) fn offend(&mut self, handle: Handle) {
        if !self.to_disconnect.contains(&handle) {
            self.to_disconnect.push(handle);
        }
    }

    /// Takes a packet. `None` if it breaks the protocol.
    #[inline]
    fn message(&mut self, message: &Message<'_>) -> Option<()> {
        let code = Code::of(message.header.tag)?;
        let mut reader = Reader::new(message.payload);
        let from = match self.peers.of_handle(message.peer) {
            Some(from) if code != Code::Hello => from,
            _ => return self.hello(code, message, reader),
        };
        self.heard_far = !self.peers.at(from).is_near;
        match code {
            Code::Tagged | Code::Untagged => self.message_parcel(from, code, reader),
            Code::Write | Code::Read | Code::Atomic => self.remote_parcel(from, code, reader),
            Code::Answer => self.answer(from, reader),
            Code::More => self.more(from, reader.rest()),
            Code::Ask => self.asked(from, reader),
            Code::Part => self.part(from, reader),
            Code::Withheld => self.withheld(from, reader),
            Code::Release => {
                let chunk = u16::try_from(reader.word()?).ok()?;
                self.pool.give_back(from, chunk)?;
                self.peers.at(from).chunks -= 1;
                self.released();
                Some(())
            }
            Code::Mapped => {
                self.peers.at(from).maps = true;
                Some(())
            }
            Code::Hello => None,
        }
    }

    fn completion(&mut self, context: u64, result: Result<Value, OperationError>) {
        let number = context & NUMBER;
        match context & !NUMBER {
            CONNECT => {
                let Ok(number) = u32::try_from(number) else { return };
                let peer = PeerId(number);
                if self.peers.get(peer).is_none_or(|it| it.state != State::Connecting) {
                    return;
                }
                match result {
                    Ok(Value::Peer(handle)) => self.connected(peer, handle),
                    Ok(_) | Err(_) => self.down(peer),
                }
            }
            GET => self.got(usize::try_from(number).unwrap_or(usize::MAX), result.is_ok()),
            // A key that came late: its body went another way.
            LEND => {
                if let Ok(Value::Key(key)) = result {
                    self.to_revoke.push(key);
                }
            }
            _ => {}
        }
    }

    fn connected(&mut self, peer: PeerId, handle: Handle) {
        // Another life of the endpoint at this address has the handle.
        if self.peers.of_handle(handle).is_some_and(|other| other != peer) {
            self.down(peer);
            return;
        }
        self.peers.met(peer, handle);
        self.greet(peer);
    }

    /// Queues the own first packet, before all others.
    fn greet(&mut self, peer: PeerId) {
        if std::mem::replace(&mut self.peers.at(peer).is_greeted, true) {
            return;
        }
        let it = self.surface.introduction();
        let process = if self.options.kernel { it.process } else { 0 };
        let chunks = u64::from(self.options.chunks) << 32 | self.options.chunk_bytes as u64;
        let mut packet = Packet::new(Code::Hello);
        packet.word(VERSION).word(self.birth).word(self.peers.birth(peer));
        packet.word(u64::from(process)).word(it.address).word(it.word);
        packet.word(self.pool_key.0).word(chunks);
        self.peers.at(peer).outbox.push_front(packet);
        self.list(peer);
    }

    fn hello(&mut self, code: Code, message: &Message<'_>, mut reader: Reader<'_>) -> Option<()> {
        let mut word = || reader.word();
        let (version, birth, wanted) = (word()?, word()?, word()?);
        let introduction =
            Introduction { process: u32::try_from(word()?).ok()?, address: word()?, word: word()? };
        let (key, chunks) = (RemoteKey(word()?), word()?);
        let chunk_bytes = usize::try_from(chunks & 0xffff_ffff).ok()?;
        let chunks = u16::try_from(chunks >> 32).ok()?;
        // A peer that wants a former life of this endpoint is refused, and hears that it is down.
        if code != Code::Hello || version != VERSION || wanted != self.birth || chunk_bytes == 0 {
            return None;
        }
        let peer = self.peers.named(message.source, birth);
        let known = self.peers.of_handle(message.peer);
        let it = self.peers.at(peer);
        if it.hello.is_some() || it.state == State::Down || known.is_some_and(|known| known != peer)
        {
            return None;
        }
        it.hello = Some(Hello { introduction, key, chunk_bytes, chunks });
        self.peers.met(peer, message.peer);
        self.greet(peer);
        if self.options.maps && message.source.node == self.own.node {
            self.to_map.push(peer);
        }
        Some(())
    }

    /// Adds a packet behind those that wait.
    pub(crate) fn queue(&mut self, to: PeerId, packet: Packet) {
        let it = self.peers.at(to);
        if it.state == State::Down {
            return;
        }
        if it.outbox.len() >= self.options.replies_max {
            if let State::Live(handle) = it.state {
                self.offend(handle);
            }
            return;
        }
        it.outbox.push_back(packet);
        self.list(to);
    }

    /// Lists a peer that has packets to be sent.
    pub(crate) fn list(&mut self, peer: PeerId) {
        if !std::mem::replace(&mut self.peers.at(peer).is_listed, true) {
            self.listed.push_back(peer);
        }
    }

    /// Ends all that is under way with a peer.
    pub(crate) fn down(&mut self, peer: PeerId) {
        let it = self.peers.at(peer);
        if it.state == State::Down {
            return;
        }
        let was_met = it.hello.is_some();
        it.state = State::Down;
        it.outbox.clear();
        it.window = None;
        it.maps = false;
        it.chunks = 0;
        it.pushes.clear();
        it.way = crate::peers::Way::None;
        let incoming = it.incoming.take();
        self.pool.reclaim(peer);
        self.released();
        self.unmapped.retain(|it| *it != peer);
        self.gets.retain(|get| get.peer != peer);
        self.loans.retain(|loan| loan.peer != peer);
        self.lose_messages(peer, incoming);
        if self.options.ends_receives && was_met && !self.peers.any_lives() {
            self.end_receives(None, peer);
        }
        for number in self.fetches.numbers(|fetch| fetch.peer == peer) {
            self.fail_fetch(number, Failure::PeerDown);
        }
        for number in self.operations.numbers(|operation| operation.peer == peer) {
            self.end_operation(number, Err(Failure::PeerDown));
        }
    }

    /// Operations whose callers wait for their ends, and bodies that peers fetch.
    pub(crate) fn under_way(&self) -> usize {
        self.operations.length() - self.copies_kept
    }

    pub(crate) fn remove_operation(&mut self, number: u64) -> Option<Operation<S>> {
        let operation = self.operations.remove(number)?;
        self.copies_kept -= usize::from(operation.is_copy);
        self.to_revoke.extend(operation.lent);
        Some(operation)
    }

    /// Reports the end of an operation.
    pub(crate) fn end_operation(&mut self, number: u64, result: Result<(), Failure>) {
        let Some(operation) = self.remove_operation(number) else { return };
        if operation.is_copy {
            return;
        }
        let length = operation.memory.as_ref().map_or(0, Memory::length);
        let failed = result.is_err();
        if operation.kind == Kind::ReadBy {
            if self.reports_remote && !failed {
                let outcome = Outcome::of(None, Kind::ReadBy, operation.peer);
                self.done.push(Outcome { length, key: operation.key, ..outcome });
            }
            return;
        }
        if operation.token.is_none() && !failed {
            return;
        }
        let outcome = Outcome::of(operation.token, operation.kind, operation.peer);
        let (is_tagged, tag) = (operation.is_tagged, operation.tag);
        let length = if failed { 0 } else { length };
        self.done.push(Outcome { is_tagged, tag, length, failure: result.err(), ..outcome });
    }

    /// Copies bytes of the program into a chunk for a peer; `None` if there is none for it.
    pub(crate) fn chunk_for(
        &mut self,
        peer: PeerId,
        (memory, at, length): (&S::Memory, usize, usize),
    ) -> Option<Result<u16, Failure>> {
        if self.peers.at(peer).chunks >= self.pool.share() {
            return None;
        }
        let chunk = self.pool.take(peer)?;
        self.peers.at(peer).chunks += 1;
        let mut offset = self.pool.offset(chunk);
        let region = &self.pool_region;
        let mut written = Ok(());
        let poured = memory.pour(at, length, &mut |piece| {
            written = written.clone().and(region.write(offset, piece));
            offset += piece.len() as u64;
        });
        if poured.is_err() || written.is_err() {
            self.take_back(peer, chunk);
            return Some(Err(Failure::Fault));
        }
        Some(Ok(chunk))
    }

    /// Takes a chunk back that was not sent.
    pub(crate) fn take_back(&mut self, peer: PeerId, chunk: u16) {
        if self.pool.give_back(peer, chunk).is_some() {
            self.peers.at(peer).chunks -= 1;
        }
    }
}
