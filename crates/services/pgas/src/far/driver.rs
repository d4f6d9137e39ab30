//! The far side of a PE over one endpoint of the fabric. All calls of the endpoint are here.
//!
//! Small changes and questions are messages ([`super::machine`]); large puts and gets are those of
//! the fabric. No call waits: what cannot be begun is [`Refused::Busy`], and a poll later it can.
//!
//! # Invariants
//! - A large put begins when all changes that came before the last fence are known to be there, and
//!   a change behind a fence leaves when all large puts before it are over ([`Endpoint::order`]).
//! - A piece of the landing belongs to one get from its begin until its bytes were taken.
//! - A get that lands by itself is open at its PE's link until it is over.

use std::collections::{BTreeMap, VecDeque};

use weft_fabric::{
    Atomic, DownReason, Endpoint, EndpointAddress, Event, Issued, LocalRange, MessageHeader,
    Operation, OperationError, Peer, RemoteKey, SendError, Source, Target,
};

use super::entry::{Breach, DATA_BYTES, Entry, MESSAGE_BYTES, MESSAGE_BYTES_MAX, Place, Segment};
use super::link::{Link, Standing};
use super::machine::{Answer, Goes, Machine, Memory, Refused};

/// Puts of up to so many bytes go in messages: with the heads of their entries they fill one. A
/// stream of them takes less time in messages than as puts of the fabric.
pub const INLINE_BYTES: usize = 9 * DATA_BYTES;
/// Bytes of a put or a get of the fabric at most. Longer ones go in pieces.
pub const PIECE_BYTES: usize = 256 << 10;
/// Gets of the fabric at a time.
pub const PIECES: usize = 4;
/// Bytes of the workspace behind these pieces, in which collectives combine what they get.
pub const WORKSPACE_BYTES: usize = 1 << 20;
/// Where the workspace begins.
pub const WORKSPACE: usize = PIECE_BYTES * PIECES;
/// Bytes of the memory in which gets land.
pub const LANDING_BYTES: usize = WORKSPACE + WORKSPACE_BYTES;
/// Events that a poll takes.
const BUDGET: usize = 64;
/// The tag of the messages.
const TAG: u8 = 0x5e;

/// Contexts: the kind of an operation in the highest byte, a number below.
const GET: u64 = 1 << 56;
const FENCE: u64 = 2 << 56;
const PUT: u64 = 3 << 56;
const STRAIGHT: u64 = 4 << 56;
const NUMBER: u64 = GET - 1;

/// A PE of another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Far {
    /// The handle of its endpoint, which is connected.
    pub peer: Peer,
    /// The key of its heap.
    pub heap: RemoteKey,
    /// The key of its variables, if they are shared.
    pub statics: Option<RemoteKey>,
}

/// Memory of a PE that is registered at its endpoint.
#[derive(Debug)]
pub struct Regions<R> {
    /// Its heap.
    pub heap: R,
    /// Its variables, if they are shared.
    pub statics: Option<R>,
    /// Memory of [`LANDING_BYTES`] for gets.
    pub landing: R,
}

/// Where a get lands by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lands {
    /// At a place of this PE.
    At(Place),
    /// At an offset in the workspace.
    InWorkspace(usize),
}

/// The end of a PE, or of the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A PE is not reached any more.
    Down {
        /// The PE.
        pe: usize,
        /// The reason.
        reason: DownReason,
    },
    /// A PE broke the rules.
    Broke {
        /// The PE.
        pe: usize,
        /// The rule.
        breach: Breach,
    },
    /// A large put or get failed.
    Failed {
        /// The PE.
        pe: usize,
        /// The reason.
        error: OperationError,
    },
}

/// The moment that a quiet waits for: how much was begun to each PE.
#[derive(Debug)]
pub struct Quiet {
    marks: Vec<(usize, Mark)>,
}

/// How much was begun to a PE.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    changes: u64,
    puts: u64,
    landings: u64,
    /// Gets with lower numbers were begun.
    gets: u64,
}

/// A get of the fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    Free,
    Open { pe: usize, length: usize },
    Landed { length: usize },
    Lost { pe: usize },
}

/// A piece of the landing with the bytes of a get.
#[derive(PartialEq, Eq, Debug)]
pub struct Piece(usize);

/// The rest of a get.
#[derive(PartialEq, Eq, Debug)]
pub enum Remains {
    /// Its bytes were taken.
    Nothing,
    /// It is under way.
    Piece(Piece),
}

