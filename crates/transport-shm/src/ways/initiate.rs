//! The initiator of operations that a peer carries out: it accepts them, asks the peer as far as
//! there is room, and ends them.
//!
//! # Invariants
//! - No more operations are under way, or ended and not handed out, than the capabilities say.
//! - Bytes whose memory may be used again are kept: [`KEPT_MAX`] for one peer, or those of one
//!   operation.
//! - Every operation ends: with the peer's answers, with its cancellation, or with the peer.

use weft_fabric::{
    Atomic, Command, Issued, LocalRange, Operation, OperationError, Peer, Register, RemoteKey,
    Signal, Source, Target,
};

use super::jobs::{Ask, Job, Jobs, Local, Range, Work};
use super::packet::{ANSWER_FLAGS, Answer, Outcome, Piece, QUESTION_FLAGS, Question, Verb};
use crate::address_vector::PeerState;
use crate::attr::Parameters;
use crate::endpoint::ShmEndpoint;
use crate::memory::ShmRegion;
use crate::recent::Recently;
use crate::rma::{Account, check_notify, source_start};

/// Bytes of puts that are kept for one peer, unless one put alone has more.
const KEPT_MAX: usize = 16 << 20;

/// The operations of an endpoint that peers carry out.
#[derive(Debug, Default)]
pub struct Initiated {
    /// How many there are.
    open: usize,
    /// The number of the last one.
    number: u64,
    /// Fences of all peers, which end when no job up to their number is left.
    fences: Vec<FenceAll>,
    /// Peers for which an operation was refused, because there were too many.
    refused: Vec<Peer>,
}

#[derive(Clone, Copy, Debug)]
struct FenceAll {
    number: u64,
    ticket: u32,
    context: u64,
}

/// An operation that a peer is to carry out.
pub enum Wanted<'a, 'b> {
    Put { ranges: &'a [(Source<'b, ShmRegion>, Target)], signal: Option<Signal> },
    Get { ranges: &'a [(Target, LocalRange<'b, ShmRegion>)] },
    Immediate { value: u64, length: u8, target: Target },
    Atomic { atomic: Atomic, target: Target },
}

impl Wanted<'_, '_> {
    /// Its command, and the key, offset and length that its notifications name.
    fn account(&self, operation: Operation) -> Account {
        let account = |command, Target { key, offset }, length| Account {
            command,
            operation,
            key,
            offset,
            length,
        };
        let nowhere = Target::new(RemoteKey(0), 0);
        let sum = |all: u64, one: u64| all.saturating_add(one);
        match self {
            Self::Put { ranges, .. } => {
                let first = ranges.first().map_or(nowhere, |(_, target)| *target);
                let lengths = ranges.iter().map(|(source, _)| source.length());
                account(Command::Put, first, lengths.fold(0, sum))
            }
            Self::Get { ranges } => {
                let first = ranges.first().map_or(nowhere, |(source, _)| *source);
                let lengths = ranges.iter().map(|(_, into)| into.length);
                account(Command::Get, first, lengths.fold(0, sum))
            }
            Self::Immediate { length, target, .. } => {
                account(Command::ImmediatePut, *target, u64::from(*length))
            }
            Self::Atomic { atomic, target } => {
                account(Command::Atomic, *target, atomic.width.bytes())
            }
        }
    }

    /// Bytes that have to be kept.
    fn kept(&self) -> usize {
        let Self::Put { ranges, .. } = self else { return 0 };
        let kept = |(source, _): &(Source<'_, ShmRegion>, Target)| match source {
            Source::Bytes(bytes) => bytes.len(),
            Source::Region(_) => 0,
        };
        ranges.iter().map(kept).sum()
    }

