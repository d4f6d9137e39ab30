//! Operations that a peer carries out for this endpoint, as a state machine without rings.
//!
//! A job is one operation. It becomes questions, a bounded number of which are under way. Questions
//! go in the order of the jobs, and the peer answers in the order of the questions.
//!
//! # Invariants
//! - An operation on several ranges, or with a signal, is checked whole before anything of it is
//!   written. A signal is asked for when all data was answered for.
//! - A job that failed asks for nothing more, and ends when what was asked is answered.
//! - Questions of a job follow those of the one before, unless that one tells the peer of its end:
//!   then that comes first.

use std::collections::VecDeque;

use weft_fabric::{Access, Command, OperationError, Report, Signal, Target};

use super::packet::{AnswerWords, Outcome, Piece, Verb};
use crate::memory::ShmRegion;
use crate::pair::{PLACE_BYTES, PLACES, Place};
use crate::rma::Account;

/// Questions to one peer that are under way at most. A peer keeps as many answers.
pub const QUESTIONS_MAX: usize = 16;

/// The local memory of a range.
#[derive(Debug)]
pub enum Local {
    /// Bytes that were copied, since their memory may be used again.
    Kept(Box<[u8]>),
    /// A range of a region that begins here.
    Region(ShmRegion, usize),
}

/// A range that a job copies.
#[derive(Debug)]
pub struct Range {
    pub target: Target,
    pub length: u64,
    pub local: Local,
}

/// The work of a job.
#[derive(Debug)]
pub enum Work {
    /// Writes to the ranges, and then changes a word.
    Put { ranges: Vec<Range>, signal: Option<Signal> },
    /// Reads the ranges.
    Get { ranges: Vec<Range> },
    /// Changes a word, or writes a few bytes.
    Word { verb: Verb, piece: Piece },
    /// Nothing: it ends behind the jobs before.
    Fence,
}

/// How far the questions of a job are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// This range is checked next; the one behind the last is the word of the signal.
    Check(usize),
    /// All is checked, when the answers are there.
    Checked,
    /// From this byte of a range on is copied next.
    Copy(usize, u64),
    /// The word is changed next, when the answers are there.
    Word,
    /// All is asked for.
    Asked,
}

/// An operation.
#[derive(Debug)]
pub struct Job {
    pub ticket: u32,
    /// Jobs of an endpoint are numbered.
    pub number: u64,
    pub account: Account,
    /// Whether an atomic returns the former value.
    pub fetches: bool,
    work: Work,
    stage: Stage,
    /// Something of it was asked for.
    begun: bool,
    /// Questions without an answer.
    open: usize,
    result: Result<u64, OperationError>,
}

/// A question without its number and place.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Check {
        access: Access,
        width: u8,
        piece: Piece,
    },
    /// A piece of the range with this index.
    Copy {
        range: usize,
        piece: Piece,
    },
    Word {
        verb: Verb,
        piece: Piece,
    },
}

/// The next step of a job.
#[derive(Debug)]
pub enum Next {
    Ask(Ask),
    /// Answers have to come first.
    Wait,
    /// All is asked for.
    Asked,
}

impl Job {
    pub fn new(ticket: u32, number: u64, account: Account, fetches: bool, work: Work) -> Self {
        let stage = match &work {
            Work::Put { ranges, signal } if ranges.len() > 1 || signal.is_some() => Stage::Check(0),
            Work::Get { ranges } if ranges.len() > 1 => Stage::Check(0),
            Work::Put { .. } | Work::Get { .. } => Stage::Copy(0, 0),
            Work::Word { .. } => Stage::Word,
            Work::Fence => Stage::Asked,
        };
        let (begun, open) = (false, 0);
        Self { ticket, number, account, fetches, work, stage, begun, open, result: Ok(0) }
    }

    fn ranges(&self) -> &[Range] {
        match &self.work {
            Work::Put { ranges, .. } | Work::Get { ranges } => ranges,
            Work::Word { .. } | Work::Fence => &[],
        }
    }

    /// The range with this index.
    pub fn range(&self, index: usize) -> Option<&Range> {
        self.ranges().get(index)
    }

