//! A network in memory with virtual time: NICs for tests.
//!
//! Messages between two NICs arrive in order; writes and reads take their own time, so that they
//! overtake messages and each other. Now and then a NIC has no room. A message that finds no
//! buffer is a mistake of the state machine, and panics. All of it comes from a seed.
//!
//! Over a slow [`Line`] all bytes from one NIC to another keep their order, as over a connection.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_libfabric::{Error, Peer, Refused, Registration, Report, Rights, Spot};
use weft_memory::{CopyMode, Memory};

use crate::nic::{Local, Nic, ThreadHolds, Work};
use crate::transport::Cards;

/// How a network behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The seed of everything random.
    pub seed: u64,
    /// Buffers for receiving of each NIC.
    pub receives: usize,
    /// One call of so many finds no room; 0 stands for none.
    pub busy: u64,
    /// Writes and messages from one NIC to another keep their order, as over a connection.
    pub keeps_order: bool,
    /// The line between two NICs, if it is slow.
    pub line: Option<Line>,
}

/// A slow line between two NICs. Everything waits for what was begun before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Bytes that it carries in a millisecond, each way.
    pub bytes_per_ms: usize,
    /// Calls of a NIC that can be under way.
    pub calls: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { seed: 1, receives: 1024, busy: 8, keeps_order: false, line: None }
    }
}

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct SeededNet {
    inner: Arc<Mutex<Net>>,
    /// By the number of the NIC.
    works: Arc<Mutex<Vec<(usize, Work)>>>,
    /// The NICs whose processes are stopped.
    stopped: Arc<Mutex<BTreeSet<usize>>>,
}

impl fmt::Debug for SeededNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeededNet").finish_non_exhaustive()
    }
}

/// A NIC of a network.
#[derive(Debug)]
pub struct SeededNic {
    net: SeededNet,
    number: usize,
    name: [u8; 8],
}

struct Net {
    settings: Settings,
    random: u64,
    now: Duration,
    is_silent: bool,
    /// The next write fails, as where a connection breaks.
    loses_write: bool,
    cards: Vec<Card>,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    /// When the last message from one NIC to another arrives, or the last bytes over a line.
    arrivals: BTreeMap<(usize, usize), Duration>,
}

struct Card {
    is_open: bool,
    arrived: VecDeque<Told>,
    /// Messages among them.
    messages: usize,
    /// Calls that are under way.
    calls: usize,
    registered: BTreeMap<u64, Range>,
    peers: BTreeMap<u64, usize>,
}

#[derive(Clone)]
struct Range {
    memory: Memory,
    offset: usize,
    length: usize,
    rights: Rights,
    key: u64,
}

/// A report that waits.
enum Told {
    Message(Vec<u8>),
    Done(u64),
    Failed(u64),
    SendFailed(Peer),
}

/// A happening at some time.
enum Happening {
    Message {
        from: usize,
        to: usize,
        peer: Peer,
        bytes: Vec<u8>,
    },
    /// A write or a read reaches its target, which looks at the key.
    Access(Access),
    /// Its bytes move, from or to a place of the target's memory.
    Land(Access, Memory, usize),
    Told {
        to: usize,
        told: Told,
    },
}

/// A write or a read.
struct Access {
    from: usize,
    to: usize,
    /// Memory of its initiator, and the place in it.
    local: Memory,
    at: usize,
    length: usize,
    spot: Spot,
    token: u64,
    is_write: bool,
}

impl Range {
    fn part(&self, offset: usize, length: usize) -> Option<usize> {
        let fits = offset <= self.length && length <= self.length - offset;
        fits.then(|| self.offset + offset)
    }
}