    /// Checks the local memory, and keeps what has to be kept.
    fn work(&self) -> Result<Work, OperationError> {
        let word = |verb, target, length| Work::Word {
            verb,
            piece: Piece { target, length, start: 0, bytes: length },
        };
        Ok(match self {
            Self::Put { ranges, signal } => {
                let range = |(source, target): &(Source<'_, ShmRegion>, Target)| {
                    let start = source_start(source)?;
                    let local = match source {
                        Source::Bytes(bytes) => Local::Kept((*bytes).into()),
                        Source::Region(range) => Local::Region(range.region.clone(), start),
                    };
                    Ok(Range { target: *target, length: source.length(), local })
                };
                let ranges: Result<_, OperationError> = ranges.iter().map(range).collect();
                Work::Put { ranges: ranges?, signal: *signal }
            }
            Self::Get { ranges } => {
                let range = |(source, into): &(Target, LocalRange<'_, ShmRegion>)| {
                    let start = into.region.check(into.offset, into.length)?;
                    let local = Local::Region(into.region.clone(), start);
                    Ok(Range { target: *source, length: into.length, local })
                };
                let ranges: Result<_, OperationError> = ranges.iter().map(range).collect();
                Work::Get { ranges: ranges? }
            }
            Self::Immediate { value, length, target } => {
                word(Verb::Immediate(*value), *target, u64::from(*length))
            }
            Self::Atomic { atomic, target } => {
                word(Verb::Atomic(*atomic), *target, atomic.width.bytes())
            }
        })
    }
}

/// The operations of an endpoint that go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moved {
    Something,
    Nothing,
}

impl ShmEndpoint {
    /// Accepts an operation that a peer is to carry out.
    pub(super) fn submit(
        &mut self,
        to: Peer,
        operation: Operation,
        wanted: Wanted<'_, '_>,
    ) -> Result<Issued, OperationError> {
        let account = wanted.account(operation);
        operation.notify.check(account.command)?;
        let fetches = matches!(&wanted, Wanted::Atomic { atomic, .. } if atomic.fetches);
        let (kept, more) = (self.peers.find(to)?.jobs.kept, wanted.kept());
        if kept > 0 && more > 0 && kept.saturating_add(more) > KEPT_MAX {
            return Err(self.too_many(to));
        }
        self.enqueue(to, account, fetches, wanted.work()?)
    }

    fn enqueue(
        &mut self,
        to: Peer,
        account: Account,
        fetches: bool,
        work: Work,
    ) -> Result<Issued, OperationError> {
        self.check_operations(to)?;
        let ticket = self.next_ticket();
        self.initiated.open += 1;
        self.initiated.number += 1;
        let job = Job::new(ticket, self.initiated.number, account, fetches, work);
        let peer = self.peers.find(to)?;
        peer.jobs.push(job);
        peer.hold();
        let vpid = peer.vpid();
        // The translation at hand knows nothing of peers that are held.
        self.recently = Recently::default();
        self.advance(vpid);
        Ok(Issued::Pending)
    }

    fn check_operations(&mut self, to: Peer) -> Result<(), OperationError> {
        let all = self.initiated.open + self.initiated.fences.len() + self.requests.ended_calls();
        if all >= self.capabilities.operations_max { Err(self.too_many(to)) } else { Ok(()) }
    }

    /// There is room when an operation ends, or when its end is handed out.
    fn too_many(&mut self, to: Peer) -> OperationError {
        if self.initiated.open == 0 {
            self.requests.tell_room(to);
        } else if !self.initiated.refused.contains(&to) {
            self.initiated.refused.push(to);
        }
        OperationError::WouldBlock
    }

    pub(crate) fn do_fence(&mut self, to: Peer, context: u64) -> Result<Issued, OperationError> {
        if self.peers.find(to)?.jobs.is_empty() {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            return Ok(Issued::Done(0));
        }
        let (key, operation) = (RemoteKey(0), Operation::new(context));
        let account =
            Account { command: Command::NotificationPut, operation, key, offset: 0, length: 0 };
        self.enqueue(to, account, false, Work::Fence)
    }

    pub(crate) fn do_fence_all(&mut self, context: u64) -> Result<Issued, OperationError> {
        if self.initiated.open == 0 {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            return Ok(Issued::Done(0));
        }
        let busy = self.peers.iter().find(|peer| !peer.jobs.is_empty()).map(|peer| peer.handle);
        if let Some(busy) = busy {
            self.check_operations(busy)?;
        }
        let (number, ticket) = (self.initiated.number, self.next_ticket());
        self.initiated.fences.push(FenceAll { number, ticket, context });
        Ok(Issued::Pending)
    }