    /// Whether the bytes go to the peer.
    pub fn writes(&self) -> bool {
        matches!(self.work, Work::Put { .. })
    }

    /// Bytes that are kept for it.
    pub fn kept(&self) -> usize {
        let kept = |range: &Range| match &range.local {
            Local::Kept(bytes) => bytes.len(),
            Local::Region(..) => 0,
        };
        self.ranges().iter().map(kept).sum()
    }

    fn access(&self) -> Access {
        if self.writes() { Access::WRITE } else { Access::READ }
    }

    /// The next question. [`Job::asked`] says that it was asked.
    pub fn next(&mut self) -> Next {
        if self.result.is_err() {
            self.stage = Stage::Asked;
        }
        if self.stage == Stage::Checked && self.open == 0 {
            self.stage = Stage::Copy(0, 0);
        }
        match self.stage {
            Stage::Check(index) => Next::Ask(match (&self.work, self.range(index)) {
                (_, Some(range)) => {
                    let piece = range.piece(0, 0);
                    Ask::Check { access: self.access(), width: 1, piece }
                }
                (Work::Put { ranges, signal: Some(signal) }, None) if index == ranges.len() => {
                    let access = signal.change.access();
                    Ask::Check { access, width: 8, piece: word(signal.target, 8) }
                }
                _ => {
                    self.stage = Stage::Checked;
                    return self.next();
                }
            }),
            Stage::Checked => Next::Wait,
            Stage::Copy(range, start) => match self.range(range) {
                Some(of) => Next::Ask(Ask::Copy { range, piece: of.piece(start, PLACE) }),
                None => {
                    self.stage = match &self.work {
                        Work::Put { signal: Some(_), .. } => Stage::Word,
                        _ => Stage::Asked,
                    };
                    self.next()
                }
            },
            Stage::Word if self.open > 0 => Next::Wait,
            Stage::Word => match &self.work {
                Work::Word { verb, piece } => Next::Ask(Ask::Word { verb: *verb, piece: *piece }),
                Work::Put { signal: Some(signal), .. } => {
                    let verb = Verb::Signal(signal.change);
                    Next::Ask(Ask::Word { verb, piece: word(signal.target, 8) })
                }
                _ => Next::Asked,
            },
            Stage::Asked => Next::Asked,
        }
    }

    /// The question of [`Job::next`] was asked.
    pub fn asked(&mut self) {
        self.begun = true;
        self.open += 1;
        self.stage = match self.stage {
            Stage::Check(index) => Stage::Check(index + 1),
            Stage::Copy(index, start) => match self.range(index) {
                Some(range) if range.length - start > PLACE => Stage::Copy(index, start + PLACE),
                _ => Stage::Copy(index + 1, 0),
            },
            Stage::Word | Stage::Asked | Stage::Checked => Stage::Asked,
        };
    }

    /// The first error counts, and the last value.
    fn answered(&mut self, result: Result<u64, OperationError>) {
        self.open = self.open.saturating_sub(1);
        if self.result.is_ok() {
            self.result = result;
        }
    }

    fn is_over(&mut self) -> bool {
        matches!(self.next(), Next::Asked) && self.open == 0
    }

    /// The result, and whether it is to be reported.
    pub fn end(&self) -> (Result<u64, OperationError>, bool) {
        let result = match &self.work {
            Work::Word { .. } if self.fetches => self.result.clone(),
            _ => self.result.clone().map(|_| 0),
        };
        let silent = result.is_ok() && self.account.operation.report == Report::Errors;
        (result, !silent)
    }

    /// Whether it is only a fence.
    pub fn is_fence(&self) -> bool {
        matches!(self.work, Work::Fence)
    }
}

const PLACE: u64 = PLACE_BYTES as u64;

impl Range {
    fn piece(&self, start: u64, most: u64) -> Piece {
        let bytes = (self.length - start).min(most);
        Piece { target: self.target, length: self.length, start, bytes }
    }
}

fn word(target: Target, length: u64) -> Piece {
    Piece { target, length, start: 0, bytes: length }
}

/// A question without an answer.
#[derive(Debug)]
pub struct Open {
    pub number: u32,
    pub piece: Piece,
    pub place: Option<Place>,
    /// The range that the piece is of.
    pub range: Option<usize>,
}