/// The far side of a PE.
#[derive(Debug)]
pub struct Driver<E: Endpoint, M> {
    endpoint: E,
    machine: Machine<M>,
    far: Vec<Option<Far>>,
    pes: BTreeMap<Peer, usize>,
    regions: Regions<E::Region>,
    pieces: [Landing; PIECES],
    /// Gets that land by themselves, by number: their PEs.
    straight: BTreeMap<u64, usize>,
    next_get: u64,
    /// Fences that are under way: the PE, and how many large puts are over at their end.
    fences: BTreeMap<u64, (usize, u64)>,
    next_fence: u64,
    news: VecDeque<News>,
}

impl<E: Endpoint, M: Memory> Driver<E, M> {
    /// The far side of a PE: `far` has the PEs of other hosts at their numbers.
    #[must_use]
    pub fn new(endpoint: E, memory: M, far: Vec<Option<Far>>, regions: Regions<E::Region>) -> Self {
        let of = |(pe, far): (usize, &Option<Far>)| far.map(|far| (far.peer, pe));
        let pes = far.iter().enumerate().filter_map(of).collect();
        let carried = endpoint.capabilities().message_bytes_max;
        let message_bytes = carried.clamp(MESSAGE_BYTES, MESSAGE_BYTES_MAX);
        Self {
            endpoint,
            machine: Machine::new(far.len(), memory, message_bytes),
            far,
            pes,
            regions,
            pieces: [Landing::Free; PIECES],
            straight: BTreeMap::new(),
            next_get: 0,
            fences: BTreeMap::new(),
            next_fence: 0,
            news: VecDeque::new(),
        }
    }

    /// The endpoint, to sleep on.
    pub fn endpoint(&mut self) -> &mut E {
        &mut self.endpoint
    }

    /// The memory of this PE.
    pub fn memory(&mut self) -> &mut M {
        self.machine.memory()
    }

    /// The address of the endpoint.
    pub fn address(&self) -> EndpointAddress {
        self.endpoint.address()
    }

    /// The next thing that happened to a PE.
    pub fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// The handle of a PE of another host if the fabric moves nothing between it and this one.
    pub fn idle_peer(&mut self, pe: usize) -> Option<Peer> {
        let is_of = |piece: &Landing| matches!(piece, Landing::Open { pe: of, .. } if *of == pe);
        let link = self.machine.link(pe);
        let moves = link.puts.is_open() || !link.gets.is_empty() || self.pieces.iter().any(is_of);
        self.far.get(pe).copied().flatten().filter(|_| !moves).map(|far| far.peer)
    }

    /// Puts bytes of up to [`PIECE_BYTES`] to a place. Unless it is `urgent`, a short put leaves
    /// with others.
    ///
    /// # Errors
    /// [`Refused`]: nothing was begun.
    pub fn put(
        &mut self,
        pe: usize,
        place: Place,
        bytes: &[u8],
        urgent: bool,
    ) -> Result<(), Refused> {
        if bytes.len() > INLINE_BYTES {
            return self.put_large(pe, place, bytes);
        }
        self.machine.put(pe, place, bytes)?;
        self.leave(pe, urgent);
        Ok(())
    }

    fn put_large(&mut self, pe: usize, place: Place, bytes: &[u8]) -> Result<(), Refused> {
        let (far, target) = self.target(pe, place)?;
        let link = self.machine.link(pe);
        if link.changes.over < link.fenced {
            self.machine.confirm(pe);
            self.send(pe);
            return Err(Refused::Busy);
        }
        let operation = Operation::new(PUT | pe as u64).quiet();
        match self.endpoint.put(far.peer, Source::Bytes(bytes), target, operation) {
            Ok(Issued::Done(_)) => Ok(()),
            Ok(Issued::Pending) => {
                self.machine.link(pe).puts.begun += 1;
                self.machine.soil(pe);
                Ok(())
            }
            Err(error) => Err(self.refusal(pe, error)),
        }
    }