    pub(crate) fn do_cancel(&mut self, to: Peer, context: u64) -> Result<(), OperationError> {
        let peer = self.peers.find(to)?;
        let vpid = peer.vpid();
        if let Some(job) = peer.jobs.cancel(context) {
            let (ticket, error) = (job.ticket, OperationError::Cancelled);
            self.end_job(ticket, context, Err(error), true);
            self.advance(vpid);
        }
        Ok(())
    }

    /// A peer is gone: what it was to carry out ends.
    pub(crate) fn end_jobs(&mut self, jobs: &mut Jobs) {
        while let Some(job) = jobs.pop() {
            let context = job.account.operation.context;
            self.end_job(job.ticket, context, Err(OperationError::PeerDown), true);
        }
    }

    /// An operation, or a fence, ends.
    fn end_job(
        &mut self,
        ticket: u32,
        context: u64,
        result: Result<u64, OperationError>,
        is_reported: bool,
    ) {
        self.initiated.open -= 1;
        if result.is_err() {
            self.registers.count(Register::Errors, 1);
        }
        if is_reported {
            self.requests.end(ticket, Some(context), result);
        }
        for peer in std::mem::take(&mut self.initiated.refused) {
            self.requests.tell_room(peer);
        }
        if !self.initiated.fences.is_empty() {
            let first = self.peers.iter().filter_map(|peer| peer.jobs.first()).min();
            let is_over = |fence: &FenceAll| first.is_none_or(|first| first > fence.number);
            let fences = &mut self.initiated.fences;
            for fence in fences.extract_if(.., |fence| is_over(fence)) {
                self.requests.end(fence.ticket, Some(fence.context), Ok(0));
            }
        }
    }

    /// Goes on with all that a peer carries out or is owed, as far as there is room.
    pub(crate) fn advance(&mut self, vpid: u16) {
        if self.peers.by_vpid(vpid).is_some_and(|peer| peer.is_cut_off()) {
            return;
        }
        self.pay(vpid);
        while self.end_some(vpid) == Moved::Something || self.ask_some(vpid) == Moved::Something {}
        let Some(peer) = self.peers.by_vpid(vpid) else { return };
        if peer.is_held() && peer.jobs.is_empty() {
            let handle = peer.handle;
            if peer.release() {
                self.requests.tell_room(handle);
            }
        }
    }

    /// Goes on with the peers that have room again.
    pub(crate) fn advance_stuck(&mut self) {
        for vpid in self.waits_for_room.clone() {
            let goes_on = |peer: &mut PeerState| peer.jobs.is_stuck && peer.has_room();
            if self.peers.by_vpid(vpid).is_some_and(goes_on) {
                self.advance(vpid);
            }
        }
    }

    /// Something waits for room at a peer, or in the own queue.
    fn get_stuck(&mut self, vpid: u16) {
        let Some(peer) = self.peers.by_vpid(vpid) else { return };
        let is_listed = peer.wants_room || peer.jobs.is_stuck;
        peer.jobs.is_stuck = true;
        if !is_listed {
            self.waits_for_room.push(vpid);
        }
    }

    /// Sends the answers that are owed to a peer.
    fn pay(&mut self, vpid: u16) {
        let own = self.address.vpid.0;
        let Some(peer) = self.peers.by_vpid(vpid) else { return };
        if std::mem::take(&mut peer.jobs.is_stuck) && !peer.wants_room {
            self.waits_for_room.retain(|other| *other != vpid);
        }
        let Some(peer) = self.peers.by_vpid(vpid) else { return };
        while let Some(answer) = peer.jobs.owed.front().copied() {
            if !peer.outlet().emit_words(own, 0, ANSWER_FLAGS, &answer, false) {
                return self.get_stuck(vpid);
            }
            peer.jobs.owed.pop_front();
        }
    }

    /// Ends the operations that are over, in their order.
    fn end_some(&mut self, vpid: u16) -> Moved {
        let free = self.local.free();
        let Some(peer) = self.peers.by_vpid(vpid) else { return Moved::Nothing };
        let Some(job) = peer.jobs.first_over() else { return Moved::Nothing };
        let account = job.account;
        let (result, is_reported) = job.end();
        if result.is_ok() {
            let Account { command, operation, .. } = account;
            if check_notify(peer, free, command, operation.notify).is_err() {
                self.get_stuck(vpid);
                return Moved::Nothing;
            }
        }
        let handle = peer.handle;
        let Some(job) = peer.jobs.pop() else { return Moved::Nothing };
        if result.is_ok() && !job.is_fence() {
            self.count(&account);
            self.tell(handle, account);
        }
        self.end_job(job.ticket, account.operation.context, result, is_reported);
        Moved::Something
    }