impl SeededNet {
    /// A network without NICs.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let net = Net {
            settings,
            random: settings.seed,
            now: Duration::ZERO,
            is_silent: false,
            loses_write: false,
            cards: Vec::new(),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            arrivals: BTreeMap::new(),
        };
        Self { inner: Arc::new(Mutex::new(net)), works: Arc::default(), stopped: Arc::default() }
    }

    /// No message arrives from now on, and no write or read is over. Nobody is told.
    pub fn fall_silent(&self) {
        self.inner.lock().is_silent = true;
    }

    /// The next write that reaches its target fails, though its key is in force.
    pub fn lose_write(&self) {
        self.inner.lock().loses_write = true;
    }

    /// Lets time pass in which nobody looks, as where all processes are stopped.
    pub fn stand_still(&self, time: Duration) {
        self.inner.lock().now += time;
    }

    /// Stops the process of the NIC that was opened so many NICs after the first one, or has it
    /// go on.
    pub fn stop(&self, card: usize, is_stopped: bool) {
        let mut stopped = self.stopped.lock();
        if is_stopped {
            stopped.insert(card)
        } else {
            stopped.remove(&card)
        };
    }

    /// The time of the network.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.inner.lock().now
    }

    /// Lets the next thing happen, or a millisecond pass if there is none, and everybody work.
    /// Whether something happened.
    pub fn step(&self) -> bool {
        let happened = {
            let mut net = self.inner.lock();
            net.step(Duration::from_millis(1))
        };
        self.work();
        happened
    }

    /// Has everybody work who does so without the program.
    fn work(&self) {
        let mut works = std::mem::take(&mut *self.works.lock());
        let stopped = self.stopped.lock().clone();
        works.retain_mut(|(card, work)| stopped.contains(card) || !work());
        self.works.lock().append(&mut works);
    }
}

impl Cards for SeededNet {
    type Nic = SeededNic;

    fn open(&self) -> Result<SeededNic, Error> {
        let mut net = self.inner.lock();
        let number = net.cards.len();
        net.cards.push(Card {
            is_open: true,
            arrived: VecDeque::new(),
            messages: 0,
            calls: 0,
            registered: BTreeMap::new(),
            peers: BTreeMap::new(),
        });
        let name = (number as u64).to_le_bytes();
        Ok(SeededNic { net: self.clone(), number, name })
    }
}

impl Net {
    /// splitmix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Whether a NIC has no room for a call.
    fn is_busy(&mut self, card: usize) -> bool {
        let calls = self.cards[card].calls;
        if self.settings.line.is_some_and(|line| calls >= line.calls) {
            return true;
        }
        let busy = self.settings.busy;
        busy > 0 && self.random().is_multiple_of(busy)
    }

    /// When bytes arrive that a NIC sends now. Over a line they come behind all others.
    fn arrival(&mut self, ends: (usize, usize), bytes: usize) -> Duration {
        let soon = self.soon();
        let Some(line) = self.settings.line else { return soon };
        let took = Duration::from_micros(1000 * bytes as u64 / line.bytes_per_ms as u64);
        let now = self.now;
        let last = self.arrivals.entry(ends).or_default();
        *last = (*last).max(now) + took;
        soon.max(*last)
    }

    /// A time from now on, some microseconds later.
    fn soon(&mut self) -> Duration {
        let jitter = self.random() % 5_000;
        self.now + Duration::from_nanos(1_000 + jitter)
    }

    fn schedule(&mut self, time: Duration, happening: Happening) {
        self.next += 1;
        self.happenings.insert(self.next, happening);
        self.queue.push(Reverse((time, self.next)));
    }

    fn step(&mut self, longest: Duration) -> bool {
        let end = self.now + longest;
        match self.queue.peek() {
            Some(Reverse((time, _))) if *time <= end => {}
            _ => {
                self.now = end;
                return false;
            }
        }
        let Some(Reverse((time, number))) = self.queue.pop() else { return false };
        self.now = self.now.max(time);
        if let Some(happening) = self.happenings.remove(&number) {
            self.happen(happening);
        }
        true
    }