/// The jobs of one peer, and the answers owed to it.
#[derive(Debug, Default)]
pub struct Jobs {
    jobs: VecDeque<Job>,
    /// How many of them have asked for everything.
    asked: usize,
    open: VecDeque<Open>,
    number: u32,
    /// One bit for each place in use.
    places: u8,
    /// Bytes that are kept for all jobs.
    pub kept: usize,
    /// There is something to send for which the peer's ring, or the own queue, had no room.
    pub is_stuck: bool,
    /// Answers for which the peer's ring had no room.
    pub owed: VecDeque<AnswerWords>,
}

impl Jobs {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The smallest number of a job.
    pub fn first(&self) -> Option<u64> {
        self.jobs.front().map(|job| job.number)
    }

    /// Adds a job behind all others.
    pub fn push(&mut self, job: Job) {
        self.kept += job.kept();
        self.jobs.push_back(job);
    }

    /// The next question, and the job that asks it.
    pub fn next(&mut self) -> Option<(&Job, Ask)> {
        if self.open.len() >= QUESTIONS_MAX {
            return None;
        }
        let has_place = self.places.count_ones() < u32::from(PLACES);
        while let Some(job) = self.jobs.get_mut(self.asked) {
            match job.next() {
                Next::Ask(Ask::Copy { .. }) if !has_place => return None,
                Next::Ask(ask) => return self.jobs.get(self.asked).map(|job| (job, ask)),
                Next::Wait => return None,
                // It has to tell the peer first.
                Next::Asked if job.account.at_target().is_some() => return None,
                Next::Asked => self.asked += 1,
            }
        }
        None
    }

    /// A place that nobody uses.
    pub fn free_place(&self) -> Option<Place> {
        (0..PLACES).find(|number| self.places & 1 << number == 0).and_then(Place::new)
    }

    /// The number of the next question.
    pub fn next_number(&self) -> u32 {
        self.number.wrapping_add(1)
    }

    /// The question of [`Jobs::next`] was asked, with this place.
    pub fn asked(&mut self, ask: Ask, place: Option<Place>) {
        self.number = self.next_number();
        if let Some(place) = place {
            self.places |= 1 << place.number();
        }
        let (piece, range) = match ask {
            Ask::Check { piece, .. } | Ask::Word { piece, .. } => (piece, None),
            Ask::Copy { range, piece } => (piece, Some(range)),
        };
        self.open.push_back(Open { number: self.number, piece, place, range });
        if let Some(job) = self.jobs.get_mut(self.asked) {
            job.asked();
        }
    }

    /// The question that an answer is to, and its job. `None` when the answer is to another one
    /// than the oldest: the peer broke the rules.
    pub fn answered(&mut self, number: u32, outcome: Outcome) -> Option<(Open, &Job)> {
        let open = self.open.pop_front().filter(|open| open.number == number)?;
        if let Some(place) = open.place {
            self.places &= !(1 << place.number());
        }
        // Jobs without open questions that are over were taken out, so the first with one asked.
        let job = self.jobs.iter_mut().find(|job| job.open > 0)?;
        let command = match open.range {
            // A signal is part of its put.
            _ if job.writes() => Command::Put,
            _ => job.account.command,
        };
        job.answered(outcome.result(command, &open.piece));
        Some((open, job))
    }

    /// The first job, if it is over.
    pub fn first_over(&mut self) -> Option<&Job> {
        let is_over = self.jobs.front_mut()?.is_over();
        self.jobs.front().filter(|_| is_over)
    }

    /// Takes the first job, which is over.
    pub fn pop(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.kept -= job.kept();
        self.asked = self.asked.saturating_sub(1);
        Some(job)
    }

    /// Takes an operation with this context of which nothing was asked for.
    pub fn cancel(&mut self, context: u64) -> Option<Job> {
        let is =
            |job: &Job| !job.begun && !job.is_fence() && job.account.operation.context == context;
        let place = self.jobs.iter().position(is)?;
        let job = self.jobs.remove(place)?;
        self.kept -= job.kept();
        Some(job)
    }
}