    fn count(&self, account: &Account) {
        match account.command {
            Command::Get => {
                self.registers.count(Register::Gets, 1);
                self.registers.count(Register::GetBytes, account.length);
            }
            Command::Atomic => self.registers.count(Register::Atomics, 1),
            _ => {
                let begun = self.registers.begin_put();
                self.registers.end_put(begun, account.length);
            }
        }
    }

    /// Asks for what is next, if there is room.
    fn ask_some(&mut self, vpid: u16) -> Moved {
        let (own, parameters) = (self.address.vpid.0, self.parameters);
        let Some(peer) = self.peers.by_vpid(vpid) else { return Moved::Nothing };
        let has_room = peer.has_room();
        let PeerState { jobs, pair, .. } = peer;
        let (number, place) = (jobs.next_number(), jobs.free_place());
        let Some((job, ask)) = jobs.next() else { return Moved::Nothing };
        if !has_room {
            self.get_stuck(vpid);
            return Moved::Nothing;
        }
        let (verb, piece, place) = match (ask, place) {
            (Ask::Check { access, width, piece }, _) => {
                (Verb::Check { access, width }, piece, None)
            }
            (Ask::Word { verb, piece }, _) => (verb, piece, None),
            (Ask::Copy { range, piece }, Some(place)) => {
                let verb = if job.writes() {
                    if let Some(range) = job.range(range) {
                        let (segment, at) = pair.own_place(place);
                        fill(segment, at, range, &piece, parameters);
                    }
                    Verb::Write(place)
                } else {
                    Verb::Read(place)
                };
                (verb, piece, Some(place))
            }
            (Ask::Copy { .. }, None) => return Moved::Nothing,
        };
        jobs.asked(ask, place);
        let words = Question { number, verb, piece }.encode();
        let sent = peer.outlet().emit_words(own, 0, QUESTION_FLAGS, &words, false);
        debug_assert!(sent, "there was room");
        Moved::Something
    }

    /// A peer answered. False when it broke the rules.
    pub(super) fn take_answer(&mut self, vpid: u16, answer: Answer) -> bool {
        let parameters = self.parameters;
        let Some(peer) = self.peers.by_vpid(vpid) else { return true };
        let PeerState { jobs, pair, .. } = peer;
        let Answer { number, outcome } = answer;
        let Some((open, job)) = jobs.answered(number, outcome) else { return false };
        if let (Outcome::Done(_), Some(place), Some(range), false) =
            (outcome, open.place, open.range, job.writes())
            && let Some(range) = job.range(range)
        {
            let (segment, at) = pair.own_place(place);
            take(segment, at, range, &open.piece, parameters);
        }
        self.advance(vpid);
        true
    }
}

/// Copies a piece of local memory to a place.
fn fill(
    places: &weft_memory::Segment,
    at: usize,
    range: &Range,
    piece: &Piece,
    parameters: Parameters,
) {
    let (start, bytes) = in_memory(piece);
    let mode = parameters.copy_mode(bytes);
    match &range.local {
        Local::Kept(kept) => places.write(at, &kept[start..start + bytes], mode),
        Local::Region(region, first) => {
            region.segment().copy(first + start, places, at, bytes, mode);
        }
    }
}

/// Copies a piece from a place to local memory.
fn take(
    places: &weft_memory::Segment,
    at: usize,
    range: &Range,
    piece: &Piece,
    parameters: Parameters,
) {
    let (start, bytes) = in_memory(piece);
    if let Local::Region(region, first) = &range.local {
        let to = first + start;
        let mode = parameters.copy_mode(bytes);
        region.memory().writing(to, bytes, |segment| places.copy(at, segment, to, bytes, mode));
    }
}

/// Start and length of a piece of local memory, whose bounds were checked.
fn in_memory(piece: &Piece) -> (usize, usize) {
    let [start, bytes] = [piece.start, piece.bytes].map(|of| usize::try_from(of).unwrap_or(0));
    (start, bytes)
}