    fn tell(&mut self, to: usize, told: Told) {
        let receives = self.settings.receives;
        let card = &mut self.cards[to];
        if matches!(told, Told::Message(_)) {
            card.messages += 1;
            assert!(card.messages <= receives, "a message found no buffer");
        }
        card.arrived.push_back(told);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Told { to, told } => {
                if matches!(told, Told::Done(_) | Told::Failed(_)) {
                    self.cards[to].calls -= 1;
                }
                self.tell(to, told);
            }
            _ if self.is_silent => {}
            Happening::Message { from, to, peer, bytes } => {
                self.cards[from].calls -= 1;
                if self.cards[to].is_open {
                    self.tell(to, Told::Message(bytes));
                } else {
                    let time = self.soon();
                    self.schedule(time, Happening::Told { to: from, told: Told::SendFailed(peer) });
                }
            }
            Happening::Access(access) => self.reach(access),
            Happening::Land(access, theirs, place) => {
                let Access { from, local, at, length, token, is_write, .. } = access;
                let (theirs, ours) = (theirs.segment(), local.segment());
                let mut bytes = vec![0; length];
                if is_write {
                    ours.read(at, &mut bytes);
                    theirs.write(place, &bytes, CopyMode::Plain);
                } else {
                    theirs.read(place, &mut bytes);
                    ours.write(at, &bytes, CopyMode::Plain);
                }
                let time = self.soon();
                self.schedule(time, Happening::Told { to: from, told: Told::Done(token) });
            }
        }
    }

    /// The target looks at the key once. The bytes move later, whatever becomes of the key: so do
    /// providers in software.
    fn reach(&mut self, access: Access) {
        let is_lost = access.is_write && std::mem::take(&mut self.loses_write);
        let card = &self.cards[access.to];
        let found = card.registered.values().find(|range| range.key == access.spot.key);
        let allowed = found.filter(|range| {
            let Rights { read, write } = range.rights;
            !is_lost && card.is_open && if access.is_write { write } else { read }
        });
        let place = usize::try_from(access.spot.address).ok();
        let place = allowed
            .and_then(|range| Some((range.memory.clone(), range.part(place?, access.length)?)));
        let happening = match place {
            None => Happening::Told { to: access.from, told: Told::Failed(access.token) },
            Some((memory, place)) => Happening::Land(access, memory, place),
        };
        if self.settings.keeps_order
            && let Happening::Land(Access { is_write: true, .. }, ..) = &happening
        {
            return self.happen(happening);
        }
        let time = match &happening {
            // The bytes of a write came with it.
            Happening::Land(access, ..) if !access.is_write => {
                self.arrival((access.to, access.from), access.length)
            }
            _ => self.soon(),
        };
        self.schedule(time, happening);
    }

    fn wrong(&self) -> Refused {
        Refused::Failed(self.error())
    }

    fn error(&self) -> Error {
        let reason = "the network in memory does not do that".to_owned();
        Error::Call { call: "seeded", number: 22, reason }
    }
}

impl SeededNic {
    fn access(
        &self,
        peer: Peer,
        (registration, offset, length): Local,
        (spot, token, is_write): (Spot, u64, bool),
    ) -> Result<(), Refused> {
        let mut net = self.net.inner.lock();
        let from = self.number;
        if net.is_busy(from) {
            return Err(Refused::Busy);
        }
        let to = *net.cards[from].peers.get(&peer.0).ok_or(net.wrong())?;
        let local = net.cards[from].registered.get(&registration.0).cloned();
        let local = local.ok_or(net.wrong())?;
        let at = local.part(offset, length).ok_or(net.wrong())?;
        let mut time = net.arrival((from, to), if is_write { length } else { 0 });
        if is_write && net.settings.keeps_order {
            let last = net.arrivals.entry((from, to)).or_default();
            *last = time.max(*last);
            time = *last;
        }
        net.cards[from].calls += 1;
        let local = local.memory;
        let access = Access { from, to, local, at, length, spot, token, is_write };
        net.schedule(time, Happening::Access(access));
        Ok(())
    }
}