    /// Changes a word whose former value nobody wants.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn change(
        &mut self,
        pe: usize,
        place: Place,
        atomic: Atomic,
        urgent: bool,
    ) -> Result<(), Refused> {
        self.machine.change(pe, &Entry::Change { place, atomic })?;
        self.leave(pe, urgent);
        Ok(())
    }

    /// Changes a word and asks for its former value; [`Driver::take`] has it.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn fetch(
        &mut self,
        pe: usize,
        place: Place,
        atomic: Atomic,
        goes: Goes,
    ) -> Result<u32, Refused> {
        let id = self.machine.fetch(pe, place, atomic, goes)?;
        self.send(pe);
        Ok(id)
    }

    /// Asks for up to [`DATA_BYTES`] bytes; [`Driver::take`] has them.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn read(
        &mut self,
        pe: usize,
        place: Place,
        length: usize,
        goes: Goes,
    ) -> Result<u32, Refused> {
        let id = self.machine.read(pe, place, length, goes)?;
        self.send(pe);
        Ok(id)
    }

    /// Takes the answer to a question; nothing while it is under way.
    ///
    /// # Errors
    /// [`Refused::Down`].
    pub fn take(&mut self, id: u32) -> Result<Option<Answer>, Refused> {
        self.machine.take(id)
    }

    /// Gets up to [`PIECE_BYTES`] bytes; [`Driver::landed`] has them.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn get(&mut self, pe: usize, place: Place, length: usize) -> Result<Piece, Refused> {
        let (far, target) = self.target(pe, place)?;
        let is_free = |piece: &Landing| *piece == Landing::Free;
        let index = self.pieces.iter().position(is_free).ok_or(Refused::Busy)?;
        let offset = (index * PIECE_BYTES) as u64;
        let into = LocalRange::new(&self.regions.landing, offset, length as u64);
        match self.endpoint.get(far.peer, target, into, Operation::new(GET | index as u64)) {
            Ok(Issued::Done(_)) => self.pieces[index] = Landing::Landed { length },
            Ok(Issued::Pending) => self.pieces[index] = Landing::Open { pe, length },
            Err(error) => return Err(self.refusal(pe, error)),
        }
        Ok(Piece(index))
    }

    /// Gets up to [`PIECE_BYTES`] bytes, which land by themselves up to the next quiet.
    ///
    /// # Errors
    /// [`Refused`].
    ///
    /// # Panics
    /// When this PE has no such place.
    pub fn get_straight(
        &mut self,
        pe: usize,
        place: Place,
        length: usize,
        lands: Lands,
    ) -> Result<(), Refused> {
        let (far, target) = self.target(pe, place)?;
        let Regions { heap, statics, landing } = &self.regions;
        let (region, offset) = match lands {
            Lands::InWorkspace(offset) => (landing, (WORKSPACE + offset) as u64),
            Lands::At(Place { segment: Segment::Heap, offset }) => (heap, offset),
            Lands::At(Place { segment: Segment::Statics, offset }) => {
                (statics.as_ref().expect("its variables are symmetric"), offset)
            }
        };
        let into = LocalRange::new(region, offset, length as u64);
        let number = self.next_get & NUMBER;
        match self.endpoint.get(far.peer, target, into, Operation::new(STRAIGHT | number)) {
            Ok(Issued::Done(_)) => {}
            Ok(Issued::Pending) => {
                self.next_get += 1;
                self.straight.insert(number, pe);
                self.machine.gets(pe, number);
            }
            Err(error) => return Err(self.refusal(pe, error)),
        }
        Ok(())
    }

    /// Has `take` copy the bytes of a get, which have landed, and frees its piece: it gets the
    /// landing, and the offset and length of the bytes. Gives the piece back while they are under
    /// way.
    ///
    /// # Errors
    /// [`Refused::Down`]: they never come.
    pub fn landed(
        &mut self,
        piece: Piece,
        take: &mut dyn FnMut(&E::Region, usize, usize),
    ) -> Result<Remains, Refused> {
        match self.pieces[piece.0] {
            Landing::Landed { length } => {
                take(&self.regions.landing, piece.0 * PIECE_BYTES, length);
                self.pieces[piece.0] = Landing::Free;
                Ok(Remains::Nothing)
            }
            Landing::Lost { pe } => {
                self.pieces[piece.0] = Landing::Free;
                Err(Refused::Down { pe })
            }
            Landing::Open { .. } | Landing::Free => Ok(Remains::Piece(piece)),
        }
    }

    /// Shows a PE a part of the own control area.
    pub fn show(&mut self, pe: usize, offset: usize, bytes: &[u8]) {
        self.machine.show(pe, offset, bytes);
        self.send(pe);
    }

    /// Sends data ahead for a collective call of a PE with its flags at a place.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn send_eager(&mut self, pe: usize, place: Place, bytes: &[u8]) -> Result<(), Refused> {
        self.machine.send_eager(pe, place, bytes)?;
        self.send(pe);
        Ok(())
    }

    /// See [`Machine::take_eager`].
    ///
    /// # Errors
    /// [`Refused::Down`].
    pub fn take_eager(&mut self, pe: usize, place: Place) -> Result<Option<Vec<u8>>, Refused> {
        let taken = self.machine.take_eager(pe, place);
        self.send(pe);
        taken
    }

    /// Orders what came before to each PE before what comes later.
    pub fn fence(&mut self) {
        let mut from = 0;
        while let Some(pe) = self.machine.next_dirty(from) {
            from = pe + 1;
            let link = self.machine.link(pe);
            link.fenced = link.changes.begun;
            if link.puts.is_open()
                && let Some(far) = self.far[pe]
            {
                // A peer that is down has no order any more, and is told by its event.
                let _ = self.endpoint.order(far.peer);
            }
        }
    }

    /// Begins a quiet for all PEs, or for some.
    pub fn begin_quiet(&mut self, only: Option<&[usize]>) -> Quiet {
        let gets = self.next_get;
        self.mark(|pe, link| {
            let (changes, puts, landings) =
                (link.changes.begun, link.puts.begun, link.landings.begun);
            let is_meant = only.is_none_or(|only| only.contains(&pe));
            is_meant.then_some(Mark { changes, puts, landings, gets })
        })
    }

    /// The same for gets alone: all that was asked for is here when it is over.
    pub fn begin_landing(&mut self) -> Quiet {
        let gets = self.next_get;
        self.mark(|_, link| Some(Mark { landings: link.landings.begun, gets, ..Mark::default() }))
    }

    fn mark(&mut self, of: impl Fn(usize, &Link) -> Option<Mark>) -> Quiet {
        let mut marks = Vec::new();
        let mut from = 0;
        while let Some(pe) = self.machine.next_dirty(from) {
            from = pe + 1;
            marks.extend(of(pe, self.machine.link(pe)).map(|mark| (pe, mark)));
        }
        Quiet { marks }
    }

    /// Begins a quiet for all that was said to all PEs that are there, answers and steps included.
    pub fn begin_last_quiet(&mut self) -> Quiet {
        let far = self.far.iter().enumerate().filter_map(|(pe, far)| far.map(|_| pe));
        far.for_each(|pe| self.machine.touch(pe));
        self.begin_quiet(None)
    }

    /// Whether a quiet is over: all that was begun before it is visible, or nobody sees it as its
    /// PE is down. Asks for what has to be asked.
    ///
    /// # Errors
    /// [`Refused::Down`]: what was got of a PE never comes.
    pub fn is_over(&mut self, quiet: &mut Quiet) -> Result<bool, Refused> {
        while let Some((pe, mark)) = quiet.marks.last().copied() {
            let link = self.machine.link(pe);
            let has_landed = link.has_landed(mark.landings, mark.gets);
            let is_visible = link.changes.over >= mark.changes && link.puts.over >= mark.puts;
            match link.standing {
                Standing::Down if !has_landed => return Err(Refused::Down { pe }),
                Standing::Up if !has_landed || !is_visible => break,
                _ => {}
            }
            quiet.marks.pop();
        }
        for index in 0..quiet.marks.len() {
            let (pe, mark) = quiet.marks[index];
            if self.machine.link(pe).changes.over < mark.changes {
                self.machine.confirm(pe);
            }
            self.machine.hurry(pe);
            self.send(pe);
            if mark.puts > 0 {
                self.fence_puts(pe);
            }
        }
        Ok(quiet.marks.is_empty())
    }

    /// Has the fabric tell when the large puts to a PE are over.
    fn fence_puts(&mut self, pe: usize) {
        let Some(far) = self.far[pe] else { return };
        let link = self.machine.link(pe);
        let before = link.puts.asked;
        let Some(puts) = link.puts.ask() else { return };
        let context = FENCE | self.next_fence;
        match self.endpoint.fence(far.peer, context) {
            Ok(Issued::Done(_)) => self.puts_over(pe, puts),
            Ok(Issued::Pending) => {
                self.next_fence = (self.next_fence + 1) & NUMBER;
                self.fences.insert(context, (pe, puts));
            }
            // It is tried again, or its event says that the peer is down.
            Err(_) => self.machine.link(pe).puts.asked = before,
        }
    }

    fn puts_over(&mut self, pe: usize, puts: u64) {
        self.machine.link(pe).puts.reached(puts);
        self.machine.clean(pe);
    }

    /// Lets leave all that waits for more of its kind.
    pub fn hurry(&mut self) {
        self.machine.hurry_all();
        self.send_all();
    }

    /// Whether a message waits for more of its kind.
    #[must_use]
    pub fn lingers(&self) -> bool {
        self.machine.lingers()
    }

    /// Handles what came, and sends what waits. Gives how much came.
    pub fn poll(&mut self) -> usize {
        let Self { endpoint, machine, pes, pieces, straight, fences, news, .. } = self;
        let mut over = Vec::new();
        let events = endpoint.poll(BUDGET, &mut |event| match event {
            Event::Message(message) => {
                if message.header.tag == TAG
                    && let Some(pe) = pes.get(&message.peer)
                    && let Err(breach) = machine.received(*pe, message.payload)
                {
                    machine.down(*pe);
                    news.push_back(News::Broke { pe: *pe, breach });
                }
            }
            Event::Completion(end) => match (end.context & !NUMBER, end.result) {
                (GET, result) => {
                    let index = usize::try_from(end.context & NUMBER).unwrap_or(PIECES);
                    let Some(piece) = pieces.get_mut(index) else { return };
                    let Landing::Open { pe, length } = *piece else { return };
                    *piece = match result {
                        Ok(_) => Landing::Landed { length },
                        Err(error) => {
                            failed(news, pe, error);
                            Landing::Lost { pe }
                        }
                    };
                }
                (STRAIGHT, result) => {
                    let number = end.context & NUMBER;
                    let Some(pe) = straight.remove(&number) else { return };
                    match result {
                        Ok(_) => machine.landed(pe, number),
                        // No quiet is over for it.
                        Err(error) => failed(news, pe, error),
                    }
                }
                (FENCE, _) => over.extend(fences.remove(&end.context)),
                (_, Err(error)) => {
                    let pe = usize::try_from(end.context & NUMBER).unwrap_or(usize::MAX);
                    failed(news, pe, error);
                }
                (_, Ok(_)) => {}
            },
            Event::PeerDown { peer, reason, .. } => {
                if let Some(pe) = pes.remove(&peer) {
                    machine.down(pe);
                    news.push_back(News::Down { pe, reason });
                }
            }
            Event::Room { .. } | Event::GroupRoom { .. } | Event::Notification(_) => {}
        });
        for (pe, puts) in over {
            self.puts_over(pe, puts);
        }
        self.send_all();
        events
    }

    fn target(&self, pe: usize, place: Place) -> Result<(Far, Target), Refused> {
        let far = self.far.get(pe).copied().flatten().ok_or(Refused::Down { pe })?;
        if self.machine.standing(pe) == Standing::Down {
            return Err(Refused::Down { pe });
        }
        let key = match place.segment {
            Segment::Heap => far.heap,
            // A PE without shared variables has none that are symmetric.
            Segment::Statics => far.statics.ok_or(Refused::Down { pe })?,
        };
        Ok((far, Target::new(key, place.offset)))
    }

    fn refusal(&mut self, pe: usize, error: OperationError) -> Refused {
        match error {
            OperationError::WouldBlock => Refused::Busy,
            OperationError::PeerDown | OperationError::UnknownPeer => Refused::Down { pe },
            error => {
                failed(&mut self.news, pe, error);
                Refused::Down { pe }
            }
        }
    }

    fn leave(&mut self, pe: usize, urgent: bool) {
        if urgent {
            self.machine.hurry(pe);
        }
        self.send(pe);
    }

    fn send_all(&mut self) {
        let mut from = 0;
        while let Some(pe) = self.machine.next_sending(from) {
            from = pe + 1;
            self.send(pe);
        }
    }

    /// Sends what may leave to a PE. What finds no room is sent by a later poll.
    fn send(&mut self, pe: usize) {
        let Some(far) = self.far.get(pe).copied().flatten() else { return };
        while let Some(message) = self.machine.message(pe) {
            match self.endpoint.send_short(far.peer, MessageHeader::tag(TAG), &[message]) {
                Ok(()) => self.machine.sent(pe),
                Err(SendError::WouldBlock) => return,
                // An event tells of its end.
                Err(_) => return self.machine.down(pe),
            }
        }
    }
}

fn failed(news: &mut VecDeque<News>, pe: usize, error: OperationError) {
    // The event of the peer tells it.
    if !matches!(error, OperationError::PeerDown | OperationError::UnknownPeer) {
        news.push_back(News::Failed { pe, error });
    }
}