impl Drop for SeededNic {
    fn drop(&mut self) {
        let mut net = self.net.inner.lock();
        let card = &mut net.cards[self.number];
        card.is_open = false;
        card.registered.clear();
    }
}

impl Nic for SeededNic {
    fn name(&self) -> &[u8] {
        &self.name
    }

    fn insert(&mut self, name: &[u8]) -> Result<Peer, Error> {
        let mut net = self.net.inner.lock();
        let number = <[u8; 8]>::try_from(name).ok().map(u64::from_le_bytes);
        let number = number.and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| *number < net.cards.len()).ok_or(net.error())?;
        net.next += 1;
        let peer = net.next;
        net.cards[self.number].peers.insert(peer, number);
        Ok(Peer(peer))
    }

    fn remove(&mut self, peer: Peer) {
        self.net.inner.lock().cards[self.number].peers.remove(&peer.0);
    }

    fn send(&mut self, to: Peer, message: &[u8]) -> Result<(), Refused> {
        let mut net = self.net.inner.lock();
        let from = self.number;
        if net.is_busy(from) {
            return Err(Refused::Busy);
        }
        let (peer, to) = (to, *net.cards[from].peers.get(&to.0).ok_or(net.wrong())?);
        let time = net.arrival((from, to), message.len());
        net.cards[from].calls += 1;
        let last = net.arrivals.entry((from, to)).or_default();
        *last = time.max(*last);
        let time = *last;
        net.schedule(time, Happening::Message { from, to, peer, bytes: message.to_vec() });
        Ok(())
    }

    fn register(
        &mut self,
        (memory, offset, length): (&Memory, usize, usize),
        rights: Rights,
    ) -> Result<(Registration, Spot), Error> {
        let mut net = self.net.inner.lock();
        let key = net.random();
        net.next += 1;
        let number = net.next;
        let range = Range { memory: memory.clone(), offset, length, rights, key };
        net.cards[self.number].registered.insert(number, range);
        Ok((Registration(number), Spot { address: 0, key }))
    }

    fn deregister(&mut self, registration: Registration, _is_settled: bool) {
        self.net.inner.lock().cards[self.number].registered.remove(&registration.0);
    }

    fn write(&mut self, to: Peer, from: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.access(to, from, (spot, token, true))
    }

    fn read(&mut self, from: Peer, into: Local, spot: Spot, token: u64) -> Result<(), Refused> {
        self.access(from, into, (spot, token, false))
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Report<'_>)) -> Result<usize, Error> {
        for told in 0..budget {
            let mut net = self.net.inner.lock();
            let error = net.error();
            let card = &mut net.cards[self.number];
            let Some(next) = card.arrived.pop_front() else { return Ok(told) };
            card.messages -= usize::from(matches!(next, Told::Message(_)));
            drop(net);
            match next {
                Told::Message(bytes) => sink(Report::Message(&bytes)),
                Told::Done(token) => sink(Report::Done { token }),
                Told::Failed(token) => sink(Report::Failed { token, error }),
                Told::SendFailed(to) => sink(Report::SendFailed { to, error }),
            }
        }
        Ok(budget)
    }

    fn receives(&self) -> usize {
        self.net.inner.lock().settings.receives
    }

    fn operation_bytes_max(&self) -> usize {
        // Small, so that operations come in pieces.
        64 << 10
    }

    fn keeps_messages_behind_writes(&self) -> bool {
        self.net.inner.lock().settings.keeps_order
    }

    fn now(&self) -> Duration {
        self.net.inner.lock().now
    }

    fn random(&mut self) -> u64 {
        self.net.inner.lock().random()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn may_sleep(&self) -> bool {
        false
    }

    fn pass(&mut self, time: Duration) {
        let happened = {
            let mut net = self.net.inner.lock();
            net.step(time.min(Duration::from_millis(1)))
        };
        let _ = happened;
        let net = self.net.clone();
        net.work();
    }

    fn linger(&mut self, _: ThreadHolds, work: Work) {
        self.net.works.lock().push((self.number, work));
    }
}
